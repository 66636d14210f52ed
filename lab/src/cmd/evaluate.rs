//! `linkwise-lab evaluate`: the quality of the choices.

mod curves;
mod online;
mod page;
mod print;
mod resume;

use crate::evaluation::methods::{self, MethodSpec};
use crate::evaluation::replay::{Best, SeedResult};
use crate::evaluation::{Load, Missing, PROBE_NOISE, Settings, ceiling, run_seed};
use crate::ground_truth::{self, Outliers, Rule, Switch};

use console::{Failure, Format, Progress, load_cluster};
use lab_kit::design::DesignArg;
use lab_kit::published::data_folder;
use measure::design::DesignKind;

use rayon::prelude::*;
use std::path::PathBuf;
use topology::{Bytes, Cluster};
use truths::Truth;

/// Arguments of `linkwise-lab evaluate`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  linkwise-lab evaluate --cluster h100 --truth ../shared/data/bandpilot --seeds 5\n  \
    linkwise-lab evaluate --cluster het-4mix --truth rule-r --methods all --contention common\n  \
    linkwise-lab evaluate --cluster h100 --curves transformer,gp --seeds 1\n  \
    linkwise-lab evaluate --scenarios ../shared/data/bandpilot/peer-scenarios-h100.jsonl\n\n\
    Methods: NAME or SEARCH/MODEL, then optionally @SAMPLES, :DESIGN, +PROBES, for example gp+3, exact/gp@50:random, \
    bandpilot/transformer@500; `quick` and `all` are lists."
)]
pub struct Args {
    /// Built-in cluster or cluster file
    #[arg(long, required_unless_present = "scenarios")]
    cluster: Option<String>,
    /// Folder with tables of true bandwidth (docs/data.md), or the name of a simulated truth
    /// [default: the published tables in the default data folder]
    #[arg(long, value_name = "DIR|NAME")]
    truth: Option<String>,
    /// Replay the requests of this file and compare with the choices in it; --truth then defaults to the file's folder
    #[arg(long, value_name = "FILE")]
    scenarios: Option<PathBuf>,
    /// Methods to compare
    #[arg(long, value_delimiter = ',', default_value = "quick")]
    methods: Vec<String>,
    /// Multi-host samples that linkwise's models learn from (the papers' take 250 random ones)
    #[arg(long, default_value_t = 100)]
    samples: usize,
    /// Design of these samples
    #[arg(long, default_value = "stratified")]
    design: DesignArg,
    /// Independent repetitions (samples and requests)
    #[arg(long, default_value_t = 3)]
    seeds: u64,
    /// First seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Twenty seeds instead of --seeds
    #[arg(long)]
    full: bool,
    /// Random availabilities per number of GPUs
    #[arg(long, default_value_t = 50)]
    per_k: usize,
    /// Load on the GPUs that are not free
    #[arg(long, value_enum, default_value = "none")]
    contention: Load,
    /// Rule by which jobs share bandwidth
    #[arg(long, default_value = "merge")]
    sharing: String,
    /// The optimum that GBE refers to
    #[arg(long, value_enum, default_value = "realised")]
    oracle: Best,
    /// Sizes to evaluate (default: all that the truth has)
    #[arg(long, value_delimiter = ',', value_parser = Bytes::parse)]
    sizes: Vec<Bytes>,
    /// Treatment of requests with a candidate without a row in the truth
    #[arg(long, value_enum, default_value = "leave-out")]
    missing: Missing,
    /// Treatment of outliers in measured tables
    #[arg(long, value_enum, default_value = "keep")]
    outliers: Outliers,
    /// Network of a composed cluster: 20, 40, 60 GB/s or random (LiteGD)
    /// [default: a fourth of the measured H100 table]
    #[arg(long, value_name = "GB_PER_S|random")]
    switch: Option<Switch>,
    /// Standard deviation of the irregularity of single allocations, simulated truths only
    #[arg(long, default_value_t = 0.02)]
    irregularity: f64,
    /// Relative noise of a probe's reading, at least
    #[arg(long, value_name = "SHARE", default_value_t = PROBE_NOISE)]
    probe_noise: f64,
    /// Use the shipped constants of the physics (some were fitted on published tables) instead of nominal ones
    #[arg(long)]
    shipped_constants: bool,
    /// Compare a model that learns from each placed job with one that does not; both start from 50 samples
    #[arg(long)]
    online: bool,
    /// Accuracy of these models by number of samples, and by design
    #[arg(long, value_delimiter = ',', value_name = "MODELS")]
    curves: Vec<String>,
    /// A line for every number of GPUs instead of bands
    #[arg(long)]
    by_k: bool,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Also write a page with plots
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Keep each finished seed in this folder; seeds found there are not repeated
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
}

/// The settings of one run, for all of its tables.
struct Protocol {
    cluster: String,
    gpus: usize,
    settings: Settings,
    seeds: Vec<u64>,
    ours: (usize, DesignKind),
}

impl Protocol {
    /// `seeds 1 to 3`.
    fn seed_range(&self) -> String {
        format!("seeds {} to {}", self.seeds.first().unwrap_or(&0), self.seeds.last().unwrap_or(&0))
    }
}

/// `Truth: measured: NAME (DESCRIPTION), SIZE`.
fn truth_line(t: &dyn Truth) -> String {
    let kind = if t.simulated() { "SIMULATED, not measured: " } else { "measured: " };
    format!("Truth: {kind}{} ({}), {}", t.name(), t.description(), t.size())
}

