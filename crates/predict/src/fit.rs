//! Fits a [`Model`] to measurements.

use crate::bound::Memo;
use crate::calibrate::{CalibrationReading, calibrate};
use crate::committee::Committee;
use crate::intra::{HostReadings, IntraTables};
use crate::kind::Kind;
use crate::learned::{Learner, LearnerData, ReadingsOfSize, TrainingRun};
use crate::model::{Correction, Model, SizeTables};
use crate::names::Names;
use crate::nccl::NcclNetwork;
use crate::rates::{LearnedRates, SlowPart, has_one_switch};
use crate::shares::HostShareTable;
use crate::sizes::Ladder;
use crate::slow_parts;
use crate::stop::Stop;
use crate::uneven;
use fabric::{Constants, Fabric};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use store::{Measurement, Quality};
use topology::{Allocation, Bytes, Cluster, Collective, GpuMask, HostId};

/// Relative standard deviation of repeated measurements, used if nothing was measured repeatedly: nccl-tests on an idle
/// cluster repeats within 1 %.
pub const REPEAT_NOISE_DEFAULT: f64 = 0.01;

/// Maximum number of multi-host allocations (per size) that a Gaussian process is conditioned on. The cost of a fit
/// grows with the third power; at this limit each member takes a second. Of more allocations, [`Grouped::choose`] keeps
/// those that cover all splits.
pub const ALLOCATIONS_MAX: usize = 1000;
/// Maximum number of readings of one allocation in its median; the newest are used.
pub const REPETITIONS_MAX: usize = 32;
/// A reading older than this, relative to the newest reading of its allocation, is ignored. Within a quarter a site
/// changes firmware, NCCL and cables; a month without readings must not discard readings.
pub const AGE_MAX_S: f64 = 90.0 * 86_400.0;

/// Number of other hosts of its type that a host is compared with, to measure how much hosts of a type differ.
const COMPARED_MAX: usize = 12;

/// Number of alternating fits of slow parts and physics: constants fitted to a site with a slow part are wrong for that
/// site.
const SLOW_PARTS_ROUNDS: usize = 3;
/// Clusters with more hosts and no switch in their file are tried with these numbers of hosts per switch.
const HOSTS_OF_ONE_SWITCH_MAX: usize = 32;
const HOSTS_PER_SWITCH: [usize; 4] = [4, 8, 16, 32];
/// Minimum gain in the log density of left-out readings for switches that the file lacks.
const FOUND_SWITCHES_GAIN: f64 = 10.0;
/// Minimum gain in the log density of left-out readings for switches of one tier that keep different shares.
const UNEVEN_SWITCHES_GAIN: f64 = 1.0;
/// Minimum gain in the log density of left-out readings for slow parts to be accepted.
const SLOW_PARTS_GAIN: f64 = 2.0;

/// Why a fit failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FitError {
    /// The store holds no usable reading.
    #[error("no usable measurement of {collective} in the store; take some with `linkwise measure`")]
    Empty {
        /// The requested collective.
        collective: Collective,
    },
    /// The store holds several collectives and the options name none.
    #[error("the store holds {0}; name one with --collective")]
    SeveralCollectives(String),
    /// The Gaussian process could not be conditioned on the data.
    #[error("the Gaussian process could not be fitted to {0} readings; check them for absurd values")]
    Degenerate(usize),
    /// The caller ended the fit ([`FitOptions::stop`]).
    #[error("the fit was cancelled")]
    Cancelled,
    /// Too few readings for a learned model, which cannot use physics instead.
    #[error(
        "a {kind} model needs at least {needed} readings of several hosts at one size, {found} are there; \
         take more with `linkwise measure`, or use --model gp, which needs none"
    )]
    TooFew {
        /// The kind.
        kind: &'static str,
        /// Number of readings at the size that has the most.
        found: usize,
        /// Minimum number of readings.
        needed: usize,
    },
}

