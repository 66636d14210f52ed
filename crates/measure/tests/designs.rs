//! Designs, simulated hardware and outlier detection.

use measure::design::Candidates;
use measure::design::design_at;
use measure::simulated::{Irregularity, Simulated};
use measure::{Backend, DesignKind, Point, Scale, design, outlier};
use proptest::prelude::*;
use std::collections::HashSet;
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, HostId};

const KINDS: [DesignKind; 4] =
    [DesignKind::Random, DesignKind::Stratified, DesignKind::WorstCase, DesignKind::Adaptive];

fn cluster(name: &str) -> Cluster {
    topology::catalog::cluster(name).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_design_uses_idle_gpus_of_several_hosts_and_repeats_nothing(
        masks in proptest::collection::vec(0u32..256, 4),
        n in 0usize..60,
        seed in any::<u64>(),
        kind in 0usize..4,
        name in 0usize..4,
    ) {
        let c = cluster(topology::catalog::CLUSTERS[name]);
        let idle = Allocation::new(masks.iter().enumerate().map(|(h, m)| (HostId(h as u32), GpuMask(*m))));
        let d = design(&c, &idle, n, KINDS[kind], seed);
        prop_assert!(d.len() <= n);
        prop_assert_eq!(d.iter().collect::<HashSet<_>>().len(), d.len());
        prop_assert!(d.iter().all(|a| a.host_count() >= 2 && idle.contains_all(a)));
        prop_assert_eq!(&d, &design(&c, &idle, n, KINDS[kind], seed));
        // True if every host has several GPUs.
        if idle.host_count() >= 2 && masks.iter().all(|m| m.count_ones() >= 4) {
            prop_assert_eq!(d.len(), n, "{:?}", KINDS[kind]);
        }
    }
}

#[test]
fn runs_limited_to_one_host_have_an_empty_sample_of_several_hosts() {
    let c = cluster("h100");
    let scale = Scale { hosts_per_run: 1, hosts_per_sweep: 1, ..Scale::SMALL };
    for kind in KINDS.into_iter().chain([DesignKind::RailSweep]) {
        for n in [0, 20] {
            assert_eq!(design_at(&c, &c.usable(), n, kind, 1, scale), Vec::new(), "{kind:?}, {n}");
        }
    }
}

#[test]
fn a_hundred_stratified_samples_cover_all_host_counts_and_splits_with_weight_on_near_balanced_ones() {
    let c = cluster("h100");
    let spread = |a: &Allocation| a.counts().iter().max().unwrap() - a.counts().iter().min().unwrap();
    let near_balanced = |d: &[Allocation]| d.iter().filter(|a| spread(a) <= 1).count();
    for seed in 0..5 {
        let d = design(&c, &c.usable(), 100, DesignKind::Stratified, seed);
        assert_eq!(d.len(), 100);
        for hosts in 2..=4 {
            let n = d.iter().filter(|a| a.host_count() == hosts).count();
            assert!(n >= 10, "seed {seed}: {n} samples over {hosts} hosts");
        }
        for least in 1..=7 {
            assert!(
                d.iter().any(|a| a.counts().iter().min() == Some(&least)),
                "seed {seed}: no smallest count {least}"
            );
        }
        let splits: HashSet<String> = d.iter().map(Allocation::split).collect();
        assert!(splits.len() >= 75, "seed {seed}: {} different splits", splits.len());
        let random = design(&c, &c.usable(), 100, DesignKind::Random, seed);
        assert!(near_balanced(&d) > near_balanced(&random), "seed {seed}");
    }
}

/// Hosts with eight NICs, each on a leaf of its own.
fn on_rails(hosts: usize, rails: topology::Rails) -> Cluster {
    let mut c = cluster(&format!("{hosts}xhgx-h100"));
    c.network.rails = Some(rails);
    c
}

