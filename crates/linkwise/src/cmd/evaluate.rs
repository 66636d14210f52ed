//! `linkwise evaluate`: how good are the choices?

use crate::cmd::shared::load_cluster;
use crate::evaluation::{Method, Missing, SeedResult, Settings, leave_one_out, run_seed, summary};
use crate::failure::Failure;
use crate::truth::{self, Truth};
use comfy_table::{CellAlignment, Table, presets};
use rayon::prelude::*;
use std::path::PathBuf;
use topology::Bytes;

/// Arguments of `linkwise evaluate`.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  linkwise evaluate --cluster h100 --truth ../shared/data/bandpilot --samples 100 --seeds 5"
)]
pub struct Args {
    /// Built-in cluster or cluster file
    #[arg(long, required_unless_present = "scenarios")]
    cluster: Option<String>,
    /// Folder with tables of true bandwidth (docs/data.md)
    #[arg(long, required_unless_present = "scenarios")]
    truth: Option<PathBuf>,
    /// Replay the requests of such a file instead, beside what others chose; --truth then defaults to the file's folder
    #[arg(long, value_name = "FILE")]
    scenarios: Option<PathBuf>,
    /// Multi-host samples that a model learns from
    #[arg(long, default_value_t = 100)]
    samples: usize,
    /// How samples are chosen
    #[arg(long, default_value = "stratified")]
    design: DesignArg,
    /// Independent repetitions (samples and requests)
    #[arg(long, default_value_t = 5)]
    seeds: u64,
    /// First seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Random availabilities per number of GPUs
    #[arg(long, default_value_t = 10)]
    per_k: usize,
    /// Probes of the probing method
    #[arg(long, default_value_t = 3)]
    probes: usize,
    /// Sizes to evaluate (default: all that the truth has)
    #[arg(long, value_delimiter = ',', value_parser = Bytes::parse)]
    sizes: Vec<Bytes>,
    /// Requests some of whose candidates have no true row
    #[arg(long, value_enum, default_value = "leave-out")]
    missing: Missing,
    /// Let the physics use the constants that linkwise ships, some of which were fitted on published tables, instead of nominal ones
    #[arg(long)]
    shipped_constants: bool,
    /// A line for every number of GPUs instead of bands
    #[arg(long)]
    by_k: bool,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: crate::cmd::shared::Format,
}

/// A design by name.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum DesignArg {
    /// Random GPUs
    Random,
    /// Spread over host counts and splits
    Stratified,
    /// Most unbalanced splits
    WorstCase,
    /// Where the model is uncertain
    Adaptive,
}

impl From<DesignArg> for measure::design::DesignKind {
    fn from(d: DesignArg) -> Self {
        match d {
            DesignArg::Random => Self::Random,
            DesignArg::Stratified => Self::Stratified,
            DesignArg::WorstCase => Self::WorstCase,
            DesignArg::Adaptive => Self::Adaptive,
        }
    }
}

/// Everything that was found for one size.
#[derive(serde::Serialize)]
struct SizeReport {
    size_bytes: u64,
    left_out: usize,
    samples: usize,
    methods: Vec<MethodReport>,
    r2: f64,
    mape_pct: f64,
    within_one_sd: f64,
    within_two_sd: f64,
    fit_s: f64,
    decide_us_median: f64,
}

#[derive(serde::Serialize)]
struct MethodReport {
    method: String,
    mean_pct: f64,
    p5_pct: f64,
    worst_pct: f64,
    requests: usize,
    by_k: Vec<(usize, f64)>,
}

fn report_method(m: &Method) -> Option<MethodReport> {
    let s = summary(m.gbe_pct.iter().map(|g| g.1))?;
    let mut by_k = Vec::new();
    let max = m.gbe_pct.iter().map(|g| g.0).max().unwrap_or(0);
    for k in 2..=max {
        if let Some(s) = summary(m.gbe_pct.iter().filter(|g| g.0 == k).map(|g| g.1)) {
            by_k.push((k, s.mean));
        }
    }
    Some(MethodReport {
        method: m.name.clone(),
        mean_pct: s.mean,
        p5_pct: s.p5,
        worst_pct: s.worst,
        requests: s.requests,
        by_k,
    })
}

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    if let Some(file) = args.scenarios {
        return crate::scenarios::run(&crate::scenarios::ScenarioArgs {
            file,
            truth: args.truth,
            samples: args.samples,
            design: args.design.into(),
            seeds: (args.seed..args.seed + args.seeds.max(1)).collect(),
            format: args.format,
        });
    }
    let cluster = load_cluster(&args.cluster.unwrap_or_default())?;
    let truths = truth::load(&args.truth.unwrap_or_default(), &cluster)?;
    let settings = Settings {
        samples: args.samples,
        design: args.design.into(),
        per_k: args.per_k,
        probes: args.probes,
        missing: args.missing,
        shipped: args.shipped_constants,
    };
    let seeds: Vec<u64> = (args.seed..args.seed + args.seeds.max(1)).collect();
    let mut reports = Vec::new();
    for truth in truths.iter().filter(|t| args.sizes.is_empty() || args.sizes.contains(&t.size)) {
        reports.push(evaluate(&cluster, truth, &settings, &seeds)?);
    }
    if reports.is_empty() {
        return Err(Failure::impossible("the truth has no table of the sizes asked for"));
    }
    if args.format == crate::cmd::shared::Format::Json {
        println!("{}", serde_json::to_string_pretty(&reports).map_err(Failure::input)?);
        return Ok(());
    }
    let missing = match settings.missing {
        Missing::LeaveOut => "requests with a candidate that has no row are left out",
        Missing::Restrict => "candidates without a row exist for nobody, the optimum included",
    };
    println!(
        "Protocol: cluster {}, k = 2 to {}, {} random availabilities per k (free GPUs even between k and all), seeds {} to {};\n\
         models learn from {} multi-host samples ({}) and the hosts' intra tables; the optimum is the realised best row;\n\
         no contention; {missing}. GBE = bandwidth of the choice over the optimum, percent.\n\
         Leave-one-out ceiling: every row predicted from all others; a model that saw the very row can do better.",
        cluster.name,
        cluster.gpu_count(),
        settings.per_k,
        seeds[0],
        seeds[seeds.len() - 1],
        settings.samples,
        settings.design.name(),
    );
    for r in &reports {
        print_report(r, &settings, args.by_k);
    }
    Ok(())
}

