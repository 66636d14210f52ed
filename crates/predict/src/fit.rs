//! From measurements to a [`Model`].

use crate::bound::Memo;
use crate::committee::Committee;
use crate::intra::{HostReadings, IntraTables};
use crate::model::{Correction, Model, SizeTables, reading_of};
use crate::nccl::Network;
use crate::net::{Flavour, Learned, Progress, Training, What};
use crate::parts::PartTable;
use crate::tune::{Reading, tune};
use std::collections::{BTreeMap, BTreeSet};
use store::{Measurement, Quality};
use topology::{Allocation, Bytes, Cluster, Collective, GpuMask};

/// Which correction to learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One offset.
    Bound,
    /// A Gaussian process.
    Gp,
    /// BandPilot's Transformer.
    Transformer,
    /// LiteGD's Transformer.
    TransformerLitegd,
    /// The ablation: raw GPU ids.
    TransformerNaive,
    /// LinearBW: a line on ten features.
    Linear,
    /// NCCL's own decisions, nothing learned: needs no measurements.
    Nccl,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 7] = [
        Kind::Bound,
        Kind::Gp,
        Kind::Transformer,
        Kind::TransformerLitegd,
        Kind::TransformerNaive,
        Kind::Linear,
        Kind::Nccl,
    ];

    /// As users call it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Bound => "bound",
            Kind::Gp => "gp",
            Kind::Transformer => "transformer",
            Kind::TransformerLitegd => "transformer-litegd",
            Kind::TransformerNaive => "transformer-naive",
            Kind::Linear => "linear",
            Kind::Nccl => "nccl",
        }
    }

    /// The kind of a name.
    pub fn by_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|k| k.name() == name)
    }
}

/// Relative deviation of repeated measurements where none were repeated: nccl-tests on an idle cluster repeats within 1 %.
pub const REPEAT_NOISE_DEFAULT: f64 = 0.01;

/// Hosts that every host is compared with to see how much hosts of a type differ.
const COMPARED_MAX: usize = 12;

/// Why nothing could be fitted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FitError {
    /// Nothing to learn from.
    #[error("no usable measurement of {collective} in the store; take some with `linkwise measure`")]
    Empty {
        /// The collective asked for.
        collective: Collective,
    },
    /// Several collectives and none was named.
    #[error("the store holds {0}; name one with --collective")]
    SeveralCollectives(String),
    /// The process could not be conditioned on the data.
    #[error("the Gaussian process could not be fitted to {0} readings; is one of them absurd?")]
    Degenerate(usize),
    /// Networks and lines do not fall back on physics.
    #[error(
        "a {kind} model needs at least {needed} readings of several hosts at one size, {found} are there; \
         take more with `linkwise measure`, or use --model gp, which needs none"
    )]
    TooFew {
        /// The kind.
        kind: &'static str,
        /// Readings of the size with the most.
        found: usize,
        /// Fewest.
        needed: usize,
    },
}

/// What went into a fit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Readings of single hosts.
    pub intra_readings: usize,
    /// Distinct multi-host readings (repetitions are merged).
    pub multi_host_readings: usize,
    /// Readings left out: rejected, or of another collective.
    pub left_out: usize,
    /// Multi-host readings that the process distrusts.
    pub distrusted: usize,
    /// Masks of single hosts whose reading lies outside their class.
    pub intra_suspects: usize,
    /// How the networks were trained, by size; empty for other kinds.
    pub training: Vec<Progress>,
}

/// Fits a model over the physics of `constants`, which also stand in for subsets of a host that nobody measured.
///
/// Pure: the same measurements in the same order give the same model. Cost: dominated by the process, see [`crate::gp`]. For kinds that
/// draw numbers at random this is [`fit_any`] with seed 0.
pub fn fit(
    cluster: &Cluster,
    measurements: &[Measurement],
    collective: Option<Collective>,
    kind: Kind,
    constants: fabric::Constants,
) -> Result<(Model, Report), FitError> {
    fit_any(cluster, measurements, collective, kind, constants, 0)
}

/// The same with a seed for what a network draws at random: initial values, batches, dropout, and which readings validate. Networks take
/// seconds (about 10 for 250 readings of a Transformer); see [`crate::net`].
pub fn fit_any(
    cluster: &Cluster,
    measurements: &[Measurement],
    collective: Option<Collective>,
    kind: Kind,
    constants: fabric::Constants,
    seed: u64,
) -> Result<(Model, Report), FitError> {
    fit_with(cluster, measurements, collective, kind, constants, &Training::default(), seed)
}

