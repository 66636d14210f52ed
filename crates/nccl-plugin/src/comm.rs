//! One rank of one communicator: the path of each call, and the boundaries between epochs.
//!
//! The call path ([`Comm::call`]) touches only atomics of this rank. Only the thread that makes the communicator's calls writes the arms in force
//! (NCCL makes calls one after the other), so they need no lock. At a call where an epoch may begin it takes the slow path
//! ([`Comm::cross_boundary`]), which may lock and wait.
//!
//! On NCCL releases without communicator identifiers the whole job agrees instead ([`crate::job`]): communicators follow the job's member, each at
//! its own call with the agreed number.
//!
//! A call is a question that NCCL launches. Some questions concern a group that is only simulated ([`provisional`]): their numbers are taken back.
//! A question about a call that is captured into a CUDA graph has no number: a rank may capture a graph that it never launches, or at another time than
//! the other ranks, so nothing that ranks count may depend on it. It gets AUTO ([`Captured`]).

mod agree;
mod boundary;
mod decision;
mod digest;
mod provisional;
mod runs;

pub use decision::CallDecision;

use crate::cost_table::{CostTable, Survey};
use agreement::epoch::{RUN_SLOTS_MAX, SLOT_PLANS_MAX, arm_code, arm_of_code};
use agreement::message::NO_ENTRY;
use agreement::{Slot, SlotPlan, SlotView};
use boundary::BoundaryState;
use digest::Digest;
use runs::RunCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tune::{Algorithm, Arm, Collective, Protocol};
use wire::Ring;

/// Decisions buffered between two polls of the worker, if only rewards need them: 64 calls in 5 ms are 12,800 per second. A dropped record costs one
/// reading. A larger ring evicts other data from the cache (256 communicators with 256 records each: 290 ns at p99).
pub const RING_RECORDS: usize = 64;
/// The same with a trace, which should be complete.
pub const RING_RECORDS_TRACED: usize = 1024;
/// Time that an aborted call has to leave NCCL before the communicator is freed.
pub const ABORT_GRACE: Duration = Duration::from_millis(100);
/// A rank logs a warning after it has waited this long for a verdict.
pub const WAIT_BEFORE_LOG: Duration = Duration::from_secs(1);
/// Bits of a slot's value: `RUNS_FLAG` and the index of its runs, or `ARM_FLAG` and an arm's code, or 0 for AUTO.
const RUNS_FLAG: u32 = 1 << 31;
const ARM_FLAG: u32 = 1 << 30;

/// One call as NCCL asks about it.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// NCCL's number of the collective.
    pub collective: usize,
    /// Bytes as NCCL counts them.
    pub bytes: u64,
}

/// The part of a call reported to the worker thread.
struct CallRecord {
    number: u64,
    call: Call,
    collective: Collective,
    arm: Arm,
    taken: bool,
    captured: bool,
    k: Option<u64>,
    survey: Survey,
}

/// The communicator was aborted while one of its calls waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aborted;

/// The arm of calls that are captured into a CUDA graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Captured {
    /// NCCL's own choice, which is the same on all ranks whenever each of them captures.
    #[default]
    Auto,
    /// The settled arm in force. It is the same on all ranks only if all ranks capture the same calls between the same other calls.
    Settled,
}

/// What the call path decided about a call.
struct NextArm {
    number: u64,
    arm: Arm,
    /// See [`CallDecision::k`].
    k: Option<u64>,
    captured: bool,
}

/// The source of the communicator's arms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The communicator stays at AUTO; calls are recorded.
    Observe,
    /// Its own ranks agree on arms.
    Tune,
    /// Not a communicator: the job as a whole. Communicators without an identifier follow it.
    Job,
    /// The communicator follows the job.
    Follow,
}

