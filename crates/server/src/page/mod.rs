//! The page: the cluster as a map, jobs, suspects, and a form that asks what if. The server renders it whole; it needs no
//! script and asks no other server for anything.

use crate::app::App;
use crate::auth::{Client, Scope};
use crate::problem::Problem;
use crate::read::{self, COOKIE};
use crate::routes::{escaped, with_app, with_type};
use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Request};
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::routing::get;
use engine::{Answer, HostsAnswer, HostsRequest, JobAnswer, PlaceAnswer, PlaceRequest, StatusRequest};
use minijinja::Environment;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

const TEMPLATES: [(&str, &str); 7] = [
    ("base.html", include_str!("base.html")),
    ("map.html", include_str!("map.html")),
    ("job.html", include_str!("job.html")),
    ("what_if.html", include_str!("what_if.html")),
    ("suspects.html", include_str!("suspects.html")),
    ("login.html", include_str!("login.html")),
    ("problem.html", include_str!("problem.html")),
];

/// Nothing but this server's own style and pictures; no script, no frame, no foreign form.
const CSP: &str =
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
/// Number of colours of jobs.
const COLOURS: usize = 10;
/// Length of a browser's session, seconds.
const SESSION_S: u32 = 12 * 3600;
/// Hosts of one page.
const HOSTS_PER_PAGE: usize = 512;
/// Jobs of the list on the map's page.
const JOBS_SHOWN: usize = 200;

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
    Router::new()
        .route("/", get(paged(app, map)))
        .route("/jobs/{job}", get(paged(app, job)))
        .route("/what-if", get(paged(app, what_if)))
        .route("/suspects", get(paged(app, suspects)))
        .route("/style.css", get(style))
        .route("/cluster.svg", get(with_app(app, picture)))
        .route("/login", get(with_app(app, |_, _| async { page("login.html", json!({})) })).post(with_app(app, login)))
        .route("/logout", axum::routing::post(with_app(app, logout)))
}

/// What a page knows of its request.
struct Visit {
    app: Arc<App>,
    client: Client,
    parts: axum::http::request::Parts,
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
                let mut r = page("login.html", json!({ "wrong": p.code == "wrong_token"}))?;
                *r.status_mut() = StatusCode::UNAUTHORIZED;
                return Ok(r);
            }
            Err(p) => return problem(&p),
        };
        let app_again = app.clone();
        let route = "page";
        let start = std::time::Instant::now();
        let response = match f(Visit { app, client, parts }).await {
            Ok(r) => Ok(r),
            Err(p) => problem(&p),
        };
        if let Ok(r) = &response {
            app_again.metrics.served(route, &axum::http::Method::GET, r.status(), start.elapsed());
        }
        response
    })
}

fn problem(p: &Problem) -> Result<Response<Body>, Problem> {
    let mut r = page("problem.html", json!({ "problem": p}))?;
    *r.status_mut() = p.status_code();
    Ok(r)
}

fn page(template: &str, with: Value) -> Result<Response<Body>, Problem> {
    let text =
        templates().get_template(template).and_then(|t| t.render(minijinja::value::Serde(&with))).map_err(|e| {
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", format!("the page failed: {e}"), "report this")
        })?;
    let mut r = with_type(Body::from(text), "text/html; charset=utf-8");
    let h = r.headers_mut();
    h.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CSP));
    h.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    Ok(r)
}

/// A host of the map.
#[derive(Serialize)]
struct Row {
    name: String,
    cells: Vec<Cell>,
    suspects: String,
}

/// A GPU of the map.
#[derive(Serialize)]
struct Cell {
    class: String,
    title: String,
    /// Address of the job's page; empty for a GPU without a job.
    job: String,
}

/// Hosts below one switch.
#[derive(Serialize)]
struct Block {
    name: String,
    rows: Vec<Row>,
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
    since: String,
    lease_left: Option<String>,
}

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

