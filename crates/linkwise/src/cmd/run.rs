//! `linkwise run -- COMMAND`: runs a training job with the plugin and prints a report at its end.

use crate::job_report::{self, ModelArgs};
use console::Failure;
use job::launched::{self, LaunchedTask};
use job::{limits, signals};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// Arguments of `linkwise run`.
#[derive(clap::Args)]
#[command(after_help = after_help())]
pub struct Args {
    /// Policy that tries arms and keeps the best (listed below) [default: adaptive]
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Fixed table of arms, as `linkwise tune profile` writes it, instead of a policy
    #[arg(long, value_name = "FILE", conflicts_with = "policy")]
    profile: Option<PathBuf>,
    /// Change nothing; report which collectives ran, how many, their sizes, times and NCCL's choices
    #[arg(long, conflicts_with_all = ["policy", "profile"])]
    observe: bool,
    /// Ask NCCL for GPU times, which bandwidths and shares need (NCCL 2.27.3 and later; docs/plugin.md has the cost)
    #[arg(long)]
    kernel_times: bool,
    #[command(flatten)]
    model: ModelArgs,
    /// Also write the report as a page
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Keep the traces in this folder; it must be empty or new
    #[arg(long, value_name = "FOLDER")]
    trace: Option<PathBuf>,
    /// At the end, add a line that says what the collectives took to this file. In a pod: /dev/termination-log
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// Rendezvous of several hosts: tcp:HOST:PORT, or folder:PATH on a shared file system
    #[arg(long, alias = "meeting", value_name = "ADDRESS")]
    rendezvous: Option<String>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const HELP: &str = "\
The plugin may change NCCL's choices of algorithm, protocol and channels; --observe changes nothing. The site's own \
tuner and profiler stay: they are asked first, and their answer is what AUTO means. The plugin is experimental: it has not \
been run on GPUs yet.

Every process that the command starts on this host inherits the settings, with torchrun, mpirun, srun and python alike. Ranks on other \
hosts need the same LINKWISE_* variables. How to combine it with a launcher:

