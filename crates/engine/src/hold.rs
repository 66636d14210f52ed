//! [`Engine`]: its parts, and how threads share them.

use crate::error::EngineError;
use crate::watch::Watch;
use diagnose::{SUBSETS_PER_HOST_MAX, allocations_per_host_max};
use place::{Registry, Search};
use predict::{Model, ModelKinds};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use store::identity::{Kinship, compare, identity};
use store::state::{Snapshot, Turns};
use store::{ClusterStateStore, Measurement, NewestOfHost, Query, ReadingStore};
use topology::Cluster;

/// Maximum number of readings that a fit or a diagnosis uses, the newest ones.
pub const READINGS_MAX: usize = 200_000;
/// Maximum number of searches that stay in memory between requests, by name and seed.
const SEARCHES_MAX: usize = 64;

/// Saves a model that has learned, so that the next engine can load it.
pub trait ModelKeeper: Send {
    /// The engine calls this after every change of the model, before it answers the request.
    fn keep(&mut self, model: &Model) -> Result<(), String>;
    /// The same with the cluster of the fit, whose network is another one than that of the model's cluster. A keeper that writes
    /// [`crate::ModelFile`]s keeps it; the default forgets it.
    fn keep_fitted_on(&mut self, model: &Model, fitted_on: &Cluster) -> Result<(), String> {
        let _ = fitted_on;
        self.keep(model)
    }
}

/// The loop of one cluster. [`Engine::builder`] makes it.
pub struct Engine {
    pub(crate) cluster: Cluster,
    state: Option<Mutex<Box<dyn ClusterStateStore>>>,
    /// A second connection to the state, for reads; none: reads take turns with writes, which wait for the disk.
    reader: Option<Mutex<Box<dyn ClusterStateStore>>>,
    pub(crate) turns: Option<Box<dyn Turns>>,
    /// The last snapshot; valid while the state has its version.
    snapshot: Mutex<Option<Arc<Snapshot>>>,
    store: Option<Mutex<Box<dyn ReadingStore>>>,
    pub(crate) model: RwLock<Option<Arc<Model>>>,
    /// One request at a time learns or fits; placements continue with the old model.
    learning: Mutex<()>,
    keeper: Option<Mutex<Box<dyn ModelKeeper>>>,
    pub(crate) searches: Registry,
    pub(crate) kinds: ModelKinds,
    used: Mutex<HashMap<(String, u64), Arc<dyn Search>>>,
    pub(crate) watch: Mutex<Option<Watch>>,
    /// The cluster of the model's fit, if its network differs from the present one.
    pub(crate) fitted_on: Mutex<Option<Cluster>>,
    /// The versions of the model.
    pub(crate) versions: Mutex<crate::models::Versions>,
    /// True if the state keeps them.
    pub(crate) models_in_state: bool,
}

/// The right to learn or fit, which one request at a time has.
pub(crate) struct Learning<'e> {
    engine: &'e Engine,
    alone: Option<MutexGuard<'e, ()>>,
}

impl Drop for Learning<'_> {
    /// Removes the texts of versions that are gone, a transaction for each part, when others may learn again.
    fn drop(&mut self) {
        self.alone = None;
        self.engine.remove_gone_texts();
    }
}

/// Builds an [`Engine`].
pub struct Builder {
    cluster: Cluster,
    state: Option<Box<dyn ClusterStateStore>>,
    store: Option<Box<dyn ReadingStore>>,
    model: Option<Model>,
    keeper: Option<Box<dyn ModelKeeper>>,
    searches: Registry,
    kinds: ModelKinds,
    /// The cluster of the model's fit, if it is not the model's own.
    fitted_on: Option<Cluster>,
    models_in_state: bool,
    /// Digest of the model file that the state takes in.
    imported: Option<String>,
}

