//! A line that says what the collectives of a host's processes took. `linkwise run --summary` leaves it where nothing else of a job stays: in the
//! termination message of a pod, which has at most 4,096 bytes.
//!
//! ```text
//! linkwise-calls 1 all_reduce,16777216,16,790.5,200;all_gather,1048576,16,95.2,400
//!                  collective,bytes,ranks,microseconds,calls
//! ```
//!
//! The line comes from a job, which may write anything: numbers and entries have limits.

use crate::kinds::{CallKind, TIME_US_MAX};
use crate::nccl_tests::ParseError;
use std::collections::BTreeMap;
use std::fmt::Write;
use topology::Bytes;

/// Longest line, bytes: Kubernetes cuts a message of 4,096 and gives a pod 12 KiB for all its containers.
pub const LINE_BYTES_MAX: usize = 4000;
/// The beginning of a line; the number is the version of the form.
const BEGIN: &str = "linkwise-calls 1 ";
/// Limit on ranks of a call.
const RANKS_MAX: u32 = 1 << 20;

/// The line of these kinds: those with a time, the ones that took longest in all first, as many as fit. None if none has a time.
pub fn line(kinds: &[CallKind]) -> Option<String> {
    let mut timed: Vec<&CallKind> = kinds.iter().filter(|k| k.time_us.is_some()).collect();
    timed.sort_by(|a, b| b.total_s().total_cmp(&a.total_s()));
    let mut out = String::from(BEGIN);
    for (i, k) in timed.iter().enumerate() {
        let comma = if i == 0 { "" } else { ";" };
        let us = ((k.time_us.unwrap_or(0.0) * 1e3).round() / 1e3).max(1e-3);
        let before = out.len();
        let _ = write!(out, "{comma}{},{},{},{us},{}", k.collective, k.size.0, k.ranks, k.calls);
        if out.len() >= LINE_BYTES_MAX {
            out.truncate(before);
            break;
        }
    }
    (out.len() > BEGIN.len()).then_some(out)
}

/// The kinds of the last such line in a text; none if it has none. Times of ranks of other hosts are missing from it.
///
/// # Errors
/// A line that is not of this form.
pub fn read(text: &str) -> Result<Option<Vec<CallKind>>, ParseError> {
    let lines = text.lines().enumerate().filter_map(|(n, l)| Some((n + 1, l.trim().strip_prefix(BEGIN)?)));
    let Some((number, line)) = lines.last() else { return Ok(None) };
    if line.len() > LINE_BYTES_MAX {
        return Err(ParseError::at(number, 1, format!("the line has more than {LINE_BYTES_MAX} bytes")));
    }
    let wrong = |entry: &str| {
        let shown: String = entry.chars().take(60).flat_map(char::escape_debug).collect();
        ParseError::at(number, 1, format!("`{shown}` is not collective,bytes,ranks,microseconds,calls"))
    };
    line.split(';').map(|entry| kind(entry).ok_or_else(|| wrong(entry))).collect::<Result<_, _>>().map(Some)
}

fn kind(entry: &str) -> Option<CallKind> {
    let parts: Vec<&str> = entry.split(',').collect();
    let [collective, size, ranks, us, calls] = parts[..] else { return None };
    let us = us.parse::<f64>().ok().filter(|us| *us > 0.0 && *us <= TIME_US_MAX)?;
    Some(CallKind {
        collective: collective.parse().ok()?,
        size: size.parse().ok().filter(|s| (1..1 << 50).contains(s)).map(Bytes)?,
        ranks: ranks.parse().ok().filter(|r| (2..=RANKS_MAX).contains(r))?,
        calls: calls.parse().ok().filter(|c| (1..1 << 50).contains(c))?,
        time_us: Some(us),
        by_all_ranks: false,
    })
}

/// The kinds of a job from those of its hosts: of each the shortest time, because a host that arrives early waits for the others. The ones that took
/// longest in all first.
pub fn merged(hosts: &[Vec<CallKind>]) -> Vec<CallKind> {
    let mut all: BTreeMap<(topology::Collective, Bytes, u32), CallKind> = BTreeMap::new();
    for k in hosts.iter().flatten() {
        let known = all.entry((k.collective, k.size, k.ranks)).or_insert_with(|| k.clone());
        known.time_us = match (known.time_us, k.time_us) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        known.calls = known.calls.max(k.calls);
    }
    let mut all: Vec<CallKind> = all.into_values().collect();
    all.sort_by(|a, b| b.total_s().total_cmp(&a.total_s()));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use topology::Collective;

    fn of(collective: Collective, size: u64, us: f64, calls: usize) -> CallKind {
        CallKind { collective, size: Bytes(size), ranks: 16, calls, time_us: Some(us), by_all_ranks: false }
    }

    #[test]
    fn what_took_longest_comes_first_and_is_read_back() {
        let small = of(Collective::AllGather, 1 << 20, 95.2, 400);
        let large = of(Collective::AllReduce, 16 << 20, 790.5, 200);
        let untimed = CallKind { time_us: None, ..small.clone() };
        let text = line(&[small.clone(), untimed.clone(), large.clone()]).unwrap();
        assert_eq!(text, "linkwise-calls 1 all_reduce,16777216,16,790.5,200;all_gather,1048576,16,95.2,400");
        let message = format!("loss 3.1\n{text}\n");
        assert_eq!(read(&message).unwrap().unwrap(), [large, small]);
        assert_eq!(line(&[untimed]), None);
        assert_eq!(read("loss 3.1").unwrap(), None);
    }

    #[test]
    fn a_line_has_room_for_the_longest_only() {
        let many: Vec<CallKind> = (1..1000).map(|i| of(Collective::ReduceScatter, i << 20, i as f64, 1000)).collect();
        let text = line(&many).unwrap();
        assert!(text.len() < LINE_BYTES_MAX && text.len() > LINE_BYTES_MAX - 100, "{}", text.len());
        let kept = read(&text).unwrap().unwrap();
        assert_eq!(kept[0], many[998]);
    }

    #[test]
    fn of_several_hosts_the_shortest_time_counts() {
        let [a, b] = [790.0, 610.0].map(|us| vec![of(Collective::AllReduce, 1 << 24, us, 200)]);
        assert_eq!(merged(&[a, b.clone()]), b[..]);
    }

    #[test]
    fn wrong_lines_are_one_error_each() {
        for entry in [
            "x",
            "all_reduce,0,2,1.0,1",
            "all_reduce,1,1,1.0,1",
            "all_reduce,1,2,-1,1",
            "all_reduce,1,2,nan,1",
            "all_reduce,1,2,1.0,0",
            "all_reduce,1,2,1.0,1,9",
            "dance,1,2,1.0,1",
        ] {
            let error = read(&format!("{BEGIN}{entry}")).unwrap_err().to_string();
            assert!(error.contains("is not collective,bytes,ranks"), "{entry}: {error}");
        }
        let long = format!("{BEGIN}{}", "9".repeat(LINE_BYTES_MAX + 1));
        assert!(read(&long).unwrap_err().to_string().contains("more than 4000 bytes"));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_fail_otherwise(text in "(linkwise-calls 1 )?[a-z_,;0-9.\n]{0,200}") {
            if let Ok(Some(kinds)) = read(&text) {
                prop_assert_eq!(read(&line(&kinds).unwrap()).unwrap().unwrap().len(), kinds.len());
            }
        }
    }
}
