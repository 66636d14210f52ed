//! A control plane with a site, linkwise's server for the same site, and gangs.

use crate::helm::{Helm, Kinds, program};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use lab_kubernetes::{ControlPlane, DRIVER, Options, Site, User, gpu_name, node_name, or_skip, uuid};
use linkwise_kubernetes::controller::{Counters, run};
use linkwise_kubernetes::names::{CLAIM_LABEL, CONDITION, GANG, GANG_SIZE, GATE};
use linkwise_kubernetes::{Settings, claim, gang};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// How long a test waits for anything.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// The account that the chart gives the controller.
const ACCOUNT: &str = "system:serviceaccount:linkwise:linkwise-controller";
/// Namespaces where it has rights.
const PLACED: [&str; 2] = ["a", "b"];
/// The one of them whose plain pods the policy of the chart gates.
pub const GATED: &str = "b";
/// Namespaces of the tests. In the last one the controller has no rights.
const NAMESPACES: [&str; 3] = ["a", "b", "c"];

/// The cluster file of a site of [`Site`]: H100 hosts below leaf switches, two or more, with the UUIDs of its GPUs.
fn cluster_file(nodes: usize) -> String {
    let host = |n: usize| {
        let uuids: Vec<String> = (0..8).map(|g| uuid(n, g)).collect();
        json!({"name": node_name(n), "type": "hgx-h100", "gpu_uuids": uuids})
    };
    let leaf = json!({"name": "leaf", "hosts_per_switch": nodes.div_ceil(2).min(32), "oversubscription": 2});
    json!({"name": "lab", "network": {"tiers": [leaf]}, "hosts": (0..nodes).map(host).collect::<Vec<_>>()}).to_string()
}

/// `linkwise serve` on loopback: the program that was built beside this test. It ends with the control plane, in whose folder its state is.
pub struct Linkwise {
    child: Child,
    pub at: SocketAddr,
}

