//! What a site with several teams needs: models that prove themselves, tenants, pages of lists, and a log of reasons.

mod common;

use common::{Said, Server};
use serde_json::{Value, json};
use server::Config;
use server::auth::Scope;
use std::time::{Duration, Instant};
use store::state::{KeptTask, NewTask, TaskState};
use store::{By, State};

/// Longest wait for a server, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Reports readings of every pair of hosts at this share of the prediction.
fn report(s: &Server, hosts: usize, share: f64) {
    for a in 0..hosts {
        for b in a + 1..hosts {
            let gpus = [format!("n{a}"), format!("n{b}")];
            let expected = s.post("/v1/explain", &json!({"gpus": gpus})).json();
            let expected = expected["predicted_busbw_gb_per_s"].as_f64().unwrap_or_else(|| panic!("{expected}"));
            let readings = [json!({"collective": "all_reduce", "busbw_gb_per_s": expected * share})];
            let body = json!({"job": format!("j-{a}-{b}"), "gpus": gpus, "readings": readings});
            let said = s.post("/v1/readings", &body);
            assert_eq!(said.status, 201, "{said:?}");
        }
    }
}

fn task(s: &Server, id: &Value) -> Value {
    let mut task = Value::Null;
    until("the task does not end", || {
        task = s.get(&format!("/v1/tasks/{id}")).json();
        assert!(task["step"].as_u64() <= task["steps"].as_u64() && task["doing"].is_string(), "{task}");
        task["state"] != "waiting" && task["state"] != "running"
    });
    task
}

#[test]
fn readings_lead_to_a_fit_by_themselves_and_it_is_used_only_if_it_predicts_better() {
    let s = Server::with(7, |c| Config { refit_after: Some(21), ..c });
    report(&s, 7, 0.6);
    until("no fit starts", || s.get("/v1/tasks").json()["tasks"].as_array().is_some_and(|t| !t.is_empty()));
    let fitted = task(&s, &json!(1));
    assert_eq!((&fitted["state"], &fitted["who"]), (&json!("done"), &json!("server")), "{fitted}");
    let result = &fitted["result"];
    let model = s.get("/v1/models").json();
    let promoted = result["promoted"] == true;
    assert_eq!(model["kind"], if promoted { "gp" } else { "nccl" }, "{result}");
    let compared = &result["compared"];
    assert_eq!(promoted, compared["fitted"].as_f64() <= compared["present"].as_f64(), "{result}");
    let last = s.get("/v1/events?limit=1").json()["events"][0].clone();
    assert_eq!((&last["what"], &last["who"]), (&json!(if promoted { "fit" } else { "fit_refused" }), &json!("server")));
    assert_eq!(model["versions"].as_array().unwrap().len(), 2);
    // No reading is new: no further fit starts.
    s.post("/v1/allocations", &json!({"gpus": 1, "commit": "a"}));
    std::thread::sleep(3 * server::limits::TICK);
    assert_eq!(s.get("/v1/tasks").json()["tasks"].as_array().unwrap().len(), 1);
}

#[test]
fn a_task_that_waits_or_runs_can_be_cancelled_and_the_model_stays() {
    let s = Server::new(6);
    report(&s, 6, 0.7);
    let versions = s.get("/v1/models").json()["versions"].as_array().unwrap().len();
    let fits: Vec<Value> = (0..4).map(|_| s.post("/v1/models/fit", &json!({})).json()["id"].clone()).collect();
    for id in fits.iter().rev() {
        assert_eq!(s.send("DELETE", &format!("/v1/tasks/{id}"), &[], b"").status, 200);
    }
    let ends: Vec<Value> = fits.iter().map(|id| task(&s, id)["state"].clone()).collect();
    assert!(ends.iter().all(|e| e == "cancelled" || e == "done"), "{ends:?}");
    let added = s.get("/v1/models").json()["versions"].as_array().unwrap().len() - versions;
    assert_eq!(added, ends.iter().filter(|e| *e == "done").count(), "a cancelled fit leaves no version: {ends:?}");
    let page = s.get("/v1/tasks?limit=2").json();
    assert_eq!((page["tasks"].as_array().unwrap().len(), &page["next"]), (2, &fits[1]));
    let rest = s.get(&format!("/v1/tasks?after={}", page["next"])).json();
    assert_eq!((rest["tasks"].as_array().unwrap().len(), &rest["next"]), (2, &Value::Null));
}

