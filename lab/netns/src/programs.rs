//! The programs `ip` and `tc`.

use crate::NetBoxError;
use std::io::Write;
use std::process::{Command, Stdio};

/// Checks what a box needs.
pub(crate) fn check() -> Result<(), NetBoxError> {
    let missing = |reason: String| NetBoxError::Unavailable { reason };
    for program in ["ip", "tc"] {
        let runs = Command::new(program).arg("-Version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !runs.is_ok_and(|s| s.success()) {
            return Err(missing(format!("there is no program `{program}` (install iproute2)")));
        }
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let user = status.lines().find_map(|l| l.strip_prefix("Uid:")).and_then(|l| l.split_whitespace().nth(1));
    match user {
        Some("0") => Ok(()),
        _ => Err(missing("this process is not root".into())),
    }
}

/// Runs a program with lines on its standard input.
pub(crate) fn run(program: &str, arguments: &[&str], input: &str) -> Result<String, NetBoxError> {
    let shown = || format!("{program} {}", arguments.join(" "));
    let failed = |said: String| NetBoxError::Failed { command: shown(), said };
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| failed(e.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that fails early reads nothing; its own words say why.
        let _ = stdin.write_all(input.as_bytes());
    }
    let out = child.wait_with_output().map_err(|e| failed(e.to_string()))?;
    match out.status.success() {
        true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
        false => Err(failed(String::from_utf8_lossy(&out.stderr).trim().to_string())),
    }
}

/// Runs lines of commands of `ip` or `tc` inside a namespace.
pub(crate) fn inside(namespace: &str, program: &str, lines: &[String]) -> Result<(), NetBoxError> {
    match lines {
        [] => Ok(()),
        _ => run(program, &["-n", namespace, "-batch", "-"], &(lines.join("\n") + "\n")).map(|_| ()),
    }
}