impl Linkwise {
    pub fn start(plane: &ControlPlane, nodes: usize) -> Linkwise {
        let [site, state] = ["site.yaml", "s.db"].map(|f| plane.folder().join(f));
        std::fs::write(&site, cluster_file(nodes)).unwrap();
        let built = || std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("linkwise");
        let program = std::env::var_os("LINKWISE_TEST_LINKWISE").map_or_else(built, PathBuf::from);
        let mut child = Command::new(&program)
            .args(["serve", "--listen", "127.0.0.1:0", "--format", "json"])
            .args(["--cluster".as_ref(), site.as_os_str(), "--state".as_ref(), state.as_os_str()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{}: {e}: cargo build --workspace --bin linkwise", program.display()));
        plane.end_too(child.id()).unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"));
        Linkwise { at: said["listens"].as_str().unwrap().parse().unwrap(), child }
    }

    pub fn url(&self) -> String {
        format!("http://localhost:{}", self.at.port())
    }

    /// Asks the server; an answer in JSON.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> Value {
        let mut to = TcpStream::connect(self.at).unwrap();
        to.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(
            to,
            "{method} {path} HTTP/1.1\r\nHost: localhost:{}\r\nContent-Type: application/json\r\nConnection: close\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.at.port(),
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        to.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 2"), "{method} {path}: {answer}");
        serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {answer}"))
    }

    /// Jobs and GPUs of the state.
    pub fn jobs(&self) -> BTreeMap<String, Vec<String>> {
        let answer = self.ask("GET", "/v1/allocations", "");
        let gpus = |j: &Value| j["gpus"].as_array().unwrap().iter().map(|g| g.as_str().unwrap().to_owned()).collect();
        answer["jobs"].as_array().unwrap().iter().map(|j| (j["id"].as_str().unwrap().to_owned(), gpus(j))).collect()
    }
}

impl Drop for Linkwise {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

static LAB: OnceLock<Option<Mutex<Lab>>> = OnceLock::new();

/// The control plane that tests share: one at a time, four nodes, all GPUs free whatever an earlier test left. None after a SKIP line.
pub fn lab(test: &str) -> Option<MutexGuard<'static, Lab>> {
    let lab = LAB.get_or_init(|| Lab::start(test, 4).map(Mutex::new)).as_ref();
    if lab.is_none() {
        println!("SKIP {test}: the control plane of Kubernetes is not built: run `make build-kubernetes`");
    }
    let lab = lab?.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    lab.runtime.block_on(reset(&lab));
    Some(lab)
}

/// A control plane with nodes and GPUs, the server, and a runtime.
pub struct Lab {
    pub plane: ControlPlane,
    pub linkwise: Linkwise,
    /// The administrator's.
    pub client: Client,
    /// The controller's, and its user: with the rights of the chart if there is Helm, else the administrator.
    pub acting: Client,
    pub account: &'static str,
    pub runtime: Runtime,
    pub nodes: usize,
    pub gpus: usize,
}

impl Lab {
    /// None, after a SKIP line, if the control plane is not built.
    pub fn start(test: &str, nodes: usize) -> Option<Lab> {
        Lab::with(test, nodes, Options::default())
    }

    pub fn with(test: &str, nodes: usize, options: Options) -> Option<Lab> {
        let groups = vec!["system:serviceaccounts".into(), "system:serviceaccounts:linkwise".into()];
        let options = Options { users: vec![User { name: ACCOUNT.into(), groups }], ..options };
        let plane = or_skip(test, ControlPlane::start(options))?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let client = runtime.block_on(async {
            let client = plane.client().await;
            Site { nodes, gpus: 8 }.create(&client).await.unwrap();
            for namespace in ["linkwise"].into_iter().chain(NAMESPACES) {
                let labels = if namespace == GATED { json!({CLAIM_LABEL: "true"}) } else { json!({}) };
                let metadata = json!({"name": namespace, "labels": labels});
                make::<Namespace>(&Api::all(client.clone()), json!({"metadata": metadata})).await;
            }
            client
        });
        let linkwise = Linkwise::start(&plane, nodes);
        let account = match program() {
            Some(program) => {
                runtime.block_on(rights(&plane, &client, program));
                ACCOUNT
            }
            None => "admin",
        };
        let acting = runtime.block_on(async {
            let config = plane.config_as(account, plane.port()).await;
            linkwise_kubernetes::client::once(config).unwrap()
        });
        Some(Lab { plane, linkwise, client, acting, account, runtime, nodes, gpus: 8 })
    }

    pub fn settings(&self) -> Settings {
        let in_namespace = PLACED.map(str::to_owned).to_vec();
        Settings { lease_seconds: 3, in_namespace, ..Settings::of(&self.linkwise.url()) }
    }

    pub fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub fn claims(&self, namespace: &str) -> Api<ResourceClaim> {
        Api::namespaced(self.client.clone(), namespace)
    }
}

/// Gives the account the rights of the chart, and plain pods of [`GATED`] its gate and templates.
async fn rights(plane: &ControlPlane, client: &Client, program: PathBuf) {
    let helm = Helm { program, kubeconfig: None, home: tempfile::tempdir().unwrap() };
    let namespaces = format!("namespaces={{{}}}", PLACED.join(","));
    let kinds = Kinds::of(client).await;
    for object in helm.template(plane.release(), &[&namespaces]).unwrap() {
        let is = |field: &str, part: &str| object[field].as_str().is_some_and(|v| v.starts_with(part));
        let gates = is("kind", "MutatingAdmissionPolicy") || is("kind", "ResourceClaimTemplate");
        if is("apiVersion", "rbac.authorization.k8s.io/") || gates {
            kinds.create(client, &object, false).await.unwrap();
        }
    }
}

/// Removes what a test made, also one that failed in the middle: otherwise its pods and policies fail all later ones.
async fn reset(lab: &Lab) {
    let (all, by_now) =
        (ListParams::default(), DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() });
    let none = DeleteParams::background();
    let cluster = |c: &Client| {
        (Api::<ValidatingAdmissionPolicyBinding>::all(c.clone()), Api::<ValidatingAdmissionPolicy>::all(c.clone()))
    };
    let (bindings, policies) = cluster(&lab.client);
    until("the policies are gone", || async {
        bindings.delete_collection(&none, &all).await.ok()?;
        policies.delete_collection(&none, &all).await.ok()?;
        policies.list(&all).await.ok()?.items.is_empty().then_some(())
    })
    .await;
    // The next controller need not wait for the end of a killed one's lease.
    let leases: Api<Lease> = Api::namespaced(lab.client.clone(), "linkwise");
    let _ = leases.delete(linkwise_kubernetes::leader::LEASE, &none).await;
    let nodes: Api<Node> = Api::all(lab.client.clone());
    let plain =
        Patch::Merge(json!({"spec": {"taints": null, "unschedulable": null}, "metadata": {"labels": {"pool": null}}}));
    for n in 0..lab.nodes {
        until("the nodes are as they were", || async {
            nodes.patch(&node_name(n), &PatchParams::default(), &plain).await.ok()
        })
        .await;
    }
    for namespace in NAMESPACES {
        let (pods, claims) = (lab.pods(namespace), lab.claims(namespace));
        let (jobs, budgets): (Api<Job>, Api<PodDisruptionBudget>) =
            (Api::namespaced(lab.client.clone(), namespace), Api::namespaced(lab.client.clone(), namespace));
        let events: Api<Event> = Api::namespaced(lab.client.clone(), namespace);
        let templates: Api<ResourceClaimTemplate> = Api::namespaced(lab.client.clone(), namespace);
        until("pods and claims are gone", || async {
            jobs.delete_collection(&none, &all).await.ok()?;
            budgets.delete_collection(&none, &all).await.ok()?;
            events.delete_collection(&none, &all).await.ok()?;
            templates.delete_collection(&none, &all.clone().labels("app.kubernetes.io/name!=linkwise")).await.ok()?;
            pods.delete_collection(&by_now, &all).await.ok()?;
            claims.delete_collection(&none, &all).await.ok()?;
            let left = claims.list(&all).await.ok()?.items;
            for claim in &left {
                let free = Patch::Merge(json!({"status": {"allocation": null, "reservedFor": null, "devices": null}}));
                let _ = claims.patch_status(&claim.name_any(), &PatchParams::default(), &free).await;
                let bare = Patch::Merge(json!({"metadata": {"finalizers": null}}));
                let _ = claims.patch(&claim.name_any(), &PatchParams::default(), &bare).await;
            }
            (left.is_empty() && pods.list(&all).await.ok()?.items.is_empty()).then_some(())
        })
        .await;
    }
    let hosts: Vec<String> = (0..lab.nodes).map(node_name).collect();
    lab.linkwise.ask("POST", "/v1/hosts/undrain", &json!({"gpus": hosts}).to_string());
    for job in lab.linkwise.jobs().into_keys() {
        lab.linkwise.ask("DELETE", &format!("/v1/allocations/{job}"), "");
    }
}

/// Creates an object.
pub async fn make<T>(api: &Api<T>, object: Value) -> T
where
    T: Clone + serde::de::DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    let object: T = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap()
}

