//! Settings: `LINKWISE_*` variables and one file, `LINKWISE_CONFIG`. Variables override the file. An error turns the
//! plugin off and logs one line that names the variable or the line of the file.

use crate::alike::{self, NcclSettings};
use crate::canary::Canary;
use crate::coordinator::FreezeAfter;
use crate::launcher;
use crate::profile::Profile;
use crate::rewards::Script;
use agreement::Rendezvous;
use agreement::launcher::{JobProcess, TORCHRUN, attempt, is_on_one_host, job, process};
use agreement::transport::IntraNodeTransport;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Largest settings file, table or script, bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
/// Default limit on a trace, bytes: 64 MiB hold about 400,000 calls.
pub const TRACE_BYTES_MAX: u64 = 64 << 20;

/// The mode of the plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The plugin does nothing.
    Off,
    /// Records what NCCL does.
    Observe,
    /// Applies a fixed table.
    Profile,
    /// Tries arms and keeps the best.
    Adaptive,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `LINKWISE_MODE`: off, observe, profile, adaptive.
    pub mode: Mode,
    /// `LINKWISE_POLICY`: the policy of mode adaptive.
    pub policy: String,
    /// `LINKWISE_PROFILE`: the table of mode profile.
    pub profile: Option<Profile>,
    /// `LINKWISE_RENDEZVOUS`: the address at which the job's processes find each other.
    pub rendezvous: Option<Rendezvous>,
    /// `LINKWISE_TOKEN`: shared by the job's processes; keeps other jobs out.
    pub token: String,
    /// The token is the launcher's job id, or empty: others can guess it.
    pub token_is_guessable: bool,
    /// `LINKWISE_PROCESS`, or the launcher's variables: the number of this process in the job.
    pub process: Option<JobProcess>,
    /// Hash that is the same in all processes of one attempt of the job and differs between attempts.
    pub job: u64,
    /// `LINKWISE_BIND`: the address to listen at.
    pub bind: Option<IpAddr>,
    /// `LINKWISE_TRACE`: the folder of traces.
    pub trace: Option<PathBuf>,
    /// `LINKWISE_TRACE_BYTES_MAX`.
    pub trace_bytes_max: u64,
    /// `LINKWISE_STOP_FILE`: once this file exists, all ranks return to AUTO for the rest of the job.
    pub stop_file: Option<PathBuf>,
    /// `LINKWISE_EXPLORE`: `connected` (algorithms that the communicator already uses) or `all`.
    pub explore_all: bool,
    /// `LINKWISE_GRAPHS`: what the program does with CUDA graphs.
    pub graphs: Graphs,
    /// `LINKWISE_SIMULATED_GROUPS=none`: the program never calls `ncclGroupSimulateEnd`, so arms may change on releases that do not tell simulated
    /// groups from launched ones.
    pub no_simulated_groups: bool,
    /// `LINKWISE_JOB=closed`: no communicator has a process outside of the job that the launcher knows.
    pub closed_job: bool,
    /// `LINKWISE_CANARY`: the only communicators that may leave AUTO.
    pub canary: Option<Canary>,
    /// `LINKWISE_KERNEL_TIMES`: whether to request GPU times from NCCL.
    pub kernel_times: KernelTimes,
    /// NCCL's settings that change cost tables.
    pub nccl: NcclSettings,
    /// `LINKWISE_REWARD`: the time that judges an arm.
    pub reward: Reward,
    /// `LINKWISE_INTRA_NODE_TRANSPORT`: how ranks of one host communicate; socket or memory.
    pub intra_node_transport: IntraNodeTransport,
    /// `LINKWISE_STATUS`: the folder of status files ([`crate::status`]).
    pub status: Option<PathBuf>,
    /// `LINKWISE_FREEZE_AFTER`: when mode adaptive stops exploring and keeps the arms found.
    pub freeze_after: Option<FreezeAfter>,
    /// `LINKWISE_LEAD`: how long before its first call a change is agreed on, by the measured rate of calls.
    pub lead: Duration,
    /// `LINKWISE_ON_SILENCE`: what a call does that waits for a verdict which does not come.
    pub on_silence: OnSilence,
    /// Read only with `LINKWISE_TEST=1`.
    pub test: TestOptions,
}

/// `LINKWISE_KERNEL_TIMES`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KernelTimes {
    /// 0.
    Off,
    /// 1: unless the release is known to crash with them.
    On,
    /// `force`: on every release.
    Force,
}

