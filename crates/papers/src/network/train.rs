//! Training: AdamW, cosine schedule, early stopping.

use super::layers::{Dropout, huber};
use super::token_network::{Tape, TokenNetwork, TokenSets};
use predict::Stop;
use predict::accuracy::shuffle;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

/// Settings of a training. The defaults are BandPilot's published settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Training {
    /// Maximum number of passes over the data.
    pub epochs: usize,
    /// Number of passes without improvement after which training stops.
    pub patience: usize,
    /// Number of samples per step.
    pub batch: usize,
    /// Largest step size; a cosine schedule reduces it to [`RATE_MIN`] at the last epoch.
    pub rate: f64,
    /// Decoupled weight decay.
    pub decay: f64,
    /// Share of the samples that is held out for early stopping and the deviation (published code: a tenth).
    pub validation: f64,
    /// True if targets and intra bandwidths are logarithms.
    pub logarithm: bool,
}

impl Training {
    /// BandPilot's published settings.
    pub const PUBLISHED: Training =
        Training { epochs: 300, patience: 80, batch: 100, rate: 1e-3, decay: 1e-5, validation: 0.1, logarithm: true };

    /// The step size of an epoch: half a cosine from [`Training::rate`] to [`RATE_MIN`].
    fn rate_at(&self, epoch: usize) -> f64 {
        let along = epoch as f64 / self.epochs as f64;
        RATE_MIN + 0.5 * (self.rate - RATE_MIN) * (1.0 + (std::f64::consts::PI * along).cos())
    }
}

impl Default for Training {
    fn default() -> Self {
        Training::PUBLISHED
    }
}

/// Step size at the end of the cosine (published code).
pub const RATE_MIN: f64 = 1e-6;
/// Maximum length of a gradient; longer ones are shortened to it (published code).
const GRADIENT_LENGTH_MAX: f64 = 1.0;

/// Samples: sets with the scaled value of each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples {
    /// The sets, one per sample.
    pub sets: Vec<TokenSets<f32>>,
    /// Scaled targets.
    pub targets: Vec<f32>,
}

impl Samples {
    /// Number of samples.
    pub fn len(&self) -> usize {
        self.sets.len()
    }
    /// True if there are no samples.
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }
    /// Some of the samples as one batch.
    pub fn batch(&self, which: &[usize], sets: &mut TokenSets<f32>, targets: &mut Vec<f32>) {
        sets.clear();
        targets.clear();
        for &i in which {
            let s = &self.sets[i];
            sets.tokens.extend_from_slice(&s.tokens);
            sets.positions.extend_from_slice(&s.positions);
            sets.ends.push(sets.positions.len() as u32);
            sets.totals.extend_from_slice(&s.totals);
            targets.push(self.targets[i]);
        }
    }
}

/// AdamW.
pub struct Adam {
    m: Vec<f32>,
    v: Vec<f32>,
    steps: i32,
}

impl Adam {
    /// The initial state for `parameters` parameters.
    pub fn new(parameters: usize) -> Self {
        Adam { m: vec![0.0; parameters], v: vec![0.0; parameters], steps: 0 }
    }
    /// One step down the gradient.
    pub fn step(&mut self, parameters: &mut [f32], gradient: &[f32], rate: f64, decay: f64) {
        const B1: f32 = 0.9;
        const B2: f32 = 0.999;
        self.steps += 1;
        let c1 = 1.0 - B1.powi(self.steps);
        let c2 = 1.0 - B2.powi(self.steps);
        let (rate, shrink) = (rate as f32, 1.0 - (rate * decay) as f32);
        for (((p, g), m), v) in parameters.iter_mut().zip(gradient).zip(&mut self.m).zip(&mut self.v) {
            *m = B1 * *m + (1.0 - B1) * g;
            *v = B2 * *v + (1.0 - B2) * g * g;
            *p = *p * shrink - rate * (*m / c1) / ((*v / c2).sqrt() + 1e-8);
        }
    }
}

/// Elastic weight consolidation: a penalty on changes of parameters, weighted by the importance of each.
#[derive(Clone, Debug, PartialEq)]
pub struct Anchor {
    /// The earlier values of the parameters.
    pub parameters: Vec<f32>,
    /// The importance of each parameter: the diagonal of the Fisher information.
    pub fisher: Vec<f32>,
    /// Weight of the penalty `lambda Σ fisher (p - anchor)²`.
    pub lambda: f64,
}

impl Anchor {
    /// Adds the gradient of the penalty.
    fn add_gradient(&self, parameters: &[f32], gradient: &mut [f32]) {
        let twice = 2.0 * self.lambda as f32;
        for (((g, p), f), o) in gradient.iter_mut().zip(parameters).zip(&self.fisher).zip(&self.parameters) {
            *g += twice * f * (p - o);
        }
    }
}

