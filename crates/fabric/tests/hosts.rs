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
        for hosts in host_counts() {
            for gpus in [1, 2, 4, 8] {
                for collective in [Collective::AllReduce, Collective::AllGather, Collective::AllToAll] {
                    let a = equal(hosts, gpus);
                    let mut before = 0.0;
                    for p in 10..=33 {
                        let b = f.estimate(&a, collective, Bytes(1 << p)).busbw.gb_per_s();
                        assert!(
                            b >= before * (1.0 - 1e-9),
                            "{class:?} {collective} {hosts}x{gpus} {}: {b:.2} after {before:.2} GB/s",
                            Bytes(1 << p)
                        );
                        before = b;
                    }
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
