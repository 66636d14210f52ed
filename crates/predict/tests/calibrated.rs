//! Stated deviations: on simulated fleets, two thirds of new readings lie within one of them and 95 % within two.

#[path = "common/fleet.rs"]
mod fleet;

use diagnose::Component;
use fleet::{Fleet, SIZE};
use predict::{FitOptions, Kind, fit};
use topology::HostId;

/// Shares of new readings within one and two stated deviations.
fn shares(fleet: &mut Fleet, readings: usize) -> (f64, f64) {
    let rows = fleet.readings(0..readings);
    let model = fit(&fleet.cluster, &rows, &FitOptions::of(Kind::Gp)).expect("fits").0;
    let test = fleet.readings(readings..readings + 300);
    let z: Vec<f64> = test
        .iter()
        .map(|m| {
            let p = model.predict_allocation(SIZE, &m.allocation);
            (m.busbw.gb_per_s() - p.busbw_gb_per_s).abs() / p.std_gb_per_s
        })
        .collect();
    let within = |sds: f64| z.iter().filter(|z| **z < sds).count() as f64 / z.len() as f64;
    (within(1.0), within(2.0))
}

#[test]
fn stated_deviations_hold_on_simulated_fleets() {
    for (hosts, leaves, slow, readings) in [
        (16, false, false, 60),
        (16, false, true, 100),
        (64, true, false, 100),
        (64, false, false, 250),
        (128, true, true, 200),
    ] {
        let seeds = 4;
        let (mut one, mut two) = (0.0, 0.0);
        for seed in 0..seeds {
            let mut fleet = Fleet::new(hosts, leaves, 40 + seed);
            fleet.job_hosts_max = 16;
            if slow {
                fleet.defects = vec![(Component::Host(HostId(3)), 0.8, 0)];
            }
            let (a, b) = shares(&mut fleet, readings);
            (one, two) = (one + a / seeds as f64, two + b / seeds as f64);
        }
        eprintln!(
            "{hosts} hosts, leaves {leaves}, slow {slow}, {readings} readings: {one:.2} within one, {two:.2} within two"
        );
        assert!(
            (one - 0.68).abs() < 0.08 && (two - 0.95).abs() < 0.08,
            "{hosts} {leaves} {slow} {readings}: {one} {two}"
        );
    }
}
