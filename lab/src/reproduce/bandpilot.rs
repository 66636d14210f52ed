//! BandPilot: tables 2 and 3, figures 1, 2 and 5 to 11, appendix A and the footprint.
//!
//! The paper prints curves without numbers; numbers from its text and tables are printed next to linkwise's. H100 is
//! the measured 16 MiB table (figure 1 and appendix A: 2 GiB); the mixed clusters are composed of measured tables by
//! the paper's rule.

use super::Effort;
use crate::evaluation::accuracy::point;
use crate::evaluation::methods::{self, MethodSpec};
use crate::evaluation::replay::{Best, Run, SeedResult};
use crate::evaluation::{Load, Missing, Settings, run_seed, summary};
use crate::ground_truth::{self, Options};
use console::Failure;
use lab_kit::output::table;
use measure::design::DesignKind;
use place::Contention;
use rayon::prelude::*;
use std::fmt::Write;
use topology::{Allocation, Bytes, GpuMask, HostId, catalog};
use truths::Truth;

/// The items and their descriptions.
pub const ITEMS: [(&str, &str); 13] = [
    ("figure-1", "two H100 hosts at 2 GiB: 4+4 against 6+2, 5+5 against 8+2"),
    ("figure-2", "4090: near pairs slower than far ones, from the published subset table"),
    ("figure-5", "accuracy of the Transformer by number of samples, four clusters"),
    ("figure-6", "GBE by size of the request, four clusters"),
    ("figure-7", "bandwidth lost by size of the request, H100 and Het-4Mix"),
    ("table-2", "mean GBE and mean loss, H100 and Het-4Mix"),
    ("figure-8", "time of a decision by size of the request: EHA, PTS, inside the model"),
    ("table-3", "seconds to measure one host"),
    ("figure-9", "two-level against flat Transformer"),
    ("figure-10", "EHA alone, PTS alone, both, four clusters"),
    ("figure-11", "does the ranking of GPU sets depend on the message size?"),
    ("appendix-a", "bandwidth into training days"),
    ("footprint", "bytes of the model and of a host's table"),
];

const CLUSTERS: [&str; 4] = ["h100", "het-4mix", "het-ra", "het-va"];

/// Mean GBE in percent and mean loss in GB/s as published (table 2): method, H100, Het-4Mix.
const TABLE_2: [(&str, [f64; 2], [f64; 2]); 4] = [
    ("bandpilot", [96.99, 3.01], [89.9, 2.1]),
    ("topo", [84.53, 15.93], [58.9, 7.9]),
    ("default", [75.33, 29.74], [51.0, 11.9]),
    ("random", [66.75, 53.30], [47.0, 14.7]),
];

/// Splits over two hosts and their bandwidths, GB/s, as published (figure 1).
const FIGURE_1: [(&[usize], f64); 4] = [(&[4, 4], 337.17), (&[6, 2], 153.44), (&[5, 5], 412.49), (&[8, 2], 157.30)];

/// One item of [`ITEMS`] as text. `dir` holds the published tables.
pub fn reproduce(item: &str, dir: &str, effort: &Effort) -> Result<String, Failure> {
    match item {
        "figure-1" => figure_1(dir),
        "figure-2" => figure_2(dir),
        "figure-5" => figure_5(dir, effort, &["transformer", "gp"], &CLUSTERS),
        "figure-6" => by_k(dir, effort, &CLUSTERS, FIGURE_6, "mean GBE, percent", |r| &r.gbe_pct),
        "figure-7" => by_k(dir, effort, &CLUSTERS[..2], FIGURE_6, "mean loss, GB/s", |r| &r.loss_gb_per_s),
        "table-2" => table_2(dir, effort),
        "figure-8" => figure_8(dir, effort),
        "table-3" => super::litegd::reproduce("table-2", dir, effort),
        "figure-9" => figure_5(dir, effort, &["transformer", "transformer-naive"], &CLUSTERS[..1]),
        "figure-10" => by_k(dir, effort, &CLUSTERS, "eha,pts,bandpilot", "mean GBE, percent", |r| &r.gbe_pct),
        "figure-11" => figure_11(dir),
        "appendix-a" => Ok(appendix_a()),
        "footprint" => footprint(dir, effort),
        other => {
            let known: Vec<&str> = ITEMS.iter().map(|i| i.0).collect();
            Err(Failure::input(format!("BandPilot has no `{other}`; known: {}", known.join(", "))))
        }
    }
}

