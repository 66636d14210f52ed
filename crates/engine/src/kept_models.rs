//! The versions of the model as the state keeps them for all processes that use it ([`store::state::KeptModels`]).
//!
//! An engine that was built with [`crate::Builder::models_in_state`] uses the version that the state names, applies the readings that
//! other processes taught, and changes both by one short transaction that fails if another process was first. Texts are written and read
//! in parts, outside of any lock that a decision needs. [`Engine::sync_models`] costs one row while nothing has changed.

use crate::error::EngineError;
use crate::hold::{Engine, adapted, lock};
use crate::model_file::ModelFile;
use crate::models::{MODELS_KEPT_MAX, ModelVersion, VersionState};
use predict::{Model, ModelKinds};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use store::state::{KeptModel, KeptModels, Lesson, ModelText, ModelsChange, parts_of, text_digest};
use store::{By, ClusterStateStore, Measurement};
use topology::{Bytes, Cluster};

/// Learned readings after which the model in use is written with them: a process that opens the state applies at most so many.
const CHECKPOINT_AFTER: i64 = 64;
/// Attempts to read models that other processes change meanwhile.
const ATTEMPTS: u32 = 64;

/// What an engine knows of the models in the state.
#[derive(Default)]
pub(crate) struct Known {
    pub head: KeptModels,
    /// Number of the newest learned reading that the present model has.
    applied: i64,
    /// Texts that no version names any more.
    gone: Vec<ModelText>,
    /// A revision whose model could not be read.
    unreadable: Option<u64>,
}

impl Known {
    /// The row of the version in use.
    fn present(&self) -> Option<&KeptModel> {
        present_of(&self.head)
    }
}

fn present_of(head: &KeptModels) -> Option<&KeptModel> {
    head.versions.iter().find(|v| v.version == head.present && v.version > 0)
}

/// The descriptions of the versions.
pub(crate) fn described_in(head: &KeptModels) -> Result<Vec<ModelVersion>, EngineError> {
    let of = |v: &KeptModel| {
        serde_json::from_str(&v.about).map_err(|e| EngineError::KeptModel(format!("version {}: {e}", v.version)))
    };
    head.versions.iter().filter(|v| v.version > 0).map(of).collect()
}

fn about(v: &ModelVersion) -> Result<String, EngineError> {
    serde_json::to_string(v).map_err(|e| EngineError::KeptModel(e.to_string()))
}

impl Engine {
    /// True if the state keeps the versions of the model.
    pub fn keeps_models(&self) -> bool {
        self.models_in_state
    }

    /// Uses what other processes promoted or taught. True if the model changed. Reads one row if nothing did.
    ///
    /// # Errors
    /// The state cannot be read; the model in it cannot be read. The present model then stays.
    pub fn sync_models(&self) -> Result<bool, EngineError> {
        if !self.models_in_state {
            return Ok(false);
        }
        let revision = self.reads()?.models_revision()?;
        {
            let versions = lock(&self.versions);
            if versions.known.head.revision == revision || versions.known.unreadable == Some(revision) {
                return Ok(false);
            }
        }
        let _alone = self.learning();
        self.catch_up().inspect_err(|e| {
            if matches!(e, EngineError::KeptModel(_) | EngineError::OtherModel { .. }) {
                lock(&self.versions).known.unreadable = Some(revision);
            }
        })
    }

    /// The same for a caller that holds [`Engine::learning`].
    pub(crate) fn catch_up(&self) -> Result<bool, EngineError> {
        if !self.models_in_state {
            return Ok(false);
        }
        for _ in 0..ATTEMPTS {
            let revision = self.reads()?.models_revision()?;
            if lock(&self.versions).known.head.revision == revision {
                return Ok(false);
            }
            let head = self.reads()?.models()?;
            if let Some(changed) = self.follow(head)? {
                return Ok(changed);
            }
        }
        Err(EngineError::Conflict { attempts: ATTEMPTS })
    }

