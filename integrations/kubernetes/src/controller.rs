//! The loop: watches, plans, writes.

mod choice;
mod doubt;
mod make_room;
mod mirror;
mod place;
mod tell;

use crate::ask::{Server, listed};
use crate::leader::{Candidate, Leadership};
use crate::names::REASON;
use crate::plan::{Plan, Step, plan};
use crate::pulse::Pulse;
use crate::settings::Settings;
use crate::world::{Change, Id, Told, World};
use crate::write::{WriteError, Writer};
use crate::{owner, say};
use doubt::Doubt;
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::api::{Api, ApiResource, DynamicObject};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

/// Time after which the world is looked at without a change: deadlines, sizes, refusals.
const TICK: Duration = Duration::from_secs(1);
/// Time after which a refused gang is asked for again although nothing changed: the server's own state may have.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// Shortest time between two texts on the same gang.
const SAY_AGAIN: Duration = Duration::from_secs(10);
/// Time for which a node that kube-scheduler refused is not chosen for the same gang again.
const AVOID: Duration = Duration::from_secs(600);
/// Time between two comparisons with the server's state.
const MIRROR: Duration = Duration::from_secs(30);
/// Time after which the server's names of GPUs are read again.
const NAMES: Duration = Duration::from_secs(60);
/// Refusals that are remembered as logged.
const LOGGED_MAX: usize = 10_000;
/// Pause after a failure of the API or the server.
const PAUSE: Duration = Duration::from_millis(500);

/// What a controller did. Counters only grow.
#[derive(Debug, Default)]
pub struct Counters {
    /// Gangs placed: all claims allocated.
    pub placed: AtomicU64,
    /// Pods released.
    pub released: AtomicU64,
    /// Decisions taken back.
    pub undone: AtomicU64,
    /// Gangs that started again after their deadline.
    pub restarted: AtomicU64,
    /// Gangs that were evicted for one of higher priority.
    pub preempted: AtomicU64,
    /// Decisions of the server.
    pub asked: AtomicU64,
    /// Writes to the API.
    pub writes: AtomicU64,
    /// Microseconds in which the server decided, in sum.
    pub ask_us: AtomicU64,
    /// Microseconds of the longest decision.
    pub ask_us_max: AtomicU64,
    /// Microseconds in which claims were written, in sum.
    pub allocate_us: AtomicU64,
    /// Microseconds in which pods were released, in sum.
    pub release_us: AtomicU64,
    /// Changes of the leader.
    pub terms: AtomicU64,
    /// Alarms.
    pub alarms: AtomicU64,
}

/// Runs until the future is dropped. `client` is the API's; `log` gets one line per event.
///
/// # Errors
/// The server's address cannot be used.
pub async fn run(
    client: Client,
    settings: Settings,
    counters: Arc<Counters>,
    log: impl Fn(&str) + Send + Sync + 'static,
) -> Result<(), String> {
    let pulse = Arc::new(Pulse::new(&settings.pulse));
    let server = Server::new(&settings.server)?.with_pulse(&pulse);
    let identity = settings.identity.clone().unwrap_or_else(identity);
    let leadership = Arc::new(Leadership::default());
    let log: Arc<Log> = Arc::new(log);
    let mut tasks = JoinSet::new();
    let candidate = Candidate::new(client.clone(), &settings.namespace, &identity, settings.lease());
    let (of, to) = (Arc::clone(&leadership), Arc::clone(&log));
    tasks.spawn(async move { candidate.run(&of, |why| to(&why)).await });
    let mut controller = Controller {
        client,
        pulse,
        settings,
        server,
        identity,
        leadership: Arc::clone(&leadership),
        counters,
        log,
        world: World::default(),
        refused: HashMap::new(),
        said: HashMap::new(),
        avoided: HashMap::new(),
        alarmed: BTreeSet::new(),
        logged: BTreeSet::new(),
        known: BTreeSet::new(),
        ending: HashMap::new(),
        kept: HashMap::new(),
        mirrored: None,
        named: None,
        planning: Duration::ZERO,
        told: 0,
        doubts: Vec::new(),
    };
    loop {
        match leadership.term() {
            None => {
                controller.pulse.beat();
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Some(term) => controller.lead(term).await,
        }
    }
}

type Log = dyn Fn(&str) + Send + Sync;

/// A name of this process that no other has.
pub fn identity() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let now = jiff::Timestamp::now().as_nanosecond();
    format!("{}_{}_{now}", host.trim(), std::process::id())
}

