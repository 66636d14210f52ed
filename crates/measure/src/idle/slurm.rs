//! Reads from Slurm the state of each node (`sinfo`) and the GPUs of running jobs (`scontrol show job`).
//!
//! The GPUs of a job look like `GRES=gpu:h100:4(IDX:0-3)`. A job without indices counts as using all GPUs of its nodes.
//! Inside an allocation (`SLURM_JOB_ID`) only the GPUs of that job count as idle, because no others can be used.

use super::LeftOut;
use crate::nccl_tests::CommandLine;
use crate::process;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use topology::{Allocation, Cluster, GpuMask, HostId, names};

/// Job states in which the job holds no GPU.
const JOB_IS_OVER: [&str; 17] = [
    "PENDING",
    "COMPLETED",
    "CANCELLED",
    "FAILED",
    "TIMEOUT",
    "NODE_FAIL",
    "PREEMPTED",
    "BOOT_FAIL",
    "DEADLINE",
    "OUT_OF_MEMORY",
    "REVOKED",
    "SPECIAL_EXIT",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "RESV_DEL_HOLD",
    "EXPEDITING",
];
/// Node states in which the GPUs without a job are idle.
const NODE_IS_UP: [&str; 4] = ["idle", "mixed", "allocated", "completing"];

fn line(program: &str, args: &[&str]) -> CommandLine {
    CommandLine {
        program: program.into(),
        args: args.iter().map(|a| a.to_string()).collect(),
        ..CommandLine::default()
    }
}

/// The two commands: nodes with their states, jobs with their GPUs.
pub fn command_lines() -> [CommandLine; 2] {
    [
        line("sinfo", &["--noheader", "--Node", "--format=%N %T"]),
        line("scontrol", &["--details", "--oneliner", "show", "job"]),
    ]
}

/// Runs both commands and reads their output. `own_job`: id of the Slurm job in which this process runs. An error if a
/// command fails or if its output cannot be read.
pub fn ask(cluster: &Cluster, own_job: Option<&str>, timeout: Duration) -> Result<Vec<LeftOut>, String> {
    let mut texts = Vec::new();
    for line in command_lines() {
        let ended = process::run(&line, timeout, " (is Slurm on PATH?)").map_err(|e| e.to_string())?;
        if !ended.status.success() {
            let words: String = ended.last_words().chars().take(200).collect();
            return Err(format!("`{line}` ended with {}: {words}", ended.status));
        }
        texts.push(ended.stdout);
    }
    parse(cluster, &texts[0], &texts[1], own_job)
}

/// Reads the output of both commands. The GPUs of hosts that Slurm does not name are left out. O(text + hosts).
pub fn parse(cluster: &Cluster, nodes: &str, jobs: &str, own_job: Option<&str>) -> Result<Vec<LeftOut>, String> {
    let slurm_names = cluster.host_ids().map(|h| (names::slurm::node_name(cluster.host(h)), h));
    let by_name: HashMap<&str, HostId> = slurm_names.collect();
    let mut out = left_out_nodes(cluster, &by_name, nodes)?;
    let mut own = Allocation::default();
    let mut own_seen = false;
    for (i, job) in jobs.lines().enumerate().filter(|(_, l)| l.trim_start().starts_with("JobId=")) {
        let field = |key: &str| job.split_whitespace().find_map(|w| w.strip_prefix(key));
        let id = field("JobId=").unwrap_or("");
        let state = field("JobState=").ok_or_else(|| format!("line {} of scontrol: the job has no JobState", i + 1))?;
        if JOB_IS_OVER.contains(&state) {
            continue;
        }
        let held = gpus_of_job(cluster, &by_name, job);
        if own_job == Some(id) {
            own_seen = true;
            own = held;
        } else if held.gpu_count() > 0 {
            out.push(LeftOut { gpus: held, why: format!("Slurm job {id}") });
        }
    }
    if let Some(id) = own_job {
        if !own_seen {
            return Err(format!("scontrol does not show job {id}, in which this command runs (SLURM_JOB_ID)"));
        }
        let others = cluster.host_ids().map(|h| (h, cluster.type_of(h).all_gpus().minus(own.mask(h))));
        let others = Allocation::new(others);
        if others.gpu_count() > 0 {
            out.push(LeftOut { gpus: others, why: format!("not of Slurm job {id}, in which this command runs") });
        }
    }
    Ok(out)
}

fn left_out_nodes(cluster: &Cluster, by_name: &HashMap<&str, HostId>, text: &str) -> Result<Vec<LeftOut>, String> {
    // A node has one line for each of its partitions, with the same state.
    let mut states: BTreeMap<HostId, &str> = BTreeMap::new();
    for (i, line) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
        let mut words = line.split_whitespace();
        let (Some(node), Some(state), None) = (words.next(), words.next(), words.next()) else {
            return Err(format!("line {} of sinfo: a node and its state were expected", i + 1));
        };
        if let Some(&host) = by_name.get(node) {
            states.insert(host, state);
        }
    }
    if states.is_empty() {
        return Err(format!(
            "sinfo names no host of cluster `{}`; are the names in the cluster file those of Slurm (`slurm_name`)?",
            cluster.name
        ));
    }
    let mut out = Vec::new();
    for host in cluster.host_ids() {
        match states.get(&host) {
            None => out.push(LeftOut::host(cluster, host, "Slurm has no such node")),
            Some(state) if !NODE_IS_UP.contains(state) => {
                let plain: String = state
                    .chars()
                    .filter(|c| c.is_ascii_alphanumeric() || "_*~#!%$@^-+".contains(*c))
                    .take(30)
                    .collect();
                out.push(LeftOut::host(cluster, host, format!("Slurm says {plain}")));
            }
            Some(_) => {}
        }
    }
    Ok(out)
}

