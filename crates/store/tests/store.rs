//! A store returns what was stored, and refuses bad input.

use proptest::prelude::*;
use std::path::Path;
use store::{
    HostMap, Inserted, Measurement, Place, Quality, Query, Record, Source, Store, StoreError, parse_csv, write_csv,
};
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, HostId, Seconds};

mod common;
use common::on_both;

fn cluster() -> Cluster {
    topology::catalog::cluster("h100").unwrap()
}

fn text() -> impl Strategy<Value = Option<String>> {
    proptest::option::of("[ -~äß,\"]{1,12}")
}

prop_compose! {
    fn record()(
        masks in proptest::collection::vec(1u32..256, 4),
        collective in 0usize..7,
        size in 1u64..1 << 40,
        busbw in 0.0f64..1000.0,
        time in proptest::option::of(0.0f64..100.0),
        (algorithm, protocol, nccl_version) in (text(), text(), text()),
        (contention, job, provenance) in (text(), text(), text()),
        channels in proptest::option::of(0u32..64),
        at in proptest::option::of(0.0f64..4e9),
        (source, quality) in (0usize..5, 0usize..3),
        run in proptest::option::of("[a-z0-9#:/ ]{0,20}x"),
    ) -> Record {
        let allocation = Allocation::new(masks.iter().enumerate().map(|(h, m)| (HostId(h as u32), GpuMask(m & !(1 << h)))));
        Record {
            run_id: run,
            measurement: Measurement {
                allocation: if allocation.is_empty() { Allocation::new([(HostId(0), GpuMask(3))]) } else { allocation },
                collective: Collective::ALL[collective],
                size: Bytes(size),
                busbw: Bandwidth::from_gb_per_s(busbw),
                time: time.map(Seconds),
                algorithm, protocol, channels, nccl_version, contention, job,
                taken_at_unix_s: at,
                source: Source::ALL[source],
                provenance: provenance.unwrap_or_default(),
                quality: Quality::ALL[quality],
            },
        }
    }
}

/// Stored texts are printed at terminals later: escape sequences and forged lines must be refused.
#[test]
fn control_characters_in_a_text_of_a_reading_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::create(&folder.path().join("s.db"), &cluster()).unwrap();
    for text in ["evil\u{1b}[31m", "two\nlines", "\u{9b}5m"] {
        let gpus = topology::Allocation::new([(topology::HostId(0), topology::GpuMask(3))]);
        let busbw = topology::Bandwidth::from_gb_per_s(1.0);
        let (collective, size) = (topology::Collective::AllReduce, topology::Bytes(1 << 20));
        let mut m = store::Measurement::new(gpus, collective, size, busbw, store::Source::Job);
        m.job = Some(text.into());
        let refused = store.insert_batch(&[Record { run_id: None, measurement: m }]).unwrap_err().to_string();
        assert!(refused.contains("job: it has control characters"), "{refused}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn records_come_back_unchanged_from_the_store_and_from_its_csv(records in proptest::collection::vec(record(), 1..20)) {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::create(&folder.path().join("s.db"), &cluster()).unwrap();
        let done = store.insert_batch(&records).unwrap();
        prop_assert_eq!(done.added + done.already, records.len());
        let out = store.records(&Query::all()).unwrap();
        let mut seen = std::collections::HashSet::new();
        let expected: Vec<Record> =
            records.into_iter().filter(|r| r.run_id.is_none() || seen.insert(r.run_id.clone())).collect();
        prop_assert_eq!(&out, &expected);
        let mut csv = Vec::new();
        write_csv(&cluster(), &out, &mut csv).unwrap();
        let back = parse_csv(std::str::from_utf8(&csv).unwrap(), "x.csv", &cluster(), &HostMap::default()).unwrap();
        prop_assert_eq!(back.len(), out.len());
        for (a, b) in back.iter().zip(&out) {
            // A run id is a key: its outer spaces are trimmed.
            prop_assert_eq!(&a.measurement, &b.measurement);
            prop_assert_eq!(a.run_id.as_deref(), b.run_id.as_deref().map(str::trim));
        }
    }

    #[test]
    fn no_text_makes_the_csv_reader_panic_and_every_error_has_a_place(text in "\\PC{0,200}", header in 0usize..4) {
        let headers = ["", "host,gpus,size_bytes,collective,busbw_gb_per_s\n", "counts,gpus,size_bytes,collective,busbw_gb_per_s\n", "allocation,collective,size_bytes,busbw_gb_per_s\n"];
        if let Err(e) = parse_csv(&format!("{}{text}", headers[header]), "f", &cluster(), &HostMap::default()) {
            prop_assert!(e.line >= 1 && e.column >= 1);
        }
    }
}

