//! Every endpoint over real HTTP, with the same answers as the engine.

mod common;

use common::Server;
use serde_json::{Value, json};
use server::openapi::document;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// Names of the operations of the document, with method and path.
fn operations() -> BTreeSet<(String, String, String)> {
    let doc = document();
    let of = |(path, methods): (&String, &Value)| {
        let path = path.clone();
        let methods = methods.as_object().unwrap().clone();
        methods.into_iter().map(move |(m, o)| (m, path.clone(), o["operationId"].as_str().unwrap().to_owned()))
    };
    doc["paths"].as_object().unwrap().iter().flat_map(of).collect()
}

#[test]
fn every_endpoint_answers_as_the_document_says() {
    let s = Server::new(4);
    let (mut seen, mut seen_elsewhere) = (BTreeSet::new(), Vec::new());
    let doc = document();
    // Checks a success against the document: the path's template, the status, the content type.
    let mut check = |id: &str, said: common::Said| -> common::Said {
        let operation = operations().into_iter().find(|o| o.2 == id).unwrap_or_else(|| panic!("no operation {id}"));
        let responses = &doc["paths"][&operation.1][&operation.0]["responses"];
        let described = &responses[said.status.to_string()];
        assert!((200..300).contains(&said.status), "{id}: {said:?}");
        assert!(described["content"][said.header("content-type")].is_object(), "{id}: {said:?} {described}");
        seen.insert(id.to_owned());
        said
    };
    let ok = |v: &Value| assert!(!v.is_null(), "{v}");

    let cluster = check("cluster", s.get("/v1/cluster")).json();
    assert_eq!((&cluster["gpus"], &cluster["jobs"]), (&json!(32), &json!([])));
    assert_eq!(check("hosts", s.get("/v1/hosts")).json()["hosts"].as_array().unwrap().len(), 4);
    let what_if = check("place", s.post("/v1/place", &json!({"gpus": 8}))).json();
    assert_eq!(what_if["split"], "8");
    ok(&check("explain", s.post("/v1/explain", &json!({"gpus": ["n0", "n1"]}))).json()["bottleneck"]);

    let first =
        check("allocate", s.post_once("/v1/allocations", "k1", &json!({"gpus": 16, "commit": "a", "lease_s": 60})));
    assert_eq!((first.status, first.header("location")), (201, "/v1/allocations/a"));
    let again = s.post_once("/v1/allocations", "k1", &json!({"gpus": 16, "commit": "a", "lease_s": 60})).json();
    assert_eq!(again["gpus"], first.json()["gpus"]);
    assert_eq!(again["committed"]["repeated"], true);
    let other = s.post_once("/v1/allocations", "k1", &json!({"gpus": 8, "commit": "b"}));
    assert_eq!(other.code(), (422, "key_reused".into()));
    let put = s.send("PUT", "/v1/allocations/x%2Fb", &[("content-type", "application/json")], br#"{"gpus":["n3:0"]}"#);
    assert_eq!(check("allocateNamed", put).json()["job"], "x/b");
    let jobs = check("allocations", s.get("/v1/allocations")).json();
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), 2, "{jobs}");
    assert_eq!(check("allocation", s.get("/v1/allocations/x%2Fb")).json()["gpus"], json!(["n3:0"]));
    let job = s.get("/v1/allocations/a").json();
    assert_eq!((&job["made_by"], &job["lease_s"]), (&json!("local"), &json!(60.0)));
    let renewed = check("renew", s.post("/v1/allocations/a/renew", &json!({"lease_s": 600}))).json();
    assert!(renewed["lease_until_unix_s"].as_f64().unwrap() > job["lease_until_unix_s"].as_f64().unwrap() + 500.0);
    assert_eq!(s.post("/v1/allocations/x%2Fb/renew", &json!({})).code(), (400, "bad_request".into()));

    let reading = json!({"job": "a", "readings": [{"collective": "all_reduce", "busbw_gb_per_s": 41.5}]});
    let observed = check("observe", s.post_once("/v1/readings", "r1", &reading)).json();
    let id = observed["readings"][0]["id"].as_i64().unwrap();
    let other = json!({"job": "a", "readings": [{"collective": "all_reduce", "busbw_gb_per_s": 40.5}]});
    let other = s.post("/v1/readings", &other).json()["readings"][0]["id"].as_i64().unwrap();
    let listed = check("readings", s.get("/v1/readings?job=a&limit=5&collective=all_reduce")).json();
    assert_eq!(listed["readings"].as_array().unwrap().len(), 2);
    let path = format!("/v1/readings/{id}/correct");
    let correction = json!({"busbw_gb_per_s": 42.0, "why": "read from the log again"});
    assert_eq!(check("correct", s.post(&path, &correction)).json()["change"]["who"], "local");
    let withdrawn = s.post(&format!("/v1/readings/{other}/withdraw"), &json!({"why": "another job ran"}));
    check("withdraw", withdrawn);
    assert_eq!(s.get("/v1/readings").json()["readings"].as_array().unwrap().len(), 1);
    check("diagnose", s.post("/v1/diagnose", &json!({})));

    let drained = check("drain", s.post("/v1/hosts/drain", &json!({"gpus": ["n2"], "reason": "NIC 4 flaps"}))).json();
    assert_eq!(drained["drained"].as_array().unwrap().len(), 8);
    assert_eq!(check("undrain", s.post("/v1/hosts/undrain", &json!({"gpus": ["n2"]}))).json()["undrained"], 8);

    assert_eq!(check("model", s.get("/v1/models")).json()["kind"], "nccl");
    let file = check("modelFile", s.get("/v1/models/present/file")).text;
    let read = engine::ModelFile::read(&file, &predict::ModelKinds::shipped()).unwrap();
    assert_eq!(predict::BandwidthModel::kind(&read.model), "nccl");
    let task = check("fit", s.post("/v1/models/fit", &json!({"kind": "bound"})));
    let at = task.header("location").to_owned();
    let start = Instant::now();
    let ended = loop {
        let t = check("task", s.get(&at)).json();
        if t["state"] != "waiting" && t["state"] != "running" {
            break t;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{t}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(ended["state"] == "done" || ended["problem"]["code"].is_string(), "{ended}");
    check("cancelTask", s.send("DELETE", &at, &[], b""));
    assert_eq!(check("tasks", s.get("/v1/tasks?limit=5")).json()["tasks"].as_array().unwrap().len(), 1);
    let task = check("diagnoseTask", s.post("/v1/diagnose/task", &json!({})));
    assert_eq!((task.status, task.json()["what"].as_str()), (202, Some("diagnose")), "{}", task.text);
    let again = check("promote", s.post("/v1/models/promote", &json!({"version": 1, "why": "a trial"}))).json();
    assert_eq!((&again["version"], &again["state"]), (&json!(1), &json!("present")));
    if ended["result"]["promoted"] == true {
        let back = check("rollback", s.post("/v1/models/rollback", &json!({"why": "the trial is over"}))).json();
        assert_eq!(back["version"], ended["result"]["version"]);
    } else {
        assert_eq!(s.post("/v1/models/rollback", &json!({"why": "x"})).code(), (404, "unknown_version".into()));
        seen_elsewhere.push("rollback");
    }

    let demand: Vec<Vec<u64>> = (0..32).map(|i| (0..32).map(|j| u64::from(i / 8 != j / 8) << 20).collect()).collect();
    let plan = check("planRoute", s.post("/v1/route/plan", &json!({"demand_bytes": demand}))).json();
    let flows: u64 = plan["flows"].as_array().unwrap().iter().map(|f| f["bytes"].as_u64().unwrap()).sum();
    assert_eq!(flows, (32 * 24) << 20, "every byte has a path");
    assert!(plan["congestion_s"].as_f64() >= plan["lower_bound_s"].as_f64(), "{}", plan["gap"]);
    assert_eq!(s.post("/v1/route/plan", &json!({"demand_bytes": [[0]]})).code().0, 400);
    let nccl =
        check("explainNccl", s.post("/v1/nccl/explain", &json!({"gpus": "n0 n1", "sizes_bytes": [1 << 20]}))).json();
    assert_eq!((&nccl["ranks"], nccl["choices"].as_array().unwrap().len()), (&json!(16), 1));
    for wrong in
        [json!({"gpus": "n9"}), json!({"nccl_version": "x"}), json!({"collective": "y"}), json!({"sizes_bytes": [0]})]
    {
        assert_eq!(s.post("/v1/nccl/explain", &wrong).code().0, 400, "{wrong}");
    }

    let lines = "{\"id\":1,\"gpus\":2}\n\nrubbish\n{\"id\":\"x\",\"gpus\":999}\n{\"gpus\":4,\"id\":3}";
    let stream = s.send("POST", "/v1/place/stream", &[("content-type", "application/x-ndjson")], lines.as_bytes());
    let stream = check("placeStream", stream);
    let answers: Vec<Value> = stream.text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(answers.len(), 4, "{answers:?}");
    assert_eq!((&answers[0]["id"], &answers[0]["split"]), (&json!(1), &json!("2")));
    assert_eq!(answers[1]["code"], "bad_json");
    assert!(answers[2]["id"] == "x" && answers[2]["code"].is_string(), "{}", answers[2]);
    assert_eq!(answers[3]["id"], 3);

    let released = check("release", s.send("DELETE", "/v1/allocations/a", &[("idempotency-key", "d1")], b"")).json();
    assert_eq!(released["released"][0]["job"], "a");
    let again = s.send("DELETE", "/v1/allocations/a", &[("idempotency-key", "d1")], b"").json();
    assert_eq!(again["repeated"], true);
    assert_eq!(s.send("DELETE", "/v1/allocations/a", &[], b"").code(), (404, "unknown_job".into()));

    let events = check("events", s.get("/v1/events?after=0&limit=100")).json();
    let words: Vec<&str> = events["events"].as_array().unwrap().iter().map(|e| e["what"].as_str().unwrap()).collect();
    for word in ["allocate", "renew", "observe", "correct", "withdraw", "diagnose", "drain", "undrain", "release"] {
        assert!(words.contains(&word), "{word} is not in {words:?}");
    }
    let raw = "GET /v1/events/stream?after=0 HTTP/1.0\r\nhost: localhost\r\n\r\n";
    let head = first_part(&s, raw, "event: release");
    assert!(head.contains("text/event-stream") && head.contains("id: 1\n"), "{head}");
    seen.insert("eventStream".into());

    let missing: Vec<_> =
        operations().into_iter().filter(|o| !seen.contains(&o.2) && !seen_elsewhere.contains(&o.2.as_str())).collect();
    assert!(missing.is_empty(), "no request of this test reached {missing:?}");
}

/// Sends a request and reads until a word came.
fn first_part(s: &Server, request: &str, until: &str) -> String {
    use std::io::{Read, Write};
    let mut c = std::net::TcpStream::connect(s.at).unwrap();
    c.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    c.write_all(request.as_bytes()).unwrap();
    let (mut all, mut part) = (String::new(), [0; 4096]);
    while !all.contains(until) {
        let n = c.read(&mut part).unwrap_or_else(|e| panic!("{e} after {all}"));
        assert!(n > 0, "the stream ended with {all}");
        all += &String::from_utf8_lossy(&part[..n]);
    }
    all
}

#[test]
fn the_document_is_the_committed_one_and_its_references_exist() {
    let doc = document();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json");
    let text = serde_json::to_string_pretty(&doc).unwrap() + "\n";
    if std::env::var_os("LINKWISE_OPENAPI").is_some_and(|v| v == "update") {
        std::fs::write(&file, &text).unwrap();
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    let hint = "after an intended change run `LINKWISE_OPENAPI=update cargo test --workspace --test http document`";
    assert!(committed == text, "{} is another document; {hint}", file.display());

    fn references<'a>(v: &'a Value, out: &mut Vec<&'a str>) {
        match v {
            Value::Object(m) => {
                out.extend(m.get("$ref").and_then(Value::as_str));
                m.values().for_each(|v| references(v, out));
            }
            Value::Array(a) => a.iter().for_each(|v| references(v, out)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    references(&doc, &mut found);
    assert!(found.len() > 50, "{} references", found.len());
    for r in found {
        let there = r.strip_prefix('#').and_then(|p| doc.pointer(p));
        assert!(there.is_some(), "{r} does not exist");
    }
    for (name, schema) in doc["components"]["schemas"].as_object().unwrap() {
        assert_ne!(schema["$ref"], format!("#/components/schemas/{name}"), "{name} is described by itself");
    }
    assert!(doc["components"]["schemas"]["Problem"]["properties"]["code"].is_object());
    let s = Server::new(1);
    assert_eq!(s.get("/openapi.json").json(), doc);
}

#[test]
fn an_answer_is_the_engines_own_for_the_same_request() {
    let s = Server::new(3);
    let folder = tempfile::tempdir().unwrap();
    let engine = common::engine(folder.path(), 3);
    for request in [json!({"gpus": 1}), json!({"gpus": 12}), json!({"pods": [4, 4], "constraints": {"hosts_max": 1}})] {
        let request: engine::PlaceRequest = serde_json::from_value(request).unwrap();
        let own = serde_json::to_value(engine.place_request(&request, 0.0).unwrap()).unwrap();
        assert_eq!(s.post("/v1/place", &serde_json::to_value(&request).unwrap()).json(), own);
    }
    let refused: engine::PlaceRequest = serde_json::from_value(json!({"gpus": 25})).unwrap();
    let own = engine.place_request(&refused, 0.0).unwrap_err().form();
    let said = s.post("/v1/place", &json!({"gpus": 25})).json();
    assert_eq!((said["code"].as_str(), said["detail"].as_str()), (Some(own.code.as_str()), Some(own.message.as_str())));
}

#[test]
fn a_lease_that_is_not_renewed_in_time_ends_and_its_gpus_are_free() {
    let s = Server::new(1);
    s.post("/v1/allocations", &json!({"gpus": 4, "commit": "short", "lease_s": 1}));
    s.post("/v1/allocations", &json!({"gpus": 2, "commit": "long", "lease_s": 3600}));
    s.post("/v1/allocations", &json!({"gpus": 1, "commit": "none"}));
    let start = Instant::now();
    while s.get("/v1/allocations/short").status == 200 {
        assert!(start.elapsed() < Duration::from_secs(30), "the lease does not end");
        std::thread::sleep(Duration::from_millis(50));
    }
    let jobs = s.get("/v1/allocations").json();
    let ids: Vec<&str> = jobs["jobs"].as_array().unwrap().iter().map(|j| j["id"].as_str().unwrap()).collect();
    assert_eq!((ids, &jobs["free"]), (vec!["long", "none"], &json!(5)));
    let last = s.get("/v1/events").json()["events"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&last["what"], &last["subject"], &last["who"]), (&json!("expire"), &json!("short"), &json!("server")));
    let bad = s.post("/v1/allocations", &json!({"gpus": 1, "commit": "x", "lease_s": 0.01}));
    assert_eq!(bad.status, 400, "{bad:?}");
}

#[test]
fn a_restart_gives_every_lease_its_length_again_and_keeps_every_job() {
    let s = Server::new(1);
    s.post("/v1/allocations", &json!({"gpus": 4, "commit": "a", "lease_s": 600}));
    let before = s.get("/v1/allocations/a").json();
    let folder = s.stop();
    std::thread::sleep(Duration::from_millis(300));
    let engine = common::engine(folder.path(), 1);
    let s = Server::of(folder, engine, |c| c);
    let after = s.get("/v1/allocations/a").json();
    assert_eq!(after["gpus"], before["gpus"]);
    assert!(after["lease_until_unix_s"].as_f64() > before["lease_until_unix_s"].as_f64(), "{after}");
}

#[test]
fn a_stream_of_events_goes_on_after_the_last_number_seen() {
    let s = Server::new(1);
    for i in 0..3 {
        assert_eq!(s.post("/v1/allocations", &json!({"gpus": 1, "commit": format!("j{i}")})).status, 201);
    }
    let raw = "GET /v1/events/stream HTTP/1.1\r\nhost: localhost\r\nlast-event-id: 2\r\n\r\n";
    let part = first_part(&s, raw, "\"j2\"");
    assert!(!part.contains("\"j1\"") && part.contains("id: 3\nevent: allocate\n"), "{part}");
    // A stream that is open sees a change of another process.
    let (at, path) = (s.at, s.folder.path().join("s.db"));
    let stream = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let mut c = std::net::TcpStream::connect(at).unwrap();
        c.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        c.write_all(b"GET /v1/events/stream HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let (mut all, mut part, mut changed) = (String::new(), [0; 4096], false);
        while !all.contains("event: release") {
            let n = c.read(&mut part).unwrap();
            all += &String::from_utf8_lossy(&part[..n]);
            if all.contains("events follow") && !changed {
                changed = true;
                store::State::open(&path).unwrap().release(&["j0".to_owned()]).unwrap();
            }
        }
        all
    });
    let all = stream.join().unwrap();
    assert!(all.contains("\"who\":\"command\"") && !all.contains("allocate"), "{all}");
}

#[test]
fn every_metric_of_the_dashboard_and_of_the_rules_is_there() {
    let s = Server::new(2);
    s.post("/v1/allocations", &json!({"gpus": 4, "commit": "j"}));
    s.post("/v1/readings", &json!({"job": "j", "readings": [{"collective": "all_reduce", "busbw_gb_per_s": 200}]}));
    let known = s.get("/metrics").text;
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integrations/prometheus");
    let mut missing = std::collections::BTreeSet::new();
    for file in ["dashboard.json", "rules.yml"] {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        for rest in text.split("linkwise_").skip(1) {
            let name: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            let name =
                ["_total", "_bucket", "_sum", "_count"].iter().find_map(|e| name.strip_suffix(e)).unwrap_or(&name);
            // Those of the plugin come with its status files, those with a colon are recorded by the rules themselves.
            let has = known.contains(&format!("# HELP linkwise_{name} "))
                || known.contains(&format!("# HELP linkwise_{name}_"));
            // Nothing has failed, nothing is suspected, and the GPUs have no UUID.
            let none = ["failures", "suspect_probability", "gpu_info"].contains(&name);
            if !has && !none && !name.starts_with("plugin") && !rest[name.len()..].starts_with(':') {
                missing.insert(name.to_owned());
            }
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
    for name in ["observed_error_deviations", "decision_retries", "state_lock_wait_seconds", "state_reachable"] {
        assert!(known.contains(&format!("# HELP linkwise_{name} ")), "{name}: {known}");
    }
}

#[test]
fn metrics_count_decisions_and_show_the_gpus_of_jobs() {
    let s = Server::new(2);
    s.post("/v1/allocations", &json!({"gpus": 4, "commit": "a"}));
    s.post("/v1/place", &json!({"gpus": 99}));
    let said = s.get("/metrics");
    assert!(said.header("content-type").starts_with("application/openmetrics-text"));
    let has = |line: &str| assert!(said.text.lines().any(|l| l.starts_with(line)), "{line} is not in\n{}", said.text);
    has("linkwise_gpus{state=\"free\"} 12");
    has("linkwise_gpus{state=\"held\"} 4");
    has("linkwise_decisions_total{outcome=\"placed\"} 1");
    has("linkwise_jobs 1");
    has("linkwise_requests_total{route=\"/v1/allocations\",method=\"POST\",status=\"201\"} 1");
    assert_eq!(said.text.matches("linkwise_gpu_info{").count(), 4, "{}", said.text);
    assert!(said.text.ends_with("# EOF\n") && said.text.matches("# EOF").count() == 1);
    for line in said.text.lines().filter(|l| !l.starts_with('#')) {
        let value = line.rsplit(' ').next().unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
}

#[test]
fn pages_need_no_script_and_show_the_state_with_everything_escaped() {
    let s = Server::new(3);
    s.post("/v1/allocations", &json!({"gpus": 4, "commit": "train-7"}));
    s.post("/v1/hosts/drain", &json!({"gpus": ["n2:3"], "reason": "<script>alert(1)</script>"}));
    for path in
        ["/", "/what-if", "/what-if?gpus=8", "/what-if?gpus=99", "/suspects", "/jobs/train-7", "/jobs/none", "/login"]
    {
        let said = s.get(path);
        assert!(said.header("content-type").starts_with("text/html"), "{path}: {said:?}");
        let csp = said.header("content-security-policy");
        assert!(csp.starts_with("default-src 'none'") && !csp.contains("unsafe"), "{path}: {csp}");
        // Under `no-referrer` Chromium sends `Origin: null` with the form of the page, and signing in is refused.
        assert_eq!(said.header("referrer-policy"), "same-origin", "{path}");
        for word in ["<script", "http://", "https://", "style=", "javascript:"] {
            assert!(!said.text.contains(word), "{path} has {word}: {}", said.text);
        }
    }
    let map = s.get("/");
    let plain = map.text.replace("&#x2f;", "/");
    assert_eq!(plain.matches("href=\"/jobs/train-7\" title").count(), 4, "{plain}");
    assert!(map.text.contains("&lt;script&gt;"), "{}", map.text);
    let what_if = s.get("/what-if?gpus=8&per_host=&hosts_max=&exclude=n0");
    let answer = s.post("/v1/place", &json!({"gpus": 8, "constraints": {"excluded_hosts": ["n0"]}})).json();
    let busbw = format!("{:.1} GB", answer["predicted_busbw_gb_per_s"].as_f64().unwrap());
    assert!(what_if.text.contains(&busbw), "{busbw} is not in {}", what_if.text);
    assert_eq!(what_if.text.matches("class=\"g f chosen\"").count(), 8);
    assert_eq!(s.get("/what-if?gpus=99").status, 409);
    assert_eq!(s.get("/jobs/none").status, 404);
    assert!(s.get("/cluster.svg").text.starts_with("<svg") && s.get("/style.css").status == 200);
}

#[test]
fn the_page_of_a_job_keeps_what_the_choice_was_compared_with_over_a_restart() {
    let s = Server::new(4);
    let asked = json!({"gpus": 12, "commit": "a/b", "constraints": {"excluded_hosts": ["n3"]}});
    let answer = s.post("/v1/allocations", &asked).json();
    s.post("/v1/readings", &json!({"job": "a/b", "readings": [{"collective": "all_reduce", "busbw_gb_per_s": 41.5}]}));
    let packed = format!("{:.1}", answer["packed"]["predicted_busbw_gb_per_s"].as_f64().unwrap());
    let page = s.get("/jobs/a%2Fb").text;
    for word in ["<th scope=\"row\">packing</th>", &packed, "excluded hosts n3", "41.5", "<svg class=\"links\""] {
        assert!(page.contains(word), "{word} is not in {page}");
    }
    let folder = s.stop();
    let engine = common::engine(folder.path(), 4);
    let s = Server::of(folder, engine, |c| c);
    let page = s.get("/jobs/a%2Fb").text;
    assert!(page.contains("<th scope=\"row\">packing</th>") && page.contains(&packed), "{page}");
    assert!(!page.contains("excluded hosts"), "constraints are not kept: {page}");
}

#[test]
fn the_page_says_which_version_of_the_model_is_in_use_and_why_others_are_not() {
    let s = Server::new(3);
    for (a, b) in [(0, 1), (1, 2), (0, 2)] {
        for n in 0..4 {
            let reading = json!({ "job": format!("pair-{a}-{b}-{n}"), "gpus": [format!("n{a}"), format!("n{b}")],
                "readings": [{"collective": "all_reduce", "busbw_gb_per_s": 300.0 + f64::from(7 * n + a)}]});
            assert_eq!(s.post("/v1/readings", &reading).status, 201);
        }
    }
    for kind in ["bound", "gp"] {
        let at = s.post("/v1/models/fit", &json!({"kind": kind})).header("location").to_owned();
        let start = Instant::now();
        while ["waiting", "running"].contains(&s.get(&at).json()["state"].as_str().unwrap()) {
            assert!(start.elapsed() < Duration::from_secs(120));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let versions = s.get("/v1/models").json()["versions"].clone();
    let page = s.get("/history").text.replace("&#x2f;", "/").replace("&#x27;", "'");
    let versions = versions.as_array().unwrap();
    assert_eq!(versions.len(), 3, "{versions:?}");
    let table = page.split_once("aria-label=\"Versions of the model\"").expect("a table").1;
    for v in versions {
        let word = match v["state"].as_str().unwrap() {
            "present" => "in use",
            other => other,
        };
        let row = table
            .split("<tr>")
            .find(|r| r.starts_with(&format!("<th scope=\"row\" class=\"n\">{}</th>", v["version"])));
        let row = row.unwrap_or_else(|| panic!("version {} is not in {table}", v["version"]));
        assert!(row.contains(&format!("<td>{word}</td>")) && row.contains(v["why"].as_str().unwrap()), "{v}: {row}");
    }
    assert_eq!(table.matches("<td>in use</td>").count(), 1);
}

#[test]
fn a_search_leads_to_the_page_of_a_job_or_of_a_hosts_switch() {
    let mut cluster = common::cluster(64);
    cluster.network.tiers = vec![topology::Tier::regular("leaf", 8, 2.0)];
    let folder = tempfile::tempdir().unwrap();
    let state = store::State::init(&folder.path().join("s.db"), &cluster, 0.0).unwrap();
    let s = Server::of(folder, engine::Engine::builder(cluster).state(state).build().unwrap(), |c| c);
    s.send("PUT", "/v1/allocations/a%2Fb", &[("content-type", "application/json")], br#"{"gpus":["n9:0","n63:7"]}"#);
    let job = s.get("/find?q=a/b");
    assert_eq!((job.status, job.header("location")), (303, "/jobs/a%2Fb"));
    let host = s.get("/find?q=n9");
    assert_eq!((host.status, host.header("location")), (303, "/hosts?tier=0&switch=1&host=n9"));
    let part = s.get(host.header("location")).text;
    assert!(part.contains("row found\"><span class=\"host\" title=\"n9,"), "{part}");
    assert_eq!(part.matches("<li class=\"row").count(), 8);
    assert!(s.get("/find?q=unknown").status == 404 && s.get("/hosts?tier=1&switch=0").status == 404);
    assert!(s.get("/hosts?tier=0&switch=8").status == 404 && s.get("/hosts?from=64").status == 404);
    let map = s.get("/").text;
    assert_eq!(map.matches("class=\"card\"").count(), 8, "a card per leaf: {map}");
    assert!(map.replace("&#x2f;", "/").contains("up 1600 GB/s"), "8 hosts of 400 GB/s at 2:1: {map}");
}

#[test]
fn a_server_that_stops_answers_the_requests_that_run() {
    let s = Server::new(8);
    let first = s.post("/v1/allocations", &json!({"gpus": 1, "commit": "first"}));
    assert_eq!(first.status, 201, "{first:?}");
    let clients: Vec<_> = (0..8)
        .map(|i| {
            use std::io::Write;
            let body = format!("{{\"gpus\":5,\"commit\":\"j{i}\"}}");
            let mut c = std::net::TcpStream::connect(s.at).unwrap();
            c.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let head = "POST /v1/allocations HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json";
            let text = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            c.write_all(text.as_bytes()).unwrap();
            std::thread::spawn(move || common::read_all(&mut c))
        })
        .collect();
    // Some are answered, some run, and some are not read yet.
    let start = Instant::now();
    while s.get("/v1/allocations").json()["jobs"].as_array().unwrap().len() < 3 {
        assert!(start.elapsed() < Duration::from_secs(60), "no job gets GPUs");
    }
    let folder = s.stop();
    let granted = clients.into_iter().map(|c| c.join().unwrap()).filter(|t| t.starts_with("HTTP/1.1 201")).count();
    let state = store::State::open(&folder.path().join("s.db")).unwrap();
    assert_eq!(state.snapshot().unwrap().jobs.len(), 1 + granted, "every job that holds GPUs was answered");
}