/// The methods of figure 6, and linkwise's own.
const FIGURE_6: &str = "bandpilot,ideal-bandpilot,topo,default,random,gp";

fn truth_of(dir: &str, cluster: &str, size: Option<Bytes>) -> Result<Box<dyn Truth>, Failure> {
    let c = catalog::cluster(cluster).ok_or_else(|| Failure::input(format!("no cluster `{cluster}`")))?;
    let mut all = ground_truth::load(dir, &c, &Options::default())?.into_iter();
    let wanted = all.find(|t| size.is_none_or(|s| t.size() == s));
    wanted.ok_or_else(|| Failure::input(format!("{dir} holds no table of {cluster} of that size")))
}

fn settings(effort: &Effort) -> Settings {
    Settings {
        per_k: effort.per_k,
        missing: Missing::LeaveOut,
        shipped: false,
        load: Load::None,
        contention: Contention::Merge,
        best: Best::Realised,
        probe_noise: crate::evaluation::PROBE_NOISE,
    }
}

fn replay(dir: &str, cluster: &str, methods: &str, effort: &Effort) -> Result<Vec<Run>, Failure> {
    let truth = truth_of(dir, cluster, None)?;
    let specs: Vec<MethodSpec> = methods
        .split(',')
        .filter(|m| !effort.quick || !["bandpilot", "eha", "pts"].contains(m))
        .map(|m| methods::parse(m, (100, DesignKind::Stratified)))
        .collect::<Result<_, _>>()?;
    let seeds: Vec<SeedResult> = effort
        .seeds
        .par_iter()
        .map(|s| run_seed(truth.as_ref(), &specs, &settings(effort), *s, &|| ()))
        .collect::<Result<_, _>>()
        .map_err(Failure::impossible)?;
    let mut all: Vec<Run> = Vec::new();
    for result in seeds {
        if all.is_empty() {
            all = result.runs;
            continue;
        }
        for (sum, one) in all.iter_mut().zip(result.runs) {
            sum.k.extend(one.k);
            sum.gbe_pct.extend(one.gbe_pct);
            sum.loss_gb_per_s.extend(one.loss_gb_per_s);
            sum.decide_us.extend(one.decide_us);
            sum.predict_us.extend(one.predict_us);
        }
    }
    Ok(all)
}

fn protocol(effort: &Effort) -> String {
    format!(
        "k = 2 to 32, {} availabilities per k, seeds {:?}; bandpilot, eha, pts: Transformer on 250 random samples; gp: linkwise, 100 \
         samples; no contention, realised optimum\nH100: measured 16 MiB table; mixed clusters: composed of measured tables by the \
         paper's rule\n",
        effort.per_k, effort.seeds
    )
}

fn mean(v: impl Iterator<Item = f64>) -> f64 {
    summary(v).map_or(f64::NAN, |s| s.mean)
}

fn figure_1(dir: &str) -> Result<String, Failure> {
    let truth = truth_of(dir, "h100", Some(Bytes::gib(2)))?;
    let mut out = String::from(
        "BandPilot, figure 1: all-reduce over two H100 hosts, GB/s busbw, ours (the published 2 GiB table) and printed\n",
    );
    let of = |counts: &[usize]| {
        let a = Allocation::new(counts.iter().enumerate().map(|(h, c)| (HostId(h as u32), GpuMask::first(*c))));
        truth.busbw_gb_per_s(&a)
    };
    for (counts, printed) in FIGURE_1 {
        let table = of(counts).map_or("no public row".to_owned(), |v| format!("{v:.2}"));
        let _ = writeln!(out, "  {:<5} {table:>14} {printed:>10.2}", format!("{}+{}", counts[0], counts[1]));
    }
    Ok(out)
}

