//! The status of a process that leads communicators, for operators: a snapshot, and its forms as JSON and as Prometheus text.
//!
//! The setting `status = FOLDER` names the folder. The worker takes a snapshot at every [`INTERVAL`]; rendering and writing are functions of the
//! snapshot, so that any thread can call them. Each file is replaced in one step.
//!
//! | file | content |
//! |---|---|
//! | `status-HOST-PID.json` | the snapshot; `linkwise watch FOLDER` reads it |
//! | `linkwise-HOST-PID.prom` | the same as Prometheus text, for node_exporter's text collector |
//! | `waiting-HOST-PID.json` | the last snapshot during which a call waited longer than [`DUMP_AFTER`]: it names the silent ranks. Without `status` it is written beside the trace, else to the log |

use crate::trace::quoted;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

/// Time between two snapshots. Prometheus scrapes every 15 s or more.
pub const INTERVAL: Duration = Duration::from_secs(2);
/// A call that waits longer causes a dump.
pub const DUMP_AFTER: Duration = Duration::from_secs(1);
/// Limits of a snapshot; what is beyond is counted as left out.
pub const COMMS_MAX: usize = 256;
/// Slots of all communicators.
pub const SLOTS_MAX: usize = 1024;
/// Silent ranks of one communicator.
pub const SILENT_MAX: usize = 64;

/// The arm in use for one collective and size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotStatus {
    /// Such as `ALLREDUCE`.
    pub collective: &'static str,
    /// The middle of the sizes, bytes.
    pub size_bytes: u64,
    pub arm: String,
    /// The policy's reason, which has the times that it compared.
    pub because: String,
}

/// One rank of a communicator in this process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CommStatus {
    pub id: u64,
    /// -1 if NCCL does not provide it.
    pub rank: i32,
    pub ranks: u32,
    pub nodes: u32,
    /// This process leads the communicator.
    pub leads: bool,
    pub calls: u64,
    /// The epoch in force.
    pub epoch: u64,
    /// Calls that waited for a verdict, and the longest wait.
    pub waits: u64,
    pub longest_wait_us: u64,
    /// A call waits now, for this long.
    pub waiting_us: Option<u64>,
    /// Records dropped because the worker was too slow.
    pub dropped: u64,
    /// Ranks that have not answered the proposal or verdict that is on its way; only where this process leads.
    pub silent: Vec<i32>,
    /// Only where this process leads.
    pub slots: Vec<SlotStatus>,
}

/// A snapshot of a process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StatusSnapshot {
    /// Seconds since 1970.
    pub at_unix_s: u64,
    /// Hash that the job's processes share.
    pub job: u64,
    pub host: u64,
    pub host_name: String,
    pub pid: u32,
    pub mode: String,
    pub policy: String,
    pub site_tuner: Option<String>,
    /// All ranks return to AUTO for the rest of the job.
    pub stopped: bool,
    /// Exploring has ended by the setting `freeze_after`.
    pub frozen: bool,
    /// Changes of an arm so far.
    pub changes: u64,
    pub comms: Vec<CommStatus>,
    /// Communicators and slots beyond the limits.
    pub left_out: u64,
}

impl StatusSnapshot {
    /// A call waits longer than [`DUMP_AFTER`].
    pub fn is_stuck(&self) -> bool {
        self.comms.iter().any(|c| c.waiting_us.is_some_and(|us| u128::from(us) >= DUMP_AFTER.as_micros()))
    }

    /// Cuts what is beyond the limits. Communicators that wait come first, then those that this process leads.
    pub fn limit(&mut self) {
        self.comms.sort_by_key(|c| (c.waiting_us.is_none(), !c.leads, c.id, c.rank));
        self.left_out += self.comms.len().saturating_sub(COMMS_MAX) as u64;
        self.comms.truncate(COMMS_MAX);
        let mut left = SLOTS_MAX;
        for c in &mut self.comms {
            let keep = c.slots.len().min(left);
            self.left_out += (c.slots.len() - keep) as u64;
            c.slots.truncate(keep);
            left -= keep;
            c.silent.truncate(SILENT_MAX);
        }
    }

