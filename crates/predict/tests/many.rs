//! Stores of months: more readings than a process can take, repeated ones, and old ones.

#[path = "common/fleet.rs"]
mod fleet;

use fleet::{Fleet, SIZE};
use predict::{AGE_MAX_S, ALLOCATIONS_MAX, Correction, FitOptions, FitReport, Kind, Model, fit};
use store::Measurement;
use topology::{Allocation, Bandwidth, GpuMask, HostId};

fn fitted(fleet: &Fleet, rows: &[Measurement]) -> (Model, FitReport) {
    fit(&fleet.cluster, rows, &FitOptions::of(Kind::Gp)).expect("fits")
}

#[test]
fn a_store_of_more_readings_than_a_process_takes_is_fitted_on_some_of_every_split() {
    let mut fleet = Fleet::new(64, false, 1);
    let rows = fleet.readings(0..13_000);
    let distinct: std::collections::BTreeSet<&Allocation> = rows.iter().map(|m| &m.allocation).collect();
    assert!(distinct.len() > 4096, "{} allocations", distinct.len());
    let (model, report) = fitted(&fleet, &rows);
    assert_eq!(report.multi_host_readings, ALLOCATIONS_MAX);
    assert_eq!(report.multi_host_not_chosen, distinct.len() - ALLOCATIONS_MAX);
    let Correction::Gp(gp) = model.correction() else { panic!("a process was fitted") };
    assert_eq!(gp.len(), ALLOCATIONS_MAX);
    let test = fleet.readings(13_000..13_200);
    let off = |m: &Measurement| {
        (model.predict_allocation(SIZE, &m.allocation).busbw_gb_per_s / m.busbw.gb_per_s()).ln().abs()
    };
    let mean = test.iter().map(off).sum::<f64>() / test.len() as f64;
    assert!(mean < 0.035, "mean error {mean}; 3 % noise alone makes 2.4 %");
    // It goes on learning at this size.
    let mut model = model;
    assert!(model.update(&test[0].allocation, SIZE, test[0].busbw.gb_per_s()));
    let Correction::Gp(gp) = model.correction() else { panic!("a process was fitted") };
    assert!(gp.len() <= ALLOCATIONS_MAX);
}

#[test]
fn a_rare_split_among_thousands_of_another_is_used() {
    let mut fleet = Fleet::new(256, false, 2);
    let mut rows = Vec::new();
    for i in 0..2400u32 {
        let (a, b) = (i % 256, (i + 1 + i / 256) % 256);
        let job = Allocation::new([a, b].map(|h| (HostId(h), GpuMask(0xff))));
        rows.push(fleet.measure(job, i as usize));
    }
    let rare = Allocation::new([(HostId(3), GpuMask(0xff)), (HostId(9), GpuMask(0x07))]);
    rows.push(fleet.measure(rare.clone(), 0));
    let known = rows.last().expect("rows").busbw.gb_per_s();
    let (model, report) = fitted(&fleet, &rows);
    assert_eq!(report.multi_host_readings, ALLOCATIONS_MAX);
    let p = model.predict_allocation(SIZE, &rare);
    assert!((p.busbw_gb_per_s / known - 1.0).abs() < 0.1, "{p:?}, read {known}");
}

#[test]
fn old_readings_of_an_allocation_give_way_to_newer_ones() {
    let mut fleet = Fleet::new(8, false, 3);
    let mut rows = fleet.readings(0..40);
    let job = Allocation::new([(HostId(1), GpuMask(0xff)), (HostId(5), GpuMask(0xff))]);
    let now = fleet.measure(job.clone(), 100);
    rows.push(now.clone());
    let (model, _) = fitted(&fleet, &rows);
    for i in 0..5 {
        let mut old = now.clone();
        old.busbw = Bandwidth::from_gb_per_s(0.5 * now.busbw.gb_per_s());
        old.taken_at_unix_s = now.taken_at_unix_s.map(|t| t - AGE_MAX_S - 1.0 - f64::from(i));
        rows.push(old);
    }
    let (again, report) = fitted(&fleet, &rows);
    assert_eq!(report.replaced, 5);
    assert_eq!(model.predict_allocation(SIZE, &job), again.predict_allocation(SIZE, &job));
}
