//! The one clock of the programs.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970.
pub fn now_unix_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}
