//! Placement judged on truths that resemble sites ([`truths::site`]); simulated.
//!
//! One cell is a kind and a seed. The site is measured as `linkwise measure` does. Models are fitted and queried
//! through the engine, rules choose by switches and free GPUs, and a search with the truth finds the best possible
//! bandwidth.

use crate::backend::measure_site;
use crate::form::fit_form;
use crate::requests::{Ask, requests};
use crate::rules;
use engine::{Engine, EngineError, FitRequest, PlaceQuery};
use measure::DesignKind;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Instant;
use store::Store;
use topology::Allocation;
use truths::Truth;
use truths::site::{Site, draw, search};

/// Draws of the random choice per request.
const RANDOM_DRAWS: usize = 20;

/// The default methods, first those that use no readings.
pub const METHODS: [&str; 8] = ["even", "packed", "slurm", "kueue", "random", "bound", "gp", "smooth"];

/// The method that knows the form of the truth and its distributions, and has the same readings as the models: what
/// no model can exceed by much.
pub const FORM: &str = "form";

/// The settings of a cell.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Requests.
    pub requests: usize,
    /// Readings over several hosts.
    pub samples: usize,
    /// Sampling design of these readings.
    pub design: DesignKind,
    /// Names of [`METHODS`], or kinds of models.
    pub methods: Vec<String>,
}

/// One kind with one seed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// Name of the kind.
    pub kind: String,
    /// The seed.
    pub seed: u64,
    /// Always true: no reading is from hardware.
    pub simulated: bool,
    /// Readings taken, repetitions included.
    pub readings: usize,
    /// Models by name.
    pub models: BTreeMap<String, Fitted>,
    /// Every request.
    pub requests: Vec<Replayed>,
    /// Time of the search with the truth, seconds.
    pub search_s: f64,
    /// Total time, seconds.
    pub all_s: f64,
}

/// The result of fitting one model.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Fitted {
    /// Time of the fit, seconds.
    pub fit_s: f64,
    /// Mean time of a decision, seconds.
    pub place_s: f64,
    /// The refusal of the product, if there is no model.
    pub refused: Option<String>,
}

/// One request and the choice of every method.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Replayed {
    /// Requested GPUs.
    pub gpus: usize,
    /// Number of free GPUs.
    pub free: usize,
    /// Number of running jobs.
    pub jobs: usize,
    /// The GPUs with the largest bandwidth found, as a list.
    pub best: String,
    /// Bandwidth of these GPUs, GB/s.
    pub best_gb_per_s: f64,
    /// Number of allocations that the search evaluated.
    pub looked_at: usize,
    /// By method; `None` if the method has no answer.
    pub choices: BTreeMap<String, Option<Choice>>,
}

/// A choice.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Choice {
    /// The GPUs as a list; empty for the mean of random choices.
    pub gpus: String,
    /// GPUs per host, largest first.
    pub split: String,
    /// True bandwidth of the GPUs, GB/s.
    pub gb_per_s: f64,
    /// Bandwidth that the model predicted, GB/s.
    pub predicted_gb_per_s: Option<f64>,
    /// Bandwidth over the best found.
    pub gbe: f64,
    /// Set for a model's choice of another cost than that of the simple rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_rule: Option<LeftRule>,
}

/// What a choice gains over that of the simple rule.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LeftRule {
    /// The gain that the model predicted, as a share of the rule's bandwidth.
    pub predicted: f64,
    /// The true gain, as a share of the rule's bandwidth.
    pub real: f64,
    /// The gain that was required to leave the rule's choice, as a share of its bandwidth.
    pub required: f64,
}

/// The choice of a method.
struct Chosen {
    gpus: Allocation,
    predicted_gb_per_s: Option<f64>,
    /// The rule's choice, where the choice left it, and the predicted and required gain over it as shares.
    rule: Option<(Allocation, f64, f64)>,
}

impl Chosen {
    fn by_rule(gpus: Allocation) -> Chosen {
        Chosen { gpus, predicted_gb_per_s: None, rule: None }
    }
}

