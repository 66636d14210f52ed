//! The physics from 2 to 1,024 hosts: equal hosts on one non-blocking switch, the published shape, and its range.

use fabric::{Fabric, Outside, RunOptions, validated};
use topology::nccl::Algorithm;
use topology::{Allocation, Bytes, Cluster, Collective, GpuMask, Host, HostId, NetworkClass, catalog};

const NETWORKS: [NetworkClass; 2] = [NetworkClass::Infiniband, NetworkClass::Roce];

fn h100(hosts: usize, class: NetworkClass) -> Cluster {
    let mut c = catalog::cluster("h100").unwrap();
    c.hosts = (0..hosts).map(|i| Host { name: format!("n{i}"), ..Host::default() }).collect();
    c.network.class = class;
    c
}

fn equal(hosts: usize, gpus: usize) -> Allocation {
    Allocation::new((0..hosts as u32).map(|h| (HostId(h), GpuMask::first(gpus))))
}

fn host_counts() -> impl Iterator<Item = usize> {
    [2, 3, 4, 5, 8, 10, 16, 31, 32, 64, 100, 128, 1024].into_iter()
}

#[test]
fn a_larger_message_is_never_slower_per_byte() {
    for class in NETWORKS {
        let c = h100(1024, class);
        let f = Fabric::new(&c);
        for (hosts, gpus) in host_counts().flat_map(|h| [1, 2, 4, 8].map(|g| (h, g))) {
            for collective in [Collective::AllReduce, Collective::AllGather, Collective::AllToAll] {
                if collective == Collective::AllReduce && gpus != 8 {
                    continue; // on parts of hosts NCCL's own choice may change to a slower algorithm or protocol
                }
                let mut before: Option<fabric::Estimate> = None;
                for p in 10..=33 {
                    let e = f.estimate(&equal(hosts, gpus), collective, Bytes(1 << p));
                    let least = before.replace(e.clone()).map_or(0.0, |l| l.busbw.gb_per_s()) * (1.0 - 1e-9);
                    let (b, size) = (e.busbw.gb_per_s(), Bytes(1 << p));
                    assert!(b >= least, "{class:?} {collective} {hosts}x{gpus} {size}: {b:.2} after {least:.2} GB/s");
                }
            }
        }
    }
}

#[test]
fn whole_hosts_beat_half_hosts() {
    for class in NETWORKS {
        let c = h100(128, class);
        let f = Fabric::new(&c);
        for gpus in [16, 32, 64, 128, 256, 512] {
            for p in 20..=32 {
                let b =
                    |hosts, per| f.estimate(&equal(hosts, per), Collective::AllReduce, Bytes(1 << p)).busbw.gb_per_s();
                let (whole, half) = (b(gpus / 8, 8), b(gpus / 4, 4));
                assert!(
                    whole >= half,
                    "{class:?} {gpus} GPUs at {}: {whole:.1} on whole hosts, {half:.1} GB/s on half hosts",
                    Bytes(1 << p)
                );
            }
        }
    }
}

#[test]
fn no_estimate_is_above_what_the_links_alone_allow() {
    for class in NETWORKS {
        let c = h100(1024, class);
        let f = Fabric::new(&c);
        for hosts in host_counts().chain([1]) {
            for gpus in 1..=8 {
                for collective in Collective::ALL {
                    let a = equal(hosts, gpus);
                    let most = f.links_alone(&a, collective).gb_per_s();
                    for p in [16, 20, 24, 28, 31, 34] {
                        let e = f.estimate(&a, collective, Bytes(1 << p));
                        let b = e.busbw.gb_per_s();
                        assert!(b <= most, "{collective} {hosts}x{gpus} {}: {b:.1} of {most:.1} GB/s", Bytes(1 << p));
                    }
                }
            }
        }
    }
}

#[test]
fn a_doubling_of_hosts_costs_a_tree_the_same_at_every_scale_and_more_for_larger_messages() {
    let c = h100(1024, NetworkClass::Infiniband);
    let f = Fabric::new(&c);
    for algorithm in [Algorithm::Tree, Algorithm::NvlsTree] {
        let run = RunOptions { algorithm: Some(algorithm), ..RunOptions::default() };
        let us = |hosts, size| f.estimate_run(&equal(hosts, 8), Collective::AllReduce, size, run).time.us();
        let mut before = 0.0;
        for size in [Bytes::kib(8), Bytes::mib(1), Bytes::mib(16), Bytes::mib(64)] {
            // From four hosts on a tree's busiest host carries two buffers, so the links do not change.
            let step = |hosts| us(2 * hosts, size) - us(hosts, size);
            for hosts in [8, 16, 64, 512] {
                assert!((step(hosts) / step(16) - 1.0).abs() < 0.1, "{algorithm:?} {size} {hosts}");
            }
            assert!(step(16) > before, "{algorithm:?} {size}");
            before = step(16);
        }
    }
}