    /// As JSON, one object.
    pub fn json(&self) -> String {
        let mut out = format!(
            "{{\"linkwise_status\":1,\"at_unix_s\":{},\"job\":\"{:016x}\",\"host\":\"{:016x}\",\"host_name\":{},\"pid\":{},\"mode\":{},\"policy\":{},\"site_tuner\":{},\"stopped\":{},\"frozen\":{},\"changes\":{},\"left_out\":{},\"comms\":[",
            self.at_unix_s,
            self.job,
            self.host,
            quoted(&self.host_name),
            self.pid,
            quoted(&self.mode),
            quoted(&self.policy),
            self.site_tuner.as_deref().map_or("null".into(), quoted),
            self.stopped,
            self.frozen,
            self.changes,
            self.left_out
        );
        for (i, c) in self.comms.iter().enumerate() {
            let silent: Vec<String> = c.silent.iter().map(ToString::to_string).collect();
            let _ = write!(
                out,
                "{}{{\"comm\":\"{:016x}\",\"rank\":{},\"ranks\":{},\"nodes\":{},\"leads\":{},\"calls\":{},\"epoch\":{},\"waits\":{},\"longest_wait_us\":{},\"waiting_us\":{},\"dropped\":{},\"silent\":[{}],\"slots\":[",
                if i == 0 { "" } else { "," },
                c.id,
                c.rank,
                c.ranks,
                c.nodes,
                c.leads,
                c.calls,
                c.epoch,
                c.waits,
                c.longest_wait_us,
                c.waiting_us.map_or("null".into(), |us| us.to_string()),
                c.dropped,
                silent.join(",")
            );
            for (k, s) in c.slots.iter().enumerate() {
                let _ = write!(
                    out,
                    "{}{{\"collective\":{},\"size_bytes\":{},\"arm\":{},\"because\":{}}}",
                    if k == 0 { "" } else { "," },
                    quoted(s.collective),
                    s.size_bytes,
                    quoted(&s.arm),
                    quoted(&s.because)
                );
            }
            out.push_str("]}");
        }
        out.push_str("]}\n");
        out
    }

