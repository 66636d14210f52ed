//! Reads the dump of one node's search graphs (`NCCL_GRAPH_DUMP_FILE`).

use super::{CHANNELS_MAX, GRAPHS_BYTES_MAX};
use roxmltree::{Document, Node as Element, ParsingOptions};
use topology::nccl::{Channel, Graph, GraphKind, PathType};

/// Maximum number of XML nodes of a dump: five graphs of 64 channels with 64 devices.
const NODES_MAX: u32 = 200_000;
/// Maximum number of devices on one channel.
const DEVICES_MAX: usize = 64;

/// The node that wrote a dump. It is needed to convert device numbers.
#[derive(Debug, Clone, Default)]
pub struct DumpContext<'a> {
    /// GPU index on the host by local rank, for dumps that name ranks.
    pub gpus: &'a [u8],
    /// The rank of `gpus[0]`.
    pub first_rank: u32,
    /// (GPUs, NICs) of every host of the NVLink domain in rank order; empty for one host. NCCL writes the host's
    /// position into the highest byte of a device number. Converted numbers continue through the hosts.
    pub domain: Vec<(usize, usize)>,
}

/// Reads the graphs of one node. Omits kinds that NCCL did not search. O(text).
pub fn read(text: &str, node: &DumpContext<'_>) -> Result<Vec<Graph>, String> {
    if text.len() as u64 > GRAPHS_BYTES_MAX {
        return Err(format!("the graph dump has more than {GRAPHS_BYTES_MAX} bytes"));
    }
    // Checked first because roxmltree recurses once per level. A dump has four levels.
    if text.matches('<').count() > NODES_MAX as usize || deep(text) {
        return Err("the graph dump is nested deeper or has more elements than NCCL writes".into());
    }
    let options = ParsingOptions { nodes_limit: NODES_MAX, ..Default::default() };
    let doc = Document::parse_with_options(text, options).map_err(|e| format!("the graph dump is not XML: {e}"))?;
    let root = doc.root_element();
    if !root.has_tag_name("graphs") {
        return Err(format!("the graph dump begins with <{}>, not <graphs>", root.tag_name().name()));
    }
    root.children().filter(|n| n.has_tag_name("graph")).filter_map(|n| node.graph(n).transpose()).collect()
}

/// True if more than 16 elements are nested. Counts tags only, because NCCL's attribute values contain no `<`.
fn deep(text: &str) -> bool {
    let mut depth = 0i32;
    let mut pieces = text.split('<');
    pieces.next();
    for tag in pieces {
        if tag.starts_with('/') {
            depth -= 1;
        } else if !tag.starts_with(['!', '?']) && !tag.split('>').next().is_some_and(|t| t.ends_with('/')) {
            depth += 1;
        }
        if depth > 16 {
            return true;
        }
    }
    false
}

impl DumpContext<'_> {
    fn graph(&self, n: Element<'_, '_>) -> Result<Option<Graph>, String> {
        let id = number(n, "id")?;
        let kind =
            *GraphKind::ALL.get(id as usize).ok_or_else(|| format!("a graph has the id {id}; 0 to 4 are known"))?;
        let mut channels = Vec::new();
        for c in n.children().filter(|c| c.has_tag_name("channel")) {
            if channels.len() == CHANNELS_MAX {
                return Err(format!("graph {id} has more than {CHANNELS_MAX} channels"));
            }
            channels.push(self.channel(c, kind)?);
        }
        if channels.is_empty() {
            return Ok(None);
        }
        Ok(Some(Graph {
            kind,
            pattern: small(n, "pattern")?,
            cross_nic: small(n, "crossnic")?,
            channel_count: channels.len(),
            bw_intra_gb_per_s: real(n, "speedintra")?,
            bw_inter_gb_per_s: real(n, "speedinter")?,
            latency_inter_us: real(n, "latencyinter").unwrap_or(0.0),
            type_intra: path(n, "typeintra")?,
            type_inter: path(n, "typeinter")?,
            same_channels: number(n, "samechannels")? != 0,
            channels,
        }))
    }

    /// A device's index on the host or domain. `count` gives the number of devices of its kind on a host.
    fn device(&self, n: Element<'_, '_>, count: impl Fn(&(usize, usize)) -> usize) -> Result<u8, String> {
        let number = number(n, "dev")?;
        let (host, local) = ((number >> 56) as usize, number & ((1 << 56) - 1));
        let before = match host {
            0 => 0,
            h => self
                .domain
                .get(..h)
                .ok_or_else(|| format!("a channel names host {h} of its domain"))?
                .iter()
                .map(count)
                .sum(),
        };
        let place = u8::try_from(local).ok().and_then(|l| l.checked_add(u8::try_from(before).ok()?));
        place.ok_or_else(|| format!("{} dev={number} is out of range", n.tag_name().name()))
    }

    fn channel(&self, n: Element<'_, '_>, kind: GraphKind) -> Result<Channel, String> {
        let mut channel = Channel::default();
        for d in n.children().filter(Element::is_element) {
            match d.tag_name().name() {
                "net" => channel.nics.push(self.device(d, |host| host.1)?),
                "gpu" if d.has_attribute("rank") && !d.has_attribute("dev") => {
                    let rank = number(d, "rank")?;
                    let local = rank.checked_sub(u64::from(self.first_rank)).and_then(|r| self.gpus.get(r as usize));
                    channel
                        .gpus
                        .push(*local.ok_or_else(|| format!("a graph names rank {rank}, which is on another node"))?);
                }
                "gpu" => channel.gpus.push(self.device(d, |host| host.0)?),
                other => return Err(format!("a channel holds <{other}>; gpu and net are known")),
            }
            if channel.gpus.len() + channel.nics.len() > DEVICES_MAX {
                return Err(format!("a channel has more than {DEVICES_MAX} devices"));
            }
        }
        if kind == GraphKind::Nvls {
            channel.gpus.truncate(1); // only the head: NCCL does not set the other entries
            channel.nics.truncate(1);
        }
        Ok(channel)
    }
}

/// A decimal or hexadecimal number; NCCL writes both.
fn number(n: Element<'_, '_>, attribute: &str) -> Result<u64, String> {
    let text = n.attribute(attribute).unwrap_or("");
    let value = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    value.map_err(|_| format!("{} {attribute}=\"{}\" is not a number", n.tag_name().name(), shorten(text)))
}

fn small(n: Element<'_, '_>, attribute: &str) -> Result<u8, String> {
    let value = number(n, attribute)?;
    u8::try_from(value).map_err(|_| format!("{} {attribute}={value} is out of range", n.tag_name().name()))
}

fn real(n: Element<'_, '_>, attribute: &str) -> Result<f64, String> {
    let text = n.attribute(attribute).unwrap_or("");
    let value: Option<f64> = text.parse().ok().filter(|v: &f64| v.is_finite() && *v >= 0.0 && *v < 1e9);
    value.ok_or_else(|| format!("{} {attribute}=\"{}\" is not a number", n.tag_name().name(), shorten(text)))
}

fn path(n: Element<'_, '_>, attribute: &str) -> Result<PathType, String> {
    n.attribute(attribute).unwrap_or("").parse().map_err(|e| format!("graph {attribute}: {e}"))
}

pub(super) fn shorten(text: &str) -> String {
    text.chars().take(40).collect()
}
