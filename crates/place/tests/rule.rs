//! An answer is never worse than the simple rule without evidence: one host if one fits, else the lowest switch, the fewest hosts, an even
//! split, the same GPU indices.

mod common;

use common::{SIZE, model};
use place::{Constraints, Job, Refusal, Registry, Request, Search, SearchResult, Slack, Split, answer_with};
use predict::{BandwidthModel, Candidates, FitOptions, HostShare, HostShareTable, Kind, Model, Prediction, fit};
use proptest::prelude::*;
use topology::{Allocation, Bytes, Cluster, GpuMask, Host, HostId, Tier, catalog};

/// `hosts` healthy H100 hosts; with `below` hosts on every leaf, leaves of 2:1 and spines of 4 leaves.
fn cluster(hosts: usize, below: usize) -> Cluster {
    let mut c = catalog::cluster("h100").unwrap();
    c.hosts = (0..hosts).map(|i| Host { name: format!("n{i}"), ..Host::default() }).collect();
    if below > 0 {
        let tier = |name: &str, below| Tier::regular(name, below, 2.0);
        c.network.tiers = vec![tier("leaf", below), tier("spine", 4 * below)];
    }
    c
}

/// Physics without a reading.
fn physics(cluster: &Cluster) -> Model {
    fit(cluster, &[], &FitOptions::of(Kind::Nccl)).unwrap().0
}

fn free(masks: &[u32]) -> Allocation {
    Allocation::new(masks.iter().enumerate().map(|(h, m)| (HostId(h as u32), GpuMask(*m))))
}

/// A model of a function, with one relative deviation.
struct Told<F> {
    table: HostShareTable,
    of: F,
    sd: f64,
    hosts_measured_max: Option<usize>,
}

impl<F: Fn(&[HostShare]) -> f64 + Send + Sync> BandwidthModel for Told<F> {
    fn kind(&self) -> &'static str {
        "told"
    }
    fn share_table(&self, _: Bytes) -> &HostShareTable {
        &self.table
    }
    fn means(&self, _: Bytes, candidates: &Candidates, out: &mut Vec<f64>) {
        out.clear();
        out.extend(candidates.iter().map(&self.of));
    }
    fn predict(&self, _: Bytes, parts: &[HostShare]) -> Prediction {
        let v = (self.of)(parts);
        Prediction { busbw_gb_per_s: v, std_gb_per_s: v * self.sd }
    }
    fn mean(&self, _: Bytes, parts: &[HostShare]) -> f64 {
        (self.of)(parts)
    }
    fn upper_bound_hosts_or_more(&self, _: f64, _: f64, _: usize, _: usize) -> Option<f64> {
        None
    }
    fn limit(&self, _: Bytes, _: &[HostShare]) -> predict::bound::Limit {
        predict::bound::Limit::Latency
    }
    fn repeat_noise(&self) -> f64 {
        0.01
    }
    fn hosts_measured_max(&self) -> Option<usize> {
        self.hosts_measured_max
    }
}

fn told<F: Fn(&[HostShare]) -> f64 + Send + Sync>(cluster: &Cluster, sd: f64, of: F) -> Told<F> {
    Told { table: physics(cluster).share_table(SIZE).clone(), of, sd, hosts_measured_max: None }
}

const OURS: [&str; 4] = ["auto", "exact", "threshold", "oracle"];

fn ask(name: &str, cluster: &Cluster, model: &dyn BandwidthModel, r: &Request) -> Result<place::Answer, Refusal> {
    answer_with(&*Registry::shipped().search(name, 0).unwrap(), cluster, model, r)
}

/// More hosts are predicted a little faster, the more the better: a model that was never there.
fn likes_many_hosts(gain: f64) -> impl Fn(&[HostShare]) -> f64 + Send + Sync {
    move |p: &[HostShare]| if p.len() < 2 { 100.0 } else { 90.0 + gain * p.len() as f64 }
}

