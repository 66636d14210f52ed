//! Builds an engine from the files that a program names.

use crate::error::Problem;
use engine::{Engine, ErrorKind, ModelFile, ModelKeeper};
use files::{FileLock, read_text, write_atomic};
use predict::Model;
use std::path::{Path, PathBuf};
use store::{State, StateError, Store};
use topology::Cluster;

/// The parts of an engine. Each is a path, or a URL of a PostgreSQL database for the state and the store.
pub struct Parts {
    /// Cluster file, or name of a built-in cluster; none: the cluster of the state.
    pub cluster: Option<String>,
    /// The operator's state. A missing one is made if a cluster is given.
    pub state: Option<PathBuf>,
    /// Model file. A missing one is made by the first fit.
    pub model: Option<PathBuf>,
    /// Store of readings. A missing one is made.
    pub store: Option<PathBuf>,
}

/// The engine of these parts. `now_unix_s` is the time at which a new state begins.
pub fn engine(parts: &Parts, now_unix_s: f64) -> Result<Engine, Problem> {
    let named = parts.cluster.as_deref().map(cluster).transpose()?;
    let state = parts.state.as_deref().map(|path| state(path, named.as_ref(), now_unix_s)).transpose()?;
    let cluster = match (named, &state) {
        (Some(named), Some(state)) => {
            state.check_cluster(&named)?;
            named
        }
        (Some(named), None) => named,
        (None, Some(state)) => state.cluster().clone(),
        (None, None) => return Err(Problem::bad("no_cluster", "neither `cluster` nor `state` is given")),
    };
    let mut builder = Engine::builder(cluster.clone()).searches(papers::searches()).kinds(papers::models());
    if let Some(state) = state {
        builder = builder.state(state);
    }
    if let Some(path) = &parts.store {
        builder = builder.store(Store::create(path, &cluster)?);
    }
    if let Some(path) = &parts.model {
        if !matches!(path.try_exists(), Ok(false)) {
            builder = builder.model_file(model(path)?);
        }
        builder = builder.keeper(Keeper(path.clone()));
    }
    Ok(builder.build()?)
}

/// A built-in cluster, one of the small networks of route among them, or that of a file.
fn cluster(name: &str) -> Result<Cluster, Problem> {
    if let Some(small) = route::builtin::cluster(name) {
        return Ok(small);
    }
    if topology::catalog::cluster(name).is_none() {
        let path = Path::new(name);
        // `load_cluster` tells a wrong name, a file that cannot be read and a wrong content by a sentence only.
        match path.try_exists() {
            Ok(false) if name.contains('/') => {
                let message = format!("there is no cluster file {name}");
                return Err(Problem::new("no_file", ErrorKind::Malformed, message, "name a cluster file that exists"));
            }
            Ok(false) => {} // a misspelt name
            _ => drop(files::read_limited(path, topology::read::FILE_SIZE_MAX).map_err(Problem::file)?),
        }
    }
    Ok(console::load_cluster(name)?)
}

/// Opens the state, or makes it for the named cluster. Of programs that start at once, one makes it.
fn state(path: &Path, cluster: Option<&Cluster>, now_unix_s: f64) -> Result<State, Problem> {
    match (State::open(path), cluster) {
        (Err(StateError::Missing(_)), Some(cluster)) => match State::init(path, cluster, now_unix_s) {
            Err(StateError::Exists { same: true, .. }) => Ok(State::open(path)?),
            made => Ok(made?),
        },
        (Err(e @ StateError::Missing(_)), None) => {
            let remedy = "name a state that exists, or give `cluster`, which makes one";
            Err(Problem::new("no_state", ErrorKind::Malformed, e, remedy))
        }
        (opened, _) => Ok(opened?),
    }
}

fn model(path: &Path) -> Result<ModelFile, Problem> {
    let bad = |why: &dyn std::fmt::Display| {
        Problem::new(
            "bad_model",
            ErrorKind::Malformed,
            format!("{}: {why}", path.display()),
            "fit a model into another file: engine.fit()",
        )
    };
    let text = read_text(path, predict::FILE_BYTES_MAX).map_err(Problem::file)?;
    ModelFile::read(&text, papers::models()).map_err(|e| bad(&e))
}

/// Writes the model file. The lock is held for every write only, so that commands can read and fit meanwhile.
struct Keeper(PathBuf);

impl Keeper {
    fn write(&self, text: String) -> Result<(), String> {
        let lock = self.0.is_file().then(|| FileLock::acquire(&self.0));
        let _lock = lock.transpose().map_err(|e| e.to_string())?;
        write_atomic(&self.0, text).map_err(|e| e.to_string())
    }
}

impl ModelKeeper for Keeper {
    fn keep(&mut self, model: &Model) -> Result<(), String> {
        self.write(ModelFile::write(model, None)?)
    }
    fn keep_fitted_on(&mut self, model: &Model, fitted_on: &Cluster) -> Result<(), String> {
        self.write(ModelFile::write(model, Some(fitted_on))?)
    }
}
