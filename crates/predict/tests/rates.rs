//! Rates that readings teach act inside the minimum: NICs that the file has wrong, rails, switches, hosts and NICs that are slow.
//!
//! The readings are of the physics with other rates, random factors per host and split, noise and outliers; `linkwise-lab sites` judges the
//! same on truths of another form.

use diagnose::{examine, suspicions};
use predict::{BandwidthModel, FitOptions, FitReport, Kind, Model, ModelKinds, Part, SlowPart, fit};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use store::{Measurement, Source};
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, HostId, Tier, catalog};

const SIZE: Bytes = Bytes(256 << 20);
const OP: Collective = Collective::AllReduce;

fn hosts(n: usize) -> Cluster {
    catalog::cluster(&format!("{n}xhgx-h100")).unwrap()
}

fn leaves(n: usize, of: usize) -> Cluster {
    let mut c = hosts(n);
    c.network.tiers = vec![Tier::regular("leaf", of, 1.0)];
    c
}

/// What GPUs really get: the physics of `real`, times `kept` where a job spans leaves.
struct Site {
    real: Cluster,
    kept: f64,
    rng: ChaCha8Rng,
}

impl Site {
    fn new(real: Cluster, seed: u64) -> Site {
        Site { real, kept: 1.0, rng: ChaCha8Rng::seed_from_u64(seed) }
    }

    fn busbw(&self, a: &Allocation) -> f64 {
        let spans = !self.real.tiers().is_empty() && self.real.gpus_below(0, a).len() > 1;
        let physics = fabric::Fabric::new(&self.real).estimate(a, OP, SIZE).busbw.gb_per_s();
        physics * if spans { self.kept } else { 1.0 }
    }

    /// GPUs of 2 to 8 hosts: random ones, half of the time the same on every host.
    fn job(&mut self) -> Allocation {
        let n = self.real.hosts.len();
        let count = 2 + self.rng.random_range(0..7.min(n - 1));
        let mut order: Vec<u32> = (0..n as u32).collect();
        let same = GpuMask(self.rng.random_range(1..256));
        let alike: bool = self.rng.random();
        let mut parts = Vec::new();
        for i in 0..count {
            order.swap(i, self.rng.random_range(i..n));
            let own = GpuMask(self.rng.random_range(1..256));
            parts.push((HostId(order[i]), if alike { same } else { own }));
        }
        Allocation::new(parts)
    }

    /// The GPUs of a job on neighbouring hosts.
    fn job_on_neighbours(&mut self) -> Allocation {
        let a = self.job();
        let first = self.rng.random_range(0..=self.real.hosts.len() - a.host_count()) as u32;
        Allocation::new((first..).zip(a.parts()).map(|(h, p)| (HostId(h), p.1)))
    }

    fn readings(&mut self, n: usize, noise: f64) -> Vec<Measurement> {
        self.readings_of(n, noise, |s, _| s.job())
    }

    fn readings_of(&mut self, n: usize, noise: f64, job: impl Fn(&mut Site, usize) -> Allocation) -> Vec<Measurement> {
        (0..n)
            .map(|i| {
                let a = job(self, i);
                let e = (0..12).map(|_| self.rng.random::<f64>()).sum::<f64>() - 6.0;
                let v = self.busbw(&a) * (noise * e).exp();
                let mut m = Measurement::new(a, OP, SIZE, Bandwidth::from_gb_per_s(v), Source::Simulated);
                m.taken_at_unix_s = Some(1.75e9 + 60.0 * i as f64);
                m
            })
            .collect()
    }

    /// Mean relative error over jobs that the model has not seen.
    fn error(&mut self, model: &Model) -> f64 {
        let off = |s: &mut Site| {
            let a = s.job();
            (model.predict_allocation(SIZE, &a).busbw_gb_per_s / s.busbw(&a)).ln().abs()
        };
        (0..200).map(|_| off(self)).sum::<f64>() / 200.0
    }
}

fn fitted(told: &Cluster, rows: &[Measurement]) -> (Model, FitReport) {
    fit(told, rows, &FitOptions::of(Kind::Gp)).unwrap()
}

fn slow_down(c: &mut Cluster, host: usize, nics: impl Fn(usize) -> bool, factor: f64) {
    let n = c.types[c.hosts[host].host_type].nics.len();
    c.hosts[host].nic_health.resize(n, 1.0);
    (0..n).filter(|i| nics(*i)).for_each(|i| c.hosts[host].nic_health[i] *= factor);
}

fn only(found: &[SlowPart]) -> (&Part, f64) {
    assert_eq!(found.len(), 1, "{found:?}");
    (&found[0].part, found[0].factor)
}

