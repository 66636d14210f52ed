//! Updates the model and the operator's suspects from readings.

use crate::answer::round;
use crate::diagnose::suspects_of;
use crate::error::EngineError;
use crate::hold::Engine;
use crate::jobs::once;
use diagnose::Diagnosis;
use predict::{Model, Prediction};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::sync::Arc;
use store::{Measurement, Once, Query, StateError};
use topology::Bytes;

/// Largest ratio of a reading's size to the nearest size of the model. Bandwidth grows with size, so readings at more
/// distant sizes do not train the model.
const SIZE_RATIO_MAX: f64 = 1.5;
/// Readings that suspected defects slow below this share do not train the model.
const EXPLAINED: f64 = 0.95;
/// Maximum number of readings that one request may teach.
const LEARN_MAX: usize = 10_000;

/// Attempts to teach a model that other processes change meanwhile.
const TEACH_ATTEMPTS: u32 = 64;

/// The reason why the model did not learn a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NotLearned {
    /// Other jobs shared its NICs.
    Contended,
    /// The reading is of one host.
    OneHost,
    /// The model is of another collective.
    OtherCollective,
    /// The model was fitted on other sizes.
    OtherSize,
    /// A suspected defect explains the reading.
    Explained,
    /// Its bandwidth is 0, and models learn ratios.
    NoBandwidth,
    /// The kind of model learns only when it is fitted.
    KindLearnsByFit,
    /// The reading was withdrawn or rejected before the request was answered.
    Gone,
    /// An earlier attempt of the request taught the reading.
    TaughtBefore,
}

impl NotLearned {
    /// The reason as a phrase.
    pub fn text(self) -> &'static str {
        match self {
            NotLearned::Contended => "other jobs shared its NICs",
            NotLearned::OneHost => "readings of one host count at the next `linkwise fit`",
            NotLearned::OtherCollective => "it is a model of another collective",
            NotLearned::OtherSize => "it was fitted on other sizes; `linkwise fit` takes the new ones in",
            NotLearned::Explained => {
                "a slow part may explain it, and it is a model of healthy hardware; `linkwise fit` weighs the reading with all others"
            }
            NotLearned::Gone => "it was withdrawn or rejected before the request was answered",
            NotLearned::TaughtBefore => "an earlier try of the same request did the teaching",
            NotLearned::NoBandwidth => "its bandwidth is 0, and no model can learn that",
            NotLearned::KindLearnsByFit => "this kind of model learns only when it is fitted",
        }
    }
}

/// The effect of one reading on the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Taught {
    /// Bus bandwidth that the model predicted, GB/s; none if the model has another collective or size.
    pub expected_gb_per_s: Option<f64>,
    /// Its standard deviation, GB/s.
    pub std_gb_per_s: Option<f64>,
    /// True if the model learned the reading.
    pub learned: bool,
    /// The reason if the model did not learn the reading.
    pub why_not: Option<NotLearned>,
}

impl Taught {
    /// True if a reading is more than three standard deviations from its prediction.
    pub(crate) fn surprises(&self, gb_per_s: f64) -> bool {
        let expected = self.expected_gb_per_s.zip(self.std_gb_per_s);
        expected.is_some_and(|(mean, sd)| (gb_per_s - mean).abs() > 3.0 * sd)
    }

    /// The effect of a reading for which the model made no prediction.
    pub(crate) fn nothing(why_not: Option<NotLearned>) -> Taught {
        Taught { expected_gb_per_s: None, std_gb_per_s: None, learned: false, why_not }
    }
}

/// Teaches the model readings that are in the store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LearnRequest {
    /// Numbers of the readings.
    pub readings: Vec<i64>,
    /// Idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// The result of teaching readings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LearnAnswer {
    /// Results by reading, in the order of the request.
    pub readings: Vec<Taught>,
    /// By reading: what the links allow, GB/s, where the reading is far above; its unit or the rates in the cluster file may be wrong.
    #[serde(default)]
    pub links_allow_gb_per_s: Vec<Option<f64>>,
    /// Number of readings that the model learned.
    pub learned: usize,
    /// Suspected components as text, with their probabilities.
    pub suspected: Vec<String>,
    /// True if the readings were taught before, under the same key; this is the earlier answer.
    pub repeated: bool,
}

/// The result of teaching.
pub(crate) struct Learned {
    pub taught: Vec<Taught>,
    pub diagnosis: Diagnosis,
    pub model: Arc<Model>,
}

