//! The order of ranks: rules of `place::ranks`, each with the fact that it rests on.

use place::ranks::{host_order, rank_order};
use proptest::prelude::*;
use topology::{Allocation, Bytes, Cluster, Collective, GpuMask, Host, HostId, Tier, catalog};

fn h100(hosts: u32) -> Cluster {
    let mut c = catalog::cluster("h100").unwrap();
    c.hosts = (0..hosts).map(|i| Host { name: format!("n{i}"), ..Default::default() }).collect();
    c
}

/// Counts in rank order of hosts that give their first GPUs.
fn order(c: &Cluster, counts: &[usize]) -> Vec<usize> {
    let parts: Vec<_> = counts.iter().enumerate().map(|(h, n)| (HostId(h as u32), GpuMask::first(*n))).collect();
    host_order(c, &parts).iter().map(|p| p.1.count()).collect()
}

#[test]
fn hosts_with_most_gpus_come_first() {
    assert_eq!(order(&h100(3), &[2, 5, 4]), [5, 4, 2]);
    assert_eq!(order(&h100(2), &[3, 8]), [8, 3], "trees at two hosts: the order stays");
}

#[test]
fn beside_a_whole_host_of_eight_small_hosts_take_even_places() {
    // 8+8+3 reads 128 GB/s with the host of 3 GPUs at place 2, 8+8+8+3 reads 90 with it at place 3.
    assert_eq!(order(&h100(3), &[8, 8, 3]), [8, 8, 3]);
    assert_eq!(order(&h100(4), &[8, 8, 8, 3]), [8, 8, 3, 8]);
    assert_eq!(order(&h100(3), &[8, 3, 3]), [3, 8, 3]);
    // Too many small hosts: those of 3 GPUs lose most, then 4, then 2.
    assert_eq!(order(&h100(4), &[8, 4, 3, 2]), [4, 8, 3, 2]);
    assert_eq!(order(&h100(4), &[8, 3, 3, 3]), [3, 8, 3, 3]);
}

#[test]
fn where_nccl_exchanges_no_channels_the_order_stays() {
    assert_eq!(order(&h100(4), &[7, 7, 7, 3]), [7, 7, 7, 3], "no host gives all eight");
    assert_eq!(order(&h100(4), &[8, 8, 5, 4]), [8, 8, 5, 4], "a host of 5 GPUs: five channels, an odd number");
    let mut shared = h100(4);
    // One NIC for all GPUs: rings of a whole host cross nothing.
    shared.types[0].nics.truncate(1);
    assert_eq!(order(&shared, &[8, 8, 8, 3]), [8, 8, 8, 3]);
}

#[test]
fn hosts_below_one_switch_stay_together_and_small_hosts_move_only_below_theirs() {
    let mut c = h100(4);
    c.network.tiers = vec![Tier::regular("leaf", 2, 2.0)];
    // n0 and n2 give 8, n1 and n3 give 3: below each switch one of each.
    assert_eq!(order(&c, &[8, 3, 8, 3]), [3, 8, 3, 8]);
    let parts = [(0, 0xff), (1, 0x7), (2, 0xff), (3, 0x7)].map(|(h, m)| (HostId(h), GpuMask(m)));
    let hosts: Vec<u32> = host_order(&c, &parts).iter().map(|p| p.0.0).collect();
    assert_eq!(hosts, [1, 0, 3, 2]);
    // The switch that carries most of the job comes first.
    assert_eq!(order(&c, &[4, 4, 8, 5]), [8, 5, 4, 4]);
}

#[test]
fn over_several_switches_the_hosts_with_the_most_gpus_are_first_and_last_below_each() {
    let mut c = h100(10);
    c.network.tiers = vec![Tier::regular("leaf", 5, 2.0)];
    assert_eq!(order(&c, &[8, 7, 8, 7, 8, 7, 8, 8, 8, 6]), [8, 8, 7, 7, 8, 8, 8, 6, 7, 8]);
    // All below one switch: the order of the tables stays.
    assert_eq!(order(&c, &[8, 7, 8, 7, 8]), [8, 8, 8, 7, 7]);
    // Sensitive hosts take even places only inside the run of their switch.
    let counts = order(&c, &[8, 8, 8, 8, 3, 8, 8, 8, 8, 3]);
    assert!([0, 4, 5, 9].iter().all(|i| counts[*i] == 8), "{counts:?}");
}

