//! A simulated network, its ranks, and the check that all ranks make a call with the same arm.

use agreement::leader::{GIVE_UP_US, REPEAT_US};
use agreement::{CallAction, CallDigest, Leader, Member, Slot, SlotPlan, ToLeader, ToMember};
use rand::RngExt;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// The protocol, or the protocol with one rule broken, to show that the check detects it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// The crate's protocol.
    Agreed,
    /// A rank uses a proposal on arrival.
    AsItArrives,
    /// Each rank draws its own random arm.
    OwnRandomNumbers,
    /// A bound rank that reaches the first call without a verdict continues with its arms.
    GuessesVoid,
    /// A bound rank that reaches the first call without a verdict treats the proposal as committed.
    GuessesInForce,
    /// A rank that has begun the first call acknowledges anyway, so the first call need not be ahead of every rank.
    NoVeto,
    /// The leader decides when half of the ranks have acknowledged.
    HalfIsEnough,
    /// Digests are hashes of the calls alone, without NCCL's own numbers.
    HashAlone,
}

#[derive(Clone, Debug)]
pub struct World {
    pub ranks: usize,
    pub steps: u64,
    pub seed: u64,
    /// Share of messages.
    pub lost: f64,
    pub doubled: f64,
    /// Share of messages that take 100 times as long.
    pub slow_messages: f64,
    /// Ranks whose calls take 10 times as long.
    pub slow_ranks: usize,
    /// Ranks that stop forever at some time.
    pub dying: usize,
    /// Time at which the leader stops forever, us.
    pub leader_dies: Option<u64>,
    /// Probability per millisecond that one rank's connection to the leader breaks: nothing arrives for 100 ms in either direction.
    pub breaks: f64,
    /// Interval at which the leader repeats unanswered messages, us.
    pub repeat_us: u64,
    /// Calls by which a rank may be ahead of the slowest live rank: kernels wait for each other.
    pub drift: u64,
    /// Time from a proposal to its first call, us; 0: as near as possible.
    pub lead_us: u64,
    /// Members are asked before they are bound.
    pub asks: bool,
    /// Every so many us one rank is disturbed, in turn by a cut of its connection, a stop of its agreement thread and a stop of its process; the time
    /// that it lasts, from and to, us.
    pub disturbed: Option<(u64, [u64; 2])>,
    /// Only cuts, and each hits a rank that is bound and does not know the verdict.
    pub aimed: bool,
    /// Calls between the first call of an epoch and the next proposal.
    pub rest: u64,
    /// A rank that counts so many calls which it does not launch, once, after its first so many calls and shortly after an epoch begins.
    pub miscount: Option<(usize, u64, u64)>,
}

