//! Where and why, on pods: events and conditions.

use crate::names::{CONDITION, REPORTER};
use crate::world::Id;
use k8s_openapi::api::core::v1::{ObjectReference, Pod, PodCondition};
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

/// What the condition of a pod says.
#[derive(Clone, Copy, Debug)]
pub struct Word<'a> {
    /// True if the pod is placed; it waits otherwise.
    pub placed: bool,
    /// Where and why, or what is awaited.
    pub text: &'a str,
}

impl Word<'_> {
    fn status(&self) -> &'static str {
        if self.placed { "True" } else { "False" }
    }

    /// True if the pod says this already.
    pub fn is_on(&self, pod: &Pod) -> bool {
        condition(pod).is_some_and(|c| c.status == self.status() && c.message.as_deref() == Some(cut(self.text)))
    }

    /// True if the pod says this already, perhaps with other numbers.
    pub fn is_nearly_on(&self, pod: &Pod) -> bool {
        let says = |c: &PodCondition| c.message.as_deref().is_some_and(|m| !is_other(m, cut(self.text)));
        condition(pod).is_some_and(|c| c.status == self.status() && says(c))
    }
}

/// True if two texts differ in more than numbers.
pub fn is_other(a: &str, b: &str) -> bool {
    let words = |c: &char| !c.is_ascii_digit();
    !a.chars().filter(words).eq(b.chars().filter(words))
}

fn condition(pod: &Pod) -> Option<&PodCondition> {
    pod.status.as_ref()?.conditions.iter().flatten().find(|c| c.type_ == CONDITION)
}

/// True if the pod has the condition that it waits.
pub fn waits(pod: &Pod) -> bool {
    condition(pod).is_some_and(|c| c.status == "False")
}

/// Writes where a pod is placed, or what it waits for, as a condition of its status.
///
/// # Errors
/// The text was not written; why, if it was refused.
pub async fn tell(client: &Client, pod: &Id, word: Word<'_>) -> Result<Pod, Option<String>> {
    let reason = if word.placed { "Placed" } else { "Waiting" };
    let condition = json!({"type": CONDITION, "status": word.status(), "reason": reason, "message": cut(word.text),
        "lastTransitionTime": now_seconds()});
    let patch = json!({"status": {"conditions": [condition]}});
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.0);
    let (patch, parameters) = (Patch::Strategic(patch), PatchParams::default());
    match tokio::time::timeout(DEADLINE, pods.patch_status(&pod.1, &parameters, &patch)).await {
        Ok(Ok(now)) => Ok(now),
        Ok(Err(kube::Error::Api(e))) if [403, 422].contains(&e.code) => {
            Err(Some(format!("the condition of pod {}/{} is refused: {}", pod.0, pod.1, e.message)))
        }
        Ok(Err(_)) | Err(_) => Err(None),
    }
}

fn cut(text: &str) -> &str {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_knows_what_it_was_told() {
        let long = "x".repeat(2 * TEXT_BYTES_MAX);
        let of = |status: &str, message: &str| -> Pod {
            let condition = json!({"type": CONDITION, "status": status, "message": message});
            serde_json::from_value(json!({"metadata": {}, "status": {"conditions": [condition]}})).unwrap()
        };
        let waits = |text| Word { placed: false, text };
        assert!(waits("1 of 2 pods exist").is_on(&of("False", "1 of 2 pods exist")));
        assert!(!waits("1 of 2 pods exist").is_on(&of("False", "2 of 3 pods exist")));
        assert!(
            !waits("n0:[0]").is_on(&of("True", "n0:[0]"))
                && Word { placed: true, text: "n0:[0]" }.is_on(&of("True", "n0:[0]"))
        );
        assert!(waits("1 of 2 pods exist").is_nearly_on(&of("False", "2 of 30 pods exist")));
        assert!(!waits("1 of 2 pods exist").is_nearly_on(&of("True", "1 of 2 pods exist")));
        assert!(is_other(
            "needs 8 GPUs; 0 are free",
            "needs 8 GPUs; 0 are free; the server does not know the UUIDs of 8 more"
        ));
        assert!(!is_other("needs 8 GPUs; 0 are free", "needs 8 GPUs; 12 are free"));
        assert!(waits(&long).is_on(&of("False", cut(&long))), "a text that was cut is told once");
        assert!(
            !waits("x").is_on(&Pod::default()) && !super::waits(&Pod::default()) && super::waits(&of("False", "x"))
        );
    }
}
