//! What must hold for every policy that ships.

mod properties;

fn known() -> Vec<tune::registry::Entry> {
    tune::registry::POLICIES.to_vec()
}
