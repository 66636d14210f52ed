//! The command line of linkwise.

mod cmd;
mod store_errors;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// Choose GPUs, links and NCCL settings by measured bandwidth
#[derive(Parser)]
#[command(name = "linkwise", version, about, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 done, 1 the request cannot be met (says why), 2 bad input or usage.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show a cluster, or read what nvidia-smi, NCCL and P2P tests say about one
    #[command(subcommand)]
    Topology(cmd::topology::Topology),
    /// Take bandwidth measurements into a store
    Measure(Box<cmd::measure::Args>),
    /// Fit a bandwidth model on a store's measurements
    Fit(cmd::fit::Args),
    /// Which GPUs should a job get?
    Place(Box<cmd::place::Args>),
    /// Who holds which GPU
    #[command(subcommand)]
    Cluster(cmd::cluster::Commands),
    /// Record what a job got
    Observe(cmd::observe::Args),
    /// Show, correct and withdraw stored readings
    #[command(subcommand)]
    Readings(cmd::readings::Commands),
    /// Which hosts, GPUs and NICs are slower than their like?
    Doctor(cmd::doctor::Args),
    /// What would NCCL choose on some GPUs, why is it slow, and which settings are worth trying?
    #[command(subcommand)]
    Nccl(cmd::nccl::Nccl),
    /// Policies that choose algorithm, protocol and channels: try them, or let one decide for your program
    #[command(subcommand)]
    Tune(cmd::tune::Tune),
    /// Which links should skewed traffic take, and how far from the optimum is that?
    #[command(subcommand)]
    Route(cmd::route::Route),
    /// Run a job with the NCCL plugin: its collectives get faster or stay as they were, and a report says which and why
    Run(Box<cmd::run::Args>),
    /// The NCCL plugin: where it is, and what each NCCL would see of it
    #[command(subcommand)]
    Plugin(cmd::plugin::Plugin),
    /// Print the completion script of a shell
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Commands that judge linkwise and reproduce papers are in the second program: the old name, then the new one.
const MOVED: [(&[&str], &str); 8] = [
    (&["evaluate"], "evaluate"),
    (&["reproduce"], "reproduce"),
    (&["validate"], "validate"),
    (&["data"], "data"),
    (&["demo"], "demo"),
    (&["route", "evaluate"], "route"),
    (&["tune", "evaluate"], "tune evaluate"),
    (&["tune", "play"], "tune play"),
];

/// The new name of a command that moved to `linkwise-lab`.
fn moved(args: &[String]) -> Option<&'static str> {
    let is = |old: &[&str]| args.len() >= old.len() && args.iter().zip(old).all(|(a, o)| a == o);
    MOVED.iter().find(|(old, _)| is(old)).map(|(_, new)| *new)
}

fn main() -> ExitCode {
    console::exit_quietly_on_closed_pipes();
    let args: Vec<String> = std::env::args_os().skip(1).map(|a| a.to_string_lossy().into_owned()).collect();
    if let Some(new) = moved(&args) {
        console::say(&format!("error: this command moved to the second program; run `linkwise-lab {new} ...`"));
        return ExitCode::from(2);
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            let _ = e.print();
            return if e.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
        }
    };
    let result = match cli.command {
        Command::Topology(a) => cmd::topology::run(a),
        Command::Measure(a) => cmd::measure::run(*a),
        Command::Fit(a) => cmd::fit::run(a),
        Command::Place(a) => cmd::place::run(*a),
        Command::Cluster(a) => cmd::cluster::run(a),
        Command::Observe(a) => cmd::observe::run(a),
        Command::Readings(a) => cmd::readings::run(a),
        Command::Doctor(a) => cmd::doctor::run(a),
        Command::Nccl(a) => cmd::nccl::run(a),
        Command::Tune(a) => cmd::tune::run(a),
        Command::Route(a) => cmd::route::run(a),
        Command::Run(a) => cmd::run::run(*a),
        Command::Plugin(a) => cmd::plugin::run(a),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "linkwise", &mut script);
            console::print(&String::from_utf8_lossy(&script));
            Ok(())
        }
    };
    console::exit_code(result)
}