impl Builder {
    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }
    /// Adds the operator's state.
    pub fn state(mut self, state: impl ClusterStateStore + 'static) -> Self {
        self.state = Some(Box::new(state));
        self
    }
    /// Adds a store of readings.
    pub fn store(mut self, store: impl ReadingStore + 'static) -> Self {
        self.store = Some(Box::new(store));
        self
    }
    /// Adds a model.
    pub fn model(mut self, model: Model) -> Self {
        self.model = Some(model);
        self.fitted_on = None;
        self
    }
    /// Adds a model as its file has it.
    pub fn model_file(mut self, file: crate::ModelFile) -> Self {
        (self.model, self.fitted_on) = (Some(file.model), file.fitted_on);
        self
    }
    /// Takes the model from the state, which keeps its versions for all processes ([`Engine::sync_models`]). A model that was added serves
    /// a state that has none.
    pub fn models_in_state(mut self) -> Self {
        self.models_in_state = true;
        self
    }
    /// Adds a model as a file with this text has it, which the state takes in as a new version unless it took the same text in last.
    pub fn model_text(self, text: &str) -> Result<Self, String> {
        let file = crate::ModelFile::read(text, &self.kinds)?;
        let mut builder = self.model_file(file);
        builder.imported = Some(store::state::text_digest(text));
        Ok(builder)
    }
    /// Adds the function that saves a model after it has learned.
    pub fn keeper(mut self, keeper: impl ModelKeeper + 'static) -> Self {
        self.keeper = Some(Box::new(keeper));
        self
    }
    /// Replaces the shipped searches and contention rules.
    pub fn searches(mut self, searches: &Registry) -> Self {
        self.searches = searches.clone();
        self
    }
    /// Replaces the shipped kinds of models.
    pub fn kinds(mut self, kinds: &ModelKinds) -> Self {
        self.kinds = kinds.clone();
        self
    }

    /// Builds the engine.
    ///
    /// # Errors
    /// The model was fitted on another cluster: of another name, or with fewer than half of its hosts.
    pub fn build(self) -> Result<Engine, EngineError> {
        let fitted_on = self.fitted_on;
        let adapted = |model| adapted(crate::ModelFile { model, fitted_on }, &self.cluster);
        let (model, fitted_on) = self.model.map(adapted).transpose()?.unzip();
        let has_state = self.state.is_some();
        let engine = Engine {
            turns: self.state.as_ref().map(|s| s.turns()),
            cluster: self.cluster,
            state: self.state.map(Mutex::new),
            reader: None,
            snapshot: Mutex::new(None),
            store: self.store.map(Mutex::new),
            model: RwLock::new(model.map(Arc::new)),
            learning: Mutex::new(()),
            keeper: self.keeper.map(Mutex::new),
            searches: self.searches,
            kinds: self.kinds,
            used: Mutex::new(HashMap::new()),
            watch: Mutex::new(None),
            fitted_on: Mutex::new(fitted_on.flatten()),
            versions: Mutex::default(),
            models_in_state: self.models_in_state && has_state,
        };
        if engine.models_in_state {
            engine.open_models(self.imported.as_deref())?;
        } else if let Some(model) = engine.model_if_any() {
            engine.first_version("the model of the start", &model, None)?;
        }
        Ok(engine)
    }
}

/// A model of a file on the present cluster, and the cluster of its fit if that has another network.
pub(crate) fn adapted(file: crate::ModelFile, cluster: &Cluster) -> Result<(Model, Option<Cluster>), EngineError> {
    let fitted_on = file.fitted_on.unwrap_or_else(|| file.model.cluster().clone());
    let fitted_on = Some(fitted_on).filter(|c| !crate::network_changes(c, cluster).is_empty());
    Ok((on_cluster(file.model, cluster)?, fitted_on))
}

/// Adapts the model to the present cluster. The model refers to hosts and types by name, so hosts may have been added,
/// removed or reordered since the fit, and the health of NICs may have changed. A type with another number of GPUs than
/// at the fit counts as a new type, which the model has not learned.
fn on_cluster(model: Model, cluster: &Cluster) -> Result<Model, EngineError> {
    let fitted = model.cluster();
    let same_gpus = |t: &topology::HostType| {
        cluster.types.iter().all(|other| other.name != t.name || other.gpu_count() == t.gpu_count())
    };
    let other = matches!(compare(&identity(fitted), &identity(cluster)), Kinship::Other(_));
    if other || !fitted.types.iter().all(same_gpus) {
        return Err(EngineError::OtherModel { fitted: fitted.name.clone(), given: cluster.name.clone() });
    }
    Ok(model.on(cluster))
}

