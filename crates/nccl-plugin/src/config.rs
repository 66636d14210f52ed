//! Settings: `LINKWISE_*` variables and one file, `LINKWISE_CONFIG`. Variables override the file. An error turns the
//! plugin off and logs one line that names the variable or the line of the file.

pub mod variables;

use crate::alike::{self, NcclSettings};
use crate::canary::Canary;
use crate::coordinator::FreezeAfter;
use crate::launcher;
use crate::profile::Profile;
use crate::rewards::Script;
use agreement::Rendezvous;
use agreement::launcher::{JobProcess, TORCHRUN, attempt, is_on_one_host, job, process};
use agreement::transport::IntraNodeTransport;
use plugin_base::read::{FILE_BYTES_MAX, READ_TIME_MAX, read_file_until};
use plugin_base::settings::{not_text, variable};
use plugin_base::{ConfigError, Sources};
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use variables::{KEYS, RENDEZVOUS_FALLBACK, TOKEN_FALLBACK};

/// Default of `lead`, seconds.
const LEAD_S_DEFAULT: f64 = 5.0;
/// Largest `lead`, seconds.
const LEAD_S_MAX: f64 = 600.0;
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

fn profile(from: &Sources<'_>, mode: Mode) -> Result<Option<Profile>, ConfigError> {
    if mode != Mode::Profile {
        return Ok(None);
    }
    let missing = || ConfigError::new(variable("mode"), "mode profile needs LINKWISE_PROFILE, the path of a table");
    from.parsed_file("profile", Profile::parse)?.ok_or_else(missing).map(Some)
}

/// The user's setting; else the launcher's rendezvous, unless all ranks are on one host and `linkwise run` offers a local one; else the
/// fallback of `linkwise run`.
fn rendezvous(from: &Sources<'_>) -> Result<Option<Rendezvous>, ConfigError> {
    if let Some(named) = from.parsed("rendezvous")? {
        return Ok(Some(named));
    }
    let by_launcher = launcher::rendezvous(&from.env)?;
    let Some((fallback, place)) = RENDEZVOUS_FALLBACK.iter().find_map(|name| from.set_variable(name)) else {
        return Ok(by_launcher);
    };
    if by_launcher.is_some() && !is_on_one_host(&from.env) {
        return Ok(by_launcher);
    }
    fallback.parse().map(Some).map_err(|what: String| ConfigError::new(place, what))
}

/// The token, and whether others can guess it.
fn token(from: &Sources<'_>) -> Result<(String, bool), ConfigError> {
    let most = agreement::transport::TOKEN_BYTES_MAX;
    // torchrun's agents on several hosts are each started by a `linkwise run` of their own, with tokens of their own.
    let torchrun_of_several = (from.env)(TORCHRUN.processes_on_host).is_some() && !is_on_one_host(&from.env);
    let fallback = || from.set_variable(TOKEN_FALLBACK).filter(|_| !torchrun_of_several);
    let said = from.get("token").or_else(fallback);
    let is_guessable = said.is_none();
    match said.or_else(|| job(&from.env).map(|j| (j, "the launcher's job id".into()))) {
        Some((t, place)) if t.len() > most => {
            Err(ConfigError::new(place, format!("a token has at most {most} bytes, this one has {}", t.len())))
        }
        token => Ok((token.map(|(t, _)| t).unwrap_or_default(), is_guessable)),
    }
}

fn policy(from: &Sources<'_>) -> Result<String, ConfigError> {
    let Some((name, place)) = from.get("policy") else { return Ok(crate::policies::default_name().into()) };
    crate::policies::check(&name).map_err(|what| ConfigError::new(place, what))?;
    Ok(name)
}

fn lead(from: &Sources<'_>) -> Result<Duration, ConfigError> {
    let expected = format!("a time, 0 to {LEAD_S_MAX} seconds");
    let in_range = |v: &str| v.parse().ok().filter(|s| (0.0..=LEAD_S_MAX).contains(s));
    Ok(Duration::from_secs_f64(from.parsed_as("lead", &expected, in_range)?.unwrap_or(LEAD_S_DEFAULT)))
}

fn test(from: &Sources<'_>) -> Result<TestOptions, ConfigError> {
    let is_set = |key: &str| Ok::<bool, ConfigError>(from.flag(key)? == Some(true));
    if !is_set("test")? {
        return Ok(TestOptions::default());
    }
    Ok(TestOptions {
        rewards: from.parsed_file("test_rewards", Script::parse)?,
        alone: is_set("test_alone")?,
        panic: is_set("test_panic")?,
        unlike: is_set("test_unlike")?,
    })
}