#[test]
fn a_gain_within_one_deviation_does_not_leave_the_rule_and_one_beyond_it_does() {
    let cluster = cluster(4, 0);
    let r = Request::new(16, cluster.usable(), SIZE);
    for name in OURS {
        let kept = ask(name, &cluster, &told(&cluster, 0.1, likes_many_hosts(2.0)), &r).unwrap();
        assert_eq!(kept.choice.allocation.split(), "8+8", "{name}");
        assert!(kept.price.keeps_rule && kept.price.gained_gb_per_s == 0.0, "{name}: {:?}", kept.price);
        let left = ask(name, &cluster, &told(&cluster, 0.01, likes_many_hosts(20.0)), &r).unwrap();
        assert_eq!(left.choice.allocation.host_count(), 4, "{name}");
        let rule = left.rule.as_ref().unwrap();
        assert_eq!(rule.allocation.split(), "8+8", "{name}");
        assert!(!left.price.keeps_rule && left.price.gained_gb_per_s > left.price.slack_gb_per_s, "{name}");
        assert_eq!(left.price.gained_gb_per_s, left.choice.score_gb_per_s - rule.score_gb_per_s);
        assert_eq!(
            (left.price.cost.hosts_broken, left.price.rule_cost.as_ref().unwrap().hosts_broken),
            (4, 0),
            "{name}"
        );
    }
}

/// A number near a normal variable that depends on the GPUs alone.
fn luck(p: &[HostShare], seed: u64) -> f64 {
    let mut h = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = |v: u64| {
        h = (h ^ v).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        h ^= h >> 32;
        h
    };
    for p in p {
        next(u64::from(p.host.0) << 32 | u64::from(p.mask.0));
    }
    (0..12).map(|i| (next(i) >> 11) as f64 / (1u64 << 53) as f64).sum::<f64>() - 6.0
}

/// All allocations over hosts are equally fast; predictions err by 40 % of their deviation.
#[test]
fn the_best_of_many_equal_predictions_on_a_large_site_does_not_leave_the_rule() {
    let cluster = cluster(256, 8);
    let r = Request::new(40, free(&[0x7f; 256]), SIZE);
    let (mut left, mut beyond) = (0, 0);
    for seed in 0..20 {
        let model = told(&cluster, 0.03, |p: &[HostShare]| 100.0 * (0.4 * 0.03 * luck(p, seed)).exp());
        let a = ask("auto", &cluster, &model, &r).unwrap();
        left += usize::from(!a.price.keeps_rule);
        let best = std::iter::once(&a.choice).chain(&a.runner_ups).map(|s| s.score_gb_per_s).fold(0.0, f64::max);
        beyond += usize::from(best - a.rule.unwrap().score_gb_per_s > 0.03 * 2f64.sqrt() * 100.0);
    }
    assert!(beyond > 3, "{beyond} of 20 are better by more than one deviation");
    assert_eq!(left, 0, "of 20");
}

#[test]
fn far_beyond_the_hosts_that_were_measured_a_small_deviation_is_not_believed() {
    let cluster = cluster(8, 0);
    let r = Request::new(16, cluster.usable(), SIZE);
    let hosts = |measured: Option<usize>| {
        let model = Told { hosts_measured_max: measured, ..told(&cluster, 0.001, likes_many_hosts(4.0)) };
        ask("threshold", &cluster, &model, &r).unwrap().choice.allocation.host_count()
    };
    assert_eq!((hosts(None), hosts(Some(8)), hosts(Some(1))), (8, 8, 2));
}

#[test]
fn slack_as_a_share_of_bandwidth_decides_in_place_of_deviations() {
    let cluster = cluster(4, 0);
    // 16 GPUs: 94 GB/s on two hosts, 98 on four.
    let model = told(&cluster, 0.001, likes_many_hosts(2.0));
    let split = |slack: &str| {
        let r = Request { slack: slack.parse().unwrap(), ..Request::new(16, cluster.usable(), SIZE) };
        ask("auto", &cluster, &model, &r).unwrap().choice.allocation.host_count()
    };
    assert_eq!((split("5%"), split("3%"), split("0%"), split("1sd")), (2, 4, 4, 4));
    for text in ["5", "-1%", "101%", "nan%", "sd", "1e9sd"] {
        assert!(text.parse::<Slack>().is_err(), "{text}");
    }
    assert_eq!(["5%", "1sd", "2.5%"].map(|t| t.parse::<Slack>().unwrap().to_string()), ["5%", "1sd", "2.5%"]);
}

