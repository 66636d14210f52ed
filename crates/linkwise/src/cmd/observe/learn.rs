//! What a model and the operator's suspicions take from a reading.

use crate::cmd::place::load_model;
use crate::store_errors::OrFailure;
use console::Failure;
use predict::doctor::{self, Diagnosis};
use predict::{Model, Prediction};
use std::fs::File;
use std::path::{Path, PathBuf};
use store::state::Suspect;
use store::{Measurement, State, Store};
use topology::{Bytes, Cluster};

/// Suspects below this probability are not kept.
const SUSPECT_MIN: f64 = 0.002;
/// How far (as a ratio) a reading's size may be from one that the model knows to teach it: bandwidth grows with size.
const SIZE_RATIO_MAX: f64 = 1.5;
/// A reading that suspects slow below this share says something of them, not of the model.
const EXPLAINED: f64 = 0.95;

/// What came of the readings.
pub struct Learned {
    /// By reading: what the model expected; none where it knows neither the collective nor the size.
    pub expected: Vec<Option<Prediction>>,
    /// Readings that the model has learned.
    pub updates: usize,
    /// Why it learned none.
    pub why_not: &'static str,
    /// Components in words with their probabilities, the most probable first.
    pub suspected: Vec<String>,
}

/// Teaches a model, and renews the suspicions of a state. Suspicions first: they are judged by what the model expected before.
pub fn learn(
    model: &mut Model,
    store: &Store,
    measurements: &[Measurement],
    state: Option<&mut State>,
) -> Result<Learned, Failure> {
    let known = |m: &Measurement| m.collective == model.collective() && near(model, m.size);
    let expected: Vec<Option<Prediction>> =
        measurements.iter().map(|m| known(m).then(|| model.predict_allocation(m.size, &m.allocation))).collect();
    let diagnosis = doctor::suspicions(model, &crate::cmd::doctor::readings(store)?);
    let suspected = diagnosis
        .defects
        .iter()
        .flat_map(|d| &d.candidates)
        .filter(|c| c.probability >= SUSPECT_MIN)
        .map(|c| format!("{} ({:.1} %)", c.component.name(model.cluster()), 100.0 * c.probability))
        .collect();
    if let Some(state) = state {
        state.set_suspects(&suspects(&diagnosis)).or_failure()?;
    }
    let (mut updates, mut why_not) = (0, "no reading can teach it");
    for m in measurements {
        let slowed = m.allocation.host_count() > 1 && diagnosis.share_left(model, &m.allocation, m.size) < EXPLAINED;
        if m.contention.is_some() {
            why_not = "other jobs shared its NICs";
        } else if m.allocation.host_count() < 2 {
            why_not = "readings of one host count at the next `linkwise fit`";
        } else if m.collective != model.collective() {
            why_not = "it is a model of another collective";
        } else if !near(model, m.size) {
            why_not = "it was fitted on other sizes; `linkwise fit` takes the new ones in";
        } else if slowed {
            why_not = "a suspected defect explains the reading; it stays a model of healthy hardware";
        } else if !model.update(&m.allocation, m.size, m.busbw.gb_per_s()) {
            why_not = "this kind of model learns only when it is fitted";
        } else {
            updates += 1;
        }
    }
    Ok(Learned { expected, updates, why_not, suspected })
}

fn near(model: &Model, size: Bytes) -> bool {
    model.sizes().iter().any(|s| {
        let r = s.as_f64() / size.as_f64().max(1.0);
        (1.0 / SIZE_RATIO_MAX..=SIZE_RATIO_MAX).contains(&r)
    })
}

/// What a diagnosis suspects, as a state keeps it.
pub fn suspects(d: &Diagnosis) -> Vec<Suspect> {
    let of = |(i, d): (usize, &doctor::Defect)| -> Vec<Suspect> {
        d.candidates
            .iter()
            .filter(|c| c.probability >= SUSPECT_MIN)
            .map(|c| Suspect {
                defect: i as u32,
                host: c.component.host(),
                component: c.component.text(),
                factor: c.factor,
                probability: c.probability,
            })
            .collect()
    };
    d.defects.iter().enumerate().flat_map(of).collect()
}

/// A model file that nobody else changes while this lives.
pub struct Locked {
    /// The model.
    pub model: Model,
    path: PathBuf,
    _lock: File,
}

impl Locked {
    /// Waits for others, then reads. The lock is on the file itself; since a save replaces the file, a lock on the one before is given up
    /// and the new one tried.
    pub fn open(path: &Path, cluster: &Cluster) -> Result<Locked, Failure> {
        loop {
            let lock = File::open(path).map_err(|e| Failure::file("read", path, e))?;
            lock.lock().map_err(|e| Failure::file("lock", path, e))?;
            if same_file(&lock, path) {
                return Ok(Locked { model: load_model(path, cluster)?, path: path.into(), _lock: lock });
            }
        }
    }

    /// Replaces the file in one step.
    pub fn save(&self) -> Result<(), Failure> {
        Ok(files::write_atomic(&self.path, self.model.save().map_err(Failure::input)?)?)
    }
}

#[cfg(unix)]
fn same_file(open: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |m: std::io::Result<std::fs::Metadata>| m.map(|m| (m.dev(), m.ino())).ok();
    id(open.metadata()) == id(std::fs::metadata(path))
}

#[cfg(not(unix))]
fn same_file(_: &File, _: &Path) -> bool {
    true
}
