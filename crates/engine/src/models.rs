//! The versions of the model: a fit that must prove itself, promotion, and the way back.
//!
//! A new fit is promoted only if it predicts readings that neither it nor the present model has seen at least as well as
//! the present model does. Those readings are a part of the ones that came after the present model's fit; the model that is
//! then promoted is fitted again with them. Cost: two fits.

use crate::error::EngineError;
use crate::fit::{FitAnswer, FitRequest};
use crate::hold::{Engine, lock};
use crate::kept_models::Known;
use predict::{BandwidthModel, Model, Stop};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use store::state::{KeptModels, ModelText};
use store::{By, Measurement, Query, StoredReading};
use topology::Collective;

/// Maximum number of versions that an engine keeps, the present one included. A model has up to a few MB.
pub const MODELS_KEPT_MAX: usize = 8;
/// One of this many new readings is held back.
const HELD_BACK_ONE_OF: usize = 4;
/// Fewer readings held back decide nothing: then a part of all readings is.
const HELD_BACK_MIN: usize = 5;

/// Numbers of readings per read of the store.
const READ_AT_ONCE: i64 = 10_000;
/// Longest reason of a promotion, bytes.
const WHY_BYTES_MAX: usize = 1024;

/// The steps of a fit that must prove itself, for a client that waits.
pub const STEPS: [&str; 4] =
    ["reads the readings", "fits without the held-back readings", "fits with all readings", "done"];

/// The progress of a fit or a diagnosis, and the wish to end it.
#[derive(Debug, Default)]
pub struct Progress {
    step: AtomicUsize,
    cancelled: AtomicBool,
}

impl Progress {
    /// Number of the step that runs, from 0.
    pub fn step(&self) -> usize {
        self.step.load(Ordering::Acquire).min(STEPS.len() - 1)
    }
    /// Ends the work within about a second, also in the middle of a fit; the model stays.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
    }
    /// The flag for the loops of a fit.
    pub(crate) fn stop(&self) -> Stop<'_> {
        Stop::when(&self.cancelled)
    }
    /// An error if the work is to end.
    pub(crate) fn go_on(&self) -> Result<(), EngineError> {
        if self.cancelled.load(Ordering::Acquire) { Err(EngineError::Cancelled) } else { Ok(()) }
    }
    pub(crate) fn next(&self) -> Result<(), EngineError> {
        self.go_on()?;
        self.step.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }
}

/// The result of a fit that had to prove itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RefitAnswer {
    /// Number of the fitted version.
    pub version: u64,
    /// True if the engine now uses it.
    pub promoted: bool,
    /// The reason.
    pub why: String,
    /// How well both models predicted; none if there was nothing to compare.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compared: Option<Compared>,
    /// The fit: with all readings if it was promoted, else without the held-back ones.
    pub fit: FitAnswer,
}

/// The errors of two models on the same held-back readings: means of `|ln(predicted/reading)|`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Compared {
    /// Number of held-back readings.
    pub held_back: usize,
    /// True if the present model had seen some of them: fewer than five readings were new.
    pub seen_before: bool,
    /// Error of the present model.
    pub present: f64,
    /// Error of the fitted model.
    pub fitted: f64,
}

/// What became of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum VersionState {
    /// The engine uses it.
    Present,
    /// The engine used it.
    Earlier,
    /// It predicted worse than the model of its time.
    Refused,
}

/// A version of the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ModelVersion {
    /// Its number, from 1; it rises.
    pub version: u64,
    /// Its kind.
    pub kind: String,
    /// Its collective.
    #[schemars(schema_with = "crate::schema::collective")]
    pub collective: Collective,
    /// What became of it.
    pub state: VersionState,
    /// Author of its state.
    pub who: String,
    /// Time of its state, seconds since 1970.
    pub at_unix_s: f64,
    /// The reason of its state.
    pub why: String,
    /// How it compared with the model of its time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compared: Option<Compared>,
    /// Number of the newest reading when it was fitted; 0: it was not fitted to the store's readings.
    #[serde(default)]
    pub readings_until: i64,
    /// What it was fitted to; none for a version that this engine did not fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fit: Option<Box<FitAnswer>>,
}

/// Promotes a version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PromoteRequest {
    /// Its number; none: the version that was used before the present one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// The reason.
    pub why: String,
}

