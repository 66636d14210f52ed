//! [`Measurement`]: one schema for benchmark runs, jobs and tuning samples.

use topology::{Allocation, Bandwidth, Bytes, Collective, Seconds};

/// Where a measurement comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// A run of nccl-tests.
    NcclTests,
    /// The user's own benchmark command.
    Command,
    /// linkwise's simulator: never to be shown as measured.
    Simulated,
    /// A table that somebody published.
    Published,
    /// A job that was running for its own purpose.
    Job,
}

/// How far a measurement is to be trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quality {
    /// Nothing speaks against it.
    #[default]
    Good,
    /// It lies far from its class or neighbours and was not repeated.
    Suspect,
    /// A repetition showed it to be wrong; kept for the record, not used to fit.
    Rejected,
}

/// One reading: what an allocation got.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// The GPUs, of the cluster that the store belongs to.
    pub allocation: Allocation,
    /// What ran.
    pub collective: Collective,
    /// nccl-tests' size column: the whole buffer.
    pub size: Bytes,
    /// Bus bandwidth.
    pub busbw: Bandwidth,
    /// Time of one operation, if it was told.
    pub time: Option<Seconds>,
    /// `Ring`, `Tree`, `NVLS`, ...; none = NCCL chose and did not say.
    pub algorithm: Option<String>,
    /// `LL`, `LL128`, `Simple`.
    pub protocol: Option<String>,
    /// Channels used.
    pub channels: Option<u32>,
    /// NCCL's version, `2.27.7`.
    pub nccl_version: Option<String>,
    /// What else ran at the time: none = idle cluster; else a word or a list of allocations.
    pub contention: Option<String>,
    /// The job it belongs to.
    pub job: Option<String>,
    /// When, seconds since 1970; none = unknown (published tables).
    pub taken_at_unix_s: Option<f64>,
    /// Where it comes from.
    pub source: Source,
    /// Tool, file or command behind it, for people.
    pub provenance: String,
    /// How far to trust it.
    pub quality: Quality,
}

impl Measurement {
    /// A measurement with only what every source tells; the rest unknown.
    pub fn new(allocation: Allocation, collective: Collective, size: Bytes, busbw: Bandwidth, source: Source) -> Self {
        Measurement {
            allocation,
            collective,
            size,
            busbw,
            time: None,
            algorithm: None,
            protocol: None,
            channels: None,
            nccl_version: None,
            contention: None,
            job: None,
            taken_at_unix_s: None,
            source,
            provenance: String::new(),
            quality: Quality::Good,
        }
    }
}
