//! The part of all kubelets: bound pods run, and end.

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use serde_json::json;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// How long pods run.
#[derive(Clone, Copy, Debug)]
pub enum Life {
    /// Until they are deleted.
    Forever,
    /// They succeed after this time.
    For(Duration),
}

/// Marks bound pods as running, removes deleted ones, and ends those whose time is over. It stops when it is dropped.
#[derive(Debug)]
pub struct Kubelet(JoinHandle<()>);

impl Kubelet {
    /// Starts in the present tokio runtime. The annotation `lab/seconds` of a pod overrides `life`.
    pub fn start(client: Client, life: Life) -> Kubelet {
        Kubelet(tokio::spawn(run(client, life)))
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn run(client: Client, life: Life) {
    let pods: Api<Pod> = Api::all(client.clone());
    let mut changes = watcher(pods, watcher::Config::default()).default_backoff().touched_objects().boxed();
    let mut ends: HashMap<(String, String), Instant> = HashMap::new();
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    loop {
        tokio::select! {
            change = changes.next() => match change {
                Some(Ok(pod)) => touched(&client, &pod, life, &mut ends).await,
                Some(Err(_)) => {} // the watch starts again
                None => return,
            },
            _ = tick.tick() => {
                let over: Vec<(String, String)> =
                    ends.iter().filter(|(_, at)| **at <= Instant::now()).map(|(name, _)| name.clone()).collect();
                for name in over {
                    let pods: Api<Pod> = Api::namespaced(client.clone(), &name.0);
                    let ended = json!({"status": {"phase": "Succeeded"}});
                    // A failure is tried again at the next tick, unless the pod is gone.
                    match pods.patch_status(&name.1, &PatchParams::default(), &Patch::Merge(ended)).await {
                        Err(kube::Error::Api(e)) if e.code != 404 => {}
                        Err(e) if !matches!(e, kube::Error::Api(_)) => {}
                        _ => { ends.remove(&name); }
                    }
                }
            }
        }
    }
}

async fn touched(client: &Client, pod: &Pod, life: Life, ends: &mut HashMap<(String, String), Instant>) {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let bound = pod.spec.as_ref().is_some_and(|s| s.node_name.is_some());
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("Pending");
    if bound && pod.metadata.deletion_timestamp.is_some() {
        // Its containers were stopped. Without a phase the pod of a Job would stay, with the finalizer of the job's controller.
        if !matches!(phase, "Succeeded" | "Failed") {
            let failed = json!({"status": {"phase": "Failed", "reason": "Terminated"}});
            let _ = pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(failed)).await;
        }
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        let _ = pods.delete(&name, &now).await;
        return;
    }
    if !bound || phase != "Pending" {
        return;
    }
    let running = json!({"status": {"phase": "Running", "podIP": "127.0.0.1",
        "conditions": [{"type": "Ready", "status": "True"}]}});
    if pods.patch_status(&name, &PatchParams::default(), &Patch::Strategic(running)).await.is_err() {
        return;
    }
    let own = pod.annotations().get("lab/seconds").and_then(|s| s.parse().ok()).map(Duration::from_secs_f64);
    let time = match (own, life) {
        (Some(own), _) => own,
        (None, Life::For(time)) => time,
        (None, Life::Forever) => return,
    };
    ends.insert((namespace, name), Instant::now() + time);
}
