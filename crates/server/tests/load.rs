//! The bench of the server measures: a table of a few tenths of a second per part on a small cluster. No time is asserted.

#[allow(dead_code)] // its command line
#[path = "../examples/load/main.rs"]
mod load;

#[test]
fn the_bench_of_the_server_measures_each_part_once() {
    let folder = tempfile::tempdir().unwrap();
    let results = folder.path().join("results.jsonl");
    let backends = vec!["file".into(), "postgresql".into()];
    let settings = load::Settings { gpus: vec![512], backends, seconds: 0.3, results: Some(results.clone()) };
    let mut rows = Vec::new();
    load::measure(&settings, |r| rows.push(r.clone()));
    assert!(rows.len() == 6 || rows.len() == 3, "{rows:?}");
    for r in &rows {
        println!("{r:?}");
        assert!(r.engine_per_s > 0.0 && r.server_per_s > 0.0 && r.p50_ms > 0.0 && r.p50_ms <= r.p99_ms, "{r:?}");
    }
    let measured = std::fs::read_to_string(results).unwrap();
    let mut again = Vec::new();
    load::measure(&settings, |r| again.push(r.clone()));
    assert_eq!((again.len(), measured.lines().count()), (rows.len(), rows.len()), "a part is measured once");
}
