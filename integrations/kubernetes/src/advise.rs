//! Advice: what pods could have had, where the scheduler chose their GPUs. Nothing but an annotation is written.
//!
//! ```text
//!  bound pods of a gang ──> their GPUs ──> server: what do these bring? what would a choice among these and the free ones have brought?
//!                                      └─> annotation linkwise.dev/advice on each pod
//! ```
//!
//! A gang is advised once its pods are bound, and again when its GPUs change. One GPU has no communication: no advice.

use crate::ask::{Server, listed};
use crate::device::{Held, Inventory, allocated};
use crate::facts::sync::all;
use crate::gang::{self, Key};
use crate::names::JOB;
use crate::pulse::{Pulse, PulseArgs};
use crate::settings::ServerArgs;
use crate::world::{Id, id};
use clap::Args;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// Annotation of pods: what they have and could have had, one line.
pub const ADVICE: &str = "linkwise.dev/advice";
/// Field manager of the annotation.
pub const MANAGER: &str = "linkwise-advise";
/// Gangs that one pass advises: each is two questions to the server.
const GANGS_MAX: usize = 50;
/// A choice that is less than this much better is no advice.
const WORTH: f64 = 1.05;

/// Settings of `advise`, as flags.
#[derive(Args, Clone, Debug)]
pub struct AdviseArgs {
    /// linkwise's server.
    #[command(flatten)]
    pub server: ServerArgs,
    /// The file for probes.
    #[command(flatten)]
    pub pulse: PulseArgs,
    /// Driver of the GPUs
    #[arg(long, default_value = "gpu.nvidia.com", value_name = "DRIVER")]
    pub driver: String,
    /// Namespace whose pods are advised; may be repeated
    #[arg(long, required = true, value_name = "NAMESPACE")]
    pub in_namespace: Vec<String>,
    /// Time between two passes, seconds
    #[arg(long, default_value_t = 30, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub every_seconds: u64,
}

/// The pods of a gang and the GPUs of each, by UUID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The gang.
    pub gang: Key,
    /// Its pods with GPUs, by name.
    pub pods: BTreeMap<Id, Vec<String>>,
}

/// Gangs of which every pod that asks for claims is bound with GPUs that linkwise did not choose. O(pods + devices).
pub fn bound(pods: &[Pod], claims: &[ResourceClaim], inventory: &Inventory, namespaces: &[String]) -> Vec<Bound> {
    let by_id: HashMap<Id, &ResourceClaim> = claims.iter().map(|c| (id(c), c)).collect();
    let mut gangs: BTreeMap<Key, Option<BTreeMap<Id, Vec<String>>>> = BTreeMap::new();
    for pod in pods.iter().filter(|p| p.namespace().is_some_and(|n| namespaces.contains(&n))) {
        let namespace = pod.namespace().unwrap_or_default();
        let named: Vec<Id> =
            crate::claim::names(pod).into_iter().flatten().map(|name| (namespace.clone(), name)).collect();
        if named.is_empty() || crate::plan::is_over(pod) {
            continue;
        }
        let gpus = |c: &Id| -> Option<Vec<String>> {
            let claim = by_id.get(c)?;
            if claim.annotations().contains_key(JOB) {
                return None;
            }
            Some(allocated(claim).filter_map(|(_, place)| Some(inventory.at(&place)?.uuid.clone())).collect())
        };
        let is_bound = pod.spec.as_ref().is_some_and(|s| s.node_name.is_some());
        let all: Option<Vec<Vec<String>>> = named.iter().map(gpus).collect();
        let entry = gangs.entry(gang::of(pod).0).or_insert_with(|| Some(BTreeMap::new()));
        match (is_bound, all.map(|a| a.concat())) {
            (true, Some(gpus)) if !gpus.is_empty() => {
                if let Some(pods) = entry {
                    pods.insert(id(pod), gpus);
                }
            }
            // Devices of other drivers: not a pod of the gang's GPUs.
            (true, Some(_)) => {}
            // Not whole yet, or chosen by linkwise: no advice.
            _ => *entry = None,
        }
    }
    let whole = gangs.into_iter().filter_map(|(gang, pods)| Some(Bound { gang, pods: pods? }));
    whole.filter(|b| b.pods.values().map(Vec::len).sum::<usize>() > 1).collect()
}

