//! Offsets of the structures that a kernel of NCCL reads, from the debug information of the library itself.
//!
//! Released wheels carry DWARF for their host code. The offsets differ between releases (four of ten structures changed from 2.24 to 2.32), so
//! none is written down here: [`Layout::get_or_read`] reads them once per library and keeps them beside the library as a small text file,
//! which the emulation reads (`emulation/layout.c` states its form). No header of NVIDIA is needed.

use crate::{BenchError, Library};
use gimli::{AttributeValue, DebuggingInformationEntry, EndianSlice, LittleEndian, UnitOffset};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use topology::nccl::Version;

/// Releases on which the player has been tested. All five wheels carry debug information.
pub const RELEASES: [Version; 5] = [
    Version::new(2, 24, 3),
    Version::new(2, 27, 7),
    Version::new(2, 28, 9),
    Version::new(2, 30, 7),
    Version::new(2, 32, 3),
];
/// Maximum size of a section of debug information that is read into memory, bytes. 2.32.3 has 23 MB.
const SECTION_BYTES_MAX: u64 = 256 << 20;
/// Maximum number of sections of a library.
const SECTIONS_MAX: usize = 4096;
/// Maximum nesting of structures on the way to a field, and of typedefs on the way to a type.
const DEPTH_MAX: usize = 16;
/// Part of the cached file's name; a change of its content needs another name.
pub(crate) const FORMAT: &str = "layout-3";

/// A structure: our name, its names in the library (the first that exists counts), and its fields: our name, and the path in the structure if it differs.
type Wanted = (&'static str, &'static [&'static str], &'static [(&'static str, &'static str)]);
const WANTED: [Wanted; 10] = [
    (
        "args",
        &["ncclDevKernelArgs"],
        &[("comm", ""), ("channelMask", ""), ("workStorageType", ""), ("workMask", ""), ("workBuf", "")],
    ),
    (
        "batch",
        &["ncclDevWorkBatch"],
        &[
            ("nextJump", ""),
            ("nextExtends", ""),
            ("workType", ""),
            ("funcId", ""),
            ("offsetBase", ""),
            ("offsetBitset", ""),
        ],
    ),
    (
        "p2p",
        &["ncclDevWorkP2p"],
        &[
            ("sendAddr", ""),
            ("recvAddr", ""),
            ("sendBytes", ""),
            ("recvBytes", ""),
            ("sendRank", ""),
            ("recvRank", ""),
            ("nP2pChannels", ""),
            ("channelBase", ""),
            ("nSendChannels", ""),
            ("nRecvChannels", ""),
            ("sendChunkSize_u32fp8", ""),
            ("recvChunkSize_u32fp8", ""),
            ("sendProtoLL", ""),
            ("recvProtoLL", ""),
            ("sendNetReg", ""),
            ("recvNetReg", ""),
            ("sendIpcReg", ""),
            ("recvIpcReg", ""),
            ("profilerEnabled", "profilerEnabled?"), // these and the counters: from 2.26
        ],
    ),
    (
        "coll",
        &["ncclDevWorkColl"],
        &[
            ("channelLo", ""),
            ("channelHi", ""),
            ("redOpArgIsPtr", ""),
            ("regUsed", ""),
            ("netRegUsed", ""),
            ("direct", ""),
            ("root", ""),
            ("recvbuff", ""),
            ("sendbuff", ""),
            ("recvbuffOffset", ""),
            ("recvbuffRmtAddrs", ""),
            ("countLo", "cbd.countLo"),
            ("countMid", "cbd.countMid"),
            ("countHi", "cbd.countHi"),
            ("chunkGrainsLo", "cbd.chunkGrainsLo"),
            ("chunkGrainsMid", "cbd.chunkGrainsMid"),
            ("chunkGrainsHi", "cbd.chunkGrainsHi"),
            ("redOpArg", ""),
            ("profilerEnabled", "profilerEnabled?"),
        ],
    ),
    ("collreg", &["ncclDevWorkCollReg"], &[]),
    (
        "comm",
        &["ncclKernelComm", "ncclDevComm"],
        &[
            ("rank", ""),
            ("nRanks", ""),
            ("buffSizes", ""),
            ("isAllNvlink", ""),
            ("rankToLocalRank", ""),
            ("abortFlag", ""),
            ("channels", ""),
            ("workStarted", "workStarted?"),
            ("workCompleted", "workCompleted?"),
        ],
    ),
    (
        "channel",
        &["ncclDevChannel"],
        &[
            ("peers", ""),
            ("prev", "ring.prev"),
            ("next", "ring.next"),
            ("userRanks", "ring.userRanks"),
            ("index", "ring.index"),
            ("up", "tree.up"),
            ("down", "tree.down"),
            ("workCounter", "workCounter?"), // from 2.26
        ],
    ),
    ("peer", &["ncclDevChannelPeer"], &[("send", ""), ("recv", "")]),
    (
        "conn",
        &["ncclConnInfo"],
        &[
            ("buffs", ""),
            ("tail", ""),
            ("head", ""),
            ("stepSize", ""),
            ("step", ""),
            ("connFifo", ""),
            ("flags", ""),
            ("ptrExchange", ""),
        ],
    ),
    ("fifo", &["ncclConnFifo"], &[("mode", ""), ("offset", ""), ("size", "")]),
];

/// The file with a library's offsets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Path of the file.
    pub path: PathBuf,
}

