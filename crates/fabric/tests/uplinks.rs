//! What the switches above the hosts let through.

use fabric::{Bottleneck, Fabric, SharedLink};
use topology::{
    Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, Host, HostId, NamedSwitch, NamedSwitches, Rails,
    Switches, Tier, catalog,
};

/// HGX H100 hosts: eight NICs of 50 GB/s each.
fn h100(hosts: usize, tiers: Vec<Tier>) -> Cluster {
    let mut c = catalog::cluster("h100").unwrap();
    c.hosts = (0..hosts).map(|i| Host { name: format!("n{i}"), ..Host::default() }).collect();
    c.network.tiers = tiers;
    c.check().unwrap();
    c
}

fn named(name: &str, oversubscription: f64, sets: &[&[u32]]) -> Tier {
    let switch = |(i, hosts): (usize, &&[u32])| NamedSwitch {
        name: format!("{name}-{i}"),
        hosts: hosts.iter().copied().map(HostId).collect(),
    };
    let switches = Switches::Named(NamedSwitches::new(sets.iter().enumerate().map(switch)).unwrap());
    Tier { name: name.into(), switches, oversubscription }
}

fn masks(parts: &[(u32, u32)]) -> Allocation {
    Allocation::new(parts.iter().map(|&(h, m)| (HostId(h), GpuMask(m))))
}

fn busbw(c: &Cluster, a: &Allocation) -> f64 {
    Fabric::new(c).estimate(a, Collective::AllReduce, Bytes::gib(8)).busbw.gb_per_s()
}

#[test]
fn the_oversubscriptions_of_tiers_multiply() {
    let c = h100(8, vec![Tier::regular("leaf", 2, 2.0), Tier::regular("spine", 4, 4.0)]);
    let f = Fabric::new(&c);
    assert_eq!(f.uplink_gb_per_s(0, 0), 2.0 * 400.0 / 2.0);
    assert_eq!(f.uplink_gb_per_s(1, 1), 4.0 * 400.0 / 8.0);
    assert_eq!(f.line_rate_gb_per_s(SharedLink::Uplink(1, 1)), 200.0);
    let e = f.estimate(&masks(&[(0, 255), (1, 255), (4, 255), (5, 255)]), Collective::AllGather, Bytes::gib(8));
    assert_eq!(e.bottleneck, Bottleneck::Network { name: "spine".into() });
    assert!(e.busbw.gb_per_s() <= 200.0);
}

#[test]
fn a_switch_that_is_not_full_has_the_uplinks_of_its_own_hosts() {
    let c = h100(5, vec![Tier::regular("leaf", 4, 4.0)]);
    let f = Fabric::new(&c);
    assert_eq!([f.uplink_gb_per_s(0, 0), f.uplink_gb_per_s(0, 1)], [400.0, 100.0]);
    assert!(busbw(&c, &masks(&[(3, 255), (4, 255)])) < 0.6 * busbw(&c, &masks(&[(0, 255), (3, 255)])));
}

#[test]
fn uplinks_follow_from_the_nics_of_the_hosts_below_and_not_of_the_first() {
    let mut c = h100(4, vec![Tier::regular("leaf", 2, 2.0)]);
    let mut slow = c.types[0].clone();
    slow.name = "slow".into();
    slow.nics.iter_mut().for_each(|n| n.line_rate = Bandwidth::from_gbit_per_s(100.0));
    c.types.push(slow);
    c.hosts[1].host_type = 1;
    c.check().unwrap();
    let f = Fabric::new(&c);
    assert_eq!([f.uplink_gb_per_s(0, 0), f.uplink_gb_per_s(0, 1)], [(400.0 + 100.0) / 2.0, 400.0]);
}

#[test]
fn hosts_below_one_named_switch_do_not_use_its_uplinks() {
    let c = h100(6, vec![named("leaf", 8.0, &[&[0, 3, 4], &[1, 5], &[2]])]);
    let one = h100(6, Vec::new());
    let near = masks(&[(0, 255), (3, 255), (4, 255)]);
    assert_eq!(busbw(&c, &near), busbw(&one, &near));
    let far = masks(&[(0, 255), (1, 255), (2, 255)]);
    assert!(busbw(&c, &far) < 0.3 * busbw(&one, &far));
}