/// One rank of a communicator.
///
/// NCCL's thread calls [`call`](Comm::call) and the setters; the worker calls all others. The first cache line holds
/// the data that every call needs.
#[derive(Debug)]
#[repr(C, align(128))] // in the order of its fields
pub struct Comm {
    /// Calls begun.
    begun: AtomicU64,
    /// The next call at which the arms may change.
    boundary: AtomicU64,
    /// Number of the epoch in force.
    epoch: AtomicU64,
    role: Role,
    records: bool,
    /// Records carry the time of the call, which costs a clock read.
    timed: AtomicBool,
    /// The next calls are captured into a CUDA graph.
    captured: AtomicBool,
    /// The arm of captured calls.
    captured_arm: Captured,
    /// NCCL reports groups and launches, so that the numbers of a group are provisional until its launch.
    tells_launches: AtomicBool,
    /// NCCL has launched the group of the last questions.
    launched: AtomicBool,
    /// The outermost group of the next calls, 0 if NCCL does not report groups; and its start in ns since `born`.
    group: AtomicU64,
    group_ns: AtomicU64,
    /// The group of the last questions, and `begun` before them.
    asked_group: AtomicU64,
    begun_before: AtomicU64,
    digest: Digest,
    /// See [`Comm::on_lost_group`].
    lost_group: AtomicBool,
    slots: Box<[AtomicU32]>,
    cells: Box<[RunCell]>,
    ring: Ring,
    boundary_state: Mutex<BoundaryState>,
    verdict: Condvar,
    /// For calls without a table: the question that NCCL will repeat, plus 1, and its answer.
    last_question: AtomicU64,
    last_answer: AtomicU32,
    /// In [`Role::Job`]: communicators that change at their own call of the same number. Locked before
    /// `boundary_state`.
    followers: Mutex<Vec<Arc<Comm>>>,
    /// In [`Role::Follow`]: the plans used while the job's epoch has any plan.
    table: Vec<SlotPlan>,
    born: Instant,
    /// Why the rank only observes although the mode changes arms.
    stays_at_auto: Option<String>,
    /// NCCL's identifier of the communicator; on releases without one, a hash of its shape.
    pub id: u64,
    /// Index of this rank among those that its process has in the communicator.
    pub ordinal: u32,
    /// -1 if unknown.
    pub rank: i32,
    pub ranks: u32,
    /// Nodes as NCCL counts them.
    pub nodes: u32,
}

/// Arguments of [`Comm::new`].
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    pub id: u64,
    pub ordinal: u32,
    pub rank: i32,
    pub ranks: u32,
    pub nodes: u32,
}

impl Comm {
    /// A communicator at AUTO. `records`: decisions buffered for the worker; 0 buffers none.
    pub fn new(who: Identity, role: Role, records: usize) -> Self {
        Comm {
            begun: AtomicU64::new(0),
            boundary: AtomicU64::new(u64::MAX),
            epoch: AtomicU64::new(0),
            role,
            records: records > 0,
            timed: AtomicBool::new(false),
            captured: AtomicBool::new(false),
            captured_arm: Captured::default(),
            tells_launches: AtomicBool::new(false),
            launched: AtomicBool::new(true),
            group: AtomicU64::new(0),
            group_ns: AtomicU64::new(0),
            asked_group: AtomicU64::new(0),
            begun_before: AtomicU64::new(0),
            digest: Digest::default(),
            lost_group: AtomicBool::new(false),
            slots: (0..SLOT_PLANS_MAX).map(|_| AtomicU32::new(0)).collect(),
            cells: (0..RUN_SLOTS_MAX).map(|_| RunCell::default()).collect(),
            ring: Ring::new(records),
            boundary_state: Mutex::default(),
            verdict: Condvar::new(),
            last_question: AtomicU64::new(0),
            last_answer: AtomicU32::new(0),
            followers: Mutex::default(),
            table: Vec::new(),
            born: Instant::now(),
            stays_at_auto: None,
            id: who.id,
            ordinal: who.ordinal,
            rank: who.rank,
            ranks: who.ranks,
            nodes: who.nodes,
        }
    }

    /// Sets the plans that a follower uses while the job's epoch has any plan.
    pub fn with_table(mut self, table: Vec<SlotPlan>) -> Self {
        self.table = table;
        self
    }

    /// Sets why the rank only observes although the mode changes arms.
    pub fn with_reason(mut self, why: Option<String>) -> Self {
        self.stays_at_auto = why;
        self
    }

    /// Sets the arm of captured calls.
    pub fn with_captured(mut self, arm: Captured) -> Self {
        self.captured_arm = arm;
        self
    }

    pub fn stays_at_auto(&self) -> Option<&str> {
        self.stays_at_auto.as_deref()
    }

    pub fn role(&self) -> Role {
        self.role
    }

    /// Records carry the time from now on.
    pub fn set_timed(&self) {
        self.timed.store(true, Ordering::Relaxed);
    }

    /// When the communicator was made: time zero of its records.
    pub fn born(&self) -> Instant {
        self.born
    }

    fn now_ns(&self) -> u64 {
        self.born.elapsed().as_nanos() as u64
    }

    #[inline]
    fn at_ns(&self) -> u64 {
        match self.group_ns.load(Ordering::Relaxed) {
            _ if !self.timed.load(Ordering::Relaxed) => 0,
            0 => self.now_ns(),
            group => group,
        }
    }

