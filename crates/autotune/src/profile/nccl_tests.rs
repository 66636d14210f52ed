//! The command line of nccl-tests. Source: README.md and `src/common.cu` of nccl-tests 2.14.0 (the first with `-N`) to 2.19.6.
//!
//! `-N` repeats the whole series of sizes and prints a row for each size every time; with `-n 1` a row is one timed
//! call. A cycle does the following for every size, out of place and in place: a call to synchronise, the timed call,
//! and with `-c 1` (the default) a call whose results are checked. Before that come `-w` warm-up calls for every power
//! of two from the smallest size on. `-b`, `-e`, `-f` define sizes in a geometric series. If an option is given twice,
//! the last one counts.

use super::launch::Launch;
use crate::ProfileError;
use topology::Collective;

/// The variable with the options, for a shell line.
pub const VARIABLE: &str = "LINKWISE_NCCL_TESTS";

/// Options that linkwise sets itself, and the linkwise options that control them.
const OURS: [(&str, &str, &str); 7] = [
    ("-b", "--minbytes", "--sizes"),
    ("-e", "--maxbytes", "--sizes"),
    ("-f", "--stepfactor", "--sizes"),
    ("-i", "--stepbytes", "--sizes"),
    ("-n", "--iters", "--iterations"),
    ("-w", "--warmup_iters", "--warmup"),
    ("-N", "--run_cycles", "--iterations"),
];

/// The forms of the option that disables the check of results, as one word.
const CHECKS_OFF: [&str; 2] = ["-c0", "--check=0"];

/// Whether a word is the option for checks: `-c`, `-c1`, `--check`, `--check=1`.
fn is_check(word: &str) -> bool {
    let short = word.strip_prefix("-c").is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit()));
    short || word == "--check" || word.starts_with("--check=")
}

/// Whether a word, or a word of a shell line, names one of the programs: `all_reduce_perf`,
/// `./build/all_gather_perf_mpi`.
fn names_a_test(word: &str) -> bool {
    let name = word.rsplit('/').next().unwrap_or(word);
    !word.starts_with('-') && Collective::ALL.iter().any(|c| name.contains(&format!("{}_perf", c.name())))
}

/// The position of the program among the words of a command.
fn program(command: &[String]) -> Option<usize> {
    command.iter().position(|w| names_a_test(w) && !w.contains(char::is_whitespace))
}

/// A shell line that runs nccl-tests.
fn is_shell_line(word: &str) -> bool {
    word.contains(char::is_whitespace) && word.split_whitespace().any(names_a_test)
}

/// Whether a command is one of nccl-tests.
pub fn is_one(command: &[String]) -> bool {
    program(command).is_some() || command.iter().any(|w| is_shell_line(w) && w.contains(VARIABLE))
}

/// The collective of the command, by the program's name (`all_gather_perf`).
pub fn collective(command: &[String]) -> Option<Collective> {
    let holds = |name: &str| command.iter().any(|w| w.contains(&format!("{name}_perf")));
    Collective::ALL.into_iter().find(|c| holds(c.name()))
}

/// Refuses commands whose options would be ignored without a message: a shell line that does not contain the options,
/// and options that linkwise sets itself.
pub fn check(command: &[String]) -> Result<(), ProfileError> {
    let Some(at) = program(command) else {
        return match command.iter().find(|w| is_shell_line(w) && !w.contains(VARIABLE)) {
            Some(line) => Err(ProfileError::input(format!(
                "`{}`: linkwise cannot add the options of nccl-tests to a shell line; give the command as separate words (-- ./all_reduce_perf -g 8), or write ${VARIABLE} where the options belong",
                ::report::one_line(line, 60)
            ))),
            None => Ok(()),
        };
    };
    for word in &command[at + 1..] {
        let long = word.split('=').next().unwrap_or(word);
        // `-b8` is the same as `-b 8`; `-n` and `-N` differ.
        let is = |short: &str| {
            word == short || (word.starts_with(short) && word[2..].starts_with(|c: char| c.is_ascii_digit()))
        };
        if CHECKS_OFF.contains(&word.as_str())
            || is_check(word) && command[at + 1..].windows(2).any(|w| w[0] == *word && w[1] == "0")
        {
            return Err(ProfileError::input(format!(
                "`{word}` after {}: linkwise chooses an arm only after a check of its results; without this option the first turn checks them",
                command[at]
            )));
        }
        if let Some((_, _, instead)) = OURS.iter().find(|(s, l, _)| is(s) || long == *l) {
            return Err(ProfileError::input(format!(
                "`{word}` after {}: linkwise sets it; use {instead}",
                command[at]
            )));
        }
    }
    Ok(())
}

/// The ratio of neighbouring sizes if nccl-tests can run them in one launch; `None` if the ratio varies.
pub fn factor(sizes: &[u64]) -> Option<u64> {
    let f = match sizes {
        [] => return None,
        [_] => 2,
        [a, b, ..] => b.checked_div(*a)?,
    };
    (f >= 2 && sizes.windows(2).all(|w| w[0].checked_mul(f) == Some(w[1]))).then_some(f)
}

