//! The configuration of the lab's Slurm.

use super::{CPUS, GPUS, Lab, SILENCE_S, accounts, plugins, release};

impl Lab {
    /// Writes every file of the configuration, with or without the plugin.
    pub fn write_config(&self, plugin: bool) {
        let (nodes, ports) = (self.setup.nodes, &self.ports);
        let (user, at) = (self.user(), self.folder.0.path().display());
        let controller =
            self.setup.hosts.first().map_or("localhost(127.0.0.1)".into(), |h| format!("{}({})", h.name, h.address));
        let mut text = format!(
            "ClusterName=lab\nSlurmctldHost={controller}\nSlurmctldPort={}\nSlurmUser={user}\nSlurmdUser={user}\nAuthType=auth/munge\n\
             CredType=cred/munge\nAuthInfo=socket={at}/run/munge.sock\nStateSaveLocation={at}/state\nSlurmdSpoolDir={at}/spool/%n\n\
             SlurmctldPidFile={at}/run/ctld.pid\nSlurmdPidFile={at}/run/%n.pid\nSlurmctldLogFile={at}/log/ctld.log\n\
             SlurmdLogFile={at}/log/%n.log\nProctrackType=proctrack/linuxproc\nMpiDefault=none\nReturnToService=2\n\
             SchedulerParameters=sched_interval=5,bf_interval=5,batch_sched_delay=0,sched_min_interval=0\nSelectType=select/cons_tres\n\
             SelectTypeParameters=CR_Core\nSlurmdParameters=config_overrides\nKillWait=2\nMaxJobCount=20000\n\
             PluginDir={}:{at}/plugin\n\
             SlurmctldParameters=linkwise_socket={at}/run/linkwise.sock,linkwise_silence={SILENCE_S}\n",
            ports[0],
            plugins().display()
        );
        if plugin {
            text += "BurstBufferType=burst_buffer/linkwise\n";
        }
        let (mixed, types) = (self.setup.mixed, self.setup.types);
        text += if mixed {
            "GresTypes=gpu,shard\nPreemptType=preempt/partition_prio\nPreemptMode=CANCEL\n"
        } else if types {
            "GresTypes=gpu,mig\n"
        } else {
            "GresTypes=gpu\n"
        };
        if self.setup.ending_s > 0 {
            self.folder.script("ending", &format!("#!/bin/sh\nexec sleep {}\n", self.setup.ending_s));
            text += &format!("Epilog={at}/ending\n");
        }
        let mut gres = String::new();
        for (i, port) in (1..).zip(&ports[3..]) {
            let last = match (mixed, types) {
                (true, _) => ",shard:16",
                (_, true) => ",mig:4",
                _ => "",
            };
            let (more, kind) =
                (if i == nodes { last } else { "" }, if types && i > nodes / 2 { "h100" } else { "a100" });
            let feature = if mixed && i < 3 { "Feature=fast " } else { "" };
            let name = self.name_of(i);
            let (host, address) = self
                .setup
                .hosts
                .get(i - 1)
                .map_or(("localhost", "127.0.0.1"), |h| (h.name.as_str(), h.address.as_str()));
            text += &format!(
                "NodeName={name} NodeHostname={host} NodeAddr={address} Port={port} CPUs={CPUS} RealMemory=1000 {feature}Gres=gpu:{kind}:{GPUS}{more} State=UNKNOWN\n"
            );
            gres += &format!("NodeName={name} Name=gpu Type={kind} File={at}/dev/gpu[0-{}]\n", GPUS - 1);
        }
        let all = match self.setup.hosts.is_empty() {
            true => format!("n[1-{nodes}]"),
            false => (1..=nodes).map(|i| self.name_of(i)).collect::<Vec<_>>().join(","),
        };
        text += &format!("PartitionName=main Nodes={all} Default=YES State=UP OverSubscribe=NO\n");
        if mixed {
            text += &format!(
                "PartitionName=small Nodes=n{nodes} State=UP OverSubscribe=NO\nPartitionName=urgent Nodes=n[1-{nodes}] State=UP \
                 OverSubscribe=NO PriorityTier=10\nPartitionName=whole Nodes=n[1-{nodes}] State=UP OverSubscribe=EXCLUSIVE\n"
            );
            gres += &format!("NodeName=n{nodes} Name=shard Count=16 File={at}/dev/gpu[0-{}]\n", GPUS - 1);
        }
        if types {
            gres += &format!("NodeName=n{nodes} Name=mig Count=4\n");
        }
        if self.setup.accounts {
            text += &accounts::config(&at.to_string(), ports[2]);
        }
        text += &self.setup.config.replace("AT/", &format!("{at}/"));
        if self.setup.leaf > 0 {
            let (plugin, name) = if self.setup.blocks { ("block", "BlockName") } else { ("tree", "SwitchName") };
            text += &format!("TopologyPlugin=topology/{plugin}\n");
            let leaves = nodes.div_ceil(self.setup.leaf);
            let mut switches = String::new();
            for l in 0..leaves {
                let (first, last) = (l * self.setup.leaf + 1, ((l + 1) * self.setup.leaf).min(nodes));
                switches += &format!("{name}=leaf{l} Nodes=n[{first}-{last}]\n");
            }
            switches += &match self.setup.blocks {
                true => format!("BlockSizes={}\n", self.setup.leaf),
                false => format!("SwitchName=spine Switches=leaf[0-{}]\n", leaves - 1),
            };
            std::fs::write(self.at("etc/topology.conf"), switches).unwrap();
        }
        std::fs::write(self.at("etc/slurm.conf"), text).unwrap();
        std::fs::write(self.at("etc/gres.conf"), gres).unwrap();
        std::fs::write(self.at("library.so"), "").unwrap();
        let spank = format!("optional {at}/plugin/spank_linkwise.so plugin={at}/library.so\n");
        std::fs::write(self.at("etc/plugstack.conf"), spank).unwrap();
        if release() >= (23, 11) {
            std::fs::write(self.at("etc/cgroup.conf"), "CgroupPlugin=disabled\n").unwrap();
        }
    }
}
