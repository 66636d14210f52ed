//! The one thread of the plugin in a process: drains what calls left behind, talks to the other ranks, leads where it must, writes the trace.

mod talk;

use crate::abi::log;
use crate::comm::{Comm, Decision, Role};
use crate::conductor::{Conductor, Plan, auto_arm};
use crate::config::{Config, Mode, Reward};
use crate::events::Ran;
use crate::process::{EVENTS, Shared};
use crate::trace::{Trace, quoted};
use agreement::transport::{Folder, Sockets};
use agreement::{Announcement, Endpoint, Meeting, ProcessId, RankSample, Roster, Slot, Source, ToLeader};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The longest time between two looks.
const TICK: Duration = Duration::from_millis(5);
/// How long the worker stays for others when the last communicator ends.
const LINGER: Duration = Duration::from_millis(500);
/// How long it stays where a later communicator of the process would have to wait for a verdict: a leader gives up sooner.
const VERDICT: Duration = Duration::from_secs(3);
const CLOSE: Duration = Duration::from_millis(200);
/// Decisions kept for events of the profiler to be matched with.
const RECENT: usize = 512;
/// Most calls of one communicator that wait for the end of their step; of older ones no time will come.
const STEP_CALLS_MAX: usize = 8192;
/// How long other ranks may be in coming before it is said.
const MEET: Duration = Duration::from_secs(30);
/// How long the times of a kernel's channels are waited for while no others come.
const KERNEL: Duration = Duration::from_secs(5);
/// Most panics of one process before the worker gives up tuning.
const PANICS_MAX: u32 = 3;

/// A communicator of this process came or went.
#[derive(Debug)]
pub enum Change {
    /// With the number under which its profiler events come, or 0.
    Came {
        /// The rank.
        comm: Arc<Comm>,
        /// See [`crate::process::Profiled::owner`].
        owner: u64,
    },
    /// Finalize was called.
    Went(Arc<Comm>),
}

/// A rank of this process.
struct Local {
    comm: Arc<Comm>,
    owner: u64,
    announced: Option<Instant>,
    /// Everybody, and this rank's position among them.
    roster: Option<(Arc<Roster>, usize)>,
    recent: VecDeque<Decision>,
    samples: Vec<RankSample>,
    /// Calls that no finished step holds yet.
    in_step: VecDeque<Decision>,
    /// Time between groups.
    intervals: crate::rewards::Intervals,
    gone: bool,
}

/// A communicator that this process leads.
struct Led {
    roster: Arc<Roster>,
    /// Which rank of this process.
    ordinal: u32,
    conductor: Conductor,
    told: u64,
    leaving: bool,
}

/// See the module.
pub struct Worker {
    config: Arc<Config>,
    shared: Arc<Shared>,
    process: ProcessId,
    host: u64,
    endpoint: Option<Box<dyn Endpoint>>,
    locals: Vec<Local>,
    led: Vec<Led>,
    trace: Trace,
    costs: crate::trace::Costs,
    begin: Instant,
    panics: u32,
    stopped: bool,
    stop_looked: Option<Instant>,
    stop_said: Option<Instant>,
    /// The oldest event of the profiler that has not been taken, and since when.
    head: (u64, Instant),
    told_of_others: bool,
}

impl Worker {
    /// For a process. Opens nothing yet.
    pub fn new(config: Arc<Config>, shared: Arc<Shared>) -> Self {
        let host = host();
        let unique = format!("{host} {} {:?}", std::process::id(), std::time::SystemTime::now());
        Worker {
            config,
            shared,
            process: wire::bytes::hash(unique.as_bytes()),
            host,
            endpoint: None,
            locals: Vec::new(),
            led: Vec::new(),
            trace: Trace::default(),
            costs: crate::trace::Costs::default(),
            begin: Instant::now(),
            panics: 0,
            stopped: false,
            stop_looked: None,
            stop_said: None,
            head: (0, Instant::now()),
            told_of_others: false,
        }
    }

    fn now_us(&self) -> u64 {
        self.begin.elapsed().as_micros() as u64
    }

