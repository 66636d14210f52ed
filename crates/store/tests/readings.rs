//! Readings are found by host, corrected, withdrawn and stored once; stores of earlier schemas are migrated.

use store::{By, Measurement, NewestOfHost, Once, Query, Record, Renames, Source, Store, StoreError, WhatChanged};
use topology::{Bandwidth, Bytes, Cluster, Collective, HostId};

mod common;
use common::on_both;

fn cluster() -> Cluster {
    topology::catalog::cluster("h100").unwrap()
}

fn record(cluster: &Cluster, gpus: &str, gb_per_s: f64) -> Record {
    let busbw = Bandwidth::from_gb_per_s(gb_per_s);
    let gpus = cluster.parse_gpus([gpus]).unwrap();
    let mut m = Measurement::new(gpus, Collective::AllReduce, Bytes::mib(16), busbw, Source::Job);
    m.time = Some(topology::Seconds(0.5));
    m.into()
}

fn by(why: &str) -> By<'_> {
    By { who: "ada", why, at_unix_s: 7.0, own_only: false }
}

fn ids(store: &Store, q: &Query) -> Vec<i64> {
    store.readings(q).unwrap().iter().map(|r| r.id).collect()
}

fn newest_of_each_host(s: &Store, one_host: usize, several_hosts: usize) -> Vec<i64> {
    ids(s, &Query { newest_of_each_host: Some(NewestOfHost { one_host, several_hosts }), ..Query::usable() })
}

#[test]
fn a_store_of_the_first_schema_is_migrated_and_its_readings_are_found_by_host() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("old.db");
    let c = cluster();
    drop(Store::create(&path, &c).unwrap());
    // The tables of the first version, without later ones.
    let old = rusqlite::Connection::open(&path).unwrap();
    old.execute_batch(
        "DROP TABLE reading_change; DROP TABLE reading_of_host; DROP TABLE former_type; DROP TABLE revision; DROP TABLE request_key;
         DROP INDEX measurement_by_job; ALTER TABLE measurement DROP COLUMN withdrawn;
         INSERT INTO measurement (allocation, collective, size_bytes, busbw_gb_per_s, source, provenance, quality)
             VALUES ('n0:0 n0:1 n1:7', 'all_reduce', 16777216, 50.0, 'job', '', 'good'),
                    ('n2:0 n3:0', 'all_reduce', 16777216, 51.0, 'job', '', 'good');
         PRAGMA user_version = 1;",
    )
    .unwrap();
    drop(old);
    let mut s = Store::open(&path, &c).unwrap();
    assert_eq!(ids(&s, &Query::usable()), [1, 2]);
    assert_eq!(ids(&s, &Query::usable().touching([HostId(1)])), [1]);
    s.withdraw(2, &by("x"), None).unwrap();
    assert_eq!(ids(&s, &Query::usable()), [1]);
    s.check().unwrap();
}

#[test]
fn a_store_of_the_second_schema_is_migrated_and_separates_readings_across_several_hosts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("old.db");
    let c = cluster();
    Store::create(&path, &c).unwrap().insert_batch(&["n0:0 n0:1", "n0:0 n1:0"].map(|g| record(&c, g, 10.0))).unwrap();
    let old = rusqlite::Connection::open(&path).unwrap();
    old.execute_batch(
        "DROP TABLE reading_of_host; DROP TABLE former_type;
         CREATE TABLE reading_host (host TEXT NOT NULL, reading INTEGER NOT NULL, PRIMARY KEY (host, reading)) STRICT, WITHOUT ROWID;
         INSERT INTO reading_host VALUES ('n0', 1), ('n0', 2), ('n1', 2);
         PRAGMA user_version = 2;",
    )
    .unwrap();
    drop(old);
    let s = Store::open(&path, &c).unwrap();
    let newest = |one_host, several_hosts| newest_of_each_host(&s, one_host, several_hosts);
    assert_eq!(newest(1, 0), [1]);
    assert_eq!(newest(0, 1), [2]);
}

/// A cluster with these hosts, all of the first type.
fn with_hosts(names: &[&str]) -> Cluster {
    let mut c = cluster();
    let one = c.hosts[0].clone();
    c.hosts = names.iter().map(|n| topology::cluster::Host { name: (*n).into(), ..one.clone() }).collect();
    c
}

