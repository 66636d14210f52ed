//! `linkwise slurm agent` in the lab.

use super::Lab;
use super::books::Gpus;
use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};

/// `linkwise slurm agent`, and its log.
pub struct Agent {
    pub child: Child,
    pub log: String,
}

impl Agent {
    pub fn start(lab: &Lab, cluster: &str, model: &str, more: &[&str]) -> Agent {
        Agent::with(lab, &[&["--cluster", cluster, "--model", model], more].concat())
    }

    /// An agent with these arguments, connected.
    pub fn with(lab: &Lab, args: &[&str]) -> Agent {
        let log = lab.at("log/agent");
        let file = std::fs::OpenOptions::new().append(true).create(true).open(&log).unwrap();
        let seen = Agent::count(&log, "connected to Slurm");
        let child = Command::new(env!("CARGO_BIN_EXE_linkwise"))
            .args(["slurm", "agent"])
            .args(args)
            .env("SLURM_CONF", lab.at("etc/slurm.conf"))
            .stdin(Stdio::null())
            .stderr(file)
            .spawn()
            .unwrap();
        let agent = Agent { child, log };
        lab.until("the agent is connected", || Agent::count(&agent.log, "connected to Slurm") > seen);
        agent
    }

    pub fn count(log: &str, text: &str) -> usize {
        std::fs::read_to_string(log).unwrap_or_default().matches(text).count()
    }

    pub fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap().success());
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// What the agent wrote about one job.
    pub fn about(log: &str, job: u32) -> String {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        text.lines().filter(|l| l.starts_with(&format!("job {job}"))).collect::<Vec<_>>().join("\n")
    }

    /// The orders that Slurm followed.
    pub fn orders(log: &str) -> BTreeMap<u32, Gpus> {
        let (mut last, mut taken) = (BTreeMap::new(), BTreeMap::new());
        for line in std::fs::read_to_string(log).unwrap().lines() {
            if let Some(rest) = line.split_once(": take ").map(|(_, r)| r) {
                let words: Vec<&str> = rest.split(' ').collect();
                let node = |n: &str| {
                    let (name, list) = n.split_once(':').unwrap();
                    (name.to_owned(), list.split('.').map(|g| g.parse().unwrap()).collect())
                };
                last.insert(words[0].parse::<u32>().unwrap(), words[2].split(',').map(node).collect::<Gpus>());
            } else if let Some(job) = line.strip_suffix(" runs on these GPUs").and_then(|l| l.strip_prefix("job ")) {
                let job: u32 = job.parse().unwrap();
                taken.insert(job, last[&job].clone());
            }
        }
        taken
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
