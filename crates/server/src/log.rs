//! One line of JSON per request on standard error: who asked for which address, and what came of it. No line has a token, a
//! query or a body; an address is shown by its template.

use crate::app::{App, now_unix_s};
use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::http::Response;
use axum::middleware::Next;
use serde_json::json;
use std::io::Write;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// The form of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Log {
    /// No line.
    #[default]
    None,
    /// A line of JSON per request.
    Json,
}

impl Log {
    /// Says something that no request asked for, on standard error.
    pub fn note(self, text: &str) {
        let line = match self {
            Log::None => format!("note: {text}"),
            Log::Json => json!({"at_unix_s": (now_unix_s() * 1e3).round() / 1e3, "note": text}).to_string(),
        };
        let _ = writeln!(std::io::stderr().lock(), "{line}");
    }
}

/// The place where a handler writes the name of the client.
#[derive(Clone, Default)]
pub struct Who(Arc<OnceLock<String>>);

impl Who {
    /// Notes the client's name.
    pub fn is(&self, name: &str) {
        let _ = self.0.set(name.to_owned());
    }
}

/// Answers a request and logs it.
pub async fn logged(app: Arc<App>, mut request: Request, next: Next) -> Response<Body> {
    if app.log == Log::None {
        return next.run(request).await;
    }
    let (start, who) = (Instant::now(), Who::default());
    request.extensions_mut().insert(who.clone());
    let method = request.method().to_string();
    let path = request.extensions().get::<MatchedPath>().map_or("none", |p| p.as_str()).to_owned();
    let response = next.run(request).await;
    let line = json!({
        "at_unix_s": (now_unix_s() * 1e3).round() / 1e3,
        "method": method,
        "path": path,
        "status": response.status().as_u16(),
        "duration_ms": (start.elapsed().as_secs_f64() * 1e6).round() / 1e3,
        "principal": who.0.get(),
    });
    // A full pipe or disk costs the line, never the answer.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
    response
}
