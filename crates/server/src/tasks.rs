//! Slow work that a client polls. The state keeps the tasks of all servers that share it, so any of them answers for a task. The server that began
//! a task runs it: one at a time, in the order of the requests. A task whose server is gone fails, and what it did stays done.

use crate::app::App;
use crate::auth::Client;
use crate::limits::{
    Kind, TASK_BEAT, TASK_LOST, TASK_RESULT_BYTES_MAX, TASK_STOP_TIME, TASKS_KEPT_MAX, TASKS_WAITING_MAX,
};
use crate::lists::TasksQuery;
use crate::problem::{Problem, Told};
use axum::http::StatusCode;
use engine::{DiagnoseAnswer, DiagnoseRequest, Engine, EngineError, FitRequest, Progress, RefitAnswer, STEPS};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use store::state::{KeptTask, NewTask, TaskState};
use store::{Done, Once};
use tokio::sync::Notify;

/// A task.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Task {
    /// Its number.
    pub id: u64,
    /// What it does.
    pub what: What,
    /// Its author.
    pub who: String,
    /// Where it is.
    pub state: TaskState,
    /// The step that runs or ran last, from 1.
    pub step: usize,
    /// Number of steps.
    pub steps: usize,
    /// What the step does.
    pub doing: &'static str,
    /// The result of a task that is done; lists leave it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<TaskResult>")]
    pub result: Option<Box<RawValue>>,
    /// Why the task failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Told>")]
    pub problem: Option<Box<RawValue>>,
}

impl Task {
    /// A task as the state keeps it; none if a newer server began it and this one does not know what it does.
    fn of(kept: KeptTask) -> Option<Task> {
        let what = What::ALL.into_iter().find(|w| w.word() == kept.what)?;
        let steps = what.steps();
        let step = kept.step.min(steps.len() - 1);
        let outcome = kept.outcome.and_then(|text| RawValue::from_string(text).ok());
        let (result, problem) = if kept.state == TaskState::Done { (outcome, None) } else { (None, outcome) };
        let (id, who, state) = (kept.id, kept.who, kept.state);
        Some(Task { id, what, who, state, step: step + 1, steps: steps.len(), doing: steps[step], result, problem })
    }

    /// True if a client sees the task: one of a tenant sees the tasks of its tenant.
    fn is_for(&self, client: &Client) -> bool {
        client.tenant().is_none_or(|t| crate::tenant::tenant_of(&self.who) == Some(t))
    }
}

/// The work of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// Fits a model.
    Fit,
    /// Looks for slow hardware.
    Diagnose,
}

impl What {
    const ALL: [What; 2] = [What::Fit, What::Diagnose];

    /// The word for it in the state.
    fn word(self) -> &'static str {
        match self {
            What::Fit => "fit",
            What::Diagnose => "diagnose",
        }
    }

    /// The steps.
    fn steps(self) -> &'static [&'static str] {
        match self {
            What::Fit => &STEPS,
            What::Diagnose => &["reads the readings", "looks for defects"],
        }
    }
}

/// The result of a task.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[allow(clippy::large_enum_variant)] // it lives until it is text
pub enum TaskResult {
    /// Of a fit.
    Fit(RefitAnswer),
    /// Of a diagnosis.
    Diagnose(DiagnoseAnswer),
}

/// The request of a task.
pub enum Work {
    /// Fits a model.
    Fit(FitRequest),
    /// Looks for slow hardware.
    Diagnose(DiagnoseRequest),
}

impl Work {
    fn what(&self) -> What {
        match self {
            Work::Fit(_) => What::Fit,
            Work::Diagnose(_) => What::Diagnose,
        }
    }

    fn run(&self, engine: &Engine, who: &Client, progress: &Progress) -> Result<TaskResult, EngineError> {
        let by = crate::app::by(who);
        match self {
            Work::Fit(r) => engine.refit(r, by, progress).map(TaskResult::Fit),
            Work::Diagnose(r) => engine.diagnose_until(r, by, progress).map(TaskResult::Diagnose),
        }
    }
}

