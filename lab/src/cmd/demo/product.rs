//! The built `linkwise` command, run as a user runs it.

use console::Failure;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The command that stands in the folder of this program.
pub struct Linkwise {
    program: PathBuf,
}

impl Linkwise {
    /// Looks for it.
    ///
    /// # Errors
    /// It is not there: the two programs are built and installed together.
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
        let (out, err) = (text(stdout), text(stderr));
        match status.success() {
            true => Ok((out, err)),
            false => Err(failed(&err.trim())),
        }
    }

    /// The same with `--format json`, read.
    pub fn json(&self, args: &[&str]) -> Result<(Value, String), Failure> {
        let (out, err) = self.run(&[args, &["--format", "json"]].concat())?;
        let value = serde_json::from_str(&out)
            .map_err(|e| Failure::impossible(format!("linkwise {}: not JSON: {e}", args.join(" "))))?;
        Ok((value, err))
    }
}

/// A path as an argument.
pub fn arg(path: &Path) -> String {
    path.display().to_string()
}
