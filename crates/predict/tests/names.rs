//! A model knows hosts and host types by name: the order of a cluster file, unused types and other hosts change nothing that was learned.

use predict::{BandwidthModel, FitOptions, Kind, Model, ModelKinds, fit};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use store::{Measurement, Source};
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, Host, HostId, Network, catalog};

const SIZE: Bytes = Bytes::mib(256);
const OP: Collective = Collective::AllReduce;

/// Six hosts each of two types whose NICs differ.
fn cluster() -> Cluster {
    let types = ["hgx-h100", "a6000"].map(|t| catalog::host_type(t).expect("built in")).to_vec();
    let host = |i: usize| Host { name: format!("n{i}"), host_type: i % 2, ..Host::default() };
    Cluster { name: "mixed".into(), types, hosts: (0..12).map(host).collect(), network: Network::default() }
}

/// The same cluster with its types listed as `order` says, each the place of a type of [`cluster`] or an unused one.
fn listed(order: &[Option<usize>]) -> Cluster {
    let mut c = cluster();
    let unused = ["a800", "rtx4090", "dgx1-v100"];
    let types = c.types.clone();
    c.types = order
        .iter()
        .enumerate()
        .map(|(i, o)| o.map_or_else(|| catalog::host_type(unused[i % 3]).expect("built in"), |t| types[t].clone()))
        .collect();
    for h in &mut c.hosts {
        h.host_type = order.iter().position(|o| *o == Some(h.host_type)).expect("listed");
    }
    c
}

fn allocation(rng: &mut ChaCha8Rng, hosts: u32) -> Allocation {
    let n = rng.random_range(2..5u32);
    let first = rng.random_range(0..hosts);
    let step = rng.random_range(1..3u32);
    Allocation::new((0..n).map(|i| (HostId((first + i * step) % hosts), GpuMask::first(rng.random_range(1..=8)))))
}

/// Readings of one host and of several; host `n3` is slow.
fn rows(cluster: &Cluster) -> Vec<Measurement> {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let physics = fabric::Fabric::new(cluster);
    let mut all: Vec<Allocation> = (0..70).map(|_| allocation(&mut rng, 12)).collect();
    for h in cluster.host_ids() {
        all.extend([0xff, 0x0f, 0x33].map(|m| Allocation::new([(h, GpuMask(m))])));
    }
    all.into_iter()
        .filter(|a| a.gpu_count() > 1)
        .map(|a| {
            let slow = if a.mask(HostId(3)).is_empty() { 1.0 } else { 0.8 };
            let v = physics.estimate(&a, OP, SIZE).busbw.gb_per_s() * slow * rng.random_range(0.97..1.03);
            Measurement::new(a, OP, SIZE, Bandwidth::from_gb_per_s(v), Source::Simulated)
        })
        .collect()
}

fn fitted(cluster: &Cluster) -> Model {
    fit(cluster, &rows(&self::cluster()), &FitOptions::of(Kind::Gp)).expect("fits").0
}

/// Asserts that two models agree on allocations, given the host of one for each host of the other.
fn agree(a: &Model, b: &Model, host: impl Fn(HostId) -> HostId) {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    for i in 0..60 {
        let mut of_a = allocation(&mut rng, 12);
        if i % 3 == 0 {
            of_a = Allocation::new(of_a.parts().iter().take(1).copied());
        }
        let of_b = Allocation::new(of_a.parts().iter().map(|p| (host(p.0), p.1)));
        let (p, q) = (a.predict_allocation(SIZE, &of_a), b.predict_allocation(SIZE, &of_b));
        let near = |x: f64, y: f64| (x - y).abs() <= 1e-6 * x.abs().max(1e-9);
        assert!(
            near(p.busbw_gb_per_s, q.busbw_gb_per_s) && near(p.std_gb_per_s, q.std_gb_per_s),
            "{of_a:?}: {p:?} and {q:?}"
        );
    }
}

#[test]
fn the_order_of_types_in_the_cluster_file_changes_no_prediction() {
    let swapped = listed(&[Some(1), Some(0)]);
    let model = fitted(&cluster());
    agree(&model, &model.clone().on(&swapped), |h| h);
    agree(&model, &fitted(&swapped), |h| h);
    let saved = Model::load(&model.clone().on(&swapped).save().unwrap(), &ModelKinds::shipped()).unwrap();
    agree(&model, &saved, |h| h);
}