#[test]
fn files_that_are_not_a_store_get_one_clear_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let refused = |p: &Path| Store::open(p, &cluster()).unwrap_err().to_string();
    assert!(refused(&at("none.db")).contains("there is no store"));
    assert!(refused(folder.path()).contains("it is a folder"));
    std::fs::write(at("text.db"), "not a database, but long enough to look like one ".repeat(100)).unwrap();
    assert!(refused(&at("text.db")).contains("it is not a SQLite database"));
    assert!(matches!(Store::create(&at("text.db"), &cluster()), Err(StoreError::NotAStore { .. })));
    std::fs::write(at("empty.db"), "").unwrap();
    assert!(refused(&at("empty.db")).contains("it is empty"));
    Store::create(&at("empty.db"), &cluster()).unwrap();
    let foreign = rusqlite::Connection::open(at("foreign.db")).unwrap();
    foreign.execute_batch("CREATE TABLE t (a)").unwrap();
    assert!(refused(&at("foreign.db")).contains("of another program"));
    drop(Store::create(&at("newer.db"), &cluster()).unwrap());
    let newer = rusqlite::Connection::open(at("newer.db")).unwrap();
    newer.execute_batch("PRAGMA user_version = 7").unwrap();
    assert!(refused(&at("newer.db")).contains("schema version 7; this linkwise knows up to 3"));
}

#[test]
fn a_damaged_file_gives_an_error_and_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let mut store = Store::create(&path, &cluster()).unwrap();
    let a = Allocation::new([(HostId(0), GpuMask(3))]);
    let m = Measurement::new(a, Collective::AllReduce, Bytes(1), Bandwidth::from_gb_per_s(1.0), Source::Job);
    store.insert_batch(&vec![Record::from(m); 500]).unwrap();
    drop(store);
    common::with_damage(&path, || {
        if let Ok(store) = Store::open(&path, &cluster()) {
            let _ = store.records(&Query::all()).map_err(|e| e.to_string());
            let _ = store.check();
        }
    });
}

#[test]
fn csv_errors_point_at_the_field() {
    let map = HostMap::parse("26=n0", &cluster()).unwrap();
    let read = |text: &str| parse_csv(text, "t.csv", &cluster(), &map).unwrap_err().to_string();
    const H: &str = "host,gpus,size_bytes,collective,busbw_gb_per_s\n";
    let cases = [
        ("", "t.csv:1:1: the file is empty"),
        ("a,b\n1,2\n", "t.csv:1:1: the header has none of the columns"),
        ("host,gpus\n", "t.csv:1:1: the header lacks column `size_bytes`"),
        ("host,host\n", "t.csv:1:2: column `host` appears twice"),
        (
            &format!("{H}h100_26,0 1,16777216,all_reduce,200\nh100_30,0 1,1,all_reduce,1\n"),
            "t.csv:3:1: host `h100_30` is not in cluster `h100`; say which it is with --host-map",
        ),
        (&format!("{H}26,0 9,1,all_reduce,1\n"), "t.csv:2:2: host `n0` has GPUs 0 to 7, not {0,9}"),
        (&format!("{H}26,0 0,1,all_reduce,1\n"), "t.csv:2:2: GPU 0 is named twice"),
        (&format!("{H}26,0 x,1,all_reduce,1\n"), "t.csv:2:2: `x` is not a GPU index"),
        (&format!("{H}26,0 1,big,all_reduce,1\n"), "t.csv:2:3: `size_bytes` is `big`, not a whole number of bytes"),
        (&format!("{H}26,0 1,1,all_gather2,1\n"), "t.csv:2:4: `all_gather2` is not a collective"),
        (&format!("{H}26,0 1,1,all_reduce,-3\n"), "t.csv:2:5: busbw_gb_per_s: -3 is not between 0 and"),
        (&format!("{H}26,0 1,1,all_reduce,1e-300\n"), "t.csv:2:5: busbw_gb_per_s: 1e-300 is not between 1e-6 and"),
        (&format!("{H}26,0 1,1,all_reduce,nan\n"), "t.csv:2:5: busbw_gb_per_s: NaN is not between"),
        (&format!("{H}26,0 1,1,all_reduce\n"), "t.csv:2:5: 4 fields, the header has 5"),
        (
            "counts,gpus,size_bytes,collective,busbw_gb_per_s\n2+0,n0:0 n1:0,1,all_reduce,1\n",
            "t.csv:2:1: counts `2+0` contradict the GPUs, which are 1+1",
        ),
        (
            "counts,gpus,size_bytes,collective,busbw_gb_per_s\n1+1,n0:0 n9:0,1,all_reduce,1\n",
            "t.csv:2:2: `n9:0`: cluster `h100` has no host `n9`",
        ),
    ];
    for (text, expected) in cases {
        let found = read(text);
        assert!(found.starts_with(expected), "{text:?}\n found    {found}\n expected {expected}");
    }
    for bad in ["26", "26=n9", "26=n0,26=n0"] {
        assert!(HostMap::parse(bad, &cluster()).is_err(), "{bad}");
    }
}

