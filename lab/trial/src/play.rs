//! Plays one policy, or one per rank, through one environment.

use crate::environment::{Environment, Simulated, Spec};
use crate::outcome::{Call, Curve, Outcome};
use tune::policy::{ArmDecision, Policy, Reading};

/// The largest number of ranks of one run.
pub const RANKS_MAX: u32 = 64;

/// Makes the policy of a rank for a seed. Policies that learn offline need the spec.
pub type MakePolicy<'a> = &'a dyn Fn(&Spec, u64, u32) -> Result<Box<dyn Policy>, String>;

/// One run. With several ranks every rank has its own policy and all get the same readings. A call in which they differ
/// takes as long as the slowest chosen arm. That is optimistic: the real library would usually hang.
///
/// # Errors
/// The policy cannot be made.
pub fn run(spec: &Spec, make: MakePolicy, seed: u64, ranks: u32, curve: &mut Curve) -> Result<Outcome, String> {
    let ranks = ranks.clamp(1, RANKS_MAX);
    let mut environment = Simulated::new(spec, seed);
    let auto = spec.arms.iter().position(|a| a.is_auto()).ok_or("AUTO is not among the arms of the environment")?;
    let mut policies = (0..ranks).map(|rank| make(spec, seed, rank)).collect::<Result<Vec<_>, _>>()?;
    let mut calls: Vec<Call> = Vec::with_capacity(spec.calls as usize);
    let mut readings: Vec<Vec<Reading>> = Vec::new();
    let mut first_of_epoch = 0;
    while first_of_epoch < spec.calls {
        readings.clear();
        for call in first_of_epoch..(first_of_epoch + spec.epoch_calls.max(1)).min(spec.calls) {
            let in_use_before = policies[0].in_use();
            let is_change = environment.begin(call, in_use_before);
            let context = environment.context();
            let decisions: Vec<ArmDecision> = policies.iter_mut().map(|p| p.decide(context)).collect();
            let one = one_call(&mut environment, &decisions, policies[0].as_ref(), auto, is_change, spec);
            let time_us = Some(one.time_us).filter(|_| !environment.is_lost());
            readings.push(decisions.iter().map(|d| Reading { call, arm: d.arm, time_us, channels: None }).collect());
            calls.push(one);
        }
        for of_call in &readings {
            policies.iter_mut().zip(of_call).for_each(|(policy, reading)| policy.learn(*reading));
        }
        first_of_epoch += spec.epoch_calls.max(1);
    }
    curve.add(&calls);
    Ok(Outcome::of(&calls, spec.settled_at))
}

fn one_call(
    environment: &mut Simulated,
    decisions: &[ArmDecision],
    policy: &dyn Policy,
    auto: usize,
    is_change: bool,
    spec: &Spec,
) -> Call {
    let cost_us = |environment: &Simulated, arm: usize| {
        spec.objective.cost_us(environment.mean_us(arm), environment.arms()[arm], None)
    };
    let arms = 0..environment.arms().len();
    let best_us = arms.map(|a| cost_us(environment, a)).fold(f64::INFINITY, f64::min);
    let (mut time_us, mut mean_us) = (0.0f64, 0.0f64);
    for d in decisions {
        environment.use_arm(d.arm);
        time_us = time_us.max(environment.time_us(d.arm));
        mean_us = mean_us.max(cost_us(environment, d.arm));
    }
    let in_use = policy.in_use();
    let in_use_us = cost_us(environment, in_use);
    Call {
        arm: decisions[0].arm,
        in_use,
        is_auto: in_use == auto,
        is_explore: decisions[0].phase == tune::policy::Phase::Explore,
        is_change,
        is_right: in_use_us <= best_us * (1.0 + spec.right_within) * (1.0 + 1e-9),
        do_ranks_differ: decisions.iter().any(|d| d.arm != decisions[0].arm),
        time_us,
        auto_time_us: environment.time_us(auto),
        mean_us,
        in_use_us,
        best_us,
        auto_us: cost_us(environment, auto),
    }
}
