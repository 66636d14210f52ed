//! `linkwise doctor`: hosts, GPUs and NICs that are slower than identical hardware. `linkwise doctor install`: this host's installation.

mod install;

use crate::brief::{self, gb};
use crate::cmd::open;
use crate::store_errors::OrFailure;
use console::{Failure, Format, table, text_of, wrap};
use engine::{CandidateAnswer, DefectAnswer, DiagnoseAnswer, DiagnoseRequest, GpuList};
use std::path::PathBuf;
use topology::{Cluster, Collective, count};

/// Arguments of `linkwise doctor`.
#[derive(clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "linkwise doctor --store <STORE> [OPTIONS]\n       linkwise doctor install [OPTIONS]",
    after_help = "Examples:\n  linkwise measure --backend nccl-tests --cluster site.yaml --store S.db --design rail-sweep\n  linkwise doctor --store S.db --cluster site.yaml\n  linkwise doctor --store S.db --state site.state --format json\n\n\
    Every reading is compared with readings of comparable GPUs, and a difference is explained by a defect where one is probable: a slow \
    NIC slows the jobs that use it and no others. Probabilities are over all components, shares of rate and moments; at most one \
    defect in five hundred components, and one on five sites, is expected beforehand. The share of outliers is that which the readings show. The exit code is 0 whether or not a defect is found; --exit-code makes it 1 if a defect is \
    named (DEFECT: probability of one component 50 % or more) or a shared part is slow (SLOW). A SUSPICION leaves it 0."
)]
pub struct Args {
    #[command(subcommand)]
    what: Option<Commands>,
    #[command(flatten)]
    readings: Option<ReadingsArgs>,
}

/// What else is checked.
#[derive(clap::Subcommand)]
enum Commands {
    /// Check this host's installation: the plugin with every NCCL found, glibc, permissions, driver, RDMA
    Install(install::Args),
}

