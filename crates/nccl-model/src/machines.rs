//! The properties of GPUs and processors that the cost model uses.

use serde::{Deserialize, Serialize};
use topology::HostType;

/// GPU generations with different rows in NCCL's cost model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum CostModelGeneration {
    /// Compute capability below 8.0.
    Volta,
    /// Compute capability 8.x.
    Ampere,
    /// Compute capability 9.x.
    Hopper,
    /// Compute capability 10.0 and later.
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
    /// Any other vendor, including Arm vendors.
    Other,
    /// The hosts have different vendors.
    Mixed,
}

/// The properties of a processor that NCCL's cost model uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cpu {
    /// Processor architecture.
    pub arch: CpuArch,
    /// Processor vendor.
    pub vendor: CpuVendor,
}

impl Cpu {
    /// Intel x86, as in most published systems with eight GPUs.
    pub const INTEL: Cpu = Cpu { arch: CpuArch::X86, vendor: CpuVendor::Intel };
    /// AMD x86, as in DGX A100.
    pub const AMD: Cpu = Cpu { arch: CpuArch::X86, vendor: CpuVendor::Amd };
    /// NVIDIA Grace.
    pub const GRACE: Cpu = Cpu { arch: CpuArch::Arm, vendor: CpuVendor::Other };
}

/// The GPUs and processor of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HostMachine {
    /// Compute capability of its GPUs times ten: 90 for Hopper.
    pub compute_capability: u16,
    /// The processor.
    pub cpu: Cpu,
}

impl HostMachine {
    /// The machine of a host type, from the name of its GPU; `None` for unknown GPUs.
    ///
    /// The cluster file does not name processors. As in `nccl-bench`, the assumed processor is Grace for GB200 and
    /// GH200, AMD for A100 with NVSwitches (DGX A100), and Intel for all other hosts. The processor affects only the LL
    /// protocol and ring latencies between hosts.
    pub fn of(host: &HostType) -> Option<HostMachine> {
        let model = host.gpu_model.to_ascii_uppercase();
        // Use the longest name that matches: "GB200", not "B200".
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
        // "A10" also matches A100.
        let capability =
            CAPABILITIES.iter().filter(|(name, _)| model.contains(name)).max_by_key(|(name, _)| name.len())?;
        let switched = host.nvlink.is_some_and(|n| n.switched);
        let cpu = match capability.1 {
            _ if ["GB200", "GH200", "GB300"].iter().any(|g| model.contains(g)) => Cpu::GRACE,
            80 if switched => Cpu::AMD,
            _ => Cpu::INTEL,
        };
        Some(HostMachine { compute_capability: capability.1, cpu })
    }
}

/// The machines of a communicator, merged over its hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct AgreedMachines {
    /// Lowest compute capability of all GPUs, times ten.
    pub capability_min: u16,
    /// Highest compute capability of all GPUs, times ten.
    pub capability_max: u16,
    /// The processors; vendor `Mixed` if the hosts differ.
    pub cpu: Cpu,
}

impl AgreedMachines {
    /// Merges the machines of all hosts; `None` without hosts.
    pub fn agree(hosts: impl IntoIterator<Item = HostMachine>) -> Option<AgreedMachines> {
        hosts.into_iter().fold(None, |all, m| {
            Some(match all {
                None => AgreedMachines {
                    capability_min: m.compute_capability,
                    capability_max: m.compute_capability,
                    cpu: m.cpu,
                },
                Some(a) => AgreedMachines {
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

    /// The generation that the cost model uses: the oldest.
    pub fn class(&self) -> CostModelGeneration {
        match self.capability_min {
            0..80 => CostModelGeneration::Volta,
            80..90 => CostModelGeneration::Ampere,
            90..100 => CostModelGeneration::Hopper,
            100.. => CostModelGeneration::Blackwell,
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
            assert!(HostMachine::of(&host).is_some(), "{} ({})", host.name, host.gpu_model);
        }
    }
}
