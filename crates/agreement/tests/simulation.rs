//! Hundreds of ranks on a simulated network. Messages are delayed (some a hundredfold), lost and duplicated; ranks are slow, late, or stop forever.
//! At each call all ranks that make it must have the same epoch in force.
//!
//! `LINKWISE_SIMULATION_STEPS=10000000 cargo test -p agreement --test simulation` runs longer, as `make test-plugin-matrix` does.

use agreement::leader::{GIVE_UP_US, REPEAT_US};
use agreement::{CallAction, Leader, Member, ToLeader, ToMember};
use rand::RngExt;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// The protocol, or the protocol with one rule broken, to show that the check detects it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
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
}

#[derive(Clone, Debug)]
struct World {
    ranks: usize,
    steps: u64,
    seed: u64,
    /// Share of messages.
    lost: f64,
    doubled: f64,
    /// Share of messages that take 100 times as long.
    slow_messages: f64,
    /// Ranks whose calls take 10 times as long.
    slow_ranks: usize,
    /// Ranks that stop forever at some time.
    dying: usize,
    /// Time at which the leader stops forever, us.
    leader_dies: Option<u64>,
    /// Probability per millisecond that one rank's connection to the leader breaks: nothing arrives for 100 ms in either direction.
    breaks: f64,
    /// Interval at which the leader repeats unanswered messages, us.
    repeat_us: u64,
    /// Calls by which a rank may be ahead of the slowest live rank: kernels wait for each other.
    drift: u64,
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
        }
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Call(usize),
    ToMember(usize, Vec<u8>),
    ToLeader(usize, Vec<u8>),
    LeaderTick,
    Break,
    Die(usize),
}

#[derive(Default, Debug)]
struct Outcome {
    /// A call that two ranks made with different arms: its number and both epochs.
    divergence: Option<(u64, u32, u32)>,
    committed: u64,
    aborted: u64,
    calls: u64,
    waits_us: Vec<u64>,
    steps: u64,
    /// By rank: the epoch in force at the end, and the call at which the rank waits.
    ends: Vec<(u32, Option<u64>)>,
    /// By rank: the first call of the proposal that the rank is bound to at the end.
    bound: Vec<Option<u64>>,
    broken: u64,
}

/// Live ranks by number of calls begun.
struct Pace(BTreeMap<u64, usize>);

impl Pace {
    fn slowest(&self) -> u64 {
        self.0.keys().next().copied().unwrap_or(0)
    }

    /// A rank goes to another count or stops forever. True if the slowest rank is farther now.
    fn moved(&mut self, from: u64, to: Option<u64>) -> bool {
        let before = self.slowest();
        *self.0.get_mut(&from).unwrap() -= 1;
        self.0.retain(|_, ranks| *ranks > 0);
        to.into_iter().for_each(|to| *self.0.entry(to).or_default() += 1);
        self.slowest() > before
    }
}

