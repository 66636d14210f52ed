//! Compares estimates with published figures, within the tolerance of their sources.

use fabric::{Fabric, RunOptions, intra_busbw};
use topology::nccl::Algorithm;
use topology::{
    Allocation, Bytes, Cluster, Collective, GpuMask, Host, HostId, HostType, NvLinkFabric, PathKind, catalog,
};

#[track_caller]
fn within(predicted: f64, measured: f64, pct: f64) {
    let error = (predicted / measured - 1.0) * 100.0;
    assert!(error.abs() <= pct, "predicted {predicted:.1}, published {measured:.1}: {error:+.1} %, allowed {pct} %");
}

fn one(t: &HostType, mask: GpuMask, c: Collective, size: Bytes) -> f64 {
    intra_busbw(t, mask, c, size).gb_per_s()
}

#[test]
fn nvlink_sharp_follows_two_b_times_n_minus_one_over_n_plus_one() {
    // HGX H200, all-reduce 8 GiB (stas00/ml-engineering network/README.md).
    let t = catalog::host_type("hgx-h100").unwrap();
    for (n, published) in [(4, 363.3), (5, 414.2), (6, 435.6), (7, 460.0), (8, 473.1)] {
        within(one(&t, GpuMask::first(n), Collective::AllReduce, Bytes::gib(8)), published, 4.0);
    }
}

#[test]
fn a_ring_over_nvswitches_does_not_depend_on_the_number_of_gpus() {
    // H200 with NVLS off: 363.3 to 365.7 for 4 to 8 GPUs.
    let cluster = Cluster {
        types: vec![catalog::host_type("hgx-h100").unwrap()],
        hosts: vec![Host { name: "n0".into(), ..Host::default() }],
        ..Cluster::default()
    };
    let f = Fabric::new(&cluster);
    let run = RunOptions { algorithm: Some(Algorithm::Ring), ..RunOptions::default() };
    for n in 4..=8 {
        let a = Allocation::new([(HostId(0), GpuMask::first(n))]);
        within(f.estimate_run(&a, Collective::AllReduce, Bytes::gib(8), run).busbw.gb_per_s(), 365.0, 3.0);
    }
}

/// DGX-1 P100: every GPU has four NVLink 1 links, one lane each (Tartan, Li et al.).
fn dgx1_p100() -> HostType {
    let mut t = catalog::host_type("dgx1-v100").unwrap();
    t.gpu_model = "Tesla P100-SXM2-16GB".into();
    t.nvlink =
        Some(NvLinkFabric { link_rate: topology::Bandwidth::from_gb_per_s(20.0), switched: false, multicast: false });
    let cube = |a: usize, b: usize| a / 4 == b / 4 || a % 4 == b % 4;
    for a in 0..8 {
        for b in 0..8 {
            t.gpu_paths[a][b] = match (a == b, cube(a, b)) {
                (true, _) => PathKind::Same,
                (_, true) => PathKind::NvLink(1),
                _ => PathKind::Sys,
            };
        }
    }
    t
}

#[test]
fn rings_of_a_p100_cube_mesh_are_those_that_fit() {
    // facts/measurements.md section 2: 17.28, 34.56, 52.09, 34.70, 34.72 for the first 2, 3, 4, 6, 7 GPUs.
    let t = dgx1_p100();
    let plateau = |n| fabric::intra::intra_entry(&t, GpuMask::first(n), &fabric::Constants::default()).ring_gb_per_s;
    for (n, published) in [(2, 17.28), (3, 34.56), (4, 52.09), (6, 34.70), (7, 34.72)] {
        within(plateau(n), published, 1.0);
    }
    within(plateau(8), 62.24, 12.0); // the packing's bound is 11.6 % above
}

