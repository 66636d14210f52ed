//! What an answer costs at the size of a large site, in counts of work. Times of this thread's processor go to standard error.

use place::{Contention, Job, Objective, Registry, Request, answer};
use predict::{FitOptions, Kind, Model, fit};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use store::{Measurement, Source};
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, Host, HostId, Tier, catalog};

const SIZE: Bytes = Bytes::mib(256);

/// Milliseconds that the processor gave this thread.
fn cpu_ms() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(f64::NAN) / 1e6
}

fn hosts(mut c: Cluster, n: usize) -> Cluster {
    let types = c.types.len();
    c.hosts = (0..n).map(|i| Host { name: format!("n{i}"), host_type: i % types, ..Host::default() }).collect();
    c
}

/// Leaves of 16 hosts with 2:1, spines of 16 leaves with 2:1.
fn site(n: usize) -> Cluster {
    let mut c = hosts(catalog::cluster("h100").unwrap(), n);
    c.network.tiers = vec![Tier::regular("leaf", 16, 2.0), Tier::regular("spine", 256, 2.0)];
    c
}

/// Fitted on 100 readings of up to eight hosts.
fn model(cluster: &Cluster, kind: Kind) -> Model {
    let physics = fabric::Fabric::new(cluster);
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut rows = Vec::new();
    while rows.len() < 100 {
        let from = place::baselines::below(&mut rng, cluster.hosts.len().saturating_sub(8).max(1));
        let most = cluster.hosts.len().min(8);
        let parts = (0..2 + place::baselines::below(&mut rng, most - 1)).map(|i| {
            let gpus = 1 + place::baselines::below(&mut rng, 8);
            (HostId((from + i) as u32 % cluster.hosts.len() as u32), GpuMask::first(gpus))
        });
        let a = Allocation::new(parts.collect::<Vec<_>>());
        let v = physics.estimate(&a, Collective::AllReduce, SIZE).busbw.gb_per_s();
        rows.push(Measurement::new(a, Collective::AllReduce, SIZE, Bandwidth::from_gb_per_s(v), Source::Simulated));
    }
    fit(cluster, &rows, &FitOptions::of(kind)).unwrap().0
}

/// 94 jobs of 13 hosts with four GPUs of each; the other four are free, and of every other host a random half.
fn busy(cluster: &Cluster) -> (Allocation, Vec<Job>) {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut free: Vec<(HostId, GpuMask)> = Vec::new();
    let jobs = (0..94u32).map(|j| {
        let parts = (0..13).map(move |i| (HostId(13 * j + i), GpuMask(0x0f)));
        Job { id: format!("job {j}"), gpus: Allocation::new(parts), demand_gb_per_s: None, duty: 1.0 }
    });
    let jobs: Vec<Job> = jobs.filter(|j| j.gpus.parts().iter().all(|p| p.0.index() < cluster.hosts.len())).collect();
    let held = 13 * jobs.len();
    for h in cluster.host_ids() {
        let random = place::baselines::below(&mut rng, 2) == 0;
        free.push((
            h,
            GpuMask(if h.index() < held {
                0xf0
            } else if random {
                0xff
            } else {
                0
            }),
        ));
    }
    (Allocation::new(free), jobs)
}

#[test]
fn among_94_jobs_on_10240_gpus_few_candidates_are_judged_among_them() {
    let cluster = site(1280);
    let model = model(&cluster, Kind::Gp);
    let (free, jobs) = busy(&cluster);
    assert_eq!(jobs.len(), 94);
    for contention in [Contention::Merge, Contention::Physical] {
        for k in [8, 64, 256, 1024] {
            for weight in [0.0, 1.0] {
                let mut r = Request { jobs: jobs.clone(), contention, ..Request::new(k, free.clone(), SIZE) };
                r.loss_weight = weight;
                let objective = Objective::new(&cluster, &model, &r);
                let search = Registry::shipped().search("auto", 0).unwrap();
                search.search(&objective, 8).unwrap();
                // Three rounds of exchanges and the first batch.
                let most = 4 * place::objective::SHARED_MAX as u64;
                let judged = objective.judged_among_jobs();
                assert!(judged <= most, "{} {k}: {judged} of {}", contention.name(), objective.evaluations());
                let start = cpu_ms();
                let a = answer(&cluster, &model, &r).unwrap();
                let ms = cpu_ms() - start;
                eprintln!(
                    "94 jobs, {}, {k} GPUs, weight {weight}: {ms:.1} ms, {judged} judged, {}",
                    contention.name(),
                    a.choice.allocation.split()
                );
            }
        }
    }
}

