//! Reads PARAM comms replays (github facebookresearch/param): one recorded all_to_allv per rank.
//!
//! A replay file is one rank's list of operations. `in_split` holds the elements that the rank sends to each rank, `out_split` the elements
//! that it receives. A demand needs the files of all ranks in rank order. An operation with empty splits sends equal parts.

use super::{build_demand, json_error, size_error};
use crate::demand::{Demand, RANKS_MAX};
use serde::Deserialize;
use topology::ReadError;

const REMEDY: &str = "give the replay files of all ranks in rank order, each a JSON list of operations with comms, in_split, out_split, in_msg_size and dtype";

#[derive(Deserialize)]
struct Op {
    #[serde(default)]
    comms: Option<String>,
    #[serde(default, alias = "inSplit")]
    in_split: Vec<u64>,
    #[serde(default, alias = "outSplit")]
    out_split: Vec<u64>,
    #[serde(default, alias = "in_msg_size")]
    in_msg: u64,
    #[serde(default)]
    dtype: Option<String>,
    #[serde(default)]
    world_size: Option<usize>,
}

/// Bytes of one element; `None` for an unknown type.
fn width(dtype: Option<&str>) -> Option<u64> {
    Some(match dtype.unwrap_or("float").to_ascii_lowercase().as_str() {
        "byte" | "char" | "int8" | "uint8" | "bool" => 1,
        "half" | "float16" | "bfloat16" | "short" | "int16" => 2,
        "float" | "float32" | "int" | "int32" => 4,
        "double" | "float64" | "long" | "int64" => 8,
        _ => return None,
    })
}

/// Reads the `nth` all-to-all (from 0) of every file. `files` are (name, text) in rank order. O(text).
pub fn read(files: &[(String, String)], nth: usize) -> Result<Demand, ReadError> {
    let Some(first) = files.first() else { return Err(ReadError::in_file("", "no replay file", REMEDY)) };
    let ranks = files.len();
    if ranks > RANKS_MAX {
        return Err(ReadError::in_file(&first.0, format!("{ranks} files, but at most {RANKS_MAX} ranks"), REMEDY));
    }
    let mut bytes = vec![0u64; ranks * ranks];
    let mut arrives: Vec<Vec<u64>> = Vec::new();
    for (rank, (file, text)) in files.iter().enumerate() {
        let fail = |m: String| ReadError::in_file(file, m, REMEDY);
        if let Some(e) = size_error(file, text.len()) {
            return Err(e);
        }
        let ops: Vec<Op> = serde_json::from_str(text).map_err(|e| json_error(file, text, &e, REMEDY))?;
        let wanted = |o: &&Op| {
            o.comms.as_deref().is_some_and(|c| c.to_ascii_lowercase().replace('_', "").starts_with("alltoall"))
        };
        let count = ops.iter().filter(wanted).count();
        let Some(op) = ops.iter().filter(wanted).nth(nth) else {
            return Err(fail(format!(
                "the file has {count} all-to-all operations, so number {nth} (from 0) does not exist"
            )));
        };
        let width = width(op.dtype.as_deref())
            .ok_or_else(|| fail(format!("unknown dtype `{}`", op.dtype.clone().unwrap_or_default())))?;
        let world = op.world_size.unwrap_or(op.in_split.len().max(op.out_split.len()));
        let named = [op.in_split.len(), op.out_split.len(), world].into_iter().filter(|n| *n > 0);
        if let Some(n) = named.into_iter().find(|n| *n != ranks) {
            return Err(fail(format!("the operation has {n} ranks, but {ranks} files were given")));
        }
        let equal = vec![op.in_msg / ranks as u64; ranks];
        let sends = if op.in_split.is_empty() { &equal } else { &op.in_split };
        let scaled = |v: &[u64]| -> Result<Vec<u64>, ReadError> {
            v.iter().map(|e| e.checked_mul(width).ok_or_else(|| fail(format!("{e} elements are too many")))).collect()
        };
        bytes[rank * ranks..(rank + 1) * ranks].copy_from_slice(&scaled(sends)?);
        arrives.push(scaled(&op.out_split)?);
    }
    for (rank, got) in arrives.iter().enumerate().filter(|(_, g)| !g.is_empty()) {
        for (src, &expected) in got.iter().enumerate() {
            let sent = bytes[src * ranks + rank];
            if sent != expected {
                let message = format!(
                    "rank {rank} expects {expected} bytes from rank {src}, which sends {sent}: the files belong to different operations or are not in rank order"
                );
                return Err(ReadError::in_file(&files[rank].0, message, REMEDY));
            }
        }
    }
    build_demand(&first.0, ranks, bytes)
}
