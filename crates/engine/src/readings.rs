//! Lists, corrects and withdraws readings.

use crate::error::EngineError;
use crate::gpus::GpuList;
use crate::hold::Engine;
use crate::jobs::once;
use crate::observe::{GPUS_NAMED_MAX, NO_BANDWIDTH};
use crate::plausible;
use serde::{Deserialize, Serialize};
use store::{By, Done, Quality, Query, ReadingChange, Source, StoredReading, WhatChanged};
use topology::{Allocation, Bandwidth, Bytes, Collective};

/// Number of readings of an answer if the request has no limit.
const LIMIT_DEFAULT: usize = 100;
/// Maximum number of readings of an answer.
const LIMIT_MAX: usize = 10_000;

/// Lists readings. A field that is left out does not restrict the list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadingsRequest {
    /// Only readings of this job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// Only readings on one of these hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Only readings of this collective.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::collective")]
    pub collective: Option<Collective>,
    /// Only readings of this size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Only readings after this number, oldest first. For paging, give the last number of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<i64>,
    /// Include withdrawn readings.
    #[serde(default)]
    pub withdrawn: bool,
    /// Maximum number of readings, 1 to 10,000: the newest, or with `after` the oldest; none: 100. The answer has fewer
    /// if they would name more than a million GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

/// Readings, in the order in which they were stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ReadingsAnswer {
    /// The newest matching readings; with `after`, the oldest.
    pub readings: Vec<StoredReadingAnswer>,
    /// True if there are older readings; with `after`, newer readings.
    pub more: bool,
}

/// A stored reading.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct StoredReadingAnswer {
    /// Its number.
    pub id: i64,
    /// Its GPUs.
    pub gpus: GpuList,
    /// The collective.
    #[schemars(schema_with = "crate::schema::collective")]
    pub collective: Collective,
    /// Message size.
    pub size_bytes: Bytes,
    /// Bus bandwidth, GB/s.
    pub busbw_gb_per_s: f64,
    /// The job that reported it.
    pub job: Option<String>,
    /// Other jobs on its NICs.
    pub contention: Option<String>,
    /// Time of the reading, seconds since 1970.
    pub taken_at_unix_s: Option<f64>,
    /// Its source.
    pub source: Source,
    /// Tool or file that produced it.
    pub provenance: String,
    /// Its quality.
    pub quality: Quality,
    /// True if it was withdrawn: no fit and no diagnosis uses it.
    pub withdrawn: bool,
    /// Its changes, oldest first.
    pub changes: Vec<ReadingChange>,
}

/// Replaces the bandwidth of a reading.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CorrectRequest {
    /// Its number.
    pub id: i64,
    /// The correct bus bandwidth, GB/s.
    pub busbw_gb_per_s: f64,
    /// Author of the change, a person or a program.
    pub who: String,
    /// The reason.
    pub why: String,
    /// Accept a bandwidth above the one that the links allow, too.
    #[serde(default)]
    pub force: bool,
    /// Idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// Withdraws a reading.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WithdrawRequest {
    /// Its number.
    pub id: i64,
    /// Author of the change, a person or a program.
    pub who: String,
    /// The reason.
    pub why: String,
    /// Idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// The result of changing a reading.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ReadingChangeAnswer {
    /// The change.
    pub change: ReadingChange,
    /// True if the change was made before, under the same key.
    pub repeated: bool,
    /// True if a model may have learned the old value. That model is unchanged until the next fit; fits and diagnoses
    /// use the change immediately.
    pub fit_again: bool,
}

