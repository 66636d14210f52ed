//! Host types and clusters with built-in names.
//!
//! Matrices marked "appendix" are those of the BandPilot paper (arXiv 2506.15595, appendix E) and of LiteGD, cell by
//! cell; `tests/appendix.rs` compares the cells.

mod types;

use crate::cluster::{Cluster, Host, Network};
use crate::host::{HostType, PathKind};

/// Every host type of the catalog, oldest GPU first. O(types x GPUs²).
pub fn host_types() -> Vec<HostType> {
    types::all()
}

/// A host type by name.
pub fn host_type(name: &str) -> Option<HostType> {
    host_types().into_iter().find(|t| t.name == name)
}

/// The host type with this matrix of GPU paths whose model name contains `gpu_model` or is contained in it (letter case
/// is ignored); `None` if no type or several types match. Without a model only the matrix is compared.
pub fn host_type_for(gpu_model: Option<&str>, gpu_paths: &[Vec<PathKind>]) -> Option<HostType> {
    let mut fitting = host_types().into_iter().filter(|t| t.gpu_paths == gpu_paths);
    let key = |s: &str| s.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    let wanted = gpu_model.map(key).filter(|m| !m.is_empty());
    let matches = |t: &HostType| match &wanted {
        Some(m) => key(&t.gpu_model).contains(m.as_str()) || m.contains(&key(&t.gpu_model)),
        None => true,
    };
    let found = fitting.find(matches)?;
    fitting.all(|t| !matches(&t)).then_some(found)
}

/// Names of the built-in clusters; [`cluster`] describes them.
pub const CLUSTERS: [&str; 11] = [
    "h100",
    "het-ra",
    "het-va",
    "het-4mix",
    "litegd-64",
    "litegd-64-4090",
    "litegd-64-v100",
    "litegd-64-a6000",
    "litegd-64-a800",
    "litegd-64-4090-v100-a6000",
    "litegd-64-v100-a6000-a800",
];

/// Maximum number of hosts of a composition.
const COMPOSED_HOSTS_MAX: usize = 1024;