/// The versions, and what the present one has not seen.
#[derive(Default)]
pub(crate) struct Versions {
    /// The versions; the models as they were fitted, unless the state keeps them.
    list: Vec<(ModelVersion, Option<Arc<Model>>)>,
    next: u64,
    /// The present model as it was fitted, before it learned single readings. None also if it must be read from the state first.
    pub(crate) base: Option<Arc<Model>>,
    /// Number of the newest reading at that fit.
    seen_until: i64,
    /// Number of the newest reading at the last fit, also of one that was refused.
    tried_until: i64,
    /// The mark of a fit that had no result when this process started: of one that was killed, as a rule. Its readings count as new.
    abandoned: Option<i64>,
    /// The versions in the state.
    pub(crate) known: Known,
}

impl Versions {
    fn add(&mut self, mut version: ModelVersion, model: Arc<Model>) -> u64 {
        self.next += 1;
        version.version = self.next;
        self.list.push((version, Some(model)));
        while self.list.len() > MODELS_KEPT_MAX {
            let oldest = self.list.iter().position(|v| v.0.state != VersionState::Present);
            self.list.remove(oldest.unwrap_or(0));
        }
        self.next
    }

    fn retire(&mut self) {
        for v in self.list.iter_mut().filter(|v| v.0.state == VersionState::Present) {
            v.0.state = VersionState::Earlier;
        }
    }

    /// Number of the version in use; 0: none.
    fn present(&self) -> u64 {
        self.list.iter().find(|v| v.0.state == VersionState::Present).map_or(0, |v| v.0.version)
    }

    /// Number of the newest reading of the fits that have a result.
    fn ended_until(&self) -> i64 {
        self.list.iter().map(|v| v.0.readings_until).fold(self.seen_until, i64::max)
    }

    /// Looks for the mark of a fit without a result in what the state says when the process starts.
    fn find_abandoned(&mut self, head: &KeptModels) -> Result<(), EngineError> {
        let versions = crate::kept_models::described_in(head)?;
        let ended = versions.iter().map(|v| v.readings_until).fold(head.seen_until, i64::max);
        self.abandoned = (head.tried_until > ended).then_some(head.tried_until);
        Ok(())
    }

    /// Takes over what the state says.
    pub(crate) fn set_head(&mut self, head: KeptModels) -> Result<(), EngineError> {
        self.list = crate::kept_models::described_in(&head)?.into_iter().map(|v| (v, None)).collect();
        (self.next, self.seen_until) = (head.newest, head.seen_until);
        self.tried_until = match self.abandoned {
            Some(mark) if mark == head.tried_until => self.ended_until(),
            _ => head.tried_until,
        };
        self.known.head = head;
        Ok(())
    }
}

/// What a new version brings.
struct New<'a> {
    version: ModelVersion,
    model: &'a Arc<Model>,
    /// Number of the newest reading that the version in use has seen.
    seen_until: Option<i64>,
    tried_until: i64,
    imported: Option<&'a str>,
    /// The entry of the log.
    log: Option<(By<'a>, &'a str)>,
}

impl Engine {
    /// Remembers a model that was not compared: that of the start, or of a command. What the store holds by then counts as seen, unless the model is NCCL's own, which
    /// learns nothing from readings. The state keeps it if it keeps models.
    pub(crate) fn first_version(
        &self,
        why: &str,
        model: &Arc<Model>,
        imported: Option<&str>,
    ) -> Result<(), EngineError> {
        let last = self.store().and_then(|s| Ok(s.revision()?.last_id)).unwrap_or(0);
        let seen = if model.kind() == "nccl" { 0 } else { last };
        let version = described(model, VersionState::Present, By::from(0.0), why);
        let new = New { version, model, seen_until: Some(seen), tried_until: 0, imported, log: None };
        let fitted_on = lock(&self.fitted_on).clone();
        let text = self.keep_text(model, fitted_on.as_ref())?;
        self.add_version(new, text).map(|_| ())
    }

    /// Takes the model of the start from the state, or gives it to the state that has none or is told to take this file.
    pub(crate) fn open_models(&self, imported: Option<&str>) -> Result<(), EngineError> {
        for _ in 0..4 {
            let head = self.state()?.models()?;
            let takes = imported.is_some_and(|digest| head.imported != digest);
            lock(&self.versions).find_abandoned(&head)?;
            if head.present > 0 && !takes {
                return self.catch_up().map(|_| ());
            }
            let Some(model) = self.model_if_any() else { return Ok(()) };
            lock(&self.versions).set_head(head)?;
            let why = if imported.is_some() { "a model file at the start" } else { "the model of the start" };
            match self.first_version(why, &model, imported) {
                Err(EngineError::Conflict { .. }) => {} // another process was first
                done => {
                    self.remove_gone_texts();
                    return done;
                }
            }
        }
        Err(EngineError::Conflict { attempts: 4 })
    }

