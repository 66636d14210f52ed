//! Who decides: the engine of this process, or a server.

use engine::{Answer, Engine, EngineError, ErrorKind, PlaceAnswer, PlaceRequest, Request, StatusAnswer, StatusRequest};
use topology::Cluster;

/// The reason why a request was not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Unable {
    /// Its kind: a request that is impossible now may be put in another form.
    pub kind: ErrorKind,
    /// What happened, in a sentence.
    pub message: String,
}

impl From<EngineError> for Unable {
    fn from(e: EngineError) -> Self {
        Unable { kind: e.kind(), message: e.to_string() }
    }
}

/// Answers the engine's requests.
pub trait Decider: Sync {
    /// The cluster of the answers.
    fn cluster(&self) -> &Cluster;
    /// True if jobs and drains are kept somewhere.
    fn has_state(&self) -> bool;
    /// The answer to a request, of the same kind as the request. `now_unix_s` is the clock of the engine's records.
    fn decide(&self, request: &Request, now_unix_s: f64) -> Result<Answer, Unable>;
}

impl Decider for Engine {
    fn cluster(&self) -> &Cluster {
        Engine::cluster(self)
    }

    fn has_state(&self) -> bool {
        Engine::has_state(self)
    }

    fn decide(&self, request: &Request, now_unix_s: f64) -> Result<Answer, Unable> {
        Ok(self.handle(request, now_unix_s)?)
    }
}

fn other() -> Unable {
    Unable { kind: ErrorKind::Broken, message: "the answer is one to another request".into() }
}

/// The choice for a request.
pub(crate) fn place(d: &dyn Decider, request: PlaceRequest, now_unix_s: f64) -> Result<PlaceAnswer, Unable> {
    match d.decide(&Request::Place(Box::new(request)), now_unix_s)? {
        Answer::Place(a) => Ok(a),
        _ => Err(other()),
    }
}

/// The state.
pub(crate) fn status(d: &dyn Decider, now_unix_s: f64) -> Result<StatusAnswer, Unable> {
    match d.decide(&Request::Status(StatusRequest {}), now_unix_s)? {
        Answer::Status(a) => Ok(a),
        _ => Err(other()),
    }
}
