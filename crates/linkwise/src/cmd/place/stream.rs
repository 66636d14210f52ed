//! `--requests`: a JSON object per line in, one per line out, in order, as they are ready.

use super::answer::Reply;
use super::{default_size, without_drained};
use crate::failure::Failure;
use place::Request;
use predict::Model;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use topology::{Allocation, Bytes, Cluster};

/// Longest request line, bytes: ten thousand GPUs in text are under 200 kB.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// What is wrong with one request.
struct Bad {
    code: &'static str,
    message: String,
}

fn bad(code: &'static str, message: impl Into<String>) -> Bad {
    Bad { code, message: message.into() }
}

/// Answers every line. Bad lines get an error object and the stream goes on; only failing to read or write ends it.
pub fn run(cluster: &Cluster, model: &Model, file: &Path, size: Option<Bytes>) -> Result<(), Failure> {
    let input: Box<dyn Read> = if file == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(std::fs::File::open(file).map_err(|e| Failure::file("open", file, e))?)
    };
    let mut input = BufReader::new(input);
    let mut out = std::io::stdout().lock();
    let mut line = Vec::new();
    let mut number = 0u64;
    loop {
        line.clear();
        number += 1;
        let n = input
            .by_ref()
            .take(LINE_BYTES_MAX + 1)
            .read_until(b'\n', &mut line)
            .map_err(|e| Failure::file("read", file, e))?;
        if n == 0 {
            return Ok(());
        }
        let reply = if n as u64 > LINE_BYTES_MAX {
            skip_line(&mut input).map_err(|e| Failure::file("read", file, e))?;
            let e = bad("bad_request", format!("line {number} is longer than {LINE_BYTES_MAX} bytes"));
            error(&Value::Null, &e)
        } else if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        } else {
            reply(cluster, model, &line, number, size)
        };
        // A reader that has gone away (head, a killed script) is no failure of ours.
        if writeln!(out, "{reply}").and_then(|()| out.flush()).is_err() {
            return Ok(());
        }
    }
}

fn skip_line(input: &mut impl BufRead) -> std::io::Result<()> {
    loop {
        let (used, end) = {
            let buffer = input.fill_buf()?;
            match buffer.iter().position(|b| *b == b'\n') {
                Some(i) => (i + 1, true),
                None => (buffer.len(), buffer.is_empty()),
            }
        };
        input.consume(used);
        if end {
            return Ok(());
        }
    }
}

fn error(id: &Value, e: &Bad) -> Value {
    json!({"id": id, "error": {"code": e.code, "message": e.message}})
}

fn reply(cluster: &Cluster, model: &Model, line: &[u8], number: u64, size: Option<Bytes>) -> Value {
    let start = std::time::Instant::now();
    let value: Value = match serde_json::from_slice(line) {
        Ok(v) => v,
        Err(e) => return error(&Value::Null, &bad("bad_request", format!("line {number} is not JSON: {e}"))),
    };
    let id = value.get("id").cloned().unwrap_or(Value::Null);
    let answered = parse(cluster, model, &value, size).and_then(|request| {
        let answer = place::answer(cluster, model, &request).map_err(|e| bad(e.code(), e.to_string()))?;
        Ok(Reply { cluster, model, request: &request, answer: &answer, elapsed: start.elapsed() }.json(Some(&id)))
    });
    answered.unwrap_or_else(|e| error(&id, &e))
}

/// Fields that a request may have; others are refused, since a misspelt one would be ignored in silence.
const FIELDS: [&str; 4] = ["id", "gpus", "free", "size_bytes"];

fn parse(cluster: &Cluster, model: &Model, v: &Value, size: Option<Bytes>) -> Result<Request, Bad> {
    let map = v.as_object().ok_or_else(|| bad("bad_request", "a request is a JSON object"))?;
    if let Some(unknown) = map.keys().find(|k| !FIELDS.contains(&k.as_str())) {
        return Err(bad("bad_request", format!("unknown field `{unknown}`; known are {}", FIELDS.join(", "))));
    }
    let gpus = match map.get("gpus") {
        Some(g) => {
            g.as_u64().ok_or_else(|| bad("bad_request", format!("`gpus` is {g}, a whole number was expected")))?
        }
        None => return Err(bad("bad_request", "`gpus` is missing")),
    };
    let free = match map.get("free") {
        None | Some(Value::Null) => cluster.usable(),
        Some(Value::Array(list)) => {
            let items = list
                .iter()
                .map(|i| {
                    i.as_str().ok_or_else(|| bad("bad_request", format!("`free` holds {i}, a string was expected")))
                })
                .collect::<Result<Vec<_>, _>>()?;
            let a: Allocation = cluster.parse_gpus(items).map_err(|e| {
                let code = if e.contains("named twice") { "duplicate_gpu" } else { "unknown_gpu" };
                bad(code, format!("`free`: {e}"))
            })?;
            without_drained(cluster, &a)
        }
        Some(other) => return Err(bad("bad_request", format!("`free` is {other}, a list was expected"))),
    };
    let size = match map.get("size_bytes") {
        None | Some(Value::Null) => size.unwrap_or_else(|| default_size(model)),
        Some(s) => match s.as_u64() {
            Some(n) if n > 0 => Bytes(n),
            _ => return Err(bad("bad_request", format!("`size_bytes` is {s}, a positive whole number was expected"))),
        },
    };
    Ok(Request::new(usize::try_from(gpus).unwrap_or(usize::MAX), free, size))
}
