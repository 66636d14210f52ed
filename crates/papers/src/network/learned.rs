//! Learned predictions across hosts: one network (or linear function) per message size, and the memory of continual
//! learning.

use super::linear::FittedLine;
use super::token_network::{Tape, TokenNetwork, TokenSets};
use super::tokens::{Flavour, Scale, Tokenizer};
use super::train::{Anchor, Samples, Training, TrainingProgress, fisher, train};
use predict::accuracy::shuffle;
use predict::{Candidates, HostShare, HostShareTable, LearnerData, SizeTables, Stop};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use topology::{Allocation, Bytes, Cluster};

/// Minimum number of multi-host readings of a size from which a predictor learns.
pub const READINGS_MIN: usize = 8;
/// Maximum number of sizes with their own network; the sizes with the most readings come first.
pub const SIZES_MAX: usize = 16;
/// Maximum number of readings in a replay buffer.
pub const REPLAY_MAX: usize = 256;
/// Weight of elastic weight consolidation (published).
pub const LAMBDA: f64 = 2.0;
/// Number of sets in one pass through a network; limits its memory.
const CHUNK: usize = 128;
/// Minimum variance of scaled residuals in the Fisher information: a hundredth of the targets' deviation.
const NOISE_MIN: f64 = 1e-4;
/// Minimum relative deviation of a prediction.
const SD_MIN: f64 = 0.003;
/// Bounds of a prediction, GB/s; outputs of a network are clamped to them.
const BUSBW_MIN_GB_PER_S: f64 = 1e-3;
const BUSBW_MAX_GB_PER_S: f64 = 1e6;

/// Kinds of learned predictors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LearningTarget {
    /// A network.
    Network(Flavour),
    /// LinearBW.
    Line,
}

impl LearningTarget {
    /// `transformer`, `transformer-litegd`, `transformer-naive` or `linear`.
    pub fn name(self) -> &'static str {
        match self {
            LearningTarget::Network(Flavour::Transformer) => "transformer",
            LearningTarget::Network(Flavour::Litegd) => "transformer-litegd",
            LearningTarget::Network(Flavour::Naive) => "transformer-naive",
            LearningTarget::Line => "linear",
        }
    }
}

/// The function behind a predictor.
#[derive(Clone, Debug, PartialEq)]
pub enum Regressor {
    /// A network with the encoder of its allocations.
    Network {
        /// The network that predicts from tokens.
        network: Box<TokenNetwork<f32>>,
        /// The encoder from allocations to tokens.
        reader: Tokenizer,
    },
    /// LinearBW.
    Line(FittedLine),
}

/// The memory of continual learning.
#[derive(Clone, Debug, PartialEq)]
pub enum RehearsalMemory {
    /// None: LinearBW is fitted again from all of its data.
    None,
    /// Importance of each parameter (elastic weight consolidation).
    Fisher(Vec<f32>),
    /// A uniform random selection of the readings.
    Replay(Vec<(Allocation, f64)>),
}

/// The predictor of one size.
#[derive(Clone, Debug, PartialEq)]
pub struct SizePredictor {
    /// Message size.
    pub size: Bytes,
    /// The function that predicts the scaled bandwidth.
    pub regressor: Regressor,
    /// Scale of the bandwidth, or of its logarithm.
    pub target: Scale,
    /// Relative deviation of readings from predictions on the validation part (on all readings if that part is too
    /// small).
    pub sd: f64,
    /// Number of readings from which it learned.
    pub seen: usize,
    /// Memory of the data so far.
    pub memory: RehearsalMemory,
}

/// Predictors by size.
#[derive(Clone, Debug, PartialEq)]
pub struct LearnedNetwork {
    /// Kind of all predictors.
    pub what: LearningTarget,
    /// The predictors in ascending order of size; at least one.
    pub by_size: Vec<SizePredictor>,
}

/// Protection of earlier knowledge in [`LearnedNetwork::learn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The method of the network's paper: elastic weight consolidation or replay.
    Published,
    /// None: plain fine-tuning, for comparison.
    None,
}

/// Settings of continual learning: a smaller step size and fewer epochs than the first training. The papers give no
/// settings.
pub const CONTINUAL: Training =
    Training { epochs: 80, patience: 30, batch: 32, rate: 5e-4, decay: 1e-5, validation: 0.2, logarithm: true };

/// By host type: the best bandwidth inside a host. It replaces the table's value for a single GPU, which needs no link
/// inside the host.
fn alone(cluster: &Cluster, tables: &SizeTables) -> Vec<f64> {
    let best = |t: usize| {
        let by_count = tables.intra.best_by_count(cluster, t);
        by_count.into_iter().filter(|v| v.is_finite()).fold(0.0, f64::max)
    };
    let mut v: Vec<f64> = (0..cluster.types.len()).map(best).collect();
    let most = v.iter().copied().fold(0.0, f64::max);
    v.iter_mut().filter(|v| **v <= 0.0).for_each(|v| *v = if most > 0.0 { most } else { 1.0 });
    v
}

