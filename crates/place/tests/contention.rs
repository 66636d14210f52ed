//! Requests among running jobs: what sharing must keep to, and the exact search under it.

use place::{Contention, Job, MergeRule, Objective, Request, exact};
use predict::{HostReadings, HostShare, HostShareTable, IntraTables, Oracle};
use proptest::prelude::*;
use topology::{Allocation, Bandwidth, Bytes, Cluster, GpuMask, HostId, NetworkClass, Nic, PathKind, Tier, catalog};

const SIZE: Bytes = Bytes::gib(1);

fn mix(a: u64, b: u64) -> u64 {
    let h = (a ^ b.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (h ^ (h >> 32)).wrapping_mul(0xc4ce_b9fe_1a85_ec53) >> 11
}

/// Four hosts of eight GPUs: a NIC for each GPU, or one of 50 GB/s for all.
fn cluster(one_nic: bool) -> Cluster {
    let mut c = catalog::cluster("h100").unwrap();
    if one_nic {
        c.network.class = NetworkClass::Infiniband;
        let line_rate = Bandwidth::from_gbit_per_s(400.0);
        c.types[0].nics = vec![Nic { name: "ib0".into(), line_rate, socket: None, gpu_paths: vec![PathKind::Node; 8] }];
    }
    c
}

/// Insides that depend on the exact GPUs, 10 to 110 GB/s.
fn table(cluster: &Cluster, salt: u64) -> HostShareTable {
    let readings: Vec<HostReadings> = (0..cluster.hosts.len() as u64)
        .map(|h| {
            let of = |m: u32| 10.0 + (mix(u64::from(m) * 4 + h, salt) % 1000) as f64 / 10.0;
            (1u32..256).filter(|m| m.count_ones() > 1).map(|m| (GpuMask(m), vec![of(m)])).collect()
        })
        .collect();
    let intra = IntraTables::new(cluster, &readings, &|_, _| 1.0);
    HostShareTable::new(cluster, &intra, &fabric::Fabric::new(cluster).tables())
}

/// A truth that rises with the insides, and jumps with counts, as real ones do.
fn truth(salt: u64) -> impl Fn(&[HostShare]) -> f64 + Send + Sync {
    move |parts: &[HostShare]| {
        let intra = parts.iter().map(|p| p.intra_gb_per_s).fold(f64::INFINITY, f64::min);
        if parts.len() < 2 {
            return if parts[0].count < 2 { 0.0 } else { intra };
        }
        let nic = parts.iter().map(|p| p.nic_gb_per_s).fold(f64::INFINITY, f64::min);
        let mut counts: Vec<u64> = parts.iter().map(|p| u64::from(p.count)).collect();
        counts.sort_unstable();
        let key = counts.iter().fold(7, |k, c| k * 31 + c);
        let jump = 0.5 + (mix(key, salt) % 500) as f64 / 1000.0;
        intra.min(nic * jump * 0.4)
    }
}

fn allocation(masks: &[u32]) -> Allocation {
    Allocation::new(masks.iter().enumerate().map(|(h, m)| (HostId(h as u32), GpuMask(*m))))
}

/// Jobs on disjoint GPUs: every GPU belongs to one job, is free, or neither.
fn world(owner: &[u8], jobs: usize) -> (Allocation, Vec<Allocation>) {
    let of = |who: u8| {
        let masks: Vec<u32> = owner
            .chunks(8)
            .map(|c| c.iter().enumerate().filter(|o| *o.1 == who).fold(0, |m, o| m | 1 << o.0))
            .collect();
        allocation(&masks)
    };
    (of(0), (1..=jobs as u8).map(of).filter(|a| !a.is_empty()).collect())
}

fn request(
    k: usize,
    free: &Allocation,
    jobs: &[Allocation],
    demands: &[Option<f64>],
    contention: Contention,
) -> Request {
    let mut r = Request::new(k, free.clone(), SIZE);
    r.contention = contention;
    r.jobs = jobs
        .iter()
        .zip(demands.iter().cycle())
        .enumerate()
        .map(|(i, (a, d))| Job { id: format!("job {i}"), gpus: a.clone(), demand_gb_per_s: *d, duty: 1.0 })
        .collect();
    r
}

fn parts(table: &HostShareTable, a: &Allocation) -> Vec<HostShare> {
    a.parts().iter().map(|&(h, m)| table.part(h, m)).collect()
}

/// At most `most` of the GPUs, so that brute force stays short.
fn thinned(free: Allocation, most: usize) -> Allocation {
    Allocation::from_gpus(free.gpus().step_by(free.gpu_count().div_ceil(most).max(1)))
}

/// The exact search refuses, or finds a candidate with the score of the best of all sets of free GPUs.
fn exact_is_best(cluster: &Cluster, r: &Request, salt: u64) -> Result<(), TestCaseError> {
    let model = Oracle { table: table(cluster, salt), truth: truth(salt) };
    let objective = Objective::new(cluster, &model, r);
    let score = |a: &Allocation| objective.effect(&parts(&model.table, a)).score(r.loss_weight);
    let gpus: Vec<_> = r.free.gpus().collect();
    let best = (1u32..1 << gpus.len())
        .filter(|m| m.count_ones() as usize == r.gpus)
        .map(|m| score(&Allocation::from_gpus(GpuMask(m).iter().map(|i| gpus[i]))))
        .fold(f64::NEG_INFINITY, f64::max);
    match exact(cluster, &model, r, 3) {
        Err(e) => prop_assert_eq!(e.code(), "not_enough_free"),
        Ok(found) => {
            let (first, near) = (&found.best[0], 1e-9 * best.abs().max(1.0));
            let found = first.score_gb_per_s;
            prop_assert!((found - best).abs() <= near, "found {found} of {best}");
            prop_assert!((score(&first.allocation) - found).abs() <= near);
        }
    }
    Ok(())
}

fn owners() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(vec![0u8, 0, 0, 1, 1, 2, 3]), 24)
}

