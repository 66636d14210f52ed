//! `linkwise model`: the versions of the model that a state keeps, and a file with one of them.

use crate::cmd::open::{self, OfState};
use crate::store_errors::OrFailure;
use console::{Failure, Format, moment, now_unix_s, table, text_of};
use engine::{Engine, ModelVersion, VersionState};
use files::write_atomic;
use serde_json::json;
use std::path::PathBuf;

/// The commands.
#[derive(clap::Subcommand)]
#[command(after_help = "\
Example:
  linkwise model list --state site.db
  linkwise model export --state site.db --version 3 -o model.json

`linkwise serve` keeps the newest eight versions of its model in the state. `linkwise place --model model.json` predicts with an exported \
one without a server; `linkwise serve --model model.json` gives it to a state as a new version.")]
pub enum Commands {
    /// List the versions
    List(OfState),
    /// Write a version to a model file
    Export(Export),
}

/// Arguments of `linkwise model export`.
#[derive(clap::Args)]
pub struct Export {
    /// Number of the version (default: the one in use, with the single readings that it has learned since its fit)
    #[arg(long, value_name = "N", value_parser = console::number::whole::<u64>)]
    version: Option<u64>,
    /// Where the model goes; a file that exists is replaced in one step
    #[arg(short, long)]
    output: PathBuf,
    #[command(flatten)]
    common: OfState,
}

pub fn run(command: Commands) -> Result<(), Failure> {
    match command {
        Commands::List(a) => list(&a),
        Commands::Export(a) => export(&a),
    }
}

/// An engine with the model of a state.
fn engine(a: &OfState) -> Result<Engine, Failure> {
    open::with_state(None, Some(&a.state))?.models_in_state().build().or_failure()
}

fn list(a: &OfState) -> Result<(), Failure> {
    let versions = engine(a)?.versions();
    if a.format == Format::Json {
        console::print(&format!("{}\n", json!({"versions": versions})));
        return Ok(());
    }
    if versions.is_empty() {
        console::print("The state keeps no model; `linkwise serve` gives it one.\n");
        return Ok(());
    }
    let now = now_unix_s();
    let mut t = table(&["version", "kind", "collective", "state", "since", "reason"], 0..1);
    t.add_rows(versions.iter().map(|v| {
        let since = if v.at_unix_s > 0.0 { moment(v.at_unix_s, now) } else { "the start".into() };
        [v.version.to_string(), v.kind.clone(), v.collective.to_string(), standing(v).into(), since, v.why.clone()]
    }));
    console::print(&text_of(&t));
    Ok(())
}

fn standing(v: &ModelVersion) -> &'static str {
    match v.state {
        VersionState::Present => "in use",
        VersionState::Earlier => "earlier",
        VersionState::Refused => "refused",
    }
}

fn export(a: &Export) -> Result<(), Failure> {
    let engine = engine(&a.common)?;
    let text = engine.model_text(a.version).or_failure()?;
    let bytes = text.len();
    write_atomic(&a.output, text)?;
    let is = |v: &&ModelVersion| a.version.map_or(v.state == VersionState::Present, |n| v.version == n);
    let version = engine.versions().iter().find(is).map(|v| v.version);
    match a.common.format {
        Format::Text => {
            let which = version.map_or_else(|| "the model".into(), |v| format!("version {v}"));
            console::print(&format!("{}: {which}, {bytes} bytes\n", a.output.display()));
        }
        Format::Json => {
            let v = json!({"model": a.output, "version": version, "bytes": bytes});
            console::print(&format!("{v}\n"));
        }
    }
    Ok(())
}
