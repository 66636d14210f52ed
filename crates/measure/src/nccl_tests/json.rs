//! The JSON file that nccl-tests writes with `-J` (since 2.17.3), in the form of its own writer (`src/util.cu`):
//!
//! - `version` is an integer, the version of the file's form; the file does not name the version of nccl-tests.
//! - `config.devices` has one entry per process, its first device. A process drives `nthreads` x `ngpus` ranks, so `-g 8` lists one
//!   device and has eight ranks.
//! - Booleans, `nan` and roots are strings. An infinite number is a bare `inf`, which JSON does not know. `nwrong` is `null` without a
//!   check, and `out_of_place` is `null` where only in-place operations ran.
//! - The recorded environment is never read: it may contain secrets.

use super::report::{
    NcclTestsRank, NcclTestsReport, NcclTestsRow, NcclTestsTiming, OUTPUT_BYTES_MAX, ParseError, RANKS_MAX, ROWS_MAX,
    shorten, version_of_code,
};
use serde_json::Value;
use std::collections::BTreeSet;

/// Reads a file of `-J`. O(bytes). Syntax errors have line and column, others name the field.
pub fn parse_json(text: &str) -> Result<NcclTestsReport, ParseError> {
    if text.len() > OUTPUT_BYTES_MAX {
        return Err(ParseError::at(1, 1, format!("the file is larger than {} MiB", OUTPUT_BYTES_MAX >> 20)));
    }
    let root = value(text)?;
    let wrong = |message: String| ParseError::at(1, 1, message);
    let Some(results) = root.get("results").and_then(Value::as_array) else {
        return Err(wrong("`results` is missing; a file written by nccl-tests -J was expected".into()));
    };
    if results.is_empty() {
        let why = root.get("errors").map_or(String::new(), |e| format!("; errors: {}", shorten(&e.to_string())));
        return Err(wrong(format!("`results` is empty: the run has no result{why}")));
    }
    if results.len() > ROWS_MAX {
        return Err(wrong(format!("`results` has more than {ROWS_MAX} rows")));
    }
    let (mut rows, mut left_out) = (Vec::new(), Vec::new());
    for (i, r) in results.iter().enumerate() {
        match row(i, r).map_err(wrong)? {
            Ok(row) => rows.push(row),
            Err(why) => left_out.push(why),
        }
    }
    if rows.is_empty() {
        return Err(wrong(left_out.swap_remove(0)));
    }
    let ranks = ranks(&root);
    Ok(NcclTestsReport {
        // An integer is the version of the file's form.
        version: root.get("version").and_then(Value::as_str).map(shorten),
        nccl_version: root.get("nccl_version").map(nccl_version),
        collective: collective(&root),
        rank_count: rank_count(&root, &ranks).map_err(wrong)?,
        ranks,
        rows,
        left_out,
        average_busbw_gb_per_s: root.pointer("/average_bus_bandwidth/bandwidth").and_then(number_of),
        out_of_bounds: root.pointer("/out_of_bounds/count").and_then(number_of).map(|n| n as u64),
    })
}

/// The document. A bare `inf` counts as the string "inf".
fn value(text: &str) -> Result<Value, ParseError> {
    let error = match serde_json::from_str(text) {
        Ok(v) => return Ok(v),
        Err(e) => e,
    };
    let infinite = bare_infinities(text);
    if infinite.is_empty() {
        return Err(ParseError::at(error.line().max(1), error.column().max(1), error.to_string()));
    }
    let mut quoted = String::with_capacity(text.len() + 2 * infinite.len());
    let mut from = 0;
    for &(start, end) in &infinite {
        quoted.extend([&text[from..start], "\"", &text[start..end], "\""]);
        from = end;
    }
    quoted.push_str(&text[from..]);
    serde_json::from_str(&quoted).map_err(|e| {
        // The quotes that came before the error on its line are not in the file.
        let line_start = text.split_inclusive('\n').take(e.line().saturating_sub(1)).map(str::len).sum::<usize>();
        let mut column = e.column();
        for &(start, _) in infinite.iter().filter(|(start, _)| *start >= line_start) {
            if start - line_start < column.saturating_sub(2) {
                column -= 2;
            }
        }
        let message = e.to_string();
        let message = message.split(" at line ").next().unwrap_or("not JSON");
        ParseError::at(e.line().max(1), column.max(1), message)
    })
}

/// Byte ranges of `inf` and `-inf` where a value is expected. O(bytes).
fn bare_infinities(text: &str) -> Vec<(usize, usize)> {
    let bytes = text.as_bytes();
    let (mut out, mut i, mut in_string, mut before) = (Vec::new(), 0, false, b' ');
    while i < bytes.len() {
        let b = bytes[i];
        match (in_string, b) {
            (true, b'\\') => i += 1,
            (_, b'"') => in_string = !in_string,
            (false, b'i' | b'-') if matches!(before, b':' | b',' | b'[') => {
                let sign = usize::from(b == b'-');
                if bytes[i + sign..].starts_with(b"inf") {
                    out.push((i, i + sign + 3));
                    i += sign + 2;
                }
            }
            _ => {}
        }
        if !b.is_ascii_whitespace() {
            before = b;
        }
        i += 1;
    }
    out
}

fn text_of(v: &Value) -> String {
    shorten(v.as_str().map_or_else(|| v.to_string(), str::to_owned).trim())
}

fn nccl_version(v: &Value) -> String {
    let text = text_of(v);
    text.parse::<u64>().map_or(text, version_of_code)
}

