//! Command lines of nccl-tests under each launcher.
//!
//! | launcher | processes | how a host's GPUs are chosen |
//! |---|---|---|
//! | `local` | one, `-g K` | `CUDA_VISIBLE_DEVICES` of this process |
//! | `mpirun` | one per GPU, `-g 1` | one application context per host, started through `env` |
//! | `srun` | one per GPU, `-g 1` | a host file for `--distribution=arbitrary`, a `case` on the node's name |
//!
//! Every choice also sets `CUDA_DEVICE_ORDER=PCI_BUS_ID`: linkwise numbers GPUs as `nvidia-smi` does, and CUDA by
//! default does not.

use crate::backend::Point;
use std::fmt;
use std::path::{Path, PathBuf};
use topology::{Cluster, GpuMask, HostId};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Launcher {
    /// This machine, one process.
    #[default]
    Local,
    /// Open MPI.
    Mpirun,
    /// Slurm.
    Srun,
}

/// Settings of nccl-tests runs.
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchOptions {
    pub launcher: Launcher,
    /// Folder of the programs (`all_reduce_perf`, ...); `None` searches PATH.
    pub folder: Option<PathBuf>,
    /// `-n`.
    pub iterations: u32,
    /// `-w`.
    pub warmup: u32,
    /// Additional arguments of the launcher.
    pub launcher_args: Vec<String>,
}

impl Default for LaunchOptions {
    fn default() -> Self {
        LaunchOptions { launcher: Launcher::Local, folder: None, iterations: 20, warmup: 5, launcher_args: Vec::new() }
    }
}

/// A command ready to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandLine {
    /// Environment variables to set.
    pub env: Vec<(String, String)>,
    pub program: String,
    pub args: Vec<String>,
    /// Content of the host file, one line per rank; its path is the value of `SLURM_HOSTFILE`.
    pub hostfile: Option<String>,
}

impl fmt::Display for CommandLine {
    /// The command as typed in a shell.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (k, v) in &self.env {
            write!(f, "{k}={} ", quoted(v))?;
        }
        write!(f, "{}", quoted(&self.program))?;
        self.args.iter().try_for_each(|a| write!(f, " {}", quoted(a)))
    }
}

/// Adds single quotes if a shell needs them.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+:,./@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) { text.into() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

fn cuda_visible_devices(mask: GpuMask) -> String {
    mask.iter().map(|g| g.to_string()).collect::<Vec<_>>().join(",")
}

/// The command that measures `point`. `hostfile` is the path to which the caller will write the host file, if there is
/// one.
///
/// # Errors
/// A host name that no launcher accepts, or several hosts with the local launcher.
pub fn command_line(
    cluster: &Cluster,
    point: &Point,
    options: &LaunchOptions,
    hostfile: &Path,
) -> Result<CommandLine, String> {
    let run = HostRun { cluster, point, options };
    run.check_host_names()?;
    match options.launcher {
        Launcher::Local => run.local(),
        Launcher::Mpirun => Ok(run.mpirun()),
        Launcher::Srun => Ok(run.srun(hostfile)),
    }
}

/// CUDA counts GPUs in the order of `nvidia-smi` with this variable.
const DEVICE_ORDER: (&str, &str) = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID");

/// One measurement on the hosts of a point.
struct HostRun<'a> {
    cluster: &'a Cluster,
    point: &'a Point,
    options: &'a LaunchOptions,
}

