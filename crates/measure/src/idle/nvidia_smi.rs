//! Reads the GPUs of a host and the processes on them from the output of `nvidia-smi`.

use std::collections::HashMap;
use topology::GPUS_PER_HOST_MAX;

/// The command line that a host runs. It prints two CSV lists without headers, separated by a line.
pub const SCRIPT: &str = "nvidia-smi --query-gpu=index,uuid,memory.used,mig.mode.current --format=csv,noheader,nounits \
     && echo linkwise-apps && nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name --format=csv,noheader";
/// The line between the lists.
const BETWEEN: &str = "linkwise-apps";
/// Maximum memory in use of an idle GPU, MiB: driver, display, monitoring. The CUDA context and buffers of a job take more.
pub const IDLE_MEMORY_MIB_MAX: u64 = 2048;
/// Maximum number of processes.
const PROCESSES_MAX: usize = 10_000;

/// One GPU of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SmiGpu {
    pub uuid: String,
    /// `None` if the GPU does not report it.
    pub memory_used_mib: Option<u64>,
    /// MIG divides the GPU, so nccl-tests cannot use the whole GPU.
    pub mig: bool,
    /// Process ids and programs.
    pub processes: Vec<(u64, String)>,
}

impl SmiGpu {
    /// The reason why the GPU is not idle, or `None` if it is idle.
    pub fn in_use(&self) -> Option<String> {
        if let Some((pid, name)) = self.processes.first() {
            let more = match self.processes.len() {
                1 => String::new(),
                n => format!(" and {} more", n - 1),
            };
            return Some(format!("process {pid} ({name}){more}"));
        }
        if self.mig {
            return Some("MIG is on: the GPU is divided".into());
        }
        self.memory_used_mib.filter(|m| *m > IDLE_MEMORY_MIB_MAX).map(|m| {
            format!("{m} MiB of its memory are in use, by a process that nvidia-smi does not show (another container?)")
        })
    }
}

/// The GPUs of a host in the order of `nvidia-smi`, from the output of [`SCRIPT`]. O(text).
pub fn parse(text: &str) -> Result<Vec<SmiGpu>, String> {
    let mut lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty());
    let mut gpus: Vec<SmiGpu> = Vec::new();
    let mut of_uuid: HashMap<String, usize> = HashMap::new();
    let mut has_apps = false;
    for (i, line) in lines.by_ref() {
        if line.trim() == BETWEEN {
            has_apps = true;
            break;
        }
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let [index, uuid, memory, mig] = fields[..] else {
            // Only a banner of the login shell can precede the lists.
            if gpus.is_empty() && !line.starts_with(|c: char| c.is_ascii_digit()) {
                continue;
            }
            return Err(format!("line {} of nvidia-smi: {} fields, 4 were expected", i + 1, fields.len()));
        };
        if index.parse() != Ok(gpus.len()) {
            return Err(format!(
                "line {} of nvidia-smi: GPU `{}` where {} was expected",
                i + 1,
                short(index),
                gpus.len()
            ));
        }
        if gpus.len() >= GPUS_PER_HOST_MAX {
            return Err(format!("nvidia-smi lists more than {GPUS_PER_HOST_MAX} GPUs"));
        }
        if of_uuid.insert(uuid.into(), gpus.len()).is_some() {
            return Err(format!("line {} of nvidia-smi: `{}` is there twice", i + 1, short(uuid)));
        }
        let memory_used_mib = memory.trim_end_matches("MiB").trim().parse().ok();
        gpus.push(SmiGpu { uuid: uuid.into(), memory_used_mib, mig: mig == "Enabled", processes: Vec::new() });
    }
    if !has_apps {
        return Err("the output of nvidia-smi has no list of processes".into());
    }
    for (n, (i, line)) in lines.enumerate() {
        if n >= PROCESSES_MAX {
            break;
        }
        if line.to_ascii_lowercase().contains("no running") {
            continue;
        }
        let mut fields = line.splitn(3, ',').map(str::trim);
        let (Some(uuid), Some(pid), Some(name)) = (fields.next(), fields.next(), fields.next()) else {
            return Err(format!("line {} of nvidia-smi: `{}` is no process", i + 1, short(line)));
        };
        let pid =
            pid.parse().map_err(|_| format!("line {} of nvidia-smi: `{}` is no process id", i + 1, short(pid)))?;
        // A process in a MIG instance has the id of the instance. The first list already marks the GPU as divided.
        if let Some(&gpu) = of_uuid.get(uuid) {
            let name = name.rsplit('/').next().unwrap_or(name);
            gpus[gpu].processes.push((pid, short(name)));
        }
    }
    Ok(gpus)
}

fn short(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TWO: &str = "0, GPU-aa, 5, Disabled\n1, GPU-bb, 60000, [N/A]\nlinkwise-apps\n";

    #[test]
    fn a_process_memory_or_mig_makes_a_gpu_busy() {
        let gpus = parse(&format!("Welcome, user, to n0\n{TWO}GPU-aa, 4711, /usr/bin/python3, v 3\nGPU-aa, 4712, x\n"))
            .unwrap();
        assert_eq!(gpus[0].in_use().as_deref(), Some("process 4711 (python3, v 3) and 1 more"));
        assert!(gpus[1].in_use().unwrap().starts_with("60000 MiB"));
        let idle =
            parse("0, GPU-aa, 5, Disabled\n1, GPU-bb, [N/A], Enabled\nlinkwise-apps\nNo running processes found\n")
                .unwrap();
        assert_eq!(idle[0].in_use(), None);
        assert!(idle[1].in_use().unwrap().contains("MIG"));
    }

    #[test]
    fn an_output_without_both_lists_is_refused() {
        for (text, wanted) in [
            ("", "no list of processes"),
            ("0, GPU-aa, 5, Disabled\n", "no list of processes"),
            ("1, GPU-aa, 5, Disabled\nlinkwise-apps\n", "GPU `1` where 0"),
            ("0, GPU-aa, 5, Disabled\n1, GPU-aa, 5, Disabled\nlinkwise-apps\n", "twice"),
            ("0, GPU-aa, 5\nlinkwise-apps\n", "3 fields"),
            ("0, GPU-aa, 5, Disabled\nlinkwise-apps\nGPU-aa, x, y\n", "`x` is no process id"),
        ] {
            let e = parse(text).unwrap_err();
            assert!(e.contains(wanted), "{e}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,200}", at in 0usize..100) {
            let _ = parse(&text);
            let at = at.min(TWO.len());
            let _ = parse(&format!("{}{text}{}", &TWO[..at], &TWO[at..]));
        }
    }
}
