//! Host types and clusters that linkwise knows by name.
//!
//! Matrices marked "appendix" are those of the BandPilot paper (arXiv 2506.15595, appendix E) and of LiteGD, cell by
//! cell; `tests/appendix.rs` compares them.

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

/// The host type with this matrix of GPU paths whose model name holds `gpu_model` (or is held by it), whatever the
/// case; `None` if no type or more than one fits. Without a model the matrix alone decides.
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

/// Names of the built-in clusters.
pub const CLUSTERS: [&str; 4] = ["h100", "het-ra", "het-va", "het-4mix"];

/// A built-in cluster by name: four hosts `n0` to `n3` on one non-blocking switch.
pub fn cluster(name: &str) -> Option<Cluster> {
    let types: [&str; 4] = match name {
        "h100" => ["hgx-h100"; 4],
        "het-ra" => ["rtx4090", "rtx4090", "a800", "a800"],
        "het-va" => ["dgx1-v100", "dgx1-v100", "a6000", "a6000"],
        "het-4mix" => ["rtx4090", "dgx1-v100", "a6000", "a800"],
        _ => return None,
    };
    let mut cluster = Cluster { name: name.into(), network: Network::default(), ..Cluster::default() };
    for (i, t) in types.iter().enumerate() {
        let host_type = match cluster.types.iter().position(|x| x.name == *t) {
            Some(p) => p,
            None => {
                cluster.types.push(host_type(t)?);
                cluster.types.len() - 1
            }
        };
        cluster.hosts.push(Host { name: format!("n{i}"), host_type, ..Host::default() });
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