/// What a process does when a call waits for a verdict that does not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnSilence {
    /// The call waits on.
    Wait,
    /// The process ends with an error.
    AbortProcess,
}

/// `LINKWISE_GRAPHS`: what is known about the program's CUDA graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Graphs {
    /// NCCL reports captured calls, which stay at AUTO.
    Told,
    /// The program captures no CUDA graphs, so arms may change on releases that do not report captures.
    None,
    /// All ranks capture the same calls between the same other calls, so captured calls may use the settled arm.
    Same,
}

/// The time that judges an arm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reward {
    /// Steps if the program reports them, else intervals.
    Auto,
    /// Steps reported by the program.
    Step,
    /// The time from one group with the slot to the next.
    Interval,
    /// The kernel's time on the GPU.
    Kernel,
}

/// Options for tests only.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TestOptions {
    /// `LINKWISE_TEST_REWARDS`: a file of times per arm.
    pub rewards: Option<Script>,
    /// `LINKWISE_TEST_ALONE=1`: each rank decides without the others. Real jobs hang.
    pub alone: bool,
    /// `LINKWISE_TEST_PANIC=1`: every entry point panics.
    pub panic: bool,
    /// `LINKWISE_TEST_UNLIKE=1`: NCCL's settings are not compared, as if the ranks' cost tables differed for another reason.
    pub unlike: bool,
}

/// A setting that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// A variable, or file:line.
    pub place: String,
    /// What was found and what was expected.
    pub what: String,
}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// Names of settings in the file; the variable of `key` is `LINKWISE_KEY`.
const KEYS: [&str; 22] = [
    "mode",
    "policy",
    "profile",
    "rendezvous",
    "token",
    "process",
    "bind",
    "intra_node_transport",
    "trace",
    "trace_bytes_max",
    "stop_file",
    "explore",
    "graphs",
    "simulated_groups",
    "job",
    "canary",
    "kernel_times",
    "reward",
    "status",
    "freeze_after",
    "lead",
    "on_silence",
];
/// Former names of settings, still accepted in the file and as variables.
const FORMER_KEYS: [(&str, &str); 2] = [("rendezvous", "meeting"), ("intra_node_transport", "inside")];
/// Set by `linkwise run`: the rendezvous if neither the user nor a launcher names one. Also accepted under its former name.
const RENDEZVOUS_FALLBACK: [&str; 2] = ["LINKWISE_RENDEZVOUS_FALLBACK", "LINKWISE_MEETING_ELSE"];
/// Default of `lead`, seconds.
const LEAD_S_DEFAULT: f64 = 5.0;
/// Largest `lead`, seconds.
const LEAD_S_MAX: f64 = 600.0;
/// Set by `linkwise run`: a random token, if the user sets none.
const TOKEN_FALLBACK: &str = "LINKWISE_TOKEN_FALLBACK";
/// Settings of tests only.
const TEST_KEYS: [&str; 5] = ["test", "test_rewards", "test_alone", "test_panic", "test_unlike"];

/// Variables of the plugin that are no settings: the file of settings, those of `linkwise run` and of launchers.
const OTHER_VARIABLES: [&str; 5] =
    ["LINKWISE_CONFIG", TOKEN_FALLBACK, "LINKWISE_SITE_TUNER", "LINKWISE_SITE_PROFILER", "LINKWISE_PORT"];
/// Variables of the commands, of the bench and of tests, which the environment of a job may have, too.
const FOREIGN_VARIABLES: [&str; 20] = [
    "LINKWISE_ARM",
    "LINKWISE_CACHE",
    "LINKWISE_CUDART",
    "LINKWISE_DATA",
    "LINKWISE_DEVICES",
    "LINKWISE_DOCS",
    "LINKWISE_DOCTOR_SEEDS",
    "LINKWISE_ITERATIONS",
    "LINKWISE_MODEL_LARGE",
    "LINKWISE_NCCL_SOURCE",
    "LINKWISE_NCCL_TESTS",
    "LINKWISE_NCCL_VERSIONS",
    "LINKWISE_OFFLINE",
    "LINKWISE_OVERLAP",
    "LINKWISE_PLUGIN",
    "LINKWISE_ROBUST_SEEDS",
    "LINKWISE_SIMULATION_STEPS",
    "LINKWISE_SIZE_BYTES",
    "LINKWISE_WARMUP",
    "LINKWISE_EPOCH_CALLS", // a former setting without effect
];
/// Beginnings of names of the bench, of tests and of the network plugin.
const FOREIGN_PREFIXES: [&str; 5] =
    ["LINKWISE_EMU_", "LINKWISE_TEST_", "LINKWISE_STATE_TEST_", "LINKWISE_NET", "LINKWISE_OFI_"];