#[test]
fn nics_that_the_file_has_wrong_by_four_times_cost_little_after_a_hundred_readings() {
    for times in [0.25, 4.0] {
        let real = hosts(8);
        let mut told = real.clone();
        for nic in &mut told.types[0].nics {
            nic.line_rate = Bandwidth::from_gb_per_s(nic.line_rate.gb_per_s() * times);
        }
        let mut site = Site::new(real.clone(), 1);
        let rows = site.readings(100, 0.02);
        let (model, _) = fitted(&told, &rows);
        let (right, _) = fitted(&real, &rows);
        let factor = model.rates().nics["hgx-h100"];
        assert!((factor * times).ln().abs() < 0.25, "NICs at {times}: {factor}");
        let (wrong, right) = (site.error(&model), site.error(&right));
        assert!(wrong < right + 0.02 && wrong < 0.06, "NICs at {times}: {wrong} off, with the right file {right}");
    }
}

#[test]
fn switches_that_the_file_of_a_large_site_lacks_are_found_where_flows_between_them_lose() {
    let (real, told) = (leaves(48, 8), hosts(48));
    let on = |from: u32| Allocation::new((from..from + 6).map(|h| (HostId(h), GpuMask(0xff))));
    for kept in [0.7, 1.0] {
        let mut site = Site { kept, ..Site::new(real.clone(), 5) };
        let rows =
            site.readings_of(100, 0.02, |s, i| if i.is_multiple_of(2) { s.job() } else { s.job_on_neighbours() });
        let (model, _) = fitted(&told, &rows);
        let of = |m: &Model, from| m.predict_allocation(SIZE, &on(from)).busbw_gb_per_s;
        let ratio = of(&model, 5) / of(&model, 8);
        if kept == 1.0 {
            assert!(model.rates().switches.is_empty() && model.with_found_switches().is_none(), "{:?}", model.rates());
            assert!((ratio - 1.0).abs() < 0.05, "{ratio}");
            continue;
        }
        let found = model.with_found_switches().expect("switches");
        assert_eq!((found.switch_count(0), found.hosts_below(0, 1).len()), (6, 8));
        assert!((0.6..0.85).contains(&ratio), "{ratio}");
        let again = Model::load(&model.save().unwrap(), &ModelKinds::shipped()).unwrap();
        assert_eq!((again.rates(), of(&again, 5)), (model.rates(), of(&model, 5)));
        // The first host leaves: switches are known by the names of their hosts.
        let mut fewer = told.clone();
        fewer.hosts.remove(0);
        let there = model.clone().on(&fewer);
        assert!((of(&there, 7) / of(&model, 8)).ln().abs() < 1e-9);
        assert!(of(&there, 4) < 0.85 * of(&there, 7));
    }
}

#[test]
fn a_model_file_from_before_switches_were_found_loads_and_has_none() {
    let told = hosts(4);
    let mut site = Site::new(told.clone(), 7);
    let (model, _) = fitted(&told, &site.readings(20, 0.02));
    let of = |m: &Model| m.predict_allocation(SIZE, &Allocation::new((0..3).map(|h| (HostId(h), GpuMask(0xff)))));
    let mut saved: serde_json::Value = serde_json::from_str(&model.save().unwrap()).unwrap();
    let fields = |v: &serde_json::Value| v["rates"].as_object().is_some_and(|r| r.contains_key("switches"));
    assert!(!fields(&saved), "a model without found switches has the form of older files: {}", saved["rates"]);
    let old = Model::load(&saved.to_string(), &ModelKinds::shipped()).unwrap();
    assert!(old.with_found_switches().is_none());
    assert_eq!(of(&old), of(&model));
    saved["rates"] = serde_json::json!({"tiers": {"leaf": {"uplinks": 1.0, "kept": 0.7}}});
    let of_tiers = Model::load(&saved.to_string(), &ModelKinds::shipped()).unwrap();
    assert!(of_tiers.rates().switches.is_empty() && of_tiers.rates().tiers["leaf"].kept == 0.7);
    saved["rates"]["switches"] = serde_json::json!([[]]);
    let e = Model::load(&saved.to_string(), &ModelKinds::shipped()).unwrap_err();
    assert!(e.contains("switch"), "{e}");
}