impl Layout {
    /// The offsets of a library, from its folder; reads the debug information if the file is missing. Fails for a release that is not in
    /// [`RELEASES`] and for a library without debug information. The first reading takes 0.1 s to 0.5 s.
    pub fn get_or_read(library: &Library) -> Result<Layout, BenchError> {
        if !RELEASES.contains(&library.version) {
            return Err(unsupported(library.version));
        }
        let folder = library.path.parent().unwrap_or(Path::new("."));
        let path = folder.join(format!("{FORMAT}-{}.txt", &library.sha256[..16]));
        if path.exists() {
            return Ok(Layout { path });
        }
        let text = read(&library.path, library.version)?;
        // A name of its own: other threads of this process may read the same library.
        static TEXTS: AtomicU64 = AtomicU64::new(0);
        let number = TEXTS.fetch_add(1, Ordering::Relaxed);
        let temporary = folder.join(format!("{FORMAT}.{}.{number}", std::process::id()));
        fs::write(&temporary, text)
            .and_then(|()| fs::rename(&temporary, &path))
            .map_err(BenchError::io(format!("cannot write to {}", folder.display())))?;
        Ok(Layout { path })
    }
}

/// The error for a release on which bytes do not move.
pub(crate) fn unsupported(version: Version) -> BenchError {
    let known: Vec<String> = RELEASES.iter().map(Version::to_string).collect();
    BenchError::Spec(format!(
        "bytes do not move on NCCL {version}: the player has been tested on {}; choose one of them, or run the decisions only (`BenchSpec`)",
        known.join(", ")
    ))
}

/// Reads the offsets of a library file and writes them in the form of `emulation/layout.c`.
pub fn read(path: &Path, version: Version) -> Result<String, BenchError> {
    let refused = |reason: String| BenchError::Layout { path: path.into(), reason };
    let sections = Sections::read(path).map_err(refused)?;
    let found = sections.structures().map_err(|e| refused(e.to_string()))?;
    let code =
        u32::from(version.major) * 10000 + u32::from(version.minor) * 100 + u32::from(version.patch.unwrap_or(0));
    let mut text = format!("linkwise-layout 1\nnccl {code}\n");
    for (name, candidates, fields) in WANTED {
        let structure = candidates
            .iter()
            .find_map(|c| found.get(c))
            .ok_or_else(|| refused(format!("its debug information has no structure {}", candidates.join(" or "))))?;
        let _ = writeln!(text, "struct {name} {}", structure.bytes);
        for &(field, path) in fields {
            let optional = path.ends_with('?');
            let path = if path.is_empty() { field } else { path.trim_end_matches('?') };
            match structure.fields.get(path) {
                Some((bit, width)) => {
                    let _ = writeln!(text, "field {name}.{field} {bit} {width}");
                }
                None if optional => {}
                None => return Err(refused(format!("its {} has no field {path}", candidates[0]))),
            }
        }
    }
    text.push_str("end\n");
    Ok(text)
}