/// The data that a fit used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FitReport {
    /// Readings of single hosts.
    pub intra_readings: usize,
    /// Distinct multi-host readings that the fit used (repetitions are merged).
    pub multi_host_readings: usize,
    /// Distinct multi-host readings left out because of [`ALLOCATIONS_MAX`]; readings of the same splits are used
    /// instead.
    pub multi_host_not_chosen: usize,
    /// Repeated readings replaced by newer ones of the same allocation: older than [`AGE_MAX_S`], or beyond the newest
    /// [`REPETITIONS_MAX`].
    pub replaced: usize,
    /// Readings left out: rejected, of another collective, or stored twice.
    pub left_out: usize,
    /// Multi-host readings that the Gaussian process treats as outliers.
    pub distrusted: usize,
    /// Masks of single hosts whose reading is far from its class.
    pub intra_suspects: usize,
    /// Network parts that the readings show to be slower than others of their kind.
    pub slow_parts: Vec<SlowPart>,
    /// Training runs of a learned model, by size; empty for other kinds.
    pub training: Vec<TrainingRun>,
}

/// The options of a fit.
#[derive(Clone, Debug)]
pub struct FitOptions<'l> {
    /// The kind of model.
    pub kind: Kind<'l>,
    /// The collective; None: the only one in the measurements.
    pub collective: Option<Collective>,
    /// Constants of the physics, which also gives values for GPU subsets of a host that were never measured.
    pub constants: Constants,
    /// The slow parts of the site, if known; None: the fit searches for them.
    pub known_slow_parts: Option<Vec<SlowPart>>,
    /// Seed of the random numbers of learners (initial values, batches, validation readings). The shipped kinds use
    /// none.
    pub seed: u64,
    /// Ends the fit with [`FitError::Cancelled`].
    pub stop: Stop<'l>,
}

impl<'l> FitOptions<'l> {
    /// Default options for a kind of model.
    pub fn of(kind: Kind<'l>) -> Self {
        FitOptions {
            kind,
            collective: None,
            constants: Constants::default(),
            known_slow_parts: None,
            seed: 0,
            stop: Stop::default(),
        }
    }

    /// Sets the collective.
    pub fn collective(self, collective: Collective) -> Self {
        FitOptions { collective: Some(collective), ..self }
    }

    /// Sets the constants of the physics.
    pub fn constants(self, constants: Constants) -> Self {
        FitOptions { constants, ..self }
    }

    /// Sets the seed.
    pub fn seed(self, seed: u64) -> Self {
        FitOptions { seed, ..self }
    }
}

/// Fits a model.
///
/// Deterministic: the same measurements in the same order and the same options give the same model. Cost: dominated by
/// the Gaussian process, see [`crate::gp`]; learners of other crates document theirs.
pub fn fit(
    cluster: &Cluster,
    measurements: &[Measurement],
    options: &FitOptions,
) -> Result<(Model, FitReport), FitError> {
    let collective = collective_of(measurements, options)?;
    let mut report = FitReport::default();
    let stop = options.stop;
    let mut grouped = Grouped::new(cluster, measurements, collective, stop, &mut report);
    stopped(stop)?;
    if options.kind == Kind::Gp {
        grouped.choose(cluster, &mut report);
    }
    report.multi_host_readings = grouped.multi.len();
    let sizes = grouped.sizes(options.kind).ok_or(FitError::Empty { collective })?;
    let physics = Fabric::with_constants(cluster, options.constants.clone());
    let mut model = Model {
        cluster: cluster.clone(),
        rates: LearnedRates::default(),
        site: LearnedRates::default().on(cluster),
        collective,
        tables: intra_tables(cluster, collective, &sizes, &grouped.intra, &physics, stop, &mut report)?,
        ladder: Ladder::default(),
        names: Names::new(cluster),
        fabric: physics.tables(),
        correction: Correction::Offset { ln_factor: 0.0, sd: 0.3 },
        repeat_noise: repeat_noise(&grouped.multi),
        nccl: None,
    };
    match options.kind {
        Kind::Learned(learner) => learn(&mut model, learner, &grouped, options.seed, stop, &mut report)?,
        Kind::Nccl => {
            let readings = grouped.readings(&model);
            model.nccl = Some(nccl_of(&model, measurements, &readings, !options.constants.is_fitted()));
            model.correction = Correction::Offset { ln_factor: 0.0, sd: crate::nccl::COLD_SD };
        }
        Kind::Bound => {
            let readings = grouped.readings(&model);
            fit_offset(&mut model, &readings);
        }
        Kind::Gp => {
            let release = |m: &Model, readings: &[CalibrationReading]| {
                nccl_of(m, measurements, readings, !options.constants.is_fitted())
            };
            let known = options.known_slow_parts.as_deref();
            fit_gp(&mut model, &physics, &options.constants, &grouped, &release, known, stop, &mut report)?;
        }
    }
    stopped(stop)?;
    Ok((model, report))
}

