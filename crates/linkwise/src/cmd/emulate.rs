//! `linkwise emulate --hosts 2x4 -- COMMAND`: runs an NCCL program on simulated hosts, without a GPU.

use console::{Failure, number};
use job::signals;
use nccl_bench::{Bench, BenchError, EmulateSpec, Emulated};
use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use topology::catalog;

/// Number of names of skipped kernels in the summary.
const NAMES_MAX: usize = 10;
/// Time in which the command may end after a signal, before its processes are killed.
const GRACE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(10);

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
    /// End a run in which no rank makes progress for this time and every rank waits in NCCL or CUDA or has ended; 0: never
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = number::whole::<u64>)]
    stall: u64,
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
Needs x86-64 Linux and a C compiler. The exit code is the command's; after a signal to linkwise 128 and its number.";

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
    let (refuse_kernels, layout_command) = (args.refuse_kernels, own_command()?);
    let spec = EmulateSpec { host_type, hosts, gpus, refuse_kernels, stall_s: args.stall, layout_command };
    // Signals are caught before the first process starts, so that none is lost.
    let caught = signals::caught().map_err(Failure::input)?;
    let emulated = bench.emulate(&spec).map_err(failure)?;
    let mut running = Running { emulated: &emulated, caught, children: Vec::new() };
    if args.each {
        running.start_each(&args.command, hosts * gpus)?;
    } else {
        running.children.push((0, prepared(&args.command, &emulated).spawn().map_err(cannot_start(&args.command))?));
    }
    let code = running.wait(args.each)?;
    drop(running);
    tell(&emulated, code);
    drop(emulated); // `exit` drops nothing
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

/// The command's processes. Those that are left on drop are killed.
struct Running<'a> {
    emulated: &'a Emulated,
    caught: Signals,
    /// With the rank of each.
    children: Vec<(usize, Child)>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.children.is_empty() {
            self.kill_all();
        }
    }
}

impl Running<'_> {
    /// One process per rank.
    fn start_each(&mut self, words: &[OsString], ranks: usize) -> Result<(), Failure> {
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).map(|a| a.port());
        let port = port.map_err(|e| Failure::input(format!("no free port: {e}")))?;
        for rank in 0..ranks {
            let mut command = prepared(words, self.emulated);
            command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
            command.env("LOCAL_RANK", rank.to_string());
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
            self.children.push((rank, command.spawn().map_err(cannot_start(words))?));
        }
        Ok(())
    }

    /// Waits for all processes and forwards signals to them. When a rank fails, the others are ended, as a launcher does; after a signal the
    /// processes that are left after [`GRACE`] are. Returns the exit code: 128 and the signal, else that of the first process that failed.
    fn wait(&mut self, ranks: bool) -> Result<i32, Failure> {
        let (mut code, mut signalled) = (0, None);
        while !self.children.is_empty() {
            for signal in self.caught.pending().collect::<Vec<_>>() {
                self.forward(signal);
                if [SIGHUP, SIGINT, SIGQUIT, SIGTERM].contains(&signal) {
                    signalled.get_or_insert((signal, Instant::now()));
                }
            }
            let mut still = Vec::new();
            for (rank, mut child) in std::mem::take(&mut self.children) {
                match child.try_wait().map_err(|e| Failure::input(format!("waiting for a process: {e}")))? {
                    None => still.push((rank, child)),
                    Some(status) if !status.success() && code == 0 => {
                        code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
                    }
                    Some(_) if ranks => self.emulated.rank_ended(rank),
                    Some(_) => {}
                }
            }
            self.children = still;
            let over = signalled.is_some_and(|(_, when)| when.elapsed() > GRACE);
            if over || (code != 0 && signalled.is_none()) {
                break;
            }
            std::thread::sleep(POLL);
        }
        if code != 0 || signalled.is_some() {
            self.kill_all();
        }
        Ok(signalled.map_or(code, |(signal, _)| 128 + signal))
    }

    fn forward(&self, signal: i32) {
        // The terminal already sends its interrupts to the whole group.
        if (signal == SIGINT || signal == SIGQUIT) && signals::in_foreground() {
            return;
        }
        let pids = self.children.iter().map(|(_, child)| child.id());
        pids.for_each(|pid| send(pid, Signal::from_named_raw(signal)));
    }

    /// Kills the processes, and those that they have started.
    fn kill_all(&mut self) {
        for (_, child) in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.children.clear();
        self.emulated.processes().into_iter().for_each(|pid| send(pid, Some(Signal::KILL)));
    }
}

fn send(pid: u32, signal: Option<Signal>) {
    if let (Some(pid), Some(signal)) = (i32::try_from(pid).ok().and_then(Pid::from_raw), signal) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Says which kernels of the program were skipped.
fn tell(emulated: &Emulated, code: i32) {
    let mut skipped: Vec<(String, u64)> = emulated.skipped().into_iter().collect();
    if !emulated.was_used() && code < 128 {
        console::say(
            &"linkwise: no process made an emulated CUDA call; a static program, or one with a stripped CUDA runtime of its own, runs without \
             the emulation",
        );
    }
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