#[test]
fn within_the_slack_fewer_hosts_win_then_fewer_switches_then_an_even_split() {
    // The rule's choice is slow: its hosts 0 and 1 run at a tenth.
    let cluster = cluster(12, 4);
    let slow = |p: &[HostShare]| p.iter().any(|p| p.host.0 < 2);
    let model = told(&cluster, 0.02, |p: &[HostShare]| {
        let leaves: std::collections::HashSet<u32> = p.iter().map(|p| p.host.0 / 4).collect();
        if slow(p) { 10.0 } else { 100.0 + 0.2 * p.len() as f64 + leaves.len() as f64 }
    });
    let r = Request::new(16, free(&[0xff, 0xff, 0, 0, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0xff, 0xff]), SIZE);
    for name in ["auto", "threshold"] {
        let a = ask(name, &cluster, &model, &r).unwrap();
        assert_eq!(a.choice.allocation.split(), "8+8", "{name}");
        assert_eq!(a.price.cost.switches, [1, 1], "{name}: {:?}", a.choice.allocation);
        assert!(a.choice.allocation.parts()[0].0.0 >= 4);
    }
}

#[test]
fn where_only_physics_is_known_the_rule_decides() {
    let cluster = cluster(16, 4);
    let model = physics(&cluster);
    for k in [2, 5, 8, 12, 16, 20, 24, 32, 64] {
        for name in ["auto", "threshold"] {
            let a = ask(name, &cluster, &model, &Request::new(k, cluster.usable(), SIZE)).unwrap();
            assert!(a.price.keeps_rule, "{name}, {k} GPUs: {} ({:?})", a.choice.allocation.split(), a.price);
            assert_eq!(a.choice.allocation.host_count(), k.div_ceil(8), "{name}, {k} GPUs");
            assert_eq!(a.price.cost.switches[0], k.div_ceil(32), "{name}, {k} GPUs");
        }
    }
}

#[test]
fn the_rule_takes_one_host_then_one_leaf_then_the_fewest_hosts_with_the_same_indices() {
    let cluster = cluster(8, 4);
    let model = physics(&cluster);
    let rule = |k: usize, masks: &[u32]| {
        let a = ask("auto", &cluster, &model, &Request::new(k, free(masks), SIZE)).unwrap();
        a.rule.unwrap().allocation
    };
    // A host that is part-used before a whole one.
    assert_eq!(rule(4, &[0xff, 0x1f, 0xff, 0x0f]), free(&[0, 0, 0, 0x0f]));
    // Three hosts on one leaf before two on two leaves.
    assert_eq!(rule(12, &[0xff, 0, 0, 0, 0x0f, 0x0f, 0x0f, 0x0f]), free(&[0, 0, 0, 0, 0x0f, 0x0f, 0x0f]));
    // Same indices, although the lowest differ.
    assert_eq!(rule(8, &[0x3f, 0xfc]), free(&[0x3c, 0x3c]));
    // An even split over the fewest hosts.
    assert_eq!(rule(12, &[0xff, 0xff, 0xff, 0xff]).split(), "6+6");
    assert_eq!(rule(13, &[0xff, 0xff, 0xff, 0xff]).split(), "7+6");
}

