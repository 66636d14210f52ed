//! Standard output whose reader may be gone and whose disk may be full.

use crate::Failure;
use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

/// Writes to standard output. A closed pipe (`head`, a pager that was left) ends the program with exit code 0 and no word; a full disk is
/// one error and exit code 2.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(e) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        let code = write_failed(&e);
        drop(out);
        std::process::exit(code);
    }
}

/// Pretty JSON and a line break, to standard output.
///
/// # Errors
/// A value that has no JSON form.
pub fn print_json(value: &serde_json::Value) -> Result<(), Failure> {
    print(&format!("{}\n", serde_json::to_string_pretty(value).map_err(Failure::input)?));
    Ok(())
}

/// Says why standard output failed, and with which code the program ends.
fn write_failed(e: &std::io::Error) -> i32 {
    if e.kind() == std::io::ErrorKind::BrokenPipe {
        return 0;
    }
    eprintln!("error: cannot write to standard output: {e}");
    2
}

/// Makes `println!` behave as [`print`]: it panics where it cannot write, and the panic becomes the same exit. Call once, first in `main`.
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

/// The exit code of a command; a failure is written to standard error.
pub fn exit_code(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            say(&failure);
            ExitCode::from(failure.exit_code())
        }
    }
}

/// One line to standard error; a closed standard error is no failure.
pub fn say(line: &dyn Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
