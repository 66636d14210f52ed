//! One rank of one communicator: what happens at every call, and at the borders between epochs.
//!
//! The call path ([`Comm::call`]) touches only atomics of this rank. Only the thread that makes the communicator's calls writes the arms in
//! force (NCCL makes them one after the other), so they need no lock. At the call where an epoch begins it takes the slow way
//! ([`Comm::cross`]), which may lock and wait.
//!
//! Where NCCL does not tell communicators apart the whole job agrees instead ([`crate::job`]): its communicators follow the job's member, each
//! at its own call of the number that was agreed on.

mod agree;

use crate::costs::{Costs, Survey};
use agreement::epoch::{KEYS_MAX, RUN_KEYS_MAX, RUNS_MAX, arm_code, arm_of_code};
use agreement::{At, Epoch, KeyPlan, Member, Slot};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tune::{Algorithm, Arm, Collective, Protocol};
use wire::Ring;

/// Records between two looks of the worker, where only rewards need them: 64 calls in 5 ms are 12,800 a second. A lost record costs a sample; a
/// larger ring pushes other things out of the cache (256 communicators with 256 records each: 290 ns at p99).
pub const RECORDS: usize = 64;
/// With a trace, which shall be complete.
pub const RECORDS_TRACED: usize = 1024;
/// How long a bound rank waits for the verdict before it says so.
pub const WAIT_BEFORE_LOG: Duration = Duration::from_secs(1);
/// Slot values: nothing planned; a cell with runs; else one arm.
const CELL: u32 = 1 << 31;
const ARM: u32 = 1 << 30;
/// Groups are counted up to here.
const GROUP_MAX: u32 = 0xff_ffff;

/// The arms of a slot with runs.
#[derive(Debug, Default)]
struct Cell {
    /// Calls of the slot in the epoch.
    k: AtomicU64,
    /// The arm in force, until `k` is this.
    until: AtomicU64,
    arm: AtomicU32,
    settled: AtomicU32,
    run: AtomicU32,
    runs: [(AtomicU32, AtomicU32); RUNS_MAX],
}

/// What only the borders need.
#[derive(Debug, Default)]
struct Slow {
    member: Member,
    /// Entries that calls of a slot were seen to have, and how that slot is used.
    masks: Vec<(Slot, u32)>,
    /// How long this rank has waited for verdicts, and the longest wait.
    waited: Duration,
    waits: u64,
    /// Calls that wait for a verdict now.
    waiting: u32,
    /// They shall not wait any more.
    ended: bool,
}

/// What a call was.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// NCCL's number of the collective.
    pub collective: usize,
    /// Bytes as NCCL counts them.
    pub bytes: u64,
}

/// What of a call the worker gets to know.
struct Recorded {
    number: u64,
    call: Call,
    collective: Collective,
    arm: Arm,
    taken: bool,
    captured: bool,
    k: Option<u64>,
    survey: Survey,
}

/// Whether the communicator's arms come from an agreement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Only looked at.
    Observe,
    /// Ranks agree on arms.
    Tune,
    /// No communicator: the job as a whole, which others follow.
    Job,
    /// Follows the job.
    Follow,
}

/// A rank of a communicator. The first line of its memory is what every call needs.
#[derive(Debug)]
#[repr(C, align(128))] // in the order of its fields
pub struct Comm {
    /// Calls begun.
    begun: AtomicU64,
    /// At this call something may change.
    border: AtomicU64,
    /// The epoch in force.
    epoch: AtomicU64,
    role: Role,
    records: bool,
    /// Records carry the time, which costs a look at the clock.
    timed: AtomicBool,
    /// The next calls are captured into a CUDA graph.
    captured: AtomicBool,
    /// The outermost group that the next calls belong to; 0 where NCCL does not say. And when it began, by this clock.
    group: AtomicU32,
    group_ns: AtomicU64,
    slots: Box<[AtomicU32]>,
    cells: Box<[Cell]>,
    ring: Ring,
    slow: Mutex<Slow>,
    verdict: Condvar,
    /// Without tables: the question that NCCL will repeat, plus 1, and its answer.
    asked: AtomicU64,
    answered: AtomicU32,
    /// Of [`Role::Job`]: communicators that change at their own call of the same number. Locked before `slow`.
    followers: Mutex<Vec<Arc<Comm>>>,
    /// Of [`Role::Follow`]: what an epoch with any plan puts in force.
    table: Vec<KeyPlan>,
    born: Instant,
    /// The communicator's identifier; 0 where NCCL does not say.
    pub id: u64,
    /// Counts this process's members of the communicator.
    pub ordinal: u32,
    /// Its rank, or -1.
    pub rank: i32,
    /// Ranks.
    pub ranks: u32,
    /// Nodes as NCCL counts them.
    pub nodes: u32,
}

