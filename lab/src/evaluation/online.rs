//! The gain of learning from each placed job.

use super::guides::sample;
use super::replay::Settings;
use super::requests::scenarios;
use super::sampling::readings;
use measure::design::DesignKind;
use place::Request;
use predict::{FitOptions, Kind, Model, fit};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use store::Measurement;
use truths::{Irregularity, Truth};

/// GBE in the order in which the jobs came.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Online {
    /// GBE with a model that learned from every earlier job.
    pub learning_pct: Vec<f64>,
    /// GBE with the same model without updates.
    pub frozen_pct: Vec<f64>,
    /// Total seconds of all updates.
    pub update_s: f64,
    pub updates: usize,
    /// Requests left out because a candidate has no row.
    pub left_out: usize,
}

/// Places the requests of a replay in random order. Each job's bandwidth is measured and learned.
pub fn run(truth: &dyn Truth, samples: usize, settings: &Settings, seed: u64) -> Result<Online, String> {
    let cluster = truth.cluster();
    let constants = settings.constants();
    let intra = readings(truth, seed, |r| r.intra());
    let multi = sample(truth, samples, DesignKind::Stratified, &constants, seed, &intra);
    let rows: Vec<Measurement> = intra.iter().chain(&multi).cloned().collect();
    let options = FitOptions::of(Kind::Gp).collective(truth.collective()).constants(constants);
    let frozen: Model = fit(cluster, &rows, &options).map_err(|e| e.to_string())?.0;
    let mut learning = frozen.clone();
    let mut requests = scenarios(cluster, settings.per_k, seed);
    shuffle(&mut requests, seed);
    let mut out = Online::default();
    for (i, s) in requests.into_iter().enumerate() {
        let optimum = truth.optimum(&s.free, s.k, Irregularity::With);
        let (Some(best), false) = (optimum.best.filter(|b| *b > 0.0), optimum.missing) else {
            out.left_out += 1;
            continue;
        };
        // Judged by bandwidth only.
        let request = Request { slack: place::Slack::NONE, ..Request::new(s.k, s.free, truth.size()) };
        let choose = |m: &Model| place::answer(cluster, m, &request).map(|a| a.choice.allocation);
        let of_frozen = choose(&frozen).map_err(|e| e.to_string())?;
        let of_learning = choose(&learning).map_err(|e| e.to_string())?;
        out.frozen_pct.push(100.0 * truth.busbw_gb_per_s(&of_frozen).unwrap_or(0.0) / best);
        out.learning_pct.push(100.0 * truth.busbw_gb_per_s(&of_learning).unwrap_or(0.0) / best);
        if let Some(got) = truth.measured(&of_learning, seed ^ (i as u64 + 1) << 20) {
            let start = std::time::Instant::now();
            out.updates += usize::from(learning.update(&of_learning, truth.size(), got));
            out.update_s += start.elapsed().as_secs_f64();
        }
    }
    Ok(out)
}

fn shuffle<T>(list: &mut [T], seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x0051_0441);
    for i in (1..list.len()).rev() {
        list.swap(i, place::baselines::below(&mut rng, i + 1));
    }
}
