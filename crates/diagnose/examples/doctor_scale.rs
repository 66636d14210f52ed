//! What a diagnosis costs at the size of a site.
//!
//! `cargo run -p diagnose --example doctor_scale -- HOSTS READINGS [leaves] [small-jobs] [healthy] [monitor] [examine] [updates]`
//!
//! Seconds are of processor time.

#[path = "../../predict/tests/common/cost.rs"]
mod cost;
#[path = "../../predict/tests/common/fleet.rs"]
mod fleet;

use cost::{cpu_s, peak_mib};
use diagnose::{Component, Diagnosis, Monitor, examine, suspicions};
use fleet::Fleet;
use predict::{FitOptions, Kind, fit};
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
    let t = cpu_s();
    let (mut model, _) = fit(&cluster, &healthy, &FitOptions::of(Kind::Gp)).expect("fits");
    println!("fit of {FITTED} readings: {:.2} s, {} MiB", cpu_s() - t, peak_mib());
    let t = cpu_s();
    let last = rows.last().expect("readings");
    let learned = model.update(&last.allocation, last.size, last.busbw.gb_per_s());
    println!("update by one reading ({learned}): {:.4} s", cpu_s() - t);
    let t = cpu_s();
    let d = suspicions(&model, &rows);
    println!("suspicions: {:.3} s, {} MiB", cpu_s() - t, peak_mib());
    show(&cluster, &d);
    if has("monitor") {
        let t = cpu_s();
        let mut monitor = Monitor::new(model.clone());
        for m in &rows {
            monitor.add(m);
        }
        println!("monitor: {} readings of {} added in {:.3} s", monitor.len(), rows.len(), cpu_s() - t);
        let t = cpu_s();
        show(&cluster, &monitor.diagnose());
        println!("first diagnosis: {:.3} s, {} MiB", cpu_s() - t, peak_mib());
        let (mut times, before) = (Vec::new(), monitor.work());
        for m in fleet.readings(readings..readings + 50) {
            let t = cpu_s();
            monitor.add(&m);
            std::hint::black_box(monitor.diagnose());
            times.push(cpu_s() - t);
        }
        times.sort_by(f64::total_cmp);
        println!("one more reading and a diagnosis: median {:.4} s, worst {:.4} s", times[25], times[49]);
        println!("  work of 50: {before:?} -> {:?}", monitor.work());
    }
    if has("updates") {
        for wanted in [400, 700, 1000, 2000] {
            let mut known = FITTED + 1;
            let more = fleet.readings(readings..readings + wanted - known);
            let mut model = model.clone();
            for m in &more {
                known += usize::from(model.update(&m.allocation, m.size, m.busbw.gb_per_s()));
            }
            let m = fleet.readings(0..20);
            let t = cpu_s();
            m.iter().for_each(|m| {
                model.update(&m.allocation, m.size, m.busbw.gb_per_s());
            });
            let kept = match model.correction() {
                predict::Correction::Gp(gp) => gp.len(),
                _ => 0,
            };
            println!("update after {known} readings, {kept} kept: {:.4} s", (cpu_s() - t) / 20.0);
        }
    }
    if has("examine") {
        let t = cpu_s();
        let d = examine(&cluster, &rows, None, fabric::Constants::default()).expect("examined").0;
        println!("examine: {:.3} s, {} MiB", cpu_s() - t, peak_mib());
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