/// A structure of the library: its size, and bit offset and width of every field by its path.
#[derive(Debug, Default)]
struct Structure {
    bytes: u64,
    fields: BTreeMap<String, (u64, u64)>,
}

/// The sections of debug information, in memory.
struct Sections {
    info: Vec<u8>,
    abbrev: Vec<u8>,
    strings: Vec<u8>,
    line_strings: Vec<u8>,
    /// A unit names its line program, which gimli reads on the way.
    lines: Vec<u8>,
}

type Reader<'a> = EndianSlice<'a, LittleEndian>;
type Unit<'a> = gimli::Unit<Reader<'a>>;
type Dwarf<'a> = gimli::Dwarf<Reader<'a>>;

impl Sections {
    /// Reads the sections of a 64-bit little-endian ELF file.
    fn read(path: &Path) -> Result<Self, String> {
        let mut file = File::open(path).map_err(|e| format!("cannot be opened: {e}"))?;
        let length = file.metadata().map_err(|e| e.to_string())?.len();
        let mut at = |offset: u64, bytes: u64| -> Result<Vec<u8>, String> {
            if bytes > SECTION_BYTES_MAX || offset > length || bytes > length - offset {
                return Err("its table of sections is not valid".into());
            }
            let mut out = vec![0; bytes as usize];
            file.seek(SeekFrom::Start(offset)).and_then(|_| file.read_exact(&mut out)).map_err(|e| e.to_string())?;
            Ok(out)
        };
        let number = |bytes: &[u8], offset: usize, width: usize| -> u64 {
            bytes[offset..offset + width].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
        };
        const HEADER: u64 = 64;
        let header = at(0, HEADER)?;
        if &header[..6] != b"\x7fELF\x02\x01" {
            return Err("is not a 64-bit little-endian ELF file".into());
        }
        let (count, names) = (number(&header, 60, 2) as usize, number(&header, 62, 2) as usize);
        if count > SECTIONS_MAX || names >= count {
            return Err("its table of sections is not valid".into());
        }
        let table = at(number(&header, 40, 8), count as u64 * HEADER)?;
        let section = |i: usize| {
            let row = &table[i * HEADER as usize..(i + 1) * HEADER as usize];
            (number(row, 0, 4) as usize, number(row, 8, 8), number(row, 24, 8), number(row, 32, 8))
        };
        let (_, _, offset, bytes) = section(names);
        let texts = at(offset, bytes)?;
        const COMPRESSED: u64 = 0x800;
        let mut find = |wanted: &str, needed: bool| -> Result<Vec<u8>, String> {
            for i in 0..count {
                let (name, flags, offset, bytes) = section(i);
                let name = texts.get(name..).and_then(|t| t.split(|b| *b == 0).next()).unwrap_or_default();
                if name != wanted.as_bytes() {
                    continue;
                }
                if flags & COMPRESSED != 0 {
                    return Err(format!("its {wanted} is compressed"));
                }
                return at(offset, bytes);
            }
            if needed { Err(format!("has no debug information ({wanted})")) } else { Ok(Vec::new()) }
        };
        Ok(Sections {
            info: find(".debug_info", true)?,
            abbrev: find(".debug_abbrev", true)?,
            strings: find(".debug_str", false)?,
            line_strings: find(".debug_line_str", false)?,
            lines: find(".debug_line", false)?,
        })
    }

