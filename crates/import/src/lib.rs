//! Reads files of a site that describe more than the GPU matrix of one host.
//!
//! - [`switches`]: the switches above the hosts, from Slurm's `topology.conf` and `topology.yaml`, `ibnetdiscover` and
//!   Topograph.
//! - [`ports`]: `ibstat` and `ibv_devinfo`, which distinguish InfiniBand from Ethernet and give the rate of each port.
//! - [`devices`]: `nvidia-smi -q -x`, UUIDs and minor numbers.
//! - [`site`]: a cluster brought up to what a scheduler's books and the nodes say.
//! - [`host`]: the NICs that carry GPU traffic, SXM boards whose file lacks the NVLinks, and the class of the network.
//!
//! Every inference gives a note. A bad file gives one [`topology::ReadError`] with line, column and remedy. Readers
//! limit sizes and counts, and never panic.

#![allow(missing_docs, reason = "an item whose name says everything needs no comment")]

pub mod devices;
pub mod host;
pub mod ports;
pub mod site;
pub mod switches;

/// Files that this crate reads, recognised by their content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SiteFile {
    /// Slurm's `topology.conf`, also as Topograph writes it.
    SlurmConf,
    /// Slurm's `topology.yaml`, also as Topograph writes it.
    SlurmYaml,
    /// The output of `ibnetdiscover`.
    Ibnetdiscover,
    /// Topograph's JSON of instances, or `kubectl get nodes -o json` with its labels.
    Topograph,
    /// The output of `ibstat`.
    Ibstat,
    /// The output of `ibv_devinfo`.
    IbvDevinfo,
}

/// The kind of a text; `None` for an unknown kind. Reads at most 2,000 lines.
pub fn detect(text: &str) -> Option<SiteFile> {
    let head = text.trim_start();
    if head.starts_with('{') {
        let start: String = head.chars().take(2_000).collect();
        let is_topograph =
            start.contains("\"instances\"") || (start.contains("\"items\"") && start.contains("\"kind\""));
        return is_topograph.then_some(SiteFile::Topograph);
    }
    for line in text.lines().take(2_000) {
        let line = line.trim();
        let lower = line.to_ascii_lowercase();
        if lower.starts_with("switchname=") || lower.starts_with("blockname=") || lower.starts_with("blocksizes=") {
            return Some(SiteFile::SlurmConf);
        }
        if line.starts_with("- topology:") {
            return Some(SiteFile::SlurmYaml);
        }
        if line.starts_with("switchguid=") || line.starts_with("# Topology file: generated on") {
            return Some(SiteFile::Ibnetdiscover);
        }
        if line.starts_with("CA '") && line.ends_with('\'') {
            return Some(SiteFile::Ibstat);
        }
        if line.starts_with("hca_id:") {
            return Some(SiteFile::IbvDevinfo);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_of_a_file_gives_its_kind() {
        assert_eq!(detect("# comment\nSwitchName=s0 Nodes=n0\n"), Some(SiteFile::SlurmConf));
        assert_eq!(detect("BlockSizes=4\n"), Some(SiteFile::SlurmConf));
        assert_eq!(detect("---\n- topology: a\n  flat: true\n"), Some(SiteFile::SlurmYaml));
        assert_eq!(detect("#\n# Topology file: generated on Wed\n"), Some(SiteFile::Ibnetdiscover));
        assert_eq!(detect("{\n \"instances\": []}"), Some(SiteFile::Topograph));
        assert_eq!(detect("CA 'mlx5_0'\n\tCA type: MT4129\n"), Some(SiteFile::Ibstat));
        assert_eq!(detect("hca_id:\tmlx5_0\n\ttransport:\t\t\tInfiniBand (0)\n"), Some(SiteFile::IbvDevinfo));
        assert_eq!(detect("hosts: []\n"), None);
        assert_eq!(detect("GPU0 GPU1\n"), None);
    }
}