/// A finite, non-negative number, quoted or not.
fn number_of(v: &Value) -> Option<f64> {
    v.as_f64().or_else(|| v.as_str()?.trim().parse().ok()).filter(|n| n.is_finite() && *n >= 0.0)
}

/// From the program's name, the first of `args`.
fn collective(root: &Value) -> Option<topology::Collective> {
    let program = root.get("args")?.get(0)?.as_str()?;
    program.rsplit('/').next()?.trim_end_matches("_perf").parse().ok()
}

fn ranks(root: &Value) -> Vec<NcclTestsRank> {
    let devices = root.pointer("/config/devices").and_then(Value::as_array);
    let small = |v: Option<&Value>| v.and_then(number_of).filter(|n| *n <= f64::from(u32::MAX)).map(|n| n as u32);
    devices
        .into_iter()
        .flatten()
        .take(RANKS_MAX)
        .filter_map(|d| {
            Some(NcclTestsRank {
                rank: small(d.get("rank"))?,
                host: shorten(d.get("hostname")?.as_str()?),
                device: small(d.get("device"))?,
            })
        })
        .collect()
}

/// Ranks of the run: processes x `nthreads` x `ngpus`; `None` without a list of devices. A file that lists every rank counts as listed.
fn rank_count(root: &Value, listed: &[NcclTestsRank]) -> Result<Option<usize>, String> {
    let devices = root.pointer("/config/devices").and_then(Value::as_array);
    let Some(devices) = devices.filter(|d| !d.is_empty()) else { return Ok(None) };
    let groups: BTreeSet<u64> = devices.iter().filter_map(|d| d.get("group")?.as_u64()).collect();
    if groups.len() > 1 {
        return Err(format!(
            "`config.devices` names {} groups (NCCL_TESTS_SPLIT): the bandwidths are of one group each, not of all ranks",
            groups.len()
        ));
    }
    let of_config = |name: &str| {
        let v = root.pointer(&format!("/config/{name}"));
        let n = v.and_then(number_of).map_or(1, |n| n as usize);
        if (1..=RANKS_MAX).contains(&n) {
            Ok(n)
        } else {
            Err(format!("`config.{name}` is {n}; 1 or more was expected"))
        }
    };
    let per_process = of_config("nthreads")?.saturating_mul(of_config("ngpus")?);
    let every_rank_is_listed = per_process > 1
        && devices.len() >= per_process
        && listed.len() == devices.len()
        && listed.iter().enumerate().all(|(i, r)| r.rank as usize == i);
    let ranks = if every_rank_is_listed { devices.len() } else { devices.len().saturating_mul(per_process) };
    if ranks > RANKS_MAX {
        return Err(format!("`config` tells of {ranks} ranks; at most {RANKS_MAX} are read"));
    }
    Ok(Some(ranks))
}

/// A row, or why it has no bandwidth.
fn row(i: usize, r: &Value) -> Result<Result<NcclTestsRow, String>, String> {
    let whole = |name: &str| {
        let n = r.get(name).and_then(|v| v.as_u64().or_else(|| v.as_str()?.trim().parse().ok()));
        n.ok_or_else(|| format!("`results[{i}].{name}` is not a whole number"))
    };
    let root = r.get("root").and_then(|v| v.as_i64().or_else(|| v.as_str()?.trim().parse().ok()));
    let (size_bytes, count) = (whole("size")?, whole("count")?);
    let out_of_place = match half(i, "out_of_place", r.get("out_of_place"))? {
        Ok(timing) => timing,
        Err(why) => return Ok(Err(why)),
    };
    let in_place = r.get("in_place").filter(|v| !v.is_null()).map(|v| half(i, "in_place", Some(v))).transpose()?;
    Ok(Ok(NcclTestsRow {
        size_bytes,
        count,
        dtype: r.get("type").map(text_of).unwrap_or_default(),
        redop: r.get("redop").map(text_of).filter(|o| o != "none"),
        root: root.filter(|n| *n >= 0),
        out_of_place,
        in_place: in_place.and_then(Result::ok),
    }))
}

/// One half of a row, or why it has no bandwidth: `null`, `inf`, `nan`. An error is a field that the writer never leaves out or writes so.
fn half(i: usize, name: &str, v: Option<&Value>) -> Result<Result<NcclTestsTiming, String>, String> {
    let v = v.ok_or_else(|| format!("`results[{i}].{name}` is missing"))?;
    if v.is_null() {
        return Ok(Err(format!("`results[{i}].{name}` is null: no such operation ran")));
    }
    let time = if v.get("time").is_some() { "time" } else { "cpu_time" };
    let mut values = [0.0; 3];
    for (value, field) in values.iter_mut().zip([time, "alg_bw", "bus_bw"]) {
        let found = v.get(field);
        let Some(number) = found.and_then(number_of) else {
            let what = found.map_or("missing".to_owned(), |f| format!("`{}`", shorten(&f.to_string())));
            let why = format!("`results[{i}].{name}.{field}` is {what}, not a number");
            return if found.is_some_and(is_no_number) { Ok(Err(why)) } else { Err(why) };
        };
        *value = number;
    }
    let [time_us, algbw_gb_per_s, busbw_gb_per_s] = values;
    let wrong = v.get("nwrong").and_then(number_of).map(|n| n as u64);
    Ok(Ok(NcclTestsTiming { time_us, algbw_gb_per_s, busbw_gb_per_s, wrong }))
}

/// `null`, or a string of an infinite number or of none.
fn is_no_number(v: &Value) -> bool {
    v.is_null() || v.as_str().is_some_and(|s| ["nan", "-nan", "inf", "-inf"].contains(&s.trim()))
}