fn stopped(stop: Stop<'_>) -> Result<(), FitError> {
    if stop.is_set() { Err(FitError::Cancelled) } else { Ok(()) }
}

/// True if a model can learn from this measurement.
fn is_usable(m: &Measurement) -> bool {
    m.quality != Quality::Rejected && m.busbw.gb_per_s() > 0.0 && m.busbw.gb_per_s().is_finite()
}

/// The requested collective, or the only one in the measurements.
fn collective_of(measurements: &[Measurement], options: &FitOptions) -> Result<Collective, FitError> {
    if let Some(c) = options.collective {
        return Ok(c);
    }
    let all: BTreeSet<Collective> = measurements.iter().filter(|m| is_usable(m)).map(|m| m.collective).collect();
    match all.len() {
        0 if options.kind == Kind::Nccl => Ok(Collective::AllReduce),
        0 => Err(FitError::Empty { collective: Collective::AllReduce }),
        1 => Ok(*all.first().unwrap_or(&Collective::AllReduce)),
        _ => {
            let names: Vec<&str> = all.iter().map(|c| c.name()).collect();
            Err(FitError::SeveralCollectives(names.join(", ")))
        }
    }
}

/// Busbw in GB/s of the measurements of one collective, by size and GPUs; several values where a measurement was
/// repeated.
struct Grouped {
    /// Readings of single hosts: by size, then by host.
    intra: BTreeMap<Bytes, Vec<HostReadings>>,
    /// Readings of several hosts, by size and allocation.
    multi: BTreeMap<(Bytes, Allocation), Repeated>,
}

/// The readings of one allocation.
#[derive(Default)]
struct Repeated {
    /// Time and busbw in GB/s of each reading, oldest first; the time is minus infinity if unknown.
    at_and_value: Vec<(f64, f64)>,
}

impl Repeated {
    /// Keeps the newest readings and returns the number of dropped ones.
    fn thin(&mut self) -> usize {
        let all = &mut self.at_and_value;
        let before = all.len();
        all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let newest = self.newest_unix_s();
        let all = &mut self.at_and_value;
        all.retain(|r| !(newest.is_finite() && r.0 < newest - AGE_MAX_S));
        all.drain(..all.len().saturating_sub(REPETITIONS_MAX));
        before - all.len()
    }
    fn newest_unix_s(&self) -> f64 {
        self.at_and_value.last().map_or(f64::NEG_INFINITY, |r| r.0)
    }
    fn values(&self) -> Vec<f64> {
        self.at_and_value.iter().map(|r| r.1).collect()
    }
}

/// The class of equivalent allocations: the size, and the host type and number of GPUs of every host, sorted.
type Split = (Bytes, Vec<(usize, usize)>);
/// The time of an allocation's newest reading, and the allocation with its size.
type NewestOf<'a> = (f64, &'a (Bytes, Allocation));

impl Grouped {
    fn new(
        cluster: &Cluster,
        measurements: &[Measurement],
        collective: Collective,
        stop: Stop<'_>,
        report: &mut FitReport,
    ) -> Self {
        let hosts = cluster.hosts.len();
        let mut grouped = Grouped { intra: BTreeMap::new(), multi: BTreeMap::new() };
        // A measurement that was stored or imported twice is one reading.
        let mut seen: HashSet<(Bytes, &Allocation, u64, u64)> = HashSet::new();
        for m in measurements {
            if stop.is_set() {
                break;
            }
            let v = m.busbw.gb_per_s();
            let fits = is_usable(m) && m.collective == collective && m.contention.is_none();
            let once = |at: f64| seen.insert((m.size, &m.allocation, v.to_bits(), at.to_bits()));
            if !fits || m.allocation.gpu_count() < 2 || !m.taken_at_unix_s.is_none_or(once) {
                report.left_out += 1;
                continue;
            }
            if m.allocation.host_count() == 1 {
                report.intra_readings += 1;
                let (h, mask) = m.allocation.parts()[0];
                let of_size = grouped.intra.entry(m.size).or_insert_with(|| vec![HostReadings::new(); hosts]);
                of_size[h.index()].entry(mask).or_default().push(v);
            } else {
                let repeated = grouped.multi.entry((m.size, m.allocation.clone())).or_default();
                repeated.at_and_value.push((m.taken_at_unix_s.unwrap_or(f64::NEG_INFINITY), v));
            }
        }
        report.replaced = grouped.multi.values_mut().map(Repeated::thin).sum();
        grouped
    }

