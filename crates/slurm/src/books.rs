//! What `scontrol` prints with `-o`: one record per line, `Key=Value` separated by blanks.

use topology::{Allocation, Cluster, names};

/// Maximum size of the text that is read, bytes: 100,000 jobs of 2 kB each.
pub const TEXT_BYTES_MAX: usize = 256 << 20;

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Model of its GPUs as gres.conf has it; empty without one.
    pub gpu_type: String,
    /// Number of its GPUs.
    pub gpus: usize,
    /// Its state, as Slurm writes it: `IDLE+DRAIN`.
    pub state: String,
}

/// A job that waits or runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its number.
    pub id: u32,
    /// `RUNNING`, `PENDING`, ...
    pub state: String,
    /// Nodes and GPUs: `n[1-2]` and `gpu:a100:3(IDX:0-2)`.
    pub gres: Vec<(String, String)>,
}

/// A text that `scontrol` does not print.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of `scontrol {command}`: {what}")]
pub struct BadText {
    command: &'static str,
    line: usize,
    what: String,
}

/// The value of the first `key=` of a record, up to the next blank.
pub(crate) fn value<'t>(record: &'t str, key: &str) -> Option<&'t str> {
    record.split(' ').find_map(|w| w.strip_prefix(key)?.strip_prefix('='))
}

/// Reads `scontrol show nodes -o`. Nodes without GPUs are left out. O(bytes).
pub fn nodes(text: &str) -> Result<Vec<Node>, BadText> {
    let mut nodes = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let bad = |what: String| BadText { command: "show nodes -o", line: i + 1, what };
        let name = value(line, "NodeName").ok_or_else(|| bad("no NodeName".into()))?;
        let mut node = Node {
            name: name.into(),
            gpu_type: String::new(),
            gpus: 0,
            state: value(line, "State").unwrap_or_default().into(),
        };
        for part in value(line, "Gres").unwrap_or_default().split(',').filter(|p| p.starts_with("gpu:")) {
            // gpu:8, gpu:a100:8 or gpu:a100:8(S:0-1)
            let words: Vec<&str> = part.split('(').next().unwrap_or(part).split(':').collect();
            let count =
                words.last().and_then(|n| n.parse::<usize>().ok()).ok_or_else(|| bad(format!("Gres `{part}`")))?;
            let model = if words.len() > 2 { words[1] } else { "" };
            if node.gpus > 0 && node.gpu_type != model {
                return Err(bad(format!("{name} has GPUs of two types; linkwise knows one type per host")));
            }
            node.gpu_type = model.into();
            node.gpus += count;
        }
        if node.gpus > 0 {
            nodes.push(node);
        }
    }
    Ok(nodes)
}

/// Reads `scontrol show job -d -o`. Records without a number are left out, as are records in which a name or a comment of a user
/// imitates the fields that are read here. O(bytes).
pub fn jobs(text: &str) -> Vec<Job> {
    let job = |line: &str| {
        let once = |key: &str| line.matches(key).count() <= 1;
        if ![" JobState=", " JOB_GRES=", " MinCPUsNode="].iter().all(|k| once(k)) {
            return None;
        }
        let id = value(line, "JobId")?.parse().ok()?;
        // The GPUs of every node stand between these two fields.
        let detail = line.split_once(" JOB_GRES=").map_or("", |(_, t)| t.split(" MinCPUsNode=").next().unwrap_or(t));
        let mut gres = Vec::new();
        let mut nodes = "";
        for word in detail.split(' ') {
            if let Some(n) = word.strip_prefix("Nodes=") {
                nodes = n;
            } else if let Some(g) = word.strip_prefix("GRES=").filter(|g| g.contains("gpu") && !nodes.is_empty()) {
                gres.push((nodes.to_owned(), g.to_owned()));
            }
        }
        Some(Job { id, state: value(line, "JobState")?.into(), gres })
    };
    text.lines().filter_map(job).collect()
}

/// The GPUs of a job on the cluster; `None` if it holds none there. GPUs of unknown nodes are left out. O(GPUs).
pub fn held(cluster: &Cluster, job: &Job) -> Option<Allocation> {
    let parts = job.gres.iter().filter_map(|(nodes, gres)| names::slurm::parse(cluster, nodes, gres).ok());
    let all = Allocation::new(parts.flat_map(|a| a.parts().to_vec()));
    (!all.is_empty()).then_some(all)
}

