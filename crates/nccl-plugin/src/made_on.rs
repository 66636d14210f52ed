//! Where a table of arms was found, and whether this job is like that: the fastest arm depends on NCCL's release, the GPU and the shape of the job.
//!
//! A table says it in a comment line, which `linkwise tune export` writes:
//!
//! ```text
//! # linkwise: nccl=2.28.9 gpu=NVIDIA_H100_80GB_HBM3 ranks_per_node=8 hosts=4
//! ```
//!
//! A table without the line is used anywhere.

use std::path::Path;

/// The word with which the line begins, after `#`.
pub const MARK: &str = "linkwise:";
/// Limit on GPUs of a host that are asked for their model.
const GPUS_MAX: usize = 64;
/// Largest file of the driver that is read, bytes.
const FILE_BYTES_MAX: usize = 4096;

/// What a table says about its origin; each part may be missing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MadeOn {
    /// As text: 2.28.9.
    pub nccl: Option<String>,
    /// The model, with `_` for each character that is neither a letter nor a digit.
    pub gpu: Option<String>,
    pub ranks_per_node: Option<u32>,
    pub hosts: Option<u32>,
}

/// A communicator of this job.
#[derive(Debug, Clone, Copy)]
pub struct Here<'a> {
    /// As `ncclGetVersion` says it; `None` if unknown.
    pub nccl: Option<u32>,
    /// The models of this host's GPUs; empty if unknown.
    pub gpus: &'a [String],
    pub ranks: u32,
    /// Nodes as NCCL counts them.
    pub nodes: u32,
    /// Processes of the job, if a launcher tells.
    pub processes: Option<u32>,
}

impl MadeOn {
    /// Reads the part of the line after [`MARK`].
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut made = MadeOn::default();
        for word in text.split_whitespace() {
            let expected = || format!("`{word}` is none of nccl=2.28.9, gpu=MODEL, ranks_per_node=N, hosts=N");
            let (key, value) = word.split_once('=').ok_or_else(expected)?;
            let number = || value.parse::<u32>().ok().filter(|n| *n > 0).ok_or_else(expected);
            match key {
                "nccl" if value.split('.').count() == 3 && value.split('.').all(|p| p.parse::<u32>().is_ok()) => {
                    made.nccl = Some(value.into());
                }
                "gpu" if !value.is_empty() => made.gpu = Some(plain(value)),
                "ranks_per_node" => made.ranks_per_node = Some(number()?),
                "hosts" => made.hosts = Some(number()?),
                _ => return Err(expected()),
            }
        }
        Ok(made)
    }

    /// Why the table does not apply to a communicator; `None` if it does, as far as is known. The shape counts for the communicator of all
    /// processes; others must fit into it. Ranks of one communicator come to the same result unless their hosts differ in NCCL or GPU.
    pub fn refuses(&self, here: &Here<'_>) -> Option<String> {
        let release = here.nccl.map(release_text);
        if let (Some(made), Some(now)) = (&self.nccl, &release)
            && made != now
        {
            return Some(format!("it was found on NCCL {made}, and this is {now}"));
        }
        if let Some(made) = &self.gpu
            && let Some(other) = here.gpus.iter().map(|g| plain(g)).find(|g| g != made)
        {
            return Some(format!("it was found on {made}, and this host has {other}"));
        }
        let nodes = here.nodes.max(1);
        let per_node = here.ranks.div_ceil(nodes);
        let whole = here.processes == Some(here.ranks);
        let differs = |made: u32, now: u32| if whole { made != now } else { now > made };
        if let Some(made) = self.ranks_per_node.filter(|made| differs(*made, per_node)) {
            return Some(format!("it was found with {made} ranks per node, and here are {per_node}"));
        }
        let hosts = self.hosts.filter(|made| differs(*made, nodes))?;
        Some(format!("it was found on {hosts} hosts, and these are {nodes}"))
    }
}

/// 22809 as 2.28.9.
pub fn release_text(code: u32) -> String {
    format!("{}.{}.{}", code / 10_000, code / 100 % 100, code % 100)
}

