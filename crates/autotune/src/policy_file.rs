//! The policy file of an offline run: the arm for each size, the measurements behind it, and a hash.

use ::tune::Arm;
use ::tune::gates::GateVerdict;
use ::tune::profile::{Profile, ProfileLine};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The version of the format.
const VERSION: u32 = 2;
/// Largest file, bytes.
pub const FILE_BYTES_MAX: usize = 4 << 20;

/// The whole file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyFile {
    /// The version of the format; the name of the field identifies the file.
    pub linkwise_tune_profile: u32,
    /// The origin of the numbers.
    pub provenance: Provenance,
    /// The arms that were measured.
    pub arms: Vec<String>,
    /// By size, rising: calls alone.
    pub isolated: Vec<SizeLine>,
    /// By size, rising: calls during computation; empty if not measured.
    pub overlapped: Vec<SizeLine>,
    /// SHA-256 over this file with this field empty, as compact JSON.
    pub sha256: String,
}

/// How the measurements were made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// The command that was run.
    pub command: String,
    /// The background command of the overlapped part, if linkwise started one.
    pub beside: Option<String>,
    /// The measured collective.
    pub collective: String,
    /// Number of ranks, if the output gives it.
    pub ranks: Option<u32>,
    /// Number of hosts of these ranks.
    pub hosts: Option<u32>,
    /// Number of ranks of the host with the most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks_per_host: Option<u32>,
    /// The models of the GPUs, if the output gives them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<String>,
    /// linkwise's version.
    pub linkwise: String,
    /// NCCL's version, if the output gives it.
    pub nccl_version: Option<String>,
    /// Start, seconds since 1970.
    pub started_unix_s: u64,
    /// Requested readings of each arm and size.
    pub iterations: u32,
    /// Discarded readings of each launch.
    pub warmup: u32,
    /// Largest number of launches that the readings of an arm are spread over. The arms take turns.
    pub rounds: u32,
    /// The part of the plan that fitted into the time.
    pub kept: Coverage,
    /// Warnings for users of the policy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The measurements that fitted into the given time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Coverage {
    /// The time that was given.
    pub minutes: f64,
    /// Time of all launches, seconds.
    pub took_s: f64,
    /// Complete turns.
    pub turns: u32,
    /// Readings of each size in a launch.
    pub iterations_per_launch: u32,
    /// Requested sizes that were not measured, bytes.
    pub sizes_left_out: Vec<u64>,
    /// Why the run ended before the plan did.
    pub stopped: Option<String>,
}

/// One size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SizeLine {
    /// Whole buffer, bytes.
    pub size_bytes: u64,
    /// The arm to use: AUTO unless another passed all gates.
    pub use_arm: String,
    /// One per arm, in the order of [`PolicyFile::arms`].
    pub arms: Vec<ArmLine>,
}

/// One arm at one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArmLine {
    /// Number of readings.
    #[serde(rename = "samples")]
    pub readings: usize,
    /// Their median, microseconds; `None` without readings.
    pub median_us: Option<f64>,
    /// Their interquartile range, microseconds.
    pub iqr_us: Option<f64>,
    /// The result of the gates against AUTO; `None` for AUTO itself.
    pub verdict: Option<String>,
    /// The gate that failed, if one did.
    pub failed_gate: Option<String>,
    /// Why readings are missing, if a launch failed.
    pub failure: Option<String>,
}

impl SizeLine {
    /// A line from the readings of each arm, microseconds, in the order of the arms and by turn.
    pub fn of_turns(
        arms: &[Arm],
        turns_us: &[Vec<Vec<f64>>],
        failures: &[Option<String>],
        size_bytes: u64,
    ) -> SizeLine {
        let (line, verdicts) = Profile::line_of_turns(arms, turns_us, size_bytes);
        let one = |i: usize| {
            let readings = turns_us[i].concat();
            let some = |f: fn(&[f64]) -> f64| (!readings.is_empty()).then(|| f(&readings));
            let verdict: Option<GateVerdict> = verdicts[i];
            ArmLine {
                readings: readings.len(),
                median_us: some(::stats::median),
                iqr_us: some(::stats::iqr),
                verdict: verdict.map(|v| v.to_string()),
                failed_gate: verdict.and_then(|v| v.failed).map(|g| g.word().to_owned()),
                failure: failures.get(i).cloned().flatten(),
            }
        };
        SizeLine { size_bytes, use_arm: arms[line.use_arm].to_string(), arms: (0..arms.len()).map(one).collect() }
    }
}

impl PolicyFile {
    /// A file with its hash.
    pub fn new(provenance: Provenance, arms: &[Arm], isolated: Vec<SizeLine>, overlapped: Vec<SizeLine>) -> PolicyFile {
        let arms = arms.iter().map(ToString::to_string).collect();
        let linkwise_tune_profile = VERSION;
        let mut file =
            PolicyFile { linkwise_tune_profile, provenance, arms, isolated, overlapped, sha256: String::new() };
        file.sha256 = file.hash();
        file
    }

