//! The stages: intra tables, spot checks, and an adaptive sample.

use super::outcome::Stop;
use super::{
    ADAPTIVE_ROUNDS, CHECKS_FOR_MEDIAN, Campaign, CampaignError, CampaignEvent, SPOT_MEDIAN_MAX, SPOT_SINGLE_MAX, Stage,
};
use crate::backend::Point;
use crate::design::{Candidates, DesignKind, design_at};
use crate::intra::SPOT_CHECKS;
use crate::outlier;
use stats::median;
use store::Measurement;
use topology::{Allocation, Bytes, GpuMask, HostId};

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

    /// Measures spot checks and returns the hosts that deviate from the reference host of their type.
    pub(super) fn take_spot_checks(&mut self, checks: &[(HostId, HostId)], size: Bytes) -> Result<Vec<HostId>, Stop> {
        let spots: Vec<Vec<Point>> = checks.iter().map(|(h, r)| self.layout().spot_points(*h, *r, size)).collect();
        if spots.is_empty() {
            return Ok(Vec::new());
        }
        self.take(Stage::Spot, &format!("spot checks of {} hosts, {size}", checks.len()), &interleaved(&spots))?;
        let mut outliers = Vec::new();
        // A host with few checks is compared with all hosts.
        let few = self.plan.scale.spot_checks < CHECKS_FOR_MEDIAN;
        let all =
            || checks.iter().zip(&spots).flat_map(|((_, r), p)| self.ratios(p, *r)).map(|x| x.1).collect::<Vec<_>>();
        let of_site = if few { median(&all()) } else { 0.0 };
        for ((_, r), points) in checks.iter().zip(&spots) {
            let ratios = self.ratios(points, *r);
            let centre = if few { of_site } else { median(&ratios.iter().map(|x| x.1).collect::<Vec<_>>()) };
            outliers.extend(ratios.iter().filter(|x| (x.1 - centre).abs() > SPOT_SINGLE_MAX).map(|x| x.0.clone()));
        }
        self.repeat_outliers(Stage::Spot, &outliers)?;
        Ok(self.deviating_hosts(checks, &spots, of_site))
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
        self.take(Stage::Spot, &format!("more spot checks of {} hosts, {size}", more.len()), &interleaved(&more))
    }

    /// The hosts whose spot checks deviate from those of their reference host.
    fn deviating_hosts(&mut self, checks: &[(HostId, HostId)], spots: &[Vec<Point>], of_site: f64) -> Vec<HostId> {
        let few = self.plan.scale.spot_checks < CHECKS_FOR_MEDIAN;
        let mut deviating = Vec::new();
        for ((h, r), points) in checks.iter().zip(spots) {
            let ratios: Vec<f64> = self.ratios(points, *r).iter().map(|x| x.1).collect();
            let deviates = ratios.iter().any(|x| (x - of_site).abs() > SPOT_SINGLE_MAX);
            if deviates || (!few && median(&ratios).abs() > SPOT_MEDIAN_MAX) {
                let name = self.cluster.host(*h).name.clone();
                let percent = 100.0 * (median(&ratios).exp() - 1.0);
                (self.hooks.on_event)(CampaignEvent::Note(format!(
                    "{name} deviates from {} by {percent:+.1} % (median of {} spot checks): taking more readings of it",
                    self.cluster.host(*r).name,
                    ratios.len()
                )));
                if !self.summary.deviating_hosts.contains(&name) {
                    self.summary.deviating_hosts.push(name);
                }
                deviating.push(*h);
            }
        }
        deviating
    }

    /// Log-ratio of each spot check to the same GPU subset of the reference host, from the best values of both.
    fn ratios<'p>(&self, points: &'p [Point], reference: HostId) -> Vec<(&'p Point, f64)> {
        let mut out = Vec::new();
        for p in points {
            let mask = p.allocation.parts().first().map_or(GpuMask::EMPTY, |x| x.1);
            let there = self.layout().point(Allocation::new([(reference, mask)]), p.size);
            if let (Some(a), Some(b)) = (self.best_value(p), self.best_value(&there)) {
                out.push((p, (a.max(1e-9) / b.max(1e-9)).ln()));
            }
        }
        out
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
    /// prediction.
    pub(super) fn take_adaptive_sample(&mut self, size: Bytes) -> Result<(), Stop> {
        let per_round = self.plan.sample_size.div_ceil(ADAPTIVE_ROUNDS).max(4);
        let (cluster, idle) = (self.cluster.clone(), self.plan.idle.clone());
        let (seed, scale) = (self.plan.seed, self.plan.scale);
        let mut taken: Vec<Allocation> = Vec::new();
        while taken.len() < self.plan.sample_size {
            let n = per_round.min(self.plan.sample_size - taken.len());
            let chosen = if taken.is_empty() {
                design_at(&cluster, &idle, n, DesignKind::Adaptive, seed, scale)
            } else {
                let measured = self.measured(&taken, size);
                let Some(model) = self.model.as_deref_mut() else { break };
                model.refit(&measured).map_err(|e| Stop::Error(CampaignError::Model(e)))?;
                Candidates { cluster: &cluster, idle: &idle, seed, scale }.most_uncertain(n, &taken, model)
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
