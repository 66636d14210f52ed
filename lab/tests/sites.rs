//! Simulated sites (`truths::site`) have their hidden facts, and `linkwise-lab sites` judges choices on them.

mod common;

use common::{Folder, lab, said};
use proptest::prelude::*;
use serde_json::Value;
use topology::{Allocation, GpuMask, HostId};
use truths::Truth;
use truths::site::{KINDS, Site, draw, search};

fn site(kind: &str, seed: u64) -> Site {
    draw(kind, seed).unwrap_or_else(|e| panic!("{e}")).placed
}

/// The same GPUs on some hosts.
fn on(hosts: impl IntoIterator<Item = u32>, mask: u32) -> Allocation {
    Allocation::new(hosts.into_iter().map(|h| (HostId(h), GpuMask(mask))))
}

fn smooth(s: &Site, a: &Allocation) -> f64 {
    s.smooth_gb_per_s(a).unwrap_or_else(|| panic!("no bandwidth of {a:?}"))
}

fn real(s: &Site, a: &Allocation) -> f64 {
    s.busbw_gb_per_s(a).unwrap_or_else(|| panic!("no bandwidth of {a:?}"))
}

/// Mean and deviation of logarithms.
fn spread(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let v: Vec<f64> = values.map(f64::ln).collect();
    let mean = v.iter().sum::<f64>() / v.len() as f64;
    (mean, (v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / v.len() as f64).sqrt())
}

#[test]
fn every_kind_is_drawn_the_same_again_and_other_seeds_give_other_hardware() {
    for k in KINDS {
        let (a, b, other) = (site(k.name, 1), site(k.name, 1), site(k.name, 2));
        a.cluster().check().unwrap_or_else(|e| panic!("{}: {e}", k.name));
        let gpus = a.cluster().usable();
        assert_eq!(a.cluster(), b.cluster(), "{}", k.name);
        assert_eq!(real(&a, &gpus), real(&b, &gpus), "{}", k.name);
        assert_eq!(a.reading(&gpus, 3), b.reading(&gpus, 3), "{}", k.name);
        assert_ne!(real(&a, &gpus), real(&other, &other.cluster().usable()), "{}", k.name);
        assert!((16..=128).contains(&a.cluster().hosts.len()) && a.simulated(), "{}", k.name);
    }
    assert!(draw("flat17", 1).is_err_and(|e| e.contains("flat16")));
}

#[test]
fn a_rail_at_half_rate_slows_only_the_allocations_that_use_it() {
    let s = site("badrail16", 1);
    for n in [2, 3, 8] {
        let with = smooth(&s, &on(0..n, 0b0000_1111));
        let without = smooth(&s, &on(0..n, 0b1111_0000));
        assert!(with < 0.65 * without, "{n} hosts: {with} {without}");
    }
}

#[test]
fn a_slow_leaf_a_host_on_tcp_and_slow_nics_slow_their_own_allocations() {
    let whole = |s: &Site, h: u32| smooth(s, &on([h, (h + 1) % s.cluster().hosts.len() as u32], 0xff));
    for seed in 1..4 {
        let s = site("badleaf64", seed);
        let leaves: Vec<f64> = (0..8).map(|l| smooth(&s, &on(8 * l..8 * l + 4, 0xff))).collect();
        let best = leaves.iter().copied().fold(0.0, f64::max);
        assert_eq!(leaves.iter().filter(|v| **v < 0.8 * best).count(), 1, "seed {seed}: one leaf is slow, {leaves:?}");
        let s = site("tcphost16", seed);
        assert_eq!((0..16).filter(|h| whole(&s, *h) < 60.0).count(), 2, "a pair is slow if one of its hosts is");
        let s = site("slownic32", seed);
        let pairs: Vec<f64> = (0..32).map(|h| whole(&s, h)).collect();
        let best = pairs.iter().copied().fold(0.0, f64::max);
        let slow = pairs.iter().filter(|v| **v < 0.9 * best).count();
        assert!((5..=10).contains(&slow), "seed {seed}: {slow} of 32 pairs have one of five slow hosts");
    }
}

