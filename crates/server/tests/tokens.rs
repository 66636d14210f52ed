//! Who may do what: every endpoint with every kind of token.

mod common;

use common::Server;
use serde_json::{Value, json};
use server::auth::Scope;
use server::openapi::document;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use store::{By, State};

/// A server that asks for tokens.
fn guarded() -> Server {
    let mut s = Server::new(2);
    s.token = Some(s.token("root", Scope::Administer, None));
    let start = Instant::now();
    while s.send("GET", "/v1/cluster", &[("x", "y")], b"").status != 200
        || bare(&s, "GET", "/v1/cluster", None).0 != 401
    {
        assert!(start.elapsed() < Duration::from_secs(60), "the server does not notice its first token");
        std::thread::sleep(Duration::from_millis(50));
    }
    s
}

/// Status and code of a request without the server's own token.
fn bare(s: &Server, method: &str, path: &str, token: Option<&str>) -> (u16, String) {
    let token = token.map_or(String::new(), |t| format!("authorization: Bearer {t}\r\n"));
    let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n{token}connection: close\r\n");
    let said = match method {
        "POST" | "PUT" => {
            s.raw(format!("{head}content-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}").as_bytes())
        }
        _ => s.raw(format!("{head}\r\n").as_bytes()),
    };
    let status = said.get(9..12).and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("{method} {path}: {said}"));
    let code = said.split("\"code\":\"").nth(1).and_then(|r| r.split('"').next()).unwrap_or_default();
    (status, code.into())
}

#[test]
fn every_endpoint_needs_a_token_of_its_scope() {
    let s = guarded();
    let tokens = Scope::ALL.map(|x| (x, s.token(&format!("t-{x}"), x, None)));
    let doc = document();
    let mut seen = 0;
    for (path, methods) in doc["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            if operation["operationId"] == "eventStream" {
                continue; // it does not end; its scope is that of the other reads
            }
            let needs: Scope = operation["x-scope"].as_str().unwrap().parse().unwrap();
            let (method, path) = (method.to_uppercase(), path.replace("{job}", "none").replace("{id}", "77"));
            assert_eq!(bare(&s, &method, &path, None), (401, "no_token".into()), "{method} {path}");
            for (scope, token) in &tokens {
                let (status, code) = bare(&s, &method, &path, Some(token));
                let refused = status == 403 && code == "scope";
                assert_eq!(refused, *scope < needs, "{method} {path} with {scope}: {status} {code}");
                assert!(status != 401 && status < 500, "{method} {path} with {scope}: {status} {code}");
                seen += 1;
            }
        }
    }
    assert!(seen > 60, "{seen} requests");
    for path in ["/", "/what-if", "/suspects", "/jobs/a", "/metrics", "/cluster.svg"] {
        assert_eq!(bare(&s, "GET", path, None).0, 401, "{path}");
    }
    for path in ["/healthz", "/readyz", "/openapi.json", "/style.css", "/login"] {
        assert_eq!(bare(&s, "GET", path, None).0, 200, "{path}");
    }
}

#[test]
fn wrong_old_and_revoked_tokens_are_refused_and_a_flood_of_them_is_slowed() {
    let s = guarded();
    let old = s.token("old", Scope::Operate, Some(2.0));
    let good = s.token("good", Scope::Operate, None);
    let cluster = |t: &str| bare(&s, "GET", "/v1/cluster", Some(t));
    assert_eq!(cluster(&good).0, 200);
    assert_eq!(cluster(&old), (401, "wrong_token".into()));
    assert_eq!(cluster(&good[..good.len() - 1]), (401, "wrong_token".into()));
    assert_eq!(cluster(&server::auth::hash(&good)), (401, "wrong_token".into()), "the hash is no token");
    assert_eq!(cluster(&"x".repeat(5000)).0, 401);
    let mut state = State::open(&s.folder.path().join("s.db")).unwrap();
    assert!(state.revoke_token("good", &By::from(3.0)).unwrap());
    let start = Instant::now();
    while cluster(&good).0 == 200 {
        assert!(start.elapsed() < Duration::from_secs(60), "a revoked token stays valid");
        std::thread::sleep(Duration::from_millis(50));
    }
    let flood: Vec<(u16, String)> = (0..60).map(|i| cluster(&format!("lwt_{i}"))).collect();
    assert!(flood.iter().any(|r| *r == (429, "too_many_wrong_tokens".into())), "{:?}", flood.last());
    // Others share the address: a login node, a proxy.
    let neighbour = s.token("neighbour", Scope::Operate, None);
    assert_eq!(cluster(&neighbour).0, 200, "a right token from the address of the flood");
}

