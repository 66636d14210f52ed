//! Predictions at sizes between and beyond the measured ones.

use predict::{BandwidthModel, FitOptions, Kind, Model, fit};
use store::{Measurement, Source};
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, HostId, catalog};

const OP: Collective = Collective::AllReduce;

/// Readings at 16 MiB and 1 GiB: hosts at `share` of the physics, jobs over hosts at the physics.
fn model(cluster: &Cluster, kind: Kind, share: f64) -> Model {
    let physics = fabric::Fabric::new(cluster);
    let mut rows = Vec::new();
    for size in [Bytes::mib(16), Bytes::gib(1)] {
        let mut read = |a: Allocation, factor: f64| {
            let v = physics.estimate(&a, OP, size).busbw.gb_per_s() * factor;
            rows.push(Measurement::new(a, OP, size, Bandwidth::from_gb_per_s(v), Source::Simulated));
        };
        for m in (0..256u32).filter(|m| m.count_ones() > 1) {
            read(Allocation::new([(HostId(0), GpuMask(m))]), share);
        }
        for (a, b) in (1..=8).flat_map(|a| (1..=a).map(move |b| (a, b))) {
            read(Allocation::new([(HostId(0), GpuMask::first(a)), (HostId(1), GpuMask::first(b))]), 1.0);
        }
    }
    fit(cluster, &rows, &FitOptions::of(kind)).unwrap().0
}

#[test]
fn bandwidth_follows_the_physics_between_and_beyond_the_measured_sizes_without_steps() {
    let cluster = catalog::cluster("h100").unwrap();
    let physics = fabric::Fabric::new(&cluster);
    let one = Allocation::new([(HostId(0), GpuMask(0xff))]);
    let two = Allocation::new([(HostId(0), GpuMask(0xff)), (HostId(1), GpuMask(0xff))]);
    for kind in [Kind::Bound, Kind::Gp] {
        let model = model(&cluster, kind, 0.9);
        for (a, share) in [(&one, 0.9), (&two, 1.0)] {
            let mut before = 0.0;
            for half in 20..=68 {
                let size = Bytes((0.5 * f64::from(half)).exp2() as u64);
                let p = model.predict_allocation(size, a).busbw_gb_per_s;
                let truth = share * physics.estimate(a, OP, size).busbw.gb_per_s();
                let off = (p / truth).ln().abs();
                let most = if a.host_count() == 1 { 0.1 } else { 0.3 };
                assert!(off < most, "{kind:?} {} at {size}: {p} for {truth}", a.split());
                assert!(p > 0.97 * before, "{kind:?} {} at {size}: {p} after {before}", a.split());
                before = p;
            }
        }
    }
}

#[test]
fn a_measured_size_keeps_its_own_tables_and_others_are_less_certain_the_farther_they_are() {
    let cluster = catalog::cluster("h100").unwrap();
    let model = model(&cluster, Kind::Gp, 0.9);
    let one = Allocation::new([(HostId(0), GpuMask(0xff))]);
    let at = |size| model.predict_allocation(size, &one);
    let read = 0.9 * fabric::Fabric::new(&cluster).estimate(&one, OP, Bytes::mib(16)).busbw.gb_per_s();
    assert!((at(Bytes::mib(16)).busbw_gb_per_s / read - 1.0).abs() < 1e-9);
    let relative = |size| at(size).std_gb_per_s / at(size).busbw_gb_per_s;
    let sizes = [Bytes::mib(16), Bytes::mib(4), Bytes::kib(256), Bytes::kib(4)];
    assert!(sizes.windows(2).all(|w| relative(w[1]) > relative(w[0])), "{:?}", sizes.map(relative));
    // Learning at a size that was not measured before corrects the bandwidth of that size.
    let mut taught = model.clone();
    let two = Allocation::new([(HostId(0), GpuMask(0xff)), (HostId(1), GpuMask(0xff))]);
    let size = Bytes::mib(128);
    let p = model.predict_allocation(size, &two).busbw_gb_per_s;
    (0..3).for_each(|_| assert!(taught.update(&two, size, 1.01 * p)));
    let after = taught.predict_allocation(size, &two).busbw_gb_per_s;
    assert!(after >= 0.999 * p && after < 1.02 * p, "{p} {after}");
}

#[test]
fn candidates_are_judged_with_the_tables_of_their_size() {
    let cluster = catalog::cluster("h100").unwrap();
    let model = model(&cluster, Kind::Bound, 0.9);
    let part = |size| model.share_table(size).part(HostId(0), GpuMask(0xff)).intra_gb_per_s;
    assert!(part(Bytes::kib(1)) < 0.1 * part(Bytes::mib(16)), "{} {}", part(Bytes::kib(1)), part(Bytes::mib(16)));
    assert!(part(Bytes::mib(127)) > 1.2 * part(Bytes::mib(16)));
    assert!((part(Bytes::mib(127)) / part(Bytes::mib(128)) - 1.0).abs() < 0.1);
}
