//! A writer that is killed (SIGKILL) at random moments loses nothing that it acknowledged and leaves nothing half-written.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use store::{Measurement, Quality, Query, Record, Source, Store};
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, GpuMask, HostId};

const KILLS: u64 = 100;
const BATCH: usize = 3;
const PATH: &str = "LINKWISE_KILL_TEST_STORE";

fn cluster() -> Cluster {
    topology::catalog::cluster("h100").unwrap()
}

fn record(batch: usize, i: usize) -> Record {
    let allocation = Allocation::new([(HostId((i % 4) as u32), GpuMask(3 << (batch % 6)))]);
    let busbw = Bandwidth::from_gb_per_s((batch * BATCH + i) as f64);
    let mut m = Measurement::new(allocation, Collective::AllReduce, Bytes::mib(16), busbw, Source::Simulated);
    m.provenance = "kill test ".repeat(20);
    Record { run_id: Some(format!("batch{batch}#{i}")), measurement: m }
}

/// The writer: continues after the stored batches, one acknowledged batch after the other, until it is killed. It first offers the last
/// stored batch again, as a resumed campaign may do. It runs only if the test below starts it.
#[test]
fn writer_of_the_kill_test() {
    let Ok(path) = std::env::var(PATH) else { return };
    let mut store = Store::create(Path::new(&path), &cluster()).unwrap();
    let next = store.count(&Query::all()).unwrap() / BATCH;
    let mut out = std::io::stdout().lock();
    for batch in next.saturating_sub(1).. {
        let records: Vec<Record> = (0..BATCH).map(|i| record(batch, i)).collect();
        store.insert_batch(&records).unwrap();
        store.set_quality(records.iter().map(|r| (r.run_id.as_deref().unwrap(), Quality::Suspect))).unwrap();
        writeln!(out, "ACK {batch}").unwrap();
        out.flush().unwrap();
    }
}

#[test]
fn a_writer_killed_a_hundred_times_loses_and_repeats_nothing_and_leaves_no_half_batch() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("killed.db");
    let mut acknowledged = 0usize;
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for kill in 0..KILLS {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "writer_of_the_kill_test", "--nocapture", "--test-threads=1"])
            .env(PATH, &path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let reader = std::thread::spawn(move || {
            let acks = lines.lines().map_while(Result::ok);
            acks.filter_map(|l| l.rsplit_once("ACK ").and_then(|(_, n)| n.parse::<usize>().ok())).max()
        });
        std::thread::sleep(Duration::from_micros(random >> 33 & 0xffff)); // 0 to 65 ms: before, in and after the first batches
        child.kill().unwrap();
        child.wait().unwrap();
        if let Some(last) = reader.join().unwrap() {
            acknowledged = acknowledged.max(last + 1);
        }
        let store = Store::create(&path, &cluster()).unwrap_or_else(|e| panic!("after kill {kill}: {e}"));
        store.check().unwrap();
        let records = store.records(&Query::all()).unwrap();
        assert!(records.len() >= acknowledged * BATCH, "kill {kill} lost an acknowledged batch");
        assert_eq!(records.len() % BATCH, 0, "kill {kill} left half a batch");
        let ids: HashSet<&str> = records.iter().filter_map(|r| r.run_id.as_deref()).collect();
        assert_eq!(ids.len(), records.len(), "kill {kill} repeated a run");
        for (i, r) in records.iter().enumerate() {
            let mut expected = record(i / BATCH, i % BATCH);
            expected.measurement.quality = r.measurement.quality;
            assert_eq!(*r, expected);
            let settled = i < acknowledged * BATCH;
            assert!(!settled || r.measurement.quality == Quality::Suspect, "an acknowledged quality was lost");
        }
    }
    assert!(acknowledged > 20, "the writer wrote too rarely: {acknowledged} batches");
}