    /// Keeps at most [`ALLOCATIONS_MAX`] multi-host allocations: the newest of every split, then the second newest of
    /// every split, and so on. If there are more splits than that, keeps evenly spaced ones. Deterministic. O(n log n).
    fn choose(&mut self, cluster: &Cluster, report: &mut FitReport) {
        if self.multi.len() <= ALLOCATIONS_MAX {
            return;
        }
        let mut splits: BTreeMap<Split, Vec<NewestOf>> = BTreeMap::new();
        for (key, repeated) in &self.multi {
            let mut split: Vec<(usize, usize)> =
                key.1.parts().iter().map(|&(h, m)| (cluster.host(h).host_type, m.count())).collect();
            split.sort_unstable();
            splits.entry((key.0, split)).or_default().push((repeated.newest_unix_s(), key));
        }
        for of_split in splits.values_mut() {
            of_split.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
        }
        let mut chosen: HashSet<(Bytes, Allocation)> = HashSet::new();
        for round in 0.. {
            let of_round: Vec<_> = splits.values().filter_map(|s| s.get(round)).map(|r| r.1.clone()).collect();
            let room = ALLOCATIONS_MAX - chosen.len();
            if of_round.is_empty() || room == 0 {
                break;
            }
            let n = of_round.len().min(room);
            chosen.extend((0..n).map(|i| of_round[i * of_round.len() / n].clone()));
        }
        report.multi_host_not_chosen = self.multi.len() - chosen.len();
        self.multi.retain(|key, _| chosen.contains(key));
    }

    /// The sizes of the model, ascending; None if nothing was measured and the kind needs measurements.
    fn sizes(&self, kind: Kind) -> Option<BTreeSet<Bytes>> {
        let sizes: BTreeSet<Bytes> = self.intra.keys().copied().chain(self.multi.keys().map(|k| k.0)).collect();
        match sizes.is_empty() {
            false => Some(sizes),
            true if kind == Kind::Nccl => Some(crate::nccl::COLD_SIZES.into_iter().collect()),
            true => None,
        }
    }

    /// The multi-host readings, each the median of its repetitions.
    fn medians(&self) -> impl Iterator<Item = (Bytes, &Allocation, f64)> {
        let median = |r: &Repeated| stats::upper_median(&r.values());
        self.multi.iter().map(move |((size, allocation), repeated)| (*size, allocation, median(repeated)))
    }

    /// The multi-host readings as host shares.
    fn readings(&self, model: &Model) -> Vec<CalibrationReading> {
        self.medians()
            .map(|(size, allocation, busbw_gb_per_s)| {
                let table = &model.tables(size).parts;
                let parts = allocation.parts().iter().map(|&(h, m)| table.part(h, m)).collect();
                CalibrationReading { parts, size, busbw_gb_per_s }
            })
            .collect()
    }

    /// The multi-host readings by size.
    fn by_size(&self) -> Vec<ReadingsOfSize> {
        let mut out: Vec<ReadingsOfSize> = Vec::new();
        for (size, allocation, busbw) in self.medians() {
            match out.last_mut() {
                Some(last) if last.0 == size => last.1.push((allocation.clone(), busbw)),
                _ => out.push((size, vec![(allocation.clone(), busbw)])),
            }
        }
        out
    }
}

