//! Suspected parts as DeviceTaintRules: the quarantine of one GPU or NIC, from measured bandwidth.
//!
//! A rule names a device by driver, pool and device name, which a restart of a node may change; its annotation has the uuid, and every pass writes
//! the name anew. Only rules with linkwise's label are touched.
//!
//! ```text
//!  suspicion >= from        rule with effect None: visible, nothing changes
//!  ... and NoSchedule set   GPU or NIC alone: the scheduler gives it to no further pod
//!  suspicion < from / 2     the rule goes
//! ```
//!
//! A suspicion of a link, a host or its network names no single device: its GPUs get effect None whatever is set.

use super::slices::Devices;
use crate::device::Place;
use k8s_openapi::api::resource::v1beta2::{DeviceTaint, DeviceTaintRule, DeviceTaintRuleSpec, DeviceTaintSelector};
use kube::api::ObjectMeta;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use topology::{Cluster, Host, HostId, names};

/// Key of the taint.
pub const TAINT: &str = "linkwise.dev/suspected";
/// Label of linkwise's rules.
pub const MANAGED: (&str, &str) = ("app.kubernetes.io/managed-by", "linkwise");
/// Annotation: the uuid of the GPU, or `NODE/NIC`.
const IDENTITY: &str = "linkwise.dev/identity";
/// Annotation: the suspicion, one line.
const SUSPICION: &str = "linkwise.dev/suspicion";
/// Maximum number of rules: more suspects than this are no suspicion of single parts.
pub const RULES_MAX: usize = 200;

/// The effect of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Effect {
    /// Visible only
    #[default]
    #[value(name = "None")]
    None,
    /// The scheduler gives the device to no further pod
    #[value(name = "NoSchedule")]
    NoSchedule,
}

impl Effect {
    fn text(self) -> &'static str {
        match self {
            Effect::None => "None",
            Effect::NoSchedule => "NoSchedule",
        }
    }
}

/// A suspect of the server's answer to `GET /v1/cluster`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Suspect {
    /// `NIC mlx5_3 of n1`.
    pub component: String,
    pub host: String,
    /// Share of its full rate, 0 to 1.
    pub factor: f64,
    /// 0 to 1.
    pub probability: f64,
}

/// The part that a suspect is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// GPU by index.
    Gpu(usize),
    /// NIC by name.
    Nic(String),
    /// A link, the host or its network.
    Shared(Vec<usize>),
}

/// The part by its words, the way the engine writes them; none if the cluster has no such part.
pub fn part(cluster: &Cluster, s: &Suspect) -> Option<(HostId, Part)> {
    let id = HostId(cluster.hosts.iter().position(|h| h.name == s.host)? as u32);
    let (t, host) = (cluster.type_of(id), s.host.as_str());
    let all = || (0..t.gpu_count()).collect::<Vec<_>>();
    let text = s.component.as_str();
    if text == format!("host {host}") || text == format!("the network of host {host}") {
        return Some((id, Part::Shared(all())));
    }
    if let Some(g) = all().into_iter().find(|g| text == format!("GPU {host}:{g}")) {
        return Some((id, Part::Gpu(g)));
    }
    if let Some(n) = t.nics.iter().find(|n| text == format!("NIC {} of {host}", n.name)) {
        return Some((id, Part::Nic(n.name.clone())));
    }
    let pairs = all().into_iter().flat_map(|a| all().into_iter().map(move |b| (a, b)));
    let mut linked = pairs.filter(|(a, b)| a < b && text == format!("link {host}:{a} - {host}:{b}"));
    linked.next().map(|(a, b)| (id, Part::Shared(vec![a, b])))
}

/// The devices of a part, each with its identity.
fn devices(devices: &Devices, host: &Host, part: &Part) -> Vec<(String, Place)> {
    let node = names::kubernetes::node_name(host);
    let gpu = |g: &usize| {
        let uuid = host.gpu_uuids.get(*g)?;
        let found = devices.nodes.get(node)?.gpus.iter().find(|d| d.uuid == *uuid)?;
        Some((uuid.clone(), found.place.clone()))
    };
    match part {
        Part::Gpu(g) => gpu(g).into_iter().collect(),
        Part::Shared(gpus) => gpus.iter().filter_map(gpu).collect(),
        Part::Nic(nic) => {
            let found = devices.nodes.get(node).and_then(|n| n.nics.get(nic));
            found.map(|d| (format!("{node}/{nic}"), d.clone())).into_iter().collect()
        }
    }
}