/// The parts of an allocation, if it spans several hosts of the table.
fn parts_of(table: &HostShareTable, a: &Allocation) -> Vec<HostShare> {
    a.parts().iter().map(|&(h, m)| table.part(h, m)).collect()
}

impl SizePredictor {
    /// Trains on multi-host readings of one size.
    fn fit(
        what: LearningTarget,
        cluster: &Cluster,
        tables: &SizeTables,
        readings: &[(Allocation, f64)],
        settings: &Training,
        seed: u64,
        stop: Stop<'_>,
    ) -> Option<(SizePredictor, TrainingProgress)> {
        let mut order: Vec<usize> = (0..readings.len()).collect();
        shuffle(&mut order, &mut ChaCha8Rng::seed_from_u64(seed));
        let held = validation_count(readings.len(), settings.validation);
        let parts: Vec<Vec<HostShare>> = order.iter().map(|i| parts_of(&tables.parts, &readings[*i].0)).collect();
        let values: Vec<f64> = order.iter().map(|i| readings[*i].1).collect();
        let alone = alone(cluster, tables);
        let target = Scale::of(values[held..].iter().map(|v| if settings.logarithm { v.ln() } else { *v }));
        let size = tables.size;
        let judged = if held > 0 { 0..held } else { 0..values.len() };
        let seen = values.len();
        let (mut fitted, progress) = match what {
            LearningTarget::Line => {
                let regressor = Regressor::Line(FittedLine::fit(&parts[held..], &values[held..], alone)?);
                (
                    SizePredictor { size, regressor, target, sd: 1.0, seen, memory: RehearsalMemory::None },
                    TrainingProgress::default(),
                )
            }
            LearningTarget::Network(flavour) => {
                let bits = cluster.types.iter().map(|t| t.gpu_count()).max().unwrap_or(1);
                let reader = Tokenizer::new(flavour, bits, settings.logarithm, alone, &parts[held..]);
                let samples = samples(&reader, &target, &parts, &values);
                let (validation, training) = split(samples, held);
                let mut network = Box::new(TokenNetwork::new(flavour.shape(bits), seed.wrapping_add(1)));
                let seed = seed.wrapping_add(2);
                let progress = train(&mut network, &training, &validation, settings, None, seed, stop);
                if stop.is_set() {
                    return None;
                }
                let memory = match flavour {
                    Flavour::Litegd => {
                        let kept = order.iter().take(REPLAY_MAX).map(|i| readings[*i].clone());
                        RehearsalMemory::Replay(kept.collect())
                    }
                    Flavour::Transformer | Flavour::Naive => {
                        let judged = if validation.is_empty() { &training } else { &validation };
                        RehearsalMemory::Fisher(fisher(&network, &training, noise(&network, judged)))
                    }
                };
                let regressor = Regressor::Network { network, reader };
                (SizePredictor { size, regressor, target, sd: 1.0, seen, memory }, progress)
            }
        };
        fitted.sd = fitted.deviation(&parts[judged.clone()], &values[judged]);
        Some((fitted, progress))
    }

    /// Root mean square of `ln(reading / prediction)`.
    fn deviation(&self, parts: &[Vec<HostShare>], values: &[f64]) -> f64 {
        let mut candidates = Candidates::new();
        parts.iter().for_each(|p| candidates.push(p));
        let mut means = Vec::new();
        self.means(&candidates, &mut means);
        let sum: f64 = means.iter().zip(values).map(|(m, v)| (v / m).ln().powi(2)).sum();
        (sum / values.len().max(1) as f64).sqrt().clamp(SD_MIN, 1.0)
    }

    /// Appends the predictions of all candidates. Those on one host are 0; the caller replaces them.
    fn means(&self, candidates: &Candidates, out: &mut Vec<f64>) {
        let spans = |p: &[HostShare]| p.len() > 1;
        match &self.regressor {
            Regressor::Line(line) => {
                out.extend(candidates.iter().map(|p| if spans(p) { line.busbw_gb_per_s(p) } else { 0.0 }));
            }
            Regressor::Network { network, reader } => {
                let (mut sets, mut tape) = (TokenSets::default(), Tape::default());
                let mut at: Vec<usize> = Vec::with_capacity(CHUNK);
                let start = out.len();
                out.resize(start + candidates.len(), 0.0);
                let mut flush = |sets: &mut TokenSets<f32>, at: &mut Vec<usize>, out: &mut [f64]| {
                    network.forward(sets, None, false, &mut tape);
                    for (i, v) in at.drain(..).zip(&tape.out) {
                        out[i] = self.back(f64::from(*v), reader.logarithm);
                    }
                    sets.clear();
                };
                for (i, p) in candidates.iter().enumerate().filter(|c| spans(c.1)) {
                    reader.push(p, &mut sets);
                    at.push(start + i);
                    if at.len() == CHUNK {
                        flush(&mut sets, &mut at, out);
                    }
                }
                if !at.is_empty() {
                    flush(&mut sets, &mut at, out);
                }
            }
        }
    }