/// The intra tables of every size, from readings where available and otherwise from physics.
fn intra_tables(
    cluster: &Cluster,
    collective: Collective,
    sizes: &BTreeSet<Bytes>,
    intra: &BTreeMap<Bytes, Vec<HostReadings>>,
    physics: &Fabric,
    stop: Stop<'_>,
    report: &mut FitReport,
) -> Result<Vec<SizeTables>, FitError> {
    let a_host_of = |t: usize| HostId(cluster.hosts.iter().position(|h| h.host_type == t).unwrap_or(0) as u32);
    let analytic =
        |t: usize, m: GpuMask, size: Bytes| physics.intra_busbw(a_host_of(t), m, collective, size).gb_per_s();
    let none = vec![HostReadings::new(); cluster.hosts.len()];
    let of_size = |&size: &Bytes| {
        stopped(stop)?;
        let readings = intra.get(&size).unwrap_or(&none);
        let tables = IntraTables::new(cluster, readings, &|t, m| analytic(t, m, size));
        let intra_sd = intra_deviation(cluster, readings, tables.measured_share());
        let parts = HostShareTable::new(cluster, &tables, &physics.tables());
        report.intra_suspects += cluster.host_ids().map(|h| tables.suspects(h).len()).sum::<usize>();
        Ok(SizeTables { size, intra: tables, parts, intra_sd })
    };
    sizes.iter().map(of_size).collect()
}

/// Fits a learner of another crate to the multi-host readings.
fn learn(
    model: &mut Model,
    learner: &dyn Learner,
    grouped: &Grouped,
    seed: u64,
    stop: Stop<'_>,
    report: &mut FitReport,
) -> Result<(), FitError> {
    let readings = grouped.by_size();
    let found = readings.iter().map(|r| r.1.len()).max().unwrap_or(0);
    let data = LearnerData { cluster: &model.cluster, tables: &model.tables, readings: &readings, stop };
    let too_few = FitError::TooFew { kind: learner.name(), found, needed: learner.readings_min() };
    let fitted = learner.fit(data, seed);
    stopped(stop)?;
    let (learned, training) = fitted.ok_or(too_few)?;
    model.correction = Correction::Learned(learned);
    report.training = training;
    Ok(())
}

/// Decides whether NCCL's own decisions are used, and returns the release that the readings name or match.
type Release<'r> = &'r dyn Fn(&Model, &[CalibrationReading]) -> NcclNetwork;

/// Fits rates, sharing constants and Gaussian processes: first without slow parts, then with the slow parts that the
/// readings show. The second fit is kept if its processes predict left-out readings better.
#[allow(clippy::too_many_arguments)] // one call
fn fit_gp(
    model: &mut Model,
    physics: &Fabric,
    constants: &Constants,
    grouped: &Grouped,
    release: Release,
    known: Option<&[SlowPart]>,
    stop: Stop<'_>,
    report: &mut FitReport,
) -> Result<(), FitError> {
    if let Some(known) = known {
        model.rates.slow = known.to_vec();
    }
    let mut told = model.clone();
    calibrate_physics(model, physics, constants, grouped, release, stop)?;
    let readings = grouped.readings(model);
    fit_processes(model, &readings, stop)?;
    if let Some(better) = with_found_switches(model, &told, physics, constants, grouped, release, stop)? {
        told = told.at_rates(LearnedRates { switches: better.rates.switches.clone(), ..LearnedRates::default() });
        *model = better;
    }
    let search = if known.is_some() { Vec::new() } else { vec![model.clone(), told] };
    // A slow part can look like a wrong constant, and a wrong constant like a slow part: both orders are tried.
    let mut tried: Vec<LearnedRates> = Vec::new();
    for start in search {
        let mut other = start;
        for _ in 0..SLOW_PARTS_ROUNDS {
            let healthy = other.without_slow_parts();
            let readings = grouped.readings(&healthy);
            let slow = slow_parts::find(&healthy.site, &healthy.fabric, model.collective, &readings, stop);
            stopped(stop)?;
            if slow == other.rates.slow {
                break;
            }
            let rates = LearnedRates { slow, ..healthy.rates.clone() };
            other = healthy.at_rates(rates);
            calibrate_physics(&mut other, physics, constants, grouped, release, stop)?;
        }
        if other.rates.slow.is_empty() || tried.contains(&other.rates) {
            continue;
        }
        tried.push(other.rates.clone());
        let readings = grouped.readings(&other);
        fit_processes(&mut other, &readings, stop)?;
        if density(&other) > density(model) + SLOW_PARTS_GAIN {
            *model = other;
        }
    }
    if let Some(better) = with_uneven_switches(model, grouped, stop)? {
        *model = better;
    }
    if let Correction::Gp(gp) = &model.correction {
        report.distrusted = gp.distrusted();
    }
    report.slow_parts = model.rates.slow.clone();
    Ok(())
}

