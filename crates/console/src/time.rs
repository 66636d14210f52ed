//! The clock of all programs, and times as text.

use indicatif::HumanDuration;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Spans below this number of seconds have one decimal place.
const WITH_DIGIT_BELOW_S: f64 = 9.95;
/// Longest printed span, seconds; longer spans are shown as this one.
const SPAN_S_MAX: f64 = 1e11;

/// Seconds since 1970.
pub fn now_unix_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

/// A span of time: `1.5 seconds`, `45 seconds`, `12 minutes`, `3 hours`. Negative spans and NaN give `0.0 seconds`.
pub fn duration(seconds: f64) -> String {
    let s = if seconds.is_nan() { 0.0 } else { seconds.clamp(0.0, SPAN_S_MAX) };
    if s < WITH_DIGIT_BELOW_S {
        return format!("{s:.1} seconds");
    }
    HumanDuration(Duration::from_secs(s.round() as u64)).to_string()
}

/// A moment in the local zone and its distance from now: `22:25 UTC, 20 minutes ago` within a day of `now`, `2026-09-09
/// 14:26 UTC, 10 weeks ago` otherwise, `..., in 3 hours` for future moments. Both arguments are seconds since 1970.
pub fn moment(unix_s: f64, now_unix_s: f64) -> String {
    moment_in(&TimeZone::system(), unix_s, now_unix_s)
}

fn moment_in(zone: &TimeZone, unix_s: f64, now_unix_s: f64) -> String {
    let at = |s: f64| Timestamp::from_second(s.floor() as i64).ok().map(|t| t.to_zoned(zone.clone()));
    let (Some(then), Some(now)) = (at(unix_s), at(now_unix_s)) else { return "at an unknown time".to_owned() };
    let form = if then.date() == now.date() { "%H:%M %Z" } else { "%Y-%m-%d %H:%M %Z" };
    let span = HumanDuration(Duration::from_secs((now_unix_s - unix_s).abs().round() as u64));
    match now_unix_s - unix_s {
        ago if ago.abs() < 1.0 => format!("{}, now", then.strftime(form)),
        ago if ago > 0.0 => format!("{}, {span} ago", then.strftime(form)),
        _ => format!("{}, in {span}", then.strftime(form)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: f64 = 1_795_308_333.0; // 2026-11-22 00:45:33 UTC

    #[test]
    fn a_moment_names_the_zone_and_how_long_ago_it_was() {
        let utc = |s| moment_in(&TimeZone::UTC, s, NOW);
        assert_eq!(utc(NOW - 1200.0), "00:25 UTC, 20 minutes ago");
        assert_eq!(utc(NOW - 7200.0), "2026-11-21 22:45 UTC, 2 hours ago");
        assert_eq!(utc(1_788_964_000.0), "2026-09-09 14:26 UTC, 10 weeks ago");
        assert_eq!(utc(NOW), "00:45 UTC, now");
        assert_eq!(utc(NOW + 600.0), "00:55 UTC, in 10 minutes");
    }

    #[test]
    fn the_day_is_the_one_of_the_zone() {
        let zone = TimeZone::fixed(jiff::tz::offset(-5));
        assert_eq!(moment_in(&zone, NOW - 7200.0, NOW), "17:45 -05, 2 hours ago");
    }

    #[test]
    fn an_invalid_time_is_called_unknown() {
        for s in [f64::INFINITY, -1e30, 1e300] {
            assert_eq!(moment(s, NOW), "at an unknown time", "{s}");
        }
    }

    #[test]
    fn spans_are_words_with_a_unit() {
        let said = [0.0, 1.54, 45.0, 720.0, 12_000.0, 1e30, -3.0, f64::NAN].map(duration);
        assert_eq!(said[..5], ["0.0 seconds", "1.5 seconds", "45 seconds", "12 minutes", "3 hours"]);
        assert!(said[5].ends_with("years"), "{}", said[5]);
        assert_eq!(said[6..], ["0.0 seconds", "0.0 seconds"]);
    }
}
