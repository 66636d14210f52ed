//! Records the bandwidth that a job achieved: in the store, the model and the suspects.

use crate::answer::round;
use crate::error::EngineError;
use crate::gpus::GpuList;
use crate::hold::Engine;
use crate::jobs::once;
use crate::plausible;
use crate::teach::{Learned, NotLearned, Taught, kept};
use serde::{Deserialize, Serialize};
use store::state::{JobHeld, Snapshot, check_job_id};
use store::{By, Measurement, Quality, Query, Source, StateError};
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective, Seconds};

/// Message size if neither the reading nor the state has one.
const SIZE_DEFAULT: Bytes = Bytes::mib(16);
/// Time after the end of a job for which its author may report on it, seconds.
const AFTER_END_S: f64 = 86_400.0;
/// Maximum number of jobs in a note on contention.
const NAMED_MAX: usize = 16;
/// Maximum number of readings of one request.
const READINGS_MAX: usize = 10_000;

/// A bandwidth of 0 cannot be compared or learned: models learn ratios.
pub(crate) const NO_BANDWIDTH: &str =
    "a bus bandwidth of 0 GB/s cannot be recorded: no operation was completed, or its time is missing";

/// Most GPUs that an answer names, over all its readings: about 70 MB in JSON's tree. A hundred readings of ten thousand GPUs.
pub(crate) const GPUS_NAMED_MAX: usize = 1 << 20;

/// The bandwidth that a job achieved.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ObserveRequest {
    /// The job.
    pub job: String,
    /// Its GPUs; none: the GPUs that it holds in the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Vec<String>>,
    /// The readings.
    pub readings: Vec<ReadingIn>,
    /// True if the readings are simulated.
    #[serde(default)]
    pub simulated: bool,
    /// Store the readings without a change of the model and the suspects.
    #[serde(default)]
    pub only_store: bool,
    /// Store readings above the bandwidth that the links allow, too.
    #[serde(default)]
    pub force: bool,
    /// Idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// One reading.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadingIn {
    /// The collective.
    #[schemars(schema_with = "crate::schema::collective")]
    pub collective: Collective,
    /// Message size; none: the size of the job's placement, else 16 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Bus bandwidth, GB/s.
    pub busbw_gb_per_s: f64,
    /// Time of one operation, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_s: Option<f64>,
    /// `Ring`, `Tree`, ...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<String>,
    /// `LL`, `LL128`, `Simple`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Channels used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channels: Option<u32>,
    /// NCCL's version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nccl_version: Option<String>,
    /// Time of the reading, seconds since 1970; none: now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_at_unix_s: Option<f64>,
    /// Tool or file that produced it.
    #[serde(default)]
    pub provenance: String,
}

impl ReadingIn {
    /// A reading with the fields that every source has.
    pub fn new(collective: Collective, size: Option<Bytes>, busbw_gb_per_s: f64) -> ReadingIn {
        ReadingIn {
            collective,
            size_bytes: size.map(|s| s.0),
            busbw_gb_per_s,
            time_s: None,
            algorithm: None,
            protocol: None,
            channels: None,
            nccl_version: None,
            taken_at_unix_s: None,
            provenance: String::new(),
        }
    }
}

/// The result of recording readings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ObserveAnswer {
    /// The job.
    pub job: String,
    /// Results by reading, in the order of the request.
    pub readings: Vec<ReadingAnswer>,
    /// Number of readings that the model learned; 0 without a model.
    pub learned: usize,
    /// Suspected components in words, with their probabilities; none without a model, and where no reading is of its collective.
    pub suspected: Option<Vec<String>>,
    /// True if the readings were stored before, under the same key; this is the earlier answer.
    pub repeated: bool,
}

/// The result of recording one reading.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ReadingAnswer {
    /// Its number in the store.
    pub id: Option<i64>,
    /// Its GPUs.
    pub gpus: GpuList,
    /// The collective.
    #[schemars(schema_with = "crate::schema::collective")]
    pub collective: Collective,
    /// Message size.
    pub size_bytes: Bytes,
    /// Bus bandwidth, GB/s.
    pub busbw_gb_per_s: f64,
    /// Other jobs on its NICs.
    pub contention: Option<String>,
    /// What the links allow, GB/s, where the reading is far above: its unit or the rates in the cluster file may be wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links_allow_gb_per_s: Option<f64>,
    /// What the physics expects, GB/s, where the reading is less than a thousandth of it: its unit may be wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub physics_gb_per_s: Option<f64>,
    /// What the model predicts after the reading, GB/s, where the model learned a reading that has one of the two fields above or is more than
    /// three standard deviations from its prediction: such a reading may move the prediction little.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicts_now_gb_per_s: Option<f64>,
    /// The effect on the model; none without a model.
    #[serde(flatten)]
    pub taught: Taught,
}

