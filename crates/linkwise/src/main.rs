//! The command line of linkwise.

mod cmd;
mod interrupt;
mod job_report;
mod plugin_library;
mod store_errors;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// Choose GPUs, links and NCCL settings by measured bandwidth
#[derive(Parser)]
#[command(name = "linkwise", version, about, max_term_width = 100)]
#[command(after_help = "\
Exit codes: 0 done, 1 the request cannot be met (the message says why), 2 bad input or usage, 130 stopped by Ctrl-C. Errors are text on \
standard error, also with --format json.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show a cluster, or make a cluster file from nvidia-smi, NCCL and P2P test output
    #[command(subcommand)]
    Topology(cmd::topology::Topology),
    /// Measure bandwidth into a store
    Measure(Box<cmd::measure::Args>),
    /// Fit a bandwidth model to a store's measurements
    Fit(cmd::fit::Args),
    /// Choose the GPUs of a job
    Place(Box<cmd::place::Args>),
    /// Show, take, release and drain GPUs
    #[command(subcommand)]
    Cluster(cmd::cluster::Commands),
    /// Record the bandwidth that a job achieved
    Observe(cmd::observe::Args),
    /// Show, correct and withdraw stored readings
    #[command(subcommand)]
    Readings(cmd::readings::Commands),
    /// Find hosts, GPUs and NICs that are slower than identical hardware
    Doctor(cmd::doctor::Args),
    /// Explain NCCL's choices on some GPUs, and find settings worth trying
    #[command(subcommand)]
    Nccl(cmd::nccl::Nccl),
    /// Measure algorithms, protocols and channels before a job, and report what the plugin did in one
    #[command(subcommand)]
    Tune(cmd::tune::Tune),
    /// Split skewed traffic over links, with a proven distance from the optimum
    #[command(subcommand)]
    Route(cmd::route::Route),
    /// Run a job with linkwise's NCCL plugin, which may change NCCL's choices (experimental: not yet run on GPUs)
    Run(Box<cmd::run::Args>),
    /// Find the NCCL plugin, and check what each NCCL release would load of it
    #[command(subcommand)]
    Plugin(cmd::plugin::Plugin),
    /// Print the completion script of a shell
    Completion {
        /// Shell
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
            return match (e.print(), e.use_stderr()) {
                (_, true) => ExitCode::from(2),
                (Err(why), false) if why.kind() != std::io::ErrorKind::BrokenPipe => {
                    console::say(&format!("error: cannot write to standard output: {why}"));
                    ExitCode::from(2)
                }
                (_, false) => ExitCode::SUCCESS,
            };
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
