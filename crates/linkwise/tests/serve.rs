//! `linkwise serve` as a process: it starts, stops, and survives kills under load.

use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

mod common;
#[allow(dead_code)] // the tests of the store use the rest
#[path = "../../store/tests/common/postgres.rs"]
mod postgres;

use common::Served;

/// Number of kills; `LINKWISE_KILLS=100` for the long check.
const KILLS: usize = 10;
const CLIENTS: u64 = 6;
/// Answers of a server before it is killed.
const ANSWERS: usize = 24;

fn serve(folder: &Path, more: &[&str]) -> Served {
    serve_state(folder, "s.db", more)
}

/// Starts the server on a free port and waits for the line that says where it listens.
fn serve_state(folder: &Path, state: &str, more: &[&str]) -> Served {
    let mut command = Command::new(env!("CARGO_BIN_EXE_linkwise"));
    command.args(["serve", "--cluster", "h100", "--state", state, "--listen", "127.0.0.1:0", "--format", "json"]);
    Served::start(command.args(more).current_dir(folder))
}

fn agent() -> ureq::Agent {
    let config =
        ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(Duration::from_secs(30)));
    config.build().into()
}

/// One try; none if the connection failed.
fn ask(agent: &ureq::Agent, at: SocketAddr, method: &str, path: &str, key: &str, body: &str) -> Option<(u16, Value)> {
    let request = ureq::http::Request::builder()
        .method(method)
        .uri(format!("http://{at}{path}"))
        .header("content-type", "application/json")
        .header("idempotency-key", key);
    let sent = match body {
        "" => agent.run(request.body(()).unwrap()),
        body => agent.run(request.body(body.to_owned()).unwrap()),
    };
    let mut response = sent.ok()?;
    let status = response.status().as_u16();
    let mut text = String::new();
    response.body_mut().as_reader().read_to_string(&mut text).ok()?;
    Some((status, serde_json::from_str(&text).ok()?))
}

/// A job as its client knows it.
#[derive(Clone, Debug)]
struct Held {
    job: String,
    gpus: BTreeSet<String>,
    /// When the client knew that the job holds the GPUs.
    from: Instant,
    /// When the client first asked for the release; none: never.
    until: Option<Instant>,
}

fn gpus(v: &Value) -> BTreeSet<String> {
    v.as_array().unwrap_or(&Vec::new()).iter().map(|g| g.as_str().unwrap().to_owned()).collect()
}

/// Allocates and releases until it is told to stop. Every request is repeated under its key until it is answered; some are repeated
/// after their answer, and the second answer must be the first.
fn client(number: u64, at: &RwLock<Vec<SocketAddr>>, answers: &AtomicUsize, stop: &AtomicBool) -> (Vec<Held>, usize) {
    let agent = agent();
    let (mut history, mut open, mut tries): (Vec<Held>, Vec<usize>, usize) = (Vec::new(), Vec::new(), 0);
    let mut random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = |n: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % n
    };
    let mut answered = |method: &str, path: &str, key: &str, body: &str| -> (u16, Value) {
        loop {
            tries += 1;
            let servers = at.read().unwrap().clone();
            let now = servers[tries % servers.len()]; // the next try goes to the next server
            match ask(&agent, now, method, path, key, body) {
                Some((status, v)) if status < 500 && status != 429 => {
                    answers.fetch_add(1, Ordering::Relaxed);
                    return (status, v);
                }
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    };
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        n += 1;
        let key = format!("c{number}-{n}");
        if open.len() >= 3 || (!open.is_empty() && next(2) == 0) {
            let i = open.remove(next(open.len() as u64) as usize);
            history[i].until = Some(Instant::now());
            let path = format!("/v1/allocations/{}", history[i].job);
            let (status, v) = answered("DELETE", &path, &key, "");
            assert_eq!((status, gpus(&v["released"][0]["gpus"])), (200, history[i].gpus.clone()), "{v}");
            continue;
        }
        let body = json!({"gpus": 1 + next(6), "commit": key}).to_string();
        let (status, v) = answered("POST", "/v1/allocations", &key, &body);
        if status != 201 {
            assert_eq!(status, 409, "{v}"); // too few GPUs are free
            continue;
        }
        let got = gpus(&v["gpus"]);
        history.push(Held { job: key.clone(), gpus: got.clone(), from: Instant::now(), until: None });
        open.push(history.len() - 1);
        if next(3) == 0 {
            let (status, again) = answered("POST", "/v1/allocations", &key, &body);
            assert_eq!((status, gpus(&again["gpus"]), &again["committed"]["repeated"]), (201, got, &json!(true)));
        }
    }
    (history, tries)
}

