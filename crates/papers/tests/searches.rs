//! What every search promises, and what each is known for.

mod common;

use common::{by_name, names};
use papers::bandpilot::{BandPilotV4, MERGE_COUNTS};
use place::{Contention, Job, Objective, Refusal, Request, SearchResult};
use predict::{BandwidthModel, Candidates, FitOptions, HostShare, Kind, Model, Oracle, fit};
use proptest::prelude::*;
use store::{Measurement, Source};
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, HostId, PathKind, Tier, catalog};

const SIZE: Bytes = Bytes::mib(16);

/// Intra bandwidth that depends on the exact mask, so that the choice of GPUs matters.
fn intra(host: u32, mask: GpuMask, salt: u64) -> f64 {
    let h = (u64::from(mask.0) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15 ^ salt.wrapping_mul(u64::from(host) + 3));
    20.0 + (h >> 56) as f64 / 3.0
}

/// A model of kind `bound`, with intra tables of its own for the first four hosts.
fn model(cluster: &Cluster, seed: u64) -> Model {
    let row = |a: Allocation, v: f64| {
        Measurement::new(a, Collective::AllReduce, SIZE, Bandwidth::from_gb_per_s(v), Source::Simulated)
    };
    let two = Allocation::new([(HostId(0), GpuMask::first(4)), (HostId(1), GpuMask::first(4))]);
    let mut rows = vec![row(two, 100.0)];
    for h in cluster.host_ids().take(4) {
        let masks = cluster.type_of(h).all_gpus().subsets();
        rows.extend(masks.map(|m| row(Allocation::new([(h, m)]), intra(h.0, m, seed))));
    }
    fit(cluster, &rows, &FitOptions::of(Kind::Bound)).unwrap().0
}

/// A model that knows this truth, with the parts of another.
fn knowing<F: Fn(&[HostShare]) -> f64 + Send + Sync>(model: &Model, truth: F) -> Oracle<F> {
    Oracle { table: model.share_table(SIZE).clone(), truth }
}

/// Fig. 1 of BandPilot in short: one host 360, several as fast as their smallest count allows.
fn balanced_truth(parts: &[HostShare]) -> f64 {
    let least = parts.iter().map(|p| p.count).min().unwrap_or(0);
    if parts.len() < 2 { 360.0 } else { 42.0 * f64::from(least) - parts.len() as f64 }
}

/// LiteGD's truth: the weakest of all intra bandwidths and the switch.
fn cannikin(switch_gb_per_s: f64) -> impl Fn(&[HostShare]) -> f64 + Send + Sync {
    move |parts| {
        let intra = parts.iter().map(|p| p.intra_gb_per_s).fold(f64::INFINITY, f64::min);
        if parts.len() > 1 { intra.min(switch_gb_per_s) } else { intra }
    }
}

/// A truth without any order: nothing may be concluded from one GPU set about another.
fn lawless(parts: &[HostShare]) -> f64 {
    let mix = |h: u64, w: u64| (h ^ w).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23);
    let h = parts.iter().fold(1u64, |h, p| mix(mix(h, u64::from(p.host.0) + 1), u64::from(p.mask.0)));
    1.0 + (h >> 40) as f64 / 1e4
}

fn free_of(masks: &[u32]) -> Allocation {
    Allocation::new(masks.iter().enumerate().map(|(h, m)| (HostId(h as u32), GpuMask(*m))))
}

fn run(name: &str, objective: &Objective) -> Result<SearchResult, Refusal> {
    by_name(name, 7).search(objective, 1)
}

/// The answer of a search for `k` of these GPUs.
fn choose(name: &str, cluster: &Cluster, model: &dyn BandwidthModel, free: &Allocation, k: usize) -> Allocation {
    let request = Request::new(k, free.clone(), SIZE);
    let objective = Objective::new(cluster, model, &request);
    run(name, &objective).unwrap().best.remove(0).allocation
}