/// A controller in this process. It is killed at once when it is dropped: what it was doing ends in the middle.
pub struct Controller {
    task: JoinHandle<()>,
    pub counters: Arc<Counters>,
    pub lines: Arc<Mutex<Vec<String>>>,
}

impl Controller {
    pub fn start(lab: &Lab, client: Client, settings: Settings) -> Controller {
        let counters = Arc::new(Counters::default());
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let (of, to) = (Arc::clone(&counters), Arc::clone(&lines));
        let task = lab.runtime.spawn(async move {
            let log = move |line: &str| {
                if std::env::var_os("LINKWISE_TEST_KUBERNETES_LOG").is_some() {
                    eprintln!("controller: {line}");
                }
                to.lock().unwrap().push(line.to_owned());
            };
            run(client, settings, of, log).await.unwrap();
        });
        Controller { task, counters, lines }
    }

    pub fn log(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A pod of a gang: `more` is merged into its spec.
pub fn pod(name: &str, gang: &str, size: usize, claim: Option<&str>, more: Value) -> Value {
    let mut spec = json!({
        "schedulingGates": [{"name": GATE}],
        "containers": [{"name": "c", "image": "none", "resources": {"requests": {"cpu": "1"}}}],
    });
    if let Some(claim) = claim {
        spec["resourceClaims"] = json!([{"name": "gpus", "resourceClaimName": claim}]);
        spec["containers"][0]["resources"]["claims"] = json!([{"name": "gpus"}]);
    }
    merge(&mut spec, &more);
    json!({"metadata": {"name": name, "labels": {GANG: gang, GANG_SIZE: size.to_string()}}, "spec": spec})
}

fn merge(into: &mut Value, more: &Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (k, v) in more {
                merge(into.entry(k).or_insert(Value::Null), v);
            }
        }
        (into, more) => *into = more.clone(),
    }
}

/// A claim for whole GPUs.
pub fn gpu_claim(name: &str, gpus: usize) -> Value {
    json!({"metadata": {"name": name}, "spec": {"devices": {"requests": [
        {"name": "gpu", "exactly": {"deviceClassName": DRIVER, "count": gpus}}]}}})
}

/// A gang of pods with a claim of its own each: `NAME-0`, `NAME-1`, ...
pub async fn make_gang(lab: &Lab, namespace: &str, name: &str, gpus: &[usize], more: Value) {
    for (i, n) in gpus.iter().enumerate() {
        let of = format!("{name}-{i}");
        make(&lab.claims(namespace), gpu_claim(&of, *n)).await;
        make(&lab.pods(namespace), pod(&of, name, gpus.len(), Some(&of), more.clone())).await;
    }
}