impl Config {
    /// The settings of a process with these variables. Files are read within [`READ_TIME_MAX`].
    ///
    /// # Errors
    /// The first setting that is wrong, with its place: a variable that nothing reads, a value that is not UTF-8, or as [`Config::load`].
    pub fn of_variables(variables: Vec<(OsString, OsString)>) -> Result<Self, ConfigError> {
        let deadline = Instant::now() + READ_TIME_MAX;
        if let Some(e) = not_text(variables.clone()) {
            return Err(e);
        }
        let said = variables.iter().filter(|v| !v.1.is_empty()).map(|v| v.0.clone());
        if let Some(e) = variables::unknown(said) {
            return Err(e);
        }
        let text = |name: &str| variables.iter().find(|v| v.0 == name)?.1.to_str().map(str::to_owned);
        Config::load(text, |path| read_file_until(path, FILE_BYTES_MAX, deadline))
    }

    /// Loads variables and the file that they name. `read` limits a file's size and the time to read it ([`plugin_base::read`]).
    ///
    /// # Errors
    /// The first setting that is wrong, with its place.
    pub fn load(
        env: impl Fn(&str) -> Option<String>,
        read: impl Fn(&Path) -> Result<String, String>,
    ) -> Result<Self, ConfigError> {
        let from = &Sources::open(&KEYS, &env, &read)?;
        let modes =
            [("off", Mode::Off), ("observe", Mode::Observe), ("profile", Mode::Profile), ("adaptive", Mode::Adaptive)];
        let mode = from.word("mode", &modes)?.unwrap_or(Mode::Off);
        let process = from.parsed("process")?.or_else(|| process(&env));
        let (token, token_is_guessable) = token(from)?;
        let rewards = [
            ("auto", Reward::Auto),
            ("step", Reward::Step),
            ("interval", Reward::Interval),
            ("kernel", Reward::Kernel),
        ];
        let reward = from.word("reward", &rewards)?.unwrap_or(Reward::Auto);
        // GPU times that judge arms must be requested.
        let times_by_default = if reward == Reward::Kernel { KernelTimes::On } else { KernelTimes::Off };
        let kernel_times = [("0", KernelTimes::Off), ("1", KernelTimes::On), ("force", KernelTimes::Force)];
        let graphs = [("told", Graphs::Told), ("none", Graphs::None), ("same", Graphs::Same)];
        let transports = [("socket", IntraNodeTransport::Socket), ("memory", IntraNodeTransport::SharedMemory)];
        let on_silence = [("wait", OnSilence::Wait), ("abort-process", OnSilence::AbortProcess)];
        Ok(Config {
            mode,
            policy: policy(from)?,
            profile: profile(from, mode)?,
            rendezvous: rendezvous(from)?,
            process,
            job: wire::bytes::hash(format!("job {token} {}", attempt(&env)).as_bytes()),
            token,
            token_is_guessable,
            bind: from.parsed_as("bind", "an IP address", |v| v.parse().ok())?,
            trace: from.path("trace"),
            trace_bytes_max: from
                .parsed_as("trace_bytes_max", "a number of bytes", |v| v.parse().ok())?
                .unwrap_or(TRACE_BYTES_MAX),
            stop_file: from.path("stop_file"),
            explore_all: from.word("explore", &[("connected", false), ("all", true)])?.unwrap_or(false),
            graphs: from.word("graphs", &graphs)?.unwrap_or(Graphs::Told),
            no_simulated_groups: from.word("simulated_groups", &[("told", false), ("none", true)])?.unwrap_or(false),
            closed_job: from.word("job", &[("open", false), ("closed", true)])?.unwrap_or(false),
            canary: from.parsed("canary")?,
            kernel_times: from.word("kernel_times", &kernel_times)?.unwrap_or(times_by_default),
            nccl: NcclSettings::read(&env),
            reward,
            intra_node_transport: from.word("intra_node_transport", &transports)?.unwrap_or(IntraNodeTransport::Socket),
            status: from.path("status"),
            freeze_after: from.parsed("freeze_after")?,
            lead: lead(from)?,
            on_silence: from.word("on_silence", &on_silence)?.unwrap_or(OnSilence::Wait),
            test: test(from)?,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn load(vars: &[(&str, &str)], file: &str) -> Result<Config, ConfigError> {
        let env = |k: &str| vars.iter().find(|(n, _)| *n == k).map(|(_, v)| v.to_string());
        Config::load(env, |_| Ok(file.into()))
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
