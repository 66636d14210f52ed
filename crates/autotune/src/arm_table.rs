//! Tables of arms, in two forms: linkwise's own (`linkwise run --profile`) and the CSV of NVIDIA's example tuner. Pure.
//!
//! ```text
//! # linkwise: nccl=2.28.9 gpu=NVIDIA_H100_80GB_HBM3 ranks_per_node=8 hosts=1
//! ALLREDUCE 1048576 4194304 TREE/LL128@8 ranks=8 nodes=1
//! ```
//!
//! ```text
//! # collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks
//! allreduce,741456,2965820,tree,ll128,8,1,8
//! ```
//!
//! The sizes of linkwise's table are powers of two: a rule applies to sizes nearest to them ([`tune::bucket`]). A line of the CSV has the first and
//! the last byte. A size class belongs to a line of the CSV if its power of two does.
//!
//! NVIDIA's example asks for one channel where a line has -1 channels, and for every call that no line matches. The CSV says so in its first lines.

#![allow(missing_docs, reason = "an item whose name says everything needs no comment")]

use ::tune::bucket::{BUCKETS, bucket, middle};
use ::tune::{Algorithm, Arm, Collective, Protocol};
use std::fmt::Write as _;

/// Largest file, bytes.
pub const FILE_BYTES_MAX: usize = 1 << 20;
/// Limit on lines with an arm, as in the plugin.
pub const LINES_MAX: usize = 4096;
/// Limit on notes of a conversion.
const NOTES_MAX: usize = 20;
/// NCCL's limit on channels.
const CHANNELS_MAX: u8 = 64;
/// How the line begins that says where the table was found.
const MARK: &str = "linkwise:";

/// One rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArmLine {
    pub collective: Collective,
    /// Size classes, as powers of two: the first, and the one after the last.
    pub from: u8,
    pub to: u8,
    pub arm: Arm,
    pub ranks: Option<u32>,
    pub nodes: Option<u32>,
    /// Sizes are one rank's share.
    pub of_rank: bool,
}

/// A table. The first line that applies to a call counts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ArmTable {
    /// `key=value` words that say where the table was found; the plugin refuses it elsewhere.
    pub made_on: Vec<String>,
    pub lines: Vec<ArmLine>,
}

/// A table that was read, with sentences about what could not be kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReadTable {
    pub table: ArmTable,
    pub notes: Vec<String>,
}

/// A form of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableForm {
    Linkwise,
    Csv,
}

/// An error with its line, from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct TableError {
    pub line: usize,
    pub what: String,
}

impl ArmTable {
    /// Reads a table of either form, which is told by its first line with an arm. O(bytes).
    ///
    /// # Errors
    /// The first line that is neither a comment nor a rule.
    pub fn read(text: &str) -> Result<(ReadTable, TableForm), TableError> {
        if text.len() > FILE_BYTES_MAX {
            return Err(TableError { line: 1, what: format!("the table is larger than {} KiB", FILE_BYTES_MAX >> 10) });
        }
        let rule = text.lines().map(str::trim).find(|l| !l.is_empty() && !l.starts_with('#'));
        let form = if rule.is_some_and(|l| l.contains(',')) { TableForm::Csv } else { TableForm::Linkwise };
        let mut read = ReadTable::default();
        for (i, line) in text.lines().enumerate() {
            let wrong = |what: String| TableError { line: i + 1, what };
            let line = line.trim();
            if let Some(comment) = line.strip_prefix('#') {
                if let Some(words) = comment.trim_start().strip_prefix(MARK) {
                    read.table.made_on = made_on(words).map_err(wrong)?;
                }
                continue;
            }
            let line = line.split_once('#').map_or(line, |(l, _)| l).trim();
            if line.is_empty() {
                continue;
            }
            if read.table.lines.len() == LINES_MAX {
                return Err(wrong(format!("more than {LINES_MAX} rules")));
            }
            match form {
                TableForm::Linkwise => read.table.lines.push(own_line(line).map_err(wrong)?),
                TableForm::Csv => match csv_line(line).map_err(wrong)? {
                    Ok((rule, note)) => {
                        read.table.lines.push(rule);
                        read.note(note.map(|n| format!("line {}: {n}", i + 1)));
                    }
                    Err(why) => read.note(Some(format!("line {} is left out: {why}", i + 1))),
                },
            }
        }
        Ok((read, form))
    }