    /// Converts the scaled output to GB/s.
    fn back(&self, scaled: f64, logarithm: bool) -> f64 {
        let v = self.target.up(if scaled.is_finite() { scaled } else { 0.0 });
        let v = if logarithm { v.min(20.0).exp() } else { v };
        v.clamp(BUSBW_MIN_GB_PER_S, BUSBW_MAX_GB_PER_S)
    }

    /// Trains further on new readings; see [`LearnedNetwork::learn`].
    fn learn(
        &mut self,
        table: &HostShareTable,
        new: &[(Allocation, f64)],
        guard: Guard,
        settings: &Training,
        seed: u64,
    ) -> Option<TrainingProgress> {
        let Regressor::Network { network, reader } = &mut self.regressor else { return None };
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut order: Vec<usize> = (0..new.len()).collect();
        shuffle(&mut order, &mut rng);
        let held = validation_count(new.len(), settings.validation);
        let (held_rows, rest) = order.split_at(held);
        let read = |rows: &mut dyn Iterator<Item = &(Allocation, f64)>| {
            let (parts, values): (Vec<_>, Vec<_>) = rows.map(|(a, v)| (parts_of(table, a), *v)).unzip();
            samples(reader, &self.target, &parts, &values)
        };
        let replayed: &[(Allocation, f64)] = match &self.memory {
            RehearsalMemory::Replay(r) if guard == Guard::Published => r,
            _ => &[],
        };
        // New and old readings have equal weight in training and validation. Otherwise many old readings in a buffer
        // would outweigh a few that report a change.
        let old_held = held.min(replayed.len() / 2);
        let times = ((replayed.len() - old_held) / rest.len().max(1)).max(1);
        let repeated = rest.iter().cycle().take(rest.len() * times).map(|i| &new[*i]);
        let training = read(&mut repeated.chain(&replayed[old_held..]));
        let validation = read(&mut held_rows.iter().map(|i| &new[*i]).chain(&replayed[..old_held]));
        let anchor = match &self.memory {
            RehearsalMemory::Fisher(f) if guard == Guard::Published => {
                Some(Anchor { parameters: network.parameters.clone(), fisher: f.clone(), lambda: LAMBDA })
            }
            _ => None,
        };
        let progress =
            train(network, &training, &validation, settings, anchor.as_ref(), seed.wrapping_add(1), Stop::default());
        match &mut self.memory {
            RehearsalMemory::Fisher(old) => {
                let judged = if validation.is_empty() { &training } else { &validation };
                average_fisher(old, fisher(network, &training, noise(network, judged)), self.seen, new.len());
            }
            RehearsalMemory::Replay(kept) => keep_evenly(kept, new, self.seen, &mut rng),
            RehearsalMemory::None => {}
        }
        self.seen += new.len();
        Some(progress)
    }
}

/// Averages the Fisher information of the `seen` and the `new` readings, weighted by their numbers.
fn average_fisher(old: &mut [f32], new_fisher: Vec<f32>, seen: usize, new: usize) {
    let (before, now) = (seen as f32, new as f32);
    for (o, n) in old.iter_mut().zip(new_fisher) {
        *o = (*o * before + n * now) / (before + now);
    }
}

/// Reservoir sampling: all readings, the `seen` ones and the new ones, are in the buffer with the same probability.
fn keep_evenly(kept: &mut Vec<(Allocation, f64)>, new: &[(Allocation, f64)], seen: usize, rng: &mut ChaCha8Rng) {
    for (i, row) in new.iter().enumerate() {
        if kept.len() < REPLAY_MAX {
            kept.push(row.clone());
        } else {
            let draw = rng.next_u64() as usize % (seen + i + 1);
            if let Some(slot) = kept.get_mut(draw) {
                *slot = row.clone();
            }
        }
    }
}

/// Variance of a network's residuals on samples, on the scale of its outputs.
fn noise(network: &TokenNetwork<f32>, samples: &Samples) -> f64 {
    let mut tape = Tape::default();
    let sum: f64 = (samples.sets.iter().zip(&samples.targets))
        .map(|(set, target)| {
            network.forward(set, None, false, &mut tape);
            f64::from(tape.out[0] - target).powi(2)
        })
        .sum();
    (sum / samples.len().max(1) as f64).max(NOISE_MIN)
}

