//! Where and why, on pods: events and conditions.

use crate::names::{CONDITION, REPORTER};
use crate::world::Id;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use std::time::Duration;

/// Longest text of an event; the API refuses more than 1,024 bytes.
const TEXT_BYTES_MAX: usize = 1000;
/// Longest time of a request.
const DEADLINE: Duration = Duration::from_secs(10);

/// The present time in seconds, RFC 3339.
pub fn now_seconds() -> String {
    let now = jiff::Timestamp::now();
    jiff::Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}

/// Posts an event about a pod. A failure loses the event only.
pub async fn event(client: &Client, identity: &str, pod: &Pod, warning: bool, reason: &str, text: &str) {
    let namespace = pod.namespace().unwrap_or_default();
    let event = Event {
        metadata: ObjectMeta { generate_name: Some("linkwise-".into()), ..ObjectMeta::default() },
        event_time: Some(MicroTime(jiff::Timestamp::now())),
        action: Some("Place".into()),
        reason: Some(reason.into()),
        note: Some(cut(text).into()),
        type_: Some(if warning { "Warning" } else { "Normal" }.into()),
        reporting_controller: Some(REPORTER.into()),
        reporting_instance: Some(identity.into()),
        regarding: Some(ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            name: pod.metadata.name.clone(),
            namespace: Some(namespace.clone()),
            uid: pod.uid(),
            ..ObjectReference::default()
        }),
        ..Event::default()
    };
    let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
    let _ = tokio::time::timeout(DEADLINE, events.create(&PostParams::default(), &event)).await;
}

/// Writes where a pod is placed, or what it waits for, as a condition of its status. A failure loses the text only.
pub async fn tell(client: &Client, pod: &Id, placed: bool, text: &str) -> Option<Pod> {
    let (status, reason) = if placed { ("True", "Placed") } else { ("False", "Waiting") };
    let condition = json!({"type": CONDITION, "status": status, "reason": reason, "message": cut(text),
        "lastTransitionTime": now_seconds()});
    let patch = json!({"status": {"conditions": [condition]}});
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.0);
    let (patch, parameters) = (Patch::Strategic(patch), PatchParams::default());
    let patched = pods.patch_status(&pod.1, &parameters, &patch);
    tokio::time::timeout(DEADLINE, patched).await.ok()?.ok()
}

fn cut(text: &str) -> &str {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