/// A merge rule of a caller: GPUs 0 to n - 1 of a host represent any n GPUs.
const BY_COUNTS: Contention = Contention::MergeBy(&MergeRule {
    name: "by-counts",
    join: |table, part, others| {
        let gpus = part.mask.count() + others.count();
        (gpus <= table.all_gpus(part.host).count()).then(|| table.part(part.host, GpuMask::first(gpus)))
    },
});

fn rule() -> impl Strategy<Value = Contention> {
    prop::sample::select(vec![Contention::Merge, BY_COUNTS, Contention::Physical])
}

fn demand() -> impl Strategy<Value = Option<f64>> {
    prop::option::of(0.0f64..60.0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]
    #[test]
    fn among_merged_jobs_exact_search_finds_what_brute_force_finds(
        owner in owners(), k in 1usize..9, salt in 0u64..1000, one_nic: bool, jobs in 1usize..4,
        demands in prop::collection::vec(demand(), 3), weight in prop::sample::select(vec![0.0, 0.3, 1.0]), by_counts: bool,
    ) {
        let cluster = cluster(one_nic);
        let (free, jobs) = world(&owner, jobs);
        let free = thinned(free, 11);
        let contention = if by_counts { BY_COUNTS } else { Contention::Merge };
        let mut r = request(k, &free, &jobs, &demands, contention);
        r.loss_weight = weight;
        exact_is_best(&cluster, &r, salt)?;
    }

    #[test]
    fn nobody_has_more_than_before_and_the_order_of_jobs_does_not_matter(
        owner in owners(), salt in 0u64..1000, one_nic: bool, demands in prop::collection::vec(demand(), 3),
        contention in rule(), tiers: bool,
    ) {
        let mut cluster = cluster(one_nic);
        if tiers {
            cluster.network.tiers = vec![Tier::regular("leaf", 2, 4.0)];
        }
        let (candidate, jobs) = world(&owner, 3);
        prop_assume!(!candidate.is_empty());
        let model = Oracle { table: table(&cluster, salt), truth: truth(salt) };
        let c = parts(&model.table, &candidate);
        let r = request(1, &candidate, &jobs, &demands, contention);
        let e = Objective::new(&cluster, &model, &r).effect(&c);
        let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(1.0);
        prop_assert_eq!(e.jobs_gb_per_s.len(), jobs.len());
        prop_assert!(e.shared_gb_per_s <= e.alone_gb_per_s * (1.0 + 1e-9) && e.shared_gb_per_s >= 0.0);
        for (before, after) in &e.jobs_gb_per_s {
            prop_assert!(*after >= 0.0 && *after <= before * (1.0 + 1e-9));
        }
        // Jobs in another order.
        let mut turned = r.clone();
        turned.jobs.reverse();
        let mut t = Objective::new(&cluster, &model, &turned).effect(&c);
        t.jobs_gb_per_s.reverse();
        prop_assert!(close(e.shared_gb_per_s, t.shared_gb_per_s));
        for (a, b) in e.jobs_gb_per_s.iter().zip(&t.jobs_gb_per_s) {
            prop_assert!(close(a.0, b.0) && close(a.1, b.1));
        }
        // Jobs that use nothing might as well not run.
        let mut idle = r.clone();
        idle.jobs.iter_mut().for_each(|j| j.demand_gb_per_s = Some(0.0));
        let i = Objective::new(&cluster, &model, &idle).effect(&c);
        prop_assert_eq!(i.shared_gb_per_s, i.alone_gb_per_s);
        prop_assert!(i.jobs_gb_per_s.iter().all(|j| *j == (0.0, 0.0)));
        let none = Request::new(1, candidate.clone(), SIZE);
        let n = Objective::new(&cluster, &model, &none).effect(&c);
        prop_assert_eq!(n.shared_gb_per_s, e.alone_gb_per_s);
        prop_assert!(n.jobs_gb_per_s.is_empty());
    }

    #[test]
    fn by_physics_no_link_carries_more_than_it_can_or_than_one_job_alone_showed_it_can(
        owner in owners(), salt in 0u64..1000, one_nic: bool, demands in prop::collection::vec(demand(), 3),
    ) {
        let cluster = cluster(one_nic);
        let fabric = fabric::Fabric::new(&cluster);
        let (candidate, jobs) = world(&owner, 3);
        prop_assume!(candidate.host_count() > 1);
        let model = Oracle { table: table(&cluster, salt), truth: truth(salt) };
        let r = request(1, &candidate, &jobs, &demands, Contention::Physical);
        let e = Objective::new(&cluster, &model, &r).effect(&parts(&model.table, &candidate));
        let all: Vec<&Allocation> = std::iter::once(&candidate).chain(&jobs).collect();
        let alone: Vec<f64> = std::iter::once(e.alone_gb_per_s)
            .chain(jobs.iter().zip(demands.iter().cycle()).map(|(j, d)| d.unwrap_or_else(|| (model.truth)(&parts(&model.table, j)))))
            .collect();
        let rates: Vec<f64> = std::iter::once(e.shared_gb_per_s).chain(e.jobs_gb_per_s.iter().map(|j| j.1)).collect();
        let mut load: std::collections::BTreeMap<fabric::SharedLink, (f64, f64)> = Default::default();
        for ((a, rate), alone) in all.iter().zip(&rates).zip(&alone) {
            for (link, share) in fabric.loads(a, topology::Collective::AllReduce, SIZE) {
                let l = load.entry(link).or_insert((0.0, fabric.line_rate_gb_per_s(link)));
                l.0 += share * rate;
                l.1 = l.1.max(share * alone);
            }
        }
        for (link, (carried, can)) in load {
            prop_assert!(carried <= can * (1.0 + 1e-9), "{link:?} carries {carried} of {can}");
        }
    }
}

