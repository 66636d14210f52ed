//! Reads the JSON of PyTorch's flight recorder (`torch._C._distributed_c10d._dump_nccl_trace_json()` of PyTorch 2.5 to 2.14;
//! `_dump_fr_trace_json(backend="nccl2")` from 2.15 on, whose NCCL is a backend of that name): the last collectives of one rank, one file per rank. The recorder's own files are Python pickles; they are refused, because reading one may run a program.
//!
//! * An entry has the sizes of its tensors; the size of a collective here is that of nccl-tests, the whole buffer: the larger one of input and output.
//! * `duration_ms` is there only with `TORCH_NCCL_ENABLE_TIMING=1`. It is the time of the rank's kernel, waiting included: the rank that arrives last
//!   waits least, so the time of a collective is the shortest one over its ranks.
//! * Entries of other libraries than NCCL (`gloo:all_reduce`), sends and receives, and all-to-all (its shares may be uneven) are left out and counted.
//!
//! A dump is untrusted: files, entries and fields have limits.

use crate::kinds::{CallKind, CallTimes, TIME_US_MAX, nearly_all};
use crate::nccl_tests::ParseError;
use crate::scalar::{bytes_of, collective_of};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use topology::{Bytes, Collective};

/// Largest dump, bytes. An entry has about 600, and PyTorch keeps 2,000 of them by default. Reading takes up to 30 times as much memory.
pub const FILE_BYTES_MAX: usize = 16 << 20;
/// Limit on operations of all files.
pub const OPERATIONS_MAX: usize = 1_000_000;
/// Limit on ranks of a group.
const RANKS_MAX: usize = 1 << 20;
/// Limit on the dimensions of a tensor and on the tensors of an operation.
const DIMENSIONS_MAX: usize = 10_000;

/// The part of a dump that is read. Values of entries may have any type: a newer PyTorch may change them.
#[derive(Deserialize)]
struct Dump {
    #[serde(default)]
    entries: Vec<Entry>,
    #[serde(default)]
    pg_config: BTreeMap<String, GroupConfig>,
}

#[derive(Deserialize)]
struct GroupConfig {
    #[serde(default)]
    ranks: Value,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    process_group: Value,
    #[serde(default)]
    collective_seq_id: Value,
    #[serde(default)]
    op_id: Value,
    #[serde(default)]
    profiling_name: Value,
    #[serde(default)]
    duration_ms: Value,
    #[serde(default)]
    is_p2p: Value,
    #[serde(default)]
    input_sizes: Value,
    #[serde(default)]
    input_dtypes: Value,
    #[serde(default)]
    output_sizes: Value,
    #[serde(default)]
    output_dtypes: Value,
}

/// A group: its number of ranks, and a hash of them.
#[derive(Clone, Copy)]
struct Group {
    ranks: u32,
    hash: u64,
}

/// An operation by its group's name and hash, and PyTorch's numbers of it.
type OperationId = (String, u64, u64, u64);

struct Operation {
    collective: Collective,
    size: u64,
    ranks: u32,
    /// Files that have a time of it.
    timed: u32,
    least_us: f64,
}

/// The dumps read so far.
#[derive(Default)]
pub struct FlightRecords {
    operations: BTreeMap<OperationId, Operation>,
    left_out: usize,
}

/// True if a text begins as a dump of the flight recorder does. PyTorch writes the keys of an object in alphabetic order or, in some releases, in none.
pub fn is_flight_record(beginning: &str) -> bool {
    let text = beginning.trim_start();
    let has = |word: &str| text.contains(word);
    text.starts_with('{')
        && !has("\"traceEvents\"")
        && (has("\"entries\"") || has("\"pg_config\"") || has("\"profiling_name\"") || has("\"comm_lib_version\""))
}