proptest! {
    #[test]
    fn whole_hosts_are_taken_on_the_fewest_leaves_of_their_spines(
        whole in prop::collection::vec(any::<bool>(), 48),
        hosts in 2usize..24,
    ) {
        let below = 4; // four leaves on a spine, three spines
        let cluster = cluster(48, below);
        let model = physics(&cluster);
        let masks: Vec<u32> = whole.iter().map(|w| if *w { 0xff } else { 0 }).collect();
        // Number of leaves that hold the hosts, the fullest leaves first.
        let leaves_of = |spines: &[usize]| {
            let leaves = spines.iter().flat_map(|s| 4 * s..4 * s + 4);
            let mut free: Vec<usize> =
                leaves.map(|l| whole[l * below..(l + 1) * below].iter().filter(|w| **w).count()).collect();
            free.sort_unstable_by(|a, b| b.cmp(a));
            let mut sum = 0;
            let at = free.iter().position(|n| {
                sum += n;
                sum >= hosts
            });
            at.map(|at| at + 1)
        };
        let pairs = [[0, 1], [0, 2], [1, 2]];
        let least_spines = if (0..3).any(|s| leaves_of(&[s]).is_some()) {
            1
        } else if pairs.iter().any(|p| leaves_of(p).is_some()) {
            2
        } else {
            3
        };
        let Ok(a) = ask("auto", &cluster, &model, &Request::new(8 * hosts, free(&masks), SIZE)) else {
            prop_assert_eq!(leaves_of(&[0, 1, 2]), None);
            return Ok(());
        };
        let rule = a.rule.unwrap().allocation;
        let mut spines: Vec<usize> = rule.parts().iter().map(|p| cluster.switch_of(1, p.0)).collect();
        spines.dedup();
        prop_assert_eq!(spines.len(), least_spines, "{:?}", rule);
        let leaves = if spines.len() > 1 { leaves_of(&spines) } else { (0..3).filter_map(|s| leaves_of(&[s])).min() };
        prop_assert_eq!(Some(cluster.switches_spanned(0, &rule)), leaves, "{:?}", rule);
    }
}

#[test]
fn the_rule_stands_among_running_jobs_and_after_probes() {
    let cluster = cluster(4, 0);
    let model = told(&cluster, 0.1, likes_many_hosts(1.0));
    let mut r = Request::new(16, free(&[0xff, 0xff, 0xff, 0x0f]), SIZE);
    r.jobs = vec![Job { id: "a".into(), gpus: free(&[0, 0, 0, 0x30]), demand_gb_per_s: Some(20.0), duty: 1.0 }];
    for contention in Registry::shipped().contentions() {
        r.contention = *contention;
        let a = ask("auto", &cluster, &model, &r).unwrap();
        assert_eq!(a.choice.allocation.split(), "8+8", "{}", contention.name());
    }
    // Probes that differ by less than their deviation leave the rule; a reading far better does not.
    let a = ask("auto", &cluster, &told(&cluster, 0.1, likes_many_hosts(2.0)), &r).unwrap();
    let other = a.runner_ups.iter().find(|s| s.allocation.host_count() > 2).unwrap().allocation.clone();
    let own = a.choice.allocation.clone();
    let model = told(&cluster, 0.1, likes_many_hosts(2.0));
    let after = |v: f64| a.clone().decided(&cluster, &model, &r, &[(own.clone(), 94.0), (other.clone(), v)]).unwrap();
    assert_eq!(after(94.5).choice.allocation, own);
    assert_eq!(after(150.0).choice.allocation, other);
}

#[test]
fn the_rules_choice_is_among_the_candidates_that_can_be_measured() {
    let cluster = cluster(8, 0);
    let r = Request::new(16, cluster.usable(), SIZE);
    for gain in [0.0, 2.0, 40.0] {
        let a = ask("auto", &cluster, &told(&cluster, 0.05, likes_many_hosts(gain)), &r).unwrap();
        let rule = &a.rule.as_ref().unwrap().allocation;
        assert!(std::iter::once(&a.choice).chain(&a.runner_ups).any(|s| s.allocation == *rule), "{gain}");
        assert!(a.runner_ups.len() <= place::RUNNER_UPS);
    }
}

/// A search that finds one bad allocation.
struct Blind;