/// A model of fixed numbers by split.
fn numbers(
    cluster: &Cluster,
    of: &'static [(&'static str, f64)],
) -> Oracle<impl Fn(&[HostShare]) -> f64 + Send + Sync> {
    let truth = move |p: &[HostShare]| {
        let split = Allocation::new(p.iter().map(|p| (p.host, p.mask))).split();
        of.iter().find(|n| n.0 == split).unwrap_or_else(|| panic!("{split} is not given")).1
    };
    Oracle { table: table(cluster, 1), truth }
}

#[test]
fn a_shared_host_gives_everybody_its_proportion_of_the_smaller_merged_set() {
    let cluster = cluster(false);
    // C = 4+4 on n0, n1; J = 2+3 on n1, n2. C with J's: 4+6 (300); J with C's: 6+3 (120).
    let model = numbers(&cluster, &[("4+4", 200.0), ("6+4", 300.0), ("6+3", 120.0)]);
    let c = allocation(&[0x0f, 0x0f]);
    let job = allocation(&[0, 0x30, 0x07]);
    for contention in [Contention::Merge, BY_COUNTS] {
        let r = request(8, &c, std::slice::from_ref(&job), &[Some(40.0)], contention);
        let e = Objective::new(&cluster, &model, &r).effect(&parts(&model.table, &c));
        assert_eq!(e.alone_gb_per_s, 200.0);
        assert_eq!(e.shared_gb_per_s, 200.0 * 120.0 / 240.0);
        assert_eq!(e.jobs_gb_per_s, [(40.0, 20.0)]);
        // Half a GB/s for each that the other loses: 100 - 0.5 x 20.
        assert_eq!(e.score(0.5), 90.0);
    }
}

