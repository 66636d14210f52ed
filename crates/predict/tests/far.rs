//! Predictions far from the readings: of hundreds of hosts by a process that has seen four.

use predict::bound::Memo;
use predict::{BandwidthModel, Correction, FitOptions, HostShare, Kind, Model, fit};
use proptest::prelude::*;
use std::sync::OnceLock;
use store::{Measurement, Source};
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, Host, HostId, Network, catalog};

const SIZE: Bytes = Bytes::gib(1);
const HOSTS: usize = 160;
const TYPES: [&str; 4] = ["rtx4090", "dgx1-v100", "a6000", "a800"];

fn mixed() -> Cluster {
    let types: Vec<_> = TYPES.iter().map(|t| catalog::host_type(t).unwrap()).collect();
    let hosts = (0..HOSTS).map(|i| Host { name: format!("n{i}"), host_type: i % 4, ..Host::default() }).collect();
    Cluster { name: "mixed".into(), types, hosts, network: Network::default() }
}

/// A number between 0 and 1 that depends on its argument alone.
fn lot(a: u64) -> f64 {
    let h = a.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((h ^ h >> 31).wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 40) as f64 / (1u64 << 24) as f64
}

/// What a host really costs: every fifth is slow.
fn slow(h: HostId) -> f64 {
    if h.0.is_multiple_of(5) { 0.8 } else { 1.0 }
}

/// Readings of two to four of the first 12 hosts: the physics, bent by the slowest host and by the split.
fn model() -> &'static (Model, f64, f64) {
    static MODEL: OnceLock<(Model, f64, f64)> = OnceLock::new();
    MODEL.get_or_init(|| {
        let cluster = mixed();
        let physics = fabric::Fabric::new(&cluster);
        let mut rows = Vec::new();
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for i in 0..200u64 {
            let hosts = 2 + i % 3;
            let a = Allocation::new((0..hosts).map(|j| {
                let h = HostId((lot(i * 8 + j) * 12.0) as u32);
                (h, GpuMask(1 + (lot(i * 8 + j + 5000) * 255.0) as u32))
            }));
            if a.host_count() < 2 {
                continue;
            }
            let worst = a.parts().iter().map(|p| slow(p.0)).fold(1.0, f64::min);
            let counts = a.counts();
            let even = *counts.iter().min().unwrap() as f64 / *counts.iter().max().unwrap() as f64;
            let bend = worst * (0.85 + 0.15 * even) * (1.0 - 0.03 * a.host_count() as f64);
            let v = physics.estimate(&a, Collective::AllReduce, SIZE).busbw.gb_per_s() * bend;
            low = f64::min(low, bend.ln());
            high = f64::max(high, bend.ln());
            rows.push(Measurement::new(a, Collective::AllReduce, SIZE, Bandwidth::from_gb_per_s(v), Source::Simulated));
        }
        let model = fit(&cluster, &rows, &FitOptions::of(Kind::Gp)).unwrap().0;
        (model, low, high)
    })
}

fn correction(m: &Model, a: &Allocation) -> f64 {
    let parts: Vec<HostShare> = a.parts().iter().map(|&(h, mask)| m.share_table(SIZE).part(h, mask)).collect();
    let bound = m.bounds(SIZE).of(&parts, &mut Memo::default()).bound_gb_per_s;
    (m.mean(SIZE, &parts) / bound).ln()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn on_hundreds_of_hosts_the_correction_stays_near_what_readings_of_four_showed(
        hosts in 2usize..HOSTS, first in 0usize..HOSTS, whole: bool, seed: u64,
    ) {
        let (m, low, high) = model();
        let a = Allocation::new((0..hosts).map(|i| {
            let mask = if whole { 255 } else { 1 + (lot(seed.wrapping_add(i as u64)) * 255.0) as u32 };
            (HostId(((first + i) % HOSTS) as u32), GpuMask(mask))
        }));
        let c = correction(m, &a);
        prop_assert!(c > low - 0.25 && c < high + 0.25, "{hosts} hosts: {c} outside of {low} to {high}");
        let p = m.predict_allocation(SIZE, &a);
        prop_assert!(p.std_gb_per_s < 0.5 * p.busbw_gb_per_s, "{p:?}");
    }
}

#[test]
fn a_prediction_out_of_reach_is_less_certain_than_one_within() {
    let (m, _, _) = model();
    let relative = |hosts: u32| {
        let a = Allocation::new((0..hosts).map(|h| (HostId(4 * h + 3), GpuMask(0b1101_1001))));
        let p = m.predict_allocation(SIZE, &a);
        p.std_gb_per_s / p.busbw_gb_per_s
    };
    assert!(relative(40) > relative(3) + 0.02, "{} and {}", relative(40), relative(3));
}

#[test]
fn hosts_that_were_seen_to_be_slow_count_among_many_as_among_few_and_no_more() {
    let (m, _, _) = model();
    let Correction::Gp(gp) = m.correction() else { panic!("a process was fitted") };
    let effects: Vec<f64> = (0..12).map(|h| gp.host_effect(h)).collect();
    assert!(effects.iter().any(|e| *e < -0.005), "no host was found slow: {effects:?}");
    let of = |hosts: u32| correction(m, &Allocation::new((0..hosts).map(|h| (HostId(h), GpuMask(255)))));
    assert!((of(48) - of(12)).abs() < 0.25, "{} and {}", of(48), of(12));
}