#[test]
fn a_slow_rail_is_one_part_and_jobs_beside_it_are_predicted_at_full_rate() {
    let told = hosts(16);
    let mut real = told.clone();
    (0..16).for_each(|h| slow_down(&mut real, h, |n| n == 3, 0.5));
    let mut site = Site::new(real, 2);
    let rows = site.readings(100, 0.03);
    let (model, report) = fitted(&told, &rows);
    let (part, factor) = only(&report.slow_parts);
    assert_eq!(*part, Part::Rail { nic: 3 });
    assert!((factor - 0.5).abs() < 0.06, "{factor}");
    let on = |mask: u32| Allocation::new((0..4).map(|h| (HostId(h), GpuMask(mask))));
    for a in [on(0b1111_0000), on(0b0000_1111), on(0xff)] {
        let (p, truth) = (model.predict_allocation(SIZE, &a).busbw_gb_per_s, site.busbw(&a));
        assert!((p / truth).ln().abs() < 0.08, "{a:?}: {p} for {truth}");
    }
    let diagnosis = examine(&told, &rows, Some(OP), fabric::Constants::default()).unwrap().0;
    assert_eq!(diagnosis.shared.iter().map(|s| &s.part).collect::<Vec<_>>(), [part], "the diagnosis names the rail");
    assert_eq!(diagnosis.defects, [], "and no host for it");
}

/// Leaves of 8 among 32 hosts, of which `hosts` have NICs `nics` at `left`: the fit names `part` alone, and so does the diagnosis.
fn is_named(hosts: std::ops::Range<usize>, nics: impl Fn(usize) -> bool + Copy, left: f64, part: Part, seed: u64) {
    let told = leaves(32, 8);
    let mut real = told.clone();
    hosts.for_each(|h| slow_down(&mut real, h, nics, left));
    let rows = Site::new(real, seed).readings(120, 0.03);
    let (_, report) = fitted(&told, &rows);
    let (found, factor) = only(&report.slow_parts);
    assert_eq!(*found, part);
    assert!((factor - left).abs() < 0.08, "{factor} for {left}");
    let diagnosis = examine(&told, &rows, Some(OP), fabric::Constants::default()).unwrap().0;
    assert_eq!((diagnosis.shared.len(), diagnosis.defects.len()), (1, 0), "{diagnosis:?}");
}

#[test]
fn the_hosts_below_a_slow_switch_and_one_rail_of_one_leaf_are_one_part_each() {
    let (tier, switch) = ("leaf".to_owned(), "leaf 1".to_owned());
    is_named(8..16, |_| true, 0.6, Part::Switch { tier: tier.clone(), switch }, 3);
    is_named(16..24, |n| n == 5, 0.4, Part::SwitchRail { tier, switch: "leaf 2".into(), nic: 5 }, 8);
}

#[test]
fn flows_over_leaves_that_lose_a_third_are_learned_as_a_rate_of_the_tier() {
    let told = leaves(32, 8);
    let mut site = Site { kept: 0.65, ..Site::new(told.clone(), 4) };
    let rows = site.readings(100, 0.02);
    let (model, _) = fitted(&told, &rows);
    // Nearly all jobs of the sample span leaves: only the jobs below one leaf tell what spanning costs.
    let within = Allocation::new((0..4).map(|h| (HostId(h), GpuMask(0xff))));
    let across = Allocation::new([0, 8, 16, 24].map(|h| (HostId(h), GpuMask(0xff))));
    let [a, b] = [within, across].map(|x| model.predict_allocation(SIZE, &x).busbw_gb_per_s);
    assert!(b < 0.85 * a, "{a} within a leaf, {b} across; {:?}", model.rates());
}

