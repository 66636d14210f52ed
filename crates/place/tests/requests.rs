//! Pods and constraints: the exact search against brute force over every subset and every assignment of pods.

mod common;

use common::{SIZE, model};
use place::{Constraints, Job, Request, Search, answer, exact, search::Exact};
use predict::{BandwidthModel, Candidates, Kind};
use proptest::prelude::*;
use topology::{Allocation, Cluster, GpuMask, HostId, catalog};

/// Can the pods fill these counts? Every pod on every host, one after the other.
fn can_fill(pods: &[usize], counts: &mut [usize]) -> bool {
    let Some((pod, others)) = pods.split_first() else { return counts.iter().all(|c| *c == 0) };
    (0..counts.len()).any(|i| {
        if counts[i] < *pod {
            return false;
        }
        counts[i] -= pod;
        let ok = can_fill(others, counts);
        counts[i] += pod;
        ok
    })
}

/// Does an allocation keep everything that a request asks, read off its definition?
fn keeps(cluster: &Cluster, r: &Request, a: &Allocation) -> bool {
    let c = &r.constraints;
    let mut counts = a.counts();
    let shares_nic = |h: HostId, g: usize| {
        let ty = cluster.type_of(h);
        r.jobs
            .iter()
            .flat_map(|j| j.gpus.gpus())
            .any(|j| j.host == h && ty.nearest_nics(usize::from(j.gpu)) & ty.nearest_nics(g) != 0)
    };
    a.gpu_count() == r.gpus
        && a.parts().iter().all(|(h, m)| {
            (c.only_hosts.is_empty() || c.only_hosts.contains(h))
                && !c.excluded_hosts.contains(h)
                && c.gpu_type.as_ref().is_none_or(|t| cluster.type_of(*h).name == *t)
                && m.count() >= c.gpus_per_host_min
                && !(c.exclusive_nics && m.iter().any(|g| shares_nic(*h, g)))
        })
        && c.hosts_max.is_none_or(|m| a.host_count() <= m)
        && (r.pods.is_empty() || can_fill(&r.pods, &mut counts))
}

/// The best mean over all subsets that keep the request; None if there is none.
fn brute_force(cluster: &Cluster, model: &dyn BandwidthModel, r: &Request) -> Option<f64> {
    let gpus: Vec<_> = r.free.gpus().collect();
    let all: Vec<Allocation> = (1u32..1 << gpus.len())
        .filter(|m| m.count_ones() as usize == r.gpus)
        .map(|m| Allocation::from_gpus(GpuMask(m).iter().map(|i| gpus[i])))
        .filter(|a| keeps(cluster, r, a))
        .collect();
    let mut means = Vec::new();
    model.means(SIZE, &Candidates::of(model.share_table(SIZE), &all), &mut means);
    means.into_iter().reduce(f64::max)
}

/// At most 12 free GPUs, so that brute force ends.
fn thinned(masks: &[u32]) -> Allocation {
    let free = Allocation::new(masks.iter().enumerate().map(|(h, m)| (HostId(h as u32), GpuMask(*m))));
    match free.gpu_count() {
        0..=12 => free,
        n => Allocation::from_gpus(free.gpus().step_by(n.div_ceil(12))),
    }
}

fn hosts() -> impl Strategy<Value = Vec<HostId>> {
    prop_oneof![3 => Just(vec![]), 1 => proptest::sample::subsequence(vec![HostId(0), HostId(1), HostId(2), HostId(3)], 1..4)]
}

prop_compose! {
    fn constraints()(
        only_hosts in hosts(), excluded_hosts in hosts(), typed in 0usize..8, gpus_per_host_min in 0usize..4,
        hosts_max in proptest::option::of(1usize..5), exclusive_nics: bool,
    ) -> (Constraints, usize) {
        (Constraints { only_hosts, excluded_hosts, gpu_type: None, gpus_per_host_min, hosts_max, exclusive_nics, ..Constraints::default() }, typed)
    }
}