/// The options of a launch.
pub fn options(launch: &Launch) -> Vec<String> {
    let (first, last) = (launch.sizes.first().copied().unwrap_or(0), launch.sizes.last().copied().unwrap_or(0));
    let mut numbers = vec![
        ("-b", first),
        ("-e", last),
        ("-f", factor(&launch.sizes).unwrap_or(2)),
        ("-w", u64::from(launch.warmup)),
        ("-n", 1),
        ("-N", u64::from(launch.iterations)),
    ];
    if !launch.is_checked {
        numbers.push(("-c", 0));
    }
    numbers.iter().flat_map(|(flag, n)| [(*flag).to_owned(), n.to_string()]).collect()
}

/// The words of the command, with the options after those of nccl-tests. A `-c` of the user is kept.
pub fn words(command: &[String], launch: &Launch) -> Vec<String> {
    let mut words = command.to_vec();
    if let Some(at) = program(command) {
        let has_check = command[at..].iter().any(|w| is_check(w));
        words.extend(options(&Launch { is_checked: launch.is_checked || has_check, ..launch.clone() }));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(sizes: &[u64], is_checked: bool) -> Launch {
        let (arm, sizes) = ("AUTO".to_owned(), sizes.to_vec());
        Launch { arm, sizes, is_overlapped: false, iterations: 10, warmup: 5, is_checked }
    }

    fn strings(words: &[&str]) -> Vec<String> {
        words.iter().map(|w| (*w).to_owned()).collect()
    }

    #[test]
    fn nccl_tests_get_sizes_and_cycles_and_other_programs_get_no_options() {
        // The -N of mpirun is not the -N of nccl-tests.
        let command = strings(&["mpirun", "-np", "8", "-N", "4", "./build/all_reduce_perf_mpi", "-g", "1"]);
        let sizes = [1 << 20, 4 << 20, 16 << 20];
        let line = |command: &[String], is_checked| words(command, &launch(&sizes, is_checked)).join(" ");
        assert!(check(&command).is_ok() && is_one(&command));
        assert!(line(&command, true).ends_with("-g 1 -b 1048576 -e 16777216 -f 4 -w 5 -n 1 -N 10"));
        assert!(line(&command, false).ends_with("-N 10 -c 0"));
        let checked = [command.clone(), strings(&["-c", "1"])].concat();
        assert!(line(&checked, false).ends_with("-g 1 -c 1 -b 1048576 -e 16777216 -f 4 -w 5 -n 1 -N 10"));
        for one in ["-c1", "--check=1"] {
            let checked = [command.clone(), strings(&[one])].concat();
            assert!(check(&checked).is_ok() && line(&checked, false).ends_with("-N 10"), "{one} was overridden");
        }
        let other = strings(&["python", "train.py", "-n", "3"]);
        assert!(check(&other).is_ok() && !is_one(&other));
        assert_eq!(words(&other, &launch(&[8], false)), other);
        assert!(!is_one(&strings(&["python", "--log=all_reduce_perf"])));
    }

    #[test]
    fn options_that_would_be_overridden_are_refused_with_the_option_to_use() {
        for (words, instead) in [
            (&["./all_reduce_perf", "-b", "8", "-g", "8"][..], "--sizes"),
            (&["./all_reduce_perf", "-e128M"], "--sizes"),
            (&["srun", "./all_gather_perf", "--iters=50"], "--iterations"),
            (&["./all_reduce_perf", "-N", "0"], "--iterations"),
            (&["./all_reduce_perf", "-c", "0"], "after a check of its results"),
            (&["./all_reduce_perf", "-c0"], "after a check of its results"),
            (&["./all_reduce_perf", "--check", "0"], "after a check of its results"),
            (&["sh", "-c", "./all_reduce_perf -g 8"], "LINKWISE_NCCL_TESTS"),
        ] {
            let e = check(&strings(words)).unwrap_err();
            assert!(e.to_string().contains(instead) && e.is_malformed(), "{e}");
        }
        let shell = strings(&["sh", "-c", "module load nccl; ./all_reduce_perf -g 8 $LINKWISE_NCCL_TESTS"]);
        assert!(check(&shell).is_ok() && is_one(&shell) && words(&shell, &launch(&[8], true)) == shell);
    }

    #[test]
    fn sizes_in_a_geometric_series_run_in_one_launch() {
        assert_eq!(
            (factor(&[1, 4, 16]), factor(&[1, 4, 8]), factor(&[5]), factor(&[0, 4])),
            (Some(4), None, Some(2), None)
        );
    }

    #[test]
    fn the_collective_is_read_from_the_programs_name() {
        let of = |word: &str| collective(&strings(&["mpirun", word, "-g", "8"]));
        assert_eq!(of("/opt/reduce_scatter_perf"), Some(Collective::ReduceScatter));
        assert_eq!(of("./all_reduce_perf_mpi"), Some(Collective::AllReduce));
        assert_eq!((of("./reduce_perf"), of("train.py")), (Some(Collective::Reduce), None));
    }
}
