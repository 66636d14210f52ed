//! The router, and the way of a request to the engine and back.

use crate::app::App;
use crate::endpoints::{self, Act, Allocations, Endpoint};
use crate::limits::Kind;
use crate::problem::Problem;
use crate::read::{self, Asked, field};
use crate::spans::{self, Spans};
use crate::{body, events, lists, log, openapi, page, stream, tasks};
use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::middleware::{self, Next};
use axum::routing::{MethodFilter, any, get, on};
use engine::Answer;
use std::sync::Arc;
use std::time::Instant;

/// The router of a server.
pub fn router(app: Arc<App>, spans: Spans) -> Router {
    let endpoints: &'static [Endpoint] = Vec::leak(endpoints::all()); // lives as long as the server
    let (mut router, logs) = (Router::new(), app.clone());
    for e in endpoints {
        let app = app.clone();
        let filter = MethodFilter::try_from(e.method.clone()).unwrap_or(MethodFilter::GET);
        let handler = move |request: Request| {
            let app = app.clone();
            async move {
                let start = Instant::now();
                let response = endpoint(&app, e, request).await.unwrap_or_else(|p| p.response());
                app.metrics.served(e.path, &e.method, response.status(), start.elapsed());
                common(response)
            }
        };
        router = router.route(e.path, on(filter, handler));
    }
    let described: Vec<u8> = serde_json::to_vec(&openapi::document()).unwrap_or_default();
    let described = move |_: Request| {
        let text = described.clone();
        async move { common(with_type(Body::from(text), "application/json")) }
    };
    let alive = |_: Request| async { common(with_type(Body::from("ok\n"), "text/plain")) };
    let ready = with_app(&app, |app, _| async move {
        app.work_as(Kind::Look, |engine| engine.last_event()).await?;
        Ok(with_type(Body::from("ready\n"), "text/plain"))
    });
    let metrics = with_app(&app, |app, request: Request| async move {
        let (parts, _) = request.into_parts();
        let client = read::client(&app, &parts, crate::auth::Scope::Read, false).await?;
        if client.tenant().is_some() {
            let detail = "the metrics name the jobs of all tenants";
            let remedy = "use a token without a tenant";
            return Err(Problem::new(StatusCode::FORBIDDEN, "tenant", detail, remedy));
        }
        let text = crate::metrics::text(&app).await?;
        Ok(with_type(Body::from(text), "application/openmetrics-text; version=1.0.0; charset=utf-8"))
    });
    let unknown = any(|_: Request| async {
        let detail = "this server has nothing at this address";
        let remedy = "look at /openapi.json";
        common(Problem::new(StatusCode::NOT_FOUND, "unknown_path", detail, remedy).response())
    });
    router
        .route("/openapi.json", get(described))
        .route("/healthz", get(alive))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .merge(page::router(&app))
        .fallback_service(unknown)
        .method_not_allowed_fallback(|_: Request| async {
            let detail = "this address does not take this method";
            let remedy = "look at the header `Allow` and at /openapi.json";
            common(Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail, remedy).response())
        })
        .layer(middleware::from_fn(with_short_header))
        .layer(middleware::from_fn(move |request, next| spans::traced(spans.clone(), request, next)))
        .layer(middleware::from_fn(move |request, next| log::logged(logs.clone(), request, next)))
}

/// Refuses a request whose header is beyond its limit, at every address.
async fn with_short_header(request: Request, next: Next) -> Response<Body> {
    let (parts, body) = request.into_parts();
    match read::check_header(&parts) {
        Ok(()) => next.run(Request::from_parts(parts, body)).await,
        Err(p) => common(p.response()),
    }
}

/// A handler with the shared parts, whose problem becomes the answer.
pub fn with_app<F, R>(
    app: &Arc<App>,
    f: F,
) -> impl Fn(Request) -> std::pin::Pin<Box<dyn Future<Output = Response<Body>> + Send>> + Clone + Send + Sync + 'static
where
    F: Fn(Arc<App>, Request) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Result<Response<Body>, Problem>> + Send + 'static,
{
    let app = app.clone();
    move |request| {
        let answer = f(app.clone(), request);
        Box::pin(async move { common(answer.await.unwrap_or_else(|p| p.response())) })
    }
}

/// An answer with its content type.
pub fn with_type(body: Body, form: &'static str) -> Response<Body> {
    let mut r = Response::new(body);
    r.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(form));
    r
}

