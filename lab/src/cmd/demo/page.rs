//! The demo's page: the results of the steps, with plots.

use super::folder::Folder;
use super::replay::{EVEN, LINKWISE, PACKED, RANDOM, by_k};
use super::{PROBES, Run, SAMPLES, words};
use ::report::{Axis, BarSeries, Drawing, Place, Plot, Report, Section, Series, Table};
use console::Failure;
use std::path::PathBuf;

/// Writes `gbe-by-k.svg` and `report.html`; returns the path of the latter.
pub fn write(run: &Run, folder: &Folder) -> Result<PathBuf, Failure> {
    folder.write("gbe-by-k.svg", &gbe_by_k(run).svg(Place::File).map_err(Failure::input)?)?;
    folder.write("report.html", &report(run).html().map_err(Failure::input)?)
}

fn report(run: &Run) -> Report {
    let kind = words::kind(run.truth);
    Report {
        title: match run.truth.is_simulated() {
            true => "Placing jobs on a SIMULATED H100 cluster".into(),
            false => "Placing jobs on four measured H100 hosts".into(),
        },
        subtitle: words::nature(run.truth),
        generated_from: format!(
            "linkwise {} demo, seed {}, {} requests per number of GPUs, {SAMPLES} multi-host samples. {}",
            env!("CARGO_PKG_VERSION"),
            run.seed,
            run.per_k,
            words::nature(run.truth)
        ),
        sections: vec![
            comparison(run, kind),
            decision(run, kind),
            closed_loop(run),
            prediction(run, kind),
            measurements(run, kind),
            cluster(run),
        ],
    }
}

fn comparison(run: &Run, kind: &str) -> Section {
    let (head, rows) = words::comparison_table(&run.replay);
    let caption = format!("Bandwidth of the choice over the best possible one (GBE), {kind}.");
    Section {
        heading: format!("Against packing: {} requests", run.replay.decided.len()),
        paragraphs: vec![
            format!(
                "Every request asks for 2 to {} of the free GPUs. Packing takes as few hosts as possible, as schedulers do; \
                 linkwise takes the GPUs with the highest predicted bandwidth; the best possible choice follows from the \
                 {kind} bandwidth of every candidate. With probes, linkwise takes readings of {PROBES} candidates before it \
                 decides.",
                run.cluster.gpu_count()
            ),
            words::gains(&run.replay, run.truth).join(" "),
        ],
        table: Some(Table { caption, head, rows }),
        plots: vec![gbe_by_k(run), gain_over_packing(run, kind)],
        ..Section::default()
    }
}

fn gbe_by_k(run: &Run) -> Plot {
    let series = |name: &str, at: usize| Series {
        name: name.into(),
        points: by_k(&run.replay.methods[at]).into_iter().map(|(k, v)| (k as f64, v)).collect(),
    };
    let title = match run.truth.is_simulated() {
        true => "Bandwidth that jobs get on 4 x 8 H100, all-reduce of 16 MiB, SIMULATED",
        false => "Bandwidth that jobs get on 4 x 8 H100, all-reduce of 16 MiB, measured",
    };
    Plot::Lines {
        title: title.into(),
        x: Axis::linear("GPUs requested"),
        y: Axis::linear("% of the best possible, mean"),
        series: vec![
            series("linkwise", LINKWISE),
            series("even", EVEN),
            series("packed", PACKED),
            series("random", RANDOM),
        ],
    }
}

fn gain_over_packing(run: &Run, kind: &str) -> Plot {
    let mut gains: Vec<f64> = run.replay.decided.iter().map(|d| d.gain()).collect();
    gains.sort_by(|a, b| b.total_cmp(a));
    let n = gains.len().max(1) as f64;
    let points = |f: &dyn Fn(f64) -> f64| -> Vec<(f64, f64)> {
        gains.iter().enumerate().map(|(i, g)| (100.0 * (i as f64 + 0.5) / n, f(*g))).collect()
    };
    Plot::Lines {
        title: format!("What linkwise gains over packing, requests sorted by gain ({kind})"),
        x: Axis::linear("share of requests, %"),
        y: Axis::log("times the packed choice's bandwidth"),
        series: vec![
            Series { name: "linkwise".into(), points: points(&|g| g) },
            Series { name: "packed".into(), points: points(&|_| 1.0) },
        ],
    }
}

