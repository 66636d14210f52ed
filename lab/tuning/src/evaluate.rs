//! `linkwise-lab tune evaluate`: policies in environments whose true times are known.

use super::{check_policy, detector, loops, objective, page, print, targets};
use crate::trials::catalog::{self, Entry};
use crate::trials::{self, RUNS_MAX, Settings};
use ::trial::Score;
use ::trial::policies::POLICIES;
use console::{Failure, Format, Progress};

/// Arguments of `linkwise-lab tune evaluate`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  linkwise-lab tune evaluate --environment cv10,modes\n  \
    linkwise-lab tune evaluate --targets --policy round-robin\n  linkwise-lab tune evaluate --environment list\n  linkwise-lab tune evaluate --loops=k8 --runs 100")]
pub struct Args {
    /// Policies to compare, or `all` [default: the default policy and round-robin]
    #[arg(long, value_delimiter = ',')]
    policy: Vec<String>,
    /// Environments, `all`, or `list` for their names
    #[arg(long, value_delimiter = ',', default_value = "cv10,null,modes,modes-null,worse")]
    environment: Vec<String>,
    /// Measure the targets of a tuner, one line each
    #[arg(long, alias = "aims", conflicts_with_all = ["environment", "calls", "report"])]
    targets: bool,
    /// Evaluate the detection of overlap from times only, instead of policies
    #[arg(long, conflicts_with_all = ["targets", "policy", "environment", "calls", "ranks", "channel_price", "report"])]
    detector: bool,
    /// Evaluate what the plugin does in training loops with many calls per step; with a text, only the loops whose name
    /// contains it
    #[arg(long, value_name = "WORDS", num_args = 0..=1, require_equals = true, default_missing_value = "",
          conflicts_with_all = ["targets", "detector", "policy", "environment", "calls", "ranks", "channel_price", "report"])]
    loops: Option<String>,
    /// With --targets: only the targets whose statement contains this text
    #[arg(long, value_name = "WORDS", requires = "targets")]
    only: Option<String>,
    /// Runs of each environment
    #[arg(long, default_value_t = 1_000)]
    runs: u64,
    /// Calls of a run [default: the environment's]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    calls: Option<u64>,
    /// First seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of ranks that decide separately, with the same readings
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: u32,
    /// Price of a channel, as a share of the time, 0 to 1: policies and scores include it (environment `channels`)
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    channel_price: f64,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Also write a page with learning curves; a name that ends in .svg gets the curves of one environment
    #[arg(long, value_name = "FILE.html|FILE.svg")]
    report: Option<std::path::PathBuf>,
}

/// The score of one policy in one environment.
pub struct PolicyScore {
    pub policy: String,
    pub score: Score,
}

/// Runs the command.
pub fn run(args: Args) -> Result<(), Failure> {
    if !(1..=RUNS_MAX).contains(&args.runs) {
        return Err(Failure::input(format!("--runs {}: 1 to {RUNS_MAX} were expected", args.runs)));
    }
    let settings =
        Settings { runs: args.runs, seed: args.seed, ranks: args.ranks, objective: objective(args.channel_price)? };
    if let Some(words) = &args.loops {
        return loops::run(words, &settings, args.format);
    }
    let policies = policies(&args.policy)?;
    if args.targets {
        return targets::run(&policies, &settings, args.only.as_deref(), args.format);
    }
    let all = catalog::all()?;
    if args.environment == ["list"] {
        return print::list(&all, args.format);
    }
    if args.detector {
        return detector::run(&all, &settings, args.format);
    }
    let mut chosen = choose(all, &args.environment)?;
    trials::check_work(chosen.len(), policies.len(), &settings)?;
    if let Some(calls) = args.calls {
        chosen.iter_mut().for_each(|e| e.spec.calls = calls);
    }
    if let Some(file) = &args.report {
        page::check(file, chosen.len())?;
    }
    let bar = Progress::new("trials (runs)", chosen.len() * policies.len() * args.runs as usize);
    let mut results = Vec::new();
    for entry in &chosen {
        let lines = policies.iter().map(|policy| {
            Ok(PolicyScore {
                policy: policy.clone(),
                score: trials::score(policy, &entry.spec, &settings, &|| bar.advance(1))?,
            })
        });
        results.push(lines.collect::<Result<Vec<_>, Failure>>()?);
    }
    drop(bar);
    if let Some(file) = &args.report {
        page::write(file, &chosen, &results, &settings)?;
    }
    print::scores(&chosen, &results, &settings, args.format)
}

fn policies(asked: &[String]) -> Result<Vec<String>, Failure> {
    let mut out: Vec<String> = Vec::new();
    let mut add = |name: &str| {
        if !out.iter().any(|p| p == name) {
            out.push(name.to_owned());
        }
    };
    for name in asked {
        match name.as_str() {
            "all" => POLICIES.iter().for_each(|p| add(p.name)),
            one => {
                check_policy(one)?;
                add(one);
            }
        }
    }
    if asked.is_empty() {
        add(POLICIES[0].name);
        add("round-robin");
    }
    Ok(out)
}

fn choose(all: Vec<Entry>, asked: &[String]) -> Result<Vec<Entry>, Failure> {
    if asked == ["all"] {
        return Ok(all);
    }
    for name in asked {
        if !all.iter().any(|e| e.spec.name == *name) {
            let names: Vec<&str> = all.iter().map(|e| e.spec.name.as_str()).collect();
            let near = topology::diagnose::did_you_mean(name, names);
            let hint = near.map_or(String::new(), |n| format!("; did you mean `{n}`?"));
            return Err(Failure::input(format!(
                "there is no environment `{name}`; `--environment list` shows them{hint}"
            )));
        }
    }
    Ok(all.into_iter().filter(|e| asked.contains(&e.spec.name)).collect())
}