impl Default for World {
    fn default() -> Self {
        World {
            ranks: 512,
            steps: 3_000_000,
            seed: 1,
            lost: 0.001,
            doubled: 0.01,
            slow_messages: 0.01,
            slow_ranks: 3,
            dying: 0,
            leader_dies: None,
            breaks: 0.0,
            repeat_us: REPEAT_US,
            drift: 32,
            lead_us: 0,
            asks: true,
            disturbed: None,
            aimed: false,
            rest: 0,
            miscount: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Call(usize),
    ToMember(usize, Vec<u8>),
    ToLeader(usize, Vec<u8>),
    LeaderTick,
    Break,
    Disturb,
    Die(usize),
}

#[derive(Default, Debug)]
pub struct Outcome {
    /// A call that two ranks made with different arms: its number and both epochs.
    pub divergence: Option<(u64, u32, u32)>,
    pub committed: u64,
    pub aborted: u64,
    pub calls: u64,
    pub waits_us: Vec<u64>,
    pub steps: u64,
    /// By rank: the epoch in force at the end, and the call at which the rank waits.
    pub ends: Vec<(u32, Option<u64>)>,
    /// By rank: the first call of the proposal that the rank is bound to at the end.
    pub bound: Vec<Option<u64>>,
    pub broken: u64,
    pub disturbances: u64,
    /// Epochs that lapsed.
    pub lapsed: u64,
    /// The digests of two ranks differed.
    pub difference: bool,
}

/// Live ranks by number of calls begun.
struct Pace(BTreeMap<u64, usize>);

impl Pace {
    fn slowest(&self) -> u64 {
        self.0.keys().next().copied().unwrap_or(0)
    }

    /// A rank begins a call (`to`) or stops forever (`None`). True if the slowest rank is farther now.
    fn moved(&mut self, from: u64, to: Option<u64>) -> bool {
        let before = self.slowest();
        *self.0.get_mut(&from).unwrap() -= 1;
        self.0.retain(|_, ranks| *ranks > 0);
        to.into_iter().for_each(|to| *self.0.entry(to).or_default() += 1);
        self.slowest() > before
    }
}

/// A world in progress. A call takes 50 to 150 us, a message 50 to 150 us in each direction.
struct Simulation<'a> {
    world: &'a World,
    rule: Rule,
    rng: ChaCha8Rng,
    now: u64,
    /// By time, then in the order of scheduling.
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    scheduled: u64,
    leader: Leader,
    /// First call of the last committed epoch.
    due_from: u64,
    /// For [`Rule::HalfIsEnough`]: the ranks that have acknowledged, by epoch.
    acks: BTreeMap<u64, BTreeSet<usize>>,
    ranks: Vec<Rank>,
    pace: Pace,
    /// Ranks that are too far ahead of the slowest.
    held: Vec<usize>,
    /// By call: the arm of the first rank that made it.
    arms: Vec<Option<u32>>,
    out: Outcome,
}

struct Rank {
    member: Member,
    alive: bool,
    slow: bool,
    /// Calls begun.
    begun: u64,
    in_force: u32,
    /// Calls counted that were not launched, and how many had been counted before.
    miscounted: u64,
    miscounted_at: u64,
    /// Since when the rank waits for a verdict.
    waiting: Option<u64>,
    /// Until when its connection to the leader is broken.
    cut_until: u64,
    /// Until when its agreement thread, and its process, stand still.
    deaf_until: u64,
    stopped_until: u64,
}

/// Arms for one slot: an epoch without plans means AUTO and never lapses.
fn plans() -> Vec<SlotPlan> {
    let arm = tune::Arm::new(tune::Algorithm::Tree, tune::Protocol::Ll);
    vec![SlotPlan { slot: Slot::of(tune::Collective::AllReduce, 1 << 20), runs: Vec::new(), settled: arm }]
}

pub fn run(world: &World, rule: Rule) -> Outcome {
    let mut simulation = Simulation::new(world, rule);
    simulation.schedule_first_events();
    while let Some(Reverse((now, _, event))) = simulation.events.pop() {
        simulation.now = now;
        simulation.out.steps += 1;
        if simulation.out.steps > world.steps {
            break;
        }
        simulation.handle(event);
        simulation.count_ended_epochs();
    }
    simulation.outcome()
}

impl<'a> Simulation<'a> {
    fn new(world: &'a World, rule: Rule) -> Self {
        let n = world.ranks;
        let rank = |i: usize| Rank {
            member: Member::default(),
            alive: true,
            slow: i > 0 && i <= world.slow_ranks,
            begun: 0,
            in_force: 0,
            miscounted: 0,
            miscounted_at: 0,
            waiting: None,
            cut_until: 0,
            deaf_until: 0,
            stopped_until: 0,
        };
        let mut leader = Leader::new(n, world.repeat_us, GIVE_UP_US).lead(world.lead_us);
        if !world.asks {
            leader = leader.without_question();
        }
        Simulation {
            world,
            rule,
            rng: ChaCha8Rng::seed_from_u64(world.seed),
            now: 0,
            events: BinaryHeap::new(),
            scheduled: 0,
            leader,
            due_from: 0,
            acks: BTreeMap::new(),
            ranks: (0..n).map(rank).collect(),
            pace: Pace(BTreeMap::from([(0, n)])),
            held: Vec::new(),
            arms: Vec::new(),
            out: Outcome::default(),
        }
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((at, self.scheduled, event)));
    }

