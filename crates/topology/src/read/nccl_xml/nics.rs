//! Network ports of a dump: NICs of the PCI tree, and ports that NCCL lists directly below a CPU.

use super::paths::path;
use super::{Device, REDUMP, Reader};
use crate::diagnose::ReadError;
use crate::host::{NICS_PER_HOST_MAX, Nic, PathKind};
use crate::quantity::Bandwidth;
use roxmltree::Node;
use std::collections::{BTreeMap, HashSet};

/// The rate, Mbit/s, that NCCL assumes for a NIC without a speed.
const NET_SPEED_DEFAULT_MBIT: f64 = 10_000.0;
/// Network interfaces that carry no GPU traffic.
const VIRTUAL_NETS: [&str; 8] = ["br-", "docker", "veth", "virbr", "lo", "cni", "flannel", "cilium"];

impl Reader<'_> {
    /// Every port, with paths to all GPUs and a unique name.
    pub(super) fn nics(
        &self,
        root: Node<'_, '_>,
        gpus: &[&Device<'_>],
        devices: &[&Device<'_>],
        sockets: &[u8],
        notes: &mut Vec<String>,
    ) -> Result<Vec<Nic>, ReadError> {
        let (mut nics, assumed) = self.nics_of_pci_tree(gpus, devices, sockets)?;
        let (below_cpus, skipped) = self.nics_below_cpus(root, gpus, sockets)?;
        nics.extend(below_cpus);
        if skipped > 0 {
            notes.push(format!("{skipped} software network interfaces (bridges, containers) are left out"));
        }
        if assumed > 0 {
            notes.push(format!(
                "{assumed} NICs without a net element: rates taken as {} Gbit/s each (--nic-gbit-per-s)",
                nics[0].line_rate.gbit_per_s()
            ));
        }
        if nics.is_empty() {
            notes.push("no NIC is named: jobs over several hosts cannot be predicted until the file names some".into());
        }
        if nics.len() > NICS_PER_HOST_MAX {
            let message = format!("{} network ports; at most {NICS_PER_HOST_MAX} per host are supported", nics.len());
            return Err(self.error(root, message, "remove those that carry no GPU traffic"));
        }
        let mut seen = HashSet::new();
        for nic in &mut nics {
            while !seen.insert(nic.name.clone()) {
                nic.name.push('+');
            }
        }
        Ok(nics)
    }

    /// NICs that are PCI devices, and the number of NICs without a net element. The rate of these comes from the PCIe
    /// link.
    fn nics_of_pci_tree(
        &self,
        gpus: &[&Device<'_>],
        devices: &[&Device<'_>],
        sockets: &[u8],
    ) -> Result<(Vec<Nic>, usize), ReadError> {
        let mut nics: Vec<Nic> = Vec::new();
        let mut assumed = 0;
        for d in devices {
            let gpu_paths: Vec<PathKind> = gpus.iter().map(|g| path(g, d).0).collect();
            let nets: Vec<_> = d.node.descendants().filter(|n| n.has_tag_name("net")).collect();
            if nets.is_empty() {
                assumed += 1;
                nics.push(Nic {
                    name: format!("NIC{}", nics.len()),
                    line_rate: Bandwidth::from_gbit_per_s(skeleton_gbit(d.node)),
                    socket: Some(sockets[d.cpu]),
                    gpu_paths: gpu_paths.clone(),
                });
            }
            for net in nets {
                nics.push(self.net(net, Some(sockets[d.cpu]), gpu_paths.clone())?);
            }
        }
        Ok((nics, assumed))
    }

    /// Ports without a PCI device (virtual functions), and the number of skipped software interfaces.
    fn nics_below_cpus(
        &self,
        root: Node<'_, '_>,
        gpus: &[&Device<'_>],
        sockets: &[u8],
    ) -> Result<(Vec<Nic>, usize), ReadError> {
        let mut nics = Vec::new();
        let mut skipped = 0;
        let cpus = root.children().filter(|n| n.has_tag_name("cpu"));
        for (c, nic) in cpus.enumerate().flat_map(|(c, n)| n.children().map(move |k| (c, k))) {
            if !nic.has_tag_name("nic") {
                continue;
            }
            for net in nic.children().filter(|n| n.has_tag_name("net")) {
                let name = net.attribute("name").unwrap_or("");
                if VIRTUAL_NETS.iter().any(|v| name.starts_with(v)) {
                    skipped += 1;
                    continue;
                }
                let paths = gpus.iter().map(|g| if g.cpu == c { PathKind::Phb } else { PathKind::Sys }).collect();
                nics.push(self.net(net, Some(sockets[c]), paths)?);
            }
        }
        Ok((nics, skipped))
    }

    fn net(&self, net: Node<'_, '_>, socket: Option<u8>, gpu_paths: Vec<PathKind>) -> Result<Nic, ReadError> {
        let speed = net.attribute("speed").unwrap_or("");
        let mbit = match speed.parse::<f64>() {
            Ok(s) if s > 0.0 && s <= 10_000_000.0 => s,
            Ok(s) if s <= 0.0 => NET_SPEED_DEFAULT_MBIT,
            Err(_) if speed.is_empty() => NET_SPEED_DEFAULT_MBIT,
            _ => {
                let message = format!("`{speed}` is not a speed in Mbit/s (400000 for 400 Gbit/s)");
                return Err(self.attribute_error(net, "speed", message, REDUMP));
            }
        };
        let name: String =
            net.attribute("name").unwrap_or("net").chars().filter(|c| c.is_ascii_graphic()).take(64).collect();
        let name = if name.is_empty() { "net".into() } else { name };
        Ok(Nic { name, line_rate: Bandwidth::from_gbit_per_s(mbit / 1000.0), socket, gpu_paths })
    }
}

/// Line rate of a NIC for which the dump has only the PCIe link: 400 Gbit/s for Gen5, 200 for Gen4, 100 for older
/// generations.
fn skeleton_gbit(node: Node<'_, '_>) -> f64 {
    let by_speed: BTreeMap<&str, f64> = [("32.0", 400.0), ("32", 400.0), ("16.0", 200.0), ("16", 200.0)].into();
    let speed = node.attribute("link_speed").and_then(|s| s.split_whitespace().next()).unwrap_or("");
    by_speed.get(speed).copied().unwrap_or(100.0)
}
