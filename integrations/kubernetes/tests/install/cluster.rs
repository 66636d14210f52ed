//! The cluster as an object, taints, alarms, explanations: passes of facts against the real API.

use crate::policies::{allocation, claim, pod, status, until};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Error, ResourceExt};
use lab_kubernetes::{gpu_name, uuid};
use linkwise_kubernetes::facts::explain;
use linkwise_kubernetes::facts::resource::{
    CollectedGpu, CollectedPort, GpuCluster, HostFacts, HostFactsSpec, gpu_cluster, host_facts,
};
use linkwise_kubernetes::facts::sync::{Decision, Settings, Sync, SyncError};
use linkwise_kubernetes::facts::taints::{Effect, Suspect};
use linkwise_kubernetes::names::CONDITION;
use serde_json::json;
use std::path::Path;
use topology::NetworkClass;

/// Eight H100 behind NVSwitches with a NIC each.
fn matrix() -> String {
    let mut text: String = (0..8).map(|g| format!("GPU{g} ")).chain((0..8).map(|n| format!("mlx5_{n} "))).collect();
    text.push('\n');
    for a in 0..16 {
        text += &if a < 8 { format!("GPU{a} ") } else { format!("mlx5_{} ", a - 8) };
        for b in 0..16 {
            text += match (a, b) {
                _ if a == b => "X ",
                _ if a < 8 && b < 8 => "NV18 ",
                _ if a % 8 == b % 8 => "PIX ",
                _ if a % 8 / 4 == b % 8 / 4 => "NODE ",
                _ => "SYS ",
            };
        }
        text.push('\n');
    }
    text
}

fn node_facts(n: usize) -> HostFacts {
    let gpu = |g: usize| CollectedGpu { index: g as u8, uuid: uuid(n, g), product: String::new() };
    let port = |p: usize| CollectedPort {
        device: format!("mlx5_{p}"),
        active: true,
        rate_gbit_per_s: 400,
        link_layer: "InfiniBand".into(),
    };
    let spec = HostFactsSpec { topology: matrix(), gpus: (0..8).map(gpu).collect(), ports: (0..8).map(port).collect() };
    HostFacts::new(&format!("n{n}"), &host_facts(), spec)
}

fn settings(file: &Path) -> Settings {
    Settings {
        cluster: "linkwise".into(),
        driver: "gpu.nvidia.com".into(),
        file: Some(file.into()),
        taint: None,
        taint_from: 0.5,
    }
}

async fn label(client: &Client, node: &str, leaf: &str) {
    let nodes: Api<Node> = Api::all(client.clone());
    let labels = json!({"metadata": {"labels": {"network.topology.nvidia.com/leaf": leaf}}});
    nodes.patch(node, &PatchParams::default(), &Patch::Merge(labels)).await.unwrap();
}

/// Two passes: the first brings the object up to date, the second must find nothing to do.
async fn settle(sync: &Sync, suspects: Option<Vec<Suspect>>) -> Decision {
    sync.pass(suspects.clone(), Timestamp::now()).await.unwrap();
    let again = sync.pass(suspects, Timestamp::now()).await.unwrap();
    assert!(again.spec.is_none() && again.changes.is_empty(), "{again:?}");
    again
}

