//! Limits on switches, required and preferred levels, spreading.

use place::{Refusal, Registry, Request, Split, answer_with};
use predict::{FitOptions, Kind, Model, fit};
use proptest::prelude::*;
use std::collections::BTreeMap;
use topology::{Allocation, Bytes, Cluster, GpuMask, Host, HostId, Tier, catalog};

const SIZE: Bytes = Bytes::mib(16);

/// Eight hosts, two on every leaf, two leaves on every spine.
fn cluster() -> Cluster {
    let mut c = catalog::cluster("h100").unwrap();
    c.hosts = (0..8).map(|i| Host { name: format!("n{i}"), ..Host::default() }).collect();
    c.network.tiers = vec![Tier::regular("leaf", 2, 2.0), Tier::regular("spine", 4, 1.0)];
    c
}

fn model(cluster: &Cluster) -> Model {
    fit(cluster, &[], &FitOptions::of(Kind::Nccl)).unwrap().0
}

fn free(masks: &[u32]) -> Allocation {
    Allocation::new(masks.iter().enumerate().map(|(h, m)| (HostId(h as u32), GpuMask(*m))))
}

fn ask(search: &str, k: usize, masks: &[u32], change: impl Fn(&mut Request)) -> Result<place::Answer, Refusal> {
    let cluster = cluster();
    let mut r = Request::new(k, free(masks), SIZE);
    change(&mut r);
    answer_with(&*Registry::shipped().search(search, 0).unwrap(), &cluster, &model(&cluster), &r)
}

/// GPUs below every switch of a tier.
fn below(tier: usize, a: &Allocation) -> Vec<usize> {
    let cluster = cluster();
    let mut by_switch: BTreeMap<usize, usize> = BTreeMap::new();
    for &(h, m) in a.parts() {
        *by_switch.entry(cluster.switch_of(tier, h)).or_default() += m.count();
    }
    by_switch.into_values().collect()
}

#[test]
fn a_required_level_holds_all_gpus_or_the_refusal_names_what_would() {
    let all = [0xff; 8];
    let leaf = |r: &mut Request| r.constraints.require_level = Some("leaf".into());
    assert_eq!(below(0, &ask("auto", 16, &all, leaf).unwrap().choice.allocation), [16]);
    let e = ask("auto", 17, &all, leaf).unwrap_err();
    assert_eq!((e.code(), e.is_malformed()), ("switches_too_small", false));
    assert!(
        e.to_string().contains("the fullest has 16 usable GPUs; 2 leaf switches hold them; or ask for 16 GPUs"),
        "{e}"
    );
    let host = |r: &mut Request| r.constraints.require_level = Some("HOST".into());
    assert_eq!(ask("auto", 8, &all, host).unwrap().choice.allocation.host_count(), 1);
    let e = ask("auto", 9, &all, host).unwrap_err();
    assert_eq!(e.code(), "host_too_small");
    assert!(e.to_string().contains("the freest has 8 usable GPUs") && e.to_string().contains("`leaf`"), "{e}");
    let e = ask("auto", 9, &all, |r| r.constraints.require_level = Some("leef".into())).unwrap_err();
    assert_eq!((e.code(), e.is_malformed()), ("unknown_level", true));
    assert!(e.to_string().contains("host, leaf, spine; did you mean `leaf`?"), "{e}");
}

#[test]
fn a_preferred_level_gives_way_to_the_next_higher_one() {
    let prefer = |k: usize, level: &'static str, masks: &[u32]| {
        ask("auto", k, masks, |r| r.constraints.prefer_level = Some(level.into())).unwrap().choice.allocation
    };
    // Two leaves of one spine, although two whole hosts of two spines are free.
    let masks = [0x0f, 0x0f, 0x0f, 0x0f, 0xff, 0, 0xff, 0];
    assert_eq!(below(1, &prefer(12, "leaf", &masks)).len(), 1);
    assert_eq!(below(0, &prefer(8, "leaf", &masks)).len(), 1);
    assert_eq!(prefer(8, "host", &masks).host_count(), 1);
    assert_eq!(below(1, &prefer(32, "host", &masks)).iter().sum::<usize>(), 32, "nothing lower holds it");
}

