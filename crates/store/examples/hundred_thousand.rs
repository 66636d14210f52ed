//! Measures the speed of a store with 100,000 readings on 1,024 hosts. `cargo run --release -p store --example hundred_thousand`
//!
//! Prints the seconds for inserting, for opening, for reading all readings, and for reading those on eight hosts.

use std::time::Instant;
use store::{Measurement, Query, Record, Source, Store};
use topology::cluster::Host;
use topology::{Allocation, Bandwidth, Bytes, Collective, GpuMask, HostId};

const HOSTS: u32 = 1024;
const READINGS: u32 = 100_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut cluster = topology::catalog::cluster("h100").ok_or("no such cluster")?;
    let one = cluster.hosts[0].clone();
    cluster.hosts = (0..HOSTS).map(|i| Host { name: format!("n{i}"), ..one.clone() }).collect();
    let record = |i: u32| -> Record {
        let hosts = 2 + i % 7;
        let gpus = (0..hosts).map(|h| (HostId((i.wrapping_mul(2_654_435_761) + h) % HOSTS), GpuMask(0xff)));
        let busbw = Bandwidth::from_gb_per_s(100.0 + f64::from(i % 50));
        let mut m =
            Measurement::new(Allocation::new(gpus), Collective::AllReduce, Bytes::gib(1), busbw, Source::Simulated);
        m.taken_at_unix_s = Some(f64::from(i));
        m.provenance = "linkwise observe --busbw".into();
        m.into()
    };
    let folder = std::env::temp_dir().join(format!("linkwise-store-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let path = folder.join("s.db");
    let timed = |what: &str, start: Instant, n: usize| {
        println!("{what}: {:.3} s, {n} readings", start.elapsed().as_secs_f64());
    };
    let mut store = Store::create(&path, &cluster)?;
    let start = Instant::now();
    for batch in (0..READINGS).collect::<Vec<_>>().chunks(5_000) {
        store.insert_batch(&batch.iter().map(|i| record(*i)).collect::<Vec<_>>())?;
    }
    timed("insert", start, READINGS as usize);
    drop(store);
    let start = Instant::now();
    let mut store = Store::open(&path, &cluster)?;
    timed("open", start, 0);
    let start = Instant::now();
    timed("all usable readings", start, store.measurements(&Query::usable())?.len());
    let start = Instant::now();
    let touching = Query::usable().touching((0..8).map(HostId)).newest(2_000);
    let n = store.measurements(&touching)?.len();
    timed("the newest 2,000 that touch eight hosts", start, n);
    let start = Instant::now();
    store.insert(&record(READINGS))?;
    timed("one more", start, 1);
    let bytes = std::fs::metadata(&path)?.len();
    println!("file: {:.1} MB", bytes as f64 / 1e6);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
