//! One pass of facts: what the API says in, the writes out. [`decide`] is a function; [`Sync`] reads and writes.

use super::cluster::{self, Inputs};
use super::guard;
use super::resource::{
    CLUSTER_BYTES_MAX, ClusterSpec, ClusterStatus, GpuCluster, HostFacts, SuspectStatus, Update, gpu_cluster,
    host_facts, listed,
};
use super::slices;
use super::taints::{self, Change, Effect, Suspect};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Error, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::PathBuf;
use topology::{Cluster, file};

/// Field manager of what is written here.
pub const MANAGER: &str = "linkwise-facts";
/// Objects of one page of a list.
const PAGE: u32 = 500;

/// What a pass needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of the `GpuCluster`.
    pub cluster: String,
    /// Driver of the GPUs.
    pub driver: String,
    /// Where the cluster file goes; none: nowhere.
    pub file: Option<PathBuf>,
    /// Effect of rules; none: no rules.
    pub taint: Option<Effect>,
    /// Least probability of a new rule.
    pub taint_from: f64,
}

/// What the API said.
#[derive(Clone, Debug, Default)]
pub struct World {
    pub slices: Vec<ResourceSlice>,
    pub nodes: Vec<Node>,
    pub facts: Vec<HostFacts>,
    pub claims: Vec<ResourceClaim>,
    pub rules: Vec<DeviceTaintRule>,
    /// The `GpuCluster`; none: it is to be made.
    pub object: Option<GpuCluster>,
    /// The server's suspects; none: it did not answer, and the rules stay.
    pub suspects: Option<Vec<Suspect>>,
}

/// What a pass writes.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// The new cluster of the object; none: it stays.
    pub spec: Option<Value>,
    /// The cluster in force, for the server; none: there is none yet.
    pub cluster: Option<Cluster>,
    pub status: ClusterStatus,
    pub changes: Vec<Change>,
}

/// What to write. O(GPUs + text).
pub fn decide(world: &World, s: &Settings, now: Timestamp) -> Decision {
    let devices = slices::read(&world.slices, &s.driver);
    let spec = world.object.as_ref().map(|o| o.spec.clone()).unwrap_or_default();
    let old_status = world.object.as_ref().and_then(|o| o.status.clone()).unwrap_or_default();
    let generation = world.object.as_ref().and_then(|o| o.metadata.generation).unwrap_or(0);
    let conditions = Conditions { old: &old_status.conditions, now, generation };
    let mut status = ClusterStatus { observed_generation: generation, ..ClusterStatus::default() };
    let mut out = Decision::default();

    let old = spec.cluster.as_ref().map(|c| parse(c, &s.cluster)).transpose();
    let accepted = match &old {
        Ok(_) => conditions.of("Accepted", true, "Read", "the cluster can be used"),
        Err(e) => conditions.of("Accepted", false, "NotReadable", e),
    };
    let mut in_force = old.as_ref().ok().cloned().flatten();
    let mut up_to_date = conditions.of("UpToDate", false, "NotReadable", "the cluster of the object cannot be read");
    if let Ok(old) = &old {
        let collected: BTreeMap<String, _> =
            world.facts.iter().filter_map(|f| Some((f.metadata.name.clone()?, f.spec.clone()))).collect();
        let inputs = Inputs { devices: &devices, nodes: &world.nodes, collected: &collected, types: &spec.types };
        up_to_date = match cluster::update(old.as_ref(), &s.cluster, inputs) {
            Err(e) => conditions.of("UpToDate", false, "NotDecided", &e),
            Ok(u) => {
                status.notes = listed(u.notes);
                if old.is_some() && u.differences.is_empty() {
                    conditions.of("UpToDate", true, "AsNodes", "the cluster is as its nodes are")
                } else if old.is_some() && spec.update == Update::Manual {
                    status.differences = listed(u.differences);
                    conditions.of(
                        "UpToDate",
                        false,
                        "Manual",
                        "spec.update is Manual, and the nodes differ: see status.differences",
                    )
                } else {
                    match value(&u.cluster) {
                        Err(e) => conditions.of("UpToDate", false, "TooLarge", &e),
                        Ok(v) => {
                            status.differences = listed(u.differences);
                            out.spec = Some(v);
                            in_force = Some(u.cluster);
                            conditions.of("UpToDate", true, "Updated", "the cluster was brought up to its nodes")
                        }
                    }
                }
            }
        };
    }
    let alarms = guard::alarms(&world.claims, &s.driver);
    let one_writer = match alarms.as_slice() {
        [] => conditions.of("OneWriter", true, "NoConflict", "no allocation conflicts"),
        [first, ..] => conditions.of("OneWriter", false, "ForeignWriter", first),
    };
    status.alarms = listed(alarms);
    status.hosts = in_force.as_ref().map_or(0, |c| c.hosts.len() as u32);
    status.gpus = in_force.as_ref().map_or(0, |c| c.gpu_count() as u32);
    match (&world.suspects, &in_force) {
        (Some(suspects), Some(c)) => {
            let mut rules = BTreeMap::new();
            if let Some(effect) = s.taint {
                let (wanted, of) = taints::wanted(c, &devices, suspects, &world.rules, effect, s.taint_from);
                out.changes = taints::changes(&world.rules, &wanted);
                rules = of;
            }
            let percent = |share: f64| (share * 100.0).round().clamp(0.0, 100.0) as u8;
            let told = |x: &Suspect| SuspectStatus {
                component: x.component.clone(),
                probability_percent: percent(x.probability),
                rate_percent: percent(x.factor),
                rules: rules.get(&x.component).cloned().unwrap_or_default(),
            };
            let mut all: Vec<SuspectStatus> = suspects.iter().map(told).filter(|x| x.probability_percent > 0).collect();
            all.sort_by_key(|s| std::cmp::Reverse(s.probability_percent));
            all.truncate(super::resource::LISTED_MAX);
            status.suspects = all;
        }
        _ => status.suspects = old_status.suspects.clone(),
    }
    status.conditions = vec![accepted, up_to_date, one_writer];
    Decision { cluster: in_force, status, ..out }
}