#[test]
fn at_most_so_many_switches_are_spanned_by_every_search() {
    let masks = [0x0f, 0x0f, 0xff, 0, 0x3f, 0x3f, 0xff, 0x0f];
    for search in ["auto", "exact", "threshold", "oracle", "topo", "slurm-bestfit", "slurm-topo"] {
        for (k, max) in [(12, 1), (20, 2), (8, 1), (28, 3)] {
            let limit = |r: &mut Request| r.constraints.switches_max = Some(max);
            match ask(search, k, &masks, limit) {
                Ok(a) => {
                    for s in std::iter::once(&a.choice).chain(&a.runner_ups).chain(&a.rule).chain(&a.packed) {
                        assert!(below(0, &s.allocation).len() <= max, "{search}, {k}: {:?}", s.allocation);
                    }
                }
                Err(e) => panic!("{search}, {k}: {e}"),
            }
        }
    }
    let spine =
        |r: &mut Request| (r.constraints.switches_max, r.constraints.switch_tier) = (Some(1), Some("spine".into()));
    assert_eq!(below(1, &ask("auto", 20, &masks, spine).unwrap().choice.allocation).len(), 1);
    let e = ask("auto", 30, &masks, |r| r.constraints.switches_max = Some(2)).unwrap_err();
    assert_eq!(e.code(), "switches_too_small");
    assert!(e.to_string().contains("3 leaf switches hold them"), "{e}");
    assert_eq!(
        ask("auto", 8, &masks, |r| r.constraints.switches_max = Some(0)).unwrap_err().code(),
        "no_switches_allowed"
    );
}

#[test]
fn spreading_gives_every_host_or_switch_as_few_gpus_as_possible() {
    let all = [0xff; 8];
    let spread = |k: usize, level: &'static str, masks: &[u32]| {
        ask("auto", k, masks, |r| r.constraints.spread = Some(level.into())).unwrap().choice.allocation
    };
    assert_eq!(spread(8, "host", &all).split(), "8x1");
    assert_eq!(spread(16, "host", &all).split(), "8x2");
    assert_eq!(below(0, &spread(16, "leaf", &all)), [4; 4]);
    assert_eq!(spread(16, "leaf", &all).host_count(), 4, "on the fewest hosts of every leaf");
    assert_eq!(below(1, &spread(24, "spine", &all)), [12, 12]);
    let equal = ask("auto", 12, &all, |r| {
        (r.constraints.spread, r.constraints.split) = (Some("leaf".into()), Split::EqualIfFeasible);
    });
    assert_eq!(equal.unwrap().choice.allocation.split(), "3+3+3+3");
    // A leaf with one GPU gives it, the others share the rest.
    assert_eq!(below(0, &spread(10, "leaf", &[1, 0, 0xff, 0, 0xff, 0, 0xff, 0])), [1, 3, 3, 3]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn exact_search_below_one_switch_finds_the_best_of_all_switches(masks in proptest::collection::vec(0u32..256, 8), k in 2usize..14) {
        let cluster = cluster();
        let model = model(&cluster);
        let limit = |r: &mut Request| {
            r.constraints.switches_max = Some(1);
            r.slack = place::Slack::NONE;
        };
        let by_leaf = (0..4).filter_map(|leaf| {
            let mut own = vec![0; 8];
            own[2 * leaf..2 * leaf + 2].copy_from_slice(&masks[2 * leaf..2 * leaf + 2]);
            let r = Request { slack: place::Slack::NONE, ..Request::new(k, free(&own), SIZE) };
            place::exact(&cluster, &model, &r, 1).ok().map(|f| f.best[0].score_gb_per_s)
        });
        let best = by_leaf.reduce(f64::max);
        match ask("exact", k, &masks, limit) {
            Ok(a) => prop_assert!((a.choice.score_gb_per_s - best.unwrap()).abs() < 1e-9 * best.unwrap()),
            Err(e) => {
                prop_assert_eq!(best, None);
                prop_assert!(["switches_too_small", "not_enough_free"].contains(&e.code()), "{}", e);
            }
        }
    }
}

#[test]
fn preferences_and_spreading_give_way_to_limits_that_do_not_fit_them() {
    let all = [0xff; 8];
    let counts = |a: &place::Answer| {
        let mut c = a.choice.allocation.counts();
        c.sort_unstable();
        c
    };
    // Below one leaf of two hosts at most 8 GPUs at 4 per host: the preference is given up, level by level.
    let a = ask("auto", 16, &all, |r| {
        r.constraints.gpus_per_host_max = Some(4);
        r.constraints.prefer_level = Some("leaf".into());
    });
    assert_eq!(below(1, &a.unwrap().choice.allocation), [16]);
    let a = ask("auto", 8, &all, |r| {
        r.constraints.split = Split::PerHost(4);
        r.constraints.prefer_level = Some("host".into());
    });
    assert_eq!(below(0, &a.unwrap().choice.allocation), [8]);
    // Spreading keeps the maximum number of hosts, and pods together.
    let spread = |level: &str, k, change: &dyn Fn(&mut Request)| {
        ask("auto", k, &all, |r| {
            r.constraints.spread = Some(level.into());
            change(r);
        })
        .unwrap_or_else(|e| panic!("{level} {k}: {e}"))
    };
    assert_eq!(counts(&spread("leaf", 8, &|r| r.constraints.hosts_max = Some(2))), [4, 4]);
    let three = spread("host", 17, &|r| {
        r.constraints.hosts_max = Some(3);
        r.constraints.split = Split::Any;
    });
    assert_eq!(counts(&three), [5, 6, 6]);
    for level in ["host", "leaf", "spine"] {
        let a = spread(level, 8, &|r| r.pods = vec![4, 4]);
        assert_eq!(counts(&a), [4, 4], "{level}");
        assert!(below(0, &a.choice.allocation).len() == 2 || level == "host", "{level}: {:?}", a.choice.allocation);
    }
    let a = spread("leaf", 14, &|r| r.pods = vec![8, 4, 2]);
    assert_eq!(below(0, &a.choice.allocation).len(), 3);
}

