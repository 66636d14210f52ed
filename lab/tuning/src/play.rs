//! `linkwise-lab tune play`: a policy for any program, over lines of JSON.
//!
//! `play` writes one decision, reads one reading, and repeats until its input ends:
//! `{"call":0,"arm":"AUTO","phase":"explore"}` out, `{"time_us":123.4}` or `{"time_us":null}` (lost) in. Every line is
//! flushed. A reading belongs to the decision before it. Further fields are allowed. `channels` (1 to 64) refers to the
//! same call. `overlapped` (true or false), `compute_intensity` (0 to 1) and `size_bytes` describe the **next** call:
//! whether it runs during computation, and its size. Calls of different sizes have separate policies, one per bucket of
//! sizes ([`::tune::bucket`]). If the size is missing, the size of the previous call is used. Other fields and empty
//! lines are ignored. Any other line ends the program with one error that names the line's number, exit code 2.

use super::reading_line::{Next, SHAPE, reading};
use super::{arms, check_policy, objective};
use ::tune::bucket::bucket_after;
use ::tune::{Arm, Policy, PolicyOptions, Reading};
use autotune::policy_file::PolicyFile;
use console::Failure;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{BufRead, BufReader, Read, Write};

/// Longest input line, bytes.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// Arguments of `linkwise-lab tune play`.
#[derive(clap::Args)]
#[command(after_help = "Example (arms that take 70 and 100 us):\n  \
    mkfifo back; linkwise-lab tune play --policy round-robin --arms TREE/SIMPLE,AUTO <back | while read -r line; do\n    \
    case \"$line\" in *TREE*) echo '{\"time_us\":70}';; *) echo '{\"time_us\":100}';; esac; done >back\n\n\
    A reading is {\"time_us\":123.4}, or {\"time_us\":null} if it was lost; the end of input ends it with exit code 0.\n\
    It may say what the next call is: {\"time_us\":123.4,\"overlapped\":true,\"compute_intensity\":0.4,\"size_bytes\":1048576}.")]
pub struct Args {
    /// The policy
    #[arg(long)]
    policy: String,
    /// The arms, for example TREE/SIMPLE,TREE/LL128,RING/SIMPLE@8,AUTO
    #[arg(long)]
    arms: String,
    /// Random seed (policies with random numbers only)
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Price of a channel, as a share of the time, 0 to 1
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    channel_price: f64,
    /// Profile for the policy `profile`: a file of `linkwise tune profile`, with `--overlap` also of calls during computation
    #[arg(long, value_name = "FILE")]
    profile: Option<std::path::PathBuf>,
    /// Size of the first call, and of all calls if no line gives another
    #[arg(long, value_parser = topology::Bytes::parse, default_value = "64M")]
    size: topology::Bytes,
}

/// Runs the command.
pub fn run(args: Args) -> Result<(), Failure> {
    check_policy(&args.policy)?;
    if args.profile.is_some() && args.policy != "profile" {
        return Err(Failure::input(format!(
            "--profile: the policy `{}` does not use a profile; --policy profile does",
            args.policy
        )));
    }
    let arms = arms(&args.arms)?;
    let mut options =
        PolicyOptions { seed: args.seed, objective: objective(args.channel_price)?, ..PolicyOptions::default() };
    if let Some(path) = &args.profile {
        let file = PolicyFile::read(&files::read_text(path, autotune::policy_file::FILE_BYTES_MAX)?)
            .map_err(|e| Failure::file("read", path, e))?;
        let profile = |is_overlapped| file.profile(is_overlapped).map_err(|e| Failure::file("read", path, e));
        options.profile = Some(profile(false)?);
        options.profile_overlapped = (!file.overlapped.is_empty()).then(|| profile(true)).transpose()?;
    }
    let build = |size_bytes: u64| {
        let options = PolicyOptions { size_bytes, ..options.clone() };
        ::trial::policies::build(&args.policy, &arms, &options).map_err(Failure::input)
    };
    play(&build, args.size.0, &arms, BufReader::new(std::io::stdin().lock()), &mut std::io::stdout().lock())
}