    /// linkwise's own form.
    pub fn text(&self) -> String {
        let mut out = String::new();
        if !self.made_on.is_empty() {
            let _ = writeln!(out, "# {MARK} {}", self.made_on.join(" "));
        }
        out += "# collective from to arm: sizes in bytes, the powers of two from FROM up to, not including, TO; AUTO elsewhere\n";
        for l in &self.lines {
            let size =
                |e: u8| 1u64.checked_shl(e.into()).filter(|_| e < BUCKETS).map_or("max".into(), |s| s.to_string());
            let first = if l.from == 0 { "0".to_string() } else { size(l.from) };
            let _ = write!(out, "{} {first} {} {}", l.collective.capitals(), size(l.to), l.arm);
            for (key, value) in [("ranks", l.ranks), ("nodes", l.nodes)] {
                if let Some(value) = value {
                    let _ = write!(out, " {key}={value}");
                }
            }
            out += if l.of_rank { " bytes=rank\n" } else { "\n" };
        }
        out
    }

    /// The CSV of NVIDIA's example tuner, and sentences about lines that it cannot express.
    pub fn csv(&self) -> (String, Vec<String>) {
        let mut read = ReadTable::default();
        let mut out = String::new();
        if !self.made_on.is_empty() {
            let _ = writeln!(out, "# {MARK} {}", self.made_on.join(" "));
        }
        out += "# NVIDIA's example tuner asks for ONE channel for every call that no line matches, and where channels is -1.\n\
                # collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks\n";
        let mut without_channels = 0;
        for l in &self.lines {
            let Some((algorithm, protocol)) = l.arm.forced else {
                read.note(Some(format!(
                    "{}: {} names no algorithm, which the CSV needs; left out",
                    l.collective, l.arm
                )));
                continue;
            };
            let Some((from, to)) = l.classes() else {
                read.note(Some(format!(
                    "{}: bytes=rank without ranks=N has no size in the CSV; left out",
                    l.collective
                )));
                continue;
            };
            without_channels += usize::from(l.arm.channels.is_none());
            let number = |n: Option<u32>| n.map_or("-1".into(), |n| n.to_string());
            let _ = writeln!(
                out,
                "{},{},{},{},{},{},{},{}",
                l.collective.capitals().to_ascii_lowercase(),
                first_byte(from),
                last_byte(to - 1),
                algorithm_word(algorithm),
                protocol.capitals().to_ascii_lowercase(),
                l.arm.channels.map_or("-1".into(), |c| c.to_string()),
                number(l.nodes),
                number(l.ranks)
            );
        }
        if without_channels > 0 {
            read.note(Some(format!(
                "{without_channels} lines have -1 channels: NVIDIA's example runs them on ONE channel; traces with GPU launches give counts"
            )));
        }
        (out, read.notes)
    }
}

impl ReadTable {
    fn note(&mut self, note: Option<String>) {
        match self.notes.len() {
            n if n < NOTES_MAX => self.notes.extend(note),
            NOTES_MAX if note.is_some() => self.notes.push("... and more".into()),
            _ => {}
        }
    }
}

impl ArmLine {
    /// The size classes of whole buffers; `None` if they depend on the number of ranks, which the line does not say.
    fn classes(&self) -> Option<(u8, u8)> {
        if !self.of_rank {
            return Some((self.from, self.to));
        }
        let ranks = u64::from(self.ranks?.max(1));
        // As the plugin judges a call: by the class of one rank's share.
        let fits = |class: &u8| (self.from..self.to).contains(&bucket(middle(*class) / ranks));
        let first = (0..BUCKETS).find(fits)?;
        let last = (0..BUCKETS).rev().find(fits)?;
        Some((first, last + 1))
    }
}

/// The smallest size of a class, bytes; 0 for the first class.
fn first_byte(class: u8) -> u64 {
    if class == 0 {
        return 0;
    }
    // Between the middles of two classes, the border is where `bucket` changes.
    let (mut low, mut high) = (middle(class - 1), middle(class));
    while high - low > 1 {
        let at = low + (high - low) / 2;
        if bucket(at) < class { low = at } else { high = at }
    }
    high
}