  torchrun   on every host: linkwise run -- torchrun --nnodes 2 ... train.py
             or inside: torchrun --nnodes 2 ... --no-python linkwise run --trace SHARED_FOLDER -- python train.py
  srun       linkwise run --trace SHARED_FOLDER -- srun ... train.py
  mpirun     linkwise run --trace SHARED_FOLDER [--rendezvous tcp:HOST:PORT] -- mpirun ...
             or inside: mpirun ... linkwise run [--rendezvous tcp:HOST:PORT] -- python train.py
             several hosts need the rendezvous; Open MPI's mpirun gets -x for every setting

Ranks find each other at --rendezvous, else where a launcher of several hosts says (MASTER_ADDR and MASTER_PORT, which torchrun sets for its \
workers; Slurm's list of hosts), else on this host. Ranks that cannot agree keep NCCL's own choices.

If linkwise runs once per task (after srun or mpirun), task 0 writes the report. --trace keeps the traces of every task, and `linkwise tune \
report` reads all of them.

Signals go to the command. The exit code is the command's, even if the report fails.";

fn after_help() -> String {
    format!("{HELP}\n\nPolicies:\n{}", autotune::list_of_policies())
}

/// Runs the command. If its exit code is not 0, this process exits with the same code.
pub fn run(args: Args) -> Result<(), Failure> {
    let library = crate::plugin_library::find()?;
    if let Some(name) = &args.policy {
        autotune::check_policy(name).map_err(Failure::input)?;
    }
    if let Some(cluster) = &args.model.cluster {
        console::load_cluster(cluster)?; // an error must come before the job, not after it
    }
    let task = LaunchedTask::here(env);
    let reports = task.as_ref().is_none_or(|t| t.number == 0);
    if let Some(path) = args.report.as_deref().filter(|_| reports) {
        writable(path)?; // before the job, too
    }
    let mut temporary = None;
    let folder = match &args.trace {
        None => {
            let made = tempfile::Builder::new().prefix("linkwise-trace-").tempdir();
            let made = made.map_err(|e| Failure::input(format!("cannot create a folder for traces: {e}")))?;
            temporary.insert(made).path().to_path_buf()
        }
        Some(path) => empty(&task.as_ref().map_or(path.clone(), |t| path.join(t.folder())))?,
    };
    conflicts(&library, args.observe)?;
    if let (None, None, Some(launcher)) = (&args.trace, &task, launched::reaches_other_hosts(&args.command, env)) {
        eprintln!(
            "linkwise: where {launcher} starts processes on other hosts their traces stay there, in {}, and the report does not have them; \
             give --trace a folder that all hosts see",
            folder.display()
        );
    }
    let status = start(&args, task.as_ref(), &library, &folder)?;
    if reports && let Err(e) = tell(&args, task.as_ref(), &library, &folder) {
        eprintln!("{e}"); // the exit code is that of the job, not of the report
        temporary.take().map(tempfile::TempDir::keep);
        eprintln!("linkwise: the traces are kept; to try again: linkwise tune report {}", folder.display());
    }
    if let Some(path) = args.summary.as_deref().filter(|_| reports)
        && let Err(e) = summarize(path, &folder)
    {
        eprintln!("{e}");
    }
    drop(temporary);
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    if code != 0 {
        std::process::exit(code);
    }
    Ok(())
}

/// Adds the line of [`measure::summary`] to a file. Without times there is none.
fn summarize(path: &Path, folder: &Path) -> Result<(), Failure> {
    let calls = job::calls::read(folder).map_err(|e| Failure::input(format!("no summary: {e}")))?;
    if calls.is_simulated {
        return Err(Failure::input("no summary: the times were given by a test (LINKWISE_TEST), not measured"));
    }
    let Some(line) = measure::summary::line(&calls.kinds) else {
        return Err(Failure::input(
            "no summary: no collective has its GPU time; --kernel-times asks NCCL for them (2.27.3 and later)",
        ));
    };
    // Not replaced: a pod's /dev/termination-log is one file that the runtime has bound there.
    let write = |mut f: std::fs::File| std::io::Write::write_all(&mut f, format!("{line}\n").as_bytes());
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
    opened.and_then(write).map_err(|e| Failure::file("write", path, e))
}

/// A variable of this process's environment; `None` if it is not UTF-8.
fn env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Checks that a file can be written at `path`. Leaves an existing file unchanged and creates none.
fn writable(path: &Path) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::file("write", path, e);
    if path.exists() {
        return std::fs::OpenOptions::new().append(true).open(path).map(drop).map_err(failed);
    }
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::tempfile_in(folder).map(drop).map_err(failed)
}

/// Checks that `path` is a new or empty folder.
fn empty(path: &Path) -> Result<PathBuf, Failure> {
    std::fs::create_dir_all(path).map_err(|e| Failure::file("create", path, e))?;
    let empty = std::fs::read_dir(path).is_ok_and(|mut d| d.next().is_none());
    if !empty {
        return Err(Failure::input(format!(
            "{} is not empty; traces of another run would mix with this one's",
            path.display()
        )));
    }
    path.canonicalize().map_err(|e| Failure::file("open", path, e))
}

/// Prints the report of the processes that ran on this host.
fn tell(args: &Args, task: Option<&LaunchedTask>, library: &Path, folder: &Path) -> Result<(), Failure> {
    let report = job_report::read(&[folder.to_path_buf()], &args.model)?;
    if report.processes.is_empty() {
        eprint!("{}", not_loaded(library, folder));
        return Ok(());
    }
    eprint!("{}", job_report::text(&report));
    match (task, &args.trace) {
        (Some(t), Some(path)) => {
            eprintln!("This is task 0 of {}; of all of them: linkwise tune report {}", t.count, path.display());
        }
        (Some(t), None) => eprintln!(
            "This is task 0 of {}: processes of the others are not in it; --trace FOLDER keeps the traces of all of them",
            t.count
        ),
        (None, _) => {}
    }
    if let Some(path) = &args.report {
        let page = job_report::html(&report)?;
        files::write_atomic(path, page)?;
        eprintln!("report: {}", path.display());
    }
    Ok(())
}

/// NCCL's variables that name plugins, and those in which the plugin finds what they named.
const PLUGINS: [(&str, &str, &str); 2] = [
    ("NCCL_TUNER_PLUGIN", "LINKWISE_SITE_TUNER", "it is asked first, and its answer is AUTO"),
    ("NCCL_PROFILER_PLUGIN", "LINKWISE_SITE_PROFILER", "it gets its events through linkwise"),
];

/// The plugin of the site that a variable names, unless it is linkwise itself (an outer `linkwise run`) or the user
/// names another one for linkwise.
fn of_site(nccl: &str, kept: &str, library: &Path) -> Option<OsString> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
    set(nccl).filter(|v| set(kept).is_none() && Path::new(v).canonicalize().ok().as_deref() != Some(library))
}