#[test]
fn named_and_regular_switches_of_the_same_hosts_give_the_same_bandwidth() {
    let regular = h100(6, vec![Tier::regular("leaf", 2, 3.0)]);
    let sets = h100(6, vec![named("leaf", 3.0, &[&[0, 1], &[2, 3], &[4, 5]])]);
    for a in [masks(&[(0, 255), (1, 255)]), masks(&[(0, 255), (2, 15)]), masks(&[(1, 3), (3, 255), (5, 7)])] {
        assert_eq!(busbw(&regular, &a), busbw(&sets, &a));
        let loads = |c: &Cluster| Fabric::new(c).loads(&a, Collective::AllToAll, Bytes::mib(16));
        assert_eq!(loads(&regular), loads(&sets));
    }
}

#[test]
fn separate_rails_carry_only_what_all_hosts_have_in_common() {
    let mut c = h100(4, Vec::new());
    let (same, half, none) = (masks(&[(0, 15), (1, 15)]), masks(&[(0, 15), (1, 60)]), masks(&[(0, 15), (1, 240)]));
    let plain = [&same, &half, &none].map(|a| busbw(&c, a));
    c.network.rails = Some(Rails::Separate);
    let apart = [&same, &half, &none].map(|a| busbw(&c, a));
    assert_eq!(apart[0], plain[0]);
    assert!(apart[1] < 0.7 * plain[1] && apart[1] > 0.0, "{apart:?} of {plain:?}");
    assert_eq!(apart[2], 0.0);
}

#[test]
fn joined_rails_cross_the_uplinks_where_hosts_use_different_nics() {
    let mut c = h100(4, vec![Tier::regular("leaf", 2, 8.0)]);
    let (same, other) = (masks(&[(0, 15), (1, 15)]), masks(&[(0, 15), (1, 240)]));
    assert_eq!(busbw(&c, &same), busbw(&c, &other));
    c.network.rails = Some(Rails::Joined);
    assert!(busbw(&c, &other) < 0.6 * busbw(&c, &same));
    let loads = Fabric::new(&c).loads(&other, Collective::AllReduce, Bytes::mib(16));
    assert!(loads.iter().any(|l| l.0 == SharedLink::Uplink(0, 0)), "{loads:?}");
}

#[test]
fn jobs_of_one_host_below_each_leaf_get_no_more_than_an_uplink_carries() {
    let mut c = catalog::cluster("32xhgx-h100").unwrap();
    c.network.tiers = vec![Tier::regular("leaf", 4, 8.0)];
    let f = Fabric::new(&c);
    let up = f.uplink_gb_per_s(0, 0);
    let busbw = |hosts: &[u32], size: Bytes| {
        let a = Allocation::new(hosts.iter().map(|h| (HostId(*h), GpuMask(0xff))));
        f.estimate(&a, Collective::AllReduce, size).busbw.gb_per_s()
    };
    for size in [Bytes::mib(16), Bytes::mib(256), Bytes::gib(4)] {
        // A host sends and receives at least 2 (N - 1) / N buffers; with two hosts on two leaves one buffer, with trees of four hosts up to two.
        let bus = |n: f64| 2.0 * (8.0 * n - 1.0) / (8.0 * n);
        for (hosts, least) in [(&[0, 4][..], 1.0), (&[0, 4, 8], 4.0 / 3.0), (&[0, 4, 8, 12], 1.5)] {
            let most = up * bus(hosts.len() as f64) / least;
            let v = busbw(hosts, size);
            assert!(v <= most * 1.001, "{hosts:?} at {size}: {v} GB/s, at most {most}");
        }
        assert!(busbw(&[0, 4, 8, 12], size) < busbw(&[0, 1, 2, 3], size), "{size}");
    }
}