#[test]
fn a_job_gains_nothing_because_the_new_one_slows_another() {
    // One NIC of 50 GB/s for each host. The new job and C meet A on n0, B meets A on n1: A falls from a half to a third
    // of n0, and leaves a larger part of n1.
    let cluster = cluster(true);
    let [a, b, c] = [&[0x03, 0x0f][..], &[0, 0xf0, 0x0f], &[0x0c, 0, 0, 0xf0]].map(allocation);
    let new = allocation(&[0xf0, 0, 0, 0x0f]);
    let model = Oracle { table: table(&cluster, 1), truth: |_: &[HostShare]| 50.0 };
    let r = request(8, &new, &[a, b, c], &[Some(50.0)], Contention::Physical);
    let e = Objective::new(&cluster, &model, &r).effect(&parts(&model.table, &new));
    let (a, b) = (e.jobs_gb_per_s[0], e.jobs_gb_per_s[1]);
    assert!(a.1 < 0.9 * a.0, "the job that meets the new one is slowed: {a:?}");
    assert_eq!(b.1, b.0, "the job beside it has what it had");
}

#[test]
fn jobs_that_do_not_meet_or_stay_inside_a_host_or_fit_beside_each_other_share_nothing() {
    let cluster = cluster(false);
    let model = numbers(&cluster, &[("4+4", 50.0), ("6+4", 300.0), ("6+3", 120.0), ("8", 400.0)]);
    let c = allocation(&[0x0f, 0x0f]);
    let elsewhere = allocation(&[0, 0, 0x3f, 0x07]);
    let inside = allocation(&[0xf0]);
    let modest = allocation(&[0, 0x30, 0x07]);
    let r = request(8, &c, &[elsewhere, inside, modest], &[Some(70.0)], Contention::Merge);
    let e = Objective::new(&cluster, &model, &r).effect(&parts(&model.table, &c));
    assert_eq!(e.shared_gb_per_s, 50.0, "50 + 70 is what 6+3 carries");
    assert_eq!(e.jobs_gb_per_s, [(70.0, 70.0); 3]);
    let one_host = allocation(&[0, 0xff]);
    let e = Objective::new(&cluster, &model, &r).effect(&parts(&model.table, &one_host));
    assert_eq!(e.shared_gb_per_s, 400.0, "a candidate inside a host is not disturbed");
}