#[test]
fn unused_types_in_the_cluster_file_change_no_prediction() {
    let model = fitted(&cluster());
    for order in [&[None, Some(0), Some(1)][..], &[Some(1), None, Some(0), None]] {
        let more = listed(order);
        agree(&model, &model.clone().on(&more), |h| h);
        agree(&model, &fitted(&more), |h| h);
    }
}

#[test]
fn a_learned_model_of_the_offset_keeps_its_predictions_too() {
    let model = fit(&cluster(), &rows(&cluster()), &FitOptions::of(Kind::Bound)).expect("fits").0;
    agree(&model, &model.clone().on(&listed(&[None, Some(1), Some(0)])), |h| h);
}

#[test]
fn a_cluster_with_a_host_less_keeps_what_was_learned_of_the_others() {
    let model = fitted(&cluster());
    let mut less = cluster();
    less.hosts.remove(0);
    let on = model.clone().on(&less);
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for _ in 0..40 {
        let a = allocation(&mut rng, 11);
        let before = Allocation::new(a.parts().iter().map(|p| (HostId(p.0.0 + 1), p.1)));
        let (p, q) = (model.predict_allocation(SIZE, &before), on.predict_allocation(SIZE, &a));
        // The median over the hosts of a type, which is a feature, moves with the hosts.
        assert!((p.busbw_gb_per_s / q.busbw_gb_per_s - 1.0).abs() < 0.005, "{p:?} and {q:?}");
    }
    assert!(on.host_effect(HostId(2)) < -0.02, "n3 is slow: {}", on.host_effect(HostId(2)));
}

#[test]
fn a_cluster_with_new_and_renamed_hosts_keeps_the_rest_and_gives_them_their_type_s_predictions() {
    let model = fitted(&cluster());
    let mut more = cluster();
    more.hosts[3].name = "repaired".into();
    more.hosts.insert(0, Host { name: "new".into(), host_type: 1, ..Host::default() });
    let mut on = model.clone().on(&more);
    assert_eq!(on.host_effect(HostId(0)), 0.0);
    assert_eq!(on.host_effect(HostId(4)), 0.0, "the slow host went away with its name");
    // Without the slow host, which has another name now.
    let both = [(1u32, 2u32), (5, 7), (0, 11)];
    for (a, b) in both {
        let of = |shift: u32| Allocation::new([a, b].map(|h| (HostId(h + shift), GpuMask(0xff))));
        let (p, q) = (model.predict_allocation(SIZE, &of(0)), on.predict_allocation(SIZE, &of(1)));
        assert!((p.busbw_gb_per_s / q.busbw_gb_per_s - 1.0).abs() < 0.005, "{p:?} and {q:?}");
    }
    let inside = on.predict_allocation(SIZE, &Allocation::new([(HostId(0), GpuMask(0xff))]));
    let of_type = model.predict_allocation(SIZE, &Allocation::new([(HostId(1), GpuMask(0xff))]));
    assert!((inside.busbw_gb_per_s / of_type.busbw_gb_per_s - 1.0).abs() < 0.05, "{inside:?} and {of_type:?}");
    // New hosts are learned like others, and a file keeps them.
    let a = Allocation::new([(HostId(0), GpuMask(0xff)), (HostId(4), GpuMask(0xff))]);
    let v = on.predict_allocation(SIZE, &a).busbw_gb_per_s;
    assert!(on.update(&a, SIZE, 0.95 * v));
    let again = Model::load(&on.save().unwrap(), &ModelKinds::shipped()).unwrap();
    assert_eq!(on.predict_allocation(SIZE, &a), again.predict_allocation(SIZE, &a));
}

#[test]
fn a_type_that_the_fit_did_not_know_gets_the_physics_and_no_panic() {
    let model = fitted(&cluster());
    let mut more = cluster();
    more.types.push(catalog::host_type("a800").expect("built in"));
    more.hosts.push(Host { name: "other".into(), host_type: 2, ..Host::default() });
    let on = model.on(&more);
    let a = Allocation::new([(HostId(0), GpuMask(0xff)), (HostId(12), GpuMask(0xff))]);
    let p = on.predict_allocation(SIZE, &a);
    assert!(p.busbw_gb_per_s > 1.0 && p.std_gb_per_s.is_finite(), "{p:?}");
    let alone = on.predict_allocation(SIZE, &Allocation::new([(HostId(12), GpuMask(0xff))]));
    assert!(alone.busbw_gb_per_s > 1.0, "{alone:?}");
}