fn figure_2(dir: &str) -> Result<String, Failure> {
    let truth = truth_of(dir, "het-4mix", None)?;
    let mut out = String::from(
        "BandPilot, figure 2: pairs of GPUs of the 4090 host, GB/s busbw (published subset table, 16 MiB; the paper's peer-to-peer matrix \
         is not public)\n",
    );
    let pair = |a: usize, b: usize| {
        truth.busbw_gb_per_s(&Allocation::new([(HostId(0), GpuMask::from_indices([a, b]))])).unwrap_or(f64::NAN)
    };
    for a in 0..8 {
        let cells: Vec<String> =
            (0..8).map(|b| if a == b { "    -".into() } else { format!("{:5.1}", pair(a, b)) }).collect();
        let _ = writeln!(out, "  GPU {a} {}", cells.join(" "));
    }
    let near = mean(
        (0..8).flat_map(|a| (a + 1..8).map(move |b| (a, b))).filter(|p| p.0 / 4 == p.1 / 4).map(|p| pair(p.0, p.1)),
    );
    let far = mean((0..4).flat_map(|a| (4..8).map(move |b| (a, b))).map(|p| pair(p.0, p.1)));
    let _ = writeln!(out, "  same socket {near:.1}, across sockets {far:.1}: far is {:.2} times as fast", far / near);
    Ok(out)
}

fn figure_5(dir: &str, effort: &Effort, models: &[&str], clusters: &[&str]) -> Result<String, Failure> {
    let samples: &[usize] = if effort.quick { &[50, 250] } else { &[25, 50, 100, 250, 500, 1000] };
    let mut out = format!(
        "BandPilot, figures 5 and 9: accuracy on unseen multi-host allocations, models of random samples, means of seeds {:?}\n\
         printed: R2 above 0.95 and MAPE below 5 % with 250 samples (Het-4Mix); their public code, run: 0.91 and 6.3 % (H100)\n",
        effort.seeds
    );
    let mut rows = Vec::new();
    for c in clusters {
        let truth = truth_of(dir, c, None)?;
        for m in models {
            let tasks: Vec<(usize, u64)> =
                samples.iter().flat_map(|n| effort.seeds.iter().map(move |s| (*n, *s))).collect();
            let points = tasks
                .par_iter()
                .map(|(n, s)| point(truth.as_ref(), m, DesignKind::Random, *n, &settings(effort), *s))
                .collect::<Result<Vec<_>, _>>()
                .map_err(Failure::impossible)?;
            for n in samples {
                let of: Vec<_> = points.iter().filter(|p| p.samples == *n).collect();
                let taken = of.iter().map(|p| p.taken).min().unwrap_or(0);
                rows.push(vec![
                    (*c).to_owned(),
                    (*m).to_owned(),
                    if taken < *n { format!("{n} ({taken})") } else { n.to_string() },
                    format!("{:.3}", mean(of.iter().map(|p| p.random.r2))),
                    format!("{:.1}", mean(of.iter().map(|p| p.random.mape_pct))),
                    format!("{:.3}", mean(of.iter().map(|p| p.decisions.r2))),
                    format!("{:.1}", mean(of.iter().map(|p| p.decisions.mape_pct))),
                ]);
            }
        }
    }
    let head = ["cluster", "model", "samples", "random R2", "random MAPE %", "compared R2", "compared MAPE %"];
    out += &table(&head, 2, rows);
    out += "random: random allocations; compared: those that a decision compares; (n): the truth has only n rows for the design\n";
    Ok(out)
}