/// The rules as they should be, and their names by suspect. `from`: the least probability of a new rule; a rule that is there stays down to half of
/// it. O(suspects x GPUs of a host).
pub fn wanted(
    cluster: &Cluster,
    found: &Devices,
    suspects: &[Suspect],
    existing: &[DeviceTaintRule],
    effect: Effect,
    from: f64,
) -> (Vec<DeviceTaintRule>, BTreeMap<String, Vec<String>>) {
    let there: BTreeSet<&str> = existing.iter().filter_map(|r| r.metadata.name.as_deref()).collect();
    let mut rules: BTreeMap<String, DeviceTaintRule> = BTreeMap::new();
    let mut of_suspect: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut sorted: Vec<&Suspect> = suspects.iter().filter(|s| s.probability >= from / 2.0).collect();
    sorted.sort_by(|a, b| b.probability.total_cmp(&a.probability));
    for s in sorted {
        let Some((id, part)) = part(cluster, s) else { continue };
        let alone = !matches!(part, Part::Shared(_));
        for (identity, device) in devices(found, cluster.host(id), &part) {
            let name = rule_name(&identity);
            if s.probability < from && !there.contains(name.as_str()) || rules.len() >= RULES_MAX {
                continue;
            }
            of_suspect.entry(s.component.clone()).or_default().push(name.clone());
            let effect = if alone { effect } else { Effect::None };
            rules.entry(name.clone()).or_insert_with(|| rule(name, identity, device, s, &part, effect));
        }
    }
    (rules.into_values().collect(), of_suspect)
}

fn rule(name: String, identity: String, device: Place, s: &Suspect, part: &Part, effect: Effect) -> DeviceTaintRule {
    let percent = |share: f64| format!("{:.0} %", (share * 100.0).clamp(0.0, 100.0));
    let why = format!("{}: {} of its rate, probability {}", s.component, percent(s.factor), percent(s.probability));
    let kind = match part {
        Part::Gpu(_) => "gpu",
        Part::Nic(_) => "nic",
        Part::Shared(_) => "shared",
    };
    DeviceTaintRule {
        metadata: ObjectMeta {
            name: Some(name),
            labels: Some(BTreeMap::from([(MANAGED.0.into(), MANAGED.1.into())])),
            annotations: Some(BTreeMap::from([(IDENTITY.into(), identity), (SUSPICION.into(), why)])),
            ..ObjectMeta::default()
        },
        spec: DeviceTaintRuleSpec {
            device_selector: Some(DeviceTaintSelector {
                driver: Some(device.driver),
                pool: Some(device.pool),
                device: Some(device.name),
            }),
            taint: DeviceTaint {
                key: TAINT.into(),
                value: Some(kind.into()),
                effect: effect.text().into(),
                time_added: None,
            },
        },
        status: None,
    }
}

/// A write on the rules.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A new rule.
    Create(Box<DeviceTaintRule>),
    /// A rule of another effect, reason or device name.
    Replace(Box<DeviceTaintRule>),
    /// The suspicion has ended.
    Delete(String),
}

/// The writes that lead from the existing rules to the wanted ones. Rules without linkwise's label are left alone. O(rules).
pub fn changes(existing: &[DeviceTaintRule], wanted: &[DeviceTaintRule]) -> Vec<Change> {
    let ours = |r: &&DeviceTaintRule| {
        r.metadata.labels.as_ref().is_some_and(|l| l.get(MANAGED.0).map(String::as_str) == Some(MANAGED.1))
    };
    let existing: BTreeMap<&str, &DeviceTaintRule> =
        existing.iter().filter(ours).filter_map(|r| Some((r.metadata.name.as_deref()?, r))).collect();
    let names: BTreeSet<&str> = wanted.iter().filter_map(|r| r.metadata.name.as_deref()).collect();
    let gone = existing.keys().filter(|n| !names.contains(*n)).map(|n| Change::Delete((*n).to_owned()));
    let kept = wanted.iter().filter_map(|r| match existing.get(r.metadata.name.as_deref()?) {
        None => Some(Change::Create(Box::new(r.clone()))),
        Some(e) if same(e, r) => None,
        Some(_) => Some(Change::Replace(Box::new(r.clone()))),
    });
    kept.chain(gone).collect()
}

/// Equal but for what the API server adds, and for the last percent of the suspicion.
fn same(a: &DeviceTaintRule, b: &DeviceTaintRule) -> bool {
    let taint =
        |r: &DeviceTaintRule| (r.spec.taint.key.clone(), r.spec.taint.value.clone(), r.spec.taint.effect.clone());
    let identity = |r: &DeviceTaintRule| r.metadata.annotations.as_ref().and_then(|x| x.get(IDENTITY).cloned());
    a.spec.device_selector == b.spec.device_selector && taint(a) == taint(b) && identity(a) == identity(b)
}