    fn schedule_first_events(&mut self) {
        let n = self.world.ranks;
        for i in 0..n {
            let at = self.rng.random_range(0..1000);
            self.schedule(at, Event::Call(i));
        }
        for k in 0..self.world.dying {
            let at = self.rng.random_range(10_000..100_000);
            self.schedule(at, Event::Die(n - 1 - k));
        }
        if let Some(at) = self.world.leader_dies {
            self.schedule(at, Event::Die(0));
        }
        self.schedule(1000, Event::LeaderTick);
        if self.world.breaks > 0.0 {
            self.schedule(1000, Event::Break);
        }
        if let Some((every, _)) = self.world.disturbed {
            self.schedule(every, Event::Disturb);
        }
    }

    /// Until when this event cannot happen, because its rank stands still.
    fn stands_until(&self, event: &Event) -> u64 {
        let rank = |i: usize| &self.ranks[i];
        match event {
            Event::Call(i) => rank(*i).stopped_until,
            Event::ToMember(i, _) => rank(*i).stopped_until.max(rank(*i).deaf_until),
            Event::ToLeader(..) | Event::LeaderTick => rank(0).stopped_until.max(rank(0).deaf_until),
            _ => 0,
        }
    }

    fn handle(&mut self, event: Event) {
        let until = self.stands_until(&event);
        if until > self.now {
            return self.schedule(until, event);
        }
        match event {
            Event::Disturb => {
                let Some((every, [least, most])) = self.world.disturbed else { return };
                let until = self.now + self.rng.random_range(least..=most);
                let mut i = self.rng.random_range(1..self.world.ranks);
                if self.world.aimed {
                    let is_bound = |i: &usize| self.ranks[*i].member.bound_to().is_some();
                    let Some(bound) = (1..self.world.ranks).find(is_bound) else {
                        return self.schedule(self.now + 20, Event::Disturb);
                    };
                    i = bound;
                }
                match self.out.disturbances % 3 {
                    _ if self.world.aimed => self.ranks[i].cut_until = until,
                    0 => self.ranks[i].cut_until = until,
                    1 => self.ranks[i].deaf_until = until,
                    _ => self.ranks[i].stopped_until = until,
                }
                self.out.disturbances += 1;
                self.schedule(self.now + every, Event::Disturb);
            }
            Event::Die(i) => {
                self.ranks[i].alive = false;
                self.pace.moved(self.ranks[i].begun, None);
                self.release_held();
            }
            Event::Break => {
                if self.rng.random::<f64>() < self.world.breaks {
                    let i = self.rng.random_range(1..self.world.ranks);
                    self.ranks[i].cut_until = self.now + 100_000;
                    self.out.broken += 1;
                }
                self.schedule(self.now + 1000, Event::Break);
            }
            Event::ToMember(i, _) | Event::ToLeader(i, _) if self.now < self.ranks[i].cut_until => {}
            Event::ToLeader(..) | Event::LeaderTick if !self.ranks[0].alive => {}
            Event::Call(i) | Event::ToMember(i, _) if !self.ranks[i].alive => {}
            Event::Call(i) => self.call(i),
            Event::ToMember(i, bytes) => self.on_member_message(i, &bytes),
            Event::ToLeader(i, bytes) => self.on_leader_message(i, &bytes),
            Event::LeaderTick => self.tick_leader(),
        }
    }

    /// The slowest rank is farther or gone: the ranks that were too far ahead try again.
    fn release_held(&mut self) {
        for i in std::mem::take(&mut self.held) {
            self.schedule(self.now + 1, Event::Call(i));
        }
    }