/// Locks a value even if an earlier holder panicked: transactions roll back and caches are checked before use, so the value is consistent.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// Turns the engine back into a builder, to add a part that a request needs.
    pub fn into_builder(self) -> Builder {
        fn inner<T>(m: Mutex<T>) -> T {
            m.into_inner().unwrap_or_else(PoisonError::into_inner)
        }
        let model = self.model.into_inner().unwrap_or_else(PoisonError::into_inner);
        Builder {
            cluster: self.cluster,
            state: self.state.map(inner),
            store: self.store.map(inner),
            model: model.map(Arc::unwrap_or_clone),
            keeper: self.keeper.map(inner),
            searches: self.searches,
            kinds: self.kinds,
            fitted_on: inner(self.fitted_on),
            models_in_state: self.models_in_state,
            imported: None,
        }
    }

    /// A builder with a cluster; all other parts are optional.
    pub fn builder(cluster: Cluster) -> Builder {
        Builder {
            cluster,
            state: None,
            store: None,
            model: None,
            keeper: None,
            searches: Registry::shipped(),
            kinds: ModelKinds::shipped(),
            fitted_on: None,
            models_in_state: false,
            imported: None,
        }
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// True if the engine has a state.
    pub fn has_state(&self) -> bool {
        self.state.is_some()
    }

    /// The present model.
    pub fn model(&self) -> Result<Arc<Model>, EngineError> {
        self.model_if_any().ok_or(EngineError::Missing("model"))
    }

    /// The present model; none if no model was given or fitted.
    pub fn model_if_any(&self) -> Option<Arc<Model>> {
        self.model.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How the network differs from that of the model's fit, a few words each: factors that the model learned of tiers, rails and NICs may not
    /// hold. Empty without a model, and after a fit.
    pub fn network_changes(&self) -> Vec<String> {
        lock(&self.fitted_on).as_ref().map_or_else(Vec::new, |c| crate::network_changes(c, &self.cluster))
    }

    /// Saves and uses a model that was fitted on the present network.
    pub(crate) fn replace_fitted(&self, model: Arc<Model>) -> Result<Arc<Model>, EngineError> {
        let before = lock(&self.fitted_on).take();
        self.replace_model(model).inspect_err(|_| *lock(&self.fitted_on) = before)
    }

    /// The present state. Reads one row if nothing has changed since the last call, and O(GPUs of the jobs that came since) otherwise.
    pub fn snapshot(&self) -> Result<Arc<Snapshot>, EngineError> {
        let state = self.reads()?;
        let version = state.version()?;
        let mut kept = lock(&self.snapshot);
        let now = match &*kept {
            Some(s) if s.version == version => return Ok(s.clone()),
            Some(s) => state.snapshot_after(s)?,
            None => state.snapshot()?,
        };
        Ok(kept.insert(Arc::new(now)).clone())
    }

    /// Opens a second connection to the state, for reads: a program with many clients whose questions must not wait for the writes of others.
    ///
    /// # Errors
    /// The state cannot be opened again.
    pub fn read_apart(&mut self) -> Result<(), EngineError> {
        if let (Some(state), None) = (&self.state, &self.reader) {
            self.reader = lock(state).reader()?.map(Mutex::new);
        }
        Ok(())
    }

    /// Locks the state for one read. What was written before the call is read.
    pub(crate) fn reads(&self) -> Result<MutexGuard<'_, Box<dyn ClusterStateStore>>, EngineError> {
        match &self.reader {
            Some(reader) => Ok(lock(reader)),
            None => self.state(),
        }
    }

    /// Locks the state for one read or write.
    pub(crate) fn state(&self) -> Result<MutexGuard<'_, Box<dyn ClusterStateStore>>, EngineError> {
        self.state.as_ref().map(lock).ok_or(EngineError::Missing("state"))
    }

    /// Locks the store for one read or write.
    pub(crate) fn store(&self) -> Result<MutexGuard<'_, Box<dyn ReadingStore>>, EngineError> {
        self.store.as_ref().map(lock).ok_or(EngineError::Missing("store"))
    }

    /// Usable readings, sorted by size and allocation: results must not depend on the order of insertion.
    pub(crate) fn usable_readings(&self) -> Result<Vec<Measurement>, EngineError> {
        let mut rows = self.store()?.measurements(&Query::usable().newest(READINGS_MAX))?;
        rows.sort_by(|a, b| (a.size, &a.allocation).cmp(&(b.size, &b.allocation)));
        Ok(rows)
    }

    /// The readings for a diagnosis, up to number `until`: the newest of every host, at most [`READINGS_MAX`]. The
    /// window is twice as large as the number of readings that the diagnosis uses, because some readings were rejected
    /// and some are repetitions.
    pub(crate) fn window(&self, until: Option<i64>) -> Query {
        let newest = NewestOfHost {
            one_host: 2 * SUBSETS_PER_HOST_MAX,
            several_hosts: 2 * allocations_per_host_max(self.cluster.hosts.len()),
        };
        Query { until, newest_of_each_host: Some(newest), ..Query::usable() }.newest(READINGS_MAX)
    }

    /// Locks out other requests that learn or fit.
    pub(crate) fn learning(&self) -> Learning<'_> {
        Learning { engine: self, alone: Some(lock(&self.learning)) }
    }

    /// Saves a new model, then uses it.
    pub(crate) fn replace_model(&self, model: Arc<Model>) -> Result<Arc<Model>, EngineError> {
        if let Some(k) = &self.keeper {
            let kept = match lock(&self.fitted_on).as_ref() {
                Some(cluster) => lock(k).keep_fitted_on(&model, cluster),
                None => lock(k).keep(&model),
            };
            kept.map_err(EngineError::ModelNotKept)?;
        }
        *self.model.write().unwrap_or_else(PoisonError::into_inner) = Some(model.clone());
        Ok(model)
    }

    /// The search with this name. Searches stay in memory between requests, because some learn from earlier requests.
    pub(crate) fn search(&self, name: &str, seed: u64) -> Result<Arc<dyn Search>, EngineError> {
        let key = (name.to_owned(), seed);
        let mut used = lock(&self.used);
        if let Some(s) = used.get(&key) {
            return Ok(s.clone());
        }
        let search = self.searches.search(name, seed)?;
        if used.len() >= SEARCHES_MAX {
            used.clear();
        }
        let search: Arc<dyn Search> = search.into();
        used.insert(key, search.clone());
        Ok(search)
    }

    /// True if there is a search with this name.
    pub fn check_search(&self, name: &str) -> Result<(), EngineError> {
        self.search(name, 0).map(|_| ())
    }
}