impl FlightRecords {
    /// Adds the dump of one rank. `false` if it is cut off: its rank was killed in the middle of writing, and nothing of it counts. Operations above
    /// [`OPERATIONS_MAX`] are left out and counted. O(bytes).
    ///
    /// # Errors
    /// Text that is no dump of the flight recorder, a dump above [`FILE_BYTES_MAX`].
    pub fn read(&mut self, text: &str) -> Result<bool, ParseError> {
        if text.len() > FILE_BYTES_MAX {
            return Err(ParseError::at(1, 1, format!("the dump is larger than {} MiB", FILE_BYTES_MAX >> 20)));
        }
        let dump: Result<Dump, _> = serde_json::from_str(text);
        if dump.as_ref().is_err_and(serde_json::Error::is_eof) {
            return Ok(false);
        }
        let dump = dump.map_err(|e| {
            let what = e.to_string();
            let what: String = what.split(" at line").next().unwrap_or("").chars().take(160).collect();
            ParseError::at(
                e.line().max(1),
                e.column().max(1),
                format!("not a dump of PyTorch's flight recorder: {what}"),
            )
        })?;
        if dump.pg_config.is_empty() && dump.entries.is_empty() {
            let what = "not a dump of PyTorch's flight recorder with collectives: it has neither `entries` nor a group in `pg_config`; PyTorch \
                        2.15 and later write NCCL's by `_dump_fr_trace_json(backend=\"nccl2\")`";
            return Err(ParseError::at(1, 1, what));
        }
        let groups: BTreeMap<String, Group> =
            dump.pg_config.into_iter().filter_map(|(name, config)| Some((name, group_of(&config.ranks)?))).collect();
        for entry in &dump.entries {
            if self.take(entry, &groups).is_none() {
                self.left_out += 1;
            }
        }
        Ok(true)
    }

    /// `None` if the entry is no collective that counts.
    fn take(&mut self, e: &Entry, groups: &BTreeMap<String, Group>) -> Option<()> {
        let name = e.profiling_name.as_str()?;
        let name = name.strip_prefix("nccl:").or_else(|| name.strip_prefix("nccl2:"))?;
        let collective = collective_of(name).filter(|_| e.is_p2p != Value::Bool(true))?;
        let name = match &e.process_group {
            Value::Array(names) => names.first()?.as_str()?,
            name => name.as_str()?,
        };
        let Group { ranks, hash } = *groups.get(name)?;
        let sizes = [(&e.input_sizes, &e.input_dtypes), (&e.output_sizes, &e.output_dtypes)];
        let size =
            sizes.into_iter().map(|(s, d)| buffer_bytes(s, d)).collect::<Option<Vec<u64>>>()?.into_iter().max()?;
        if !(1..=store::measurement::SIZE_BYTES_MAX).contains(&size) {
            return None;
        }
        let id = (name.chars().take(64).collect(), hash, e.collective_seq_id.as_u64()?, e.op_id.as_u64().unwrap_or(0));
        if self.operations.len() >= OPERATIONS_MAX && !self.operations.contains_key(&id) {
            return None;
        }
        let new = Operation { collective, size, ranks, timed: 0, least_us: f64::INFINITY };
        let operation = self.operations.entry(id).or_insert(new);
        // Two files that do not agree on an operation are of two runs.
        if (operation.collective, operation.size) != (collective, size) {
            return None;
        }
        if let Some(us) = e.duration_ms.as_f64().map(|ms| 1e3 * ms).filter(|us| *us > 0.0 && *us <= TIME_US_MAX) {
            operation.timed += 1;
            operation.least_us = operation.least_us.min(us);
        }
        Some(())
    }

    /// The collectives by kind, the most frequent first, and the number of entries left out. O(operations).
    pub fn kinds(&self) -> (Vec<CallKind>, usize) {
        let mut kinds = CallTimes::default();
        for o in self.operations.values() {
            let us = (o.timed > 0).then_some(o.least_us);
            kinds.add(o.collective, Bytes(o.size), o.ranks, us, nearly_all(o.timed, o.ranks));
        }
        (kinds.finish(), self.left_out)
    }
}

/// The group whose ranks are `[0, 1]`, as text or as a list. `None` for fewer than two ranks.
fn group_of(ranks: &Value) -> Option<Group> {
    let ranks: Vec<u64> = match ranks {
        Value::String(text) => {
            let text = text.trim().trim_matches(['[', ']']);
            text.split(',').take(RANKS_MAX + 1).map(|r| r.trim().parse().ok()).collect::<Option<_>>()?
        }
        Value::Array(list) => list.iter().take(RANKS_MAX + 1).map(Value::as_u64).collect::<Option<_>>()?,
        _ => return None,
    };
    let mut hasher = DefaultHasher::new();
    ranks.hash(&mut hasher);
    (2..=RANKS_MAX).contains(&ranks.len()).then(|| Group { ranks: ranks.len() as u32, hash: hasher.finish() })
}

