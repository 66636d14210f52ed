//! Writes a host type as NCCL's topology XML (`NCCL_TOPO_FILE`).
//!
//! `system > cpu > pci (bridge) > pci (device) > gpu > nvlink`, `pci > nic > net`. Devices with a PIX path are below
//! one switch, devices with a PXB path below switches with a common parent. The XML cannot express NODE (host bridges
//! of one NUMA node); such paths become PHB.

use crate::machine::{CpuFacts, GpuFacts, cpu_facts, gpu_facts};
use std::fmt::Write;
use topology::{HostType, PathKind};

/// First PCI bus number for devices without a bus id.
const FIRST_BUS: u32 = 0x10;
/// Bus id of the NVSwitches. NCCL counts the links to any switch.
const NVSWITCH: &str = "0000:05:00.0";

/// A host's topology file with further data for the emulation.
#[derive(Debug, Clone, PartialEq)]
pub struct TopologyFile {
    /// The XML.
    pub xml: String,
    /// PCI bus id of every GPU, by index.
    pub gpu_bus_ids: Vec<String>,
    /// Name, PCI bus id and speed in Mbit/s of every NIC, by index.
    pub nics: Vec<(String, String, u32)>,
    /// The processor that the file assumes.
    pub cpu: String,
    pub(crate) gpu: GpuFacts,
}

/// A device of the PCI tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum PciDevice {
    Gpu(usize),
    Nic(usize),
}

impl TopologyFile {
    /// Writes the file of a host type. `gpudirect`: true if NICs read and write GPU memory. Fails for an invalid host
    /// type or an unknown GPU. O(devices²).
    pub fn of(t: &HostType, gpudirect: bool) -> Result<Self, String> {
        t.check()?;
        let gpu = gpu_facts(&t.gpu_model)
            .ok_or_else(|| format!("host type `{}`: the bench does not know the GPU `{}`", t.name, t.gpu_model))?;
        let cpu = cpu_facts(t);
        let mut w = XmlWriter { t, gpu, cpu, gpudirect, bus: PciBusIds::new(t)?, out: String::new() };
        w.system();
        let xml = std::mem::take(&mut w.out);
        Ok(TopologyFile { xml, gpu_bus_ids: w.bus.gpus, nics: w.bus.nics, cpu: cpu.name.into(), gpu })
    }

    /// The variables from which the emulation takes the host's GPUs.
    pub(crate) fn gpu_variables(&self) -> [(&'static str, String); 5] {
        let gpu = &self.gpu;
        [
            ("LINKWISE_EMU_BUS_IDS", self.gpu_bus_ids.join(",")),
            ("LINKWISE_EMU_SM", gpu.compute_capability.to_string()),
            ("LINKWISE_EMU_SM_COUNT", gpu.multiprocessors.to_string()),
            ("LINKWISE_EMU_MEMORY_GIB", gpu.memory_gib.to_string()),
            ("LINKWISE_EMU_PEER_TO_PEER", u8::from(gpu.peer_to_peer).to_string()),
        ]
    }
}

/// Removes the first device and all devices connected to it from `rest`, and returns them sorted: GPUs before NICs, by
/// index.
fn connected(rest: &mut Vec<PciDevice>, near: impl Fn(PciDevice, PciDevice) -> bool) -> Vec<PciDevice> {
    let mut group = vec![rest.remove(0)];
    let mut k = 0;
    while k < group.len() {
        let (more, others) = rest.iter().copied().partition(|d| near(group[k], *d));
        group.extend::<Vec<PciDevice>>(more);
        *rest = others;
        k += 1;
    }
    group.sort_unstable();
    group
}

/// Assigns bus ids in the order in which devices are written. Keeps the ids of the host type.
struct PciBusIds {
    next: u32,
    taken: Vec<String>,
    gpus: Vec<String>,
    nics: Vec<(String, String, u32)>,
}

impl PciBusIds {
    fn new(t: &HostType) -> Result<Self, String> {
        let bad = |id: &str, why: &str| format!("host type `{}`: the PCI bus id `{}` {why}", t.name, id.escape_debug());
        let mut gpus: Vec<String> = Vec::new();
        for gpu in &t.gpus {
            let given = gpu.pci_bus_id.as_deref().unwrap_or("");
            let id = match given {
                "" => String::new(),
                _ => plain_bus_id(given).ok_or_else(|| bad(given, "is not of the form 0000:1b:00.0"))?,
            };
            if !id.is_empty() && gpus.contains(&id) {
                return Err(bad(given, "occurs twice"));
            }
            gpus.push(id);
        }
        let nic = |(i, n): (usize, &topology::Nic)| {
            let plain = n.name.len() < 48 && n.name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c));
            let name = if plain { n.name.clone() } else { format!("nic{i}") };
            (name, String::new(), (n.line_rate.gbit_per_s() * 1000.0).round() as u32)
        };
        Ok(PciBusIds { next: FIRST_BUS, taken: gpus.clone(), nics: t.nics.iter().enumerate().map(nic).collect(), gpus })
    }

    fn fresh(&mut self) -> String {
        loop {
            let id = format!("{:04x}:{:02x}:00.0", self.next >> 8, self.next & 0xff);
            self.next += 1;
            if !self.taken.contains(&id) {
                return id;
            }
        }
    }
}