impl Engine {
    /// Lists readings with their changes. Two reads of the store per changed reading.
    pub fn readings(&self, r: &ReadingsRequest) -> Result<ReadingsAnswer, EngineError> {
        let index = self.cluster.host_index();
        let host = |name: &String| {
            index.get(name.as_str()).copied().ok_or_else(|| EngineError::BadRequest {
                code: "unknown_host",
                message: format!(
                    "cluster `{}` has no host `{}`",
                    self.cluster.name,
                    name.chars().take(60).collect::<String>()
                ),
            })
        };
        let limit = r.limit.unwrap_or(LIMIT_DEFAULT).min(LIMIT_MAX);
        if limit == 0 {
            return Err(EngineError::bad(format!("`limit` is 0; 1 to {LIMIT_MAX} was expected")));
        }
        let query = Query {
            job: r.job.clone(),
            touching: r.hosts.iter().map(host).collect::<Result<_, _>>()?,
            collective: r.collective,
            size: r.size_bytes.map(Bytes),
            after: r.after,
            with_withdrawn: r.withdrawn,
            newest: r.after.is_none().then_some(limit + 1),
            oldest: Some(limit + 1),
            ..Query::all()
        };
        let store = self.store()?;
        let mut found = store.readings(&query)?;
        let mut named = 0;
        let fits = |s: &&StoredReading| {
            named += s.record.measurement.allocation.gpu_count();
            named <= GPUS_NAMED_MAX
        };
        let shown = match r.after {
            Some(_) => found.iter().take(limit).take_while(fits).count(),
            None => found.iter().rev().take(limit).take_while(fits).count(),
        };
        let more = found.len() > shown;
        match r.after {
            Some(_) => found.truncate(shown),
            None => drop(found.drain(..found.len() - shown)),
        }
        let readings = found.into_iter().map(|s| {
            let changes = store.history(s.id)?;
            Ok(self.told(s, changes))
        });
        Ok(ReadingsAnswer { readings: readings.collect::<Result<_, EngineError>>()?, more })
    }

    /// Replaces the bandwidth of a reading.
    ///
    /// # Errors
    /// Those of [`store::Store::correct`]; a bandwidth that no hardware can produce.
    pub fn correct(&self, r: &CorrectRequest, now_unix_s: f64) -> Result<ReadingChangeAnswer, EngineError> {
        let once = once(r.key.as_ref(), &CorrectRequest { key: None, ..r.clone() })?;
        let mut store = self.store()?;
        if !r.force {
            let found = store.readings(&Query { id: Some(r.id), with_withdrawn: true, ..Query::all() })?;
            for s in found {
                let mut m = s.record.measurement;
                if r.busbw_gb_per_s == 0.0 {
                    return Err(EngineError::bad(NO_BANDWIDTH));
                }
                m.busbw = Bandwidth::from_gb_per_s(r.busbw_gb_per_s);
                plausible::check(&self.cluster, &[m])?;
            }
        }
        let by = By { who: &r.who, why: &r.why, at_unix_s: now_unix_s, own_only: false };
        Ok(changed(store.correct(r.id, r.busbw_gb_per_s, &by, once.as_ref())?))
    }

    /// Withdraws a reading: it can still be listed, and no fit and no diagnosis uses it.
    ///
    /// # Errors
    /// Those of [`store::Store::withdraw`].
    pub fn withdraw(&self, r: &WithdrawRequest, now_unix_s: f64) -> Result<ReadingChangeAnswer, EngineError> {
        let once = once(r.key.as_ref(), &WithdrawRequest { key: None, ..r.clone() })?;
        let by = By { who: &r.who, why: &r.why, at_unix_s: now_unix_s, own_only: false };
        Ok(changed(self.store()?.withdraw(r.id, &by, once.as_ref())?))
    }

    fn told(&self, s: StoredReading, changes: Vec<ReadingChange>) -> StoredReadingAnswer {
        let list = |a: &Allocation| GpuList::new(&self.cluster, a);
        let m = s.record.measurement;
        StoredReadingAnswer {
            id: s.id,
            gpus: list(&m.allocation),
            collective: m.collective,
            size_bytes: m.size,
            busbw_gb_per_s: m.busbw.gb_per_s(),
            job: m.job,
            contention: m.contention,
            taken_at_unix_s: m.taken_at_unix_s,
            source: m.source,
            provenance: m.provenance,
            quality: m.quality,
            withdrawn: s.withdrawn,
            changes,
        }
    }
}

fn changed(done: Done<ReadingChange>) -> ReadingChangeAnswer {
    let fit_again = matches!(done.value.what, WhatChanged::Corrected | WhatChanged::Withdrawn);
    ReadingChangeAnswer { change: done.value, repeated: done.repeated, fit_again }
}