#[test]
fn what_is_no_store_is_told_and_left_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let c = cluster();
    drop(store::State::init(&path("s.state"), &c, 0.0).unwrap());
    let e = Store::open(&path("s.state"), &c).unwrap_err().to_string();
    assert!(e.contains("it is a state"), "{e}");
    std::fs::write(path("empty"), "").unwrap();
    assert!(store::State::open(&path("empty")).unwrap_err().to_string().contains("it is empty"));
    assert!(Store::open(&path("empty"), &c).unwrap_err().to_string().contains("it is empty"));
    assert_eq!(std::fs::metadata(path("empty")).unwrap().len(), 0, "nothing was written to it");
    for e in [
        Store::create(Path::new("/dev/null"), &c).unwrap_err().to_string(),
        store::State::init(Path::new("/dev/null"), &c, 0.0).unwrap_err().to_string(),
    ] {
        assert!(e.contains("it is not a regular file"), "{e}");
    }
}

#[test]
fn a_damaged_row_of_a_megabyte_is_told_in_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let gpus = topology::Allocation::new([(topology::HostId(0), topology::GpuMask(3))]);
    let (busbw, size) = (topology::Bandwidth::from_gb_per_s(1.0), topology::Bytes(1 << 20));
    let m = store::Measurement::new(gpus, topology::Collective::AllReduce, size, busbw, store::Source::Job);
    let mut store = Store::create(&path, &cluster()).unwrap();
    store.insert(&m.into()).unwrap();
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute("UPDATE measurement SET allocation = hex(zeroblob(500000))", []).unwrap();
    let e = store.measurements(&Query::all()).unwrap_err().to_string();
    assert!(e.contains("is damaged: allocation `0000") && e.len() < 600, "{} bytes: {e:.700}", e.len());
}