impl Learned {
    pub(crate) fn updates(&self) -> usize {
        self.taught.iter().filter(|t| t.learned).count()
    }
    /// Suspects as text, `NIC mlx5_3 of n1 (96.1 %)`, most probable first within each defect.
    pub(crate) fn suspected(&self) -> Vec<String> {
        let cluster = self.model.cluster();
        let candidates = self.diagnosis.defects.iter().flat_map(|d| &d.candidates);
        let kept = candidates.filter(|c| c.probability >= crate::diagnose::SUSPECT_MIN);
        kept.map(|c| format!("{} ({:.1} %)", c.component.name(cluster), 100.0 * c.probability)).collect()
    }
}

/// Reads the stored answer of a key.
pub(crate) fn kept<T: DeserializeOwned>(answer: &str) -> Result<T, EngineError> {
    serde_json::from_str(answer).map_err(|e| EngineError::KeptAnswer(e.to_string()))
}

impl Engine {
    /// Teaches the model stored readings, and updates the suspects. A request with a key is executed once: if an
    /// earlier attempt was killed before its answer, the repetition teaches the remaining readings.
    ///
    /// # Errors
    /// No model or store; a reading that does not exist, was withdrawn or rejected, or is named twice.
    pub fn learn(&self, r: &LearnRequest, now_unix_s: f64) -> Result<LearnAnswer, EngineError> {
        if r.readings.len() > LEARN_MAX {
            return Err(EngineError::bad(format!("`readings` names more than {LEARN_MAX} readings")));
        }
        let mut seen = HashSet::new();
        if let Some(twice) = r.readings.iter().find(|id| !seen.insert(**id)) {
            return Err(EngineError::bad(format!("`readings` names reading {twice} twice")));
        }
        let once = once(r.key.as_ref(), &("learn", &r.readings))?;
        self.model()?;
        let _alone = self.learning();
        if let Some(o) = &once
            && let Some(answer) = self.store()?.answered(o)?
        {
            let a: LearnAnswer = kept(&answer)?; // also if readings were withdrawn since
            return Ok(LearnAnswer { repeated: true, ..a });
        }
        let measurements = self.named(&r.readings)?;
        let taught_before = match &once {
            Some(o) => self.store()?.add(&[], Some(o), now_unix_s)?.taught,
            None => false,
        };
        let learned = self.teach(if taught_before { &[] } else { &measurements }, once.as_ref())?;
        let (suspected, learned_count) = (learned.suspected(), learned.updates());
        let readings = match taught_before {
            true => measurements.iter().map(|_| Taught::nothing(Some(NotLearned::TaughtBefore))).collect(),
            false => learned.taught,
        };
        let above = crate::above_links(&self.cluster, &measurements).into_iter();
        let links_allow_gb_per_s = above.map(|v| v.map(round)).collect();
        let learned = learned_count;
        let answer = LearnAnswer { readings, links_allow_gb_per_s, learned, suspected, repeated: false };
        self.keep_answer(once.as_ref(), &answer)?;
        Ok(answer)
    }

    /// The usable readings with these numbers.
    fn named(&self, ids: &[i64]) -> Result<Vec<Measurement>, EngineError> {
        let store = self.store()?;
        let one = |id: &i64| {
            let found = store.readings(&Query { id: Some(*id), ..Query::usable() })?.pop();
            found.map(|r| r.record.measurement).ok_or_else(|| EngineError::bad(format!("no reading {id} is in use")))
        };
        ids.iter().map(one).collect()
    }

    /// Stores the answer to a request with its key.
    pub(crate) fn keep_answer(&self, once: Option<&Once>, answer: &impl Serialize) -> Result<(), EngineError> {
        let Some(once) = once else { return Ok(()) };
        let text = serde_json::to_string(answer).map_err(|e| EngineError::KeptAnswer(e.to_string()))?;
        Ok(self.store()?.finish(once, &text)?)
    }

    /// Updates the suspects of the state, then teaches and saves the model. The suspects come first, because readings are compared with the
    /// predictions of the old model. The caller holds [`Engine::learning`] from before it stores or reads the readings until they are
    /// answered; without the lock a concurrent fit could learn them, too. Placements use the old or the new model, never a partial one.
    /// Under a key, the teaching is recorded before the model is saved, so that a repetition after a kill does not teach again.
    pub(crate) fn teach(&self, measurements: &[Measurement], once: Option<&Once>) -> Result<Learned, EngineError> {
        for _ in 0..TEACH_ATTEMPTS {
            self.catch_up()?;
            if let Some(learned) = self.teach_present(measurements, once)? {
                return Ok(learned);
            }
        }
        Err(EngineError::Conflict { attempts: TEACH_ATTEMPTS })
    }

