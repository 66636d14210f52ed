//! The searches that ship and those of the papers, by name.

use place::{Registry, Search};
use std::sync::LazyLock;

/// Everything that `papers` registers, after what ships.
pub static REGISTRY: LazyLock<Registry> = LazyLock::new(|| {
    let mut registry = Registry::shipped();
    papers::register_searches(&mut registry).unwrap();
    registry
});

/// The search of a name that is known.
pub fn by_name(name: &str, seed: u64) -> Box<dyn Search> {
    REGISTRY.search(name, seed).unwrap_or_else(|e| panic!("{}", e.message))
}

/// The names of all searches.
pub fn names() -> impl Iterator<Item = &'static str> {
    REGISTRY.search_names()
}
