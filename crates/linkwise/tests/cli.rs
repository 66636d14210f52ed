//! What scripts rely on: help, exit codes, completion. Run against the built command.

use assert_cmd::Command;
use std::process::Output;

fn linkwise(args: &[&str]) -> Output {
    // Nothing on standard input, and no data folder of the machine that runs the tests.
    Command::cargo_bin("linkwise")
        .expect("the built command")
        .args(args)
        .env_remove("LINKWISE_DATA")
        .env("NO_COLOR", "1")
        .output()
        .expect("it runs")
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}
fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8").replace("\n  ", " ")
}

/// The sub-commands that a help text lists.
fn listed(help: &str) -> Vec<String> {
    let after = help.split_once("Commands:\n").map_or("", |(_, after)| after);
    after
        .lines()
        .take_while(|l| l.starts_with("  "))
        // A command's line is indented by two; its wrapped description by more.
        .filter(|l| l.as_bytes().get(2).is_some_and(|b| *b != b' '))
        .filter_map(|l| l.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_string)
        .collect()
}

/// Walks through every sub-command from `path` down and checks its help.
fn check_help(path: &[&str], visited: &mut Vec<String>) {
    let mut args = path.to_vec();
    args.push("--help");
    let output = linkwise(&args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", err(&output));
    let help = out(&output);
    assert!(help.contains("Usage: linkwise"), "{args:?}: {help}");
    assert!(help.lines().next().is_some_and(|l| !l.starts_with("Usage")), "{args:?} does not say what it does");
    visited.push(path.join(" "));
    for name in listed(&help) {
        let mut deeper = path.to_vec();
        deeper.push(&name);
        check_help(&deeper, visited);
    }
}

#[test]
fn every_command_explains_itself() {
    let mut visited = Vec::new();
    check_help(&[], &mut visited);
    for command in
        ["topology show", "measure", "fit", "place", "observe", "doctor", "route plan", "tune profile", "completion"]
    {
        assert!(visited.iter().any(|v| v == command), "`{command}` is not listed; seen: {visited:?}");
    }
}

#[test]
fn the_version_is_the_one_of_the_package() {
    let output = linkwise(&["--version"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(out(&output).trim(), concat!("linkwise ", env!("CARGO_PKG_VERSION")));
}

#[test]
fn wrong_usage_ends_with_2_and_one_error() {
    for args in [&["plaice"][..], &["topology"], &["place", "--no-such-flag"], &["completion", "cobol"], &[]] {
        let output = linkwise(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", err(&output));
        assert!(out(&output).is_empty(), "{args:?} wrote to standard output: {}", out(&output));
        let says_how = err(&output).contains("Usage: linkwise") || err(&output).contains("--help");
        assert!(says_how, "{args:?}: {}", err(&output));
    }
}

#[test]
fn an_unknown_cluster_ends_with_2_and_names_what_was_asked_for() {
    let output = linkwise(&["topology", "show", "no-such-cluster"]);
    assert_eq!(output.status.code(), Some(2), "{}", err(&output));
    assert!(out(&output).is_empty(), "an error belongs to standard error");
    assert!(err(&output).contains("no-such-cluster"), "{}", err(&output));
}

#[test]
fn no_input_makes_the_command_panic() {
    let odd = ["", " ", "\u{202e}", "../../..", "-", "--", "n0:0", "\n", "🦀", &"x".repeat(100_000)];
    for text in odd {
        for args in [&["topology", "show", text][..], &["data", "check", text], &["validate", text]] {
            let output = linkwise(args);
            assert!(matches!(output.status.code(), Some(0..=2)), "{args:?}: {:?}", output.status);
            assert!(!err(&output).contains("panicked"), "{args:?}: {}", err(&output));
        }
    }
}

#[test]
fn completion_is_a_script_that_knows_the_commands() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let output = linkwise(&["completion", shell]);
        assert_eq!(output.status.code(), Some(0), "{shell}: {}", err(&output));
        let script = out(&output);
        assert!(script.contains("linkwise") && script.contains("topology") && script.contains("observe"), "{shell}");
    }
}

#[test]
fn the_bash_completion_is_valid_bash() {
    let script = linkwise(&["completion", "bash"]).stdout;
    match Command::new("bash").args(["-n"]).write_stdin(script).output() {
        Ok(output) => assert!(output.status.success(), "{}", err(&output)),
        Err(e) => eprintln!("SKIP the_bash_completion_is_valid_bash: no bash ({e})"),
    }
}