/// A built-in cluster by name. Its hosts are `n0`, `n1`, ... on one non-blocking switch.
///
/// - BandPilot's four clusters of four hosts (table 1): `h100`, `het-ra`, `het-va`, `het-4mix`.
/// - LiteGD's clusters of 64 GPUs (section 6.3, table 1): `litegd-64` has two hosts of each type; `litegd-64-4090`, `-v100`, `-a6000` and
///   `-a800` have eight hosts of one type. The paper does not say how three types give 64 GPUs; `litegd-64-4090-v100-a6000` and
///   `litegd-64-v100-a6000-a800` have three hosts of the first type, three of the second and two of the third. LiteGD's switch is not
///   part of the cluster: it belongs to the simulated truth that judges the decisions.
/// - Any composition of host types of the catalog, at most 1,024 hosts: `4xa6000`, `1xrtx4090+1xdgx1-v100+2xa800`. The papers' names
///   `4090`, `v100` and `h100` are aliases.
pub fn cluster(name: &str) -> Option<Cluster> {
    let composition = match name {
        "h100" => "4xhgx-h100",
        "het-ra" => "2xrtx4090+2xa800",
        "het-va" => "2xdgx1-v100+2xa6000",
        "het-4mix" => "1xrtx4090+1xdgx1-v100+1xa6000+1xa800",
        "litegd-64" => "2xrtx4090+2xdgx1-v100+2xa6000+2xa800",
        "litegd-64-4090" => "8xrtx4090",
        "litegd-64-v100" => "8xdgx1-v100",
        "litegd-64-a6000" => "8xa6000",
        "litegd-64-a800" => "8xa800",
        "litegd-64-4090-v100-a6000" => "3xrtx4090+3xdgx1-v100+2xa6000",
        "litegd-64-v100-a6000-a800" => "3xdgx1-v100+3xa6000+2xa800",
        other => other,
    };
    let mut cluster = Cluster { name: name.into(), network: Network::default(), ..Cluster::default() };
    for piece in composition.split('+') {
        let (count, of) = piece.split_once('x')?;
        let count: usize = count.parse().ok().filter(|n| *n > 0 && cluster.hosts.len() + n <= COMPOSED_HOSTS_MAX)?;
        let of = match of {
            "4090" => "rtx4090",
            "v100" => "dgx1-v100",
            "h100" => "hgx-h100",
            other => other,
        };
        let host_type = match cluster.types.iter().position(|t| t.name == of) {
            Some(known) => known,
            None => {
                cluster.types.push(host_type(of)?);
                cluster.types.len() - 1
            }
        };
        for _ in 0..count {
            let name = format!("n{}", cluster.hosts.len());
            cluster.hosts.push(Host { name, host_type, ..Host::default() });
        }
    }
    Some(cluster)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_catalog_entry_keeps_the_rules() {
        for t in host_types() {
            t.check().unwrap();
        }
        for c in CLUSTERS {
            cluster(c).unwrap().check().unwrap();
        }
    }

    #[test]
    fn litegds_clusters_have_64_gpus_of_the_named_types() {
        for name in CLUSTERS.iter().filter(|n| n.starts_with("litegd")) {
            let c = cluster(name).unwrap();
            assert_eq!((c.gpu_count(), c.hosts.len()), (64, 8), "{name}");
        }
        let c = cluster("litegd-64").unwrap();
        let models: Vec<&str> = c.host_ids().map(|h| c.type_of(h).name.as_str()).collect();
        assert_eq!(models, ["rtx4090", "rtx4090", "dgx1-v100", "dgx1-v100", "a6000", "a6000", "a800", "a800"]);
    }

    #[test]
    fn compositions_name_types_and_counts_and_nothing_else() {
        let c = cluster("2x4090+1xa800").unwrap();
        assert_eq!((c.hosts.len(), c.types.len()), (3, 2));
        assert_eq!(cluster("1xa800+1xa6000+1xa800").unwrap().types.len(), 2);
        for bad in [
            "",
            "x",
            "4x",
            "0xa800",
            "-1xa800",
            "4xa801",
            "1025xa800",
            "1000xa800+25xa800",
            "4xa800+",
            "99999999999999999999xa800",
        ] {
            assert_eq!(cluster(bad), None, "{bad}");
        }
    }

    #[test]
    fn every_type_has_a_source_a_description_and_a_name_of_its_own() {
        let types = host_types();
        for (i, t) in types.iter().enumerate() {
            assert!(!t.source.is_empty() && !t.description.is_empty(), "{}", t.name);
            assert!(types[..i].iter().all(|u| u.name != t.name), "{} twice", t.name);
        }
    }

    #[test]
    fn no_gpu_of_a_directly_linked_type_has_more_links_than_its_chip() {
        for t in host_types() {
            let Some(nv) = t.nvlink else { continue };
            for (gpu, row) in t.gpu_paths.iter().enumerate() {
                let links = row.iter().map(|p| if let PathKind::NvLink(n) = p { u32::from(*n) } else { 0 });
                let used: u32 = if nv.switched { links.max().unwrap_or(0) } else { links.sum() };
                assert!(used <= 18, "{} GPU{gpu} uses {used} links", t.name);
            }
        }
    }

    #[test]
    fn a_matrix_and_a_model_find_their_type() {
        let h200 = host_type("hgx-h200").unwrap();
        assert_eq!(host_type_for(Some("H200"), &h200.gpu_paths).unwrap().name, "hgx-h200");
        assert_eq!(host_type_for(None, &h200.gpu_paths), None, "H100, H200 and B200 look alike");
        let v100 = host_type("dgx1-v100").unwrap();
        assert_eq!(host_type_for(None, &v100.gpu_paths).unwrap().name, "dgx1-v100");
        assert_eq!(host_type_for(Some("P100"), &v100.gpu_paths), None);
    }
}
