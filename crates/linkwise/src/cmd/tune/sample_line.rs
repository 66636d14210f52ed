//! One line of what a program took, as `linkwise tune play` reads it. Stands alone, so that it can be fuzzed.

use serde_json::Value;

/// What a sample looks like, for errors.
pub const SHAPE: &str = "{\"time_us\":123.4}, or {\"time_us\":null} if it was lost";

/// Reads one sample: microseconds and, if said, channels. Pure.
///
/// # Errors
/// In words: what was found and what a sample looks like.
pub fn sample(line: &[u8]) -> Result<(Option<f64>, Option<u8>), String> {
    let value: Value = serde_json::from_slice(line).map_err(|e| {
        let found = clip(&String::from_utf8_lossy(line));
        format!("`{found}` is not JSON ({e}); a sample is {SHAPE}")
    })?;
    let object = value.as_object().ok_or_else(|| format!("not a JSON object; a sample is {SHAPE}"))?;
    let time_us = match object.get("time_us") {
        None => return Err(format!("no `time_us`; a sample is {SHAPE}")),
        Some(Value::Null) => None,
        Some(v) => Some(v.as_f64().filter(|t| *t > 0.0 && *t <= ::tune::ledger::TIME_US_MAX).ok_or_else(|| {
            let found = clip(&v.to_string());
            format!("`time_us` is {found}; microseconds above 0 (at most 1e12) or null were expected")
        })?),
    };
    let channels = match object.get("channels") {
        None | Some(Value::Null) => None,
        Some(v) => {
            let n =
                v.as_u64().and_then(|n| u8::try_from(n).ok()).filter(|n| (1..=::tune::arm::CHANNELS_MAX).contains(n));
            Some(n.ok_or_else(|| {
                let found = clip(&v.to_string());
                format!("`channels` is {found}; a number from 1 to {} was expected", ::tune::arm::CHANNELS_MAX)
            })?)
        }
    };
    Ok((time_us, channels))
}

/// At most 60 characters on one line, for errors.
fn clip(text: &str) -> String {
    let one_line = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    one_line.take(60).collect::<String>().trim_end().to_owned()
}