prop_compose! {
    fn requests()(
        which in 0usize..4, masks in proptest::collection::vec(0u32..256, 4), job in proptest::collection::vec(0u32..256, 4),
        pods in prop_oneof![Just(vec![]), proptest::collection::vec(1usize..5, 1..6)], k in 1usize..11,
        (mut constraints, typed) in constraints(),
    ) -> (Cluster, Request) {
        let cluster = catalog::cluster(catalog::CLUSTERS[which]).unwrap();
        let free = thinned(&masks);
        // Single-host jobs on GPUs that are not free: they hold NICs and contend with no job.
        let held = |h: u32, m: u32| Allocation::new([(HostId(h), GpuMask(m).minus(free.mask(HostId(h))))]);
        let jobs = job.iter().enumerate().map(|(h, m)| held(h as u32, *m)).filter(|a| !a.is_empty());
        let jobs = jobs.enumerate().map(|(i, gpus)| Job { id: i.to_string(), gpus, demand_gb_per_s: None, duty: 1.0 }).collect();
        constraints.gpu_type = cluster.types.get(typed).map(|t| t.name.clone());
        let k = if pods.is_empty() { k } else { pods.iter().sum() };
        let request = Request { pods, constraints, jobs, ..Request::new(k, free, SIZE) };
        (cluster, request)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn exact_search_with_pods_and_constraints_finds_what_brute_force_finds((cluster, request) in requests(), seed in 0u64..3, gp: bool) {
        let model = model(&cluster, if gp { Kind::Gp } else { Kind::Bound }, seed);
        let truth = brute_force(&cluster, &model, &request);
        match exact(&cluster, &model, &request, 3) {
            Err(e) => {
                prop_assert!(truth.is_none(), "refused ({e}) although {truth:?} can be had");
                prop_assert!(!e.is_malformed(), "{e}");
            }
            Ok(found) => {
                let best = &found.best[0];
                prop_assert!(found.best.iter().all(|s| keeps(&cluster, &request, &s.allocation)), "{:?}", found.best);
                prop_assert!(request.free.contains_all(&best.allocation));
                let truth = truth.expect("brute force finds what exact search found");
                prop_assert!(
                    (best.prediction.busbw_gb_per_s - truth).abs() <= truth * 1e-9,
                    "found {}, brute force {truth}", best.prediction.busbw_gb_per_s
                );
            }
        }
    }

    #[test]
    fn every_search_keeps_what_is_asked_or_refuses((cluster, request) in requests(), which: usize, seed in 0u64..3) {
        let registry = place::Registry::shipped();
        let entry = registry.searches()[which % registry.searches().len()];
        let (name, search) = (entry.name, (entry.build)(seed));
        let model = model(&cluster, Kind::Bound, seed);
        match place::answer_with(&*search, &cluster, &model, &request) {
            Ok(a) => {
                prop_assert_eq!(a.search, name);
                for s in std::iter::once(&a.choice).chain(&a.runner_ups) {
                    prop_assert!(keeps(&cluster, &request, &s.allocation), "{name}: {s:?}");
                    prop_assert!(request.free.contains_all(&s.allocation));
                }
            }
            Err(e) => prop_assert!(!e.is_malformed(), "{name}: {e}"),
        }
    }

    #[test]
    fn an_answer_gives_every_pod_its_gpus_on_one_host_and_ranks_them_pod_by_pod((cluster, request) in requests()) {
        let model = model(&cluster, Kind::Bound, 1);
        let Ok(a) = answer(&cluster, &model, &request) else { return Ok(()) };
        prop_assert_eq!(Allocation::from_gpus(a.rank_order.iter().copied()), a.choice.allocation.clone());
        prop_assert_eq!(a.rank_order.len(), request.gpus);
        prop_assert_eq!(Allocation::new(a.host_order.iter().copied()), a.choice.allocation.clone());
        let sizes: Vec<usize> = a.pods.iter().map(|p| p.1.count()).collect();
        prop_assert_eq!(&sizes, &request.pods);
        if !request.pods.is_empty() {
            prop_assert_eq!(Allocation::new(a.pods.iter().copied()), a.choice.allocation.clone());
        }
        // The ranks of a pod follow each other, and pods of one size come in their order.
        let rank = |p: &(HostId, GpuMask)| {
            let of_pod = |g: &topology::GpuId| g.host == p.0 && p.1.contains(usize::from(g.gpu));
            let first = a.rank_order.iter().position(of_pod).unwrap();
            (first, a.rank_order[first..].iter().take_while(|g| of_pod(g)).count())
        };
        let ranks: Vec<_> = a.pods.iter().map(rank).collect();
        for (i, r) in ranks.iter().enumerate() {
            prop_assert_eq!(r.1, sizes[i]);
            for j in 0..i {
                prop_assert!(sizes[j] != sizes[i] || ranks[j].0 < r.0);
            }
        }
        for other in a.packed.iter().chain(&a.runner_ups) {
            prop_assert!(keeps(&cluster, &request, &other.allocation), "{other:?}");
        }
    }

    #[test]
    fn counts_are_accepted_exactly_if_some_assignment_of_pods_fills_them(
        pods in proptest::collection::vec(1usize..9, 1..8), counts in proptest::collection::vec(1usize..17, 1..5), fill: bool,
    ) {
        let mut counts = counts;
        if fill {
            // Counts that the pods do fill: dealt out in turn.
            let hosts = counts.len().min(pods.len());
            counts = vec![0; hosts];
            pods.iter().enumerate().for_each(|(i, p)| counts[i % hosts] += p);
            prop_assume!(counts.iter().all(|c| *c <= 16));
        }
        let k: usize = pods.iter().sum();
        let request = Request { pods: pods.clone(), ..Request::new(k, Allocation::default(), SIZE) };
        prop_assert_eq!(request.accepts_counts(&counts), can_fill(&pods, &mut counts.clone()));
    }

    #[test]
    fn the_counts_that_a_host_may_give_are_the_sums_of_pods(pods in proptest::collection::vec(1usize..18, 0..6), min in 0usize..20) {
        let k = pods.iter().sum::<usize>().max(1);
        let mut r = Request { pods, ..Request::new(k, Allocation::default(), SIZE) };
        r.constraints.gpus_per_host_min = min;
        let subsets = (0u32..1 << r.pods.len()).map(|s| (0..r.pods.len()).filter(|i| s >> i & 1 == 1).map(|i| r.pods[i]).sum());
        let sums: Vec<usize> = subsets.collect();
        for n in 0..32 {
            let wanted = (1..=16).contains(&n) && n >= min && (r.pods.is_empty() || sums.contains(&n));
            prop_assert_eq!(r.counts_allowed() >> n & 1 == 1, wanted, "{} GPUs", n);
        }
    }

    #[test]
    fn usable_gpus_of_a_narrowed_request_are_the_same((cluster, request) in requests()) {
        if let Ok(usable) = request.usable(&cluster) {
            let narrowed = Request { free: usable.clone(), ..request };
            prop_assert_eq!(narrowed.usable(&cluster).unwrap(), usable);
        }
    }

    #[test]
    fn a_hosts_gpus_are_cut_into_pods_whose_worst_link_is_best(mask in 1u32..256, cut in 1usize..5, seed in 0u64..4) {
        let cluster = catalog::cluster("h100").unwrap();
        let model = model(&cluster, Kind::Bound, seed);
        let table = model.share_table(SIZE);
        let (host, mask) = (HostId(1), GpuMask(mask));
        let mut pods = vec![cut; mask.count() / cut];
        if mask.count() % cut > 0 {
            pods.push(mask.count() % cut);
        }
        let worst = |masks: &[GpuMask]| {
            let with_links = masks.iter().filter(|m| m.count() > 1);
            with_links.map(|m| table.intra_gb_per_s(host, *m)).fold(f64::INFINITY, f64::min)
        };
        fn all(sizes: &[usize], left: GpuMask, chosen: &mut Vec<GpuMask>, worst: &dyn Fn(&[GpuMask]) -> f64) -> f64 {
            let Some((n, others)) = sizes.split_first() else { return worst(chosen) };
            let mut best = f64::NEG_INFINITY;
            for m in left.subsets().filter(|m| m.count() == *n) {
                chosen.push(m);
                best = best.max(all(others, left.minus(m), chosen, worst));
                chosen.pop();
            }
            best
        }
        prop_assume!(pods.len() < 5);
        let cut: Vec<GpuMask> =
            place::pods::place_pods(table, &pods, &[(host, mask)]).unwrap().iter().map(|p| p.1).collect();
        prop_assert_eq!(worst(&cut), all(&pods, mask, &mut Vec::new(), &worst));
    }
}

fn h100() -> Cluster {
    catalog::cluster("h100").unwrap()
}

fn code(change: impl Fn(&mut Request)) -> (&'static str, String) {
    let cluster = h100();
    let mut r = Request::new(8, cluster.usable(), SIZE);
    change(&mut r);
    let e = answer(&cluster, &model(&cluster, Kind::Bound, 1), &r).unwrap_err();
    (e.code(), e.to_string())
}

fn job(id: &str, parts: &[(u32, u32)]) -> Job {
    let gpus = Allocation::new(parts.iter().map(|(h, m)| (HostId(*h), GpuMask(*m))));
    Job { id: id.into(), gpus, demand_gb_per_s: None, duty: 1.0 }
}

#[test]
fn every_refusal_says_what_was_found_and_has_a_code_of_its_own() {
    let first_hosts_free =
        |r: &mut Request| r.free = Allocation::new([(HostId(2), GpuMask(0xff)), (HostId(3), GpuMask(0xff))]);
    type Change = Box<dyn Fn(&mut Request)>;
    let cases: Vec<(&str, &str, Change)> = vec![
        ("no_gpus", "at least one", Box::new(|r| r.gpus = 0)),
        ("not_enough_free", "33 GPUs are requested and 32", Box::new(|r| r.gpus = 33)),
        ("empty_pod", "pod 1 has 0", Box::new(|r| r.pods = vec![8, 0])),
        ("pods_sum", "7 GPUs together, but 8", Box::new(|r| r.pods = vec![4, 3])),
        ("pods_sum", "together, but 8", Box::new(|r| r.pods = vec![usize::MAX, 9])),
        ("too_many_pods", "65537", Box::new(|r| r.pods = vec![1; 65537])),
        ("pod_too_large", "no host has more than 8", Box::new(|r| (r.gpus, r.pods) = (9, vec![9]))),
        ("pods_do_not_fit", "32 GPUs on 4 hosts", Box::new(|r| (r.gpus, r.pods) = (25, vec![5; 5]))),
        ("no_split", "at least 8 GPUs per host", Box::new(|r| (r.gpus, r.constraints.gpus_per_host_min) = (12, 8))),
        (
            "limits_too_tight",
            "1 host holds at most 8 GPUs; allow 2 hosts, or ask for 8",
            Box::new(|r| (r.gpus, r.constraints.hosts_max) = (9, Some(1))),
        ),
        ("no_hosts_allowed", "a job needs one", Box::new(|r| r.constraints.hosts_max = Some(0))),
        ("no_host_matches", "hgx-h100 (NVIDIA H100", Box::new(|r| r.constraints.gpu_type = Some("B200".into()))),
        (
            "no_host_matches",
            "`only_hosts`",
            Box::new(|r| (r.constraints.only_hosts, r.constraints.excluded_hosts) = (vec![HostId(0)], vec![HostId(0)])),
        ),
        (
            "constraints_leave_too_few",
            "24 are on hosts that are not allowed",
            Box::new(|r| (r.gpus, r.constraints.only_hosts) = (9, vec![HostId(1)])),
        ),
        ("unknown_host", "host number 9", Box::new(|r| r.constraints.only_hosts = vec![HostId(9)])),
        ("unknown_host", "job `a`", Box::new(|r| r.jobs = vec![job("a", &[(4, 1)])])),
        ("unknown_gpu", "{8}", Box::new(move |r| (first_hosts_free(r), r.jobs = vec![job("a", &[(0, 0x100)])]).1)),
        ("job_gpu_is_free", "GPU n0:1", Box::new(|r| r.jobs = vec![job("a", &[(0, 2)])])),
        (
            "jobs_overlap",
            "`a` and `b` both hold GPU n1:2",
            Box::new(move |r| (first_hosts_free(r), r.jobs = vec![job("a", &[(1, 6)]), job("b", &[(1, 12)])]).1),
        ),
        (
            "duplicate_job",
            "named `a`",
            Box::new(move |r| (first_hosts_free(r), r.jobs = vec![job("a", &[(1, 1)]), job("a", &[(1, 2)])]).1),
        ),
        ("empty_job", "`a` holds no GPU", Box::new(|r| r.jobs = vec![job("a", &[])])),
        ("bad_loss_weight", "-1", Box::new(|r| r.loss_weight = -1.0)),
        ("bad_loss_weight", "NaN", Box::new(|r| r.loss_weight = f64::NAN)),
        (
            "bad_demand",
            "inf",
            Box::new(move |r| {
                first_hosts_free(r);
                r.jobs = vec![Job { demand_gb_per_s: Some(f64::INFINITY), ..job("a", &[(0, 1), (1, 1)]) }];
            }),
        ),
    ];
    for (wanted, words, change) in &cases {
        let (code, message) = code(change);
        assert_eq!(code, *wanted, "{message}");
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn gpus_that_share_a_nic_with_a_job_are_dropped_where_nics_are_exclusive() {
    let cluster = catalog::cluster("het-4mix").unwrap();
    let shared = cluster.host_ids().find(|h| {
        let ty = cluster.type_of(*h);
        (1..ty.gpu_count()).all(|g| ty.nearest_nics(g) & ty.nearest_nics(0) != 0)
    });
    let host = shared.expect("a host whose GPUs share one NIC");
    let mut r = Request::new(4, Allocation::new([(host, GpuMask(0xf0))]), SIZE);
    r.jobs = vec![job("a", &[(host.0, 1)])];
    assert!(r.usable(&cluster).is_ok());
    r.constraints.exclusive_nics = true;
    let e = r.usable(&cluster).unwrap_err();
    assert_eq!(e.code(), "constraints_leave_too_few");
    assert!(e.to_string().contains("4 share NICs with jobs"), "{e}");
}

#[test]
fn a_type_is_found_by_its_name_or_by_words_of_the_gpu_model() {
    let ty = catalog::host_type("hgx-h100").unwrap();
    for yes in ["hgx-h100", "HGX-H100", "H100", "h100", "NVIDIA H100 80GB HBM3", "H100 80GB", " h100 "] {
        assert!(place::constraints::is_of_type(&ty, yes), "{yes}");
    }
    for no in ["", " ", "100", "H10", "A100", "80GB H100", "hgx"] {
        assert!(!place::constraints::is_of_type(&ty, no), "{no}");
    }
    assert!(place::constraints::is_of_type(&catalog::host_type("a800").unwrap(), "A800"));
}

#[test]
fn a_search_that_ignores_pods_is_told_apart_from_a_request_that_cannot_be_met() {
    struct First;
    impl Search for First {
        fn name(&self) -> &'static str {
            "first"
        }
        fn search(&self, o: &place::Objective, keep: usize) -> Result<place::SearchResult, place::Refusal> {
            let plain = Request::new(
                o.request.gpus,
                Allocation::new([(HostId(0), GpuMask(0x3f)), (HostId(1), GpuMask(3))]),
                SIZE,
            );
            Exact.search(&place::Objective::new(o.cluster, o.model, &plain), keep)
        }
    }
    let cluster = h100();
    let model = model(&cluster, Kind::Bound, 1);
    let r = Request { pods: vec![4, 4], ..Request::new(8, cluster.usable(), SIZE) };
    let e = place::answer_with(&First, &cluster, &model, &r).unwrap_err();
    assert_eq!(e.code(), "search_breaks_limits");
    assert!(e.to_string().contains("`first`") && e.to_string().contains("exact"), "{e}");
    assert!(place::answer_with(&Exact, &cluster, &model, &r).is_ok());
}

#[test]
fn ways_to_pack_many_pods_are_counted_or_refused_within_limits() {
    let mut cluster = h100();
    cluster.hosts = (0..16).map(|i| topology::Host { name: format!("n{i}"), ..Default::default() }).collect();
    let model = model(&cluster, Kind::Bound, 1);
    let ways = |pods: Vec<usize>| {
        let r = Request { gpus: pods.iter().sum(), pods, ..Request::new(1, cluster.usable(), SIZE) };
        let options = place::options::host_options(model.share_table(SIZE), &r.free, r.gpus);
        place::shape::Shape::new(&r, &options).map(|s| s.combinations()).map_err(|e| e.code())
    };
    assert_eq!(ways(vec![1; 128]), Ok(None), "one-GPU pods ask nothing");
    assert_eq!(ways(vec![8; 16]), Ok(Some(1)));
    assert_eq!(ways(vec![8; 15]), Ok(Some(16)));
    assert_eq!(ways(vec![8; 17]), Err("pods_do_not_fit"));
    // Eight GPUs stay free: C(16 - 1 + 8, 8) ways to leave them on 16 hosts, and the pods fill the rest of every one.
    assert_eq!(ways([vec![8; 4], vec![4; 8], vec![2; 16], vec![1; 24]].concat()), Ok(Some(490_314)));
    assert_eq!(ways((1..=8).flat_map(|n| vec![n; 3]).collect()), Err("pods_too_mixed"));
}

#[test]
fn limits_on_hosts_of_a_large_cluster_are_found_too_large_at_once() {
    let mut cluster = h100();
    cluster.hosts = (0..1280).map(|i| topology::Host { name: format!("n{i}"), ..Default::default() }).collect();
    let model = model(&cluster, Kind::Bound, 1);
    let mut r = Request::new(5000, cluster.usable(), SIZE);
    r.constraints.gpus_per_host_min = 2;
    let options = place::options::host_options(model.share_table(SIZE), &r.free, r.gpus);
    let start = std::time::Instant::now();
    assert_eq!(place::shape::Shape::new(&r, &options).unwrap_err().code(), "too_large_for_exact");
    // Milliseconds; counting every one would take far too long.
    assert!(start.elapsed().as_secs() < 30, "{:?}", start.elapsed());
    // Few choices on many hosts are few.
    let whole = Request { pods: vec![8; 1279], ..Request::new(1279 * 8, cluster.usable(), SIZE) };
    let options = place::options::host_options(model.share_table(SIZE), &whole.free, whole.gpus);
    assert_eq!(place::shape::Shape::new(&whole, &options).unwrap().combinations(), Some(1280));
}

#[test]
fn many_pods_on_many_hosts_are_answered() {
    let mut cluster = h100();
    cluster.hosts = (0..16).map(|i| topology::Host { name: format!("n{i}"), ..Default::default() }).collect();
    let model = model(&cluster, Kind::Bound, 1);
    for pods in [vec![1; 128], vec![2; 60], [vec![8; 12], vec![4; 6]].concat()] {
        let r = Request { gpus: pods.iter().sum(), pods, ..Request::new(1, cluster.usable(), SIZE) };
        let a = answer(&cluster, &model, &r).unwrap();
        assert_eq!(a.pods.iter().map(|p| p.1.count()).collect::<Vec<_>>(), r.pods);
    }
}

#[test]
fn hundreds_of_pods_of_eight_sizes_on_1280_hosts_fill_the_counts_of_the_choice() {
    let mut c = topology::catalog::cluster("h100").unwrap();
    c.hosts = (0..1280).map(|i| topology::Host { name: format!("n{i}"), ..topology::Host::default() }).collect();
    c.network.tiers = vec![topology::Tier::regular("leaf", 32, 1.0), topology::Tier::regular("pod", 256, 2.0)];
    let model = predict::fit(&c, &[], &predict::FitOptions::of(predict::Kind::Nccl)).unwrap().0;
    for pods in [64, 300] {
        let pods: Vec<usize> = (0..pods).map(|i| 1 + i % 8).collect();
        let mut r = Request::new(pods.iter().sum(), c.usable(), SIZE);
        r.pods.clone_from(&pods);
        let a = place::answer(&c, &model, &r).unwrap();
        let mut left = vec![GpuMask(0); 1280];
        for (size, (host, mask)) in pods.iter().zip(&a.pods) {
            assert!(mask.count() == *size && left[host.index()].0 & mask.0 == 0, "{host:?} {mask:?}");
            left[host.index()].0 |= mask.0;
        }
        assert!(a.choice.allocation.parts().iter().all(|p| left[p.0.index()] == p.1));
    }
}
