//! Between calls: keeping a plan while it is good, noticing links that slow down or die, planning anew when it matters.
//!
//! A state machine without clock or I/O. Ranks that feed it the same demands and the same readings in the same order are in the same state;
//! making them agree on readings is the business of `agreement`.
//!
//! ```text
//!                 call: near enough ──► keep          reading: far off, several times ──► capacity changes
//!      ┌───────┐ ───────────────────────────► ┌──────┐ ◄──────────────────────────────────┐
//!      │ empty │                              │ plan │ ──► the plan is stale ──► next call plans
//!      └───────┘ ◄──────────────────────────  └──────┘     (a dead link: paths over it are gone)
//! ```

use crate::demand::Demand;
use crate::network::{Network, NetworkError, NetworkOptions, Override, Rate};
use crate::plan::Plan;
use crate::planner::{PlanError, Planner};
use std::collections::HashMap;
use topology::Cluster;

/// When plans and capacities change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hysteresis {
    /// A plan is kept while it needs at most so many times the lower bound of the new demand.
    pub keep: f64,
    /// And a new one is taken only if the old needs so many times as long.
    pub gain: f64,
    /// A link's rate is doubted when readings are off by this share.
    pub doubt: f64,
    /// So many readings in a row, on the same side, change it.
    pub readings: u32,
    /// Below this share of its nominal rate a link counts as dead.
    pub dead: f64,
    /// Weight of a new reading against the old ones.
    pub weight: f64,
}

impl Default for Hysteresis {
    fn default() -> Self {
        Hysteresis { keep: 1.10, gain: 1.05, doubt: 0.15, readings: 3, dead: 0.02, weight: 0.5 }
    }
}

/// What became of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The first plan.
    First,
    /// The old plan, by its shares, is near enough for the new demand.
    Kept,
    /// A new plan is better by more than the gain asked for.
    Replanned,
    /// A link changed, so the old plan was not asked.
    LinksChanged,
}

/// What a reading changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// A link runs at another rate, GB/s.
    Rate(usize, f64),
    /// A link carries nothing any more.
    Died(usize),
}

#[derive(Clone, Copy, Debug, Default)]
struct Watch {
    estimate: f64,
    slower: u32,
    faster: u32,
}

/// One job's routing over time.
#[derive(Clone, Debug)]
pub struct Session {
    cluster: Cluster,
    options: NetworkOptions,
    hysteresis: Hysteresis,
    net: Network,
    nominal: Vec<f64>,
    watch: Vec<Watch>,
    planner: Planner,
    current: Option<Plan>,
    stale: bool,
    /// Counts plans: messages of different epochs must not be mixed.
    epoch: u64,
}

impl Session {
    /// Begins without a plan.
    pub fn new(
        cluster: Cluster,
        options: NetworkOptions,
        planner: Planner,
        hysteresis: Hysteresis,
    ) -> Result<Self, NetworkError> {
        let net = Network::of(&cluster, &options)?;
        let nominal: Vec<f64> = net.links.iter().map(|l| l.capacity_gb_per_s).collect();
        let watch = nominal.iter().map(|&c| Watch { estimate: c, ..Watch::default() }).collect();
        Ok(Session {
            cluster,
            options,
            hysteresis,
            net,
            nominal,
            watch,
            planner,
            current: None,
            stale: false,
            epoch: 0,
        })
    }

    /// The network as it is believed to be.
    pub fn network(&self) -> &Network {
        &self.net
    }
    /// The plan in use.
    pub fn plan(&self) -> Option<&Plan> {
        self.current.as_ref()
    }
    /// How many plans there were.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// A call with a demand: keeps the plan's shares, or plans anew.
    pub fn call(&mut self, demand: &Demand) -> Result<Decision, PlanError> {
        let Some(old) = self.current.take().filter(|_| !self.stale) else {
            let decision = if self.stale { Decision::LinksChanged } else { Decision::First };
            self.take(demand)?;
            return Ok(decision);
        };
        let kept = match self.planner.reuse(&self.net, demand, &old) {
            Ok(plan) => plan,
            Err(e) => {
                self.current = Some(old);
                return Err(e);
            }
        };
        if kept.congestion_s <= kept.lower_bound_s * self.hysteresis.keep {
            self.current = Some(kept);
            return Ok(Decision::Kept);
        }
        let new = self.planner.plan(&self.net, demand)?;
        if kept.congestion_s <= new.congestion_s * self.hysteresis.gain {
            self.current = Some(kept);
            return Ok(Decision::Kept);
        }
        self.epoch += 1;
        self.current = Some(new);
        Ok(Decision::Replanned)
    }

    fn take(&mut self, demand: &Demand) -> Result<(), PlanError> {
        let plan = self.planner.plan(&self.net, demand)?;
        self.epoch += 1;
        self.stale = false;
        self.current = Some(plan);
        Ok(())
    }

    /// What a link carried while it was busy. Readings of idle links, and those that are no number, say nothing.
    pub fn reading(&mut self, link: usize, bytes: u64, busy_s: f64) -> Result<Option<Change>, NetworkError> {
        let h = self.hysteresis;
        let (Some(watch), true) = (self.watch.get_mut(link), busy_s.is_finite() && busy_s > 0.0) else {
            return Ok(None);
        };
        let now = self.net.links[link].capacity_gb_per_s;
        let rate = (bytes as f64 / busy_s * 1e-9).min(self.nominal[link]);
        watch.estimate += h.weight * (rate - watch.estimate);
        // A dead link has no rate to compare with; what counts is whether anything arrives.
        let reference = if now > 0.0 { now } else { self.nominal[link] * h.dead };
        watch.slower = if watch.estimate < reference * (1.0 - h.doubt) { watch.slower + 1 } else { 0 };
        watch.faster = if watch.estimate > reference * (1.0 + h.doubt) { watch.faster + 1 } else { 0 };
        if watch.slower.max(watch.faster) < h.readings {
            return Ok(None);
        }
        (watch.slower, watch.faster) = (0, 0);
        let new = if watch.estimate < self.nominal[link] * h.dead { 0.0 } else { watch.estimate };
        if new == now {
            return Ok(None);
        }
        self.set(link, new)?;
        self.stale = true;
        Ok(Some(if new == 0.0 { Change::Died(link) } else { Change::Rate(link, new) }))
    }

    /// Builds the network anew with a link at another rate. Readings stay with their links, by name.
    fn set(&mut self, link: usize, gb_per_s: f64) -> Result<(), NetworkError> {
        let ends = |n: u32| self.net.nodes[n as usize].clone();
        let (from, to) = (ends(self.net.links[link].from), ends(self.net.links[link].to));
        self.options.overrides.retain(|o| (&o.from, &o.to) != (&from, &to));
        self.options.overrides.push(Override { from, to, rate: Rate::GbPerS(gb_per_s) });
        let new = Network::of(&self.cluster, &self.options)?;
        let known: HashMap<String, usize> = (0..self.net.links.len()).map(|l| (self.net.link_name(l), l)).collect();
        let old: Vec<Option<usize>> = (0..new.links.len()).map(|l| known.get(&new.link_name(l)).copied()).collect();
        let rate = |l: usize| new.links[l].capacity_gb_per_s;
        let fresh = |l: usize| Watch { estimate: rate(l), ..Watch::default() };
        self.watch = old.iter().enumerate().map(|(l, o)| o.map_or(fresh(l), |o| self.watch[o])).collect();
        self.nominal = old.iter().enumerate().map(|(l, o)| o.map_or(rate(l), |o| self.nominal[o])).collect();
        self.net = new;
        Ok(())
    }
}
