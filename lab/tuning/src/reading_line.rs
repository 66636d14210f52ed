//! One input line of `linkwise-lab tune play`: the time of a call. The file uses nothing else of this crate, so that it
//! can be fuzzed.

use ::tune::Context;
use serde_json::{Map, Value};

/// The shape of a reading, for errors.
pub const SHAPE: &str = "{\"time_us\":123.4}, or {\"time_us\":null} if it was lost";

/// The facts about the next call.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Next {
    /// Overlap with computation, and its share of the step.
    pub context: Context,
    /// Its size, bytes, if given.
    pub size_bytes: Option<u64>,
}

/// One line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Read {
    /// Time of the call that was decided last, microseconds; `None` if its reading was lost.
    pub time_us: Option<f64>,
    /// Its channels, if given.
    pub channels: Option<u8>,
    /// The call after it.
    pub next: Next,
}

/// A field that may be absent or null; other values must be accepted by `read`.
fn field<T>(
    object: &Map<String, Value>,
    name: &str,
    expected: &str,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<Option<T>, String> {
    match object.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(v) => {
            let wrong = || format!("`{name}` is {}; {expected} was expected", clip(&v.to_string()));
            read(v).map(Some).ok_or_else(wrong)
        }
    }
}

/// Reads one line. Pure.
///
/// # Errors
/// A sentence with the text found and the expected shape.
pub fn reading(line: &[u8]) -> Result<Read, String> {
    let value: Value = serde_json::from_slice(line).map_err(|e| {
        let found = clip(&String::from_utf8_lossy(line));
        format!("`{found}` is not JSON ({e}); a reading is {SHAPE}")
    })?;
    let object = value.as_object().ok_or_else(|| format!("not a JSON object; a reading is {SHAPE}"))?;
    let time_us = match object.get("time_us") {
        None => return Err(format!("no `time_us`; a reading is {SHAPE}")),
        Some(Value::Null) => None,
        Some(v) => Some(v.as_f64().filter(|t| *t > 0.0 && *t <= ::tune::ledger::TIME_US_MAX).ok_or_else(|| {
            let found = clip(&v.to_string());
            format!("`time_us` is {found}; microseconds above 0 (at most 1e12) or null were expected")
        })?),
    };
    let most = ::tune::arm::CHANNELS_MAX;
    let channels = field(object, "channels", &format!("a number from 1 to {most}"), |v| {
        v.as_u64().and_then(|n| u8::try_from(n).ok()).filter(|n| (1..=most).contains(n))
    })?;
    let context = Context {
        overlapped: field(object, "overlapped", "true, false or null", Value::as_bool)?,
        compute_intensity: field(object, "compute_intensity", "a share from 0 to 1", |v| {
            v.as_f64().filter(|i| (0.0..=1.0).contains(i))
        })?,
    };
    let size_bytes = field(object, "size_bytes", "a number of bytes above 0", |v| v.as_u64().filter(|n| *n > 0))?;
    Ok(Read { time_us, channels, next: Next { context, size_bytes } })
}

/// At most 60 characters on one line, for errors.
fn clip(text: &str) -> String {
    let one_line = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    one_line.take(60).collect::<String>().trim_end().to_owned()
}