/// An observed job: its GPUs and its neighbours.
#[derive(Clone, Debug, PartialEq)]
pub struct ObservedJob {
    /// Its id.
    pub job: String,
    /// Its GPUs, two or more.
    pub gpus: Allocation,
    /// Message size of its placement.
    pub placed_for: Option<Bytes>,
    /// Jobs that share NICs with this job, as text.
    pub contention: Option<String>,
}

/// A job of an author who reports on its own jobs only.
struct OwnJob {
    gpus: Allocation,
    /// False if it has ended.
    goes_on: bool,
}

impl Engine {
    /// The observed job: the given GPUs, else those in the state; neighbours from the state.
    ///
    /// # Errors
    /// A bad id; no GPUs are given and the job holds none in the state; a job of one GPU.
    pub fn observed_job(&self, job: &str, gpus: Option<&Allocation>) -> Result<ObservedJob, EngineError> {
        check_job_id(job).map_err(EngineError::bad)?;
        let now = if self.has_state() { Some(self.snapshot()?) } else { None };
        let (gpus, placed_for) = match (gpus, &now) {
            (Some(gpus), _) => (gpus.clone(), None),
            (None, Some(now)) => {
                let held = now.job(job).ok_or_else(|| not_held(job, now))?;
                (held.gpus.clone(), held.size)
            }
            (None, None) => {
                return Err(EngineError::bad("give --state or --gpus: the job's GPUs must be known"));
            }
        };
        if gpus.is_empty() {
            return Err(EngineError::bad(format!("`gpus` names no GPU of job `{job}`")));
        }
        if gpus.gpu_count() < 2 {
            return Err(EngineError::OneGpu { job: job.into() });
        }
        let contention = now.as_ref().and_then(|n| contention(&self.cluster, n, job, &gpus));
        Ok(ObservedJob { job: job.into(), gpus, placed_for, contention })
    }

    /// The job on whose GPUs an author may report who reports on its own jobs only: the one that it has under this name, else the last one that
    /// it had, even if another author has the name now. None: on any.
    fn own_job(&self, r: &ObserveRequest, by: By<'_>) -> Result<Option<OwnJob>, EngineError> {
        if !by.own_only {
            return Ok(None);
        }
        check_job_id(&r.job).map_err(EngineError::bad)?;
        if r.force {
            return Err(EngineError::bad("`force` is for operators: leave it out"));
        }
        let now = self.snapshot()?;
        if let Some(job) = now.job(&r.job).filter(|j| j.made_by == by.who) {
            return Ok(Some(OwnJob { gpus: job.gpus.clone(), goes_on: true }));
        }
        let not_its = |why| EngineError::NotItsGpus { job: r.job.clone(), why };
        let Some(last) = self.reads()?.last_held_by(&r.job, by.who)? else {
            let made_by = match now.job(&r.job) {
                Some(job) => Some(job.made_by.clone()),
                None => self.reads()?.last_holder(&r.job)?.map(|h| h.who),
            };
            let made_by = made_by.ok_or_else(|| not_held(&r.job, &now))?;
            return Err(StateError::NotYours { id: r.job.clone(), made_by }.into());
        };
        if last.ended_at_unix_s.is_some_and(|end| by.at_unix_s - end > AFTER_END_S) {
            return Err(not_its("a day has passed since the end of"));
        }
        // A host was renamed or removed meanwhile.
        let gpus = self.cluster.parse_gpus([last.gpus.as_str()]);
        let gpus = gpus.map_err(|_| not_its("the cluster has changed since the end of"))?;
        Ok(Some(OwnJob { gpus, goes_on: false }))
    }

