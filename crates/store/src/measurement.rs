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

impl Source {
    /// All of them.
    pub const ALL: [Source; 5] =
        [Source::NcclTests, Source::Command, Source::Simulated, Source::Published, Source::Job];
    /// The word in files.
    pub fn name(self) -> &'static str {
        match self {
            Source::NcclTests => "nccl-tests",
            Source::Command => "command",
            Source::Simulated => "simulated",
            Source::Published => "published",
            Source::Job => "job",
        }
    }
}

impl std::str::FromStr for Source {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        Source::ALL
            .into_iter()
            .find(|x| x.name() == s)
            .ok_or_else(|| format!("`{s}` is not a source; known: {}", Source::ALL.map(Source::name).join(", ")))
    }
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

impl Quality {
    /// All of them.
    pub const ALL: [Quality; 3] = [Quality::Good, Quality::Suspect, Quality::Rejected];
    /// The word in files.
    pub fn name(self) -> &'static str {
        match self {
            Quality::Good => "good",
            Quality::Suspect => "suspect",
            Quality::Rejected => "rejected",
        }
    }
}

impl std::str::FromStr for Quality {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        Quality::ALL
            .into_iter()
            .find(|x| x.name() == s)
            .ok_or_else(|| format!("`{s}` is not a quality; known: {}", Quality::ALL.map(Quality::name).join(", ")))
    }
}

/// Largest bandwidth that is believed, GB/s.
pub const BUSBW_GB_PER_S_MAX: f64 = 1e6;
/// Largest message.
pub const SIZE_BYTES_MAX: u64 = 1 << 50;
/// Longest operation, seconds.
pub const TIME_S_MAX: f64 = 1e6;
/// Longest text field, bytes.
pub const TEXT_BYTES_MAX: usize = 4096;

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

    /// Is every value one that a store takes? The first broken rule in one sentence, field first.
    pub fn check(&self) -> Result<(), String> {
        let bw = self.busbw.gb_per_s();
        if self.allocation.is_empty() {
            return Err("allocation: it has no GPU".into());
        }
        if !(0.0..=BUSBW_GB_PER_S_MAX).contains(&bw) {
            return Err(format!("busbw_gb_per_s: {bw} is not between 0 and {BUSBW_GB_PER_S_MAX}"));
        }
        if !(1..=SIZE_BYTES_MAX).contains(&self.size.0) {
            return Err(format!("size_bytes: {} is not between 1 and {SIZE_BYTES_MAX}", self.size.0));
        }
        if let Some(t) = self.time.map(|t| t.0).filter(|t| !(0.0..=TIME_S_MAX).contains(t)) {
            return Err(format!("time_s: {t} is not between 0 and {TIME_S_MAX}"));
        }
        if let Some(t) = self.taken_at_unix_s.filter(|t| !t.is_finite()) {
            return Err(format!("taken_at_unix_s: {t} is not a time"));
        }
        let texts = [
            ("algorithm", self.algorithm.as_deref()),
            ("protocol", self.protocol.as_deref()),
            ("nccl_version", self.nccl_version.as_deref()),
            ("contention", self.contention.as_deref()),
            ("job", self.job.as_deref()),
            ("provenance", Some(self.provenance.as_str())),
        ];
        for (field, text) in texts {
            if text.is_some_and(|t| t.chars().any(char::is_control)) {
                return Err(format!("{field}: it has control characters"));
            }
            if text.is_some_and(|t| t.len() > TEXT_BYTES_MAX) {
                return Err(format!("{field}: longer than {TEXT_BYTES_MAX} bytes"));
            }
        }
        Ok(())
    }
}

/// A measurement with the name of the run that gave it.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Campaign point and repetition, unique in a store; none = not part of a campaign, stored as often as it is given.
    pub run_id: Option<String>,
    /// The reading.
    pub measurement: Measurement,
}

impl From<Measurement> for Record {
    fn from(measurement: Measurement) -> Self {
        Record { run_id: None, measurement }
    }
}
