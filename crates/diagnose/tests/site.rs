//! One slow component of a site of 16 to 1,280 hosts, measured as `linkwise measure` does: it is named or among the
//! candidates, no healthy component is accused, and the next reading concerns it. All readings are simulated.

use diagnose::{Component, Diagnosis, examine};
use measure::simulated::{Irregularity, on_fabric};
use measure::{Campaign, CampaignHooks, CampaignPlan, DesignKind, Scale, Uncertainty};
use predict::{FitOptions, Kind, Model, fit};
use std::collections::HashSet;
use store::{Measurement, Query, Store};
use topology::{Allocation, Bytes, Cluster, Collective, HostId, Tier, catalog};

const SIZE: Bytes = Bytes(16 << 20);
const OP: Collective = Collective::AllReduce;
/// Time between two readings, seconds.
const STEP_S: f64 = 4.0;
/// From this probability on, a component is accused.
const ACCUSED: f64 = 0.5;

/// Minimum number of different readings that must show a slow NIC: the reading of a rail in a sweep is the only one that
/// shows its NICs.
const SHOWN_MIN: usize = 1;

/// What is slow.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Slow {
    Nothing,
    One(Component),
    Rail(u8),
    Leaf(usize),
}

/// Below leaf switches of 16 hosts if the site has more than 16, below pods that are oversubscribed if more than 1,000.
fn healthy(hosts: usize) -> Cluster {
    let mut c = catalog::cluster("16xhgx-h100").expect("built in");
    c.hosts = (0..hosts).map(|i| topology::Host { name: format!("n{i}"), ..c.hosts[0].clone() }).collect();
    if hosts > 1000 {
        c.network.tiers = vec![Tier::regular("leaf", 32, 1.0), Tier::regular("pod", 256, 2.0)];
    } else if hosts > 16 {
        c.network.tiers = vec![Tier::regular("leaf", 16, 1.0)];
    }
    c
}

fn sick(healthy: &Cluster, slow: Slow, left: f64) -> Cluster {
    let mut c = healthy.clone();
    let (nics, gpus) = (healthy.types[0].nics.len(), healthy.types[0].gpu_count());
    let mut nic = |h: HostId, which: std::ops::Range<usize>| {
        let health = &mut c.hosts[h.index()].nic_health;
        health.resize(nics, 1.0);
        health[which].fill(left);
    };
    match slow {
        Slow::Nothing => {}
        Slow::One(Component::Nic(h, i)) => nic(h, i.into()..usize::from(i) + 1),
        Slow::One(Component::HostNetwork(h)) => nic(h, 0..nics),
        Slow::Rail(i) => healthy.host_ids().for_each(|h| nic(h, i.into()..usize::from(i) + 1)),
        Slow::Leaf(s) => healthy.hosts_below(0, s).for_each(|h| nic(h, 0..nics)),
        Slow::One(Component::Gpu(h, g)) => {
            c.hosts[h.index()].gpu_health = (0..gpus).map(|i| if i == usize::from(g) { left } else { 1.0 }).collect();
        }
        Slow::One(Component::Link(h, a, b)) => {
            c.hosts[h.index()].link_health = vec![topology::LinkHealth { a, b, factor: left }];
        }
        Slow::One(Component::Host(_)) => unreachable!("no such defect in the simulation"),
    }
    c
}

/// The adaptive design's model.
struct Learner<'a>(&'a Cluster, Option<Model>);

impl Uncertainty for Learner<'_> {
    fn refit(&mut self, measured: &[Measurement]) -> Result<(), String> {
        self.1 = Some(fit(self.0, measured, &FitOptions::of(Kind::Gp)).map_err(|e| e.to_string())?.0);
        Ok(())
    }
    fn std(&self, allocations: &[Allocation]) -> Vec<f64> {
        let of = |a: &Allocation| {
            let p = self.1.as_ref().map(|m| m.predict_allocation(SIZE, a));
            p.map_or(1.0, |p| p.std_gb_per_s / p.busbw_gb_per_s.max(1e-9))
        };
        allocations.iter().map(of).collect()
    }
}