/// A call takes 50 to 150 us, a message 50 to 150 us in each direction.
fn run(world: &World, rule: Rule) -> Outcome {
    let mut rng = ChaCha8Rng::seed_from_u64(world.seed);
    let n = world.ranks;
    let mut leader = Leader::new(n, world.repeat_us, GIVE_UP_US);
    let mut members = vec![Member::default(); n];
    let (mut begun, mut in_force) = (vec![0u64; n], vec![0u32; n]);
    let mut waiting: Vec<Option<u64>> = vec![None; n];
    let mut alive = vec![true; n];
    let mut cut_until = vec![0u64; n];
    let (mut pace, mut held) = (Pace(BTreeMap::from([(0, n)])), Vec::new());
    let mut acks: BTreeMap<u64, BTreeSet<usize>> = BTreeMap::new();
    let slow: Vec<bool> = (0..n).map(|i| i > 0 && i <= world.slow_ranks).collect();
    let mut arms: Vec<Option<u32>> = Vec::new();
    let mut out = Outcome::default();
    let mut heap: BinaryHeap<Reverse<(u64, u64, What)>> = BinaryHeap::new();
    let mut serial = 0u64;
    let mut at = |heap: &mut BinaryHeap<_>, t: u64, what: What| {
        serial += 1;
        heap.push(Reverse((t, serial, what)));
    };
    for i in 0..n {
        at(&mut heap, rng.random_range(0..1000), What::Call(i));
    }
    for k in 0..world.dying {
        let when = rng.random_range(10_000..100_000);
        at(&mut heap, when, What::Die(n - 1 - k));
    }
    if let Some(when) = world.leader_dies {
        at(&mut heap, when, What::Die(0));
    }
    at(&mut heap, 1000, What::LeaderTick);
    if world.breaks > 0.0 {
        at(&mut heap, 1000, What::Break);
    }
    let mut due_from = 0u64; // first call of the last committed epoch
    while let Some(Reverse((now, _, what))) = heap.pop() {
        out.steps += 1;
        if out.steps > world.steps {
            break;
        }
        // Sends a message through the simulated network.
        macro_rules! send {
            ($what:expr) => {{
                let message = $what;
                if rng.random::<f64>() >= world.lost {
                    let copies = 1 + usize::from(rng.random::<f64>() < world.doubled);
                    for _ in 0..copies {
                        let mut delay = rng.random_range(50..150);
                        if rng.random::<f64>() < world.slow_messages {
                            delay *= 100;
                        }
                        let copy = match &message {
                            What::ToMember(i, b) => What::ToMember(*i, b.clone()),
                            What::ToLeader(i, b) => What::ToLeader(*i, b.clone()),
                            _ => unreachable!(),
                        };
                        at(&mut heap, now + delay, copy);
                    }
                }
            }};
        }
        match what {
            What::Die(i) => {
                alive[i] = false;
                pace.moved(begun[i], None);
                held.drain(..).for_each(|k| at(&mut heap, now + 1, What::Call(k)));
            }
            What::Break => {
                if rng.random::<f64>() < world.breaks {
                    cut_until[rng.random_range(1..n)] = now + 100_000;
                    out.broken += 1;
                }
                at(&mut heap, now + 1000, What::Break);
            }
            What::ToMember(i, _) | What::ToLeader(i, _) if now < cut_until[i] => {}
            What::ToLeader(..) | What::LeaderTick if !alive[0] => {}
            What::Call(i) if alive[i] => {
                // A call that waits for a verdict has begun already.
                if waiting[i].is_none() {
                    if begun[i] > pace.slowest() + world.drift {
                        held.push(i);
                        continue;
                    }
                    begun[i] += 1;
                    if pace.moved(begun[i] - 1, Some(begun[i])) {
                        held.drain(..).for_each(|k| at(&mut heap, now + 1, What::Call(k)));
                    }
                }
                let call = begun[i] - 1;
                let wait = loop {
                    match members[i].action_at(call) {
                        CallAction::Proceed => break false,
                        CallAction::Switch(e) => in_force[i] = e.number as u32,
                        CallAction::Wait if rule == Rule::GuessesVoid => break false,
                        CallAction::Wait if rule == Rule::GuessesInForce => {
                            let number = members[i].bound_to().map_or(0, |e| e.number);
                            members[i].on_message(&ToMember::Commit(number), begun[i], |_| true);
                        }
                        CallAction::Wait => break rule != Rule::AsItArrives,
                    }
                };
                if wait && rule != Rule::OwnRandomNumbers {
                    waiting[i].get_or_insert(now); // until a message arrives
                    continue;
                }
                if let Some(since) = waiting[i].take() {
                    out.waits_us.push(now - since);
                }
                let arm = if rule == Rule::OwnRandomNumbers { rng.random_range(0..6) } else { in_force[i] };
                if arms.len() <= call as usize {
                    arms.resize(call as usize + 1, None);
                }
                match arms[call as usize] {
                    None => arms[call as usize] = Some(arm),
                    Some(other) if other != arm => {
                        out.divergence.get_or_insert((call, other, arm));
                    }
                    Some(_) => {}
                }
                let time = rng.random_range(50..150) * if slow[i] { 10 } else { 1 };
                at(&mut heap, now + time, What::Call(i));
            }
            What::Call(_) => {}
            What::ToMember(i, bytes) if alive[i] => {
                let message = ToMember::read(&mut wire::Reader::new(&bytes)).unwrap();
                if waiting[i].is_some() {
                    at(&mut heap, now, What::Call(i));
                }
                if rule == Rule::AsItArrives
                    && let ToMember::Propose(e) = &message
                {
                    in_force[i] = e.number as u32;
                }
                if let Some(answer) =
                    members[i].on_message(&message, if rule == Rule::NoVeto { 0 } else { begun[i] }, |_| true)
                {
                    let mut w = wire::Writer::default();
                    answer.write(&mut w);
                    send!(What::ToLeader(i, w.0));
                }
            }
            What::ToMember(..) => {}
            What::ToLeader(i, bytes) => {
                let message = ToLeader::read(&mut wire::Reader::new(&bytes)).unwrap();
                let mut say = Vec::new();
                leader.on_message(i, &message, now, |to, m| say.push((to, m)));
                if let (Rule::HalfIsEnough, ToLeader::Ack { epoch, .. }) = (rule, &message) {
                    let who = acks.entry(*epoch).or_default();
                    who.insert(i);
                    if who.len() * 2 > n {
                        (0..n).for_each(|k| leader.on_message(k, &message, now, |to, m| say.push((to, m))));
                    }
                }
                for (to, m) in say {
                    let mut w = wire::Writer::default();
                    m.write(&mut w);
                    send!(What::ToMember(to, w.0));
                }
            }
            What::LeaderTick => {
                let mut say = Vec::new();
                leader.tick(now, |to, m| say.push((to, m)));
                if leader.is_idle() && begun[0] >= due_from {
                    leader.propose(Vec::new(), begun[0], now, |to, m| say.push((to, m)));
                }
                for (to, m) in say {
                    let mut w = wire::Writer::default();
                    m.write(&mut w);
                    send!(What::ToMember(to, w.0));
                }
                at(&mut heap, now + 1000, What::LeaderTick);
            }
        }
        if let Some(ended) = leader.take_ended() {
            out.committed += u64::from(ended.committed);
            out.aborted += u64::from(!ended.committed);
            if ended.committed {
                due_from = ended.epoch.from_call;
            }
        }
    }
    out.calls = begun.iter().sum();
    out.ends = (0..n).map(|i| (in_force[i], waiting[i].map(|_| begun[i] - 1))).collect();
    out.bound = members.iter().map(|m| m.bound_to().map(|e| e.from_call)).collect();
    out.waits_us.sort();
    out
}