    /// Adds a version. One in use replaces the one before, but the caller replaces the model. Holds [`Engine::learning`] or builds the engine.
    fn add_version(&self, new: New<'_>, text: Option<ModelText>) -> Result<u64, EngineError> {
        let in_use = new.version.state == VersionState::Present;
        let number = match text {
            Some(text) => {
                let until = (new.seen_until, new.tried_until);
                let kept = self.keep_version(new.version, text, until, new.imported, new.log)?;
                kept.ok_or(EngineError::Conflict { attempts: 1 })?
            }
            None => {
                let mut versions = lock(&self.versions);
                if in_use {
                    versions.retire();
                }
                versions.seen_until = new.seen_until.unwrap_or(versions.seen_until);
                versions.tried_until = new.tried_until.max(versions.tried_until);
                let why = new.version.why.clone();
                let number = versions.add(new.version, new.model.clone());
                drop(versions);
                if let Some((by, what)) = new.log {
                    self.log_model(by, what, &format!("version {number}"), &why)?;
                }
                number
            }
        };
        if in_use {
            lock(&self.versions).base = Some(new.model.clone());
        }
        Ok(number)
    }

    /// The versions of the model, oldest first.
    pub fn versions(&self) -> Vec<ModelVersion> {
        lock(&self.versions).list.iter().map(|v| v.0.clone()).collect()
    }

    /// Number of usable readings that came after the last fit, promoted or not.
    pub fn readings_since_fit(&self) -> Result<usize, EngineError> {
        let after = {
            let versions = lock(&self.versions);
            versions.seen_until.max(versions.tried_until)
        };
        Ok(self.store()?.count(&Query { after: Some(after), ..Query::usable() })?)
    }

    /// Fits a model and uses it if it predicts held-back readings at least as well as the present model; else the present
    /// model stays, and the answer says why. No lock is held during the fits: readings that come meanwhile teach the model
    /// of that time, and count as new for the next fit.
    ///
    /// # Errors
    /// Those of a fit; [`EngineError::Cancelled`].
    pub fn refit(&self, r: &FitRequest, by: By<'_>, progress: &Progress) -> Result<RefitAnswer, EngineError> {
        let kind = self.kind_of(r)?;
        if self.models_in_state {
            self.sync_models()?;
        }
        let base = self.base_model()?;
        let (seen_until, present) = {
            let versions = lock(&self.versions);
            (versions.seen_until, versions.present())
        };
        let rows = self.newest_readings(progress)?;
        let last = rows.iter().map(|x| x.id).max().unwrap_or(seen_until);
        if self.models_in_state {
            self.keep_tried(last)?;
        } else {
            lock(&self.versions).tried_until = last;
        }
        let mut all: Vec<(i64, Measurement)> = rows.into_iter().map(|x| (x.id, x.record.measurement)).collect();
        // The order of a fit must not depend on the order of insertion.
        all.sort_by(|a, b| (a.1.size, &a.1.allocation, a.0).cmp(&(b.1.size, &b.1.allocation, b.0)));
        let comparable = base.clone().filter(|b| r.collective.is_none_or(|c| c == b.collective()));
        let promote = |fit: (Model, FitAnswer), compared, why: &str| {
            self.promoted(fit, present, last, compared, why, by, progress)
        };
        let Some(base) = comparable else {
            progress.next()?;
            progress.next()?;
            let fit = self.fitted(kind, r, &all.into_iter().map(|x| x.1).collect::<Vec<_>>(), progress.stop())?;
            return promote(fit, None, "there was no model of this collective to compare it with");
        };
        let r = FitRequest { collective: Some(base.collective()), ..r.clone() };
        let fits = |m: &Measurement| {
            m.collective == base.collective() && m.contention.is_none() && m.allocation.host_count() > 1
        };
        let (held_back, seen_before) = held_back(&all, seen_until, fits);
        let used: Vec<Measurement> =
            all.iter().filter(|(id, _)| held_back.binary_search(id).is_err()).map(|x| x.1.clone()).collect();
        let judged: Vec<&Measurement> =
            all.iter().filter(|(id, _)| held_back.binary_search(id).is_ok()).map(|x| &x.1).collect();
        progress.next()?;
        let (candidate, fit) = self.fitted(kind, &r, &used, progress.stop())?;
        let compared = (!judged.is_empty()).then(|| Compared {
            held_back: judged.len(),
            seen_before,
            present: error_of(&base, &judged, progress.stop()),
            fitted: error_of(&candidate, &judged, progress.stop()),
        });
        progress.go_on()?;
        progress.next()?;
        if let Some(c) = compared.filter(|c| c.fitted > c.present || !c.fitted.is_finite()) {
            let why = format!(
                "it predicts {} held-back readings worse than the present model: error {:.3} against {:.3}",
                c.held_back, c.fitted, c.present
            );
            let mut version = described(&candidate, VersionState::Refused, by, &why);
            (version.compared, version.fit) = (compared, Some(Box::new(fit.clone())));
            version.readings_until = last;
            let text = self.keep_text(&candidate, None)?;
            let candidate = &Arc::new(candidate);
            let _alone = self.learning();
            self.catch_up()?;
            let log = Some((by, "fit_refused"));
            let new = New { version, model: candidate, seen_until: None, tried_until: last, imported: None, log };
            let version = self.add_version(new, text)?;
            return Ok(RefitAnswer { version, promoted: false, why, compared, fit });
        }
        let everything: Vec<Measurement> = all.into_iter().map(|x| x.1).collect();
        let fit =
            if compared.is_none() { (candidate, fit) } else { self.fitted(kind, &r, &everything, progress.stop())? };
        let why = match compared {
            None => "there was no reading to compare it with the present model".to_owned(),
            Some(c) => format!(
                "it predicts {} held-back readings at least as well as the present model: error {:.3} against {:.3}",
                c.held_back, c.fitted, c.present
            ),
        };
        promote(fit, compared, &why)
    }

