//! The command line of linkwise.

mod cmd;
mod evaluation;
mod failure;
mod grounds;
mod learning;
mod papers;
mod registry;
mod report;
mod scenarios;
mod truth;
mod tuning;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// Places multi-GPU jobs from measured bandwidth.
#[derive(Parser)]
#[command(name = "linkwise", version, about, max_term_width = 110)]
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
    /// Which hosts, GPUs and NICs are slower than their like?
    Doctor(cmd::doctor::Args),
    /// How good are the choices? Replay requests against a table of true bandwidths
    Evaluate(cmd::evaluate::Args),
    /// Tables and figures of the papers, published numbers beside ours
    Reproduce(cmd::reproduce::Args),
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
    /// Compare the physics with published measurements
    Validate(cmd::validate::Args),
    /// Check a folder of public data sets
    #[command(subcommand)]
    Data(cmd::data::Data),
    /// The main job end to end, with a report
    Demo(cmd::demo::Args),
    /// Print the completion script of a shell
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// A reader that has gone away (`head`, a killed script) is no failure of ours: stop without a word. A disk that is full is one error.
fn quiet_when_nobody_reads() {
    let otherwise = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let message = info.payload().downcast_ref::<String>().map_or("", String::as_str);
        if let Some(why) = message.strip_prefix("failed printing to stdout: ") {
            if message.contains("Broken pipe") {
                std::process::exit(0);
            }
            eprintln!("error: cannot write to standard output: {why}");
            std::process::exit(2);
        }
        otherwise(info);
    }));
}

fn main() -> ExitCode {
    quiet_when_nobody_reads();
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
        Command::Doctor(a) => cmd::doctor::run(a),
        Command::Evaluate(a) => cmd::evaluate::run(a),
        Command::Reproduce(a) => cmd::reproduce::run(a),
        Command::Nccl(a) => cmd::nccl::run(a),
        Command::Tune(a) => cmd::tune::run(a),
        Command::Route(a) => cmd::route::run(a),
        Command::Run(a) => cmd::run::run(*a),
        Command::Plugin(a) => cmd::plugin::run(a),
        Command::Validate(a) => cmd::validate::run(a),
        Command::Data(a) => cmd::data::run(a),
        Command::Demo(a) => cmd::demo::run(a),
        Command::Completion { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "linkwise", &mut std::io::stdout());
            Ok(())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}
