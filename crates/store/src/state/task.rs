//! The slow work that servers of the state began: what it does, where it is, and its outcome. Every server can answer for a task; the one that
//! began it runs it.
//!
//! The server that runs a task counts its row up once a second ([`State::beat_tasks`]). The others see a count that stands still, and call the
//! task lost ([`State::lose_task`]); the next count of its server, if it was only slow, takes that back. No clock is compared.

use super::event::log;
use super::{Basis, State, StateError};
use crate::db::{FromRow, Row, SqlError, Val, vals};
use crate::once::{Done, Once};
use crate::readings::By;
use serde::{Deserialize, Serialize};
use topology::Allocation;

/// Where a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TaskState {
    /// Other tasks come first.
    Waiting,
    /// It runs.
    Running,
    /// It has a result.
    Done,
    /// It has a problem.
    Failed,
    /// It was cancelled before it changed anything.
    Cancelled,
}

impl TaskState {
    const ALL: [(TaskState, &'static str); 5] = [
        (TaskState::Waiting, "waiting"),
        (TaskState::Running, "running"),
        (TaskState::Done, "done"),
        (TaskState::Failed, "failed"),
        (TaskState::Cancelled, "cancelled"),
    ];

    /// True until the task has ended.
    pub fn is_open(self) -> bool {
        matches!(self, TaskState::Waiting | TaskState::Running)
    }

    fn word(self) -> &'static str {
        Self::ALL.iter().find(|(s, _)| *s == self).map_or("", |(_, w)| w)
    }
}

/// A task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptTask {
    /// Its number. Numbers rise, and none is used twice.
    pub id: u64,
    /// What it does: a word of the server.
    pub what: String,
    /// Its author.
    pub who: String,
    /// Where it is.
    pub state: TaskState,
    /// The step that runs or ran last, from 0.
    pub step: usize,
    /// Its result or its problem: a text of the server.
    pub outcome: Option<String>,
}

/// A task to add.
#[derive(Clone, Copy, Debug)]
pub struct NewTask<'a> {
    /// What it does.
    pub what: &'a str,
    /// Number of waiting tasks from which on it is refused.
    pub waiting_max: usize,
    /// Number of tasks above which the oldest that have ended are forgotten.
    pub kept_max: usize,
    /// True if it is refused while another task waits or runs.
    pub alone: bool,
}

const OPEN: &str = "state IN ('waiting', 'running')";

impl FromRow for KeptTask {
    fn of(row: &Row<'_>) -> Result<Self, SqlError> {
        let word: String = row.get(3)?;
        // A word of a newer linkwise is no reason to show nothing.
        let state = TaskState::ALL.iter().find(|(_, w)| *w == word).map_or(TaskState::Failed, |(s, _)| *s);
        let (id, what, who, step, outcome) = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(4)?, row.get(5)?);
        Ok(KeptTask { id, what, who, state, step, outcome })
    }
}

fn number(id: u64) -> i64 {
    i64::try_from(id).unwrap_or(i64::MAX)
}

impl State {
    /// Adds a task that waits, once under an idempotency key, and forgets the oldest ones that have ended. None: it was to be alone, and is not.
    ///
    /// # Errors
    /// [`StateError::TooManyTasks`] if too many wait.
    pub fn add_task(
        &mut self,
        new: &NewTask<'_>,
        once: Option<&Once>,
        by: &By<'_>,
    ) -> Result<Done<Option<u64>>, StateError> {
        self.once_of(Basis::OfNone, once, by, |tx, cluster, path| {
            let fail = |e: SqlError| StateError::of("write to", path, &e);
            let count = |rows: &str| tx.one::<usize>(&format!("SELECT count(*) FROM task{rows}"), &[]).map_err(fail);
            if new.alone && count(&format!(" WHERE {OPEN}"))? > 0 {
                return Ok(None);
            }
            if count(" WHERE state = 'waiting'")? >= new.waiting_max {
                return Err(StateError::TooManyTasks { max: new.waiting_max });
            }
            let sql = "INSERT INTO task (what, who, state, step, cancel, beat, lost) VALUES (?1, ?2, 'waiting', 0, 0, 0, 0) RETURNING id";
            let id: u64 = tx.one(sql, vals![new.what, by.who]).map_err(fail)?;
            let more = count("")?.saturating_sub(new.kept_max);
            if more > 0 {
                // One that waits or runs stays in reach of its client.
                let forget = format!("DELETE FROM task WHERE id IN (SELECT id FROM task WHERE NOT {OPEN} ORDER BY id LIMIT ?1)");
                tx.execute(&forget, vals![more as i64]).map_err(fail)?;
            }
            log(tx, cluster, path, by, "task", &format!("{id} {}", new.what), &Allocation::default())?;
            Ok(Some(id))
        })
    }

