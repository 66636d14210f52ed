//! Asks hosts for the processes on their GPUs.

use super::{LeftOut, nvidia_smi};
use crate::nccl_tests::CommandLine;
use crate::process;
use std::time::Duration;
use topology::{Allocation, Cluster, GpuMask, HostId};

/// Maximum number of hosts that are queried at the same time.
const ASKED_AT_A_TIME_MAX: usize = 64;

/// How a command reaches a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AskWith {
    /// The host is this machine.
    Here,
    /// A command line such as `ssh {host}`. The name of the host replaces `{host}`; the script is added as one argument.
    Command(String),
}

impl Default for AskWith {
    fn default() -> Self {
        AskWith::Command("ssh -o BatchMode=yes -o ConnectTimeout=10 {host}".into())
    }
}

/// The GPUs of a host that are in use, each with the reason.
pub type InUse = Vec<(usize, String)>;

/// Queries the hosts of a cluster for the use of their GPUs.
pub struct Hosts<'c> {
    cluster: &'c Cluster,
    with: AskWith,
    timeout: Duration,
}

impl<'c> Hosts<'c> {
    /// `timeout`: time limit for each host.
    pub fn new(cluster: &'c Cluster, with: AskWith, timeout: Duration) -> Self {
        Hosts { cluster, with, timeout }
    }

    pub fn cluster(&self) -> &'c Cluster {
        self.cluster
    }

    /// The command that queries a host.
    pub fn command_line(&self, host: HostId) -> CommandLine {
        let script = nvidia_smi::SCRIPT.to_owned();
        let mut words: Vec<String> = match &self.with {
            AskWith::Here => vec!["sh".into(), "-c".into()],
            AskWith::Command(c) => {
                c.split_whitespace().map(|w| w.replace("{host}", &self.cluster.host(host).name)).collect()
            }
        };
        words.push(script);
        CommandLine { program: words.remove(0), args: words, ..CommandLine::default() }
    }

    /// The GPUs of one host that are in use, or the reason why they are unknown.
    pub fn ask_one(&self, host: HostId) -> Result<InUse, String> {
        let name = &self.cluster.host(host).name;
        let known = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.starts_with('-') || !name.chars().all(known) {
            return Err(format!("`{name}` cannot be a host name for a command; letters, digits, `.`, `_` and `-` can"));
        }
        let line = self.command_line(host);
        let ended = process::run(&line, self.timeout, "").map_err(|e| e.to_string())?;
        if !ended.status.success() {
            let words: String = ended.last_words().chars().take(200).collect();
            return Err(format!("`{} ... nvidia-smi` ended with {}: {words}", line.program, ended.status));
        }
        let gpus = nvidia_smi::parse(&ended.stdout)?;
        let wanted = self.cluster.type_of(host).gpu_count();
        if gpus.len() != wanted {
            return Err(format!("it has {} GPUs, the cluster file says {wanted}", gpus.len()));
        }
        Ok(gpus.iter().enumerate().filter_map(|(i, g)| Some((i, g.in_use()?))).collect())
    }

    /// Queries several hosts at the same time. The results have the order of `hosts`.
    pub fn ask(&self, hosts: &[HostId]) -> Vec<Result<InUse, String>> {
        let mut out = Vec::with_capacity(hosts.len());
        for chunk in hosts.chunks(ASKED_AT_A_TIME_MAX) {
            std::thread::scope(|s| {
                let asked: Vec<_> = chunk.iter().map(|h| s.spawn(|| self.ask_one(*h))).collect();
                let broken = |_| Err("the thread that asked it broke".to_owned());
                out.extend(asked.into_iter().map(|a| a.join().unwrap_or_else(broken)));
            });
        }
        out
    }

    /// The GPUs of `gpus` that are not idle. If a host does not answer, all its GPUs count as not idle.
    pub fn left_out(&self, gpus: &Allocation) -> Vec<LeftOut> {
        let hosts: Vec<HostId> = gpus.parts().iter().map(|p| p.0).collect();
        let mut out = Vec::new();
        for (&host, answer) in hosts.iter().zip(self.ask(&hosts)) {
            match answer {
                Ok(in_use) => {
                    out.extend(in_use.into_iter().map(|(gpu, why)| LeftOut {
                        gpus: Allocation::new([(host, GpuMask::from_indices([gpu]))]),
                        why,
                    }))
                }
                Err(why) => out.push(LeftOut::host(self.cluster, host, format!("not known to be idle: {why}"))),
            }
        }
        out
    }
}
