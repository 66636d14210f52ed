//! NCCL's topology XML, which NCCL writes for `NCCL_TOPO_DUMP_FILE` and reads for `NCCL_TOPO_FILE`.
//!
//! `system > cpu > pci (> pci ...) > gpu > nvlink`, and `nic > net` below a `pci` or `cpu`. Hand-written files contain
//! only the PCI tree; the PCI class identifies the devices: 0x03.. GPU, 0x02.. NIC, 0x0604 bridge, 0x0680 NVSwitch.

mod nics;
mod nvlinks;
mod paths;

use super::{FileKind, TopologyFile, infer, type_name};
use crate::allocation::GPUS_PER_HOST_MAX;
use crate::diagnose::ReadError;
use crate::host::{Gpu, HostType, PathKind, Pcie};
use paths::paths;
use roxmltree::{Document, Node};

/// Maximum number of XML nodes. A dump of a 16-GPU host has about 500.
const NODES_MAX: u32 = 100_000;
/// Maximum nesting depth of elements. A cascade of PCIe switches stays below 12.
const DEPTH_MAX: usize = 64;
/// Start of the note on a file without NVLinks. NCCL adds the NVLinks on the host.
pub const NO_GPU_ELEMENTS: &str = "the file has no gpu elements";
const REDUMP: &str = "dump it again on the host: NCCL_TOPO_DUMP_FILE=topo.xml with a job that sees all its GPUs";

/// A PCI device of the tree, with the bridges above it, outermost first.
struct Device<'a> {
    node: Node<'a, 'a>,
    bus_id: String,
    cpu: usize,
    bridges: Vec<Node<'a, 'a>>,
}

/// Reads one host. O(text + devices²).
pub fn read(text: &str, file: &str) -> Result<TopologyFile, ReadError> {
    check_depth(text, file)?;
    let options = roxmltree::ParsingOptions { nodes_limit: NODES_MAX, ..Default::default() };
    let doc = Document::parse_with_options(text, options).map_err(|e| xml_error(text, file, &e))?;
    let reader = Reader { file, text };
    let root = doc.root_element();
    if root.tag_name().name() != "system" {
        let message = format!("the root element is <{}>, NCCL's is <system>", root.tag_name().name());
        let remedy = match root.tag_name().name() {
            "graphs" => "this is a dump of NCCL's graphs; dump the topology with NCCL_TOPO_DUMP_FILE",
            _ => REDUMP,
        };
        return Err(reader.error(root, message, remedy));
    }
    reader.refuse_amd(root)?;
    reader.host(root)
}

/// Limits the nesting before roxmltree parses the text, because roxmltree recurses once per level. O(text).
fn check_depth(text: &str, file: &str) -> Result<(), ReadError> {
    let bytes = text.as_bytes();
    let (mut depth, mut i) = (0usize, 0usize);
    while i < bytes.len() {
        if bytes[i] != b'<' {
            i += 1;
            continue;
        }
        let rest = &text[i..];
        let (skip, close) = match () {
            _ if rest.starts_with("<!--") => (4, "-->"),
            _ if rest.starts_with("<![CDATA[") => (9, "]]>"),
            _ if rest.starts_with("<?") => (2, "?>"),
            _ => (0, ""),
        };
        if !close.is_empty() {
            i = rest[skip..].find(close).map_or(bytes.len(), |p| i + skip + p + close.len());
            continue;
        }
        // A tag ends at the first `>` outside quotes.
        let (mut j, mut quote) = (i + 1, 0u8);
        while j < bytes.len() && (quote != 0 || bytes[j] != b'>') {
            match bytes[j] {
                q @ (b'"' | b'\'') if quote == 0 => quote = q,
                q if q == quote => quote = 0,
                _ => {}
            }
            j += 1;
        }
        if rest.starts_with("</") {
            depth = depth.saturating_sub(1);
        } else if !rest.starts_with("<!") && bytes.get(j.wrapping_sub(1)) != Some(&b'/') {
            depth += 1;
            if depth > DEPTH_MAX {
                let message = format!("elements are nested deeper than {DEPTH_MAX}");
                return Err(ReadError::at(file, text, i, 1, message, REDUMP));
            }
        }
        i = j + 1;
    }
    Ok(())
}

