//! A snapshot that follows the log is the snapshot that reads everything.

use proptest::prelude::*;
use std::cell::RefCell;
use std::path::Path;
use store::State;
use store::state::{NewJob, Snapshot, Suspect};
use topology::{Allocation, Cluster, GpuId, HostId};

mod common;
use common::{Places, on_both};

fn cluster(hosts: usize) -> Cluster {
    let mut c = topology::catalog::cluster("h100").unwrap();
    let one = c.hosts[0].clone();
    c.hosts = (0..hosts).map(|i| topology::cluster::Host { name: format!("n{i}"), ..one.clone() }).collect();
    c
}

fn job(id: &str, gpus: Allocation, lease_s: Option<f64>) -> NewJob {
    let none = (None, None, None);
    let (demand_gb_per_s, predicted_gb_per_s, size) = none;
    NewJob { id: id.into(), gpus, demand_gb_per_s, predicted_gb_per_s, size, lease_s }
}

/// One change of a state.
#[derive(Clone, Debug)]
enum Change {
    Allocate(u8, Vec<u8>, bool),
    Release(u8),
    Renew(u8),
    Drain(u8, bool),
    Suspect(u8),
    RestartLeases(f64),
    Expire(f64),
    Log,
    /// The snapshot that is followed later is read here.
    Look,
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => (0..5u8, prop::collection::vec(0..24u8, 1..5), any::<bool>()).prop_map(|(j, g, l)| Change::Allocate(j, g, l)),
        4 => (0..5u8).prop_map(Change::Release),
        2 => (0..5u8).prop_map(Change::Renew),
        2 => (0..24u8, any::<bool>()).prop_map(|(g, d)| Change::Drain(g, d)),
        1 => (0..3u8).prop_map(Change::Suspect),
        1 => (0..4u8).prop_map(|n| Change::RestartLeases(100.0 * f64::from(n))),
        1 => (0..4u8).prop_map(|n| Change::Expire(100.0 * f64::from(n))),
        1 => Just(Change::Log),
        3 => Just(Change::Look),
    ]
}

fn gpu(n: u8) -> Allocation {
    Allocation::from_gpus([GpuId { host: HostId(u32::from(n / 8)), gpu: n % 8 }])
}

/// Makes a change; what the state refuses is no change.
fn make(state: &mut State, change: &Change, at: f64) {
    let name = |j: &u8| format!("job-{j}");
    match change {
        Change::Allocate(j, gpus, lease) => {
            let gpus = gpus.iter().map(|g| GpuId { host: HostId(u32::from(g / 8)), gpu: g % 8 });
            let new = job(&name(j), Allocation::from_gpus(gpus), lease.then_some(50.0));
            let _ = state.allocate(&new, at);
        }
        Change::Release(j) => _ = state.release(&[name(j)]),
        Change::Renew(j) => _ = state.renew(&name(j), 70.0, &at.into()),
        Change::Drain(g, true) => _ = state.drain(&gpu(*g), "why", at),
        Change::Drain(g, false) => _ = state.undrain(&gpu(*g)),
        Change::Suspect(n) => {
            let (host, component) = (HostId(u32::from(*n)), format!("nic {n}"));
            let one = Suspect { defect: 0, host, component, factor: 0.5, probability: 0.9 };
            let _ = state.set_suspects(&[one]);
        }
        Change::RestartLeases(to) => _ = state.restart_leases(*to),
        Change::Expire(to) => _ = state.expire(&(*to).into()),
        Change::Log => _ = state.log(&at.into(), "observe", "job-1", &gpu(1)),
        Change::Look => {}
    }
}

fn follows(state: &State, before: &Snapshot) {
    let (followed, whole) = (state.snapshot_after(before).unwrap(), state.snapshot().unwrap());
    assert_eq!(followed.version, whole.version);
    if followed.version == before.version {
        // The log may have grown; nothing of the state has changed.
        assert_eq!(Snapshot { event: whole.event, ..followed }, whole);
    } else {
        assert_eq!(followed, whole);
    }
}

fn run(at: &Places, name: &str, changes: &[Change]) {
    let mut state = State::init(&at.at(name), &cluster(3), 0.0).unwrap();
    let mut before = state.snapshot().unwrap();
    for (n, change) in changes.iter().enumerate() {
        // Several jobs come at the same moment.
        make(&mut state, change, (n / 3) as f64);
        if matches!(change, Change::Look) {
            follows(&state, &before);
            before = state.snapshot_after(&before).unwrap();
        }
    }
    follows(&state, &before);
}

on_both! {
fn a_snapshot_from_an_earlier_one_is_the_snapshot(at) {
    let cases = if at.is_postgres() { 8 } else { 48 };
    let number = RefCell::new(0);
    proptest!(ProptestConfig { cases, ..ProptestConfig::default() }, |(changes in prop::collection::vec(change(), 1..40))| {
        *number.borrow_mut() += 1;
        run(at, &format!("s{}.state", number.borrow()), &changes);
    });
}
fn a_state_that_much_happened_to_or_that_is_an_older_copy_is_read_whole(at) {
    let mut state = State::init(&at.at("s.state"), &cluster(3), 0.0).unwrap();
    let before = state.snapshot().unwrap();
    state.allocate(&job("a", gpu(3), None), 1.0).unwrap();
    for n in 0..700 {
        state.log(&1.0.into(), "observe", &format!("r{n}"), &Allocation::default()).unwrap();
    }
    follows(&state, &before);
    // A copy from before: its numbers are lower.
    let later = state.snapshot().unwrap();
    follows(&state, &Snapshot { version: later.version + 7, event: later.event + 7, ..before.clone() });
    // An entry of a kind that this version does not know.
    let now = state.snapshot().unwrap();
    state.log(&1.0.into(), "teleport", "a", &gpu(3)).unwrap();
    state.drain(&gpu(9), "", 2.0).unwrap();
    follows(&state, &now);
}
}

#[test]
fn a_change_without_an_entry_is_noticed_by_the_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.state");
    let mut state = State::init(&path, &cluster(2), 0.0).unwrap();
    state.allocate(&job("a", gpu(3), None), 1.0).unwrap();
    let before = state.snapshot().unwrap();
    let by_hand = |sql: &str| rusqlite::Connection::open(Path::new(&path)).unwrap().execute_batch(sql).unwrap();
    by_hand("PRAGMA foreign_keys = on; DELETE FROM job; UPDATE version SET everything = everything + 1");
    follows(&state, &before);
    assert!(state.snapshot_after(&before).unwrap().jobs.is_empty());
}