fn plain(model: &str) -> String {
    model.trim().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

/// The models of this host's GPUs as NVIDIA's driver tells them, each once, sorted; empty without the driver's files.
pub fn gpus(driver: &Path) -> Vec<String> {
    let folders = std::fs::read_dir(driver.join("gpus")).into_iter().flatten().flatten().take(GPUS_MAX);
    let model = |folder: std::fs::DirEntry| {
        use std::io::Read;
        let mut text = String::new();
        let file = std::fs::File::open(folder.path().join("information")).ok()?;
        file.take(FILE_BYTES_MAX as u64).read_to_string(&mut text).ok()?;
        text.lines().find_map(|l| l.strip_prefix("Model:")).map(|m| m.trim().to_string())
    };
    let mut models: Vec<String> = folders.filter_map(model).filter(|m| !m.is_empty()).collect();
    models.sort();
    models.dedup();
    models
}

/// The models of this host's GPUs, read once.
pub fn gpus_here() -> &'static [String] {
    static GPUS: std::sync::OnceLock<Vec<String>> = std::sync::OnceLock::new();
    GPUS.get_or_init(|| gpus(Path::new("/proc/driver/nvidia")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "nccl=2.28.9 gpu=NVIDIA_H100_80GB_HBM3 ranks_per_node=8 hosts=4";

    #[test]
    fn a_table_is_refused_where_nccl_the_gpu_or_the_jobs_shape_differ() {
        let made = MadeOn::parse(LINE).unwrap();
        let gpus = ["NVIDIA H100 80GB HBM3".to_string()];
        let same = Here { nccl: Some(22_809), gpus: &gpus, ranks: 32, nodes: 4, processes: Some(32) };
        assert_eq!(made.refuses(&same), None);
        let other = ["NVIDIA H200".to_string()];
        for (here, why) in [
            (Here { nccl: Some(23_007), ..same }, "found on NCCL 2.28.9, and this is 2.30.7"),
            (Here { gpus: &other, ..same }, "this host has NVIDIA_H200"),
            (Here { ranks: 16, nodes: 2, processes: Some(16), ..same }, "found on 4 hosts, and these are 2"),
            (Here { ranks: 16, processes: Some(16), ..same }, "found with 8 ranks per node, and here are 4"),
            (Here { ranks: 16, nodes: 8, ..same }, "found on 4 hosts, and these are 8"),
        ] {
            let said = made.refuses(&here).unwrap();
            assert!(said.contains(why), "{said}");
        }
        // Communicators of a part of the job, and what is unknown.
        for here in [
            Here { ranks: 8, nodes: 1, ..same },
            Here { ranks: 4, nodes: 4, ..same },
            Here { nccl: None, gpus: &[], processes: None, ..same },
        ] {
            assert_eq!(made.refuses(&here), None, "{here:?}");
        }
        assert_eq!(MadeOn::default().refuses(&Here { ranks: 5, ..same }), None, "a table without the line");
    }

    #[test]
    fn a_wrong_line_is_refused() {
        for text in ["nccl=2.28", "nccl=x.y.z", "gpu=", "hosts=0", "hosts=many", "speed=high", "H100"] {
            assert!(MadeOn::parse(text).unwrap_err().contains("is none of nccl=2.28.9"), "{text}");
        }
        assert_eq!(MadeOn::parse("").unwrap(), MadeOn::default());
    }

    #[test]
    fn the_drivers_files_name_the_gpus() {
        let folder = tempfile::tempdir().unwrap();
        for (name, model) in [("0000:1b:00.0", "NVIDIA H100 80GB HBM3"), ("0000:2b:00.0", "NVIDIA H100 80GB HBM3")] {
            let gpu = folder.path().join("gpus").join(name);
            std::fs::create_dir_all(&gpu).unwrap();
            std::fs::write(gpu.join("information"), format!("Model: \t\t {model}\nIRQ:   \t\t 99\n")).unwrap();
        }
        assert_eq!(gpus(folder.path()), ["NVIDIA H100 80GB HBM3"]);
        assert_eq!(gpus(Path::new("/nonexistent")), [""; 0]);
    }
}
