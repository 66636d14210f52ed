//! What a claim asks for, and the allocation that answers it.

use crate::device::{Device, Inventory, allocated};
use crate::names::{CLAIM_FINALIZER, JOB, JOB_BYTES_MAX, JOB_PREFIX, RESERVED_GROUP, RESERVED_RESOURCE, TERM};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Devices that a claim can hold: a limit of Kubernetes.
pub const DEVICES_PER_CLAIM_MAX: usize = 32;

/// What a claim asks for: one request for whole GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// Name of the request.
    pub request: String,
    /// Number of GPUs.
    pub gpus: usize,
}

/// The GPUs that a claim asks for; none if it asks for no device of `classes`.
///
/// # Errors
/// The claim asks for such a device in a way that only the stock scheduler can answer; the text says which.
pub fn need(claim: &ResourceClaim, classes: &[String]) -> Result<Option<Need>, String> {
    let devices = claim.spec.devices.as_ref();
    let requests = devices.and_then(|d| d.requests.as_deref()).unwrap_or_default();
    let ours = |class: &str| classes.iter().any(|c| c == class);
    let any = requests.iter().any(|r| {
        let alternatives = r.first_available.iter().flatten().map(|s| s.device_class_name.as_str());
        r.exactly.as_ref().map(|e| e.device_class_name.as_str()).into_iter().chain(alternatives).any(ours)
    });
    if !any {
        return Ok(None);
    }
    let [request] = requests else {
        return Err(format!("has {} requests; linkwise places claims with one", requests.len()));
    };
    let Some(exactly) = &request.exactly else {
        return Err("has `firstAvailable`; linkwise places claims with `exactly`".into());
    };
    if exactly.selectors.as_ref().is_some_and(|s| !s.is_empty()) {
        return Err("has CEL selectors; linkwise places claims without; select nodes by labels instead".into());
    }
    if devices.and_then(|d| d.constraints.as_ref()).is_some_and(|c| !c.is_empty()) {
        return Err("has constraints such as `matchAttribute`; linkwise places claims without".into());
    }
    if exactly.admin_access == Some(true) {
        return Err("asks for admin access, which needs no placement; remove the gate".into());
    }
    if exactly.capacity.is_some() {
        return Err("asks for a capacity of a device; linkwise gives whole GPUs".into());
    }
    if exactly.allocation_mode.as_deref().is_some_and(|m| m != "ExactCount" && !m.is_empty()) {
        return Err("has the allocation mode `All`; linkwise places claims with `ExactCount`".into());
    }
    let count = exactly.count.unwrap_or(1).max(1);
    match usize::try_from(count) {
        Ok(gpus) if gpus <= DEVICES_PER_CLAIM_MAX => Ok(Some(Need { request: request.name.clone(), gpus })),
        _ => Err(format!("asks for {count} GPUs; a claim holds at most {DEVICES_PER_CLAIM_MAX}")),
    }
}

/// Names of the claims of a pod; an entry is none while the claim of its template is not made.
pub fn names(pod: &Pod) -> Vec<Option<String>> {
    let statuses = pod.status.as_ref().and_then(|s| s.resource_claim_statuses.as_deref()).unwrap_or_default();
    let made = |name: &str| statuses.iter().find(|s| s.name == name);
    pod.spec
        .iter()
        .flat_map(|s| s.resource_claims.iter().flatten())
        // A status without a claim says that the pod needs none.
        .filter(|c| c.resource_claim_name.is_some() || made(&c.name).is_none_or(|s| s.resource_claim_name.is_some()))
        .map(|c| c.resource_claim_name.clone().or_else(|| made(&c.name)?.resource_claim_name.clone()))
        .collect()
}

/// The job whose allocation a claim has; none if it is not allocated, or not by linkwise. Users can write annotations: only names that linkwise gives
/// in the claim's own namespace count.
pub fn job(claim: &ResourceClaim) -> Option<&str> {
    let status = claim.status.as_ref()?;
    status.allocation.as_ref()?;
    own_job(&claim.metadata)
}

/// The job in an object's annotation, if linkwise gives such names in the object's namespace.
pub fn own_job(of: &ObjectMeta) -> Option<&str> {
    let job = of.annotations.as_ref()?.get(JOB)?;
    let own = job.strip_prefix(JOB_PREFIX)?.strip_prefix(of.namespace.as_deref()?)?.strip_prefix(':')?;
    let known = |b: u8| b.is_ascii_alphanumeric() || b"._-:".contains(&b);
    (job.len() <= JOB_BYTES_MAX && !own.is_empty() && own.bytes().all(known)).then_some(job)
}

