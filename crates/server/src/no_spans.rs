//! Stands for the spans in a build without them.

use axum::body::Body;
use axum::extract::Request;
use axum::http::Response;
use axum::middleware::Next;
use tokio::runtime::Handle;

/// Makes nothing.
#[derive(Clone)]
pub struct Spans;

impl Spans {
    pub fn new(_: Option<&str>, _: &Handle) -> Result<Spans, String> {
        Ok(Spans)
    }
    pub fn end(&self) {}
}

pub async fn traced(_: Spans, request: Request, next: Next) -> Response<Body> {
    next.run(request).await
}

/// No span.
pub struct Here;

pub fn here() -> Here {
    Here
}

impl Here {
    pub fn enter(self) -> impl Sized {}
}

pub fn decision<T, E>(_: &'static str, decide: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    decide()
}