impl Search for Blind {
    fn name(&self) -> &'static str {
        "blind"
    }
    fn keeps_to_rule(&self) -> bool {
        true
    }
    fn search(&self, o: &place::Objective, _: usize) -> Result<SearchResult, Refusal> {
        let a = place::baselines::random(
            &o.request.free,
            o.request.gpus,
            &mut <rand_chacha::ChaCha8Rng as rand::SeedableRng>::seed_from_u64(1),
        );
        Ok(place::search::one(o, a.unwrap(), 0))
    }
}

#[test]
fn the_rule_stands_in_for_a_search_that_found_something_worse() {
    let cluster = cluster(8, 4);
    let a = answer_with(&Blind, &cluster, &physics(&cluster), &Request::new(16, cluster.usable(), SIZE)).unwrap();
    assert_eq!(a.choice.allocation.split(), "8+8");
}

fn equal(k: usize, masks: &[u32]) -> String {
    let cluster = cluster(masks.len(), 0);
    let mut r = Request::new(k, free(masks), SIZE);
    r.constraints.split = Split::EqualIfFeasible;
    ask("auto", &cluster, &physics(&cluster), &r).unwrap().choice.allocation.split()
}

#[test]
fn equal_counts_are_kept_where_they_do_not_take_many_more_hosts() {
    assert_eq!(equal(12, &[0xff; 4]), "6+6");
    assert_eq!(equal(9, &[0xff; 4]), "5+4", "three hosts with three NICs each are far slower than two");
    assert_eq!(equal(15, &[0xff; 4]), "8+7");
    assert_eq!(equal(20, &[0xff; 4]), "5+5+5+5");
    assert_eq!(equal(8, &[0xff; 4]), "8");
    assert_eq!(equal(13, &[0xff; 16]), "7+6", "13 hosts of one GPU are no use");
    assert_eq!(equal(8, &[0x3f, 0x03]), "6+2", "no equal split is free");
}

#[test]
fn equal_counts_that_are_given_up_are_named_with_what_they_would_get() {
    let cluster = cluster(4, 0);
    let mut r = Request::new(9, free(&[0xff; 4]), SIZE);
    r.constraints.split = Split::EqualIfFeasible;
    let a = ask("auto", &cluster, &physics(&cluster), &r).unwrap();
    let equal = a.equal_counts.unwrap();
    assert_eq!(equal.allocation.split(), "3+3+3");
    assert!(a.choice.score_gb_per_s > 1.25 * equal.score_gb_per_s);
}

/// 55 GPUs on hosts with seven free GPUs: 11 hosts of five, or eight hosts.
#[test]
fn equal_counts_are_given_up_for_clearly_fewer_hosts_that_are_as_fast_and_otherwise_the_other_counts_are_named() {
    let cluster = cluster(13, 0);
    let with = |k: usize, hosts: usize| {
        let mut r = Request::new(k, free(&vec![0x7f; hosts]), SIZE);
        r.constraints.split = Split::EqualIfFeasible;
        ask("auto", &cluster, &physics(&cluster), &r).unwrap()
    };
    let a = with(55, 13);
    assert_eq!((a.choice.allocation.host_count(), a.choice.allocation.split().as_str()), (8, "7x7+6"));
    assert_eq!(a.equal_counts.unwrap().allocation.split(), "11x5");
    let a = with(20, 13);
    assert_eq!(a.choice.allocation.split(), "5+5+5+5", "four hosts instead of three");
    let uneven = a.uneven_counts.unwrap();
    assert!(uneven.allocation.host_count() == 3 && uneven.score_gb_per_s > a.choice.score_gb_per_s);
}

