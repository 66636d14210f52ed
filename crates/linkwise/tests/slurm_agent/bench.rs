//! A trace of jobs with and without linkwise: `make bench-slurm`.

use crate::lab::trace::{measured, trace};
use crate::lab::{GPUS, Lab, site};
use crate::{number, setup};
use std::io::Write;

/// Every segment of the trace runs twice, with and without an agent, in the order ABBA. A line per run goes to the output file; runs
/// that it has already are not repeated.
#[test]
#[ignore = "minutes to hours: `make bench-slurm` runs it"]
fn the_trace_is_measured_with_and_without_linkwise() {
    let (jobs, segment) = (number("JOBS", 2000), number("SEGMENT", 250));
    let (nodes, compression) = (number("NODES", 8), number("COMPRESSION", 200));
    let out = std::env::var("LINKWISE_TEST_SLURM_OUT").expect("LINKWISE_TEST_SLURM_OUT names the file of the results");
    let done = std::fs::read_to_string(&out).unwrap_or_default();
    let lab = Lab::start(setup(nodes, nodes.div_ceil(2))).unwrap();
    let (file, model) = site(&lab);
    let cluster = console::load_cluster(&file).unwrap();
    for s in 0..jobs.div_ceil(segment) {
        let n = segment.min(jobs - s * segment);
        let planned = trace(s as u64 + 1, n, nodes * GPUS, compression as f64);
        for with in if s % 2 == 0 { [true, false] } else { [false, true] } {
            let run = format!("{nodes} nodes, compression {compression}, segment {s} of {n} jobs, linkwise {with}");
            if done.lines().any(|l| l.contains(&run)) {
                continue;
            }
            let mut result = measured(&lab, &cluster, (&file, &model), &planned, with);
            result["run"] = run.clone().into();
            println!("{result}");
            let mut file = std::fs::OpenOptions::new().append(true).create(true).open(&out).unwrap();
            writeln!(file, "{result}").unwrap();
            assert_eq!((&result["held_twice"], &result["misplaced"]), (&0.into(), &0.into()), "{run}");
        }
    }
}

/// The mean of every figure over the runs of the output file, with and without linkwise, weighted by jobs.
#[test]
#[ignore = "reads what the other one wrote: `make bench-slurm` runs it"]
fn the_measured_trace_is_a_table() {
    let out = std::env::var("LINKWISE_TEST_SLURM_OUT").expect("LINKWISE_TEST_SLURM_OUT names the file of the results");
    let of_run = format!("{} nodes, compression {}, ", number("NODES", 8), number("COMPRESSION", 200));
    let text = std::fs::read_to_string(&out).unwrap();
    let runs: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let of = |with: bool, key: &str| {
        let fit =
            |r: &&serde_json::Value| r["linkwise"] == with && r["run"].as_str().is_some_and(|n| n.starts_with(&of_run));
        let (mut sum, mut jobs) = (0.0, 0.0);
        for r in runs.iter().filter(fit) {
            let n = r["jobs"].as_f64().unwrap();
            // A segment without jobs of a size has no figure for it.
            let Some(v) = r.pointer(key).and_then(|v| v.as_f64()) else { continue };
            (sum, jobs) = (sum + n * v, jobs + n);
        }
        (sum / f64::max(jobs, 1.0), jobs)
    };
    println!("| figure | with linkwise | without |\n|---|---|---|");
    println!("| jobs | {} | {} |", of(true, "/took_s").1, of(false, "/took_s").1);
    for key in [
        "simulated_busbw_gb_per_s",
        "simulated_busbw_by_gpus/8",
        "simulated_busbw_by_gpus/16",
        "simulated_busbw_by_gpus/32",
        "jobs_on_more_nodes_than_needed",
        "wait_mean_s",
        "wait_p90_s",
        "gpus_used",
        "free_gpus_on_partly_used_nodes",
        "controller_cpu_ms_per_job",
        "submit_rpc_us",
        "schedule_cycle_us",
        "held_twice",
    ] {
        let at = format!("/{key}");
        println!("| {} | {:.3} | {:.3} |", key.replace(['_', '/'], " "), of(true, &at).0, of(false, &at).0);
    }
}