fn listed<'a>(app: &App, job: &'a JobAnswer) -> Listed<'a> {
    let (cluster, now) = (app.engine.cluster(), crate::app::now_unix_s());
    Listed {
        job,
        colour: colour(&job.id),
        address: format!("/jobs/{}", escaped(&job.id)),
        gpu_count: job.gpus.gpu_count(),
        list: cluster.gpu_list(&job.gpus.allocation(cluster)),
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

/// The hosts of the map, by their nearest switch. GPUs in `marked` are outlined.
fn blocks(h: &HostsAnswer, from: usize, marked: &HashMap<(&str, u8), &str>) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for host in h.hosts.iter().skip(from).take(HOSTS_PER_PAGE) {
        let cells = host.gpus.iter().enumerate().map(|(i, g)| {
            let name = format!("{}:{i}", host.name);
            let mark = marked.get(&(host.name.as_str(), i as u8)).copied().unwrap_or_default();
            let (mut class, title, job) = match (&g.job, &g.drained) {
                (Some(j), d) => {
                    let drained = if d.is_some() { ", drained" } else { "" };
                    (
                        format!("j j{}", colour(j)),
                        format!("{name} held by {j}{drained}"),
                        format!("/jobs/{}", escaped(j)),
                    )
                }
                (None, Some(why)) => ("d".into(), format!("{name} drained: {why}"), String::new()),
                (None, None) => ("f".into(), format!("{name} free"), String::new()),
            };
            if g.job.is_some() && g.drained.is_some() {
                class += " d";
            }
            if !mark.is_empty() {
                class = format!("{class} {mark}");
            }
            Cell { class, title, job }
        });
        let suspect = |s: &engine::SuspectAnswer| format!("{} ({:.0} %)", s.component, 100.0 * s.probability);
        let likely = host.suspects.iter().filter(|s| s.probability >= 0.05).take(3).map(suspect);
        let row =
            Row { name: host.name.clone(), cells: cells.collect(), suspects: likely.collect::<Vec<_>>().join(", ") };
        let switch = host.switches.first().cloned().unwrap_or_default();
        match blocks.last_mut() {
            Some(b) if b.name == switch => b.rows.push(row),
            _ => blocks.push(Block { name: switch, rows: vec![row] }),
        }
    }
    blocks
}

/// The part of the hosts that a page shows.
#[derive(Deserialize)]
struct From {
    #[serde(default)]
    from: usize,
}

async fn map(v: Visit) -> Result<Response<Body>, Problem> {
    let From { from } = read::query(&v.parts.uri)?;
    let (s, h) = (status(&v).await?, hosts(&v).await?);
    let jobs: Vec<Listed<'_>> = s.jobs.iter().rev().take(JOBS_SHOWN).map(|j| listed(&v.app, j)).collect();
    let next = from.saturating_add(HOSTS_PER_PAGE);
    let model = v.app.engine.model_answer().ok().map(|m| m.kind);
    let drained: usize = s.drained.iter().map(|d| d.gpus.gpu_count()).sum();
    let suspects = s.suspects.iter().filter(|x| x.probability >= 0.05).count();
    page(
        "map.html",
        json!({
        "here": "map", "cluster": s.cluster, "gpus": s.gpus, "hosts": s.hosts, "free": s.free.gpu_count(),
        "blocks": blocks(&h, from, &HashMap::new()), "jobs": jobs, "jobs_all": s.jobs.len(), "drained": drained, "suspects": suspects, "model": model,
        "next": (next < s.hosts).then_some(next), "before": (from > 0).then(|| from.saturating_sub(HOSTS_PER_PAGE)),
        "from": from + 1, "to": next.min(s.hosts), "client": v.client.name}),
    )
}

