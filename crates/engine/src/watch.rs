//! What readings speak against, kept up to date reading by reading.
//!
//! The first look reads the newest readings of every host into a [`Monitor`]: its cost depends on the number of hosts, not on what the store
//! holds. Every later look adds what came since, and costs work for the hosts of the new readings alone. The monitor judges by the model that was there when it was made: single readings that the model
//! learns move its expectations little. It is made anew when the model was fitted, when a reading that it has was corrected, withdrawn
//! or judged anew, and after [`LEARNED_MAX`] learned readings. A process that answers one request and ends makes it once.
//!
//! Memory: that of the monitor ([`predict::doctor::PAIRS_MAX`]), whatever the store holds.

use crate::error::EngineError;
use crate::hold::{Engine, lock};
use predict::Model;
use predict::doctor::{Diagnosis, Monitor};
use std::sync::Arc;
use store::{Query, Revision};

/// Readings that the model may learn before the monitor takes it over.
const LEARNED_MAX: u32 = 64;
/// New readings that are read from the store at once: the store is locked for one batch at a time.
const BATCH: usize = 10_000;

/// A monitor, and how far it is.
pub(crate) struct Watch {
    monitor: Monitor,
    /// Of the store, when the monitor read it.
    revision: Revision,
    /// The model of the last look: another one than that which learning made of it was fitted.
    model: Arc<Model>,
    learned: u32,
}

impl Engine {
    /// What the readings of the store speak against, by `model`.
    pub(crate) fn suspicions(&self, model: &Arc<Model>) -> Result<Diagnosis, EngineError> {
        let mut kept = lock(&self.watch);
        let now = self.store()?.revision()?;
        let holds =
            |w: &Watch| w.revision.changes == now.changes && Arc::ptr_eq(&w.model, model) && w.learned < LEARNED_MAX;
        let mut watch = match kept.take().filter(holds) {
            Some(w) => w,
            None => {
                let rows = self.store()?.measurements(&self.window(Some(now.last_id)))?;
                let monitor = Monitor::of(Model::clone(model), &rows);
                Watch { monitor, revision: now, model: model.clone(), learned: 0 }
            }
        };
        while watch.revision.last_id < now.last_id {
            let until = now.last_id.min(watch.revision.last_id + BATCH as i64);
            let query = Query { after: Some(watch.revision.last_id), until: Some(until), ..Query::usable() };
            let rows = self.store()?.measurements(&query)?;
            rows.iter().for_each(|m| _ = watch.monitor.add(m));
            watch.revision.last_id = until;
        }
        let diagnosis = watch.monitor.diagnose();
        *kept = Some(watch);
        Ok(diagnosis)
    }

    /// The model has learned readings: the monitor stays, by the model that it was made with.
    pub(crate) fn watch_learned(&self, model: &Arc<Model>, readings: usize) {
        if let Some(w) = lock(&self.watch).as_mut() {
            w.model = model.clone();
            w.learned = w.learned.saturating_add(readings as u32);
        }
    }
}
