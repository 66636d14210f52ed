//! The pages: the cluster as a map, jobs, "what if", suspects, and the past. The server renders them whole; they need no script and ask no
//! other server for anything.

mod history;
mod job;
mod map;
mod memory;
mod picture;
mod session;
mod suspects;
mod what_if;

pub use memory::Memory;
pub use session::SESSION_S;

use crate::app::App;
use crate::auth::{Client, Scope};
use crate::oidc::flow;
use crate::problem::Problem;
use crate::read;
use crate::routes::{escaped, with_app, with_type};
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::routing::get;
use engine::{Answer, HostsAnswer, HostsRequest, JobAnswer, StatusRequest};
use minijinja::Environment;
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

const TEMPLATES: [(&str, &str); 11] = [
    ("base.html", include_str!("base.html")),
    ("parts.html", include_str!("parts.html")),
    ("map.html", include_str!("map.html")),
    ("part.html", include_str!("part.html")),
    ("job.html", include_str!("job.html")),
    ("what_if.html", include_str!("what_if.html")),
    ("suspects.html", include_str!("suspects.html")),
    ("history.html", include_str!("history.html")),
    ("login.html", include_str!("login.html")),
    ("signed_in.html", include_str!("signed_in.html")),
    ("problem.html", include_str!("problem.html")),
];

/// Nothing but this server's own style and pictures; no script, no frame, no foreign form.
const CSP: &str =
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
/// Number of colours of jobs.
const COLOURS: usize = 10;

fn templates() -> &'static Environment<'static> {
    static ALL: OnceLock<Environment<'static>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut env = Environment::new();
        for (name, text) in TEMPLATES {
            // A template that cannot be read is found by the test of this module.
            let _ = env.add_template(name, text);
        }
        env.add_filter("gb", |v: f64| format!("{v:.1}"));
        env.add_filter("percent", |v: f64| format!("{:.0} %", 100.0 * v));
        env.add_filter("than", |v: f64| match v {
            v if v.abs() < 0.5 => "as fast as".to_owned(),
            v if v < 0.0 => format!("{:.0} % slower than", -v),
            v => format!("{v:.0} % faster than"),
        });
        env.add_filter("beside", |v: f64| match v {
            v if v.abs() < 0.5 => "as".to_owned(),
            v if v < 0.0 => format!("{:.0} % below", -v),
            v => format!("{v:.0} % above"),
        });
        env.add_filter("mib", |v: u64| topology::Bytes(v).to_string());
        env
    })
}

/// The pages.
pub fn router(app: &Arc<App>) -> Router {
    let style = |_: Request| async {
        let mut r = with_type(Body::from(include_str!("style.css")), "text/css; charset=utf-8");
        r.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("max-age=3600"));
        r
    };
    let icon = |_: Request| async {
        let mut r = with_type(Body::from(include_str!("icon.svg")), "image/svg+xml");
        r.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("max-age=86400"));
        r
    };
    let form = with_app(app, |app, _| async move { page("login.html", json!({ "visitor": visitor(&app, None)})) });
    Router::new()
        .route("/", get(paged(app, map::map)))
        .route("/hosts", get(paged(app, map::part)))
        .route("/find", get(paged(app, map::find)))
        .route("/jobs/{job}", get(paged(app, job::job)))
        .route("/what-if", get(paged(app, what_if::what_if)))
        .route("/suspects", get(paged(app, suspects::suspects)))
        .route("/history", get(paged(app, history::history)))
        .route("/style.css", get(style))
        .route("/icon.svg", get(icon))
        .route("/cluster.svg", get(with_app(app, picture)))
        .route("/login", get(form).post(with_app(app, session::login)))
        .route("/login/oidc", get(with_app(app, flow::begin)))
        .route(flow::CALLBACK, get(with_app(app, flow::end)))
        .route("/logout", axum::routing::post(with_app(app, session::logout)))
}