#[test]
fn over_several_jobs_the_smallest_merged_set_and_all_demands_count() {
    let cluster = cluster(false);
    let model = numbers(&cluster, &[("4+4", 100.0), ("5+4", 130.0), ("5+1", 44.0), ("6+4", 160.0), ("6+2", 66.0)]);
    let c = allocation(&[0x0f, 0x0f]);
    // One job on n0 and n2, another on n1 and n3.
    let jobs = [allocation(&[0x10, 0, 0x01]), allocation(&[0, 0x30, 0, 0x03])];
    let r = request(8, &c, &jobs, &[Some(10.0), Some(22.0)], Contention::Merge);
    let e = Objective::new(&cluster, &model, &r).effect(&parts(&model.table, &c));
    let share = 44.0 / 132.0;
    let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
    assert!(close(e.shared_gb_per_s, 100.0 * share));
    assert!(close(e.jobs_gb_per_s[0].1, 10.0 * share) && close(e.jobs_gb_per_s[1].1, 22.0 * share));
}

#[test]
fn by_counts_a_merged_set_that_a_host_has_too_few_gpus_for_is_passed_over() {
    let cluster = cluster(false);
    let model = numbers(&cluster, &[("4+4", 100.0), ("6+4", 110.0)]);
    // The job's GPUs are counted, not looked at: 4 + 6 on n1 would need ten.
    let c = allocation(&[0x0f, 0x0f]);
    let job = allocation(&[0, 0x3f, 0x0f]);
    let r = request(8, &c, &[job], &[Some(50.0)], BY_COUNTS);
    let e = Objective::new(&cluster, &model, &r).effect(&parts(&model.table, &c));
    assert_eq!(e.shared_gb_per_s, 100.0);
}

#[test]
fn by_physics_two_jobs_over_one_nic_a_host_have_half_each_and_jobs_over_their_own_nics_all() {
    let c = allocation(&[0x55, 0x55]);
    let job = allocation(&[0xaa, 0xaa]);
    for (one_nic, share) in [(true, 0.5), (false, 1.0)] {
        let cluster = cluster(one_nic);
        let model =
            Oracle { table: table(&cluster, 1), truth: |p: &[HostShare]| if p.len() < 2 { 300.0 } else { 85.0 } };
        let r = request(8, &c, std::slice::from_ref(&job), &[None], Contention::Physical);
        let e = Objective::new(&cluster, &model, &r).effect(&parts(&model.table, &c));
        assert_eq!(e.alone_gb_per_s, 85.0);
        let tolerance = if one_nic { 0.05 } else { 1e-9 };
        assert!((e.shared_gb_per_s / 85.0 - share).abs() < tolerance, "{e:?}");
        assert!((e.jobs_gb_per_s[0].1 - e.shared_gb_per_s).abs() < 1e-9, "equal jobs, equal shares: {e:?}");
    }
}

#[test]
fn by_physics_the_search_takes_gpus_whose_nics_nobody_uses() {
    // GPUs share a NIC in pairs; the job has GPUs 0 and 2, and with them the NICs of GPUs 1 and 3.
    let mut cluster = cluster(false);
    cluster.types[0].nics = (0..4)
        .map(|i| Nic {
            name: format!("ib{i}"),
            line_rate: Bandwidth::from_gbit_per_s(400.0),
            socket: None,
            gpu_paths: (0..8).map(|g| if g / 2 == i { PathKind::Pix } else { PathKind::Node }).collect(),
        })
        .collect();
    let model = Oracle { table: table(&cluster, 1), truth: |p: &[HostShare]| if p.len() < 2 { 1.0 } else { 90.0 } };
    let free = allocation(&[0xfa, 0xfa]);
    let job = allocation(&[0x05, 0x05]);
    let r = request(4, &free, &[job], &[Some(90.0)], Contention::Physical);
    let best = &exact(&cluster, &model, &r, 1).unwrap().best[0];
    assert_eq!(best.score_gb_per_s, 90.0);
    assert!(best.allocation.parts().iter().filter(|p| p.1.count() == 2).all(|p| p.1.0 & 0x0f == 0), "{best:?}");
}