/// The largest size of a class, bytes.
fn last_byte(class: u8) -> u64 {
    if class + 1 >= BUCKETS { u64::MAX } else { first_byte(class + 1) - 1 }
}

fn algorithm_word(a: Algorithm) -> &'static str {
    match a {
        Algorithm::Tree => "tree",
        Algorithm::Ring => "ring",
        Algorithm::CollNetDirect => "collnet_direct",
        Algorithm::CollNetChain => "collnet_chain",
        Algorithm::Nvls => "nvls",
        Algorithm::NvlsTree => "nvls_tree",
        Algorithm::Pat => "pat",
    }
}

fn made_on(words: &str) -> Result<Vec<String>, String> {
    let known = ["nccl", "gpu", "ranks_per_node", "hosts"];
    let word = |w: &str| match w.split_once('=') {
        Some((key, value)) if known.contains(&key) && !value.is_empty() => Ok(w.to_string()),
        _ => Err(format!("`{w}` is none of nccl=2.28.9, gpu=MODEL, ranks_per_node=N, hosts=N")),
    };
    words.split_whitespace().map(word).collect()
}

fn tuned(word: &str) -> Result<Collective, String> {
    word.parse().ok().filter(|c: &Collective| c.is_tuned()).ok_or_else(|| {
        let all = Collective::TUNED.map(Collective::capitals).join(", ");
        format!("collective `{word}` is none of {all}")
    })
}

fn own_line(line: &str) -> Result<ArmLine, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [collective, from, to, arm, more @ ..] = words.as_slice() else {
        return Err(format!("`{line}` is not COLLECTIVE FROM TO ARM [ranks=N] [nodes=N] [bytes=rank]"));
    };
    let mut out = ArmLine {
        collective: tuned(collective)?,
        from: exponent(from)?,
        to: exponent(to)?,
        arm: arm.parse()?,
        ranks: None,
        nodes: None,
        of_rank: false,
    };
    if out.from >= out.to {
        return Err("the range of sizes is empty: FROM is inclusive, TO exclusive".into());
    }
    let shares = matches!(out.collective, Collective::AllGather | Collective::ReduceScatter);
    for word in more {
        let number = |t: &str| {
            t.parse::<u32>()
                .ok()
                .filter(|n| *n > 0)
                .ok_or_else(|| format!("`{word}`: a number of 1 or more was expected"))
        };
        match word.split_once('=') {
            Some(("ranks", t)) => out.ranks = Some(number(t)?),
            Some(("nodes", t)) => out.nodes = Some(number(t)?),
            Some(("bytes", "rank")) if shares => out.of_rank = true,
            _ => {
                return Err(format!(
                    "`{word}` is none of ranks=N, nodes=N, and bytes=rank of AllGather and ReduceScatter"
                ));
            }
        }
    }
    Ok(out)
}

/// log2 of a size; `max` is above all sizes.
fn exponent(text: &str) -> Result<u8, String> {
    if text == "max" {
        return Ok(BUCKETS);
    }
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];
    let (number, shift) = units.iter().find_map(|(u, s)| Some((text.strip_suffix(u)?, *s))).unwrap_or((text, 0));
    match number.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift)) {
        Some(0) => Ok(0),
        Some(b) if b.is_power_of_two() => Ok(b.trailing_zeros() as u8),
        Some(_) => Err(format!("`{text}` is not a power of two")),
        None => Err(format!("`{text}` is not a size; write 64KiB, 16MiB, 1GiB or max")),
    }
}

/// A rule with a note, or the reason why the line has no rule.
type CsvLine = Result<(ArmLine, Option<String>), String>;

