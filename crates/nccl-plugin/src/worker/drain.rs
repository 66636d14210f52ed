//! Processes the records of calls: decisions go to the trace and the coordinator, readings to the leader.

use super::{LocalRank, RECENT_MAX, STEP_CALLS_MAX, Worker};
use crate::comm::CallDecision;
use crate::config::Reward;
use crate::coordinator::auto_arm;
use crate::events::LaunchedCollective;
use crate::rewards::Script;
use agreement::{RankReading, TimeSource, ToLeader};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval at which a doubt is told again.
const DOUBT_REPEAT_INTERVAL: Duration = Duration::from_secs(1);

impl Worker {
    /// Takes the decisions of all local ranks since the last poll: each is traced, timed and, on a leading rank, passed to the coordinator.
    pub(super) fn drain(&mut self) {
        let now = self.now_us();
        let reward = self.reward();
        let script = self.config.test.rewards.clone().filter(|s| s.decides());
        for local in &mut self.local_ranks {
            let led = local.roster.as_ref().and_then(|(roster, _)| {
                let at = self.index.led_by(roster, local.comm.ordinal)?;
                self.led.get_mut(at).filter(|l| Arc::ptr_eq(&l.roster, roster))
            });
            let mut coordinator = led.map(|l| &mut l.coordinator);
            while let Some(d) = local.comm.take_decision() {
                self.active = Instant::now();
                if d.captured {
                    // Ranks do not count captured calls: they stay at AUTO, or use an arm that was checked with the other calls.
                    crate::trace::call(&mut self.trace, &local.comm, &d);
                    keep_recent(&mut local.recent, d);
                    continue;
                }
                local.comm.note_entries(d.slot(), d.mask, d.auto);
                if !d.taken && local.doubt.is_none() {
                    let why = format!(
                        "call {} ({}, {} bytes) could not use the arm {} in force on rank {}, although earlier calls of that size could; other ranks \
                         may have used it",
                        d.call, d.collective, d.bytes, d.arm, local.comm.rank
                    );
                    local.doubt = Some(super::Doubt { why, told_at: None });
                }
                crate::trace::call(&mut self.trace, &local.comm, &d);
                match &script {
                    Some(script) => local.time_by_script(&d, script),
                    None => local.time_by_clock(&d, reward),
                }
                keep_recent(&mut local.recent, d);
                if let Some(c) = &mut coordinator {
                    c.on_call(&d, now);
                }
            }
        }
    }

    /// Tells leaders that their communicators must return to AUTO for good.
    pub(super) fn tell_doubts(&mut self) {
        for i in 0..self.local_ranks.len() {
            let Some(local) = self.local_ranks.get_mut(i) else { continue };
            let (id, roster) = (local.comm.id, local.roster.clone());
            if local.doubt.is_none() && local.comm.has_lost_a_group() {
                let why = "NCCL's profiler events no longer tell launched groups from simulated ones, because the handle of a group was lost";
                local.doubt = Some(super::Doubt { why: why.into(), told_at: None });
            }
            let Some(doubt) = &mut local.doubt else { continue };
            if doubt.told_at.is_some_and(|at| at.elapsed() < DOUBT_REPEAT_INTERVAL) {
                continue;
            }
            let why = doubt.told_at.is_none().then(|| doubt.why.clone());
            doubt.told_at = Some(Instant::now());
            if let Some(why) = why {
                self.files.warn(format!("communicator {id:016x} returns to AUTO for the rest of the job: {why}"));
                self.trace_stays_auto(id, &why);
            }
            if let Some((roster, position)) = roster {
                self.send_to_leader(&roster, position, &ToLeader::Stop);
            }
        }
    }

    /// The time that judges arms at present.
    pub(super) fn reward(&self) -> Reward {
        match self.config.reward {
            Reward::Auto if crate::step::is_reported() => Reward::Step,
            Reward::Auto => Reward::Interval,
            said => said,
        }
    }

