//! `linkwise-lab route`: planners compared with the static rules, the published figures and the optimum.
//!
//! Everything here is a model: times follow from link capacities ([`route::model`] adds relays and pieces). Only planning times are measured.
//! [`sheet`] defines the table; each other module fills one or two.

mod alltoall;
mod model;
mod p2p;
mod quality;
mod routing;
mod sheet;
mod time;

use ::report::Report;
use console::Failure;
use route::{Demand, Planner, RoutingNetwork, RoutingOptions, Rule, exact};
use sheet::Sheet;
use std::path::PathBuf;

/// The experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Item {
    /// One pair inside a host over 1 to 3 paths (NIMBLE, figure 6a)
    Paths,
    /// One pair between hosts over 1 to 4 rails (NIMBLE, figure 6b)
    Rails,
    /// Exchange with neighbours, one rank sends more (NIMBLE, skewed send/recv)
    Skew,
    /// All-to-all with a hot rank, hotspot ratio 0.4 to 1.0 (NIMBLE, figure 7)
    Hotspot,
    /// A mixture-of-experts block, 2K to 64K tokens (NIMBLE, figure 8)
    Moe,
    /// Planner time on a 1-D stencil (NIMBLE, table 1)
    Stencil,
    /// Real routing of ESFT and the synthetic skew
    Routing,
    /// Traffic shapes for which a planner matters
    Shapes,
    /// Planning time, from 4 to 512 ranks
    Speed,
    /// Gain of several relays in series over one
    Relays,
    /// Gap to the optimum and error of the reported gap over thousands of matrices
    Quality,
}

impl Item {
    /// The experiments that take seconds.
    const QUICK: [Item; 10] = [
        Item::Paths,
        Item::Rails,
        Item::Skew,
        Item::Hotspot,
        Item::Moe,
        Item::Stencil,
        Item::Routing,
        Item::Shapes,
        Item::Speed,
        Item::Relays,
    ];
}

/// Arguments of `linkwise-lab route`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  linkwise-lab route\n  linkwise-lab route hotspot routing --data ../shared/data\n  \
    linkwise-lab route quality --seeds 30\n\n\
    Everything except the planning times is modelled from link capacities, on a model of NIMBLE's testbed: 2 hosts of 4 H100, 120 GB/s a pair, 45.1 GB/s\n\
    a NIC. Published figures are printed for comparison; they were measured on hardware, with another library."
)]
pub struct Args {
    /// Experiments to run (default: all but `quality`)
    #[arg(value_enum)]
    items: Vec<Item>,
    /// Folder of public data; real routing is read from its folder moe/esft [default: $LINKWISE_DATA, else
    /// ../shared/data]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Seeds of every shape of traffic and state of the links, for `quality`
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: console::Format,
    /// Also write a page with the tables
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: Args) -> Result<(), Failure> {
    let items = if args.items.is_empty() { Item::QUICK.to_vec() } else { args.items.clone() };
    let data = args.data.clone().or_else(lab_kit::published::data_folder);
    let mut sheets = Vec::new();
    for item in items {
        let sheet = match item {
            Item::Paths => p2p::paths()?,
            Item::Rails => p2p::rails()?,
            Item::Skew => p2p::skew()?,
            Item::Hotspot => alltoall::hotspot()?,
            Item::Shapes => alltoall::shapes()?,
            Item::Moe => model::moe()?,
            Item::Stencil => time::stencil()?,
            Item::Speed => time::speed()?,
            Item::Routing => {
                routing::routing(data.as_deref(), args.data.is_some() || args.items.contains(&Item::Routing))?
            }
            Item::Relays => quality::relays()?,
            Item::Quality => quality::quality(args.seeds, data.as_deref())?,
        };
        if args.format == console::Format::Text {
            sheet.print();
        }
        sheets.push(sheet);
    }
    if args.format == console::Format::Json {
        println!("{}", serde_json::Value::Array(sheets.iter().map(Sheet::json).collect()));
    }
    if let Some(path) = &args.report {
        let report = Report {
            title: "Routing skewed traffic".into(),
            subtitle: "Modelled from link capacities; only planning times are measured.".into(),
            generated_from: format!("linkwise {} route evaluate", env!("CARGO_PKG_VERSION")),
            sections: sheets.iter().map(Sheet::section).collect(),
        };
        files::write_atomic(path, &report.html().map_err(Failure::impossible)?)?;
    }
    Ok(())
}

/// A built-in network.
fn network(name: &str, options: &RoutingOptions) -> Result<RoutingNetwork, Failure> {
    RoutingNetwork::of(&cluster(name)?, options).map_err(Failure::input)
}

/// The compared plans of one demand.
struct Compared {
    /// Seconds of the reference.
    optimum_s: f64,
    /// Congestion of every static rule over the optimum.
    rules: Vec<(Rule, f64)>,
    /// Congestion of multiplicative weights over the optimum, with the dearest link as price.
    mwu: f64,
    /// Congestion of linkwise's plan over the optimum.
    linkwise: f64,
    /// The gap that linkwise proves.
    reported_gap: f64,
}

impl Compared {
    fn rule(&self, rule: Rule) -> f64 {
        self.rules.iter().find(|r| r.0 == rule).map_or(f64::NAN, |r| r.1)
    }
    /// The best static rule.
    fn best_rule(&self) -> (Rule, f64) {
        self.rules
            .iter()
            .copied()
            .fold((Rule::Direct, f64::INFINITY), |a, b| if b.1 < a.1 * (1.0 - 1e-9) { b } else { a })
    }
}

fn compare(planner: &mut Planner, net: &RoutingNetwork, demand: &Demand) -> Result<Compared, Failure> {
    let optimum_s = exact::plan(net, demand).map_err(failed)?.congestion_s;
    let plan = planner.plan(net, demand).map_err(failed)?;
    let mut rules = Vec::new();
    for rule in Rule::BASELINES {
        rules.push((rule, planner.plan_rule(net, demand, rule).map_err(failed)?.congestion_s / optimum_s));
    }
    let mwu = papers::nimble::plan(net, demand, &papers::nimble::MwuSettings::default()).map_err(failed)?;
    Ok(Compared {
        optimum_s,
        rules,
        mwu: mwu.congestion_s / optimum_s,
        linkwise: plan.congestion_s / optimum_s,
        reported_gap: plan.gap(),
    })
}

/// A built-in cluster, of routing or of the catalog.
fn cluster(name: &str) -> Result<topology::Cluster, Failure> {
    route::builtin::cluster(name).map_or_else(|| console::load_cluster(name), Ok)
}

/// Converts a planner's error into the command's.
fn failed(e: route::PlanError) -> Failure {
    Failure::impossible(e)
}
