//! Derives the GPU of each rank of a communicator from the GPUs that are visible to its process.
//!
//! NCCL gives a plugin the rank but not the GPU. The process knows its host's name, `CUDA_VISIBLE_DEVICES` and its
//! local rank. A process with several ranks of a communicator uses its visible GPUs in order. A process with one
//! visible GPU uses that one. Any other process uses the GPU with the number of its local rank, as programs under
//! torchrun, mpirun and srun do.

use super::TraceLine;
use std::collections::BTreeMap;

/// Limit on visible GPUs of a process.
const VISIBLE_MAX: usize = 64;
/// Limit on the total number of ranks.
const RANK_ENTRIES_MAX: usize = 1 << 20;

/// Host name, and index as `nvidia-smi` counts.
pub type Gpu = (String, usize);

#[derive(Debug, Clone, Default)]
struct ProcessInfo {
    host: Option<String>,
    /// `Err`: not a list of indices.
    visible: Option<Result<Vec<usize>, String>>,
    local_rank: Option<u32>,
}

#[derive(Debug, Clone)]
struct Member {
    process: usize,
    ordinal: u32,
}

/// See the module documentation. Lines must be added in the order of the files.
#[derive(Debug, Clone, Default)]
pub struct RankGpus {
    processes: Vec<ProcessInfo>,
    members: BTreeMap<String, BTreeMap<i64, Member>>,
    count: usize,
}

impl RankGpus {
    /// Adds a line of a trace. Only `process` and `comm` lines matter.
    pub fn add_line(&mut self, line: &TraceLine) {
        match line.kind.as_str() {
            "process" => {
                let visible = line.visible_gpus.as_deref().filter(|v| !v.trim().is_empty()).map(|text| {
                    let indexes: Option<Vec<usize>> =
                        text.split(',').take(VISIBLE_MAX + 1).map(|t| t.trim().parse().ok()).collect();
                    indexes.filter(|l| l.len() <= VISIBLE_MAX).ok_or_else(|| text.chars().take(60).collect())
                });
                let host = line.host_name.clone();
                self.processes.push(ProcessInfo { host, visible, local_rank: line.local_rank });
            }
            "comm" if self.count < RANK_ENTRIES_MAX && !self.processes.is_empty() => {
                self.count += 1;
                let member = Member { process: self.processes.len() - 1, ordinal: line.ordinal };
                self.members.entry(line.comm.clone()).or_default().insert(line.rank, member);
            }
            _ => {}
        }
    }

    /// The GPUs of a communicator in the order of its ranks. O(ranks log ranks).
    ///
    /// # Errors
    /// The error names the rank and what is missing.
    pub fn gpus(&self, comm: &str, ranks: u32) -> Result<Vec<Gpu>, String> {
        let none = BTreeMap::new();
        let members = self.members.get(comm).unwrap_or(&none);
        let all = 0..i64::from(ranks.min(super::RANKS_MAX));
        // Missing ranks first: without them no other error matters.
        let found = all.clone().map_while(|rank| members.get(&rank));
        let found: Vec<&Member> = found.collect();
        if (found.len() as i64) < all.end {
            return Err(format!(
                "rank {} of {ranks} is in none of these traces; the traces of all hosts are needed",
                found.len()
            ));
        }
        let mut of_process: BTreeMap<usize, usize> = BTreeMap::new();
        found.iter().for_each(|m| *of_process.entry(m.process).or_default() += 1);
        let (mut gpus, mut taken) = (Vec::new(), BTreeMap::new());
        for (rank, member) in found.into_iter().enumerate() {
            let alone = of_process.get(&member.process) == Some(&1);
            let gpu = self.gpu(member, alone).map_err(|what| format!("rank {rank}: {what}"))?;
            if let Some(other) = taken.insert(gpu.clone(), rank) {
                return Err(format!("ranks {other} and {rank} both appear to use GPU {} of host {}", gpu.1, gpu.0));
            }
            gpus.push(gpu);
        }
        Ok(gpus)
    }