#[test]
fn a_revoked_token_gets_nothing_more_over_a_stream_that_is_open() {
    let mut s = guarded();
    let reader = s.token("reader", Scope::Read, None);
    let mut stream = TcpStream::connect(s.at).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let ask = format!("GET /v1/events/stream HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {reader}\r\n\r\n");
    stream.write_all(ask.as_bytes()).unwrap();
    let mut first = [0; 1024];
    let n = stream.read(&mut first).unwrap();
    assert!(first[..n].starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&first[..n]));
    let mut state = State::open(&s.folder.path().join("s.db")).unwrap();
    assert!(state.revoke_token("reader", &By::from(3.0)).unwrap());
    std::thread::sleep(2 * server::limits::TOKEN_TIME);
    s.token = Some(s.token("op", Scope::Operate, None));
    let drain = s.post("/v1/hosts/drain", &json!({"gpus": ["n0:0"], "reason": "secret"}));
    assert_eq!(drain.status, 200, "{drain:?}");
    let mut rest = String::new();
    let _ = stream.read_to_string(&mut rest); // the server ends the stream
    assert!(!rest.contains("secret"), "{rest}");
}

#[test]
fn revoking_the_last_token_opens_nothing() {
    let s = guarded();
    State::open(&s.folder.path().join("s.db")).unwrap().revoke_token("root", &By::from(3.0)).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(bare(&s, "GET", "/v1/cluster", None).0, 401);
    let folder = s.stop();
    let engine = common::engine(folder.path(), 2);
    let s = Server::of(folder, engine, |c| c);
    assert_eq!(bare(&s, "GET", "/v1/cluster", None).0, 401, "also after a restart");
}

#[test]
fn a_client_reports_on_its_own_jobs_and_their_gpus_and_an_operator_on_all() {
    let mut s = guarded();
    let [ada, bob, chief] =
        [("ada", Scope::Request), ("bob", Scope::Request), ("chief", Scope::Operate)].map(|(n, x)| s.token(n, x, None));
    let report = |s: &Server, job: &str, gpus: Value| {
        let mut body = json!({"job": job, "readings": [{"collective": "all_reduce", "busbw_gb_per_s": 41.5}]});
        if !gpus.is_null() {
            body["gpus"] = gpus;
        }
        s.post("/v1/readings", &body)
    };
    let none = Value::Null;
    s.token = Some(ada.clone());
    let placed = s.post("/v1/allocations", &json!({"gpus": 4, "commit": "a"})).json();
    let gpus = placed["gpus"].clone();
    let foreign = json!(["n0:[0-7]", "n1:[0-7]"]);
    assert!(gpus.as_array().is_some_and(|g| g.len() == 4), "{placed}");
    assert_eq!(report(&s, "a", none.clone()).status, 201);
    assert_eq!(report(&s, "a", gpus.clone()).status, 201);
    assert_eq!(report(&s, "a", foreign.clone()).code(), (403, "not_its_gpus".into()));
    assert_eq!(report(&s, "never", foreign.clone()).code(), (404, "unknown_job".into()));
    s.token = Some(bob.clone());
    assert_eq!(report(&s, "a", none.clone()).code(), (403, "not_yours".into()));
    // After its end: its author, and on the GPUs that it had.
    s.token = Some(ada.clone());
    assert_eq!(s.send("DELETE", "/v1/allocations/a", &[], b"").status, 200);
    assert_eq!(report(&s, "a", gpus.clone()).status, 201);
    assert_eq!(report(&s, "a", foreign.clone()).code(), (403, "not_its_gpus".into()));
    s.token = Some(bob);
    assert_eq!(report(&s, "a", gpus.clone()).code(), (403, "not_yours".into()));
    // Another client takes the name: each reports on its own job, and without GPUs on those that it has or had.
    let later = s.post("/v1/allocations", &json!({"gpus": 2, "commit": "a"})).json()["gpus"].clone();
    assert_eq!(report(&s, "a", later.clone()).status, 201);
    assert_eq!(report(&s, "a", gpus.clone()).code(), (403, "not_its_gpus".into()));
    s.token = Some(ada);
    assert_eq!(report(&s, "a", gpus.clone()).status, 201);
    let of_all = report(&s, "a", none.clone());
    assert_eq!((of_all.status, &of_all.json()["readings"][0]["gpus"]), (201, &gpus));
    assert_eq!(report(&s, "a", foreign.clone()).code(), (403, "not_its_gpus".into()));
    s.token = Some(chief);
    for job in ["a", "never"] {
        assert_eq!(report(&s, job, foreign.clone()).status, 201);
    }
}

