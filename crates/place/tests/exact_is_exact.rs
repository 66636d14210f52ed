//! The exact search against brute force over every subset of the free GPUs.

use place::{Request, exact};
use predict::{BandwidthModel, Candidates, FitOptions, Kind, Model, fit};
use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use store::{Measurement, Source};
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, HostId, catalog};

const SIZE: Bytes = Bytes::mib(16);

/// Intra bandwidth that depends on the exact mask, so that the choice of GPUs matters.
fn intra(host: u32, mask: GpuMask, salt: u64) -> f64 {
    let h = (u64::from(mask.0) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15 ^ salt.wrapping_mul(u64::from(host) + 3));
    20.0 + (h >> 56) as f64 / 3.0
}

fn model(cluster: &Cluster, kind: Kind, seed: u64) -> Model {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let usable = cluster.usable();
    let mut rows = Vec::new();
    while rows.len() < 40 {
        let k = 2 + place::baselines::below(&mut rng, usable.gpu_count() - 1);
        let a = place::baselines::random(&usable, k, &mut rng).unwrap();
        if a.host_count() < 2 {
            continue;
        }
        let v = 10.0 + place::baselines::below(&mut rng, 1000) as f64 / 10.0;
        rows.push(Measurement::new(a, Collective::AllReduce, SIZE, Bandwidth::from_gb_per_s(v), Source::Simulated));
    }
    let hosts = cluster.host_ids().take(4);
    let row = |h, m, v| {
        Measurement::new(
            Allocation::new([(h, m)]),
            Collective::AllReduce,
            SIZE,
            Bandwidth::from_gb_per_s(v),
            Source::Simulated,
        )
    };
    rows.extend(hosts.flat_map(|h| GpuMask::first(8).subsets().map(move |m| row(h, m, intra(h.0, m, seed)))));
    fit(cluster, &rows, &FitOptions::of(kind)).unwrap().0
}

fn brute_force(model: &dyn BandwidthModel, free: &Allocation, k: usize) -> f64 {
    let gpus: Vec<_> = free.gpus().collect();
    let all: Vec<Allocation> = (1u32..1 << gpus.len())
        .filter(|m| m.count_ones() as usize == k)
        .map(|m| Allocation::from_gpus(GpuMask(m).iter().map(|i| gpus[i])))
        .collect();
    let mut means = Vec::new();
    model.means(SIZE, &Candidates::of(model.share_table(SIZE), &all), &mut means);
    means.into_iter().fold(0.0, f64::max)
}

fn free_masks() -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(0u32..256, 4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn exact_search_finds_what_brute_force_finds(
        masks in free_masks(), k in 1usize..13, seed in 0u64..6, which in 0usize..4, gp: bool,
    ) {
        let cluster = catalog::cluster(catalog::CLUSTERS[which]).unwrap();
        let mut free = Allocation::new(masks.iter().enumerate().map(|(h, m)| (HostId(h as u32), GpuMask(*m))));
        // Brute force over at most 13 free GPUs.
        if free.gpu_count() > 13 {
            free = Allocation::from_gpus(free.gpus().step_by(free.gpu_count().div_ceil(13)));
        }
        let model = model(&cluster, if gp { Kind::Gp } else { Kind::Bound }, seed);
        let request = Request::new(k, free.clone(), SIZE);
        match exact(&cluster, &model, &request, 3) {
            Err(e) => prop_assert_eq!(e.code(), "not_enough_free"),
            Ok(found) => {
                let best = &found.best[0];
                prop_assert_eq!(best.allocation.gpu_count(), k);
                prop_assert!(free.contains_all(&best.allocation));
                let truth = brute_force(&model, &free, k);
                prop_assert!(
                    (best.prediction.busbw_gb_per_s - truth).abs() <= truth * 1e-9,
                    "{} found {}, brute force {}", cluster.name, best.prediction.busbw_gb_per_s, truth
                );
                let order: Vec<f64> = found.best.iter().map(|s| s.prediction.busbw_gb_per_s).collect();
                prop_assert!(order.windows(2).all(|w| w[0] >= w[1] * (1.0 - 1e-8)));
            }
        }
    }

    #[test]
    fn branch_and_bound_keeps_the_runner_ups_of_a_full_enumeration(masks in free_masks(), k in 2usize..20, seed in 0u64..4) {
        let cluster = catalog::cluster("het-4mix").unwrap();
        let free = Allocation::new(masks.iter().enumerate().map(|(h, m)| (HostId(h as u32), GpuMask(*m))));
        let model = model(&cluster, Kind::Bound, seed);
        struct Full<'a>(&'a Model);
        impl BandwidthModel for Full<'_> {
            fn kind(&self) -> &'static str { "full" }
            fn share_table(&self, s: Bytes) -> &predict::HostShareTable { self.0.share_table(s) }
            fn means(&self, s: Bytes, c: &Candidates, o: &mut Vec<f64>) { self.0.means(s, c, o) }
            fn predict(&self, s: Bytes, p: &[predict::HostShare]) -> predict::Prediction { self.0.predict(s, p) }
            fn mean(&self, s: Bytes, p: &[predict::HostShare]) -> f64 { self.0.mean(s, p) }
            fn upper_bound_hosts_or_more(&self, _: f64, _: f64, _: usize, _: usize) -> Option<f64> { None }
            fn limit(&self, s: Bytes, p: &[predict::HostShare]) -> predict::bound::Limit { self.0.limit(s, p) }
            fn repeat_noise(&self) -> f64 { 0.0 }
        }
        let request = Request::new(k, free, SIZE);
        let (a, b) = (exact(&cluster, &model, &request, 4), exact(&cluster, &Full(&model), &request, 4));
        match (a, b) {
            (Ok(a), Ok(b)) => {
                let v = |f: &place::SearchResult| f.best.iter().map(|s| s.prediction.busbw_gb_per_s).collect::<Vec<_>>();
                prop_assert_eq!(v(&a), v(&b));
                prop_assert!(a.evaluations <= b.evaluations);
            }
            (a, b) => prop_assert_eq!(a.is_err(), b.is_err()),
        }
    }
}

