//! Defects that are put into simulated measurements are found and named; healthy clusters are left in peace.
//!
//! The readings are simulated: the physics of a cluster with a slow component, a factor per host and per allocation (2 %), noise (2 %).

use diagnose::{Component, Diagnosis, examine, suspicions};
use predict::{FitOptions, Kind, fit};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use store::{Measurement, Source};
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, HostId};

const SIZE: Bytes = Bytes(16 << 20);
const OP: Collective = Collective::AllReduce;

fn normal(rng: &mut ChaCha8Rng) -> f64 {
    let (u, v): (f64, f64) = (rng.random(), rng.random());
    stats::random::box_muller(u, v)
}

/// Simulated hardware, healthy or with one slow component.
struct Hardware {
    cluster: Cluster,
    defect: Option<(Component, f64)>,
    hosts: Vec<f64>,
}

impl Hardware {
    fn new(name: &str, defect: Option<(Component, f64)>, rng: &mut ChaCha8Rng) -> Self {
        let cluster = topology::catalog::cluster(name).unwrap();
        let hosts = cluster.host_ids().map(|_| (0.02 * normal(rng)).exp()).collect();
        Hardware { cluster, defect, hosts }
    }

    /// By the physics of the sick cluster: independent of the code under test, except for the physics.
    fn read(&self, a: &Allocation, rng: &mut ChaCha8Rng) -> f64 {
        let mut sick = self.cluster.clone();
        let mut factor = 1.0;
        let mut slow_gpu = None;
        match self.defect {
            Some((Component::Nic(h, i), f)) => {
                sick.hosts[h.index()].nic_health = vec![1.0; sick.type_of(h).nics.len()];
                sick.hosts[h.index()].nic_health[usize::from(i)] = f;
            }
            Some((Component::HostNetwork(h), f)) => {
                sick.hosts[h.index()].nic_health = vec![f; sick.type_of(h).nics.len()];
            }
            Some((Component::Host(h), f)) if !a.mask(h).is_empty() => factor = f,
            Some((Component::Gpu(h, g), f)) => slow_gpu = Some((h, g, f)),
            _ => {}
        }
        let fabric = fabric::Fabric::new(&sick);
        let whole = fabric.estimate(a, OP, SIZE).busbw.gb_per_s();
        let inside = a
            .parts()
            .iter()
            .filter(|p| p.1.count() > 1)
            .map(|&(h, m)| {
                let slow = slow_gpu.filter(|(sh, g, _)| *sh == h && m.contains((*g).into())).map_or(1.0, |s| s.2);
                fabric.intra_busbw(h, m, OP, SIZE).gb_per_s() * slow
            })
            .fold(f64::INFINITY, f64::min);
        let host = a.parts().iter().map(|p| self.hosts[p.0.index()]).fold(f64::INFINITY, f64::min);
        whole.min(inside) * factor * host * (0.02 * normal(rng)).exp() * (0.02 * normal(rng)).exp()
    }

    fn measurement(&self, a: Allocation, at: f64, rng: &mut ChaCha8Rng) -> Measurement {
        let v = Bandwidth::from_gb_per_s(self.read(&a, rng));
        let mut m = Measurement::new(a, OP, SIZE, v, Source::Simulated);
        m.taken_at_unix_s = Some(at);
        m
    }
}

fn random_allocation(cluster: &Cluster, rng: &mut ChaCha8Rng) -> Allocation {
    loop {
        let n = rng.random_range(2..=cluster.hosts.len().min(4));
        let mut hosts: Vec<HostId> = cluster.host_ids().collect();
        let parts: Vec<(HostId, GpuMask)> = (0..n)
            .map(|_| {
                let h = hosts.swap_remove(rng.random_range(0..hosts.len()));
                (h, GpuMask(rng.random_range(1..1 << cluster.type_of(h).gpu_count())))
            })
            .collect();
        let a = Allocation::new(parts);
        if a.gpu_count() > 2 {
            return a;
        }
    }
}