fn steps() -> u64 {
    std::env::var("LINKWISE_SIMULATION_STEPS").ok().and_then(|s| s.parse().ok()).unwrap_or(World::default().steps)
}

fn run_and_report(what: &str, out: &mut Outcome) -> u64 {
    let longest = out.waits_us.last().copied().unwrap_or(0);
    let p99 = out.waits_us.get(out.waits_us.len() * 99 / 100).copied().unwrap_or(0);
    println!(
        "512 ranks, {what}: {} steps, {} calls, {} epochs committed, {} void; {} waits, p99 {:.1} ms, longest {:.1} ms",
        out.steps,
        out.calls,
        out.committed,
        out.aborted,
        out.waits_us.len(),
        p99 as f64 / 1e3,
        longest as f64 / 1e3,
    );
    assert_eq!(out.divergence, None);
    assert!(out.committed > 0, "epochs were committed: {} committed, {} void", out.committed, out.aborted);
    longest
}

#[test]
fn five_hundred_ranks_never_run_one_call_with_different_arms() {
    // The target concerns TCP, which delays messages but loses none.
    let longest = run_and_report(
        "1 % of messages late",
        &mut run(&World { steps: steps(), lost: 0.0, ..World::default() }, Rule::Agreed),
    );
    assert!(longest < 50_000, "a bound rank waited {longest} us");
    let lost = World { steps: steps() / 3, ..World::default() };
    run_and_report("and 0.1 % lost", &mut run(&lost, Rule::Agreed));
    let mut out = run(&World { steps: steps() / 3, lost: 0.0, breaks: 0.1, ..World::default() }, Rule::Agreed);
    run_and_report("and breaks of 100 ms, 100 a second", &mut out);
    assert!(out.broken > 10, "{}", out.broken);
}

