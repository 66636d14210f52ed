//! Tables of an evaluation.

use super::{Protocol, TruthResult};
use crate::evaluation::replay::{Best, Run};
use crate::evaluation::{Load, Missing, Summary, summary};
use console::Failure;
use console::Format;
use lab_kit::output::table;
use serde_json::{Value, json};
use std::collections::HashSet;

/// One method over all seeds of one truth.
pub struct MethodLine {
    pub name: String,
    pub gbe: Summary,
    /// The same on the requests that every method answers, where some method has no answer to some request.
    pub common: Option<Summary>,
    /// Mean of optimum minus choice, GB/s.
    pub loss_gb_per_s: f64,
    /// (k, mean GBE, mean loss GB/s).
    pub by_k: Vec<(usize, f64, f64)>,
    /// Median and 99th percentile of the time of a decision, and the median share of it inside the model, microseconds.
    pub decide_us: Option<(f64, f64, f64)>,
    /// Mean of candidates judged.
    pub evaluations: f64,
    /// Requests without an answer.
    pub unanswered: usize,
    /// Seconds to fit, mean.
    pub fit_s: f64,
    /// Multi-host samples, fewest of all seeds.
    pub samples: usize,
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (mut n, mut sum) = (0usize, 0.0);
    for v in values {
        n += 1;
        sum += v;
    }
    sum / n.max(1) as f64
}

/// Every method on one truth.
pub fn lines(result: &TruthResult) -> Vec<MethodLine> {
    let Some(first) = result.results.first() else { return Vec::new() };
    // By seed: the requests that every method answers.
    let common: Vec<HashSet<usize>> = result
        .results
        .iter()
        .map(|r| {
            let of = |r: &Run| r.request.iter().copied().collect::<HashSet<usize>>();
            r.runs.iter().map(of).reduce(|a, b| &a & &b).unwrap_or_default()
        })
        .collect();
    let some_unanswered = result.results.iter().flat_map(|r| &r.runs).any(|r| r.unanswered > 0);
    let mut out: Vec<MethodLine> = (0..first.runs.len())
        .filter_map(|i| {
            let runs: Vec<&Run> = result.results.iter().map(|r| &r.runs[i]).collect();
            let gbe: Vec<(usize, f64)> =
                runs.iter().flat_map(|r| r.k.iter().copied().zip(r.gbe_pct.iter().copied())).collect();
            let loss: Vec<(usize, f64)> =
                runs.iter().flat_map(|r| r.k.iter().copied().zip(r.loss_gb_per_s.iter().copied())).collect();
            let sorted = |f: fn(&Run) -> &Vec<f64>| {
                let mut v: Vec<f64> = runs.iter().flat_map(|r| f(r).iter().copied()).collect();
                v.sort_by(f64::total_cmp);
                v
            };
            let (decide, predict) = (sorted(|r| &r.decide_us), sorted(|r| &r.predict_us));
            Some(MethodLine {
                name: first.runs[i].name.clone(),
                gbe: summary(gbe.iter().map(|g| g.1))?,
                common: some_unanswered.then(|| summary(in_common(&runs, &common))).flatten(),
                loss_gb_per_s: mean(loss.iter().map(|l| l.1)),
                by_k: by_k(&gbe, &loss),
                decide_us: Some((
                    stats::quantile_of_sorted(&decide, 0.5),
                    stats::quantile_of_sorted(&decide, 0.99),
                    stats::quantile_of_sorted(&predict, 0.5),
                )),
                evaluations: mean(runs.iter().flat_map(|r| r.evaluations.iter().map(|e| *e as f64))),
                unanswered: runs.iter().map(|r| r.unanswered).sum(),
                fit_s: mean(runs.iter().map(|r| r.fit_s)),
                samples: runs.iter().map(|r| r.samples).min().unwrap_or(0),
            })
        })
        .collect();
    if let Some(c) = &result.ceiling
        && let Some(gbe) = summary(c.iter().map(|g| g.1))
    {
        out.push(MethodLine {
            name: "gp, row itself unseen".into(),
            gbe,
            common: None,
            loss_gb_per_s: f64::NAN,
            by_k: by_k(c, &[]),
            decide_us: None,
            evaluations: 0.0,
            unanswered: 0,
            fit_s: 0.0,
            samples: 0,
        });
    }
    out
}

/// GBE of one method on the requests that every method answers, by seed.
fn in_common<'r>(runs: &'r [&'r Run], common: &'r [HashSet<usize>]) -> impl Iterator<Item = f64> + 'r {
    runs.iter().zip(common).flat_map(|(r, common)| {
        r.request.iter().zip(&r.gbe_pct).filter(|(i, _)| common.contains(i)).map(|(_, gbe)| *gbe)
    })
}