/// The course of a training run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainingProgress {
    /// Number of epochs run.
    pub epochs: usize,
    /// Epoch (from 0) whose parameters were kept.
    pub best_epoch: usize,
    /// Loss after every epoch on the validation samples, or on the training samples if there are no validation samples.
    pub losses: Vec<f64>,
}

/// Huber loss of a network on samples, without dropout.
pub fn loss(network: &TokenNetwork<f32>, samples: &Samples, tape: &mut Tape<f32>) -> f64 {
    let all: Vec<usize> = (0..samples.len()).collect();
    let (mut sets, mut targets, mut d) = (TokenSets::default(), Vec::new(), Vec::new());
    samples.batch(&all, &mut sets, &mut targets);
    network.forward(&sets, None, false, tape);
    huber(&tape.out, &targets, &mut d)
}

/// Trains `network` in place and keeps the parameters of the epoch with the lowest loss on `validation`.
///
/// Deterministic: the same arguments give the same parameters. Ends before the next batch when `stop` says so.
pub fn train(
    network: &mut TokenNetwork<f32>,
    samples: &Samples,
    validation: &Samples,
    settings: &Training,
    anchor: Option<&Anchor>,
    seed: u64,
    stop: Stop<'_>,
) -> TrainingProgress {
    let mut progress = TrainingProgress::default();
    if samples.is_empty() {
        return progress;
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let judge = if validation.is_empty() { samples } else { validation };
    let mut order: Vec<usize> = (0..samples.len()).collect();
    let mut adam = Adam::new(network.parameters.len());
    let mut gradient = vec![0.0f32; network.parameters.len()];
    let (mut tape, mut judging) = (Tape::default(), Tape::default());
    let (mut sets, mut targets, mut d) = (TokenSets::default(), Vec::new(), Vec::new());
    let mut best = (f64::INFINITY, network.parameters.clone());
    for epoch in 0..settings.epochs {
        let rate = settings.rate_at(epoch);
        shuffle(&mut order, &mut rng);
        for batch in order.chunks(settings.batch.max(1)) {
            if stop.is_set() {
                return progress;
            }
            samples.batch(batch, &mut sets, &mut targets);
            let dropout = (network.shape.dropout > 0.0).then(|| Dropout::new(network.shape.dropout, &mut rng));
            network.forward(&sets, dropout, true, &mut tape);
            huber(&tape.out, &targets, &mut d);
            gradient.fill(0.0);
            network.backward(&sets, &mut tape, &d, &mut gradient);
            if let Some(a) = anchor {
                a.add_gradient(&network.parameters, &mut gradient);
            }
            if !limit_length(&mut gradient) {
                continue; // an extreme reading must not destroy the network
            }
            adam.step(&mut network.parameters, &gradient, rate, settings.decay);
        }
        let mut l = loss(network, judge, &mut judging);
        if let Some(a) = anchor {
            l += penalty(a, &network.parameters);
        }
        progress.losses.push(l);
        progress.epochs = epoch + 1;
        if l < best.0 {
            best = (l, network.parameters.clone());
            progress.best_epoch = epoch;
        } else if epoch - progress.best_epoch >= settings.patience {
            break;
        }
    }
    network.parameters = best.1;
    progress
}

/// Shortens a gradient to [`GRADIENT_LENGTH_MAX`]. False if it is not finite.
fn limit_length(gradient: &mut [f32]) -> bool {
    let length = gradient.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
    if length > GRADIENT_LENGTH_MAX && length.is_finite() {
        let by = (GRADIENT_LENGTH_MAX / length) as f32;
        gradient.iter_mut().for_each(|g| *g *= by);
    }
    length.is_finite()
}

/// The penalty of an anchor.
pub fn penalty(a: &Anchor, parameters: &[f32]) -> f64 {
    let sum: f64 = parameters
        .iter()
        .zip(&a.parameters)
        .zip(&a.fisher)
        .map(|((p, o), f)| f64::from(*f) * f64::from(p - o).powi(2))
        .sum();
    a.lambda * sum
}

/// Diagonal of the Fisher information per reading, for readings that scatter around the scaled prediction with this
/// variance: the mean over samples of the squared derivative of the prediction, divided by the variance. To first order
/// and without cross terms, the penalty of an [`Anchor`] is then the mean squared change of the network's predictions
/// of those samples, in units of their noise.
pub fn fisher(network: &TokenNetwork<f32>, samples: &Samples, variance: f64) -> Vec<f32> {
    let n = network.parameters.len();
    let (mut sum, mut gradient, mut tape) = (vec![0.0f32; n], vec![0.0f32; n], Tape::default());
    for set in &samples.sets {
        network.forward(set, None, true, &mut tape);
        gradient.fill(0.0);
        network.backward(set, &mut tape, &[1.0], &mut gradient);
        for (s, g) in sum.iter_mut().zip(&gradient) {
            *s += g * g;
        }
    }
    let by = (1.0 / (samples.len().max(1) as f64 * variance)) as f32;
    sum.iter_mut().for_each(|s| *s *= by);
    sum
}