    /// Stores a job's readings, teaches the model, and updates the suspects. A request with a key is executed once. If
    /// an earlier attempt was killed between storing and answering, the repetition continues with the stored readings:
    /// withdrawn readings are not learned, and readings that were learned are not learned again.
    ///
    /// # Errors
    /// Those of [`Engine::observed_job`]; no store; a reading that the store refuses or that no hardware can produce.
    pub fn observe<'a>(&self, r: &ObserveRequest, by: impl Into<By<'a>>) -> Result<ObserveAnswer, EngineError> {
        let by = by.into();
        let now_unix_s = by.at_unix_s;
        let once = once(r.key.as_ref(), &ObserveRequest { key: None, ..r.clone() })?;
        if let Some(o) = &once
            && let Some(answer) = self.store()?.answered(o)?
        {
            return repeated(&answer); // also if the job has ended since
        }
        // The lock is held from before the readings are stored until the answer: during this time no fit and no request
        // with the same key learns the readings.
        let teaches = !r.only_store && self.model_if_any().is_some();
        let _alone = teaches.then(|| self.learning());
        let begun = match &once {
            Some(o) => self.store()?.added(o)?,
            None => None,
        };
        let (added, fresh) = match begun {
            Some(added) => (added, Vec::new()), // also if the job has ended since
            None => {
                let measurements = self.observed(r, by)?;
                let records: Vec<store::Record> = measurements.iter().cloned().map(Into::into).collect();
                (self.store()?.add(&records, once.as_ref(), now_unix_s)?, measurements)
            }
        };
        if let Some(answer) = &added.answer {
            return repeated(answer);
        }
        let readings =
            if added.repeated { self.stored(&added.ids)? } else { fresh.into_iter().map(|m| (m, None)).collect() };
        let why_not = |gone: Option<NotLearned>| gone.or(added.taught.then_some(NotLearned::TaughtBefore));
        let lesson: Vec<Measurement> =
            readings.iter().filter(|(_, gone)| why_not(*gone).is_none()).map(|(m, _)| m.clone()).collect();
        let learned = if teaches { Some(self.teach(&lesson, once.as_ref())?) } else { None };
        let mut taught = learned.iter().flat_map(|l| l.taught.iter().cloned());
        let measured: Vec<Measurement> = readings.iter().map(|r| r.0.clone()).collect();
        let mut above = plausible::above_links(&self.cluster, &measured).into_iter();
        let mut below = plausible::below_physics(&self.cluster, &measured).into_iter();
        let mut told = Vec::with_capacity(readings.len());
        for (i, (m, gone)) in readings.into_iter().enumerate() {
            let (above, below) = (above.next().flatten(), below.next().flatten());
            let taught = match why_not(gone) {
                Some(why) => Taught::nothing(teaches.then_some(why)),
                None => taught.next().unwrap_or(Taught::nothing(None)),
            };
            let odd = above.is_some() || below.is_some() || taught.surprises(m.busbw.gb_per_s());
            let model = learned.as_ref().filter(|_| taught.learned && odd);
            let predicts = |l: &Learned| round(l.model.predict_allocation(m.size, &m.allocation).busbw_gb_per_s);
            told.push(ReadingAnswer {
                id: added.ids.get(i).copied().flatten(),
                gpus: GpuList::new(&self.cluster, &m.allocation),
                collective: m.collective,
                size_bytes: m.size,
                busbw_gb_per_s: m.busbw.gb_per_s(),
                contention: m.contention,
                links_allow_gb_per_s: above.map(round),
                physics_gb_per_s: below.map(round),
                predicts_now_gb_per_s: model.map(predicts),
                taught,
            });
        }
        let answer = ObserveAnswer {
            job: r.job.clone(),
            readings: told,
            learned: learned.as_ref().map_or(0, Learned::updates),
            suspected: learned.as_ref().filter(|l| told_of(l, &measured)).map(Learned::suspected),
            repeated: false,
        };
        self.keep_answer(once.as_ref(), &shortened(&answer))?;
        Ok(answer)
    }

    /// The readings of a request, checked.
    fn observed(&self, r: &ObserveRequest, by: By<'_>) -> Result<Vec<Measurement>, EngineError> {
        let now_unix_s = by.at_unix_s;
        let own = self.own_job(r, by)?;
        let named = r.gpus.as_deref().map(|g| self.gpus(g)).transpose()?;
        // Under the name of a job that has ended, another one may hold GPUs.
        let gpus = named.or_else(|| own.as_ref().filter(|o| !o.goes_on).map(|o| o.gpus.clone()));
        let job = self.observed_job(&r.job, gpus.as_ref())?;
        if !own.is_none_or(|o| o.gpus.contains_all(&job.gpus)) {
            return Err(EngineError::NotItsGpus { job: job.job, why: "not all of these GPUs are or were those of" });
        }
        if r.readings.is_empty() || r.readings.len() > READINGS_MAX {
            return Err(EngineError::bad(format!(
                "`readings` has {} entries; 1 to {READINGS_MAX} fit",
                r.readings.len()
            )));
        }
        let (gpus, readings) = (job.gpus.gpu_count(), r.readings.len());
        if gpus * readings > GPUS_NAMED_MAX {
            return Err(EngineError::bad(format!(
                "{readings} readings of {gpus} GPUs each are too many for one request; send at most {} at a time",
                GPUS_NAMED_MAX / gpus
            )));
        }
        let measurements: Vec<Measurement> = r.readings.iter().map(|x| job.measurement(x, r, now_unix_s)).collect();
        for m in &measurements {
            if m.busbw.gb_per_s() == 0.0 {
                return Err(EngineError::bad(NO_BANDWIDTH));
            }
            plausible::check_time(m, now_unix_s)?;
            m.check().map_err(|e| EngineError::bad(format!("what the job got cannot be: {e}")))?;
        }
        if !r.force {
            plausible::check(&self.cluster, &measurements)?;
        }
        Ok(measurements)
    }

    /// The stored readings of an earlier attempt of the request, each with the reason if it was withdrawn or rejected.
    fn stored(&self, ids: &[Option<i64>]) -> Result<Vec<(Measurement, Option<NotLearned>)>, EngineError> {
        let store = self.store()?;
        let mut readings = Vec::with_capacity(ids.len());
        for id in ids {
            // Every reading of an observation has a number, because observations have no run ids.
            let id = id.ok_or_else(|| EngineError::KeptAnswer("a reading has no number".into()))?;
            let found = store.readings(&Query { id: Some(id), with_withdrawn: true, ..Query::all() })?.pop();
            let found = found.ok_or_else(|| EngineError::KeptAnswer(format!("reading {id} no longer exists")))?;
            let m = found.record.measurement;
            let gone = (found.withdrawn || m.quality == Quality::Rejected).then_some(NotLearned::Gone);
            readings.push((m, gone));
        }
        Ok(readings)
    }
}