/// Interfaces of tuners that the plugin can ask.
const TUNERS: RangeInclusive<u32> = 2..=6;
/// Largest library that is searched for its interfaces, bytes.
const LIBRARY_BYTES_MAX: usize = 256 << 20;

/// The interfaces of a site's tuner library, if linkwise can ask none of them. O(size of the library).
fn unknown_interfaces(library: &Path) -> Option<String> {
    const NAME: &[u8] = b"ncclTunerPlugin_v";
    let bytes = files::read_limited(library, LIBRARY_BYTES_MAX).ok().filter(|b| b.starts_with(b"\x7fELF"))?;
    let version = |at: usize| {
        let digits = bytes[at + NAME.len()..].iter().take(4).take_while(|b| b.is_ascii_digit());
        std::str::from_utf8(&digits.copied().collect::<Vec<u8>>()).ok()?.parse::<u32>().ok()
    };
    let named = positions(&bytes, NAME);
    let versions: BTreeSet<u32> = named.into_iter().filter_map(version).collect();
    let list = || versions.iter().map(|v| format!("v{v}")).collect::<Vec<_>>().join(", ");
    (!versions.is_empty() && versions.iter().all(|v| !TUNERS.contains(v))).then(list)
}

/// The positions of a word.
fn positions(bytes: &[u8], word: &[u8]) -> Vec<usize> {
    bytes.windows(word.len()).enumerate().filter(|(_, w)| *w == word).map(|x| x.0).collect()
}

/// The site's tuner that linkwise cannot ask, with its interfaces.
fn tuner_beyond(library: &Path) -> Option<(OsString, String)> {
    let (nccl, kept, _) = PLUGINS[0];
    let value = of_site(nccl, kept, library)?;
    let interfaces = unknown_interfaces(Path::new(&value))?;
    Some((value, interfaces))
}

/// Tells what linkwise does with settings that concern it.
///
/// # Errors
/// A tuner of the site that linkwise cannot ask, unless it only observes.
fn conflicts(library: &Path, observe: bool) -> Result<(), Failure> {
    let beyond = tuner_beyond(library);
    if let Some((value, interfaces)) = &beyond {
        let said = format!(
            "NCCL_TUNER_PLUGIN={} has only the interface {interfaces}, which linkwise cannot ask",
            value.to_string_lossy()
        );
        if !observe {
            return Err(Failure::input(format!(
                "{said}; --observe leaves it to NCCL, and unsetting the variable runs without it"
            )));
        }
        eprintln!("linkwise: {said}: it stays NCCL's tuner, and linkwise is only the profiler");
    }
    for (nccl, kept, how) in PLUGINS {
        if let Some(value) = of_site(nccl, kept, library).filter(|_| beyond.is_none() || nccl != PLUGINS[0].0) {
            let value = value.to_string_lossy();
            match value.eq_ignore_ascii_case("none") {
                true => eprintln!("linkwise: {nccl}=none: linkwise is loaded, and no other plugin"),
                false => eprintln!("linkwise: {nccl}={value}: {how}"),
            }
        }
    }
    for name in ["NCCL_ALGO", "NCCL_PROTO"] {
        if let Some(value) = std::env::var_os(name).filter(|v| !v.is_empty()) {
            eprintln!("linkwise: {name}={} is respected: only what it allows is tried", value.to_string_lossy());
        }
    }
    if std::env::var_os("NCCL_CTA_POLICY").is_some_and(|v| !v.is_empty() && v != "0") {
        eprintln!(
            "linkwise: NCCL_CTA_POLICY: from NCCL 2.27 on a loaded tuner switches off the shortcut for AllGather and ReduceScatter with \
             registered buffers, also under --observe"
        );
    }
    Ok(())
}

