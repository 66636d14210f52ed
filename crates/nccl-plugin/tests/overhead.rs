//! Cost of observing for a job on the bench. In its own test binary, so that other tests are not measured.

mod common;

use common::{run, spec, with_plugin};
use serde_json::Value;
use std::path::Path;
use topology::Collective;

fn trace(folder: &Path) -> Vec<Value> {
    let files = std::fs::read_dir(folder).unwrap().flatten();
    let texts = files.map(|f| std::fs::read_to_string(f.path()).unwrap());
    texts.flat_map(|t| t.lines().map(|l| serde_json::from_str(l).unwrap()).collect::<Vec<Value>>()).collect()
}

#[test]
fn the_cost_of_observing_is_measured_against_a_run_without_it() {
    let name = "the_cost_of_observing_is_measured_against_a_run_without_it";
    const CALLS: usize = 2000;
    let folder = tempfile::tempdir().unwrap();
    let traces = |round: usize| folder.path().join(format!("trace-{round}"));
    let plain = spec(&[2], "2.28").with_calls(&[Collective::AllReduce], &vec![1 << 16; CALLS]);
    let mut us: [Vec<f64>; 3] = Default::default();
    // Alternating, so that other load affects all runs equally.
    for round in 0..7 {
        let trace = traces(round);
        let observe = [("MODE", "observe"), ("KERNEL_TIMES", "force"), ("TRACE", trace.to_str().unwrap())];
        let runs = [plain.clone(), with_plugin(plain.clone(), &[]), with_plugin(plain.clone(), &observe)];
        for (times, s) in us.iter_mut().zip(runs) {
            let Some(report) = run(name, &s) else { return };
            times.push(report.seconds.calls * 1e6 / CALLS as f64);
        }
    }
    let [without, off, observing] = [0, 1, 2].map(|i| stats::upper_median(&us[i]));
    let cost = trace(&traces(0)).into_iter().rfind(|v| v["kind"] == "cost").unwrap();
    let n = |k: &str| cost[k].as_f64().unwrap();
    let own_us = (n("decide_us") + n("event_us")) / CALLS as f64;
    println!(
        "2 ranks in a process, medians of 7 rounds: {without:.1} us per call without a plugin, {off:.1} us loaded and off (x{:.3}), \
         {observing:.1} us with observe, kernel times and a trace (x{:.3}); in its own entries it counted {own_us:.2} us per call of both ranks: {cost}",
        off / without,
        observing / without
    );
    assert!(n("decisions") >= CALLS as f64 && n("run_us") > 0.0, "{cost}");
    // Measured: 1.26 and 0.08 (docs/plugin.md).
    assert!(observing < 3.0 * without, "{us:?}");
    assert!(own_us < 0.5 * without, "{without} us: {cost}");
}