    /// The newest usable readings with their numbers, read in batches: the store is locked for one batch at a time.
    fn newest_readings(&self, progress: &Progress) -> Result<Vec<StoredReading>, EngineError> {
        let mut until = self.store()?.revision()?.last_id;
        let mut rows = Vec::new();
        while until > 0 && rows.len() < crate::READINGS_MAX {
            progress.go_on()?;
            let after = (until - READ_AT_ONCE).max(0);
            let query = Query { after: Some(after), until: Some(until), ..Query::usable() };
            let batch = self.store()?.readings(&query.newest(crate::READINGS_MAX - rows.len()))?;
            rows.extend(batch);
            until = after;
        }
        Ok(rows)
    }

    #[allow(clippy::too_many_arguments)] // the facts of one promotion
    fn promoted(
        &self,
        (model, fit): (Model, FitAnswer),
        present: u64,
        last: i64,
        compared: Option<Compared>,
        why: &str,
        by: By<'_>,
        progress: &Progress,
    ) -> Result<RefitAnswer, EngineError> {
        progress.next()?;
        let text = self.keep_text(&model, None)?;
        let _alone = self.learning();
        self.catch_up()?;
        if lock(&self.versions).present() != present {
            return Err(EngineError::Conflict { attempts: 1 }); // another model was promoted during the fits
        }
        if let Ok(mut store) = self.store() {
            store.mark_all_taught()?; // the new model has what killed requests had stored
        }
        let mut version = described(&model, VersionState::Present, by, why);
        (version.compared, version.fit) = (compared, Some(Box::new(fit.clone())));
        version.readings_until = last;
        let model = &Arc::new(model);
        let version = self.in_use(model, |engine| {
            let log = Some((by, "fit"));
            let new = New { version, model, seen_until: Some(last), tried_until: last, imported: None, log };
            engine.add_version(new, text)
        })?;
        Ok(RefitAnswer { version, promoted: true, why: why.into(), compared, fit })
    }

    /// Records a new model and uses it. Without models in the state the file is written first, because the file is what a restart reads.
    fn in_use<T>(
        &self,
        model: &Arc<Model>,
        record: impl FnOnce(&Engine) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        if !self.models_in_state {
            self.replace_fitted(model.clone())?;
            return record(self);
        }
        let recorded = record(self)?;
        self.replace_fitted(model.clone())?;
        self.applied_all();
        Ok(recorded)
    }

    /// Fits without a comparison: see [`Engine::fit`]. The caller holds [`Engine::learning`].
    pub(crate) fn use_uncompared(&self, model: Model) -> Result<(), EngineError> {
        let model = &Arc::new(model);
        self.catch_up()?;
        self.in_use(model, |engine| engine.first_version("a fit without a comparison", model, None))
    }