    /// [`Engine::teach`] on the present model; none if another process changed the model in the state meanwhile.
    fn teach_present(&self, measurements: &[Measurement], once: Option<&Once>) -> Result<Option<Learned>, EngineError> {
        let model = self.model()?;
        let known = |m: &Measurement| m.collective == model.collective() && near(&model, m.size);
        let expected: Vec<Option<Prediction>> =
            measurements.iter().map(|m| known(m).then(|| model.predict_allocation(m.size, &m.allocation))).collect();
        let diagnosis = self.judged(&model)?;
        let mut new: Option<Model> = None;
        let mut taught = Vec::new();
        for (m, expected) in measurements.iter().zip(expected) {
            let now = new.as_ref().unwrap_or(&model);
            let why_not = match why_not(now, &diagnosis, m) {
                Some(why) => Some(why),
                None => {
                    let new = new.get_or_insert_with(|| Model::clone(&model));
                    let learned = new.update(&m.allocation, m.size, m.busbw.gb_per_s());
                    (!learned).then_some(NotLearned::KindLearnsByFit)
                }
            };
            taught.push(Taught {
                expected_gb_per_s: expected.map(|p| round(p.busbw_gb_per_s)),
                std_gb_per_s: expected.map(|p| round(p.std_gb_per_s)),
                learned: why_not.is_none(),
                why_not,
            });
        }
        let Some(new) = new.filter(|_| taught.iter().any(|t| t.learned)) else {
            return Ok(Some(Learned { taught, diagnosis, model }));
        };
        let learned: Vec<&Measurement> =
            measurements.iter().zip(&taught).filter(|t| t.1.learned).map(|t| t.0).collect();
        let Some(model) = self.use_taught(Arc::new(new), &learned, once)? else { return Ok(None) };
        // What the model has learned must not count as a slow part as well.
        let diagnosis = if self.is_watched() { diagnosis } else { self.judged(&model)? };
        Ok(Some(Learned { taught, diagnosis, model }))
    }

    /// The suspects according to a model, which the state gets, too.
    fn judged(&self, model: &Arc<Model>) -> Result<Diagnosis, EngineError> {
        let diagnosis = self.suspicions(model)?;
        if self.has_state() {
            self.state()?.set_suspects(&suspects_of(&diagnosis))?;
        }
        Ok(diagnosis)
    }

    /// Keeps what a model has learned, then uses the model; none if another process was first.
    fn use_taught(
        &self,
        new: Arc<Model>,
        learned: &[&Measurement],
        once: Option<&Once>,
    ) -> Result<Option<Arc<Model>>, EngineError> {
        if let Some(o) = once {
            self.store()?.mark_taught(o, true)?;
        }
        let kept = match self.models_in_state {
            true => self.keep_lessons(learned),
            false => Ok(true),
        };
        let used = match kept {
            Ok(true) => self.replace_model(new).map(Some),
            Ok(false) => Ok(None),
            Err(e) => Err(e),
        };
        // What may have been kept must not be taught again.
        let unknown = matches!(&used, Err(EngineError::State(StateError::OutcomeUnknown { .. })));
        if let Some(o) = once
            && !unknown
            && !matches!(used, Ok(Some(_)))
        {
            self.store()?.mark_taught(o, false)?;
        }
        let used = used?;
        if let Some(new) = &used {
            let learned: Vec<_> = learned.iter().map(|m| (m.allocation.clone(), m.size)).collect();
            self.watch_learned(new, &learned);
            self.checkpoint();
        }
        Ok(used)
    }
}

/// The reason why a reading cannot teach a model, if it is known before the attempt.
fn why_not(model: &Model, diagnosis: &Diagnosis, m: &Measurement) -> Option<NotLearned> {
    if m.contention.is_some() {
        Some(NotLearned::Contended)
    } else if m.busbw.gb_per_s() <= 0.0 {
        Some(NotLearned::NoBandwidth)
    } else if m.allocation.host_count() < 2 {
        Some(NotLearned::OneHost)
    } else if m.collective != model.collective() {
        Some(NotLearned::OtherCollective)
    } else if !near(model, m.size) {
        Some(NotLearned::OtherSize)
    } else if slower_than_expected(model, m) && diagnosis.share_left(model, &m.allocation, m.size) < EXPLAINED {
        Some(NotLearned::Explained)
    } else {
        None
    }
}

/// A defect explains only readings that are slower than the model of healthy hardware expects.
fn slower_than_expected(model: &Model, m: &Measurement) -> bool {
    m.busbw.gb_per_s() < model.predict_allocation(m.size, &m.allocation).busbw_gb_per_s
}

fn near(model: &Model, size: Bytes) -> bool {
    model.sizes().iter().any(|s| {
        let r = s.as_f64() / size.as_f64().max(1.0);
        (1.0 / SIZE_RATIO_MAX..=SIZE_RATIO_MAX).contains(&r)
    })
}