/// All variables of the plugin.
fn own_variables() -> impl Iterator<Item = String> {
    let settings = KEYS.into_iter().chain(TEST_KEYS).chain(FORMER_KEYS.map(|(_, former)| former)).map(variable);
    settings.chain(RENDEZVOUS_FALLBACK.into_iter().chain(OTHER_VARIABLES).map(str::to_string))
}

/// A variable `LINKWISE_...` that is set and that nothing reads: a misspelt setting, which would be ignored in silence.
pub fn unknown_variable(names: impl Iterator<Item = std::ffi::OsString>) -> Option<ConfigError> {
    let foreign = |n: &str| FOREIGN_VARIABLES.contains(&n) || FOREIGN_PREFIXES.iter().any(|p| n.starts_with(p));
    let mut unknown: Vec<String> = names
        .filter_map(|n| n.into_string().ok())
        .filter(|n| n.starts_with("LINKWISE_") && !foreign(n) && !own_variables().any(|own| own == *n))
        .collect();
    unknown.sort();
    let name = unknown.into_iter().next()?;
    let nearest =
        own_variables().filter(|own| !own.starts_with("LINKWISE_TEST")).min_by_key(|own| edits(own, &name))?;
    Some(ConfigError::new(name, format!("no such variable; the nearest one is {nearest}")))
}

/// Letters to insert, delete or replace to make one word from the other. O(a b).
fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let left = row[j];
            let replaced = diagonal + usize::from(x != y);
            diagonal = std::mem::replace(&mut row[j + 1], 0);
            row[j + 1] = replaced.min(diagonal + 1).min(left + 1);
        }
    }
    row[b.len()]
}

/// The value of a setting and where it was found: a variable, or file:line.
type Setting = (String, String);

impl ConfigError {
    fn new(place: impl Into<String>, what: impl Into<String>) -> Self {
        ConfigError { place: place.into(), what: what.into() }
    }
}

/// The sources of settings: variables, then the file that `LINKWISE_CONFIG` names.
struct Sources<'a> {
    env: &'a dyn Fn(&str) -> Option<String>,
    read: &'a dyn Fn(&Path) -> Result<String, String>,
    file: Vec<(String, Setting)>,
}

fn variable(key: &str) -> String {
    format!("LINKWISE_{}", key.to_ascii_uppercase())
}

/// The current name of a setting.
fn current_key(key: &str) -> &str {
    FORMER_KEYS.iter().find(|(_, former)| *former == key).map_or(key, |(current, _)| current)
}

impl<'a> Sources<'a> {
    fn open(
        env: &'a dyn Fn(&str) -> Option<String>,
        read: &'a dyn Fn(&Path) -> Result<String, String>,
    ) -> Result<Self, ConfigError> {
        let mut file = Vec::new();
        if let Some(path) = env("LINKWISE_CONFIG").filter(|p| !p.is_empty()) {
            let text = read(Path::new(&path)).map_err(|what| ConfigError::new(&path, what))?;
            file = settings(&path, &text)?;
        }
        Ok(Sources { env, read, file })
    }

    fn set_variable(&self, name: &str) -> Option<Setting> {
        (self.env)(name).filter(|v| !v.is_empty()).map(|v| (v, name.into()))
    }

    fn get(&self, key: &str) -> Option<Setting> {
        let former = FORMER_KEYS.iter().filter(|(current, _)| *current == key).map(|(_, former)| variable(former));
        std::iter::once(variable(key))
            .chain(former)
            .find_map(|name| self.set_variable(&name))
            .or_else(|| self.file.iter().find(|(k, _)| k == key).map(|(_, s)| s.clone()))
    }

    fn path(&self, key: &str) -> Option<PathBuf> {
        self.get(key).map(|(v, _)| PathBuf::from(v))
    }

    fn number(&self, key: &str, expected: &str) -> Result<Option<u64>, ConfigError> {
        let Some((v, place)) = self.get(key) else { return Ok(None) };
        v.parse().map(Some).map_err(|_| ConfigError::new(place, format!("`{v}` is not {expected}")))
    }