    /// Sends a message through the simulated network.
    fn send(&mut self, message: Event) {
        if self.rng.random::<f64>() < self.world.lost {
            return;
        }
        let copies = 1 + usize::from(self.rng.random::<f64>() < self.world.doubled);
        for _ in 0..copies {
            let mut delay = self.rng.random_range(50..150);
            if self.rng.random::<f64>() < self.world.slow_messages {
                delay *= 100;
            }
            self.schedule(self.now + delay, message.clone());
        }
    }

    fn send_to_members(&mut self, messages: Vec<(usize, ToMember)>) {
        for (to, message) in messages {
            let mut w = wire::Writer::default();
            message.write(&mut w);
            self.send(Event::ToMember(to, w.0));
        }
    }

    fn call(&mut self, i: usize) {
        // A call that waits for a verdict has begun already.
        if self.ranks[i].waiting.is_none() && !self.begin_call(i) {
            self.held.push(i);
            return;
        }
        if self.must_wait(i) && self.rule != Rule::OwnRandomNumbers {
            self.ranks[i].waiting.get_or_insert(self.now); // until a message arrives
            return;
        }
        if let Some(since) = self.ranks[i].waiting.take() {
            self.out.waits_us.push(self.now - since);
        }
        let own = self.rule == Rule::OwnRandomNumbers;
        let arm = if own { self.rng.random_range(0..6) } else { self.ranks[i].in_force };
        self.check_same_arm(self.ranks[i].begun - 1 - self.ranks[i].miscounted, arm);
        let time = self.rng.random_range(50..150) * if self.ranks[i].slow { 10 } else { 1 };
        self.schedule(self.now + time, Event::Call(i));
    }

    /// False if the rank is too far ahead of the slowest.
    fn begin_call(&mut self, i: usize) -> bool {
        let begun = self.ranks[i].begun;
        if begun > self.pace.slowest().saturating_add(self.world.drift) {
            return false;
        }
        self.ranks[i].begun += 1;
        if let Some((rank, after, calls)) = self.world.miscount
            && rank == i
            && self.ranks[i].miscounted == 0
            && begun >= after
            && self.leader.is_idle()
            && (self.due_from..self.due_from + 20).contains(&begun)
        {
            let rank = &mut self.ranks[i];
            (rank.miscounted, rank.miscounted_at) = (calls, begun);
            rank.begun += calls;
        }
        let now = self.ranks[i].begun;
        if self.pace.moved(begun, Some(now)) {
            self.release_held();
        }
        true
    }

    /// Brings the rank's arms up to its call. True if the call must wait for a verdict.
    fn must_wait(&mut self, i: usize) -> bool {
        let rank = &mut self.ranks[i];
        loop {
            match rank.member.action_at(rank.begun - 1) {
                CallAction::Proceed => return false,
                CallAction::Switch(e) => rank.in_force = e.number as u32,
                CallAction::Wait if self.rule == Rule::GuessesVoid => return false,
                CallAction::Wait if self.rule == Rule::GuessesInForce => {
                    let number = rank.member.bound_to().map_or(0, |e| e.number);
                    rank.member.on_message(&ToMember::Commit(number), rank.begun, |_| true);
                }
                CallAction::Wait => return self.rule != Rule::AsItArrives,
            }
        }
    }

    fn check_same_arm(&mut self, call: u64, arm: u32) {
        let index = call as usize;
        if self.arms.len() <= index {
            self.arms.resize(index + 1, None);
        }
        let first = *self.arms[index].get_or_insert(arm);
        if first != arm {
            self.out.divergence.get_or_insert((call, first, arm));
        }
    }