/// What a page knows of its request.
struct Visit {
    app: Arc<App>,
    client: Client,
    parts: axum::http::request::Parts,
}

impl Visit {
    fn visitor(&self) -> Value {
        visitor(&self.app, Some(&self.client))
    }
}

/// The client of a page, for its head. Without tokens a client does not sign in.
pub fn visitor(app: &App, client: Option<&Client>) -> Value {
    let asks = app.asks_for_tokens.load(Ordering::Acquire);
    let issuer = app.oidc.as_ref().map(|p| p.issuer().split_once("://").map_or(p.issuer(), |i| i.1));
    json!({ "asks": asks, "name": client.filter(|_| asks).map(|c| &c.name), "issuer": issuer})
}

/// A page for clients that may read; others get the form for a token, and a problem becomes a page.
fn paged<R>(
    app: &Arc<App>,
    f: fn(Visit) -> R,
) -> impl Fn(Request) -> std::pin::Pin<Box<dyn Future<Output = Response<Body>> + Send>> + Clone + Send + Sync + 'static
where
    R: Future<Output = Result<Response<Body>, Problem>> + Send + 'static,
{
    with_app(app, move |app, request| async move {
        let (parts, _) = request.into_parts();
        let client = match read::client(&app, &parts, Scope::Read, true).await {
            Ok(c) => c,
            Err(p) if p.status == 401 => {
                let why = (p.code == "wrong_token")
                    .then_some("The token of this browser is unknown, revoked or too old: sign in again.");
                let mut r = page("login.html", json!({ "visitor": visitor(&app, None), "why": why}))?;
                *r.status_mut() = StatusCode::UNAUTHORIZED;
                return Ok(r);
            }
            Err(p) => return problem(&app, None, &p),
        };
        let (app_again, who) = (app.clone(), client.clone());
        let route = "page";
        let start = std::time::Instant::now();
        let response = match f(Visit { app, client, parts }).await {
            Ok(r) => Ok(r),
            Err(p) => problem(&app_again, Some(&who), &p),
        };
        if let Ok(r) = &response {
            app_again.metrics.served(route, &axum::http::Method::GET, r.status(), start.elapsed());
        }
        response
    })
}

fn problem(app: &App, client: Option<&Client>, p: &Problem) -> Result<Response<Body>, Problem> {
    let mut r = page("problem.html", json!({ "problem": p, "visitor": visitor(app, client)}))?;
    *r.status_mut() = p.status_code();
    Ok(r)
}

/// The form of the tokens, with the reason why the last attempt failed.
pub fn not_signed_in(app: &App, p: &Problem) -> Result<Response<Body>, Problem> {
    let why = format!("Not signed in: {}.", p.detail);
    let mut r = page("login.html", json!({ "visitor": visitor(app, None), "why": why}))?;
    *r.status_mut() = p.status_code();
    Ok(r)
}

/// A page from its template.
pub fn page(template: &str, with: Value) -> Result<Response<Body>, Problem> {
    let text =
        templates().get_template(template).and_then(|t| t.render(minijinja::value::Serde(&with))).map_err(|e| {
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", format!("the page failed: {e}"), "report this")
        })?;
    let mut r = with_type(Body::from(visible(text)), "text/html; charset=utf-8");
    let h = r.headers_mut();
    h.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CSP));
    // With `no-referrer` a browser sends `Origin: null` with this server's own forms, which look foreign then.
    h.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    Ok(r)
}

/// The text without characters that reverse or hide what stands around them: a host or a reason could look like another one.
fn visible(text: String) -> String {
    let turns =
        |c: char| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if text.contains(turns) { text.replace(turns, "\u{fffd}") } else { text }
}

/// A job of a list.
#[derive(Serialize)]
struct Listed<'a> {
    #[serde(flatten)]
    job: &'a JobAnswer,
    colour: usize,
    address: String,
    gpu_count: usize,
    list: String,
    short: String,
    since: String,
    lease_left: Option<String>,
}

