//! Readers of other programs' descriptions of a host: `nvidia-smi topo -m`, NCCL's topology XML, P2P bandwidth matrices.
//!
//! All input is treated as hostile: the readers check the size first. Every inferred fact gives a note. An invalid file
//! gives one [`ReadError`] with line, column and remedy.

pub mod infer;
pub mod merge;
pub mod nccl_xml;
pub mod p2p;
pub mod topo_m;

use crate::diagnose::ReadError;
use crate::host::HostType;

/// Maximum size of any file, bytes. A topology takes a few kilobytes; a cluster file of 65,536 hosts with UUIDs takes
/// about 40 MB.
pub const FILE_SIZE_MAX: usize = 64 << 20;
/// Maximum size of a topology file (all kinds except the cluster file), bytes.
pub const TOPOLOGY_SIZE_MAX: usize = 8 << 20;
/// Maximum number of host types of one file.
pub const TYPES_PER_FILE_MAX: usize = 256;

/// The kind of a topology file, recognised by its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// The output of `nvidia-smi topo -m`.
    TopoMatrix,
    /// NCCL's topology XML (`NCCL_TOPO_DUMP_FILE`, `NCCL_TOPO_FILE`).
    NcclXml,
    /// The output of CUDA's `p2pBandwidthLatencyTest`.
    P2pText,
    /// P2P matrices as CSV: one square of numbers, or one measurement per row.
    P2pCsv,
    /// linkwise's own cluster file.
    ClusterFile,
}

impl std::fmt::Display for FileKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            FileKind::TopoMatrix => "nvidia-smi topo -m",
            FileKind::NcclXml => "NCCL topology XML",
            FileKind::P2pText => "p2pBandwidthLatencyTest",
            FileKind::P2pCsv => "P2P matrix CSV",
            FileKind::ClusterFile => "linkwise cluster file",
        })
    }
}

/// The content of a topology file.
#[derive(Clone, Debug, PartialEq)]
pub struct TopologyFile {
    /// The kind of the file.
    pub kind: FileKind,
    /// One type per described host; for P2P matrices, one per measured system.
    pub types: Vec<HostType>,
    /// Inferred or omitted facts, one sentence each.
    pub notes: Vec<String>,
    /// Refused parts (for example one of several matrices), each with the reason.
    pub refused: Vec<ReadError>,
}

impl TopologyFile {
    /// The only type; `None` if the file describes several.
    pub fn single(&self) -> Option<&HostType> {
        match &self.types[..] {
            [one] => Some(one),
            _ => None,
        }
    }
}

/// Bytes as UTF-8 text without a byte order mark. Refuses files over `size_max`, UTF-16, other encodings and binary
/// data. O(bytes).
pub fn text<'a>(bytes: &'a [u8], file: &str, size_max: usize) -> Result<&'a str, ReadError> {
    if bytes.len() > size_max {
        return Err(too_large(file, size_max));
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") || looks_utf16(bytes) {
        return Err(ReadError::in_file(
            file,
            "the file is UTF-16, UTF-8 was expected",
            format!("convert it: iconv -f UTF-16 -t UTF-8 {file}"),
        ));
    }
    let place = |at: usize| {
        let start = bytes[..at].iter().rposition(|&b| b == b'\n').map_or(0, |p| p + 1);
        let line = bytes[..start].iter().filter(|&&b| b == b'\n').count() + 1;
        (line, String::from_utf8_lossy(&bytes[start..at]).chars().count() + 1)
    };
    if let Some(at) = bytes.iter().position(|&b| b == 0) {
        let (line, column) = place(at);
        return Err(ReadError::in_bytes(
            file,
            line,
            column,
            "a zero byte: the file is binary, text was expected",
            "give the text that the program printed or the site's tool wrote",
        ));
    }
    std::str::from_utf8(bytes).map_err(|e| {
        let at = e.valid_up_to();
        let (line, column) = place(at);
        ReadError::in_bytes(
            file,
            line,
            column,
            format!("byte 0x{:02x} is not UTF-8 (Latin-1?)", bytes[at]),
            format!("convert it: iconv -f LATIN1 -t UTF-8 {file}"),
        )
    })
}

fn looks_utf16(bytes: &[u8]) -> bool {
    let head = &bytes[..bytes.len().min(64) & !1];
    let zeros = |parity: usize| head.iter().skip(parity).step_by(2).filter(|&&b| b == 0).count();
    head.len() >= 4 && (zeros(0) * 4 >= head.len() || zeros(1) * 4 >= head.len())
}

/// The error of a file larger than a reader's limit.
pub fn too_large(file: &str, size_max: usize) -> ReadError {
    ReadError::in_file(
        file,
        format!("the file is larger than {} MiB, the limit for its kind", size_max >> 20),
        "give the output of one command for one host, without logs around it",
    )
}

/// The kind of a text, from the first line that identifies it; `None` if no line does. Reads at most 2,000 lines.
pub fn detect(text: &str) -> Option<FileKind> {
    let head = text.trim_start_matches('\u{feff}').trim_start();
    if head.starts_with('<') {
        return Some(FileKind::NcclXml);
    }
    for line in text.lines().take(2_000) {
        let line = topo_m::plain(line);
        if topo_m::is_header(&line) {
            return Some(FileKind::TopoMatrix);
        }
        if p2p::is_text_heading(&line) {
            return Some(FileKind::P2pText);
        }
    }
    let mut lines = text.lines().filter(|l| !l.trim().is_empty() && !l.trim_start().starts_with('#'));
    let first = lines.next().unwrap_or("");
    if p2p::is_csv_heading(first) {
        return Some(FileKind::P2pCsv);
    }
    let is_yaml =
        |l: &str| crate::file::TOP_LEVEL_KEYS.iter().any(|k| l.strip_prefix(k).is_some_and(|r| r.starts_with(':')));
    if text.lines().take(2_000).any(is_yaml) || first.starts_with('{') {
        return Some(FileKind::ClusterFile);
    }
    None
}

