//! The admission policies: the gate of plain pods, the guard of allocations, facts of one's own node.

use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use linkwise_kubernetes::facts::resource::{HostFacts, HostFactsSpec, host_facts};
use linkwise_kubernetes::names::GATE;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How long admission may take to know a new policy or binding.
const KNOWN: Duration = Duration::from_secs(60);

pub fn pod(name: &str, spec: Value, labels: Value) -> Pod {
    serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}, "spec": spec})).unwrap()
}

fn asks(gpus: &[u32]) -> Value {
    let container = |(i, n): (usize, &u32)| match n {
        0 => json!({"name": format!("c{i}"), "image": "x", "resources": {"requests": {"cpu": "1"}}}),
        n => {
            json!({"name": format!("c{i}"), "image": "x", "resources": {"limits": {"nvidia.com/gpu": n.to_string(), "cpu": "1"}}})
        }
    };
    json!({"containers": gpus.iter().enumerate().map(container).collect::<Vec<_>>()})
}

async fn dry(client: &Client, namespace: &str, pod: &Pod) -> Result<Pod, Error> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    api.create(&PostParams { dry_run: true, ..PostParams::default() }, pod).await
}

fn is_gated(p: &Pod) -> bool {
    p.spec.as_ref().unwrap().scheduling_gates.iter().flatten().any(|g| g.name == GATE)
}

