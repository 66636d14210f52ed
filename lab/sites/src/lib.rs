//! `linkwise-lab sites`: placement on truths that resemble sites. Simulated.

#![forbid(unsafe_code)]

mod backend;
mod decoder;
pub mod doctor;
mod evaluate;
mod form;
mod oracle;
mod print;
mod requests;
pub mod rules;

use console::{Failure, Format, Progress};
use evaluate::{Cell, METHODS, Settings, cell};
use files::{read_text, write_atomic};
use lab_kit::design::DesignArg;
use measure::DesignKind;
use rayon::prelude::*;
use std::path::{Path, PathBuf};
use truths::site::KINDS;

/// Largest file of one cell.
const FILE_BYTES_MAX: usize = 64 << 20;
/// Maximum number of requests of a cell.
const REQUESTS_MAX: usize = 10_000;
/// Requests and seeds of `--quick`.
const QUICK: (usize, u64) = (12, 1);

/// Arguments of `linkwise-lab sites`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  linkwise-lab sites --quick\n  \
    linkwise-lab sites --kind leaf64,pods128 --methods even,gp,smooth\n  \
    linkwise-lab sites --resume out/sites --format json\n\n\
    Methods: even, packed, slurm, kueue, random (no readings); bound, gp or another kind of model (fitted and asked \
    as `linkwise fit` and `linkwise place` do); form (fits the truth's own form to the same readings; kinds without \
    defects); smooth (knows everything except the irregularity of single splits). \
    All bandwidths are simulated.")]
pub struct Args {
    /// Kinds of sites [default: all]
    #[arg(long = "kind", value_name = "KIND", value_delimiter = ',')]
    kinds: Vec<String>,
    /// List the kinds and the hidden fact of each
    #[arg(long)]
    list: bool,
    /// Sites per kind
    #[arg(long, default_value_t = 3)]
    seeds: u64,
    /// First seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Requests per site
    #[arg(long, default_value_t = 20)]
    requests: usize,
    /// Twelve requests and one seed
    #[arg(long)]
    quick: bool,
    /// Multi-host samples for the models
    #[arg(long, default_value_t = 100)]
    samples: usize,
    /// Design of these samples
    #[arg(long, value_enum, default_value = "stratified")]
    design: DesignArg,
    /// Methods to compare
    #[arg(long, value_delimiter = ',', default_values_t = METHODS.map(str::to_owned))]
    methods: Vec<String>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Keep each finished site in this folder and do not repeat sites found there. Valid for one build of the program
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: Args) -> Result<(), Failure> {
    if args.list {
        print::kinds();
        return Ok(());
    }
    let kinds = kinds(&args.kinds)?;
    let quick = |all: usize, few: usize| if args.quick { few.min(all) } else { all };
    let settings = Settings {
        requests: quick(args.requests, QUICK.0),
        samples: args.samples.min(measure::design::SAMPLE_SIZE_MAX),
        design: args.design.into(),
        methods: args.methods,
    };
    if !(1..=REQUESTS_MAX).contains(&settings.requests) {
        return Err(Failure::input(format!("--requests: 1 to {REQUESTS_MAX} were expected")));
    }
    let seeds = if args.quick { QUICK.1 } else { args.seeds.clamp(1, 1000) };
    let wanted: Vec<(&str, u64)> =
        kinds.iter().flat_map(|k| (0..seeds).map(|s| (*k, args.seed.saturating_add(s)))).collect();
    let progress = Progress::new("sites (simulated)", wanted.len());
    let one = |&(kind, seed): &(&str, u64)| -> Result<Cell, Failure> {
        let file = args.resume.as_deref().map(|d| (d, name(kind, seed, &settings)));
        let found = file.as_ref().and_then(|(d, name)| read(d, name));
        let cell = match found {
            Some(c) => c,
            None => {
                let made = cell(kind, seed, &settings).map_err(Failure::input)?;
                if let Some((d, name)) = &file {
                    write(d, name, &made)?;
                }
                made
            }
        };
        progress.advance(1);
        Ok(cell)
    };
    // Small tasks keep all cores busy; otherwise one core could get several large sites in a row.
    let cells: Result<Vec<Cell>, Failure> = wanted.par_iter().with_max_len(1).map(one).collect();
    drop(progress);
    print::all(&kinds, &cells?, &settings, args.format)
}

fn kinds(names: &[String]) -> Result<Vec<&'static str>, Failure> {
    if names.is_empty() {
        return Ok(KINDS.iter().map(|k| k.name).collect());
    }
    let find = |name: &String| {
        KINDS.iter().map(|k| k.name).find(|k| k == name).ok_or_else(|| {
            let near = topology::diagnose::did_you_mean(name, KINDS.iter().map(|k| k.name));
            let near = near.map_or(String::new(), |n| format!("; did you mean `{n}`?"));
            Failure::input(format!("--kind: `{name}` is not a kind of site{near} `--list` shows all kinds"))
        })
    };
    names.iter().map(find).collect()
}

/// The file of a cell. The name contains every setting that the result depends on, but not the code.
fn name(kind: &str, seed: u64, s: &Settings) -> String {
    let design: DesignKind = s.design;
    let all = format!("{} {} {} {} {:?}", env!("CARGO_PKG_VERSION"), s.requests, s.samples, design.name(), s.methods);
    format!("{kind}-{seed}-{:016x}.json", store::digest::fnv64_of_bytes(all.bytes()))
}

fn read(dir: &Path, name: &str) -> Option<Cell> {
    let path = dir.join(name);
    let text = path.exists().then(|| read_text(&path, FILE_BYTES_MAX).ok())??;
    serde_json::from_str(&text).ok()
}

fn write(dir: &Path, name: &str, cell: &Cell) -> Result<(), Failure> {
    std::fs::create_dir_all(dir).map_err(|e| Failure::file("make the folder", dir, e))?;
    Ok(write_atomic(&dir.join(name), serde_json::to_string(cell).map_err(Failure::input)?)?)
}