struct Controller {
    client: Client,
    pulse: Arc<Pulse>,
    settings: Settings,
    server: Server,
    identity: String,
    leadership: Arc<Leadership>,
    counters: Arc<Counters>,
    log: Arc<Log>,
    world: World,
    /// Gangs that were refused, or that failed.
    refused: HashMap<crate::gang::Key, place::Refusal>,
    /// Texts on gangs: the last one, and when.
    said: HashMap<crate::gang::Key, tell::Said>,
    /// Nodes that kube-scheduler refused for a gang.
    avoided: HashMap<(crate::gang::Key, String), Instant>,
    alarmed: BTreeSet<String>,
    /// Refusals in the log.
    logged: BTreeSet<String>,
    /// Jobs that the server may hold.
    known: BTreeSet<String>,
    /// Jobs whose claims are free and whose pods' end is not known, and since when.
    ending: HashMap<String, Instant>,
    /// Decisions whose restart was refused, and until when they are left alone.
    kept: HashMap<String, Instant>,
    /// When the server's jobs were listed.
    mirrored: Option<Instant>,
    /// When the server's names of GPUs were read.
    named: Option<Instant>,
    /// How long the last plan took.
    planning: Duration,
    /// Gangs that were told something in this round.
    told: usize,
    /// Writes without an answer.
    doubts: Vec<doubt::Doubt>,
}

impl Controller {
    /// One term as the leader: reads everything, fences earlier leaders off, then plans after every change until the lease is lost.
    async fn lead(&mut self, term: u64) {
        self.counters.terms.fetch_add(1, Ordering::Relaxed);
        self.world.forget_lists();
        self.refused.clear();
        self.mirrored = None;
        let (send, mut changes) = unbounded_channel();
        let mut watches = watches(&self.client, &send);
        match rules(&self.client).await {
            Ok(Some(api)) => {
                self.world.has_rules = true;
                watch(&mut watches, api, "devicetaintrules", &send, Change::Rule);
            }
            Ok(None) => {}
            Err(e) => {
                (self.log)(&format!("the API groups: {e}"));
                return tokio::time::sleep(PAUSE).await;
            }
        }
        let current = |of: &Controller| of.leadership.term() == Some(term);
        while current(self) && !self.world.is_ready() {
            self.take(&mut changes, TICK).await;
        }
        while current(self) && !self.fence(term).await {
            self.take(&mut changes, PAUSE).await;
        }
        while current(self) {
            let busy = self.round().await;
            self.take(&mut changes, if busy { Duration::ZERO } else { TICK }).await;
        }
    }

    /// Makes late writes of all earlier decisions fail, or leaves the gangs alone for which that is not done yet; false if the lease is lost.
    async fn fence(&mut self, term: u64) -> bool {
        let leadership = Arc::clone(&self.leadership);
        let writer = self.writer(&leadership);
        let fenced = writer.fence(&mut self.world, |namespace| self.settings.places(namespace)).await;
        self.count_writes(&writer);
        match fenced {
            Ok(fenced) => {
                (self.log)(&format!("leads, term {term}; {} objects touched", fenced.touched));
                for refused in &fenced.refused {
                    self.log_once(format!("not touched: {refused}"));
                }
                self.doubts = doubt::of_fence(&self.world, fenced);
                for what in self.doubts.iter().map(|d| d.what.clone()).collect::<Vec<_>>() {
                    self.log_once(format!("not touched yet, so its gang waits: {what}"));
                }
                true
            }
            Err(e) => {
                (self.log)(&format!("the fence: {e}"));
                false
            }
        }
    }