/// One decision, as the ring carries it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decision {
    /// Number of the call.
    pub call: u64,
    /// Bytes.
    pub bytes: u64,
    /// The collective.
    pub collective: Collective,
    /// What was asked for.
    pub arm: Arm,
    /// NCCL will take it (the entry was possible).
    pub taken: bool,
    /// Captured into a CUDA graph.
    pub captured: bool,
    /// The slot had runs in this epoch: `k` counts.
    pub counted: bool,
    /// Possible entries.
    pub mask: u32,
    /// The entry that is AUTO.
    pub auto: u8,
    /// The epoch.
    pub epoch: u64,
    /// The call's number among those of its slot in the epoch.
    pub k: u64,
    /// Nanoseconds since the communicator was made at which the call's group, or else the call, began; 0 where nobody wants to know.
    pub at_ns: u64,
    /// The outermost group, 24 bits of a count; 0 where NCCL does not say.
    pub group: u32,
}

impl Decision {
    fn pack(&self) -> wire::ring::Record {
        let flags = u64::from(self.taken) | u64::from(self.captured) << 1 | u64::from(self.counted) << 2;
        [
            self.call,
            self.bytes,
            u64::from(arm_code(self.arm)) | u64::from(self.collective.number()) << 32 | flags << 40,
            u64::from(self.mask) | u64::from(self.auto) << 32 | u64::from(self.group & GROUP_MAX) << 40,
            self.epoch << 40 | (self.k & 0xff_ffff_ffff),
            self.at_ns,
        ]
    }

    fn unpack(r: &wire::ring::Record) -> Option<Self> {
        let [call, bytes, arm, mask, epoch, at_ns] = *r;
        Some(Decision {
            call,
            bytes,
            collective: Collective::tuned_of_number((arm >> 32 & 0xff) as usize)?,
            arm: arm_of_code(arm as u32).ok()?,
            taken: arm >> 40 & 1 != 0,
            captured: arm >> 41 & 1 != 0,
            counted: arm >> 42 & 1 != 0,
            mask: mask as u32,
            auto: (mask >> 32) as u8,
            epoch: epoch >> 40,
            k: epoch & 0xff_ffff_ffff,
            at_ns,
            group: (mask >> 40) as u32 & GROUP_MAX,
        })
    }

    /// The slot of the call.
    pub fn slot(&self) -> Slot {
        Slot::of(self.collective, self.bytes)
    }

    /// For tests: an AllReduce that was obeyed and counts, the first epoch's call of this number.
    #[cfg(test)]
    pub fn of_test(call: u64, bytes: u64, arm: Arm) -> Self {
        Decision {
            call,
            bytes,
            collective: Collective::AllReduce,
            arm,
            taken: true,
            captured: false,
            counted: true,
            mask: u32::MAX,
            auto: 0,
            epoch: 1,
            k: call,
            at_ns: 0,
            group: 0,
        }
    }
}

/// What [`Comm::new`] needs to know.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    /// See [`Comm::id`].
    pub id: u64,
    /// See [`Comm::ordinal`].
    pub ordinal: u32,
    /// See [`Comm::rank`].
    pub rank: i32,
    /// See [`Comm::ranks`].
    pub ranks: u32,
    /// See [`Comm::nodes`].
    pub nodes: u32,
}