#[test]
fn an_even_split_over_leaves_is_slower_than_below_one_where_flows_over_leaves_lose() {
    for (kind, other) in [("leaf16", 4), ("leaf64", 8), ("leaf64-untold", 8), ("leaf64-16to1", 8), ("pods128", 8)] {
        let s = site(kind, 1);
        let (below, over) = (smooth(&s, &on(0..4, 0xff)), smooth(&s, &on([0, 1, other, other + 1], 0xff)));
        assert!(over < 0.93 * below, "{kind}: {over} over two leaves, {below} below one");
    }
    let s = site("flat64", 1);
    let (below, over) = (smooth(&s, &on(0..4, 0xff)), smooth(&s, &on([0, 1, 8, 9], 0xff)));
    assert!((over / below - 1.0).abs() < 0.05, "leaves that cost nothing: {over} {below}");
    let s = site("pods128", 1);
    let (pod, core) = (smooth(&s, &on([0, 1, 8, 9], 0xff)), smooth(&s, &on([0, 1, 32, 33], 0xff)));
    assert!(core < 0.93 * pod, "over pods {core}, below one {pod}");
    let s = site("scattered64", 1);
    let (same, near) = (smooth(&s, &on([0, 4, 8, 12], 0xff)), smooth(&s, &on(0..4, 0xff)));
    assert!(near < 0.9 * same, "neighbours by number are on four leaves: {near}, of one leaf {same}");
}

#[test]
fn other_gpu_indices_cross_the_spine_of_a_rail_optimised_site() {
    let s = site("rails16", 1);
    let aligned = smooth(&s, &on(0..3, 0b1111));
    let crossed = smooth(
        &s,
        &Allocation::new(
            [0b1111, 0b1111_0000, 0b1111].into_iter().enumerate().map(|(h, m)| (HostId(h as u32), GpuMask(m))),
        ),
    );
    assert!(crossed < 0.85 * aligned, "{crossed} {aligned}");
    let flat = site("flat16", 1);
    let crossed = smooth(&flat, &Allocation::new([(HostId(0), GpuMask(0xf)), (HostId(1), GpuMask(0xf0))]));
    assert!((crossed / smooth(&flat, &on(0..2, 0xf)) - 1.0).abs() < 0.05);
}

#[test]
fn readings_have_the_stated_noise_and_interruptions() {
    for (kind, noise, outliers) in [("flat16", 0.02, 0.0), ("noisy16-5", 0.05, 0.03), ("noisy16-10", 0.10, 0.05)] {
        let s = site(kind, 1);
        let a = on([0, 5], 0xff);
        let true_gb_per_s = real(&s, &a);
        let read: Vec<f64> = (0..4000).filter_map(|r| s.reading(&a, r)).collect();
        // Interruptions leave 30 to 80 %; three fifths of them lie below 60 %, where noise does not reach.
        let low = read.iter().filter(|v| **v < 0.6 * true_gb_per_s).count() as f64 / read.len() as f64;
        assert!((low - 0.6 * outliers).abs() < 0.01, "{kind}: {low} interrupted, {outliers} stated");
        let mut log: Vec<f64> = read.iter().map(|v| (v / true_gb_per_s).ln()).collect();
        log.sort_by(f64::total_cmp);
        let at = |q: f64| log[(q * log.len() as f64) as usize];
        assert!(at(0.5).abs() < 0.15 * noise, "{kind}: median {}", at(0.5));
        // The 25th and the 75th percentile of a normal distribution are 1.35 standard deviations apart.
        let sd = (at(0.75) - at(0.25)) / 1.349;
        assert!((sd / noise - 1.0).abs() < 0.15, "{kind}: {sd} for {noise}");
    }
}

#[test]
fn a_split_has_two_percent_of_irregularity_that_is_the_same_for_all_gpus() {
    let s = site("flat64", 1);
    let ratio = |a: &Allocation| real(&s, a) / smooth(&s, a);
    let mut all = Vec::new();
    for n in 1..=40usize {
        for k in 1..8u32 {
            let hosts = (0..=n as u32).map(|h| (HostId(h), GpuMask::first((k + h % 2) as usize)));
            all.push(ratio(&Allocation::new(hosts)));
        }
    }
    let (mean, sd) = spread(all.into_iter());
    assert!(mean.abs() < 0.005 && (sd - 0.02).abs() < 0.004, "{mean} {sd}");
    assert_eq!(ratio(&on([0, 1], 0b1111)), ratio(&on([0, 1], 0b1111_0000)), "other GPUs, same split");
}