/// The name of a job of a gang. At most [`JOB_BYTES_MAX`] bytes with a short suffix: a namespace has at most 63.
pub fn job_name(namespace: &str, gang: &str, hash: u64) -> String {
    let known = |c: &char| c.is_ascii_alphanumeric() || "._-".contains(*c);
    let gang: String = gang.chars().filter(known).take(40).collect();
    format!("{JOB_PREFIX}{namespace}:{gang}:{hash:016x}")
}

/// True if the claim is allocated, by anyone.
pub fn is_allocated(claim: &ResourceClaim) -> bool {
    claim.status.as_ref().is_some_and(|s| s.allocation.is_some())
}

/// True if linkwise's entry keeps the allocation.
pub fn is_kept(claim: &ResourceClaim) -> bool {
    let reserved = claim.status.as_ref().and_then(|s| s.reserved_for.as_deref()).unwrap_or_default();
    reserved.iter().any(|r| r.api_group.as_deref() == Some(RESERVED_GROUP) && r.resource == RESERVED_RESOURCE)
}

/// True if a pod, or another consumer than linkwise, has reserved the claim.
pub fn is_used(claim: &ResourceClaim) -> bool {
    let reserved = claim.status.as_ref().and_then(|s| s.reserved_for.as_deref()).unwrap_or_default();
    reserved.iter().any(|r| r.api_group.as_deref() != Some(RESERVED_GROUP))
}

/// The patch of the metadata that precedes an allocation: the finalizer that makes the controller of claims release it, and the job.
pub fn prepare(claim: &ResourceClaim, job: &str, term: &str) -> Value {
    let mut finalizers: BTreeSet<&str> = claim.metadata.finalizers.iter().flatten().map(String::as_str).collect();
    finalizers.insert(CLAIM_FINALIZER);
    json!({"metadata": {
        "resourceVersion": claim.metadata.resource_version,
        "finalizers": finalizers,
        "annotations": {JOB: job, TERM: term},
    }})
}

/// The patch of the status that allocates devices. `now` is the timestamp that the scheduler would add at the reservation, where the field is
/// immutable: a claim without it can never be reserved. Linkwise's own entry in `reservedFor` keeps the scheduler from choosing other devices when
/// the pod does not fit on the node.
pub fn allocate(claim: &ResourceClaim, need: &Need, node: &str, devices: &[&Device], job: &str, now: &str) -> Value {
    let results: Vec<Value> = devices
        .iter()
        .map(|d| {
            json!({"request": need.request, "driver": d.place.driver, "pool": d.place.pool, "device": d.place.name})
        })
        .collect();
    json!({"metadata": {"resourceVersion": claim.metadata.resource_version}, "status": {
        "allocation": {
            "allocationTimestamp": now,
            "devices": {"results": results},
            "nodeSelector": on(node),
        },
        "reservedFor": [{"apiGroup": RESERVED_GROUP, "resource": RESERVED_RESOURCE, "name": entry_name(job),
            "uid": claim.metadata.uid}],
    }})
}

/// The patch of the status that takes an allocation back.
pub fn deallocate(claim: &ResourceClaim) -> Value {
    json!({"metadata": {"resourceVersion": claim.metadata.resource_version},
        "status": {"allocation": null, "reservedFor": null, "devices": null}})
}

/// The strategic patch of the status that removes linkwise's entry and leaves those of pods.
pub fn let_go(claim: &ResourceClaim) -> Value {
    json!({"metadata": {"resourceVersion": claim.metadata.resource_version},
        "status": {"reservedFor": [{"$patch": "delete", "uid": claim.metadata.uid}]}})
}

/// The patch of the metadata after [`deallocate`].
pub fn forget(claim: &ResourceClaim) -> Value {
    let finalizers: Vec<&String> =
        claim.metadata.finalizers.iter().flatten().filter(|f| *f != CLAIM_FINALIZER).collect();
    json!({"metadata": {
        "resourceVersion": claim.metadata.resource_version,
        "finalizers": finalizers,
        "annotations": {JOB: null},
    }})
}