impl Comm {
    /// A communicator at AUTO. `records`: how many decisions wait for the worker; 0: none go there.
    pub fn new(who: Identity, role: Role, records: usize) -> Self {
        Comm {
            begun: AtomicU64::new(0),
            border: AtomicU64::new(u64::MAX),
            epoch: AtomicU64::new(0),
            role,
            records: records > 0,
            timed: AtomicBool::new(false),
            captured: AtomicBool::new(false),
            group: AtomicU32::new(0),
            group_ns: AtomicU64::new(0),
            slots: (0..KEYS_MAX).map(|_| AtomicU32::new(0)).collect(),
            cells: (0..RUN_KEYS_MAX).map(|_| Cell::default()).collect(),
            ring: Ring::new(records),
            slow: Mutex::default(),
            verdict: Condvar::new(),
            asked: AtomicU64::new(0),
            answered: AtomicU32::new(0),
            followers: Mutex::default(),
            table: Vec::new(),
            born: Instant::now(),
            id: who.id,
            ordinal: who.ordinal,
            rank: who.rank,
            ranks: who.ranks,
            nodes: who.nodes,
        }
    }

    /// With the table that counts where the job's epochs have a plan at all.
    pub fn with_table(mut self, table: Vec<KeyPlan>) -> Self {
        self.table = table;
        self
    }

    /// What its arms come from.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Records carry the time from now on.
    pub fn set_timed(&self) {
        self.timed.store(true, Ordering::Relaxed);
    }

    /// When the communicator was made: the zero of its records' times.
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

    /// NCCL says that the next calls belong to an outermost group of this number (of the process), which begins now if it is another one.
    pub fn set_group(&self, number: u64) {
        let group = (number % u64::from(GROUP_MAX)) as u32 + 1;
        if self.group.swap(group, Ordering::Relaxed) != group && self.timed.load(Ordering::Relaxed) {
            self.group_ns.store(self.now_ns(), Ordering::Relaxed);
        }
    }

    /// NCCL says that the group of the last calls is being launched: the next calls belong to another one.
    pub fn end_group(&self) {
        let group = self.group.load(Ordering::Relaxed) % GROUP_MAX + 1;
        self.group.store(group, Ordering::Relaxed);
    }

    /// The next calls are, or are not, captured into a CUDA graph.
    pub fn set_captured(&self, captured: bool) {
        self.captured.store(captured, Ordering::Relaxed);
    }

    /// A call: puts the arm in force into its table. `channels` gets the arm's number of channels, if it has one. A table without any possible
    /// entry is no call. Under 200 ns away from borders, without allocation, lock or system call.
    #[inline]
    pub fn call(&self, call: Call, costs: &mut Costs<'_>, channels: &mut i32, log: impl Fn(&str)) {
        let survey = costs.survey();
        let Some(collective) = Collective::tuned_of_number(call.collective) else { return };
        if survey.is_empty() {
            return;
        }
        let slot = Slot::of(collective, call.bytes);
        let (number, arm, k, captured) = self.next(slot, log);
        let taken = costs.prefer(arm, &survey) || arm.forced.is_none();
        if let Some(n) = arm.channels.filter(|_| taken && may_set_channels(arm, &survey)) {
            *channels = i32::from(n);
        }
        self.record(Recorded { number, call, collective, arm, taken, captured, k, survey });
    }

