//! Fabrics where every rail has a switch of its own: hosts should use the same rails.

use place::{Registry, Request, Split, answer_with};
use predict::{BandwidthModel, FitOptions, Kind, Model, fit};
use topology::{Allocation, Bytes, Cluster, GpuMask, HostId, Rails, Tier, catalog};

const SIZE: Bytes = Bytes::mib(256);

fn cluster(rails: Rails) -> Cluster {
    let mut c = catalog::cluster("8xhgx-h100").unwrap();
    c.network.tiers = vec![Tier::regular("unit", 8, 16.0)];
    c.network.rails = Some(rails);
    c
}

fn model(c: &Cluster) -> Model {
    fit(c, &[], &FitOptions::of(Kind::Nccl)).unwrap().0
}

fn on(parts: &[(u32, u32)]) -> Allocation {
    Allocation::new(parts.iter().map(|&(h, m)| (HostId(h), GpuMask(m))))
}

#[test]
fn a_model_tells_common_rails_from_others() {
    for rails in [Rails::Joined, Rails::Separate] {
        let c = cluster(rails);
        let m = model(&c);
        let of = |parts: &[(u32, u32)]| m.predict_allocation(SIZE, &on(parts)).busbw_gb_per_s;
        let same = of(&[(0, 0x0f), (1, 0x0f), (2, 0x0f)]);
        let other = of(&[(0, 0x0f), (1, 0xf0), (2, 0x0f)]);
        let one_common = of(&[(0, 0x0f), (1, 0xf1), (2, 0x0f)]);
        assert!(other < 0.8 * same, "{rails:?} {}: {same} on the same rails, {other} on others", m.kind());
        assert!(one_common <= same, "{rails:?} {}: {one_common}", m.kind());
        if rails == Rails::Separate {
            assert!(other < 0.05 * same && one_common < 0.5 * same, "{}: {other} {one_common} of {same}", m.kind());
        }
    }
}

#[test]
fn choices_use_the_same_rails_where_they_are_free() {
    for rails in [Rails::Joined, Rails::Separate] {
        let c = cluster(rails);
        // Every host has six free GPUs; four of them are free on all hosts.
        let free = on(&[(0, 0x3f), (1, 0xf3), (2, 0x3f), (3, 0xf3), (4, 0xf3), (5, 0x3f)]);
        let m = model(&c);
        for name in ["auto", "threshold"] {
            let mut r = Request::new(16, free.clone(), SIZE);
            r.constraints.split = Split::EqualIfFeasible;
            let a = answer_with(&*Registry::shipped().search(name, 0).unwrap(), &c, &m, &r).unwrap().choice.allocation;
            if a.host_count() > 1 {
                let nics: Vec<u32> = a.parts().iter().map(|p| c.type_of(p.0).nics_touched(p.1)).collect();
                assert!(nics.windows(2).all(|n| n[0] == n[1]), "{rails:?} {name}: {a:?}");
            }
        }
    }
}

/// Half of the hosts have their first four GPUs free, half their last four, some all of them or two in the middle: a search that
/// takes hosts first and rails afterwards mixes them.
#[test]
fn hosts_are_chosen_by_the_rails_that_are_free_on_them() {
    let c = cluster(Rails::Separate);
    let m = model(&c);
    let kinds = [0x0f, 0xf0, 0xff, 0x3c, 0x03, 0xc0];
    let (mut worse, mut asked) = (Vec::new(), 0);
    for seed in 0u32..60 {
        let mask = |h: u32| kinds[(seed.wrapping_mul(2_654_435_761).rotate_left(5 * h) % 6) as usize];
        let free = on(&(0..8).map(|h| (h, mask(h))).collect::<Vec<_>>());
        for k in [8, 12, 16] {
            let ask = |name: &str| {
                let r = Request::new(k, free.clone(), SIZE);
                answer_with(&*Registry::shipped().search(name, 0).unwrap(), &c, &m, &r).ok().map(|a| a.choice)
            };
            let (Some(exact), Some(fast)) = (ask("exact"), ask("threshold")) else { continue };
            asked += 1;
            if fast.score_gb_per_s < 0.95 * exact.score_gb_per_s {
                worse.push((seed, k, fast.score_gb_per_s, exact.score_gb_per_s));
            }
        }
    }
    assert!(asked > 100 && worse.is_empty(), "{worse:?} of {asked}");
}