#[test]
fn fewer_hosts_over_more_switches_beat_many_half_taken_hosts_below_one() {
    // Leaf 0 has 16 hosts with two free GPUs each; leaves 1 and 2 together have what five hosts give.
    let cluster = cluster(48, 16);
    let mut masks = vec![0u32; 48];
    masks[..16].fill(0x03);
    masks[16..19].fill(0xff);
    (masks[32], masks[33]) = (0x03, 0x3f);
    for split in [Split::EqualIfFeasible, Split::Any] {
        let mut r = Request::new(32, free(&masks), SIZE);
        r.constraints.split = split;
        let a = ask("auto", &cluster, &physics(&cluster), &r).unwrap();
        assert!(a.choice.allocation.host_count() <= 6, "{split:?}: {}", a.choice.allocation.split());
    }
}

#[test]
fn a_count_per_host_is_kept_or_refused_with_the_nearest_that_fits() {
    let cluster = cluster(4, 0);
    let model = physics(&cluster);
    let with = |k: usize, each: usize, masks: &[u32]| {
        let mut r = Request::new(k, free(masks), SIZE);
        r.constraints.split = Split::PerHost(each);
        ask("auto", &cluster, &model, &r)
    };
    assert_eq!(with(8, 2, &[0xff; 4]).unwrap().choice.allocation.split(), "2+2+2+2");
    let e = with(10, 4, &[0xff; 4]).unwrap_err();
    assert_eq!((e.code(), e.is_malformed()), ("per_host_does_not_divide", true));
    assert!(e.to_string().contains("8 or 12 GPUs, or 1, 2, 5, 10 per host"), "{e}");
    let e = with(16, 8, &[0xff, 0x0f, 0x0f, 0x0f]).unwrap_err();
    assert_eq!((e.code(), e.is_malformed()), ("per_host_does_not_fit", false));
    assert!(e.to_string().contains("4 per host (4 hosts) fits"), "{e}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn no_answer_is_predicted_below_the_rule_by_more_than_the_slack_or_leaves_it_for_less(
        masks in proptest::collection::vec(0u32..256, 8), k in 2usize..24, seed in 0u64..4, tiers: bool, gp: bool,
        share in 0usize..3, name in 0usize..3, equal: bool,
    ) {
        let cluster = cluster(8, if tiers { 2 } else { 0 });
        let free = free(&masks);
        prop_assume!(free.gpu_count() >= k);
        let model = model(&cluster, if gp { Kind::Gp } else { Kind::Bound }, seed);
        let slack = [Slack::default(), Slack::Share(0.05), Slack::NONE][share];
        let split = if equal { Split::EqualIfFeasible } else { Split::Any };
        let constraints = Constraints { split, ..Constraints::default() };
        let r = Request { slack, constraints, ..Request::new(k, free.clone(), SIZE) };
        let Ok(a) = ask(["auto", "threshold", "exact"][name], &cluster, &model, &r) else { return Ok(()) };
        prop_assert_eq!(a.choice.allocation.gpu_count(), k);
        prop_assert!(free.contains_all(&a.choice.allocation));
        let Some(rule) = &a.rule else { return Err(TestCaseError::fail("no rule")) };
        let (cost, rule_cost) = (&a.price.cost, a.price.rule_cost.as_ref().unwrap());
        let gained = a.choice.score_gb_per_s - rule.score_gb_per_s;
        if cost != rule_cost && !slack.is_none() {
            // Some candidate promises more than the slack over the rule; the choice is that or one within the slack of it.
            let best = std::iter::once(&a.choice).chain(&a.runner_ups).map(|s| s.score_gb_per_s).fold(0.0, f64::max);
            prop_assert!(best > rule.score_gb_per_s, "{gained} of {best}");
        } else if cost == rule_cost {
            prop_assert!(a.price.keeps_rule);
        }
        if equal && a.choice.allocation.host_count() > 1 {
            let counts = a.choice.allocation.counts();
            let rule_counts = rule.allocation.counts();
            let alike = |c: &[usize]| c.windows(2).all(|w| w[0] == w[1]);
            let given_up = a.equal_counts.is_some();
            prop_assert!(alike(&counts) || !alike(&rule_counts) || given_up, "{counts:?}, rule {rule_counts:?}");
        }
    }
}