fn evaluate(
    cluster: &topology::Cluster,
    truth: &Truth,
    settings: &Settings,
    seeds: &[u64],
) -> Result<SizeReport, Failure> {
    let runs: Vec<SeedResult> = seeds
        .par_iter()
        .map(|s| run_seed(cluster, truth, settings, *s))
        .collect::<Result<_, _>>()
        .map_err(Failure::impossible)?;
    let mut methods: Vec<Method> = runs[0].methods.clone();
    for run in &runs[1..] {
        for (all, one) in methods.iter_mut().zip(&run.methods) {
            all.gbe_pct.extend(&one.gbe_pct);
        }
    }
    methods.push(leave_one_out(cluster, truth, settings, seeds).map_err(Failure::impossible)?);
    let mean = |f: &dyn Fn(&SeedResult) -> f64| runs.iter().map(f).sum::<f64>() / runs.len() as f64;
    let mut us: Vec<f64> = runs.iter().flat_map(|r| r.decide_us.iter().copied()).collect();
    us.sort_by(f64::total_cmp);
    Ok(SizeReport {
        size_bytes: truth.size.0,
        left_out: runs.iter().map(|r| r.left_out).sum(),
        samples: runs.iter().map(|r| r.samples).min().unwrap_or(0),
        methods: methods.iter().filter_map(report_method).collect(),
        r2: mean(&|r| r.accuracy.r2),
        mape_pct: mean(&|r| r.accuracy.mape_pct),
        within_one_sd: mean(&|r| r.accuracy.within_one_sd),
        within_two_sd: mean(&|r| r.accuracy.within_two_sd),
        fit_s: mean(&|r| r.fit_s),
        decide_us_median: us.get(us.len() / 2).copied().unwrap_or(f64::NAN),
    })
}

fn print_report(r: &SizeReport, settings: &Settings, by_k: bool) {
    let size = Bytes(r.size_bytes);
    println!("\n{size}: {} samples, {} requests left out", r.samples, r.left_out);
    if r.methods.is_empty() {
        println!("  every request has a candidate without a row; --missing restrict evaluates on the rows that exist");
        return;
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header(["method", "mean", "5th pct", "worst", "requests"]);
    for m in &r.methods {
        let name =
            if m.method == "gp + probes" { format!("gp + {} probes", settings.probes) } else { m.method.clone() };
        table.add_row([
            name,
            format!("{:.2}", m.mean_pct),
            format!("{:.1}", m.p5_pct),
            format!("{:.1}", m.worst_pct),
            m.requests.to_string(),
        ]);
    }
    for c in 1..5 {
        if let Some(c) = table.column_mut(c) {
            c.set_cell_alignment(CellAlignment::Right);
        }
    }
    println!("{table}");
    println!(
        "gp on held-out rows: R2 {:.3}, MAPE {:.1} %, {:.0} % within one deviation, {:.0} % within two; fit {:.2} s; decision {:.0} us (median)",
        r.r2,
        r.mape_pct,
        100.0 * r.within_one_sd,
        100.0 * r.within_two_sd,
        r.fit_s,
        r.decide_us_median
    );
    // Every k on request, else bands of k: mean GBE.
    let max = r.methods.iter().flat_map(|m| m.by_k.iter().map(|b| b.0)).max().unwrap_or(0);
    let bands: Vec<(usize, usize)> = if by_k {
        (2..=max).map(|k| (k, k)).collect()
    } else {
        [(2, 4), (5, 8), (9, 16), (17, 24), (25, max)].into_iter().filter(|b| b.0 <= max && b.0 <= b.1).collect()
    };
    let mut table = Table::new();
    let names: Vec<String> =
        std::iter::once("mean by k".to_owned()).chain(r.methods.iter().map(|m| m.method.clone())).collect();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_header(names);
    for (from, to) in bands {
        let cells = r.methods.iter().map(|m| {
            let inside: Vec<f64> = m.by_k.iter().filter(|b| (from..=to).contains(&b.0)).map(|b| b.1).collect();
            if inside.is_empty() {
                String::new()
            } else {
                format!("{:.1}", inside.iter().sum::<f64>() / inside.len() as f64)
            }
        });
        let label = if from == to { from.to_string() } else { format!("{from} to {to}") };
        table.add_row(std::iter::once(label).chain(cells));
    }
    println!("{table}");
}
