//! [`Measurement`]: one schema for benchmark runs, jobs and tuning readings.

use topology::{Allocation, Bandwidth, Bytes, Collective, Seconds};

/// The source of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// A run of nccl-tests.
    NcclTests,
    /// The user's own benchmark command.
    Command,
    /// linkwise's simulator. Output must not call such readings measured.
    Simulated,
    /// A published table.
    Published,
    /// A production job that reported its bandwidth.
    Job,
}

impl Source {
    /// All sources.
    pub const ALL: [Source; 5] =
        [Source::NcclTests, Source::Command, Source::Simulated, Source::Published, Source::Job];
    /// The name in files.
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

/// The quality of a measurement.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Quality {
    /// No check found a problem.
    #[default]
    Good,
    /// It deviates far from comparable measurements and was not repeated.
    Suspect,
    /// A repetition contradicted it. It is kept, and no fit uses it.
    Rejected,
}

impl Quality {
    /// All values.
    pub const ALL: [Quality; 3] = [Quality::Good, Quality::Suspect, Quality::Rejected];
    /// The name in files.
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

/// Largest plausible bandwidth, GB/s.
pub const BUSBW_GB_PER_S_MAX: f64 = 1e6;
/// Smallest plausible bandwidth above 0, GB/s: 1 kB/s. Models learn ratios, and one reading of 1e-300 would hide the differences of all others.
pub const BUSBW_GB_PER_S_MIN: f64 = 1e-6;

/// Checks a bandwidth: 0, or within the limits. The error begins with the field.
pub(crate) fn check_busbw(gb_per_s: f64) -> Result<(), String> {
    if gb_per_s == 0.0 || (BUSBW_GB_PER_S_MIN..=BUSBW_GB_PER_S_MAX).contains(&gb_per_s) {
        return Ok(());
    }
    let shown = if (1e-9..1e9).contains(&gb_per_s.abs()) { gb_per_s.to_string() } else { format!("{gb_per_s:e}") };
    let least = if gb_per_s > 0.0 && gb_per_s < 1.0 { "1e-6" } else { "0" };
    Err(format!("busbw_gb_per_s: {shown} is not between {least} and {BUSBW_GB_PER_S_MAX}"))
}
/// Largest message, bytes.
pub const SIZE_BYTES_MAX: u64 = 1 << 50;
/// Longest operation, seconds.
pub const TIME_S_MAX: f64 = 1e6;
/// Longest text field, bytes.
pub const TEXT_BYTES_MAX: usize = 4096;

/// One reading: the bandwidth of an allocation.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// The GPUs, of the cluster that the store belongs to.
    pub allocation: Allocation,
    /// The collective.
    pub collective: Collective,
    /// Message size: the whole buffer, as in nccl-tests' size column.
    pub size: Bytes,
    /// Bus bandwidth.
    pub busbw: Bandwidth,
    /// Time of one operation, if the source reports it.
    pub time: Option<Seconds>,
    /// `Ring`, `Tree`, `NVLS`, ...; none = NCCL's choice, unknown.
    pub algorithm: Option<String>,
    /// `LL`, `LL128`, `Simple`.
    pub protocol: Option<String>,
    /// Channels used.
    pub channels: Option<u32>,
    /// NCCL's version, `2.27.7`.
    pub nccl_version: Option<String>,
    /// Other load during the measurement: none = idle cluster; else a word or a list of allocations.
    pub contention: Option<String>,
    /// The job that reported it.
    pub job: Option<String>,
    /// Time of the measurement, seconds since 1970; none = unknown (published tables).
    pub taken_at_unix_s: Option<f64>,
    /// Its source.
    pub source: Source,
    /// Tool, file or command that produced it; free text.
    pub provenance: String,
    /// Its quality.
    pub quality: Quality,
}

impl Measurement {
    /// A measurement with the fields that every source has; the other fields are unknown.
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

    /// Checks every value. The error states the first broken rule in one sentence that begins with the field.
    pub fn check(&self) -> Result<(), String> {
        if self.allocation.is_empty() {
            return Err("allocation: it has no GPU".into());
        }
        check_busbw(self.busbw.gb_per_s())?;
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

/// A measurement with its run id.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Campaign point and repetition, unique in a store; none = not part of a campaign, and every insert stores it again.
    pub run_id: Option<String>,
    /// The reading.
    pub measurement: Measurement,
}

impl From<Measurement> for Record {
    fn from(measurement: Measurement) -> Self {
        Record { run_id: None, measurement }
    }
}
