//! Properties that hold for every communicator.

use nccl_model::{COLLECTIVES, Communicator, HostCache, time_us};
use proptest::prelude::*;
use topology::nccl::{Algorithm, Protocol, Version};
use topology::{Collective, GpuMask, HostId, catalog};

fn releases() -> impl Strategy<Value = Version> {
    (21u16..=32).prop_map(|minor| Version { major: 2, minor, patch: None })
}

/// One to six hosts of one recorded type, any GPUs, any order.
fn orders() -> impl Strategy<Value = (&'static str, Vec<(HostId, GpuMask)>)> {
    let host = prop::sample::select(vec!["hgx-h100", "hgx-b200", "dgx-a100"]);
    let places = Just((0..6u32).collect::<Vec<_>>()).prop_shuffle();
    let some = (host, places, prop::collection::vec(1u32..256, 1..6)).prop_map(|(host, places, masks)| {
        let order: Vec<_> = places.into_iter().zip(masks).map(|(h, m)| (HostId(h), GpuMask(m))).collect();
        (host, order)
    });
    some.prop_filter("two ranks", |(_, order)| order.len() > 1 || order[0].1.count() > 1)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_ring_and_every_tree_holds_every_rank_once((host, order) in orders(), version in releases()) {
        let cluster = catalog::cluster(&format!("6x{host}")).unwrap();
        let c = Communicator::build(version, &cluster, &order).unwrap();
        let ranks = c.agreed().ranks as usize;
        prop_assert_eq!(ranks, order.iter().map(|o| o.1.count()).sum::<usize>());
        for channel in 0..c.agreed().channels as usize {
            let mut ring = c.ring(channel);
            prop_assert_eq!(ring[0], 0);
            ring.sort_unstable();
            prop_assert_eq!(ring, (0..ranks as u32).collect::<Vec<_>>());
            let tree = c.tree(channel);
            prop_assert_eq!(tree.iter().filter(|t| t.0.is_none()).count(), 1, "one root");
            let children: usize = tree.iter().map(|t| t.1.len()).sum();
            prop_assert_eq!(children, ranks - 1);
            for (rank, (up, down)) in tree.iter().enumerate() {
                prop_assert!(down.iter().all(|d| tree[*d as usize].0 == Some(rank as u32)));
                prop_assert!(up.is_none_or(|u| tree[u as usize].1.contains(&(rank as u32))));
            }
        }
    }

    #[test]
    fn auto_takes_the_least_time_of_the_available_choices((host, order) in orders(), version in releases(), k in 10u32..33) {
        let cluster = catalog::cluster(&format!("6x{host}")).unwrap();
        let c = Communicator::build(version, &cluster, &order).unwrap();
        for collective in COLLECTIVES {
            let choice = c.choice(collective, 1 << k).unwrap();
            for &a in Algorithm::ALL {
                for &p in Protocol::ALL {
                    let time = time_us(c.agreed(), c.table(), collective, (a, p), 1 << k);
                    prop_assert!(time.is_none_or(|t| t >= choice.time_us));
                }
            }
            prop_assert!(c.table().cell(collective, choice.algorithm, choice.protocol).bandwidth_gb_per_s > 0.0);
            let most = c.agreed().channels.max(c.agreed().nvls_channels);
            prop_assert!((1..=most).contains(&choice.channels) && (96..=640).contains(&choice.threads));
        }
    }

    #[test]
    fn bandwidth_is_positive_below_the_nics_and_rises_with_size((host, order) in orders(), version in releases()) {
        prop_assume!(order.len() > 1);
        let cluster = catalog::cluster(&format!("6x{host}")).unwrap();
        let mut cache = HostCache::default();
        let c = Communicator::build_with(&mut cache, version, &cluster, &order).unwrap();
        // A cached search gives the same result as a new one.
        let again = Communicator::build_with(&mut cache, version, &cluster, &order).unwrap();
        let fresh = Communicator::build(version, &cluster, &order).unwrap();
        let large = c.busbw(Collective::AllReduce, 4 << 30).unwrap();
        prop_assert_eq!(&large, &again.busbw(Collective::AllReduce, 4 << 30).unwrap());
        prop_assert_eq!(&large, &fresh.busbw(Collective::AllReduce, 4 << 30).unwrap());
        let ranks = c.agreed().ranks as f64;
        let bus = 2.0 * (ranks - 1.0) / ranks;
        let thinnest = order
            .iter()
            .map(|&(h, m)| {
                let of = cluster.type_of(h);
                (0..of.nics.len()).filter(|n| of.nics_touched(m) >> n & 1 == 1).map(|n| of.nics[n].line_rate.gb_per_s()).sum::<f64>()
            })
            .fold(f64::INFINITY, f64::min);
        let got = large.busbw.gb_per_s();
        prop_assert!(got > 0.0 && got <= thinnest * bus.max(1.0) + 1e-6, "{} of {}", got, thinnest);
        prop_assert!(c.busbw(Collective::AllReduce, 1 << 20).unwrap().busbw.gb_per_s() <= got * 1.5);
    }
}

#[test]
fn an_invalid_communicator_is_refused_with_a_reason() {
    let cluster = catalog::cluster("2xhgx-h100").unwrap();
    let build = |v: &str, order: &[(HostId, GpuMask)]| {
        Communicator::build(v.parse().unwrap(), &cluster, order).map(|_| ()).unwrap_err().to_string()
    };
    let one = (HostId(0), GpuMask(3));
    assert!(build("2.28", &[(HostId(0), GpuMask(1))]).contains("at least two"));
    assert!(build("2.20", &[one]).contains("2.21 to 2.32"));
    assert!(build("3.1", &[one]).contains("not modelled"));
    assert!(build("2.28", &[]).contains("0 hosts"));
    assert!(build("2.28", &[one, one]).contains("listed twice"));
    assert!(build("2.28", &[(HostId(7), GpuMask(3))]).contains("not in the cluster"));
    for mask in [0, 3 << 8] {
        assert!(build("2.28", &[(HostId(0), GpuMask(mask))]).contains("has GPUs"));
    }
}

#[test]
fn times_are_single_precision() {
    // At this size double precision gives a different last digit, which decides ties.
    let cluster = catalog::cluster("2xhgx-h100").unwrap();
    let order = [(HostId(0), GpuMask(255)), (HostId(1), GpuMask(255))];
    let c = Communicator::build("2.28".parse().unwrap(), &cluster, &order).unwrap();
    let cell = c.table().cell(Collective::AllReduce, Algorithm::Ring, Protocol::Ll128);
    let size = 12_345_678u64;
    let time = time_us(c.agreed(), c.table(), Collective::AllReduce, (Algorithm::Ring, Protocol::Ll128), size).unwrap();
    let single = cell.latency_us + size as f32 / (1000.0f32 * cell.bandwidth_gb_per_s);
    assert_eq!(time.to_bits(), single.to_bits());
    let double = f64::from(cell.latency_us) + size as f64 / (1000.0 * f64::from(cell.bandwidth_gb_per_s));
    assert_ne!(f64::from(time), double);
}
