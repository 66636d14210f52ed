//! What a fit costs at the size of a store of months.
//!
//! `cargo run --release -p predict --example fit_scale -- HOSTS READINGS [lossy]`
//!
//! `lossy`: flows between leaves keep 55 to 85 %, a share for each leaf, so that the fit looks for factors of switches.
//! Seconds are of processor time.

#[path = "../tests/common/cost.rs"]
mod cost;
#[path = "../tests/common/fleet.rs"]
mod fleet;

use cost::{cpu_s, peak_mib};
use fleet::Fleet;
use predict::{FitOptions, Kind, fit};
use store::Measurement;
use topology::{Bandwidth, Cluster};

fn main() {
    let number = |i: usize| std::env::args().nth(i).and_then(|a| a.parse::<usize>().ok()).expect("HOSTS READINGS");
    let (hosts, readings) = (number(1), number(2));
    let mut fleet = Fleet::new(hosts, true, 1);
    let lossy = std::env::args().any(|a| a == "lossy");
    let mut rows = fleet.readings(0..readings);
    rows.iter_mut().filter(|_| lossy).for_each(|m| lose(&fleet.cluster, m));
    let before = cpu_s();
    let (mut model, report) = fit(&fleet.cluster, &rows, &FitOptions::of(Kind::Gp)).expect("fits");
    println!("fit of {readings} readings: {:.2} s, {} MiB at most", (cpu_s() - before), peak_mib());
    println!("{report:?}");
    let shares: usize = model.rates().kept_of_switches.values().map(|of| of.len()).sum();
    println!("{shares} switches with a share of their own");
    let mut more = fleet.readings(readings..readings + 20);
    more.iter_mut().filter(|_| lossy).for_each(|m| lose(&fleet.cluster, m));
    let before = cpu_s();
    let learned = more.iter().filter(|m| model.update(&m.allocation, m.size, m.busbw.gb_per_s())).count();
    println!("{learned} updates: {:.4} s each", (cpu_s() - before) / more.len() as f64);
    let text = model.save().expect("saved");
    let before = cpu_s();
    predict::Model::load(&text, &predict::ModelKinds::shipped()).expect("loads");
    println!("load of {} KiB: {:.2} s", text.len() / 1024, (cpu_s() - before));
}

/// What a reading over several leaves keeps: the least of its leaves' shares.
fn lose(cluster: &Cluster, m: &mut Measurement) {
    let mut leaves: Vec<usize> = m.allocation.parts().iter().map(|p| cluster.switch_of(0, p.0)).collect();
    leaves.dedup();
    if leaves.len() > 1 {
        let kept = |leaf: &usize| 0.55 + 0.3 * (leaf * 7 % 11) as f64 / 10.0;
        let kept = leaves.iter().map(kept).fold(1.0, f64::min);
        m.busbw = Bandwidth::from_gb_per_s(m.busbw.gb_per_s() * kept);
    }
}