fn by_k(gbe: &[(usize, f64)], loss: &[(usize, f64)]) -> Vec<(usize, f64, f64)> {
    let max = gbe.iter().map(|g| g.0).max().unwrap_or(0);
    let of = |list: &[(usize, f64)], k: usize| mean(list.iter().filter(|g| g.0 == k).map(|g| g.1));
    (2..=max).filter(|k| gbe.iter().any(|g| g.0 == *k)).map(|k| (k, of(gbe, k), of(loss, k))).collect()
}

/// The settings in sentences.
pub fn protocol(p: &Protocol, result: &TruthResult) -> String {
    let missing = match p.settings.missing {
        Missing::LeaveOut => "requests with a candidate that has no row are left out",
        Missing::Restrict => "neither a method nor the optimum may take a candidate without a row",
    };
    let oracle = match p.settings.best {
        Best::Realised => "the optimum is the best realised bandwidth, with the irregularity of single allocations",
        Best::Smooth => "optimum and choices are judged without the irregularity of single allocations",
    };
    let load = match p.settings.load {
        Load::None => "no contention".to_owned(),
        l => format!(
            "contention {} ({} sharing): one job on all GPUs that are not free",
            l.name(),
            p.settings.contention.name()
        ),
    };
    let simulated = if result.simulated { "SIMULATED, not measured: " } else { "measured: " };
    format!(
        "Protocol: cluster {}, k = 2 to {} (a single GPU has no collective traffic), {} random availabilities per k (free GPUs even between k \
         and all), seeds {} to {};\nthe papers' networks learn from 250 random multi-host samples, linkwise's models from {} ({}), all \
         from the hosts' intra tables;\n{oracle}; {load}; {missing}; a probe's reading has at least {:.0} % of noise.\nGBE = bandwidth of the choice over the optimum, percent.\n\
         Truth: {simulated}{} ({})",
        p.cluster,
        p.gpus,
        p.settings.per_k,
        p.seeds.first().unwrap_or(&0),
        p.seeds.last().unwrap_or(&0),
        p.ours.0,
        p.ours.1.name(),
        100.0 * p.settings.probe_noise,
        result.name,
        result.description,
    )
}

pub fn all(p: &Protocol, results: &[TruthResult], every_k: bool, format: Format) -> Result<(), Failure> {
    if format == Format::Json {
        let all: Vec<Value> = results.iter().map(|g| as_json(p, g)).collect();
        println!("{}", serde_json::to_string_pretty(&all).map_err(Failure::input)?);
        return Ok(());
    }
    for (i, g) in results.iter().enumerate() {
        if i > 0 {
            println!();
        }
        protocol(p, g).lines().for_each(|l| print!("{}", console::wrap(l, 2)));
        print(g, every_k);
    }
    Ok(())
}