    /// A call that has no table (tuner API v2): the algorithm and protocol to ask for, if any. `can` says which are always possible. NCCL 2.21
    /// asks twice per call: the second time it gets the same answer, and it is not counted.
    pub fn call_without_table(
        &self,
        call: Call,
        can: impl Fn(Algorithm, Protocol) -> bool,
        log: impl Fn(&str),
    ) -> Option<(Algorithm, Protocol)> {
        let collective = Collective::tuned_of_number(call.collective)?;
        let question = (call.bytes << 3 | call.collective as u64).wrapping_add(1);
        let arm = if self.asked.swap(0, Ordering::Relaxed) == question {
            arm_of_code(self.answered.load(Ordering::Relaxed)).unwrap_or(Arm::AUTO)
        } else {
            let (number, arm, k, captured) = self.next(Slot::of(collective, call.bytes), log);
            self.asked.store(question, Ordering::Relaxed);
            self.answered.store(arm_code(arm), Ordering::Relaxed);
            let taken = arm.forced.is_none_or(|(a, p)| can(a, p));
            self.record(Recorded { number, call, collective, arm, taken, captured, k, survey: Survey::UNKNOWN });
            arm
        };
        arm.forced.filter(|(a, p)| can(*a, *p))
    }

    #[inline]
    fn record(&self, r: Recorded) {
        if self.records {
            let decision = Decision {
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
                group: self.group.load(Ordering::Relaxed),
            };
            self.ring.push(&decision.pack());
        }
    }

    #[inline]
    fn next(&self, slot: Slot, log: impl Fn(&str)) -> (u64, Arm, Option<u64>, bool) {
        // SeqCst, with `propose`: either this call is seen as begun there, or its border is seen here.
        let number = self.begun.fetch_add(1, Ordering::SeqCst);
        if number >= self.border.load(Ordering::SeqCst) {
            crate::cost::border(|| self.cross(number, log));
        }
        let captured = self.captured.load(Ordering::Relaxed);
        let value = self.slots.get(slot.index()).map_or(0, |s| s.load(Ordering::Relaxed));
        if value & CELL == 0 {
            let arm = if value & ARM == 0 { Arm::AUTO } else { arm_of_code(value & !ARM).unwrap_or(Arm::AUTO) };
            return (number, arm, None, captured);
        }
        let Some(cell) = self.cells.get((value & !CELL) as usize) else { return (number, Arm::AUTO, None, captured) };
        if captured {
            let arm = arm_of_code(cell.settled.load(Ordering::Relaxed)).unwrap_or(Arm::AUTO);
            return (number, arm, None, true); // replayed for long: not a moment to explore, and not counted
        }
        let k = cell.k.load(Ordering::Relaxed);
        cell.k.store(k + 1, Ordering::Relaxed);
        while k >= cell.until.load(Ordering::Relaxed) {
            cell.next_run();
        }
        (number, arm_of_code(cell.arm.load(Ordering::Relaxed)).unwrap_or(Arm::AUTO), Some(k), false)
    }

    /// At a border: installs what is in force from this call on, waits where this rank is bound and the verdict is not known.
    #[cold]
    fn cross(&self, number: u64, log: impl Fn(&str)) {
        let mut slow = self.slow();
        let mut since: Option<Instant> = None;
        let mut said = false;
        loop {
            match slow.member.at(number) {
                At::Go => break,
                At::Switch(epoch) => self.install(&epoch),
                At::Wait if slow.ended => break,
                At::Wait => {
                    let begin = *since.get_or_insert_with(Instant::now);
                    if begin.elapsed() >= WAIT_BEFORE_LOG && !said {
                        said = true;
                        let epoch = slow.member.bound_to().map_or(0, |e| e.number);
                        log(&format!(
                            "communicator {:016x} rank {}: call {number} waits for the verdict on epoch {epoch}; \
                             if the rank that leads has ended the job cannot go on",
                            self.id, self.rank
                        ));
                    }
                    slow.waiting += 1;
                    slow = match self.verdict.wait_timeout(slow, Duration::from_millis(50)) {
                        Ok((guard, _)) => guard,
                        Err(e) => e.into_inner().0,
                    };
                    slow.waiting -= 1;
                }
            }
        }
        if let Some(begin) = since {
            slow.waited = slow.waited.max(begin.elapsed());
            slow.waits += 1;
        }
        self.border.store(slow.member.border(), Ordering::SeqCst);
        if slow.ended {
            self.verdict.notify_all();
        }
    }