    /// NCCL has launched the collective of this number, and reports that before the next question.
    pub fn on_collective(&self, sequence: u64) {
        self.digest.set_sequence(sequence);
    }

    /// NCCL has launched a collective of this group, by its own count of such collectives. The report may come from another thread and late.
    pub fn on_collective_of(&self, group: u64, collective: Collective, sequence: u64) {
        self.digest.on_collective_of(group, u64::from(collective.number()) << 56 | (sequence + 1) & ((1 << 56) - 1));
    }

    /// NCCL reports whether the next calls are captured into a CUDA graph.
    pub fn set_captured(&self, captured: bool) {
        self.captured.store(captured, Ordering::Relaxed);
    }

    /// One call: makes the arm in force the cheapest entry of the cost table and sets `channels` if the arm has a channel count. A table without a
    /// possible entry is not a call. Under 200 ns away from boundaries; no allocation, lock or system call.
    ///
    /// # Errors
    /// The communicator was aborted while the call waited for a verdict: nothing of it may be used any more.
    #[inline]
    pub fn call(
        &self,
        call: Call,
        costs: &mut CostTable<'_>,
        channels: &mut i32,
        log: impl Fn(&str),
    ) -> Result<(), Aborted> {
        let survey = costs.survey();
        let Some(collective) = Collective::tuned_of_number(call.collective) else { return Ok(()) };
        if survey.is_empty() {
            return Ok(());
        }
        let slot = Slot::of(collective, call.bytes);
        let NextArm { number, arm, k, captured } = self.next_arm(slot, log)?;
        let taken = costs.prefer(arm, &survey) || arm.forced.is_none();
        if let Some(n) = arm.channels.filter(|_| taken && may_set_channels(arm, &survey)) {
            *channels = i32::from(n);
        }
        self.record(CallRecord { number, call, collective, arm, taken, captured, k, survey });
        Ok(())
    }

    /// One call without a cost table (tuner API v2): returns the algorithm and protocol to request, if any. `can` tells which ones are always
    /// possible. NCCL 2.21 asks twice per call; the second question gets the same answer and is not counted.
    ///
    /// # Errors
    /// As [`call`](Comm::call).
    pub fn call_without_table(
        &self,
        call: Call,
        can: impl Fn(Algorithm, Protocol) -> bool,
        log: impl Fn(&str),
    ) -> Result<Option<(Algorithm, Protocol)>, Aborted> {
        let Some(collective) = Collective::tuned_of_number(call.collective) else { return Ok(None) };
        let question = (call.bytes << 3 | call.collective as u64).wrapping_add(1);
        let arm = if self.last_question.swap(0, Ordering::Relaxed) == question {
            arm_of_code(self.last_answer.load(Ordering::Relaxed)).unwrap_or(Arm::AUTO)
        } else {
            let NextArm { number, arm, k, captured } = self.next_arm(Slot::of(collective, call.bytes), log)?;
            self.last_question.store(question, Ordering::Relaxed);
            self.last_answer.store(arm_code(arm), Ordering::Relaxed);
            let taken = arm.forced.is_none_or(|(a, p)| can(a, p));
            self.record(CallRecord { number, call, collective, arm, taken, captured, k, survey: Survey::UNKNOWN });
            arm
        };
        Ok(arm.forced.filter(|(a, p)| can(*a, *p)))
    }

    #[inline]
    fn record(&self, r: CallRecord) {
        if self.records {
            let decision = CallDecision {
                call: r.number,
                bytes: r.call.bytes,
                collective: r.collective,
                arm: r.arm,
                taken: r.taken,
                captured: r.captured,
                counted: r.k.is_some(),
                mask: r.survey.mask,
                auto: r.survey.best,
                epoch: self.epoch.load(Ordering::Relaxed),
                k: r.k.unwrap_or(0),
                at_ns: self.at_ns(),
                group: decision::wrapped_group(self.group.load(Ordering::Relaxed)),
            };
            self.ring.stage(&decision.pack());
            if !self.is_provisional() {
                self.ring.publish();
            }
        }
    }