/// Runs the dialogue. A closed output ends it without an error. `build` makes the policy of a bucket from the first
/// size in it.
fn play(
    build: &dyn Fn(u64) -> Result<Box<dyn Policy>, Failure>,
    first_size_bytes: u64,
    arms: &[Arm],
    mut input: impl BufRead,
    output: &mut impl Write,
) -> Result<(), Failure> {
    let mut line_number = 0u64;
    // By bucket: the policy, and the number of calls that it decided.
    let mut policies: BTreeMap<u8, (Box<dyn Policy>, u64)> = BTreeMap::new();
    let mut bucket = bucket_after(first_size_bytes, None);
    let (mut size_bytes, mut next) = (first_size_bytes, Next::default());
    for call in 0u64.. {
        size_bytes = next.size_bytes.unwrap_or(size_bytes);
        bucket = bucket_after(size_bytes, Some(bucket));
        let (policy, its_calls) = match policies.entry(bucket) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert((build(size_bytes)?, 0)),
        };
        let decision = policy.decide(next.context);
        let line = format!("{{\"call\":{call},\"arm\":\"{}\",\"phase\":\"{}\"}}\n", arms[decision.arm], decision.phase);
        match output.write_all(line.as_bytes()).and_then(|()| output.flush()) {
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            other => other.map_err(|e| Failure::input(format!("cannot write to standard output: {e}")))?,
        }
        let Some(read) = next_line(&mut input, &mut line_number)? else { return Ok(()) };
        let read = reading(&read).map_err(|e| Failure::input(format!("standard input, line {line_number}: {e}")))?;
        policy.learn(Reading { call: *its_calls, arm: decision.arm, time_us: read.time_us, channels: read.channels });
        *its_calls += 1;
        next = read.next;
    }
    Ok(())
}