    /// The position of the setting's value in `words`, in any case.
    fn word(&self, key: &str, words: &[&str]) -> Result<Option<usize>, ConfigError> {
        let Some((v, place)) = self.get(key) else { return Ok(None) };
        let at = words.iter().position(|w| w.eq_ignore_ascii_case(&v));
        at.map(Some).ok_or_else(|| ConfigError::new(place, format!("`{v}` is none of {}", words.join(", "))))
    }

    fn is_one(&self, key: &str) -> Result<bool, ConfigError> {
        Ok(self.word(key, &["0", "1"])? == Some(1))
    }

    fn parsed<T>(&self, key: &str, wrong: impl Fn(&str, T::Err) -> String) -> Result<Option<T>, ConfigError>
    where
        T: std::str::FromStr,
    {
        let Some((v, place)) = self.get(key) else { return Ok(None) };
        v.parse().map(Some).map_err(|e| ConfigError::new(place, wrong(&v, e)))
    }

    /// Parses the file that a setting names; `parse` reports errors with their line.
    fn parsed_file<T>(
        &self,
        key: &str,
        parse: impl Fn(&str) -> Result<T, (usize, String)>,
    ) -> Result<Option<T>, ConfigError> {
        let Some((path, place)) = self.get(key) else { return Ok(None) };
        let text = (self.read)(Path::new(&path)).map_err(|e| ConfigError::new(place, format!("{path}: {e}")))?;
        parse(&text).map(Some).map_err(|(line, what)| ConfigError::new(format!("{path}:{line}"), what))
    }

    fn mode(&self) -> Result<Mode, ConfigError> {
        Ok(match self.word("mode", &["off", "observe", "profile", "adaptive"])? {
            Some(1) => Mode::Observe,
            Some(2) => Mode::Profile,
            Some(3) => Mode::Adaptive,
            _ => Mode::Off,
        })
    }

    fn profile(&self, mode: Mode) -> Result<Option<Profile>, ConfigError> {
        if mode != Mode::Profile {
            return Ok(None);
        }
        let profile = self.parsed_file("profile", Profile::parse)?;
        let missing = || ConfigError::new(variable("mode"), "mode profile needs LINKWISE_PROFILE, the path of a table");
        profile.ok_or_else(missing).map(Some)
    }

    /// The user's setting; else the launcher's rendezvous, unless all ranks are on one host and `linkwise run` offers a local one; else the
    /// fallback of `linkwise run`.
    fn rendezvous(&self) -> Result<Option<Rendezvous>, ConfigError> {
        if let Some(named) = self.parsed("rendezvous", |_, e| e)? {
            return Ok(Some(named));
        }
        let by_launcher = launcher::rendezvous(&self.env)?;
        let Some((fallback, place)) = RENDEZVOUS_FALLBACK.iter().find_map(|name| self.set_variable(name)) else {
            return Ok(by_launcher);
        };
        if by_launcher.is_some() && !is_on_one_host(&self.env) {
            return Ok(by_launcher);
        }
        fallback.parse().map(Some).map_err(|what| ConfigError::new(place, what))
    }

    /// The token, and whether others can guess it.
    fn token(&self) -> Result<(String, bool), ConfigError> {
        let most = agreement::transport::TOKEN_BYTES_MAX;
        // torchrun's agents on several hosts are each started by a `linkwise run` of their own, with tokens of their own.
        let torchrun_of_several = (self.env)(TORCHRUN.processes_on_host).is_some() && !is_on_one_host(&self.env);
        let fallback = || self.set_variable(TOKEN_FALLBACK).filter(|_| !torchrun_of_several);
        let said = self.get("token").or_else(fallback);
        let is_guessable = said.is_none();
        match said.or_else(|| job(&self.env).map(|j| (j, "the launcher's job id".into()))) {
            Some((t, place)) if t.len() > most => {
                Err(ConfigError::new(place, format!("a token has at most {most} bytes, this one has {}", t.len())))
            }
            token => Ok((token.map(|(t, _)| t).unwrap_or_default(), is_guessable)),
        }
    }

    fn policy(&self) -> Result<String, ConfigError> {
        let Some((name, place)) = self.get("policy") else { return Ok(crate::policies::default_name().into()) };
        crate::policies::check(&name).map_err(|what| ConfigError::new(place, what))?;
        Ok(name)
    }

    fn lead(&self) -> Result<Duration, ConfigError> {
        let Some((v, place)) = self.get("lead") else { return Ok(Duration::from_secs_f64(LEAD_S_DEFAULT)) };
        let seconds = v.parse().ok().filter(|s| (0.0..=LEAD_S_MAX).contains(s));
        let wrong = || ConfigError::new(place, format!("`{v}` is not a time, 0 to {LEAD_S_MAX} seconds"));
        seconds.map(Duration::from_secs_f64).ok_or_else(wrong)
    }