/// Plain pods are gated and get a claim; others are left alone.
pub async fn gate(client: &Client) {
    let eight = pod("eight", asks(&[0, 8]), json!({"job": "x"}));
    let begin = Instant::now();
    let made = loop {
        let made = dry(client, "team-a", &eight).await.unwrap();
        if is_gated(&made) || begin.elapsed() > KNOWN {
            break made;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert!(is_gated(&made), "a plain pod is not gated: {:?}", made.spec);
    let spec = made.spec.unwrap();
    let claim = &spec.resource_claims.as_ref().unwrap()[0];
    assert_eq!(claim.resource_claim_template_name.as_deref(), Some("linkwise-gpus-8"));
    let resources = spec.containers[1].resources.as_ref().unwrap();
    assert!(!resources.limits.as_ref().unwrap().contains_key("nvidia.com/gpu"), "{resources:?}");
    assert!(resources.requests.as_ref().is_none_or(|r| !r.contains_key("nvidia.com/gpu")), "{resources:?}");
    assert_eq!(resources.claims.as_ref().unwrap()[0].name, claim.name);
    assert!(spec.containers[0].resources.as_ref().unwrap().claims.is_none());

    let mut with_node = asks(&[8]);
    with_node["nodeName"] = json!("n0");
    let mut other_scheduler = asks(&[8]);
    other_scheduler["schedulerName"] = json!("kai-scheduler");
    let mut in_init = asks(&[0]);
    in_init["initContainers"] = asks(&[8])["containers"].clone();
    in_init["initContainers"][0]["name"] = json!("i0");
    for (what, namespace, spec, labels) in [
        ("no GPU", "team-a", asks(&[0]), json!({})),
        ("two containers ask", "team-a", asks(&[4, 4]), json!({})),
        ("more than 16", "team-a", asks(&[17]), json!({})),
        ("17 containers, the last one asks", "team-a", asks(&[[0; 16].as_slice(), &[8]].concat()), json!({})),
        ("opted out", "team-a", asks(&[8]), json!({"linkwise.dev/place": "false"})),
        ("bound already", "team-a", with_node, json!({})),
        ("another scheduler", "team-a", other_scheduler, json!({})),
        ("an init container asks", "team-a", in_init, json!({})),
        ("a namespace without the label", "team-b", asks(&[8]), json!({})),
        ("a labelled namespace of no release", "team-c", asks(&[8]), json!({})),
    ] {
        let made = dry(client, namespace, &pod("p", spec, labels)).await.unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(!is_gated(&made) && made.spec.unwrap().resource_claims.is_none(), "{what}: gated");
    }
    let own = json!({"containers": [{"name": "c", "image": "x", "resources": {"claims": [{"name": "mine"}]}}],
        "resourceClaims": [{"name": "mine", "resourceClaimName": "mine"}]});
    assert!(is_gated(
        &dry(client, "team-a", &pod("own", own.clone(), json!({"linkwise.dev/place": "true"}))).await.unwrap()
    ));
    assert!(!is_gated(&dry(client, "team-a", &pod("own", own, json!({}))).await.unwrap()));
    // The claim of a gated pod is made, with the label by which the guard knows it.
    let api: Api<Pod> = Api::namespaced(client.clone(), "team-a");
    api.create(&PostParams::default(), &pod("eight", asks(&[8]), json!({}))).await.unwrap();
    let claims: Api<ResourceClaim> = Api::namespaced(client.clone(), "team-a");
    let claim = until("the claim of a gated pod", || async {
        let all = claims.list(&Default::default()).await.unwrap().items;
        all.into_iter().find(|c| c.metadata.generate_name.as_deref().is_some_and(|n| n.starts_with("eight-")))
    })
    .await;
    assert_eq!(claim.metadata.labels.unwrap()["linkwise.dev/place"], "true");
}

/// Waits for a value.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let begin = Instant::now();
    loop {
        if let Some(value) = ask().await {
            return value;
        }
        assert!(begin.elapsed() < KNOWN, "{what}: not within {} s", KNOWN.as_secs());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

pub fn claim(name: &str, gpus: u32, labels: Value) -> ResourceClaim {
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": labels, "finalizers": ["resource.kubernetes.io/delete-protection"]},
        "spec": {"devices": {"requests": [{"name": "gpus", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": gpus}}]}},
    }))
    .unwrap()
}

pub fn allocation(node: &str, devices: &[&str]) -> Value {
    let result = |d: &&str| json!({"request": "gpus", "driver": "gpu.nvidia.com", "pool": node, "device": d});
    json!({"allocationTimestamp": "2026-01-01T00:00:00Z", "devices": {"results": devices.iter().map(result).collect::<Vec<_>>()},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}})
}

pub fn ours() -> Value {
    json!({"apiGroup": "linkwise.dev", "resource": "placements", "name": "j", "uid": "11111111-1111-4111-8111-111111111111"})
}

pub async fn status(client: &Client, name: &str, status: Value) -> Result<ResourceClaim, Error> {
    let api: Api<ResourceClaim> = Api::namespaced(client.clone(), "team-a");
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(json!({"status": status}))).await
}

fn denied(what: &str, got: Result<ResourceClaim, Error>, words: &[&str]) {
    match got {
        Err(Error::Api(s)) => {
            words.iter().for_each(|w| assert!(s.message.contains(w), "{what}: {} does not say `{w}`", s.message));
        }
        other => panic!("{what}: {:?} instead of a refusal", other.map(|c| c.status)),
    }
}

/// Other writers cannot change the devices of a claim that linkwise placed. The refusal names the writer.
pub async fn guard(client: &Client, controller: &Client, foreign: &Client, scheduler: &Client) {
    let claims: Api<ResourceClaim> = Api::namespaced(client.clone(), "team-a");
    let post = PostParams::default();
    claims.create(&post, &claim("held", 2, json!({}))).await.unwrap();
    let held = json!({"allocation": allocation("n0", &["gpu-0", "gpu-1"]), "reservedFor": [ours()]});
    status(controller, "held", held).await.unwrap();
    // A policy takes a moment until it is in force: a reservation in linkwise's name on a free claim is the harmless probe.
    claims.create(&post, &claim("probe", 1, json!({}))).await.unwrap();
    let tried = json!({"status": {"reservedFor": [ours()], "allocation": allocation("n0", &["gpu-7"])}});
    let theirs: Api<ResourceClaim> = Api::namespaced(foreign.clone(), "team-a");
    let dry = PatchParams { dry_run: true, ..PatchParams::default() };
    until("the guard", || async {
        let got = theirs.patch_status("probe", &dry, &Patch::Merge(&tried)).await;
        got.err().filter(|e| e.to_string().contains("in the name of linkwise"))
    })
    .await;
    let none = json!({"allocation": null, "reservedFor": null});
    denied("clear it", status(foreign, "held", none).await, &["team-a/held", "slurm-bridge"]);
    denied(
        "end the reservation",
        status(foreign, "held", json!({"reservedFor": null})).await,
        &["reserves claim", "slurm-bridge"],
    );
    // The scheduler adds pods to the reservation, and takes nothing away.
    let pods = json!({"reservedFor": [ours(), {"resource": "pods", "name": "p", "uid": "22222222-2222-4222-8222-222222222222"}]});
    status(scheduler, "held", pods).await.unwrap();
    // A claim of a template: only linkwise, or the scheduler after the gate was taken off by hand.
    claims.create(&post, &claim("template", 1, json!({"linkwise.dev/place": "true"}))).await.unwrap();
    let some = json!({"allocation": allocation("n1", &["gpu-0"])});
    denied(
        "allocate a claim of linkwise",
        status(foreign, "template", some.clone()).await,
        &["gets its devices from linkwise, not from slurm-bridge"],
    );
    status(scheduler, "template", some).await.unwrap();
    // Claims that are not linkwise's are free.
    claims.create(&post, &claim("theirs", 1, json!({}))).await.unwrap();
    status(foreign, "theirs", json!({"allocation": allocation("n0", &["gpu-0"])})).await.unwrap();
    // linkwise lets go, and then others may.
    status(controller, "held", json!({"reservedFor": null})).await.unwrap();
    status(foreign, "held", json!({"allocation": null})).await.unwrap();
    status(controller, "held", json!({"allocation": allocation("n0", &["gpu-0", "gpu-1"]), "reservedFor": [ours()]}))
        .await
        .unwrap();
}

/// A collector writes the facts of its own node only.
pub async fn facts(client: &Client) {
    let of = |node: &str| {
        HostFacts::new(
            node,
            &host_facts(),
            HostFactsSpec { topology: "GPU0\nGPU0 X\n".into(), ..HostFactsSpec::default() },
        )
    };
    let attempt = |node: &'static str, at: Option<&'static str>| async move {
        let body = serde_json::to_vec(&of(node)).unwrap();
        let mut request = http::Request::post("/apis/linkwise.dev/v1alpha1/hostfacts?dryRun=All")
            .header("content-type", "application/json")
            .header("impersonate-user", "system:serviceaccount:linkwise:linkwise-collector")
            .header("impersonate-group", "system:serviceaccounts");
        if let Some(at) = at {
            request = request.header("impersonate-extra-authentication.kubernetes.io%2fnode-name", at);
        }
        client.request::<Value>(request.body(body).unwrap()).await
    };
    until("the guard of facts", || async {
        attempt("n1", Some("n0")).await.err().filter(|e| e.to_string().contains("its own node only"))
    })
    .await;
    attempt("n0", Some("n0")).await.unwrap();
    assert!(attempt("n0", None).await.unwrap_err().to_string().contains("its own node only"));
}

/// In mode place the controller may take its gate off, narrow the node affinity and write its annotations, and change nothing else of a pod.
pub async fn place(client: &Client, controller: &Client) {
    let api: Api<Pod> = Api::namespaced(client.clone(), "team-a");
    let gates = json!([{"name": "example.com/own"}, {"name": GATE}]);
    let spec = json!({"containers": [{"name": "c", "image": "x"}], "schedulingGates": gates});
    api.create(&PostParams::default(), &pod("placed", spec, json!({"a": "b"}))).await.unwrap();
    let api: Api<Pod> = Api::namespaced(controller.clone(), "team-a");
    let change = |patch: Value, dry: bool| {
        let api = api.clone();
        let parameters = PatchParams { dry_run: dry, ..PatchParams::default() };
        async move { api.patch("placed", &parameters, &Patch::Merge(patch)).await }
    };
    until("the limit of mode place", || async {
        let got = change(json!({"metadata": {"labels": {"x": "y"}}}), true).await;
        got.err().filter(|e| e.to_string().contains("annotations only"))
    })
    .await;
    for (bad, word) in [
        (json!({"metadata": {"labels": {"a": "c"}}}), "annotations only"),
        (json!({"metadata": {"finalizers": ["example.com/x"]}}), "annotations only"),
        (json!({"metadata": {"annotations": {"example.com/x": "y"}}}), "its own annotations only"),
        (json!({"spec": {"schedulingGates": [{"name": GATE}]}}), "its own gate only"),
        (json!({"spec": {"containers": [{"name": "c", "image": "y"}]}}), "node affinity and its gate"),
        (json!({"spec": {"tolerations": [{"operator": "Exists"}]}}), "node affinity and its gate"),
        (json!({"spec": {"nodeSelector": {"a": "b"}}}), "node affinity and its gate"),
        (json!({"spec": {"activeDeadlineSeconds": 5}}), "node affinity and its gate"),
    ] {
        let e = change(bad.clone(), false).await.unwrap_err().to_string();
        assert!(e.contains("in mode place") && e.contains(word), "{bad}: {e}");
    }
    let on = linkwise_kubernetes::claim::on("n1");
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": on}});
    let released = json!({"metadata": {"annotations": {"linkwise.dev/gpus": "n1:[0]"}},
        "spec": {"schedulingGates": [{"name": "example.com/own"}], "affinity": affinity}});
    change(released, false).await.unwrap();
}

/// In mode advise the controller annotates, and changes nothing else.
pub async fn advise(client: &Client, controller: &Client) {
    let api: Api<Pod> = Api::namespaced(client.clone(), "team-a");
    let spec = json!({"containers": [{"name": "c", "image": "x"}], "schedulingGates": [{"name": "example.com/own"}]});
    api.create(&PostParams::default(), &pod("advised", spec, json!({"a": "b"}))).await.unwrap();
    let api: Api<Pod> = Api::namespaced(controller.clone(), "team-a");
    let change = |patch: Value, dry: bool| {
        let api = api.clone();
        let parameters = PatchParams { dry_run: dry, ..PatchParams::default() };
        async move { api.patch("advised", &parameters, &Patch::Merge(patch)).await }
    };
    // The policy of mode place, which was there before, takes a moment until it is gone.
    until("the limit of mode advise", || async {
        let got = change(json!({"spec": {"schedulingGates": []}}), true).await;
        got.err().filter(|e| e.to_string().contains("in mode advise") && !e.to_string().contains("in mode place"))
    })
    .await;
    change(json!({"metadata": {"annotations": {"linkwise.dev/advice": "8 GPUs"}}}), false).await.unwrap();
    for bad in [
        json!({"spec": {"schedulingGates": []}}),
        json!({"metadata": {"labels": {"a": "c"}}}),
        json!({"metadata": {"annotations": {"example.com/x": "y"}}}),
        json!({"metadata": {"finalizers": ["example.com/x"]}}),
    ] {
        let e = change(bad.clone(), false).await.unwrap_err().to_string();
        assert!(e.contains("in mode advise"), "{bad}: {e}");
    }
    let held: Result<ResourceClaim, Error> = status(controller, "held", json!({"allocation": null})).await;
    assert!(matches!(held, Err(Error::Api(s)) if s.code == 403));
}

/// Labels of namespaces.
pub async fn namespace(client: &Client, name: &str, labels: Value) {
    let api: Api<Namespace> = Api::all(client.clone());
    let object: Namespace = serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap();
}
