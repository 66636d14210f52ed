//! The diagnosis at the size of a site: the work for one more reading, the window, and the monitor against a diagnosis from scratch.

#[path = "../../predict/tests/common/fleet.rs"]
mod fleet;

use diagnose::{Component, Diagnosis, Monitor, REPETITIONS_MAX, Work, allocations_per_host_max, suspicions};
use fleet::{Fleet, START_UNIX_S, STEP_S};
use predict::{FitOptions, Kind, Model, fit};
use proptest::prelude::*;
use store::Measurement;
use topology::HostId;

/// A model of a healthy fleet.
fn model_of(fleet: &mut Fleet) -> Model {
    let rows = fleet.readings(0..60);
    fit(&fleet.cluster, &rows, &FitOptions::of(Kind::Gp)).expect("fits").0
}

/// The same defects with the same probabilities, to 2 % and a factor of 1.2 of the odds.
fn same(a: &Diagnosis, b: &Diagnosis) -> Result<(), String> {
    if a.readings != b.readings || a.defects.len() != b.defects.len() {
        let found = |d: &Diagnosis| (d.readings, d.defects.iter().map(|x| x.candidates[0]).collect::<Vec<_>>());
        return Err(format!("{:?} and {:?}", found(a), found(b)));
    }
    let near = |p: f64, q: f64| {
        let odds = |p: f64| (p / (1.0 - p).max(1e-12)).ln();
        (p - q).abs() < 0.02 || (odds(p) - odds(q)).abs() < 1.2f64.ln()
    };
    for (x, y) in a.defects.iter().zip(&b.defects) {
        if !near(x.probability, y.probability) {
            return Err(format!("{} and {}", x.probability, y.probability));
        }
        for c in x.candidates.iter().filter(|c| c.probability > 0.02) {
            let other = y.candidates.iter().find(|o| o.component == c.component);
            if !other.is_some_and(|o| near(c.probability, o.probability)) {
                return Err(format!("{c:?} and {other:?}"));
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn a_monitor_finds_what_a_diagnosis_from_scratch_finds(
        seed in 0u64..1000,
        factor in 0.4f64..0.8,
        nic in 0u8..8,
        removed in proptest::collection::vec(0usize..150, 0..8),
        every in 1usize..40,
    ) {
        let mut fleet = Fleet::new(12, seed % 2 == 0, seed);
        fleet.job_hosts_max = 6;
        let model = model_of(&mut fleet);
        let component = if seed % 3 == 0 { Component::Host(HostId(5)) } else { Component::Nic(HostId(5), nic) };
        fleet.defects = vec![(component, factor, 100)];
        let mut rows = fleet.readings(0..150);
        let mut monitor = Monitor::new(model.clone());
        let mut ids = Vec::new();
        for (i, m) in rows.iter().enumerate() {
            ids.push(monitor.add(m).expect("fits the window"));
            if i % every == 0 {
                monitor.diagnose();
            }
        }
        let mut gone = removed;
        gone.sort_unstable();
        gone.dedup();
        for i in gone.into_iter().rev() {
            prop_assert!(monitor.remove(ids[i]));
            prop_assert!(!monitor.remove(ids[i]));
            rows.remove(i);
        }
        let check = same(&monitor.diagnose(), &suspicions(&model, &rows));
        prop_assert!(check.is_ok(), "{:?}", check);
    }

    #[test]
    fn the_order_within_a_moment_does_not_matter(seed in 0u64..1000, rotate in 1usize..9) {
        let mut fleet = Fleet::new(8, false, seed);
        fleet.job_hosts_max = 4;
        let model = model_of(&mut fleet);
        fleet.defects = vec![(Component::Host(HostId(3)), 0.6, 50)];
        let mut rows = fleet.readings(0..80);
        for (i, m) in rows.iter_mut().enumerate() {
            m.taken_at_unix_s = Some(START_UNIX_S + STEP_S * (i / 10) as f64);
        }
        let mut other = rows.clone();
        other.chunks_mut(10).for_each(|c| c.rotate_left(rotate));
        let check = same(&suspicions(&model, &rows), &suspicions(&model, &other));
        prop_assert!(check.is_ok(), "{:?}", check);
        let mut monitors = [Monitor::new(model.clone()), Monitor::new(model)];
        for m in &rows {
            monitors[0].add(m);
        }
        for m in other.iter().rev() {
            monitors[1].add(m);
        }
        let [a, b] = monitors.each_mut().map(Monitor::diagnose);
        let check = same(&a, &b);
        prop_assert!(check.is_ok(), "{:?}", check);
    }
}

#[test]
fn a_full_window_still_finds_a_defect_of_the_newest_readings() {
    let mut fleet = Fleet::new(1024, false, 3);
    let model = model_of(&mut fleet);
    let slow = Component::Host(HostId(700));
    let n = 24_000;
    fleet.defects = vec![(slow, 0.6, n - 600)];
    let rows = fleet.readings(0..n);
    let d = suspicions(&model, &rows);
    assert!(d.readings < n * 3 / 4, "the window holds all {} readings", d.readings);
    // Few of the newest jobs touch the host, and none without its neighbours: these are candidates, too.
    let found = d.defects.iter().flat_map(|x| &x.candidates).find(|c| c.component == slow);
    assert!(
        found.is_some_and(|c| c.probability > 0.05 && (c.factor - 0.6).abs() < 0.05),
        "{found:?} of {} defects",
        d.defects.len()
    );
}

#[test]
fn a_window_keeps_the_newest_allocations_of_a_host_and_the_newest_readings_of_an_allocation() {
    let mut fleet = Fleet::new(1024, false, 5);
    let model = model_of(&mut fleet);
    let mut monitor = Monitor::new(model);
    let job = fleet.job();
    for i in 0..REPETITIONS_MAX + 5 {
        let m = fleet.measure(job.clone(), i);
        assert!(monitor.add(&m).is_some());
    }
    assert_eq!(monitor.len(), REPETITIONS_MAX);
    let old = fleet.measure(job, 0);
    let old = Measurement { taken_at_unix_s: Some(0.0), ..old };
    assert!(monitor.add(&old).is_none(), "older than the window of its allocation");
    assert_eq!(allocations_per_host_max(1024), 128);
    assert_eq!(allocations_per_host_max(4), 1 << 15);
}

/// The work of `more` readings, each followed by a diagnosis, after `stored` ones.
fn work(stored: usize, more: usize) -> Work {
    let mut fleet = Fleet::new(256, false, 11);
    let model = model_of(&mut fleet);
    fleet.defects = vec![(Component::Host(HostId(40)), 0.6, stored - stored / 50)];
    let mut monitor = Monitor::new(model);
    for m in fleet.readings(0..stored) {
        monitor.add(&m);
    }
    monitor.diagnose();
    let before = monitor.work();
    for m in fleet.readings(stored..stored + more) {
        monitor.add(&m);
        monitor.diagnose();
    }
    let after = monitor.work();
    Work {
        predictions: after.predictions - before.predictions,
        estimates: after.estimates - before.estimates,
        effects: after.effects - before.effects,
    }
}

#[test]
fn the_work_for_one_more_reading_does_not_grow_with_the_readings_stored() {
    let (few, many) = (work(10_000, 10), work(100_000, 10));
    eprintln!("10 readings after 10,000: {few:?}; after 100,000: {many:?}");
    assert!(many.predictions <= 10 && few.predictions <= 10);
    assert!(many.estimates <= 2 * few.estimates + 400, "{few:?} {many:?}");
    assert!(many.effects < 3 * few.effects, "{few:?} {many:?}");
}

#[test]
fn a_monitor_may_live_in_another_thread() {
    fn sent<T: Send>() {}
    sent::<Monitor>();
}

#[test]
fn a_monitor_made_of_stored_readings_is_that_which_got_them_one_by_one() {
    let mut fleet = Fleet::new(64, false, 13);
    let model = model_of(&mut fleet);
    fleet.defects = vec![(Component::Host(HostId(20)), 0.6, 1_500)];
    let rows = fleet.readings(0..2_000);
    let mut one_by_one = Monitor::new(model.clone());
    rows.iter().for_each(|m| _ = one_by_one.add(m));
    let mut at_once = Monitor::of(model, &rows);
    assert_eq!(at_once.len(), one_by_one.len());
    for i in 2_000..2_003 {
        let more = fleet.readings(i..i + 1);
        let [a, b] = [&mut at_once, &mut one_by_one].map(|m| {
            assert!(m.add(&more[0]).is_some());
            m.diagnose()
        });
        same(&a, &b).expect("the same defects");
    }
}