    /// The wanted structures, by their names in the library. One pass over all units; ends early if every first candidate is found.
    fn structures(&self) -> Result<BTreeMap<&'static str, Structure>, gimli::Error> {
        let dwarf: Dwarf = gimli::Dwarf::load(|id| -> Result<Reader, gimli::Error> {
            Ok(EndianSlice::new(
                match id {
                    gimli::SectionId::DebugInfo => &self.info,
                    gimli::SectionId::DebugAbbrev => &self.abbrev,
                    gimli::SectionId::DebugStr => &self.strings,
                    gimli::SectionId::DebugLineStr => &self.line_strings,
                    gimli::SectionId::DebugLine => &self.lines,
                    _ => &[],
                },
                LittleEndian,
            ))
        })?;
        let mut found: BTreeMap<&'static str, Structure> = BTreeMap::new();
        let mut units = dwarf.units();
        while let Some(header) = units.next()? {
            if WANTED.iter().all(|(_, candidates, _)| found.contains_key(candidates[0])) {
                break;
            }
            let unit = dwarf.unit(header)?;
            let mut entries = unit.entries();
            while let Some((_, entry)) = entries.next_dfs()? {
                if entry.tag() != gimli::DW_TAG_structure_type {
                    continue;
                }
                let Some(name) = name_of(&dwarf, &unit, entry)? else { continue };
                let Some(name) = WANTED.iter().flat_map(|w| w.1).copied().find(|n| n.as_bytes() == name) else {
                    continue;
                };
                let Some(bytes) = unsigned(entry, gimli::DW_AT_byte_size)? else { continue }; // a declaration
                if found.contains_key(name) {
                    continue;
                }
                let mut structure = Structure { bytes, ..Structure::default() };
                members(&dwarf, &unit, entry.offset(), 0, "", 0, &mut structure.fields)?;
                found.insert(name, structure);
            }
        }
        Ok(found)
    }
}

fn name_of<'a>(
    dwarf: &Dwarf<'a>,
    unit: &Unit<'a>,
    entry: &DebuggingInformationEntry<Reader<'a>>,
) -> Result<Option<&'a [u8]>, gimli::Error> {
    match entry.attr_value(gimli::DW_AT_name)? {
        Some(value) => Ok(Some(dwarf.attr_string(unit, value)?.slice())),
        None => Ok(None),
    }
}

fn unsigned(entry: &DebuggingInformationEntry<Reader>, attribute: gimli::DwAt) -> Result<Option<u64>, gimli::Error> {
    Ok(entry.attr_value(attribute)?.and_then(|v| v.udata_value()))
}

fn type_of(entry: &DebuggingInformationEntry<Reader>) -> Result<Option<UnitOffset>, gimli::Error> {
    Ok(match entry.attr_value(gimli::DW_AT_type)? {
        Some(AttributeValue::UnitRef(offset)) => Some(offset),
        _ => None,
    })
}

/// Adds the fields of a structure or union at `base` bits, with those of the structures that it contains.
fn members(
    dwarf: &Dwarf,
    unit: &Unit,
    at: UnitOffset,
    base: u64,
    prefix: &str,
    depth: usize,
    fields: &mut BTreeMap<String, (u64, u64)>,
) -> Result<(), gimli::Error> {
    if depth > DEPTH_MAX {
        return Ok(());
    }
    let mut tree = unit.entries_tree(Some(at))?;
    let mut children = tree.root()?.children();
    while let Some(child) = children.next()? {
        let entry = child.entry();
        if entry.tag() != gimli::DW_TAG_member {
            continue;
        }
        let Some(of_type) = type_of(entry)? else { continue };
        let begin = base + 8 * unsigned(entry, gimli::DW_AT_data_member_location)?.unwrap_or(0);
        let bytes = size_of(unit, of_type, 0)?;
        let place = match unsigned(entry, gimli::DW_AT_bit_size)? {
            None => (begin, 8 * bytes),
            Some(width) => match unsigned(entry, gimli::DW_AT_data_bit_offset)? {
                Some(bit) => (base + bit, width),
                None => {
                    // The older form counts from the high end of the storage unit.
                    let storage = 8 * unsigned(entry, gimli::DW_AT_byte_size)?.unwrap_or(bytes);
                    let from_top = unsigned(entry, gimli::DW_AT_bit_offset)?.unwrap_or(0);
                    (begin + storage.saturating_sub(from_top + width), width)
                }
            },
        };
        let inner = match name_of(dwarf, unit, entry)? {
            Some(name) => {
                let name = format!("{prefix}{}", String::from_utf8_lossy(name));
                fields.entry(name.clone()).or_insert(place);
                format!("{name}.")
            }
            None => prefix.to_string(),
        };
        if let Some(structure) = structure_of(unit, of_type, 0)? {
            members(dwarf, unit, structure, place.0, &inner, depth + 1, fields)?;
        }
    }
    Ok(())
}

