//! Builds the engine of a command from the files that its flags name.

use crate::store_errors::OrFailure;
use console::{Failure, Format, wrap};
use engine::{Builder, Engine, ModelFile, ModelKeeper};
use files::{FileLock, read_text, write_atomic};
use predict::Model;
use std::path::{Path, PathBuf};
use store::{State, Store};
use topology::Cluster;

/// What every command on a state needs.
#[derive(clap::Args)]
pub struct OfState {
    /// State file, or URL of a PostgreSQL database
    #[arg(long)]
    pub state: PathBuf,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    pub format: Format,
}

/// The named cluster, or that of the state. A named cluster that differs from the state's is an error.
pub fn cluster(named: Option<&str>, state: Option<&State>) -> Result<Cluster, Failure> {
    match (named, state) {
        (Some(name), state) => {
            let cluster = console::load_cluster(name)?;
            if let Some(s) = state {
                s.check_cluster(&cluster).or_failure()?;
            }
            Ok(cluster)
        }
        (None, Some(s)) => Ok(s.cluster().clone()),
        (None, None) => Err(Failure::input("--cluster is missing (or --state, whose cluster is taken)")),
    }
}

/// An engine with a cluster and all models and searches that this program offers.
pub fn new(cluster: Cluster) -> Builder {
    Engine::builder(cluster).searches(papers::searches()).kinds(papers::models())
}

/// An engine with a cluster, and with the state if one is given.
pub fn with_state(named: Option<&str>, state: Option<&Path>) -> Result<Builder, Failure> {
    let state = state.map(State::open).transpose().or_failure()?;
    let builder = new(cluster(named, state.as_ref())?);
    Ok(match state {
        Some(s) => builder.state(s),
        None => builder,
    })
}

/// An engine with a state only.
pub fn state(path: &Path) -> Result<Engine, Failure> {
    with_state(None, Some(path))?.build().or_failure()
}

/// Opens the store of the cluster. A note names hosts that were added, removed or changed since the store was last
/// used.
pub fn store(path: &Path, cluster: &Cluster) -> Result<Store, Failure> {
    Ok(noted(Store::open(path, cluster).or_failure()?))
}

/// Opens the store like [`store()`], or creates a missing one.
pub fn store_or_new(path: &Path, cluster: &Cluster) -> Result<Store, Failure> {
    Ok(noted(Store::create(path, cluster).or_failure()?))
}

fn noted(store: Store) -> Store {
    let changes = store.changed_hosts();
    if !changes.is_empty() {
        let mut note = format!("note: the cluster of {} has changed: {}", store.path().display(), changes.text());
        if !changes.removed.is_empty() || !changes.retyped.is_empty() {
            note += "; readings of hardware that is gone stay stored and are not used";
        }
        console::say(&wrap(&note, 2).trim_end());
    }
    store
}

/// Reads a model file.
pub fn model(path: &Path) -> Result<ModelFile, Failure> {
    let read = ModelFile::read(&read_model(path)?, papers::models());
    read.map_err(|e| no_model(path, &e))
}

/// Adds a model file that the state takes in.
pub fn model_text(builder: Builder, path: &Path) -> Result<Builder, Failure> {
    let text = read_model(path)?;
    builder.model_text(&text).map_err(|e| no_model(path, &e))
}

/// Gives hosts their new names in a model file. Waits for the file's lock; a repetition changes nothing.
pub fn rename_in_model(path: &Path, renames: &store::Renames) -> Result<(), Failure> {
    let _lock = FileLock::acquire(path)?;
    let text = read_model(path)?;
    let renamed = ModelFile::renamed(&text, renames.names(), papers::models());
    Ok(write_atomic(path, renamed.map_err(|e| no_model(path, &e))?)?)
}

/// The text of a model file. If the file is missing, the error says how to make one.
fn read_model(path: &Path) -> Result<String, Failure> {
    match path.try_exists() {
        Ok(false) => Err(no_model(path, "there is no such file")),
        _ => Ok(read_text(path, predict::FILE_BYTES_MAX)?),
    }
}

fn no_model(path: &Path, why: &str) -> Failure {
    let why = why.strip_suffix("; make one with `linkwise fit`").unwrap_or(why);
    let next = "`linkwise fit --store STORE --cluster CLUSTER -o model.json` makes a model file";
    Failure::input(format!("{}: {why}; {next}", path.display()))
}

/// Builds an engine with a model. An error about the model's cluster names `model_file`.
pub fn build(builder: Builder, model_file: &Path) -> Result<Engine, Failure> {
    let engine = builder.build().map_err(|e| match e {
        e @ engine::EngineError::OtherModel { .. } => {
            Failure::input(format!("{}: {e}; {}", model_file.display(), e.remedy()))
        }
        e => Err::<(), _>(e).or_failure().unwrap_err(),
    })?;
    let network = engine.network_changes();
    if !network.is_empty() {
        console::say(&wrap(&format!("note: {}: {}", model_file.display(), network_note(&network)), 2).trim_end());
    }
    Ok(engine)
}

/// The message about a network that differs from the one the models learned.
pub fn network_note(changes: &[String]) -> String {
    let changes = changes.join("; ");
    format!(
        "the network is not as before: {changes}; a model learned on the former network keeps its factors: fit again"
    )
}

/// A model file locked while this value lives: concurrent observations update the model one after the other.
pub struct LockedModelFile {
    path: PathBuf,
    _lock: FileLock,
}

impl LockedModelFile {
    /// Waits for the lock, then reads the model.
    pub fn open(path: &Path) -> Result<(LockedModelFile, ModelFile), Failure> {
        if path.exists() && !path.is_file() {
            let path = path.display();
            return Err(Failure::input(format!(
                "{path} is no regular file; a model that learns is replaced in one step"
            )));
        }
        let lock = FileLock::acquire(path)?;
        Ok((LockedModelFile { path: path.into(), _lock: lock }, model(path)?))
    }
}

impl ModelKeeper for LockedModelFile {
    fn keep(&mut self, model: &Model) -> Result<(), String> {
        write_atomic(&self.path, ModelFile::write(model, None)?).map_err(|e| e.to_string())
    }

    fn keep_fitted_on(&mut self, model: &Model, fitted_on: &Cluster) -> Result<(), String> {
        write_atomic(&self.path, ModelFile::write(model, Some(fitted_on))?).map_err(|e| e.to_string())
    }
}