    /// Uses a version again, or one that was refused.
    ///
    /// # Errors
    /// A version that is not kept, or that is in use; no reason.
    pub fn promote(&self, r: &PromoteRequest, by: By<'_>) -> Result<ModelVersion, EngineError> {
        if r.why.trim().is_empty() || r.why.len() > WHY_BYTES_MAX {
            return Err(EngineError::bad(format!("`why` is empty or has more than {WHY_BYTES_MAX} bytes")));
        }
        let _alone = self.learning();
        self.catch_up()?;
        let found = {
            let versions = lock(&self.versions);
            let of = |v: &&(ModelVersion, Option<Arc<Model>>)| match r.version {
                Some(n) => v.0.version == n,
                None => v.0.state == VersionState::Earlier,
            };
            let newest = |a: &&(ModelVersion, Option<Arc<Model>>), b: &&(ModelVersion, Option<Arc<Model>>)| {
                a.0.at_unix_s.total_cmp(&b.0.at_unix_s).then(a.0.version.cmp(&b.0.version))
            };
            versions.list.iter().filter(of).max_by(newest).cloned()
        };
        let (mut version, model) = found.ok_or(EngineError::UnknownVersion(r.version))?;
        if version.state == VersionState::Present {
            return Ok(version);
        }
        (version.state, version.who, version.why, version.at_unix_s) =
            (VersionState::Present, by.who.into(), r.why.clone(), by.at_unix_s);
        let (model, fitted_on) = match model {
            Some(model) => (model, None),
            None => {
                let (model, fitted_on) = self.kept_version(version.version)?;
                (Arc::new(model), fitted_on)
            }
        };
        self.in_use(&model, |engine| engine.record_promotion(&version, by))?;
        *lock(&self.fitted_on) = fitted_on;
        lock(&self.versions).base = Some(model);
        Ok(version)
    }

    fn record_promotion(&self, version: &ModelVersion, by: By<'_>) -> Result<(), EngineError> {
        if self.models_in_state {
            let kept = self.keep_promotion(version, by)?;
            return if kept { Ok(()) } else { Err(EngineError::Conflict { attempts: 1 }) };
        }
        {
            let mut versions = lock(&self.versions);
            versions.retire();
            for v in versions.list.iter_mut().filter(|v| v.0.version == version.version) {
                v.0 = version.clone();
            }
        }
        self.log_model(by, "promote", &format!("version {}", version.version), &version.why)
    }

    fn log_model(&self, by: By<'_>, what: &str, subject: &str, why: &str) -> Result<(), EngineError> {
        if !self.has_state() {
            return Ok(());
        }
        Ok(self.state()?.log(&By { why, ..by }, what, subject, &topology::Allocation::default())?)
    }
}

fn described(model: &Model, state: VersionState, by: By<'_>, why: &str) -> ModelVersion {
    ModelVersion {
        version: 0,
        kind: model.kind().into(),
        collective: model.collective(),
        state,
        who: by.who.into(),
        at_unix_s: by.at_unix_s,
        why: why.into(),
        compared: None,
        readings_until: 0,
        fit: None,
    }
}

/// The numbers of the readings that are held back, ascending: one of four of the new ones, by their order of arrival. True
/// if too few are new, and one of four of all is held back.
fn held_back(all: &[(i64, Measurement)], seen_until: i64, fits: impl Fn(&Measurement) -> bool) -> (Vec<i64>, bool) {
    let mut ids: Vec<i64> = all.iter().filter(|x| fits(&x.1)).map(|x| x.0).collect();
    ids.sort_unstable();
    let every = |ids: &[i64]| -> Vec<i64> {
        ids.iter().skip(HELD_BACK_ONE_OF - 1).step_by(HELD_BACK_ONE_OF).copied().collect()
    };
    let new = every(&ids[ids.partition_point(|id| *id <= seen_until)..]);
    if new.len() >= HELD_BACK_MIN { (new, false) } else { (every(&ids), true) }
}

/// Mean of `|ln(predicted/reading)|`.
fn error_of(model: &Model, readings: &[&Measurement], stop: Stop<'_>) -> f64 {
    let one = |m: &&Measurement| {
        (model.predict_allocation(m.size, &m.allocation).busbw_gb_per_s / m.busbw.gb_per_s()).ln().abs()
    };
    readings.iter().take_while(|_| !stop.is_set()).map(one).sum::<f64>() / readings.len() as f64
}
