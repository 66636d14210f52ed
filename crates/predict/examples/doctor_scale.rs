//! What a diagnosis costs at the size of a site.
//!
//! `cargo run -p predict --example doctor_scale -- HOSTS READINGS [leaves] [examine] [small-jobs]`

#[path = "../tests/common/fleet.rs"]
mod fleet;

use fleet::Fleet;
use predict::doctor::{Component, Diagnosis, examine, suspicions};
use predict::{Kind, fit};
use std::time::Instant;
use topology::{Cluster, HostId};

/// Readings that the model is fitted on.
const FITTED: usize = 200;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| args.get(i).and_then(|a| a.parse::<usize>().ok()).expect("HOSTS READINGS");
    let has = |word: &str| args.iter().any(|a| a == word);
    let (hosts, readings) = (number(0), number(1));
    let mut fleet = Fleet::new(hosts, has("leaves"), 1);
    if has("small-jobs") {
        fleet.job_hosts_max = 4;
    }
    let healthy = fleet.readings(0..FITTED);
    let start = readings - readings / 50;
    if !has("healthy") {
        fleet.defects = vec![
            (Component::Host(HostId(hosts as u32 / 3)), 0.7, start),
            (Component::Nic(HostId(hosts as u32 / 2), 3), 0.5, start),
        ];
    }
    let rows = fleet.readings(0..readings);
    let cluster = fleet.cluster.clone();
    println!("{hosts} hosts, {readings} readings; {} MiB before the fit", peak_mib());
    let t = Instant::now();
    let (mut model, _) = fit(&cluster, &healthy, None, Kind::Gp, fabric::Constants::default()).expect("fits");
    println!("fit of {FITTED} readings: {:.2} s, {} MiB", t.elapsed().as_secs_f64(), peak_mib());
    let t = Instant::now();
    let last = rows.last().expect("readings");
    let learned = model.update(&last.allocation, last.size, last.busbw.gb_per_s());
    println!("update by one reading ({learned}): {:.4} s", t.elapsed().as_secs_f64());
    let t = Instant::now();
    let d = suspicions(&model, &rows);
    println!("suspicions: {:.3} s, {} MiB", t.elapsed().as_secs_f64(), peak_mib());
    show(&cluster, &d);
    if has("examine") {
        let t = Instant::now();
        let d = examine(&cluster, &rows, None, fabric::Constants::default()).expect("examined").0;
        println!("examine: {:.3} s, {} MiB", t.elapsed().as_secs_f64(), peak_mib());
        show(&cluster, &d);
    }
}

fn show(cluster: &Cluster, d: &Diagnosis) {
    println!("  {} readings judged, scatter {:.1} %, {} defects", d.readings, 100.0 * d.noise, d.defects.len());
    for x in d.defects.iter().take(4) {
        let c = &x.candidates[0];
        let name = c.component.name(cluster);
        println!("  {name} at {:.2}, probability {:.3}, {} readings", c.factor, c.probability, c.readings);
    }
}

/// The most memory that this process has held, MiB; 0 where the system does not say.
fn peak_mib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|v| v.parse::<usize>().ok()).unwrap_or(0) / 1024
}
