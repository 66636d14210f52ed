//! The JSON file that nccl-tests writes with `-J` (since 2.17.3).
//!
//! Booleans and `nan` are strings; numbers may be. The recorded environment is never read: it may contain secrets.

use super::report::{
    NcclTestsRank, NcclTestsReport, NcclTestsRow, NcclTestsTiming, OUTPUT_BYTES_MAX, ParseError, RANKS_MAX, ROWS_MAX,
    shorten, version_of_code,
};
use serde_json::Value;

/// Reads a file of `-J`. O(bytes). Syntax errors have line and column, others name the field.
pub fn parse_json(text: &str) -> Result<NcclTestsReport, ParseError> {
    if text.len() > OUTPUT_BYTES_MAX {
        return Err(ParseError::at(1, 1, format!("the file is larger than {} MiB", OUTPUT_BYTES_MAX >> 20)));
    }
    let root: Value =
        serde_json::from_str(text).map_err(|e| ParseError::at(e.line().max(1), e.column().max(1), e.to_string()))?;
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
    let rows = results.iter().enumerate().map(|(i, r)| row(i, r)).collect::<Result<_, _>>().map_err(wrong)?;
    Ok(NcclTestsReport {
        version: root.get("version").map(text_of),
        nccl_version: root.get("nccl_version").map(nccl_version),
        collective: collective(&root),
        ranks: ranks(&root),
        rows,
        average_busbw_gb_per_s: root.pointer("/average_bus_bandwidth/bandwidth").and_then(number_of),
        out_of_bounds: root.pointer("/out_of_bounds/count").and_then(number_of).map(|n| n as u64),
    })
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

fn row(i: usize, r: &Value) -> Result<NcclTestsRow, String> {
    let whole = |name: &str| {
        let n = r.get(name).and_then(|v| v.as_u64().or_else(|| v.as_str()?.trim().parse().ok()));
        n.ok_or_else(|| format!("`results[{i}].{name}` is not a whole number"))
    };
    let root = r.get("root").and_then(|v| v.as_i64().or_else(|| v.as_str()?.trim().parse().ok()));
    Ok(NcclTestsRow {
        size_bytes: whole("size")?,
        count: whole("count")?,
        dtype: r.get("type").map(text_of).unwrap_or_default(),
        redop: r.get("redop").map(text_of).filter(|o| o != "none"),
        root: root.filter(|n| *n >= 0),
        out_of_place: half(i, "out_of_place", r.get("out_of_place"))?,
        in_place: r.get("in_place").filter(|v| !v.is_null()).map(|v| half(i, "in_place", Some(v))).transpose()?,
    })
}

fn half(i: usize, name: &str, v: Option<&Value>) -> Result<NcclTestsTiming, String> {
    let v = v.ok_or_else(|| format!("`results[{i}].{name}` is missing"))?;
    let number = |field: &str| {
        let found = v.get(field);
        found.and_then(number_of).ok_or_else(|| {
            let what = found.map_or("missing".to_owned(), |f| format!("`{}`", shorten(&f.to_string())));
            format!("`results[{i}].{name}.{field}` is {what}, not a number")
        })
    };
    Ok(NcclTestsTiming {
        time_us: number(if v.get("time").is_some() { "time" } else { "cpu_time" })?,
        algbw_gb_per_s: number("alg_bw")?,
        busbw_gb_per_s: number("bus_bw")?,
        wrong: v.get("nwrong").and_then(number_of).map(|n| n as u64),
    })
}
