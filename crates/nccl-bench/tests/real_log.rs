//! Compares reports with logs of real hardware.

mod common;

use common::{hosts, run};
use nccl_bench::{BenchSpec, PlannedCall};
use topology::nccl::{Algorithm, Protocol};
use topology::{Collective, catalog};

/// NVIDIA/nccl issue 1453: three hosts of eight H100, `NCCL_CROSS_NIC=2`, 8 GiB all-reduce by a ring with Simple, NCCL's estimate 86070.0 us. The
/// log gives neither version nor NIC speed. Its estimate fits NICs in PCIe Gen4 slots (24 GB/s), which the test assumes, so only rings, heads
/// and channels are an independent check. The test compares the first 20 ranks of two rings.
#[test]
fn three_h100_hosts_have_the_rings_and_heads_of_a_real_log() {
    let name = "three_h100_hosts_have_the_rings_and_heads_of_a_real_log";
    let mut h100 = catalog::host_type("hgx-h100").unwrap();
    h100.pcie.generation = 4;
    let (cluster, nodes) = hosts(&h100, &[(0..8).collect(), (0..8).collect(), (0..8).collect()]);
    let mut spec = BenchSpec::new(cluster, nodes, "2.24".parse().unwrap());
    spec.calls.push(PlannedCall { collective: Collective::AllReduce, size_bytes: 8 << 30, captured: false });
    spec.env = ["NCCL_CROSS_NIC=2", "NCCL_ALGO=Ring", "NCCL_PROTO=Simple"]
        .map(|e| e.split_once('=').map(|(k, v)| (k.to_string(), v.to_string())).unwrap())
        .to_vec();
    let Some(report) = run(name, &spec) else { return };
    assert_eq!(report.rings[0][..20], [0, 7, 6, 5, 4, 3, 2, 1, 8, 15, 14, 13, 12, 11, 10, 9, 16, 23, 22, 21]);
    assert_eq!(report.rings[1][..20], [0, 7, 6, 5, 4, 3, 2, 9, 8, 15, 14, 13, 12, 11, 10, 17, 16, 23, 22, 21]);
    assert_eq!(report.nvls_heads, (0..8).map(|i| vec![i, i + 8, i + 16]).collect::<Vec<_>>());
    let c = report.channels;
    assert_eq!((c.coll, c.collnet, c.nvls, c.p2p, c.p2p_per_peer), (16, 16, 16, 16, 2));
    let d = report.decisions().next().unwrap();
    assert_eq!((d.algorithm, d.protocol, d.channels), (Algorithm::Ring, Protocol::Simple, 16));
    assert!((d.time_us.unwrap() - 86070.0).abs() < 100.0, "{d:?}");
}