proptest! {
    #[test]
    fn below_each_of_several_switches_no_host_inside_gives_more_than_both_ends(
        counts in proptest::collection::vec(1usize..=8, 12),
    ) {
        let mut c = h100(12);
        c.network.tiers = vec![Tier::regular("leaf", 4, 2.0)];
        let parts: Vec<_> = counts.iter().enumerate().map(|(h, n)| (HostId(h as u32), GpuMask::first(*n))).collect();
        for run in host_order(&c, &parts).chunks(4) {
            let n = |i: usize| run[i].1.count();
            prop_assert!(n(0).min(n(3)) >= n(1).min(n(2)), "{:?}", run);
        }
    }
}

#[test]
fn ranks_go_pod_by_pod_on_each_host_and_by_index_in_each_pod() {
    let hosts = [(HostId(1), GpuMask(0b1111)), (HostId(0), GpuMask(0b11))];
    let pods = [(HostId(0), GpuMask(0b11)), (HostId(1), GpuMask(0b1010)), (HostId(1), GpuMask(0b0101))];
    let ranks: Vec<(u32, u8)> = rank_order(&hosts, &pods).iter().map(|g| (g.host.0, g.gpu)).collect();
    assert_eq!(ranks, [(1, 0), (1, 2), (1, 1), (1, 3), (0, 0), (0, 1)]);
    let plain: Vec<u8> = rank_order(&hosts, &[]).iter().map(|g| g.gpu).collect();
    assert_eq!(plain, [0, 1, 2, 3, 0, 1]);
}

/// Every order of a list.
fn orders(list: &[usize]) -> Vec<Vec<usize>> {
    if list.is_empty() {
        return vec![vec![]];
    }
    let rest = |i: usize| [&list[..i], &list[i + 1..]].concat();
    (0..list.len()).flat_map(|i| orders(&rest(i)).into_iter().map(move |o| [vec![list[i]], o].concat())).collect()
}

#[test]
fn the_physics_knows_no_order_of_three_or_four_hosts_that_is_much_better_and_calls_none_of_ours_a_loss() {
    let c = h100(4);
    let fabric = fabric::Fabric::new(&c);
    // The physics takes hosts in the order of the cluster, and they are alike: so a list of counts is an order.
    let gb_per_s = |counts: &[usize]| {
        let parts = counts.iter().enumerate().map(|(h, n)| (HostId(h as u32), GpuMask::first(*n)));
        fabric.estimate(&Allocation::new(parts), Collective::AllReduce, Bytes::gib(2)).busbw.gb_per_s()
    };
    let (mut vectors, mut gained) = (0, 0);
    for n in 3..=4u32 {
        let all = (0..8usize.pow(n)).map(|i| (0..n).map(|d| i / 8usize.pow(d) % 8 + 1).collect::<Vec<usize>>());
        for counts in all.filter(|v| v.is_sorted_by(|a, b| a >= b)) {
            let (ours, largest_first) = (gb_per_s(&order(&c, &counts)), gb_per_s(&counts));
            let best = orders(&counts).iter().map(|o| gb_per_s(o)).fold(0.0, f64::max);
            assert!(ours >= largest_first * (1.0 - 1e-9), "{counts:?}: {ours} against {largest_first}");
            assert!(ours >= best * 0.965, "{counts:?}: {ours} against {best}");
            vectors += 1;
            gained += usize::from(ours > largest_first * 1.02);
        }
    }
    assert_eq!(vectors, 450);
    assert!(gained > 10, "only {gained} vectors gain");
}

proptest! {
    #[test]
    fn the_order_is_a_permutation_that_depends_on_the_choice_alone(
        counts in proptest::collection::vec(0usize..9, 1..12), below in 1usize..5, turn in 0usize..12,
    ) {
        let mut c = h100(12);
        c.network.tiers = vec![
            Tier::regular("leaf", below, 1.0),
            Tier::regular("spine", below * 2, 2.0),
        ];
        let mut parts: Vec<_> = counts.iter().enumerate().filter(|(_, n)| **n > 0)
            .map(|(h, n)| (HostId(h as u32), GpuMask::first(*n))).collect();
        let order = host_order(&c, &parts);
        let mut back = order.clone();
        back.sort();
        prop_assert_eq!(&back, &parts);
        if !parts.is_empty() {
            let turn = turn % parts.len();
            parts.rotate_left(turn);
        }
        prop_assert_eq!(host_order(&c, &parts), order.clone());
        // Every switch's hosts are one run.
        for n in [below, below * 2] {
            let mut switches: Vec<usize> = order.iter().map(|p| p.0.index() / n).collect();
            switches.dedup();
            let runs = switches.len();
            switches.sort_unstable();
            switches.dedup();
            prop_assert_eq!(switches.len(), runs);
        }
    }
}