    #[inline]
    fn next_arm(&self, slot: Slot, log: impl Fn(&str)) -> Result<NextArm, Aborted> {
        let provisional = self.is_provisional();
        if provisional {
            self.enter_group();
        }
        if self.captured.load(Ordering::Relaxed) {
            return Ok(self.arm_of_captured(slot));
        }
        // SeqCst, paired with `on_message`: either the proposal sees this call as begun, or this call sees the proposal's boundary.
        let number = self.begun.fetch_add(1, Ordering::SeqCst);
        if number >= self.boundary.load(Ordering::SeqCst) {
            crate::overhead::boundary(|| self.cross_boundary(number, log))?;
        }
        self.digest.add(number, slot, if provisional { self.asked_group.load(Ordering::Relaxed) } else { 0 });
        let captured = false;
        let value = self.slots.get(slot.index()).map_or(0, |s| s.load(Ordering::Relaxed));
        if value & RUNS_FLAG == 0 {
            return Ok(NextArm { number, arm: arm_of_value(value), k: None, captured });
        }
        let Some(cell) = self.cells.get((value & !RUNS_FLAG) as usize) else {
            return Ok(NextArm { number, arm: Arm::AUTO, k: None, captured });
        };
        let (arm, k) = cell.next_call(self.asked_group.load(Ordering::Relaxed));
        Ok(NextArm { number, arm, k: Some(k), captured })
    }

    /// The arm of a call that is captured into a CUDA graph: it has no number, passes no boundary and does not explore. The record has the number of
    /// the next call.
    fn arm_of_captured(&self, slot: Slot) -> NextArm {
        let arm = match self.captured_arm {
            Captured::Auto => Arm::AUTO,
            Captured::Settled => match self.slots.get(slot.index()).map_or(0, |s| s.load(Ordering::Relaxed)) {
                value if value & RUNS_FLAG == 0 => arm_of_value(value),
                value => self.cells.get((value & !RUNS_FLAG) as usize).map_or(Arm::AUTO, RunCell::settled),
            },
        };
        NextArm { number: self.begun.load(Ordering::Relaxed), arm, k: None, captured: true }
    }

    /// Records which cost-table entries a call of the slot had, and which of them AUTO takes.
    pub fn note_entries(&self, slot: Slot, mask: u32, auto: u8) {
        let mut boundary_state = self.boundary_state();
        let views = &mut boundary_state.views; // at most one per slot: 320
        match views.binary_search_by_key(&slot, |(v, _)| v.slot) {
            Ok(i) => {
                if let Some((view, calls)) = views.get_mut(i) {
                    view.mask &= mask;
                    view.auto = if view.auto == auto { auto } else { NO_ENTRY };
                    *calls += 1;
                }
            }
            Err(i) => views.insert(i, (SlotView { slot, mask, auto }, 1)),
        }
    }

    /// Calls begun; for the job, those of its farthest communicator.
    pub fn begun(&self) -> u64 {
        let followers = lock(&self.followers);
        let of_followers = followers.iter().map(|f| f.begun.load(Ordering::SeqCst)).max().unwrap_or(0);
        self.begun.load(Ordering::SeqCst).max(of_followers)
    }

    /// Removes the oldest recorded decision.
    pub fn take_decision(&self) -> Option<CallDecision> {
        loop {
            if let Some(d) = CallDecision::unpack(&self.ring.pop()?) {
                return Some(d);
            }
        }
    }

    /// Decisions dropped because the ring was full.
    pub fn decisions_lost(&self) -> u64 {
        self.ring.dropped()
    }

    /// Number of waits for a verdict, and the longest one.
    pub fn waits(&self) -> (u64, Duration) {
        let boundary_state = self.boundary_state();
        (boundary_state.waits, boundary_state.waited)
    }

    /// How long a call has been waiting for a verdict, if one waits now.
    pub fn waiting_for(&self) -> Option<Duration> {
        self.boundary_state().waiting_since.map(|t| t.elapsed())
    }

    /// Number of the epoch in force.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// A panic with the lock held leaves the member consistent, because its methods cannot panic half-way.
    fn boundary_state(&self) -> MutexGuard<'_, BoundaryState> {
        lock(&self.boundary_state)
    }
}

/// The arm of a slot's value without runs.
#[inline]
fn arm_of_value(value: u32) -> Arm {
    if value & ARM_FLAG == 0 { Arm::AUTO } else { arm_of_code(value & !ARM_FLAG).unwrap_or(Arm::AUTO) }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// NCCL does not limit the channel count of CollNet, so it is not set there.
fn may_set_channels(arm: Arm, survey: &Survey) -> bool {
    let algorithm = arm.forced.or_else(|| crate::cost_table::entry(survey.best)).map(|(a, _)| a);
    !matches!(algorithm, Some(Algorithm::CollNetDirect | Algorithm::CollNetChain) | None)
}