/// The model with switches that keep different shares, if left-out readings support it.
fn with_uneven_switches(model: &Model, grouped: &Grouped, stop: Stop<'_>) -> Result<Option<Model>, FitError> {
    let Some(rates) = uneven::find(model, &grouped.readings(model)) else { return Ok(None) };
    let mut other = model.clone().at_rates(rates);
    let readings = grouped.readings(&other);
    fit_processes(&mut other, &readings, stop)?;
    Ok((density(&other) > density(model) + UNEVEN_SWITCHES_GAIN).then_some(other))
}

/// Log density of left-out readings.
fn density(m: &Model) -> f64 {
    match &m.correction {
        Correction::Gp(gp) => gp.left_out_density(),
        _ => f64::NEG_INFINITY,
    }
}

/// The fit with switches that the cluster file lacks, if left-out readings support them: so many hosts are rarely below
/// one switch, and the order of hosts in a file follows their racks. `None` if no number of hosts per switch helps.
fn with_found_switches(
    model: &Model,
    told: &Model,
    physics: &Fabric,
    constants: &Constants,
    grouped: &Grouped,
    release: Release,
    stop: Stop<'_>,
) -> Result<Option<Model>, FitError> {
    let cluster = &model.cluster;
    let hosts = cluster.hosts.len();
    if hosts <= HOSTS_OF_ONE_SWITCH_MAX || !has_one_switch(cluster) {
        return Ok(None);
    }
    let mut best: Option<Model> = None;
    for below in HOSTS_PER_SWITCH.into_iter().filter(|n| 2 * n <= hosts) {
        let names: Vec<String> = cluster.hosts.iter().map(|h| h.name.clone()).collect();
        let switches = names.chunks(below).map(<[String]>::to_vec).collect();
        let mut other = told.clone().at_rates(LearnedRates { switches, ..told.rates.clone() });
        calibrate_physics(&mut other, physics, constants, grouped, release, stop)?;
        // Only a loss between switches distinguishes them.
        if other.rates.tiers.is_empty() {
            continue;
        }
        let readings = grouped.readings(&other);
        fit_processes(&mut other, &readings, stop)?;
        if density(&other) > best.as_ref().map_or(density(model) + FOUND_SWITCHES_GAIN, density) {
            best = Some(other);
        }
    }
    Ok(best)
}

/// The slow rails and switches that the readings show, at the rates of a model without slow parts.
pub fn slow_shared_parts(model: &Model, measurements: &[Measurement]) -> Vec<SlowPart> {
    let mut report = FitReport::default();
    let grouped = Grouped::new(&model.cluster, measurements, model.collective, Stop::default(), &mut report);
    let mut found =
        slow_parts::find(&model.site, &model.fabric, model.collective, &grouped.readings(model), Stop::default());
    found.retain(|s| s.part.is_shared());
    found
}

/// Fits rates and sharing constants to the readings, and uses NCCL's own decisions if they explain the readings better.
/// Slow parts are unchanged.
fn calibrate_physics(
    model: &mut Model,
    physics: &Fabric,
    constants: &Constants,
    grouped: &Grouped,
    release: Release,
    stop: Stop<'_>,
) -> Result<(), FitError> {
    let known = std::mem::take(&mut model.rates);
    let start = LearnedRates { slow: known.slow, switches: known.switches, ..LearnedRates::default() };
    *model = model.clone().at_rates(start.clone());
    let readings = grouped.readings(model);
    let (found, rates) = calibrate(&model.cluster, physics, constants, model.collective, &readings, &start, stop);
    stopped(stop)?;
    model.fabric = physics.retuned(found).tables();
    if rates != start {
        *model = model.clone().at_rates(rates);
    }
    let readings = grouped.readings(model);
    model.nccl = None;
    let nccl = release(model, &readings);
    if nccl.explains_more(&readings, model.bounds(Bytes(1))) {
        model.nccl = Some(nccl);
    }
    Ok(())
}

