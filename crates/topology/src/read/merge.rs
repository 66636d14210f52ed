//! Merges several files about one host into one host type.
//!
//! Each fact is taken from its most reliable source: NVLinks and NICs from NCCL XML, PCIe labels from nvidia-smi (which
//! reports host bridges), rates from P2P matrices. Contradictory sources are not merged.

use super::{FileKind, TopologyFile};
use crate::host::{HostType, PathKind};

/// The content of a file, with its name for messages.
#[derive(Clone, Debug)]
pub struct MergeSource {
    /// File name, as the user gave it.
    pub file: String,
    /// Its content.
    pub reading: TopologyFile,
}

/// One host type from all sources, and notes. Each source must describe one host type; the error names the fact and the
/// two files that disagree on it. O(sources x GPUs²).
pub fn merge(sources: &[MergeSource]) -> Result<(HostType, Vec<String>), String> {
    let mut notes = Vec::new();
    for s in sources {
        if s.reading.types.len() != 1 {
            return Err(format!(
                "{} describes {} systems; files that are merged must describe one host each (import it alone)",
                s.file,
                s.reading.types.len()
            ));
        }
    }
    // Base type in order of preference: XML, nvidia-smi, P2P.
    let mut order: Vec<&MergeSource> = sources.iter().collect();
    order.sort_by_key(|s| match s.reading.kind {
        FileKind::NcclXml => 0,
        FileKind::TopoMatrix => 1,
        _ => 2,
    });
    let Some((base, rest)) = order.split_first() else { return Err("no file".into()) };
    let mut merged = base.reading.types[0].clone();
    notes.extend(base.reading.notes.iter().map(|n| format!("{}: {n}", base.file)));
    for s in rest {
        let t = &s.reading.types[0];
        if t.gpu_count() != merged.gpu_count() {
            return Err(format!(
                "{} has {} GPUs, {} has {}: the files describe different hosts",
                base.file,
                merged.gpu_count(),
                s.file,
                t.gpu_count()
            ));
        }
        match s.reading.kind {
            FileKind::TopoMatrix => {
                labels(&mut merged, t, base, s, &mut notes)?;
                notes.extend(
                    s.reading.notes.iter().filter(|n| !is_moot(n, &merged)).map(|n| format!("{}: {n}", s.file)),
                );
            }
            FileKind::NcclXml => {
                return Err(format!("{} and {} are both NCCL XML; one per host is enough", base.file, s.file));
            }
            _ => {
                if merged.p2p.is_some() {
                    return Err(format!("{} is a second set of P2P rates; one per host is enough", s.file));
                }
                merged.p2p.clone_from(&t.p2p);
                if base.reading.kind != FileKind::P2pText && base.reading.kind != FileKind::P2pCsv {
                    notes.extend(s.reading.notes.iter().take(1).map(|n| format!("{}: {n}", s.file)));
                }
            }
        }
        if merged.gpu_model == "unknown" {
            merged.gpu_model.clone_from(&t.gpu_model);
        }
        if !merged.source.contains(&t.source) {
            merged.source = format!("{}; {}", merged.source, t.source);
        }
    }
    merged.check()?;
    Ok((merged, notes))
}

/// True if the note of the nvidia-smi reader is about a fact that the XML contains.
fn is_moot(note: &str, merged: &HostType) -> bool {
    (note.starts_with("PCIe taken") || note.starts_with("nvidia-smi does not print") || note.starts_with("no NIC"))
        && !merged.nics.is_empty()
}

/// Replaces labels from the XML (or from another run of nvidia-smi) by labels from nvidia-smi.
fn labels(
    merged: &mut HostType,
    t: &HostType,
    base: &MergeSource,
    s: &MergeSource,
    notes: &mut Vec<String>,
) -> Result<(), String> {
    let n = t.gpu_count();
    let xml_without_links = base.reading.kind == FileKind::NcclXml && merged.nvlink.is_none();
    let mut relabelled = 0;
    for i in 0..n {
        for j in 0..n {
            let (a, b) = (merged.gpu_paths[i][j], t.gpu_paths[i][j]);
            let (nv_a, nv_b) = (matches!(a, PathKind::NvLink(_)), matches!(b, PathKind::NvLink(_)));
            if a == b {
                continue;
            }
            if nv_a || (nv_b && !xml_without_links) {
                return Err(format!(
                    "GPU{i} to GPU{j} is {a} in {} and {b} in {}: import the correct one",
                    base.file, s.file
                ));
            }
            merged.gpu_paths[i][j] = b;
            relabelled += 1;
        }
    }
    if relabelled > 0 {
        notes.push(format!("{relabelled} paths take their label from {}", s.file));
    }
    if merged.nvlink.is_none() {
        merged.nvlink = t.nvlink;
    }
    if merged.nics.is_empty() {
        merged.nics.clone_from(&t.nics);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::read;

    fn source(file: &str, text: &str) -> MergeSource {
        MergeSource { file: file.into(), reading: read(text, file).unwrap() }
    }

    const TOPO: &str = "GPU0 GPU1 NIC0\nGPU0 X NV12 PXB\nGPU1 NV12 X SYS\nNIC0 PXB SYS X\n";
    const XML: &str = r#"<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/></cpu><cpu numaid="1"><pci busid="0000:02:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/></cpu></system>"#;

    #[test]
    fn each_fact_comes_from_its_most_reliable_source() {
        let sources = [source("p.csv", "0,90\n91,0\n"), source("t.txt", TOPO), source("x.xml", XML)];
        let (t, _) = merge(&sources).unwrap();
        assert_eq!(t.gpu_paths[0][1], PathKind::NvLink(12));
        assert_eq!(t.gpus[1].pci_bus_id.as_deref(), Some("0000:02:00.0"));
        assert_eq!(t.nics.len(), 1);
        assert_eq!(t.p2p.unwrap()[1][0].gb_per_s(), 91.0);
    }

    #[test]
    fn files_that_contradict_each_other_are_not_merged() {
        let other = TOPO.replace("NV12", "NV4");
        let e = merge(&[source("a.txt", TOPO), source("b.txt", &other)]).unwrap_err();
        assert!(e.contains("GPU0 to GPU1 is NV12 in a.txt and NV4 in b.txt"), "{e}");
        let e = merge(&[source("a.txt", TOPO), source("p.csv", "0,1,1\n1,0,1\n1,1,0\n")]).unwrap_err();
        assert!(e.contains("2 GPUs") && e.contains("has 3"), "{e}");
    }
}
