//! Campaigns: intra tables, spot checks and a multi-host sample, resumable after an interruption.
//!
//! For every size a campaign measures the full table of one host of each type, spot checks on the other hosts of the type and the full table of those
//! that deviate, then the points of a design. After each stage it repeats outliers up to twice; the median counts, and the other readings are stored
//! as rejected. A stage decides from stored readings only, and each reading has a run id made of backend, point and repetition: an interrupted
//! campaign continues where it was and ends with the same points.

use crate::backend::{Backend, BackendError, Point, Reading};
use crate::design::{DesignKind, Uncertainty, adaptive_round, design};
use crate::layout::Layout;
use crate::outlier;
use stats::median;
use std::collections::HashMap;
use store::{Measurement, Quality, Query, Record, Store, StoreError};
use topology::{Allocation, Bytes, Cluster, Collective, GpuMask, HostId};

/// Limit on repetitions of an outlier.
pub const REPETITIONS_MAX: u32 = 2;
/// Points that may fail in a row before the campaign stops.
pub const FAILURES_IN_ROW_MAX: usize = 10;
/// A host deviates from its type if the median of its spot checks differs by more than this (log units) ...
pub const SPOT_MEDIAN_MAX: f64 = 0.05;
/// ... or a single spot check by more than this.
pub const SPOT_SINGLE_MAX: f64 = 0.15;
/// Rounds of an adaptive design.
const ADAPTIVE_ROUNDS: usize = 8;

#[derive(Clone, Debug, PartialEq)]
pub struct CampaignPlan {
    /// The GPUs to use.
    pub idle: Allocation,
    pub collective: Collective,
    /// Sizes, each with its own tables and sample.
    pub sizes: Vec<Bytes>,
    /// Measure intra tables and spot checks.
    pub intra: bool,
    /// Multi-host allocations per size.
    pub sample_size: usize,
    /// How they are chosen.
    pub design: DesignKind,
    /// Seed of designs and spot checks.
    pub seed: u64,
    /// Limit on GPU-minutes of this run; `None` is unlimited.
    pub budget_gpu_minutes: Option<f64>,
}

/// Cost of a plan before its start, without repetitions and without the tables of deviating hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CampaignEstimate {
    /// Points of the plan.
    pub points: usize,
    /// Points that have a reading in the store.
    pub already: usize,
    /// GPU-minutes of the other points.
    pub gpu_minutes: f64,
    /// Wall-clock seconds of the other points.
    pub seconds: f64,
}

/// Progress of a campaign.
#[derive(Clone, Debug, PartialEq)]
pub enum CampaignEvent {
    /// A stage begins.
    Stage {
        /// For instance `intra tables of n0, 16MiB`.
        name: String,
        /// Points to measure.
        points: usize,
        /// Points of the stage that have a reading.
        already: usize,
    },
    /// This many more points of the stage are in the store.
    Taken(usize),
    /// A line for the user.
    Note(String),
}

/// Counts of one kind of stage.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct StageSummary {
    /// `intra tables`, `spot checks` or `multi-host samples`.
    pub name: String,
    /// Points that have a reading.
    pub points: usize,
    /// Readings taken by this run, repetitions included.
    pub readings_taken: usize,
    /// Points without a reading.
    pub failed: usize,
    /// Points whose first reading was an outlier.
    pub outliers: usize,
    /// Readings rejected after repetition.
    pub rejected: usize,
    /// Outliers that could not be repeated.
    pub suspect: usize,
    /// Seconds for which runs occupied GPUs, added up.
    pub run_seconds: f64,
    /// The same times their GPUs, minutes.
    pub gpu_minutes: f64,
}

/// Result of a campaign.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct CampaignSummary {
    pub stages: Vec<StageSummary>,
    /// Hosts whose spot checks deviated and that got a full table.
    pub deviating_hosts: Vec<String>,
    /// The budget ended before the plan.
    pub stopped_by_budget: bool,
}

impl CampaignSummary {
    /// Readings taken by this run.
    pub fn readings_taken(&self) -> usize {
        self.stages.iter().map(|s| s.readings_taken).sum()
    }
    /// GPU-minutes of this run.
    pub fn gpu_minutes(&self) -> f64 {
        self.stages.iter().map(|s| s.gpu_minutes).sum()
    }
    /// Points without a reading.
    pub fn failed(&self) -> usize {
        self.stages.iter().map(|s| s.failed).sum()
    }
}

/// Why a campaign stopped.
#[derive(Debug, thiserror::Error)]
pub enum CampaignError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The backend cannot continue. All readings so far are in the store.
    #[error("{0}. All readings so far are stored; rerun the same command to resume")]
    Backend(String),
    /// The model of an adaptive design failed.
    #[error("the adaptive design's model: {0}")]
    Model(String),
}

