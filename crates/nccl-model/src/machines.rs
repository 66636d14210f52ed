//! What the cost model wants to know of the machines themselves.

use serde::{Deserialize, Serialize};
use topology::HostType;

/// Generations of GPUs that NCCL's cost model tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum GpuClass {
    /// Compute capability below 8.0.
    Volta,
    /// 8.x.
    Ampere,
    /// 9.x.
    Hopper,
    /// 10.0 and later.
    Blackwell,
}

/// Processor architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CpuArch {
    /// Intel, AMD, Zhaoxin.
    X86,
    /// Arm (Grace and others).
    Arm,
    /// IBM POWER.
    Power,
}

/// Processor vendor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CpuVendor {
    /// Intel.
    Intel,
    /// AMD.
    Amd,
    /// Zhaoxin.
    Zhaoxin,
    /// Anything else, Arm vendors included.
    Other,
    /// Hosts differ.
    Mixed,
}

/// A processor, as far as NCCL cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cpu {
    /// Architecture.
    pub arch: CpuArch,
    /// Vendor.
    pub vendor: CpuVendor,
}

impl Cpu {
    /// Intel x86, what most published systems with eight GPUs have.
    pub const INTEL: Cpu = Cpu { arch: CpuArch::X86, vendor: CpuVendor::Intel };
    /// AMD x86, as in DGX A100.
    pub const AMD: Cpu = Cpu { arch: CpuArch::X86, vendor: CpuVendor::Amd };
    /// NVIDIA Grace.
    pub const GRACE: Cpu = Cpu { arch: CpuArch::Arm, vendor: CpuVendor::Other };
}

/// One host, as far as the cost model cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Machine {
    /// Compute capability of its GPUs times ten: 90 for Hopper.
    pub compute_capability: u16,
    /// Its processor.
    pub cpu: Cpu,
}

impl Machine {
    /// What a type of host is, by the name of its GPU. `None` for GPUs that are not known; their compute capability must be given.
    ///
    /// The cluster file does not name processors: Grace for GB200 and GH200, AMD for A100 with NVSwitches (DGX A100), Intel elsewhere, as
    /// `nccl-bench` assumes. It shows in the LL protocol and in ring latencies between hosts only.
    pub fn of(host: &HostType) -> Option<Machine> {
        let model = host.gpu_model.to_ascii_uppercase();
        // Longest names first: "L40S" before "L4", "GB200" before "B200".
        const CAPABILITIES: &[(&str, u16)] = &[
            ("RTX PRO 6000", 120),
            ("RTX 5090", 120),
            ("GB300", 103),
            ("B300", 103),
            ("GB200", 100),
            ("B200", 100),
            ("B100", 100),
            ("GH200", 90),
            ("H100", 90),
            ("H200", 90),
            ("H800", 90),
            ("H20", 90),
            ("RTX 4090", 89),
            ("L40", 89),
            ("L20", 89),
            ("L4", 89),
            ("A6000", 86),
            ("A5000", 86),
            ("A40", 86),
            ("A10", 86),
            ("RTX 3090", 86),
            ("A100", 80),
            ("A800", 80),
            ("A30", 80),
            ("T4", 75),
            ("V100", 70),
            ("P100", 60),
        ];
        // A100 would be found as A10.
        let capability =
            CAPABILITIES.iter().filter(|(name, _)| model.contains(name)).max_by_key(|(name, _)| name.len())?;
        let switched = host.nvlink.is_some_and(|n| n.switched);
        let cpu = match capability.1 {
            _ if ["GB200", "GH200", "GB300"].iter().any(|g| model.contains(g)) => Cpu::GRACE,
            80 if switched => Cpu::AMD,
            _ => Cpu::INTEL,
        };
        Some(Machine { compute_capability: capability.1, cpu })
    }
}

/// The machines of a communicator, as its ranks agree on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Machines {
    /// Least compute capability of all GPUs, times ten.
    pub capability_min: u16,
    /// Most.
    pub capability_max: u16,
    /// The processors.
    pub cpu: Cpu,
}

impl Machines {
    /// All hosts together. `None` without hosts.
    pub fn agree(hosts: impl IntoIterator<Item = Machine>) -> Option<Machines> {
        hosts.into_iter().fold(None, |all, m| {
            Some(match all {
                None => {
                    Machines { capability_min: m.compute_capability, capability_max: m.compute_capability, cpu: m.cpu }
                }
                Some(a) => Machines {
                    capability_min: a.capability_min.min(m.compute_capability),
                    capability_max: a.capability_max.max(m.compute_capability),
                    cpu: Cpu {
                        arch: a.cpu.arch,
                        vendor: if a.cpu.vendor == m.cpu.vendor { a.cpu.vendor } else { CpuVendor::Mixed },
                    },
                },
            })
        })
    }

    /// The generation that the cost model takes: the oldest.
    pub fn class(&self) -> GpuClass {
        match self.capability_min {
            0..80 => GpuClass::Volta,
            80..90 => GpuClass::Ampere,
            90..100 => GpuClass::Hopper,
            100.. => GpuClass::Blackwell,
        }
    }

    pub(crate) fn is_amd(&self) -> bool {
        self.cpu.arch == CpuArch::X86 && matches!(self.cpu.vendor, CpuVendor::Amd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::catalog;

    #[test]
    fn every_catalog_host_has_a_known_machine() {
        for host in catalog::host_types() {
            assert!(Machine::of(&host).is_some(), "{} ({})", host.name, host.gpu_model);
        }
    }
}