/// Hosts whose GPUs share NICs in pairs, the first NIC twice as fast where `mixed`.
fn paired(mixed: bool) -> Cluster {
    let mut c = cluster(false);
    c.types[0].nics = (0..4)
        .map(|i| Nic {
            name: format!("ib{i}"),
            line_rate: Bandwidth::from_gbit_per_s(if mixed && i == 0 { 800.0 } else { 400.0 }),
            socket: None,
            gpu_paths: (0..8).map(|g| if g / 2 == i { PathKind::Pix } else { PathKind::Node }).collect(),
        })
        .collect();
    c
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]
    #[test]
    fn by_physics_the_exact_search_finds_what_brute_force_finds(
        owner in owners(), k in 2usize..9, salt in 0u64..1000, nics in 0usize..4,
        demands in prop::collection::vec(demand(), 3), weight in prop_oneof![Just(0.0), 0.0..1.0f64], tiers: bool,
    ) {
        let mut cluster = match nics { 0 => cluster(true), 1 => cluster(false), n => paired(n == 3) };
        if tiers {
            cluster.network.tiers = vec![Tier::regular("leaf", 2, 4.0)];
        }
        let (free, jobs) = world(&owner, 3);
        let free = thinned(free, 12);
        let mut r = request(k, &free, &jobs, &demands, Contention::Physical);
        r.loss_weight = weight;
        exact_is_best(&cluster, &r, salt)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn with_many_sets_of_gpus_that_meet_jobs_differently_the_exact_search_is_as_good_as_every_undominated_set(
        salt in 0u64..1000, k in 8usize..13, first in 0usize..8, second in 1usize..8,
    ) {
        // Two jobs with one GPU on each of four hosts: some ten sets of three GPUs per host that no other dominates.
        let cluster = cluster(false);
        let owner: Vec<u8> = (0..32)
            .map(|g| match g % 8 {
                i if i == first => 1,
                i if i == (first + second) % 8 => 2,
                _ => 0,
            })
            .collect();
        let (free, jobs) = world(&owner, 2);
        let r = request(k, &free, &jobs, &[Some(60.0), Some(45.0)], Contention::Merge);
        let model = Oracle { table: table(&cluster, salt), truth: truth(salt) };
        let objective = Objective::new(&cluster, &model, &r);
        let all = place::Registry::shipped().search("oracle", 0).unwrap().search(&objective, 1);
        let (Ok(all), Ok(found)) = (all, exact(&cluster, &model, &r, 3)) else { return Ok(()) };
        let (best, found) = (all.best[0].score_gb_per_s, found.best[0].score_gb_per_s);
        prop_assert!(found >= best * (1.0 - 1e-9), "found {} of {}", found, best);
    }
}

#[test]
fn a_job_that_communicates_half_of_the_time_contends_with_half_of_its_demand() {
    let cluster = cluster(true);
    let c = allocation(&[0x55, 0x55]);
    let job = allocation(&[0xaa, 0xaa]);
    let model = Oracle { table: table(&cluster, 1), truth: |p: &[HostShare]| if p.len() < 2 { 300.0 } else { 85.0 } };
    for contention in [Contention::Merge, Contention::Physical] {
        let effect = |duty: f64, demand: Option<f64>| {
            let mut r = request(8, &c, std::slice::from_ref(&job), &[demand], contention);
            r.jobs[0].duty = duty;
            Objective::new(&cluster, &model, &r).effect(&parts(&model.table, &c))
        };
        assert_eq!(effect(0.5, Some(60.0)), effect(1.0, Some(30.0)));
        assert_eq!(effect(0.5, None), effect(1.0, Some(42.5)));
        assert_eq!(effect(0.0, None).shared_gb_per_s, 85.0);
        assert!(effect(0.2, None).shared_gb_per_s > effect(1.0, None).shared_gb_per_s);
    }
}