#[test]
fn hosts_without_nics_are_refused_where_they_would_have_to_communicate() {
    let mut c = cluster();
    let mut without = c.types[0].clone();
    without.name = "without-nics".into();
    without.nics.clear();
    c.types.push(without);
    (4..8).for_each(|h| c.hosts[h].host_type = 1);
    let m = model(&c);
    let ask = |k, masks: &[u32]| place::answer(&c, &m, &Request::new(k, free(masks), SIZE));
    let e = ask(16, &[0, 0, 0, 0, 0xff, 0xff, 0xff, 0]).unwrap_err();
    assert_eq!(e.code(), "no_network");
    assert!(e.to_string().contains("no NIC of n[4,"), "{e}");
    assert!(ask(8, &[0, 0, 0, 0, 0xff, 0, 0, 0]).is_ok(), "one host needs no NIC");
    let a = ask(32, &[0xff; 8]).unwrap();
    assert!(a.choice.allocation.parts().iter().all(|p| p.0.0 < 4), "{:?}", a.choice.allocation);
}

#[test]
fn a_limit_on_switches_still_finds_the_whole_hosts_that_fill_so_many_of_them() {
    let mut c = catalog::cluster("h100").unwrap();
    c.hosts = (0..320).map(|i| Host { name: format!("n{i}"), ..Host::default() }).collect();
    c.network.tiers = vec![Tier::regular("leaf", 8, 2.0)];
    // Four leaves have 20 whole hosts; any four of the 36 others have more free GPUs, but only 16 whole hosts.
    let whole = |leaf: usize| [6, 5, 5, 4].get(leaf / 10).filter(|_| leaf % 10 == 3).copied();
    let mask = |h: usize| match whole(h / 8) {
        Some(n) if h % 8 < n => 0xff,
        Some(_) => 0,
        None if h % 8 < 4 => 0xff,
        None => 0x0f,
    };
    let masks: Vec<u32> = (0..320).map(mask).collect();
    let mut r = Request::new(160, free(&masks), SIZE);
    r.constraints.switches_max = Some(4);
    r.constraints.split = Split::EqualIfFeasible;
    let a = answer_with(&*Registry::shipped().search("auto", 0).unwrap(), &c, &model(&c), &r).unwrap();
    assert_eq!(a.choice.allocation.split(), "20x8");
    assert_eq!(c.switches_spanned(0, &a.choice.allocation), 4);
}

#[test]
fn a_preferred_level_that_costs_more_than_half_of_the_bandwidth_gives_way_and_a_cheap_one_tells_its_price() {
    let mut c = catalog::cluster("h100").unwrap();
    c.hosts = (0..64).map(|i| Host { name: format!("n{i}"), ..Host::default() }).collect();
    c.network.tiers = vec![Tier::regular("leaf", 32, 1.0)];
    let ask = |masks: &[u32], k: usize| {
        let mut r = Request::new(k, free(masks), Bytes::gib(1));
        r.constraints.prefer_level = Some("leaf".into());
        r.slack = place::Slack::NONE;
        answer_with(&*Registry::shipped().search("auto", 0).unwrap(), &c, &model(&c), &r).unwrap()
    };
    // Two whole hosts and thirty with two free GPUs below one leaf, four whole hosts below the other.
    let masks = |thin: u32, whole: usize| -> Vec<u32> {
        (0..64)
            .map(|h| {
                if h % 32 < [2, whole][h / 32] {
                    0xff
                } else if h < 32 {
                    thin
                } else {
                    0
                }
            })
            .collect()
    };
    let leaves = |s: &place::Scored| c.switches_spanned(0, &s.allocation);
    let a = ask(&masks(0x03, 4), 48);
    let below = a.given_way.expect("the level gives way");
    assert_eq!((leaves(&a.choice), leaves(&below)), (2, 1));
    assert!(a.choice.score_gb_per_s > 2.0 * below.score_gb_per_s, "{:?}", a.choice.prediction);
    // With six free GPUs each, the level costs less than half.
    let a = ask(&masks(0x3f, 2), 32);
    let beyond = a.beyond_level.expect("a price");
    assert_eq!((leaves(&a.choice), leaves(&beyond), a.given_way), (1, 2, None));
    assert!(beyond.score_gb_per_s > a.choice.score_gb_per_s);
}