/// Evaluates a cell.
///
/// # Errors
/// An unknown kind or method; a campaign that fails.
pub fn cell(kind: &str, seed: u64, settings: &Settings) -> Result<Cell, String> {
    let begun = Instant::now();
    let drawn = draw(kind, seed)?;
    let asks = requests(drawn.placed.cluster(), settings.requests, drawn.contended, seed);
    let folder = tempfile::tempdir().map_err(|e| e.to_string())?;
    let path = folder.path().join("readings.db");
    let rule = |m: &str| METHODS.contains(&m) && !["bound", "gp"].contains(&m);
    let form = settings.methods.iter().any(|m| m == FORM);
    let mut readings = 0;
    if settings.methods.iter().any(|m| !rule(m)) {
        let mut store = Store::create(&path, drawn.measured.cluster()).map_err(|e| e.to_string())?;
        readings = measure_site(&drawn.measured, &mut store, settings.samples, settings.design, true, seed)?;
    }

    let site = &drawn.placed;
    let mut chosen: Vec<BTreeMap<String, Option<Chosen>>> = asks.iter().map(|_| BTreeMap::new()).collect();
    let mut models = BTreeMap::new();
    // The even split and the packed choice exist wherever the request can be met.
    let starts = |ask: &Ask| ["even", "packed"].into_iter().filter_map(|m| by_rule(m, site, ask)).collect::<Vec<_>>();
    if form {
        let fitted = fit_form(&drawn.measured, &path)?;
        for (i, (ask, chosen)) in asks.iter().zip(&mut chosen).enumerate() {
            let found =
                fitted.as_ref().and_then(|s| search(s, &ask.free, ask.gpus, &starts(ask), seed << 16 | i as u64));
            chosen.insert(FORM.into(), found.map(|f| Chosen::by_rule(f.smooth)));
        }
    }
    for method in settings.methods.iter().filter(|m| !["random", "smooth", FORM].contains(&m.as_str())) {
        if rule(method) {
            for (ask, chosen) in asks.iter().zip(&mut chosen) {
                let gpus = by_rule(method, site, ask);
                chosen.insert(method.clone(), gpus.map(Chosen::by_rule));
            }
            continue;
        }
        let fitted = match by_model(method, site, &path, &asks) {
            Ok((fitted, answers)) => {
                answers.into_iter().zip(&mut chosen).for_each(|(a, c)| drop(c.insert(method.clone(), a)));
                fitted
            }
            Err(e @ EngineError::BadRequest { .. }) => return Err(e.to_string()),
            Err(e) => {
                chosen.iter_mut().for_each(|c| drop(c.insert(method.clone(), None)));
                let words = e.to_string().replace(&path.display().to_string(), "STORE");
                Fitted { refused: Some(words.trim_end_matches('.').into()), ..Fitted::default() }
            }
        };
        models.insert(method.clone(), fitted);
    }

    let mut search_s = 0.0;
    let mut replayed = Vec::new();
    for (i, (ask, chosen)) in asks.iter().zip(chosen).enumerate() {
        let begun = Instant::now();
        replayed.push(judge(site, ask, &chosen, settings, seed << 16 | i as u64)?);
        search_s += begun.elapsed().as_secs_f64();
    }
    let all_s = begun.elapsed().as_secs_f64();
    Ok(Cell { kind: kind.into(), seed, simulated: true, readings, models, requests: replayed, search_s, all_s })
}

/// The choice of a rule that uses switches and free GPUs only.
fn by_rule(method: &str, site: &Site, ask: &Ask) -> Option<Allocation> {
    match method {
        "even" => rules::even(site.switches(), &ask.free, ask.gpus),
        "slurm" => rules::slurm(site.switches(), &ask.free, ask.gpus),
        "kueue" => rules::kueue(site.switches(), &ask.free, ask.gpus),
        _ => place::baselines::packed(site.cluster(), &ask.free, ask.gpus),
    }
}