    /// As Prometheus text (exposition format 0.0.4).
    pub fn prometheus(&self) -> String {
        let mut out = String::new();
        let mut metric = |name: &str, kind: &str, help: &str, lines: &[(String, String)]| {
            if lines.is_empty() {
                return;
            }
            let _ = writeln!(out, "# HELP linkwise_{name} {help}\n# TYPE linkwise_{name} {kind}");
            for (labels, value) in lines {
                let _ = writeln!(out, "linkwise_{name}{{{labels}}} {value}");
            }
        };
        let process = format!("job=\"{:016x}\",host={},pid=\"{}\"", self.job, label(&self.host_name), self.pid);
        let one = |value: String| [(process.clone(), value)];
        let info = format!(
            "{process},mode={},policy={},site_tuner={}",
            label(&self.mode),
            label(&self.policy),
            label(self.site_tuner.as_deref().unwrap_or(""))
        );
        metric("info", "gauge", "The plugin in this process.", &[(info, "1".into())]);
        metric(
            "updated_seconds",
            "gauge",
            "When this was written, seconds since 1970.",
            &one(self.at_unix_s.to_string()),
        );
        metric(
            "stopped",
            "gauge",
            "All ranks are back at AUTO for the rest of the job.",
            &one(u8::from(self.stopped).to_string()),
        );
        metric("frozen", "gauge", "Exploring has ended.", &one(u8::from(self.frozen).to_string()));
        metric("arm_changes_total", "counter", "Changes of an arm in use.", &one(self.changes.to_string()));
        metric(
            "left_out",
            "gauge",
            "Communicators and slots that are not in this file.",
            &one(self.left_out.to_string()),
        );
        let of = |value: &dyn Fn(&CommStatus) -> String| -> Vec<(String, String)> {
            let labels =
                |c: &CommStatus| format!("{process},comm=\"{:016x}\",rank=\"{}\",ranks=\"{}\"", c.id, c.rank, c.ranks);
            self.comms.iter().map(|c| (labels(c), value(c))).collect()
        };
        let seconds = |us: u64| format!("{:.6}", us as f64 / 1e6);
        metric("calls_total", "counter", "Collective calls.", &of(&|c| c.calls.to_string()));
        metric("epoch", "gauge", "Number of the epoch in force.", &of(&|c| c.epoch.to_string()));
        metric(
            "waits_total",
            "counter",
            "Calls that waited for a verdict of the leader.",
            &of(&|c| c.waits.to_string()),
        );
        metric("longest_wait_seconds", "gauge", "The longest of these waits.", &of(&|c| seconds(c.longest_wait_us)));
        metric(
            "waiting_seconds",
            "gauge",
            "Time that a call has been waiting now.",
            &of(&|c| seconds(c.waiting_us.unwrap_or(0))),
        );
        metric(
            "dropped_records_total",
            "counter",
            "Records of calls that were dropped.",
            &of(&|c| c.dropped.to_string()),
        );
        metric(
            "silent_ranks",
            "gauge",
            "Ranks that have not answered their leader yet.",
            &of(&|c| c.silent.len().to_string()),
        );
        let mut arms = Vec::new();
        for c in &self.comms {
            for s in &c.slots {
                let labels = format!(
                    "{process},comm=\"{:016x}\",ranks=\"{}\",collective={},size_bytes=\"{}\",arm={}",
                    c.id,
                    c.ranks,
                    label(s.collective),
                    s.size_bytes,
                    label(&s.arm)
                );
                arms.push((labels, "1".into()));
            }
        }
        metric("arm", "gauge", "The arm in use for calls of this collective and size.", &arms);
        out
    }

    /// Writes the files of the snapshot. On an error the earlier files stay.
    pub fn write(&self, folder: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        let name = format!("{:016x}-{}", self.host, self.pid);
        replace(folder, &format!("status-{name}.json"), &self.json())?;
        replace(folder, &format!("linkwise-{name}.prom"), &self.prometheus())?;
        if self.is_stuck() {
            self.write_waiting(folder)?;
        }
        Ok(())
    }

    /// Writes the dump of a process in which a call waits.
    pub fn write_waiting(&self, folder: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(folder)?;
        replace(folder, &self.waiting_file(), &self.json())
    }

    /// The name of the dump.
    pub fn waiting_file(&self) -> String {
        format!("waiting-{:016x}-{}.json", self.host, self.pid)
    }
}

/// Replaces a file in one step: readers see the old or the new one.
fn replace(folder: &Path, name: &str, text: &str) -> std::io::Result<()> {
    let new = folder.join(format!(".{name}.new"));
    let written = std::fs::File::create(&new).and_then(|mut f| f.write_all(text.as_bytes()));
    let moved = written.and_then(|()| std::fs::rename(&new, folder.join(name)));
    if moved.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    moved
}

