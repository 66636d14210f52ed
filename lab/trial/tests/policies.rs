//! Properties of every policy of a trial: the properties in `tune`, with the policies that are not shipped.

#[path = "../../../crates/tune/tests/properties/mod.rs"]
mod properties;

fn known() -> Vec<tune::registry::PolicyEntry> {
    trial::policies::POLICIES.clone()
}