/// The cluster of an object. The error names line and remedy.
fn parse(cluster: &Value, name: &str) -> Result<Cluster, String> {
    let text = serde_json::to_string_pretty(cluster).map_err(|e| e.to_string())?;
    let read = file::read(&text, &format!("spec.cluster of gpucluster {name}")).map_err(|e| e.to_string())?;
    read.check()?;
    Ok(read)
}

/// A cluster as an object holds it.
fn value(cluster: &Cluster) -> Result<Value, String> {
    let text = file::to_json(cluster);
    if text.len() > CLUSTER_BYTES_MAX {
        let mib = CLUSTER_BYTES_MAX as f64 / f64::from(1 << 20);
        return Err(format!(
            "the cluster has {} hosts, more than an object of {mib:.1} MiB holds; give the server a cluster file",
            cluster.hosts.len()
        ));
    }
    serde_json::from_str(&text).map_err(|e| e.to_string())
}

struct Conditions<'a> {
    old: &'a [Condition],
    now: Timestamp,
    generation: i64,
}

impl Conditions<'_> {
    /// A condition; the time of its last change stays unless it changes.
    fn of(&self, kind: &str, holds: bool, reason: &str, message: &str) -> Condition {
        let status = if holds { "True" } else { "False" };
        let before = self.old.iter().find(|c| c.type_ == kind && c.status == status);
        let message: String = message.chars().take(4_000).collect();
        Condition {
            type_: kind.into(),
            status: status.into(),
            reason: reason.into(),
            message,
            last_transition_time: before.map_or(Time(self.now), |c| c.last_transition_time.clone()),
            observed_generation: Some(self.generation),
        }
    }
}

/// Why a pass did not end.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The API refused or did not answer; the next pass tries again.
    #[error("{what}: {error}")]
    Api {
        /// The request.
        what: &'static str,
        /// Its error.
        error: Box<Error>,
    },
    /// The cluster file cannot be written.
    #[error("{0}")]
    File(#[from] files::FileError),
}

fn api(what: &'static str) -> impl Fn(Error) -> SyncError {
    move |e| SyncError::Api { what, error: Box::new(e) }
}

/// Reads and writes.
#[derive(Clone)]
pub struct Sync {
    client: Client,
    settings: Settings,
}

impl Sync {
    /// A synchroniser.
    pub fn new(client: Client, settings: Settings) -> Sync {
        Sync { client, settings }
    }

    fn object(&self) -> Api<GpuCluster> {
        Api::all_with(self.client.clone(), &gpu_cluster())
    }

    /// All claims of the cluster.
    ///
    /// # Errors
    /// The API refuses the list or does not answer.
    pub async fn claims(&self) -> Result<Vec<ResourceClaim>, SyncError> {
        all(&Api::all(self.client.clone()), "").await.map_err(api("ResourceClaims"))
    }