#[test]
fn adding_one_gpu_without_a_ring_costs_a_p100_most_of_its_bandwidth() {
    // Measured {0..3} 52.09, {0..4} 5.57 GB/s: NCCL used PCIe, although a relay would be faster.
    let t = dgx1_p100();
    let plateau = |n| fabric::intra::intra_entry(&t, GpuMask::first(n), &fabric::Constants::default()).ring_gb_per_s;
    assert!(plateau(5) < plateau(4) / 2.5, "{} against {}", plateau(5), plateau(4));
}

#[test]
fn the_bandwidth_of_v100_pairs_follows_their_links() {
    // BandPilot's published intra table, 16 MiB all-gather: two links 42.2, one 22.0; eight GPUs 92.8, {4,5,6,7} 74.9.
    let t = catalog::host_type("dgx1-v100").unwrap();
    for (gpus, published) in
        [(vec![0, 2], 42.2), (vec![0, 1], 22.0), ((0..8).collect(), 92.8), (vec![4, 5, 6, 7], 74.9)]
    {
        within(one(&t, GpuMask::from_indices(gpus), Collective::AllGather, Bytes::mib(16)), published, 12.0);
    }
}

#[test]
fn gpus_without_peer_to_peer_are_faster_on_different_sockets() {
    // 8x4090: across sockets 10.7, on one socket 7.0, all eight of a socket pair 4.0 (16 MiB all-gather).
    let t = catalog::host_type("rtx4090").unwrap();
    let b = |g: [usize; 2]| one(&t, GpuMask::from_indices(g), Collective::AllGather, Bytes::mib(16));
    assert!(b([0, 4]) > b([0, 1]) * 1.3);
    within(b([0, 4]), 10.7, 25.0);
    within(b([0, 1]), 7.0, 20.0);
}

#[test]
fn a_third_gpu_takes_an_nvlink_pair_down_to_pcie() {
    // A6000: bridged pair 38.3, same socket 20, across 11.9, {4,5,6,7} 42.0 (two rings over two bridges).
    let t = catalog::host_type("a6000").unwrap();
    let b = |g: &[usize]| one(&t, GpuMask::from_indices(g.iter().copied()), Collective::AllGather, Bytes::mib(16));
    within(b(&[0, 1]), 38.3, 12.0);
    within(b(&[0, 2]), 20.2, 12.0);
    within(b(&[0, 4]), 11.9, 12.0);
    within(b(&[4, 5, 6, 7]), 42.0, 12.0);
    assert!(b(&[0, 1, 4]) < b(&[0, 1]) / 2.0);
}

#[test]
fn four_h100_hosts_fall_in_the_published_steps() {
    // BandPilot Fig. 1 and facts/nccl-graph-search.md, all-reduce 2 GiB.
    let cluster = catalog::cluster("h100").unwrap();
    let f = Fabric::new(&cluster);
    let b = |counts: &[usize]| {
        let a = Allocation::new(counts.iter().enumerate().map(|(h, &c)| (HostId(h as u32), GpuMask::first(c))));
        f.estimate(&a, Collective::AllReduce, Bytes::gib(2)).busbw.gb_per_s()
    };
    for (counts, published, pct) in [
        (&[4, 4][..], 337.2, 3.0),
        (&[5, 5], 412.5, 4.0),
        (&[6, 2], 153.4, 4.0),
        (&[8, 2], 157.3, 4.0),
        (&[8, 8], 460.0, 4.0),
        (&[3, 3, 3, 3], 131.0, 4.0),
        (&[4, 4, 4, 4], 195.7, 4.0),
        (&[2, 2, 2, 2], 98.0, 4.0),
        (&[8, 8, 3], 128.0, 4.0),
        (&[5, 5, 3], 112.0, 4.0),
        (&[7, 7, 7, 7], 331.0, 5.0),
        // One reading; on whole hosts the physics takes the fastest algorithm, which NCCL did not choose here.
        (&[8, 8, 8, 8], 317.0, 10.0),
        (&[6, 4, 4], 224.0, 5.0),
        (&[6, 5, 4, 4], 176.0, 5.0),
        (&[8, 8, 8, 3], 90.0, 8.0),
    ] {
        within(b(counts), published, pct);
    }
}
