//! The built `linkwise` command, run as a user runs it.

use console::Failure;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The `linkwise` program in the folder of this program.
pub struct Linkwise {
    program: PathBuf,
}

impl Linkwise {
    /// # Errors
    /// The program is missing; both programs are built and installed together.
    pub fn find() -> Result<Linkwise, Failure> {
        let here = std::env::current_exe().map_err(|e| Failure::input(format!("cannot find this program: {e}")))?;
        let program = here.with_file_name(format!("linkwise{}", std::env::consts::EXE_SUFFIX));
        match program.is_file() {
            true => Ok(Linkwise { program }),
            false => Err(Failure::input(format!(
                "{} is missing: the demo runs the command itself; `make build` builds both",
                program.display()
            ))),
        }
    }

    /// Runs `linkwise ARGS` and returns its standard output and standard error.
    ///
    /// # Errors
    /// The command's own message, with its arguments.
    pub fn run(&self, args: &[&str]) -> Result<(String, String), Failure> {
        let failed = |why: &dyn std::fmt::Display| Failure::impossible(format!("linkwise {}: {why}", args.join(" ")));
        let Output { status, stdout, stderr } =
            Command::new(&self.program).args(args).output().map_err(|e| failed(&e))?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        match status.success() {
            true => Ok((text(stdout), text(stderr))),
            false => Err(failed(&text(stderr).trim())),
        }
    }

    /// Runs `linkwise ARGS --format json` and parses the answer.
    pub fn json(&self, args: &[&str]) -> Result<Value, Failure> {
        let (out, _) = self.run(&[args, &["--format", "json"]].concat())?;
        serde_json::from_str(&out)
            .map_err(|e| Failure::impossible(format!("linkwise {}: not JSON: {e}", args.join(" "))))
    }
}

/// A path as an argument.
pub fn arg(path: &Path) -> String {
    path.display().to_string()
}