/// A job on the GPUs that are not free, over all its hosts.
fn background(cluster: &Cluster, free: &Allocation) -> Vec<Job> {
    let busy = |h: HostId| cluster.type_of(h).all_gpus().minus(free.mask(h));
    let gpus = Allocation::new(cluster.host_ids().map(|h| (h, busy(h))));
    if gpus.host_count() < 2 {
        Vec::new()
    } else {
        vec![Job { id: "background".into(), gpus, demand_gb_per_s: None, duty: 1.0 }]
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn every_search_returns_k_free_gpus_deterministically_and_never_beats_the_oracle(
        masks in proptest::collection::vec(0u32..256, 4), k in 1usize..24, which in 0usize..4, seed in 0u64..4, busy: bool,
    ) {
        let cluster = catalog::cluster(catalog::CLUSTERS[which]).unwrap();
        let model = model(&cluster, seed);
        let free = free_of(&masks);
        let mut request = Request::new(k, free.clone(), SIZE);
        if busy {
            request.jobs = background(&cluster, &free);
            request.contention = Contention::Merge;
        }
        let best = run("oracle", &Objective::new(&cluster, &model, &request)).map(|f| f.best[0].score_gb_per_s);
        for name in names() {
            let objective = Objective::new(&cluster, &model, &request);
            match run(name, &objective) {
                Err(e) => prop_assert_eq!(e.code(), if k == 0 { "no_gpus" } else { "not_enough_free" }, "{}", name),
                Ok(found) => {
                    let one = &found.best[0];
                    prop_assert_eq!(one.allocation.gpu_count(), k, "{}", name);
                    prop_assert!(free.contains_all(&one.allocation), "{}", name);
                    let best = *best.as_ref().unwrap();
                    prop_assert!(one.score_gb_per_s <= best + 1e-9 * best.abs(), "{} {} > {}", name, one.score_gb_per_s, best);
                    prop_assert_eq!(&found, &run(name, &Objective::new(&cluster, &model, &request)).unwrap(), "{}", name);
                }
            }
        }
    }

    #[test]
    fn searches_of_larger_clusters_return_k_free_gpus(
        masks in proptest::collection::vec(0u32..256, 5..14), k in 1usize..60, seed in 0u64..4, busy: bool,
    ) {
        let cluster = many(masks.len());
        let truth = knowing(&model(&cluster, seed), |p| lawless(p) * balanced_truth(p));
        let free = free_of(&masks);
        let mut request = Request::new(k, free.clone(), SIZE);
        request.jobs = if busy { background(&cluster, &free) } else { Vec::new() };
        for name in names().filter(|n| !["exact", "oracle"].contains(n)) {
            match run(name, &Objective::new(&cluster, &truth, &request)) {
                Err(e) => prop_assert_eq!(e, Refusal::NotEnough { wanted: k, free: free.gpu_count() }),
                Ok(found) => {
                    let a = &found.best[0].allocation;
                    prop_assert!(a.gpu_count() == k && free.contains_all(a), "{}: {:?}", name, a);
                }
            }
        }
    }

    #[test]
    fn two_searches_together_are_at_least_as_good_as_each(
        masks in proptest::collection::vec(0u32..256, 4), k in 1usize..24, which in 0usize..4, seed in 0u64..4,
    ) {
        let cluster = catalog::cluster(catalog::CLUSTERS[which]).unwrap();
        let model = model(&cluster, seed);
        let free = free_of(&masks);
        prop_assume!(free.gpu_count() >= k);
        let request = Request::new(k, free, SIZE);
        let score = |name: &str| run(name, &Objective::new(&cluster, &model, &request)).unwrap().best[0].score_gb_per_s;
        let (both, eha, pts) = (score("bandpilot"), score("eha"), score("pts"));
        let close = 1e-9 * both.abs();
        prop_assert!(both >= eha - close && both >= pts - close, "{both} of {eha} and {pts}");
    }

    #[test]
    fn eha_takes_one_host_if_one_fits_else_the_fewest_evenly_filled(
        masks in proptest::collection::vec(0u32..256, 4), k in 1usize..33, seed in 0u64..4,
    ) {
        let cluster = catalog::cluster("het-4mix").unwrap();
        let free = free_of(&masks);
        prop_assume!(free.gpu_count() >= k);
        let a = choose("eha", &cluster, &model(&cluster, seed), &free, k);
        let mut there: Vec<usize> = free.counts();
        there.sort_unstable_by(|a, b| b.cmp(a));
        let fewest = (1..=there.len()).find(|m| there[..*m].iter().sum::<usize>() >= k).unwrap();
        prop_assert_eq!(a.host_count(), fewest);
        // No GPU could move from a host with more to one with two fewer that still has room.
        for (h, m) in a.parts() {
            for (g, n) in a.parts() {
                let room = free.mask(*g).count() > n.count();
                prop_assert!(m.count() <= n.count() + 1 || !room, "{a:?} of {free:?}: {h:?} to {g:?}");
            }
        }
    }

    #[test]
    fn the_oracle_finds_the_best_of_all_subsets_of_any_model(masks in proptest::collection::vec(0u32..256, 4), k in 1usize..9) {
        let cluster = catalog::cluster("het-4mix").unwrap();
        let model = knowing(&model(&cluster, 1), lawless);
        let mut free = free_of(&masks);
        if free.gpu_count() > 13 {
            free = Allocation::from_gpus(free.gpus().step_by(free.gpu_count().div_ceil(13)));
        }
        prop_assume!(free.gpu_count() >= k);
        let gpus: Vec<_> = free.gpus().collect();
        let truth = (0u32..1 << gpus.len()).filter(|m| m.count_ones() as usize == k).map(|m| {
            let a = Allocation::from_gpus(GpuMask(m).iter().map(|i| gpus[i]));
            lawless(&a.parts().iter().map(|&(h, m)| model.table.part(h, m)).collect::<Vec<_>>())
        });
        let request = Request::new(k, free.clone(), SIZE);
        let found = run("oracle", &Objective::new(&cluster, &model, &request)).unwrap();
        prop_assert_eq!(found.best[0].score_gb_per_s, truth.fold(0.0, f64::max));
    }

    #[test]
    fn the_oracle_agrees_with_litegds_pruned_reference(
        masks in proptest::collection::vec(0u32..256, 4), k in 2usize..24, which in 0usize..4, seed in 0u64..4, switch in 5.0f64..90.0,
    ) {
        let cluster = catalog::cluster(catalog::CLUSTERS[which]).unwrap();
        let model = knowing(&model(&cluster, seed), cannikin(switch));
        let free = free_of(&masks);
        prop_assume!(free.gpu_count() >= k);
        let request = Request::new(k, free.clone(), SIZE);
        let found = run("oracle", &Objective::new(&cluster, &model, &request)).unwrap();
        let reference = pruned_reference(&model.table, &free, k, switch);
        prop_assert!((found.best[0].score_gb_per_s - reference).abs() < 1e-9, "{} and {reference}", found.best[0].score_gb_per_s);
    }
}

#[test]
fn among_running_jobs_the_oracle_finds_the_best_of_all_subsets() {
    // 21 free GPUs: too many 10-subsets for the oracle to judge all, few enough for a test.
    let cluster = catalog::cluster("het-4mix").unwrap();
    for (seed, contention) in
        [Contention::Merge, Contention::Merge, Contention::MergeBy(&MERGE_COUNTS), Contention::Physical]
            .into_iter()
            .enumerate()
    {
        let model = model(&cluster, seed as u64);
        let free = free_of(&[0x3f, 0xee, 0x3d, 0x1b]);
        let mut request = Request::new(10, free.clone(), SIZE);
        request.contention = contention;
        request.jobs = background(&cluster, &free);
        request.loss_weight = 0.5 * seed as f64;
        let objective = Objective::new(&cluster, &model, &request);
        assert!(objective.contended());
        let gpus: Vec<_> = free.gpus().collect();
        assert_eq!(gpus.len(), 21);
        let mut best = f64::NEG_INFINITY;
        let subsets: Vec<u32> = (0u32..1 << 21).filter(|m| m.count_ones() == 10).collect();
        let mut scores = Vec::new();
        for chunk in subsets.chunks(1 << 14) {
            let all = chunk.iter().map(|m| Allocation::from_gpus(GpuMask(*m).iter().map(|i| gpus[i])));
            objective.scores(&Candidates::of(objective.table(), &all.collect::<Vec<_>>()), &mut scores);
            best = scores.iter().copied().fold(best, f64::max);
        }
        let before = objective.evaluations();
        let found = run("oracle", &objective).unwrap();
        assert!(objective.evaluations() - before < subsets.len() as u64 / 2);
        assert!(
            (found.best[0].score_gb_per_s - best).abs() <= 1e-9 * best.abs(),
            "{} and {best}",
            found.best[0].score_gb_per_s
        );
    }
}

/// LiteGD, section 5.3: the best intra-host group for every host and count, every split over the hosts, the weakest of intra and switch;
/// branches that cannot beat the best so far are cut.
fn pruned_reference(table: &predict::HostShareTable, free: &Allocation, k: usize, switch_gb_per_s: f64) -> f64 {
    let groups: Vec<Vec<f64>> = free
        .parts()
        .iter()
        .map(|&(h, mask)| {
            let best = |c: usize| {
                let of = mask.subsets().filter(|m| m.count() == c).map(|m| table.part(h, m).intra_gb_per_s);
                of.fold(f64::NEG_INFINITY, f64::max)
            };
            (1..=mask.count()).map(best).collect()
        })
        .collect();
    fn go(groups: &[Vec<f64>], left: usize, hosts: usize, weakest: f64, switch: f64, best: &mut f64) {
        let value = if hosts > 1 { weakest.min(switch) } else { weakest };
        if left == 0 {
            *best = best.max(value);
            return;
        }
        let Some((first, others)) = groups.split_first() else { return };
        if hosts > 0 && value <= *best {
            return;
        }
        go(others, left, hosts, weakest, switch, best);
        for (c, intra) in first.iter().enumerate().take(left) {
            go(others, left - c - 1, hosts + 1, weakest.min(*intra), switch, best);
        }
    }
    let mut best = f64::NEG_INFINITY;
    go(&groups, k, 0, f64::INFINITY, switch_gb_per_s, &mut best);
    best
}

#[test]
fn names_are_the_names_of_their_searches_and_no_other_is_known() {
    for entry in common::REGISTRY.searches() {
        assert_eq!((entry.build)(0).name(), entry.name);
        assert!(!entry.about.is_empty());
    }
    assert_eq!(common::REGISTRY.searches().len(), 18);
    assert!(common::REGISTRY.search("simulated-annealing", 0).is_err());
}

#[test]
fn packing_gives_6_plus_2_where_searching_gives_4_plus_4() {
    let cluster = catalog::cluster("h100").unwrap();
    let truth = knowing(&model(&cluster, 1), balanced_truth);
    let free = free_of(&[0x3f, 0x3f]);
    let split = |name| choose(name, &cluster, &truth, &free, 8).split();
    for name in ["topo", "topo-greedy", "default", "slurm-bestfit", "slurm-topo"] {
        assert_eq!(split(name), "6+2", "{name}");
    }
    for name in ["exact", "oracle", "eha", "bandpilot", "bandpilot-v4"] {
        assert_eq!(split(name), "4+4", "{name}");
    }
}

#[test]
fn eha_stays_on_one_host_even_where_that_is_the_worst_choice() {
    let cluster = catalog::cluster("h100").unwrap();
    let truth = knowing(&model(&cluster, 1), |p| if p.len() < 2 { 2.7 } else { 100.0 });
    let free = free_of(&[0xff, 0x0f, 0x0f]);
    assert_eq!(choose("eha", &cluster, &truth, &free, 8).host_count(), 1);
    assert!(choose("exact", &cluster, &truth, &free, 8).host_count() > 1);
}

#[test]
fn pts_cannot_leave_a_plateau() {
    // Every set with a GPU of n0 is equally bad, and four GPUs have to go before one is better: all removals tie, the first goes.
    let cluster = catalog::cluster("h100").unwrap();
    let truth = knowing(&model(&cluster, 1), |p| if p.iter().any(|p| p.host.0 == 3) { 1.0 } else { 100.0 });
    let free = free_of(&[0xff, 0xff, 0, 0x0f]);
    let a = choose("pts", &cluster, &truth, &free, 12);
    assert_eq!(a.mask(HostId(3)).count(), 4, "{a:?}");
    assert_eq!(choose("exact", &cluster, &truth, &free, 12).mask(HostId(3)), GpuMask::EMPTY);
}

#[test]
fn evaluations_and_batches_are_what_the_documents_say() {
    let cluster = catalog::cluster("h100").unwrap();
    let model = model(&cluster, 1);
    let free = free_of(&[0xff, 0x7f, 0x3f, 0x1f]);
    let n = 26u64;
    let count = |name: &str, k: usize| {
        let request = Request::new(k, free.clone(), SIZE);
        let objective = Objective::new(&cluster, &model, &request);
        let found = run(name, &objective).unwrap();
        if name != "oracle" {
            assert_eq!(found.evaluations, objective.evaluations(), "{name}");
        }
        (objective.evaluations(), objective.batches())
    };
    let elimination = |n: u64, k: u64| (n * n - k * k + n - k) / 2;
    for k in [10u64, 17, 25] {
        assert_eq!(count("pts", k as usize), (elimination(n, k), n - k));
        let growth: u64 = (n - k + 1..=n - 2).sum();
        let litegd = elimination(n, k) + n * (n - 1) / 2 + growth + 2;
        assert_eq!(count("litegd", k as usize), (litegd, (n - k) + 1 + (k - 2) + 1));
        let (eha, batches) = count("eha", k as usize);
        assert_eq!(batches, 1);
        assert_eq!(count("bandpilot", k as usize), (eha + elimination(n, k) + 2, 1 + (n - k) + 1));
        assert_eq!(count("bw-greedy", k as usize), (n * (n - 1) / 2, 1));
        assert!(count("cascore", k as usize).0 <= 12);
        assert_eq!(count("oracle", k as usize).1, 1);
    }
    // 3 GPUs on one host: one batch of C(8,3) + C(7,3) + C(6,3) + C(5,3) subsets, then elimination inside the host that won.
    let subsets = 56 + 35 + 20 + 10;
    assert_eq!(count("eha", 3), (subsets, 1));
    let (pts, batches) = count("pts", 3);
    let of_host = |m: u64| (subsets + elimination(m, 3), 1 + m - 3);
    assert!((5..=8).any(|m| of_host(m) == (pts, batches)), "{pts} in {batches}");
    for name in ["random", "default", "topo", "topo-greedy", "slurm-bestfit", "slurm-topo"] {
        assert_eq!(count(name, 10), (0, 0), "{name}");
    }
}

#[test]
fn what_a_search_cannot_honour_is_refused_and_exact_is_named() {
    let cluster = catalog::cluster("h100").unwrap();
    let model = model(&cluster, 1);
    let mut pods = Request::new(8, cluster.usable(), SIZE);
    pods.pods = vec![4, 4];
    let mut least = Request::new(8, cluster.usable(), SIZE);
    least.constraints.gpus_per_host_min = 2;
    let mut most = Request::new(8, cluster.usable(), SIZE);
    most.constraints.hosts_max = Some(2);
    // These look at limits on hosts themselves.
    for name in names().filter(|n| !["exact", "oracle", "auto", "threshold"].contains(n)) {
        for (request, what) in [(&pods, "pods"), (&least, "GPUs per host"), (&most, "number of hosts")] {
            let e = run(name, &Objective::new(&cluster, &model, request)).unwrap_err();
            assert_eq!(e.code(), "unsupported_by_search");
            let text = e.to_string();
            assert!(text.contains(name) && text.contains(what) && text.contains("--search exact"), "{text}");
        }
        let none = Request::new(0, cluster.usable(), SIZE);
        assert_eq!(run(name, &Objective::new(&cluster, &model, &none)).unwrap_err(), Refusal::NoGpus);
        let many = Request::new(33, cluster.usable(), SIZE);
        let e = run(name, &Objective::new(&cluster, &model, &many)).unwrap_err();
        assert_eq!(e, Refusal::NotEnough { wanted: 33, free: 32 });
    }
}

#[test]
fn the_oracle_keeps_pods_and_limits_as_exact_does_and_one_gpu_pods_ask_nothing() {
    let cluster = catalog::cluster("het-4mix").unwrap();
    let model = model(&cluster, 2);
    // Few free GPUs: all subsets; many: every split; both with and without a running job.
    for free in [free_of(&[0x0f, 0x3c, 0x33, 0x07]), free_of(&[0x7f, 0xfd, 0x3f, 0x77])] {
        for busy in [false, true] {
            let mut request = Request::new(10, free.clone(), SIZE);
            request.jobs = if busy { background(&cluster, &free) } else { Vec::new() };
            request.pods = vec![3, 3, 2, 2];
            request.constraints.hosts_max = Some(3);
            let score = |name| {
                let found = run(name, &Objective::new(&cluster, &model, &request)).unwrap().best.remove(0);
                assert!(request.accepts_counts(&found.allocation.counts()), "{name}");
                found.score_gb_per_s
            };
            assert!(score("oracle") >= score("exact") * (1.0 - 1e-9));
            if !busy {
                assert!((score("oracle") - score("exact")).abs() <= 1e-9 * score("exact"));
            }
            request.constraints.hosts_max = Some(1);
            let e = |name| run(name, &Objective::new(&cluster, &model, &request)).unwrap_err();
            assert_eq!(e("oracle"), e("exact"));
            request.constraints.hosts_max = None;
            request.pods = vec![1; 10];
            for name in names() {
                assert!(run(name, &Objective::new(&cluster, &model, &request)).is_ok(), "{name}");
            }
        }
    }
}

#[test]
fn constraints_on_hosts_narrow_what_every_search_sees() {
    let cluster = catalog::cluster("het-4mix").unwrap();
    let model = model(&cluster, 2);
    let mut request = Request::new(6, cluster.usable(), SIZE);
    request.constraints.excluded_hosts = vec![HostId(3)];
    request.constraints.only_hosts = vec![HostId(1), HostId(2), HostId(3)];
    for name in names() {
        let a = run(name, &Objective::new(&cluster, &model, &request)).unwrap().best.remove(0).allocation;
        assert!(a.parts().iter().all(|p| p.0 == HostId(1) || p.0 == HostId(2)), "{name}: {a:?}");
    }
}

/// `hosts` hosts of 8 H100.
fn many(hosts: usize) -> Cluster {
    let mut cluster = catalog::cluster("h100").unwrap();
    cluster.hosts = (0..hosts).map(|i| topology::Host { name: format!("n{i}"), ..topology::Host::default() }).collect();
    cluster
}

#[test]
fn a_search_that_would_judge_millions_is_refused_before_it_begins() {
    let cluster = many(600);
    let truth = knowing(&model(&cluster, 1), balanced_truth);
    let request = Request::new(64, cluster.usable(), SIZE);
    for name in ["pts", "litegd", "bandpilot", "bw-greedy"] {
        let objective = Objective::new(&cluster, &truth, &request);
        let e = run(name, &objective).unwrap_err();
        assert_eq!(e.code(), "too_large_for_search", "{name}");
        assert!(e.to_string().contains(name) && e.to_string().contains("--free"), "{e}");
        assert!(objective.evaluations() <= 5000, "{name}");
    }
}

#[test]
fn a_thousand_gpus_are_within_reach_of_every_search_but_the_complete_ones() {
    let cluster = many(128);
    let truth = knowing(&model(&cluster, 1), balanced_truth);
    let free = Allocation::new(cluster.host_ids().map(|h| (h, GpuMask([0x0f, 0xf0, 0x3c, 0x55][h.index() % 4]))));
    let request = Request::new(48, free, SIZE);
    for name in names() {
        match run(name, &Objective::new(&cluster, &truth, &request)) {
            Ok(found) => assert_eq!(found.best[0].allocation.gpu_count(), 48, "{name}"),
            Err(e) => assert!(["exact", "oracle"].contains(&name) && e.code() == "too_large_for_exact", "{name}: {e}"),
        }
    }
}

#[test]
fn the_coarse_stage_spares_most_of_the_elimination() {
    let cluster = many(16);
    let truth = knowing(&model(&cluster, 1), balanced_truth);
    let request = Request::new(20, cluster.usable(), SIZE);
    let fine = Objective::new(&cluster, &truth, &request);
    let coarse = Objective::new(&cluster, &truth, &request);
    run("pts", &fine).unwrap();
    let found = run("bandpilot-v4", &coarse).unwrap();
    assert!(coarse.evaluations() * 10 < fine.evaluations(), "{} of {}", coarse.evaluations(), fine.evaluations());
    assert_eq!(found.best[0].allocation.gpu_count(), 20);
}

#[test]
fn past_requests_where_pts_did_not_help_spare_it() {
    let cluster = catalog::cluster("h100").unwrap();
    let truth = knowing(&model(&cluster, 1), balanced_truth);
    let request = |k| Request::new(k, free_of(&[0xff, 0x7f, 0x3f, 0x1f]), SIZE);
    let mut search = BandPilotV4::default();
    for k in 9..=20 {
        let r = request(k);
        search.past.extend(BandPilotV4::observe(&Objective::new(&cluster, &truth, &r)).unwrap());
    }
    assert_eq!(search.past.len(), 12);
    assert!(search.past.iter().all(|p| !p.pts_helped), "an even split is the best here, and EHA's");
    let r = request(14);
    let (naive, taught) = (Objective::new(&cluster, &truth, &r), Objective::new(&cluster, &truth, &r));
    run("bandpilot-v4", &naive).unwrap();
    place::Search::search(&search, &taught, 1).unwrap();
    assert_eq!(taught.batches(), 1);
    assert!(naive.batches() > 1);
    // Where PTS helps, it is asked again.
    search.past.iter_mut().for_each(|p| p.pts_helped = true);
    let again = Objective::new(&cluster, &truth, &r);
    place::Search::search(&search, &again, 1).unwrap();
    assert!(again.batches() > 1);
}

#[test]
fn a_search_that_serves_many_requests_learns_when_pts_is_not_worth_it() {
    let cluster = catalog::cluster("h100").unwrap();
    let truth = knowing(&model(&cluster, 1), balanced_truth);
    let serving = by_name("bandpilot-v4", 0);
    let batches: Vec<u64> = (0..3)
        .flat_map(|_| 9..=20)
        .map(|k| {
            let request = Request::new(k, free_of(&[0xff, 0x7f, 0x3f, 0x1f]), SIZE);
            let objective = Objective::new(&cluster, &truth, &request);
            place::Search::search(&*serving, &objective, 1).unwrap();
            objective.batches()
        })
        .collect();
    assert!(batches[0] > 1, "the first requests ask PTS: {batches:?}");
    assert!(batches[24..].iter().all(|b| *b == 1), "an even split is the best here, and EHA's: {batches:?}");
}

#[test]
fn default_prefers_one_numa_node_then_the_freest_host() {
    let cluster = catalog::cluster("het-4mix").unwrap();
    let model = model(&cluster, 1);
    // Three GPUs: n1 has them on one socket, n0 has more but scattered.
    let free = free_of(&[0b0011_0011, 0b0111_0000]);
    assert_eq!(choose("default", &cluster, &model, &free, 3).parts(), &[(HostId(1), GpuMask(0b0111_0000))]);
    // Four: only n0 can, both its sockets are needed.
    assert_eq!(choose("default", &cluster, &model, &free, 4).parts(), &[(HostId(0), GpuMask(0b0011_0011))]);
    // Six: the freest host first, the rest from one socket of the next.
    assert_eq!(choose("default", &cluster, &model, &free, 6).counts(), [4, 2]);
}

#[test]
fn topo_finds_the_best_linked_gpus_of_any_host() {
    let cluster = catalog::cluster("het-4mix").unwrap();
    let model = model(&cluster, 1);
    // Alone on PCIe (n0), on NVLink in the V100 host (n1) and behind the switches of the A800 host (n3): the latter are linked best.
    let free = free_of(&[0xff, 0xff, 0xff, 0xff]);
    let a = choose("topo", &cluster, &model, &free, 4);
    assert_eq!(a.parts()[0].0, HostId(3));
    // Without that host four V100 with most links between them.
    let a = choose("topo", &cluster, &model, &free_of(&[0xff, 0xff, 0xff, 0]), 4);
    let (h, m) = a.parts()[0];
    let paths = &cluster.type_of(h).gpu_paths;
    let linked = m.iter().all(|a| m.iter().all(|b| a == b || matches!(paths[a][b], PathKind::NvLink(_))));
    assert!(h == HostId(1) && linked, "{a:?}");
}

#[test]
fn slurm_takes_the_tightest_node_then_the_tightest_run() {
    let cluster = many(6);
    let model = model(&cluster, 1);
    let fit = |free: &[u32], k| choose("slurm-bestfit", &cluster, &model, &free_of(free), k);
    // One node can hold it: the tightest.
    assert_eq!(fit(&[0xff, 0x1f, 0x0f, 0xff], 5).parts(), &[(HostId(1), GpuMask(0x1f))]);
    // None can: nodes of the tightest run in order, the last one gives the rest.
    let a = fit(&[0x07, 0x0f, 0, 0x3f, 0xff, 0x7f], 10);
    assert_eq!(a.counts(), [6, 4]);
    assert_eq!(a.parts()[0].0, HostId(3));
    // An idle cluster: whole nodes first.
    assert_eq!(fit(&[0xff; 6], 12).counts(), [8, 4]);
    assert_eq!(fit(&[0xff; 6], 8).counts(), [8]);
}

#[test]
fn slurms_tree_stays_below_the_lowest_switch_that_fits() {
    let mut cluster = many(6);
    let tier = |name: &str, hosts_per_switch| Tier::regular(name, hosts_per_switch, 2.0);
    cluster.network.tiers = vec![tier("leaf", 2), tier("spine", 6)];
    let model = model(&cluster, 1);
    let fit = |free: &[u32], k| choose("slurm-topo", &cluster, &model, &free_of(free), k);
    let hosts = |a: &Allocation| a.parts().iter().map(|p| p.0.0).collect::<Vec<_>>();
    // Nodes 1 and 2 would be consecutive, but hang on different leaves.
    assert_eq!(hosts(&fit(&[0, 0xff, 0xff, 0, 0x3f, 0x7f], 12)), [4, 5]);
    // No leaf fits: the one that can give most first, the rest from the tightest.
    let a = fit(&[0x1f, 0x0f, 0xff, 0x7f, 0xff, 0], 18);
    assert_eq!(hosts(&a), [2, 3, 4]);
    assert_eq!(fit(&[0x1f, 0x0f, 0xff, 0x7f, 0xff, 0], 8).counts(), [8]);
}

#[test]
fn litegd_grows_a_pair_where_elimination_stalls() {
    // Two GPUs of n3 are the best pair and stay the best whatever is added; elimination sees a plateau until the end.
    let cluster = catalog::cluster("h100").unwrap();
    let truth = knowing(&model(&cluster, 1), |p| {
        let on_last = p.iter().filter(|p| p.host.0 == 3).map(|p| p.count).sum::<u8>();
        let others = p.iter().filter(|p| p.host.0 != 3).map(|p| p.count).sum::<u8>();
        if others <= 4 { 10.0 + f64::from(on_last) } else { 1.0 }
    });
    let free = free_of(&[0xff, 0xff, 0, 0xff]);
    let request = Request::new(12, free, SIZE);
    let score = |name| run(name, &Objective::new(&cluster, &truth, &request)).unwrap().best[0].score_gb_per_s;
    assert_eq!(score("litegd"), 18.0);
    assert!(score("litegd") >= score("pts"));
}

#[test]
fn what_sees_running_jobs_keeps_away_from_them() {
    let cluster = catalog::cluster("h100").unwrap();
    let truth = knowing(&model(&cluster, 1), |p| if p.len() < 2 { 300.0 } else { 100.0 });
    let mut request = Request::new(10, free_of(&[0x0f, 0x0f, 0xff, 0xff]), SIZE);
    request.jobs = background(&cluster, &request.free);
    assert_eq!(request.jobs.len(), 1);
    for name in ["cascore", "exact", "oracle", "bandpilot-v4"] {
        let a = run(name, &Objective::new(&cluster, &truth, &request)).unwrap().best.remove(0).allocation;
        assert_eq!(a.parts().iter().map(|p| p.0.0).collect::<Vec<_>>(), [2, 3], "{name}");
    }
}

#[test]
fn lots_depend_on_the_seed_and_on_the_request() {
    let cluster = catalog::cluster("h100").unwrap();
    let model = model(&cluster, 1);
    let draw = |seed, free: &Allocation| {
        let request = Request::new(8, free.clone(), SIZE);
        let o = Objective::new(&cluster, &model, &request);
        by_name("random", seed).search(&o, 1).unwrap().best.remove(0).allocation
    };
    let all = cluster.usable();
    assert_eq!(draw(1, &all), draw(1, &all));
    assert_ne!(draw(1, &all), draw(2, &all));
    assert_ne!(draw(1, &all), draw(1, &free_of(&[0xff, 0xff, 0xff, 0x7f])));
}
