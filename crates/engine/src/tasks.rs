//! The slow work that servers began, as the state keeps it. The engine runs none of it.

use crate::error::EngineError;
use crate::hold::Engine;
use store::state::{KeptTask, NewTask, TaskState};
use store::{By, Done, Once};

impl Engine {
    /// See [`store::state::State::add_task`].
    pub fn add_task(
        &self,
        new: &NewTask<'_>,
        once: Option<&Once>,
        by: &By<'_>,
    ) -> Result<Done<Option<u64>>, EngineError> {
        Ok(self.state()?.add_task(new, once, by)?)
    }

    /// See [`store::state::State::task`].
    pub fn task(&self, id: u64) -> Result<Option<KeptTask>, EngineError> {
        Ok(self.reads()?.task(id)?)
    }

    /// See [`store::state::State::tasks`].
    pub fn tasks(&self, after: u64) -> Result<Vec<KeptTask>, EngineError> {
        Ok(self.reads()?.tasks(after)?)
    }

    /// See [`store::state::State::begin_task`].
    pub fn begin_task(&self, id: u64) -> Result<bool, EngineError> {
        Ok(self.state()?.begin_task(id)?)
    }

    /// See [`store::state::State::end_task`].
    pub fn end_task(&self, id: u64, state: TaskState, outcome: Option<&str>) -> Result<bool, EngineError> {
        Ok(self.state()?.end_task(id, state, outcome)?)
    }

    /// See [`store::state::State::cancel_task`].
    pub fn cancel_task(&self, id: u64, by: &By<'_>) -> Result<bool, EngineError> {
        Ok(self.state()?.cancel_task(id, by)?)
    }

    /// See [`store::state::State::beat_tasks`].
    pub fn beat_tasks(&self, tasks: &[(u64, TaskState, usize)]) -> Result<Vec<u64>, EngineError> {
        Ok(self.state()?.beat_tasks(tasks)?)
    }

    /// See [`store::state::State::open_tasks`].
    pub fn open_tasks(&self) -> Result<Vec<(u64, i64)>, EngineError> {
        Ok(self.reads()?.open_tasks()?)
    }

    /// See [`store::state::State::lose_task`].
    pub fn lose_task(&self, id: u64, beat: i64, outcome: &str) -> Result<bool, EngineError> {
        Ok(self.state()?.lose_task(id, beat, outcome)?)
    }
}