/// Position of the text that identifies output of AMD's tools: a banner, or a matrix with xGMI links.
fn rocm(text: &str) -> Option<usize> {
    if text.trim_start().starts_with('<') {
        return None; // the XML reader refuses dumps of RCCL
    }
    let head: usize = text.split_inclusive('\n').take(2_000).map(str::len).sum();
    let head = &text[..head];
    ["ROCm System Management Interface", "ROCm SMI Log", "Link Type between two GPUs", "XGMI"]
        .iter()
        .find_map(|w| head.find(w))
}

/// Reads a topology file of any kind except the cluster file. `Err` if the file describes no host.
pub fn read(text: &str, file: &str) -> Result<TopologyFile, ReadError> {
    if text.len() > TOPOLOGY_SIZE_MAX {
        return Err(too_large(file, TOPOLOGY_SIZE_MAX));
    }
    if let Some(offset) = rocm(text) {
        return Err(ReadError::at(
            file,
            text,
            offset,
            4,
            "AMD GPUs: this is the output of rocm-smi or amd-smi, not of nvidia-smi",
            "linkwise knows the link rates of NVIDIA GPUs only and will not pass xGMI off as NVLink; measured bandwidths \
             of such hosts can be used through a P2P matrix",
        ));
    }
    let reading = match detect(text) {
        Some(FileKind::TopoMatrix) => topo_m::read(text, file)?,
        Some(FileKind::NcclXml) => nccl_xml::read(text, file)?,
        Some(FileKind::P2pText) => p2p::read_text(text, file)?,
        Some(FileKind::P2pCsv) => p2p::read_csv(text, file)?,
        Some(FileKind::ClusterFile) => {
            // A text that only looks like one gets the error of its reader.
            crate::file::read(text, file)?;
            return Err(ReadError::in_file(
                file,
                "this is a cluster file already",
                format!("use it directly: linkwise topology show {file}"),
            ));
        }
        None => {
            let (message, remedy) = match text.trim().is_empty() {
                true => ("the file is empty".to_string(), "run the command again and keep what it prints"),
                false => (
                    "this is neither `nvidia-smi topo -m` output, NCCL topology XML, a P2P matrix nor a cluster file"
                        .to_string(),
                    "a matrix of nvidia-smi starts with a line of GPU0 GPU1 ..., XML with <system>, a P2P matrix with \
                     its heading or with comma-separated numbers",
                ),
            };
            return Err(ReadError::at(file, text, 0, 1, message, remedy));
        }
    };
    if reading.types.len() > TYPES_PER_FILE_MAX {
        return Err(ReadError::in_file(
            file,
            format!("{} systems in one file; at most {TYPES_PER_FILE_MAX}", reading.types.len()),
            "split the file",
        ));
    }
    Ok(reading)
}

/// The last part of a file's path; a cluster file records it as the source of its facts.
pub(crate) fn base_name(file: &str) -> &str {
    file.rsplit(['/', '\\']).next().unwrap_or(file)
}

/// A host type's name from the name of a file: its stem, reduced to letters, digits and dashes.
pub(crate) fn type_name(file: &str) -> String {
    let stem = base_name(file);
    let stem = stem.split('.').next().unwrap_or(stem);
    let mut name = String::new();
    for c in stem.chars().take(48) {
        if c.is_ascii_alphanumeric() {
            name.push(c.to_ascii_lowercase());
        } else if !name.is_empty() && !name.ends_with('-') {
            name.push('-');
        }
    }
    let name = name.trim_end_matches('-');
    if name.is_empty() { "host".into() } else { name.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_encodings_are_named_with_the_place() {
        let utf16: Vec<u8> = "\u{feff}GPU0 GPU1".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert!(text(&utf16, "f", 100).unwrap_err().message().contains("UTF-16"));
        assert!(text(&utf16[2..], "f", 100).unwrap_err().message().contains("UTF-16"), "without its mark");
        let e = text(b"ab\ncd \xe9", "f", 100).unwrap_err();
        assert_eq!((e.line(), e.column()), (2, 4));
        assert!(text(b"ab\0", "f", 100).unwrap_err().message().contains("binary"));
        assert_eq!(text(b"\xef\xbb\xbfab", "f", 100).unwrap(), "ab");
        assert!(text(b"abc", "f", 2).unwrap_err().message().contains("larger"));
    }

    #[test]
    fn the_content_of_a_file_gives_its_kind() {
        assert_eq!(
            detect("\u{1b}[4m\tGPU0\tGPU1\tCPU Affinity\u{1b}[0m\nGPU0\t X \tSYS\n"),
            Some(FileKind::TopoMatrix)
        );
        assert_eq!(detect("\n<system version=\"1\"/>"), Some(FileKind::NcclXml));
        assert_eq!(detect("[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\n"), Some(FileKind::P2pText));
        assert_eq!(detect("0,10\n10,0\n"), Some(FileKind::P2pCsv));
        assert_eq!(detect("# mine\nname: a\nhosts: []\n"), Some(FileKind::ClusterFile));
        assert_eq!(detect("hello"), None);
    }

    #[test]
    fn a_file_name_becomes_a_type_name() {
        assert_eq!(type_name("/a/b/RTX4090_8gpu all.topo.txt"), "rtx4090-8gpu-all");
        assert_eq!(type_name("..."), "host");
    }
}
