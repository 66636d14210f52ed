//! Registries with all that linkwise ships and the papers' systems, for programs that offer both.

use crate::bandpilot::{self, BandPilot, BwGreedy, CasCore, Eha, MERGE_COUNTS, Pts, RandomSearch, Serving};
use crate::litegd::{LiteGd, topo_greedy};
use place::Registry;
use place::search::{Rule, SearchEntry, SearchNameTaken};
use predict::ModelKinds;
use route::Planners;
use std::sync::LazyLock;

/// The searches and contention rules, shipped and of the papers.
pub fn searches() -> &'static Registry {
    static SEARCHES: LazyLock<Registry> = LazyLock::new(|| {
        let mut registry = Registry::shipped();
        register(&mut registry).expect("no name of the papers is one that ships");
        registry
    });
    &SEARCHES
}

/// The kinds of models and the formats of their files, shipped and of the papers.
pub fn models() -> &'static ModelKinds {
    static MODELS: LazyLock<ModelKinds> = LazyLock::new(|| {
        let mut kinds = ModelKinds::shipped();
        crate::register_models(&mut kinds).expect("no name of the papers is one that ships");
        kinds
    });
    &MODELS
}

/// The planners of routes, shipped and of the papers.
pub fn planners() -> &'static Planners {
    static PLANNERS: LazyLock<Planners> = LazyLock::new(|| {
        let mut planners = Planners::shipped();
        crate::register_planners(&mut planners).expect("no name of the papers is one that ships");
        planners
    });
    &PLANNERS
}

/// Adds the searches and the contention rule of the papers to a registry.
pub fn register(registry: &mut Registry) -> Result<(), SearchNameTaken> {
    for entry in ENTRIES {
        registry.add_search(entry)?;
    }
    registry.add_merge_rule(&MERGE_COUNTS)
}

/// The searches of the papers.
const ENTRIES: [SearchEntry; 11] = [
    SearchEntry { name: "bandpilot", about: "BandPilot: the better of eha and pts", build: |_| Box::new(BandPilot) },
    SearchEntry {
        name: "bandpilot-v4",
        about: "BandPilot's newer form: coarse stage over hosts and pods, pts only where past requests say that it helps",
        build: |_| Box::new(Serving::default()),
    },
    SearchEntry {
        name: "eha",
        about: "BandPilot's equilibrium-driven heuristic: one host if one fits, else the fewest hosts, evenly filled",
        build: |_| Box::new(Eha),
    },
    SearchEntry {
        name: "pts",
        about: "BandPilot's pruned tree search: drops the GPU that hurts most, one by one",
        build: |_| Box::new(Pts),
    },
    SearchEntry {
        name: "litegd",
        about: "LiteGD's bidirectional tree search with insertion: the better of dropping and adding GPUs one by one",
        build: |_| Box::new(LiteGd),
    },
    SearchEntry { name: "random", about: "free GPUs, drawn evenly", build: |seed| Box::new(RandomSearch { seed }) },
    SearchEntry {
        name: "default",
        about: "nearest by NUMA node, then by host; the freest first",
        build: |_| Box::new(Rule { name: "default", choose: bandpilot::numa::choose }),
    },
    SearchEntry {
        name: "topo-v4",
        about: "the best-connected set of the fewest hosts, filled greedily by link labels",
        build: |_| Box::new(Rule { name: "topo-v4", choose: bandpilot::topo_v4::choose_v4 }),
    },
    SearchEntry {
        name: "topo-greedy",
        about: "grows from the best-linked pair by link labels",
        build: |_| Box::new(Rule { name: "topo-greedy", choose: topo_greedy::choose }),
    },
    SearchEntry {
        name: "bw-greedy",
        about: "grows from the best pair by predicted bandwidths of pairs",
        build: |_| Box::new(BwGreedy),
    },
    SearchEntry {
        name: "cascore",
        about: "compact host sets, re-ranked by what running jobs leave",
        build: |_| Box::new(CasCore),
    },
];
