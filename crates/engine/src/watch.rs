//! Updates the suspects with each reading.
//!
//! The first update reads the newest readings of every host into a [`Monitor`]: its cost depends on the number of
//! hosts, not on the size of the store. Every later update adds the new readings; its cost depends only on their hosts.
//! The monitor compares readings with the model with which it was made, because single learned readings change
//! predictions little. It is rebuilt where they change one much, after a fit, after a change to one of its readings (correction, withdrawal, new
//! quality), and after [`LEARNED_MAX`] learned readings. A process that answers one request builds the monitor once.
//!
//! Memory: that of the monitor ([`diagnose::PAIRS_MAX`]), independent of the size of the store.

use crate::error::EngineError;
use crate::hold::{Engine, lock};
use diagnose::{Diagnosis, Monitor};
use predict::Model;
use std::sync::Arc;
use store::{Query, Revision};
use topology::{Allocation, Bytes};

/// Readings that the model may learn before the monitor is rebuilt with it.
const LEARNED_MAX: u32 = 64;
/// Change of the prediction of a learned reading (of the logarithm) from which on the monitor is rebuilt.
const MOVED_LN: f64 = 0.05;
/// New readings per read of the store: the store is locked for one batch at a time.
const BATCH: usize = 10_000;

/// A monitor, and the revision of the store that it has read.
pub(crate) struct Watch {
    monitor: Monitor,
    /// Revision of the store at the last update.
    revision: Revision,
    /// The model of the last update. A model that does not derive from it by learning comes from a fit.
    model: Arc<Model>,
    learned: u32,
}

impl Engine {
    /// The suspects of the store's readings, according to `model`.
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

    /// Records that the model has learned readings: the monitor keeps the model with which it was made, unless a prediction changed much.
    pub(crate) fn watch_learned(&self, model: &Arc<Model>, learned: &[(Allocation, Bytes)]) {
        let mut watch = lock(&self.watch);
        let Some(w) = watch.as_mut() else { return };
        let log = |of: &Model, (a, size): &(Allocation, Bytes)| of.predict_allocation(*size, a).busbw_gb_per_s.ln();
        if learned.iter().any(|l| (log(model, l) - log(&w.model, l)).abs() > MOVED_LN) {
            *watch = None;
        } else {
            w.learned = w.learned.saturating_add(learned.len() as u32);
            w.model = model.clone();
        }
    }

    /// False if the suspects must be judged anew.
    pub(crate) fn is_watched(&self) -> bool {
        lock(&self.watch).is_some()
    }
}