#[test]
fn a_task_of_another_server_of_the_state_is_answered_for_cancelled_and_lost_with_its_server() {
    let s = Server::new(2);
    // The other server: what it writes.
    let mut other = State::open(&s.folder.path().join("s.db")).unwrap();
    let new = NewTask { what: "fit", waiting_max: 8, kept_max: 64, alone: false };
    let add = |other: &mut State| begun(other, &new).unwrap();
    let shown = |id: u64| s.get(&format!("/v1/tasks/{id}")).json();
    let cancel = |id: u64| s.send("DELETE", &format!("/v1/tasks/{id}"), &[], b"").json()["state"].clone();
    let waiting = add(&mut other);
    assert_eq!(shown(waiting)["state"], "waiting");
    assert_eq!(cancel(waiting), "cancelled");
    assert!(!other.begin_task(waiting).unwrap(), "a cancelled task runs");
    let running = add(&mut other);
    assert!(other.begin_task(running).unwrap());
    assert_eq!(other.beat_tasks(&[(running, TaskState::Running, 1)]).unwrap(), [0; 0]);
    assert_eq!((&shown(running)["state"], &shown(running)["step"]), (&json!("running"), &json!(2)));
    assert_eq!(cancel(running), "running");
    assert_eq!(other.beat_tasks(&[(running, TaskState::Running, 2)]).unwrap(), [running]);
    other.end_task(running, TaskState::Cancelled, None).unwrap();
    assert_eq!(shown(running)["state"], "cancelled");
    // One that goes on stays; one of a server that is gone fails.
    let [goes_on, gone] = [add(&mut other), add(&mut other)];
    assert!(other.begin_task(goes_on).unwrap() && other.begin_task(gone).unwrap());
    let path = s.folder.path().join("s.db");
    let (ends, end) = std::sync::mpsc::channel::<()>();
    let beats = std::thread::spawn(move || {
        let mut other = State::open(&path).unwrap();
        while end.recv_timeout(server::limits::TASK_BEAT / 8) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            other.beat_tasks(&[(goes_on, TaskState::Running, 0)]).unwrap();
        }
    });
    until("the task of a server that is gone does not fail", || shown(gone)["state"] == "failed");
    assert_eq!(shown(gone)["problem"]["code"], "task_lost");
    assert_eq!(shown(goes_on)["state"], "running");
    drop(ends);
    beats.join().unwrap();
    // Its server was only slow: it goes on, and its outcome counts.
    assert_eq!(other.beat_tasks(&[(gone, TaskState::Running, 1)]).unwrap(), [0; 0]);
    assert_eq!((&shown(gone)["state"], &shown(gone)["problem"]), (&json!("running"), &Value::Null));
    other.end_task(gone, TaskState::Done, Some("{}")).unwrap();
    assert_eq!((&shown(gone)["state"], &shown(gone)["problem"]), (&json!("done"), &Value::Null));
    // What a newer server does is not shown, and does no harm.
    let newer = begun(&mut other, &NewTask { what: "dream", ..new }).unwrap();
    assert_eq!(s.get(&format!("/v1/tasks/{newer}")).status, 404);
    assert_eq!(s.get("/v1/tasks").json()["tasks"].as_array().unwrap().len(), 4);
}

#[test]
fn a_request_with_a_key_begins_one_task_and_begin_and_cancel_are_in_the_log() {
    let s = Server::new(2);
    let fit = |key: &str, body: Value| s.post_once("/v1/models/fit", key, &body);
    let first = fit("k", json!({"kind": "gp"}));
    assert_eq!(first.status, 202, "{first:?}");
    assert_eq!(fit("k", json!({"kind": "gp"})).json()["id"], first.json()["id"]);
    assert_eq!(fit("k", json!({"kind": "gbdt"})).code(), (422, "key_reused".into()));
    let other = fit("l", json!({"kind": "gp"})).json()["id"].clone();
    assert_ne!(other, first.json()["id"]);
    s.send("DELETE", &format!("/v1/tasks/{other}"), &[("x-reason", "too early")], b"");
    let events = s.get("/v1/events?after=0").json();
    let of = |what: &str| -> Vec<Value> {
        events["events"].as_array().unwrap().iter().filter(|e| e["what"] == what).cloned().collect()
    };
    assert_eq!(of("task").len(), 2, "{events}");
    assert!(of("cancel").iter().all(|e| e["why"] == "too early"), "{events}");
}