#[test]
fn on_separate_rails_every_sample_can_communicate_and_most_are_aligned() {
    let mut few = on_rails(64, topology::Rails::Separate);
    // Jobs left other rails idle on every second host; rail 3 is idle on all of them.
    for (i, h) in few.hosts.iter_mut().enumerate() {
        h.drained = GpuMask(if i % 2 == 0 { 0b1100_0001 } else { 0b0011_0010 });
    }
    for c in [on_rails(4, topology::Rails::Separate), on_rails(128, topology::Rails::Separate), few] {
        let fabric = fabric::Fabric::new(&c);
        for kind in KINDS {
            for scale in [measure::Scale::SMALL, measure::Scale::of_site(&c, &c.usable(), None)] {
                let d = measure::design::design_at(&c, &c.usable(), 60, kind, 5, scale);
                assert_eq!(d.len(), 60, "{} on {} hosts", kind.name(), c.hosts.len());
                let speed = |a: &Allocation| fabric.estimate(a, Collective::AllReduce, Bytes::mib(16)).busbw.gb_per_s();
                assert!(d.iter().all(|a| speed(a) > 0.0), "{} on {} hosts", kind.name(), c.hosts.len());
                let aligned = d.iter().filter(|a| measure::rails::is_aligned(&c, a)).count();
                let free = c.hosts.iter().all(|h| h.drained.is_empty());
                assert!(!free || aligned >= 30, "{}: {aligned} of 60 are aligned", kind.name());
            }
        }
    }
}

#[test]
fn hosts_without_nics_are_not_sampled_together_with_others() {
    let mut c = cluster("h100");
    let mut without = c.types[0].clone();
    without.name = "without-nics".into();
    without.nics.clear();
    c.types.push(without);
    c.hosts[3].host_type = 1;
    for kind in KINDS {
        let d = design(&c, &c.usable(), 40, kind, 3);
        assert_eq!(d.len(), 40, "{}", kind.name());
        assert!(d.iter().all(|a| a.mask(HostId(3)).is_empty()), "{}", kind.name());
    }
    // If no host names NICs, the network is unknown, and every host may be measured.
    c.hosts.iter_mut().for_each(|h| h.host_type = 1);
    assert!(design(&c, &c.usable(), 40, DesignKind::Stratified, 3).iter().any(|a| !a.mask(HostId(3)).is_empty()));
}

#[test]
fn a_rail_sweep_takes_one_gpu_of_every_host_for_each_rail() {
    let c = on_rails(300, topology::Rails::Joined);
    let scale = measure::Scale::of_site(&c, &c.usable(), None);
    let d = measure::design::design_at(&c, &c.usable(), 100, DesignKind::RailSweep, 1, scale);
    assert_eq!(d.len(), 8 * 3, "8 rails in runs of 100 hosts");
    assert!(d.iter().all(|a| a.host_count() == 100 && a.gpu_count() == 100 && measure::rails::is_aligned(&c, a)));
    let covered: HashSet<_> = d.iter().flat_map(Allocation::gpus).collect();
    assert_eq!(covered.len(), 300 * 8);
}

#[test]
fn on_joined_rails_samples_are_mostly_aligned_and_some_are_not() {
    let c = on_rails(32, topology::Rails::Joined);
    for kind in [DesignKind::Stratified, DesignKind::Adaptive, DesignKind::WorstCase] {
        let scale = measure::Scale::of_site(&c, &c.usable(), None);
        let d = measure::design::design_at(&c, &c.usable(), 100, kind, 2, scale);
        let aligned = d.iter().filter(|a| measure::rails::is_aligned(&c, a)).count();
        assert!((50..=92).contains(&aligned), "{}: {aligned} of {} are aligned", kind.name(), d.len());
    }
}

#[test]
fn a_sample_of_idle_gpus_without_a_common_rail_is_empty() {
    let mut c = on_rails(2, topology::Rails::Separate);
    c.hosts[0].drained = GpuMask(0b0000_1111);
    c.hosts[1].drained = GpuMask(0b1111_0000);
    assert_eq!(design(&c, &c.usable(), 10, DesignKind::Stratified, 1), []);
}

#[test]
fn worst_case_samples_are_more_unbalanced_than_stratified_ones() {
    let c = cluster("h100");
    let ratio = |kind| {
        let d = design(&c, &c.usable(), 40, kind, 3);
        d.iter()
            .map(|a| *a.counts().iter().max().unwrap() as f64 / *a.counts().iter().min().unwrap() as f64)
            .sum::<f64>()
            / 40.0
    };
    assert!(ratio(DesignKind::WorstCase) > 1.5 * ratio(DesignKind::Stratified));
}

