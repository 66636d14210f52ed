//! Keeps a plan between calls, detects links that slow down or die, and replaces the plan when that saves time.
//!
//! A state machine without clock or I/O. Ranks that pass it the same demands and readings in the same order are in the same state. The
//! `agreement` crate makes ranks agree on readings.
//!
//! ```text
//!                 call: near enough ──► keep          reading: far off, several times ──► capacity changes
//!      ┌───────┐ ───────────────────────────► ┌──────┐ ◄──────────────────────────────────┐
//!      │ empty │                              │ plan │ ──► the plan is stale ──► next call plans
//!      └───────┘ ◄──────────────────────────  └──────┘     (a dead link: its paths are removed)
//! ```

use crate::demand::Demand;
use crate::network::{LinkOverride, LinkRate, RoutingNetwork, RoutingNetworkError, RoutingOptions};
use crate::plan::RoutePlan;
use crate::planner::{PlanError, Planner};
use std::collections::HashMap;
use topology::Cluster;

/// Thresholds at which plans and link capacities change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hysteresis {
    /// A plan is kept while its congestion is at most this multiple of the new demand's lower bound.
    pub keep_ratio_max: f64,
    /// Beyond that, a new plan replaces it only if the old one has more than this multiple of the new plan's congestion.
    pub replan_ratio_min: f64,
    /// A reading differs from the assumed rate if it is off by more than this share.
    pub rate_difference_min: f64,
    /// Number of consecutive differing readings, all too slow or all too fast, that change the assumed rate.
    pub readings_to_change: u32,
    /// Below this share of its nominal rate a link is dead.
    pub dead_share_max: f64,
    /// Weight of a new reading in the moving average of a link's rate.
    pub reading_weight: f64,
}

impl Default for Hysteresis {
    fn default() -> Self {
        Hysteresis {
            keep_ratio_max: 1.10,
            replan_ratio_min: 1.05,
            rate_difference_min: 0.15,
            readings_to_change: 3,
            dead_share_max: 0.02,
            reading_weight: 0.5,
        }
    }
}

/// The action of the cache on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheDecision {
    /// Made the first plan.
    First,
    /// Kept the old plan: its shares are near enough to the optimum of the new demand.
    Kept,
    /// Replaced the old plan by a better one.
    Replanned,
    /// Replaced the old plan because a link changed.
    LinksChanged,
}

/// The change of a link after a reading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LinkChange {
    /// The link runs at another rate: its index, and the rate in GB/s.
    Rate(usize, f64),
    /// The link is dead: its index.
    Died(usize),
}

/// The moving average of one link's rate.
#[derive(Clone, Copy, Debug, Default)]
struct LinkEstimate {
    gb_per_s: f64,
    /// Consecutive readings below and above the assumed rate.
    slower: u32,
    faster: u32,
}

/// The plan of one job and the rates of its links over time.
#[derive(Clone, Debug)]
pub struct PlanCache {
    cluster: Cluster,
    options: RoutingOptions,
    hysteresis: Hysteresis,
    net: RoutingNetwork,
    nominal_gb_per_s: Vec<f64>,
    estimates: Vec<LinkEstimate>,
    planner: Planner,
    current: Option<RoutePlan>,
    stale: bool,
    /// Number of plans so far. Messages of different epochs must not be mixed.
    epoch: u64,
}

impl PlanCache {
    /// A cache without a plan. Fails if the cluster cannot be routed on.
    pub fn new(
        cluster: Cluster,
        options: RoutingOptions,
        planner: Planner,
        hysteresis: Hysteresis,
    ) -> Result<Self, RoutingNetworkError> {
        let net = RoutingNetwork::of(&cluster, &options)?;
        let nominal_gb_per_s: Vec<f64> = net.links.iter().map(|l| l.capacity_gb_per_s).collect();
        let estimates =
            nominal_gb_per_s.iter().map(|&c| LinkEstimate { gb_per_s: c, ..LinkEstimate::default() }).collect();
        Ok(PlanCache {
            cluster,
            options,
            hysteresis,
            net,
            nominal_gb_per_s,
            estimates,
            planner,
            current: None,
            stale: false,
            epoch: 0,
        })
    }

