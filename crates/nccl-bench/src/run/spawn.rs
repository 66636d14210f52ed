//! Starts one process of a run. The environment of the process describes the simulated host to the emulation and the
//! run to NCCL, the plugins and the runner.

use super::{BenchRun, HostProcess};
use crate::BenchError;
use crate::spec::CallMode;
use std::fs::{self, File};
use std::process::{Child, Command, Stdio};

impl BenchRun<'_> {
    pub(super) fn spawn(&self, index: usize) -> Result<Child, BenchError> {
        let process = &self.processes[index];
        self.write(self.file(index, "topology.xml"), &self.topologies[process.node].xml)?;
        let mut command = self.runner(index, process)?;
        self.replace_environment(&mut command);
        self.describe_hardware(&mut command, process)?;
        self.configure_nccl(&mut command, index, process);
        self.configure_plugins(&mut command);
        self.configure_calls(&mut command);
        if self.spec.process_per_rank {
            self.configure_rank(&mut command, process);
        }
        command.spawn().map_err(BenchError::io(format!("cannot start {}", self.emulation.runner.display())))
    }

    /// The runner with its arguments. Its output goes to files of the run.
    fn runner(&self, index: usize, process: &HostProcess) -> Result<Command, BenchError> {
        let create = |name: &str| {
            let path = self.file(index, name);
            File::create(&path).map_err(BenchError::io(format!("cannot write {}", path.display())))
        };
        let mode = match self.spec.mode {
            CallMode::Simulate => "simulate",
            CallMode::Launch => "launch",
            CallMode::Both => "both",
        };
        let mut command = Command::new(&self.emulation.runner);
        command
            .arg(&self.library.path)
            .arg(std::process::id().to_string())
            .arg(process.first_rank.to_string())
            .arg(self.spec.rank_count().to_string())
            .arg(process.gpus.len().to_string())
            .arg(self.folder.path().join("id"))
            .arg(self.folder.path().join("plan"))
            .arg(mode)
            .stdin(Stdio::null())
            .stdout(create("log")?)
            .stderr(create("err")?);
        Ok(command)
    }

    /// Replaces the caller's environment by that of the specification, because NCCL reads dozens of variables and a
    /// file in HOME.
    fn replace_environment(&self, command: &mut Command) {
        command.env_clear().env("HOME", self.folder.path());
        for name in ["PATH", "LD_LIBRARY_PATH", "TMPDIR"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.envs(self.spec.env.iter().map(|(name, value)| (name, value)));
    }

    /// The variables from which the emulation takes the host's GPUs, NICs and shared memory.
    fn describe_hardware(&self, command: &mut Command, process: &HostProcess) -> Result<(), BenchError> {
        let shared = self.folder.path().join("shm");
        fs::create_dir_all(&shared).map_err(BenchError::io(format!("cannot create {}", shared.display())))?;
        let (node, topology) = (&self.spec.nodes[process.node], &self.topologies[process.node]);
        let multicast = self.spec.cluster.type_of(node.host).nvlink.is_some_and(|n| n.switched && n.multicast);
        let nics: Vec<String> = topology.nics.iter().map(|(name, bus, mbit)| format!("{name},{bus},{mbit}")).collect();
        let visible: Vec<String> = process.gpus.iter().map(u8::to_string).collect();
        command
            .env("LD_PRELOAD", &self.emulation.preload)
            .env("CUDA_VISIBLE_DEVICES", visible.join(","))
            .envs(topology.gpu_variables())
            .env("LINKWISE_EMU_NICS", nics.join(";"))
            .env("LINKWISE_EMU_GPUDIRECT", u8::from(self.gpudirect).to_string())
            .env("LINKWISE_EMU_MULTICAST", u8::from(multicast).to_string())
            .env("LINKWISE_EMU_SHARED_MEMORY", &shared);
        if let Some(domain) = node.nvlink_domain {
            command.env("LINKWISE_EMU_FABRIC_CLIQUE", "1").env("LINKWISE_EMU_FABRIC_DOMAIN", domain.to_string());
        }
        Ok(())
    }

    /// The NCCL settings that make the hosts distinct and print the decisions ([`crate::spec::OWN_VARIABLES`]).
    fn configure_nccl(&self, command: &mut Command, index: usize, process: &HostProcess) {
        command
            .env("NCCL_HOSTID", format!("linkwise-{}-{}", std::process::id(), process.node))
            .env("NCCL_TOPO_FILE", self.file(index, "topology.xml"))
            .env("NCCL_GRAPH_DUMP_FILE", self.file(index, "graphs.xml"))
            .env("NCCL_GRAPH_DUMP_FILE_RANK", process.first_rank.to_string())
            .env("NCCL_NET_PLUGIN", self.spec.net_plugin.as_ref().unwrap_or(&self.emulation.net_plugin))
            .env("NCCL_SOCKET_IFNAME", "lo")
            .env("NCCL_RAS_ENABLE", "0") // otherwise all jobs of a machine use the same port
            .env("NCCL_DEBUG", "INFO")
            .env("NCCL_DEBUG_SUBSYS", "INIT,GRAPH,TUNING");
    }

    fn configure_plugins(&self, command: &mut Command) {
        if let Some(plugin) = &self.spec.tuner_plugin {
            command.env("NCCL_TUNER_PLUGIN", plugin);
        }
        if let Some(plugin) = &self.spec.profiler_plugin {
            command.env("NCCL_PROFILER_PLUGIN", plugin);
        }
        command.envs(self.spec.plugin_env.iter().map(|(name, value)| (name, value)));
    }

    /// Groups of calls and pauses between them.
    fn configure_calls(&self, command: &mut Command) {
        if self.spec.in_group > 1 {
            command.env("LINKWISE_EMU_IN_GROUP", self.spec.in_group.to_string());
        }
        if !self.spec.pause.is_zero() {
            command.env("LINKWISE_EMU_PAUSE_US", self.spec.pause.as_micros().to_string());
        }
    }

    /// The launcher's variables and the settings of the process's only rank.
    fn configure_rank(&self, command: &mut Command, process: &HostProcess) {
        let (spec, rank) = (self.spec, process.first_rank);
        let local_rank = rank - self.first_rank(process.node);
        command
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", spec.rank_count().to_string())
            .env("LOCAL_RANK", local_rank.to_string());
        let of_nccl = spec.env_of_rank.iter().filter(|(of_rank, _, _)| *of_rank == rank);
        command.envs(of_nccl.map(|(_, name, value)| (name, value)));
        if let Some((_, call, times)) = spec.simulates.filter(|(of_rank, _, _)| *of_rank == rank) {
            command.env("LINKWISE_EMU_SIMULATE", format!("{call}:{times}"));
        }
        if let Some((_, call, times)) = spec.captures.filter(|(of_rank, _, _)| *of_rank == rank) {
            command.env("LINKWISE_EMU_CAPTURE", format!("{call}:{times}"));
        }
        let own = spec.plugin_env_of_rank.iter().filter(|(of_rank, _, _)| *of_rank == rank);
        command.envs(own.map(|(_, name, value)| (name, value)));
        if let Some((_, time)) = spec.late.filter(|(late_rank, _)| *late_rank == rank) {
            command.env("LINKWISE_EMU_LATE_MS", time.as_millis().to_string());
        }
        if spec.in_step_every > 0 {
            command.env("LINKWISE_EMU_IN_STEP_EVERY", spec.in_step_every.to_string());
        }
    }
}