/// Facts become the object, the file and the status; what kubectl edits stays.
pub async fn object(client: &Client, as_controller: &Client, folder: &Path) {
    let file = folder.join("cluster.json");
    let sync = Sync::new(as_controller.clone(), settings(&file));
    let facts: Api<HostFacts> = Api::all_with(client.clone(), &host_facts());
    let objects: Api<GpuCluster> = Api::all_with(client.clone(), &gpu_cluster());
    // Without what the collectors say the board is not known.
    sync.pass(None, Timestamp::now()).await.unwrap();
    let condition = |o: &GpuCluster, kind: &str| {
        let status = o.status.clone().unwrap();
        status.conditions.into_iter().find(|c| c.type_ == kind).map(|c| (c.status, c.message)).unwrap()
    };
    for n in 0..3 {
        facts.create(&PostParams::default(), &node_facts(n)).await.unwrap();
        label(client, &format!("n{n}"), ["a", "a", "b"][n]).await;
    }
    // The fourth node has no collector: it is of the board that the operator names.
    label(client, "n3", "b").await;
    let types = json!({"spec": {"types": {"NVIDIA H100 80GB HBM3 (simulated)": "hgx-h100"}}});
    sync.pass(None, Timestamp::now()).await.unwrap();
    let waits = objects.get("linkwise").await.unwrap().status.unwrap();
    assert_eq!(waits.hosts, 3, "{waits:?}");
    assert!(waits.notes.iter().any(|n| n.starts_with("n3 is left out")), "{waits:?}");
    objects.patch("linkwise", &PatchParams::default(), &Patch::Merge(types)).await.unwrap();
    settle(&sync, None).await;
    let o = objects.get("linkwise").await.unwrap();
    let s = o.status.clone().unwrap();
    assert_eq!((s.hosts, s.gpus), (4, 32), "{s:?}");
    assert_eq!(condition(&o, "UpToDate").0, "True");
    let read = |path: &Path| topology::file::read(&std::fs::read_to_string(path).unwrap(), "cluster.json").unwrap();
    let c = read(&file);
    assert_eq!((c.hosts.len(), c.network.tiers.len()), (4, 1));
    assert_eq!(c.hosts[0].gpu_uuids[5], uuid(0, 5));

    // kubectl edit: another class of the network, a drained GPU. It reaches the file, and stays when a node comes back.
    let edit = json!({"spec": {"cluster": {"network": {"class": "roce"}}}});
    objects.patch("linkwise", &PatchParams::default(), &Patch::Merge(edit)).await.unwrap();
    settle(&sync, None).await;
    assert_eq!(read(&file).network.class, NetworkClass::Roce);
    // An error of the editor: the API server refuses what the definition knows, linkwise says the rest, and the file stays.
    let wrong = json!({"spec": {"cluster": {"network": {"class": "token-ring"}}}});
    assert!(
        matches!(objects.patch("linkwise", &PatchParams::default(), &Patch::Merge(wrong)).await, Err(Error::Api(e)) if e.code == 422)
    );
    let before = objects.get("linkwise").await.unwrap().spec.cluster;
    let wrong = json!({"spec": {"cluster": {"hosts": [{"name": "n[0-3]", "type": "no-such-type"}]}}});
    objects.patch("linkwise", &PatchParams::default(), &Patch::Merge(wrong)).await.unwrap();
    settle(&sync, None).await;
    let o = objects.get("linkwise").await.unwrap();
    let (accepted, why) = condition(&o, "Accepted");
    assert!(accepted == "False" && why.contains("no-such-type"), "{why}");
    assert_eq!(read(&file).hosts.len(), 4, "the file of the server stays");
    let back = json!({"spec": {"cluster": {"hosts": before.unwrap()["hosts"]}}});
    objects.patch("linkwise", &PatchParams::default(), &Patch::Merge(back)).await.unwrap();

    // Manual: differences are reported, and nothing is changed.
    let manual = json!({"spec": {"update": "Manual"}});
    objects.patch("linkwise", &PatchParams::default(), &Patch::Merge(manual)).await.unwrap();
    label(client, "n1", "b").await;
    settle(&sync, None).await;
    let s = objects.get("linkwise").await.unwrap().status.unwrap();
    assert!(s.differences.iter().any(|d| d.starts_with("switches:")), "{s:?}");
    let automatic = json!({"spec": {"update": "Automatic"}});
    objects.patch("linkwise", &PatchParams::default(), &Patch::Merge(automatic)).await.unwrap();
    settle(&sync, None).await;
    assert_eq!(read(&file).network.class, NetworkClass::Roce, "what was edited stays");

    // Somebody edits between reading and writing: the write fails, and the edit is not lost.
    label(client, "n1", "a").await;
    let world = sync.world(None).await.unwrap();
    let drained = json!({"metadata": {"annotations": {"edited": "meanwhile"}}});
    objects.patch("linkwise", &PatchParams::default(), &Patch::Merge(drained)).await.unwrap();
    let late = sync.write_of(&world, Timestamp::now()).await;
    assert!(
        matches!(&late, Err(SyncError::Api { error, .. }) if matches!(&**error, Error::Api(s) if s.code == 409)),
        "{late:?}"
    );
    settle(&sync, None).await;
}

