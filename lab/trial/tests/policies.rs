//! What must hold for every policy of a trial: the properties of `tune`, with the policies that do not ship.

#[path = "../../../crates/tune/tests/properties/mod.rs"]
mod properties;

fn known() -> Vec<tune::registry::PolicyEntry> {
    trial::policies::POLICIES.clone()
}