    /// The hash that the file should have.
    pub fn hash(&self) -> String {
        let plain = PolicyFile { sha256: String::new(), ..self.clone() };
        let bytes = serde_json::to_vec(&plain).unwrap_or_default();
        Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect()
    }

    /// The file as text.
    pub fn text(&self) -> Result<String, String> {
        serde_json::to_string_pretty(self).map(|t| t + "\n").map_err(|e| e.to_string())
    }

    /// Reads a file. Pure; O(bytes).
    ///
    /// # Errors
    /// A message: not a policy file, another version, a wrong hash, or impossible arms or sizes.
    pub fn read(text: &str) -> Result<PolicyFile, String> {
        if text.len() > FILE_BYTES_MAX {
            return Err(format!("larger than {} MiB", FILE_BYTES_MAX >> 20));
        }
        let file: PolicyFile = serde_json::from_str(text)
            .map_err(|e| format!("not a policy file ({e}); `linkwise tune profile` writes them"))?;
        if file.linkwise_tune_profile != VERSION {
            return Err(format!(
                "format {}, but this version reads format {VERSION}: profile again",
                file.linkwise_tune_profile
            ));
        }
        if file.hash() != file.sha256 {
            return Err("the file was changed after it was written (its sha256 differs): profile again".into());
        }
        file.profile(false)?;
        if !file.overlapped.is_empty() {
            file.profile(true)?;
        }
        Ok(file)
    }

    /// The table of a policy, for calls alone or during computation.
    pub fn profile(&self, is_overlapped: bool) -> Result<Profile, String> {
        let arms = self.arms.iter().map(|a| a.parse()).collect::<Result<Vec<Arm>, String>>()?;
        let lines = if is_overlapped { &self.overlapped } else { &self.isolated };
        let line = |l: &SizeLine| -> Result<ProfileLine, String> {
            let unknown = || format!("size {}: `{}` is not among the arms", l.size_bytes, l.use_arm);
            let use_arm = self.arms.iter().position(|a| *a == l.use_arm).ok_or_else(unknown)?;
            let medians_us = l.arms.iter().map(|a| a.median_us.unwrap_or(0.0)).collect();
            Ok(ProfileLine { size_bytes: l.size_bytes, medians_us, use_arm })
        };
        let profile = Profile { arms, lines: lines.iter().map(line).collect::<Result<_, _>>()? };
        profile.check()?;
        Ok(profile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file() -> PolicyFile {
        let arms: Vec<Arm> = ["TREE/SIMPLE", "AUTO"].iter().map(|a| a.parse().unwrap()).collect();
        let around = |t: f64| (0..50).map(|i| t + f64::from(i % 5)).collect::<Vec<f64>>();
        let turns = |t| vec![around(t), around(t)];
        let line = |size| SizeLine::of_turns(&arms, &[turns(70.0), turns(100.0)], &[None, None], size);
        let provenance = Provenance {
            command: "all_reduce_perf".into(),
            beside: None,
            collective: "all_reduce".into(),
            ranks: Some(8),
            hosts: Some(1),
            ranks_per_host: Some(8),
            gpus: None,
            linkwise: "0".into(),
            nccl_version: None,
            started_unix_s: 0,
            iterations: 50,
            warmup: 10,
            rounds: 5,
            kept: Coverage {
                minutes: 2.0,
                took_s: 100.5,
                turns: 5,
                iterations_per_launch: 10,
                sizes_left_out: vec![],
                stopped: None,
            },
            warnings: vec![],
        };
        PolicyFile::new(provenance, &arms, vec![line(1 << 20), line(1 << 24)], vec![])
    }

    #[test]
    fn a_file_reads_back_and_says_which_arm_to_use() {
        let read = PolicyFile::read(&file().text().unwrap()).unwrap();
        assert_eq!(read, file());
        assert_eq!(read.profile(false).unwrap().arm_for(1 << 22).to_string(), "TREE/SIMPLE");
        assert!(read.profile(true).is_err(), "nothing was measured during computation");
    }

    #[test]
    fn a_changed_number_is_found() {
        let text = file().text().unwrap().replace("\"iterations\": 50", "\"iterations\": 51");
        assert!(PolicyFile::read(&text).unwrap_err().contains("sha256"));
        assert!(PolicyFile::read("{}").unwrap_err().contains("not a policy file"));
    }

    #[test]
    fn the_fuzz_targets_corpus_is_read() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/tune_policy/two_sizes.json");
        let read = PolicyFile::read(&std::fs::read_to_string(file).unwrap()).unwrap();
        assert_eq!(
            (read.isolated[0].use_arm.as_str(), read.overlapped[0].use_arm.as_str()),
            ("TREE/SIMPLE", "RING/SIMPLE")
        );
    }

    proptest! {
        #[test]
        fn any_text_is_a_file_or_an_error(text in "\\PC{0,200}") {
            let _ = PolicyFile::read(&text);
        }

        #[test]
        fn any_cut_of_a_file_is_an_error(at in 0usize..800) {
            let text = file().text().unwrap();
            prop_assert!(PolicyFile::read(text.get(..at).unwrap_or("")).is_err());
        }
    }
}