#[test]
fn a_client_releases_and_renews_its_own_jobs_and_an_operator_all() {
    let mut s = guarded();
    let [ada, bob, chief] =
        [("ada", Scope::Request), ("bob", Scope::Request), ("chief", Scope::Operate)].map(|(n, x)| s.token(n, x, None));
    s.token = Some(ada);
    assert_eq!(s.post("/v1/allocations", &json!({"gpus": 2, "commit": "a1", "lease_s": 60})).status, 201);
    assert_eq!(s.post("/v1/allocations", &json!({"gpus": 2, "commit": "a2"})).status, 201);
    s.token = Some(bob.clone());
    assert_eq!(s.send("DELETE", "/v1/allocations/a1", &[], b"").code(), (403, "not_yours".into()));
    assert_eq!(s.post("/v1/allocations/a1/renew", &json!({})).code(), (403, "not_yours".into()));
    s.token = Some(chief);
    assert_eq!(s.send("DELETE", "/v1/allocations/a1", &[], b"").status, 200);
    let reading = json!({"job": "a2", "readings": [{"collective": "all_reduce", "busbw_gb_per_s": 41.5}]});
    let id = s.post("/v1/readings", &reading).json()["readings"][0]["id"].clone();
    s.post(&format!("/v1/readings/{id}/withdraw"), &json!({"why": "a test"}));
    let events = s.get("/v1/events?after=0").json();
    let events: Vec<&Value> = events["events"].as_array().unwrap().iter().collect();
    let who = |what: &str| events.iter().rfind(|e| e["what"] == what).unwrap()["who"].clone();
    let got = (who("allocate"), who("release"), who("withdraw"), who("token"));
    assert_eq!(got, (json!("ada"), json!("chief"), json!("chief"), json!("command")));
}

#[test]
fn a_browser_reads_with_its_cookie_and_can_change_nothing_with_it() {
    let s = guarded();
    let token = s.token.clone().unwrap();
    let login = |body: &str, origin: &str| {
        let length = body.len();
        s.raw(
            format!("POST /login HTTP/1.1\r\nhost: localhost\r\n{origin}content-length: {length}\r\nconnection: close\r\n\r\n{body}")
                .as_bytes(),
        )
    };
    let said = login(&format!("token={token}"), "origin: http://localhost\r\n");
    assert!(said.starts_with("HTTP/1.1 303"), "{said}");
    let cookie = said.lines().find_map(|l| l.strip_prefix("set-cookie: ")).unwrap();
    for word in ["HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(cookie.contains(word), "{cookie}");
    }
    assert!(login("token=wrong", "").starts_with("HTTP/1.1 401"));
    assert!(login(&format!("token={token}"), "origin: http://evil.example\r\n").contains("foreign_origin"));
    let pair = cookie.split(';').next().unwrap();
    let with = |method: &str, path: &str| {
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncookie: a=b; {pair}\r\nconnection: close\r\n\r\n");
        s.raw(head.as_bytes())
    };
    assert!(with("GET", "/").starts_with("HTTP/1.1 200"));
    assert!(with("GET", "/what-if?gpus=4").starts_with("HTTP/1.1 200"));
    assert!(with("GET", "/v1/cluster").starts_with("HTTP/1.1 401"), "the cookie is for pages");
    assert!(with("DELETE", "/v1/allocations/a").starts_with("HTTP/1.1 401"));
}