/// What every answer says: it is not to be stored, and it is what its content type says.
fn common(mut r: Response<Body>) -> Response<Body> {
    let h = r.headers_mut();
    h.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if !h.contains_key(header::CACHE_CONTROL) {
        h.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    r
}

async fn endpoint(app: &Arc<App>, e: &'static Endpoint, request: Request) -> Result<Response<Body>, Problem> {
    let (mut parts, sent) = request.into_parts();
    let client = read::client(app, &parts, e.scope, false).await?;
    let params = RawPathParams::from_request_parts(&mut parts, &()).await;
    let params = params.map_err(|_| Problem::bad("bad_path", "the address is not UTF-8"))?;
    let path = params.iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
    let empty = axum::body::HttpBody::is_end_stream(&sent);
    let forms: &[&str] = match e.act {
        Act::Lines => &["application/x-ndjson", "application/json"],
        _ => &["application/json"],
    };
    read::check_content(&parts.headers, empty, forms)?;
    if let Act::Lines = e.act {
        return Ok(stream::answer(app.clone(), client, sent));
    }
    let key = match parts.headers.get("idempotency-key").map(HeaderValue::to_str) {
        None => None,
        Some(Ok(k)) => Some(k.to_owned()),
        Some(Err(_)) => return Err(Problem::bad("bad_key", "the header `Idempotency-Key` is not ASCII")),
    };
    if e.body.is_none() && !empty {
        return Err(Problem::bad("body_not_read", "this address reads no body"));
    }
    let body = if empty { Vec::new() } else { body::whole(sent, app.body_time).await? };
    let after = field(&parts.headers, "last-event-id").map(str::to_owned);
    let asked = Asked { path, uri: parts.uri, body, key, client };
    let version = read::version(&parts.headers)?;
    let mut response = match &e.act {
        Act::Ask(request) => {
            let answer = app.ask_at(request(&asked)?, &asked.client, version).await?;
            answered(e, &asked, answer)?
        }
        Act::Work(work) => {
            let work = work(&asked)?;
            let text = app.work_as(Kind::Question, move |engine| Ok(work(engine))).await??;
            with_type(Body::from(text), e.forms.1)
        }
        Act::Start(work) => {
            let (work, once) = (work(&asked)?, asked.once()?);
            let task = tasks::start(app, work, &asked.client, once).await?;
            let mut r = json_of(&task);
            if let Ok(l) = HeaderValue::try_from(format!("/v1/tasks/{}", task.id)) {
                r.headers_mut().insert(header::LOCATION, l);
            }
            r
        }
        Act::Tasks => json_of(&tasks::list(app, &asked.query()?, &asked.client).await?),
        Act::Task => json_of(&tasks::get(app, asked.number("id")?, &asked.client).await?),
        Act::Cancel => json_of(&tasks::cancel(app, asked.number("id")?, &asked.client).await?),
        Act::Events => events::stream(app, &asked, after.as_deref())?,
        Act::Lines => return Err(Problem::bad("bad_request", "a stream was expected")),
    };
    *response.status_mut() = e.status;
    Ok(response)
}

/// The answer of the engine, as this endpoint shows it.
fn answered(e: &Endpoint, asked: &Asked, answer: Answer) -> Result<Response<Body>, Problem> {
    let location = match &answer {
        Answer::Place(a) => a.committed.as_ref().map(|c| format!("/v1/allocations/{}", escaped(&c.job))),
        _ => None,
    };
    let version = match &answer {
        Answer::Status(s) => Some(s.version),
        Answer::Hosts(h) => Some(h.version),
        _ => None,
    };
    let text = match (e.id, answer) {
        ("allocations", Answer::Status(s)) => {
            let (free, version) = (s.free.gpu_count(), s.version);
            let (jobs, next) = lists::jobs(s.jobs, &asked.query()?)?;
            serde_json::to_vec(&Allocations { jobs, free, version, next })
        }
        (_, Answer::Hosts(a)) => serde_json::to_vec(&lists::hosts(a, &asked.query()?)?),
        (_, answer) => endpoints::body(&answer),
    };
    let text = text.map_err(|e| {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Problem::new(status, "internal", format!("the answer has no JSON: {e}"), "report this")
    })?;
    let mut r = with_type(Body::from(text), e.forms.1);
    if let Some(l) = location.and_then(|l| HeaderValue::try_from(l).ok()) {
        r.headers_mut().insert(header::LOCATION, l);
    }
    if let Some(v) = version.and_then(|v| HeaderValue::try_from(format!("\"{v}\"")).ok()) {
        r.headers_mut().insert(header::ETAG, v);
    }
    Ok(r)
}

fn json_of(value: &impl serde::Serialize) -> Response<Body> {
    with_type(Body::from(serde_json::to_vec(value).unwrap_or_default()), "application/json")
}

/// A job's id in an address. Ids have letters, digits and `._-/@+:=`.
pub fn escaped(job: &str) -> String {
    job.replace('%', "%25").replace('/', "%2F").replace('+', "%2B")
}
