//! A batch gives what one candidate after another gives, to the bit, whatever was computed before.

use predict::{BandwidthModel, Candidates, FitOptions, HostShare, Kind, Model, fit};
use proptest::prelude::*;
use std::sync::OnceLock;
use store::{Measurement, Source};
use topology::{
    Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, Host, HostId, HostLink, Network, Tier, catalog,
};

const SIZE: Bytes = Bytes::mib(64);
const HOSTS: usize = 12;

/// Three clusters that a memory of network sides could confuse: alike hosts; degraded ones; tiers and a slow pair.
fn cluster(which: usize) -> Cluster {
    let names = ["hgx-h100", "a800"];
    let types: Vec<_> = names.iter().map(|t| catalog::host_type(t).unwrap()).collect();
    let host = |i: usize| {
        let host_type = if which == 0 { 0 } else { i % 2 };
        let nics = types[host_type].nics.len();
        let nic_health = if which == 1 && i.is_multiple_of(3) { vec![0.4; nics] } else { Vec::new() };
        Host { name: format!("n{i}"), host_type, nic_health, ..Host::default() }
    };
    let mut network = Network::default();
    if which == 2 {
        network.tiers.push(Tier::regular("leaf", 4, 3.0));
        network.host_links.push(HostLink { a: HostId(0), b: HostId(2), rate: Bandwidth::from_gb_per_s(5.0) });
    }
    Cluster { name: "c".into(), hosts: (0..HOSTS).map(host).collect(), types, network }
}

fn models() -> &'static Vec<Model> {
    static MODELS: OnceLock<Vec<Model>> = OnceLock::new();
    MODELS.get_or_init(|| {
        let mut out = Vec::new();
        for which in 0..3 {
            let c = cluster(which);
            let rows: Vec<Measurement> = (0..40u32)
                .map(|i| {
                    let part = |j: u32| (HostId((i * 5 + j * 7) % HOSTS as u32), GpuMask(1 + (i * 37 + j * 91) % 255));
                    let a = Allocation::new((0..2 + i % 3).map(part));
                    let v = Bandwidth::from_gb_per_s(20.0 + f64::from(i * 13 % 29));
                    Measurement::new(a, Collective::AllReduce, SIZE, v, Source::Simulated)
                })
                .collect();
            for kind in [Kind::Bound, Kind::Gp] {
                out.push(fit(&c, &rows, &FitOptions::of(kind)).unwrap().0);
            }
        }
        out
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn means_of_a_batch_are_those_of_single_candidates_to_the_bit(
        model in 0usize..6,
        masks in proptest::collection::vec(
            proptest::collection::vec(prop_oneof![2 => Just(0u32), 1 => Just(255u32), 3 => 1u32..256], HOSTS),
            1..24,
        ),
    ) {
        let m = &models()[model];
        let table = m.share_table(SIZE);
        let allocations: Vec<Allocation> = masks
            .iter()
            .map(|m| Allocation::new(m.iter().enumerate().map(|(h, m)| (HostId(h as u32), GpuMask(*m)))))
            .filter(|a| !a.is_empty())
            .collect();
        let mut batch = Vec::new();
        m.means(SIZE, &Candidates::of(table, &allocations), &mut batch);
        let mut evaluator = m.evaluator(SIZE);
        for (a, v) in allocations.iter().zip(&batch) {
            let mut parts: Vec<HostShare> = a.parts().iter().map(|&(h, mask)| table.part(h, mask)).collect();
            prop_assert_eq!(m.mean(SIZE, &parts).to_bits(), v.to_bits());
            prop_assert_eq!(evaluator(&parts).to_bits(), v.to_bits());
            prop_assert_eq!(m.predict(SIZE, &parts).busbw_gb_per_s.to_bits(), v.to_bits());
            // The order in which a search lists the hosts does not matter beyond rounding.
            parts.reverse();
            prop_assert!((m.mean(SIZE, &parts) / v - 1.0).abs() < 1e-12 || a.gpu_count() < 2);
        }
    }
}