/// Random hosts of a large site are almost never below one switch, and jobs often are: without readings below one, a
/// model cannot tell what crossing switches costs.
#[test]
fn a_hundred_samples_of_eight_leaves_are_below_one_leaf_as_well_as_over_several() {
    let mut c = on_rails(64, topology::Rails::Joined);
    c.network.tiers = vec![topology::Tier::regular("leaf", 8, 2.0)];
    let leaves = |a: &Allocation| a.parts().iter().map(|p| c.switch_of(0, p.0)).collect::<HashSet<_>>().len();
    for seed in 0..5 {
        let scale = Scale::of_site(&c, &c.usable(), None);
        let d = design_at(&c, &c.usable(), 100, DesignKind::Stratified, seed, scale);
        let within = d.iter().filter(|a| leaves(a) == 1).count();
        assert!(within >= 15 && within + 30 <= d.len(), "seed {seed}: {within} of {} below one leaf", d.len());
    }
}

#[test]
fn a_design_on_a_thousand_hosts_reaches_many_host_counts() {
    let mut c = cluster("h100");
    for i in 4..1000 {
        let mut h = c.hosts[0].clone();
        h.name = format!("n{i}");
        c.hosts.push(h);
    }
    let d = design(&c, &c.usable(), 60, DesignKind::Stratified, 1);
    assert_eq!(d.len(), 60);
    assert!(d.iter().any(|a| a.host_count() == 2) && d.iter().any(|a| a.host_count() > 300));
}

#[test]
fn an_adaptive_round_takes_the_most_uncertain_allocations() {
    struct OnlyThreeHosts;
    impl measure::Uncertainty for OnlyThreeHosts {
        fn refit(&mut self, _: &[store::Measurement]) -> Result<(), String> {
            Ok(())
        }
        fn std(&self, a: &[Allocation]) -> Vec<f64> {
            a.iter().map(|a| if a.host_count() == 3 { 1.0 } else { 0.1 }).collect()
        }
    }
    let c = cluster("h100");
    let taken = design(&c, &c.usable(), 10, DesignKind::Adaptive, 1);
    let round = Candidates { cluster: &c, idle: &c.usable(), seed: 1, scale: measure::Scale::SMALL }.most_uncertain(
        6,
        &taken,
        &OnlyThreeHosts,
    );
    assert_eq!(round.len(), 6);
    assert!(round.iter().all(|a| a.host_count() == 3 && !taken.contains(a)));
    // A round that would cost too much takes cheaper ones; the limit holds as long as the cheapest ones fit.
    let candidates = Candidates { cluster: &c, idle: &c.usable(), seed: 1, scale: measure::Scale::SMALL };
    let cost = |a: &Allocation| (a.gpu_count() * a.gpu_count()) as f64;
    let sum = |d: &[Allocation]| d.iter().map(cost).sum::<f64>();
    let all = 0.5 * sum(&round);
    let cheaper = candidates.most_uncertain_within(6, &taken, &OnlyThreeHosts, all, &cost);
    assert!(cheaper.len() == 6 && sum(&cheaper) <= all, "{} of {all}", sum(&cheaper));
    assert!(cheaper.iter().any(|a| a.host_count() == 3), "what the rest leaves goes to the most uncertain");
}

#[test]
fn degraded_gpus_and_hosts_of_the_cluster_file_slow_simulated_readings_inside_the_host() {
    let mut c = cluster("h100");
    c.hosts[1].gpu_health = vec![1.0, 1.0, 1.0, 0.4, 1.0, 1.0, 1.0, 1.0]; // degraded: {gpus: {3: 0.4}}
    c.hosts[2].gpu_health = vec![0.7; 8]; // degraded: {host: 0.7}
    c.hosts[2].nic_health = vec![0.7; 8];
    let quiet = Irregularity { irregularity: 0.0, noise: 0.0, ..Irregularity::default() };
    let backend = measure::simulated::on_fabric(&c, quiet);
    let read = |gpus: &str| {
        let a = c.parse_gpus([gpus]).unwrap();
        backend.truth(&a, Collective::AllReduce, Bytes::gib(1)).gb_per_s()
    };
    let ratio = |gpus: &str| read(gpus) / read(&gpus.replace("n1", "n0").replace("n2", "n0"));
    assert!((ratio("n1:[0-7]") - 0.4).abs() < 1e-9, "the whole host holds the GPU: {}", ratio("n1:[0-7]"));
    assert!((ratio("n1:[2-3]") - 0.4).abs() < 1e-9 && ratio("n1:[4-7]") == 1.0, "only sets with the GPU are slow");
    assert!((ratio("n2:[0-7]") - 0.7).abs() < 1e-9 && (ratio("n2:[0-1]") - 0.7).abs() < 1e-9);
    assert!(read("n[0-1]") < read("n[0,3]"), "a job on two hosts is as fast as its slowest host");
}

