//! `linkwise emulate --hosts 2x4 -- COMMAND`: runs an NCCL program on simulated hosts, without a GPU.

use console::Failure;
use nccl_bench::{Bench, BenchError, EmulateSpec, Emulated};
use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use topology::catalog;

/// Number of names of skipped kernels in the summary.
const NAMES_MAX: usize = 10;

/// Arguments of `linkwise emulate`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// Hosts and GPUs of each, such as 2x4
    #[arg(long, value_name = "HOSTSxGPUS", required_unless_present = "layout_of")]
    hosts: Option<String>,
    /// Host type of the catalog, for GPUs and links that NCCL sees
    #[arg(long = "type", value_name = "TYPE", default_value = "hgx-h100")]
    host_type: String,
    /// Start COMMAND once per rank, with torchrun's variables; without it COMMAND is a launcher
    #[arg(long)]
    each: bool,
    /// End the program at its first own kernel, by name; without it kernels are skipped and counted
    #[arg(long)]
    refuse_kernels: bool,
    /// Print the file of offsets for a library and exit (the emulation asks)
    #[arg(long, value_name = "LIBRARY", hide = true)]
    layout_of: Option<PathBuf>,
    /// The command and its arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND",
        required_unless_present = "layout_of"
    )]
    command: Vec<OsString>,
}

const HELP: &str = "\
CUDA is emulated in host memory, and the CPU does what NCCL's kernels do, so the program's unmodified NCCL library (2.24.3, 2.27.7, 2.28.9, 2.30.7 or \
2.32.3) moves real bytes over this machine's sockets. Hangs, mismatched collectives, wrong splits, and network and tuner plugins show as on \
GPUs. Copies between host and GPU work; other kernels of the program are skipped, so its numbers are not its results.

  torchrun    linkwise emulate --hosts 2x4 -- torchrun train.py
  mpirun      linkwise emulate --hosts 2x4 -- mpirun -np 8 ./program
  no launcher linkwise emulate --hosts 2x4 --each -- python train.py

torchrun starts HOSTS x GPUS processes by default here. Each process sees the GPUs of its host, with LOCAL_RANK to match. NCCL_* variables of yours stay.
Needs x86-64 Linux and a C compiler. The exit code is the command's.";

/// Runs the command. If its exit code is not 0, this process exits with the same code.
pub fn run(args: Args) -> Result<(), Failure> {
    let bench = Bench::new().map_err(failure)?;
    if let Some(library) = &args.layout_of {
        match bench.layout_of(library) {
            Ok(path) => println!("{}", path.display()),
            Err(e) => println!("error: {}", e.to_string().replace('\n', " ")),
        }
        return Ok(());
    }
    let (hosts, gpus) = args
        .hosts
        .as_deref()
        .and_then(|t| t.split_once('x'))
        .and_then(|(h, g)| Some((h.parse().ok()?, g.parse().ok()?)))
        .ok_or_else(|| Failure::input("--hosts takes hosts and GPUs of each, such as 2x4"))?;
    let host_type = catalog::host_type(&args.host_type).ok_or_else(|| {
        Failure::input(format!("the catalog has no host type `{}`; linkwise topology types lists them", args.host_type))
    })?;
    let spec =
        EmulateSpec { host_type, hosts, gpus, refuse_kernels: args.refuse_kernels, layout_command: own_command()? };
    let emulated = bench.emulate(&spec).map_err(failure)?;
    let status =
        if args.each { each(&args.command, &emulated, hosts * gpus)? } else { once(&args.command, &emulated)? };
    tell(&emulated);
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    if code != 0 {
        std::process::exit(code);
    }
    Ok(())
}

fn failure(e: BenchError) -> Failure {
    Failure::input(e.to_string())
}

/// This program with the option by which the emulation asks for offsets, as words of a shell.
fn own_command() -> Result<OsString, Failure> {
    let me = std::env::current_exe().map_err(|e| Failure::input(format!("cannot find this program: {e}")))?;
    let mut command = OsString::from("'");
    command.push(me);
    command.push("' emulate --layout-of");
    Ok(command)
}

/// The command with the environment of the simulated hosts. Settings of NCCL that the caller made stay.
fn prepared(words: &[OsString], emulated: &Emulated) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    let own = |name: &OsStr| name.to_string_lossy().starts_with("NCCL_") && std::env::var_os(name).is_some();
    command.envs(emulated.env.iter().filter(|(name, _)| !own(name)).map(|(name, value)| (name, value)));
    command
}

fn cannot_start(words: &[OsString]) -> impl FnOnce(std::io::Error) -> Failure {
    let word = words[0].to_string_lossy().into_owned();
    move |e| Failure::input(format!("cannot start {word}: {e}"))
}

fn once(words: &[OsString], emulated: &Emulated) -> Result<ExitStatus, Failure> {
    prepared(words, emulated).status().map_err(cannot_start(words))
}

/// Ranks that are killed and waited for on drop.
struct Ranks(Vec<Child>);

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// One process per rank. When one fails, the others are ended, as a launcher does.
fn each(words: &[OsString], emulated: &Emulated, ranks: usize) -> Result<ExitStatus, Failure> {
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).map(|a| a.port());
    let port = port.map_err(|e| Failure::input(format!("no free port: {e}")))?;
    let mut running = Ranks(Vec::new());
    for rank in 0..ranks {
        let mut command = prepared(words, emulated);
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string()).env("LOCAL_RANK", rank.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        running.0.push(command.spawn().map_err(cannot_start(words))?);
    }
    let mut last = ExitStatus::default();
    while !running.0.is_empty() {
        let mut still = Vec::new();
        for mut child in std::mem::take(&mut running.0) {
            match child.try_wait().map_err(|e| Failure::input(format!("waiting for a rank: {e}")))? {
                None => still.push(child),
                Some(status) if !status.success() && last.success() => last = status,
                Some(_) => {}
            }
        }
        running.0 = still;
        if !last.success() {
            break; // the drop ends the others
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    Ok(last)
}

/// Says which kernels of the program were skipped.
fn tell(emulated: &Emulated) {
    let mut skipped: Vec<(String, u64)> = emulated.skipped().into_iter().collect();
    if skipped.is_empty() {
        return;
    }
    skipped.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    let launches: u64 = skipped.iter().map(|s| s.1).sum();
    console::say(&format!(
        "linkwise: skipped {launches} launches of {} kernels of the program (its numbers are not its results):",
        skipped.len()
    ));
    for (name, launches) in skipped.iter().take(NAMES_MAX) {
        console::say(&format!("  {launches:>8} {name}"));
    }
    if skipped.len() > NAMES_MAX {
        console::say(&format!("  and {} more", skipped.len() - NAMES_MAX));
    }
}