#[test]
fn kills_under_load_give_no_gpu_twice_and_lose_and_invent_no_job() {
    let dir = tempfile::tempdir().unwrap();
    kills_under_load(dir.path(), &["s.db"]);
    store::State::open(&dir.path().join("s.db")).unwrap().check().unwrap();
}

#[test]
fn of_two_servers_with_one_state_any_answers_and_one_that_is_killed_loses_nothing() {
    let Some(database) = postgres::Server::start() else { return postgres::skip("tests_of_the_store_on_postgresql") };
    let (dir, url) = (tempfile::tempdir().unwrap(), database.database());
    kills_under_load(dir.path(), &[&url, &url]);
}

/// Kills servers, each with one of the states, under clients that allocate and release, and compares what the clients know with the state.
fn kills_under_load(dir: &Path, states: &[&str]) {
    let kills = std::env::var("LINKWISE_KILLS").ok().map_or(KILLS, |k| k.parse().unwrap());
    let mut served: Vec<Served> = states.iter().map(|s| serve_state(dir, s, &[])).collect();
    let at = Arc::new(RwLock::new(served.iter().map(|s| s.at).collect::<Vec<_>>()));
    let stop = Arc::new(AtomicBool::new(false));
    let answers = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (1..=CLIENTS)
        .map(|i| {
            let (at, answers, stop) = (at.clone(), answers.clone(), stop.clone());
            std::thread::spawn(move || client(i, &at, &answers, &stop))
        })
        .collect();
    for kill in 0..kills {
        // Each server answers some requests, then ends at any moment of others.
        let (before, start) = (answers.load(Ordering::Relaxed), Instant::now());
        while answers.load(Ordering::Relaxed) < before + ANSWERS {
            assert!(start.elapsed() < Duration::from_secs(60), "the server answers nothing");
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(Duration::from_millis(kill as u64 * 7 % 23));
        let n = kill % states.len();
        served[n].child.kill().unwrap(); // SIGKILL
        served[n].child.wait().unwrap();
        served[n] = serve_state(dir, states[n], &[]);
        at.write().unwrap()[n] = served[n].at;
    }
    stop.store(true, Ordering::Relaxed);
    let results: Vec<(Vec<Held>, usize)> = clients.into_iter().map(|c| c.join().expect("a client")).collect();
    let tries: usize = results.iter().map(|r| r.1).sum();
    let history: Vec<Held> = results.into_iter().flat_map(|r| r.0).collect();
    assert!(history.len() > 3 * kills && tries > history.len(), "{} allocations in {tries} requests", history.len());

    // While one client knows that it holds a GPU, no other client knows the same.
    let mut by_gpu: BTreeMap<&str, Vec<&Held>> = BTreeMap::new();
    history.iter().for_each(|h| h.gpus.iter().for_each(|g| by_gpu.entry(g).or_default().push(h)));
    let end = Instant::now();
    for (gpu, mut holders) in by_gpu {
        holders.sort_by_key(|h| h.from);
        for w in holders.windows(2) {
            assert!(w[0].until.unwrap_or(end) <= w[1].from, "{gpu} was given twice: {:?} {:?}", w[0], w[1]);
        }
    }
    // Every request was driven to its answer, so the clients know the whole state.
    let known: BTreeMap<String, BTreeSet<String>> =
        history.into_iter().filter(|h| h.until.is_none()).map(|h| (h.job, h.gpus)).collect();
    let (_, v) = ask(&agent(), served[0].at, "GET", "/v1/allocations", "x", "").unwrap();
    let jobs = v["jobs"].as_array().unwrap();
    let now = jobs.iter().map(|j| (j["id"].as_str().unwrap().to_owned(), gpus(&j["gpus"]))).collect();
    assert_eq!(known, now, "the clients' jobs (left) and the server's");
}

#[test]
fn a_server_ends_with_0_at_sigterm_and_its_state_serves_the_command() {
    let dir = tempfile::tempdir().unwrap();
    let mut served = serve(dir.path(), &[]);
    let (status, v) = ask(&agent(), served.at, "POST", "/v1/allocations", "k", r#"{"gpus":8,"commit":"a"}"#).unwrap();
    assert_eq!(status, 201, "{v}");
    let pid = served.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let start = Instant::now();
    let code = loop {
        match served.child.try_wait().unwrap() {
            Some(code) => break code,
            None => assert!(start.elapsed() < Duration::from_secs(30), "the server does not stop"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(code.success(), "{code}");
    let shown = Command::new(env!("CARGO_BIN_EXE_linkwise"))
        .args(["cluster", "show", "--state", "s.db", "--format", "json"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["jobs"][0]["id"], "a", "{shown}");
}

#[test]
fn a_token_is_printed_once_and_its_hash_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let o = Command::new(env!("CARGO_BIN_EXE_linkwise")).args(args).current_dir(dir.path()).output().unwrap();
        (o.status.code(), String::from_utf8(o.stdout).unwrap(), String::from_utf8(o.stderr).unwrap())
    };
    assert_eq!(run(&["cluster", "init", "--cluster", "h100", "--state", "s.db"]).0, Some(0));
    let (code, token, _) = run(&["token", "create", "ada", "--scope", "request", "--state", "s.db"]);
    let token = token.trim();
    assert!(code == Some(0) && token.starts_with("lwt_"), "{token}");
    let listed = run(&["token", "list", "--state", "s.db"]).1;
    assert!(listed.contains("ada") && listed.contains("request") && !listed.contains(token), "{listed}");
    let file = std::fs::read(dir.path().join("s.db")).unwrap();
    let wal = std::fs::read(dir.path().join("s.db-wal")).unwrap_or_default();
    let has = |text: &str| [&file, &wal].iter().any(|f| f.windows(text.len()).any(|w| w == text.as_bytes()));
    assert!(has(&server::auth::hash(token)) && !has(token), "the state keeps the hash only");
    assert_eq!(run(&["token", "create", "ada", "--scope", "read", "--state", "s.db"]).0, Some(1));
    assert_eq!(run(&["token", "revoke", "ada", "--state", "s.db"]).1, "token `ada` is revoked\n");
    assert_eq!(run(&["token", "revoke", "bob", "--state", "s.db"]).0, Some(2));

    let served = serve(dir.path(), &[]);
    let (status, v) = ask(&agent(), served.at, "GET", "/v1/cluster", "x", "").unwrap();
    assert_eq!((status, v["code"].as_str()), (401, Some("no_token")));
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let said = |args: &[&str]| {
        let mut all = vec!["serve", "--state", "s.db"];
        all.extend(args);
        let o = Command::new(env!("CARGO_BIN_EXE_linkwise")).args(all).current_dir(dir.path()).output().unwrap();
        (o.status.code(), String::from_utf8(o.stderr).unwrap().split_whitespace().collect::<Vec<_>>().join(" "))
    };
    let (code, text) = said(&[]);
    assert!(code == Some(2) && text.contains("give --cluster to make it"), "{text}");
    let (code, text) = said(&["--cluster", "h100", "--listen", "0.0.0.0:0"]);
    assert!(code == Some(2) && text.contains("--force-plain-http"), "{text}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (code, text) = said(&["--listen", &taken.local_addr().unwrap().to_string()]);
    assert!(code == Some(2) && text.contains("cannot listen on"), "{text}");
}

#[test]
fn a_fit_is_kept_in_the_state_and_used_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), &[]);
    let a = agent();
    let fit = r#"{"kind":"nccl","collective":"all_gather"}"#;
    let (status, task) = ask(&a, served.at, "POST", "/v1/models/fit", "x", fit).unwrap();
    assert_eq!(status, 202, "{task}");
    let start = Instant::now();
    loop {
        let (_, t) = ask(&a, served.at, "GET", &format!("/v1/tasks/{}", task["id"]), "x", "").unwrap();
        if t["state"] == "done" {
            break;
        }
        assert!(t["state"] != "failed" && start.elapsed() < Duration::from_secs(60), "{t}");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(served);
    assert!(dir.path().join("s.readings.db").is_file());
    let served = serve(dir.path(), &[]);
    let (_, model) = ask(&a, served.at, "GET", "/v1/models", "x", "").unwrap();
    assert_eq!(model["collective"], "all_gather", "{model}");
    let (status, back) = ask(&a, served.at, "POST", "/v1/models/rollback", "x", r#"{"why":"a trial"}"#).unwrap();
    assert_eq!((status, &back["version"]), (200, &json!(1)), "the way back is there after a restart: {back}");
}

#[test]
fn a_version_of_the_model_is_written_to_a_file_that_predicts_without_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), &[]);
    let a = agent();
    let (_, expected) = ask(&a, served.at, "POST", "/v1/explain", "x", r#"{"gpus":["n0","n1"]}"#).unwrap();
    let run = |args: &[&str]| {
        let o = Command::new(env!("CARGO_BIN_EXE_linkwise")).args(args).current_dir(dir.path()).output().unwrap();
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        (o.status.code(), text(&o.stdout), text(&o.stderr))
    };
    let (_, listed, _) = run(&["model", "list", "--state", "s.db", "--format", "json"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!((&listed["versions"][0]["version"], &listed["versions"][0]["state"]), (&json!(1), &json!("present")));
    assert!(run(&["model", "list", "--state", "s.db"]).1.contains("in use"));
    for (version, at) in [(&["--version", "1"][..], "1"), (&[], "present")] {
        let (code, said, _) = run(&[&["model", "export", "--state", "s.db", "-o", "m.json"], version].concat());
        assert!(code == Some(0) && said.starts_with("m.json: version 1, "), "{said}");
        let file: Value = serde_json::from_str(&std::fs::read_to_string(dir.path().join("m.json")).unwrap()).unwrap();
        let (status, sent) = ask(&a, served.at, "GET", &format!("/v1/models/{at}/file"), "x", "").unwrap();
        assert!(status == 200 && sent == file, "{sent}");
        let explain = ["explain", "--cluster", "h100", "--model", "m.json", "--gpus", "n0 n1", "--format", "json"];
        let own: Value = serde_json::from_str(&run(&explain).1).unwrap();
        assert_eq!(own["predicted_busbw_gb_per_s"], expected["predicted_busbw_gb_per_s"], "{own}");
        std::fs::remove_file(dir.path().join("m.json")).unwrap();
    }
    let (code, _, why) = run(&["model", "export", "--state", "s.db", "-o", "m.json", "--version", "99"]);
    assert!(code.is_some_and(|c| c > 0) && why.contains("99") && !dir.path().join("m.json").exists(), "{why}");
    let (status, v) = ask(&a, served.at, "GET", "/v1/models/99/file", "x", "").unwrap();
    assert_eq!((status, &v["code"]), (404, &json!("unknown_version")));
    let (status, v) = ask(&a, served.at, "GET", "/v1/models/newest/file", "x", "").unwrap();
    assert_eq!((status, &v["code"]), (400, &json!("bad_path")));
}

#[test]
fn servers_of_one_state_use_the_same_model_which_a_command_teaches_too() {
    let Some(database) = postgres::Server::start() else { return postgres::skip("tests_of_the_store_on_postgresql") };
    for url in [None, Some(database.database())] {
        let dir = tempfile::tempdir().unwrap();
        let state = url.clone().unwrap_or_else(|| "s.db".into());
        let servers = [
            serve_state(dir.path(), &state, &["--refit-after", "0"]),
            serve_state(dir.path(), &state, &["--refit-after", "0"]),
        ];
        let a = agent();
        let models = |s: &Served| ask(&a, s.at, "GET", "/v1/models", "x", "").unwrap().1;
        let predicted = |s: &Served| {
            let (_, v) = ask(&a, s.at, "POST", "/v1/explain", "x", r#"{"gpus":["n0","n1"]}"#).unwrap();
            v["predicted_busbw_gb_per_s"].as_f64().unwrap_or_else(|| panic!("{v}"))
        };
        let on_both = |what: &dyn Fn(&Served) -> bool| {
            let start = Instant::now();
            while !servers.iter().all(what) {
                assert!(start.elapsed() < Duration::from_secs(60), "{} {}", models(&servers[0]), models(&servers[1]));
                std::thread::sleep(Duration::from_millis(20));
            }
            start.elapsed()
        };
        // Readings of pairs of hosts, and a fit on the first server.
        let usual = predicted(&servers[0]);
        let pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];
        for (n, (from, to)) in pairs.into_iter().enumerate() {
            // They differ, so that the model takes later ones seriously.
            let busbw = usual * (0.8 + 0.02 * ((5 * n) % 6) as f64);
            let body = json!({"job": format!("j{n}"), "gpus": [format!("n{from}"), format!("n{to}")],
                "readings": [{"collective": "all_reduce", "busbw_gb_per_s": busbw}]});
            let (status, v) =
                ask(&a, servers[n % 2].at, "POST", "/v1/readings", &format!("r{n}"), &body.to_string()).unwrap();
            assert_eq!(status, 201, "{v}");
        }
        let (status, task) = ask(&a, servers[0].at, "POST", "/v1/models/fit", "x", r#"{"kind":"gp"}"#).unwrap();
        assert_eq!(status, 202, "{task}");
        let of_fit = |s: &Served| models(s)["versions"].as_array().unwrap().len() > 1;
        println!("a fit was on both servers after {:.1?}", on_both(&of_fit));
        let path = format!("/v1/tasks/{}", task["id"]);
        let fit = |s: &Served| ask(&a, s.at, "GET", &path, "x", "").unwrap().1;
        on_both(&|s| fit(s)["state"] == "done");
        let (_, ended) = ask(&a, servers[1].at, "DELETE", &path, "x", "").unwrap();
        assert_eq!(ended["state"], "done", "a task that has ended is not cancelled");
        assert!(
            fit(&servers[0])["result"].is_object() && fit(&servers[0]) == fit(&servers[1]),
            "both answer for the task"
        );
        let number = models(&servers[0])["versions"].as_array().unwrap().len();
        let body = json!({"version": number, "why": "a trial"}).to_string();
        let (status, v) = ask(&a, servers[0].at, "POST", "/v1/models/promote", "x", &body).unwrap();
        assert_eq!(status, 200, "{v}");
        println!("a promotion was on both servers after {:.1?}", on_both(&|s| models(s)["kind"] == "gp"));
        // The command teaches the model of the state.
        let before = predicted(&servers[1]);
        let store = url.clone().unwrap_or_else(|| "s.readings.db".into());
        let busbw = format!("{}", 1.1 * before);
        let done = Command::new(env!("CARGO_BIN_EXE_linkwise"))
            .args([
                "observe", "--state", &state, "--store", &store, "--job", "by-hand", "--gpus", "n0 n1", "--busbw",
                &busbw,
            ])
            .current_dir(dir.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(
            said.contains("the model in the state has learned 1 reading"),
            "{said} {}",
            String::from_utf8_lossy(&done.stderr)
        );
        on_both(&|s| predicted(s) > before);
    }
}

#[test]
fn servers_of_one_state_fit_new_readings_once() {
    let Some(database) = postgres::Server::start() else { return postgres::skip("tests_of_the_store_on_postgresql") };
    for state in ["s.db".to_owned(), database.database()] {
        let dir = tempfile::tempdir().unwrap();
        let servers = [(); 2].map(|()| serve_state(dir.path(), &state, &["--refit-after", "6"]));
        let a = agent();
        let tasks =
            |s: &Served| ask(&a, s.at, "GET", "/v1/tasks", "x", "").unwrap().1["tasks"].as_array().unwrap().clone();
        for round in 1..=3 {
            for (n, (from, to)) in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)].into_iter().enumerate() {
                let busbw = 200.0 + (10 * round + n) as f64;
                let body = json!({"job": format!("j{n}"), "gpus": [format!("n{from}"), format!("n{to}")],
                    "readings": [{"collective": "all_reduce", "busbw_gb_per_s": busbw}]});
                let key = format!("r{round}-{n}");
                let (status, v) = ask(&a, servers[n % 2].at, "POST", "/v1/readings", &key, &body.to_string()).unwrap();
                assert_eq!(status, 201, "{v}");
            }
            let begin = Instant::now();
            while tasks(&servers[0]).iter().filter(|t| t["state"] == "done").count() < round {
                assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", tasks(&servers[0]));
                std::thread::sleep(Duration::from_millis(50));
            }
            // Both servers have looked again since.
            std::thread::sleep(Duration::from_secs(2));
            let done = tasks(&servers[1]);
            assert_eq!(done.len(), round, "a fit for the same readings twice: {done:?}");
        }
    }
}

#[test]
fn the_tasks_of_a_killed_server_fail_and_another_server_says_so() {
    let Some(database) = postgres::Server::start() else { return postgres::skip("tests_of_the_store_on_postgresql") };
    let (dir, state) = (tempfile::tempdir().unwrap(), database.database());
    let [mut gone, stays] = [(); 2].map(|()| serve_state(dir.path(), &state, &["--refit-after", "0"]));
    let a = agent();
    let body =
        json!({"job": "j", "gpus": ["n0", "n1"], "readings": [{"collective": "all_reduce", "busbw_gb_per_s": 300.0}]});
    assert_eq!(ask(&a, stays.at, "POST", "/v1/readings", "r", &body.to_string()).unwrap().0, 201);
    for n in 0..6 {
        let (status, v) = ask(&a, gone.at, "POST", "/v1/diagnose/task", &format!("d{n}"), "{}").unwrap();
        assert_eq!(status, 202, "{v}");
    }
    gone.child.kill().unwrap();
    let tasks = || ask(&a, stays.at, "GET", "/v1/tasks", "x", "").unwrap().1["tasks"].as_array().unwrap().clone();
    let is_open = |t: &Value| t["state"] == "waiting" || t["state"] == "running";
    if !tasks().iter().any(is_open) {
        println!("every task had ended before the kill");
    }
    let begin = Instant::now();
    while tasks().iter().any(is_open) {
        assert!(begin.elapsed() < Duration::from_secs(90), "{:?}", tasks());
        std::thread::sleep(Duration::from_millis(200));
    }
    let ends = tasks();
    assert_eq!(ends.len(), 6);
    assert!(ends.iter().all(|t| t["state"] == "done" || t["problem"]["code"] == "task_lost"), "{ends:?}");
    let (status, v) = ask(&a, stays.at, "POST", "/v1/diagnose/task", "again", "{}").unwrap();
    assert_eq!(status, 202, "{v}");
}

#[test]
fn a_server_answers_soon_after_its_start() {
    let dir = tempfile::tempdir().unwrap();
    for what in ["with a new state", "with a state"] {
        let begin = Instant::now();
        let served = serve(dir.path(), &[]);
        let (status, _) = ask(&agent(), served.at, "GET", "/v1/cluster", "x", "").unwrap();
        println!("{what}: the first answer after {:.0?}", begin.elapsed());
        assert_eq!(status, 200);
    }
}

/// Where Debian and Ubuntu have the library that gives a process another clock.
const LIBFAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

#[test]
fn a_clock_that_jumps_under_a_running_server_ends_no_lease_and_lengthens_none() {
    if !Path::new(LIBFAKETIME).exists() {
        let name = "a_clock_that_jumps_under_a_running_server_ends_no_lease_and_lengthens_none";
        return println!("SKIP {name}: no libfaketime; apt-get install faketime");
    }
    let dir = tempfile::tempdir().unwrap();
    let clock = dir.path().join("clock");
    let set = |offset: &str| {
        std::fs::write(dir.path().join("next"), offset).unwrap();
        std::fs::rename(dir.path().join("next"), &clock).unwrap();
    };
    set("+0");
    let mut command = Command::new(env!("CARGO_BIN_EXE_linkwise"));
    command
        .args(["serve", "--cluster", "h100", "--state", "s.db", "--listen", "127.0.0.1:0", "--format", "json"])
        .envs([("LD_PRELOAD", LIBFAKETIME), ("FAKETIME_NO_CACHE", "1"), ("DONT_FAKE_MONOTONIC", "1")])
        .env("FAKETIME_TIMESTAMP_FILE", &clock);
    let served = Served::start(command.current_dir(dir.path()));
    let a = agent();
    let job = |id: &str| ask(&a, served.at, "GET", &format!("/v1/allocations/{id}"), "x", "").unwrap();
    let body = |id: &str, lease: u32| json!({"gpus": 8, "commit": id, "lease_s": lease}).to_string();
    for (id, lease) in [("long", 600), ("short", 20)] {
        let (status, v) = ask(&a, served.at, "POST", "/v1/allocations", id, &body(id, lease)).unwrap();
        assert_eq!(status, 201, "{v}");
    }
    let until = |id: &str| job(id).1["lease_until_unix_s"].as_f64().unwrap_or_else(|| panic!("{:?}", job(id)));
    let before = until("long");
    let moved = |hours: f64| {
        let begin = Instant::now();
        while (until("long") - before - hours * 3600.0).abs() > 60.0 {
            assert!(begin.elapsed() < Duration::from_secs(60), "{} of {before} after {hours} h", until("long"));
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    // An hour forward, as after a suspend; then two hours back.
    set("+3600");
    moved(1.0);
    assert_eq!(job("short").0, 200, "a jump ends no lease");
    set("-3600");
    moved(-1.0);
    let (status, v) = ask(&a, served.at, "POST", "/v1/allocations", "long", &body("long", 600)).unwrap();
    assert!(status == 201 && v["committed"]["job"] == "long", "a retry has its answer: {v}");
    // The short lease ends after its length, not hours later.
    let begin = Instant::now();
    while job("short").0 == 200 {
        assert!(begin.elapsed() < Duration::from_secs(80), "{:?}", job("short"));
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(job("long").0, 200);
}

#[test]
fn a_copy_of_a_state_in_use_is_a_state() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), &[]);
    let (status, v) = ask(&agent(), served.at, "POST", "/v1/allocations", "k", r#"{"gpus":8,"commit":"a"}"#).unwrap();
    assert_eq!(status, 201, "{v}");
    let run = |args: &[&str]| {
        let o = Command::new(env!("CARGO_BIN_EXE_linkwise")).args(args).current_dir(dir.path()).output().unwrap();
        (o.status.code(), String::from_utf8_lossy(&o.stdout).into_owned())
    };
    for (from, to) in [("s.db", "copy.db"), ("s.readings.db", "copy.readings.db")] {
        assert_eq!(run(&["cluster", "backup", "--state", from, "--to", to]).0, Some(0));
        assert_eq!(run(&["cluster", "backup", "--state", from, "--to", to]).0, Some(2), "a copy is never replaced");
    }
    drop(served);
    let shown = |state: &str| run(&["cluster", "show", "--state", state, "--format", "json"]).1;
    let (one, other) = (shown("s.db"), shown("copy.db"));
    assert!(one == other && one.contains("\"a\""), "{one} {other}");
    let restored = serve_state(dir.path(), "copy.db", &[]);
    let (_, v) = ask(&agent(), restored.at, "POST", "/v1/allocations", "k", r#"{"gpus":8,"commit":"a"}"#).unwrap();
    assert_eq!(v["committed"]["repeated"], true, "a retry after the restore gets its first answer: {v}");
}

#[test]
fn the_log_has_a_line_of_json_per_request_and_never_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let log = std::fs::File::create(folder.path().join("log")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_linkwise"));
    command.args(["serve", "--cluster", "h100", "--state", "s.db", "--listen", "127.0.0.1:0", "--format", "json"]);
    let served = Served::start(command.args(["--log", "json"]).current_dir(folder.path()).stderr(log));
    let agent = agent();
    let secret = "lwt_0123456789abcdef";
    for (method, path, body) in [
        ("POST", "/v1/place", "{\"gpus\":2}"),
        ("GET", &format!("/v1/allocations/{secret}"), ""),
        ("GET", &format!("/v1/events?after=0&limit={secret}"), ""),
        ("GET", "/nowhere", ""),
    ] {
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", served.at))
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {secret}"));
        agent.run(request.body(body.to_owned()).unwrap()).unwrap();
    }
    drop(served);
    let text = std::fs::read_to_string(folder.path().join("log")).unwrap();
    assert!(!text.contains("lwt_"), "{text}");
    let lines: Vec<Value> =
        text.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect();
    let told: Vec<(&str, &str, u64)> = lines
        .iter()
        .map(|l| (l["method"].as_str().unwrap(), l["path"].as_str().unwrap(), l["status"].as_u64().unwrap()))
        .collect();
    let expected = [
        ("POST", "/v1/place", 200),
        ("GET", "/v1/allocations/{job}", 404),
        ("GET", "/v1/events", 400),
        ("GET", "none", 404),
    ];
    assert_eq!(told, expected, "{text}");
    assert!(lines[0]["principal"] == "local" && lines[0]["duration_ms"].as_f64().unwrap() > 0.0, "{}", lines[0]);
}