fn start(args: &Args, task: Option<&LaunchedTask>, library: &Path, folder: &Path) -> Result<ExitStatus, Failure> {
    let mut words = args.command.iter();
    let program = words.next().ok_or_else(|| Failure::input("no command"))?;
    let mut command = Command::new(program);
    command.env("LINKWISE_TRACE", folder);
    let beyond = tuner_beyond(library).is_some();
    for (nccl, kept, _) in PLUGINS.into_iter().filter(|p| !beyond || p.0 != PLUGINS[0].0) {
        if let Some(value) = of_site(nccl, kept, library) {
            command.env(kept, value);
        }
        command.env(nccl, library);
    }
    let mode = match (&args.profile, args.observe) {
        (Some(path), _) => {
            let path = path.canonicalize().map_err(|e| Failure::file("open", path, e))?;
            command.env("LINKWISE_PROFILE", path);
            "profile"
        }
        (None, true) => "observe",
        (None, false) => "adaptive",
    };
    command.env("LINKWISE_MODE", mode);
    if let Some(policy) = &args.policy {
        command.env("LINKWISE_POLICY", policy);
    }
    if args.kernel_times {
        command.env("LINKWISE_KERNEL_TIMES", "1");
    }
    if let Some(place) = &args.rendezvous {
        command.env("LINKWISE_RENDEZVOUS", place);
    }
    // The fallback applies only if neither the user nor a launcher of several hosts sets a rendezvous. A launcher
    // around this process sets one: its other processes would choose other places.
    let said = |name: &str| env(name).is_some_and(|v| !v.is_empty());
    let by_launcher = said("MASTER_ADDR") && (said("MASTER_PORT") || said("LINKWISE_PORT"));
    let unique = folder.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let alone = || Some(format!("local:{}-{unique}", std::process::id()));
    command.env_remove("LINKWISE_MEETING_ELSE"); // the former name: an older `linkwise run` around this one may set it
    match task.map_or_else(alone, LaunchedTask::rendezvous).filter(|_| !by_launcher) {
        Some(place) => command.env("LINKWISE_RENDEZVOUS_FALLBACK", place),
        None => command.env_remove("LINKWISE_RENDEZVOUS_FALLBACK"), // an outer `linkwise run` may have set it
    };
    if !said("LINKWISE_TOKEN") && task.is_none() && !by_launcher {
        // All processes of the command inherit it. A launcher around this process starts others, which would make tokens of their own.
        command
            .env("LINKWISE_TOKEN_FALLBACK", random_token().map_err(|e| Failure::input(format!("/dev/urandom: {e}")))?);
    } else {
        command.env_remove("LINKWISE_TOKEN_FALLBACK"); // an outer `linkwise run` may have set it
        let local = task.is_some_and(|t| t.rendezvous().is_some()) && !by_launcher;
        if !said("LINKWISE_TOKEN") && !local && !args.observe {
            eprintln!(
                "linkwise: the launcher's job id keeps other jobs out, but is no secret: give all hosts the same random LINKWISE_TOKEN where other \
                 users can reach their ports"
            );
        }
    }
    let named = args.rendezvous.is_some() || said("LINKWISE_RENDEZVOUS") || said("LINKWISE_MEETING");
    let known = named || by_launcher;
    if let Some(t) = task.filter(|t| t.rendezvous().is_none() && !t.hosts_known && !known && !args.observe) {
        eprintln!(
            "linkwise: {} tasks, perhaps on several hosts, have no rendezvous: unless the command sets one (torchrun sets MASTER_ADDR and \
             MASTER_PORT) all communicators stay at AUTO; give --rendezvous tcp:HOST:PORT with any of the hosts",
            t.count
        );
    }
    check_settings(&command)?;
    command.args(for_other_hosts(args, &command, known)).args(words);
    limits::raise_open_files();
    // Signals are caught before the command starts, so that none is lost.
    let caught = signals::caught().map_err(Failure::input)?;
    let mut child = command.spawn().map_err(|e| {
        Failure::input(format!("cannot start `{}`: {e}; is it on the PATH?", program.to_string_lossy()))
    })?;
    let passing = signals::SignalForwarder::to(child.id(), caught);
    let status = child.wait().map_err(|e| Failure::input(format!("waiting for the command: {e}")));
    passing.end();
    status
}

