//! NCCL's own decisions as a model: without measurements, and below what is learned.

use predict::{BandwidthModel, Candidates, FitOptions, Kind, Model, ModelKinds, fit};
use topology::{Allocation, Bytes, Collective, GpuMask, HostId, catalog};

fn cold(cluster: &str) -> Model {
    let cluster = catalog::cluster(cluster).unwrap();
    fit(&cluster, &[], &FitOptions::of(Kind::Nccl)).expect("needs no measurements").0
}

fn counts(list: &[usize]) -> Allocation {
    Allocation::new(list.iter().enumerate().map(|(h, n)| (HostId(h as u32), GpuMask::first(*n))))
}

fn busbw(model: &Model, list: &[usize]) -> f64 {
    model.predict_allocation(Bytes::gib(2), &counts(list)).busbw_gb_per_s
}

#[test]
fn a_cold_start_knows_the_steps_of_the_published_table() {
    let model = cold("h100");
    assert_eq!((model.kind(), model.collective()), ("nccl", Collective::AllReduce));
    // Published all-reduce of 2 GiB on four H100 hosts (one row of each kind of step), GB/s.
    for (list, measured) in [
        (&[1, 1, 1][..], 47.6),
        (&[3, 3, 3, 3], 131.0),
        (&[5, 5, 3], 112.0),
        (&[4, 4, 4, 4], 196.0),
        (&[7, 7, 7], 340.0),
        (&[6, 5, 4, 4], 176.0),
        (&[4, 4], 337.0),
        (&[6, 2], 153.0),
    ] {
        let off = busbw(&model, list) / measured - 1.0;
        assert!(off.abs() < 0.06, "{list:?}: {off:+.3} of {measured}");
    }
}

#[test]
fn the_release_changes_what_is_expected_and_is_kept_in_the_file() {
    let model = cold("h100");
    // Up to 2.27 channels are copied to 16 over three NICs, from 2.28 on 12 divide evenly.
    let old = busbw(&model, &[8, 8, 8, 3]);
    let new = model.clone().assuming_nccl("2.28".parse().unwrap());
    assert!(busbw(&new, &[8, 8, 8, 3]) > 1.2 * old);
    let read = Model::load(&new.save().unwrap(), &ModelKinds::shipped()).unwrap();
    assert_eq!(read.nccl_release(), Some("2.28".parse().unwrap()));
    assert_eq!(busbw(&read, &[8, 8, 8, 3]), busbw(&new, &[8, 8, 8, 3]));
    let damaged = new.save().unwrap().replace("\"release\":\"2.28\"", "\"release\":\"9.9\"");
    assert!(Model::load(&damaged, &ModelKinds::shipped()).unwrap_err().contains("NCCL"));
}

#[test]
fn batches_evaluators_and_single_questions_agree_and_hosts_that_are_not_recorded_rest_on_physics() {
    for cluster in ["h100", "4xdgx-a100", "het-4mix", "2xhgx-h100+2xdgx-a100"] {
        let model = cold(cluster);
        let table = model.share_table(Bytes::gib(2));
        let all: Vec<Allocation> =
            [&[1, 1][..], &[3, 2], &[4, 4, 4], &[8, 3, 1, 2]].iter().map(|l| counts(l)).collect();
        let candidates = Candidates::of(table, &all);
        let mut means = Vec::new();
        model.means(Bytes::gib(2), &candidates, &mut means);
        let mut ask = model.evaluator(Bytes::gib(2));
        for (i, mean) in means.iter().enumerate() {
            assert!(mean.is_finite() && *mean > 0.0, "{cluster}");
            assert_eq!(*mean, model.mean(Bytes::gib(2), candidates.parts(i)));
            assert_eq!(*mean, ask(candidates.parts(i)));
        }
    }
}
