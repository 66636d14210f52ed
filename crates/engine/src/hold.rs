//! [`Engine`]: what it holds, and how its parts are shared.

use crate::error::EngineError;
use crate::watch::Watch;
use place::{Registry, Search};
use predict::doctor::{SUBSETS_PER_HOST_MAX, allocations_per_host_max};
use predict::{Model, ModelKinds};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use store::state::{Snapshot, Turns};
use store::identity::{Kinship, compare, identity};
use store::{ClusterStateStore, Measurement, NewestOfHost, Query, ReadingStore};
use topology::Cluster;

/// Most readings that a fit or a diagnosis takes, the newest ones.
pub const READINGS_MAX: usize = 200_000;
/// Most searches that are kept between requests, by name and seed.
const SEARCHES_MAX: usize = 64;

/// Keeps a model that has learned, where the next engine finds it.
pub trait ModelKeeper: Send {
    /// Called after every change of the model, before the request is answered.
    fn keep(&mut self, model: &Model) -> Result<(), String>;
}

/// The loop of one cluster. Made by [`Engine::builder`].
pub struct Engine {
    pub(crate) cluster: Cluster,
    state: Option<Mutex<Box<dyn ClusterStateStore>>>,
    pub(crate) turns: Option<Box<dyn Turns>>,
    /// The last snapshot: good as long as the state has its version.
    snapshot: Mutex<Option<Arc<Snapshot>>>,
    store: Option<Mutex<Box<dyn ReadingStore>>>,
    model: RwLock<Option<Arc<Model>>>,
    /// One at a time learns or fits; those who place go on with the model as it was.
    learning: Mutex<()>,
    keeper: Option<Mutex<Box<dyn ModelKeeper>>>,
    pub(crate) searches: Registry,
    pub(crate) kinds: ModelKinds,
    used: Mutex<HashMap<(String, u64), Arc<dyn Search>>>,
    pub(crate) watch: Mutex<Option<Watch>>,
}

/// Puts an [`Engine`] together.
pub struct Builder {
    cluster: Cluster,
    state: Option<Box<dyn ClusterStateStore>>,
    store: Option<Box<dyn ReadingStore>>,
    model: Option<Model>,
    keeper: Option<Box<dyn ModelKeeper>>,
    searches: Registry,
    kinds: ModelKinds,
}

impl Builder {
    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }
    /// With the operator's state.
    pub fn state(mut self, state: impl ClusterStateStore + 'static) -> Self {
        self.state = Some(Box::new(state));
        self
    }
    /// With readings.
    pub fn store(mut self, store: impl ReadingStore + 'static) -> Self {
        self.store = Some(Box::new(store));
        self
    }
    /// With a model.
    pub fn model(mut self, model: Model) -> Self {
        self.model = Some(model);
        self
    }
    /// With a place where the model is kept after it learned.
    pub fn keeper(mut self, keeper: impl ModelKeeper + 'static) -> Self {
        self.keeper = Some(Box::new(keeper));
        self
    }
    /// With these searches and contention rules in place of those that ship.
    pub fn searches(mut self, searches: &Registry) -> Self {
        self.searches = searches.clone();
        self
    }
    /// With these kinds of models in place of those that ship.
    pub fn kinds(mut self, kinds: &ModelKinds) -> Self {
        self.kinds = kinds.clone();
        self
    }

    /// The engine.
    ///
    /// # Errors
    /// The model was fitted on another cluster: of another name, or with fewer than half of its hosts.
    pub fn build(self) -> Result<Engine, EngineError> {
        let model = self.model.map(|m| on_cluster(m, &self.cluster)).transpose()?;
        Ok(Engine {
            turns: self.state.as_ref().map(|s| s.turns()),
            cluster: self.cluster,
            state: self.state.map(Mutex::new),
            snapshot: Mutex::new(None),
            store: self.store.map(Mutex::new),
            model: RwLock::new(model.map(Arc::new)),
            learning: Mutex::new(()),
            keeper: self.keeper.map(Mutex::new),
            searches: self.searches,
            kinds: self.kinds,
            used: Mutex::new(HashMap::new()),
            watch: Mutex::new(None),
        })
    }
}