/// Waits until `done` holds, or panics with `what`.
pub async fn until<F: Future<Output = Option<T>>, T>(what: &str, mut done: impl FnMut() -> F) -> T {
    let begin = Instant::now();
    loop {
        if let Some(value) = done().await {
            return value;
        }
        assert!(begin.elapsed() < PATIENCE, "not within {} s: {what}", PATIENCE.as_secs());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Node of every pod of a gang, once all are bound.
pub async fn bound(lab: &Lab, namespace: &str, gang: &str, pods: usize) -> BTreeMap<String, String> {
    let api = lab.pods(namespace);
    let list = ListParams::default().labels(&format!("{GANG}={gang}"));
    until(&format!("all pods of {gang} are bound"), || async {
        let found = api.list(&list).await.ok()?.items;
        let nodes: BTreeMap<String, String> =
            found.iter().filter_map(|p| Some((p.name_any(), p.spec.as_ref()?.node_name.clone()?))).collect();
        (nodes.len() == pods).then_some(nodes)
    })
    .await
}

/// The node of a pod of namespace `a`, once it is bound.
pub async fn bound_pod(lab: &Lab, name: &str) -> String {
    until(&format!("{name} is bound"), || async { lab.pods("a").get(name).await.ok()?.spec?.node_name }).await
}

/// What a pod of namespace `a` says that it waits for, once it says `word`.
pub async fn says(lab: &Lab, name: &str, word: &str) -> String {
    until(&format!("{name} says `{word}`"), || async {
        let conditions = lab.pods("a").get(name).await.ok()?.status?.conditions?;
        let message = conditions.into_iter().find(|c| c.type_ == CONDITION && c.status == "False")?.message?;
        message.contains(word).then_some(message)
    })
    .await
}

/// Devices of a claim: `POOL/NAME`, sorted.
pub fn devices(claim: &ResourceClaim) -> BTreeSet<String> {
    linkwise_kubernetes::device::allocated(claim).map(|(_, p)| format!("{}/{}", p.pool, p.name)).collect()
}

/// The devices of GPUs by their names in linkwise: `n0:3`.
pub fn devices_of(names: &[String]) -> BTreeSet<String> {
    let device = |name: &String| {
        let (host, index) = name.rsplit_once(':').unwrap();
        format!("{host}/{}", gpu_name(index.parse().unwrap(), 8))
    };
    names.iter().map(device).collect()
}

/// Nothing is held: no allocation in any claim, no job in the state.
pub async fn all_released(lab: &Lab) {
    let claims: Api<ResourceClaim> = Api::all(lab.client.clone());
    until("all claims are released", || async {
        let held: Vec<String> = claims
            .list(&ListParams::default())
            .await
            .ok()?
            .items
            .iter()
            .filter(|c| claim::is_allocated(c) || claim::is_kept(c))
            .map(ResourceExt::name_any)
            .collect();
        held.is_empty().then_some(())
    })
    .await;
    until("the state has no job", || async { lab.linkwise.jobs().is_empty().then_some(()) }).await;
}

/// Deletes a pod as a kubelet would after its end.
pub async fn delete_pod(lab: &Lab, namespace: &str, name: &str) {
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    let _ = lab.pods(namespace).delete(name, &now).await;
}

/// Number of gated pods.
pub async fn gated(lab: &Lab, namespace: &str) -> usize {
    let pods = lab.pods(namespace).list(&ListParams::default()).await.unwrap();
    pods.items.iter().filter(|p| gang::is_gated(p)).count()
}

/// What must hold at any moment: no device in two claims, and every allocation is linkwise's and never changes.
#[derive(Debug, Default)]
pub struct Watcher {
    seen: BTreeMap<(String, String), BTreeSet<String>>,
    pub looks: usize,
}

impl Watcher {
    /// Looks at all claims; what is wrong.
    pub fn look(&mut self, claims: &[ResourceClaim]) -> Result<(), String> {
        self.looks += 1;
        let mut holders: BTreeMap<String, String> = BTreeMap::new();
        for claim in claims.iter().filter(|c| claim::is_allocated(c)) {
            let name = format!("{}/{}", claim.namespace().unwrap_or_default(), claim.name_any());
            let found = devices(claim);
            for device in &found {
                if let Some(other) = holders.insert(device.clone(), name.clone()) {
                    return Err(format!("{device} is in {other} and {name}"));
                }
            }
            let Some(job) = claim::job(claim) else {
                return Err(format!("{name} was allocated by another program: {found:?}"));
            };
            // A claim may get other devices by another decision only.
            let of = (claim.uid().unwrap_or_default(), job.to_owned());
            let first = self.seen.entry(of).or_insert_with(|| found.clone());
            if *first != found {
                return Err(format!("{name} had {first:?} and has {found:?} in the same decision {job}"));
            }
        }
        Ok(())
    }

    /// Looks now.
    pub async fn look_at(&mut self, client: &Client) {
        let claims: Api<ResourceClaim> = Api::all(client.clone());
        if let Ok(list) = claims.list(&ListParams::default()).await {
            self.look(&list.items).unwrap();
        }
    }
}