fn as_json(p: &Protocol, g: &TruthResult) -> Value {
    let methods: Vec<Value> = lines(g)
        .iter()
        .map(|l| {
            json!({
                "method": l.name, "mean_pct": l.gbe.mean, "p5_pct": l.gbe.p5, "worst_pct": l.gbe.worst,
                "requests": l.gbe.requests, "unanswered": l.unanswered, "on_requests_that_all_answer": l.common, "samples": l.samples, "fit_s": l.fit_s,
                "mean_loss_gb_per_s": finite(l.loss_gb_per_s), "evaluations_mean": l.evaluations,
                "decide_us_median": l.decide_us.map(|d| d.0), "decide_us_p99": l.decide_us.map(|d| d.1),
                "predict_us_median": l.decide_us.map(|d| d.2),
                "by_k": l.by_k.iter().map(|b| json!({"k": b.0, "mean_pct": b.1, "mean_loss_gb_per_s": finite(b.2)}))
                    .collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({
        "protocol": protocol(p, g), "cluster": p.cluster, "truth": g.name, "simulated": g.simulated,
        "size_bytes": g.size.0, "left_out": left_out(g), "contention": p.settings.load.name(), "methods": methods,
    })
}

fn finite(v: f64) -> Option<f64> {
    v.is_finite().then_some(v)
}

fn left_out(g: &TruthResult) -> usize {
    g.results.iter().map(|r| r.left_out).sum()
}

fn print(g: &TruthResult, every_k: bool) {
    let lines = lines(g);
    println!("\n{}: {} requests left out", g.size, left_out(g));
    if lines.is_empty() {
        let why = "  every request has a candidate without a row; --missing restrict evaluates on the rows that exist";
        print!("{}", console::wrap(why, 2));
        return;
    }
    let head = ["method", "mean", "5th", "worst", "loss GB/s", "median us", "p99 us", "model us", "judged", "fit s"];
    let row = |l: &MethodLine| {
        let us = |f: fn((f64, f64, f64)) -> f64| l.decide_us.map_or(String::new(), |d| format!("{:.0}", f(d)));
        let number = |v: f64, digits: usize| if v > 0.0 { format!("{v:.digits$}") } else { String::new() };
        vec![
            if l.unanswered > 0 { format!("{} (-{})", l.name, l.unanswered) } else { l.name.clone() },
            format!("{:.2}", l.gbe.mean),
            format!("{:.1}", l.gbe.p5),
            format!("{:.1}", l.gbe.worst),
            if l.loss_gb_per_s.is_finite() { format!("{:.2}", l.loss_gb_per_s) } else { String::new() },
            us(|d| d.0),
            us(|d| d.1),
            us(|d| d.2),
            number(l.evaluations, 0),
            if l.samples > 0 { number(l.fit_s, 2) } else { String::new() },
        ]
    };
    print!("{}", table(&head, 1, lines.iter().map(row)));
    let most = lines.iter().map(|l| l.gbe.requests + l.unanswered).max().unwrap_or(0);
    println!("{most} requests; (-n): without an answer to n of them");
    if let Some(all) = lines.iter().find_map(|l| l.common) {
        let row = |l: &MethodLine| {
            let c = l.common?;
            Some(vec![l.name.clone(), format!("{:.2}", c.mean), format!("{:.1}", c.p5), format!("{:.1}", c.worst)])
        };
        println!("\nOn the {} requests that every method answers:", all.requests);
        print!("{}", table(&["method", "mean", "5th", "worst"], 1, lines.iter().filter_map(row)));
    }
    let max = lines.iter().flat_map(|l| l.by_k.iter().map(|b| b.0)).max().unwrap_or(0);
    let bands: Vec<(usize, usize)> = if every_k {
        (2..=max).map(|k| (k, k)).collect()
    } else {
        let all = [(2, 4), (5, 8), (9, 16), (17, 24), (25, 32), (33, 48), (49, max)];
        all.into_iter().map(|b| (b.0, b.1.min(max))).filter(|b| b.0 <= b.1).collect()
    };
    let names = bands.iter().map(|b| if b.0 == b.1 { format!("k={}", b.0) } else { format!("{}-{}", b.0, b.1) });
    if every_k {
        // Many rows, methods as columns.
        let head: Vec<String> =
            std::iter::once("mean GBE".to_owned()).chain(lines.iter().map(|l| l.name.clone())).collect();
        let row = |((from, to), name): (&(usize, usize), String)| {
            std::iter::once(name).chain(lines.iter().map(|l| band(l, *from, *to))).collect()
        };
        print!("\n{}", table(&head, 1, bands.iter().zip(names).map(row)));
    } else {
        let head: Vec<String> = std::iter::once("mean GBE by k".to_owned()).chain(names).collect();
        let row =
            |l: &MethodLine| std::iter::once(l.name.clone()).chain(bands.iter().map(|b| band(l, b.0, b.1))).collect();
        print!("\n{}", table(&head, 1, lines.iter().map(row)));
    }
}

fn band(l: &MethodLine, from: usize, to: usize) -> String {
    let inside: Vec<f64> = l.by_k.iter().filter(|b| (from..=to).contains(&b.0)).map(|b| b.1).collect();
    if inside.is_empty() { String::new() } else { format!("{:.1}", mean(inside.into_iter())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluation::replay::SeedResult;

    #[test]
    fn where_a_method_has_no_answer_all_methods_are_compared_on_the_requests_that_all_answer() {
        let run = |name: &str, request: Vec<usize>, gbe_pct: Vec<f64>, unanswered| Run {
            name: name.into(),
            k: vec![4; request.len()],
            loss_gb_per_s: vec![0.0; request.len()],
            decide_us: vec![1.0; request.len()],
            predict_us: vec![1.0; request.len()],
            evaluations: vec![1; request.len()],
            request,
            gbe_pct,
            unanswered,
            ..Run::default()
        };
        let all = run("all", vec![0, 1, 2], vec![100.0, 40.0, 100.0], 0);
        let some = run("some", vec![0, 2], vec![90.0, 90.0], 1);
        let seed = SeedResult { runs: vec![all, some], ..SeedResult::default() };
        let (name, description) = (String::new(), String::new());
        let result = TruthResult {
            name,
            description,
            simulated: true,
            size: topology::Bytes(1),
            results: vec![seed],
            ceiling: None,
        };
        let means: Vec<(f64, f64)> = lines(&result).iter().map(|l| (l.gbe.mean, l.common.unwrap().mean)).collect();
        assert_eq!(means, [(80.0, 100.0), (90.0, 90.0)]);
    }
}
