//! What this program offers by name: what ships, and the published systems.

use place::Registry;
use std::sync::LazyLock;

/// Searches and contention rules.
pub fn searches() -> &'static Registry {
    static REGISTRY: LazyLock<Registry> = LazyLock::new(|| {
        let mut registry = Registry::shipped();
        ::papers::register(&mut registry).expect("no name of the papers is one that ships");
        registry
    });
    &REGISTRY
}