    /// What the API says now; six lists.
    ///
    /// # Errors
    /// The API refuses a list or does not answer.
    pub async fn world(&self, suspects: Option<Vec<Suspect>>) -> Result<World, SyncError> {
        let c = &self.client;
        let rules = match self.settings.taint {
            None => Vec::new(),
            Some(_) => {
                let label = format!("{}={}", taints::MANAGED.0, taints::MANAGED.1);
                all(&Api::<DeviceTaintRule>::all(c.clone()), &label)
                    .await
                    .map_err(api("DeviceTaintRules (resource.k8s.io/v1beta2 with the gate DRADeviceTaintRules)"))?
            }
        };
        Ok(World {
            slices: all(&Api::all(c.clone()), "").await.map_err(api("ResourceSlices"))?,
            nodes: all(&Api::all(c.clone()), "").await.map_err(api("nodes"))?,
            facts: all(&Api::all_with(c.clone(), &host_facts()), "").await.map_err(api("HostFacts"))?,
            claims: self.claims().await?,
            rules,
            object: self.object().get_opt(&self.settings.cluster).await.map_err(api("the GpuCluster"))?,
            suspects,
        })
    }

    /// One pass: reads, decides, writes. `suspects`: none leaves the rules as they are.
    ///
    /// # Errors
    /// The API refuses a request or does not answer, or another writer changed the object meanwhile; the next pass tries again.
    pub async fn pass(&self, suspects: Option<Vec<Suspect>>, now: Timestamp) -> Result<Decision, SyncError> {
        let world = self.world(suspects).await?;
        self.write_of(&world, now).await
    }

    /// Decides on a world that was read before, and writes.
    ///
    /// # Errors
    /// Those of [`Sync::pass`].
    pub async fn write_of(&self, world: &World, now: Timestamp) -> Result<Decision, SyncError> {
        let decision = decide(world, &self.settings, now);
        self.write(world, &decision).await?;
        Ok(decision)
    }

    async fn write(&self, world: &World, d: &Decision) -> Result<(), SyncError> {
        let (objects, name) = (self.object(), self.settings.cluster.as_str());
        let post = PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() };
        let parameters = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
        match &world.object {
            None => {
                // Also without a cluster: the status says why there is none.
                let spec = ClusterSpec { cluster: d.spec.clone(), ..ClusterSpec::default() };
                let object = GpuCluster::new(name, &gpu_cluster(), spec);
                objects.create(&post, &object).await.map_err(api("create the GpuCluster"))?;
            }
            Some(object) => {
                if let Some(spec) = &d.spec {
                    // With the resourceVersion that was read: the write fails if somebody edited the object since.
                    let mut object = object.clone();
                    object.spec.cluster = Some(spec.clone());
                    objects.replace(name, &post, &object).await.map_err(api("update the GpuCluster"))?;
                }
            }
        }
        if let (Some(path), Some(cluster)) = (&self.settings.file, &d.cluster) {
            let text = file::to_json(cluster);
            let there = files::read_limited(path, topology::read::FILE_SIZE_MAX).unwrap_or_default();
            if there != text.as_bytes() {
                files::write_atomic(path, text)?;
            }
        }
        if world.object.as_ref().and_then(|o| o.status.as_ref()) != Some(&d.status) {
            let status = json!({"status": d.status});
            objects
                .patch_status(name, &parameters, &Patch::Merge(status))
                .await
                .map_err(api("the status of the GpuCluster"))?;
        }
        let rules: Api<DeviceTaintRule> = Api::all(self.client.clone());
        for change in &d.changes {
            match change {
                Change::Create(r) => rules.create(&post, r).await.map(drop),
                Change::Replace(r) => {
                    let patch = json!({"metadata": {"annotations": r.metadata.annotations}, "spec": r.spec});
                    rules.patch(&r.name_any(), &parameters, &Patch::Merge(patch)).await.map(drop)
                }
                Change::Delete(n) => rules.delete(n, &DeleteParams::default()).await.map(drop),
            }
            .or_else(gone)
            .map_err(api("a DeviceTaintRule"))?;
        }
        Ok(())
    }
}

/// An object that is gone already is no error.
fn gone(e: Error) -> Result<(), Error> {
    match e {
        Error::Api(s) if s.code == 404 => Ok(()),
        e => Err(e),
    }
}

/// All objects with a label, page by page.
pub(crate) async fn all<K>(of: &Api<K>, label: &str) -> Result<Vec<K>, Error>
where
    K: Resource + Clone + DeserializeOwned + Serialize + Debug,
{
    let mut out = Vec::new();
    let mut page = ListParams { limit: Some(PAGE), ..ListParams::default() };
    if !label.is_empty() {
        page.label_selector = Some(label.into());
    }
    loop {
        let list = of.list(&page).await?;
        out.extend(list.items);
        match list.metadata.continue_.filter(|c| !c.is_empty()) {
            Some(next) => page.continue_token = Some(next),
            None => return Ok(out),
        }
    }
}
