//! Command lines of nccl-tests under each launcher.
//!
//! | launcher | processes | how a host's GPUs are chosen |
//! |---|---|---|
//! | `local` | one, `-g K` | `CUDA_VISIBLE_DEVICES` of this process |
//! | `mpirun` | one per GPU, `-g 1` | one application context per host, started through `env` |
//! | `srun` | one per GPU, `-g 1` | a host file for `--distribution=arbitrary`, a `case` on the node's name |
//!
//! `CUDA_DEVICE_ORDER=PCI_BUS_ID` goes with every choice: linkwise counts GPUs as `nvidia-smi` does, CUDA by default does not.

use crate::backend::Point;
use std::fmt;
use std::path::{Path, PathBuf};
use topology::{Cluster, GpuMask};

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

/// How to run nccl-tests.
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

/// The command that measures `point`. `hostfile` is where the caller will write the host file, if there is one.
///
/// # Errors
/// A host name that no launcher accepts, or several hosts with the local launcher.
pub fn command_line(
    cluster: &Cluster,
    point: &Point,
    options: &LaunchOptions,
    hostfile: &Path,
) -> Result<CommandLine, String> {
    let parts = point.allocation.parts();
    let ranks = point.allocation.gpu_count();
    let name = format!("{}_perf", point.collective.name());
    let program = match &options.folder {
        Some(folder) => folder.join(name).display().to_string(),
        None => name,
    };
    let benchmark = |gpus: usize| -> Vec<String> {
        let size = point.size.0.to_string();
        let (n, w, g) = (options.iterations.to_string(), options.warmup.to_string(), gpus.to_string());
        ["-b", &size, "-e", &size, "-t", "1", "-g", &g, "-n", &n, "-w", &w].map(str::to_owned).to_vec()
    };
    for (h, _) in parts {
        let host = &cluster.host(*h).name;
        let known = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if host.is_empty() || host.starts_with('-') || !host.chars().all(known) {
            return Err(format!(
                "`{host}` cannot be a host name for a launcher; letters, digits, `.`, `_` and `-` can"
            ));
        }
    }
    let order = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    let mut command = CommandLine::default();
    match options.launcher {
        Launcher::Local => {
            let [(_, mask)] = parts else {
                return Err(format!("{} hosts need --launcher mpirun or srun", parts.len()));
            };
            command.env =
                vec![(order.0.into(), order.1.into()), ("CUDA_VISIBLE_DEVICES".into(), cuda_visible_devices(*mask))];
            command.program = program;
            command.args = benchmark(ranks);
        }
        Launcher::Mpirun => {
            command.program = "mpirun".into();
            command.args = options.launcher_args.clone();
            for (i, (h, mask)) in parts.iter().enumerate() {
                if i > 0 {
                    command.args.push(":".into());
                }
                let (host, n) = (&cluster.host(*h).name, mask.count());
                command.args.extend([
                    "--host".into(),
                    format!("{host}:{n}"),
                    "-np".into(),
                    n.to_string(),
                    "env".into(),
                ]);
                command.args.push(format!("{}={}", order.0, order.1));
                command.args.push(format!("CUDA_VISIBLE_DEVICES={}", cuda_visible_devices(*mask)));
                command.args.push(program.clone());
                command.args.extend(benchmark(1));
            }
        }
        Launcher::Srun => {
            let hosts: Vec<&str> = parts.iter().map(|(h, _)| cluster.host(*h).name.as_str()).collect();
            let mut script = String::from("case \"$SLURMD_NODENAME\" in");
            let mut file = String::new();
            for ((_, mask), host) in parts.iter().zip(&hosts) {
                script.push_str(&format!(" {host}) export CUDA_VISIBLE_DEVICES={};;", cuda_visible_devices(*mask)));
                file.push_str(&format!("{host}\n").repeat(mask.count()));
            }
            script.push_str(&format!(" *) echo \"not one of this run's hosts: $SLURMD_NODENAME\" >&2; exit 1;; esac; export {}={}; exec \"$@\"", order.0, order.1));
            command.env = vec![("SLURM_HOSTFILE".into(), hostfile.display().to_string())];
            command.program = "srun".into();
            command.args = options.launcher_args.clone();
            command.args.extend([
                format!("--nodes={}", hosts.len()),
                format!("--ntasks={ranks}"),
                "--distribution=arbitrary".into(),
                format!("--nodelist={}", hosts.join(",")),
                "sh".into(),
                "-c".into(),
                script,
                "linkwise".into(),
                program,
            ]);
            command.args.extend(benchmark(1));
            command.hostfile = Some(file);
        }
    }
    Ok(command)
}