    /// Uses the models of `head`; none if they changed meanwhile.
    fn follow(&self, head: KeptModels) -> Result<Option<bool>, EngineError> {
        let Some(source) = head.source().cloned() else {
            lock(&self.versions).set_head(head)?;
            return Ok(Some(false));
        };
        let goes_on = {
            let known = &lock(&self.versions).known;
            let same =
                known.present().zip(present_of(&head)).is_some_and(|(a, b)| (&a.text, a.lesson) == (&b.text, b.lesson));
            (same && known.applied >= source.lesson).then_some(known.applied)
        };
        let goes_on = goes_on.zip(self.model_if_any());
        let after = goes_on.as_ref().map_or(source.lesson, |g| g.0);
        let lessons = self.reads()?.lessons(after)?;
        let lessons: Vec<Lesson> = lessons.into_iter().filter(|l| l.id <= head.lesson).collect();
        if lessons.len() as i64 != head.lesson - after {
            return Ok(None); // a checkpoint was written meanwhile
        }
        let is_new = goes_on.is_none();
        let (model, fitted_on) = match goes_on {
            Some((_, model)) if lessons.is_empty() => (model, None),
            Some((_, model)) => (Arc::new(self.taught_by(&lessons, Model::clone(&model))), None),
            None => {
                let Some(text) = self.text_of(&source.text)? else { return Ok(None) };
                let (model, fitted_on) = self.parsed(&text)?;
                (Arc::new(self.taught_by(&lessons, model)), fitted_on)
            }
        };
        let is_base = is_new && source.version > 0 && lessons.is_empty();
        if is_new {
            *lock(&self.fitted_on) = fitted_on;
        }
        *self.model.write().unwrap_or_else(PoisonError::into_inner) = Some(model.clone());
        if !is_new && !lessons.is_empty() {
            let gpus = |l: &Lesson| Some((self.cluster.parse_gpus([l.gpus.as_str()]).ok()?, Bytes(l.size_bytes)));
            self.watch_learned(&model, &lessons.iter().filter_map(gpus).collect::<Vec<_>>());
        }
        let mut versions = lock(&self.versions);
        if is_new {
            versions.base = is_base.then(|| model.clone());
        }
        versions.known.applied = head.lesson;
        versions.set_head(head)?;
        Ok(Some(is_new || !lessons.is_empty()))
    }

    /// A model with learned readings. GPUs that the cluster no longer has are left out.
    fn taught_by(&self, lessons: &[Lesson], mut model: Model) -> Model {
        for l in lessons {
            if let Ok(gpus) = self.cluster.parse_gpus([l.gpus.as_str()]) {
                let _ = model.update(&gpus, Bytes(l.size_bytes), l.busbw_gb_per_s);
            }
        }
        model
    }

    /// Reads a text part by part; none if it was removed meanwhile.
    fn text_of(&self, t: &ModelText) -> Result<Option<String>, EngineError> {
        let mut text = String::new();
        for part in 0..t.parts {
            let Some(part) = self.reads()?.model_part(t.id, part)? else { return Ok(None) };
            text += &part;
        }
        if text.len() as i64 != t.bytes || text_digest(&text) != t.digest {
            return Err(EngineError::KeptModel(format!("text {} is not what was written", t.id)));
        }
        Ok(Some(text))
    }

    fn parsed(&self, text: &str) -> Result<(Model, Option<Cluster>), EngineError> {
        adapted(ModelFile::read(text, &self.kinds).map_err(EngineError::KeptModel)?, &self.cluster)
    }

    /// The model of a kept version as it was fitted, and the cluster of its fit if that has another network.
    pub(crate) fn kept_version(&self, number: u64) -> Result<(Model, Option<Cluster>), EngineError> {
        let row = lock(&self.versions).known.head.versions.iter().find(|v| v.version == number).cloned();
        let row = row.ok_or(EngineError::UnknownVersion(Some(number)))?;
        let text = self.text_of(&row.text)?.ok_or(EngineError::UnknownVersion(Some(number)))?;
        self.parsed(&text)
    }

    /// The text of a version in the state, for a model file; none: the version in use with all that it has learned.
    ///
    /// # Errors
    /// The state keeps no models, or not this version.
    pub fn model_text(&self, number: Option<u64>) -> Result<String, EngineError> {
        match number {
            None => {
                let fitted_on = lock(&self.fitted_on).clone();
                ModelFile::write(&*self.model()?, fitted_on.as_ref()).map_err(EngineError::KeptModel)
            }
            Some(n) => {
                let row = lock(&self.versions).known.head.versions.iter().find(|v| v.version == n && n > 0).cloned();
                let row = row.ok_or(EngineError::UnknownVersion(number))?;
                self.text_of(&row.text)?.ok_or(EngineError::UnknownVersion(number))
            }
        }
    }

    /// The present model as it was fitted.
    pub(crate) fn base_model(&self) -> Result<Option<Arc<Model>>, EngineError> {
        let present = {
            let versions = lock(&self.versions);
            if versions.base.is_some() || versions.known.head.present == 0 {
                return Ok(versions.base.clone());
            }
            versions.known.head.present
        };
        let base = Arc::new(self.kept_version(present)?.0);
        let mut versions = lock(&self.versions);
        if versions.known.head.present == present {
            versions.base = Some(base.clone());
        }
        Ok(Some(base))
    }