    pub(super) fn time_steps(&mut self, steps: &[crate::step::Step]) {
        crate::trace::steps(&mut self.trace, steps);
        for local in &mut self.local_ranks {
            let born = local.comm.born();
            let ns = |t: Instant| t.saturating_duration_since(born).as_nanos() as u64;
            let led = local.roster.as_ref().and_then(|(roster, _)| {
                let at = self.index.led_by(roster, local.comm.ordinal)?;
                self.led.get_mut(at).filter(|l| Arc::ptr_eq(&l.roster, roster))
            });
            let mut coordinator = led.map(|l| &mut l.coordinator);
            for step in steps {
                let (begin, end) = (ns(step.begin), ns(step.end));
                let first = crate::rewards::time_step(&mut local.in_step, begin, end, &mut local.readings);
                if let (Some(first), Some(c)) = (first, &mut coordinator) {
                    c.on_step(first);
                }
            }
        }
    }

    pub(super) fn send_readings(&mut self) {
        for i in 0..self.local_ranks.len() {
            let Some(local) = self.local_ranks.get_mut(i) else { continue };
            let readings = std::mem::take(&mut local.readings);
            if let Some((roster, position)) = local.roster.clone() {
                for some in readings.chunks(agreement::message::READINGS_MAX) {
                    self.send_to_leader(&roster, position, &ToLeader::Readings(some.to_vec()));
                }
            }
        }
    }

    /// Matches launched collectives with decisions, traces them and keeps their GPU times as readings.
    pub(super) fn match_events(&mut self, launched: &[LaunchedCollective]) {
        let script = self.config.test.rewards.clone();
        for ran in launched {
            let at = self.index.of_owner(ran.enqueued.owner);
            let Some(local) = at.and_then(|at| self.local_ranks.get_mut(at)) else { continue };
            let w = &ran.enqueued;
            let matched = crate::rewards::match_launch(&mut local.recent, w, local.comm.ranks);
            let scripted = || {
                let d = matched.as_ref()?;
                script.as_ref()?.kernel_us(d.slot(), d.arm, auto_arm(d.auto), local.comm.rank, d.call)
            };
            let kernel_us = ran.kernel_ns.map(|ns| ns as f64 / 1e3).or_else(scripted);
            crate::trace::launched(&mut self.trace, &local.comm, w, matched.as_ref(), kernel_us);
            if let (Some(d), Some(time_us)) = (matched.filter(|d| d.counted), kernel_us) {
                let (epoch, slot, k, source) = (d.epoch, d.slot(), d.k, TimeSource::Kernel);
                local.readings.push(RankReading { epoch, slot, k, source, time_us });
            }
        }
    }
}

fn keep_recent(recent: &mut VecDeque<CallDecision>, d: CallDecision) {
    if recent.len() == RECENT_MAX {
        recent.pop_front();
    }
    recent.push_back(d);
}

impl LocalRank {
    /// Keeps a call until its step ends, or closes the interval that it ends.
    fn time_by_clock(&mut self, d: &CallDecision, reward: Reward) {
        match reward {
            Reward::Step => {
                if self.in_step.len() >= STEP_CALLS_MAX {
                    self.in_step.pop_front();
                }
                self.in_step.push_back(*d);
            }
            Reward::Interval if d.counted => self.intervals.call(d, &mut self.readings),
            _ => {}
        }
    }

    /// Adds the time that a test's script gives to a counted call.
    fn time_by_script(&mut self, d: &CallDecision, script: &Script) {
        if !d.counted {
            return;
        }
        let rank = if self.comm.rank >= 0 { self.comm.rank } else { self.comm.ordinal as i32 };
        if let Some(time_us) = script.time_us(d.slot(), d.arm, auto_arm(d.auto), rank, d.call) {
            let source = TimeSource::Scripted;
            self.readings.push(RankReading { epoch: d.epoch, slot: d.slot(), k: d.k, source, time_us });
        }
    }
}