    fn reward(&self) -> Result<Reward, ConfigError> {
        Ok(match self.word("reward", &["auto", "step", "interval", "kernel"])? {
            Some(1) => Reward::Step,
            Some(2) => Reward::Interval,
            Some(3) => Reward::Kernel,
            _ => Reward::Auto,
        })
    }

    /// GPU times that judge arms must be asked for.
    fn kernel_times(&self) -> Result<KernelTimes, ConfigError> {
        Ok(match self.word("kernel_times", &["0", "1", "force"])? {
            Some(1) => KernelTimes::On,
            Some(2) => KernelTimes::Force,
            None if self.reward()? == Reward::Kernel => KernelTimes::On,
            _ => KernelTimes::Off,
        })
    }

    fn intra_node_transport(&self) -> Result<IntraNodeTransport, ConfigError> {
        Ok(match self.word("intra_node_transport", &["socket", "memory"])? {
            Some(1) => IntraNodeTransport::SharedMemory,
            _ => IntraNodeTransport::Socket,
        })
    }

    fn test(&self) -> Result<TestOptions, ConfigError> {
        if !self.is_one("test")? {
            return Ok(TestOptions::default());
        }
        Ok(TestOptions {
            rewards: self.parsed_file("test_rewards", Script::parse)?,
            alone: self.is_one("test_alone")?,
            panic: self.is_one("test_panic")?,
            unlike: self.is_one("test_unlike")?,
        })
    }
}

impl Config {
    /// Loads variables and the file that they name. `read` reads a file of at most [`FILE_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// The first setting that is wrong, with its place.
    pub fn load(
        env: impl Fn(&str) -> Option<String>,
        read: impl Fn(&Path) -> Result<String, String>,
    ) -> Result<Self, ConfigError> {
        let from = Sources::open(&env, &read)?;
        let mode = from.mode()?;
        let process = from.parsed("process", |_, e| e)?.or_else(|| process(&env));
        let (token, token_is_guessable) = from.token()?;
        Ok(Config {
            mode,
            policy: from.policy()?,
            profile: from.profile(mode)?,
            rendezvous: from.rendezvous()?,
            process,
            job: wire::bytes::hash(format!("job {token} {}", attempt(&env)).as_bytes()),
            token,
            token_is_guessable,
            bind: from.parsed("bind", |v, _| format!("`{v}` is not an IP address"))?,
            trace: from.path("trace"),
            trace_bytes_max: from.number("trace_bytes_max", "a number of bytes")?.unwrap_or(TRACE_BYTES_MAX),
            stop_file: from.path("stop_file"),
            explore_all: from.word("explore", &["connected", "all"])? == Some(1),
            graphs: match from.word("graphs", &["told", "none", "same"])? {
                Some(1) => Graphs::None,
                Some(2) => Graphs::Same,
                _ => Graphs::Told,
            },
            no_simulated_groups: from.word("simulated_groups", &["told", "none"])? == Some(1),
            closed_job: from.word("job", &["open", "closed"])? == Some(1),
            canary: from.parsed("canary", |_, e| e)?,
            kernel_times: from.kernel_times()?,
            nccl: NcclSettings::read(&env),
            reward: from.reward()?,
            intra_node_transport: from.intra_node_transport()?,
            status: from.path("status"),
            freeze_after: from.parsed("freeze_after", |_, e| e)?,
            lead: from.lead()?,
            on_silence: match from.word("on_silence", &["wait", "abort-process"])? {
                Some(1) => OnSilence::AbortProcess,
                _ => OnSilence::Wait,
            },
            test: from.test()?,
        })
    }

    /// Identifies everything that must be the same on every rank; [`alike::differing`] names what differs. `release`: NCCL's.
    pub fn common(&self, release: Option<u32>) -> u64 {
        let profile = self.profile.as_ref().map_or(0, |p| p.hash);
        let text = format!(
            "{} {:?} {} {profile:x} {} {:?} {:?}",
            env!("PLUGIN_BUILD"),
            self.mode,
            self.policy,
            self.explore_all,
            self.reward,
            self.graphs
        );
        let nccl = if self.test.unlike { &NcclSettings::default() } else { &self.nccl };
        alike::pack(wire::bytes::hash(text.as_bytes()), release, nccl)
    }
}