fn csv_line(line: &str) -> Result<CsvLine, String> {
    let f: Vec<&str> = line.split(',').map(str::trim).collect();
    if !(8..=10).contains(&f.len()) {
        return Err(format!(
            "{} fields; 8 to 10 were expected: collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks[,numPipeOps[,regBuff]]",
            f.len()
        ));
    }
    let [collective, least, most, algorithm, protocol, channels, nodes, ranks, ..] = f[..] else {
        return Err("8 fields were expected".into());
    };
    let bytes = |what: &str, t: &str| t.parse::<u64>().map_err(|_| format!("{what} `{t}` is not a number of bytes"));
    let any = |what: &str, t: &str| match t.parse::<i64>() {
        Ok(-1) => Ok(None),
        Ok(n @ 1..=0xffff_ffff) => Ok(Some(n as u32)),
        _ => Err(format!("{what} `{t}` is neither -1 nor a number of 1 or more")),
    };
    let (least, most) = (bytes("min_bytes", least)?, bytes("max_bytes", most)?);
    if least > most {
        return Err(format!("min_bytes {least} is above max_bytes {most}"));
    }
    let algorithm: Algorithm = algorithm.parse().map_err(|_| format!("algorithm `{algorithm}` is not known"))?;
    let protocol: Protocol = protocol.parse().map_err(|_| format!("protocol `{protocol}` is not known"))?;
    let mut arm = Arm::new(algorithm, protocol);
    let channels = any("channels", channels)?;
    if let Some(n) = channels {
        let n = u8::try_from(n).ok().filter(|n| *n <= CHANNELS_MAX);
        arm.channels = Some(n.ok_or_else(|| format!("channels: at most {} are possible", CHANNELS_MAX))?);
    }
    let out = |from, to| -> Result<ArmLine, String> {
        Ok(ArmLine {
            collective: tuned(collective)?,
            from,
            to,
            arm,
            ranks: any("nRanks", ranks)?,
            nodes: any("nNodes", nodes)?,
            of_rank: false,
        })
    };
    // Size classes whose power of two is in the line. The first class also has 0 bytes.
    let inside = |class: &u8| (least..=most).contains(&middle(*class)) || (*class == 0 && least == 0);
    let first = (0..BUCKETS).find(inside);
    let last = (0..BUCKETS).rev().find(inside);
    let (Some(first), Some(last)) = (first, last) else {
        out(0, 1)?;
        return Ok(Err(format!("no power of two is between {least} and {most} bytes")));
    };
    let line = out(first, last + 1)?;
    for (what, value) in [("numPipeOps", f.get(8)), ("regBuff", f.get(9))] {
        match value.map(|v| v.parse::<i64>()) {
            None | Some(Ok(-1)) => {}
            Some(Ok(1)) if what == "numPipeOps" => {} // the value of calls outside of groups
            Some(Ok(n)) => {
                return Ok(Err(format!("it applies to {what} {n} only, which linkwise's table cannot say")));
            }
            Some(Err(_)) => return Err(format!("{what} `{}` is not a number", value.unwrap_or(&""))),
        }
    }
    let note = arm.channels.is_none().then(|| {
        "channels is -1: NVIDIA's example asks for ONE channel there; linkwise leaves the number to NCCL".to_string()
    });
    Ok(Ok((line, note)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines() -> impl Strategy<Value = ArmLine> {
        let arm = (0usize..7, 0usize..3, proptest::option::of(1u8..=64));
        let arm =
            arm.prop_map(|(a, p, channels)| Arm { forced: Some((Algorithm::ALL[a], Protocol::ALL[p])), channels });
        let number = || proptest::option::of(1u32..4096);
        (0usize..5, 0u8..60, 1u8..5, arm, number(), number()).prop_map(|(c, from, n, arm, ranks, nodes)| ArmLine {
            collective: Collective::TUNED[c],
            from,
            to: (from + n).min(BUCKETS),
            arm,
            ranks,
            nodes,
            of_rank: false,
        })
    }

    proptest! {
        #[test]
        fn both_forms_read_back_what_was_written(lines in proptest::collection::vec(lines(), 1..20)) {
            let made_on = vec!["nccl=2.28.9".to_string(), "hosts=4".into()];
            let table = ArmTable { made_on, lines };
            let (own, form) = ArmTable::read(&table.text()).unwrap();
            prop_assert_eq!((&own.table, form, own.notes.len()), (&table, TableForm::Linkwise, 0));
            let (csv, notes) = table.csv();
            let (read, form) = ArmTable::read(&csv).unwrap();
            prop_assert_eq!((&read.table, form), (&table, TableForm::Csv));
            prop_assert_eq!(notes.is_empty(), table.lines.iter().all(|l| l.arm.channels.is_some()));
        }

        #[test]
        fn every_byte_belongs_to_the_class_whose_line_has_it(bytes in 0u64..u64::MAX) {
            let class = bucket(bytes);
            prop_assert!((first_byte(class)..=last_byte(class)).contains(&bytes));
        }

        #[test]
        fn any_text_is_a_table_or_an_error(text in "(\\PC|\n|,){0,200}") {
            let _ = ArmTable::read(&text);
        }
    }

    #[test]
    fn a_file_of_nvidias_example_is_read_with_what_is_lost() {
        let text = "# x\nallreduce,0,65536,tree,simple,2,1,-1,-1,-1\nbroadcast,32768,1048576,tree,ll128,-1,-1,8\n\
                    reduce,1000,1020,ring,ll,4,1,8\nallgather,0,1024,ring,ll,4,1,8,1,1\n";
        let (read, _) = ArmTable::read(text).unwrap();
        let said: Vec<String> =
            read.table.lines.iter().map(|l| format!("{} {} {} {}", l.collective, l.from, l.to, l.arm)).collect();
        assert_eq!(said, ["all_reduce 0 17 TREE/SIMPLE@2", "broadcast 15 21 TREE/LL128"]);
        assert_eq!(read.notes.len(), 3, "{:?}", read.notes);
        assert!(read.notes[0].contains("line 3: channels is -1: NVIDIA's example asks for ONE channel"));
        assert!(read.notes[1].contains("line 4 is left out: no power of two"));
        assert!(read.notes[2].contains("line 5 is left out: it applies to regBuff 1 only"));
    }

    #[test]
    fn the_fuzz_targets_corpus_is_read_in_both_forms() {
        for (file, form, rules) in [("own", TableForm::Linkwise, 2), ("csv", TableForm::Csv, 2)] {
            let path = format!("{}/../../fuzz/corpus/arm_table/{file}", env!("CARGO_MANIFEST_DIR"));
            let (read, found) = ArmTable::read(&std::fs::read_to_string(path).unwrap()).unwrap();
            assert_eq!((found, read.table.lines.len()), (form, rules), "{file}");
        }
    }

    #[test]
    fn an_error_has_its_line() {
        for (text, line, what) in [
            ("allreduce,0,1,tree,simple,2,1\n", 1, "7 fields; 8 to 10"),
            ("\nallreduce,0,1,hedge,simple,2,1,8\n", 2, "algorithm `hedge`"),
            ("allreduce,0,1,tree,fast,2,1,8\n", 1, "protocol `fast`"),
            ("alltoall,0,1,tree,ll,2,1,8\n", 1, "collective `alltoall`"),
            ("allreduce,5,1,tree,ll,2,1,8\n", 1, "is above max_bytes"),
            ("allreduce,-5,1,tree,ll,2,1,8\n", 1, "min_bytes `-5`"),
            ("allreduce,0,1,tree,ll,0,1,8\n", 1, "channels `0`"),
            ("allreduce,0,1,tree,ll,65,1,8\n", 1, "at most 64"),
            ("allreduce,0,1,tree,ll,2,1,8,x\n", 1, "numPipeOps `x`"),
            ("AllReduce 1000 2KiB AUTO\n", 1, "power of two"),
            ("AllReduce 1KiB\n", 1, "is not COLLECTIVE FROM TO ARM"),
            ("# linkwise: speed=high\n", 1, "is none of nccl="),
            ("Reduce 1KiB 2KiB RING/LL bytes=rank\n", 1, "bytes=rank of AllGather"),
        ] {
            let e = ArmTable::read(text).unwrap_err();
            assert!(e.line == line && e.what.contains(what), "{text:?}: {e}");
        }
    }

    #[test]
    fn sizes_of_one_ranks_share_become_sizes_of_the_whole_buffer() {
        let table = ArmTable::read(
            "AllGather 64KiB 256KiB RING/LL@4 ranks=8 bytes=rank\nAllGather 1KiB 2KiB RING/LL bytes=rank\n",
        );
        let (csv, notes) = table.unwrap().0.table.csv();
        let (read, _) = ArmTable::read(&csv).unwrap();
        assert_eq!((read.table.lines[0].from, read.table.lines[0].to), (19, 21));
        assert!(notes.iter().any(|n| n.contains("without ranks=N")), "{notes:?}");
    }
}