    /// The network with the rates assumed now.
    pub fn network(&self) -> &RoutingNetwork {
        &self.net
    }
    /// The plan in use.
    pub fn plan(&self) -> Option<&RoutePlan> {
        self.current.as_ref()
    }
    /// Number of plans so far.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Updates the plan for a call with this demand: keeps its shares, or plans again. Costs one [`Planner::reuse_plan`], and one
    /// [`Planner::plan`] unless the plan is kept.
    pub fn update(&mut self, demand: &Demand) -> Result<CacheDecision, PlanError> {
        let Some(old) = self.current.take().filter(|_| !self.stale) else {
            let decision = if self.stale { CacheDecision::LinksChanged } else { CacheDecision::First };
            let plan = self.planner.plan(&self.net, demand)?;
            self.epoch += 1;
            self.stale = false;
            self.current = Some(plan);
            return Ok(decision);
        };
        let kept = match self.planner.reuse_plan(&self.net, demand, &old) {
            Ok(plan) => plan,
            Err(e) => {
                self.current = Some(old);
                return Err(e);
            }
        };
        if kept.congestion_s <= kept.lower_bound_s * self.hysteresis.keep_ratio_max {
            self.current = Some(kept);
            return Ok(CacheDecision::Kept);
        }
        let new = self.planner.plan(&self.net, demand)?;
        if kept.congestion_s <= new.congestion_s * self.hysteresis.replan_ratio_min {
            self.current = Some(kept);
            return Ok(CacheDecision::Kept);
        }
        self.epoch += 1;
        self.current = Some(new);
        Ok(CacheDecision::Replanned)
    }

    /// Records one reading of a link: `bytes` carried in `busy_s` seconds. Ignores unknown links and durations that are not positive and
    /// finite. O(1); O(links) if the link's rate changes.
    pub fn record_reading(
        &mut self,
        link: usize,
        bytes: u64,
        busy_s: f64,
    ) -> Result<Option<LinkChange>, RoutingNetworkError> {
        let h = self.hysteresis;
        let (Some(estimate), true) = (self.estimates.get_mut(link), busy_s.is_finite() && busy_s > 0.0) else {
            return Ok(None);
        };
        let assumed = self.net.links[link].capacity_gb_per_s;
        let nominal = self.nominal_gb_per_s[link];
        let rate = (bytes as f64 / busy_s * 1e-9).min(nominal);
        estimate.gb_per_s += h.reading_weight * (rate - estimate.gb_per_s);
        // A dead link has no rate to compare with, so compare with the rate below which a link is dead.
        let reference = if assumed > 0.0 { assumed } else { nominal * h.dead_share_max };
        let is_slower = estimate.gb_per_s < reference * (1.0 - h.rate_difference_min);
        let is_faster = estimate.gb_per_s > reference * (1.0 + h.rate_difference_min);
        estimate.slower = if is_slower { estimate.slower + 1 } else { 0 };
        estimate.faster = if is_faster { estimate.faster + 1 } else { 0 };
        if estimate.slower.max(estimate.faster) < h.readings_to_change {
            return Ok(None);
        }
        (estimate.slower, estimate.faster) = (0, 0);
        let new = if estimate.gb_per_s < nominal * h.dead_share_max { 0.0 } else { estimate.gb_per_s };
        if new == assumed {
            return Ok(None);
        }
        self.set_link_rate(link, new)?;
        self.stale = true;
        Ok(Some(if new == 0.0 { LinkChange::Died(link) } else { LinkChange::Rate(link, new) }))
    }

    /// Builds the network again with one link at another rate. The estimates stay with their links, which are matched by name.
    fn set_link_rate(&mut self, link: usize, gb_per_s: f64) -> Result<(), RoutingNetworkError> {
        let node = |n: u32| self.net.nodes[n as usize].clone();
        let (from, to) = (node(self.net.links[link].from), node(self.net.links[link].to));
        self.options.overrides.retain(|o| (&o.from, &o.to) != (&from, &to));
        self.options.overrides.push(LinkOverride { from, to, rate: LinkRate::GbPerS(gb_per_s) });
        let new = RoutingNetwork::of(&self.cluster, &self.options)?;
        let by_name: HashMap<String, usize> = (0..self.net.links.len()).map(|l| (self.net.link_name(l), l)).collect();
        let old: Vec<Option<usize>> = (0..new.links.len()).map(|l| by_name.get(&new.link_name(l)).copied()).collect();
        let rate = |l: usize| new.links[l].capacity_gb_per_s;
        let first = |l: usize| LinkEstimate { gb_per_s: rate(l), ..LinkEstimate::default() };
        self.estimates = old.iter().enumerate().map(|(l, o)| o.map_or(first(l), |o| self.estimates[o])).collect();
        self.nominal_gb_per_s =
            old.iter().enumerate().map(|(l, o)| o.map_or(rate(l), |o| self.nominal_gb_per_s[o])).collect();
        self.net = new;
        Ok(())
    }
}
