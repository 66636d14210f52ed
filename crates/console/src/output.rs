//! Standard output: handles closed pipes and full disks.

use crate::Failure;
use std::borrow::Cow;
use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

/// Writes to standard output, with control characters replaced: names of files, jobs and hosts come from other programs. A closed pipe
/// (`head`, a closed pager) ends the program silently with exit code 0; a full disk gives one error and exit code 2.
pub fn print(text: &str) {
    write(&printable(text));
}

/// [`print()`] on an empty screen.
pub fn print_screen(text: &str) {
    write(&format!("\u{1b}[2J\u{1b}[H{}", printable(text)));
}

/// Replaces control characters by U+FFFD, except line breaks and tabs: text from elsewhere must not move the cursor or set a colour.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let bad = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    match text.contains(bad) {
        true => text.chars().map(|c| if bad(c) { '\u{fffd}' } else { c }).collect::<String>().into(),
        false => text.into(),
    }
}

fn write(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(e) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        let code = write_failed(&e);
        drop(out);
        std::process::exit(code);
    }
}

/// Writes indented JSON and a line break to standard output.
///
/// # Errors
/// A value that has no JSON form.
pub fn print_json(value: &serde_json::Value) -> Result<(), Failure> {
    print(&format!("{}\n", serde_json::to_string_pretty(value).map_err(Failure::input)?));
    Ok(())
}

/// Prints why standard output failed, and returns the exit code.
fn write_failed(e: &std::io::Error) -> i32 {
    if e.kind() == std::io::ErrorKind::BrokenPipe {
        return 0;
    }
    eprintln!("error: cannot write to standard output: {e}");
    2
}

/// Makes `println!` behave like [`print`]: turns the panic of a failed write into the same exit. Call once, first in `main`.
pub fn exit_quietly_on_closed_pipes() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let message = info.payload().downcast_ref::<String>().map_or("", String::as_str);
        if let Some(why) = message.strip_prefix("failed printing to stdout: ") {
            if message.contains("Broken pipe") {
                std::process::exit(0);
            }
            eprintln!("error: cannot write to standard output: {why}");
            std::process::exit(2);
        }
        if message.starts_with("failed printing to stderr: ") {
            std::process::exit(2);
        }
        default(info);
    }));
}

/// The exit code of a command; writes a failure to standard error.
pub fn exit_code(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = writeln!(std::io::stderr(), "{failure}"); // with the colours of its own
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Writes one line to standard error, with control characters replaced; a closed standard error is not an error.
pub fn say(line: &dyn Display) {
    let _ = writeln!(std::io::stderr(), "{}", printable(&line.to_string()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_elsewhere_sets_no_colour_and_clears_no_screen() {
        assert_eq!(printable("a\tb\n"), "a\tb\n");
        assert_eq!(printable("gpu\u{1b}[2J\u{9b}m\r"), "gpu\u{fffd}[2J\u{fffd}m\u{fffd}");
    }
}