    /// A task by its number.
    pub fn task(&self, id: u64) -> Result<Option<KeptTask>, StateError> {
        let sql = "SELECT id, what, who, state, step, outcome FROM task WHERE id = ?1";
        self.read_one(|tx| tx.first(sql, vals![number(id)]))
    }

    /// The tasks after number `after`, oldest first. Results are left out: they may be long.
    pub fn tasks(&self, after: u64) -> Result<Vec<KeptTask>, StateError> {
        let sql = "SELECT id, what, who, state, step, CASE WHEN state = 'done' THEN NULL ELSE outcome END FROM task WHERE id > ?1 ORDER BY id";
        self.read_one(|tx| tx.all(sql, vals![number(after)]))
    }

    /// Lets a task run that waits, or that another server called lost; false if it was cancelled.
    pub fn begin_task(&mut self, id: u64) -> Result<bool, StateError> {
        let sql = "UPDATE task SET state = 'running', outcome = NULL, lost = 0 WHERE id = ?1 AND (state = 'waiting' OR lost = 1)";
        self.change_task(sql, id, &[])
    }

    /// Writes the outcome of a task that ran, also of one that another server called lost.
    pub fn end_task(&mut self, id: u64, state: TaskState, outcome: Option<&str>) -> Result<bool, StateError> {
        self.change_task(
            "UPDATE task SET state = ?2, outcome = ?3, lost = 0 WHERE id = ?1",
            id,
            vals![state.word(), outcome],
        )
    }

    /// Cancels a task: at once if it waits; one that runs is asked for by the next [`State::beat_tasks`] of its server. False: there is no such task,
    /// or it has ended.
    pub fn cancel_task(&mut self, id: u64, by: &By<'_>) -> Result<bool, StateError> {
        let State { path, db, cluster, .. } = self;
        let fail = |e: SqlError| StateError::of("write to", path, &e);
        db.write(fail, |tx| {
            let sql = format!(
                "UPDATE task SET cancel = 1, state = CASE WHEN state = 'waiting' THEN 'cancelled' ELSE state END WHERE id = ?1 AND {OPEN} RETURNING what"
            );
            let what: Option<String> = tx.first(&sql, vals![number(id)]).map_err(fail)?;
            if let Some(what) = &what {
                log(tx, cluster, path, by, "cancel", &format!("{id} {what}"), &Allocation::default())?;
            }
            Ok(what.is_some())
        })
    }

    /// Says that the tasks go on, each with its state and its step. Returns those that are to end: somebody cancelled them.
    pub fn beat_tasks(&mut self, tasks: &[(u64, TaskState, usize)]) -> Result<Vec<u64>, StateError> {
        let State { path, db, .. } = self;
        let fail = |e: SqlError| StateError::of("write to", path, &e);
        db.write(fail, |tx| {
            let mut cancelled = Vec::new();
            for &(id, state, step) in tasks {
                // The caller looked before it counts: a task that began to run meanwhile does not wait again.
                let sql = "UPDATE task SET beat = beat + 1, step = ?2, outcome = NULL, lost = 0, \
                           state = CASE WHEN state = 'running' THEN state ELSE ?3 END \
                           WHERE id = ?1 AND (state IN ('waiting', 'running') OR lost = 1) RETURNING cancel";
                let goes_on: Option<bool> = tx
                    .first(sql, vals![number(id), step as i64, state.word()])
                    .map_err(fail)?
                    .map(|cancel: bool| !cancel);
                if goes_on != Some(true) {
                    cancelled.push(id);
                }
            }
            Ok(cancelled)
        })
    }

    /// The tasks that wait or run, each with its count.
    pub fn open_tasks(&self) -> Result<Vec<(u64, i64)>, StateError> {
        self.read_one(|tx| tx.all(&format!("SELECT id, beat FROM task WHERE {OPEN} ORDER BY id"), &[]))
    }

    /// Ends a task whose count stood still: the server that ran it is gone. False if it went on meanwhile.
    pub fn lose_task(&mut self, id: u64, beat: i64, outcome: &str) -> Result<bool, StateError> {
        let sql = "UPDATE task SET state = 'failed', lost = 1, outcome = ?3 WHERE id = ?1 AND beat = ?2 AND state IN ('waiting', 'running')";
        self.change_task(sql, id, vals![beat, outcome])
    }

    fn change_task(&mut self, sql: &str, id: u64, more: &[Val<'_>]) -> Result<bool, StateError> {
        let State { path, db, .. } = self;
        let fail = |e: SqlError| StateError::of("write to", path, &e);
        let values: Vec<Val<'_>> = std::iter::once(number(id).into()).chain(more.iter().cloned()).collect();
        db.write(fail, |tx| tx.execute(sql, &values).map(|n| n > 0).map_err(fail))
    }
}