fn flat(_: &Allocation, _: Collective, _: Bytes) -> Bandwidth {
    Bandwidth::from_gb_per_s(100.0)
}

fn points(c: &Cluster, n: usize) -> Vec<Point> {
    design(c, &c.usable(), n, DesignKind::Random, 9)
        .into_iter()
        .map(|allocation| Point { allocation, collective: Collective::AllReduce, size: Bytes::mib(16), repetition: 0 })
        .collect()
}

#[test]
fn simulated_readings_depend_only_on_seed_and_point_and_not_on_the_order() {
    let c = cluster("h100");
    let ps = points(&c, 50);
    let read = |seed, order: Vec<&Point>| -> Vec<(Point, f64)> {
        let mut b = Simulated::new(&c, Irregularity { seed, ..Irregularity::default() }, flat);
        let mut out: Vec<_> = order.into_iter().map(|p| (p.clone(), b.measure(p).unwrap().busbw.gb_per_s())).collect();
        out.sort_by(|a, b| a.0.allocation.cmp(&b.0.allocation));
        out
    };
    assert_eq!(read(1, ps.iter().collect()), read(1, ps.iter().rev().collect()));
    assert_ne!(read(1, ps.iter().collect()), read(2, ps.iter().collect()));
}

#[test]
fn simulated_noise_and_irregularity_have_the_requested_size() {
    let c = cluster("h100");
    let sd = |x: &[f64]| {
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        (x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / x.len() as f64).sqrt()
    };
    let p = points(&c, 1).remove(0);
    let mut b = Simulated::new(&c, Irregularity { seed: 4, irregularity: 0.0, noise: 0.05, outlier_rate: 0.0 }, flat);
    let noise: Vec<f64> = (0..2000)
        .map(|repetition| (b.measure(&Point { repetition, ..p.clone() }).unwrap().busbw.gb_per_s() / 100.0).ln())
        .collect();
    assert!((0.045..0.055).contains(&sd(&noise)), "{}", sd(&noise));
    let b = Simulated::new(&c, Irregularity { seed: 4, irregularity: 0.05, noise: 0.0, outlier_rate: 0.0 }, flat);
    let truth: Vec<f64> = (3u32..256)
        .filter(|m| m.count_ones() >= 2)
        .map(|m| {
            (b.truth(&Allocation::new([(HostId(1), GpuMask(m))]), Collective::AllReduce, Bytes(1)).gb_per_s() / 100.0)
                .ln()
        })
        .collect();
    assert!((0.042..0.058).contains(&sd(&truth)), "{}", sd(&truth));
}

#[test]
fn planted_outliers_are_found_and_correct_readings_are_not_flagged() {
    let c = cluster("h100");
    let host = c.type_of(HostId(0));
    let mut b = Simulated::new(&c, Irregularity::default(), flat);
    let masks: Vec<GpuMask> = measure::intra::table(GpuMask::first(8), 1);
    let mut readings: Vec<(GpuMask, f64)> = masks
        .iter()
        .map(|m| {
            let allocation = Allocation::new([(HostId(0), *m)]);
            let p = Point { allocation, collective: Collective::AllReduce, size: Bytes::mib(16), repetition: 0 };
            (*m, b.measure(&p).unwrap().busbw.gb_per_s())
        })
        .collect();
    assert!(outlier::intra(host, &readings).len() <= 2, "correct readings are flagged");
    for i in [3, 77, 200] {
        readings[i].1 *= 0.6;
    }
    let found = outlier::intra(host, &readings);
    assert!([3, 77, 200].iter().all(|i| found.contains(i)), "{found:?}");
    readings[10].1 = 0.0;
    assert!(outlier::intra(host, &readings).contains(&10));
}