/// A name that the API takes: readable, and unique by a hash of the identity.
fn rule_name(identity: &str) -> String {
    let hash = crate::hash::fnv64(identity.bytes());
    let words: String = identity
        .chars()
        .take(60)
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .collect();
    format!("linkwise-{}-{:08x}", words.trim_matches('-'), hash >> 32 ^ hash & 0xffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::slices::{NodeDevices, SliceGpu};
    use topology::catalog;

    fn site() -> (Cluster, Devices) {
        let mut c = catalog::cluster("h100").unwrap();
        let mut d = Devices::default();
        for h in &mut c.hosts {
            h.gpu_uuids = (0..8).map(|g| format!("GPU-{}-{g}", h.name)).collect();
            let name =
                |device: String, driver: &str| Place { driver: driver.into(), pool: h.name.clone(), name: device };
            let gpus = h.gpu_uuids.iter().enumerate();
            let gpus = gpus.map(|(g, u)| SliceGpu {
                place: name(format!("gpu-{}", 7 - g), "gpu.nvidia.com"),
                uuid: u.clone(),
                ..SliceGpu::default()
            });
            let nics =
                c.types[h.host_type].nics.iter().take(1).map(|n| (n.name.clone(), name("pci-1".into(), "dra.net")));
            d.nodes.insert(h.name.clone(), NodeDevices { gpus: gpus.collect(), nics: nics.collect() });
        }
        (c, d)
    }

    fn suspect(component: &str, probability: f64) -> Suspect {
        Suspect { component: component.into(), host: "n1".into(), factor: 0.6, probability }
    }

    #[test]
    fn a_suspected_gpu_gets_a_rule_that_goes_with_the_suspicion() {
        let (c, d) = site();
        let (rules, of) = wanted(&c, &d, &[suspect("GPU n1:3", 0.9), suspect("GPU n1:4", 0.4)], &[], Effect::None, 0.5);
        assert_eq!(rules.len(), 1);
        let selector = rules[0].spec.device_selector.as_ref().unwrap();
        assert_eq!(
            (selector.pool.as_deref(), selector.device.as_deref()),
            (Some("n1"), Some("gpu-4")),
            "by uuid, not by name"
        );
        assert_eq!(rules[0].spec.taint.effect, "None");
        assert_eq!(of["GPU n1:3"], [rules[0].metadata.name.clone().unwrap()]);
        assert!(matches!(changes(&[], &rules)[..], [Change::Create(_)]));
        assert_eq!(changes(&rules, &rules), []);
        let (kept, _) = wanted(&c, &d, &[suspect("GPU n1:3", 0.3)], &rules, Effect::None, 0.5);
        assert_eq!(kept.len(), 1, "a weaker suspicion keeps the rule");
        let (none, _) = wanted(&c, &d, &[suspect("GPU n1:3", 0.2)], &rules, Effect::None, 0.5);
        assert_eq!(changes(&rules, &none), [Change::Delete(rules[0].metadata.name.clone().unwrap())]);
        let (strict, _) = wanted(&c, &d, &[suspect("GPU n1:3", 0.9)], &rules, Effect::NoSchedule, 0.5);
        assert!(matches!(&changes(&rules, &strict)[..], [Change::Replace(r)] if r.spec.taint.effect == "NoSchedule"));
    }

    #[test]
    fn nics_are_devices_of_their_driver_and_shared_parts_never_keep_pods_away() {
        let (c, d) = site();
        let nic = c.types[0].nics[0].name.clone();
        let (rules, _) = wanted(&c, &d, &[suspect(&format!("NIC {nic} of n1"), 0.9)], &[], Effect::NoSchedule, 0.5);
        assert_eq!(rules[0].spec.device_selector.as_ref().unwrap().driver.as_deref(), Some("dra.net"));
        let (rules, _) = wanted(&c, &d, &[suspect("link n1:2 - n1:5", 0.9)], &[], Effect::NoSchedule, 0.5);
        assert_eq!(rules.iter().map(|r| r.spec.taint.effect.as_str()).collect::<Vec<_>>(), ["None", "None"]);
        let unknown = c.types[0].nics[1].name.clone();
        assert!(wanted(&c, &d, &[suspect(&format!("NIC {unknown} of n1"), 0.9)], &[], Effect::None, 0.5).0.is_empty());
    }

    #[test]
    fn rules_of_others_are_left_alone() {
        let mut foreign = DeviceTaintRule::default();
        foreign.metadata.name = Some("theirs".into());
        assert_eq!(changes(&[foreign], &[]), []);
    }

    #[test]
    fn names_are_names_of_the_api() {
        for id in ["GPU-8932f937-aaaa", "n1.example.com/mlx5_0", "é/é"] {
            let name = rule_name(id);
            let ok = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
            assert!(ok && name.len() <= 100, "{name}");
        }
    }
}
