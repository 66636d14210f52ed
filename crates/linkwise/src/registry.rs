//! What this program offers by name: what ships, and the published systems.

use place::Registry;
use predict::ModelKinds;
use route::Planners;
use std::sync::LazyLock;

/// Searches and contention rules.
pub fn searches() -> &'static Registry {
    static REGISTRY: LazyLock<Registry> = LazyLock::new(|| {
        let mut registry = Registry::shipped();
        ::papers::register_searches(&mut registry).expect("no name of the papers is one that ships");
        registry
    });
    &REGISTRY
}

/// Kinds of models, and the forms of their files.
pub fn models() -> &'static ModelKinds {
    static KINDS: LazyLock<ModelKinds> = LazyLock::new(|| {
        let mut kinds = ModelKinds::shipped();
        ::papers::register_models(&mut kinds).expect("no name of the papers is one that ships");
        kinds
    });
    &KINDS
}

/// Planners of routes.
pub fn planners() -> &'static Planners {
    static PLANNERS: LazyLock<Planners> = LazyLock::new(|| {
        let mut planners = Planners::shipped();
        ::papers::register_planners(&mut planners).expect("no name of the papers is one that ships");
        planners
    });
    &PLANNERS
}
