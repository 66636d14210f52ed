//! Slow work that a client polls: one task at a time, in the order of the requests. Tasks live in memory; a server that
//! stops forgets them, and what they did stays done.

use crate::app::App;
use crate::auth::Client;
use crate::limits::{TASKS_KEPT_MAX, TASKS_WAITING_MAX};
use crate::lists::TasksQuery;
use crate::problem::{Problem, Told};
use axum::http::StatusCode;
use engine::{DiagnoseAnswer, DiagnoseRequest, Engine, EngineError, FitRequest, Progress, RefitAnswer, STEPS};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

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
    /// The result of a task that is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<TaskResult>,
    /// Why the task failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Told>")]
    pub problem: Option<Problem>,
    #[serde(skip)]
    #[schemars(skip)]
    progress: Arc<Progress>,
}

impl Task {
    /// The task with its present step.
    fn now(&self) -> Task {
        let step = self.progress.step();
        let steps = self.what.steps();
        let step = step.min(steps.len() - 1);
        Task { step: step + 1, doing: steps[step], ..self.clone() }
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
    /// The steps.
    fn steps(self) -> &'static [&'static str] {
        match self {
            What::Fit => &STEPS,
            What::Diagnose => &["reads the readings", "looks for defects"],
        }
    }
}

/// The result of a task.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(untagged)]
#[allow(clippy::large_enum_variant)] // at most a few dozen are kept
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

/// Where a task is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
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

/// The tasks, newest last.
#[derive(Default)]
pub struct Tasks {
    list: Mutex<(u64, VecDeque<Task>)>,
    turn: tokio::sync::Mutex<()>,
}

impl Tasks {
    fn change<T>(&self, f: impl FnOnce(&mut u64, &mut VecDeque<Task>) -> T) -> T {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let (next, tasks) = &mut *list;
        f(next, tasks)
    }

    /// A task by its number. A client of a tenant sees the tasks of its tenant.
    pub fn get(&self, id: u64, client: &Client) -> Result<Task, Problem> {
        let found = self.change(|_, tasks| tasks.iter().find(|t| t.id == id && sees(client, t)).map(Task::now));
        found.ok_or_else(|| unknown(id))
    }

    /// A page of tasks.
    pub fn list(&self, q: &TasksQuery, client: &Client) -> Result<TaskList, Problem> {
        let most = crate::lists::length(q.limit)?;
        let after = q.after.unwrap_or(0);
        let mut tasks: Vec<Task> =
            self.change(|_, tasks| tasks.iter().filter(|t| t.id > after && sees(client, t)).map(Task::now).collect());
        let more = tasks.len() > most;
        tasks.truncate(most);
        let next = tasks.last().filter(|_| more).map(|t| t.id);
        Ok(TaskList { tasks, next })
    }

    /// Cancels a task. One that runs ends within about a second.
    pub fn cancel(&self, id: u64) -> Result<Task, Problem> {
        self.change(|_, tasks| {
            let t = tasks.iter_mut().find(|t| t.id == id).ok_or_else(|| unknown(id))?;
            match t.state {
                TaskState::Waiting => t.state = TaskState::Cancelled,
                TaskState::Running => t.progress.cancel(),
                _ => {}
            }
            Ok(t.now())
        })
    }

    /// True if a task waits or runs.
    pub fn busy(&self) -> bool {
        self.change(|_, tasks| tasks.iter().any(|t| matches!(t.state, TaskState::Waiting | TaskState::Running)))
    }

    fn set(&self, id: u64, f: impl FnOnce(&mut Task)) {
        self.change(|_, tasks| tasks.iter_mut().filter(|t| t.id == id).take(1).for_each(f_once(f)));
    }

    fn is(&self, id: u64, state: TaskState) -> bool {
        self.change(|_, tasks| tasks.iter().any(|t| t.id == id && t.state == state))
    }
}

fn f_once<'a>(f: impl FnOnce(&mut Task) + 'a) -> impl FnMut(&mut Task) + 'a {
    let mut f = Some(f);
    move |t| {
        if let Some(f) = f.take() {
            f(t);
        }
    }
}

fn unknown(id: u64) -> Problem {
    let detail = format!("there is no task {id}; the newest {TASKS_KEPT_MAX} tasks since the start are kept");
    Problem::new(StatusCode::NOT_FOUND, "unknown_task", detail, "look at the number in the answer to the request")
}

/// Starts work and returns its task.
pub fn start(app: &Arc<App>, work: Work, client: &Client) -> Result<Task, Problem> {
    let who = client.clone();
    let task = app.tasks.change(|next, tasks| {
        if tasks.iter().filter(|t| t.state == TaskState::Waiting).count() >= TASKS_WAITING_MAX {
            let detail = format!("{TASKS_WAITING_MAX} tasks wait already");
            let status = StatusCode::SERVICE_UNAVAILABLE;
            return Err(Problem::new(status, "too_many_tasks", detail, "wait for them").retry_after(10));
        }
        *next += 1;
        let task = Task {
            id: *next,
            what: work.what(),
            who: who.name.clone(),
            state: TaskState::Waiting,
            step: 1,
            steps: work.what().steps().len(),
            doing: work.what().steps()[0],
            result: None,
            problem: None,
            progress: Arc::default(),
        };
        tasks.push_back(task.clone());
        while tasks.len() > TASKS_KEPT_MAX + TASKS_WAITING_MAX {
            tasks.pop_front();
        }
        Ok(task)
    })?;
    let (app, id, of_task) = (app.clone(), task.id, task.progress.clone());
    tokio::spawn(async move {
        let _turn = app.tasks.turn.lock().await;
        if !app.tasks.is(id, TaskState::Waiting) {
            return; // cancelled
        }
        app.tasks.set(id, |t| t.state = TaskState::Running);
        let (engine, progress) = (app.engine.clone(), of_task);
        let runs = move || work.run(&engine, &who, &progress);
        let done = tokio::task::spawn_blocking(runs).await;
        app.tasks.set(id, |t| match done {
            Ok(Ok(a)) => (t.state, t.result) = (TaskState::Done, Some(a)),
            Ok(Err(EngineError::Cancelled)) => t.state = TaskState::Cancelled,
            Ok(Err(e)) => (t.state, t.problem) = (TaskState::Failed, Some(e.into())),
            Err(_panicked) => (t.state, t.problem) = (TaskState::Failed, Some(Problem::failed("task"))),
        });
    });
    Ok(task)
}

/// True if a client sees a task.
fn sees(client: &Client, task: &Task) -> bool {
    client.tenant().is_none_or(|t| crate::tenant::tenant_of(&task.who) == Some(t))
}