/// Arguments of the search for slow parts.
#[derive(clap::Args)]
struct ReadingsArgs {
    /// Store with measurements
    #[arg(long)]
    store: PathBuf,
    /// Built-in cluster or cluster file
    #[arg(long, required_unless_present = "state")]
    cluster: Option<String>,
    /// State file: its suspects are replaced by what is found, so that `place --state` prefers others
    #[arg(long)]
    state: Option<PathBuf>,
    /// Collective whose readings are judged (default: the one that the store holds)
    #[arg(long, value_parser = clap::value_parser!(Collective))]
    collective: Option<Collective>,
    /// Exit with code 1 if a defect is named (probability of one component 50 % or more) or a shared part is slow; a suspicion is neither
    #[arg(long)]
    exit_code: bool,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// Maximum number of hosts in the table.
const HOSTS_SHOWN: usize = 8;
/// A host is unusual from this distance to its class on, standard deviations.
const UNUSUAL_SDS: f64 = 3.0;
/// Maximum number of candidates per defect in the text.
const CANDIDATES_SHOWN: usize = 4;
/// From this probability on, the report proposes no further measurement.
const SURE: f64 = 0.9;
/// Maximum length of the GPU list of an unexplained outlier, characters: the list and its figures fit two lines.
const OUTLIER_CHARS_MAX: usize = 70;
/// Maximum number of unexplained outliers in the text.
const STRAY_SHOWN: usize = 5;

pub fn run(args: Args) -> Result<(), Failure> {
    match (args.what, args.readings) {
        (Some(Commands::Install(args)), _) => install::run(&args),
        (None, Some(args)) => slow_parts(&args),
        (None, None) => Err(Failure::input("--store is needed: the file with the measurements")),
    }
}

fn slow_parts(args: &ReadingsArgs) -> Result<(), Failure> {
    let builder = open::with_state(args.cluster.as_deref(), args.state.as_deref())?;
    let store = open::store(&args.store, builder.cluster())?;
    let engine = builder.store(store).build().or_failure()?;
    let answer = engine.diagnose(&DiagnoseRequest { collective: args.collective }).or_failure()?;
    let text = match args.format {
        Format::Text => text(engine.cluster(), &answer),
        Format::Json => format!("{}\n", serde_json::to_string(&answer).map_err(Failure::input)?),
    };
    console::print(&text);
    if args.exit_code && (answer.defects.iter().any(|d| d.named) || !answer.shared.is_empty()) {
        std::process::exit(1);
    }
    Ok(())
}

fn text(cluster: &Cluster, d: &DiagnoseAnswer) -> String {
    let head = format!(
        "{} readings of cluster {} checked, {} distinct ones ({} without others to compare with); typical scatter {:.1} %",
        d.readings,
        cluster.name,
        d.judged,
        d.left_out,
        100.0 * d.noise
    );
    let mut out = wrap(&head, 2);
    if d.simulated_readings > 0 {
        out += &format!("{} of them are SIMULATED, not measured\n", d.simulated_readings);
    }
    for s in &d.shared {
        let (share, n) = (100.0 * s.factor, s.readings);
        let what = format!("SLOW: {}, about {share:.0} % of the rate; {n} readings show it", s.part);
        out += &wrap(&what, 2);
    }
    if d.defects.is_empty() && d.shared.is_empty() {
        out += &match d.stray.len() {
            0 => "No defect is probable.\n".to_owned(),
            n => wrap(
                &format!(
                    "No defect is probable. {} below: a second reading of the same hosts tells whether they are slow.",
                    count(n, "unexplained outlier")
                ),
                2,
            ),
        };
    }
    let mut asked: Vec<&GpuList> = Vec::new();
    for x in &d.defects {
        out += &defect(x);
        // Several defects may ask for the same measurement, which is then printed once.
        if let Some(next) = asks(x).filter(|next| !asked.contains(next)) {
            asked.push(next);
            out += &wrap(&format!("  most informative next measurement: {}", measurement(cluster, next)), 4);
        }
    }
    let mut hosts = table(&["host", "readings", "of its class", "deviations", ""], 1..4);
    for h in d.hosts.iter().take(HOSTS_SHOWN) {
        let unusual = match h.deviations {
            z if z < -UNUSUAL_SDS => "slow",
            z if z > UNUSUAL_SDS => "fast",
            _ => "",
        };
        hosts.add_row([
            h.host.clone(),
            h.readings.to_string(),
            format!("{:.1} %", 100.0 * h.ratio),
            format!("{:+.1}", h.deviations),
            unusual.to_owned(),
        ]);
    }
    if !d.hosts.is_empty() {
        out += &text_of(&hosts);
    }
    for s in d.stray.iter().take(STRAY_SHOWN) {
        let gpus = brief::gpus_within(cluster, &s.gpus.allocation(cluster), OUTLIER_CHARS_MAX);
        let (got, size, expected) = (gb(s.busbw_gb_per_s), s.size_bytes, gb(s.expected_gb_per_s));
        out += &wrap(&format!("unexplained outlier: {gpus} got {got} GB/s at {size}, {expected} expected"), 2);
    }
    if asked.is_empty()
        && let Some(next) = &d.measure_next
    {
        out += &wrap(&format!("Measure next, to look for further slow parts: {}", measurement(cluster, next)), 2);
    }
    if d.stray.len() > STRAY_SHOWN {
        out += &format!("and {} more\n", d.stray.len() - STRAY_SHOWN);
    }
    out
}

fn defect(d: &DefectAnswer) -> String {
    let Some(best) = d.candidates.first() else { return String::new() };
    let since = |c: &CandidateAnswer| {
        c.since_unix_s.map_or(String::new(), |t| format!(", since {}", console::moment(t, console::now_unix_s())))
    };
    let mut out = String::new();
    if d.named {
        let what = format!(
            "DEFECT: {} has about {:.0} % of its rate (probability {:.1} %{}); {} readings show it",
            best.component,
            100.0 * best.factor,
            100.0 * best.probability,
            since(best),
            best.readings
        );
        out += &wrap(&what, 2);
        let (healthy, defective) = (d.cost.healthy_gb_per_s, d.cost.defective_gb_per_s);
        let cost = format!(
            "  costs the jobs that touch it {} of {} GB/s ({:.0} %), by the physics over {} allocations at {}",
            gb(healthy - defective),
            gb(healthy),
            100.0 * (1.0 - defective / healthy.max(1e-9)),
            d.cost.allocations,
            d.cost.size_bytes
        );
        out += &wrap(&cost, 4);
    } else {
        let (probability, n) = (100.0 * d.probability, d.candidates.len());
        let any =
            if n == 1 { "it may be this component".to_owned() } else { format!("it may be any of {n} components") };
        out += &wrap(&format!("SUSPICION: something is slow (probability {probability:.0} %); {any}"), 2);
    }
    let others = d.candidates.iter().skip(usize::from(d.named)).take(CANDIDATES_SHOWN);
    let others: Vec<String> = others.map(|c| format!("{} ({:.1} %)", c.component, 100.0 * c.probability)).collect();
    if !others.is_empty() {
        out += &wrap(&format!("  it may {}be {}", if d.named { "also " } else { "" }, others.join(", ")), 4);
    }
    out
}

/// The measurement that a defect asks for, unless the defect is certain.
fn asks(d: &DefectAnswer) -> Option<&GpuList> {
    let open = d.candidates.first().is_some_and(|c| c.probability < SURE);
    d.worth_measuring.as_ref().filter(|_| open)
}

/// A short list of GPUs in quotes, to be copied; of a long one the number and the first hosts, and where the list is.
fn measurement(cluster: &Cluster, gpus: &GpuList) -> String {
    let a = gpus.allocation(cluster);
    let (list, short) = (cluster.gpu_list(&a), brief::gpus(cluster, &a));
    if list == short { format!("'{list}'") } else { format!("{short}; --format json lists them") }
}