/// The same with settings of the training of networks.
pub fn fit_with(
    cluster: &Cluster,
    measurements: &[Measurement],
    collective: Option<Collective>,
    kind: Kind,
    constants: fabric::Constants,
    training: &Training,
    seed: u64,
) -> Result<(Model, Report), FitError> {
    let usable =
        |m: &&Measurement| m.quality != Quality::Rejected && m.busbw.gb_per_s() > 0.0 && m.busbw.gb_per_s().is_finite();
    let collective = match collective {
        Some(c) => c,
        None => {
            let all: BTreeSet<Collective> = measurements.iter().filter(usable).map(|m| m.collective).collect();
            match all.len() {
                0 if kind == Kind::Nccl => Collective::AllReduce,
                0 => return Err(FitError::Empty { collective: Collective::AllReduce }),
                1 => *all.first().unwrap_or(&Collective::AllReduce),
                _ => {
                    let names: Vec<&str> = all.iter().map(|c| c.name()).collect();
                    return Err(FitError::SeveralCollectives(names.join(", ")));
                }
            }
        }
    };
    let mut report = Report::default();
    let mut intra: BTreeMap<Bytes, Vec<HostReadings>> = BTreeMap::new();
    let mut multi: BTreeMap<(Bytes, Allocation), Vec<f64>> = BTreeMap::new();
    for m in measurements {
        if !usable(&m) || m.collective != collective || m.contention.is_some() || m.allocation.gpu_count() < 2 {
            report.left_out += 1;
            continue;
        }
        let v = m.busbw.gb_per_s();
        if m.allocation.host_count() == 1 {
            report.intra_readings += 1;
            let (h, mask) = m.allocation.parts()[0];
            intra.entry(m.size).or_insert_with(|| vec![HostReadings::new(); cluster.hosts.len()])[h.index()]
                .entry(mask)
                .or_default()
                .push(v);
        } else {
            multi.entry((m.size, m.allocation.clone())).or_default().push(v);
        }
    }
    let mut sizes: BTreeSet<Bytes> = intra.keys().copied().chain(multi.keys().map(|k| k.0)).collect();
    if sizes.is_empty() && kind == Kind::Nccl {
        sizes.extend(crate::nccl::COLD_SIZES);
    }
    if sizes.is_empty() {
        return Err(FitError::Empty { collective });
    }
    report.multi_host_readings = multi.len();
    let physics = fabric::Fabric::with_constants(cluster, constants.clone());
    let a_host_of =
        |t: usize| topology::HostId(cluster.hosts.iter().position(|h| h.host_type == t).unwrap_or(0) as u32);
    let analytic =
        |t: usize, m: GpuMask, size: Bytes| physics.intra_busbw(a_host_of(t), m, collective, size).gb_per_s();
    let none = vec![HostReadings::new(); cluster.hosts.len()];
    let tables: Vec<SizeTables> = sizes
        .iter()
        .map(|&size| {
            let readings = intra.get(&size).unwrap_or(&none);
            let tables = IntraTables::new(cluster, readings, &|t, m| analytic(t, m, size));
            let intra_sd = intra_deviation(cluster, readings, tables.measured_share());
            let parts = PartTable::new(cluster, &tables, &physics.tables());
            report.intra_suspects += cluster.host_ids().map(|h| tables.suspects(h).len()).sum::<usize>();
            SizeTables { size, intra: tables, parts, intra_sd }
        })
        .collect();
    let repeat_noise = repeat_noise(&multi);
    let mut model = Model {
        cluster: cluster.clone(),
        collective,
        tables,
        gpus_of_type: cluster.types.iter().map(|t| t.gpu_count() as u8).collect(),
        fabric: physics.tables(),
        correction: Correction::Offset { ln_factor: 0.0, sd: 0.3 },
        repeat_noise,
        nccl: None,
    };
    let what = match kind {
        Kind::Bound | Kind::Gp | Kind::Nccl => None,
        Kind::Transformer => Some(What::Network(Flavour::Transformer)),
        Kind::TransformerLitegd => Some(What::Network(Flavour::Litegd)),
        Kind::TransformerNaive => Some(What::Network(Flavour::Naive)),
        Kind::Linear => Some(What::Line),
    };
    if let Some(what) = what {
        let mut readings: Vec<(Bytes, Vec<(Allocation, f64)>)> = Vec::new();
        for ((size, allocation), values) in &multi {
            if readings.last().is_none_or(|r| r.0 != *size) {
                readings.push((*size, Vec::new()));
            }
            readings.last_mut().expect("one was pushed").1.push((allocation.clone(), stats::upper_median(values)));
        }
        let found = readings.iter().map(|r| r.1.len()).max().unwrap_or(0);
        let (learned, training) = Learned::fit(what, cluster, &model.tables, &readings, training, seed)
            .ok_or(FitError::TooFew { kind: kind.name(), found, needed: crate::net::learned::READINGS_MIN })?;
        model.correction = Correction::Learned(Box::new(learned));
        report.training = training;
        return Ok((model, report));
    }
    let readings: Vec<Reading> = multi
        .iter()
        .map(|((size, allocation), values)| {
            let table = &model.tables(*size).parts;
            Reading {
                parts: allocation.parts().iter().map(|&(h, m)| table.part(h, m)).collect(),
                size: *size,
                busbw_gb_per_s: stats::upper_median(values),
            }
        })
        .collect();
    if kind == Kind::Nccl {
        model.nccl = Some(nccl_of(&model, measurements, &readings, !constants.is_fitted()));
        model.correction = Correction::Offset { ln_factor: 0.0, sd: crate::nccl::COLD_SD };
        return Ok((model, report));
    }
    if kind == Kind::Gp {
        model.fabric = physics.retuned(tune(cluster, &physics, &constants, collective, &readings)).tables();
        let nccl = nccl_of(&model, measurements, &readings, !constants.is_fitted());
        if nccl.explains_more(&readings, model.bounds(Bytes(1))) {
            model.nccl = Some(nccl);
        }
    }
    let mut memo = BTreeMap::new();
    let points: Vec<crate::committee::Reading> = readings
        .iter()
        .map(|r| {
            let analytic = model.bounds(r.size).of(&r.parts, memo.entry(r.size).or_insert_with(Memo::default));
            let row = model.row(&r.parts, r.size, analytic);
            reading_of(&r.parts, &row[..model.width()], analytic, r.busbw_gb_per_s)
        })
        .collect();
    if points.is_empty() {
        return Ok((model, report)); // intra tables alone: the bound stands as it is, with a wide deviation
    }
    let count = points.len();
    match kind {
        Kind::Bound => {
            let y: Vec<f64> = points.iter().map(|p| p.point.y).collect();
            let ln_factor = stats::upper_median(&y);
            let off: Vec<f64> = y.iter().map(|v| (v - ln_factor).abs()).collect();
            let sd = (stats::MAD_TO_SD * stats::upper_median(&off)).max(0.01);
            model.correction = Correction::Offset { ln_factor, sd };
        }
        Kind::Gp => {
            let committee = Committee::fit(&points).ok_or(FitError::Degenerate(count))?;
            model.correction = Correction::Gp(Box::new(committee));
        }
        _ => unreachable!("learned above"),
    }
    if let Correction::Gp(gp) = &model.correction {
        report.distrusted = gp.distrusted();
    }
    Ok((model, report))
}

/// The NCCL release to assume.
fn nccl_of(model: &Model, measurements: &[Measurement], readings: &[Reading], unfitted: bool) -> Network {
    let named = measurements.iter().filter_map(|m| m.nccl_version.as_deref());
    Network::of(named, readings, model.bounds(Bytes(1)), unfitted)
}

/// Relative deviation of a single-host prediction: how much hosts of a type differ on the same subset, robustly.
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
    // The difference of two readings deviates sqrt(2) times as much as one.
    (stats::MAD_TO_SD * stats::upper_median(&ratios) / std::f64::consts::SQRT_2).max(0.003)
}

fn repeat_noise(multi: &BTreeMap<(Bytes, Allocation), Vec<f64>>) -> f64 {
    let logs = |v: &Vec<f64>| v.iter().map(|x| x.ln()).collect::<Vec<_>>();
    let repeated = multi.values().filter(|v| v.len() >= 2);
    let spreads: Vec<f64> = repeated.map(|v| stats::standard_deviation(&logs(v))).collect();
    if spreads.len() < 3 {
        return REPEAT_NOISE_DEFAULT;
    }
    stats::upper_median(&spreads).clamp(0.001, 0.2)
}