/// Ten hosts with eight H100 and 400 Gbit/s for each, NCCL 2.29.2, out of place (xxrjun/nccl-tests-cluster): collective, GPUs per host, and bus
/// bandwidth in GB/s at 32 MiB, 64 MiB, ... 16 GiB.
const TEN_HOSTS: [(Collective, usize, [f64; 10]); 12] = [
    (Collective::AllReduce, 1, [43.0, 47.5, 48.0, 48.0, 48.5, 48.6, 48.8, 48.7, 48.8, 48.9]),
    (Collective::AllGather, 1, [41.8, 45.4, 46.3, 46.3, 46.9, 46.9, 47.2, 47.4, 47.8, 48.1]),
    (Collective::ReduceScatter, 1, [42.5, 45.8, 46.7, 46.9, 47.5, 47.9, 48.3, 48.2, 48.1, 48.8]),
    (Collective::AllReduce, 2, [81.0, 87.9, 90.0, 96.8, 97.6, 97.7, 98.1, 98.3, 98.1, 97.8]),
    (Collective::AllGather, 2, [76.4, 84.7, 92.5, 94.7, 96.4, 97.1, 97.8, 98.2, 97.8, 97.3]),
    (Collective::ReduceScatter, 2, [75.5, 84.6, 92.1, 88.6, 96.7, 96.7, 97.9, 97.9, 98.2, 97.8]),
    (Collective::AllReduce, 4, [83.8, 123.0, 149.4, 163.9, 176.3, 195.2, 195.7, 194.0, 196.4, 196.3]),
    (Collective::AllGather, 4, [90.3, 132.2, 164.8, 168.7, 190.1, 193.1, 194.8, 195.5, 194.4, 194.4]),
    (Collective::ReduceScatter, 4, [82.3, 133.0, 164.4, 177.0, 190.3, 193.3, 194.9, 195.3, 196.1, 195.4]),
    (Collective::AllReduce, 8, [83.0, 141.0, 212.0, 280.7, 318.7, 344.9, 337.0, 313.9, 316.3, 320.5]),
    (Collective::AllGather, 8, [48.6, 90.0, 157.6, 150.1, 218.5, 265.0, 304.0, 313.2, 317.4, 324.3]),
    (Collective::ReduceScatter, 8, [48.1, 74.8, 125.2, 145.6, 214.4, 280.0, 312.4, 314.1, 315.8, 323.4]),
];

#[test]
fn ten_h100_hosts_reach_what_was_published_of_them() {
    let c = h100(10, NetworkClass::Infiniband);
    let f = Fabric::new(&c);
    let run = RunOptions { out_of_place: true, ..RunOptions::default() };
    let mut errors: Vec<f64> = Vec::new();
    for (collective, gpus, measured) in TEN_HOSTS {
        for (i, m) in measured.into_iter().enumerate() {
            let e = f.estimate_run(&equal(10, gpus), collective, Bytes::mib(32 << i), run);
            errors.push((e.busbw.gb_per_s() / m - 1.0).abs());
        }
    }
    errors.sort_by(f64::total_cmp);
    let at = |share: f64| errors[(share * (errors.len() - 1) as f64) as usize];
    assert!(at(0.5) < 0.04 && at(0.9) < 0.20 && at(1.0) < 0.60, "{:.3} {:.3} {:.3}", at(0.5), at(0.9), at(1.0));
}

#[test]
fn the_plateau_hardly_moves_with_the_number_of_hosts() {
    // Alps: 92.7, 92.8, 92.7, 92.3, 91.2, 89.6 GB/s at 4, 8, 32, 64, 128, 256 hosts (ring, 4 GiB).
    for class in NETWORKS {
        let c = h100(128, class);
        let f = Fabric::new(&c);
        let b = |hosts| f.estimate(&equal(hosts, 8), Collective::AllReduce, Bytes::gib(16)).busbw.gb_per_s();
        for hosts in [8, 16, 32, 64, 128] {
            assert!(b(hosts) > 0.85 * b(4), "{class:?} {hosts}: {:.0} of {:.0} GB/s", b(hosts), b(4));
        }
    }
}

#[test]
fn one_job_says_by_what_it_leaves_the_range_of_published_measurements() {
    let c = h100(128, NetworkClass::Infiniband);
    let of = |hosts, gpus, size| validated(&c, &equal(hosts, gpus), Collective::AllReduce, size);
    assert_eq!(of(4, 8, Bytes::mib(16)), []);
    assert_eq!(of(1, 8, Bytes(8)), []);
    let far = of(64, 8, Bytes::mib(16));
    assert_eq!(far[0], Outside::Hosts { hosts: 64, measured_max: 10 });
    assert_eq!(far[0].to_string(), "64 hosts (measured: up to 10)");
    assert_eq!(far[1], Outside::Ranks { ranks: 512, measured_max: 80 });
    assert!(matches!(of(4, 8, Bytes::kib(64))[..], [Outside::Size { .. }]));
    assert!(matches!(validated(&c, &equal(2, 8), Collective::Broadcast, Bytes::mib(16))[..], [Outside::Fabric { .. }]));
    let tcp = h100(4, NetworkClass::Tcp);
    assert_eq!(
        validated(&tcp, &equal(2, 8), Collective::AllReduce, Bytes::mib(16))[0].to_string(),
        "Hopper GPUs on Tcp: no published measurement over several hosts"
    );
}