enum Stop {
    Budget,
    Error(CampaignError),
}

impl<E: Into<CampaignError>> From<E> for Stop {
    fn from(e: E) -> Self {
        Stop::Error(e.into())
    }
}

/// Expected bandwidth of a multi-host allocation, GB/s.
pub type Expected<'a> = &'a dyn Fn(&Allocation, Collective, Bytes) -> f64;

/// One run of a plan.
pub struct Campaign<'a> {
    plan: &'a CampaignPlan,
    cluster: Cluster,
    store: &'a mut Store,
    backend: &'a mut dyn Backend,
    expected: Expected<'a>,
    model: Option<&'a mut dyn Uncertainty>,
    now_unix_s: &'a dyn Fn() -> f64,
    on_event: &'a mut dyn FnMut(CampaignEvent),
    known: HashMap<String, f64>,
    failures_in_row: usize,
    summary: CampaignSummary,
}

const INTRA: usize = 0;
const SPOT: usize = 1;
const MULTI: usize = 2;

impl<'a> Campaign<'a> {
    /// Reads the known readings from the store. Multi-host readings are compared with `expected`; new ones get the time `now_unix_s`; `on_event`
    /// receives the progress.
    pub fn new(
        plan: &'a CampaignPlan,
        store: &'a mut Store,
        backend: &'a mut dyn Backend,
        expected: Expected<'a>,
        now_unix_s: &'a dyn Fn() -> f64,
        on_event: &'a mut dyn FnMut(CampaignEvent),
    ) -> Result<Self, StoreError> {
        let run_prefix = Some(format!("{}/{}/", backend.identity(), plan.collective));
        let query = Query { run_prefix, with_withdrawn: true, ..Query::all() }; // else it would be measured on every resume
        let known = store
            .records(&query)?
            .into_iter()
            .filter_map(|r| Some((r.run_id?, r.measurement.busbw.gb_per_s())))
            .collect();
        let stage = |name: &str| StageSummary { name: name.into(), ..StageSummary::default() };
        let stages = vec![stage("intra tables"), stage("spot checks"), stage("multi-host samples")];
        let cluster = store.cluster().clone();
        let summary = CampaignSummary { stages, ..CampaignSummary::default() };
        Ok(Campaign {
            plan,
            cluster,
            store,
            backend,
            expected,
            model: None,
            now_unix_s,
            on_event,
            known,
            failures_in_row: 0,
            summary,
        })
    }

    /// Sets the model that an adaptive design asks.
    pub fn with_model(mut self, model: &'a mut dyn Uncertainty) -> Self {
        self.model = Some(model);
        self
    }

    /// Cost of the remaining points, before the start.
    pub fn estimate(&self) -> CampaignEstimate {
        let mut estimate = CampaignEstimate::default();
        let mut add = |points: &[Point], width: usize| {
            for p in points {
                estimate.points += 1;
                if self.known.contains_key(&self.run_id(p)) {
                    estimate.already += 1;
                    continue;
                }
                let seconds = self.backend.expected(p).0;
                estimate.gpu_minutes += seconds * p.allocation.gpu_count() as f64 / 60.0;
                estimate.seconds += seconds / width.max(1) as f64;
            }
        };
        for &size in &self.plan.sizes {
            let (tables, checks) = self.layout().hosts();
            add(
                &tables.iter().flat_map(|h| self.layout().table_points(*h, size)).collect::<Vec<_>>(),
                self.backend.width().min(tables.len()),
            );
            let spots: Vec<Point> = checks.iter().flat_map(|(h, r)| self.layout().spot_points(*h, *r, size)).collect();
            add(&spots, self.backend.width().min(checks.len()));
            add(&self.layout().sample_points(size), 1);
        }
        estimate
    }

    /// Runs the plan to its end, or to the end of the budget.
    pub fn run(mut self) -> Result<CampaignSummary, CampaignError> {
        for &size in &self.plan.sizes {
            match self.run_size(size) {
                Ok(()) => {}
                Err(Stop::Budget) => {
                    self.summary.stopped_by_budget = true;
                    break;
                }
                Err(Stop::Error(e)) => return Err(e),
            }
        }
        Ok(self.summary)
    }