#[test]
fn too_large_a_search_is_refused_with_the_alternative_named() {
    let mut cluster = catalog::cluster("h100").unwrap();
    cluster.hosts = (0..32).map(|i| topology::Host { name: format!("n{i}"), ..Default::default() }).collect();
    let model = model(&cluster, Kind::Gp, 1);
    let e = exact(&cluster, &model, &Request::new(64, cluster.usable(), SIZE), 1).unwrap_err();
    assert_eq!(e.code(), "too_large_for_exact");
    assert!(e.to_string().contains("--free"), "{e}");
}

/// 10,240 free GPUs on equal hosts: equal candidates of 125 and more hosts filled the memory.
#[test]
fn on_1280_equal_hosts_the_exact_search_ends_with_an_answer_or_a_refusal() {
    let mut cluster = catalog::cluster("h100").unwrap();
    cluster.hosts = (0..1280).map(|i| topology::Host { name: format!("n{i}"), ..topology::Host::default() }).collect();
    let pair = |i: u32| Allocation::new([(HostId(i), GpuMask::first(8)), (HostId(i + 1), GpuMask::first(8))]);
    let gb_per_s = |i: u32| Bandwidth::from_gb_per_s(300.0 + f64::from(i % 7));
    let row = |i| Measurement::new(pair(i), Collective::AllReduce, SIZE, gb_per_s(i), Source::Simulated);
    let rows: Vec<Measurement> = (0..40).map(row).collect();
    for kind in [Kind::Bound, Kind::Gp] {
        let model = fit(&cluster, &rows, &FitOptions::of(kind)).unwrap().0;
        for k in [8, 33, 999, 10_000, 10_238] {
            match exact(&cluster, &model, &Request::new(k, cluster.usable(), SIZE), 3) {
                Ok(found) => assert_eq!(found.best[0].allocation.gpu_count(), k),
                Err(e) => assert_eq!(e.code(), "too_large_for_exact", "{kind:?}, {k} GPUs"),
            }
        }
    }
}

/// The branches that a search asked about. All other answers are the model's.
struct Counted<'a>(&'a Model, std::sync::atomic::AtomicU64);

impl BandwidthModel for Counted<'_> {
    fn kind(&self) -> &'static str {
        "counted"
    }
    fn share_table(&self, s: Bytes) -> &predict::HostShareTable {
        self.0.share_table(s)
    }
    fn means(&self, s: Bytes, c: &Candidates, o: &mut Vec<f64>) {
        self.0.means(s, c, o);
    }
    fn predict(&self, s: Bytes, p: &[predict::HostShare]) -> predict::Prediction {
        self.0.predict(s, p)
    }
    fn mean(&self, s: Bytes, p: &[predict::HostShare]) -> f64 {
        self.0.mean(s, p)
    }
    fn upper_bound_hosts_or_more(&self, intra: f64, nic: f64, hosts: usize, gpus: usize) -> Option<f64> {
        self.1.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.0.upper_bound_hosts_or_more(intra, nic, hosts, gpus)
    }
    fn limit(&self, s: Bytes, p: &[predict::HostShare]) -> predict::bound::Limit {
        self.0.limit(s, p)
    }
    fn repeat_noise(&self) -> f64 {
        0.0
    }
}

/// A server on which many clients asked such questions worked on each for seconds before it refused.
#[test]
fn a_search_that_is_certain_to_be_too_large_is_refused_before_it_begins() {
    let mut cluster = catalog::cluster("h100").unwrap();
    cluster.hosts = (0..1280).map(|i| topology::Host { name: format!("n{i}"), ..topology::Host::default() }).collect();
    let pair = Allocation::new([(HostId(0), GpuMask::first(8)), (HostId(1), GpuMask::first(8))]);
    let row = Measurement::new(pair, Collective::AllReduce, SIZE, Bandwidth::from_gb_per_s(300.0), Source::Simulated);
    let model = fit(&cluster, &[row], &FitOptions::of(Kind::Bound)).unwrap().0;
    for k in [17, 64, 512, 9_000] {
        let counted = Counted(&model, 0.into());
        let e = exact(&cluster, &counted, &Request::new(k, cluster.usable(), SIZE), 3).unwrap_err();
        assert_eq!(e.code(), "too_large_for_exact");
        let branches = counted.1.into_inner();
        // A few questions for every count of GPUs on every host.
        assert!(branches < 50_000, "{k} GPUs: {branches} branches");
    }
}
