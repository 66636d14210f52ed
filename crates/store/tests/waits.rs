//! What counts as a wait for the lock of a database. The counts are of the whole process, so this is the only test of its process.

use std::path::Path;
use std::time::{Duration, Instant};
use store::State;
use topology::{Cluster, catalog};

#[allow(dead_code)] // the other tests use the rest
#[path = "common/postgres.rs"]
mod postgres;
#[allow(dead_code)]
#[path = "common/relay.rs"]
mod relay;

use relay::{Relay, Swallows};

fn cluster() -> Cluster {
    catalog::cluster("h100").unwrap()
}

#[test]
fn a_held_lock_is_waited_for_and_a_database_that_does_not_answer_is_not() {
    let Some(server) = postgres::Server::start() else { return postgres::skip("tests_of_the_store_on_postgresql") };
    let relay = Relay::to(&server.socket());
    let url = relay.url(&server.database());
    let mut state = State::init(Path::new(&url), &cluster(), 0.0).unwrap();
    let n0 = state.cluster().parse_gpus(["n0"]).unwrap();
    state.drain(&n0, "", 1.0).unwrap();

    let (before, start) = (store::lock_waits(), Instant::now());
    relay.swallow(Swallows::Requests);
    state.undrain(&n0).unwrap_err();
    relay.swallow(Swallows::Nothing);
    let (after, silent) = (store::lock_waits(), start.elapsed());
    assert!(after.1 - before.1 < silent / 2, "{:?} of {silent:?} count as waits for a lock", after.1 - before.1);

    // Another session has the lock, until the writer has waited for it for some time.
    let name = url.split(['/', '?']).nth(3).unwrap();
    let here = "locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    let until = |granted: bool| {
        let sql = format!("SELECT count(*) FROM pg_locks WHERE granted = {granted} AND {here}");
        while server.psql(name, &sql) == "0" {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let before = store::lock_waits();
    let waited = std::thread::scope(|s| {
        let sql = "BEGIN; SELECT pg_advisory_xact_lock(1818982259, 1); \
                   DO $$BEGIN WHILE NOT EXISTS (SELECT 1 FROM pg_class WHERE relname = 'enough') LOOP PERFORM pg_sleep(0.02); END LOOP; END$$";
        s.spawn(|| server.psql(name, sql));
        until(true);
        s.spawn(|| while state.undrain(&n0).is_err() {});
        until(false);
        let start = Instant::now();
        std::thread::sleep(Duration::from_millis(300));
        let waited = start.elapsed();
        server.psql(name, "CREATE TABLE public.enough ()");
        waited
    });
    let after = store::lock_waits();
    assert!(after.0 > before.0 && after.1 - before.1 >= waited, "{waited:?}: {before:?} {after:?}");
}
