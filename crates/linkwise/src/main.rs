//! The command line of linkwise.

mod advice_json;
mod brief;
mod cmd;
mod interrupt;
mod job_report;
mod plugin_library;
mod put;
mod slurm_programs;
mod slurm_server;
mod slurm_sync;
mod store_errors;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use console::Failure;
use std::any::TypeId;
use std::process::ExitCode;
use topology::Bytes;

/// Choose GPUs, links and NCCL settings by measured bandwidth
#[derive(Parser)]
#[command(name = "linkwise", version, about)]
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
    /// List the versions of the model that a state keeps, and write one to a file
    #[command(subcommand)]
    Model(cmd::model::Commands),
    /// Choose the GPUs of a job
    Place(Box<cmd::place::Args>),
    /// Tell the bandwidth expected of given GPUs, and what limits them
    Explain(cmd::explain::Args),
    /// Show, take, release and drain GPUs
    #[command(subcommand)]
    Cluster(cmd::cluster::Commands),
    /// Record the bandwidth that a job achieved
    Observe(cmd::observe::Args),
    /// Show, correct and withdraw stored readings, and teach them to a model
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
    /// Run an NCCL program on simulated hosts, without a GPU: real bytes, emulated CUDA
    Emulate(cmd::emulate::Args),
    /// Show what the plugin does in running jobs
    Watch(cmd::watch::Args),
    /// Find the NCCL plugin, and check what each NCCL release would load of it
    #[command(subcommand)]
    Plugin(cmd::plugin::Plugin),
    /// Answer over HTTP: decisions, allocations, readings, metrics and a page
    Serve(Box<cmd::serve::Args>),
    /// Give Slurm's jobs exact GPUs: the agent of the controller's plugin, and its checks
    #[command(subcommand)]
    Slurm(cmd::slurm::Commands),
    /// Make, list and revoke the tokens of a server's clients
    #[command(subcommand)]
    Token(cmd::token::Commands),
    /// Print the completion script of a shell
    Completion {
        /// Shell
        shell: clap_complete::Shell,
    },
    /// Write the manual page of every command into a folder, for packages
    #[command(hide = true)]
    Man {
        /// An existing folder
        folder: std::path::PathBuf,
    },
}

/// Commands that moved to `linkwise-lab`, which evaluates linkwise and reproduces papers: the old name, then the new
/// one.
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

/// The new name of a command in `linkwise-lab`.
fn moved(args: &[String]) -> Option<&'static str> {
    let is = |old: &[&str]| args.len() >= old.len() && args.iter().zip(old).all(|(a, o)| a == o);
    MOVED.iter().find(|(old, _)| is(old)).map(|(_, new)| *new)
}

/// Types of numeric options.
const NUMBERS: [fn() -> TypeId; 6] = [
    TypeId::of::<u32>,
    TypeId::of::<u64>,
    TypeId::of::<i64>,
    TypeId::of::<usize>,
    TypeId::of::<f64>,
    TypeId::of::<Bytes>,
];

/// True if the argument is a number or a size.
fn is_number(a: &clap::Arg) -> bool {
    NUMBERS.iter().any(|id| a.get_value_parser().type_id() == id())
}

/// Lets numeric options take `-1` as a value instead of an option, so that their own parser writes the error.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|a| if is_number(&a) { a.allow_negative_numbers(true) } else { a });
    command.mut_subcommands(with_negative_numbers)
}

fn parse() -> Result<Cli, clap::Error> {
    Cli::from_arg_matches(&console::fit_help(with_negative_numbers(Cli::command())).try_get_matches()?)
}