    /// Writes a model's text, which no version names yet. None if the state keeps no models. The caller need not hold a lock.
    pub(crate) fn keep_text(
        &self,
        model: &Model,
        fitted_on: Option<&Cluster>,
    ) -> Result<Option<ModelText>, EngineError> {
        if !self.models_in_state {
            return Ok(None);
        }
        let text = ModelFile::write(model, fitted_on).map_err(EngineError::KeptModel)?;
        let id = self.state()?.begin_model_text()?;
        let parts = parts_of(&text);
        for (number, part) in (0..).zip(&parts) {
            store::with_a_pause::<EngineError>(|| Ok(self.state()?.put_model_part(id, number, part)?))?;
        }
        Ok(Some(ModelText { id, parts: parts.len() as i64, bytes: text.len() as i64, digest: text_digest(&text) }))
    }

    /// Adds a version to those of the state and logs it. False if another process changed the models: the caller catches up first.
    /// The caller holds [`Engine::learning`].
    pub(crate) fn keep_version(
        &self,
        mut version: ModelVersion,
        text: ModelText,
        until: (Option<i64>, i64),
        imported: Option<&str>,
        log: Option<(By<'_>, &str)>,
    ) -> Result<Option<u64>, EngineError> {
        let mut next = lock(&self.versions).known.head.clone();
        next.newest += 1;
        version.version = next.newest;
        if version.state == VersionState::Present {
            retire(&mut next)?;
            next.present = version.version;
        }
        if let Some(seen) = until.0 {
            next.seen_until = seen;
        }
        next.tried_until = next.tried_until.max(until.1);
        if let Some(digest) = imported {
            next.imported = digest.into();
        }
        let row = KeptModel { version: version.version, text, lesson: next.lesson, about: about(&version)? };
        next.versions.push(row);
        while next.versions.iter().filter(|v| v.version > 0).count() > MODELS_KEPT_MAX {
            let present = next.present;
            let oldest = next.versions.iter().position(|v| v.version > 0 && v.version != present);
            next.versions.remove(oldest.unwrap_or(0));
        }
        let subject = format!("version {}", version.version);
        let log = log.map(|(by, what)| (By { why: &version.why, ..by }, what, subject.as_str()));
        Ok(self.change(next, &[], log)?.then_some(version.version))
    }

    /// Makes a kept version the present one. False as in [`Engine::keep_version`].
    pub(crate) fn keep_promotion(&self, version: &ModelVersion, by: By<'_>) -> Result<bool, EngineError> {
        let mut next = lock(&self.versions).known.head.clone();
        retire(&mut next)?;
        next.present = version.version;
        let lesson = next.lesson;
        for row in next.versions.iter_mut().filter(|v| v.version == version.version) {
            (row.lesson, row.about) = (lesson, about(version)?);
        }
        let subject = format!("version {}", version.version);
        self.change(next, &[], Some((By { why: &version.why, ..by }, "promote", &subject)))
    }

    /// Notes that readings up to this number were fitted, so that no other process fits them meanwhile.
    pub(crate) fn keep_tried(&self, until: i64) -> Result<(), EngineError> {
        let _alone = self.learning();
        self.catch_up()?;
        let mut next = lock(&self.versions).known.head.clone();
        next.tried_until = next.tried_until.max(until);
        self.change(next, &[], None).map(|_| ())
    }

    /// Keeps readings that the present model has learned. False as in [`Engine::keep_version`].
    pub(crate) fn keep_lessons(&self, learned: &[&Measurement]) -> Result<bool, EngineError> {
        let lesson = |m: &&Measurement| Lesson {
            id: 0,
            gpus: self.cluster.gpu_list(&m.allocation),
            size_bytes: m.size.0,
            busbw_gb_per_s: m.busbw.gb_per_s(),
        };
        let lessons: Vec<Lesson> = learned.iter().map(lesson).collect();
        let next = lock(&self.versions).known.head.clone();
        let kept = self.change(next, &lessons, None)?;
        if kept {
            let known = &mut lock(&self.versions).known;
            known.applied = known.head.lesson;
        }
        Ok(kept)
    }

    /// Writes the present model with all that it has learned, if that is much. A failure costs only the time of later starts.
    pub(crate) fn checkpoint(&self) {
        let head = lock(&self.versions).known.head.clone();
        if head.source().is_none_or(|s| head.lesson - s.lesson < CHECKPOINT_AFTER) {
            return;
        }
        let (Some(model), fitted_on) = (self.model_if_any(), lock(&self.fitted_on).clone()) else { return };
        let Ok(Some(text)) = self.keep_text(&model, fitted_on.as_ref()) else { return };
        let mut next = head;
        next.versions.retain(|v| v.version > 0);
        next.versions.insert(0, KeptModel { version: 0, text, lesson: next.lesson, about: String::new() });
        let _ = self.change(next, &[], None);
    }

    /// Notes that the present model has all learned readings, because a promotion made them void.
    pub(crate) fn applied_all(&self) {
        let known = &mut lock(&self.versions).known;
        known.applied = known.head.lesson;
    }

    /// Writes `next` if the state still has its revision.
    fn change(
        &self,
        next: KeptModels,
        learned: &[Lesson],
        log: Option<(By<'_>, &str, &str)>,
    ) -> Result<bool, EngineError> {
        let done = self.state()?.change_models(&ModelsChange { models: &next, learned, log })?;
        let Some(revision) = done else { return Ok(false) };
        let lesson = next.lesson + learned.len() as i64;
        let kept: Vec<i64> = next.versions.iter().map(|v| v.text.id).collect();
        let mut versions = lock(&self.versions);
        let before = versions.known.head.versions.iter().map(|v| v.text.clone());
        let gone: Vec<ModelText> = before.filter(|t| !kept.contains(&t.id)).collect();
        versions.known.gone.extend(gone);
        versions.set_head(KeptModels { revision, lesson, ..next })?;
        Ok(true)
    }

    /// Removes the texts that no version names any more. The caller holds no lock. What is left after a failure is removed like the text of a
    /// killed process.
    pub(crate) fn remove_gone_texts(&self) {
        let gone = std::mem::take(&mut lock(&self.versions).known.gone);
        for (id, part) in gone.iter().flat_map(|t| (0..t.parts).rev().map(|part| (t.id, part))) {
            if store::with_a_pause::<EngineError>(|| Ok(self.state()?.remove_model_part(id, part)?)).is_err() {
                return;
            }
        }
    }
}

/// Gives hosts their new names in the models that a state keeps. A repetition changes nothing. Single learned readings of renamed hosts
/// that came after the last checkpoint count again from the next fit on.
///
/// # Errors
/// A model cannot be read; the state cannot be written.
pub fn rename_kept_models(
    state: &mut dyn ClusterStateStore,
    names: &BTreeMap<String, String>,
    kinds: &ModelKinds,
) -> Result<(), EngineError> {
    for _ in 0..ATTEMPTS {
        let mut next = state.models()?;
        let mut changed = false;
        for row in &mut next.versions {
            let mut text = String::new();
            for part in 0..row.text.parts {
                text += &state.model_part(row.text.id, part)?.unwrap_or_default();
            }
            let renamed = ModelFile::renamed(&text, names, kinds).map_err(EngineError::KeptModel)?;
            if renamed != text {
                (row.text, changed) = (written(state, &renamed)?, true);
            }
        }
        if !changed || state.change_models(&ModelsChange { models: &next, learned: &[], log: None })?.is_some() {
            return Ok(());
        }
    }
    Err(EngineError::Conflict { attempts: ATTEMPTS })
}

/// Writes a text in parts.
fn written(state: &mut dyn ClusterStateStore, text: &str) -> Result<ModelText, EngineError> {
    let id = state.begin_model_text()?;
    let parts = parts_of(text);
    for (number, part) in (0..).zip(&parts) {
        store::with_a_pause::<EngineError>(|| Ok(state.put_model_part(id, number, part)?))?;
    }
    Ok(ModelText { id, parts: parts.len() as i64, bytes: text.len() as i64, digest: text_digest(text) })
}

/// Ends the use of the present version and removes its checkpoint.
fn retire(head: &mut KeptModels) -> Result<(), EngineError> {
    head.versions.retain(|v| v.version > 0);
    for (row, mut version) in described_in(head)?.into_iter().enumerate() {
        if version.state == VersionState::Present {
            version.state = VersionState::Earlier;
            head.versions[row].about = about(&version)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FitRequest;

    #[test]
    fn the_text_of_a_version_that_is_gone_is_removed_when_others_may_learn_again() {
        let folder = tempfile::tempdir().unwrap();
        let cluster = topology::catalog::cluster("h100").unwrap();
        let state = store::State::init(&folder.path().join("s.db"), &cluster, 0.0).unwrap();
        let store = store::Store::create(&folder.path().join("r.db"), &cluster).unwrap();
        let engine = Engine::builder(cluster).state(state).store(store).models_in_state().build().unwrap();
        let fit = FitRequest { kind: Some("nccl".into()), ..FitRequest::default() };
        (0..MODELS_KEPT_MAX).for_each(|_| _ = engine.fit(&fit).unwrap());
        let head = || lock(&engine.versions).known.head.clone();
        let text = head().versions[0].text.id;
        let part = || engine.reads().unwrap().model_part(text, 0).unwrap();
        let alone = engine.learning();
        let next = KeptModels { versions: head().versions[1..].to_vec(), ..head() };
        assert!(engine.change(next, &[], None).unwrap() && part().is_some());
        drop(alone);
        assert_eq!(part(), None);
    }
}