on_both! {
fn readings_are_found_by_host_and_the_newest_come_in_order(at) {
    let c = cluster();
    let mut s = Store::create(&at.at("s.db"), &c).unwrap();
    let gpus = ["n0:0 n1:0", "n1:0 n1:1", "n2 n3", "n0:1 n3:0"];
    s.insert_batch(&gpus.map(|g| record(&c, g, 50.0))).unwrap();
    assert_eq!(ids(&s, &Query::usable().touching([HostId(1)])), [1, 2]);
    assert_eq!(ids(&s, &Query::usable().touching([HostId(0), HostId(3)])), [1, 3, 4]);
    assert_eq!(ids(&s, &Query::usable().touching([HostId(0), HostId(3)]).newest(2)), [3, 4]);
    assert_eq!(ids(&s, &Query { after: Some(2), ..Query::usable() }), [3, 4]);
    assert_eq!(s.count(&Query::usable().newest(3)).unwrap(), 3);
    assert_eq!(ids(&s, &Query { after: Some(1), oldest: Some(2), ..Query::usable() }), [2, 3]);
}

fn a_correction_replaces_a_value_a_withdrawal_hides_it_and_both_record_who_and_why(at) {
    let c = cluster();
    let mut s = Store::create(&at.at("s.db"), &c).unwrap();
    s.insert_batch(&[record(&c, "n0:0 n1:0", 50.0), record(&c, "n0 n1", 99_999.0)]).unwrap();
    let before = s.revision().unwrap();
    let change = s.correct(1, 25.0, &by("typed in Gbit/s"), None).unwrap().value;
    assert_eq!(
        (change.what, change.old_busbw_gb_per_s, change.new_busbw_gb_per_s),
        (WhatChanged::Corrected, 50.0, Some(25.0))
    );
    let now = &s.readings(&Query::usable()).unwrap()[0].record.measurement;
    assert_eq!((now.busbw.gb_per_s(), now.time.map(|t| t.0)), (25.0, Some(1.0)));
    s.withdraw(2, &by("not of this cluster"), None).unwrap();
    assert_eq!(s.measurements(&Query::usable()).unwrap().len(), 1);
    assert_eq!(s.count(&Query::all()).unwrap(), 1, "an export has none that was withdrawn");
    let listed = s.readings(&Query { with_withdrawn: true, ..Query::all() }).unwrap();
    assert_eq!((listed.len(), listed[1].withdrawn), (2, true));
    let (who, why) = (&s.history(2).unwrap()[0].who, &s.history(2).unwrap()[0].why);
    assert_eq!((who.as_str(), why.as_str()), ("ada", "not of this cluster"));
    let after = s.revision().unwrap();
    assert_eq!((after.last_id, after.changes), (before.last_id, before.changes + 2));

    let run = Record { run_id: Some("p/1".into()), ..record(&c, "n2:0 n3:0", 40.0) };
    s.insert(&run).unwrap();
    let id = s.revision().unwrap().last_id;
    s.withdraw(id, &by("x"), None).unwrap();
    assert_eq!((s.insert(&run).unwrap().already, s.run_ids("p/").unwrap().len()), (1, 1), "its run is still known");

    assert!(matches!(s.withdraw(2, &by("again"), None), Err(StoreError::Withdrawn { id: 2, .. })));
    assert!(matches!(s.correct(9, 1.0, &by("x"), None), Err(StoreError::UnknownReading { id: 9, .. })));
    for bad in [by(""), by("two\nlines"), By { who: " ", ..by("x") }, by(&"x".repeat(2000))] {
        assert!(matches!(s.withdraw(1, &bad, None), Err(StoreError::Invalid(_))));
    }
    assert!(matches!(s.correct(1, f64::NAN, &by("x"), None), Err(StoreError::Invalid(_))));
}

fn readings_and_changes_under_a_key_are_stored_once_and_another_request_under_it_is_refused(at) {
    let c = cluster();
    let mut s = Store::create(&at.at("s.db"), &c).unwrap();
    let records = [record(&c, "n0:0 n1:0", 50.0), record(&c, "n0 n1", 60.0)];
    let key = |request: &str| Once::new("epilog-17", request).unwrap();
    let first = s.add(&records, Some(&key("a")), 1.0).unwrap();
    let again = s.add(&records, Some(&key("a")), 2.0).unwrap();
    assert_eq!((first.repeated, again.repeated, &again.ids, &again.answer), (false, true, &first.ids, &None));
    s.finish(&key("a"), "told").unwrap();
    assert_eq!(s.add(&records, Some(&key("a")), 3.0).unwrap().answer.as_deref(), Some("told"));
    assert!(matches!(s.add(&records, Some(&key("b")), 4.0), Err(StoreError::KeyReused(_))));
    assert_eq!(s.count(&Query::all()).unwrap(), 2);
    let key = Once::new("w", "").unwrap();
    s.withdraw(1, &by("x"), Some(&key)).unwrap();
    assert!(s.withdraw(1, &by("x"), Some(&key)).unwrap().repeated);
    assert_eq!(s.history(1).unwrap().len(), 1);
}

fn the_newest_readings_of_every_host_are_found_separately_for_one_host_and_several(at) {
    let c = cluster();
    let mut s = Store::create(&at.at("s.db"), &c).unwrap();
    let of = |gpus| record(&c, gpus, 10.0);
    let (one, near, far) = (of("n0:0 n0:1"), of("n0:0 n1:0"), of("n1:0 n2:0"));
    s.insert_batch(&[one.clone(), far, near.clone(), near, one.clone(), one]).unwrap();
    let newest = |one_host, several_hosts| newest_of_each_host(&s, one_host, several_hosts);
    assert_eq!(newest(1, 0), [6]);
    assert_eq!(newest(0, 1), [2, 4], "reading 2 is the newest of n2");
    assert_eq!(newest(2, 2), [2, 3, 4, 5, 6]);
    assert_eq!(newest(usize::MAX, usize::MAX), [1, 2, 3, 4, 5, 6]);
}

fn hosts_are_added_and_removed_and_the_readings_of_the_others_stay(at) {
    let path = at.at("s.db");
    let c = cluster();
    Store::create(&path, &c).unwrap().insert_batch(&["n0:0 n1:0", "n1:0 n2:0"].map(|g| record(&c, g, 10.0))).unwrap();
    let usable = |c: &Cluster| ids(&Store::open(&path, c).unwrap(), &Query::usable());
    let other = with_hosts(&["new", "n3", "n2", "n1"]);
    let s = Store::open(&path, &other).unwrap();
    assert_eq!(s.changed_hosts().text(), "1 host added (new), 1 host removed (n0)");
    let kept = s.readings(&Query::usable()).unwrap();
    assert_eq!(kept.iter().map(|r| r.id).collect::<Vec<_>>(), [2]);
    assert_eq!(
        other.gpu_names(&kept[0].record.measurement.allocation),
        ["n2:0", "n1:0"],
        "hosts are matched by name, not by position"
    );
    drop(s);
    assert!(Store::open(&path, &c).unwrap().changed_hosts().is_empty(), "a program that only reads records nothing");
    let mut s = Store::open(&path, &other).unwrap();
    s.insert(&record(&other, "new:0 n1:0", 10.0)).unwrap();
    assert_eq!(ids(&s, &Query::usable()), [2, 3]);
    drop(s);
    assert!(Store::open(&path, &other).unwrap().changed_hosts().is_empty(), "a write records the hosts");
    assert_eq!(Store::open(&path, &c).unwrap().changed_hosts().text(), "1 host added (n0), 1 host removed (new)");
    assert_eq!(usable(&c), [1, 2], "the host is back");
    assert!(matches!(Store::open(&path, &with_hosts(&["n1"])), Err(StoreError::OtherCluster { .. })));
}

fn readings_of_a_host_are_not_used_while_it_has_other_hardware(at) {
    let path = at.at("s.db");
    let c = cluster();
    Store::create(&path, &c).unwrap().insert(&record(&c, "n0:0 n1:0", 10.0)).unwrap();
    let mut other = c.clone();
    other.types.push(topology::HostType { name: "next".into(), ..c.types[0].clone() });
    other.hosts[0].host_type = c.types.len();
    let mut s = Store::open(&path, &other).unwrap();
    assert_eq!(s.changed_hosts().text(), "1 host of another type (n0)");
    assert_eq!(ids(&s, &Query::usable()), Vec::<i64>::new());
    s.insert(&record(&other, "n0:0 n2:0", 20.0)).unwrap();
    assert_eq!(ids(&s, &Query::usable()), [2]);
    drop(s);
    assert_eq!(ids(&Store::open(&path, &c).unwrap(), &Query::usable()), [1]);
    assert_eq!(ids(&Store::open(&path, &other).unwrap(), &Query::usable()), [2]);
}

fn renamed_hosts_keep_their_readings_and_run_ids_also_after_the_store_was_opened_without_the_rename(at) {
    let c = cluster();
    let to = with_hosts(&["rack-9", "n3", "n1", "n0"]); // n2 is rack-9, and the order is another one
    let renames = Renames::parse(["n2=rack-9"]).unwrap();
    for opened_without in [false, true] {
        let path = at.at(&format!("{opened_without}.db"));
        let named = |gpus: &str, run: &str| Record { run_id: Some(run.into()), ..record(&c, gpus, 10.0) };
        let records = [
            named("n2:0 n2:1", "sim/all_reduce/1/n2:[0-1]#0"),
            named("n1:0 n2:0", "sim/all_reduce/1/n[1-2]:0#1"),
            named("n0:0 n1:0", "n2"),
        ];
        Store::create(&path, &c).unwrap().insert_batch(&records).unwrap();
        if opened_without {
            assert_eq!(ids(&Store::open(&path, &to).unwrap(), &Query::usable()), [3], "n2 is gone");
        }
        for repetition in 0..2 {
            let s = Store::open_renamed(&path, &to, &renames, || Ok(())).unwrap();
            assert!(s.changed_hosts().is_empty(), "{:?}", s.changed_hosts());
            let all = s.records(&Query::usable()).unwrap();
            let runs: Vec<&str> = all.iter().filter_map(|r| r.run_id.as_deref()).collect();
            assert_eq!(runs, ["sim/all_reduce/1/rack-9:[0-1]#0", "sim/all_reduce/1/rack-9:0 n1:0#1", "n2"]);
            assert_eq!(to.gpu_names(&all[1].measurement.allocation), ["rack-9:0", "n1:0"]);
            let touching = Query { touching: vec![HostId(0)], ..Query::usable() };
            assert_eq!(ids(&s, &touching), [1, 2], "repetition {repetition}");
            assert_eq!(s.count(&Query::usable().place(store::Place::Host(HostId(0)))).unwrap(), 1);
        }
    }
}

fn a_rename_that_fails_or_whose_companion_fails_leaves_the_store_as_it_was(at) {
    let path = at.at("s.db");
    let (c, renames) = (cluster(), Renames::parse(["n2=m2"]).unwrap());
    Store::create(&path, &c).unwrap().insert(&record(&c, "n2:0 n1:0", 10.0)).unwrap();
    let to = with_hosts(&["n0", "n1", "m2", "n3"]);
    let failed = Store::open_renamed(&path, &to, &renames, || Err(StoreError::Rename("no".into())));
    assert!(matches!(failed, Err(StoreError::Rename(why)) if why == "no"));
    assert_eq!(ids(&Store::open(&path, &c).unwrap(), &Query::usable()), [1]);
    // A host m2 was measured, and removed: its readings are not those of n2.
    let five = with_hosts(&["n0", "n1", "n2", "n3", "m2"]);
    Store::open(&path, &five).unwrap().insert(&record(&five, "m2:0 n1:0", 10.0)).unwrap();
    Store::open(&path, &c).unwrap().insert(&record(&c, "n0:0 n1:0", 10.0)).unwrap();
    let e = Store::open_renamed(&path, &to, &renames, || Ok(())).unwrap_err().to_string();
    assert!(e.contains("holds 1 readings of an earlier host `m2`"), "{e}");
    assert_eq!(ids(&Store::open(&path, &c).unwrap(), &Query::usable()), [1, 3]);
}
}
