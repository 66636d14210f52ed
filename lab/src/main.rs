//! `linkwise-lab`: how good the choices of linkwise are, and the tables and figures of the papers. The product imports nothing of this.

mod cmd;
mod evaluation;
mod ground_truth;
mod papers;
mod published;
mod scenarios;
mod store_errors;
mod trials;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// Judge the choices of linkwise, and reproduce the papers.
#[derive(Parser)]
#[command(name = "linkwise-lab", version, about, max_term_width = 100)]
#[command(after_help = "Exit codes: 0 done, 1 the request cannot be met (says why), 2 bad input or usage.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The main job end to end, with a report
    Demo(cmd::demo::Args),
    /// How good are the choices? Replay requests against true bandwidths
    Evaluate(cmd::evaluate::Args),
    /// Tables and figures of the papers, published numbers beside ours
    Reproduce(cmd::reproduce::Args),
    /// How good are route plans? NIMBLE's experiments and real routing on a model of its testbed
    Route(cmd::route::Args),
    /// Try tuning policies on environments whose truth is known
    #[command(subcommand)]
    Tune(cmd::tune::Tune),
    /// Compare the physics with published measurements
    Validate(cmd::validate::Args),
    /// Check a folder of public data sets
    #[command(subcommand)]
    Data(cmd::data::Data),
    /// Print the completion script of a shell
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
}

fn main() -> ExitCode {
    console::exit_quietly_on_closed_pipes();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            let _ = e.print();
            return if e.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
        }
    };
    console::exit_code(match cli.command {
        Command::Demo(a) => cmd::demo::run(a),
        Command::Evaluate(a) => cmd::evaluate::run(a),
        Command::Reproduce(a) => cmd::reproduce::run(a),
        Command::Route(a) => cmd::route::run(a),
        Command::Tune(a) => cmd::tune::run(a),
        Command::Validate(a) => cmd::validate::run(a),
        Command::Data(a) => cmd::data::run(a),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "linkwise-lab", &mut script);
            console::print(&String::from_utf8_lossy(&script));
            Ok(())
        }
    })
}