/// The structure or union behind typedefs and qualifiers; `None` for other types.
fn structure_of(unit: &Unit, at: UnitOffset, depth: usize) -> Result<Option<UnitOffset>, gimli::Error> {
    let entry = unit.entry(at)?;
    match entry.tag() {
        gimli::DW_TAG_structure_type | gimli::DW_TAG_union_type => Ok(Some(at)),
        gimli::DW_TAG_typedef | gimli::DW_TAG_const_type | gimli::DW_TAG_volatile_type if depth < DEPTH_MAX => {
            type_of(&entry)?.map_or(Ok(None), |t| structure_of(unit, t, depth + 1))
        }
        _ => Ok(None),
    }
}

/// Size of a type in bytes; 0 if it is not known.
fn size_of(unit: &Unit, at: UnitOffset, depth: usize) -> Result<u64, gimli::Error> {
    let entry = unit.entry(at)?;
    if let Some(bytes) = unsigned(&entry, gimli::DW_AT_byte_size)? {
        return Ok(bytes);
    }
    let Some(inner) = type_of(&entry)?.filter(|_| depth < DEPTH_MAX) else { return Ok(0) };
    let mut bytes = size_of(unit, inner, depth + 1)?;
    if entry.tag() == gimli::DW_TAG_array_type {
        let mut tree = unit.entries_tree(Some(at))?;
        let mut ranges = tree.root()?.children();
        while let Some(range) = ranges.next()? {
            let count = match unsigned(range.entry(), gimli::DW_AT_count)? {
                Some(n) => n,
                None => unsigned(range.entry(), gimli::DW_AT_upper_bound)?.map_or(0, |n| n.saturating_add(1)),
            };
            bytes = bytes.saturating_mul(count);
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_debug_information_is_refused_with_the_reason() {
        let me = std::env::current_exe().unwrap(); // an ELF file, with or without debug information of NCCL's structures
        let e = read(&me, RELEASES[0]).unwrap_err().to_string();
        assert!(e.contains("no structure ncclDevKernelArgs") || e.contains("no debug information"), "{e}");
        let text = tempfile::NamedTempFile::new().unwrap();
        fs::write(text.path(), "x".repeat(200)).unwrap();
        assert!(
            read(text.path(), RELEASES[0]).unwrap_err().to_string().contains("not a 64-bit little-endian ELF file")
        );
        assert!(read(Path::new("/nowhere"), RELEASES[0]).unwrap_err().to_string().contains("cannot be opened"));
    }

    #[test]
    fn a_damaged_table_of_sections_ends_with_an_error() {
        let me = fs::read(std::env::current_exe().unwrap()).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        for (offset, byte) in [(40, 0xff), (60, 0xff), (61, 0xff), (62, 0xff), (47, 0x7f)] {
            let mut bytes = me[..4096].to_vec();
            bytes[offset] = byte;
            fs::write(file.path(), bytes).unwrap();
            assert!(read(file.path(), RELEASES[0]).is_err(), "byte {offset}");
        }
    }
}