#[test]
fn outliers_over_hosts_are_found_by_their_neighbours() {
    let c = cluster("h100");
    let expected = |a: &Allocation| 48.0 * *a.counts().iter().min().unwrap() as f64;
    let mut readings: Vec<(Allocation, f64, f64)> = design(&c, &c.usable(), 100, DesignKind::Stratified, 2)
        .into_iter()
        .enumerate()
        .map(|(i, a)| {
            let e = expected(&a);
            (a, e * (1.0 + 0.02 * ((i * 37 % 11) as f64 / 5.0 - 1.0)), e)
        })
        .collect();
    assert_eq!(outlier::multi(&c, &readings), Vec::<usize>::new());
    readings[40].1 *= 0.5;
    readings[41].1 *= 1.6;
    assert_eq!(outlier::multi(&c, &readings), [40, 41]);
}

#[test]
fn a_host_faster_than_the_others_of_its_type_does_not_deviate_and_a_slower_one_does() {
    let c = cluster("8xhgx-h100");
    let mask = GpuMask::from_indices([0, 1]);
    let deviating = |hosts: u32, odd: u32, factor: f64| {
        let gb_per_s = |h: u32| 200.0 * (1.0 + 0.002 * f64::from(h % 3)) * if h == odd { factor } else { 1.0 };
        let reading = |h| outlier::SpotReading { host: HostId(h), mask, gb_per_s: gb_per_s(h) };
        let readings: Vec<_> = (0..hosts).map(reading).collect();
        let found = outlier::hosts(&c.types[0], HostId(0), &readings).deviating;
        found.iter().map(|d| d.host).collect::<Vec<_>>()
    };
    for odd in [0, 5] {
        assert_eq!(deviating(8, odd, 0.8), [HostId(odd)]);
        assert_eq!(deviating(8, odd, 1.25), []);
    }
    // Two hosts have no median: the faster one shows that the reference may be the slow one.
    assert_eq!(deviating(2, 1, 1.25), [HostId(1)]);
}

#[test]
fn the_median_of_three_counts_and_the_far_one_is_rejected() {
    assert_eq!(outlier::resolve_readings(&[100.0, 50.0, 101.0]), (100.0, vec![false, true, false]));
    assert_eq!(outlier::resolve_readings(&[50.0, 51.0]), (51.0, vec![false, false]));
    assert!(outlier::agree(100.0, 104.0) && !outlier::agree(100.0, 90.0) && !outlier::agree(0.0, 0.0));
}

/// The published tables contain outliers, because they were measured once: A800 subsets at 39 to 42 GB/s among 100, and
/// a pair at 118 among 205 on H100 host 29.
#[test]
fn the_published_outliers_are_found() {
    let folder = std::env::var("LINKWISE_DATA")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data").into());
    for (file, type_name, bad) in
        [("intra_a800_16mib.csv", "a800", 60.0), ("intra_h100_28_16mib.csv", "hgx-h100", 170.0)]
    {
        let Ok(text) = std::fs::read_to_string(format!("{folder}/bandpilot/{file}")) else {
            eprintln!("SKIP the_published_outliers_are_found: no data folder (set LINKWISE_DATA)");
            return;
        };
        let mut c = cluster(if type_name == "a800" { "het-4mix" } else { "h100" });
        let host = c.host_ids().find(|h| c.type_of(*h).name == type_name).unwrap();
        c.hosts[host.index()].name = text.lines().nth(1).unwrap().split(',').next().unwrap().into();
        let rows = store::parse_csv(&text, file, &c, &store::HostMap::default()).unwrap();
        let readings: Vec<(GpuMask, f64)> =
            rows.iter().map(|r| (r.measurement.allocation.mask(host), r.measurement.busbw.gb_per_s())).collect();
        let found = outlier::intra(c.type_of(host), &readings);
        let low: Vec<usize> = (0..readings.len()).filter(|&i| readings[i].1 < bad).collect();
        assert!(!low.is_empty() && low.iter().all(|i| found.contains(i)), "{file}: low {low:?}, found {found:?}");
        assert!(found.len() <= 30, "{file}: {} of {} are flagged", found.len(), readings.len());
    }
}
