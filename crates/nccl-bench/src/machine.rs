//! Properties of GPUs and processors that the emulation needs and the cluster file does not contain.

use topology::HostType;

/// Properties of a GPU that CUDA reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GpuFacts {
    /// Compute capability times ten: 90 for 9.0.
    pub compute_capability: u32,
    pub multiprocessors: u32,
    pub memory_gib: u32,
    /// PCI device id, vendor 0x10de.
    pub device_id: u16,
    /// True if the GPU has peer-to-peer. GeForce cards since the 40 series do not.
    pub peer_to_peer: bool,
}

macro_rules! gpu {
    ($key:literal, $cc:literal, $sms:literal, $gib:literal, $id:literal, $p2p:literal) => {
        (
            $key,
            GpuFacts {
                compute_capability: $cc,
                multiprocessors: $sms,
                memory_gib: $gib,
                device_id: $id,
                peer_to_peer: $p2p,
            },
        )
    };
}

/// (key, facts). A model has the facts of the longest key that its name contains (lower case, letters and digits only).
/// Sources: NVIDIA data sheets, the PCI id list.
const GPUS: [(&str, GpuFacts); 26] = [
    gpu!("gb200", 100, 148, 186, 0x2941, true),
    gpu!("b200", 100, 148, 180, 0x2901, true),
    gpu!("gh200", 90, 132, 96, 0x2335, true),
    gpu!("h200", 90, 132, 141, 0x2335, true),
    gpu!("h100", 90, 132, 80, 0x2330, true),
    gpu!("h100pcie", 90, 114, 80, 0x2331, true),
    gpu!("h800", 90, 132, 80, 0x2324, true),
    gpu!("h20", 90, 78, 96, 0x2329, true),
    gpu!("a800", 80, 108, 80, 0x20f3, true),
    gpu!("a100", 80, 108, 80, 0x20b2, true),
    gpu!("a100sxm440gb", 80, 108, 40, 0x20b0, true),
    gpu!("a10080gbpcie", 80, 108, 80, 0x20b5, true),
    gpu!("a100pcie40gb", 80, 108, 40, 0x20f1, true),
    gpu!("a10g", 86, 80, 24, 0x2237, true),
    gpu!("a6000", 86, 84, 48, 0x2230, true),
    gpu!("a40", 86, 84, 48, 0x2235, true),
    gpu!("3090", 86, 82, 24, 0x2204, true),
    gpu!("4090", 89, 128, 24, 0x2684, false),
    gpu!("5090", 120, 170, 32, 0x2b85, false),
    gpu!("pro6000", 120, 188, 96, 0x2bb5, true),
    gpu!("l40s", 89, 142, 48, 0x26b9, true),
    gpu!("l4", 89, 58, 24, 0x27b8, true),
    gpu!("v100", 70, 80, 32, 0x1db5, true),
    gpu!("v100sxm3", 70, 80, 32, 0x1db8, true),
    gpu!("p100", 60, 56, 16, 0x15f9, true),
    gpu!("t4", 75, 40, 16, 0x1eb8, true),
];

/// The facts of the longest key that the name contains.
pub(crate) fn gpu_facts(model: &str) -> Option<GpuFacts> {
    let name: String = model.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    GPUS.iter().filter(|(key, _)| name.contains(key)).max_by_key(|(key, _)| key.len()).map(|(_, facts)| *facts)
}

/// A processor, as NCCL's topology file describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CpuFacts {
    pub name: &'static str,
    pub arch: &'static str,
    pub vendor: &'static str,
    pub family: u32,
    pub model: u32,
}

const fn intel(name: &'static str, model: u32) -> CpuFacts {
    CpuFacts { name, arch: "x86_64", vendor: "GenuineIntel", family: 6, model }
}

/// The assumed processor of a host type: the processor of NVIDIA's own system if one exists, otherwise the Xeon of the
/// PCIe generation.
pub(crate) fn cpu_facts(t: &HostType) -> CpuFacts {
    let switched = t.nvlink.is_some_and(|n| n.switched);
    let capability = gpu_facts(&t.gpu_model).map_or(0, |g| g.compute_capability);
    match (t.pcie.generation, capability) {
        _ if t.gpu_model.contains("GB200") || t.gpu_model.contains("GH200") => {
            CpuFacts { name: "NVIDIA Grace", arch: "arm64", vendor: "ARM", family: 0, model: 0 }
        }
        (_, 80) if switched => {
            CpuFacts { name: "AMD EPYC (Rome)", arch: "x86_64", vendor: "AuthenticAMD", family: 143, model: 49 }
        }
        (_, 100..=109) => intel("Intel Xeon (Emerald Rapids)", 207),
        (5.., _) => intel("Intel Xeon (Sapphire Rapids)", 143),
        (4, _) => intel("Intel Xeon (Ice Lake)", 106),
        _ if switched => intel("Intel Xeon (Skylake)", 85),
        _ => intel("Intel Xeon (Broadwell)", 79),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use topology::catalog;

    #[test]
    fn every_catalog_type_has_a_known_gpu() {
        for t in catalog::host_types() {
            assert!(gpu_facts(&t.gpu_model).is_some(), "{}: {}", t.name, t.gpu_model);
        }
        assert_eq!(gpu_facts("NVIDIA H100 PCIe").unwrap().device_id, 0x2331);
        assert_eq!(gpu_facts("Radeon"), None);
    }
}