/// The results on one truth.
struct TruthResult {
    name: String,
    description: String,
    simulated: bool,
    size: Bytes,
    results: Vec<SeedResult>,
    /// (k, GBE) of the leave-one-out ceiling, if rows are of counts.
    ceiling: Option<Vec<(usize, f64)>>,
}

pub fn run(args: Args) -> Result<(), Failure> {
    if !(0.0..0.5).contains(&args.probe_noise) {
        return Err(Failure::input("--probe-noise: a share from 0 to 0.5 was expected"));
    }
    let count = if args.full { 20 } else { args.seeds.max(1) };
    let seeds: Vec<u64> = (args.seed..args.seed.saturating_add(count)).collect();
    if let Some(file) = args.scenarios {
        return crate::scenarios::run(&crate::scenarios::ScenarioArgs {
            file,
            truth: args.truth.map(PathBuf::from),
            samples: args.samples,
            design: args.design.into(),
            seeds,
            format: args.format,
        });
    }
    let cluster = load_cluster(&args.cluster.clone().unwrap_or_default())?;
    let truths = truths_of(&args, &cluster)?;
    let contention = crate::evaluation::searches().contention(&args.sharing).ok_or_else(|| {
        let known: Vec<&str> = crate::evaluation::searches().contentions().iter().map(|c| c.name()).collect();
        Failure::input(format!("--sharing {}: known are {}", args.sharing, known.join(", ")))
    })?;
    let protocol = Protocol {
        cluster: cluster.name.clone(),
        gpus: cluster.gpu_count(),
        settings: Settings {
            per_k: args.per_k.clamp(1, 10_000),
            missing: args.missing,
            shipped: args.shipped_constants,
            load: args.contention,
            contention,
            best: args.oracle,
            probe_noise: args.probe_noise,
        },
        seeds,
        ours: (args.samples, args.design.into()),
    };
    if args.online {
        return online::run(&truths, &protocol, args.format);
    }
    if !args.curves.is_empty() {
        return curves::run(&truths, &protocol, &args.curves, args.format, args.report.as_deref());
    }
    let methods = specs(&args.methods, protocol.ours)?;
    let results = truths
        .iter()
        .map(|t| evaluate(t.as_ref(), &methods, &protocol, args.resume.as_deref()))
        .collect::<Result<Vec<_>, _>>()?;
    if let Some(file) = &args.report {
        page::write(file, &protocol, &results)?;
    }
    print::all(&protocol, &results, args.by_k, args.format)
}

fn truths_of(args: &Args, cluster: &Cluster) -> Result<Vec<Box<dyn Truth>>, Failure> {
    let spec = match &args.truth {
        Some(t) => t.clone(),
        None => {
            let folder = data_folder().map(|d| d.join("bandpilot")).filter(|d| d.is_dir()).ok_or_else(|| {
                Failure::input(
                    "no published tables found; name their folder or a simulated truth with --truth (docs/data.md)",
                )
            })?;
            folder.display().to_string()
        }
    };
    let options = ground_truth::Options {
        seed: args.seed,
        irregularity: args.irregularity,
        outliers: args.outliers,
        switch: args.switch,
        rule: Rule::Paper,
    };
    let mut truths = ground_truth::load(&spec, cluster, &options)?;
    truths.retain(|t| args.sizes.is_empty() || args.sizes.contains(&t.size()));
    if truths.is_empty() {
        return Err(Failure::impossible("the truth has no table of the requested sizes"));
    }
    Ok(truths)
}

fn specs(names: &[String], ours: (usize, DesignKind)) -> Result<Vec<MethodSpec>, Failure> {
    let mut out: Vec<MethodSpec> = Vec::new();
    for name in names {
        let list = match name.as_str() {
            "quick" => methods::QUICK,
            "all" => methods::ALL,
            one => one,
        };
        for one in list.split(',') {
            let spec = methods::parse(one.trim(), ours)?;
            if out.iter().all(|m| m.name != spec.name) {
                out.push(spec);
            }
        }
    }
    Ok(out)
}

fn evaluate(
    truth: &dyn Truth,
    methods: &[MethodSpec],
    protocol: &Protocol,
    resume: Option<&std::path::Path>,
) -> Result<TruthResult, Failure> {
    let requests = protocol.gpus.saturating_sub(1) * protocol.settings.per_k * protocol.seeds.len();
    let bar = Progress::new(&format!("{} (requests)", truth.name()), requests);
    let one = |seed: &u64| -> Result<SeedResult, Failure> {
        let name = resume::name(truth, methods, &protocol.settings, *seed);
        if let Some(found) = resume.and_then(|d| resume::read(d, &name)) {
            bar.advance(requests / protocol.seeds.len());
            return Ok(found);
        }
        let result =
            run_seed(truth, methods, &protocol.settings, *seed, &|| bar.advance(1)).map_err(Failure::impossible)?;
        if let Some(d) = resume {
            resume::write(d, &name, &result)?;
        }
        Ok(result)
    };
    let results = protocol.seeds.par_iter().map(one).collect::<Result<Vec<_>, Failure>>()?;
    drop(bar);
    let plain = protocol.settings.load == Load::None && protocol.settings.best == Best::Realised;
    let ceiling = match plain {
        true => ceiling::leave_one_out(truth, &protocol.settings, &protocol.seeds).map_err(Failure::impossible)?,
        false => None,
    };
    Ok(TruthResult {
        name: truth.name().to_owned(),
        description: truth.description().to_owned(),
        simulated: truth.simulated(),
        size: truth.size(),
        results,
        ceiling,
    })
}