    fn writer<'a>(&self, leadership: &'a Leadership) -> Writer<'a> {
        Writer { client: self.client.clone(), leadership, pulse: Arc::clone(&self.pulse), calls: AtomicU64::new(0) }
    }

    /// Logs what may be said again every round. A long list starts again.
    fn log_once(&mut self, text: String) {
        if self.logged.len() >= LOGGED_MAX {
            self.logged.clear();
        }
        if !self.logged.contains(&text) {
            (self.log)(&text);
            self.logged.insert(text);
        }
    }

    fn count_writes(&self, writer: &Writer) {
        self.counters.writes.fetch_add(writer.calls.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Takes all changes that are there; waits for the first one at most `most`.
    async fn take(&mut self, changes: &mut UnboundedReceiver<Change>, most: Duration) {
        self.pulse.beat();
        if most > Duration::ZERO {
            if let Ok(Some(change)) = tokio::time::timeout(most, changes.recv()).await {
                self.apply(change);
            }
            // Objects of a gang arrive together; and on a large site a change after the other must not keep a core busy with plans.
            tokio::time::sleep(self.planning.clamp(Duration::from_millis(5), TICK)).await;
        }
        while let Ok(change) = changes.try_recv() {
            self.apply(change);
        }
    }

    fn apply(&mut self, change: Change) {
        if let Change::Failed(what, why) = &change {
            (self.log)(&format!("the watch of {what} starts again: {why}"));
        }
        self.world.change(change);
    }

    /// One plan and its first changes; true if there may be more to do at once.
    async fn round(&mut self) -> bool {
        let leadership = Arc::clone(&self.leadership);
        let writer = self.writer(&leadership);
        self.settle(&writer).await;
        self.told = 0;
        let begin = Instant::now();
        let mut plan = plan(&self.world, &self.settings, jiff::Timestamp::now(), Instant::now());
        self.leave_alone(&mut plan);
        self.planning = begin.elapsed();
        for alarm in plan.alarms.iter().chain(&plan.inventory.faults) {
            if self.alarmed.insert(alarm.clone()) {
                self.counters.alarms.fetch_add(1, Ordering::Relaxed);
                (self.log)(&format!("ALARM {alarm}"));
            }
        }
        let mut busy = self.read_sizes(&plan).await;
        self.said.retain(|_, said| said.at.elapsed() < 40 * SAY_AGAIN);
        self.kept.retain(|_, until| Instant::now() < *until);
        for step in std::mem::take(&mut plan.steps) {
            let doubt = Doubt::of(&step);
            match self.step(&writer, &plan, step).await {
                Ok(changed) => busy |= changed,
                Err(WriteError::NotLeader) => return false,
                Err(e @ WriteError::Refused { .. }) => self.log_once(e.to_string()),
                Err(e) => {
                    (self.log)(&e.to_string());
                    if matches!(e, WriteError::Silent(_)) {
                        self.doubt(e.to_string(), doubt);
                        busy = true; // what was written is not in this plan
                    }
                    tokio::time::sleep(PAUSE / 10).await;
                }
            }
        }
        self.count_writes(&writer);
        self.tell_placed(&plan).await;
        for waiting in std::mem::take(&mut plan.waiting) {
            self.say(&waiting).await;
        }
        if busy {
            return true;
        }
        if let Err(e) = self.mirror(&plan).await {
            (self.log)(&e.to_string());
            for wanted in &plan.wanted {
                self.say(&wanted.waits(e.to_string())).await;
            }
            tokio::time::sleep(PAUSE).await;
            return false;
        }
        let placed = self.place(&writer, &plan).await;
        self.count_writes(&writer);
        placed
    }

    /// One change; true if something changed.
    async fn step(&mut self, writer: &Writer<'_>, plan: &Plan, step: Step) -> Result<bool, WriteError> {
        match step {
            Step::Release { gang, job, pods } => {
                let begin = Instant::now();
                let reason = job.as_ref().and_then(|j| self.reason(plan, j)).unwrap_or_default();
                let named: Vec<(Id, Option<String>, Option<String>)> =
                    pods.into_iter().map(|(pod, node)| (pod.clone(), node, self.gpus_of(plan, &pod))).collect();
                writer.release(&named, job.as_deref(), &reason, &mut self.world).await?;
                self.counters.released.fetch_add(named.len() as u64, Ordering::Relaxed);
                self.counters.release_us.fetch_add(micros(begin), Ordering::Relaxed);
                self.said.remove(&gang);
                if let (Some(pod), Some(_)) = (named.first().and_then(|p| self.world.pods.get(&p.0)), &job) {
                    let gpus: Vec<&str> = named.iter().filter_map(|p| p.2.as_deref()).collect();
                    let text = format!("{gang}: {} pods on {}: {reason}", named.len(), gpus.join(" "));
                    say::event(&self.client, &self.identity, pod, false, "Placed", &text).await;
                }
            }
            Step::Undo { gang, why, pods, claims } => {
                (self.log)(&format!("{gang}: taken back: {why}"));
                writer.undo(&pods, &claims, &why, &mut self.world).await?;
                self.counters.undone.fetch_add(1, Ordering::Relaxed);
            }
            Step::LetGo(claim) => writer.let_go(&claim, &mut self.world).await?,
            Step::Free(claim) => writer.free(&claim, &mut self.world).await?,
            Step::Restart { gang, job, pods, nodes } => {
                return self.restart(writer, &gang, &job, &pods, nodes).await;
            }
        }
        Ok(true)
    }

    fn reason(&self, plan: &Plan, job: &str) -> Option<String> {
        let claim = self.world.claims.get(plan.jobs.get(job)?.first()?)?;
        claim.annotations().get(REASON).cloned()
    }

    /// The GPUs of a pod's claims in linkwise's notation.
    fn gpus_of(&self, plan: &Plan, pod: &Id) -> Option<String> {
        let of = self.world.pods.get(pod)?;
        let claims = crate::claim::names(of).into_iter().flatten();
        let claims = claims.filter_map(|n| self.world.claims.get(&(pod.0.clone(), n)));
        let names: Vec<String> = claims.flat_map(|c| self.names_of(plan, c)).collect();
        (!names.is_empty()).then(|| listed(&names))
    }

    fn names_of(&self, plan: &Plan, claim: &ResourceClaim) -> Vec<String> {
        let devices = crate::device::allocated(claim).filter_map(|(_, place)| plan.inventory.at(&place));
        devices.filter_map(|d| self.server.name(&d.uuid).map(str::to_owned)).collect()
    }

    /// Reads the sizes of owners that the plan asks for; true if one is new.
    async fn read_sizes(&mut self, plan: &Plan) -> bool {
        let mut news = false;
        for (of, id) in &plan.unknown {
            let (group, versions, plural) = owner::resource(*of);
            let mut size = Err(format!(
                "has no object {plural}.{group}/{}; add the label linkwise.dev/gang-size to its pods",
                id.1
            ));
            for version in versions {
                self.pulse.beat();
                let path = format!("/apis/{group}/{version}/namespaces/{}/{plural}/{}", id.0, id.1);
                let Ok(request) = http::Request::get(path).body(Vec::new()) else { continue };
                match tokio::time::timeout(Duration::from_secs(10), self.client.request::<Value>(request)).await {
                    Ok(Ok(object)) => {
                        size = owner::size(*of, &object);
                        break;
                    }
                    Ok(Err(kube::Error::Api(e))) if e.code == 404 => {}
                    Ok(Err(e)) => size = Err(format!("cannot be read: {e}")),
                    Err(_) => size = Err("cannot be read: no answer".into()),
                }
            }
            let told = Told { size, at: Instant::now() };
            let old = self.world.sizes.insert((*of, id.clone()), told.clone());
            news |= old.is_none_or(|o| o.size != told.size);
        }
        news
    }
}

fn micros(begin: Instant) -> u64 {
    u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// The watches, each a task that ends with the set.
fn watches(client: &Client, to: &UnboundedSender<Change>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    watch(&mut tasks, Api::<Pod>::all(client.clone()), "pods", to, Change::Pod);
    watch(&mut tasks, Api::<ResourceClaim>::all(client.clone()), "resourceclaims", to, Change::Claim);
    watch(&mut tasks, Api::<ResourceSlice>::all(client.clone()), "resourceslices", to, Change::Slice);
    watch(&mut tasks, Api::<Node>::all(client.clone()), "nodes", to, Change::Node);
    tasks
}

fn watch<K>(
    tasks: &mut JoinSet<()>,
    api: Api<K>,
    what: &'static str,
    to: &UnboundedSender<Change>,
    change: fn(watcher::Event<K>) -> Change,
) where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let to = to.clone();
    tasks.spawn(async move {
        let mut events = watcher(api, watcher::Config::default()).default_backoff().boxed();
        while let Some(event) = events.next().await {
            let change = event.map_or_else(|e| Change::Failed(what, e.to_string()), change);
            if to.send(change).is_err() {
                return;
            }
        }
    });
}

/// The rules that taint devices, in the newest version that the API serves; none if it serves none.
async fn rules(client: &Client) -> Result<Option<Api<DynamicObject>>, kube::Error> {
    for version in ["v1", "v1beta2", "v1alpha3"] {
        let group = format!("resource.k8s.io/{version}");
        let list = client.list_api_group_resources(&group);
        match tokio::time::timeout(Duration::from_secs(10), list).await {
            Ok(Ok(found)) if found.resources.iter().any(|r| r.name == "devicetaintrules") => {
                let gvk = kube::core::GroupVersionKind::gvk("resource.k8s.io", version, "DeviceTaintRule");
                return Ok(Some(Api::all_with(client.clone(), &ApiResource::from_gvk(&gvk))));
            }
            Ok(Ok(_)) => {}
            Ok(Err(kube::Error::Api(e))) if e.code == 404 => {}
            Ok(Err(e)) => return Err(e),
            Err(_) => return Err(kube::Error::Service("no answer in time".into())),
        }
    }
    Ok(None)
}
