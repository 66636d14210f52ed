//! Why Slurm placed a job itself, from its record: for jobs that the plugin never asked about.

use crate::books::value;
use crate::tres;
use serde_json::json;
use std::collections::HashSet;

/// Number of comments written in one round: the controller has other work.
pub const ROUND_MAX: usize = 32;

/// True if the record asks for GPUs.
pub fn asks_for_gpus(record: &str) -> bool {
    tres::FIELDS.iter().any(|f| tres::gpus(record, f).is_some())
}

/// What in the record made Slurm place the job itself. `connected`: an agent answered when the job started, as far as is known.
pub fn of(record: &str, connected: bool) -> &'static str {
    let has = |key: &str| {
        value(record, key).is_some_and(|v| !matches!(v, "" | "(null)" | "0" | "N/A" | "Unknown" | "00:00:00"))
    };
    let kinds: HashSet<&str> = tres::FIELDS.iter().flat_map(|f| tres::gres(record, f)).map(|g| g.0).collect();
    match () {
        _ if record.contains("linkwise=off") => "linkwise=off",
        _ if value(record, "HetJobId").is_some() => "a heterogeneous job",
        _ if has("Licenses") => "a job with licences",
        _ if has("Features") => "--constraint",
        _ if has("PreferFeatures") => "--prefer",
        _ if value(record, "Contiguous").is_some_and(|v| v == "1") => "--contiguous",
        _ if record.contains(" SegmentSize=") => "--segment",
        _ if has("Deadline") => "--deadline",
        _ if value(record, "TimeMin").is_some_and(|v| v != "N/A") => "--time-min",
        _ if record.contains(" NtasksPerTRES:") => "--ntasks-per-gpu",
        _ if has("TresPerSocket") => "--gpus-per-socket",
        _ if kinds.len() > 1 => "another GRES than gpu",
        _ if !connected => "no agent",
        _ => "the plugin did not ask: --immediate, a magnetic reservation, or the start was not the main scheduler's",
    }
}

/// Comments for jobs that Slurm placed without a word.
#[derive(Default)]
pub struct Comments {
    done: HashSet<u32>,
}

impl Comments {
    /// The job number and the comment of at most [`ROUND_MAX`] jobs with GPUs that started without linkwise and whose AdminComment
    /// is empty. `records` is the text of `scontrol show job -o`. O(bytes).
    pub fn due(&mut self, records: &str, connected: bool) -> Vec<(u32, String)> {
        let mut present = HashSet::new();
        let mut due = Vec::new();
        for record in records.lines() {
            let Some(id) = value(record, "JobId").and_then(|n| n.parse().ok()) else { continue };
            present.insert(id);
            let state = value(record, "JobState").unwrap_or_default();
            // Slurm refuses a comment for a job that has ended.
            let running = state.starts_with("RUNNING") || state.starts_with("SUSPENDED");
            let commented = record.contains(" AdminComment=");
            if !running || self.done.contains(&id) || due.len() >= ROUND_MAX {
                continue;
            }
            if !commented && asks_for_gpus(record) {
                due.push((id, json!({"linkwise": "slurm", "reason": of(record, connected)}).to_string()));
            }
            self.done.insert(id);
        }
        // Numbers come again after years; the controller forgets jobs after minutes.
        self.done.retain(|id| present.contains(id));
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(more: &str) -> String {
        format!(
            "JobId=7 JobName=x JobState=RUNNING StartTime=2026-11-23T06:00:00 OverSubscribe=OK Contiguous=0 Licenses=(null) Features=(null) Deadline=N/A TimeMin=N/A {more} TresPerJob=gres:gpu:2"
        )
    }

    #[test]
    fn the_request_says_why_slurm_placed_the_job() {
        let of = |more: &str| super::of(&record(more), true);
        assert_eq!(of("HetJobId=7"), "a heterogeneous job");
        assert_eq!(of("TresPerNode=gres:shard:1"), "another GRES than gpu");
        let newer = record("").replace("gres:gpu:2", "gres/gpu:2");
        assert!(asks_for_gpus(&newer) && super::of(&newer, true).starts_with("the plugin did not ask"));
        assert!(!asks_for_gpus(&record("").replace("gres:gpu:2", "gres/gpumem:2")));
        assert_eq!(of("SegmentSize=2"), "--segment");
        assert!(of("").starts_with("the plugin did not ask"));
        assert_eq!(super::of(&record(""), false), "no agent");
        let features = record("").replace("Features=(null)", "Features=a100");
        assert_eq!(super::of(&features, true), "--constraint");
    }

    #[test]
    fn jobs_without_gpus_with_a_comment_and_waiting_ones_get_none() {
        let mut c = Comments::default();
        let text = [
            record(""),
            record("").replace("JobId=7", "JobId=8").replace("TresPerJob=gres:gpu:2", "TresPerJob=gres:shard:1"),
            record("AdminComment=an operator").replace("JobId=7", "JobId=9"),
            record("").replace("JobId=7", "JobId=10").replace("RUNNING", "PENDING"),
        ];
        let due = c.due(&text.join("\n"), true);
        assert_eq!(due.iter().map(|d| d.0).collect::<Vec<_>>(), [7]);
        assert!(c.due(&text.join("\n"), true).is_empty(), "once");
        let ended = text.join("\n").replace("PENDING", "COMPLETED");
        assert!(c.due(&ended, true).is_empty());
        let started = text.join("\n").replace("PENDING", "RUNNING");
        assert_eq!(c.due(&started, true).iter().map(|d| d.0).collect::<Vec<_>>(), [10]);
    }
}
