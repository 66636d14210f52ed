//! `linkwise-lab`: measures the quality of linkwise's choices and reproduces the papers' tables and figures. No product crate imports the lab.

mod cmd;
mod evaluation;
mod ground_truth;
mod reproduce;
mod scenarios;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::process::ExitCode;

/// Evaluate the choices of linkwise, and reproduce the papers.
#[derive(Parser)]
#[command(name = "linkwise-lab", version, about)]
#[command(
    after_help = "Exit codes: 0 done, 1 the request cannot be met (the reason is printed), 2 bad input or usage."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the main job end to end and write a report
    Demo(cmd::demo::Args),
    /// Replay requests against true bandwidths and score the choices
    Evaluate(cmd::evaluate::Args),
    /// Judge placement on simulated sites: switches, rails, defects, noise, wrong files
    Sites(lab_sites::Args),
    /// Judge the diagnosis of slow NICs on simulated sites
    Doctor(lab_sites::doctor::Args),
    /// Reproduce tables and figures of the papers, with the published numbers
    Reproduce(cmd::reproduce::Args),
    /// Compare route plans: NIMBLE's experiments and real routing on a model of its testbed
    Route(lab_routing::Args),
    /// Evaluate tuning policies in environments whose true times are known
    #[command(subcommand)]
    Tune(lab_tuning::Tune),
    /// Compare the physics with published measurements
    Validate(lab_validation::Args),
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
    let matches = console::fit_help(Cli::command()).try_get_matches();
    let cli = match matches.and_then(|m| Cli::from_arg_matches(&m)) {
        Ok(cli) => cli,
        Err(e) => {
            let _ = e.print();
            return if e.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
        }
    };
    console::exit_code(match cli.command {
        Command::Demo(a) => cmd::demo::run(a),
        Command::Evaluate(a) => cmd::evaluate::run(a),
        Command::Sites(a) => lab_sites::run(a),
        Command::Doctor(a) => lab_sites::doctor::run(a),
        Command::Reproduce(a) => cmd::reproduce::run(a),
        Command::Route(a) => lab_routing::run(a),
        Command::Tune(a) => lab_tuning::run(a),
        Command::Validate(a) => lab_validation::run(a),
        Command::Data(a) => cmd::data::run(a),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "linkwise-lab", &mut script);
            console::print(&String::from_utf8_lossy(&script));
            Ok(())
        }
    })
}