/// Fits a model on the store and queries it, as the commands `fit` and `place` do.
fn by_model(
    kind: &str,
    site: &Site,
    store: &std::path::Path,
    asks: &[Ask],
) -> Result<(Fitted, Vec<Option<Chosen>>), EngineError> {
    let begun = Instant::now();
    let store = Store::open(store, site.cluster())?;
    let engine = Engine::builder(site.cluster().clone()).store(store).build()?;
    engine.fit(&FitRequest { kind: Some(kind.into()), ..FitRequest::default() })?;
    let fit_s = begun.elapsed().as_secs_f64();
    let begun = Instant::now();
    let answer = |ask: &Ask| {
        let mut request = place::Request::new(ask.gpus, ask.free.clone(), site.size());
        let job = |(i, gpus): (usize, &Allocation)| place::Job {
            id: format!("job-{i}"),
            gpus: gpus.clone(),
            duty: 1.0,
            demand_gb_per_s: site.busbw_gb_per_s(gpus),
        };
        request.jobs = ask.jobs.iter().enumerate().map(job).collect();
        let answer = engine.place(&PlaceQuery::new(request), 0.0).ok()?;
        let gpus = answer.gpus.allocation(site.cluster());
        let rule = answer.rule.as_ref().filter(|_| !answer.price.keeps_rule).map(|r| {
            let of = |gb_per_s: f64| gb_per_s / r.score_gb_per_s.unwrap_or(r.predicted_busbw_gb_per_s).abs().max(1e-9);
            let (gained, required) = (of(answer.price.gained_busbw_gb_per_s), of(answer.price.slack_gb_per_s));
            (r.gpus.allocation(site.cluster()), gained, required)
        });
        Some(Chosen { gpus, predicted_gb_per_s: Some(answer.predicted_busbw_gb_per_s), rule })
    };
    let answers: Vec<Option<Chosen>> = asks.iter().map(answer).collect();
    let place_s = begun.elapsed().as_secs_f64() / asks.len().max(1) as f64;
    Ok((Fitted { fit_s, place_s, refused: None }, answers))
}

/// Judges the choices of one request.
fn judge(
    site: &Site,
    ask: &Ask,
    chosen: &BTreeMap<String, Option<Chosen>>,
    settings: &Settings,
    seed: u64,
) -> Result<Replayed, String> {
    let beside;
    let site = match ask.jobs.is_empty() {
        true => site,
        false => {
            beside = site.among(&ask.jobs);
            &beside
        }
    };
    let starts: Vec<Allocation> = chosen.values().flatten().map(|c| c.gpus.clone()).collect();
    let found = search(site, &ask.free, ask.gpus, &starts, seed).ok_or("a request that cannot be met")?;
    let best = found.best_gb_per_s;
    let of = |gpus: &Allocation, predicted_gb_per_s: Option<f64>| {
        let gb_per_s = site.busbw_gb_per_s(gpus).unwrap_or(0.0);
        let names = site.cluster().gpu_list(gpus);
        let split = gpus.split();
        Choice { gpus: names, split, gb_per_s, predicted_gb_per_s, gbe: gb_per_s / best, left_rule: None }
    };
    let with_rule = |c: &Chosen| {
        let choice = of(&c.gpus, c.predicted_gb_per_s);
        let left_rule = c.rule.as_ref().and_then(|(rule, predicted, required)| {
            let real = choice.gb_per_s / site.busbw_gb_per_s(rule).filter(|v| *v > 0.0)? - 1.0;
            Some(LeftRule { predicted: *predicted, real, required: *required })
        });
        Choice { left_rule, ..choice }
    };
    let mut choices: BTreeMap<String, Option<Choice>> =
        chosen.iter().map(|(name, c)| (name.clone(), c.as_ref().map(with_rule))).collect();
    for method in &settings.methods {
        if method == "smooth" {
            choices.insert(method.clone(), Some(of(&found.smooth, site.smooth_gb_per_s(&found.smooth))));
        }
        if method == "random" {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let draws = (0..RANDOM_DRAWS).filter_map(|_| place::baselines::random(&ask.free, ask.gpus, &mut rng));
            let values: Vec<f64> = draws.map(|a| site.busbw_gb_per_s(&a).unwrap_or(0.0)).collect();
            let gb_per_s = values.iter().sum::<f64>() / values.len().max(1) as f64;
            let (gpus, split) = (String::new(), String::new());
            let mean =
                Choice { gpus, split, gb_per_s, predicted_gb_per_s: None, gbe: gb_per_s / best, left_rule: None };
            choices.insert(method.clone(), Some(mean));
        }
    }
    Ok(Replayed {
        gpus: ask.gpus,
        free: ask.free.gpu_count(),
        jobs: ask.jobs.len(),
        best: site.cluster().gpu_list(&found.best),
        best_gb_per_s: best,
        looked_at: found.looked_at,
        choices,
    })
}