    /// Until the last communicator has gone.
    pub fn run(mut self) {
        let _ = catch_unwind(AssertUnwindSafe(|| self.open()));
        let mut stopping: Option<Instant> = None;
        loop {
            // Read before the turn: what came before it was set is seen in the turn.
            let stop = self.shared.stop.load(Ordering::Acquire);
            // A panic here must cost tuning, never the job.
            if catch_unwind(AssertUnwindSafe(|| self.turn())).is_err() {
                self.panics += 1;
                if self.panics >= PANICS_MAX {
                    self.stopped = true;
                }
                std::thread::sleep(TICK);
            }
            if stop {
                let since = *stopping.get_or_insert_with(Instant::now);
                let bound = crate::job::member().is_some_and(|j| j.is_bound());
                let idle = self.led.iter().all(|l| l.conductor.is_idle());
                if (idle && !bound) || since.elapsed() > if bound { VERDICT } else { LINGER } {
                    break;
                }
            }
        }
        let _ = catch_unwind(AssertUnwindSafe(|| {
            if let Some(e) = &mut self.endpoint {
                e.close(CLOSE);
            }
            let rest: Vec<Ran> = std::iter::from_fn(|| EVENTS.next(false)).collect();
            self.match_events(&rest);
            self.costs.tell(&mut self.trace, self.begin.elapsed(), true);
            self.trace.flush();
        }));
    }

    fn open(&mut self) {
        if let Some(folder) = &self.config.trace {
            match Trace::in_folder(folder, self.host, self.config.trace_bytes_max) {
                Ok(t) => self.trace = t,
                Err(e) => log::warn(&format!("no trace in {}: {e}", folder.display())),
            }
        }
        let (tuner, profiler) = crate::process::interfaces();
        self.trace.line(format_args!(
            "{{\"kind\":\"process\",{},\"scripted\":{},\"version\":{},\"pid\":{},\"host\":\"{:016x}\",\"mode\":{},\"policy\":{},\"tuner_api\":{tuner},\"profiler_api\":{profiler}}}",
            crate::trace::here(|k| std::env::var(k).ok()),
            self.config.test.rewards.is_some(),
            quoted(env!("CARGO_PKG_VERSION")),
            std::process::id(),
            self.host,
            quoted(&format!("{:?}", self.config.mode).to_lowercase()),
            quoted(&self.config.policy),
        ));
        if !matches!(self.config.mode, Mode::Profile | Mode::Adaptive) || self.config.test.alone {
            return;
        }
        let made: std::io::Result<Box<dyn Endpoint>> = match &self.config.meeting {
            None => {
                log::warn("no place to meet (LINKWISE_MEETING, or MASTER_ADDR of the launcher): no tuning");
                return;
            }
            Some(Meeting::Folder(path)) => {
                Folder::of_job(path, self.config.token.as_bytes(), self.process).map(|f| Box::new(f) as _)
            }
            Some(m) => Sockets::new(m.clone(), self.config.token.as_bytes(), self.config.bind, self.process, self.host)
                .map(|s| Box::new(s.inside(self.config.inside)) as _),
        };
        match made {
            Ok(e) => {
                self.endpoint = Some(e);
                if self.config.mode == Mode::Adaptive && self.config.explore_all {
                    log::info(
                        "explore = all: each algorithm that is tried first connects, and keeps its GPU memory for good",
                    );
                }
            }
            Err(e) => log::warn(&format!("no channel to the other ranks: {e}; no tuning")),
        }
    }