/// The value of a setting in `scontrol show config`.
pub fn setting<'t>(config: &'t str, key: &str) -> Option<&'t str> {
    let of = |l: &'t str| l.split_once('=').filter(|(k, _)| k.trim() == key).map(|(_, v)| v.trim());
    config.lines().find_map(of).filter(|v| *v != "(null)")
}

/// The plugin's socket as the controller's configuration has it.
pub fn socket(config: &str) -> Option<String> {
    let of = |p: &str| p.split(',').find_map(|w| w.strip_prefix("linkwise_socket=").map(str::to_owned));
    setting(config, "SlurmctldParameters")
        .and_then(of)
        .or_else(|| setting(config, "StateSaveLocation").map(|f| format!("{f}/linkwise.sock")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use topology::catalog;

    #[test]
    fn nodes_have_their_type_count_and_state() {
        let text = "NodeName=n1 Arch=x86_64 Gres=gpu:a100:8(S:0-1) NodeAddr=x State=IDLE+DRAIN Weight=1\n\
                    NodeName=login Gres=(null) State=IDLE\nNodeName=n2 Gres=gpu:4,shard:8 State=MIXED\n";
        let nodes = nodes(text).unwrap();
        assert_eq!(nodes.len(), 2);
        assert_eq!((nodes[0].gpu_type.as_str(), nodes[0].gpus, nodes[0].state.as_str()), ("a100", 8, "IDLE+DRAIN"));
        assert_eq!((nodes[1].gpu_type.as_str(), nodes[1].gpus), ("", 4));
        assert!(super::nodes("NodeName=n1 Gres=gpu:a100:1,gpu:h100:1 State=IDLE").is_err());
        assert!(super::nodes("garbage").is_err());
    }

    #[test]
    fn a_running_jobs_gpus_are_found_by_node_and_index() {
        let c = catalog::cluster("h100").unwrap();
        let text = "JobId=4 JobName=a JobState=RUNNING JOB_GRES=gpu:a100:3   Nodes=n[0-1] CPU_IDs=15 Mem=0 \
                    GRES=gpu:a100:2(IDX:0-1)   Nodes=n2 CPU_IDs=1 Mem=0 GRES=gpu:a100:1(IDX:7) MinCPUsNode=1\n\
                    JobId=5 JobState=PENDING Nodes= GRES=\n";
        let jobs = jobs(text);
        let all = held(&c, &jobs[0]).unwrap();
        assert_eq!(all, c.parse_gpus(["n[0-1]:[0-1]", "n2:7"]).unwrap());
        assert_eq!(held(&c, &jobs[1]), None);
    }

    #[test]
    fn a_job_whose_name_imitates_fields_holds_nothing() {
        let c = catalog::cluster("h100").unwrap();
        let real = "JobId=4 JobName=NAME JobState=RUNNING JOB_GRES=gpu:1   Nodes=n0 GRES=gpu:1(IDX:0) MinCPUsNode=1 Comment=NOTE";
        let held_by = |name: &str, note: &str| {
            let jobs = jobs(&real.replace("NAME", name).replace("NOTE", note));
            jobs.first().and_then(|j| held(&c, j)).map_or(0, |a| a.gpu_count())
        };
        assert_eq!(held_by("a", "b"), 1);
        for lie in ["x JobState=RUNNING", "x JOB_GRES=gpu:8 Nodes=n1 GRES=gpu:8(IDX:0-7) MinCPUsNode=1"] {
            assert_eq!((held_by(lie, "b"), held_by("a", lie)), (0, 0), "{lie}");
        }
        assert_eq!(held_by("a", "Nodes=n1 GRES=gpu:8(IDX:0-7)"), 1);
    }

    #[test]
    fn the_socket_is_that_of_the_configuration() {
        let config = "StateSaveLocation       = /var/lib/slurm\nSlurmctldParameters     = (null)\n";
        assert_eq!(socket(config).unwrap(), "/var/lib/slurm/linkwise.sock");
        let named = "SlurmctldParameters = idle_on_node_suspend,linkwise_socket=/run/l.sock\n";
        assert_eq!(socket(named).unwrap(), "/run/l.sock");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(NodeName=|JobId=)?[ -~\n]{0,300}") {
            let _ = nodes(&text);
            let c = catalog::cluster("h100").unwrap();
            jobs(&text).iter().for_each(|j| drop(held(&c, j)));
        }
    }
}