/// The readings relative to the bound, as points of the committee.
fn points(model: &Model, readings: &[CalibrationReading]) -> Vec<crate::committee::CommitteeReading> {
    let mut memo: BTreeMap<Bytes, Memo> = BTreeMap::new();
    readings
        .iter()
        .map(|r| {
            let analytic = model.bounds(r.size).of(&r.parts, memo.entry(r.size).or_default());
            let row = model.row(&r.parts, r.size, analytic);
            model.reading_of(&r.parts, &row[..model.width()], analytic, r.busbw_gb_per_s)
        })
        .collect()
}

/// Sets the correction to the median offset from the bound with its robust deviation. Without readings the offset is 0
/// and its deviation is wide.
fn fit_offset(model: &mut Model, readings: &[CalibrationReading]) {
    let y: Vec<f64> = points(model, readings).iter().map(|p| p.point.y).collect();
    if y.is_empty() {
        return;
    }
    let ln_factor = stats::upper_median(&y);
    let off: Vec<f64> = y.iter().map(|v| (v - ln_factor).abs()).collect();
    let sd = (stats::MAD_TO_SD * stats::upper_median(&off)).max(0.01);
    model.correction = Correction::Offset { ln_factor, sd };
}

/// Fits the Gaussian processes. Without readings the bound is not corrected and its deviation is wide.
fn fit_processes(model: &mut Model, readings: &[CalibrationReading], stop: Stop<'_>) -> Result<(), FitError> {
    let points = points(model, readings);
    if points.is_empty() {
        return Ok(());
    }
    let fitted = Committee::fit(&points, stop);
    stopped(stop)?;
    let committee = fitted.ok_or(FitError::Degenerate(points.len()))?;
    model.correction = Correction::Gp(Box::new(committee));
    Ok(())
}

/// The NCCL release to assume.
fn nccl_of(
    model: &Model,
    measurements: &[Measurement],
    readings: &[CalibrationReading],
    unfitted: bool,
) -> NcclNetwork {
    let named = measurements.iter().filter_map(|m| m.nccl_version.as_deref());
    NcclNetwork::of(named, readings, model.bounds(Bytes(1)), unfitted)
}

/// Relative standard deviation of a single-host prediction: the robust spread between hosts of a type on the same
/// subset.
fn intra_deviation(cluster: &Cluster, readings: &[HostReadings], measured_share: f64) -> f64 {
    if measured_share == 0.0 {
        return 0.15; // nothing measured: the analytic value only
    }
    let mut ratios = Vec::new();
    for t in 0..cluster.types.len() {
        let measured = |h: &usize| cluster.hosts[*h].host_type == t && !readings[*h].is_empty();
        let of_type: Vec<&HostReadings> = (0..readings.len()).filter(measured).map(|h| &readings[h]).collect();
        for (i, r) in of_type.iter().enumerate() {
            for s in of_type.iter().skip(i + 1).take(COMPARED_MAX) {
                ratios.extend(r.iter().filter_map(|(m, v)| s.get(m).map(|w| (v[0] / w[0]).ln().abs())));
            }
        }
    }
    if ratios.is_empty() {
        return 0.01;
    }
    // The standard deviation of the difference of two readings is sqrt(2) times that of one reading.
    (stats::MAD_TO_SD * stats::upper_median(&ratios) / std::f64::consts::SQRT_2).max(0.003)
}

fn repeat_noise(multi: &BTreeMap<(Bytes, Allocation), Repeated>) -> f64 {
    let logs = |r: &Repeated| r.at_and_value.iter().map(|v| v.1.ln()).collect::<Vec<_>>();
    let repeated = multi.values().filter(|r| r.at_and_value.len() >= 2);
    let spreads: Vec<f64> = repeated.map(|r| stats::standard_deviation(&logs(r))).collect();
    if spreads.len() < 3 {
        return REPEAT_NOISE_DEFAULT;
    }
    stats::upper_median(&spreads).clamp(0.001, 0.2)
}
