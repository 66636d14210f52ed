//! The searches that an evaluation compares: those that ship, those of the papers, and the even split.

use place::search::{Registry, Rule, SearchEntry};
use std::sync::LazyLock;
use topology::{Allocation, Cluster, HostId};

/// What a careful person does without a measurement.
const EVEN: Rule = Rule { name: "even", choose: even };

/// All searches by name.
pub fn searches() -> &'static Registry {
    static SEARCHES: LazyLock<Registry> = LazyLock::new(|| {
        let mut registry = papers::searches().clone();
        let about = "an even split over the fewest hosts below the lowest switch that fits";
        let even = SearchEntry { name: EVEN.name, about, build: |_| Box::new(EVEN) };
        registry.add_search(even).expect("no other search is called so");
        registry
    });
    &SEARCHES
}

/// The even split of `k` of the free GPUs; None if too few are free.
pub fn even(cluster: &Cluster, free: &Allocation, k: usize) -> Option<Allocation> {
    let hosts = 0..cluster.hosts.len() as u32;
    let above = |tier| hosts.clone().map(|h| cluster.switch_of(tier, HostId(h)) as u32).collect();
    let levels: Vec<Vec<u32>> = (0..cluster.tiers().len()).map(above).collect();
    lab_sites::rules::even(&levels, free, k)
}
