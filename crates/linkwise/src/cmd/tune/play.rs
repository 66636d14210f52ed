//! `linkwise tune play`: a policy for anybody's own program, over lines of JSON.
//!
//! It writes one decision, reads one sample, and so on until its input ends:
//! `{"call":0,"arm":"AUTO","phase":"explore"}` out, `{"time_us":123.4}` or `{"time_us":null}` (lost) in. Every line is flushed. The
//! answer belongs to the decision before it. Further fields are allowed: `channels` (1 to 64) is used, others are passed over. An
//! empty line is passed over. Anything else ends it: one error with the line's number, exit code 2.

use super::sample_line::{SHAPE, sample};
use super::{arms, check_policy, objective};
use crate::failure::Failure;
use ::tune::{Context, Options, Policy, Sample};
use std::io::{BufRead, BufReader, Read, Write};

/// Longest input line, bytes.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// Arguments of `linkwise tune play`.
#[derive(clap::Args)]
#[command(after_help = "Example (arms that take 70 and 100 us):\n  \
    mkfifo back; linkwise tune play --policy round-robin --arms TREE/SIMPLE,AUTO <back | while read -r line; do\n    \
    case \"$line\" in *TREE*) echo '{\"time_us\":70}';; *) echo '{\"time_us\":100}';; esac; done >back\n\n\
    A sample is {\"time_us\":123.4}, or {\"time_us\":null} if it was lost; the end of input ends it with exit code 0.")]
pub struct Args {
    /// The policy
    #[arg(long)]
    policy: String,
    /// The arms, for example TREE/SIMPLE,TREE/LL128,RING/SIMPLE@8,AUTO
    #[arg(long)]
    arms: String,
    /// Random numbers of the policies that draw
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Price of a channel, as a share of the time, 0 to 1
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    channel_price: f64,
    /// What the policy `profile` goes by: a file of `linkwise tune profile`
    #[arg(long, value_name = "FILE")]
    profile: Option<std::path::PathBuf>,
    /// Size of the calls, where `profile` looks
    #[arg(long, value_parser = topology::Bytes::parse, default_value = "64M")]
    size: topology::Bytes,
}

/// Runs it.
pub fn run(args: Args) -> Result<(), Failure> {
    check_policy(&args.policy)?;
    let arms = arms(&args.arms)?;
    let profile = args.profile.as_deref().map(profile).transpose()?;
    let objective = objective(args.channel_price)?;
    let options = Options { seed: args.seed, objective, profile, size_bytes: args.size.0, ..Options::default() };
    let mut policy = ::tune::build(&args.policy, &arms, &options).map_err(Failure::input)?;
    play(policy.as_mut(), &arms, BufReader::new(std::io::stdin().lock()), &mut std::io::stdout().lock())
}

fn profile(path: &std::path::Path) -> Result<::tune::profile::Profile, Failure> {
    let text = super::read_text(path)?;
    let file = crate::tuning::policy_file::PolicyFile::read(&text);
    file.and_then(|f| f.profile(false)).map_err(|e| Failure::file("read", path, e))
}

/// The conversation. A reader of decisions that has gone away ends it quietly.
fn play(
    policy: &mut dyn Policy,
    arms: &[::tune::Arm],
    mut input: impl BufRead,
    output: &mut impl Write,
) -> Result<(), Failure> {
    let mut line_number = 0u64;
    for call in 0.. {
        let decision = policy.decide(Context::default());
        let line = format!("{{\"call\":{call},\"arm\":\"{}\",\"phase\":\"{}\"}}\n", arms[decision.arm], decision.phase);
        match output.write_all(line.as_bytes()).and_then(|()| output.flush()) {
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            other => other.map_err(|e| Failure::input(format!("cannot write to standard output: {e}")))?,
        }
        let Some(read) = next_line(&mut input, &mut line_number)? else { return Ok(()) };
        let (time_us, channels) =
            sample(&read).map_err(|e| Failure::input(format!("standard input, line {line_number}: {e}")))?;
        policy.learn(Sample { call, arm: decision.arm, time_us, channels });
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
                "standard input, line {line_number}: longer than {LINE_BYTES_MAX} bytes; a sample is {SHAPE}"
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
        let arms: Vec<_> = ["TREE/SIMPLE", "AUTO"].iter().map(|a| a.parse().unwrap()).collect();
        let mut policy = ::tune::build("round-robin", &arms, &Options::default()).unwrap();
        let mut out = Vec::new();
        let result = play(policy.as_mut(), &arms, input.as_bytes(), &mut out).map_err(|f| f.to_string());
        let lines = String::from_utf8(out).unwrap();
        (result, lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect())
    }

    proptest! {
        #[test]
        fn any_line_is_a_sample_or_one_error_and_never_a_panic(line in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Ok((Some(t), _)) = sample(&line) {
                prop_assert!(t > 0.0 && t.is_finite());
            }
        }
    }

    #[test]
    fn it_answers_each_sample_with_one_decision_and_learns() {
        let input: String =
            (0..30).map(|i| format!("{{\"time_us\":{}}}\n", if i % 2 == 0 { 70 } else { 100 })).collect();
        let (result, lines) = talk(&input);
        assert_eq!(result, Ok(()));
        assert_eq!(lines.len(), 31);
        assert_eq!(lines[0], serde_json::json!({"call": 0, "arm": "TREE/SIMPLE", "phase": "explore"}));
        assert_eq!(lines[30], serde_json::json!({"call": 30, "arm": "TREE/SIMPLE", "phase": "exploit"}));
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
        ] {
            let error = talk(bad).0.unwrap_err();
            assert!(error.contains(words) && error.lines().count() == 1, "{error}");
        }
        assert!(talk(&"x".repeat(LINE_BYTES_MAX + 5)).0.unwrap_err().contains("longer than"));
    }

    #[test]
    fn the_fuzz_targets_corpus_is_read_or_refused() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/tune_sample");
        let read = |name: &str| sample(&std::fs::read(format!("{folder}/{name}.json")).unwrap());
        assert_eq!(read("time"), Ok((Some(123.4), None)));
        assert_eq!(read("lost"), Ok((None, None)));
        assert_eq!(read("channels"), Ok((Some(1000.0), Some(8))));
        assert!(read("wrong").unwrap_err().contains("\"fast\""));
    }

    #[test]
    fn lost_samples_empty_lines_and_a_last_line_without_its_end_are_fine() {
        let (result, lines) = talk("{\"time_us\":null}\n\n  \n{\"time_us\":3, \"node\":\"n0\"}");
        assert_eq!((result, lines.len()), (Ok(()), 3));
    }
}
