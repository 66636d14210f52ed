//! The engine of a command, put together from the files that its flags name.

use crate::store_errors::OrFailure;
use console::{Failure, wrap};
use engine::{Builder, Engine, ModelKeeper};
use files::{FileLock, read_text, write_atomic};
use predict::Model;
use std::path::{Path, PathBuf};
use store::{State, Store};
use topology::Cluster;

/// The cluster to work on: the one that is named, which must be that of the state, or the state's.
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

/// An engine with a cluster, and with all that this program offers by name.
pub fn new(cluster: Cluster) -> Builder {
    Engine::builder(cluster).searches(papers::searches()).kinds(papers::models())
}

/// An engine with a cluster, and with the state if one is named.
pub fn with_state(named: Option<&str>, state: Option<&Path>) -> Result<Builder, Failure> {
    let state = state.map(State::open).transpose().or_failure()?;
    let builder = new(cluster(named, state.as_ref())?);
    Ok(match state {
        Some(s) => builder.state(s),
        None => builder,
    })
}

/// An engine with a state alone.
pub fn state(path: &Path) -> Result<Engine, Failure> {
    with_state(None, Some(path))?.build().or_failure()
}

/// A store of the cluster. A note tells which hosts came, went or changed since it was used last.
pub fn store(path: &Path, cluster: &Cluster) -> Result<Store, Failure> {
    Ok(noted(Store::open(path, cluster).or_failure()?))
}

/// The same; made where there is none.
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

/// A model file.
pub fn model(path: &Path) -> Result<Model, Failure> {
    Model::load(&read_text(path, predict::FILE_BYTES_MAX)?, papers::models())
        .map_err(|e| Failure::input(format!("{}: {e}", path.display())))
}

/// The engine with a model from a file, which an error about its cluster names.
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

/// What is said of a network that is not the one that models have learned.
pub fn network_note(changes: &[String]) -> String {
    let changes = changes.join("; ");
    format!(
        "the network is not as before: {changes}; a model learned on the former network keeps its factors: fit again"
    )
}

/// A model file that no other process changes while this lives: two observations at a time learn one after the other.
pub struct LockedModelFile {
    path: PathBuf,
    _lock: FileLock,
}

impl LockedModelFile {
    /// Waits for others, then reads.
    pub fn open(path: &Path) -> Result<(LockedModelFile, Model), Failure> {
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
        write_atomic(&self.path, model.save()?).map_err(|e| e.to_string())
    }
}