/// A selector of one node by its name.
pub fn on(node: &str) -> Value {
    json!({"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]})
}

/// The job as a name in `reservedFor`.
fn entry_name(job: &str) -> String {
    job.replace('/', ".")
}

/// Checks an allocation, because the API server checks neither the number of devices nor that they are free: right number, all on one node, each known
/// and named once.
///
/// # Errors
/// What is wrong, in words.
pub fn check(claim: &ResourceClaim, need: &Need, inventory: &Inventory) -> Result<String, String> {
    let places: Vec<_> = allocated(claim).collect();
    let distinct: BTreeSet<_> = places.iter().map(|(_, place)| place).collect();
    if places.len() != need.gpus || distinct.len() != need.gpus {
        return Err(format!("has {} devices, {} distinct; {} were asked for", places.len(), distinct.len(), need.gpus));
    }
    let mut nodes = BTreeSet::new();
    for (_, place) in &places {
        let device = inventory.at(place);
        nodes.insert(
            device.ok_or_else(|| format!("has {}/{}, which no slice names", place.pool, place.name))?.node.as_str(),
        );
    }
    match Vec::from_iter(nodes)[..] {
        [node] => Ok(node.to_owned()),
        ref nodes => Err(format!("has devices of {} nodes", nodes.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(spec: Value) -> ResourceClaim {
        serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "a", "uid": "u"}, "spec": spec})).unwrap()
    }

    fn exactly(more: Value) -> Value {
        let mut e = json!({"deviceClassName": "gpu.nvidia.com"});
        e.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"devices": {"requests": [{"name": "gpu", "exactly": e}]}})
    }

    #[test]
    fn a_claim_for_whole_gpus_is_read_and_others_are_refused_by_name() {
        let classes = ["gpu.nvidia.com".to_owned()];
        let of = |spec: Value| need(&claim(spec), &classes);
        assert_eq!(of(exactly(json!({"count": 4}))), Ok(Some(Need { request: "gpu".into(), gpus: 4 })));
        assert_eq!(of(exactly(json!({}))).unwrap().unwrap().gpus, 1);
        let other = json!({"devices": {"requests": [{"name": "n", "exactly": {"deviceClassName": "nic.example"}}]}});
        assert_eq!(of(other), Ok(None));
        assert_eq!(of(json!({})), Ok(None));
        for (more, word) in [
            (json!({"count": 33}), "at most 32"),
            (json!({"allocationMode": "All"}), "`All`"),
            (json!({"adminAccess": true}), "admin access"),
            (json!({"selectors": [{"cel": {"expression": "true"}}]}), "CEL"),
        ] {
            let said = of(exactly(more)).unwrap_err();
            assert!(said.contains(word), "{said}");
        }
        let mut two = exactly(json!({}));
        let one = two["devices"]["requests"][0].clone();
        two["devices"]["requests"].as_array_mut().unwrap().push(one);
        assert!(of(two).unwrap_err().contains("2 requests"));
    }

    #[test]
    fn a_job_that_linkwise_would_not_name_in_this_namespace_is_none() {
        let of = |job: &str| {
            let claim = json!({"metadata": {"name": "c", "namespace": "a", "annotations": {JOB: job}}, "spec": {},
                "status": {"allocation": {}}});
            super::job(&serde_json::from_value(claim).unwrap()).map(str::to_owned)
        };
        for good in ["k8s:a:g:1", "k8s:a:g.x_y-z:00ff.3"] {
            assert_eq!(of(good).as_deref(), Some(good));
        }
        let long = format!("k8s:a:{}", "x".repeat(123));
        for bad in
            ["a b", "k8s:a:a b", "k8s:b:g:1", "k8s:ab:g:1", "slurm:1", "k8s:a:", "k8s:a:g/../x", "k8s:a:ä", "", &long]
        {
            assert_eq!(of(bad), None, "{bad}");
        }
        let longest = job_name(&"n".repeat(63), &"g".repeat(253), u64::MAX) + ".7";
        assert!(longest.len() <= JOB_BYTES_MAX, "{longest}");
    }

    #[test]
    fn names_of_claims_wait_for_the_template_and_skip_what_needs_none() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {}, "spec": {"containers": [], "resourceClaims": [
            {"name": "a", "resourceClaimName": "given"}, {"name": "b", "resourceClaimTemplateName": "t"},
            {"name": "c", "resourceClaimTemplateName": "t"}, {"name": "d", "resourceClaimTemplateName": "t"}]},
            "status": {"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "made"}, {"name": "c"}]}}))
        .unwrap();
        assert_eq!(names(&pod), [Some("given".into()), Some("made".into()), None]);
    }
}
