//! The stages: intra tables, spot checks, and an adaptive sample.

use super::outcome::Stop;
use super::{ADAPTIVE_ROUNDS, Campaign, CampaignError, CampaignEvent, Stage};
use crate::backend::Point;
use crate::design::{Candidates, DesignKind, design_at};
use crate::intra::SPOT_CHECKS;
use crate::layout::SpotGroup;
use crate::outlier::{self, DeviatingHost, SpotReading};
use crate::simulated::nominal_seconds;
use store::Measurement;
use topology::{Allocation, Bytes, GpuMask, HostId, count};

/// The comparison of one type's spot checks.
struct Judgement {
    outliers: Vec<Point>,
    deviating: Vec<DeviatingHost>,
    usual: Option<HostId>,
    /// Number of hosts whose median is compared; 0 if the reference is.
    hosts: usize,
}

impl Campaign<'_> {
    /// Measures full tables of several hosts at once, then repeats their outliers.
    pub(super) fn take_tables(&mut self, hosts: &[HostId], size: Bytes) -> Result<(), Stop> {
        let tables: Vec<Vec<Point>> = hosts.iter().map(|h| self.layout().table_points(*h, size)).collect();
        if tables.is_empty() {
            return Ok(());
        }
        let name = match hosts {
            [one] => format!("intra tables of {}, {size}", self.cluster.host(*one).name),
            _ => format!("intra tables of {} hosts, {size}", hosts.len()),
        };
        self.take(Stage::Intra, &name, &interleaved(&tables))?;
        let mut outliers = Vec::new();
        for (h, table) in hosts.iter().zip(&tables) {
            let readings: Vec<(&Point, f64)> = table.iter().filter_map(|p| Some((p, self.value(p)?))).collect();
            let masks: Vec<(GpuMask, f64)> = readings.iter().map(|(p, v)| (p.allocation.mask(*h), *v)).collect();
            outliers
                .extend(outlier::intra(self.cluster.type_of(*h), &masks).into_iter().map(|i| readings[i].0.clone()));
        }
        self.repeat_outliers(Stage::Intra, &outliers)
    }

    /// Measures spot checks and returns the hosts of which more readings are needed: those that deviate from their type,
    /// and a usual host of each type whose reference host deviates.
    pub(super) fn take_spot_checks(&mut self, checks: &[(HostId, HostId)], size: Bytes) -> Result<Vec<HostId>, Stop> {
        let spots: Vec<Vec<Point>> = checks.iter().map(|(h, r)| self.layout().spot_points(*h, *r, size)).collect();
        if spots.is_empty() {
            return Ok(Vec::new());
        }
        self.take(
            Stage::Spot,
            &format!("spot checks of {}, {size}", count(checks.len(), "host")),
            &interleaved(&spots),
        )?;
        let mut references: Vec<HostId> = checks.iter().map(|c| c.1).collect();
        references.sort_unstable();
        references.dedup();
        let groups: Vec<SpotGroup> = references.iter().map(|r| self.layout().spot_group(*r, checks, &spots)).collect();
        let outliers: Vec<Point> = groups.iter().flat_map(|g| self.judge(g).outliers).collect();
        self.repeat_outliers(Stage::Spot, &outliers)?;
        let (mut first, mut more) = (Vec::new(), Vec::new());
        for g in &groups {
            let judged = self.judge(g);
            for d in &judged.deviating {
                self.say_deviating(g, &judged, d);
                if d.host == g.reference { first.extend(judged.usual) } else { more.push(d.host) }
            }
        }
        // The table of a usual host comes first: without it, the deviating reference stands for the whole type.
        first.extend(more.into_iter().filter(|h| !first.contains(h)).collect::<Vec<_>>());
        Ok(first)
    }

    /// Compares the spot checks of one type: the readings of all its hosts, from the best values of repeated ones.
    fn judge(&self, group: &SpotGroup) -> Judgement {
        let checks: Vec<(&(HostId, Point), f64)> =
            group.points.iter().filter_map(|c| Some((c, self.best_value(&c.1)?))).collect();
        let t = self.cluster.type_of(group.reference);
        let readings: Vec<SpotReading> = checks
            .iter()
            .map(|((host, p), gb_per_s)| {
                let mask = p.allocation.mask(*host);
                SpotReading { host: *host, mask, gb_per_s: *gb_per_s }
            })
            .collect();
        let judged = outlier::hosts(t, group.reference, &readings);
        let outliers = judged.outliers.iter().map(|&i| checks[i].0.1.clone()).collect();
        Judgement { outliers, deviating: judged.deviating, usual: judged.usual, hosts: judged.hosts }
    }

    fn say_deviating(&mut self, group: &SpotGroup, judged: &Judgement, d: &DeviatingHost) {
        let name = self.cluster.host(d.host).name.clone();
        let percent = 100.0 * (d.log_ratio.exp() - 1.0);
        let from = match judged.hosts {
            0 => self.cluster.host(group.reference).name.clone(),
            n => format!("the median of the {n} hosts of {}", self.cluster.type_of(d.host).name),
        };
        let then = match (d.host == group.reference, judged.usual) {
            (false, _) => "taking more readings of it".to_owned(),
            (true, Some(u)) => format!("taking the table of {}, too", self.cluster.host(u).name),
            (true, None) => "its table stands for them".to_owned(),
        };
        (self.hooks.on_event)(CampaignEvent::Note(format!(
            "{name} deviates from {from} by {percent:+.1} % (median of {}): {then}",
            count(d.checks, "spot check")
        )));
        if !self.summary.deviating_hosts.contains(&name) {
            self.summary.deviating_hosts.push(name);
        }
    }

    /// All spot checks of hosts that deviate, where the scale allows no table for them.
    pub(super) fn take_more_checks(
        &mut self,
        checks: &[(HostId, HostId)],
        hosts: &[HostId],
        size: Bytes,
    ) -> Result<(), Stop> {
        let of_hosts = checks.iter().filter(|(h, _)| hosts.contains(h));
        let more: Vec<Vec<Point>> = of_hosts.map(|(h, r)| self.layout().checks_of(*h, *r, SPOT_CHECKS, size)).collect();
        if more.is_empty() {
            return Ok(());
        }
        self.take(
            Stage::Spot,
            &format!("more spot checks of {}, {size}", count(more.len(), "host")),
            &interleaved(&more),
        )
    }

    pub(super) fn repeat_multi_outliers(&mut self, points: &[Point]) -> Result<(), Stop> {
        let readings: Vec<(&Point, f64)> = points.iter().filter_map(|p| Some((p, self.value(p)?))).collect();
        let judged: Vec<(Allocation, f64, f64)> = readings
            .iter()
            .map(|(p, v)| (p.allocation.clone(), *v, (self.hooks.expected)(&p.allocation, p.collective, p.size)))
            .collect();
        let outliers: Vec<Point> =
            outlier::multi(&self.cluster, &judged).into_iter().map(|i| readings[i].0.clone()).collect();
        self.repeat_outliers(Stage::Multi, &outliers)
    }

    /// Measures in rounds: the model learns the readings, then chooses the allocations with the most uncertain
    /// prediction. The rounds together cost no more than [`Campaign::estimate`] says, so that a budget that the plan
    /// fits suffices; the limit depends on the plan alone, so that a resumed campaign chooses the same.
    pub(super) fn take_adaptive_sample(&mut self, size: Bytes) -> Result<(), Stop> {
        let per_round = self.plan.sample_size.div_ceil(ADAPTIVE_ROUNDS).max(4);
        let (cluster, idle) = (self.cluster.clone(), self.plan.idle.clone());
        let (seed, scale) = (self.plan.seed, self.plan.scale);
        // GPU-seconds by the nominal run, since a backend may learn other durations on the way.
        let cost = |a: &Allocation| nominal_seconds(a.gpu_count()).0 * a.gpu_count() as f64;
        let planned: f64 = self.layout().sample_points(size).iter().map(|p| cost(&p.allocation)).sum();
        let mut taken: Vec<Allocation> = Vec::new();
        while taken.len() < self.plan.sample_size {
            let n = per_round.min(self.plan.sample_size - taken.len());
            let chosen = if taken.is_empty() {
                design_at(&cluster, &idle, n, DesignKind::Adaptive, seed, scale)
            } else {
                let measured = self.measured(&taken, size);
                let Some(model) = self.model.as_deref_mut() else { break };
                model.refit(&measured).map_err(|e| Stop::Error(CampaignError::Model(e)))?;
                let share = (taken.len() + n) as f64 / self.plan.sample_size as f64;
                let left = planned * share - taken.iter().map(cost).sum::<f64>();
                let candidates = Candidates { cluster: &cluster, idle: &idle, seed, scale };
                let Some(model) = self.model.as_deref() else { break };
                candidates.most_uncertain_within(n, &taken, model, left, &cost)
            };
            if chosen.is_empty() {
                break;
            }
            let points: Vec<Point> = chosen.iter().map(|a| self.layout().point(a.clone(), size)).collect();
            self.take(
                Stage::Multi,
                &format!("adaptive sample, allocations {} to {}, {size}", taken.len() + 1, taken.len() + points.len()),
                &points,
            )?;
            taken.extend(chosen);
        }
        let points: Vec<Point> = taken.into_iter().map(|a| self.layout().point(a, size)).collect();
        self.repeat_multi_outliers(&points)
    }

    /// First readings of the tables and of `taken`, in the order of the plan, so that a resumed campaign trains the
    /// same model.
    fn measured(&self, taken: &[Allocation], size: Bytes) -> Vec<Measurement> {
        let (tables, _) = self.layout().hosts();
        let tables = tables.iter().flat_map(|h| self.layout().table_points(*h, size));
        let samples = taken.iter().map(|a| self.layout().point(a.clone(), size));
        tables
            .chain(samples)
            .filter_map(|p| {
                let busbw = topology::Bandwidth::from_gb_per_s(self.value(&p)?);
                Some(Measurement::new(p.allocation, p.collective, size, busbw, self.backend.source()))
            })
            .collect()
    }
}

/// Interleaves the points of several hosts, so that neighbours can share a batch.
fn interleaved(groups: &[Vec<Point>]) -> Vec<Point> {
    let longest = groups.iter().map(Vec::len).max().unwrap_or(0);
    (0..longest).flat_map(|i| groups.iter().filter_map(move |g| g.get(i).cloned())).collect()
}