#[test]
fn ranks_agree_on_bad_networks_and_when_ranks_die() {
    for seed in 0..if steps() > 5_000_000 { 200 } else { 20 } {
        let world = World {
            ranks: 3 + (seed as usize % 7) * 5,
            steps: 30_000,
            seed,
            lost: 0.1 * (seed % 4) as f64,
            doubled: 0.2,
            slow_messages: 0.2,
            slow_ranks: 1 + seed as usize % 3,
            dying: seed as usize % 2,
            leader_dies: (seed % 5 == 4).then_some(20_000 + 1000 * seed),
            breaks: if seed % 3 == 0 { 0.1 } else { 0.0 },
            repeat_us: 20_000, // shorter, since many messages are lost
            drift: if seed % 5 == 0 { u64::MAX / 2 } else { 16 },
        };
        let out = run(&world, Rule::Agreed);
        assert_eq!(out.divergence, None, "{world:?}");
        assert!(out.calls > 100 || world.leader_dies.is_some(), "{world:?}");
    }
}

/// The leader stops at this time while the other ranks go on. Kernels do not wait for the leader here, so that the ranks' behaviour can be observed.
fn without_a_leader(dies_us: u64, seed: u64) -> Outcome {
    let world = World { ranks: 8, steps: 200_000, seed, slow_ranks: 0, leader_dies: Some(dies_us), ..World::default() };
    run(&world, Rule::Agreed)
}

#[test]
fn a_leader_that_dies_leaves_ranks_with_the_last_common_arm_or_waiting_for_its_verdict() {
    let (mut all_went_on, mut all_wait, mut some_wait) = (0, 0, 0);
    for seed in 0..400 {
        let out = without_a_leader(20_000 + 37 * seed, seed);
        assert_eq!(out.divergence, None);
        // Each live rank uses the arms of the last common call or waits exactly at the call it is bound to.
        let live = || out.ends.iter().zip(&out.bound).skip(1);
        for ((_, waits), bound) in live() {
            assert_eq!(
                waits.is_some(),
                bound.is_some(),
                "a bound rank waits at its first call, any other goes on: {out:?}"
            );
            assert!(waits.is_none_or(|call| Some(call) == *bound), "{out:?}");
        }
        match live().filter(|((_, waits), _)| waits.is_some()).count() {
            0 => {
                all_went_on += 1;
                assert!(live().all(|((in_force, _), _)| *in_force == out.ends[1].0), "one arm: {out:?}");
            }
            7 => all_wait += 1,
            _ => some_wait += 1,
        }
    }
    println!(
        "the leader dies: {all_went_on} times all went on with one arm, {all_wait} times all wait, {some_wait} times some do"
    );
    assert!(all_went_on > 0 && all_wait > 0, "both were seen");
}

/// Each broken rule is detected.
#[test]
fn the_check_detects_every_broken_rule() {
    use Rule::*;
    let quiet = World { ranks: 64, steps: 300_000, ..World::default() };
    // Counters far apart and a first call close ahead: otherwise the leader's choice alone would hide a missing veto.
    let wild = World { drift: u64::MAX / 2, slow_messages: 0.2, ..quiet.clone() };
    for rule in [AsItArrives, OwnRandomNumbers, GuessesVoid, GuessesInForce, NoVeto, HalfIsEnough] {
        let found = |world: &World| (1..6).any(|seed| run(&World { seed, ..world.clone() }, rule).divergence.is_some());
        assert!(found(&quiet) || found(&wild), "{rule:?} goes unnoticed");
    }
    for world in [quiet, wild] {
        assert_eq!(run(&world, Agreed).divergence, None);
    }
}