/// The readings of a campaign on `hardware`, which `linkwise measure` believes to be `believed`.
fn campaign(believed: &Cluster, hardware: &Cluster, design: DesignKind, seed: u64) -> Vec<Measurement> {
    let folder = tempfile::tempdir().expect("a folder");
    let mut store = Store::create(&folder.path().join("readings.db"), believed).expect("a store");
    let idle = believed.usable();
    let plan = CampaignPlan {
        scale: Scale::of_site(believed, &idle, None),
        idle,
        collective: OP,
        sizes: vec![SIZE],
        intra: true,
        sample_size: 100,
        design,
        seed,
        budget_gpu_minutes: None,
    };
    let fabric = fabric::Fabric::new(believed);
    let expected = |a: &Allocation, c: Collective, s: Bytes| fabric.estimate(a, c, s).busbw.gb_per_s();
    let moment = std::cell::Cell::new(1.8e9);
    let now = || moment.replace(moment.get() + STEP_S);
    let mut ignored = |_| {};
    let mut backend = on_fabric(hardware, Irregularity { seed, ..Irregularity::default() });
    let mut model = Learner(believed, None);
    let hooks = CampaignHooks { expected: &expected, now_unix_s: &now, on_event: &mut ignored };
    let run = Campaign::new(&plan, &mut store, &mut backend, hooks).expect("a campaign").with_model(&mut model);
    run.run().expect("readings");
    store.measurements(&Query::usable()).expect("readings")
}

/// True if `found` is the slow component or one of its parts. Simulated rings cannot avoid a slow link, so it slows all
/// subsets with both of its GPUs, as a slow GPU does.
fn concerns(cluster: &Cluster, truth: Slow, found: Component) -> bool {
    match truth {
        Slow::Nothing => false,
        Slow::One(Component::Link(h, a, b)) => {
            [Component::Link(h, a, b), Component::Gpu(h, a), Component::Gpu(h, b)].contains(&found)
        }
        Slow::One(c) => c == found,
        Slow::Rail(i) => matches!(found, Component::Nic(_, n) if n == i),
        Slow::Leaf(s) => cluster.switch_of(0, found.host()) == s,
    }
}

fn has(cluster: &Cluster, truth: Slow, d: &Diagnosis) -> bool {
    let shared = d.shared.iter().any(|s| match (&s.part, truth) {
        (predict::Part::Rail { nic }, Slow::Rail(i)) => *nic == i,
        (predict::Part::Switch { switch, .. }, Slow::Leaf(i)) => *switch == cluster.switch_name(0, i),
        _ => false,
    });
    shared || d.defects.iter().flat_map(|x| &x.candidates).any(|c| concerns(cluster, truth, c.component))
}

/// Number of readings that a slow NIC lowers by a fifth or more, by the physics. Random samples of a large site may miss
/// a NIC.
fn shown(believed: &Cluster, hardware: &Cluster, rows: &[Measurement]) -> usize {
    let (healthy, slow) = (fabric::Fabric::new(believed), fabric::Fabric::new(hardware));
    let v = |f: &fabric::Fabric, a: &Allocation| f.estimate(a, OP, SIZE).busbw.gb_per_s();
    let several: HashSet<&Allocation> = rows.iter().map(|m| &m.allocation).filter(|a| a.host_count() > 1).collect();
    several.into_iter().filter(|a| v(&slow, a) < 0.8 * v(&healthy, a)).count()
}

/// What is wrong with the diagnosis of a site; empty if nothing is.
fn faults(hosts: usize, truth: Slow, left: f64, design: DesignKind, seed: u64) -> Vec<String> {
    let believed = healthy(hosts);
    let hardware = sick(&believed, truth, left);
    let rows = campaign(&believed, &hardware, design, seed);
    let hidden = matches!(truth, Slow::One(Component::Nic(..)) if shown(&believed, &hardware, &rows) < SHOWN_MIN);
    let (d, model) = examine(&believed, &rows, None, fabric::Constants::default()).expect("a diagnosis");
    let mut out = Vec::new();
    if truth != Slow::Nothing && !hidden && !has(&believed, truth, &d) {
        out.push("the slow component is not among the candidates".to_owned());
    }
    let accused = || d.defects.iter().flat_map(|x| &x.candidates).filter(|c| c.probability > ACCUSED);
    let link = accused().any(|c| truth == Slow::One(c.component) && c.component.kind() == "link");
    for c in accused() {
        // A GPU at one end of the link looks alike until the link is named.
        if !concerns(&believed, truth, c.component) || (link && truth != Slow::One(c.component)) {
            out.push(format!("accused: {} ({:.3})", c.component.name(&believed), c.probability));
        }
    }
    for s in &d.shared {
        let right = match (&s.part, truth) {
            (predict::Part::Rail { nic }, Slow::Rail(i)) => *nic == i,
            (predict::Part::Switch { switch, .. }, Slow::Leaf(i)) => *switch == believed.switch_name(0, i),
            _ => false,
        };
        if !right {
            out.push(format!("accused: {:?}", s.part));
        }
    }
    let read: HashSet<Allocation> = rows.iter().map(|m| m.allocation.clone()).collect();
    let next = d.next_reading(&model, &believed.usable(), SIZE, &read);
    for x in d.defects.iter().filter(|x| x.candidates[0].probability < ACCUSED) {
        let next = d.worth_measuring(&model, x, next.as_ref(), &believed.usable(), SIZE);
        if next.is_none_or(|a| x.candidates.iter().all(|c| a.mask(c.component.host()).is_empty())) {
            out.push(format!("the next reading contains no candidate of {:?}", x.candidates[0]));
        }
    }
    if !out.is_empty() {
        let found = d.defects.iter().map(|x| (x.probability, x.candidates.iter().take(4).collect::<Vec<_>>()));
        out.push(format!("{:?} {:?}", found.collect::<Vec<_>>(), d.shared));
    }
    out
}