    fn on_member_message(&mut self, i: usize, bytes: &[u8]) {
        let message = ToMember::read(&mut wire::Reader::new(bytes)).unwrap();
        if self.ranks[i].waiting.is_some() {
            self.schedule(self.now, Event::Call(i));
        }
        let rank = &mut self.ranks[i];
        if self.rule == Rule::AsItArrives
            && let ToMember::Propose(e) = &message
        {
            rank.in_force = e.number as u32;
        }
        let begun = if self.rule == Rule::NoVeto { 0 } else { rank.begun };
        if let Some(mut answer) = rank.member.on_message(&message, begun, |_| true) {
            let at = match &message {
                ToMember::Ask(e) | ToMember::Propose(e) => e.check_at,
                ToMember::Check { at } => *at,
                _ => 0,
            };
            if let ToLeader::Ready { digest, .. } | ToLeader::Ack { digest, .. } | ToLeader::Status { digest, .. } =
                &mut answer
            {
                // All calls are equal, so all hashes are.
                let sequence = match at {
                    _ if self.rule == Rule::HashAlone => 0,
                    at if at <= rank.miscounted_at => at,
                    at if at <= rank.miscounted_at + rank.miscounted => 0, // NCCL has launched nothing for this call
                    at => at - rank.miscounted,
                };
                *digest = Some(CallDigest { calls: at, hash: at, sequence });
            }
            let mut w = wire::Writer::default();
            answer.write(&mut w);
            self.send(Event::ToLeader(i, w.0));
        }
    }

    fn on_leader_message(&mut self, i: usize, bytes: &[u8]) {
        let (now, n) = (self.now, self.world.ranks);
        let message = ToLeader::read(&mut wire::Reader::new(bytes)).unwrap();
        let mut out = Vec::new();
        self.leader.on_message(i, &message, now, |to, m| out.push((to, m)));
        if let (Rule::HalfIsEnough, ToLeader::Ack { epoch, .. }) = (self.rule, &message) {
            let acknowledged = self.acks.entry(*epoch).or_default();
            acknowledged.insert(i);
            if acknowledged.len() * 2 > n {
                (0..n).for_each(|k| self.leader.on_message(k, &message, now, |to, m| out.push((to, m))));
            }
        }
        self.send_to_members(out);
    }

    fn tick_leader(&mut self) {
        let (now, begun) = (self.now, self.ranks[0].begun);
        let mut out = Vec::new();
        self.leader.note_begun(begun);
        self.leader.tick(now, |to, m| out.push((to, m)));
        if self.leader.take_lapsed() {
            self.out.lapsed += 1;
        }
        self.out.difference |= self.leader.take_difference().is_some();
        if self.leader.is_idle() && begun >= self.due_from + self.world.rest {
            self.leader.propose(plans(), begun, now, |to, m| out.push((to, m)));
        }
        self.send_to_members(out);
        self.schedule(now + 1000, Event::LeaderTick);
    }

    fn count_ended_epochs(&mut self) {
        if let Some(ended) = self.leader.take_ended() {
            self.out.committed += u64::from(ended.committed);
            self.out.aborted += u64::from(!ended.committed);
            if ended.committed {
                self.due_from = ended.epoch.from_call;
            }
        }
    }

    fn outcome(mut self) -> Outcome {
        self.out.calls = self.ranks.iter().map(|r| r.begun).sum();
        self.out.ends = self.ranks.iter().map(|r| (r.in_force, r.waiting.map(|_| r.begun - 1))).collect();
        self.out.bound = self.ranks.iter().map(|r| r.member.bound_to().map(|e| e.from_call)).collect();
        self.out.waits_us.sort();
        self.out
    }
}

/// A job of 24 ranks with so many disturbances.
pub fn disturbed(world: World, count: u64) -> Outcome {
    let world = World { ranks: 24, steps: u64::MAX, slow_ranks: 1, repeat_us: 20_000, ..world };
    let mut simulation = Simulation::new(&world, Rule::Agreed);
    simulation.schedule_first_events();
    while let Some(Reverse((now, _, event))) = simulation.events.pop()
        && simulation.out.disturbances < count
    {
        simulation.now = now;
        simulation.handle(event);
        simulation.count_ended_epochs();
    }
    simulation.outcome()
}