#[test]
fn a_repeated_request_whose_task_is_forgotten_says_that_it_was_done() {
    let s = Server::new(2);
    let fit = || s.post_once("/v1/models/fit", "k", &json!({"kind": "nccl"}));
    let id = fit().json()["id"].clone();
    task(&s, &id);
    // Other servers begin many more.
    let mut other = State::open(&s.folder.path().join("s.db")).unwrap();
    let new = NewTask { what: "fit", waiting_max: 8, kept_max: 4, alone: false };
    for _ in 0..5 {
        let id = begun(&mut other, &new).unwrap();
        assert!(other.cancel_task(id, &By::from(1.0)).unwrap());
    }
    assert_eq!(s.get(&format!("/v1/tasks/{id}")).code(), (404, "unknown_task".into()));
    let repeated = fit();
    assert_eq!(repeated.code(), (410, "task_forgotten".into()));
    assert!(repeated.text.contains(&format!("task {id}")) && repeated.text.contains("its result is forgotten"));
}

#[test]
fn a_task_is_forgotten_after_as_many_newer_ones_as_the_limit_says() {
    let s = Server::new(2);
    let fit = |key: &str| s.post_once("/v1/models/fit", key, &json!({"kind": "nccl"}));
    let first = fit("first").json()["id"].clone();
    task(&s, &first);
    for i in 1..=server::limits::TASKS_KEPT_MAX {
        assert_eq!(fit("first").status, 202, "{i} newer tasks");
        task(&s, &fit(&i.to_string()).json()["id"]);
    }
    assert_eq!(fit("first").code(), (410, "task_forgotten".into()));
}

#[test]
fn a_server_that_stops_says_that_its_tasks_end() {
    let s = Server::new(6);
    report(&s, 6, 0.7);
    // As many as may wait: most of them wait when the server stops.
    let begun = (0..60).take_while(|_| s.post("/v1/models/fit", &json!({"kind": "gp"})).status == 202).count();
    assert!(begun >= server::limits::TASKS_WAITING_MAX, "{begun}");
    let folder = s.stop();
    let state = State::open(&folder.path().join("s.db")).unwrap();
    let left = state.tasks(0).unwrap();
    assert!(left.len() == begun && left.iter().all(|t| !t.state.is_open()), "{left:?}");
    let is_lost =
        |t: &KeptTask| t.state == TaskState::Failed && t.outcome.as_ref().is_some_and(|o| o.contains("task_lost"));
    assert!(left.iter().all(|t| t.state == TaskState::Done || is_lost(t)), "{left:?}");
    assert!(left.iter().any(is_lost), "{left:?}");
}

/// Adds a task as another server does.
fn begun(state: &mut State, new: &NewTask<'_>) -> Option<u64> {
    state.add_task(new, None, &By::from(1.0)).unwrap().value
}

#[test]
fn tasks_that_wait_have_a_limit_for_all_servers_and_old_ones_are_forgotten() {
    let s = Server::new(2);
    let mut other = State::open(&s.folder.path().join("s.db")).unwrap();
    let new = NewTask { what: "fit", waiting_max: 8, kept_max: 10, alone: false };
    let first = begun(&mut other, &new).unwrap();
    assert!(other.begin_task(first).unwrap());
    assert_eq!(begun(&mut other, &NewTask { alone: true, ..new }), None, "one alone");
    for _ in 0..30 {
        let id = begun(&mut other, &new).unwrap();
        assert!(other.cancel_task(id, &By::from(1.0)).unwrap());
    }
    assert_eq!(other.tasks(0).unwrap().len(), 10);
    assert!(other.task(first).unwrap().is_some(), "one that runs is kept");
    let waiting: Vec<u64> = (0..8).map(|_| begun(&mut other, &new).unwrap()).collect();
    let refused = s.post("/v1/models/fit", &json!({}));
    assert_eq!(refused.code(), (503, "too_many_tasks".into()));
    assert!(other.cancel_task(waiting[0], &By::from(1.0)).unwrap());
    assert_eq!(s.post("/v1/models/fit", &json!({})).status, 202, "a cancelled one makes room");
}