/// Parses `key = value` lines; `#` begins a comment.
fn settings(path: &str, text: &str) -> Result<Vec<(String, Setting)>, ConfigError> {
    let mut all: Vec<(String, Setting)> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.split_once('#').map_or(line, |(l, _)| l).trim();
        if line.is_empty() {
            continue;
        }
        let place = format!("{path}:{}", i + 1);
        let wrong = |what: String| ConfigError { place: place.clone(), what };
        let (key, value) =
            line.split_once('=').ok_or_else(|| wrong(format!("`{line}` is not a setting; write key = value")))?;
        let (key, value) = (key.trim().to_ascii_lowercase(), value.trim().trim_matches('"'));
        let key = current_key(&key).to_owned();
        if key == "net" || key.starts_with("net_") {
            continue; // of the network plugin, which reads the same file
        }
        if !KEYS.contains(&key.as_str()) && !TEST_KEYS.contains(&key.as_str()) {
            return Err(wrong(format!("there is no setting `{key}`; there are {}", KEYS.join(", "))));
        }
        if all.iter().any(|(k, _)| *k == key) {
            return Err(wrong(format!("`{key}` is set twice")));
        }
        all.push((key, (value.into(), place)));
    }
    Ok(all)
}

/// Longest time for all files of the settings. A file system that hangs turns the plugin off.
pub const READ_TIME_MAX: Duration = Duration::from_secs(1);

/// Reads a regular file of at most [`FILE_BYTES_MAX`] bytes before `deadline`, on a thread of its own: the file system may hang.
pub fn read_file_until(path: &Path, deadline: Instant) -> Result<String, String> {
    let (path, (done, result)) = (path.to_owned(), std::sync::mpsc::channel());
    let thread = std::thread::Builder::new().name("linkwise-files".into());
    let reader = crate::abi::without_signals(|| thread.spawn(move || _ = done.send(read_file(&path))));
    let reader = reader.map_err(|e| format!("cannot start a thread to read it: {e}"))?;
    match result.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(read) => {
            let _ = reader.join();
            read
        }
        Err(_) => {
            crate::abi::nccl::keep_this_library(); // the thread goes on when its file system does
            Err(format!("could not be read within {} s: does its file system hang?", READ_TIME_MAX.as_secs()))
        }
    }
}

/// Reads a regular file of at most [`FILE_BYTES_MAX`] bytes. Opening a FIFO or a device does not wait.
pub fn read_file(path: &Path) -> Result<String, String> {
    use rustix::fs::{Mode as Permissions, OFlags};
    use std::io::Read;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = std::fs::File::from(rustix::fs::open(path, flags, Permissions::empty()).map_err(|e| e.to_string())?);
    if !file.metadata().map_err(|e| e.to_string())?.is_file() {
        return Err("not a regular file".into());
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|e| e.to_string())?;
    if text.len() as u64 > FILE_BYTES_MAX { Err(format!("more than {FILE_BYTES_MAX} bytes")) } else { Ok(text) }
}