fn main() -> ExitCode {
    console::exit_quietly_on_closed_pipes();
    let args: Vec<String> = std::env::args_os().skip(1).map(|a| a.to_string_lossy().into_owned()).collect();
    if let Some(new) = moved(&args) {
        console::say(&format!("error: this command moved to the second program; run `linkwise-lab {new} ...`"));
        return ExitCode::from(2);
    }
    let cli = match parse() {
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
        Command::Model(a) => cmd::model::run(a),
        Command::Place(a) => cmd::place::run(*a),
        Command::Explain(a) => cmd::explain::run(a),
        Command::Cluster(a) => cmd::cluster::run(a),
        Command::Observe(a) => cmd::observe::run(a),
        Command::Readings(a) => cmd::readings::run(a),
        Command::Doctor(a) => cmd::doctor::run(a),
        Command::Nccl(a) => cmd::nccl::run(a),
        Command::Tune(a) => cmd::tune::run(a),
        Command::Route(a) => cmd::route::run(a),
        Command::Run(a) => cmd::run::run(*a),
        Command::Emulate(a) => cmd::emulate::run(a),
        Command::Watch(a) => cmd::watch::run(a),
        Command::Plugin(a) => cmd::plugin::run(a),
        Command::Serve(a) => cmd::serve::run(*a),
        Command::Slurm(a) => cmd::slurm::run(a),
        Command::Token(a) => cmd::token::run(a),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "linkwise", &mut script);
            console::print(&String::from_utf8_lossy(&script));
            Ok(())
        }
        Command::Man { folder } => {
            clap_mangen::generate_to(Cli::command(), &folder).map_err(|e| Failure::file("write", &folder, e))
        }
    };
    console::exit_code(result.map_err(in_lines))
}

/// A failure with its message wrapped to the terminal.
fn in_lines(failure: Failure) -> Failure {
    let lines = |message: String| {
        const START: &str = "error: "; // printed before the first line
        if format!("{START}{message}").lines().all(|l| l.chars().count() <= console::text_width()) {
            return message;
        }
        let text = console::wrap(&format!("{START}{message}"), 2);
        text.trim_end().strip_prefix(START).map_or(message, str::to_owned)
    };
    match failure {
        Failure::Impossible(m) => Failure::Impossible(lines(m)),
        Failure::Input(m) => Failure::Input(lines(m)),
        located => located,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The arguments with values of a command and its sub-commands, each with the path of its command.
    fn arguments(command: &clap::Command, path: &[String]) -> Vec<(Vec<String>, clap::Arg)> {
        let takes_a_value = |a: &&clap::Arg| a.get_action().takes_values();
        let mut out: Vec<_> =
            command.get_arguments().filter(takes_a_value).map(|a| (path.to_vec(), a.clone())).collect();
        for sub in command.get_subcommands() {
            out.extend(arguments(sub, &[path, &[sub.get_name().to_owned()]].concat()));
        }
        out
    }

    /// The error of the parser for one value of an argument, in lower case; `None` if the value is accepted.
    fn said_of(path: &[String], argument: &clap::Arg, value: &str) -> Option<String> {
        let option = argument.get_long().map(|long| format!("--{long}"));
        let words = path.iter().cloned().chain(option).chain([value.to_owned()]);
        let error = with_negative_numbers(Cli::command()).try_get_matches_from(words).err()?;
        Some(error.to_string().to_lowercase())
    }

    #[test]
    fn errors_of_options_never_use_the_words_of_the_programming_language() {
        let all = arguments(&Cli::command(), &["linkwise".to_owned()]);
        assert!(all.len() > 100, "{} arguments", all.len());
        for (path, argument) in &all {
            for value in ["x1x", "-1", "1e999", "99999999999999999999", ""] {
                let error = said_of(path, argument, value).unwrap_or_default();
                let words = [
                    "invalid digit",
                    "float literal",
                    "integral",
                    "number too",
                    "empty string",
                    "parse integer",
                    "not in 0",
                ];
                assert!(words.iter().all(|w| !error.contains(w)), "{path:?} {value}: {error}");
            }
        }
    }

    #[test]
    fn every_number_that_is_none_is_an_error_with_the_value_and_an_example() {
        let all = arguments(&Cli::command(), &["linkwise".to_owned()]);
        let numbers: Vec<_> = all.iter().filter(|(_, a)| is_number(a)).collect();
        assert!(numbers.len() > 30, "{} numbers", numbers.len());
        for (path, argument) in numbers {
            let name = argument.get_id();
            let error = said_of(path, argument, "x1x").unwrap_or_default();
            let example = ["such as", "for example", "1024s"].iter().any(|w| error.contains(w));
            assert!(error.contains("`x1x`") && example, "{path:?} {name}: {error}");
        }
    }

    #[test]
    fn a_negative_count_is_called_no_whole_number() {
        let path = ["linkwise", "place"].map(str::to_owned);
        let place = Cli::command().find_subcommand("place").unwrap().clone();
        let gpus = place.get_arguments().find(|a| a.get_long() == Some("gpus")).unwrap();
        let error = said_of(&path, gpus, "-1").unwrap();
        assert!(error.contains("found `-1`; a whole number was expected"), "{error}");
    }
}