#[test]
fn only_drift_and_changed_hosts_change_the_site_of_the_placement() {
    for k in KINDS {
        let d = draw(k.name, 1).unwrap();
        let changes = ["drift32", "grow32", "shrink32"].contains(&k.name);
        let (a, b) = (d.measured.cluster().usable(), d.placed.cluster().usable());
        let same = a == b && real(&d.measured, &a) == real(&d.placed, &b);
        assert_eq!(same, !changes, "{}", k.name);
    }
    // A host that stays is the same hardware, also if its position in the file changes.
    let d = draw("shrink32", 1).unwrap();
    let name = |s: &Site, h: HostId| s.cluster().host(h).name.clone();
    let pair = |s: &Site, names: [&String; 2]| {
        let of = |n: &String| s.cluster().host_ids().find(|h| name(s, *h) == *n).unwrap();
        smooth(s, &Allocation::new(names.map(|n| (of(n), GpuMask(0xff)))))
    };
    let last = d.placed.cluster().hosts.len() as u32 - 1;
    let (x, y) = (name(&d.placed, HostId(0)), name(&d.placed, HostId(last)));
    assert_eq!(pair(&d.placed, [&x, &y]), pair(&d.measured, [&x, &y]));
}

#[test]
fn running_jobs_take_bandwidth_only_from_jobs_that_share_a_nic_with_them() {
    let s = site("contention16", 1);
    let beside = s.among(&[on([0, 1], 0b0000_0101)]);
    let (shared, apart) = (on([0, 1], 0b0000_1010), on([0, 1], 0b1010_0000));
    assert!(smooth(&beside, &shared) < 0.75 * smooth(&s, &shared));
    assert_eq!(smooth(&beside, &apart), smooth(&s, &apart));
}