/// The first `LINKWISE_*` variable whose value is not UTF-8.
pub fn not_text(vars: impl IntoIterator<Item = (OsString, OsString)>) -> Option<ConfigError> {
    let ours = vars.into_iter().filter(|(name, _)| name.to_string_lossy().starts_with("LINKWISE_"));
    let wrong = ours.filter(|(_, value)| value.to_str().is_none()).map(|(name, _)| name).min()?;
    Some(ConfigError::new(wrong.to_string_lossy(), "its value is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(vars: &[(&str, &str)], file: &str) -> Result<Config, ConfigError> {
        let env = |k: &str| vars.iter().find(|(n, _)| *n == k).map(|(_, v)| v.to_string());
        Config::load(env, |_| Ok(file.into()))
    }

    #[test]
    fn a_misspelt_variable_is_named_with_the_nearest_one() {
        let unknown = |names: &[&str]| unknown_variable(names.iter().map(OsString::from)).map(|e| e.to_string());
        let said = unknown(&["PATH", "LINKWISE_MODE", "LINKWISE_CANRY"]).unwrap();
        assert_eq!(said, "LINKWISE_CANRY: no such variable; the nearest one is LINKWISE_CANARY");
        assert!(unknown(&["LINKWISE_STATUSS"]).unwrap().ends_with("LINKWISE_STATUS"));
        assert!(unknown(&["LINKWISE_SIMULATE_GROUPS"]).unwrap().ends_with("LINKWISE_SIMULATED_GROUPS"));
        let known: Vec<String> = own_variables().collect();
        assert_eq!(unknown(&known.iter().map(String::as_str).collect::<Vec<_>>()), None);
        assert_eq!(unknown(&["LINKWISE_DATA", "LINKWISE_EMU_LATE_MS", "NOT_LINKWISE_X"]), None);
    }

    #[test]
    fn every_variable_that_a_program_of_this_repository_reads_is_known() {
        fn sources(folder: &Path, found: &mut Vec<String>) {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let path = entry.path();
                let skip = ["target", ".git", ".cargo"].iter().any(|n| path.ends_with(n));
                if path.is_dir() && !skip {
                    sources(&path, found);
                } else if path.extension().is_some_and(|e| ["rs", "c", "py", "h"].iter().any(|x| e == *x)) {
                    found.push(std::fs::read_to_string(&path).unwrap_or_default());
                }
            }
        }
        let mut texts = Vec::new();
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), &mut texts);
        assert!(texts.len() > 100);
        for text in texts {
            for read in ["env::var(\"", "env::var_os(\"", "getenv(\"", "environ.get(\"", "option_env!(\""] {
                for name in text.split(read).skip(1).filter_map(|rest| rest.split('"').next()) {
                    let unknown = unknown_variable(std::iter::once(OsString::from(name)));
                    assert_eq!(unknown, None, "add the variable to a list of this file");
                }
            }
        }
    }

    #[test]
    fn without_settings_the_mode_is_off() {
        let c = load(&[], "").unwrap();
        assert_eq!((c.mode, c.rendezvous, c.test), (Mode::Off, None, TestOptions::default()));
    }

    #[test]
    fn a_variable_wins_over_the_file() {
        let file = "# ours\nmode = adaptive\nlead = 8 # seconds\n";
        let c = load(&[("LINKWISE_CONFIG", "/x"), ("LINKWISE_MODE", "observe")], file).unwrap();
        assert_eq!((c.mode, c.lead), (Mode::Observe, Duration::from_secs(8)));
    }

    #[test]
    fn a_wrong_setting_is_reported_with_its_place() {
        for (file, place, what) in [
            ("mode = adaptive\nspeed = 3\n", "/x:2", "there is no setting `speed`"),
            ("mode\n", "/x:1", "write key = value"),
            ("\nmode = fast\n", "/x:2", "`fast` is none of off, observe, profile, adaptive"),
            ("mode = off\nmode = off\n", "/x:2", "twice"),
            ("rendezvous = tcp:x\n", "/x:1", "not a rendezvous"),
            ("bind = everywhere\n", "/x:1", "not an IP address"),
            ("trace_bytes_max = many\n", "/x:1", "not a number of bytes"),
            ("graphs = some\n", "/x:1", "none of told, none, same"),
            ("simulated_groups = some\n", "/x:1", "none of told, none"),
            ("job = shut\n", "/x:1", "none of open, closed"),
            ("canary = 8\n", "/x:1", "not a canary"),
            ("kernel_times = 2\n", "/x:1", "none of 0, 1, force"),
            ("process = 8/8\n", "/x:1", "not a rank in a job"),
            ("lead = soon\n", "/x:1", "not a time"),
            ("lead = -1\n", "/x:1", "not a time"),
            ("on_silence = panic\n", "/x:1", "none of wait, abort-process"),
            ("policy = magic\n", "/x:1", "there is no policy `magic`; there are "),
            ("mode = profile\n", "LINKWISE_MODE", "needs LINKWISE_PROFILE"),
        ] {
            let e = load(&[("LINKWISE_CONFIG", "/x")], file).unwrap_err();
            assert!(e.place == place && e.what.contains(what), "{file:?}: {e}");
        }
    }

    #[test]
    fn ranks_of_a_host_use_shared_memory_only_if_selected() {
        let transport = |set: &[(&str, &str)]| load(set, "").map(|c| c.intra_node_transport).map_err(|e| e.to_string());
        assert_eq!(transport(&[]), Ok(IntraNodeTransport::Socket));
        assert_eq!(transport(&[("LINKWISE_INTRA_NODE_TRANSPORT", "memory")]), Ok(IntraNodeTransport::SharedMemory));
        let wrong = transport(&[("LINKWISE_INTRA_NODE_TRANSPORT", "pigeon")]).unwrap_err();
        assert_eq!(wrong, "LINKWISE_INTRA_NODE_TRANSPORT: `pigeon` is none of socket, memory");
    }

    #[test]
    fn former_names_of_settings_are_accepted() {
        let file = load(&[("LINKWISE_CONFIG", "/x")], "meeting = local:a\ninside = memory\n").unwrap();
        let variables = load(&[("LINKWISE_MEETING", "local:a"), ("LINKWISE_INSIDE", "memory")], "").unwrap();
        for c in [file, variables] {
            assert_eq!(c.rendezvous, Some(Rendezvous::Local("a".into())));
            assert_eq!(c.intra_node_transport, IntraNodeTransport::SharedMemory);
        }
        let both = [("LINKWISE_MEETING", "local:old"), ("LINKWISE_RENDEZVOUS", "local:new")];
        assert_eq!(load(&both, "").unwrap().rendezvous, Some(Rendezvous::Local("new".into())));
        let twice = load(&[("LINKWISE_CONFIG", "/x")], "meeting = local:a\nrendezvous = local:b\n").unwrap_err();
        assert_eq!((twice.place.as_str(), twice.what.as_str()), ("/x:2", "`rendezvous` is set twice"));
        let fallback = load(&[("LINKWISE_MEETING_ELSE", "local:x")], "").unwrap();
        assert_eq!(fallback.rendezvous, Some(Rendezvous::Local("x".into())));
        let wrong = load(&[("LINKWISE_MEETING", "x")], "").unwrap_err();
        assert_eq!(wrong.place, "LINKWISE_MEETING");
    }

    #[test]
    fn a_value_that_is_no_text_is_an_error_and_a_fifo_is_no_file() {
        use std::os::unix::ffi::OsStringExt;
        let var = |name: &str, value: &[u8]| (OsString::from(name), OsString::from_vec(value.to_vec()));
        assert_eq!(not_text([var("LINKWISE_MODE", b"off"), var("OTHER", b"\xff")]), None);
        let e = not_text([var("LINKWISE_MODE", b"observe\xff")]).unwrap();
        assert_eq!(e.to_string(), "LINKWISE_MODE: its value is not UTF-8");
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        assert_eq!(read_file(&fifo), Err("not a regular file".into()));
        assert_eq!(read_file(folder.path()), Err("not a regular file".into()));
    }

    #[test]
    fn settings_of_the_network_plugin_are_left_to_it() {
        let c = load(&[("LINKWISE_CONFIG", "/x")], "net = tcp\nnet_rails = eth1,eth2\nmode = observe\n").unwrap();
        assert_eq!(c.mode, Mode::Observe);
        assert!(load(&[("LINKWISE_CONFIG", "/x")], "network = tcp\n").is_err());
    }

    #[test]
    fn test_options_need_the_test_switch() {
        let set = [("LINKWISE_TEST_ALONE", "1"), ("LINKWISE_TEST_PANIC", "1"), ("LINKWISE_TEST_REWARDS", "/r")];
        assert_eq!(load(&set, "").unwrap().test, TestOptions::default());
    }

    #[test]
    fn the_launcher_determines_the_rendezvous() {
        let c = load(&[("MASTER_ADDR", "n0"), ("MASTER_PORT", "29500"), ("TORCHELASTIC_RUN_ID", "j")], "").unwrap();
        assert_eq!(c.rendezvous, Some(Rendezvous::Tcp { host: "n0".into(), port: 31_217 }));
        assert_eq!((c.token.as_str(), c.token_is_guessable), ("j", true));
        // The fallback counts only if neither the user nor a launcher names a rendezvous.
        let last = ("LINKWISE_RENDEZVOUS_FALLBACK", "local:x");
        let at = |set: &[(&str, &str)]| load(set, "").unwrap().rendezvous.map(|m| m.to_string());
        assert_eq!(at(&[last]), Some("local:x".into()));
        assert_eq!(at(&[last, ("MASTER_ADDR", "n0"), ("MASTER_PORT", "1")]), Some("tcp:n0:1718".into()));
        assert_eq!(at(&[last, ("LINKWISE_RENDEZVOUS", "local:y")]), Some("local:y".into()));
        let one_host = [("WORLD_SIZE", "8"), ("LOCAL_WORLD_SIZE", "8")];
        let inside = [&[last, ("MASTER_ADDR", "n0"), ("MASTER_PORT", "1")][..], &one_host].concat();
        assert_eq!(at(&inside), Some("local:x".into()), "a local rendezvous opens no port that other users can reach");
        assert_eq!(at(&inside[1..]), Some("tcp:n0:1718".into()));
    }
}