/// Options before the command's own, with which processes on other hosts get the settings: Open MPI's mpirun passes on what it is told to, MPICH's
/// mpiexec and srun everything. `known`: a rendezvous is given.
fn for_other_hosts(args: &Args, command: &Command, known: bool) -> Vec<OsString> {
    let none = Vec::new();
    let Some(launcher) = launched::reaches_other_hosts(&args.command, env).filter(|name| *name != "srun") else {
        return none;
    };
    if !known && !args.observe {
        eprintln!(
            "linkwise: processes of {launcher} on several hosts have no rendezvous: unless they set one, communicators of several hosts stay at \
             AUTO; give --rendezvous tcp:HOST:PORT with any of the hosts"
        );
    }
    let version = Command::new(command.get_program()).arg("--version").stdin(std::process::Stdio::null()).output();
    if !version.is_ok_and(|v| launched::is_open_mpi(&String::from_utf8_lossy(&v.stdout))) {
        return none;
    }
    let set: Vec<OsString> = command.get_envs().filter(|(_, v)| v.is_some()).map(|(name, _)| name.to_owned()).collect();
    launched::passing_on(&args.command, &set, env).unwrap_or_else(|why| {
        eprintln!("linkwise: {why}");
        none
    })
}

/// Reads the plugin's settings and table as the command's processes will: with a wrong one the plugin would stay off in all of them. A separate program
/// does it, as for `linkwise plugin check`; an installation without it starts the job without this check.
fn check_settings(command: &Command) -> Result<(), Failure> {
    let Ok(program) = job::plugin_check::program() else { return Ok(()) };
    let mut check = Command::new(&program);
    check.arg("--settings");
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => check.env(name, value),
            None => check.env_remove(name),
        };
    }
    let out = check.output().map_err(|e| Failure::file("start", &program, e))?;
    if out.status.code() != Some(2) {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr);
    Err(Failure::input(format!("{}; the plugin would stay off in this job", said.trim_end())))
}

/// 128 random bits as text.
fn random_token() -> std::io::Result<String> {
    let mut bytes = [0u8; 16];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

/// The message if no process loaded the plugin.
fn not_loaded(library: &Path, folder: &Path) -> String {
    format!(
        "linkwise: no process of this command loaded the plugin. The usual reasons:\n\
         - no process used NCCL, or none made a communicator of two or more ranks\n\
         - NCCL is linked statically into the program, or older than 2.21 (`linkwise plugin check` lists releases)\n\
         - the program or its launcher overwrites NCCL_TUNER_PLUGIN, or does not pass the environment on (mpirun: -x NCCL_TUNER_PLUGIN ...)\n\
         - {} does not exist in the container or on the other hosts\n\
         - they ran on other hosts: their traces are there, in {}; give --trace a folder that all hosts see\n\
         - NCCL 2.27.3 takes no absolute path: use another patch\n\
         NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,TUNING,ENV says what NCCL tried to load.\n",
        library.display(),
        folder.display()
    )
}