/// Bytes of the tensors of one side: the sum over tensors of the product of dimensions times the size of the type. `None` for what is no list of shapes,
/// or overflows.
fn buffer_bytes(sizes: &Value, dtypes: &Value) -> Option<u64> {
    let (sizes, dtypes) = (sizes.as_array()?, dtypes.as_array()?);
    if sizes.len() > DIMENSIONS_MAX || sizes.len() != dtypes.len() {
        return None;
    }
    let mut bytes = 0u64;
    for (shape, dtype) in sizes.iter().zip(dtypes) {
        let mut elements = 1u64;
        for dimension in shape.as_array().filter(|s| s.len() <= DIMENSIONS_MAX)? {
            elements = elements.checked_mul(dimension.as_u64()?)?;
        }
        bytes = bytes.checked_add(elements.checked_mul(bytes_of(dtype.as_str()?)?)?)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(sequence: u32, name: &str, input: &str, output: &str, ms: &str) -> String {
        format!(
            r#"{{"record_id":{sequence},"pg_id":0,"process_group":["0","default_pg"],"collective_seq_id":{sequence},"p2p_seq_id":0,"op_id":{sequence},
            "profiling_name":"{name}","input_sizes":{input},"input_dtypes":["Float"],"output_sizes":{output},"output_dtypes":["Float"],
            "state":"completed","time_created_ns":1763700000000000000,{ms}"retired":true,"timeout_ms":600000,"is_p2p":false}}"#
        )
    }

    fn dump(entries: &[String]) -> String {
        format!(
            r#"{{"comm_lib_version":"2.28.9","entries":[{}],"pg_config":{{"0":{{"name":"0","desc":"default_pg","ranks":"[0, 1, 2, 3]"}}}},
            "pg_status":{{"0":{{"last_completed_collective":"3"}}}},"version":"2.10"}}"#,
            entries.join(",")
        )
    }

    fn read(texts: &[String]) -> (Vec<CallKind>, usize) {
        let mut records = FlightRecords::default();
        assert!(texts.iter().all(|t| records.read(t).unwrap()));
        records.kinds()
    }

    #[test]
    fn sizes_are_whole_buffers_and_the_last_arriver_gives_the_time() {
        let of_rank = |wait: f64| {
            let ms = |base: f64| format!("\"duration_ms\":{},", base + wait);
            let calls = (0..5).map(|i| entry(i, "nccl:all_reduce", "[[1024, 1024]]", "[[1024, 1024]]", &ms(1.0)));
            let gathers = (5..8).map(|i| entry(i, "nccl:_all_gather_base", "[[1048576]]", "[[4194304]]", &ms(2.0)));
            dump(&calls.chain(gathers).collect::<Vec<_>>())
        };
        let (kinds, left_out) = read(&[of_rank(0.25), of_rank(0.0), of_rank(3.0), of_rank(1.0)]);
        assert_eq!((kinds.len(), left_out), (2, 0), "{kinds:?}");
        let (reduce, gather) = (&kinds[0], &kinds[1]);
        assert_eq!(
            (reduce.collective, reduce.size, reduce.ranks, reduce.calls),
            (Collective::AllReduce, Bytes(4 << 20), 4, 5)
        );
        assert_eq!((reduce.time_us, reduce.by_all_ranks), (Some(1000.0), true));
        assert_eq!(
            (gather.collective, gather.size, gather.time_us),
            (Collective::AllGather, Bytes(16 << 20), Some(2000.0))
        );
        // One file tells counts and sizes, and its times are those of one rank.
        let (one, _) = read(&[of_rank(0.25)]);
        assert_eq!((one[0].calls, one[0].by_all_ranks), (5, false));
    }

    #[test]
    fn without_timing_there_are_counts_and_no_times() {
        let calls: Vec<String> = (0..3).map(|i| entry(i, "nccl:all_reduce", "[[256]]", "[[256]]", "")).collect();
        let (kinds, _) = read(&[dump(&calls)]);
        assert_eq!((kinds[0].calls, kinds[0].time_us, kinds[0].size), (3, None, Bytes(1024)));
    }

    #[test]
    fn both_of_pytorchs_backends_of_nccl_are_read() {
        let calls = |backend: &str| {
            let name = |name: &str| format!("{backend}:{name}");
            dump(&[
                entry(0, &name("all_reduce"), "[[256]]", "[[256]]", ""),
                entry(1, &name("_all_gather_base"), "[[256]]", "[[1024]]", ""),
            ])
        };
        let kinds = |backend| read(&[calls(backend)]).0.iter().map(|k| (k.collective, k.size)).collect::<Vec<_>>();
        let all = [(Collective::AllReduce, Bytes(1024)), (Collective::AllGather, Bytes(4096))];
        let sorted = |mut kinds: Vec<(Collective, Bytes)>| {
            kinds.sort_by_key(|k| k.1.0);
            kinds
        };
        assert_eq!(["nccl", "nccl2"].map(|b| sorted(kinds(b))), [all.to_vec(), all.to_vec()]);
        assert_eq!(read(&[calls("xccl")]), (vec![], 2));
    }

    #[test]
    fn what_is_no_collective_of_nccl_is_left_out_and_counted() {
        let good = |i| entry(i, "nccl:all_reduce", "[[256]]", "[[256]]", "");
        let entries = [
            good(0),
            entry(1, "gloo:all_reduce", "[[256]]", "[[256]]", ""),
            entry(2, "nccl:send 0->1", "[[256]]", "[[256]]", ""),
            entry(3, "nccl:all_to_all", "[[256]]", "[[256]]", ""),
            entry(4, "nccl:all_reduce", "[[18446744073709551615, 8]]", "[[1]]", ""),
            entry(5, "nccl:all_reduce", "[[-8]]", "[[1]]", ""),
            entry(6, "nccl:all_reduce", "7", "[[1]]", ""),
            good(7).replace("\"Float\"", "\"Strange\""),
            good(8).replace("[\"0\",\"default_pg\"]", "[\"unknown\",\"\"]"),
            good(9).replace("\"is_p2p\":false", "\"is_p2p\":true"),
            "{}".into(),
        ];
        let (kinds, left_out) = read(&[dump(&entries)]);
        assert_eq!((kinds.len(), kinds[0].calls, left_out), (1, 1, 10));
    }

    #[test]
    fn a_text_that_is_no_dump_is_an_error_with_its_place() {
        for (text, expected) in [
            ("{}", "line 1, column 1: not a dump of PyTorch's flight recorder with collectives: it has neither"),
            // PyTorch 2.15's `_dump_nccl_trace_json()`.
            (
                "{\"comm_lib_version\":\"\",\"pg_config\":{},\"version\":\"2.10\"}",
                "`_dump_fr_trace_json(backend=\"nccl2\")`",
            ),
            ("{\"entries\":3}", "line 1, column 12: not a dump"),
            ("{\"entries\":[{]}", "line 1, column 14: not a dump"),
        ] {
            let e = FlightRecords::default().read(text).unwrap_err().to_string();
            assert!(e.contains(expected), "{text}\n found    {e}\n expected {expected}");
        }
        assert!(is_flight_record(&dump(&[])) && !is_flight_record("{\"traceEvents\":[],\"pg_config\":{}}"));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_reader_panic(text in "\\PC{0,200}", with in 0usize..3) {
            let text = match with {
                0 => text,
                1 => format!("{{\"entries\":[{text}]}}"),
                _ => dump(&[entry(0, "nccl:all_reduce", &text, "[[1]]", "")]),
            };
            let _ = FlightRecords::default().read(&text);
        }

        #[test]
        fn a_dump_cut_anywhere_counts_nothing_and_is_no_panic(at in any::<proptest::sample::Index>()) {
            let text = dump(&[entry(0, "nccl:all_reduce", "[[4]]", "[[4]]", "")]);
            let mut records = FlightRecords::default();
            prop_assert!(!matches!(records.read(&text[..at.index(text.len())]), Ok(true)));
        }
    }
}