/// Number of readings held out of `n`; 0 if `n` is too small.
fn validation_count(n: usize, share: f64) -> usize {
    if n < 10 { 0 } else { ((n as f64 * share).round() as usize).clamp(2, n / 2) }
}

fn samples(reader: &Tokenizer, target: &Scale, parts: &[Vec<HostShare>], values: &[f64]) -> Samples {
    let mut s = Samples::default();
    for (p, v) in parts.iter().zip(values) {
        let mut set = TokenSets::default();
        reader.push(p, &mut set);
        s.sets.push(set);
        s.targets.push(target.down(if reader.logarithm { v.ln() } else { *v }) as f32);
    }
    s
}

fn split(mut s: Samples, held: usize) -> (Samples, Samples) {
    let rest = Samples { sets: s.sets.split_off(held), targets: s.targets.split_off(held) };
    (s, rest)
}

impl LearnedNetwork {
    /// Trains on multi-host readings by size. None if no size has [`READINGS_MIN`] readings.
    pub fn fit(
        what: LearningTarget,
        data: LearnerData,
        settings: &Training,
        seed: u64,
    ) -> Option<(LearnedNetwork, Vec<TrainingProgress>)> {
        let mut enough: Vec<_> = data.readings.iter().filter(|r| r.1.len() >= READINGS_MIN).collect();
        enough.sort_by_key(|r| std::cmp::Reverse(r.1.len()));
        enough.truncate(SIZES_MAX);
        enough.sort_by_key(|r| r.0);
        let mut by_size = Vec::new();
        let mut runs = Vec::new();
        for (size, rows) in enough {
            let tables = data.tables.iter().find(|t| t.size == *size)?;
            let (fitted, progress) = SizePredictor::fit(what, data.cluster, tables, rows, settings, seed, data.stop)?;
            by_size.push(fitted);
            runs.push(progress);
        }
        (!by_size.is_empty()).then_some((LearnedNetwork { what, by_size }, runs))
    }

    fn nearest(&self, size: Bytes) -> usize {
        let ln = size.as_f64().max(1.0).ln();
        let off = |s: &SizePredictor| (s.size.as_f64().max(1.0).ln() - ln).abs();
        (0..self.by_size.len()).min_by(|a, b| off(&self.by_size[*a]).total_cmp(&off(&self.by_size[*b]))).unwrap_or(0)
    }

    /// Predictions of all candidates by the predictor of the nearest size, in one batch; 0 for those on one host. `out`
    /// is overwritten.
    pub fn means(&self, size: Bytes, candidates: &Candidates, out: &mut Vec<f64>) {
        out.clear();
        self.by_size[self.nearest(size)].means(candidates, out);
    }

    /// Relative deviation of a multi-host prediction.
    pub fn deviation(&self, size: Bytes) -> f64 {
        self.by_size[self.nearest(size)].sd
    }

    /// Learns new multi-host readings of a size without forgetting the old ones, by the method of each paper: the
    /// Transformer by elastic weight consolidation, LiteGD's by replay. Cost: a training of [`CONTINUAL`] on `new` (and
    /// the replay buffer). Returns `None` and learns nothing for LinearBW, for an empty `new`, or if a reading is of an
    /// allocation on one host or is not a positive number.
    pub fn learn(
        &mut self,
        table: &HostShareTable,
        size: Bytes,
        new: &[(Allocation, f64)],
        guard: Guard,
        settings: &Training,
        seed: u64,
    ) -> Option<TrainingProgress> {
        let fine = |(a, v): &(Allocation, f64)| a.host_count() > 1 && v.is_finite() && *v > 0.0;
        if new.is_empty() || !new.iter().all(fine) {
            return None;
        }
        let at = self.nearest(size);
        self.by_size[at].learn(table, new, guard, settings, seed)
    }

    /// Number of parameters of one predictor.
    pub fn parameter_count(&self) -> usize {
        match &self.by_size[0].regressor {
            Regressor::Network { network, .. } => network.parameters.len(),
            Regressor::Line(line) => line.weights.len() + 1,
        }
    }

    /// Memory of the parameters of all predictors, bytes.
    pub fn parameter_bytes(&self) -> usize {
        let each = |s: &SizePredictor| match &s.regressor {
            Regressor::Network { network, .. } => size_of_val(&network.parameters[..]),
            Regressor::Line(line) => size_of_val(&line.weights) + size_of::<f64>(),
        };
        self.by_size.iter().map(each).sum()
    }
}