    fn run_size(&mut self, size: Bytes) -> Result<(), Stop> {
        let (tables, checks) = self.layout().hosts();
        if self.plan.intra {
            self.take_tables(&tables, size)?;
            let deviating = self.take_spot_checks(&checks, size)?;
            self.take_tables(&deviating, size)?;
        }
        if self.plan.design == DesignKind::Adaptive && self.model.is_some() {
            self.take_adaptive_sample(size)
        } else {
            let points = self.layout().sample_points(size);
            self.take(
                MULTI,
                &format!("sample of {} multi-host allocations ({}), {size}", points.len(), self.design_name()),
                &points,
            )?;
            self.repeat_multi_outliers(&points)
        }
    }

    fn design_name(&self) -> &'static str {
        match self.plan.design {
            DesignKind::Adaptive if self.model.is_none() => "farthest-point",
            d => d.name(),
        }
    }

    fn layout(&self) -> Layout<'_> {
        Layout { plan: self.plan, cluster: &self.cluster }
    }

    /// Backend, point and repetition. The digest of the GPUs stands for a list that no store takes: thousands of hosts whose names have no
    /// numbers in common.
    fn run_id(&self, p: &Point) -> String {
        let gpus = self.cluster.gpu_list(&p.allocation);
        let id = |gpus| format!("{}/{}/{}/{gpus}#{}", self.backend.identity(), p.collective, p.size.0, p.repetition);
        let whole = id(&gpus);
        if whole.len() <= store::RUN_ID_BYTES_MAX { whole } else { id(&store::once::digest(&gpus)) }
    }

    fn value(&self, p: &Point) -> Option<f64> {
        self.known.get(&self.run_id(p)).copied()
    }

    // ---- taking readings ----------------------------------------------------------------------------------------------

    /// Measures the points without a reading, in batches on different hosts. Each batch is stored before the next begins.
    fn take(&mut self, stage: usize, name: &str, points: &[Point]) -> Result<(), Stop> {
        let missing: Vec<&Point> = points.iter().filter(|p| self.value(p).is_none()).collect();
        let already = points.len() - missing.len();
        (self.on_event)(CampaignEvent::Stage { name: name.into(), points: missing.len(), already });
        if points.first().is_some_and(|p| p.repetition == 0) {
            self.summary.stages[stage].points += already;
        }
        for batch in batches(&missing, self.backend.width()) {
            self.take_batch(stage, &batch)?;
        }
        Ok(())
    }

    fn take_batch(&mut self, stage: usize, batch: &[Point]) -> Result<(), Stop> {
        let cost: f64 = batch.iter().map(|p| self.backend.expected(p).0 * p.allocation.gpu_count() as f64 / 60.0).sum();
        if self.plan.budget_gpu_minutes.is_some_and(|b| self.summary.gpu_minutes() + cost > b + 1e-9) {
            return Err(Stop::Budget);
        }
        let results = self.backend.measure_batch(batch);
        let mut records = Vec::new();
        let mut fatal = None;
        for (p, result) in batch.iter().zip(results) {
            match result {
                Ok(reading) => {
                    self.failures_in_row = 0;
                    let s = &mut self.summary.stages[stage];
                    s.readings_taken += 1;
                    s.points += usize::from(p.repetition == 0);
                    s.run_seconds += reading.took.0;
                    s.gpu_minutes += reading.took.0 * p.allocation.gpu_count() as f64 / 60.0;
                    records.push(self.record(p, reading));
                }
                Err(BackendError::Point(why)) => {
                    self.failures_in_row += 1;
                    self.summary.stages[stage].failed += usize::from(p.repetition == 0);
                    let gpus = self.cluster.gpu_list(&p.allocation);
                    (self.on_event)(CampaignEvent::Note(format!(
                        "no reading for {gpus}, {} {}: {why}",
                        p.collective, p.size
                    )));
                    if self.failures_in_row >= FAILURES_IN_ROW_MAX {
                        fatal = Some(format!("{FAILURES_IN_ROW_MAX} points failed in a row, the last with: {why}"));
                    }
                }
                Err(BackendError::Fatal(why)) => fatal = Some(why),
            }
        }
        self.store.insert_batch(&records)?;
        for r in &records {
            self.known.extend(r.run_id.clone().map(|id| (id, r.measurement.busbw.gb_per_s())));
        }
        (self.on_event)(CampaignEvent::Taken(batch.len()));
        fatal.map_or(Ok(()), |why| Err(Stop::Error(CampaignError::Backend(why))))
    }

    fn record(&self, p: &Point, r: Reading) -> Record {
        let mut m = Measurement::new(p.allocation.clone(), p.collective, p.size, r.busbw, self.backend.source());
        m.time = r.time;
        m.algorithm = r.algorithm;
        m.protocol = r.protocol;
        m.channels = r.channels;
        m.nccl_version = r.nccl_version;
        m.taken_at_unix_s = Some((self.now_unix_s)());
        m.provenance = self.backend.provenance();
        Record { run_id: Some(self.run_id(p)), measurement: m }
    }

    // ---- stages -------------------------------------------------------------------------------------------------------

    /// Measures full tables of several hosts at once, then repeats their outliers.
    fn take_tables(&mut self, hosts: &[HostId], size: Bytes) -> Result<(), Stop> {
        let tables: Vec<Vec<Point>> = hosts.iter().map(|h| self.layout().table_points(*h, size)).collect();
        if tables.is_empty() {
            return Ok(());
        }
        let name = match hosts {
            [one] => format!("intra tables of {}, {size}", self.cluster.host(*one).name),
            _ => format!("intra tables of {} hosts, {size}", hosts.len()),
        };
        self.take(INTRA, &name, &interleaved(&tables))?;
        let mut outliers = Vec::new();
        for (h, table) in hosts.iter().zip(&tables) {
            let readings: Vec<(&Point, f64)> = table.iter().filter_map(|p| Some((p, self.value(p)?))).collect();
            let masks: Vec<(GpuMask, f64)> = readings.iter().map(|(p, v)| (p.allocation.mask(*h), *v)).collect();
            outliers
                .extend(outlier::intra(self.cluster.type_of(*h), &masks).into_iter().map(|i| readings[i].0.clone()));
        }
        self.repeat_outliers(INTRA, &outliers)
    }

    /// Measures spot checks and returns the hosts that deviate from the reference host of their type.
    fn take_spot_checks(&mut self, checks: &[(HostId, HostId)], size: Bytes) -> Result<Vec<HostId>, Stop> {
        let spots: Vec<Vec<Point>> = checks.iter().map(|(h, r)| self.layout().spot_points(*h, *r, size)).collect();
        if spots.is_empty() {
            return Ok(Vec::new());
        }
        self.take(SPOT, &format!("spot checks of {} hosts, {size}", checks.len()), &interleaved(&spots))?;
        let mut outliers = Vec::new();
        for ((_, r), points) in checks.iter().zip(&spots) {
            let ratios = self.ratios(points, *r);
            let centre = median(&ratios.iter().map(|x| x.1).collect::<Vec<_>>());
            outliers.extend(ratios.iter().filter(|x| (x.1 - centre).abs() > SPOT_SINGLE_MAX).map(|x| x.0.clone()));
        }
        self.repeat_outliers(SPOT, &outliers)?;
        let mut deviating = Vec::new();
        for ((h, r), points) in checks.iter().zip(&spots) {
            let ratios: Vec<f64> = self.ratios(points, *r).iter().map(|x| x.1).collect();
            if median(&ratios).abs() > SPOT_MEDIAN_MAX || ratios.iter().any(|x| x.abs() > SPOT_SINGLE_MAX) {
                let name = self.cluster.host(*h).name.clone();
                let percent = 100.0 * (median(&ratios).exp() - 1.0);
                (self.on_event)(CampaignEvent::Note(format!(
                    "{name} deviates from {} by {percent:+.1} % (median of {} spot checks): measuring its full table",
                    self.cluster.host(*r).name,
                    ratios.len()
                )));
                if !self.summary.deviating_hosts.contains(&name) {
                    self.summary.deviating_hosts.push(name);
                }
                deviating.push(*h);
            }
        }
        Ok(deviating)
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

    fn repeat_multi_outliers(&mut self, points: &[Point]) -> Result<(), Stop> {
        let readings: Vec<(&Point, f64)> = points.iter().filter_map(|p| Some((p, self.value(p)?))).collect();
        let judged: Vec<(Allocation, f64, f64)> = readings
            .iter()
            .map(|(p, v)| (p.allocation.clone(), *v, (self.expected)(&p.allocation, p.collective, p.size)))
            .collect();
        let outliers: Vec<Point> =
            outlier::multi(&self.cluster, &judged).into_iter().map(|i| readings[i].0.clone()).collect();
        self.repeat_outliers(MULTI, &outliers)
    }

    /// Measures in rounds: the model learns the readings and chooses the allocations about which it is most uncertain.
    fn take_adaptive_sample(&mut self, size: Bytes) -> Result<(), Stop> {
        let per_round = self.plan.sample_size.div_ceil(ADAPTIVE_ROUNDS).max(4);
        let (cluster, idle, seed) = (self.cluster.clone(), self.plan.idle.clone(), self.plan.seed);
        let mut taken: Vec<Allocation> = Vec::new();
        while taken.len() < self.plan.sample_size {
            let n = per_round.min(self.plan.sample_size - taken.len());
            let chosen = if taken.is_empty() {
                design(&cluster, &idle, n, DesignKind::Adaptive, seed)
            } else {
                let measured = self.measured(&taken, size);
                let Some(model) = self.model.as_deref_mut() else { break };
                model.refit(&measured).map_err(|e| Stop::Error(CampaignError::Model(e)))?;
                adaptive_round(&cluster, &idle, n, seed, &taken, model)
            };
            if chosen.is_empty() {
                break;
            }
            let points: Vec<Point> = chosen.iter().map(|a| self.layout().point(a.clone(), size)).collect();
            self.take(
                MULTI,
                &format!("adaptive sample, allocations {} to {}, {size}", taken.len() + 1, taken.len() + points.len()),
                &points,
            )?;
            taken.extend(chosen);
        }
        let points: Vec<Point> = taken.into_iter().map(|a| self.layout().point(a, size)).collect();
        self.repeat_multi_outliers(&points)
    }

    /// First readings of the tables and of `taken`, in the order of the plan, so that a resumed campaign trains the model alike.
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

    // ---- outliers -----------------------------------------------------------------------------------------------------

    /// Readings of a point by repetition, with their run ids.
    fn readings(&self, p: &Point) -> Vec<(String, f64)> {
        (0..=REPETITIONS_MAX)
            .filter_map(|repetition| {
                let id = self.run_id(&Point { repetition, ..p.clone() });
                self.known.get(&id).map(|v| (id.clone(), *v))
            })
            .collect()
    }

    /// The value of a point: its only reading, or the median of several.
    fn best_value(&self, p: &Point) -> Option<f64> {
        let readings: Vec<f64> = self.readings(p).into_iter().map(|r| r.1).collect();
        (!readings.is_empty()).then(|| outlier::resolve_readings(&readings).0)
    }

    /// Repeats outliers once, and a second time if the two readings disagree. Then marks each reading as good, rejected or suspect.
    fn repeat_outliers(&mut self, stage: usize, outliers: &[Point]) -> Result<(), Stop> {
        self.summary.stages[stage].outliers += outliers.len();
        if outliers.is_empty() {
            return Ok(());
        }
        for repetition in 1..=REPETITIONS_MAX {
            let again: Vec<Point> = outliers
                .iter()
                .filter(|p| match self.readings(p)[..] {
                    [(_, a), (_, b)] if repetition == 2 => !outlier::agree(a, b),
                    _ => true,
                })
                .map(|p| Point { repetition, ..p.clone() })
                .collect();
            if !again.is_empty() {
                self.take(
                    stage,
                    &format!("{} outliers again ({repetition} of {REPETITIONS_MAX})", again.len()),
                    &again,
                )?;
            }
        }
        let mut changes = Vec::new();
        for p in outliers {
            let readings = self.readings(p);
            let values: Vec<f64> = readings.iter().map(|r| r.1).collect();
            let (_, rejected) = outlier::resolve_readings(&values);
            let s = &mut self.summary.stages[stage];
            if let [(only, _)] = &readings[..] {
                s.suspect += 1;
                changes.push((only.clone(), Quality::Suspect));
                continue;
            }
            for ((id, _), bad) in readings.into_iter().zip(rejected) {
                s.rejected += usize::from(bad);
                changes.push((id, if bad { Quality::Rejected } else { Quality::Good }));
            }
        }
        self.store.set_quality(changes.iter().map(|(id, q)| (id.as_str(), *q)))?;
        Ok(())
    }
}

/// Interleaves the points of several hosts, so that neighbours can share a batch.
fn interleaved(groups: &[Vec<Point>]) -> Vec<Point> {
    let longest = groups.iter().map(Vec::len).max().unwrap_or(0);
    (0..longest).flat_map(|i| groups.iter().filter_map(move |g| g.get(i).cloned())).collect()
}

/// Splits consecutive points into batches of at most `width` on different hosts. A multi-host point is a batch of its own: others would share its
/// network.
fn batches(points: &[&Point], width: usize) -> Vec<Vec<Point>> {
    let mut out: Vec<Vec<Point>> = Vec::new();
    for p in points {
        let fits = |b: &Vec<Point>| {
            b.len() < width
                && p.allocation.host_count() == 1
                && b.iter()
                    .all(|q| q.allocation.host_count() == 1 && q.allocation.parts()[0].0 != p.allocation.parts()[0].0)
        };
        match out.last_mut() {
            Some(b) if fits(b) => b.push((*p).clone()),
            _ => out.push(vec![(*p).clone()]),
        }
    }
    out
}
