use super::*;
use crate::gang::Owner;
use crate::names::{GANG, GANG_SIZE, RESERVED_GROUP, RESERVED_RESOURCE};
use crate::room::candidates;
use k8s_openapi::api::resource::v1::ResourceSlice;
use serde_json::{Value, json};

const JOB_A: &str = "k8s:a:g:1";

fn of<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// Two nodes of four GPUs.
fn world() -> World {
    let mut world = World::default();
    for node in ["n0", "n1"] {
        let devices: Vec<Value> = (0..4)
            .map(|g| json!({"name": format!("gpu-{g}"), "attributes": {"uuid": {"string": format!("GPU-{node}-{g}")}}}))
            .collect();
        world.slices.put(of::<ResourceSlice>(json!({"metadata": {"name": node, "resourceVersion": "1"}, "spec": {
            "driver": "gpu.nvidia.com", "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}})));
    }
    world
}

fn claim(world: &mut World, name: &str, allocated: Option<(&str, &[&str])>, kept: bool) {
    let mut claim = json!({"metadata": {"name": name, "namespace": "a", "uid": name, "resourceVersion": "1"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}]}}});
    if let Some((job, devices)) = allocated {
        claim["metadata"]["annotations"] = json!({JOB: job});
        let results: Vec<Value> = devices
            .iter()
            .map(|d| json!({"request": "gpu", "driver": "gpu.nvidia.com", "pool": "n0", "device": d}))
            .collect();
        claim["status"] = json!({"allocation": {"devices": {"results": results}}});
        if kept {
            claim["status"]["reservedFor"] =
                json!([{"apiGroup": RESERVED_GROUP, "resource": RESERVED_RESOURCE, "name": "x", "uid": name}]);
        }
    }
    world.claims.put(of::<ResourceClaim>(claim));
}

fn pod(world: &mut World, name: &str, change: impl FnOnce(&mut Value)) {
    let mut pod = json!({"metadata": {"name": name, "namespace": "a", "uid": name, "resourceVersion": "1",
            "labels": {GANG: "g", GANG_SIZE: "2"}, "annotations": {}},
        "spec": {"containers": [], "schedulingGates": [{"name": GATE}],
            "resourceClaims": [{"name": "gpus", "resourceClaimName": name}]}});
    change(&mut pod);
    world.pods.put(of::<Pod>(pod));
}

fn released(pod: &mut Value) {
    pod["spec"]["schedulingGates"] = json!([]);
    pod["metadata"]["annotations"] = json!({JOB: JOB_A, RELEASED: "2026-01-01T00:00:00Z"});
}

fn planned(world: &World, now: &str) -> Plan {
    plan(world, &Settings::of("http://localhost"), now.parse().unwrap(), Instant::now())
}

const SOON: &str = "2026-01-01T00:00:10Z";
const LATE: &str = "2026-01-01T01:00:00Z";

fn id(name: &str) -> Id {
    ("a".into(), name.into())
}

#[test]
fn an_incomplete_gang_waits_and_a_complete_one_is_placed_whole() {
    let mut w = world();
    claim(&mut w, "p0", None, false);
    pod(&mut w, "p0", |_| {});
    let p = planned(&w, SOON);
    assert_eq!(p.waiting[0].message, "1 of 2 pods exist");
    pod(&mut w, "p1", |_| {});
    assert_eq!(planned(&w, SOON).waiting[0].message, "waits for the claim p1 of pod p1");
    claim(&mut w, "p1", None, false);
    let p = planned(&w, SOON);
    assert!(p.steps.is_empty() && p.waiting.is_empty());
    assert_eq!(p.wanted[0].pods.iter().map(|w| w.gpus).collect::<Vec<_>>(), [2, 2]);
}

#[test]
fn half_an_allocation_is_taken_back_and_a_whole_one_is_released() {
    let mut w = world();
    for p in ["p0", "p1"] {
        pod(&mut w, p, |_| {});
    }
    claim(&mut w, "p0", Some((JOB_A, &["gpu-0", "gpu-1"])), true);
    claim(&mut w, "p1", None, false);
    let p = planned(&w, SOON);
    assert!(matches!(&p.steps[..], [Step::Undo { claims, .. }] if *claims == [id("p0")]), "{:?}", p.steps);
    assert!(p.wanted.is_empty());
    claim(&mut w, "p1", Some((JOB_A, &["gpu-2", "gpu-3"])), true);
    let p = planned(&w, SOON);
    let on = Some("n0".to_owned());
    assert!(
        matches!(&p.steps[..], [Step::Release { job: Some(j), pods, .. }]
        if j == JOB_A && *pods == [(id("p0"), on.clone()), (id("p1"), on)]),
        "{:?}",
        p.steps
    );
}

#[test]
fn allocations_of_two_decisions_wrong_counts_and_doubles_are_taken_back() {
    for (job, devices) in [
        ("k8s:a:g:2", &["gpu-2", "gpu-3"][..]),
        (JOB_A, &["gpu-2"]),
        (JOB_A, &["gpu-1", "gpu-2"]),
        (JOB_A, &["gpu-2", "gpu-9"]),
    ] {
        let mut w = world();
        for p in ["p0", "p1"] {
            pod(&mut w, p, |_| {});
        }
        claim(&mut w, "p0", Some((JOB_A, &["gpu-0", "gpu-1"])), true);
        claim(&mut w, "p1", Some((job, devices)), true);
        let p = planned(&w, SOON);
        assert!(
            matches!(&p.steps[..], [Step::Undo { claims, .. }] if claims.len() == 2),
            "{job} {devices:?}: {:?}",
            p.steps
        );
    }
}

#[test]
fn a_decision_of_which_a_pod_was_released_goes_on_and_a_replaced_pod_is_placed_by_itself() {
    let mut w = world();
    claim(&mut w, "p0", Some((JOB_A, &["gpu-0", "gpu-1"])), true);
    claim(&mut w, "p1", Some((JOB_A, &["gpu-2", "gpu-3"])), true);
    pod(&mut w, "p0", released);
    pod(&mut w, "p1", |_| {});
    let p = planned(&w, SOON);
    assert!(
        matches!(&p.steps[..], [Step::Release { pods, .. }] if pods.len() == 1 && pods[0].0 == id("p1")),
        "{:?}",
        p.steps
    );
    // The same, but p1 was replaced by a pod with a new claim.
    claim(&mut w, "p2", None, false);
    pod(&mut w, "p1", released);
    pod(&mut w, "p2", |_| {});
    w.pods.remove(&id("p1"));
    let p = planned(&w, SOON);
    assert_eq!(p.wanted.len(), 1, "{p:?}");
    assert_eq!(p.wanted[0].pods[0].pod, id("p2"));
    assert!(p.steps.contains(&Step::Free(id("p1"))), "{:?}", p.steps);
}

#[test]
fn a_gang_that_is_not_bound_in_time_starts_again_or_says_so() {
    let mut w = world();
    claim(&mut w, "p0", Some((JOB_A, &["gpu-0", "gpu-1"])), true);
    claim(&mut w, "p1", Some((JOB_A, &["gpu-2", "gpu-3"])), true);
    let bound = |p: &mut Value| {
        released(p);
        p["spec"]["nodeName"] = json!("n0");
    };
    pod(&mut w, "p0", bound);
    pod(&mut w, "p1", released);
    assert!(planned(&w, SOON).steps.is_empty());
    let p = planned(&w, LATE);
    assert!(
        matches!(&p.steps[..], [Step::Restart { pods, nodes, .. }] if pods.len() == 2 && nodes.contains("n0")),
        "{:?}",
        p.steps
    );
    pod(&mut w, "p1", |p| {
        released(p);
        p["metadata"]["annotations"][ON_DEADLINE] = json!("wait");
    });
    let p = planned(&w, LATE);
    assert!(p.steps.is_empty() && p.waiting[0].message.starts_with("1 of 2 pods are not bound"), "{p:?}");
    for p in ["p0", "p1"] {
        pod(&mut w, p, bound);
    }
    assert!(planned(&w, LATE).steps.is_empty());
}

#[test]
fn entries_are_let_go_when_pods_are_bound_and_allocations_without_pods_are_freed() {
    let mut w = world();
    claim(&mut w, "p0", Some((JOB_A, &["gpu-0", "gpu-1"])), true);
    pod(&mut w, "p0", released);
    assert!(planned(&w, SOON).steps.is_empty()); // not bound
    let mut used = serde_json::to_value(w.claims.get(&id("p0")).unwrap()).unwrap();
    used["status"]["reservedFor"].as_array_mut().unwrap().push(json!({"resource": "pods", "name": "p0", "uid": "u"}));
    w.claims.put(of::<ResourceClaim>(used));
    pod(&mut w, "p0", |p| {
        released(p);
        p["spec"]["nodeName"] = json!("n0");
    });
    assert_eq!(planned(&w, SOON).steps, [Step::LetGo(id("p0"))]);
    w.pods.remove(&id("p0"));
    assert_eq!(planned(&w, SOON).steps, [Step::LetGo(id("p0"))]);
    claim(&mut w, "p0", Some((JOB_A, &["gpu-0", "gpu-1"])), true);
    assert_eq!(planned(&w, SOON).steps, [Step::Free(id("p0"))]);
}

#[test]
fn more_urgent_and_older_gangs_come_first() {
    let mut w = world();
    for (i, (name, priority, at)) in [
        ("late", 0, "2026-01-01T00:00:02Z"),
        ("early", 0, "2026-01-01T00:00:01Z"),
        ("urgent", 5, "2026-01-01T00:00:03Z"),
    ]
    .into_iter()
    .enumerate()
    {
        let pod_name = format!("p{i}");
        claim(&mut w, &pod_name, None, false);
        pod(&mut w, &pod_name, |p| {
            p["metadata"]["labels"] = json!({GANG: name, GANG_SIZE: "1"});
            p["metadata"]["creationTimestamp"] = json!(at);
            p["spec"]["priority"] = json!(priority);
        });
    }
    let order: Vec<String> = planned(&w, SOON).wanted.into_iter().map(|w| w.gang.name).collect();
    assert_eq!(order, ["urgent", "early", "late"]);
}

#[test]
fn a_rule_that_taints_a_device_takes_it_out() {
    let mut w = world();
    let rule = |effect: &str| {
        json!({"apiVersion": "resource.k8s.io/v1beta2", "kind": "DeviceTaintRule", "metadata": {"name": "r", "resourceVersion": "1"},
            "spec": {"deviceSelector": {"driver": "gpu.nvidia.com", "pool": "n0", "device": "gpu-1"},
                "taint": {"key": "linkwise.dev/suspected", "effect": effect}}})
    };
    w.rules.put(of(rule("None")));
    assert!(planned(&w, SOON).inventory.devices().all(|d| d.out.is_none()));
    w.rules.put(of(rule("NoSchedule")));
    let plan = planned(&w, SOON);
    let out: Vec<&str> = plan.inventory.devices().filter(|d| d.out.is_some()).map(|d| d.uuid.as_str()).collect();
    assert_eq!(out, ["GPU-n0-1"]);
}

/// The pods of a gang whose size its owner tells.
fn sized(world: &mut World, owner: Owner, pods: Pods) {
    world.sizes.insert((owner, id("o")), crate::world::Told { size: Ok(pods), at: Instant::now() });
}

/// A gated pod of a Job, a JobSet, ... with a claim.
fn owned(world: &mut World, name: &str, metadata: &Value, phase: &str) {
    claim(world, name, None, false);
    pod(world, name, |p| {
        p["metadata"]["labels"] = metadata["labels"].clone();
        p["metadata"]["ownerReferences"] = metadata["ownerReferences"].clone();
        if !phase.is_empty() {
            p["spec"]["schedulingGates"] = json!([]);
            p["spec"]["nodeName"] = json!("n0");
            p["status"] = json!({"phase": phase});
        }
    });
}

fn waits(world: &World) -> Vec<String> {
    planned(world, SOON).waiting.into_iter().map(|w| w.message).collect()
}

#[test]
fn pods_of_earlier_waves_and_tries_do_not_count() {
    let job = json!({"ownerReferences": [{"kind": "Job", "apiVersion": "batch/v1", "name": "o", "uid": "u", "controller": true}]});
    let set = json!({"labels": {"jobset.sigs.k8s.io/jobset-name": "o"}});
    for (owner, metadata, phase) in
        [(Owner::Job, &job, "Succeeded"), (Owner::Job, &job, "Failed"), (Owner::JobSet, &set, "Failed")]
    {
        let mut w = world();
        sized(&mut w, owner, Pods { at_once: 2, in_all: (owner == Owner::JobSet).then_some(2), launcher: false });
        for ended in ["p0", "p1"] {
            owned(&mut w, ended, metadata, phase);
        }
        owned(&mut w, "p2", metadata, "");
        assert!(planned(&w, SOON).wanted.is_empty(), "{owner:?} {phase}");
        let ended = if phase == "Succeeded" { "; 2 have succeeded" } else { "" };
        assert_eq!(waits(&w), [format!("1 of 2 pods exist{ended}")]);
        owned(&mut w, "p3", metadata, "");
        let p = planned(&w, SOON);
        assert_eq!(p.wanted[0].pods.len(), 2, "{p:?}");
    }
    // A JobSet replaces no pod that has succeeded: the retry of the other one is complete by itself.
    let mut w = world();
    sized(&mut w, Owner::JobSet, Pods { at_once: 2, in_all: Some(2), launcher: false });
    owned(&mut w, "p0", &set, "Succeeded");
    owned(&mut w, "p1", &set, "Failed");
    owned(&mut w, "p2", &set, "");
    assert_eq!(planned(&w, SOON).wanted.len(), 1);
}

#[test]
fn a_launcher_is_no_worker() {
    let role = |role: &str| {
        json!({"labels": {"training.kubeflow.org/job-name": "o", "training.kubeflow.org/job-role": role},
        "ownerReferences": [{"kind": "MPIJob", "apiVersion": "kubeflow.org/v2beta1", "name": "o", "uid": "u", "controller": true}]})
    };
    let mut w = world();
    sized(&mut w, Owner::Kubeflow("MPIJob"), Pods { at_once: 2, in_all: None, launcher: false });
    // One with GPUs, and one without, which is released when it comes.
    owned(&mut w, "launcher", &role("launcher"), "");
    pod(&mut w, "plain", |p| {
        p["metadata"]["labels"] = role("launcher")["labels"].clone();
        p["spec"]["resourceClaims"] = json!(null);
    });
    owned(&mut w, "w0", &role("worker"), "");
    let p = planned(&w, SOON);
    assert!(p.wanted.is_empty(), "{p:?}");
    assert_eq!(p.waiting[0].message, "1 of 2 pods exist");
    assert!(
        matches!(&p.steps[..], [Step::Release { job: None, pods, .. }] if pods[0].0 == id("plain")),
        "{:?}",
        p.steps
    );
    owned(&mut w, "w1", &role("worker"), "");
    assert_eq!(planned(&w, SOON).wanted[0].pods.len(), 3);
    // The launcher is a worker: all three are awaited.
    w.pods.remove(&id("w1"));
    sized(&mut w, Owner::Kubeflow("MPIJob"), Pods { at_once: 3, in_all: None, launcher: true });
    assert_eq!(waits(&w), ["2 of 3 pods exist"]);
}

#[test]
fn only_named_namespaces_are_placed_and_what_is_kept_elsewhere_is_an_alarm() {
    let mut w = world();
    claim(&mut w, "p0", None, false);
    pod(&mut w, "p0", |p| p["metadata"]["labels"] = json!({GANG: "g", GANG_SIZE: "1"}));
    claim(&mut w, "kept", Some((JOB_A, &["gpu-0", "gpu-1"])), true);
    let only = |namespaces: &[&str]| {
        let in_namespace = namespaces.iter().map(|n| (*n).to_owned()).collect();
        let settings = Settings { in_namespace, ..Settings::of("http://localhost") };
        plan(&w, &settings, SOON.parse().unwrap(), Instant::now())
    };
    for all in [&[][..], &["a", "b"]] {
        let p = only(all);
        assert_eq!((p.wanted.len(), &p.steps[..]), (1, &[Step::Free(id("kept"))][..]), "{p:?}");
    }
    for other in ["b", ""] {
        let p = only(&[other]);
        assert!(p.wanted.is_empty() && p.steps.is_empty() && p.waiting.is_empty(), "{p:?}");
        assert!(p.alarms[0].starts_with("claim a/kept keeps its GPUs"), "{p:?}");
        // Its GPUs are not free.
        assert_eq!(p.jobs.len(), 1);
    }
}

#[test]
fn a_kept_claim_whose_job_was_changed_is_foreign() {
    let mut w = world();
    claim(&mut w, "p0", Some(("a b", &["gpu-0", "gpu-1"])), true);
    pod(&mut w, "p0", |p| p["metadata"]["labels"] = json!({GANG: "g", GANG_SIZE: "1"}));
    let p = planned(&w, SOON);
    assert!(p.jobs.is_empty() && p.wanted.is_empty() && p.steps.is_empty(), "{p:?}");
    assert!(p.waiting[0].message.contains("by another program"), "{p:?}");
}

#[test]
fn a_rule_whose_selector_is_not_read_is_an_alarm_and_takes_nothing_out() {
    for (selector, n, alarms) in [
        (json!({"deviceClassName": "gpu.nvidia.com"}), 0, 1),
        (json!({"selectors": [{"cel": {"expression": "true"}}]}), 0, 1),
        (json!({"driver": "gpu.nvidia.com", "pool": "n1", "selectors": null}), 4, 0),
        (json!({}), 8, 0),
        (json!(null), 0, 0),
    ] {
        let mut w = world();
        w.rules.put(of(json!({"apiVersion": "resource.k8s.io/v1alpha3", "kind": "DeviceTaintRule",
            "metadata": {"name": "r", "resourceVersion": "1"},
            "spec": {"deviceSelector": selector, "taint": {"key": "k", "effect": "NoSchedule"}}})));
        let p = planned(&w, SOON);
        assert_eq!(p.inventory.devices().filter(|d| d.out.is_some()).count(), n, "{selector}");
        assert_eq!(p.alarms.len(), alarms, "{:?}", p.alarms);
    }
}

#[test]
fn pods_with_different_node_selectors_have_nodes_of_their_own() {
    let mut w = world();
    for node in ["n0", "n1"] {
        let allocatable = json!({"cpu": "8", "pods": "10"});
        w.nodes.put(of(json!({"metadata": {"name": node, "resourceVersion": "1", "labels": {"host": node}},
            "status": {"allocatable": allocatable}})));
    }
    for (name, host) in [("p0", "n0"), ("p1", "n1"), ("p2", "n1"), ("p3", "n9")] {
        pod(&mut w, name, |p| p["spec"]["nodeSelector"] = json!({"host": host}));
    }
    let room = |names: &[&str]| {
        let pods: Vec<&Pod> = names.iter().map(|n| w.pods.get(&id(n)).unwrap()).collect();
        candidates(&w, &pods, &BTreeSet::new())
    };
    let found = room(&["p0", "p1", "p2"]).unwrap();
    let nodes: Vec<Vec<&str>> = found.of_pod.iter().map(|n| n.iter().map(String::as_str).collect()).collect();
    assert_eq!(nodes, [["n0"], ["n1"], ["n1"]]);
    assert_eq!(found.left.len(), 2);
    assert!(!found.is_one() && room(&["p1", "p2"]).unwrap().is_one());
    assert_eq!(room(&["p0", "p3"]).unwrap_err(), "no node can run pod p3: lacks the label host=n9 (2 nodes)");
}