    /// One look at everything.
    fn turn(&mut self) {
        let mut events = Vec::new();
        match &mut self.endpoint {
            Some(e) => {
                e.poll(TICK, &mut events);
                e.notes().iter().for_each(|note| log::warn(note));
            }
            None => std::thread::sleep(TICK),
        }
        // First what went: its last decisions are in the ring, and its verdicts must go out.
        let changes = std::mem::take(&mut *self.shared.changes.lock().unwrap_or_else(|e| e.into_inner()));
        for change in changes {
            match change {
                Change::Came { comm, owner } => self.came(comm, owner),
                Change::Went(comm) => self.went(&comm),
            }
        }
        for event in events {
            self.take(event);
        }
        self.look_for_stop();
        self.look_for_others();
        // Before the decisions are drained: those of a finished step, and of a call that was launched, are in the rings by now.
        let steps = crate::step::take();
        let launched = self.launched();
        self.drain();
        self.judge_by_steps(&steps);
        self.send_samples();
        self.match_events(&launched);
        self.lead();
        self.remove_gone();
        self.costs.tell(&mut self.trace, self.begin.elapsed(), false);
        self.trace.flush();
    }

    /// What NCCL says it launched. An event whose channels never all end holds those behind it up only for a while.
    fn launched(&mut self) -> Vec<Ran> {
        let kernels = crate::abi::profiler::kernels_wanted();
        let mut all: Vec<Ran> = std::iter::from_fn(|| EVENTS.next(kernels)).collect();
        let (head, since) = self.head;
        if EVENTS.head() != head || !kernels {
            self.head = (EVENTS.head(), Instant::now());
        } else if since.elapsed() > KERNEL {
            all.extend(EVENTS.next(false));
        }
        all
    }

    /// A communicator stays at AUTO.
    fn never(&mut self, comm: u64, why: &str) {
        self.trace.line(format_args!("{{\"kind\":\"never\",\"comm\":\"{comm:016x}\",\"why\":{}}}", quoted(why)));
    }

    /// Says, once, of the first communicator whose ranks do not come.
    fn look_for_others(&mut self) {
        let place = self.config.meeting.as_ref().map(ToString::to_string).unwrap_or_default();
        if self.told_of_others {
            return;
        }
        let late = |l: &&mut Local| l.roster.is_none() && l.announced.is_some_and(|at| at.elapsed() >= MEET);
        let Some(local) = self.locals.iter_mut().find(late) else { return };
        self.told_of_others = true;
        log::warn(&format!(
            "communicator {:016x} rank {}: {}",
            local.comm.id,
            local.comm.rank,
            alone(local.comm.ranks, &place)
        ));
    }

    fn came(&mut self, comm: Arc<Comm>, owner: u64) {
        let kind = if comm.role() == Role::Job { "job" } else { "comm" };
        self.trace.line(format_args!(
            "{{\"kind\":\"{kind}\",\"comm\":\"{:016x}\",\"rank\":{},\"ordinal\":{},\"ranks\":{},\"nodes\":{}}}",
            comm.id, comm.rank, comm.ordinal, comm.ranks, comm.nodes
        ));
        if comm.role() == Role::Observe && self.config.mode == Mode::Adaptive {
            self.never(comm.id, crate::process::UNTOLD);
        }
        let mut local = Local {
            comm,
            owner,
            announced: None,
            roster: None,
            recent: VecDeque::new(),
            samples: Vec::new(),
            in_step: VecDeque::new(),
            intervals: crate::rewards::Intervals::default(),
            gone: false,
        };
        if matches!(local.comm.role(), Role::Tune | Role::Job) {
            if self.config.test.alone {
                // For tests: a roster of one.
                let me = agreement::Place { rank: local.comm.rank, process: self.process, ordinal: local.comm.ordinal };
                let roster = Arc::new(Roster { comm: local.comm.id, places: vec![me] });
                local.roster = Some((roster.clone(), 0));
                let conductor = Conductor::new(1, self.plan(&local.comm));
                let ordinal = local.comm.ordinal;
                self.led.push(Led { roster, ordinal, conductor, told: 0, leaving: false });
            } else if let Some(e) = &mut self.endpoint {
                e.announce(Announcement {
                    comm: local.comm.id,
                    rank: local.comm.rank,
                    size: local.comm.ranks,
                    host: self.host,
                    process: self.process,
                    ordinal: local.comm.ordinal,
                    settings: self.config.common(),
                });
                local.announced = Some(Instant::now());
            }
        }
        self.locals.push(local);
    }