/// A label's value, quoted for Prometheus.
fn label(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(i: u64) -> SlotStatus {
        SlotStatus {
            collective: "AllReduce",
            size_bytes: 1 << i,
            arm: "RING/LL".into(),
            because: "50 us against 100 us".into(),
        }
    }

    fn snapshot() -> StatusSnapshot {
        let led = CommStatus {
            id: 0xab,
            rank: 0,
            ranks: 8,
            nodes: 1,
            leads: true,
            calls: 100,
            epoch: 3,
            waits: 2,
            longest_wait_us: 1500,
            waiting_us: None,
            dropped: 1,
            silent: vec![3, 7],
            slots: vec![slot(20)],
        };
        StatusSnapshot {
            at_unix_s: 1_700_000_000,
            host_name: "n\"0\\".into(),
            pid: 7,
            mode: "adaptive".into(),
            policy: "adaptive".into(),
            changes: 4,
            comms: vec![led],
            ..StatusSnapshot::default()
        }
    }

    #[test]
    fn the_json_form_has_every_field_and_is_one_object() {
        let v: serde_json::Value = serde_json::from_str(&snapshot().json()).unwrap();
        assert_eq!(
            (v["host_name"].as_str(), v["pid"].as_u64(), v["changes"].as_u64()),
            (Some("n\"0\\"), Some(7), Some(4))
        );
        let c = &v["comms"][0];
        assert_eq!(
            (c["comm"].as_str(), c["epoch"].as_u64(), c["waiting_us"].is_null()),
            (Some("00000000000000ab"), Some(3), true)
        );
        assert_eq!(c["silent"], serde_json::json!([3, 7]));
        assert_eq!(
            (c["slots"][0]["arm"].as_str(), c["slots"][0]["size_bytes"].as_u64()),
            (Some("RING/LL"), Some(1 << 20))
        );
    }

    #[test]
    fn every_line_for_prometheus_is_a_comment_or_a_sample() {
        let text = snapshot().prometheus();
        let mut names = std::collections::BTreeSet::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                assert!(names.insert(rest.split(' ').next().unwrap().to_string()), "{line}: twice");
            } else if !line.starts_with('#') {
                let (name, rest) = line.split_once('{').unwrap();
                let (labels, value) = rest.rsplit_once("} ").unwrap();
                assert!(names.contains(name), "{line}: the type comes first");
                assert!(value.parse::<f64>().is_ok() && labels.contains("host=\"n\\\"0\\\\\""), "{line}");
            }
        }
        assert!(text.contains("linkwise_longest_wait_seconds{") && text.contains(" 0.001500\n"), "{text}");
        assert!(text.contains("collective=\"AllReduce\",size_bytes=\"1048576\",arm=\"RING/LL\"} 1\n"), "{text}");
    }

    #[test]
    fn a_snapshot_has_limits_and_keeps_what_waits() {
        let mut s = snapshot();
        s.comms[0].slots = (0..60).map(slot).collect();
        s.comms = (0..300).map(|i| CommStatus { id: i, leads: i % 2 == 0, ..s.comms[0].clone() }).collect();
        s.comms[299].waiting_us = Some(2_000_000);
        s.limit();
        assert_eq!((s.comms.len(), s.comms[0].id), (COMMS_MAX, 299));
        assert_eq!(s.comms.iter().map(|c| c.slots.len()).sum::<usize>(), SLOTS_MAX);
        assert_eq!(s.left_out, 44 + 256 * 60 - SLOTS_MAX as u64);
        assert!(s.is_stuck());
    }

    #[test]
    fn files_are_replaced_and_a_wait_leaves_a_dump() {
        let folder = tempfile::tempdir().unwrap();
        let names = || {
            let mut all: Vec<String> = std::fs::read_dir(folder.path())
                .unwrap()
                .map(|f| f.unwrap().file_name().into_string().unwrap())
                .collect();
            all.sort();
            all
        };
        let mut s = snapshot();
        s.write(folder.path()).unwrap();
        assert_eq!(names(), ["linkwise-0000000000000000-7.prom", "status-0000000000000000-7.json"]);
        s.comms[0].waiting_us = Some(1_200_000);
        s.write(folder.path()).unwrap();
        s.comms[0].waiting_us = None;
        s.write(folder.path()).unwrap();
        let dump = std::fs::read_to_string(folder.path().join("waiting-0000000000000000-7.json")).unwrap();
        assert!(dump.contains("\"waiting_us\":1200000") && dump.contains("\"silent\":[3,7]"), "{dump}");
        let now = std::fs::read_to_string(folder.path().join("status-0000000000000000-7.json")).unwrap();
        assert!(now.contains("\"waiting_us\":null"));
        assert!(s.write(&folder.path().join("status-0000000000000000-7.json")).is_err(), "a file is no folder");
    }
}
