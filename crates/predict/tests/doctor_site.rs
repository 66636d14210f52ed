//! The diagnosis of a site from all of its readings: nothing is accused on healthy hardware, and planted defects are found among many hosts.

#[path = "common/fleet.rs"]
mod fleet;

use fleet::Fleet;
use predict::doctor::{Component, Diagnosis, examine};
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
        let alike = |x: &predict::doctor::Defect| x.candidates.iter().any(|c| c.component == nic);
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
