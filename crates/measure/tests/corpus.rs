//! The hand-written corpora of the fuzz targets for measurements, replayed without a fuzzer.

use std::path::PathBuf;

/// Number of files of a corpus that are accepted.
fn accepted(target: &str, one: impl Fn(&str) -> bool) -> usize {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    std::fs::read_dir(&dir)
        .expect("the corpus is there")
        .filter(|f| one(&std::fs::read_to_string(f.as_ref().expect("readable").path()).expect("text")))
        .count()
}

#[test]
fn the_corpora_of_nccl_tests_output_and_of_tables_are_read() {
    assert_eq!(accepted("nccl_tests_text", |t| measure::nccl_tests::parse_text(t).is_ok()), 1);
    assert_eq!(accepted("nccl_tests_json", |t| measure::nccl_tests::parse_json(t).is_ok()), 2);
    assert_eq!(accepted("nvidia_smi", |t| measure::idle::nvidia_smi::parse(t).is_ok()), 1);
    assert_eq!(accepted("job_trace", |t| measure::trace::parse_trace(t, 16).is_ok()), 2);
    let plugin = |t: &str| measure::plugin_trace::read(t.as_bytes(), |_| Ok(())).is_ok();
    assert_eq!(accepted("plugin_trace", plugin), 2, "of five; one of them is cut off at its end");
    let inspector = |t: &str| {
        let mut dump = measure::inspector::InspectorDump::default();
        dump.read(t.as_bytes()).is_ok() && dump.summary(2).is_ok()
    };
    assert_eq!(accepted("inspector", inspector), 1, "of two");
    let flight = |t: &str| {
        let mut records = measure::flight_recorder::FlightRecords::default();
        records.read(t).is_ok() && records.kinds().0.len() == 2
    };
    assert_eq!(accepted("flight_recorder", flight), 1);
    let metrics = |t: &str| {
        let mut metrics = measure::inspector::prometheus::InspectorMetrics::default();
        metrics.read(t.as_bytes()).is_ok() && metrics.summary(2).is_err() && metrics.kinds().len() == 1
    };
    assert_eq!(accepted("inspector_metrics", metrics), 1);
    let write = |t: &str| {
        let mut lines = Vec::new();
        measure::inspector::write::write(t.as_bytes(), 1, "test", &mut lines)
            .is_ok_and(|w| (w.lines, w.left_out) == (1, 1))
    };
    assert_eq!(accepted("inspector_write", write), 1);
    let cluster = topology::catalog::cluster("h100").expect("built in");
    let jobs = |t: &str| {
        let (nodes, jobs) = t.split_once("\n---\n").expect("two parts");
        measure::idle::slurm::parse(&cluster, nodes, jobs, None).is_ok()
    };
    assert_eq!(accepted("slurm_jobs", jobs), 1);
    let map = store::HostMap::parse("h100_26=n0,h100_27=n1", &cluster).expect("known hosts");
    assert_eq!(accepted("store_csv", |t| store::parse_csv(t, "corpus", &cluster, &map).is_ok()), 2);
}