/// The advice, one line.
fn words(has: &str, gb_per_s: f64, possible: Option<(&str, f64)>) -> String {
    match possible {
        Some((could, better)) if better > gb_per_s * WORTH => {
            format!("has {has}: {gb_per_s:.0} GB/s predicted; {could} was possible: {better:.0} GB/s")
        }
        _ => format!("has {has}: {gb_per_s:.0} GB/s predicted; no choice was better by more than 5 %"),
    }
}

/// Advises for ever. A failure is told once and tried again.
///
/// # Errors
/// The address of the server cannot be used.
pub async fn run(client: Client, a: AdviseArgs, say: impl Fn(&str)) -> Result<(), String> {
    let pulse = Arc::new(Pulse::new(&a.pulse));
    let mut server = Server::new(&a.server)?.with_pulse(&pulse);
    let mut done: HashMap<Key, BTreeSet<String>> = HashMap::new();
    let mut told = String::new();
    let mut tick = tokio::time::interval(Duration::from_secs(a.every_seconds));
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        pulse.beat();
        tick.tick().await;
        let error = pass(&client, &mut server, &a, &mut done, &pulse).await.err().unwrap_or_default();
        if error != told {
            if !error.is_empty() {
                say(&error);
            }
            told = error;
        }
    }
}

/// One pass: the number of gangs that were advised. `done`: the GPUs of gangs that have their advice.
///
/// # Errors
/// The API or the server does not answer; the next pass tries again.
pub async fn pass(
    client: &Client,
    server: &mut Server,
    a: &AdviseArgs,
    done: &mut HashMap<Key, BTreeSet<String>>,
    pulse: &Pulse,
) -> Result<usize, String> {
    let api = |e: kube::Error| format!("the API of Kubernetes: {e}");
    let slices: Vec<ResourceSlice> = all(&Api::all(client.clone()), "").await.map_err(api)?;
    let claims: Vec<ResourceClaim> = all(&Api::all(client.clone()), "").await.map_err(api)?;
    let mut pods: Vec<Pod> = Vec::new();
    for namespace in &a.in_namespace {
        pulse.beat();
        pods.extend(all(&Api::<Pod>::namespaced(client.clone(), namespace), "").await.map_err(api)?);
    }
    let inventory = Inventory::of(&slices, &a.driver);
    let held = Held::of(&claims, &inventory);
    let gangs = bound(&pods, &claims, &inventory, &a.in_namespace);
    done.retain(|key, _| gangs.iter().any(|g| g.gang == *key));
    let gpus = |g: &Bound| g.pods.values().flatten().cloned().collect::<BTreeSet<_>>();
    let open: Vec<&Bound> = gangs.iter().filter(|g| done.get(&g.gang) != Some(&gpus(g))).take(GANGS_MAX).collect();
    if open.is_empty() {
        return Ok(0);
    }
    server.read_names().await.map_err(|e| e.to_string())?;
    let mut advised = 0;
    for gang in open {
        let own = gpus(gang);
        let named = |uuids: &mut dyn Iterator<Item = &String>| -> Vec<String> {
            uuids.filter_map(|u| server.name(u).map(str::to_owned)).collect()
        };
        let has = named(&mut own.iter());
        if has.len() < own.len() {
            continue; // the server does not know all of them yet
        }
        let free =
            inventory.devices().filter(|d| own.contains(&d.uuid) || (d.out.is_none() && held.by(&d.place).is_none()));
        let free: Vec<String> = named(&mut free.map(|d| &d.uuid));
        let sizes: Vec<usize> = gang.pods.values().map(Vec::len).collect();
        let now = server.predict(&has).await.map_err(|e| e.to_string())?;
        let possible = server.what_if(&sizes, &free).await.ok();
        let could = possible.as_ref().map(|p| listed(&p.pods.concat()));
        let better = could.as_deref().zip(possible.as_ref().map(|p| p.predicted_busbw_gb_per_s));
        let text = words(&listed(&has), now.predicted_busbw_gb_per_s, better);
        let patch = Patch::Merge(json!({"metadata": {"annotations": {ADVICE: text}}}));
        let manager = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
        for (namespace, name) in gang.pods.keys() {
            pulse.beat();
            match Api::<Pod>::namespaced(client.clone(), namespace).patch(name, &manager, &patch).await {
                Ok(_) => {}
                Err(kube::Error::Api(e)) if e.code == 404 => {}
                Err(e) => return Err(api(e)),
            }
        }
        done.insert(gang.gang.clone(), own);
        advised += 1;
    }
    Ok(advised)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, node: Option<&str>) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "a", "labels": {"linkwise.dev/gang": "g", "linkwise.dev/gang-size": "2"}},
            "spec": {"nodeName": node, "containers": [], "resourceClaims": [{"name": "g", "resourceClaimName": name}]},
        }))
        .unwrap()
    }

    fn claim(name: &str, devices: &[&str], by_linkwise: bool) -> ResourceClaim {
        let result = |d: &&str| json!({"request": "r", "driver": "gpu.nvidia.com", "pool": "n0", "device": d});
        let annotations = if by_linkwise { json!({JOB: "k8s/x"}) } else { json!({}) };
        serde_json::from_value(
            json!({"metadata": {"name": name, "namespace": "a", "annotations": annotations}, "spec": {},
            "status": {"allocation": {"devices": {"results": devices.iter().map(result).collect::<Vec<_>>()}}}}),
        )
        .unwrap()
    }

    fn inventory() -> Inventory {
        let device =
            |g: u8| json!({"name": format!("gpu-{g}"), "attributes": {"uuid": {"string": format!("GPU-{g}")}}});
        let slice: ResourceSlice =
            serde_json::from_value(json!({"metadata": {"name": "s"}, "spec": {"driver": "gpu.nvidia.com",
            "nodeName": "n0", "pool": {"name": "n0", "generation": 1, "resourceSliceCount": 1},
            "devices": (0..4).map(device).collect::<Vec<_>>()}}))
            .unwrap();
        Inventory::of([&slice], "gpu.nvidia.com")
    }

    #[test]
    fn gangs_are_advised_once_all_their_pods_are_bound_and_unless_linkwise_chose() {
        let (i, a) = (inventory(), ["a".to_owned()]);
        let claims = [claim("p0", &["gpu-0", "gpu-1"], false), claim("p1", &["gpu-2"], false)];
        let whole = bound(&[pod("p0", Some("n0")), pod("p1", Some("n0"))], &claims, &i, &a);
        assert_eq!(whole.len(), 1);
        assert_eq!(whole[0].pods.values().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
        assert!(bound(&[pod("p0", Some("n0")), pod("p1", None)], &claims, &i, &a).is_empty());
        let ours = [claim("p0", &["gpu-0", "gpu-1"], true), claim("p1", &["gpu-2"], false)];
        assert!(bound(&[pod("p0", Some("n0")), pod("p1", Some("n0"))], &ours, &i, &a).is_empty());
        assert!(bound(&[pod("p0", Some("n0")), pod("p1", Some("n0"))], &claims, &i, &["b".to_owned()]).is_empty());
    }

    #[test]
    fn the_advice_says_what_was_possible_only_if_it_is_worth_it() {
        assert_eq!(
            words("n0:[0-3]", 100.0, Some(("n1:[0-3]", 200.0))),
            "has n0:[0-3]: 100 GB/s predicted; n1:[0-3] was possible: 200 GB/s"
        );
        assert!(words("n0:[0-3]", 100.0, Some(("n1:[0-3]", 104.0))).ends_with("no choice was better by more than 5 %"));
        assert!(words("n0:[0-3]", 100.0, None).contains("100 GB/s"));
    }
}