    fn install(&self, epoch: &Epoch) {
        for s in &self.slots {
            s.store(0, Ordering::Relaxed);
        }
        let mut cells = self.cells.iter().enumerate();
        let plans = if self.role == Role::Follow && !epoch.plans.is_empty() { &self.table } else { &epoch.plans };
        for plan in plans {
            let value = match plan.runs.is_empty() {
                true if plan.settled.is_auto() => 0,
                true => ARM | arm_code(plan.settled),
                false => match cells.next() {
                    Some((i, cell)) => {
                        cell.set(plan);
                        CELL | i as u32
                    }
                    None => 0, // more than may be: `Epoch::read` refuses it
                },
            };
            if let Some(s) = self.slots.get(plan.slot.index()) {
                s.store(value, Ordering::Relaxed);
            }
        }
        self.epoch.store(epoch.number, Ordering::Relaxed);
    }

    /// Remembers which entries a slot's calls have.
    pub fn saw(&self, slot: Slot, mask: u32) {
        let mut slow = self.slow();
        match slow.masks.iter().position(|(s, _)| *s == slot) {
            Some(i) => slow.masks[i].1 &= mask,
            None => slow.masks.push((slot, mask)), // at most one per slot: 320
        }
    }

    /// Calls begun; of a job, by the communicator that is farthest.
    pub fn begun(&self) -> u64 {
        let followers = lock(&self.followers);
        let of_followers = followers.iter().map(|f| f.begun.load(Ordering::SeqCst)).max().unwrap_or(0);
        self.begun.load(Ordering::SeqCst).max(of_followers)
    }

    /// The oldest decision that nobody has seen.
    pub fn take_decision(&self) -> Option<Decision> {
        loop {
            if let Some(d) = Decision::unpack(&self.ring.pop()?) {
                return Some(d);
            }
        }
    }

    /// Decisions that found no room in the ring.
    pub fn decisions_lost(&self) -> u64 {
        self.ring.dropped()
    }

    /// How often this rank waited for a verdict, and the longest wait.
    pub fn waits(&self) -> (u64, Duration) {
        let slow = self.slow();
        (slow.waits, slow.waited)
    }

    /// A thread that panicked with the lock held left the member as it was: its methods do not panic half-way.
    fn slow(&self) -> MutexGuard<'_, Slow> {
        lock(&self.slow)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Cell {
    fn set(&self, plan: &agreement::KeyPlan) {
        let settled = arm_code(plan.settled);
        self.settled.store(settled, Ordering::Relaxed);
        for (i, (arm, calls)) in self.runs.iter().enumerate() {
            let run = plan.runs.get(i);
            arm.store(run.map_or(settled, |r| arm_code(r.arm)), Ordering::Relaxed);
            calls.store(run.map_or(0, |r| r.calls), Ordering::Relaxed);
        }
        self.k.store(0, Ordering::Relaxed);
        self.until.store(0, Ordering::Relaxed);
        self.run.store(0, Ordering::Relaxed);
    }

    /// The next run, or what is settled for good.
    #[cold]
    fn next_run(&self) {
        let run = self.run.fetch_add(1, Ordering::Relaxed) as usize;
        let (arm, calls) =
            self.runs.get(run).map_or((0, 0), |(a, c)| (a.load(Ordering::Relaxed), c.load(Ordering::Relaxed)));
        if calls == 0 {
            self.arm.store(self.settled.load(Ordering::Relaxed), Ordering::Relaxed);
            self.until.store(u64::MAX, Ordering::Relaxed);
        } else {
            self.arm.store(arm, Ordering::Relaxed);
            self.until.store(self.until.load(Ordering::Relaxed) + u64::from(calls), Ordering::Relaxed);
        }
    }
}

/// NCCL does not clamp the number of channels of CollNet: it is left alone there.
fn may_set_channels(arm: Arm, survey: &Survey) -> bool {
    let algorithm = arm.forced.or_else(|| crate::costs::entry(survey.best)).map(|(a, _)| a);
    !matches!(algorithm, Some(Algorithm::CollNetDirect | Algorithm::CollNetChain) | None)
}