/// Longest list of GPUs in the list of jobs, characters.
const LIST_SHOWN: usize = 60;

/// The colour of a job: the same on every page and after every restart.
fn colour(job: &str) -> usize {
    job.bytes().fold(5381usize, |h, b| h.wrapping_mul(33) ^ usize::from(b)) % COLOURS
}

/// `3 h 20 min`.
fn words(seconds: f64) -> String {
    let s = seconds.max(0.0) as u64;
    match s {
        0..=119 => format!("{s} s"),
        120..=7199 => format!("{} min", s / 60),
        7200..=172_799 => format!("{} h", s / 3600),
        _ => format!("{} days", s / 86_400),
    }
}

/// The text shortened to `n` characters.
fn cut(text: &str, n: usize) -> String {
    if text.chars().count() <= n {
        return text.to_owned();
    }
    text.chars().take(n.saturating_sub(1)).chain(['…']).collect()
}

/// A text as the value of a query.
pub fn in_query(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b);
    text.bytes()
        .fold(String::new(), |s, b| if plain(b) { s + &char::from(b).to_string() } else { s + &format!("%{b:02X}") })
}

fn listed<'a>(app: &App, job: &'a JobAnswer) -> Listed<'a> {
    let (cluster, now) = (app.engine.cluster(), crate::app::now_unix_s());
    let list = cluster.gpu_list(&job.gpus.allocation(cluster));
    Listed {
        job,
        colour: colour(&job.id),
        address: format!("/jobs/{}", escaped(&job.id)),
        gpu_count: job.gpus.gpu_count(),
        short: cut(&list, LIST_SHOWN),
        list,
        since: words(now - job.since_unix_s),
        lease_left: job.lease_until_unix_s.map(|end| words(end - now)),
    }
}

async fn ask(v: &Visit, request: engine::Request) -> Result<Answer, Problem> {
    v.app.ask(request, &v.client).await
}

async fn hosts(v: &Visit) -> Result<HostsAnswer, Problem> {
    match ask(v, engine::Request::Hosts(HostsRequest {})).await? {
        Answer::Hosts(h) => Ok(h),
        _ => Err(Problem::bad("internal", "another answer was expected")),
    }
}

async fn status(v: &Visit) -> Result<engine::StatusAnswer, Problem> {
    match ask(v, engine::Request::Status(StatusRequest {})).await? {
        Answer::Status(s) => Ok(s),
        _ => Err(Problem::bad("internal", "another answer was expected")),
    }
}

/// The cluster's hardware and network as a picture.
async fn picture(app: Arc<App>, request: Request) -> Result<Response<Body>, Problem> {
    let (parts, _) = request.into_parts();
    read::client(&app, &parts, Scope::Read, true).await?;
    let text = app.work(|engine| Ok(draw::svg(engine.cluster()))).await?;
    let mut r = with_type(Body::from(text), "image/svg+xml");
    let csp = "default-src 'none'; style-src 'unsafe-inline'";
    r.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(csp));
    Ok(r)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_template_can_be_read_and_escapes_what_it_shows() {
        for (name, _) in TEMPLATES {
            templates().get_template(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
        let evil = Problem::bad("bad_query", "<script>alert(1)</script>");
        let text = templates()
            .get_template("problem.html")
            .unwrap()
            .render(minijinja::value::Serde(json!({"problem": evil, "visitor": {}})))
            .unwrap();
        assert!(text.contains("&lt;script&gt;") && !text.contains("<script"), "{text}");
    }

    #[test]
    fn no_page_names_another_server_or_has_a_script_or_an_inline_style() {
        for (name, text) in TEMPLATES.into_iter().chain([("style.css", include_str!("style.css"))]) {
            for word in ["http:", "https:", "//", "<script", "style=", "onclick", "@import", "|safe"] {
                assert!(!text.contains(word), "{name} has {word}");
            }
        }
    }
}