/// Fails with the faults of all cases.
fn none_faulty(cases: impl Iterator<Item = (usize, Slow, f64, DesignKind, u64)>) {
    let mut all = Vec::new();
    for (hosts, truth, left, design, seed) in cases {
        let found = faults(hosts, truth, left, design, seed);
        if !found.is_empty() {
            all.push(format!("{hosts} hosts, {truth:?} at {left}, {}, seed {seed}: {found:#?}", design.name()));
        }
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

const DESIGNS: [DesignKind; 3] = [DesignKind::Stratified, DesignKind::RailSweep, DesignKind::Adaptive];

fn sites() -> impl Iterator<Item = (usize, u64, DesignKind)> {
    let seeds = std::env::var("LINKWISE_DOCTOR_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(2u64);
    let only: Option<usize> = std::env::var("LINKWISE_DOCTOR_HOSTS").ok().and_then(|s| s.parse().ok());
    [16, 64, 128]
        .into_iter()
        .filter(move |n| only.is_none_or(|o| o == *n))
        .flat_map(move |n| (1..=seeds).flat_map(move |s| DESIGNS.map(|d| (n, s, d))))
}

fn middle(hosts: usize) -> HostId {
    HostId(hosts as u32 / 2)
}

#[test]
fn a_gpu_with_slow_links_is_found_on_small_and_large_sites() {
    none_faulty(sites().map(|(n, seed, d)| (n, Slow::One(Component::Gpu(middle(n), 3)), 0.25, d, seed)));
}

#[test]
fn a_slow_nic_is_found_on_small_and_large_sites() {
    none_faulty(sites().map(|(n, seed, d)| (n, Slow::One(Component::Nic(middle(n), 3)), 0.25, d, seed)));
}

#[test]
fn the_slow_nics_of_one_host_are_found_on_small_and_large_sites() {
    none_faulty(sites().map(|(n, seed, d)| (n, Slow::One(Component::HostNetwork(middle(n))), 0.4, d, seed)));
}

#[test]
fn a_slow_link_of_the_host_whose_pairs_are_measured_is_found() {
    let on_16 = sites().filter(|s| s.0 == 16);
    none_faulty(on_16.map(|(n, seed, d)| (n, Slow::One(Component::Link(HostId(0), 2, 5)), 0.3, d, seed)));
}

#[test]
fn a_slow_rail_is_found_on_small_and_large_sites() {
    none_faulty(sites().map(|(n, seed, d)| (n, Slow::Rail(5), 0.5, d, seed)));
}

#[test]
fn a_slow_switch_is_found_on_large_sites() {
    none_faulty(sites().filter(|s| s.0 > 16).map(|(n, seed, d)| (n, Slow::Leaf(1), 0.4, d, seed)));
}

#[test]
fn a_healthy_site_of_any_size_is_accused_of_nothing() {
    none_faulty(sites().map(|(n, seed, d)| (n, Slow::Nothing, 1.0, d, seed)));
}

#[test]
fn a_gpu_and_a_nic_of_1280_hosts_are_found() {
    let gpu = Slow::One(Component::Gpu(HostId(799), 3));
    let nic = Slow::One(Component::Nic(HostId(499), 3));
    none_faulty(
        [(1280, gpu, 0.25, DesignKind::Stratified, 1), (1280, nic, 0.25, DesignKind::RailSweep, 1)].into_iter(),
    );
}
