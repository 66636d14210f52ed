//! A communicator's calls and the leader's messages come from different threads.

use agreement::{Epoch, Slot, SlotPlan, ToLeader, ToMember};
use linkwise_nccl::comm::{Aborted, Call, Comm, Identity, Role};
use linkwise_nccl::cost_table::CostTable;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tune::{Algorithm, Arm, Collective, Protocol};

const BYTES: u64 = 1 << 20;

fn comm(role: Role) -> Arc<Comm> {
    let comm = Comm::new(Identity { id: 1, ordinal: 0, rank: 0, ranks: 2, nodes: 1 }, role, 64);
    (0..2).for_each(|_| comm.note_entries(Slot::of(Collective::AllReduce, BYTES), 0b11_1111, 3)); // seen at AUTO
    Arc::new(comm)
}

fn epoch(number: u64, from_call: u64, arm: Arm) -> Arc<Epoch> {
    let plan = SlotPlan { slot: Slot::of(Collective::AllReduce, BYTES), runs: Vec::new(), settled: arm };
    Arc::new(Epoch::new(number, from_call, vec![plan]))
}

fn one_call(comm: &Comm) -> Arm {
    let mut table = [-1.0f32; 21];
    table[..6].copy_from_slice(&[60.0, 55.0, 70.0, 50.0, 65.0, 75.0]);
    let mut costs = CostTable::new(&mut table, 7, 3).unwrap();
    comm.call(Call { collective: 4, bytes: BYTES }, &mut costs, &mut 0, |_| {}).unwrap();
    comm.take_decision().unwrap().arm
}

/// Proposals as close to the next call as possible, each with an immediate verdict. Every call must run with the arms committed for it: otherwise two
/// ranks could run one call with different arms.
fn every_call_runs_its_committed_arms(leader: &Comm, caller: &Comm) {
    const ROUNDS: u64 = 150_000;
    // On a busy machine the two threads rarely run at the same time, so there are more rounds.
    const TIMELY_MIN: usize = 1_000;
    const LONGEST: Duration = Duration::from_secs(60);
    let over = AtomicBool::new(false);
    let (committed, arms) = std::thread::scope(|s| {
        let hears = s.spawn(|| {
            let mut committed: Vec<(u64, Arm)> = Vec::new();
            let begun = Instant::now();
            let mut number = 0;
            while number < ROUNDS || (committed.len() < TIMELY_MIN && begun.elapsed() < LONGEST) {
                number += 1;
                let arm = Arm::new([Algorithm::Ring, Algorithm::Tree][number as usize % 2], Protocol::Ll);
                let from_call = leader.begun() + number * 7 % 5;
                match leader.on_message(&ToMember::Propose(epoch(number, from_call, arm))) {
                    Some(ToLeader::Ack { .. }) => {
                        leader.on_message(&ToMember::Commit(number));
                        committed.push((from_call, arm));
                    }
                    _ => _ = leader.on_message(&ToMember::Abort(number)),
                }
            }
            over.store(true, Ordering::Release);
            committed
        });
        let mut arms = Vec::new();
        while !over.load(Ordering::Acquire) {
            arms.push(one_call(caller));
        }
        (hears.join().unwrap(), arms)
    });
    let mut next = committed.iter().peekable();
    let mut expected = Arm::AUTO;
    for (call, arm) in arms.iter().enumerate() {
        while let Some((_, arm)) = next.next_if(|(from, _)| *from <= call as u64) {
            expected = *arm;
        }
        assert_eq!(*arm, expected, "call {call} of {}; {} epochs", arms.len(), committed.len());
    }
    println!("{} proposals came in time, {} calls", committed.len(), arms.len());
    assert!(!committed.is_empty(), "no proposal came in time among {} calls", arms.len());
}

#[test]
fn no_call_misses_a_proposal_that_applies_to_it() {
    let comm = comm(Role::Tune);
    every_call_runs_its_committed_arms(&comm, &comm);
}

#[test]
fn no_call_of_a_follower_misses_a_proposal_to_the_job() {
    let table = vec![SlotPlan {
        slot: Slot::of(Collective::AllReduce, BYTES),
        runs: Vec::new(),
        settled: Arm::new(Algorithm::Tree, Protocol::Ll),
    }];
    // Each job commits at most one epoch, which means the table or AUTO. The test therefore checks the call from which the
    // epoch applies.
    let mut in_time = 0;
    for round in 0..2000u64 {
        let job = comm(Role::Job);
        let who = Identity { id: 2, ordinal: 0, rank: 0, ranks: 2, nodes: 1 };
        let follower = Arc::new(Comm::new(who, Role::Follow, 64).with_table(table.clone()));
        job.add_follower(&follower);
        let stop = AtomicBool::new(false);
        let (committed, arms) = std::thread::scope(|s| {
            let calls = s.spawn(|| {
                let mut arms = Vec::new();
                while !stop.load(Ordering::Acquire) {
                    arms.push(one_call(&follower));
                }
                arms
            });
            while follower.begun() < 10 {
                std::hint::spin_loop();
            }
            let committed = (1..=50u64).find_map(|number| {
                let from_call = job.begun() + (number + round) % 3;
                let e = Arc::new(Epoch::new(number, from_call, linkwise_nccl::job::job_table_marker()));
                let acknowledged = matches!(job.on_message(&ToMember::Propose(e)), Some(ToLeader::Ack { .. }));
                job.on_message(&if acknowledged { ToMember::Commit(number) } else { ToMember::Abort(number) });
                acknowledged.then_some(from_call)
            });
            while committed.is_some_and(|n| follower.begun() <= n) {
                std::hint::spin_loop();
            }
            stop.store(true, Ordering::Release);
            (committed, calls.join().unwrap())
        });
        in_time += u32::from(committed.is_some());
        let switched = arms.iter().position(|a| !a.is_auto()).map(|n| n as u64);
        assert_eq!(switched, committed, "job {round}, {} calls", arms.len());
    }
    assert!(in_time > 100, "one of 50 proposals came in time in {in_time} of 2,000 jobs");
}

#[test]
fn a_waiting_call_ends_with_its_communicator_and_warns_once() {
    let comm = comm(Role::Tune);
    let bound = comm.on_message(&ToMember::Propose(epoch(1, 0, Arm::new(Algorithm::Tree, Protocol::Ll))));
    assert!(matches!(bound, Some(ToLeader::Ack { .. })));
    let said = std::sync::Mutex::new(Vec::new());
    let released = std::thread::scope(|s| {
        let waits = s.spawn(|| {
            let mut table = [50.0f32; 21];
            let mut costs = CostTable::new(&mut table, 7, 3).unwrap();
            let log = |text: &str| said.lock().unwrap().push(text.to_string());
            let call = comm.call(Call { collective: 4, bytes: BYTES }, &mut costs, &mut 0, log);
            (call, comm.take_decision())
        });
        let begin = Instant::now();
        while said.lock().unwrap().is_empty() && begin.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(500)); // time for a second warning
        assert!(!waits.is_finished(), "bound: it must not guess");
        assert!(comm.end(), "a call waited");
        waits.join().unwrap()
    });
    assert_eq!(released, (Err(Aborted), None), "the call must not go on: NCCL frees what it uses");
    let said = said.into_inner().unwrap();
    assert!(matches!(said.as_slice(), [one] if one.contains("waits for the verdict on epoch 1")), "{said:?}");
    assert!(!comm.end(), "no call waits any more");
}