    fn plan(&self, comm: &Comm) -> Plan {
        match &self.config.profile {
            Some(_) if comm.role() == Role::Job => Plan::Fixed(crate::job::the_table()),
            Some(p) => Plan::Fixed(p.plans(comm.ranks, comm.nodes)),
            None => {
                let name = self.config.policy.clone();
                let build = move |arms: &[tune::Arm], slot: Slot| {
                    crate::policies::build(&name, arms, tune::bucket::middle(slot.bucket))
                };
                Plan::Learn {
                    build: Box::new(build),
                    calls: self.config.epoch_calls,
                    explore_all: self.config.explore_all,
                    by_kernel: self.config.reward == Reward::Kernel,
                }
            }
        }
    }

    fn went(&mut self, comm: &Arc<Comm>) {
        let now = self.now_us();
        for led in self.led.iter_mut().filter(|l| l.roster.comm == comm.id && l.ordinal == comm.ordinal) {
            let mut out = Vec::new();
            led.conductor.leave(now, &mut out);
            led.leaving = true;
            let roster = led.roster.clone();
            talk::deliver(&mut self.endpoint, &self.locals, self.process, &roster, out, &mut Vec::new());
        }
        for local in self.locals.iter_mut().filter(|l| Arc::ptr_eq(&l.comm, comm)) {
            local.gone = true;
        }
    }

    fn remove_gone(&mut self) {
        // A later communicator of this process would wait for the verdict: it must still be heard.
        let goes = |l: &Local| l.gone && !(l.comm.role() == Role::Job && l.comm.is_bound());
        let place = self.config.meeting.as_ref().map(ToString::to_string).unwrap_or_default();
        for local in self.locals.iter().filter(|l| goes(l)) {
            if local.announced.is_some() && local.roster.is_none() {
                let why = quoted(&alone(local.comm.ranks, &place));
                self.trace
                    .line(format_args!("{{\"kind\":\"never\",\"comm\":\"{:016x}\",\"why\":{why}}}", local.comm.id));
            }
            let (waits, longest) = local.comm.waits();
            self.trace.line(format_args!(
                "{{\"kind\":\"end\",\"comm\":\"{:016x}\",\"rank\":{},\"calls\":{},\"lost\":{},\"waits\":{waits},\"longest_wait_us\":{}}}",
                local.comm.id,
                local.comm.rank,
                local.comm.begun(),
                local.comm.decisions_lost(),
                longest.as_micros()
            ));
        }
        let gone: Vec<u64> = self.locals.iter().filter(|l| goes(l)).map(|l| l.comm.id).collect();
        self.locals.retain(|l| !goes(l));
        for id in gone {
            if !self.locals.iter().any(|l| l.comm.id == id)
                && let Some(e) = &mut self.endpoint
            {
                e.forget(id);
            }
        }
        self.led.retain(|l| !(l.leaving && l.conductor.is_idle()));
    }

    /// Decisions since the last look: into the trace, to the leader here, and times from the script of a test.
    fn drain(&mut self) {
        let now = self.now_us();
        let (reward, scripted) = (self.reward(), self.config.test.rewards.clone().filter(|s| s.decides()));
        for i in 0..self.locals.len() {
            let Some(local) = self.locals.get_mut(i) else { continue };
            let mut batch = Vec::new();
            while let Some(d) = local.comm.take_decision() {
                let slot = d.slot();
                local.comm.saw(slot, d.mask);
                self.trace.line(format_args!(
                    "{{\"kind\":\"call\",\"comm\":\"{:016x}\",\"rank\":{},\"call\":{},\"collective\":\"{}\",\"size_bytes\":{},\"auto\":\"{}\",\"arm\":\"{}\",\"taken\":{},\"captured\":{},\"epoch\":{},\"group\":{},\"at_us\":{}}}",
                    local.comm.id, local.comm.rank, d.call, d.collective.capitals(), d.bytes, auto_arm(d.auto), d.arm, d.taken, d.captured, d.epoch, d.group, d.at_ns / 1000
                ));
                if d.counted && scripted.is_none() {
                    match reward {
                        Reward::Step => {
                            if local.in_step.len() >= STEP_CALLS_MAX
                                && let Some(oldest) = local.in_step.pop_front()
                            {
                                local.samples.push(crate::rewards::no_time(&oldest, Source::Step));
                            }
                            local.in_step.push_back(d);
                        }
                        Reward::Interval => local.intervals.call(&d, &mut local.samples),
                        _ => {}
                    }
                }
                if d.counted
                    && let Some(script) = &scripted
                {
                    let rank = if local.comm.rank >= 0 { local.comm.rank } else { local.comm.ordinal as i32 };
                    if let Some(time_us) = script.time_us(slot, d.arm, auto_arm(d.auto), rank, d.call) {
                        let source = Source::Scripted;
                        local.samples.push(RankSample { epoch: d.epoch, slot, k: d.k, source, time_us });
                    }
                }
                if local.recent.len() == RECENT {
                    local.recent.pop_front();
                }
                local.recent.push_back(d);
                batch.push(d);
            }
            if let Some((roster, _)) = &local.roster
                && let Some(led) =
                    self.led.iter_mut().find(|l| Arc::ptr_eq(&l.roster, roster) && l.ordinal == local.comm.ordinal)
            {
                batch.iter().for_each(|d| led.conductor.saw(d, now));
            }
        }
    }