/// True if a reading is of the collective of the model, and so of its suspects.
fn told_of(l: &Learned, readings: &[Measurement]) -> bool {
    readings.iter().any(|m| m.collective == l.model.collective())
}

/// The answer as it is kept: all readings of a request are of the same GPUs, which the first one names. Thirty sizes of a job of ten
/// thousand GPUs would else be too long to be kept.
fn shortened(answer: &ObserveAnswer) -> ObserveAnswer {
    let mut short = answer.clone();
    if let Some((first, others)) = short.readings.split_first_mut() {
        others.iter_mut().filter(|r| r.gpus == first.gpus).for_each(|r| r.gpus = GpuList::default());
    }
    short
}

/// The reverse of [`shortened`].
fn repeated(answer: &str) -> Result<ObserveAnswer, EngineError> {
    let mut a: ObserveAnswer = kept(answer)?;
    if let Some((first, others)) = a.readings.split_first_mut() {
        others.iter_mut().filter(|r| r.gpus == GpuList::default()).for_each(|r| r.gpus = first.gpus.clone());
    }
    Ok(ObserveAnswer { repeated: true, ..a })
}

fn not_held(job: &str, now: &Snapshot) -> EngineError {
    let known: Vec<&str> = now.jobs.iter().rev().take(5).map(|j| j.id.as_str()).collect();
    let known = if known.is_empty() { "no job does".into() } else { format!("jobs that do: {}", known.join(", ")) };
    EngineError::NotHeld { job: job.into(), known }
}

/// Jobs across several hosts that share a NIC with this job, as text; none if no other job uses its NICs.
fn contention(cluster: &Cluster, now: &Snapshot, job: &str, gpus: &Allocation) -> Option<String> {
    if gpus.host_count() < 2 {
        return None;
    }
    let nics = |a: &Allocation, h| cluster.type_of(h).nics_touched(a.mask(h));
    let meets = |j: &&JobHeld| {
        j.id != job
            && j.gpus.host_count() > 1
            && gpus.parts().iter().any(|&(h, _)| nics(gpus, h) & nics(&j.gpus, h) != 0)
    };
    let with: Vec<&str> = now.jobs.iter().filter(meets).map(|j| j.id.as_str()).take(NAMED_MAX).collect();
    (!with.is_empty()).then(|| format!("shares NICs with {}", with.join(", ")))
}

impl ObservedJob {
    fn measurement(&self, x: &ReadingIn, r: &ObserveRequest, now_unix_s: f64) -> Measurement {
        let size = x.size_bytes.map(Bytes).or(self.placed_for).unwrap_or(SIZE_DEFAULT);
        let busbw = Bandwidth::from_gb_per_s(x.busbw_gb_per_s);
        let source = if r.simulated { Source::Simulated } else { Source::Job };
        Measurement {
            time: x.time_s.map(Seconds),
            algorithm: x.algorithm.clone(),
            protocol: x.protocol.clone(),
            channels: x.channels,
            nccl_version: x.nccl_version.clone(),
            contention: self.contention.clone(),
            job: Some(self.job.clone()),
            taken_at_unix_s: Some(x.taken_at_unix_s.unwrap_or(now_unix_s)),
            provenance: x.provenance.clone(),
            ..Measurement::new(self.gpus.clone(), x.collective, size, busbw, source)
        }
    }
}