impl HostRun<'_> {
    fn parts(&self) -> &[(HostId, GpuMask)] {
        self.point.allocation.parts()
    }
    fn host_name(&self, host: HostId) -> &str {
        &self.cluster.host(host).name
    }

    /// Refuses names that a launcher would read as an option or a list.
    fn check_host_names(&self) -> Result<(), String> {
        for (h, _) in self.parts() {
            let host = self.host_name(*h);
            let known = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            if host.is_empty() || host.starts_with('-') || !host.chars().all(known) {
                return Err(format!(
                    "`{host}` cannot be a host name for a launcher; letters, digits, `.`, `_` and `-` can"
                ));
            }
        }
        Ok(())
    }

    /// The benchmark's program.
    fn program(&self) -> String {
        let name = format!("{}_perf", self.point.collective.name());
        match &self.options.folder {
            Some(folder) => folder.join(name).display().to_string(),
            None => name,
        }
    }
    /// The benchmark's arguments for one process with this many GPUs.
    fn benchmark(&self, gpus: usize) -> Vec<String> {
        let size = self.point.size.0.to_string();
        let (n, w, g) = (self.options.iterations.to_string(), self.options.warmup.to_string(), gpus.to_string());
        ["-b", &size, "-e", &size, "-t", "1", "-g", &g, "-n", &n, "-w", &w].map(str::to_owned).to_vec()
    }

    fn local(&self) -> Result<CommandLine, String> {
        let [(_, mask)] = self.parts() else {
            return Err(format!("{} hosts need --launcher mpirun or srun", self.parts().len()));
        };
        Ok(CommandLine {
            env: vec![
                (DEVICE_ORDER.0.into(), DEVICE_ORDER.1.into()),
                ("CUDA_VISIBLE_DEVICES".into(), cuda_visible_devices(*mask)),
            ],
            program: self.program(),
            args: self.benchmark(self.point.allocation.gpu_count()),
            hostfile: None,
        })
    }

    /// One application context per host, separated by `:`.
    fn mpirun(&self) -> CommandLine {
        let mut args = self.options.launcher_args.clone();
        for (i, (h, mask)) in self.parts().iter().enumerate() {
            if i > 0 {
                args.push(":".into());
            }
            let n = mask.count();
            args.extend([
                "--host".into(),
                format!("{}:{n}", self.host_name(*h)),
                "-np".into(),
                n.to_string(),
                "env".into(),
            ]);
            args.push(format!("{}={}", DEVICE_ORDER.0, DEVICE_ORDER.1));
            args.push(format!("CUDA_VISIBLE_DEVICES={}", cuda_visible_devices(*mask)));
            args.push(self.program());
            args.extend(self.benchmark(1));
        }
        CommandLine { program: "mpirun".into(), args, ..CommandLine::default() }
    }

    /// One task per line of the host file. Each task selects the GPUs of its host by the name of its node.
    fn srun(&self, hostfile: &Path) -> CommandLine {
        let hosts: Vec<&str> = self.parts().iter().map(|(h, _)| self.host_name(*h)).collect();
        let mut script = String::from("case \"$SLURMD_NODENAME\" in");
        let mut file = String::new();
        for ((_, mask), host) in self.parts().iter().zip(&hosts) {
            script.push_str(&format!(" {host}) export CUDA_VISIBLE_DEVICES={};;", cuda_visible_devices(*mask)));
            file.push_str(&format!("{host}\n").repeat(mask.count()));
        }
        script.push_str(&format!(
            " *) echo \"not one of this run's hosts: $SLURMD_NODENAME\" >&2; exit 1;; esac; export {}={}; exec \"$@\"",
            DEVICE_ORDER.0, DEVICE_ORDER.1
        ));
        let mut args = self.options.launcher_args.clone();
        args.extend([
            format!("--nodes={}", hosts.len()),
            format!("--ntasks={}", self.point.allocation.gpu_count()),
            "--distribution=arbitrary".into(),
            format!("--nodelist={}", hosts.join(",")),
            "sh".into(),
            "-c".into(),
            script,
            "linkwise".into(),
            self.program(),
        ]);
        args.extend(self.benchmark(1));
        CommandLine {
            env: vec![("SLURM_HOSTFILE".into(), hostfile.display().to_string())],
            program: "srun".into(),
            args,
            hostfile: Some(file),
        }
    }
}