/// A suspected GPU gets a rule; with NoSchedule the stock scheduler avoids it; the rule goes with the suspicion.
pub async fn taints(client: &Client, as_controller: &Client, folder: &Path) {
    let file = folder.join("cluster.json");
    let suspect = |p| vec![Suspect { component: "GPU n2:3".into(), host: "n2".into(), factor: 0.55, probability: p }];
    let rules: Api<DeviceTaintRule> = Api::all(client.clone());
    let visible = Sync::new(as_controller.clone(), Settings { taint: Some(Effect::None), ..settings(&file) });
    settle(&visible, Some(suspect(0.9))).await;
    let all = rules.list(&Default::default()).await.unwrap().items;
    assert_eq!(all.len(), 1);
    assert_eq!(
        (all[0].spec.taint.effect.as_str(), all[0].spec.device_selector.as_ref().unwrap().device.as_deref()),
        ("None", Some(gpu_name(3, 8).as_str()))
    );
    let objects: Api<GpuCluster> = Api::all_with(client.clone(), &gpu_cluster());
    let s = objects.get("linkwise").await.unwrap().status.unwrap();
    assert_eq!((s.suspects[0].probability_percent, s.suspects[0].rules.len()), (90, 1));
    // A server that does not answer changes nothing.
    settle(&visible, None).await;
    assert_eq!(rules.list(&Default::default()).await.unwrap().items.len(), 1);

    let strict = Sync::new(as_controller.clone(), Settings { taint: Some(Effect::NoSchedule), ..settings(&file) });
    settle(&strict, Some(suspect(0.9))).await;
    // n2 has 7 GPUs left: a pod of 8 waits, one of 7 gets the others.
    let pods: Api<Pod> = Api::namespaced(client.clone(), "team-b");
    let claims: Api<ResourceClaim> = Api::namespaced(client.clone(), "team-b");
    let make = |name: &'static str, gpus: u32| {
        let (pods, claims) = (pods.clone(), claims.clone());
        async move {
            claims.create(&PostParams::default(), &claim(name, gpus, json!({}))).await.unwrap();
            let spec = json!({"containers": [{"name": "c", "image": "x", "resources": {"claims": [{"name": "g"}]}}],
                "resourceClaims": [{"name": "g", "resourceClaimName": name}], "nodeSelector": {"kubernetes.io/hostname": "n2"}});
            pods.create(&PostParams::default(), &pod(name, spec, json!({}))).await.unwrap();
        }
    };
    make("whole", 8).await;
    until("the scheduler's word", || async {
        let p = pods.get("whole").await.unwrap();
        p.status?.conditions?.into_iter().find(|c| c.reason.as_deref() == Some("Unschedulable"))
    })
    .await;
    make("seven", 7).await;
    until("a pod on the other seven", || async { pods.get("seven").await.unwrap().spec.unwrap().node_name }).await;
    let got = claims.get("seven").await.unwrap().status.unwrap().allocation.unwrap().devices.unwrap().results.unwrap();
    assert!(got.len() == 7 && got.iter().all(|r| r.device != gpu_name(3, 8)), "{got:?}");
    // The suspicion ends: the rule goes, and the GPU is given again.
    for name in ["whole", "seven"] {
        pods.delete(name, &kube::api::DeleteParams { grace_period_seconds: Some(0), ..Default::default() })
            .await
            .unwrap();
    }
    settle(&strict, Some(vec![])).await;
    assert!(rules.list(&Default::default()).await.unwrap().items.is_empty());
    until("the seven GPUs back", || async {
        claims.get("seven").await.unwrap().status.is_none_or(|s| s.allocation.is_none()).then_some(())
    })
    .await;
    make("again", 8).await;
    until("a pod on all eight", || async { pods.get("again").await.unwrap().spec.unwrap().node_name }).await;
}

/// A foreign allocation of a device that linkwise gave: the status names both claims and the writer.
pub async fn alarm(client: &Client, as_controller: &Client, folder: &Path) {
    let sync = Sync::new(as_controller.clone(), settings(&folder.join("cluster.json")));
    settle(&sync, None).await;
    let objects: Api<GpuCluster> = Api::all_with(client.clone(), &gpu_cluster());
    let o = objects.get("linkwise").await.unwrap();
    let s = o.status.clone().unwrap();
    // `guard` left team-a/held on n0/gpu-0 and gpu-1, and team-a/theirs of the foreign allocator on n0/gpu-0.
    let twice = s.alarms.iter().find(|a| a.contains("gpu.nvidia.com/n0/gpu-0 is allocated twice"));
    assert!(twice.is_some_and(|a| a.contains("team-a/held") && a.contains("team-a/theirs")), "{:?}", s.alarms);
    let one = s.conditions.iter().find(|c| c.type_ == "OneWriter").unwrap();
    assert_eq!(one.status, "False");
}

/// The explanation stands beside the driver's own conditions.
pub async fn explanation(client: &Client, controller: &Client, collector: &Client) {
    let claims: Api<ResourceClaim> = Api::namespaced(client.clone(), "team-a");
    let driver = json!({"devices": [{"driver": "gpu.nvidia.com", "pool": "n0", "device": "gpu-0", "conditions": [
        {"type": "Ready", "status": "True", "reason": "Prepared", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        "data": {"cdi": "x"}}]});
    status(client, "held", driver).await.unwrap();
    let now = claims.get("held").await.unwrap();
    let text = "2 GPUs of n0: 312 GB/s predicted; packed 180 GB/s";
    let patch = explain::patch(&now, "gpu.nvidia.com", text, "2026-01-02T00:00:00Z").unwrap();
    let apply = PatchParams { field_manager: Some(explain::MANAGER.into()), ..PatchParams::default() };
    let theirs: Api<ResourceClaim> = Api::namespaced(collector.clone(), "team-a");
    assert!(theirs.patch_status("held", &apply, &Patch::Apply(&patch)).await.is_err());
    let ours: Api<ResourceClaim> = Api::namespaced(controller.clone(), "team-a");
    ours.patch_status("held", &apply, &Patch::Apply(&patch)).await.unwrap();
    let got = claims.get("held").await.unwrap();
    let devices = got.status.as_ref().unwrap().devices.as_ref().unwrap();
    let first = devices.iter().find(|d| d.device == "gpu-0").unwrap();
    let kinds: Vec<&str> = first.conditions.iter().flatten().map(|c| c.type_.as_str()).collect();
    assert!(devices.len() == 2 && kinds.contains(&"Ready") && kinds.contains(&CONDITION), "{devices:?}");
    assert!(first.data.is_some() && got.status.as_ref().unwrap().allocation.is_some());
    assert_eq!(explain::patch(&got, "gpu.nvidia.com", text, "2026-01-03T00:00:00Z"), None, "said once");
    let _ = (allocation("n0", &[]), got.name_any());
}