/// A request with a token.
fn with(s: &Server, token: &str, method: &str, path: &str, body: &Value) -> Said {
    let bearer = format!("Bearer {token}");
    let mut headers = vec![("authorization", bearer.as_str())];
    let text = if body.is_null() { String::new() } else { body.to_string() };
    if !body.is_null() {
        headers.push(("content-type", "application/json"));
    }
    s.send(method, path, &headers, text.as_bytes())
}

#[test]
fn a_tenant_sees_its_own_jobs_and_those_of_others_do_not_exist_for_it() {
    let s = Server::new(3);
    let [red, blue, operator] =
        [("red/ann", Scope::Request), ("blue/bob", Scope::Request), ("blue/op", Scope::Operate)]
            .map(|(name, scope)| s.token(name, scope, None));
    until("no token is asked for", || s.get("/v1/cluster").status == 401);
    let none = Value::Null;
    for (token, job) in [(&red, "r1"), (&blue, "b1")] {
        assert_eq!(with(&s, token, "POST", "/v1/allocations", &json!({"gpus": 12, "commit": job})).status, 201);
    }
    let ids = |token: &str, path: &str| -> Vec<String> {
        let v = with(&s, token, "GET", path, &none).json();
        v["jobs"].as_array().unwrap().iter().map(|j| j["id"].as_str().unwrap().to_owned()).collect()
    };
    for path in ["/v1/allocations", "/v1/cluster"] {
        assert_eq!((ids(&red, path), ids(&blue, path)), (vec!["r1".into()], vec!["b1".into()]), "{path}");
        assert_eq!(ids(&operator, path).len(), 2, "the operator sees all");
    }
    for (method, path, body) in [
        ("GET", "/v1/allocations/b1", none.clone()),
        ("DELETE", "/v1/allocations/b1", none.clone()),
        ("POST", "/v1/allocations/b1/renew", json!({"lease_s": 60})),
        ("POST", "/v1/readings", json!({"job": "b1", "readings": [{"collective": "all_reduce", "busbw_gb_per_s": 9}]})),
        ("GET", "/v1/readings?job=b1", none.clone()),
    ] {
        let said = with(&s, &red, method, path, &body);
        assert_eq!(said.code(), (404, "unknown_job".into()), "{method} {path}");
    }
    assert_eq!(with(&s, &operator, "GET", "/v1/allocations/b1", &none).status, 200);
    for (method, path, body) in [
        ("GET", "/v1/hosts", none.clone()),
        ("GET", "/v1/events?after=0", none.clone()),
        ("POST", "/v1/place", json!({"gpus": 4})),
        ("POST", "/v1/explain", json!({"gpus": ["n0", "n1"]})),
        ("GET", "/v1/allocations/none", none.clone()),
        ("PUT", "/v1/allocations/r2", json!({"gpus": ["n0", "n1", "n2"]})),
    ] {
        let said = with(&s, &red, method, path, &body);
        assert!(!said.text.contains("b1") && !said.text.contains("blue"), "{method} {path}: {}", said.text);
    }
    for path in ["/metrics", "/v1/readings"] {
        assert_eq!(with(&s, &red, "GET", path, &none).code(), (403, "tenant".into()), "{path}");
    }
    assert_eq!(with(&s, &red, "DELETE", "/v1/allocations/r1", &none).status, 200);
}