fn xml_error(text: &str, file: &str, e: &roxmltree::Error) -> ReadError {
    use roxmltree::Error as E;
    let at = |message: &str, remedy: &str| {
        let p = e.pos();
        ReadError::at_line(file, text, p.row as usize, p.col as usize, 1, message, remedy)
    };
    match e {
        E::DtdDetected => {
            let offset = text.find("<!DOCTYPE").unwrap_or(0);
            let remedy =
                "NCCL writes none; entity definitions are refused because a few lines can expand to fill the memory";
            ReadError::at(file, text, offset, 9, "a document type definition", remedy)
        }
        E::NodesLimitReached => ReadError::in_file(file, format!("more than {NODES_MAX} XML nodes"), REDUMP),
        E::NoRootNode | E::UnclosedRootNode | E::UnexpectedEndOfStream => {
            let message = "the XML ends before </system>: the file is cut short";
            ReadError::at(file, text, text.trim_end().len(), 1, message, REDUMP)
        }
        _ => {
            // Remove "at line:column" from the end of roxmltree's message, because the error has its own position.
            let message = e.to_string();
            let message = message.split(" at ").next().unwrap_or(&message).to_string();
            at(&format!("not well-formed XML: {message}"), "repair the element shown, or dump the file again")
        }
    }
}

struct Reader<'t> {
    file: &'t str,
    text: &'t str,
}