fn by_k(
    dir: &str,
    effort: &Effort,
    clusters: &[&str],
    methods: &str,
    what: &str,
    of: fn(&Run) -> &Vec<f64>,
) -> Result<String, Failure> {
    let mut out = format!("BandPilot, figures 6, 7 and 10: {what}, by k\n{}", protocol(effort));
    for c in clusters {
        let runs = replay(dir, c, methods, effort)?;
        let head: Vec<&str> = std::iter::once(*c).chain(runs.iter().map(|r| r.name.as_str())).collect();
        let row = |k: Option<usize>| -> Vec<String> {
            let value = |r: &Run| mean(r.k.iter().zip(of(r)).filter(|p| k.is_none_or(|k| *p.0 == k)).map(|p| *p.1));
            let name = k.map_or("all".to_owned(), |k| format!("k={k}"));
            std::iter::once(name).chain(runs.iter().map(|r| format!("{:.2}", value(r)))).collect()
        };
        out += &table(&head, 1, (2..=32).map(Some).chain([None]).map(row));
    }
    Ok(out)
}

fn table_2(dir: &str, effort: &Effort) -> Result<String, Failure> {
    let mut out = format!(
        "BandPilot, table 2: mean GBE %, 5th percentile, worst, mean loss GB/s; (published)\n{}",
        protocol(effort)
    );
    for (i, c) in CLUSTERS[..2].iter().enumerate() {
        let _ = writeln!(out, "{c}");
        for r in replay(dir, c, FIGURE_6, effort)? {
            let Some(s) = summary(r.gbe_pct.iter().copied()) else { continue };
            let printed = TABLE_2.iter().find(|t| t.0 == r.name).map(|t| if i == 0 { t.1 } else { t.2 });
            let (gbe, loss) = printed
                .map_or((String::new(), String::new()), |p| (format!(" ({:.2})", p[0]), format!(" ({:.2})", p[1])));
            let _ = writeln!(
                out,
                "  {:<16} {:6.2}{gbe:<9} {:6.1} {:6.1}   loss {:6.2}{loss}",
                r.name,
                s.mean,
                s.p5,
                s.worst,
                mean(r.loss_gb_per_s.iter().copied())
            );
        }
    }
    Ok(out)
}

fn figure_8(dir: &str, effort: &Effort) -> Result<String, Failure> {
    let runs = replay(dir, "h100", "eha,pts,bandpilot,gp", effort)?;
    let mut out = format!(
        "BandPilot, figure 8: milliseconds per decision (median), of these inside the model; printed: well under 250 ms\n{}",
        protocol(effort)
    );
    let head: Vec<&str> = std::iter::once("k").chain(runs.iter().map(|r| r.name.as_str())).collect();
    let row = |k: usize| -> Vec<String> {
        let median = |r: &Run, of: fn(&Run) -> &Vec<f64>| {
            let mut v: Vec<f64> = r.k.iter().zip(of(r)).filter(|p| *p.0 == k).map(|p| *p.1 / 1e3).collect();
            v.sort_by(f64::total_cmp);
            stats::quantile_of_sorted(&v, 0.5)
        };
        let cells =
            runs.iter().map(|r| format!("{:.2} ({:.2})", median(r, |r| &r.decide_us), median(r, |r| &r.predict_us)));
        std::iter::once(k.to_string()).chain(cells).collect()
    };
    out += &table(&head, 1, [2, 4, 8, 12, 16, 20, 24, 28, 32].map(row));
    Ok(out)
}

/// Share of pairs that two lists put into the same order, percent; pairs within 2 % of each other are skipped.
fn agreement(pairs: &[(f64, f64)]) -> f64 {
    let (mut alike, mut all) = (0usize, 0usize);
    for (i, a) in pairs.iter().enumerate() {
        for b in &pairs[..i] {
            let apart = |x: f64, y: f64| (x / y).ln().abs() > 0.02;
            if apart(a.0, b.0) && apart(a.1, b.1) {
                all += 1;
                alike += usize::from((a.0 > b.0) == (a.1 > b.1));
            }
        }
    }
    100.0 * alike as f64 / all.max(1) as f64
}