async fn job(v: Visit) -> Result<Response<Body>, Problem> {
    let params = axum::extract::RawPathParams::from_request_parts(&mut v.parts.clone(), &()).await;
    let id = params.ok().and_then(|p| p.iter().next().map(|x| x.1.to_owned())).unwrap_or_default();
    let Answer::Job(job) = ask(&v, engine::Request::Job(engine::JobRequest { job: id.clone() })).await? else {
        return Err(Problem::bad("internal", "another answer was expected"));
    };
    let explain = engine::ExplainRequest {
        gpus: Some(job.gpus.names().collect()),
        job: None,
        size_bytes: job.size_bytes.map(|b| b.0),
    };
    let explained = match ask(&v, engine::Request::Explain(explain)).await {
        Ok(Answer::Explain(e)) => Some(e),
        _ => None, // without a model, or for one GPU, the page has less to say
    };
    let readings = engine::ReadingsRequest { job: Some(id), limit: Some(20), ..Default::default() };
    let readings = match ask(&v, engine::Request::Readings(readings)).await {
        Ok(Answer::Readings(r)) => r.readings,
        _ => Vec::new(),
    };
    let limit = explained.as_ref().and_then(|e| e.bottleneck.text());
    page(
        "job.html",
        json!({ "here": "map", "job": listed(&v.app, &job), "explained": explained, "limit": limit, "readings": readings}),
    )
}

/// What the form asks. A browser sends empty fields.
#[derive(Default, Deserialize)]
struct Form {
    #[serde(default)]
    gpus: String,
    #[serde(default)]
    per_host: String,
    #[serde(default)]
    hosts_max: String,
    #[serde(default)]
    exclude: String,
    #[serde(default)]
    exclusive_nics: String,
}

fn number(text: &str, what: &str) -> Result<Option<u64>, Problem> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = |_| Problem::bad("bad_query", format!("{what}: `{}` is not a whole number", read::excerpt(text)));
    text.parse().map(Some).map_err(wrong)
}

fn request(form: &Form) -> Result<Option<PlaceRequest>, Problem> {
    let Some(gpus) = number(&form.gpus, "GPUs")? else { return Ok(None) };
    let excluded: Vec<String> = form.exclude.split_whitespace().map(str::to_owned).collect();
    let constraints = engine::ConstraintsIn {
        per_host: number(&form.per_host, "GPUs per host")?,
        hosts_max: number(&form.hosts_max, "hosts")?,
        excluded_hosts: (!excluded.is_empty()).then_some(excluded),
        exclusive_nics: (!form.exclusive_nics.is_empty()).then_some(true),
        ..Default::default()
    };
    let constraints = (constraints != engine::ConstraintsIn::default()).then_some(constraints);
    Ok(Some(PlaceRequest { gpus: Some(gpus), constraints, ..Default::default() }))
}