/// Tasks.
#[derive(Serialize, JsonSchema)]
pub struct TaskList {
    /// The tasks, oldest first.
    pub tasks: Vec<Task>,
    /// `after` of the next page; none: these are the last ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// The tasks that this server began, until the state has their outcome.
#[derive(Default)]
pub struct Tasks {
    own: Mutex<HashMap<u64, Own>>,
    others: Mutex<Others>,
    turn: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Own {
    progress: Arc<Progress>,
    runs: bool,
    /// The outcome, which the state does not have yet.
    ended: Option<(TaskState, Option<String>)>,
    /// Ends its wait for its turn.
    cancelled: Arc<Notify>,
}

impl Own {
    fn state(&self) -> TaskState {
        if self.runs { TaskState::Running } else { TaskState::Waiting }
    }
}

/// What is known of tasks of other servers.
#[derive(Default)]
struct Others {
    /// When the state was looked at.
    looked: Option<Instant>,
    /// The last count of each task, and when it was seen to change.
    counts: HashMap<u64, (i64, Instant)>,
}

impl Others {
    /// The tasks whose count stood still for [`TASK_LOST`] while this server looked at it. After a gap, such as an outage of the state, the
    /// time begins again: their servers could not count either.
    fn lost(&mut self, open: &[(u64, i64)], now: Instant) -> Vec<(u64, i64)> {
        if self.looked.replace(now).is_none_or(|at| now - at > 5 * TASK_BEAT) {
            self.counts.clear();
        }
        self.counts.retain(|id, _| open.iter().any(|(o, _)| o == id));
        let mut stands = |(id, beat): &(u64, i64)| {
            let seen = self.counts.entry(*id).or_insert((*beat, now));
            if seen.0 != *beat {
                *seen = (*beat, now);
            }
            now - seen.1 >= TASK_LOST
        };
        open.iter().filter(|t| stands(t)).copied().collect()
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tasks {
    /// The present steps and unwritten outcomes of this server's tasks are newer than the state's.
    fn newest(&self, mut kept: KeptTask) -> KeptTask {
        if let Some(own) = lock(&self.own).get(&kept.id) {
            kept.step = own.progress.step();
            if let Some((state, outcome)) = &own.ended {
                (kept.state, kept.outcome) = (*state, outcome.clone());
            }
        }
        kept
    }

    /// Lets a task run; false if it is to end: somebody cancelled it, or the server stops.
    fn runs(&self, id: u64) -> bool {
        lock(&self.own).get_mut(&id).map(|o| o.runs = true).is_some()
    }

    /// Gives a running task its outcome; one that was given up has another.
    fn ended(&self, id: u64, outcome: (TaskState, Option<String>)) {
        if let Some(own) = lock(&self.own).get_mut(&id) {
            own.ended = Some(outcome);
        }
    }

    /// Takes the tasks that wait out of the list, and cancels the one that runs.
    fn give_up_waiting(&self) -> Vec<u64> {
        let mut waiting = Vec::new();
        lock(&self.own).retain(|id, own| {
            own.progress.cancel();
            let waits = !own.runs && own.ended.is_none();
            if waits {
                waiting.push(*id);
            }
            !waits
        });
        waiting
    }

    /// Ends own tasks that somebody cancelled: one that waits for its turn at once, one that runs within about a second. One that the state
    /// lets run at this moment runs, and ends at its first look.
    fn end(&self, ids: &[u64]) {
        let own = lock(&self.own);
        for task in ids.iter().filter_map(|id| own.get(id)) {
            task.progress.cancel();
            task.cancelled.notify_one();
        }
    }

    /// Adds a task that begins to wait.
    fn add(&self, id: u64) -> (Arc<Progress>, Arc<Notify>) {
        let own = Own::default();
        let parts = (own.progress.clone(), own.cancelled.clone());
        lock(&self.own).insert(id, own);
        parts
    }
}

fn unknown(id: u64) -> Problem {
    let detail = format!("there is no task {id}; the newest {TASKS_KEPT_MAX} tasks are kept");
    Problem::new(StatusCode::NOT_FOUND, "unknown_task", detail, "look at the number in the answer to the request")
}

fn forgotten(id: u64) -> Problem {
    let detail = format!("this key began task {id}, which has ended; its result is forgotten");
    let remedy = "look at the models and the suspects, or begin a task under another key";
    Problem::new(StatusCode::GONE, "task_forgotten", detail, remedy)
}

/// A task by its number.
pub async fn get(app: &Arc<App>, id: u64, client: &Client) -> Result<Task, Problem> {
    let kept = app.work_as(Kind::Look, move |engine| engine.task(id)).await?;
    let task = kept.and_then(|k| Task::of(app.tasks.newest(k)));
    task.filter(|t| t.is_for(client)).ok_or_else(|| unknown(id))
}

/// A page of tasks, without their results.
pub async fn list(app: &Arc<App>, q: &TasksQuery, client: &Client) -> Result<TaskList, Problem> {
    let most = crate::lists::length(q.limit)?;
    let after = q.after.unwrap_or(0);
    let kept = app.work_as(Kind::Look, move |engine| engine.tasks(after)).await?;
    let tasks = kept.into_iter().filter_map(|k| Task::of(app.tasks.newest(k)));
    let mut tasks: Vec<Task> = tasks.filter(|t| t.is_for(client)).map(|t| Task { result: None, ..t }).collect();
    let more = tasks.len() > most;
    tasks.truncate(most);
    let next = tasks.last().filter(|_| more).map(|t| t.id);
    Ok(TaskList { tasks, next })
}

/// Cancels a task. One that runs here ends within about a second, one that runs on another server within about two.
pub async fn cancel(app: &Arc<App>, id: u64, client: &Client) -> Result<Task, Problem> {
    let who = client.clone();
    if app.work(move |engine| engine.cancel_task(id, &crate::app::by(&who))).await? {
        app.tasks.end(&[id]);
    }
    get(app, id, client).await
}

/// Starts work and returns its task; under the key of an earlier request that task.
pub async fn start(app: &Arc<App>, work: Work, client: &Client, once: Option<Once>) -> Result<Task, Problem> {
    let begun = begin(app, work, client, once, false).await?;
    let id = begun.value.ok_or_else(|| Problem::failed("task"))?;
    get(app, id, client).await.map_err(|p| if begun.repeated && p.status == 404 { forgotten(id) } else { p })
}

/// Starts work unless a task of any server waits or runs.
pub async fn start_alone(app: &Arc<App>, work: Work, client: &Client) -> Result<(), Problem> {
    begin(app, work, client, None, true).await.map(|_| ())
}

async fn begin(
    app: &Arc<App>,
    work: Work,
    client: &Client,
    once: Option<Once>,
    alone: bool,
) -> Result<Done<Option<u64>>, Problem> {
    let (here, who) = (app.clone(), client.clone());
    // The task runs although its client went away meanwhile, or waited for too long.
    let add = move |engine: &Engine| {
        let (what, waiting_max, kept_max) = (work.what().word(), TASKS_WAITING_MAX, TASKS_KEPT_MAX);
        let new = NewTask { what, waiting_max, kept_max, alone };
        let added = engine.add_task(&new, once.as_ref(), &crate::app::by(&who))?;
        if let (Some(id), false) = (added.value, added.repeated) {
            let (progress, cancelled) = here.tasks.add(id);
            tokio::spawn(run(here.clone(), id, work, who, progress, cancelled));
        }
        Ok(added)
    };
    app.work(add).await
}

/// Waits for its turn, works, and writes the outcome.
async fn run(app: Arc<App>, id: u64, work: Work, who: Client, progress: Arc<Progress>, cancelled: Arc<Notify>) {
    let turn = tokio::select! {
        turn = app.tasks.turn.lock() => turn,
        () = cancelled.notified() => {
            lock(&app.tasks.own).remove(&id);
            return;
        }
    };
    let begun =
        if *app.stopping.borrow() { Ok(false) } else { app.own_work(move |engine| engine.begin_task(id)).await };
    let ended = match begun {
        Ok(true) if app.tasks.runs(id) => {
            let engine = app.engine.clone();
            outcome(tokio::task::spawn_blocking(move || work.run(&engine, &who, &progress)).await)
        }
        // The server stops: [`stop`] says so of every task that is still in the list.
        Ok(_) if *app.stopping.borrow() => return,
        // Somebody cancelled it: that is in the state.
        Ok(_) => {
            lock(&app.tasks.own).remove(&id);
            return;
        }
        Err(p) => failed(&p),
    };
    let stopped = ended.0 == TaskState::Cancelled && *app.stopping.borrow();
    app.tasks.ended(id, if stopped { lost(STOPPED) } else { ended });
    drop(turn);
    write_outcomes(&app).await;
}

type Ran = Result<Result<TaskResult, EngineError>, tokio::task::JoinError>;

fn outcome(ran: Ran) -> (TaskState, Option<String>) {
    match ran {
        Ok(Ok(result)) => match serde_json::to_string(&result) {
            Ok(text) if text.len() <= TASK_RESULT_BYTES_MAX => (TaskState::Done, Some(text)),
            Ok(text) => {
                let detail = format!("the result has {} bytes; at most {TASK_RESULT_BYTES_MAX} are kept", text.len());
                let remedy = "what the task did is done: look at the models and the suspects";
                failed(&Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "result_too_long", detail, remedy))
            }
            Err(_) => failed(&Problem::failed("task")),
        },
        Ok(Err(EngineError::Cancelled)) => (TaskState::Cancelled, None),
        Ok(Err(e)) => failed(&e.into()),
        Err(_panicked) => failed(&Problem::failed("task")),
    }
}

fn failed(p: &Problem) -> (TaskState, Option<String>) {
    (TaskState::Failed, serde_json::to_string(p).ok())
}

/// The outcome of a task whose server is gone.
fn lost(detail: &str) -> (TaskState, Option<String>) {
    failed(&Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "task_lost", detail, "begin it again"))
}

/// Writes the outcomes that the state does not have. One that cannot be written is written at a later tick.
async fn write_outcomes(app: &Arc<App>) {
    let ended: Vec<_> =
        lock(&app.tasks.own).iter().filter_map(|(id, own)| own.ended.clone().map(|e| (*id, e))).collect();
    for (id, (state, outcome)) in ended {
        match app.own_work(move |engine| engine.end_task(id, state, outcome.as_deref())).await {
            Ok(_) => _ = lock(&app.tasks.own).remove(&id),
            Err(p) => app.metrics.broken(&p.code),
        }
    }
}

/// Says that the tasks of this server go on, and ends those of servers that no longer say so. To be called about once a second.
pub async fn tend(app: &Arc<App>) -> Result<(), Problem> {
    write_outcomes(app).await;
    let tasks: Vec<(u64, TaskState, usize)> = {
        let own = lock(&app.tasks.own);
        own.iter().filter(|(_, o)| o.ended.is_none()).map(|(id, o)| (*id, o.state(), o.progress.step())).collect()
    };
    let beats = move |engine: &Engine| {
        let cancelled = if tasks.is_empty() { Vec::new() } else { engine.beat_tasks(&tasks)? };
        Ok((cancelled, engine.open_tasks()?))
    };
    let (cancelled, mut open) = app.own_work(beats).await?;
    app.tasks.end(&cancelled);
    open.retain(|(id, _)| !lock(&app.tasks.own).contains_key(id));
    let gone = lock(&app.tasks.others).lost(&open, Instant::now());
    for (id, beat) in gone {
        let (_, text) = lost("the server that ran the task is gone");
        app.own_work(move |engine| engine.lose_task(id, beat, &text.unwrap_or_default())).await?;
    }
    Ok(())
}

/// Why a task ends with its server.
const STOPPED: &str = "the server that ran the task was stopped";

/// Ends this server's tasks: cancels the one that runs, waits for its end, and says of the others that they end with the server. To be called when no
/// request comes any more.
pub async fn stop(app: &Arc<App>) {
    let mut open = app.tasks.give_up_waiting();
    // A task that runs gives its turn back when it has its outcome.
    let ended = tokio::time::timeout(TASK_STOP_TIME, app.tasks.turn.lock()).await;
    write_outcomes(app).await;
    if ended.is_err() {
        open.extend(lock(&app.tasks.own).drain().map(|(id, _)| id));
    }
    let (state, text) = lost(STOPPED);
    for id in open {
        let text = text.clone();
        let end = move |engine: &Engine| match engine.task(id)? {
            Some(task) if task.state.is_open() => engine.end_task(id, state, text.as_deref()),
            _ => Ok(false), // somebody cancelled it
        };
        if let Err(p) = app.own_work(end).await {
            app.metrics.broken(&p.code);
        }
    }
}

#[cfg(test)]
mod tests;
