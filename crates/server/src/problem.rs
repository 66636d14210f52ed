//! [`Problem`]: why a request was not answered, as `application/problem+json` (RFC 9457) with the engine's codes.

use crate::words::of_requests;
use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use engine::{EngineError, ErrorKind};
use schemars::JsonSchema;
use serde::Serialize;
use std::ops::Deref;

/// Why a request was not answered.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Problem(Box<Told>);

/// The body of every answer that is no success.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "Problem")]
pub struct Told {
    /// `urn:linkwise:` and the code.
    #[serde(rename = "type")]
    pub urn: String,
    /// The code in words.
    pub title: String,
    /// The status of the answer.
    pub status: u16,
    /// What was found, and where.
    pub detail: String,
    /// Stable code for programs.
    pub code: String,
    /// What to do.
    pub remedy: String,
    /// Seconds after which the request may be sent again; also in the header `Retry-After`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u32>,
}

impl Deref for Problem {
    type Target = Told;
    fn deref(&self) -> &Told {
        &self.0
    }
}

impl Problem {
    /// A problem of the server.
    pub fn new(status: StatusCode, code: &str, detail: impl Into<String>, remedy: &str) -> Problem {
        let words = code.replace('_', " ");
        Problem(Box::new(Told {
            urn: format!("urn:linkwise:{code}"),
            title: words,
            status: status.as_u16(),
            detail: of_requests(detail.into()),
            code: code.into(),
            remedy: of_requests(remedy.into()),
            retry_after_s: None,
        }))
    }

    /// A malformed request.
    pub fn bad(code: &str, detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, code, detail, "correct the request")
    }

    /// A request or a task that panicked.
    pub fn failed(what: &str) -> Problem {
        let detail = format!("the server failed at this {what}");
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Problem::new(status, "internal", detail, "report the request and the server's log")
    }

    /// The same, with the time after which the request may be sent again.
    pub fn retry_after(mut self, seconds: u32) -> Problem {
        self.0.retry_after_s = Some(seconds);
        self
    }

    /// The status.
    pub fn status_code(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The answer as bytes of HTTP, for a connection whose request is not read.
    pub fn raw(&self) -> String {
        let body = serde_json::to_string(self).unwrap_or_default();
        let retry = self.retry_after_s.map_or_else(String::new, |s| format!("retry-after: {s}\r\n"));
        format!(
            "HTTP/1.1 {}\r\ncontent-type: application/problem+json\r\n{retry}connection: close\r\ncontent-length: {}\r\n\r\n{body}",
            self.status_code(),
            body.len()
        )
    }

    /// The answer.
    pub fn response(&self) -> Response<Body> {
        let text = serde_json::to_vec(self).unwrap_or_default();
        let mut r = Response::new(Body::from(text));
        *r.status_mut() = self.status_code();
        r.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(s) = self.retry_after_s {
            r.headers_mut().insert(header::RETRY_AFTER, s.into());
        }
        if self.status == 401 {
            r.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"linkwise\""));
        }
        r
    }
}

/// The status of an engine's error. A code that names a missing thing is 404, a state that forbids the request 409.
fn status(e: &EngineError) -> StatusCode {
    match (e.code(), e.kind()) {
        ("unknown_job" | "unknown_reading" | "unknown_token" | "unknown_version", _) => StatusCode::NOT_FOUND,
        ("not_yours" | "not_its_gpus", _) => StatusCode::FORBIDDEN,
        ("key_reused", _) => StatusCode::UNPROCESSABLE_ENTITY,
        ("no_model" | "no_store" | "no_state", _) => StatusCode::CONFLICT,
        (_, ErrorKind::Malformed) => StatusCode::BAD_REQUEST,
        (_, ErrorKind::Impossible) => StatusCode::CONFLICT,
        (_, ErrorKind::Busy) => StatusCode::SERVICE_UNAVAILABLE,
        (_, ErrorKind::Broken) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl From<EngineError> for Problem {
    fn from(e: EngineError) -> Problem {
        // The engine's key has the mark of its client in front.
        let detail = match e.code() {
            "key_reused" => "the idempotency key was used for another request".to_owned(),
            _ => e.to_string(),
        };
        let p = Problem::new(status(&e), e.code(), detail, e.remedy());
        if e.kind() == ErrorKind::Busy { p.retry_after(1) } else { p }
    }
}
