//! The explanation of a choice in the device status of its claim: one condition per device, beside those of the driver.
//!
//! The patch is a server-side apply of a manager of its own: entries and conditions of NVIDIA's driver stay. Needs the verb `arbitrary-node:patch`
//! on `resourceclaims/driver`.

use crate::device::{Place, allocated_whole};
use crate::names::CONDITION;
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::{Value, json};

/// Field manager of the patch.
pub const MANAGER: &str = "linkwise-explain";
/// Maximum length of the message; the API allows 32,768 bytes.
const MESSAGE_CHARS_MAX: usize = 1_000;

/// The patch that puts `message` beside every device of `driver` in the claim; none if the claim has none, or all say so already.
/// `now`: RFC 3339, second precision.
pub fn patch(claim: &ResourceClaim, driver: &str, message: &str, now: &str) -> Option<Value> {
    let message: String = message.chars().filter(|c| !c.is_control()).take(MESSAGE_CHARS_MAX).collect();
    let devices: Vec<_> = allocated_whole(claim).filter(|d| d.driver == driver).collect();
    if devices.is_empty() {
        return None;
    }
    let there = claim.status.as_ref().and_then(|s| s.devices.as_deref()).unwrap_or_default();
    let said = |d: &Place| {
        there
            .iter()
            .find(|s| s.driver == d.driver && s.pool == d.pool && s.device == d.name)
            .is_some_and(|s| s.conditions.iter().flatten().any(|c| c.type_ == CONDITION && c.message == message))
    };
    if devices.iter().all(said) {
        return None;
    }
    let entry = |d: &Place| {
        json!({"driver": d.driver, "pool": d.pool, "device": d.name, "conditions": [
            {"type": CONDITION, "status": "True", "reason": "Chosen", "message": message, "lastTransitionTime": now}]})
    };
    Some(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": claim.metadata.name, "namespace": claim.metadata.namespace},
        "status": {"devices": devices.iter().map(entry).collect::<Vec<_>>()},
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_of_the_driver_gets_the_sentence_once() {
        let result =
            |driver: &str, device: &str| json!({"request": "r", "driver": driver, "pool": "n0", "device": device});
        let mut claim: ResourceClaim = serde_json::from_value(json!({
            "metadata": {"name": "c", "namespace": "a"}, "spec": {},
            "status": {"allocation": {"devices": {"results": [result("gpu.nvidia.com", "gpu-1"), result("dra.net", "nic-1")]}}},
        }))
        .unwrap();
        let now = "2026-01-01T00:00:00Z";
        let made = patch(&claim, "gpu.nvidia.com", "312 GB/s\npredicted", now).unwrap();
        assert_eq!(made["status"]["devices"][0]["conditions"][0]["message"], "312 GB/spredicted");
        assert_eq!(made["status"]["devices"].as_array().unwrap().len(), 1);
        claim.status = serde_json::from_value(
            json!({"allocation": claim.status.unwrap().allocation, "devices": made["status"]["devices"]}),
        )
        .unwrap();
        assert_eq!(patch(&claim, "gpu.nvidia.com", "312 GB/spredicted", now), None);
        assert!(patch(&claim, "gpu.nvidia.com", "other", now).is_some());
        assert_eq!(patch(&claim, "other", "x", now), None);
    }
}