    fn gpu(&self, member: &Member, alone: bool) -> Result<Gpu, String> {
        let here = self.processes.get(member.process).cloned().unwrap_or_default();
        let host = here.host.ok_or("its process did not record its host name")?;
        let seen = match here.visible {
            Some(Err(text)) => {
                return Err(format!("CUDA_VISIBLE_DEVICES is `{text}`, which is not a list of GPU numbers"));
            }
            Some(Ok(list)) => Some(list),
            None => None,
        };
        let at = match (&seen, here.local_rank) {
            _ if !alone => member.ordinal as usize,
            (Some(list), _) if list.len() == 1 => 0,
            (_, Some(local)) => local as usize,
            (_, None) => return Err("its process sees several GPUs, and no launcher gave its local rank".into()),
        };
        match &seen {
            None => Ok((host, at)),
            Some(list) => list
                .get(at)
                .map(|g| (host.clone(), *g))
                .ok_or_else(|| format!("its local index is {at} on host {host}, but it sees only {} GPUs", list.len())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(host: &str, visible: Option<&str>, local_rank: Option<u32>) -> TraceLine {
        let (host_name, visible_gpus) = (Some(host.to_owned()), visible.map(String::from));
        TraceLine { kind: "process".into(), host_name, visible_gpus, local_rank, ..TraceLine::default() }
    }

    fn comm(rank: i64, ordinal: u32) -> TraceLine {
        TraceLine { kind: "comm".into(), comm: "0a".into(), rank, ordinal, ..TraceLine::default() }
    }

    fn gpus(lines: &[TraceLine], ranks: u32) -> Result<Vec<Gpu>, String> {
        let mut p = RankGpus::default();
        lines.iter().for_each(|l| p.add_line(l));
        p.gpus("0a", ranks)
    }

    #[test]
    fn ranks_have_the_gpus_that_their_processes_see() {
        let a = |g| ("a".to_owned(), g);
        let two = [process("a", Some("6,2"), None), comm(0, 0), comm(1, 1)];
        assert_eq!(gpus(&two, 2), Ok(vec![a(6), a(2)]), "one process, two ranks");
        let local = [process("a", Some("0,1"), Some(1)), comm(0, 0), process("a", None, Some(0)), comm(1, 0)];
        assert_eq!(gpus(&local, 2), Ok(vec![a(1), a(0)]), "the number on the host");
        let single = [process("a", Some("3"), Some(0)), comm(0, 0), process("a", Some("4"), Some(1)), comm(1, 0)];
        assert_eq!(gpus(&single, 2), Ok(vec![a(3), a(4)]), "a launcher that shows each process its GPU");
    }

    #[test]
    fn missing_facts_are_named() {
        for (lines, what) in [
            (vec![process("a", None, Some(0)), comm(0, 0)], "rank 1 of 2 is in none of these traces"),
            (
                vec![process("a", Some("0"), None), comm(0, 0), process("a", Some("0"), None), comm(1, 0)],
                "both appear to use GPU 0",
            ),
            (vec![process("a", Some("GPU-1b"), None), comm(0, 0)], "`GPU-1b`, which is not a list of GPU numbers"),
            (vec![process("a", Some("0,1"), None), comm(0, 0)], "no launcher gave"),
            (vec![process("a", Some("0,1"), Some(5)), comm(0, 0)], "sees only 2 GPUs"),
            (vec![TraceLine { kind: "process".into(), ..TraceLine::default() }, comm(0, 0)], "its host name"),
        ] {
            let ranks =
                if what.contains("in none") { 2 } else { lines.iter().filter(|l| l.kind == "comm").count() as u32 };
            let said = gpus(&lines, ranks).unwrap_err();
            assert!(said.contains(what), "{said}");
        }
    }
}