#[test]
fn the_result_of_the_search_is_at_least_as_good_as_its_starts_and_uses_free_gpus() {
    for (kind, k) in [("flat16", 12), ("leaf64", 40), ("uneven32", 9), ("badrail16", 16)] {
        let s = site(kind, 2);
        // On every third host, half of the GPUs are busy.
        let left = |h: HostId| {
            GpuMask(s.cluster().type_of(h).all_gpus().0 & if h.0.is_multiple_of(3) { 0b0101 } else { 0xff })
        };
        let free = Allocation::new(s.cluster().host_ids().map(|h| (h, left(h))));
        let given: Vec<Allocation> = (0..free.host_count())
            .map(|skip| {
                let mut need = k;
                let parts = free.parts().iter().cycle().skip(skip).take(free.host_count());
                Allocation::new(parts.map(|(h, m)| {
                    let part = GpuMask::from_indices(m.iter().take(need));
                    need -= part.count();
                    (*h, part)
                }))
            })
            .collect();
        let found = search(&s, &free, k, &given, 7).unwrap();
        assert!(given.iter().all(|a| real(&s, a) <= found.best_gb_per_s), "{kind}");
        assert_eq!(real(&s, &found.best), found.best_gb_per_s, "{kind}");
        for a in [&found.best, &found.smooth] {
            assert!(a.gpu_count() == k && free.contains_all(a), "{kind}: {a:?}");
        }
        assert!(given.iter().all(|a| smooth(&s, a) <= smooth(&s, &found.smooth)), "{kind}");
        let again = search(&s, &free, k, &given, 7).unwrap();
        assert_eq!(again.best, found.best, "{kind}: the same search finds the same");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// An allocation does not depend on the order of its parts, and hosts below one switch differ by a few percent of
    /// irregularity only.
    #[test]
    fn hosts_below_one_switch_have_similar_bandwidth(a in 0u32..16, b in 0u32..16, mask in 1u32..256, seed in 1u64..4) {
        prop_assume!(a != b);
        let s = site("flat16", seed);
        let pair = [(HostId(a), GpuMask(mask)), (HostId(b), GpuMask(mask))];
        let there = real(&s, &Allocation::new(pair));
        prop_assert_eq!(there, real(&s, &Allocation::new([pair[1], pair[0]])));
        let reference = smooth(&s, &on([0, 1], mask));
        let ratio = smooth(&s, &Allocation::new(pair)) / reference;
        prop_assert!((0.9..1.1).contains(&ratio), "{}", ratio);
    }

    /// One more GPU on every host never makes the ports of an even split slower.
    #[test]
    fn more_nics_of_every_host_give_more_bandwidth(hosts in 2u32..8, gpus in 1usize..8) {
        let s = site("flat16", 1);
        let of = |n: usize| smooth(&s, &on(0..hosts, GpuMask::first(n).0));
        prop_assert!(of(gpus + 1) > of(gpus));
    }
}

fn sites(args: &[&str]) -> (i32, String, String) {
    said(lab("sites", args))
}

#[test]
fn a_quick_kind_is_judged_end_to_end_and_stored_for_the_next_run() {
    let folder = Folder::new();
    let dir = folder.at("cells");
    let args = ["--kind", "leaf16", "--seeds", "1", "--requests", "6", "--samples", "30", "--resume", &dir];
    let (code, out, err) = sites(&[&args[..], &["--format", "json"]].concat());
    assert_eq!(code, 0, "{err}");
    let v: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(v["simulated"], true);
    let kind = &v["kinds"][0];
    let methods: Vec<&str> = kind["methods"].as_array().unwrap().iter().filter_map(|m| m["method"].as_str()).collect();
    assert_eq!(methods, ["even", "packed", "slurm", "kueue", "random", "bound", "gp", "smooth"]);
    let requests = kind["sites"][0]["requests"].as_array().unwrap();
    assert_eq!(requests.len(), 6);
    for r in requests {
        for (name, c) in r["choices"].as_object().unwrap() {
            let gbe = c["gbe"].as_f64().unwrap_or_else(|| panic!("{name} has no answer: {r}"));
            assert!(gbe > 0.0 && gbe <= 1.0 + 1e-12, "{name}: {gbe}");
        }
    }

    let begun = std::fs::read_dir(&dir).unwrap().count();
    let (code, text, err) = sites(&args);
    assert_eq!((code, begun), (0, 1), "{err}");
    assert!(text.starts_with("SIMULATED"), "{text}");
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    let again = sites(&args).1;
    assert_eq!(again, text, "the stored result is printed again");
}

/// Mean GBE by method of one kind of site.
fn means(kind: &str, methods: &str) -> std::collections::BTreeMap<String, f64> {
    let args = ["--kind", kind, "--seeds", "1", "--seed", "41", "--requests", "12", "--methods", methods];
    let (code, out, err) = sites(&[&args[..], &["--format", "json"]].concat());
    assert_eq!(code, 0, "{err}");
    let v: Value = serde_json::from_str(&out).expect("JSON");
    let of = |m: &Value| (m["method"].as_str().unwrap().to_owned(), m["mean_pct"].as_f64().unwrap());
    v["kinds"][0]["methods"].as_array().unwrap().iter().map(of).collect()
}

#[test]
fn leaves_that_the_file_lacks_cost_nothing_against_the_even_split_of_an_operator_who_knows_them() {
    let of = means("leaf64-untold", "even,gp");
    assert!(of["gp"] >= of["even"], "{of:?}");
}

#[test]
fn a_fit_of_the_truths_own_form_is_between_the_even_split_and_full_knowledge() {
    let of = means("leaf16", "even,form,smooth");
    assert!(of["even"] < of["form"] && of["form"] <= of["smooth"] + 1.0, "{of:?}");
}

#[test]
fn a_wrong_kind_is_answered_with_the_nearest_one() {
    let (code, _, err) = sites(&["--kind", "leef16"]);
    assert!(code == 2 && err.contains("did you mean `leaf16`"), "{err}");
    let (code, out, _) = sites(&["--list"]);
    assert!(code == 0 && KINDS.iter().all(|k| out.contains(k.name)), "{out}");
}
