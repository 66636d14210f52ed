//! `linkwise route plan`: one plan for one demand, with its bound.

use super::input::{On, Traffic};
use super::print;
use console::DrawnFormat as Format;
use console::Failure;
use route::{Demand, PlanError, Planner, PlannerEntry, PlannerSettings, RoutePlan, RoutingNetwork, Rule};
use std::path::PathBuf;
use std::time::Instant;

/// Limits of the repetitions that measure the planning time: number, and total duration.
const REPEATS_MAX: usize = 51;
const REPEAT_S_MAX: f64 = 0.2;

/// Arguments of `linkwise route plan`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  linkwise route plan demand.csv --cluster rails2x4
  linkwise route plan demand.csv --cluster rails2x4 --link 'n0:2>rail2=x0.5' --link 'n0:0>n0:1=60'
  linkwise route plan demand.csv --cluster site.yaml --gpus 'gpu-[0001-0002]:[0-3]'
  linkwise route plan demand.csv --cluster rails2x4 --format json -o plan.json
  linkwise route plan DATA/moe/esft/law/expert_weights_12.txt --ep 8 --bytes-per-token 14336 \
--cluster rails2x4

A demand of 8 ranks is eight lines of eight byte counts; rank r is GPU r of the job, or of the cluster, in host order. Congestion is the time that the \
busiest link needs, bytes over capacity; no plan needs less than the lower bound. Both follow from the capacities and are not measured. \
Completion adds a model of the cost of relays and pieces.")]
pub struct Args {
    #[command(flatten)]
    traffic: Traffic,
    #[command(flatten)]
    on: On,
    #[arg(long, default_value = "linkwise", value_parser = planner, help = format!("Planner: {}", ::papers::planners().names()))]
    planner: PlannerEntry,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Write to a file instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The planner with this name. The error lists the known planners.
fn planner(name: &str) -> Result<PlannerEntry, String> {
    let known = ::papers::planners();
    known.by_name(name).copied().ok_or_else(|| format!("no planner `{name}`; known: {}", known.names()))
}

/// A planner's error as a failure of the command.
pub fn failed(e: PlanError) -> Failure {
    match e {
        PlanError::Ranks { demand, network } => Failure::input(format!(
            "the demand is of {demand} ranks, but the plan is for {network} GPUs; give a square of {network}, or name {demand} GPUs with --gpus"
        )),
        other => Failure::impossible(other),
    }
}

/// A plan and its evaluation.
pub struct Answer {
    pub cluster: String,
    pub net: RoutingNetwork,
    pub demand: Demand,
    pub planner: PlannerEntry,
    pub plan: RoutePlan,
    /// Congestion of the plan in whole bytes, seconds.
    pub congestion_s: f64,
    pub bottleneck: usize,
    pub planning_us: f64,
    /// The plan of each static rule.
    pub baselines: Vec<(Rule, RoutePlan)>,
    /// Bytes on every link, with the direct rule (`before`) and with this plan (`after`).
    pub before: Vec<u64>,
    pub after: Vec<u64>,
}

impl Answer {
    /// Congestion in whole bytes over the lower bound, minus one.
    pub fn gap(&self) -> f64 {
        if self.plan.lower_bound_s > 0.0 { (self.congestion_s / self.plan.lower_bound_s - 1.0).max(0.0) } else { 0.0 }
    }
    /// Time that a link needs for its bytes, seconds.
    pub fn seconds(&self, link: usize, bytes: &[u64]) -> f64 {
        let capacity = self.net.links[link].capacity_gb_per_s;
        if bytes[link] == 0 { 0.0 } else { bytes[link] as f64 / (capacity * 1e9) }
    }
}

fn answer(args: &Args) -> Result<Answer, Failure> {
    let net = args.on.network()?;
    let demand = args.traffic.demand(net.rank_count())?;
    let mut planner = Planner::new(PlannerSettings::default());
    let begin = Instant::now();
    let mut plan = (args.planner.plan)(&mut planner, &net, &demand).map_err(failed)?;
    let mut times = vec![begin.elapsed().as_secs_f64()];
    let whole = Instant::now();
    while times.len() < REPEATS_MAX && whole.elapsed().as_secs_f64() < REPEAT_S_MAX {
        let begin = Instant::now();
        plan = (args.planner.plan)(&mut planner, &net, &demand).map_err(failed)?;
        times.push(begin.elapsed().as_secs_f64());
    }
    let planning_us = stats::upper_median(&times) * 1e6;
    let mut baselines = Vec::new();
    for rule in Rule::BASELINES {
        baselines.push((rule, planner.plan_rule(&net, &demand, rule).map_err(failed)?));
    }
    let before = baselines[0].1.link_bytes(&net, &demand);
    let after = plan.link_bytes(&net, &demand);
    let mut answer = Answer {
        cluster: args.on.cluster.clone(),
        congestion_s: 0.0,
        bottleneck: plan.bottleneck,
        net,
        demand,
        planner: args.planner,
        plan,
        planning_us,
        baselines,
        before,
        after,
    };
    for l in 0..answer.net.links.len() {
        let seconds = answer.seconds(l, &answer.after);
        if seconds > answer.congestion_s {
            (answer.congestion_s, answer.bottleneck) = (seconds, l);
        }
    }
    Ok(answer)
}

pub fn run(args: Args) -> Result<(), Failure> {
    let answer = answer(&args)?;
    let bytes = match args.format {
        Format::Text => print::text(&answer).into_bytes(),
        Format::Json => {
            let mut out = Vec::new();
            print::json(&answer, &mut out).map_err(|e| Failure::input(format!("cannot write the plan: {e}")))?;
            out
        }
        Format::Svg => format!("{}\n", print::svg(&answer)?).into_bytes(),
    };
    match &args.output {
        Some(path) => files::write_atomic(path, bytes)?,
        None => console::print(&String::from_utf8_lossy(&bytes)),
    }
    Ok(())
}