/// Intra tables (every third subset) and `n` random allocations over hosts.
fn campaign(hw: &Hardware, n: usize, at: f64, rng: &mut ChaCha8Rng) -> Vec<Measurement> {
    let mut out = Vec::new();
    for h in hw.cluster.host_ids() {
        for m in hw.cluster.type_of(h).all_gpus().subsets().filter(|m| m.count() > 1 && m.0 % 3 == 0) {
            out.push(hw.measurement(Allocation::new([(h, m)]), at, rng));
        }
    }
    for i in 0..n {
        out.push(hw.measurement(random_allocation(&hw.cluster, rng), at + i as f64, rng));
    }
    out
}

fn diagnose(name: &str, defect: Option<(Component, f64)>, readings: usize, seed: u64) -> Diagnosis {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let hw = Hardware::new(name, defect, &mut rng);
    let rows = campaign(&hw, readings, 1e9, &mut rng);
    examine(&hw.cluster, &rows, None, fabric::Constants::default()).unwrap().0
}

/// How many of the seeds name exactly this component, and nothing else.
fn named(name: &str, defect: (Component, f64), readings: usize, seeds: std::ops::Range<u64>) -> usize {
    seeds
        .filter(|s| {
            let d = diagnose(name, Some(defect), readings, *s);
            let best = d.defects.first().map(|x| x.candidates[0]);
            let ok = d.defects.len() == 1
                && best.is_some_and(|c| {
                    c.component == defect.0 && c.probability > 0.9 && (c.factor - defect.1).abs() < 0.15
                });
            if !ok {
                eprintln!("seed {s}: {:?} found as {:?}", defect, d.defects);
            }
            ok
        })
        .count()
}

/// More seeds on request: the rates of docs come from here.
fn seeds(few: u64) -> std::ops::Range<u64> {
    let n = std::env::var("LINKWISE_DOCTOR_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(few);
    100..100 + n
}

#[test]
fn a_healthy_cluster_is_left_in_peace() {
    for name in ["h100", "het-ra"] {
        let all = seeds(6);
        let n = all.end - all.start;
        let alarms: Vec<u64> = all.filter(|s| !diagnose(name, None, 100, *s).defects.is_empty()).collect();
        eprintln!("{name}: {} false alarms in {n} healthy clusters", alarms.len());
        // Measured: 1 alarm in 20 healthy h100 clusters.
        assert!(alarms.len() as u64 * 20 <= n, "{name}: seeds {alarms:?}");
    }
}

#[test]
fn a_slow_nic_is_named_at_half_and_at_three_quarters_of_its_rate() {
    for f in [0.25, 0.5, 0.75] {
        let all = seeds(3);
        let n = (all.end - all.start) as usize;
        let ok = named("h100", (Component::Nic(HostId(1), 3), f), 100, all);
        eprintln!("NIC at {f}: named in {ok} of {n}");
        assert!(ok * 10 >= n * 9, "NIC at {f}: {ok} of {n}");
    }
}

#[test]
fn a_slow_host_a_slow_network_and_a_slow_gpu_are_told_apart() {
    for defect in [
        (Component::Host(HostId(2)), 0.7),
        (Component::HostNetwork(HostId(0)), 0.5),
        (Component::Gpu(HostId(3), 6), 0.4),
    ] {
        let all = seeds(3);
        let n = (all.end - all.start) as usize;
        let ok = named("h100", defect, 100, all);
        eprintln!("{defect:?}: named in {ok} of {n}");
        // Measured: 19 of 20 hosts, 20 of 20 networks, 18 of 20 GPUs; where it fails, a second defect is named in addition to the true one.
        assert!(n - ok <= (n / 10).max(1), "{defect:?}: {ok} of {n}");
    }
}

#[test]
fn a_nic_that_became_slow_is_found_among_older_healthy_readings_with_the_moment() {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let healthy = Hardware::new("h100", None, &mut rng);
    let mut rows = campaign(&healthy, 100, 1e9, &mut rng);
    let sick = Hardware { defect: Some((Component::Nic(HostId(1), 3), 0.5)), ..healthy };
    let from = 1e9 + 5000.0;
    let (a, b) = (HostId(1), HostId(2));
    for (i, mask) in [0xffu32, 0x0f, 0x0c, 0x08].into_iter().enumerate() {
        let alloc = Allocation::new([(a, GpuMask(mask)), (b, GpuMask(mask))]);
        rows.push(sick.measurement(alloc, from + i as f64, &mut rng));
    }
    let d = examine(&sick.cluster, &rows, None, fabric::Constants::default()).unwrap().0;
    assert_eq!(d.defects.len(), 1, "{:?}", d.defects);
    let all = &d.defects[0].candidates;
    assert!(all[0].since.is_some_and(|t| t > 1e9 + 200.0 && t <= from), "{all:?}");
    // The readings end at NIC 3 of both hosts: it is one of the two.
    let pair: f64 = all
        .iter()
        .filter(|c| [Component::Nic(a, 3), Component::Nic(b, 3)].contains(&c.component))
        .map(|c| c.probability)
        .sum();
    assert!(pair > 0.9, "{all:?}");
}

#[test]
fn one_low_reading_makes_everything_it_touches_suspect_and_nothing_certain() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let hw = Hardware::new("h100", None, &mut rng);
    let mut rows = campaign(&hw, 100, 1e9, &mut rng);
    let (model, _) = fit(&hw.cluster, &rows, &FitOptions::of(Kind::Gp)).unwrap();
    assert!(suspicions(&model, &rows).defects.is_empty());
    let halves = Allocation::new([(HostId(1), GpuMask(0x0f)), (HostId(2), GpuMask(0x0f))]);
    let sick = Hardware { defect: Some((Component::Nic(HostId(1), 3), 0.5)), ..hw };
    rows.push(sick.measurement(halves, 2e9, &mut rng));
    let d = suspicions(&model, &rows);
    assert_eq!(d.defects.len(), 1, "{:?}", d.outliers);
    let x = &d.defects[0];
    assert!(x.probability > 0.5 && x.candidates[0].probability < 0.3, "{x:?}");
    assert!(x.candidates.iter().all(|c| [HostId(1), HostId(2)].contains(&c.component.host())), "{x:?}");
    assert!(x.candidates.iter().filter(|c| c.component.kind() == "nic").count() == 8, "{x:?}");
}

