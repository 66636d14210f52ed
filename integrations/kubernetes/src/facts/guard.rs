//! Allocations that are not linkwise's and conflict with it, with the names of their writers.
//!
//! The chart's policy refuses foreign writes of linkwise's claims. What no policy can see, because it takes two objects, is found here: the API
//! server accepts one device in two claims.

use crate::device::{Place, allocated_whole};
use crate::names::CLAIM_LABEL;
use k8s_openapi::api::resource::v1::ResourceClaim;
use std::collections::BTreeMap;

/// Field managers whose allocations are ordinary: the stock scheduler's.
const SCHEDULERS: [&str; 2] = ["kube-scheduler", "scheduler"];
/// Beginning of linkwise's field managers.
const LINKWISE: &str = "linkwise";
/// Maximum length of a manager's name in an alarm.
const WRITER_CHARS_MAX: usize = 80;

/// True if linkwise holds the claim, or the claim comes from one of its templates.
pub fn is_ours(claim: &ResourceClaim) -> bool {
    crate::claim::is_kept(claim)
        || claim.metadata.labels.as_ref().is_some_and(|l| l.get(CLAIM_LABEL).is_some_and(|v| v == "true"))
}

/// The field manager that wrote the allocation last; none if the API server does not say.
pub fn writer(claim: &ResourceClaim) -> Option<String> {
    let wrote = |fields: &serde_json::Value| fields.pointer("/f:status/f:allocation").is_some();
    let entries = claim.metadata.managed_fields.iter().flatten();
    let mut of_allocation: Vec<_> = entries.filter(|e| e.fields_v1.as_ref().is_some_and(|f| wrote(&f.0))).collect();
    of_allocation.sort_by(|a, b| a.time.as_ref().map(|t| &t.0).cmp(&b.time.as_ref().map(|t| &t.0)));
    let manager = of_allocation.pop()?.manager.as_deref()?;
    Some(manager.chars().filter(|c| !c.is_control()).take(WRITER_CHARS_MAX).collect())
}

/// One sentence for every conflict: a device in two claims; a claim of linkwise whose devices somebody else wrote. O(devices log devices).
///
/// `driver`: only claims on its devices count.
pub fn alarms<'a>(claims: impl IntoIterator<Item = &'a ResourceClaim>, driver: &str) -> Vec<String> {
    let mut out = Vec::new();
    let mut holders: BTreeMap<Place, Vec<&ResourceClaim>> = BTreeMap::new();
    let mut all: Vec<&ResourceClaim> = claims.into_iter().collect();
    all.sort_by_key(|c| (c.metadata.namespace.clone(), c.metadata.name.clone()));
    for claim in all {
        let devices: Vec<Place> = allocated_whole(claim).filter(|d| d.driver == driver).collect();
        if devices.is_empty() {
            continue;
        }
        let by = writer(claim);
        let foreign = by.as_deref().filter(|w| !w.starts_with(LINKWISE) && !SCHEDULERS.contains(w));
        if let Some(w) = foreign {
            let of = if is_ours(claim) { "a claim of linkwise" } else { "a claim" };
            out.push(format!(
                "{}: {of} got {} from `{w}`, which is neither linkwise nor the scheduler",
                name(claim),
                words(&devices)
            ));
        }
        devices.into_iter().for_each(|d| holders.entry(d).or_default().push(claim));
    }
    for (device, claims) in holders.iter().filter(|(_, c)| c.len() > 1) {
        let who = claims.iter().map(|c| {
            let by = writer(c).map_or_else(|| "an unknown writer".into(), |w| format!("`{w}`"));
            format!("{} by {by}", name(c))
        });
        out.push(format!("{device} is allocated twice: {}", who.collect::<Vec<_>>().join(", ")));
    }
    out
}

fn name(claim: &ResourceClaim) -> String {
    format!("{}/{}", claim.metadata.namespace.as_deref().unwrap_or("-"), claim.metadata.name.as_deref().unwrap_or("-"))
}

fn words(devices: &[Place]) -> String {
    let shown: Vec<String> = devices.iter().take(3).map(ToString::to_string).collect();
    let more = devices.len().saturating_sub(3);
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claim(name: &str, device: &str, manager: &str, held: bool) -> ResourceClaim {
        let reserved = if held {
            json!([{"apiGroup": "linkwise.dev", "resource": "placements", "name": "x", "uid": "1"}])
        } else {
            json!([])
        };
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "a", "managedFields": [
                {"manager": "kubectl", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}, "time": "2026-01-03T00:00:00Z"},
                {"manager": manager, "operation": "Update", "subresource": "status", "fieldsType": "FieldsV1",
                    "fieldsV1": {"f:status": {"f:allocation": {}}}, "time": "2026-01-02T00:00:00Z"}]},
            "spec": {"devices": {}},
            "status": {"reservedFor": reserved, "allocation": {"devices": {"results": [
                {"request": "gpus", "driver": "gpu.nvidia.com", "pool": "n0", "device": device}]}}},
        }))
        .unwrap()
    }

    #[test]
    fn the_writer_of_a_foreign_allocation_is_named() {
        let claims = [
            claim("x", "gpu-0", "slurm-bridge", true),
            claim("y", "gpu-1", "kube-scheduler", false),
            claim("z", "gpu-2", "linkwise-controller", true),
        ];
        let all = alarms(&claims, "gpu.nvidia.com");
        assert_eq!(
            all,
            [
                "a/x: a claim of linkwise got gpu.nvidia.com/n0/gpu-0 from `slurm-bridge`, which is neither linkwise nor the scheduler"
            ]
        );
        assert!(alarms(&claims, "other.example.com").is_empty());
    }

    #[test]
    fn a_device_in_two_claims_names_both_writers() {
        let claims = [claim("x", "gpu-0", "linkwise-controller", true), claim("y", "gpu-0", "kube-scheduler", false)];
        let all = alarms(&claims, "gpu.nvidia.com");
        assert_eq!(
            all,
            ["gpu.nvidia.com/n0/gpu-0 is allocated twice: a/x by `linkwise-controller`, a/y by `kube-scheduler`"]
        );
    }
}