impl Reader<'_> {
    fn error(&self, node: Node<'_, '_>, message: impl std::fmt::Display, remedy: impl std::fmt::Display) -> ReadError {
        let name = node.tag_name().name().len() + 1;
        ReadError::at(self.file, self.text, node.range().start, name, message, remedy)
    }

    fn attribute_error(&self, node: Node<'_, '_>, attribute: &str, message: String, remedy: &str) -> ReadError {
        match node.attribute_node(attribute) {
            Some(a) => {
                let range = a.range_value();
                ReadError::at(self.file, self.text, range.start, range.len(), message, remedy)
            }
            None => self.error(node, message, remedy),
        }
    }

    /// Refuses RCCL dumps of AMD GPUs: linkwise has no rates of xGMI links.
    fn refuse_amd(&self, root: Node<'_, '_>) -> Result<(), ReadError> {
        let amd = root.descendants().find(|n| match n.tag_name().name() {
            "xgmi" => true,
            "pci" => n.attribute("class").is_some_and(|c| c.starts_with("0x12")),
            "gpu" => n.has_attribute("gcn"),
            _ => false,
        });
        let Some(node) = amd else { return Ok(()) };
        let gpus = root.descendants().filter(|n| n.has_tag_name("gpu")).count();
        Err(self.error(
            node,
            format!("AMD accelerators ({gpus} gpu elements, xGMI links): this is a dump of RCCL, not of NCCL"),
            "linkwise knows the link rates of NVIDIA GPUs only and will not pass xGMI off as NVLink; measured bandwidths \
             of such hosts can be used through a P2P matrix",
        ))
    }

    fn host(&self, root: Node<'_, '_>) -> Result<TopologyFile, ReadError> {
        let mut notes = Vec::new();
        let (devices, sockets) = self.devices(root)?;
        let (mut gpus, nics) = self.gpus_and_nics(root, &devices)?;
        self.order(&mut gpus)?;
        let (mut gpu_paths, flattened) = paths(&gpus);
        if flattened {
            notes.push("cascaded Broadcom switches of one chip count as one switch, as in NCCL".into());
        }
        let models: Vec<_> = gpus.iter().map(|d| model_of(d.node)).collect();
        let model = models[0].filter(|m| models.iter().all(|x| x == &Some(*m)));
        let nvlink = self.nvlinks(&gpus, &mut gpu_paths, model, &mut notes)?;
        let pcie = self.pcie(&gpus, &gpu_paths, model, &mut notes);
        let nics = self.nics(root, &gpus, &nics, &sockets, &mut notes)?;
        let host_type = HostType {
            name: type_name(self.file),
            description: format!("{} GPUs, {} NICs, from NCCL topology XML", gpus.len(), nics.len()),
            source: super::base_name(self.file).to_string(),
            gpu_model: model.map_or("unknown", |m| m.name).to_string(),
            gpus: gpus.iter().map(|d| Gpu { socket: sockets[d.cpu], pci_bus_id: Some(d.bus_id.clone()) }).collect(),
            gpu_paths,
            nvlink,
            pcie,
            nics,
            p2p: None,
        };
        host_type.check().map_err(|e| self.error(root, e, REDUMP))?;
        Ok(TopologyFile { kind: FileKind::NcclXml, types: vec![host_type], notes, refused: Vec::new() })
    }

    /// All PCI devices, with the NUMA node of each cpu element.
    fn devices<'a>(&self, root: Node<'a, 'a>) -> Result<(Vec<Device<'a>>, Vec<u8>), ReadError> {
        let mut devices: Vec<Device<'a>> = Vec::new();
        let mut sockets: Vec<u8> = Vec::new();
        for cpu in root.children().filter(|n| n.has_tag_name("cpu")) {
            let numa = cpu.attribute("numaid").unwrap_or("0");
            let id = match numa.parse::<i64>() {
                Ok(n) if (-1..=255).contains(&n) => n.max(0) as u8,
                _ => {
                    let message = format!("numaid `{numa}` is not a NUMA node (0 to 255)");
                    return Err(self.attribute_error(cpu, "numaid", message, REDUMP));
                }
            };
            sockets.push(id);
            self.collect(cpu, sockets.len() - 1, &mut Vec::new(), &mut devices)?;
        }
        Ok((devices, sockets))
    }

    /// The GPUs and the NICs among the devices. Fails without a GPU.
    fn gpus_and_nics<'d, 'a>(
        &self,
        root: Node<'_, '_>,
        devices: &'d [Device<'a>],
    ) -> Result<(Vec<&'d Device<'a>>, Vec<&'d Device<'a>>), ReadError> {
        let (mut gpus, mut nics, mut unclassed) = (Vec::new(), Vec::new(), Vec::new());
        for d in devices {
            match class_of(d.node) {
                Class::Gpu => gpus.push(d),
                Class::Nic => nics.push(d),
                Class::Unknown => unclassed.push(d),
                Class::Other => {}
            }
        }
        if gpus.is_empty() {
            return Err(match unclassed.first() {
                Some(d) => self.error(
                    d.node,
                    format!(
                        "{} PCI devices without a class attribute and no gpu element: GPUs cannot be told from NICs",
                        unclassed.len()
                    ),
                    format!("NCCL looks the classes up on the host when the job starts; {REDUMP}"),
                ),
                None => self.error(root, "no GPU: neither gpu elements nor PCI devices of class 0x03", REDUMP),
            });
        }
        if gpus.len() > GPUS_PER_HOST_MAX {
            let message = format!("{} GPUs; at most {GPUS_PER_HOST_MAX} per host are supported", gpus.len());
            return Err(self.error(gpus[GPUS_PER_HOST_MAX].node, message, "one file describes one host"));
        }
        Ok((gpus, nics))
    }

    /// Every PCI device below `parent`; [`check_depth`] bounds the depth.
    fn collect<'a>(
        &self,
        parent: Node<'a, 'a>,
        cpu: usize,
        bridges: &mut Vec<Node<'a, 'a>>,
        devices: &mut Vec<Device<'a>>,
    ) -> Result<(), ReadError> {
        for node in parent.children().filter(|n| n.has_tag_name("pci")) {
            let Some(bus_id) = node.attribute("busid") else {
                return Err(self.error(node, "a pci element without busid", REDUMP));
            };
            let bus_id = bus_id.to_ascii_lowercase();
            if bus_key(&bus_id).is_none() {
                let message = format!("`{bus_id}` is not a PCI bus id; 0000:1a:00.0 is the form");
                return Err(self.attribute_error(node, "busid", message, REDUMP));
            }
            if let Some(twin) = devices.iter().find(|d| d.bus_id == bus_id) {
                let line = self.text[..twin.node.range().start].matches('\n').count() + 1;
                let message = format!("PCI device {bus_id} is there twice, first on line {line}");
                return Err(self.attribute_error(node, "busid", message, REDUMP));
            }
            devices.push(Device { node, bus_id, cpu, bridges: bridges.clone() });
            bridges.push(node);
            self.collect(node, cpu, bridges, devices)?;
            bridges.pop();
        }
        Ok(())
    }

    /// Sorts by NVML index if every GPU has one, otherwise by bus id. Both give the order of nvidia-smi.
    fn order(&self, gpus: &mut [&Device<'_>]) -> Result<(), ReadError> {
        let dev = |d: &Device<'_>| -> Option<u32> { gpu_element(d.node)?.attribute("dev")?.parse().ok() };
        if gpus.iter().all(|d| dev(d).is_some()) {
            gpus.sort_by_key(|d| dev(d));
            if let Some(w) = gpus.windows(2).find(|w| dev(w[0]) == dev(w[1])) {
                let message = format!("two GPUs have dev={}", dev(w[1]).unwrap_or(0));
                return Err(self.error(gpu_element(w[1].node).unwrap_or(w[1].node), message, REDUMP));
            }
        } else {
            gpus.sort_by_key(|d| bus_key(&d.bus_id));
        }
        Ok(())
    }

    fn pcie(
        &self,
        gpus: &[&Device<'_>],
        paths: &[Vec<PathKind>],
        model: Option<infer::ModelFacts>,
        notes: &mut Vec<String>,
    ) -> Pcie {
        let generation = |d: &&Device<'_>| {
            let speed = d.node.attribute("link_speed")?.split_whitespace().next()?.parse::<f64>().ok()?;
            [2.5, 5.0, 8.0, 16.0, 32.0, 64.0].iter().position(|s| *s == speed).map(|p| p as u8 + 1)
        };
        let lanes = |d: &&Device<'_>| {
            d.node.attribute("link_width").and_then(|w| w.parse::<u8>().ok()).filter(|w| (1..=32).contains(w))
        };
        match gpus.iter().map(generation).collect::<Option<Vec<_>>>().and_then(|g| g.into_iter().min()) {
            Some(generation) => Pcie { generation, lanes: gpus.iter().filter_map(lanes).min().unwrap_or(16) },
            None => {
                let (pcie, why) = infer::pcie(paths, model);
                notes.push(format!("the GPUs' link_speed is missing; {why}"));
                pcie
            }
        }
    }
}

