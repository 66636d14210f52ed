//! `linkwise doctor install`: PASS, FAIL and SKIP lines about this host's installation.

use console::{Failure, Format, wrap};
use job::install::{Check, HostView, Verdict, checks};
use serde_json::json;
use std::path::PathBuf;

/// Arguments of `linkwise doctor install`.
#[derive(clap::Args)]
#[command(after_help = "\
Checks what a job on this host would use: the NCCL plugins can be loaded, alone and beside every NCCL library found (LD_LIBRARY_PATH, \
ldconfig, python3's and conda's packages, --nccl), glibc is new enough, files are readable and safe from other users, the settings of this \
shell are accepted, the GPUs' driver and RDMA devices can be used, /dev/shm is large enough. Nothing is changed. Run it as the user of the \
jobs, and in their container.

SKIP: this host does not have what the check looks at. The exit code is 1 if a check fails, else 0.")]
pub struct Args {
    /// Check this NCCL library as well (several: repeat)
    #[arg(long, value_name = "FILE")]
    nccl: Vec<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

pub fn run(args: &Args) -> Result<(), Failure> {
    let env = |name: &str| std::env::var(name).ok();
    let all = checks(&HostView { root: "/".into(), env: &env, nccl: args.nccl.clone() });
    let count = |verdict| all.iter().filter(|c| c.verdict == verdict).count();
    let (passed, failed, skipped) = (count(Verdict::Pass), count(Verdict::Fail), count(Verdict::Skip));
    match args.format {
        Format::Json => {
            console::print_json(&json!({"checks": all, "passed": passed, "failed": failed, "skipped": skipped}))?;
        }
        Format::Text => {
            let lines: String = all.iter().map(line).collect();
            console::print(&format!("{lines}{passed} passed, {failed} failed, {skipped} skipped\n"));
        }
    }
    match failed {
        0 => Ok(()),
        _ => std::process::exit(1),
    }
}

/// A check as text: its result, with the remedy below it.
fn line(c: &Check) -> String {
    let verdict = match c.verdict {
        Verdict::Pass => "PASS",
        Verdict::Fail => "FAIL",
        Verdict::Skip => "SKIP",
    };
    let mut out = wrap(&format!("{verdict} {}: {}", c.check, c.found), 5);
    if let Some(remedy) = &c.remedy {
        out += &wrap(&format!("     remedy: {remedy}"), 5);
    }
    out
}