/// Readings over leaves that keep different shares, 8 hosts behind each.
#[test]
fn leaves_that_keep_different_shares_are_told_apart_and_equal_ones_stay_nearly_equal() {
    let cluster = leaves(32, 8);
    let on = |hosts: [u32; 4]| Allocation::new(hosts.map(|h| (HostId(h), GpuMask(0xff))));
    for factors in [vec![1.0, 0.75, 1.0, 1.2], vec![1.0; 4]] {
        let crossings = fabric::Crossings::new(vec![0.7]).map(|c| c.with_switches(vec![factors.clone()]));
        let physics = fabric::Fabric::new(&cluster).with_crossings(crossings.map(std::sync::Arc::new));
        let of = |a: &Allocation| physics.estimate(a, OP, SIZE).busbw.gb_per_s();
        let mut site = Site::new(cluster.clone(), 3);
        let jobs = |s: &mut Site, i: usize| if i.is_multiple_of(2) { s.job() } else { s.job_on_neighbours() };
        let mut rows = site.readings_of(100, 0.02, jobs);
        for m in &mut rows {
            let noise = m.busbw.gb_per_s() / site.busbw(&m.allocation);
            m.busbw = Bandwidth::from_gb_per_s(of(&m.allocation) * noise);
        }
        let (model, _) = fitted(&cluster, &rows);
        let ratio = |of: &dyn Fn(&Allocation) -> f64| of(&on([0, 1, 8, 9])) / of(&on([16, 17, 24, 25]));
        let (found, real) = (ratio(&|a| model.predict_allocation(SIZE, a).busbw_gb_per_s), ratio(&of));
        let known = &model.rates().kept_of_switches;
        eprintln!("{factors:?}: {found} for {real}, {known:?}");
        if factors[1] < 1.0 {
            // With one share for all leaves, the effects of hosts leave a quarter of the difference.
            assert!((found / real).ln().abs() < 0.15 * real.ln().abs(), "{found} predicted, {real} true; {known:?}");
            assert!(known["leaf"]["leaf 3"] > known["leaf"]["leaf 1"] + 0.05, "{known:?}");
        } else {
            let off = known.values().flat_map(|t| t.values()).map(|f| f.ln().abs()).fold(0.0, f64::max);
            assert!(off < 0.05, "{known:?}");
        }
    }
}

#[test]
fn five_slow_nics_of_32_hosts_are_found_in_a_hundred_readings() {
    let (mut right, mut wrong) = (0, 0);
    for seed in 0..6u64 {
        let told = hosts(32);
        let mut real = told.clone();
        let mut rng = ChaCha8Rng::seed_from_u64(900 + seed);
        let mut slow = Vec::new();
        for i in 0..5 {
            let (h, n) = (6 * i + rng.random_range(0..6usize), rng.random_range(0..8usize));
            slow_down(&mut real, h, |x| x == n, rng.random_range(0.2..0.55));
            slow.push((told.hosts[h].name.clone(), n as u8));
        }
        let rows = Site::new(real, seed).readings(100, 0.03);
        for s in fitted(&told, &rows).1.slow_parts {
            let known = match &s.part {
                Part::Nic { host, nic } => slow.contains(&(host.clone(), *nic)),
                Part::Host { host } => slow.iter().any(|x| x.0 == *host),
                _ => false,
            };
            if known { right += 1 } else { wrong += 1 }
        }
    }
    assert!(right >= 22 && wrong <= 1, "{right} of 30 found, {wrong} healthy ones named");
}

#[test]
fn hosts_that_are_always_read_together_are_not_told_apart() {
    let told = hosts(16);
    let mut real = told.clone();
    slow_down(&mut real, 5, |n| n == 2, 0.3);
    let mut site = Site::new(real, 9);
    let mut rows = site.readings(100, 0.02);
    // Wherever host 5 is read, host 6 is, with the same GPUs, and the other way round.
    for m in &mut rows {
        let mask = m.allocation.mask(HostId(5)).union(m.allocation.mask(HostId(6)));
        if mask.is_empty() {
            continue;
        }
        let others = m.allocation.parts().iter().filter(|p| p.0 != HostId(5) && p.0 != HostId(6)).copied();
        m.allocation = Allocation::new(others.chain([(HostId(5), mask), (HostId(6), mask)]));
        m.busbw = Bandwidth::from_gb_per_s(site.busbw(&m.allocation));
    }
    assert_eq!(fitted(&told, &rows).1.slow_parts, [], "the NIC of either host may be the slow one");
}

#[test]
fn healthy_sites_have_no_slow_part_whatever_the_noise_and_few_bad_readings() {
    for seed in 0..12u64 {
        let told = if seed % 2 == 0 { hosts(16) } else { leaves(32, 8) };
        let mut site = Site::new(told.clone(), 50 + seed);
        let mut rows = site.readings(100, [0.02, 0.05, 0.1][seed as usize % 3]);
        for i in [7, 40, 73] {
            let bad = rows[i].busbw.gb_per_s() * [0.1, 0.4, 3.0][i % 3];
            rows[i].busbw = Bandwidth::from_gb_per_s(bad);
        }
        let (model, report) = fitted(&told, &rows);
        assert_eq!(report.slow_parts, [], "seed {seed}");
        assert!(model.rates().nics.is_empty(), "seed {seed}: {:?}", model.rates());
    }
}