fn figure_11(dir: &str) -> Result<String, Failure> {
    let (small, large) = (truth_of(dir, "h100", Some(Bytes::mib(16)))?, truth_of(dir, "h100", Some(Bytes::gib(2)))?);
    let mut out = String::from(
        "BandPilot, figure 11: the sizes and collectives of that study are not public; of the published tables, 16 MiB against 2 GiB\n",
    );
    let both = |list: Vec<Allocation>| -> Vec<(f64, f64)> {
        list.iter().filter_map(|a| Some((small.busbw_gb_per_s(a)?, large.busbw_gb_per_s(a)?))).collect()
    };
    let intra =
        |h: u32| GpuMask::first(8).subsets().filter(|m| m.count() > 1).map(move |m| Allocation::new([(HostId(h), m)]));
    let single = both((0..4).flat_map(intra).collect());
    let mut several = Vec::new();
    for a in 1..=8 {
        for b in 1..=a {
            for c in 0..=b {
                for d in 0..=c {
                    let counts = [a, b, c, d].into_iter().enumerate().filter(|c| c.1 > 0);
                    several.push(Allocation::new(counts.map(|(h, c)| (HostId(h as u32), GpuMask::first(c)))));
                }
            }
        }
    }
    let several = both(several);
    for (name, pairs) in [("inside a host", &single), ("over hosts", &several)] {
        let _ = writeln!(
            out,
            "  {name:<14} {:>4} sets with both sizes; {:5.1} % of pairs that differ by more than 2 % have the same order",
            pairs.len(),
            agreement(pairs)
        );
    }
    Ok(out)
}

fn appendix_a() -> String {
    // 70e9 parameters of 2 bytes, 500,000 steps (appendix A).
    let (gradient_gb, steps) = (140.0, 500_000.0);
    let (best, packed) = (412.49, 157.30);
    let seconds = |busbw: f64| gradient_gb / busbw;
    let days = (seconds(packed) - seconds(best)) * steps / 86_400.0;
    format!(
        "BandPilot, appendix A: 140 GB of gradients per step, 500,000 steps, as the paper counts (T = N / bandwidth)\n  5+5 at {best} GB/s: \
         {:.2} s per step; 8+2 at {packed} GB/s: {:.2} s\n  difference {days:.2} days (printed: 3.2, from rounded seconds)\n",
        seconds(best),
        seconds(packed)
    )
}

fn footprint(dir: &str, effort: &Effort) -> Result<String, Failure> {
    use crate::evaluation::{guides, sampling};
    let truth = truth_of(dir, "h100", None)?;
    let constants = fabric::Constants::unfitted();
    let seed = effort.seeds.first().copied().unwrap_or(1);
    let intra = sampling::readings(truth.as_ref(), seed, |r| r.intra());
    let mut out = String::from("BandPilot, footprint: printed 354 KB for the model and 12 KB per host\n");
    for (kind, samples) in [("transformer", 250), ("gp", 100), ("gp", 250)] {
        let multi = guides::sample(truth.as_ref(), samples, DesignKind::Random, &constants, seed, &intra);
        let rows: Vec<store::Measurement> = intra.iter().chain(&multi).cloned().collect();
        let m = guides::fit_kind(kind, truth.as_ref(), &rows, &constants, seed).map_err(Failure::impossible)?;
        let file = m.save().map_err(Failure::impossible)?.len();
        let _ = writeln!(out, "  {kind:<12} {samples} samples: file of {file} bytes, intra tables of 4 hosts included");
    }
    out += "  intra table of one host: 256 subsets of 8 bytes, 2 KB in memory; equal hosts share one\n";
    Ok(out)
}
