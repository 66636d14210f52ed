//! The coordinator of one rank, whose times are those of a simple model.

use super::*;
use crate::comm::CallDecision;
use agreement::{RankReading, TimeSource};
use tune::{Algorithm, Collective, Protocol};

fn call(k: u64, epoch: u64) -> CallDecision {
    CallDecision {
        counted: epoch > 0,
        mask: 0b11_1111,
        auto: 3,
        epoch,
        ..CallDecision::for_test(k, 1 << 20, Arm::AUTO)
    }
}

/// Delivers all messages to the only member, which always agrees.
fn agree(c: &mut EpochCoordinator, now_us: u64) {
    let mut out = Vec::new();
    c.tick(0, now_us, &mut out);
    while let Some((_, message)) = out.pop() {
        let answer = match message {
            ToMember::Ask(e) => {
                let view = |p: &SlotPlan| agreement::SlotView { slot: p.slot, mask: 0b11_1111, auto: 3 };
                let slots = e.plans.iter().map(view).collect();
                ToLeader::Ready { epoch: e.number, begun: 0, digest: None, slots }
            }
            ToMember::Check { .. } => ToLeader::Status { begun: 0, digest: None },
            ToMember::Propose(e) => ToLeader::Ack { epoch: e.number, begun: 0, digest: None },
            ToMember::Commit(n) | ToMember::Abort(n) => ToLeader::Confirm { epoch: n, begun: 0 },
        };
        c.on_message(0, &answer, now_us, &mut out);
    }
}

/// One step of `k` calls after another, from the given call on; the best arm is TREE/LL. Returns the number of the next call.
fn train(c: &mut EpochCoordinator, steps: u64, k: u64, from: u64) -> u64 {
    let mut number = from;
    let mut begun: std::collections::BTreeMap<u64, u64> = Default::default();
    for _ in 0..steps {
        let first = number;
        let mut reading = None;
        for _ in 0..k {
            // A plan begins four calls after it was committed at the earliest; here at once.
            let epoch = c.in_force;
            let mine = begun.entry(epoch).or_insert(0);
            let counted = c.plans.iter().any(|p| !p.runs.is_empty());
            let d = CallDecision { k: *mine, counted, ..call(number, epoch) };
            let arm = c.arm_of(epoch, d.slot(), *mine).unwrap_or(Arm::AUTO);
            reading = reading.or(counted.then_some((epoch, *mine, arm)));
            *mine += 1;
            number += 1;
            c.on_call(&d, number * 1000);
        }
        c.on_step(first);
        if let Some((epoch, k, arm)) = reading {
            let slot = Slot::of(Collective::AllReduce, 1 << 20);
            let time_us = if arm == Arm::new(Algorithm::Tree, Protocol::Ll) { 800.0 } else { 1000.0 };
            let time_us = time_us * (1.0 + 0.01 * ((number * 7 % 5) as f64 - 2.0));
            let all = vec![RankReading { epoch, slot, k, source: TimeSource::Step, time_us }];
            c.on_message(0, &ToLeader::Readings(all), number * 1000, &mut Vec::new());
        }
        agree(c, number * 1000);
    }
    number
}

fn learning(members: usize) -> EpochCoordinator {
    let build: LearnerBuilder = Box::new(|arms, slot| crate::policies::build("adaptive", arms, slot));
    let mode = CoordinatorMode::Learn {
        build,
        explore_all: true,
        is_scripted: false,
        by_kernel: false,
        has_kernel_times: false,
    };
    EpochCoordinator::new(members, mode)
}

