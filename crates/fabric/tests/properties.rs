//! Properties that hold for every allocation.

use fabric::maxmin::{self, MaxMinFlow};
use fabric::{Bottleneck, Constants, Fabric, RunOptions};
use proptest::prelude::*;
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, HostId, Tier, catalog};

fn cluster() -> Cluster {
    catalog::cluster("h100").unwrap()
}

/// At least two GPUs of four hosts with eight GPUs each.
fn masks() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0u32..256, 4).prop_filter("two GPUs", |m| m.iter().map(|x| x.count_ones()).sum::<u32>() >= 2)
}

fn allocation(masks: &[u32]) -> Allocation {
    Allocation::new(masks.iter().enumerate().map(|(h, &m)| (HostId(h as u32), GpuMask(m))))
}

fn size() -> impl Strategy<Value = Bytes> {
    (9u32..34).prop_map(|p| Bytes(1 << p))
}

fn collective() -> impl Strategy<Value = Collective> {
    prop::sample::select(Collective::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn bandwidth_is_finite_above_zero_and_below_what_links_and_nics_carry(m in masks(), s in size(), c in collective()) {
        let cluster = cluster();
        let a = allocation(&m);
        let e = Fabric::new(&cluster).estimate(&a, c, s);
        let b = e.busbw.gb_per_s();
        prop_assert!(b.is_finite() && b > 0.0 && e.time.0 > 0.0, "{e:?}");
        // Bandwidth and time agree.
        let again = c.busbw_gb_per_s(a.gpu_count(), s.as_f64(), e.time.0);
        prop_assert!((again / b - 1.0).abs() < 1e-9);
        // NVLink: 18 links of 25 GB/s; NVLink SHARP and trees move fewer bytes than the bus bandwidth counts, at most twice.
        prop_assert!(b <= 2.0 * 450.0);
        if a.host_count() > 1 && c != Collective::AllToAll {
            // Each host sends and receives over the NICs next to its GPUs, 50 GB/s each; a tree counts twice.
            let fewest = a.parts().iter().map(|p| p.1.count()).min().unwrap() as f64;
            prop_assert!(b <= 2.0 * 50.0 * fewest, "{b} over {fewest} NICs");
        }
    }

    #[test]
    fn equal_hosts_in_another_place_give_the_same_bandwidth(m in masks(), s in size(), c in collective(), by in 1usize..4) {
        // The same counts on other equal hosts: a larger cluster, shifted.
        let mut big = cluster();
        for i in 4..8 {
            let mut h = big.hosts[0].clone();
            h.name = format!("n{i}");
            big.hosts.push(h);
        }
        let f = Fabric::new(&big);
        let a = allocation(&m);
        let shifted = Allocation::new(a.parts().iter().map(|&(h, m)| (HostId(h.0 + by as u32), m)));
        let (x, y) = (f.estimate(&a, c, s), f.estimate(&shifted, c, s));
        prop_assert_eq!(x.busbw, y.busbw);
        prop_assert_eq!(x.algorithm, y.algorithm);
    }

    #[test]
    fn which_equal_gpus_of_a_host_are_taken_does_not_matter(counts in prop::collection::vec(0usize..9, 4), seed in any::<u64>(), s in size()) {
        prop_assume!(counts.iter().sum::<usize>() >= 2);
        let cluster = cluster();
        let f = Fabric::new(&cluster);
        let first: Vec<u32> = counts.iter().map(|&c| GpuMask::first(c).0).collect();
        let turned: Vec<u32> = first.iter().map(|&m| {
            let r = (seed % 8) as u32;
            ((m << r) | (m >> (8 - r))) & 0xff
        }).collect();
        let (x, y) = (f.estimate(&allocation(&first), Collective::AllReduce, s), f.estimate(&allocation(&turned), Collective::AllReduce, s));
        prop_assert_eq!(x.busbw, y.busbw);
    }

    #[test]
    fn degrading_a_nic_never_raises_bandwidth(m in masks(), host in 0usize..4, nic in 0usize..8, healths in (0.0f64..=1.0, 0.0f64..=1.0), s in size(), c in collective()) {
        let with = |health: f64| {
            let mut cluster = cluster();
            cluster.hosts[host].nic_health = vec![1.0; 8];
            cluster.hosts[host].nic_health[nic] = health;
            Fabric::new(&cluster).estimate(&allocation(&m), c, s).busbw.gb_per_s()
        };
        let (low, high) = (healths.0.min(healths.1), healths.0.max(healths.1));
        prop_assert!(with(low) <= with(high) * (1.0 + 1e-12));
    }

    #[test]
    fn faster_nics_never_hurt_the_networks_limit(m in masks(), slow in 10.0f64..400.0, more in 1.0f64..4.0) {
        prop_assume!(m.iter().filter(|x| **x != 0).count() > 1);
        let with = |gbit: f64| {
            let mut cluster = cluster();
            cluster.types[0].nics.iter_mut().for_each(|n| n.line_rate = Bandwidth::from_gbit_per_s(gbit));
            // Force one algorithm: NCCL's choice may change to a slower one.
            let run = RunOptions { algorithm: Some(topology::nccl::Algorithm::Tree), ..RunOptions::default() };
            Fabric::new(&cluster).estimate_run(&allocation(&m), Collective::AllReduce, Bytes::gib(2), run).busbw.gb_per_s()
        };
        prop_assert!(with(slow) <= with(slow * more) * (1.0 + 1e-9));
    }

    #[test]
    fn inside_one_host_a_larger_message_is_never_slower_per_byte(mask in 1u32..256, s in 9u32..33, c in collective()) {
        prop_assume!(mask.count_ones() >= 2);
        let cluster = cluster();
        let f = Fabric::new(&cluster);
        let b = |s: u32| f.intra_busbw(HostId(0), GpuMask(mask), c, Bytes(1 << s)).gb_per_s();
        prop_assert!(b(s) <= b(s + 1) * (1.0 + 1e-12));
    }

    #[test]
    fn oversubscription_never_raises_bandwidth(m in masks(), a in 1.0f64..8.0, b in 1.0f64..8.0, s in size(), c in collective()) {
        let with = |o: f64| {
            let mut cluster = cluster();
            cluster.network.tiers = vec![Tier::regular("leaf", 2, o)];
            Fabric::new(&cluster).estimate(&allocation(&m), c, s).busbw.gb_per_s()
        };
        prop_assert!(with(a.max(b)) <= with(a.min(b)) * (1.0 + 1e-12));
    }

    #[test]
    fn sharing_fills_no_link_over_its_capacity_and_stops_every_flow_for_a_reason(
        caps in prop::collection::vec(0.1f64..100.0, 1..8),
        raw in prop::collection::vec((prop::collection::vec((0usize..8, 0.1f64..2.0), 1..5), 0.1f64..200.0, any::<bool>(), 0.5f64..4.0), 1..10),
    ) {
        let flows: Vec<MaxMinFlow> = raw.into_iter().map(|(links, demand, endless, priority)| MaxMinFlow {
            links: links.into_iter().map(|(l, s)| (l % caps.len(), s)).collect(),
            demand: if endless { f64::INFINITY } else { demand },
            priority,
        }).collect();
        let rates = maxmin::share(&caps, &flows).unwrap();
        let load = |rates: &[f64], l: usize| -> f64 {
            flows.iter().zip(rates).map(|(f, r)| f.links.iter().filter(|x| x.0 == l).map(|x| x.1 * r).sum::<f64>()).sum()
        };
        for (l, c) in caps.iter().enumerate() {
            prop_assert!(load(&rates, l) <= c * (1.0 + 1e-9));
        }
        for (f, r) in flows.iter().zip(&rates) {
            let full = |l: usize| load(&rates, l) >= caps[l] * (1.0 - 1e-9);
            // Max-min: on some full link of the flow, no other flow has a higher rate per priority.
            let bottleneck = f.links.iter().any(|&(l, _)| full(l) && flows.iter().zip(&rates).all(|(g, q)| {
                !g.links.iter().any(|x| x.0 == l) || q / g.priority <= r / f.priority * (1.0 + 1e-9)
            }));
            prop_assert!(*r >= f.demand * (1.0 - 1e-9) || bottleneck, "rate {} of {:?}", r, f);
        }
        // Flows in reverse order have the same rates.
        let back: Vec<MaxMinFlow> = flows.iter().rev().cloned().collect();
        let mut again = maxmin::share(&caps, &back).unwrap();
        again.reverse();
        for (a, b) in rates.iter().zip(&again) {
            prop_assert!((a - b).abs() <= 1e-9 * a.abs().max(1e-9));
        }
        // Doubled capacities and demands give doubled rates.
        let caps2: Vec<f64> = caps.iter().map(|c| c * 2.0).collect();
        let flows2: Vec<MaxMinFlow> = flows.iter().map(|f| MaxMinFlow { demand: f.demand * 2.0, ..f.clone() }).collect();
        for (a, b) in rates.iter().zip(maxmin::share(&caps2, &flows2).unwrap()) {
            prop_assert!((2.0 * a - b).abs() <= 1e-9 * b.abs().max(1e-9));
        }
    }
}

#[test]
fn a_degraded_nic_is_named_as_the_bottleneck() {
    let mut c = cluster();
    c.hosts[2].nic_health = vec![1.0, 1.0, 1.0, 0.25, 1.0, 1.0, 1.0, 1.0];
    let f = Fabric::new(&c);
    let a = allocation(&[0x0f, 0x0f, 0x0f, 0x0f]);
    let e = f.estimate(&a, Collective::AllReduce, Bytes::gib(2));
    assert_eq!(e.bottleneck, Bottleneck::Nic { host: HostId(2), nic: 3 });
    assert_eq!(f.bandwidth_limits(&a, Collective::AllReduce, Bytes::gib(2)).nic, Some((HostId(2), 3)));
}

#[test]
fn fewer_than_two_gpus_move_nothing() {
    let c = cluster();
    let f = Fabric::new(&c);
    for a in [Allocation::default(), allocation(&[0, 0b100, 0, 0])] {
        assert_eq!(f.estimate(&a, Collective::AllReduce, Bytes::mib(16)).busbw, Bandwidth::ZERO);
    }
}

#[test]
fn one_estimate_on_four_hosts_takes_microseconds() {
    let c = cluster();
    let f = Fabric::with_constants(&c, Constants::default());
    let a = allocation(&[0xff, 0x7f, 0x1f, 0x07]);
    let start = std::time::Instant::now();
    let mut sum = 0.0;
    for i in 0..2_000u64 {
        sum += f.estimate(&a, Collective::AllReduce, Bytes((16 << 20) + i)).busbw.gb_per_s();
    }
    let us = start.elapsed().as_secs_f64() / 2_000.0 * 1e6;
    eprintln!("{us:.2} us for one estimate ({sum:.0})");
    assert!(us < 200.0, "{us} us");
}
