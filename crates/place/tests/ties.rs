//! Where candidates are equal, the choice leaves the cluster less fragmented.

use place::{Request, answer};
use predict::{FitOptions, Kind, Model, fit};
use store::{Measurement, Source};
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, HostId, catalog};

const SIZE: Bytes = Bytes::gib(2);

/// A model whose hosts are all alike: intra bandwidth from physics, one multi-host reading.
fn alike(cluster: &Cluster) -> Model {
    let a = Allocation::new([(HostId(0), GpuMask::first(4)), (HostId(1), GpuMask::first(4))]);
    let row = Measurement::new(a, Collective::AllReduce, SIZE, Bandwidth::from_gb_per_s(337.0), Source::Published);
    fit(cluster, &[row], &FitOptions::of(Kind::Bound)).unwrap().0
}

fn choose(free: &[(u32, u32)], k: usize) -> Allocation {
    choose_on(&catalog::cluster("h100").unwrap(), free, k)
}

fn choose_on(cluster: &Cluster, free: &[(u32, u32)], k: usize) -> Allocation {
    let free = Allocation::new(free.iter().map(|(h, m)| (HostId(*h), GpuMask(*m))));
    answer(cluster, &alike(cluster), &Request::new(k, free, SIZE)).unwrap().choice.allocation
}

#[test]
fn a_host_that_is_partly_used_is_filled_before_a_whole_one_is_broken() {
    let a = choose(&[(0, 0xff), (1, 0x0f), (2, 0xff)], 4);
    assert_eq!(a.parts(), &[(HostId(1), GpuMask(0x0f))]);
}

#[test]
fn an_exact_fit_is_taken_rather_than_a_host_with_one_gpu_to_spare() {
    let a = choose(&[(0, 0x1f), (1, 0x3f), (2, 0x1f)], 5);
    assert_eq!(a.counts(), [5]);
    assert_ne!(a.parts()[0].0, HostId(1));
}

#[test]
fn one_gpu_is_taken_where_least_is_left() {
    let a = choose(&[(0, 0xff), (1, 0x01), (2, 0x0f)], 1);
    assert_eq!(a.parts(), &[(HostId(1), GpuMask(1))]);
}

#[test]
fn degraded_parts_are_avoided_where_others_are_free() {
    let mut cluster = catalog::cluster("h100").unwrap();
    // n1 would be the tie-breaker's choice; one of its GPUs and one of n2's NICs run at half rate.
    cluster.hosts[1].gpu_health = vec![1.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
    assert_eq!(choose_on(&cluster, &[(0, 0xff), (1, 0x0f), (2, 0xff)], 4).mask(HostId(1)), GpuMask::EMPTY);
    cluster.hosts[2].nic_health = vec![0.5; 8];
    let a = choose_on(&cluster, &[(0, 0x0f), (2, 0x0f), (3, 0x0f)], 8);
    assert_eq!(a.mask(HostId(2)), GpuMask::EMPTY, "{a:?}");
}
