//! Messages name the fields of requests, not the flags of the command.

mod common;

use common::Server;
use serde_json::{Value, json};
use std::collections::BTreeSet;

#[test]
fn no_problem_names_a_flag_of_the_command() {
    let s = Server::new(2);
    let mut codes = BTreeSet::new();
    let mut check = |method: &str, path: &str, body: Value| {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let kind = [("content-type", "application/json")];
        let said = s.send(method, path, if body.is_empty() { &[] } else { &kind }, body.as_bytes());
        let flag = said
            .text
            .match_indices("--")
            .find(|(i, _)| said.text[i + 2..].starts_with(|c: char| c.is_ascii_lowercase()));
        assert_eq!(flag, None, "{method} {path} {body}: {}", said.text);
        if said.status >= 400 {
            codes.insert(said.json()["code"].as_str().unwrap_or_else(|| panic!("{}", said.text)).to_owned());
        }
    };
    assert_eq!(s.post("/v1/allocations", &json!({"gpus": 8, "commit": "a"})).status, 201);
    assert_eq!(s.post("/v1/hosts/drain", &json!({"gpus": ["n1:7"], "reason": "x"})).status, 200);
    let place = |change: Value| {
        let mut body = json!({"gpus": 4});
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        body
    };
    for change in [
        json!({"gpus": 0}),
        json!({"gpus": 99}),
        json!({"gpus": "x"}),
        json!({"search": "x"}),
        json!({"free": ["n9"]}),
        json!({"free": ["n0:0", "n0:0"]}),
        json!({"free": []}),
        json!({"free": ["n0:77"]}),
        json!({"loss_weight": -1}),
        json!({"jobs": [{"id": "b", "gpus": ["n0:0"]}, {"id": "b", "gpus": ["n0:1"]}]}),
        json!({"jobs": [{"id": "b", "gpus": []}]}),
        json!({"jobs": [{"id": "b", "gpus": ["n0:0"]}, {"id": "c", "gpus": ["n0:0"]}]}),
        json!({"constraints": {"hosts_max": 0}}),
        json!({"constraints": {"require_level": "x"}}),
        json!({"constraints": {"x": 1}}),
        json!({"constraints": {"exclude": ["n9"]}}),
        json!({"constraints": {"hosts_max": 1, "hosts_min": 2}}),
        json!({"search": "random", "constraints": {"hosts_max": 1}}),
        json!({"search": "packed", "pods": [2, 2]}),
        json!({"size_bytes": 0}),
        json!({"size": "x"}),
        json!({"groups": [{"kind": "x", "size": 3}]}),
        json!({"pods": [1]}),
        json!({"host_types": ["x"]}),
        json!({"key": "a b"}),
        json!({"collective": "x"}),
    ] {
        check("POST", "/v1/place", place(change.clone()));
        let mut commit = place(change);
        commit["commit"] = json!("b");
        check("POST", "/v1/allocations", commit);
    }
    for (method, path, body) in [
        ("POST", "/v1/allocations", json!({"gpus": 1, "commit": "a"})),
        ("PUT", "/v1/allocations/b", json!({"gpus": ["n0:0"]})),
        ("PUT", "/v1/allocations/b", json!({"gpus": ["n1:7"]})),
        ("PUT", "/v1/allocations/b", json!({"gpus": []})),
        ("PUT", "/v1/allocations/b", json!({"gpus": ["n7"]})),
        ("PUT", "/v1/allocations/b", json!({"gpus": ["n1:0"], "lease_s": -1})),
        ("DELETE", "/v1/allocations/none", Value::Null),
        ("GET", "/v1/allocations/none", Value::Null),
        ("POST", "/v1/allocations/none/renew", Value::Null),
        ("POST", "/v1/allocations/a/renew", Value::Null),
        ("POST", "/v1/explain", json!({"gpus": ["n0:0"]})),
        ("POST", "/v1/explain", json!({"gpus": []})),
        (
            "POST",
            "/v1/readings",
            json!({"job": "none", "readings": [{"collective": "all_reduce", "busbw_gb_per_s": 3}]}),
        ),
        (
            "POST",
            "/v1/readings",
            json!({"job": "a", "readings": [{"collective": "all_reduce", "busbw_gb_per_s": 9e5}]}),
        ),
        ("POST", "/v1/readings", json!({"job": "a", "readings": [{"collective": "all_reduce", "busbw_gb_per_s": -1}]})),
        ("POST", "/v1/readings", json!({"job": "a", "readings": []})),
        (
            "POST",
            "/v1/readings",
            json!({"job": "x", "gpus": ["n0:0"], "readings": [{"collective": "all_reduce", "busbw_gb_per_s": 3}]}),
        ),
        (
            "POST",
            "/v1/readings",
            json!({"job": "x", "gpus": [], "readings": [{"collective": "all_reduce", "busbw_gb_per_s": 3}]}),
        ),
        ("POST", "/v1/readings/77/correct", json!({"busbw_gb_per_s": 3, "why": "x"})),
        ("POST", "/v1/readings/77/withdraw", json!({"why": "x"})),
        ("POST", "/v1/hosts/drain", json!({"gpus": ["n9"]})),
        ("POST", "/v1/hosts/drain", json!({"gpus": []})),
        ("POST", "/v1/hosts/undrain", json!({"gpus": ["n9"]})),
        ("POST", "/v1/diagnose", json!({"collective": "broadcast"})),
        ("POST", "/v1/route/plan", json!({})),
        ("POST", "/v1/route/plan", json!({"planner": "x"})),
        ("POST", "/v1/nccl/explain", json!({"gpus": ["n9"]})),
        ("POST", "/v1/nccl/explain", json!({"gpus": ["n0:0"]})),
        ("POST", "/v1/models/fit", json!({"kind": "x"})),
        ("POST", "/v1/models/fit", json!({"kind": "transformer"})),
        ("POST", "/v1/models/promote", json!({"version": 77, "why": "x"})),
        ("POST", "/v1/models/rollback", json!({"why": "x"})),
    ] {
        check(method, path, body);
    }
    for code in
        ["unknown_job", "gpu_held", "gpu_drained", "job_exists", "impossible_reading", "no_gpus", "unknown_reading"]
    {
        assert!(codes.contains(code), "`{code}` was not provoked: {codes:?}");
    }
    assert!(codes.len() >= 20, "{codes:?}");
    // The tasks' own messages.
    let tasks = s.get("/v1/tasks").text;
    assert!(!tasks.contains("--"), "{tasks}");
}
