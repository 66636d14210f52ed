//! Properties of every policy that ships.

mod properties;

fn known() -> Vec<tune::registry::PolicyEntry> {
    tune::registry::POLICIES.to_vec()
}
