use super::*;
use crate::names::{GANG, GANG_SIZE, GATE, JOB, RELEASED, RESERVED_GROUP, RESERVED_RESOURCE};
use serde_json::{Value, json};
use std::time::Instant;

const NOW: &str = "2026-01-01T01:00:00Z";

fn of<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// Two nodes of four GPUs.
fn world() -> World {
    let mut world = World::default();
    for node in ["n0", "n1"] {
        let gpu =
            |g: u8| json!({"name": format!("gpu-{g}"), "attributes": {"uuid": {"string": format!("GPU-{node}-{g}")}}});
        let devices: Vec<Value> = (0..4).map(gpu).collect();
        world.slices.put(of(json!({"metadata": {"name": node, "resourceVersion": "1"}, "spec": {
            "driver": "gpu.nvidia.com", "nodeName": node, "devices": devices,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}})));
        world.nodes.put(of(json!({"metadata": {"name": node, "resourceVersion": "1"}, "spec": {},
            "status": {"allocatable": {"cpu": "8", "pods": "110"}}})));
    }
    world
}

/// A pod and its claim; `on`: where a released one is, with which GPUs.
fn pod(
    world: &mut World,
    name: &str,
    priority: i32,
    gpus: usize,
    on: Option<(&str, &[u8])>,
    change: impl FnOnce(&mut Value),
) {
    let mut claim = json!({"metadata": {"name": name, "namespace": "a", "uid": name, "resourceVersion": "1"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": gpus}}]}}});
    let mut pod = json!({"metadata": {"name": name, "namespace": "a", "uid": name, "resourceVersion": "1",
            "labels": {GANG: name, GANG_SIZE: "1"}, "annotations": {}},
        "spec": {"priority": priority, "resourceClaims": [{"name": "gpus", "resourceClaimName": name}],
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}});
    match on {
        None => pod["spec"]["schedulingGates"] = json!([{"name": GATE}]),
        Some((node, devices)) => {
            let job = format!("k8s:a:{name}:1");
            claim["metadata"]["annotations"] = json!({JOB: job});
            let result = |d: &u8| json!({"request": "gpu", "driver": "gpu.nvidia.com", "pool": node, "device": format!("gpu-{d}")});
            claim["status"] = json!({"allocation": {"devices": {"results": devices.iter().map(result).collect::<Vec<_>>()}},
                "reservedFor": [{"apiGroup": RESERVED_GROUP, "resource": RESERVED_RESOURCE, "name": "x", "uid": name}]});
            pod["metadata"]["annotations"] = json!({JOB: job, RELEASED: "2026-01-01T00:00:00Z"});
            pod["spec"]["nodeName"] = json!(node);
        }
    }
    change(&mut pod);
    world.claims.put(of(claim));
    world.pods.put(of(pod));
}

fn decided(world: &World, spared: &[&str]) -> Way {
    decided_with(world, spared, &|_| true)
}

fn decided_with(world: &World, spared: &[&str], gives: &dyn Fn(&str) -> bool) -> Way {
    let (settings, now) = (Settings::of("http://localhost"), NOW.parse().unwrap());
    let plan = plan::plan(world, &settings, now, Instant::now());
    let wanted = plan.wanted.first().unwrap();
    let pods: Vec<&Pod> = wanted.pods.iter().filter_map(|w| world.pods.get(&w.pod)).collect();
    let spared = spared.iter().map(|name| format!("k8s:a:{name}:1")).collect();
    let (avoid, plan, settings) = (&BTreeSet::new(), &plan, &settings);
    way(&Case { world, settings, plan, wanted, pods: &pods, avoid, spared: &spared, gives, now })
}

fn evicted(way: Way) -> Vec<String> {
    let Way::Evict(victims) = way else { panic!("{way:?}") };
    victims.into_iter().flat_map(|v| v.pods).map(|p| p.1).collect()
}

/// Both nodes are full: `old` and `young` on n0, `dear` on n1.
fn full() -> World {
    let mut w = world();
    pod(&mut w, "old", 1, 2, Some(("n0", &[0, 1])), |_| {});
    pod(&mut w, "young", 1, 2, Some(("n0", &[2, 3])), |p| {
        p["metadata"]["annotations"][RELEASED] = json!("2026-01-01T00:30:00Z")
    });
    pod(&mut w, "dear", 5, 4, Some(("n1", &[0, 1, 2, 3])), |_| {});
    w
}

#[test]
fn the_least_important_then_the_youngest_and_no_more_than_needed_end() {
    let mut w = full();
    pod(&mut w, "new", 9, 2, None, |_| {});
    assert_eq!(evicted(decided(&w, &[])), ["young"]);
    assert_eq!(evicted(decided(&w, &["young"])), ["old"], "a budget refuses the youngest");
    assert_eq!(evicted(decided(&w, &["young", "old"])), ["dear"]);
    assert_eq!(decided(&w, &["young", "old", "dear"]), Way::None);
    // Four GPUs on one node: both of n0, and not the more important one, although it alone would do.
    pod(&mut w, "new", 9, 4, None, |_| {});
    let mut both = evicted(decided(&w, &[]));
    both.sort();
    assert_eq!(both, ["old", "young"]);
    // With one of them spared only n1 has four: what n0 still has must not end for nothing.
    assert_eq!(evicted(decided(&w, &["old"])), ["dear"]);
}

#[test]
fn equal_priority_and_a_class_that_never_preempts_end_no_gang() {
    let mut w = full();
    pod(&mut w, "new", 1, 2, None, |_| {});
    assert_eq!(decided(&w, &[]), Way::None);
    pod(&mut w, "new", 9, 2, None, |p| p["spec"]["preemptionPolicy"] = json!("Never"));
    assert_eq!(decided(&w, &[]), Way::None);
    // What no node has is not there when all have ended.
    pod(&mut w, "new", 9, 5, None, |_| {});
    assert_eq!(decided(&w, &[]), Way::None);
}

#[test]
fn no_gang_ends_for_gpus_that_no_gang_can_get() {
    let mut w = full();
    pod(&mut w, "new", 9, 2, None, |_| {});
    // The GPUs of `young`: drained, unknown to the server, or of a job of another door.
    let gives = |uuid: &str| !["GPU-n0-2", "GPU-n0-3"].contains(&uuid);
    assert_eq!(evicted(decided_with(&w, &[], &gives)), ["old"]);
    assert_eq!(decided_with(&w, &[], &|_| false), Way::None);
}

#[test]
fn where_no_gang_can_end_no_device_is_looked_at() {
    let mut w = full();
    pod(&mut w, "new", 1, 2, None, |_| {});
    let looks = std::cell::Cell::new(0);
    let count = |_: &str| {
        looks.set(looks.get() + 1);
        true
    };
    assert_eq!(decided_with(&w, &[], &count), Way::None);
    assert_eq!(looks.get(), 0);
}

#[test]
fn a_gang_that_is_in_pieces_already_ends_before_a_whole_one() {
    let mut w = full();
    pod(&mut w, "old-1", 1, 0, Some(("n0", &[])), |p| {
        p["metadata"]["annotations"][JOB] = json!("k8s:a:old:1");
        p["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:59:30Z");
    });
    pod(&mut w, "new", 9, 2, None, |_| {});
    assert_eq!(evicted(decided(&w, &[])), ["old"], "`young` is younger, but whole");
}

#[test]
fn gpus_of_pods_that_are_ending_are_awaited_for_a_while() {
    let deleted = |at: &'static str| move |p: &mut Value| p["metadata"]["deletionTimestamp"] = json!(at);
    let mut w = full();
    pod(&mut w, "new", 9, 2, None, |_| {});
    pod(&mut w, "dear", 5, 4, Some(("n1", &[0, 1, 2, 3])), deleted("2026-01-01T00:59:30Z"));
    assert_eq!(decided(&w, &[]), Way::Wait);
    // Its node is dead: its GPUs do not come back, and it cannot be evicted again.
    pod(&mut w, "dear", 5, 4, Some(("n1", &[0, 1, 2, 3])), deleted("2026-01-01T00:10:00Z"));
    assert_eq!(evicted(decided(&w, &[])), ["young"]);
}

#[test]
fn room_for_cpu_counts_as_well_as_gpus() {
    let mut w = full();
    pod(&mut w, "new", 9, 2, None, |p| p["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("8"));
    // Eight CPUs are free on a node without any other pod only.
    let mut both = evicted(decided(&w, &[]));
    both.sort();
    assert_eq!(both, ["old", "young"]);
}

#[test]
fn a_foreign_holder_is_never_evicted() {
    let mut w = full();
    pod(&mut w, "young", 1, 2, Some(("n0", &[2, 3])), |p| p["metadata"]["annotations"] = json!({}));
    pod(&mut w, "new", 9, 2, None, |_| {});
    assert_eq!(evicted(decided(&w, &[])), ["old"]);
}