/// Converts a bus id of nvidia-smi (`00000000:1B:00.0`) to the form of CUDA and NCCL (`0000:1b:00.0`); `None` for other text.
fn plain_bus_id(text: &str) -> Option<String> {
    let parts: Vec<u32> = text
        .split([':', '.'])
        .map(|p| (1..=8).contains(&p.len()).then(|| u32::from_str_radix(p, 16).ok()).flatten())
        .collect::<Option<_>>()?;
    let [domain, bus, device, function] = parts[..] else { return None };
    let fits = domain <= 0xffff && bus <= 0xff && device <= 0x1f && function <= 7 && !text.contains('+');
    fits.then(|| format!("{domain:04x}:{bus:02x}:{device:02x}.{function}"))
}

struct XmlWriter<'a> {
    t: &'a HostType,
    gpu: GpuFacts,
    cpu: CpuFacts,
    gpudirect: bool,
    bus: PciBusIds,
    out: String,
}

impl XmlWriter<'_> {
    fn path(&self, a: PciDevice, b: PciDevice) -> PathKind {
        match (a, b) {
            (PciDevice::Gpu(i), PciDevice::Gpu(j)) => self.t.gpu_paths[i][j],
            (PciDevice::Gpu(i), PciDevice::Nic(n)) | (PciDevice::Nic(n), PciDevice::Gpu(i)) => {
                self.t.nics[n].gpu_paths[i]
            }
            (PciDevice::Nic(_), PciDevice::Nic(_)) => PathKind::Sys, // unknown; the paths to GPUs group the NICs
        }
    }

    fn socket(&self, d: PciDevice) -> u8 {
        let of = |n: usize| {
            let nearest = (0..self.t.gpu_count()).min_by_key(|&g| self.t.nics[n].gpu_paths[g]);
            self.t.nics[n].socket.or(nearest.map(|g| self.t.gpus[g].socket)).unwrap_or(0)
        };
        match d {
            PciDevice::Gpu(g) => self.t.gpus[g].socket,
            PciDevice::Nic(n) => of(n),
        }
    }

    /// Splits `devices` into groups connected by paths up to `far`, in the order of their first device.
    fn groups(&self, devices: &[PciDevice], far: PathKind) -> Vec<Vec<PciDevice>> {
        let mut rest = devices.to_vec();
        let near = |a: PciDevice, b: PciDevice| (PathKind::Pix..=far).contains(&self.path(a, b));
        let mut groups = Vec::new();
        while !rest.is_empty() {
            groups.push(connected(&mut rest, near));
        }
        groups
    }

    /// Groups devices by NUMA node: devices with paths PIX to NODE, and devices with NVLink that share a socket. The
    /// number of a node is the socket of its first device. If this number is taken (processors with several NUMA
    /// nodes), it is the next free number.
    fn numa_nodes(&self) -> Vec<(u8, Vec<PciDevice>)> {
        let mut rest: Vec<PciDevice> =
            (0..self.t.gpu_count()).map(PciDevice::Gpu).chain((0..self.t.nics.len()).map(PciDevice::Nic)).collect();
        let together = |a: PciDevice, b: PciDevice| match self.path(a, b) {
            PathKind::Pix | PathKind::Pxb | PathKind::Phb | PathKind::Node => true,
            PathKind::NvLink(_) => self.socket(a) == self.socket(b),
            PathKind::Same | PathKind::Sys => false,
        };
        let mut next = rest.iter().map(|d| self.socket(*d)).max().map_or(0, |s| s.saturating_add(1));
        let mut nodes: Vec<(u8, Vec<PciDevice>)> = Vec::new();
        while let Some(&first) = rest.first() {
            let group = connected(&mut rest, together);
            let number = self.socket(first);
            match nodes.iter_mut().find(|(n, _)| *n == number) {
                None => nodes.push((number, group)),
                // A NIC with a SYS path to every GPU belongs to its socket.
                Some((_, devices)) if matches!(first, PciDevice::Nic(_)) => devices.extend(group),
                Some(_) => {
                    nodes.push((next, group));
                    next = next.saturating_add(1);
                }
            }
        }
        nodes.sort_by_key(|(n, _)| *n);
        nodes
    }

    fn system(&mut self) {
        // Assign all bus ids first, because a GPU's NVLinks name its peers.
        let mut plan = Vec::new();
        for (s, here) in self.numa_nodes() {
            let mut trees = Vec::new();
            for tree in self.groups(&here, PathKind::Pxb) {
                let leaves = self.groups(&tree, PathKind::Pix);
                let top = (leaves.len() > 1).then(|| self.bus.fresh());
                let mut below = Vec::new();
                for leaf in leaves {
                    let bridge = (top.is_some() || leaf.len() > 1).then(|| self.bus.fresh());
                    for d in &leaf {
                        match *d {
                            PciDevice::Gpu(g) if self.bus.gpus[g].is_empty() => self.bus.gpus[g] = self.bus.fresh(),
                            PciDevice::Nic(n) => self.bus.nics[n].1 = self.bus.fresh(),
                            PciDevice::Gpu(_) => {}
                        }
                    }
                    below.push((bridge, leaf));
                }
                trees.push((top, below));
            }
            plan.push((s, trees));
        }
        self.line(0, "<system version=\"1\">");
        for (s, trees) in plan {
            let CpuFacts { arch, vendor, family, model, .. } = self.cpu;
            self.line(1, &format!(
                "<cpu numaid=\"{s}\" affinity=\"ffffffff\" arch=\"{arch}\" vendor=\"{vendor}\" familyid=\"{family}\" modelid=\"{model}\">"
            ));
            for (top, leaves) in trees {
                let depth = 2 + usize::from(top.is_some());
                if let Some(bus_id) = &top {
                    self.bridge(2, bus_id);
                }
                for (bridge, devices) in leaves {
                    if let Some(bus_id) = &bridge {
                        self.bridge(depth, bus_id);
                    }
                    for d in devices {
                        self.device(depth + usize::from(bridge.is_some()), d);
                    }
                    if bridge.is_some() {
                        self.line(depth, "</pci>");
                    }
                }
                if top.is_some() {
                    self.line(2, "</pci>");
                }
            }
            self.line(1, "</cpu>");
        }
        self.line(0, "</system>");
    }

    fn line(&mut self, depth: usize, text: &str) {
        let _ = writeln!(self.out, "{:1$}{text}", "", depth * 2); // writing to a string cannot fail
    }

    fn link(&self) -> String {
        let speed = ["2.5", "5.0", "8.0", "16.0", "32.0", "64.0", "64.0"][usize::from(self.t.pcie.generation - 1)];
        format!("link_speed=\"{speed} GT/s PCIe\" link_width=\"{}\"", self.t.pcie.lanes)
    }

    fn bridge(&mut self, depth: usize, bus_id: &str) {
        let text = format!(
            "<pci busid=\"{bus_id}\" class=\"0x060400\" vendor=\"0x104c\" device=\"0x8232\" subsystem_vendor=\"0x0\" subsystem_device=\"0x0\" {}>",
            self.link()
        );
        self.line(depth, &text);
    }

    fn device(&mut self, depth: usize, d: PciDevice) {
        match d {
            PciDevice::Gpu(g) => {
                let text = format!(
                    "<pci busid=\"{}\" class=\"0x030200\" vendor=\"0x10de\" device=\"{:#06x}\" subsystem_vendor=\"0x10de\" subsystem_device=\"0x16c1\" {}>",
                    self.bus.gpus[g],
                    self.gpu.device_id,
                    self.link()
                );
                self.line(depth, &text);
                self.line(depth + 1, &format!("<gpu dev=\"{g}\" sm=\"{}\" gdr=\"1\">", self.gpu.compute_capability));
                self.nvlinks(depth + 2, g);
                self.line(depth + 1, "</gpu>");
            }
            PciDevice::Nic(n) => {
                let (name, bus_id, mbit) = self.bus.nics[n].clone();
                let text = format!(
                    "<pci busid=\"{bus_id}\" class=\"0x020700\" vendor=\"0x15b3\" device=\"0x1021\" subsystem_vendor=\"0x15b3\" subsystem_device=\"0x0041\" {}>",
                    self.link()
                );
                self.line(depth, &text);
                self.line(depth + 1, "<nic>");
                self.line(depth + 2, &format!(
                    "<net name=\"{name}\" dev=\"{n}\" latency=\"0.000000\" speed=\"{mbit}\" port=\"1\" guid=\"{:#x}\" maxconn=\"131072\" gdr=\"{}\"/>",
                    0x1100_0000 + n,
                    u8::from(self.gpudirect)
                ));
                self.line(depth + 1, "</nic>");
            }
        }
        self.line(depth, "</pci>");
    }

    fn nvlinks(&mut self, depth: usize, g: usize) {
        let links = |p: &PathKind| if let PathKind::NvLink(n) = p { *n } else { 0 };
        let row: Vec<u8> = self.t.gpu_paths[g].iter().map(links).collect();
        if self.t.nvlink.is_some_and(|n| n.switched) {
            let most = row.iter().copied().max().unwrap_or(0);
            if most > 0 {
                self.line(depth, &format!("<nvlink target=\"{NVSWITCH}\" count=\"{most}\" tclass=\"0x068000\"/>"));
            }
            return;
        }
        for (peer, count) in row.into_iter().enumerate().filter(|(_, n)| *n > 0) {
            let target = self.bus.gpus[peer].clone();
            self.line(depth, &format!("<nvlink target=\"{target}\" count=\"{count}\" tclass=\"0x030200\"/>"));
        }
    }
}