#[test]
fn probes_that_tell_most_lead_to_the_nic_in_a_few_readings() {
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    let hw = Hardware::new("h100", None, &mut rng);
    let mut rows = campaign(&hw, 100, 1e9, &mut rng);
    let (model, _) = fit(&hw.cluster, &rows, &FitOptions::of(Kind::Gp)).unwrap();
    let sick = Hardware { defect: Some((Component::Nic(HostId(1), 3), 0.5)), ..hw };
    let halves = Allocation::new([(HostId(1), GpuMask(0x0f)), (HostId(2), GpuMask(0x0f))]);
    rows.push(sick.measurement(halves, 2e9, &mut rng));
    for probe in 0..10 {
        let d = suspicions(&model, &rows);
        let best = d.defects[0].candidates[0];
        if best.probability > 0.95 {
            assert_eq!(best.component, Component::Nic(HostId(1), 3));
            eprintln!("named after {probe} probes");
            return;
        }
        let a = diagnose::most_informative_allocation(&model, &d.defects[0], &sick.cluster.usable(), SIZE, &[])
            .expect("an allocation separates the candidates");
        rows.push(sick.measurement(a, 2e9 + 1.0 + f64::from(probe), &mut rng));
    }
    panic!("not named after 10 probes: {:?}", suspicions(&model, &rows).defects);
}

#[test]
fn readings_of_nothing_give_no_diagnosis_and_absurd_ones_no_panic() {
    let cluster = topology::catalog::cluster("h100").unwrap();
    assert!(examine(&cluster, &[], None, fabric::Constants::default()).is_err());
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let rows: Vec<Measurement> = (0..60)
        .map(|i| {
            let v = [1e-9, 1e6, 42.0, 1.0][i % 4];
            let mut m = Measurement::new(
                random_allocation(&cluster, &mut rng),
                OP,
                Bytes(1 << (i % 40)),
                Bandwidth::from_gb_per_s(v),
                Source::Job,
            );
            m.taken_at_unix_s = [None, Some(-1e300), Some(1e300), Some(5.0)][i % 4];
            m
        })
        .collect();
    let (d, _) = examine(&cluster, &rows, None, fabric::Constants::default()).unwrap();
    assert!(d.defects.len() <= diagnose::DEFECTS_MAX);
}