async fn what_if(v: Visit) -> Result<Response<Body>, Problem> {
    let form: Form = read::query(&v.parts.uri)?;
    let asked = match request(&form) {
        Ok(None) => None,
        Ok(Some(r)) => Some(match ask(&v, engine::Request::Place(Box::new(r))).await {
            Ok(Answer::Place(a)) => Ok(a),
            Ok(_) => Err(Problem::bad("internal", "another answer was expected")),
            Err(p) => Err(p),
        }),
        Err(p) => Some(Err(p)),
    };
    let (answer, problem): (Option<PlaceAnswer>, Option<Problem>) = match asked {
        None => (None, None),
        Some(Ok(a)) => (Some(a), None),
        Some(Err(p)) => (None, Some(p)),
    };
    let status = problem.as_ref().map_or(StatusCode::OK, Problem::status_code);
    let cluster = v.app.engine.cluster();
    let list = |g: &engine::GpuList| cluster.gpu_list(&g.allocation(cluster));
    let others = |a: &PlaceAnswer| -> Vec<Value> {
        let told = |name: &str, s: &engine::ScoredAnswer| json!({ "name": name, "split": s.split, "list": list(&s.gpus), "busbw": s.predicted_busbw_gb_per_s, "std": s.std_gb_per_s});
        let fixed = [("packed", a.packed.as_ref()), ("simple rule", a.rule.as_ref())];
        let fixed = fixed.into_iter().filter_map(|(n, s)| Some(told(n, s?)));
        fixed.chain(a.runner_ups.iter().take(4).map(|s| told("runner-up", s))).collect()
    };
    let mut marked: HashMap<(&str, u8), &str> = HashMap::new();
    for h in answer.iter().flat_map(|a| &a.gpus.0) {
        marked.extend(h.gpus.iter().map(|g| ((h.host.as_str(), *g), "chosen")));
    }
    let mut shown = hosts(&v).await?;
    if answer.is_some() {
        shown.hosts.retain(|h| marked.keys().any(|k| k.0 == h.name));
    } else {
        shown.hosts.clear();
    }
    let mut r = page(
        "what_if.html",
        json!({
        "here": "what-if",
        "form": json!({
            "gpus": form.gpus, "per_host": form.per_host, "hosts_max": form.hosts_max, "exclude": form.exclude,
            "exclusive_nics": !form.exclusive_nics.is_empty()}),
        "list": answer.as_ref().map(|a| list(&a.gpus)), "limit": answer.as_ref().and_then(|a| a.bottleneck.text()),
        "note": answer.as_ref().and_then(|a| engine::extrapolation_note(&a.outside_validated)),
        "others": answer.as_ref().map(others), "blocks": blocks(&shown, 0, &marked), "answer": answer, "problem": problem}),
    )?;
    *r.status_mut() = status;
    Ok(r)
}

async fn suspects(v: Visit) -> Result<Response<Body>, Problem> {
    let s = status(&v).await?;
    page(
        "suspects.html",
        json!({ "here": "suspects", "suspects": s.suspects, "drained": s.drained.iter().map(|d| {
        let cluster = v.app.engine.cluster();
        json!({ "list": cluster.gpu_list(&d.gpus.allocation(cluster)), "reason": d.reason})
    }).collect::<Vec<_>>()}),
    )
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

/// The form of the login page.
#[derive(Deserialize)]
struct Login {
    token: String,
}

/// Puts the token into a cookie that no script can read and no other page can send.
async fn login(app: Arc<App>, request: Request) -> Result<Response<Body>, Problem> {
    let (parts, body) = request.into_parts();
    read::check_origin(&app, &parts)?;
    let body = crate::body::whole(body, app.body_time).await?;
    let address = format!("/?{}", String::from_utf8_lossy(&body));
    let uri = address.parse().map_err(|_| Problem::bad("bad_request", "the form cannot be read"))?;
    let Login { token } = read::query(&uri)?;
    let token = token.trim();
    let peer = parts.extensions.get::<crate::serve::Peer>().copied();
    let known = match peer {
        Some(p) if token.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') => app.client(Some(token), p.0).await,
        _ => Err(Problem::bad("wrong_token", "the token has other characters than tokens have")),
    };
    if let Err(p) = known {
        let mut r = page("login.html", json!({ "wrong": true}))?;
        *r.status_mut() = p.status_code();
        return Ok(r);
    }
    let secure = if app.encrypts { "; Secure" } else { "" };
    Ok(moved(&format!("{COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict; Max-Age={SESSION_S}{secure}")))
}

async fn logout(app: Arc<App>, request: Request) -> Result<Response<Body>, Problem> {
    let (parts, _) = request.into_parts();
    read::check_origin(&app, &parts)?;
    Ok(moved(&format!("{COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0")))
}

/// Sends the browser to the first page, with a cookie.
fn moved(cookie: &str) -> Response<Body> {
    let mut r = Response::new(Body::empty());
    *r.status_mut() = StatusCode::SEE_OTHER;
    r.headers_mut().insert(header::LOCATION, HeaderValue::from_static("/"));
    if let Ok(c) = HeaderValue::from_str(cookie) {
        r.headers_mut().insert(header::SET_COOKIE, c);
    }
    r
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
            .render(minijinja::value::Serde(json!({"problem": evil})))
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