/// Calls per step vary, so GPU times judge: TREE/LL has the shortest kernels. `longer`: what a step with it takes more.
fn train_by_gpu_times(longer: f64) -> EpochCoordinator {
    let mut c = learning(1);
    let CoordinatorMode::Learn { has_kernel_times, .. } = &mut c.mode else { unreachable!() };
    *has_kernel_times = true;
    let (mut number, mut of_epoch) = (0u64, std::collections::BTreeMap::new());
    let slot = Slot::of(Collective::AllReduce, 1 << 20);
    for step in 0..3000u64 {
        let (first, epoch) = (number, c.in_force);
        let counted = c.plans.iter().any(|p| !p.runs.is_empty());
        let (mut arms, mut all) = (Vec::new(), Vec::new());
        let mine = *of_epoch.entry(epoch).or_insert(0u64);
        for i in 0..1 + step * step % 7 {
            let k = mine + i;
            let arm = c.arm_of(epoch, slot, k).unwrap_or(Arm::AUTO);
            c.on_call(&CallDecision { k, counted, ..call(number, epoch) }, number * 1000);
            let us = if arm == Arm::new(Algorithm::Tree, Protocol::Ll) { 80.0 } else { 100.0 };
            all.push(RankReading { epoch, slot, k, source: TimeSource::Kernel, time_us: us + (number % 3) as f64 });
            arms.push(arm);
            number += 1;
        }
        *of_epoch.entry(epoch).or_insert(0) += arms.len() as u64;
        c.on_step(first);
        if arms.iter().all(|a| *a == arms[0]) {
            let more = if arms[0] == Arm::new(Algorithm::Tree, Protocol::Ll) { longer } else { 0.0 };
            let time_us = 1000.0 * (1.0 + more + 0.01 * ((step % 5) as f64 - 2.0));
            all.insert(0, RankReading { epoch, slot, k: mine, source: TimeSource::Step, time_us });
        }
        if counted {
            c.on_message(0, &ToLeader::Readings(all), number * 1000, &mut Vec::new());
        }
        agree(&mut c, number * 1000);
    }
    c
}

#[test]
fn where_gpu_times_judge_an_arm_that_makes_steps_longer_is_out() {
    let tree = Arm::new(Algorithm::Tree, Protocol::Ll);
    let c = train_by_gpu_times(0.0);
    assert!(
        c.fell_back && c.vetoed.is_empty() && c.findings().any(|f| f.arm == tree),
        "{:?}",
        c.findings().collect::<Vec<_>>()
    );
    let mut c = train_by_gpu_times(0.1);
    assert!(c.fell_back && c.findings().all(|f| f.arm != tree), "{:?}", c.findings().collect::<Vec<_>>());
    let said = c.news().unwrap_or_default().0;
    assert!(said.contains("steps are longer with TREE/LL"), "{said}");
}

#[test]
fn plans_cover_whole_steps_and_begin_with_a_step() {
    let mut c = learning(1);
    train(&mut c, 8, 6, 0);
    let plan = c.plans.first().unwrap_or_else(|| panic!("no plan after eight steps"));
    assert!(plan.runs.len() > 4 && plan.runs.iter().all(|r| r.calls % 6 == 0), "{plan:?}");
    assert_eq!(c.news(), Some(("6 calls per step (steps reported by the program)".into(), false)));
    assert_eq!(c.news(), None, "said once");
}

#[test]
fn the_best_arm_of_many_calls_per_step_is_found() {
    for k in [1, 4, 8, 64] {
        let mut c = learning(1);
        train(&mut c, 400, k, 0);
        let found: Vec<_> = c.findings().collect();
        assert_eq!(found[0].arm, Arm::new(Algorithm::Tree, Protocol::Ll), "K = {k}: {found:?}");
        assert!(found[0].gain.is_some_and(|g| (g.0 - 0.2).abs() < 0.03), "K = {k}: {found:?}");
        assert!(c.drain_learned().iter().any(|l| l.is_fresh && l.calls == k));
    }
}

#[test]
fn after_the_freeze_the_arms_found_stay_and_no_epoch_follows() {
    let mut c = learning(1).freezing(Some("1s".parse().unwrap()));
    let number = train(&mut c, 200, 4, 0); // a call takes a millisecond: the freeze comes after 250 steps
    let found: Vec<_> = c.findings().map(|f| f.arm).collect();
    assert_eq!((c.is_frozen(), found), (false, vec![Arm::new(Algorithm::Tree, Protocol::Ll)]));
    let number = train(&mut c, 100, 4, number);
    assert!(c.is_frozen() && number > 1000, "{number}");
    assert!(c.plans.len() == 1 && c.plans[0].runs.is_empty(), "{:?}", c.plans);
    assert_eq!(c.plans[0].settled, Arm::new(Algorithm::Tree, Protocol::Ll));
    for now in [2_000_000, 10_000_000, 100_000_000] {
        let mut out = Vec::new();
        c.tick(5000, now, &mut out);
        assert!(out.is_empty(), "no more epochs");
    }
}

#[test]
fn steps_whose_calls_vary_end_learning_and_the_reason_is_said() {
    let mut c = learning(1);
    let mut number = 0;
    for step in 0..100u64 {
        number = train(&mut c, 1, 1 + step * step % 7, number);
    }
    let (why, is_never) = c.news().unwrap_or_default();
    assert!(is_never && why.contains("cannot learn"), "{why}");
    assert!(c.plans.is_empty());
}