#[test]
fn slow_parts_outlive_files_and_changes_of_the_cluster_by_their_names() {
    let told = hosts(16);
    let mut real = told.clone();
    slow_down(&mut real, 5, |n| n == 2, 0.3);
    let rows = Site::new(real, 6).readings(100, 0.02);
    let (model, report) = fitted(&told, &rows);
    let name = told.hosts[5].name.clone();
    assert_eq!(only(&report.slow_parts).0, &Part::Nic { host: name.clone(), nic: 2 });

    let again = Model::load(&model.save().unwrap(), &ModelKinds::shipped()).unwrap();
    assert_eq!(again.rates(), model.rates());
    let pair = |h: u32| Allocation::new([(HostId(0), GpuMask(0xff)), (HostId(h), GpuMask(0xff))]);
    let of = |m: &Model, h: u32| m.predict_allocation(SIZE, &pair(h)).busbw_gb_per_s;
    assert_eq!(of(&again, 5), of(&model, 5));

    let mut fewer = told.clone();
    fewer.hosts.remove(2);
    let there = model.clone().on(&fewer);
    assert!((of(&there, 4) / of(&model, 5)).ln().abs() < 1e-9, "the host moved one place, with its NIC");
    fewer.hosts.remove(4);
    let gone = model.clone().on(&fewer);
    assert!(of(&gone, 4) > 1.5 * of(&there, 4), "the slow NIC left with its host");

    // The doctor still names it: the model of healthy hosts is what it compares with.
    let named = suspicions(&model, &rows).defects;
    assert_eq!(named.len(), 1, "{named:?}");
    let best = named[0].candidates[0].component;
    assert_eq!((best.host(), best.kind()), (HostId(5), "nic"));
    assert!(model.without_slow_parts().rates().slow.is_empty());
}

#[test]
fn a_file_with_absurd_rates_is_refused() {
    let told = hosts(4);
    let rows = Site::new(told.clone(), 7).readings(30, 0.02);
    let text = fitted(&told, &rows).0.save().unwrap();
    let with = |rates: &str| text.replacen("\"share\":", &format!("\"rates\":{rates},\"share\":"), 1);
    let part = r#"{"slow":[{"part":"rail","nic":200,"factor":0.5,"readings":3}]}"#;
    assert!(
        Model::load(&with(part), &ModelKinds::shipped()).is_ok(),
        "a rail that no host has is no part of the cluster"
    );
    for bad in [
        r#"{"nics":{"hgx-h100":1e9}}"#,
        r#"{"nics":{"hgx-h100":-1.0}}"#,
        r#"{"tiers":{"leaf":{"uplinks":0.0,"kept":1.0}}}"#,
        r#"{"tiers":{"leaf":{"uplinks":1.0,"kept":0.0}}}"#,
        r#"{"slow":[{"part":"rail","nic":3,"factor":1.5,"readings":3}]}"#,
    ] {
        let e = Model::load(&with(bad), &ModelKinds::shipped()).unwrap_err();
        assert!(e.contains("rate"), "{bad}: {e}");
    }
}

#[test]
fn the_share_table_of_a_slow_nic_tells_searches_which_gpus_avoid_it() {
    let told = hosts(16);
    let mut real = told.clone();
    slow_down(&mut real, 5, |n| n == 2, 0.3);
    let rows = Site::new(real, 6).readings(100, 0.02);
    let model = fitted(&told, &rows).0;
    let table = model.share_table(SIZE);
    let ty = &told.types[0];
    let using: Vec<usize> = (0..8).filter(|g| ty.nearest_nics(*g) >> 2 & 1 == 1).collect();
    let (slow, fast) = (GpuMask::from_indices(using.iter().copied()), GpuMask(0xff));
    let rate = |m: GpuMask| table.part(HostId(5), m).nic_gb_per_s / f64::from(m.count() as u32);
    assert!(rate(slow) < 0.5 * rate(fast.minus(slow)), "{} {}", rate(slow), rate(fast.minus(slow)));
}

#[test]
fn a_suspect_that_the_model_has_learned_costs_a_job_nothing_more() {
    use diagnose::{Component, Effects};
    let told = hosts(16);
    let mut real = told.clone();
    slow_down(&mut real, 5, |n| n == 2, 0.3);
    let rows = Site::new(real, 6).readings(100, 0.02);
    let model = fitted(&told, &rows).0;
    let a = Allocation::new([(HostId(4), GpuMask(0xff)), (HostId(5), GpuMask(0xff))]);
    let effect = |m: &Model, c| Effects::new(&told, m).of(c, 0.3, &a, SIZE);
    assert_eq!(effect(&model, Component::Nic(HostId(5), 2)), 0.0);
    assert!(effect(&model, Component::Nic(HostId(4), 2)) < -0.5, "another NIC is another suspect");
    assert!(effect(&model.without_slow_parts(), Component::Nic(HostId(5), 2)) < -0.5);
}
