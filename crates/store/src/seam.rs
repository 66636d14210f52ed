//! The traits through which the engine uses a state and a store of readings. [`State`] and [`Store`] implement them, in SQLite and in PostgreSQL.
//!
//! No method takes a closure: an implementation holds a transaction only for its own work, which is O(rows of the
//! request).

use crate::error::StoreError;
use crate::measurement::{Measurement, Record};
use crate::once::{Done, Once};
use crate::query::Query;
use crate::readings::{Added, By, ReadingChange, Revision, StoredReading};
use crate::state::{
    Allocated, Commit, Committed, Drain, Event, Holder, JobHeld, KeptModels, KeptTask, Lesson, ModelsChange, NewJob,
    NewTask, Release, Snapshot, State, StateError, Suspect, TaskState, Token, Turns,
};
use crate::store::Store;
use topology::{Allocation, Cluster};

/// The operator's state: jobs and the GPUs that they hold.
pub trait ClusterStateStore: Send {
    /// The cluster of the state.
    fn cluster(&self) -> &Cluster;
    /// The whole state at one moment. O(GPUs held).
    fn snapshot(&self) -> Result<Snapshot, StateError>;
    /// The same from an earlier snapshot. See [`State::snapshot_after`].
    fn snapshot_after(&self, _before: &Snapshot) -> Result<Snapshot, StateError> {
        self.snapshot()
    }
    /// A second connection, whose reads wait for no write of this one; none if there is none. See [`State::again`].
    fn reader(&self) -> Result<Option<Box<dyn ClusterStateStore>>, StateError> {
        Ok(None)
    }
    /// The present version of the state. Reads one row.
    fn version(&self) -> Result<u64, StateError>;
    /// See [`State::answered`].
    fn answered(
        &self,
        job: &str,
        request: &str,
        once: Option<&Once>,
        by: &By<'_>,
    ) -> Result<Option<String>, StateError>;
    /// See [`State::kept_answer`]. A database without it has none.
    fn kept_answer(&self, _job: &str) -> Result<Option<String>, StateError> {
        Ok(None)
    }
    /// See [`State::commit`].
    fn commit(&mut self, commit: &Commit<'_>) -> Result<Committed, StateError>;
    /// See [`State::allocate`].
    fn allocate(&mut self, job: &NewJob, once: Option<&Once>, by: &By<'_>) -> Result<Done<Allocated>, StateError>;
    /// See [`State::release`].
    fn release(&mut self, ids: &[String], once: Option<&Once>, by: &By<'_>) -> Result<Done<Release>, StateError>;
    /// See [`State::drain`].
    fn drain(
        &mut self,
        gpus: &Allocation,
        reason: &str,
        once: Option<&Once>,
        by: &By<'_>,
    ) -> Result<Done<Drain>, StateError>;
    /// See [`State::undrain`].
    fn undrain(&mut self, gpus: &Allocation, once: Option<&Once>, by: &By<'_>) -> Result<Done<usize>, StateError>;
    /// See [`State::set_suspects`].
    fn set_suspects(&mut self, suspects: &[Suspect]) -> Result<bool, StateError>;
    /// See [`State::renew`].
    fn renew(&mut self, id: &str, lease_s: f64, by: &By<'_>) -> Result<JobHeld, StateError>;
    /// See [`State::first_lease_end`].
    fn first_lease_end(&self) -> Result<Option<f64>, StateError>;
    /// See [`State::expire`].
    fn expire(&mut self, by: &By<'_>) -> Result<Vec<JobHeld>, StateError>;
    /// See [`State::restart_leases`].
    fn restart_leases(&mut self, at_unix_s: f64) -> Result<usize, StateError>;
    /// See [`State::log`].
    fn log(&mut self, by: &By<'_>, what: &str, subject: &str, gpus: &Allocation) -> Result<(), StateError>;
    /// See [`State::events`].
    fn events(&self, after: i64, limit: usize) -> Result<Vec<Event>, StateError>;
    /// See [`State::last_event`].
    fn last_event(&self) -> Result<i64, StateError>;
    /// See [`State::last_holder`].
    fn last_holder(&self, job: &str) -> Result<Option<Holder>, StateError>;
    /// See [`State::last_held_by`].
    fn last_held_by(&self, job: &str, who: &str) -> Result<Option<Holder>, StateError>;
    /// See [`State::token`].
    fn token(&self, hash: &str) -> Result<Option<Token>, StateError>;
    /// See [`State::has_tokens`].
    fn has_tokens(&self) -> Result<bool, StateError>;
    /// See [`State::has_token_named`].
    fn has_token_named(&self, name: &str) -> Result<bool, StateError>;
    /// The queue for clients whose commits failed because of concurrent changes.
    fn turns(&self) -> Box<dyn Turns>;
    /// See [`State::models_revision`].
    fn models_revision(&self) -> Result<u64, StateError>;
    /// See [`State::models`].
    fn models(&self) -> Result<KeptModels, StateError>;
    /// See [`State::begin_model_text`].
    fn begin_model_text(&mut self) -> Result<i64, StateError>;
    /// See [`State::put_model_part`].
    fn put_model_part(&mut self, text: i64, part: i64, content: &str) -> Result<(), StateError>;
    /// See [`State::remove_model_part`].
    fn remove_model_part(&mut self, text: i64, part: i64) -> Result<(), StateError>;
    /// See [`State::model_part`].
    fn model_part(&self, text: i64, part: i64) -> Result<Option<String>, StateError>;
    /// See [`State::lessons`].
    fn lessons(&self, after: i64) -> Result<Vec<Lesson>, StateError>;
    /// See [`State::change_models`].
    fn change_models(&mut self, change: &ModelsChange<'_>) -> Result<Option<u64>, StateError>;
    /// See [`State::add_task`].
    fn add_task(
        &mut self,
        new: &NewTask<'_>,
        once: Option<&Once>,
        by: &By<'_>,
    ) -> Result<Done<Option<u64>>, StateError>;
    /// See [`State::task`].
    fn task(&self, id: u64) -> Result<Option<KeptTask>, StateError>;
    /// See [`State::tasks`].
    fn tasks(&self, after: u64) -> Result<Vec<KeptTask>, StateError>;
    /// See [`State::begin_task`].
    fn begin_task(&mut self, id: u64) -> Result<bool, StateError>;
    /// See [`State::end_task`].
    fn end_task(&mut self, id: u64, state: TaskState, outcome: Option<&str>) -> Result<bool, StateError>;
    /// See [`State::cancel_task`].
    fn cancel_task(&mut self, id: u64, by: &By<'_>) -> Result<bool, StateError>;
    /// See [`State::beat_tasks`].
    fn beat_tasks(&mut self, tasks: &[(u64, TaskState, usize)]) -> Result<Vec<u64>, StateError>;
    /// See [`State::open_tasks`].
    fn open_tasks(&self) -> Result<Vec<(u64, i64)>, StateError>;
    /// See [`State::lose_task`].
    fn lose_task(&mut self, id: u64, beat: i64, outcome: &str) -> Result<bool, StateError>;
}

impl ClusterStateStore for State {
    fn cluster(&self) -> &Cluster {
        State::cluster(self)
    }
    fn snapshot(&self) -> Result<Snapshot, StateError> {
        State::snapshot(self)
    }
    fn snapshot_after(&self, before: &Snapshot) -> Result<Snapshot, StateError> {
        State::snapshot_after(self, before)
    }
    fn reader(&self) -> Result<Option<Box<dyn ClusterStateStore>>, StateError> {
        Ok(Some(Box::new(self.again()?)))
    }
    fn version(&self) -> Result<u64, StateError> {
        State::version(self)
    }
    fn answered(
        &self,
        job: &str,
        request: &str,
        once: Option<&Once>,
        by: &By<'_>,
    ) -> Result<Option<String>, StateError> {
        State::answered(self, job, request, once, by)
    }
    fn kept_answer(&self, job: &str) -> Result<Option<String>, StateError> {
        State::kept_answer(self, job)
    }
    fn commit(&mut self, commit: &Commit<'_>) -> Result<Committed, StateError> {
        State::commit(self, commit)
    }
    fn allocate(&mut self, job: &NewJob, once: Option<&Once>, by: &By<'_>) -> Result<Done<Allocated>, StateError> {
        self.allocate_once(job, once, *by)
    }
    fn release(&mut self, ids: &[String], once: Option<&Once>, by: &By<'_>) -> Result<Done<Release>, StateError> {
        self.release_once(ids, once, *by)
    }
    fn drain(
        &mut self,
        gpus: &Allocation,
        reason: &str,
        once: Option<&Once>,
        by: &By<'_>,
    ) -> Result<Done<Drain>, StateError> {
        self.drain_once(gpus, reason, once, *by)
    }
    fn undrain(&mut self, gpus: &Allocation, once: Option<&Once>, by: &By<'_>) -> Result<Done<usize>, StateError> {
        self.undrain_once(gpus, once, *by)
    }
    fn set_suspects(&mut self, suspects: &[Suspect]) -> Result<bool, StateError> {
        State::set_suspects(self, suspects)
    }
    fn renew(&mut self, id: &str, lease_s: f64, by: &By<'_>) -> Result<JobHeld, StateError> {
        State::renew(self, id, lease_s, by)
    }
    fn first_lease_end(&self) -> Result<Option<f64>, StateError> {
        State::first_lease_end(self)
    }
    fn expire(&mut self, by: &By<'_>) -> Result<Vec<JobHeld>, StateError> {
        State::expire(self, by)
    }
    fn restart_leases(&mut self, at_unix_s: f64) -> Result<usize, StateError> {
        State::restart_leases(self, at_unix_s)
    }
    fn log(&mut self, by: &By<'_>, what: &str, subject: &str, gpus: &Allocation) -> Result<(), StateError> {
        State::log(self, by, what, subject, gpus)
    }
    fn events(&self, after: i64, limit: usize) -> Result<Vec<Event>, StateError> {
        State::events(self, after, limit)
    }
    fn last_event(&self) -> Result<i64, StateError> {
        State::last_event(self)
    }
    fn last_holder(&self, job: &str) -> Result<Option<Holder>, StateError> {
        State::last_holder(self, job)
    }
    fn last_held_by(&self, job: &str, who: &str) -> Result<Option<Holder>, StateError> {
        State::last_held_by(self, job, who)
    }
    fn token(&self, hash: &str) -> Result<Option<Token>, StateError> {
        State::token(self, hash)
    }
    fn has_tokens(&self) -> Result<bool, StateError> {
        State::has_tokens(self)
    }
    fn has_token_named(&self, name: &str) -> Result<bool, StateError> {
        State::has_token_named(self, name)
    }
    fn turns(&self) -> Box<dyn Turns> {
        State::turns(self)
    }
    fn models_revision(&self) -> Result<u64, StateError> {
        State::models_revision(self)
    }
    fn models(&self) -> Result<KeptModels, StateError> {
        State::models(self)
    }
    fn begin_model_text(&mut self) -> Result<i64, StateError> {
        State::begin_model_text(self)
    }
    fn put_model_part(&mut self, text: i64, part: i64, content: &str) -> Result<(), StateError> {
        State::put_model_part(self, text, part, content)
    }
    fn remove_model_part(&mut self, text: i64, part: i64) -> Result<(), StateError> {
        State::remove_model_part(self, text, part)
    }
    fn model_part(&self, text: i64, part: i64) -> Result<Option<String>, StateError> {
        State::model_part(self, text, part)
    }
    fn lessons(&self, after: i64) -> Result<Vec<Lesson>, StateError> {
        State::lessons(self, after)
    }
    fn change_models(&mut self, change: &ModelsChange<'_>) -> Result<Option<u64>, StateError> {
        State::change_models(self, change)
    }
    fn add_task(
        &mut self,
        new: &NewTask<'_>,
        once: Option<&Once>,
        by: &By<'_>,
    ) -> Result<Done<Option<u64>>, StateError> {
        State::add_task(self, new, once, by)
    }
    fn task(&self, id: u64) -> Result<Option<KeptTask>, StateError> {
        State::task(self, id)
    }
    fn tasks(&self, after: u64) -> Result<Vec<KeptTask>, StateError> {
        State::tasks(self, after)
    }
    fn begin_task(&mut self, id: u64) -> Result<bool, StateError> {
        State::begin_task(self, id)
    }
    fn end_task(&mut self, id: u64, state: TaskState, outcome: Option<&str>) -> Result<bool, StateError> {
        State::end_task(self, id, state, outcome)
    }
    fn cancel_task(&mut self, id: u64, by: &By<'_>) -> Result<bool, StateError> {
        State::cancel_task(self, id, by)
    }
    fn beat_tasks(&mut self, tasks: &[(u64, TaskState, usize)]) -> Result<Vec<u64>, StateError> {
        State::beat_tasks(self, tasks)
    }
    fn open_tasks(&self) -> Result<Vec<(u64, i64)>, StateError> {
        State::open_tasks(self)
    }
    fn lose_task(&mut self, id: u64, beat: i64, outcome: &str) -> Result<bool, StateError> {
        State::lose_task(self, id, beat, outcome)
    }
}

/// Readings of allocations.
pub trait ReadingStore: Send {
    /// The cluster of the readings.
    fn cluster(&self) -> &Cluster;
    /// See [`Store::add`].
    fn add(&mut self, records: &[Record], once: Option<&Once>, at_unix_s: f64) -> Result<Added, StoreError>;
    /// See [`Store::answered`].
    fn answered(&self, once: &Once) -> Result<Option<String>, StoreError>;
    /// See [`Store::added`].
    fn added(&self, once: &Once) -> Result<Option<Added>, StoreError>;
    /// See [`Store::mark_taught`].
    fn mark_taught(&mut self, once: &Once, taught: bool) -> Result<(), StoreError>;
    /// See [`Store::mark_all_taught`].
    fn mark_all_taught(&mut self) -> Result<(), StoreError>;
    /// See [`Store::finish`].
    fn finish(&mut self, once: &Once, answer: &str) -> Result<(), StoreError>;
    /// See [`Store::measurements`].
    fn measurements(&self, query: &Query) -> Result<Vec<Measurement>, StoreError>;
    /// See [`Store::readings`].
    fn readings(&self, query: &Query) -> Result<Vec<StoredReading>, StoreError>;
    /// See [`Store::count`].
    fn count(&self, query: &Query) -> Result<usize, StoreError>;
    /// See [`Store::revision`].
    fn revision(&self) -> Result<Revision, StoreError>;
    /// See [`Store::correct`].
    fn correct(
        &mut self,
        id: i64,
        busbw_gb_per_s: f64,
        by: &By<'_>,
        once: Option<&Once>,
    ) -> Result<Done<ReadingChange>, StoreError>;
    /// See [`Store::withdraw`].
    fn withdraw(&mut self, id: i64, by: &By<'_>, once: Option<&Once>) -> Result<Done<ReadingChange>, StoreError>;
    /// See [`Store::history`].
    fn history(&self, id: i64) -> Result<Vec<ReadingChange>, StoreError>;
}

impl ReadingStore for Store {
    fn cluster(&self) -> &Cluster {
        Store::cluster(self)
    }
    fn add(&mut self, records: &[Record], once: Option<&Once>, at_unix_s: f64) -> Result<Added, StoreError> {
        Store::add(self, records, once, at_unix_s)
    }
    fn answered(&self, once: &Once) -> Result<Option<String>, StoreError> {
        Store::answered(self, once)
    }
    fn added(&self, once: &Once) -> Result<Option<Added>, StoreError> {
        Store::added(self, once)
    }
    fn mark_taught(&mut self, once: &Once, taught: bool) -> Result<(), StoreError> {
        Store::mark_taught(self, once, taught)
    }
    fn mark_all_taught(&mut self) -> Result<(), StoreError> {
        Store::mark_all_taught(self)
    }
    fn finish(&mut self, once: &Once, answer: &str) -> Result<(), StoreError> {
        Store::finish(self, once, answer)
    }
    fn measurements(&self, query: &Query) -> Result<Vec<Measurement>, StoreError> {
        Store::measurements(self, query)
    }
    fn readings(&self, query: &Query) -> Result<Vec<StoredReading>, StoreError> {
        Store::readings(self, query)
    }
    fn count(&self, query: &Query) -> Result<usize, StoreError> {
        Store::count(self, query)
    }
    fn revision(&self) -> Result<Revision, StoreError> {
        Store::revision(self)
    }
    fn correct(
        &mut self,
        id: i64,
        busbw_gb_per_s: f64,
        by: &By<'_>,
        once: Option<&Once>,
    ) -> Result<Done<ReadingChange>, StoreError> {
        Store::correct(self, id, busbw_gb_per_s, by, once)
    }
    fn withdraw(&mut self, id: i64, by: &By<'_>, once: Option<&Once>) -> Result<Done<ReadingChange>, StoreError> {
        Store::withdraw(self, id, by, once)
    }
    fn history(&self, id: i64) -> Result<Vec<ReadingChange>, StoreError> {
        Store::history(self, id)
    }
}