#[test]
fn without_jobs_10240_gpus_below_tiers_take_a_bounded_number_of_candidates() {
    let cluster = site(1280);
    let model = model(&cluster, Kind::Gp);
    for k in [8, 64, 256, 1024, 2048] {
        for split in [place::Split::Any, place::Split::EqualIfFeasible] {
            let mut r = Request::new(k, busy(&cluster).0, SIZE);
            r.constraints.split = split;
            let start = cpu_ms();
            let a = answer(&cluster, &model, &r).unwrap();
            eprintln!(
                "{k} GPUs, {split:?}: {:.1} ms, {} judged, {} gains {:.1} of {:.1} (needed {:.1})",
                cpu_ms() - start,
                a.evaluations,
                a.choice.allocation.split(),
                a.price.gained_gb_per_s,
                a.choice.score_gb_per_s,
                a.price.slack_gb_per_s
            );
            assert!(a.evaluations <= 2500, "{k}: {}", a.evaluations);
        }
    }
}

#[test]
fn sixteen_hosts_below_tiers_are_searched_exactly_only_where_few_candidates_exist() {
    let cluster = site(16);
    let mut cluster = Cluster { ..cluster };
    cluster.network.tiers = vec![Tier::regular("leaf", 4, 2.0)];
    for kind in [Kind::Bound, Kind::Gp] {
        let model = model(&cluster, kind);
        let mut rng = ChaCha8Rng::seed_from_u64(4);
        let mut times = Vec::new();
        for i in 0..60 {
            let k = 2 + i;
            let free = place::baselines::random(&cluster.usable(), 64, &mut rng).unwrap();
            let r = Request::new(k, free, SIZE);
            let start = cpu_ms();
            let a = answer(&cluster, &model, &r).unwrap();
            times.push(cpu_ms() - start);
            assert!(
                a.evaluations
                    <= place::threshold::AUTO_COMBINATIONS_BELOW_TIERS_MAX
                        .max(place::threshold::AUTO_NODES_BELOW_TIERS_MAX)
                        + 100,
                "{k}: {}",
                a.evaluations
            );
        }
        times.sort_by(f64::total_cmp);
        eprintln!("16 hosts, {}: median {:.2} ms, most {:.2} ms", kind.name(), times[30], times[59]);
    }
}

#[test]
fn thirty_two_gpus_of_four_types_take_few_candidates() {
    let cluster = catalog::cluster("het-4mix").unwrap();
    for kind in [Kind::Bound, Kind::Gp] {
        let model = model(&cluster, kind);
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        for split in [place::Split::Any, place::Split::EqualIfFeasible] {
            let (mut times, mut most) = (Vec::new(), 0);
            for i in 0..90 {
                let k = 2 + i % 30;
                let free = k + place::baselines::below(&mut rng, 33 - k);
                let mut r = Request::new(k, place::baselines::random(&cluster.usable(), free, &mut rng).unwrap(), SIZE);
                r.constraints.split = split;
                let start = cpu_ms();
                let a = answer(&cluster, &model, &r).unwrap();
                times.push(cpu_ms() - start);
                most = most.max(a.evaluations);
            }
            times.sort_by(f64::total_cmp);
            eprintln!(
                "32 GPUs mixed, {}, {split:?}: median {:.2} ms, p99 {:.2} ms, at most {most} judged",
                kind.name(),
                times[45],
                times[89]
            );
            assert!(most <= 6000, "{most}");
        }
    }
}
