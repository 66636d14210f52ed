//! Hundreds of ranks on a simulated network: messages are delayed (some a hundredfold), lost and doubled, ranks are slow, late, or stop for good.
//! At every call all ranks that make it must have the same epoch in force.
//!
//! `LINKWISE_SIMULATION_STEPS=10000000 cargo test -p agreement --test simulation` runs longer (`make test-plugin-matrix` does).

use agreement::{At, Leader, Member, ToLeader, ToMember};
use rand::RngExt;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How ranks come to an arm.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    /// As the crate does.
    Agreed,
    /// A proposal is used when it arrives.
    AsItArrives,
    /// Every rank draws its own random arm, as a first version of such a plugin did.
    OwnRandomNumbers,
}

#[derive(Clone, Debug)]
struct World {
    ranks: usize,
    steps: u64,
    seed: u64,
    /// Of messages.
    lost: f64,
    doubled: f64,
    /// Of messages that take a hundred times as long.
    slow_messages: f64,
    /// Ranks that take ten times as long per call.
    slow_ranks: usize,
    /// Ranks that stop for good after some time.
    dying: usize,
    /// How many calls a rank may be ahead of the slowest that lives: kernels wait for one another.
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
    Die(usize),
}

#[derive(Default, Debug)]
struct Outcome {
    /// A call that two ranks made with different arms.
    divergence: Option<(u64, u32, u32)>,
    committed: u64,
    aborted: u64,
    calls: u64,
    waits_us: Vec<u64>,
    steps: u64,
}

/// A call takes 50 to 150 us, a message 50 to 150 us each way.
fn run(world: &World, rule: Rule) -> Outcome {
    let mut rng = ChaCha8Rng::seed_from_u64(world.seed);
    let n = world.ranks;
    let mut leader = Leader::new(n, 20_000, 1_000_000);
    let mut members = vec![Member::default(); n];
    let (mut begun, mut in_force) = (vec![0u64; n], vec![0u32; n]);
    let mut waiting: Vec<Option<u64>> = vec![None; n];
    let mut alive = vec![true; n];
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
    at(&mut heap, 1000, What::LeaderTick);
    let mut due_from = 0u64; // first call of the last committed epoch
    while let Some(Reverse((now, _, what))) = heap.pop() {
        out.steps += 1;
        if out.steps > world.steps {
            break;
        }
        // Sends with what can happen to a message.
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
            What::Die(i) => alive[i] = false,
            What::Call(i) if alive[i] => {
                let slowest = (0..n).filter(|k| alive[*k]).map(|k| begun[k]).min().unwrap_or(0);
                // Waiting ranks look again soon; a call that waits has begun, and is not begun twice.
                if waiting[i].is_none() && begun[i] > slowest + world.drift {
                    at(&mut heap, now + 100, What::Call(i));
                    continue;
                }
                let call = match waiting[i] {
                    Some(_) => begun[i] - 1,
                    None => {
                        begun[i] += 1;
                        begun[i] - 1
                    }
                };
                let wait = loop {
                    match members[i].at(call) {
                        At::Go => break false,
                        At::Switch(e) => in_force[i] = e.number as u32,
                        At::Wait => break true,
                    }
                };
                if wait && rule == Rule::Agreed {
                    waiting[i].get_or_insert(now);
                    at(&mut heap, now + 50, What::Call(i));
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
                if rule == Rule::AsItArrives
                    && let ToMember::Propose(e) = &message
                {
                    in_force[i] = e.number as u32;
                }
                if let Some(answer) = members[i].on(&message, begun[i], |_| true) {
                    let mut w = wire::Writer::default();
                    answer.write(&mut w);
                    send!(What::ToLeader(i, w.0));
                }
            }
            What::ToMember(..) => {}
            What::ToLeader(i, bytes) => {
                let message = ToLeader::read(&mut wire::Reader::new(&bytes)).unwrap();
                let mut say = Vec::new();
                leader.on(i, &message, now, |to, m| say.push((to, m)));
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
        if let Some(ended) = leader.ended() {
            out.committed += u64::from(ended.committed);
            out.aborted += u64::from(!ended.committed);
            if ended.committed {
                due_from = ended.epoch.from_call;
            }
        }
    }
    out.calls = begun.iter().sum();
    out.waits_us.sort();
    out
}

fn steps() -> u64 {
    std::env::var("LINKWISE_SIMULATION_STEPS").ok().and_then(|s| s.parse().ok()).unwrap_or(World::default().steps)
}

#[test]
fn five_hundred_ranks_never_run_one_call_with_different_arms() {
    let world = World { steps: steps(), ..World::default() };
    let out = run(&world, Rule::Agreed);
    assert_eq!(out.divergence, None);
    assert!(out.committed >= 3, "arms do change: {} committed, {} void", out.committed, out.aborted);
    let longest = out.waits_us.last().copied().unwrap_or(0);
    let p99 = out.waits_us.get(out.waits_us.len() * 99 / 100).copied().unwrap_or(0);
    println!(
        "512 ranks, {} steps, {} calls: {} epochs committed, {} void; {} waits, 99 % under {p99} us, longest {longest} us",
        out.steps,
        out.calls,
        out.committed,
        out.aborted,
        out.waits_us.len()
    );
    assert!(longest < 50_000, "a bound rank waited {longest} us");
}

#[test]
fn bad_networks_and_dying_ranks_never_make_ranks_differ() {
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
            drift: if seed % 5 == 0 { u64::MAX / 2 } else { 16 },
        };
        let out = run(&world, Rule::Agreed);
        assert_eq!(out.divergence, None, "{world:?}");
        assert!(out.calls > 100, "{world:?}");
    }
}

#[test]
fn the_same_check_fails_without_agreement() {
    let out = run(&World { ranks: 64, steps: 50_000, ..World::default() }, Rule::AsItArrives);
    assert!(out.divergence.is_some());
}

#[test]
fn the_same_check_fails_where_every_rank_has_its_own_random_numbers() {
    let out = run(&World { ranks: 64, steps: 50_000, ..World::default() }, Rule::OwnRandomNumbers);
    assert!(out.divergence.is_some());
}