#[test]
fn keys_and_names_of_tenants_are_their_own() {
    let s = Server::new(3);
    let tokens = ["red/ann", "blue/bob", "red/eve"].map(|name| s.token(name, Scope::Request, None));
    until("no token is asked for", || s.get("/v1/cluster").status == 401);
    let allocate = |token: &str, job: &str| {
        let bearer = format!("Bearer {token}");
        let headers =
            [("authorization", bearer.as_str()), ("content-type", "application/json"), ("idempotency-key", "submit-7")];
        let said =
            s.send("POST", "/v1/allocations", &headers, json!({"gpus": 2, "commit": job}).to_string().as_bytes());
        (said.status, said.json()["gpus"].clone(), said.json()["code"].clone())
    };
    let first = allocate(&tokens[0], "run");
    assert_eq!(first.0, 201, "{first:?}");
    // The same key and name, by another tenant: neither the answer nor the existence of the key is told.
    let other = allocate(&tokens[1], "run");
    assert_eq!((other.0, &other.2), (409, &json!("job_exists")), "{other:?}");
    let own = allocate(&tokens[1], "run-b");
    assert!(own.0 == 201 && own.1 != first.1, "{own:?}");
    assert_eq!(allocate(&tokens[2], "run").1, first.1, "the answer again, for the same tenant");
    assert_eq!(allocate(&tokens[2], "run-c").0, 422, "a key of the tenant for another request");
    // A reading of an earlier job of that name.
    let reading = json!({"job": "run", "readings": [{"collective": "all_reduce", "busbw_gb_per_s": 123}]});
    assert_eq!(with(&s, &tokens[0], "POST", "/v1/readings", &reading).status, 201);
    assert_eq!(with(&s, &tokens[0], "DELETE", "/v1/allocations/run", &Value::Null).status, 200);
    std::thread::sleep(Duration::from_millis(20));
    let again = json!({"gpus": 2, "commit": "run"});
    assert_eq!(with(&s, &tokens[1], "POST", "/v1/allocations", &again).status, 201);
    let seen = with(&s, &tokens[1], "GET", "/v1/readings?job=run", &Value::Null).json();
    assert_eq!(seen["readings"], json!([]), "{seen}");
}

#[test]
fn the_reason_in_the_header_of_a_drain_is_in_the_log() {
    let s = Server::new(2);
    let headers = [("content-type", "application/json"), ("x-reason", "flaps")];
    assert_eq!(s.send("POST", "/v1/hosts/drain", &headers, br#"{"gpus": ["n0"]}"#).status, 200);
    let last = s.get("/v1/events?limit=1").json()["events"][0].clone();
    assert_eq!((&last["what"], &last["why"]), (&json!("drain"), &json!("flaps")), "{last}");
}

#[test]
fn lists_come_in_pages_without_a_gap() {
    let s = Server::new(3);
    for i in 0..7 {
        s.post("/v1/allocations", &json!({"gpus": 1, "commit": format!("j{i}")}));
    }
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let page = s.get(&format!("/v1/allocations?limit=3{after}")).json();
        seen.extend(page["jobs"].as_array().unwrap().iter().map(|j| j["id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        // A job that ends between two pages leaves no gap.
        s.send("DELETE", &format!("/v1/allocations/{next}"), &[], b"");
        after = format!("&after={next}");
    }
    assert_eq!(seen, (0..7).map(|i| format!("j{i}")).collect::<Vec<_>>());
    let names = |path: &str| -> Vec<String> {
        let v = s.get(path).json();
        v["hosts"].as_array().unwrap().iter().map(|h| h["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(
        (names("/v1/hosts?limit=2"), names("/v1/hosts?after=n1")),
        (vec!["n0".into(), "n1".into()], vec!["n2".into()])
    );
    assert_eq!(s.get("/v1/hosts?after=n9").code(), (400, "unknown_host".into()));
    assert_eq!(s.get("/v1/allocations?limit=0").code(), (400, "bad_request".into()));
}

#[test]
fn a_change_for_another_version_is_refused_and_its_reason_is_in_the_log() {
    let s = Server::new(1);
    let version = s.get("/v1/allocations").header("etag").to_owned();
    let allocate = |version: &str, job: &str| {
        let headers = [("content-type", "application/json"), ("if-match", version), ("x-reason", "the nightly run")];
        s.send("POST", "/v1/allocations", &headers, json!({"gpus": 1, "commit": job}).to_string().as_bytes())
    };
    assert_eq!(allocate(&version, "a").status, 201);
    assert_eq!(allocate(&version, "b").code(), (412, "version_changed".into()));
    assert_eq!(allocate("rubbish", "b").code(), (400, "bad_version".into()));
    assert_eq!(allocate(s.get("/v1/cluster").header("etag"), "b").status, 201);
    let events = s.get("/v1/events?after=0").json()["events"].clone();
    assert_eq!(events.as_array().unwrap().len(), 2, "{events}");
    assert_eq!((&events[0]["who"], &events[0]["why"]), (&json!("local"), &json!("the nightly run")));
}
