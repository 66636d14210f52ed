//! The endpoints of models and tasks.

use super::{Act, Endpoint, Work as OwnWork, get, of, post};
use crate::auth::Scope::Operate;
use crate::lists::TasksQuery;
use crate::problem::Problem;
use crate::read::Asked;
use crate::tasks::{Task, TaskList, Work};
use axum::http::{Method, StatusCode};
use engine::{FitRequest, ModelAnswer, ModelRequest, ModelVersion, PromoteRequest, Request};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Returns to the version that was used before the present one.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Rollback {
    /// The reason.
    why: String,
}

/// A model file, as `linkwise place --model` and `linkwise serve --model` read it.
#[derive(Serialize, JsonSchema)]
struct ModelFile(Map<String, Value>);

/// The version that an address names; none: the one in use.
fn version(a: &Asked) -> Result<Option<u64>, Problem> {
    if a.param("version") == "present" { Ok(None) } else { a.number("version").map(Some) }
}

/// The endpoints.
pub fn all() -> Vec<Endpoint> {
    use Act::{Ask, Cancel, Start, Task as ShowTask, Tasks};
    vec![
        get(
            "/v1/models",
            "model",
            "The model of the predictions and its versions.",
            of::<ModelAnswer>,
            Ask(|_| Ok(Request::Model(ModelRequest {}))),
        ),
        Endpoint {
            status: StatusCode::ACCEPTED,
            ..post(
                Operate,
                "/v1/models/fit",
                "fit",
                "Fit a model to all readings, as a task. The server uses it if it predicts held-back readings at least as well.",
                (of::<FitRequest>, of::<Task>),
                Start(|a| Ok(Work::Fit(a.json()?))),
            )
        },
        post(
            Operate,
            "/v1/models/promote",
            "promote",
            "Use a version of the model, also one that was refused; without a number the one before the present one.",
            (of::<PromoteRequest>, of::<ModelVersion>),
            Ask(|a| Ok(Request::Promote(a.json()?))),
        ),
        post(
            Operate,
            "/v1/models/rollback",
            "rollback",
            "Return to the version of the model that was used before the present one.",
            (of::<Rollback>, of::<ModelVersion>),
            Ask(|a| {
                let Rollback { why } = a.json()?;
                Ok(Request::Promote(PromoteRequest { version: None, why }))
            }),
        ),
        Endpoint {
            scope: Operate,
            ..get(
                "/v1/models/{version}/file",
                "modelFile",
                "A version of the model as a model file. `present` is the one in use, with the single readings that it has learned since \
                 its fit.",
                of::<ModelFile>,
                Act::Work(|a| {
                    let version = version(a)?;
                    let work: OwnWork = Box::new(move |engine| Ok(engine.model_text(version)?.into_bytes()));
                    Ok(work)
                }),
            )
        },
        Endpoint {
            query: Some(of::<TasksQuery>),
            ..get("/v1/tasks", "tasks", "The newest tasks of all servers, oldest first.", of::<TaskList>, Tasks)
        },
        get("/v1/tasks/{id}", "task", "A task with its progress, and its result if it is done.", of::<Task>, ShowTask),
        Endpoint {
            method: Method::DELETE,
            scope: Operate,
            ..get(
                "/v1/tasks/{id}",
                "cancelTask",
                "Cancel a task: one that runs ends within about two seconds, and the model stays.",
                of::<Task>,
                Cancel,
            )
        },
    ]
}
