//! The diagnosis of a site from all of its readings: nothing is accused on healthy hardware, and planted defects are found among many hosts.

#[path = "../../predict/tests/common/fleet.rs"]
mod fleet;

use diagnose::{Component, Diagnosis, examine, rail_sweep};
use fleet::Fleet;
use fleet::SIZE;
use topology::HostId;

fn examined(fleet: &mut Fleet, readings: usize) -> Diagnosis {
    let rows = fleet.readings(0..readings);
    examine(&fleet.cluster, &rows, None, fabric::Constants::default()).expect("examined").0
}

fn named(d: &Diagnosis) -> Vec<(Component, f64)> {
    d.defects.iter().map(|x| (x.candidates[0].component, x.candidates[0].factor)).collect()
}

#[test]
fn a_healthy_site_is_left_in_peace() {
    for (hosts, leaves, readings, seeds) in [(64, true, 2000, 0..2), (64, false, 2000, 2..4), (32, false, 800, 4..6)] {
        for seed in seeds {
            let d = examined(&mut Fleet::new(hosts, leaves, seed), readings);
            assert!(d.defects.is_empty(), "{hosts} hosts, leaves {leaves}, seed {seed}: {:?}", named(&d));
        }
    }
}

#[test]
fn a_slow_host_and_a_slow_nic_of_a_site_are_found_and_nothing_else() {
    for (leaves, seed) in [(true, 1), (false, 2)] {
        let mut fleet = Fleet::new(128, leaves, seed);
        let (host, nic) = (Component::Host(HostId(42)), Component::Nic(HostId(64), 3));
        fleet.job_hosts_max = 16;
        fleet.defects = vec![(host, 0.7, 2500), (nic, 0.5, 2500)];
        let d = examined(&mut fleet, 3000);
        let found = named(&d);
        assert_eq!(found.len(), 2, "leaves {leaves}: {found:?}");
        assert!(found.iter().any(|c| c.0 == host && (c.1 - 0.7).abs() < 0.1), "leaves {leaves}: {found:?}");
        // Whole jobs and halves touch NIC 3 with its neighbours alike.
        let alike = |x: &diagnose::Defect| x.candidates.iter().any(|c| c.component == nic);
        assert!(d.defects.iter().any(alike), "leaves {leaves}: {found:?}");
    }
}

#[test]
fn five_slow_nics_of_32_hosts_are_found_from_thirty_readings_of_each_host() {
    let mut fleet = Fleet::new(32, false, 3);
    fleet.job_hosts_max = 4;
    let slow = [2u32, 9, 15, 21, 30];
    fleet.defects = slow.iter().map(|h| (Component::Nic(HostId(*h), 1), 0.4, 0)).collect();
    let d = examined(&mut fleet, 350);
    let hosts: Vec<u32> = named(&d).iter().map(|c| c.0.host().0).collect();
    let found = slow.iter().filter(|h| hosts.contains(h)).count();
    assert!(found >= 4 && hosts.iter().all(|h| slow.contains(h)), "found on hosts {hosts:?} of {slow:?}");
}

/// A sweep of the rails, then the readings that the diagnosis asks for, `readings` at most: the last diagnosis, and the
/// number of readings.
fn asked(fleet: &mut Fleet, readings: usize) -> (Diagnosis, usize) {
    let free = fleet.cluster.usable();
    let sweep = rail_sweep(&fleet.cluster, &free);
    let mut rows: Vec<store::Measurement> = sweep.into_iter().enumerate().map(|(i, a)| fleet.measure(a, i)).collect();
    loop {
        let (d, model) = examine(&fleet.cluster, &rows, None, fabric::Constants::default()).expect("examined");
        let read = rows.iter().map(|m| m.allocation.clone()).collect();
        match d.next_reading(&model, &free, SIZE, &read) {
            Some(a) if rows.len() < readings => {
                let number = rows.len();
                rows.push(fleet.measure(a, number));
            }
            _ => return (d, rows.len()),
        }
    }
}

#[test]
fn the_readings_that_the_diagnosis_asks_for_lead_to_three_slow_nics_and_accuse_no_other() {
    let slow = [Component::Nic(HostId(2), 1), Component::Nic(HostId(7), 4), Component::Nic(HostId(11), 6)];
    let mut found = 0;
    for seed in 0..4 {
        let mut fleet = Fleet::new(16, false, seed);
        fleet.defects = slow.iter().zip([0.4, 0.55, 0.65]).map(|(c, f)| (*c, f, 0)).collect();
        let (d, readings) = asked(&mut fleet, 30);
        let sure = d.defects.iter().map(|x| x.candidates[0]).filter(|c| c.probability >= 0.5);
        let names: Vec<Component> = sure.map(|c| c.component).collect();
        assert!(names.iter().all(|c| slow.contains(c)), "seed {seed}: {names:?} after {readings} readings");
        found += names.len();
    }
    assert!(found >= 10, "{found} of 12");
}

/// Seeds in which a search that is caught in improbable sets, or asks for uninformative readings, misses most NICs.
#[test]
fn five_slow_nics_of_32_hosts_are_found_by_a_sweep_and_22_asked_readings() {
    let mut found = 0;
    for seed in 0..3u32 {
        let mut fleet = Fleet::new(32, false, seed.into());
        let at = |k: u32| Component::Nic(HostId((5 + 11 * seed + 7 * k) % 32), ((3 * seed + 5 * k) % 8) as u8);
        let slow: Vec<Component> = (0..5).map(at).collect();
        fleet.defects = slow.iter().zip([0.35, 0.45, 0.52, 0.6, 0.68]).map(|(c, f)| (*c, f, 0)).collect();
        let (d, readings) = asked(&mut fleet, 30);
        let sure = d.defects.iter().map(|x| x.candidates[0]).filter(|c| c.probability >= 0.5);
        let names: Vec<Component> = sure.map(|c| c.component).collect();
        assert!(names.iter().all(|c| slow.contains(c)), "seed {seed}: {names:?} after {readings} readings");
        found += names.len();
    }
    assert!(found >= 13, "{found} of 15");
}

#[test]
fn a_healthy_site_is_accused_of_nothing_by_a_sweep_and_soon_no_further_reading_is_asked_for() {
    for seed in 0..4 {
        let (d, readings) = asked(&mut Fleet::new(16, false, seed), 30);
        assert!(d.defects.is_empty() && d.shared.is_empty(), "seed {seed}: {:?}", named(&d));
        assert!(readings < 20, "seed {seed}: {readings} readings");
    }
}
