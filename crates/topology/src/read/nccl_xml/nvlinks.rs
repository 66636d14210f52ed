//! NVLinks of a dump: counted per pair of GPUs, checked from both ends, and turned into paths and a fabric.

use super::{Device, REDUMP, Reader, gpu_element};
use crate::diagnose::ReadError;
use crate::host::{NvLinkFabric, PathKind};
use crate::quantity::Bandwidth;
use crate::read::infer;
use roxmltree::Node;
use std::collections::HashMap;

/// NVLink rate, GB/s, if the dump names no known GPU model: the rate of NVLink 2, 3 and 4.
const LINK_RATE_DEFAULT_GB_PER_S: f64 = 25.0;

/// Links of every GPU, by destination.
struct LinkCounts<'a> {
    /// `direct[i][j]`: number of links from GPU i to GPU j.
    direct: Vec<Vec<u32>>,
    /// Number of links of each GPU to NVSwitches.
    to_switch: Vec<u32>,
    /// The last link element of each GPU, for error messages.
    last: Vec<Option<Node<'a, 'a>>>,
    to_itself: u32,
    to_unknown_gpus: u32,
    to_cpus: u32,
}

impl Reader<'_> {
    /// Labels pairs with NVLinks in `paths` and returns the fabric; `None` without NVLinks.
    pub(super) fn nvlinks(
        &self,
        gpus: &[&Device<'_>],
        paths: &mut [Vec<PathKind>],
        model: Option<infer::ModelFacts>,
        notes: &mut Vec<String>,
    ) -> Result<Option<NvLinkFabric>, ReadError> {
        let counts = self.count_links(gpus)?;
        counts.note_left_out(notes);
        self.check_both_ends(gpus, &counts)?;
        let switched = counts.to_switch.iter().any(|&c| c > 0);
        if switched && counts.direct.iter().flatten().any(|&c| c > 0) {
            notes
                .push("some NVLinks are direct and some lead to NVSwitches; the wider way counts for each pair".into());
        }
        if switched {
            self.check_switch_links(gpus, &counts)?;
        }
        counts.label(paths);
        if let Some((fabric, why)) = infer::nvlink(paths, model) {
            notes.push(why);
            let multicast = fabric.multicast || (switched && model.is_some_and(|m| m.multicast));
            return Ok(Some(NvLinkFabric { switched, multicast, ..fabric }));
        }
        if switched {
            notes.push(format!(
                "one GPU with {} NVLinks to switches: the job that wrote the dump saw no other GPU",
                counts.to_switch[0]
            ));
            let rate = model.map(|m| m.nvlink_gb_per_s).filter(|r| *r > 0.0).unwrap_or(LINK_RATE_DEFAULT_GB_PER_S);
            let link_rate = Bandwidth::from_gb_per_s(rate);
            return Ok(Some(NvLinkFabric { link_rate, switched: true, multicast: model.is_some_and(|m| m.multicast) }));
        }
        let may_have_links = model.is_none_or(|m| m.nvlink_gb_per_s > 0.0);
        if may_have_links && gpus.len() > 1 && gpus.iter().all(|d| gpu_element(d.node).is_none()) {
            notes.push(format!(
                "{} and so no NVLinks (NCCL adds them on the host); if the host has any, import its `nvidia-smi topo -m` \
                 together with this file",
                super::NO_GPU_ELEMENTS
            ));
        }
        Ok(None)
    }

    fn count_links<'a>(&self, gpus: &[&Device<'a>]) -> Result<LinkCounts<'a>, ReadError> {
        let index: HashMap<&str, usize> = gpus.iter().enumerate().map(|(i, d)| (d.bus_id.as_str(), i)).collect();
        let n = gpus.len();
        let mut counts = LinkCounts {
            direct: vec![vec![0; n]; n],
            to_switch: vec![0; n],
            last: vec![None; n],
            to_itself: 0,
            to_unknown_gpus: 0,
            to_cpus: 0,
        };
        for (i, d) in gpus.iter().enumerate() {
            let links = gpu_element(d.node).into_iter().flat_map(|g| g.children()).filter(|c| c.has_tag_name("nvlink"));
            for link in links {
                let count = self.link_count(link)?;
                let target = link.attribute("target").unwrap_or("").to_ascii_lowercase();
                let class = link.attribute("tclass").unwrap_or("");
                counts.last[i] = Some(link);
                match index.get(target.as_str()) {
                    _ if class.starts_with("0x068000") => counts.to_switch[i] += count,
                    Some(&j) if i == j => counts.to_itself += 1,
                    Some(&j) => counts.direct[i][j] += count,
                    None if class.starts_with("0x03") || class.is_empty() => counts.to_unknown_gpus += 1,
                    None => counts.to_cpus += 1,
                }
            }
        }
        Ok(counts)
    }

    fn link_count(&self, link: Node<'_, '_>) -> Result<u32, ReadError> {
        match link.attribute("count").unwrap_or("1").parse::<u32>() {
            Ok(c @ 1..=64) => Ok(c),
            _ => {
                let message = format!("`{}` NVLinks; 1 to 64 are possible", link.attribute("count").unwrap_or(""));
                Err(self.attribute_error(link, "count", message, REDUMP))
            }
        }
    }

    /// Both GPUs of a pair must list the same number of links.
    fn check_both_ends(&self, gpus: &[&Device<'_>], counts: &LinkCounts<'_>) -> Result<(), ReadError> {
        for i in 0..gpus.len() {
            for j in 0..i {
                let (a, b) = (counts.direct[i][j], counts.direct[j][i]);
                if a != b {
                    let message =
                        format!("{} NVLinks from {} to {}, but {} the other way", a, gpus[i].bus_id, gpus[j].bus_id, b);
                    let node = counts.last[if a > 0 { i } else { j }].unwrap_or(gpus[i].node);
                    return Err(self.error(node, message, REDUMP));
                }
            }
        }
        Ok(())
    }

    /// All GPUs must have the same number of links to NVSwitches.
    fn check_switch_links(&self, gpus: &[&Device<'_>], counts: &LinkCounts<'_>) -> Result<(), ReadError> {
        let to_switch = &counts.to_switch;
        let Some(i) = (0..gpus.len()).find(|&i| to_switch[i] != to_switch[0]) else { return Ok(()) };
        let message = format!(
            "GPU {} has {} NVLinks to switches, GPU {} has {}",
            gpus[i].bus_id, to_switch[i], gpus[0].bus_id, to_switch[0]
        );
        let remedy = "if links of the GPU are down, describe them as degraded in the cluster file";
        Err(self.error(counts.last[i].unwrap_or(gpus[i].node), message, remedy))
    }
}

impl LinkCounts<'_> {
    fn note_left_out(&self, notes: &mut Vec<String>) {
        if self.to_itself > 0 {
            let own = self.to_itself;
            notes.push(format!("{own} NVLinks lead from a GPU to itself and say nothing about peers; left out"));
        }
        if self.to_unknown_gpus > 0 {
            notes.push(format!(
                "{} NVLinks lead to GPUs that the file does not describe; left out",
                self.to_unknown_gpus
            ));
        }
        if self.to_cpus > 0 {
            notes.push(format!("{} NVLinks lead to CPUs; left out", self.to_cpus));
        }
    }

    /// The links of a pair are its direct links or the links that both GPUs have to switches, whichever number is
    /// larger.
    fn label(&self, paths: &mut [Vec<PathKind>]) {
        for (i, row) in paths.iter_mut().enumerate() {
            for (j, path) in row.iter_mut().enumerate() {
                let links = self.direct[i][j].max(self.to_switch[i].min(self.to_switch[j]));
                if i != j && links > 0 {
                    *path = PathKind::NvLink(links.min(64) as u8);
                }
            }
        }
    }
}