/// The GPUs of a job, from each `Nodes=... GRES=...` of its line. If the indices cannot be read, all GPUs of the nodes count.
fn gpus_of_job(cluster: &Cluster, by_name: &HashMap<&str, HostId>, job: &str) -> Allocation {
    let words: Vec<&str> = job.split_whitespace().collect();
    let mut parts: Vec<(HostId, GpuMask)> = Vec::new();
    for (i, word) in words.iter().enumerate() {
        let Some(nodes) = word.strip_prefix("Nodes=") else { continue };
        let until = words[i + 1..].iter().take_while(|w| !w.starts_with("Nodes="));
        let Some(gres) = until.filter_map(|w| w.strip_prefix("GRES=")).next() else { continue };
        if !gres.contains("gpu") {
            continue;
        }
        for node in names::hostlist::expand(nodes, topology::HOSTS_MAX).unwrap_or_default() {
            if let Some(&host) = by_name.get(node.as_str()) {
                parts.push((host, mask(cluster, host, gres)));
            }
        }
    }
    Allocation::new(parts)
}

/// Reads the GPUs of one host, such as `gpu:a:1(IDX:3),gpu:b:2(IDX:5-6)`.
fn mask(cluster: &Cluster, host: HostId, gres: &str) -> GpuMask {
    let all = cluster.type_of(host).all_gpus();
    let name = names::slurm::node_name(cluster.host(host));
    let mut mask = GpuMask::EMPTY;
    for piece in gres.split("gpu").skip(1) {
        let Some((_, list)) = piece.split_once("IDX:") else { return all };
        let list = list.split(')').next().unwrap_or("");
        match names::slurm::parse(cluster, name, &format!("gpu(IDX:{list})")) {
            Ok(a) => mask = mask.union(a.mask(host)),
            Err(_) => return all,
        }
    }
    mask
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NODES: &str = "n0 mixed\nn0 mixed\nn1 allocated\nn2 idle\nn3 drained*\nlogin idle\n";
    const JOBS: &str = "\
JobId=7 JobName=train JobState=RUNNING NodeList=n[0-1] BatchHost=n0 NumNodes=2 JOB_GRES=gpu:h100:12 Nodes=n0 CPU_IDs=0-31 Mem=0 GRES=gpu:h100:4(IDX:0-2,7) Nodes=n1 CPU_IDs=0-63 Mem=0 GRES=gpu:h100:8(IDX:0-7) Power=
JobId=8 JobName=old JobState=COMPLETED NodeList=n2 Nodes=n2 CPU_IDs=0 Mem=0 GRES= Power=
JobId=9 JobName=cpu JobState=RUNNING NodeList=n2 Nodes=n2 CPU_IDs=0 Mem=0 GRES= Power=
";

    fn said(jobs: &str, own: Option<&str>) -> Vec<(String, String)> {
        let c = topology::catalog::cluster("h100").unwrap();
        parse(&c, NODES, jobs, own).unwrap().into_iter().map(|o| (c.gpu_list(&o.gpus), o.why)).collect()
    }

    #[test]
    fn running_jobs_hold_their_gpus_and_drained_nodes_are_left_out() {
        let out = said(JOBS, None);
        assert_eq!(out[0], ("n3:[0-7]".into(), "Slurm says drained*".into()));
        assert_eq!(out[1], ("n0:[0-2,7] n1:[0-7]".into(), "Slurm job 7".into()));
        assert_eq!(out.len(), 2, "{out:?}");
    }

    #[test]
    fn a_job_without_indices_holds_its_nodes() {
        let jobs = "JobId=1 JobState=COMPLETING Nodes=n[0,2] CPU_IDs=0 Mem=0 GRES=gpu:2\n";
        assert_eq!(said(jobs, None)[1], ("n[0,2]:[0-7]".into(), "Slurm job 1".into()));
        let typed = "JobId=1 JobState=RUNNING Nodes=n0 GRES=gpu:g3:1(IDX:3),gpu:g5:1(IDX:5)\n";
        assert_eq!(said(typed, None)[1].0, "n0:[3,5]");
    }

    #[test]
    fn inside_a_job_its_own_gpus_are_the_idle_ones() {
        let out = said(JOBS, Some("7"));
        assert_eq!(out[1].0, "n0:[3-6] n[2-3]:[0-7]");
        let c = topology::catalog::cluster("h100").unwrap();
        assert!(parse(&c, NODES, JOBS, Some("70")).unwrap_err().contains("SLURM_JOB_ID"));
        assert!(parse(&c, "a idle\n", JOBS, None).unwrap_err().contains("slurm_name"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(junk in "\\PC{0,60}", at in 0usize..400) {
            let c = topology::catalog::cluster("h100").unwrap();
            let at = at.min(JOBS.len());
            let _ = parse(&c, NODES, &format!("{}{junk}{}", &JOBS[..at], &JOBS[at..]), None);
            let _ = parse(&c, &format!("{NODES}{junk}"), JOBS, Some("7"));
        }
    }
}