/// The model for the cluster as it is now: it knows hosts and types by name, so that hosts may have come, gone and changed places since the
/// fit, and the health of NICs. A type that has another number of GPUs now is another type, of which it knows nothing.
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

/// A lock whose holder panicked guards values that are whole: transactions roll back, and caches are checked before use.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// Takes it apart, to add what a first request told to be needed.
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
        }
    }

    /// Begins with a cluster; everything else is optional.
    pub fn builder(cluster: Cluster) -> Builder {
        Builder {
            cluster,
            state: None,
            store: None,
            model: None,
            keeper: None,
            searches: Registry::shipped(),
            kinds: ModelKinds::shipped(),
        }
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Does it have a state?
    pub fn has_state(&self) -> bool {
        self.state.is_some()
    }

    /// The model as it is now.
    pub fn model(&self) -> Result<Arc<Model>, EngineError> {
        self.model_if_any().ok_or(EngineError::Missing("model"))
    }

    /// The model, if there is one.
    pub fn model_if_any(&self) -> Option<Arc<Model>> {
        self.model.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Everything that the state says now. One row is read where nothing has changed since the last call, else O(GPUs held).
    pub fn snapshot(&self) -> Result<Arc<Snapshot>, EngineError> {
        let state = self.state()?;
        let version = state.version()?;
        let mut kept = lock(&self.snapshot);
        match &*kept {
            Some(s) if s.version == version => Ok(s.clone()),
            _ => {
                let s = Arc::new(state.snapshot()?);
                *kept = Some(s.clone());
                Ok(s)
            }
        }
    }

    /// The state, locked for one read or write.
    pub(crate) fn state(&self) -> Result<MutexGuard<'_, Box<dyn ClusterStateStore>>, EngineError> {
        self.state.as_ref().map(lock).ok_or(EngineError::Missing("state"))
    }

    /// The store, locked for one read or write.
    pub(crate) fn store(&self) -> Result<MutexGuard<'_, Box<dyn ReadingStore>>, EngineError> {
        self.store.as_ref().map(lock).ok_or(EngineError::Missing("store"))
    }

    /// Usable readings, by size and allocation: what is computed of them must not depend on the order in which they came.
    pub(crate) fn usable_readings(&self) -> Result<Vec<Measurement>, EngineError> {
        let mut rows = self.store()?.measurements(&Query::usable().newest(READINGS_MAX))?;
        rows.sort_by(|a, b| (a.size, &a.allocation).cmp(&(b.size, &b.allocation)));
        Ok(rows)
    }

    /// The readings that a diagnosis looks at, stored up to number `until`: the newest of every host, at most [`READINGS_MAX`]. Twice what
    /// the diagnosis keeps, since some were rejected, and some are repetitions.
    pub(crate) fn window(&self, until: Option<i64>) -> Query {
        let newest = NewestOfHost {
            one_host: 2 * SUBSETS_PER_HOST_MAX,
            several_hosts: 2 * allocations_per_host_max(self.cluster.hosts.len()),
        };
        Query { until, newest_of_each_host: Some(newest), ..Query::usable() }.newest(READINGS_MAX)
    }

    /// Alone among those who learn and fit.
    pub(crate) fn learning(&self) -> MutexGuard<'_, ()> {
        lock(&self.learning)
    }

    /// Keeps a new model, and uses it from now on.
    pub(crate) fn replace_model(&self, model: Model) -> Result<Arc<Model>, EngineError> {
        if let Some(k) = &self.keeper {
            lock(k).keep(&model).map_err(EngineError::ModelNotKept)?;
        }
        let model = Arc::new(model);
        *self.model.write().unwrap_or_else(PoisonError::into_inner) = Some(model.clone());
        Ok(model)
    }

    /// The search of a name. Searches live from request to request, since some learn from those before.
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

    /// Is there a search of this name?
    pub fn check_search(&self, name: &str) -> Result<(), EngineError> {
        self.search(name, 0).map(|_| ())
    }
}