/// The next line that is not empty; `None` at the end of input.
fn next_line(input: &mut impl BufRead, line_number: &mut u64) -> Result<Option<Vec<u8>>, Failure> {
    loop {
        let mut line = Vec::new();
        let read = input.by_ref().take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut line);
        let count = read.map_err(|e| Failure::input(format!("cannot read standard input: {e}")))?;
        if count == 0 {
            return Ok(None);
        }
        *line_number += 1;
        if line.len() > LINE_BYTES_MAX {
            return Err(Failure::input(format!(
                "standard input, line {line_number}: longer than {LINE_BYTES_MAX} bytes; a reading is {SHAPE}"
            )));
        }
        if !line.trim_ascii().is_empty() {
            return Ok(Some(line));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn talk(input: &str) -> (Result<(), String>, Vec<Value>) {
        talk_to("round-robin", input)
    }

    fn talk_to(policy: &str, input: &str) -> (Result<(), String>, Vec<Value>) {
        let arms: Vec<_> = ["TREE/SIMPLE", "AUTO"].iter().map(|a| a.parse().unwrap()).collect();
        let build = |_| {
            let inner = "round-robin".to_owned();
            ::trial::policies::build(policy, &arms, &PolicyOptions { inner, ..PolicyOptions::default() })
                .map_err(Failure::input)
        };
        let mut out = Vec::new();
        let result = play(&build, 1 << 20, &arms, input.as_bytes(), &mut out).map_err(|f| f.to_string());
        let lines = String::from_utf8(out).unwrap();
        (result, lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect())
    }

    proptest! {
        #[test]
        fn any_line_is_a_reading_or_one_error_and_never_a_panic(line in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(Some(t)) = reading(&line).map(|r| r.time_us) {
                prop_assert!(t > 0.0 && t.is_finite());
            }
        }
    }

    #[test]
    fn it_answers_each_reading_with_one_decision_and_learns() {
        let input: String =
            (0..30).map(|i| format!("{{\"time_us\":{}}}\n", if i % 2 == 0 { 70 } else { 100 })).collect();
        let (result, lines) = talk(&input);
        assert_eq!(result, Ok(()));
        assert_eq!(lines.len(), 31);
        assert_eq!(lines[0], serde_json::json!({"call": 0, "arm": "TREE/SIMPLE", "phase": "explore"}));
        assert_eq!(lines[30], serde_json::json!({"call": 30, "arm": "TREE/SIMPLE", "phase": "exploit"}));
    }

    /// Two kinds of calls in phases of ten; `say` gives the fields of the next call. TREE is better in the first kind
    /// only.
    fn two_kinds(policy: &str, say: impl Fn(bool) -> String) -> [String; 2] {
        let mut input = String::new();
        let mut lines = Vec::new();
        for call in 0..120 {
            lines = talk_to(policy, &input).1;
            let is_tree = lines[call]["arm"] == "TREE/SIMPLE";
            let time_us = match (call / 10 % 2 == 0, is_tree) {
                (true, true) => 70,
                (false, true) => 290,
                (true, false) => 100,
                (false, false) => 200,
            };
            let next = say((call + 1) / 10 % 2 == 1);
            input += &format!("{{\"time_us\":{time_us}{next}}}\n");
        }
        [109, 119].map(|call| lines[call]["arm"].as_str().unwrap_or("").to_owned())
    }

    #[test]
    fn the_fields_of_the_next_call_select_the_policy_that_learns() {
        let by_kind = ["TREE/SIMPLE".to_owned(), "AUTO".to_owned()];
        let overlapped = |o: bool| format!(",\"overlapped\":{o}");
        assert_eq!(two_kinds("overlap", overlapped), by_kind);
        let intensity = |o: bool| format!(",\"compute_intensity\":{}", if o { 0.4 } else { 0.0 });
        assert_eq!(two_kinds("overlap", intensity), by_kind);
        let size = |o: bool| format!(",\"size_bytes\":{}", if o { 16 << 20 } else { 1 << 20 });
        assert_eq!(two_kinds("round-robin", size), by_kind);
        assert_eq!(
            two_kinds("round-robin", |_| String::new()),
            ["AUTO", "AUTO"],
            "without the fields all calls share one policy"
        );
    }

    #[test]
    fn a_size_that_varies_around_a_border_stays_with_its_policy() {
        let border = (1u64 << 20) as f64 * std::f64::consts::SQRT_2;
        let input: String = (0..41)
            .map(|i| {
                let size = (border * if i % 2 == 0 { 1.04 } else { 0.96 }) as u64;
                format!("{{\"time_us\":{},\"size_bytes\":{size}}}\n", if i % 2 == 0 { 70 } else { 100 })
            })
            .collect();
        let lines = talk(&input).1;
        assert_eq!(lines[21]["phase"], "exploit", "one policy explores, not two");
    }

    #[test]
    fn a_bad_line_is_one_error_that_names_it() {
        for (bad, words) in [
            ("{\"time_us\":70}\n\nfast\n", "line 3: `fast"),
            ("[1]\n", "line 1: not a JSON object"),
            ("{}\n", "line 1: no `time_us`"),
            ("{\"time_us\":-1}\n", "`time_us` is -1"),
            ("{\"time_us\":1e999}\n", "line 1"),
            ("{\"time_us\":\"7\"}\n", "`time_us` is \"7\""),
            ("{\"time_us\":1,\"channels\":65}\n", "`channels` is 65"),
            ("{\"time_us\":1,\"overlapped\":1}\n", "`overlapped` is 1; true, false or null"),
            ("{\"time_us\":1,\"compute_intensity\":1.5}\n", "`compute_intensity` is 1.5; a share from 0 to 1"),
            ("{\"time_us\":1,\"size_bytes\":-4}\n", "`size_bytes` is -4; a number of bytes"),
        ] {
            let error = talk(bad).0.unwrap_err();
            assert!(error.contains(words) && error.lines().count() == 1, "{error}");
        }
        assert!(talk(&"x".repeat(LINE_BYTES_MAX + 5)).0.unwrap_err().contains("longer than"));
    }

    #[test]
    fn the_fuzz_targets_corpus_is_read_or_refused() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/tune_sample");
        let read = |name: &str| {
            reading(&std::fs::read(format!("{folder}/{name}.json")).unwrap()).map(|r| (r.time_us, r.channels))
        };
        assert_eq!(read("time"), Ok((Some(123.4), None)));
        assert_eq!(read("lost"), Ok((None, None)));
        assert_eq!(read("channels"), Ok((Some(1000.0), Some(8))));
        assert!(read("wrong").unwrap_err().contains("\"fast\""));
    }

    #[test]
    fn lost_readings_empty_lines_and_an_unterminated_last_line_are_accepted() {
        let (result, lines) = talk("{\"time_us\":null}\n\n  \n{\"time_us\":3, \"node\":\"n0\"}");
        assert_eq!((result, lines.len()), (Ok(()), 3));
    }
}