enum Class {
    Gpu,
    Nic,
    Other,
    Unknown,
}

fn class_of(node: Node<'_, '_>) -> Class {
    if gpu_element(node).is_some() {
        return Class::Gpu;
    }
    if node.children().any(|c| c.has_tag_name("nic")) {
        return Class::Nic;
    }
    match node.attribute("class") {
        Some(c) if c.starts_with("0x03") => Class::Gpu,
        Some(c) if c.starts_with("0x02") => Class::Nic,
        Some(_) => Class::Other,
        None if node.children().any(|c| c.has_tag_name("pci")) => Class::Other,
        None => Class::Unknown,
    }
}

fn gpu_element<'a>(node: Node<'a, 'a>) -> Option<Node<'a, 'a>> {
    node.children().find(|c| c.has_tag_name("gpu"))
}

fn model_of(node: Node<'_, '_>) -> Option<infer::ModelFacts> {
    let hex = |a: &str| u16::from_str_radix(node.attribute(a)?.strip_prefix("0x")?, 16).ok();
    (hex("vendor") == Some(0x10de)).then(|| hex("device").and_then(infer::model_by_device_id)).flatten()
}

/// The bus id `0000:1a:00.0` as numbers, for sorting.
fn bus_key(bus_id: &str) -> Option<(u32, u32, u32, u32)> {
    let (domain, rest) = bus_id.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let hex = |s: &str| (s.len() <= 8).then(|| u32::from_str_radix(s, 16).ok()).flatten();
    Some((hex(domain)?, hex(bus)?, hex(device)?, hex(function)?))
}
