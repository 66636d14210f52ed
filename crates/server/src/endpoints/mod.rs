//! The endpoints under `/v1`: one list, from which the router, the OpenAPI document and the test of the scopes are made.

mod advice;
mod models;
mod table;

pub use table::Allocations;

use crate::auth::Scope;
use crate::problem::Problem;
use crate::read::Asked;
use axum::http::{Method, StatusCode};
use engine::{Answer, Engine, Request};
use schemars::{JsonSchema, Schema, SchemaGenerator};

/// Work on the engine that no request of it describes; its answer is JSON.
pub type Work = Box<dyn FnOnce(&Engine) -> Result<Vec<u8>, Problem> + Send>;

/// Makes the schema of a type.
pub type Shape = fn(&mut SchemaGenerator) -> Schema;

/// What an endpoint does.
pub enum Act {
    /// Asks the engine.
    Ask(fn(&Asked) -> Result<Request, Problem>),
    /// Works without a request of the engine.
    Work(fn(&Asked) -> Result<Work, Problem>),
    /// Starts a task and answers with it.
    Start(fn(&Asked) -> Result<crate::tasks::Work, Problem>),
    /// Lists tasks.
    Tasks,
    /// Shows a task.
    Task,
    /// Cancels a task.
    Cancel,
    /// Answers a stream of requests, a line each.
    Lines,
    /// Streams events.
    Events,
}

/// An endpoint.
pub struct Endpoint {
    pub method: Method,
    pub path: &'static str,
    /// Its name in generated clients.
    pub id: &'static str,
    /// One sentence.
    pub about: &'static str,
    /// The scope that a client needs.
    pub scope: Scope,
    pub query: Option<Shape>,
    pub body: Option<Shape>,
    pub answer: Shape,
    /// The status of a success.
    pub status: StatusCode,
    /// The content types of body and answer.
    pub forms: (&'static str, &'static str),
    pub act: Act,
}

fn of<T: JsonSchema>(g: &mut SchemaGenerator) -> Schema {
    g.subschema_for::<T>()
}

const JSON: (&str, &str) = ("application/json", "application/json");

fn get(path: &'static str, id: &'static str, about: &'static str, answer: Shape, act: Act) -> Endpoint {
    let (method, status, scope) = (Method::GET, StatusCode::OK, Scope::Read);
    Endpoint { method, path, id, about, scope, query: None, body: None, answer, status, forms: JSON, act }
}

fn post(
    scope: Scope,
    path: &'static str,
    id: &'static str,
    about: &'static str,
    (body, answer): (Shape, Shape),
    act: Act,
) -> Endpoint {
    let (method, status) = (Method::POST, StatusCode::OK);
    Endpoint { method, path, id, about, scope, query: None, body: Some(body), answer, status, forms: JSON, act }
}

/// The body of an answer: the answer itself, as the command prints it.
pub fn body(answer: &Answer) -> serde_json::Result<Vec<u8>> {
    use serde_json::to_vec;
    match answer {
        Answer::Place(a) => to_vec(a),
        Answer::Allocate(a) => to_vec(a),
        Answer::Release(a) => to_vec(a),
        Answer::Drain(a) => to_vec(a),
        Answer::Undrain(a) => to_vec(a),
        Answer::Observe(a) => to_vec(a),
        Answer::Learn(a) => to_vec(a),
        Answer::Fit(a) => to_vec(a),
        Answer::Diagnose(a) => to_vec(a),
        Answer::Explain(a) => to_vec(a),
        Answer::Readings(a) => to_vec(a),
        Answer::Correct(a) | Answer::Withdraw(a) => to_vec(a),
        Answer::Status(a) => to_vec(a),
        Answer::Job(a) | Answer::Renew(a) => to_vec(a),
        Answer::Hosts(a) => to_vec(a),
        Answer::Events(a) => to_vec(a),
        Answer::Model(a) => to_vec(a),
        Answer::Promote(a) => to_vec(a),
    }
}

/// All endpoints.
pub fn all() -> Vec<Endpoint> {
    [table::all(), advice::all(), models::all()].into_iter().flatten().collect()
}
