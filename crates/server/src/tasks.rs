//! Slow work that a client polls: one task at a time, in the order of the requests. Tasks live in memory; a server that
//! stops forgets them, and what they did stays done.

use crate::app::App;
use crate::auth::Client;
use crate::limits::{TASKS_KEPT_MAX, TASKS_WAITING_MAX};
use crate::problem::{Problem, Told};
use axum::http::StatusCode;
use engine::{FitAnswer, FitRequest};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// A task.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Task {
    /// Its number.
    pub id: u64,
    /// Its author.
    pub who: String,
    /// Where it is.
    pub state: TaskState,
    /// The result of a task that is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<FitAnswer>,
    /// Why the task failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Told>")]
    pub problem: Option<Problem>,
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
    /// It was cancelled before it began.
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

    /// A task by its number.
    pub fn get(&self, id: u64) -> Result<Task, Problem> {
        self.change(|_, tasks| tasks.iter().find(|t| t.id == id).cloned()).ok_or_else(|| unknown(id))
    }

    /// Cancels a task that waits. A task that runs cannot be cancelled.
    pub fn cancel(&self, id: u64) -> Result<Task, Problem> {
        self.change(|_, tasks| {
            let t = tasks.iter_mut().find(|t| t.id == id).ok_or_else(|| unknown(id))?;
            match t.state {
                TaskState::Waiting => t.state = TaskState::Cancelled,
                TaskState::Running => {
                    let detail = format!("task {id} runs, and a fit cannot be interrupted");
                    return Err(Problem::new(StatusCode::CONFLICT, "task_runs", detail, "wait for its end"));
                }
                _ => {}
            }
            Ok(t.clone())
        })
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

/// Starts a fit and returns its task.
pub fn fit(app: &Arc<App>, request: FitRequest, client: &Client) -> Result<Task, Problem> {
    let who = client.clone();
    let task = app.tasks.change(|next, tasks| {
        if tasks.iter().filter(|t| t.state == TaskState::Waiting).count() >= TASKS_WAITING_MAX {
            let detail = format!("{TASKS_WAITING_MAX} tasks wait already");
            let status = StatusCode::SERVICE_UNAVAILABLE;
            return Err(Problem::new(status, "too_many_tasks", detail, "wait for them").retry_after(10));
        }
        *next += 1;
        let task = Task { id: *next, who: who.name.clone(), state: TaskState::Waiting, result: None, problem: None };
        tasks.push_back(task.clone());
        while tasks.len() > TASKS_KEPT_MAX + TASKS_WAITING_MAX {
            tasks.pop_front();
        }
        Ok(task)
    })?;
    let (app, id) = (app.clone(), task.id);
    tokio::spawn(async move {
        let _turn = app.tasks.turn.lock().await;
        if !app.tasks.is(id, TaskState::Waiting) {
            return; // cancelled
        }
        app.tasks.set(id, |t| t.state = TaskState::Running);
        let engine = app.engine.clone();
        let request = engine::Request::Fit(request);
        let done = tokio::task::spawn_blocking(move || engine.handle(&request, crate::app::by(&who))).await;
        app.tasks.set(id, |t| match done {
            Ok(Ok(engine::Answer::Fit(a))) => (t.state, t.result) = (TaskState::Done, Some(a)),
            Ok(Err(e)) => (t.state, t.problem) = (TaskState::Failed, Some(e.into())),
            _ => {
                let p = Problem::new(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "internal",
                    "the server failed at this task",
                    "report the request and the server's log",
                );
                (t.state, t.problem) = (TaskState::Failed, Some(p));
            }
        });
    });
    Ok(task)
}
