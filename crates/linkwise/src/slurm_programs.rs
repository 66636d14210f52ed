//! Runs Slurm's programs, with a deadline: its clients wait for the controller.

use slurm::books;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;
use wait_timeout::ChildExt;

/// Time for a program of Slurm.
pub const PROGRAM_TIME_MAX: Duration = Duration::from_secs(10);

/// What a program of Slurm prints.
pub fn output(program: &str, args: &[&str], time_max: Duration) -> Result<String, String> {
    let said = |e: &dyn std::fmt::Display| format!("`{program} {}`: {e}", args.join(" "));
    let command = &mut Command::new(program);
    let started = command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = started.map_err(|e| said(&e))?;
    let out = child.stdout.take().ok_or_else(|| said(&"no output"))?;
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        out.take(books::TEXT_BYTES_MAX as u64).read_to_end(&mut bytes).map(|_| bytes)
    });
    let status = child.wait_timeout(time_max).map_err(|e| said(&e))?;
    let Some(status) = status else {
        let _ = child.kill();
        let _ = child.wait();
        return Err(said(&format!("no answer within {} s", time_max.as_secs())));
    };
    let bytes = reader.join().map_err(|_| said(&"cannot be read"))?.map_err(|e| said(&e))?;
    if !status.success() {
        return Err(said(&"failed; does the controller answer (`scontrol ping`)?"));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The nodes with GPUs.
pub fn nodes(time_max: Duration) -> Result<Vec<books::Node>, String> {
    let text = output("scontrol", &["show", "nodes", "-o"], time_max)?;
    books::nodes(&text).map_err(|e| e.to_string())
}

/// The text of the jobs with their GPUs.
pub fn jobs(time_max: Duration) -> Result<String, String> {
    output("scontrol", &["show", "job", "-d", "-o"], time_max)
}
