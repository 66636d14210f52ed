//! `make bench-nccl`: mode `adaptive` in the real NCCL library, between network namespaces with shaped rails.
//!
//! Finished rows are kept in a file, so a run that was cut off goes on where it was.

use clap::Parser;
use nccl_bench::Bench;
use nccl_box::table::{self, Case, Row};
use netns::{NetBox, NetBoxError};
use std::io::Write;
use std::path::PathBuf;

/// Real NCCL with kernels played on the CPU, over shaped links: which arm mode `adaptive` finds, what looking costs
#[derive(Parser)]
struct Options {
    /// Only cases whose name contains this; repeatable
    #[arg(long = "case", value_name = "TEXT")]
    cases: Vec<String>,
    /// File of finished rows
    #[arg(long, default_value = "out/bench-nccl.jsonl")]
    state: PathBuf,
    /// Forget finished rows
    #[arg(long)]
    fresh: bool,
    /// Release of NCCL
    #[arg(long, default_value = "2.28.9")]
    release: String,
}

const PLUGIN: &str = "liblinkwise_nccl.so";

fn main() -> Result<(), String> {
    let o = Options::parse();
    let all = table::cases(&o.release);
    let is_wanted = |c: &Case| o.cases.is_empty() || o.cases.iter().any(|text| c.name.contains(text));
    let names: Vec<&str> = all.iter().map(|c| c.name).collect();
    let none = format!("no case contains {:?}; there are: {}", o.cases, names.join("; "));
    let cases: Vec<Case> = all.into_iter().filter(is_wanted).collect();
    if cases.is_empty() {
        return Err(none);
    }
    let plugin = nccl_box::built(PLUGIN).map(|f| f.join(PLUGIN));
    let plugin = plugin.ok_or(format!("{PLUGIN} is not beside this program: cargo build --workspace"))?;
    let bench = Bench::new().map_err(|e| e.to_string())?;
    if o.fresh {
        let _ = std::fs::remove_file(&o.state);
    }
    let mut rows: Vec<Row> = table::read(&std::fs::read_to_string(&o.state).unwrap_or_default());
    rows.retain(|r| r.release == o.release);
    if let Some(folder) = o.state.parent() {
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    for (i, case) in cases.iter().enumerate() {
        if rows.iter().any(|r| r.name == case.name) {
            continue;
        }
        eprintln!("{} of {}: {}", i + 1, cases.len(), case.name);
        let netbox = match NetBox::rails(case.of.hosts, 1, case.mbit) {
            Ok(b) => b,
            Err(e @ NetBoxError::Unavailable { .. }) => {
                println!("SKIP bench-nccl: {e}");
                return Ok(());
            }
            Err(e) => return Err(e.to_string()),
        };
        let row = table::measure(&bench, &netbox, case, &plugin).map_err(|e| format!("{}: {e}", case.name))?;
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&o.state);
        let line = serde_json::to_string(&row).map_err(|e| e.to_string())?;
        file.as_mut().map_or(Ok(()), |f| writeln!(f, "{line}")).map_err(|e| format!("{}: {e}", o.state.display()))?;
        rows.push(row);
    }
    rows.retain(|r| cases.iter().any(|c| c.name == r.name));
    print!("{}", table::markdown(&rows));
    Ok(())
}