on_both! {
fn a_run_id_is_stored_once_and_a_run_without_one_at_every_insert(at) {
    let mut store = Store::create(&at.at("s.db"), &cluster()).unwrap();
    let a = Allocation::new([(HostId(0), GpuMask(3))]);
    let m =
        Measurement::new(a, Collective::AllReduce, Bytes::mib(16), Bandwidth::from_gb_per_s(200.0), Source::Command);
    let named = Record { run_id: Some("p#0".into()), measurement: m.clone() };
    assert_eq!(store.insert(&named).unwrap(), Inserted { added: 1, already: 0 });
    assert_eq!(store.insert(&named).unwrap(), Inserted { added: 0, already: 1 });
    store.insert(&m.clone().into()).unwrap();
    store.insert(&m.into()).unwrap();
    assert_eq!(store.count(&Query::all()).unwrap(), 3);
    assert_eq!(store.set_quality([("p#0", Quality::Rejected), ("unknown", Quality::Good)]).unwrap(), 1);
    assert_eq!(store.measurements(&Query::usable()).unwrap().len(), 2);
    assert_eq!(store.run_ids("p").unwrap().len(), 1);
    assert_eq!(store.run_ids("%").unwrap().len(), 0);
}

fn queries_select_by_host_size_and_collective_and_intra_tables_take_the_median(at) {
    let mut store = Store::create(&at.at("s.db"), &cluster()).unwrap();
    let m = |parts: &[(u32, u32)], size, gb| {
        let a = Allocation::new(parts.iter().map(|(h, m)| (HostId(*h), GpuMask(*m))));
        Record::from(Measurement::new(a, Collective::AllReduce, size, Bandwidth::from_gb_per_s(gb), Source::Command))
    };
    let (s, l) = (Bytes::mib(16), Bytes::gib(2));
    let rows = [
        m(&[(0, 3)], s, 10.0),
        m(&[(0, 3)], s, 50.0),
        m(&[(0, 3)], s, 20.0),
        m(&[(0, 7)], l, 5.0),
        m(&[(0, 1), (1, 1)], s, 1.0),
    ];
    store.insert_batch(&rows).unwrap();
    let table = store.intra_table(HostId(0), Collective::AllReduce, s).unwrap();
    assert_eq!(table.into_iter().collect::<Vec<_>>(), [(GpuMask(3), Bandwidth::from_gb_per_s(20.0))]);
    let count = |q: Query| store.count(&q).unwrap();
    assert_eq!(count(Query::usable().place(Place::SeveralHosts)), 1);
    assert_eq!(count(Query::usable().place(Place::OneHost)), 4);
    assert_eq!(count(Query::usable().place(Place::Host(HostId(1)))), 0);
    assert_eq!(count(Query::usable().size(l)), 1);
    assert_eq!(count(Query::usable().collective(Collective::AllGather)), 0);
}

fn a_batch_with_one_impossible_measurement_stores_nothing(at) {
    let mut store = Store::create(&at.at("s.db"), &cluster()).unwrap();
    let good = Measurement::new(
        Allocation::new([(HostId(0), GpuMask(3))]),
        Collective::AllReduce,
        Bytes(1),
        Bandwidth::from_gb_per_s(1.0),
        Source::Job,
    );
    let mut bad = Vec::new();
    for busbw in [f64::NAN, f64::INFINITY, -1.0] {
        bad.push(Measurement { busbw: Bandwidth::from_gb_per_s(busbw), ..good.clone() });
    }
    bad.push(Measurement { allocation: Allocation::default(), ..good.clone() });
    bad.push(Measurement { allocation: Allocation::new([(HostId(9), GpuMask(1))]), ..good.clone() });
    bad.push(Measurement { allocation: Allocation::new([(HostId(0), GpuMask(1 << 8))]), ..good.clone() });
    bad.push(Measurement { size: Bytes(0), ..good.clone() });
    bad.push(Measurement { size: Bytes(u64::MAX), ..good.clone() });
    bad.push(Measurement { provenance: "x".repeat(5000), ..good.clone() });
    for b in bad {
        assert!(matches!(store.insert_batch(&[good.clone().into(), b.into()]), Err(StoreError::Invalid(_))));
    }
    assert_eq!(store.count(&Query::all()).unwrap(), 0);
}

fn another_cluster_is_refused_but_a_drained_gpu_is_not_another_cluster(at) {
    let path = at.at("s.db");
    drop(Store::create(&path, &cluster()).unwrap());
    let mut drained = cluster();
    drained.hosts[2].drained = GpuMask(5);
    Store::open(&path, &drained).unwrap();
    let other = topology::catalog::cluster("het-ra").unwrap();
    let e = Store::open(&path, &other).unwrap_err().to_string();
    assert!(
        e.contains("belongs to another cluster (`h100`, given: `het-ra`)") && e.contains("of another type (n0"),
        "{e}"
    );
    let mut renamed = cluster();
    renamed.name = "other".into();
    assert!(Store::open(&path, &renamed).unwrap_err().to_string().contains("the names differ"));
}

fn a_table_of_a_type_can_stand_for_several_hosts_and_imports_twice_without_repeating(at) {
    let c = topology::catalog::cluster("het-ra").unwrap();
    let map = HostMap::parse("4090=n0,4090=n1", &c).unwrap();
    let text = "\u{feff}host,gpus,size_bytes,collective,busbw_gb_per_s\r\n4090,0 1,16777216,all_gather,6.99\r\n4090,0 1,16777216,all_gather,6.99\r\n";
    let records = parse_csv(text, "dir/t.csv", &c, &map).unwrap();
    assert_eq!(records.len(), 4);
    let mut store = Store::create(&at.at("s.db"), &c).unwrap();
    assert_eq!(store.insert_batch(&records).unwrap().added, 4);
    assert_eq!(store.insert_batch(&parse_csv(text, "t.csv", &c, &map).unwrap()).unwrap().already, 4);
}
}