fn decision(run: &Run, kind: &str) -> Section {
    let heading = "One decision: where packing loses most".to_owned();
    let Some(e) = &run.explained else {
        return Section { heading, paragraphs: vec!["No request could be judged.".into()], ..Section::default() };
    };
    let (head, rows) = words::choices_table(e, run.truth);
    let caption = format!(
        "The best choices by linkwise and the packed one; bandwidths are predicted (± one deviation) and {kind}."
    );
    let bars = Plot::Bars {
        title: format!("The choices, predicted and {kind}"),
        value: Axis::linear("busbw, GB/s"),
        categories: e.rows.iter().map(|r| format!("{}: {}", r.who, r.split)).collect(),
        series: vec![
            BarSeries { name: "predicted".into(), values: e.rows.iter().map(|r| r.predicted.0.round()).collect() },
            BarSeries {
                name: kind.into(),
                values: e.rows.iter().map(|r| r.truth.map_or(f64::NAN, f64::round)).collect(),
            },
        ],
    };
    Section {
        heading,
        paragraphs: vec![e.request.clone(), e.reasons.join(" ")],
        table: Some(Table { caption, head, rows }),
        plots: vec![bars],
        ..Section::default()
    }
}

fn closed_loop(run: &Run) -> Section {
    let (head, rows) = run.closed.table();
    let mut paragraphs = run.closed.sentences(run.truth);
    paragraphs.push(run.closed.verdict.join(" "));
    let caption = "The decisions, the achieved bandwidth and the consequences; the slow NIC is simulated.".to_owned();
    Section {
        heading: "The loop, closed: a NIC drops to half its rate (SIMULATED)".into(),
        paragraphs,
        table: Some(Table { caption, head, rows }),
        ..Section::default()
    }
}

fn prediction(run: &Run, kind: &str) -> Section {
    let held = &run.fit.held_out;
    let series = |hosts: usize| Series {
        name: format!("{hosts} hosts"),
        points: held.rows.iter().filter(|r| r.0 == hosts).map(|r| (r.1, r.2)).collect(),
    };
    Section {
        heading: "What the model knows".into(),
        paragraphs: vec![format!(
            "The model learned from {} multi-host samples. On {} rows that it has not seen its median error is {:.1} % \
             (R² {:.3}); {:.0} % of them lie within one predicted deviation and {:.0} % within two (a well-calibrated model: \
             68 and 95).",
            run.taken.multi,
            held.rows.len(),
            held.median_error_pct,
            held.r2,
            100.0 * held.within.0,
            100.0 * held.within.1
        )],
        plots: vec![Plot::Scatter {
            title: format!("Predicted and {kind} bandwidth, rows not learned from"),
            x: Axis::linear(format!("{kind} busbw, GB/s")),
            y: Axis::linear("predicted busbw, GB/s"),
            series: (2..=run.cluster.hosts.len()).map(series).collect(),
            diagonal: true,
        }],
        ..Section::default()
    }
}

fn measurements(run: &Run, kind: &str) -> Section {
    let how = match run.truth.is_simulated() {
        true => {
            "Hosts, GPU subsets and splits over hosts each have a separate seeded factor, so that the physics does not \
                 know the best choice."
                .to_owned()
        }
        false => {
            "Inside a host every subset of GPUs has a separate row; over several hosts the tables give the counts \
                  (4+4, 6+2, ...) but not the GPUs and hosts, so that one row stands for all of them."
                .to_owned()
        }
    };
    Section {
        heading: "The readings".into(),
        paragraphs: vec![words::nature(run.truth), how, format!("Into the store demo.db: {}.", run.taken.how)],
        table: Some(Table {
            caption: format!("Readings in the store, {kind}."),
            head: vec!["what".into(), "readings".into()],
            rows: vec![
                vec!["subsets of single hosts (intra tables)".into(), run.taken.intra.to_string()],
                vec!["allocations over several hosts".into(), run.taken.multi.to_string()],
            ],
        }),
        ..Section::default()
    }
}

fn cluster(run: &Run) -> Section {
    Section {
        heading: "The cluster".into(),
        paragraphs: vec![
            "Four hosts of one kind, read from hgx-h100.topo.txt: nvidia-smi topo -m of such a host, written out for this demo."
                .into(),
        ],
        pre: Some(format!(
            "$ linkwise topology import hgx-h100.topo.txt \\\n    {} -o cluster.yaml\n$ linkwise topology show cluster.yaml --format svg",
            words::IMPORT_FLAGS.join(" ")
        )),
        drawings: vec![Drawing {
            alt: format!("The cluster {}: its hosts, GPUs, NICs and links", run.cluster.name),
            svg: draw::svg(run.cluster),
        }],
        ..Section::default()
    }
}
