//! What a fit costs at the size of a store of months.
//!
//! `cargo run --release -p predict --example fit_scale -- HOSTS READINGS`
//!
//! Seconds are of processor time.

#[path = "../tests/common/cost.rs"]
mod cost;
#[path = "../tests/common/fleet.rs"]
mod fleet;

use cost::{cpu_s, peak_mib};
use fleet::Fleet;
use predict::{FitOptions, Kind, fit};

fn main() {
    let number = |i: usize| std::env::args().nth(i).and_then(|a| a.parse::<usize>().ok()).expect("HOSTS READINGS");
    let (hosts, readings) = (number(1), number(2));
    let mut fleet = Fleet::new(hosts, true, 1);
    let rows = fleet.readings(0..readings);
    let before = cpu_s();
    let (mut model, report) = fit(&fleet.cluster, &rows, &FitOptions::of(Kind::Gp)).expect("fits");
    println!("fit of {readings} readings: {:.2} s, {} MiB at most", (cpu_s() - before), peak_mib());
    println!("{report:?}");
    let more = fleet.readings(readings..readings + 20);
    let before = cpu_s();
    let learned = more.iter().filter(|m| model.update(&m.allocation, m.size, m.busbw.gb_per_s())).count();
    println!("{learned} updates: {:.4} s each", (cpu_s() - before) / more.len() as f64);
    let text = model.save().expect("saved");
    let before = cpu_s();
    predict::Model::load(&text, &predict::ModelKinds::shipped()).expect("loads");
    println!("load of {} KiB: {:.2} s", text.len() / 1024, (cpu_s() - before));
}
