//! `evaluate --online`: the gain of learning from each placed job.

use super::Protocol;
use crate::evaluation::{Summary, online, summary};
use console::Failure;
use console::Format;
use lab_kit::output::table;
use rayon::prelude::*;
use serde_json::json;
use truths::Truth;

/// Readings before the first job.
const SAMPLES: usize = 50;

pub fn run(truths: &[Box<dyn Truth>], p: &Protocol, format: Format) -> Result<(), Failure> {
    let mut all = Vec::new();
    for t in truths {
        let runs: Vec<online::Online> = p
            .seeds
            .par_iter()
            .map(|s| online::run(t.as_ref(), SAMPLES, &p.settings, *s))
            .collect::<Result<_, _>>()
            .map_err(Failure::impossible)?;
        let half = |f: fn(&online::Online) -> &Vec<f64>, second: bool| {
            summary(runs.iter().flat_map(|r| {
                let v = f(r);
                let (a, b) = v.split_at(v.len() / 2);
                if second { b.to_vec() } else { a.to_vec() }
            }))
        };
        let rows = [
            ("learning, first half", half(|r| &r.learning_pct, false)),
            ("learning, second half", half(|r| &r.learning_pct, true)),
            ("not learning, first half", half(|r| &r.frozen_pct, false)),
            ("not learning, second half", half(|r| &r.frozen_pct, true)),
        ];
        let updates: usize = runs.iter().map(|r| r.updates).sum();
        let update_ms = 1e3 * runs.iter().map(|r| r.update_s).sum::<f64>() / updates.max(1) as f64;
        let left_out: usize = runs.iter().map(|r| r.left_out).sum();
        if format == Format::Json {
            all.push(json!({
                "truth": t.name(), "simulated": t.simulated(), "size_bytes": t.size().0, "samples": SAMPLES,
                "rows": rows.iter().map(|r| json!({"what": r.0, "gbe": r.1})).collect::<Vec<_>>(),
                "updates": updates, "update_ms_mean": update_ms, "left_out": left_out,
            }));
            continue;
        }
        let protocol = format!(
            "Protocol: cluster {}, k = 2 to {}, {} random availabilities per k in random order, {}; a gp of {SAMPLES} stratified \
             samples; the learning model is updated with the measured bandwidth of every job that it placed; the optimum is the best \
             realised bandwidth.\n{}; {left_out} requests left out",
            p.cluster,
            p.gpus,
            p.settings.per_k,
            p.seed_range(),
            super::truth_line(t.as_ref()),
        );
        protocol.lines().for_each(|l| print!("{}", console::wrap(l, 2)));
        let head = ["GBE", "mean", "5th pct", "worst", "requests"];
        let row = |(name, s): (&str, Option<Summary>)| {
            let s = s?;
            let cells =
                [format!("{:.2}", s.mean), format!("{:.1}", s.p5), format!("{:.1}", s.worst), s.requests.to_string()];
            Some(std::iter::once(name.to_owned()).chain(cells).collect())
        };
        print!("{}", table(&head, 1, rows.into_iter().filter_map(row)));
        println!("{updates} updates, {update_ms:.2} ms each");
    }
    if format == Format::Json {
        println!("{}", serde_json::to_string_pretty(&all).map_err(Failure::input)?);
    }
    Ok(())
}