    /// What arms are judged by, now.
    fn reward(&self) -> Reward {
        match self.config.reward {
            Reward::Auto if crate::step::is_said() => Reward::Step,
            Reward::Auto => Reward::Interval,
            said => said,
        }
    }

    fn judge_by_steps(&mut self, steps: &[crate::step::Step]) {
        crate::trace::steps(&mut self.trace, steps);
        for local in &mut self.locals {
            let born = local.comm.born();
            let ns = |t: Instant| t.saturating_duration_since(born).as_nanos() as u64;
            for step in steps {
                crate::rewards::of_step(&mut local.in_step, ns(step.begin), ns(step.end), &mut local.samples);
            }
        }
    }

    fn send_samples(&mut self) {
        for i in 0..self.locals.len() {
            let Some(local) = self.locals.get_mut(i) else { continue };
            let samples = std::mem::take(&mut local.samples);
            if let Some((roster, position)) = local.roster.clone() {
                for some in samples.chunks(agreement::message::SAMPLES_MAX) {
                    self.tell_leader(&roster, position, &ToLeader::Samples(some.to_vec()));
                }
            }
        }
    }

    /// Events of the profiler: what NCCL says it launched, and how long it took.
    fn match_events(&mut self, launched: &[Ran]) {
        let script = self.config.test.rewards.clone();
        for ran in launched {
            let Some(local) = self.locals.iter_mut().find(|l| l.owner != 0 && l.owner == ran.what.owner) else {
                continue;
            };
            let w = &ran.what;
            let matched = crate::rewards::asked_for(&mut local.recent, w, local.comm.ranks);
            let scripted = || {
                let d = matched.as_ref()?;
                script.as_ref()?.kernel_us(d.slot(), d.arm, auto_arm(d.auto), local.comm.rank, d.call)
            };
            let kernel_us = ran.kernel_ns.map(|ns| ns as f64 / 1e3).or_else(scripted);
            crate::trace::launched(&mut self.trace, &local.comm, w, matched.as_ref(), kernel_us);
            if let (Some(d), Some(time_us)) = (matched.filter(|d| d.counted), kernel_us) {
                let (epoch, slot, k, source) = (d.epoch, d.slot(), d.k, Source::Kernel);
                local.samples.push(RankSample { epoch, slot, k, source, time_us });
            }
        }
    }
}

/// What to say where not all ranks of a communicator come.
fn alone(ranks: u32, place: &str) -> String {
    format!(
        "not all of its {ranks} ranks have announced themselves at {place}; it stays at AUTO until they do (a rank without the plugin, another \
         meeting place, or a port that cannot be reached)"
    )
}

/// Hash over what tells hosts apart: two processes with the same one can talk through a local socket.
fn host() -> u64 {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    wire::bytes::hash(format!("{boot}{}", network.display()).as_bytes())
}
