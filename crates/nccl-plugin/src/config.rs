//! Settings: `LINKWISE_*` variables and one file, `LINKWISE_CONFIG`. A variable wins over the file. What is wrong turns the plugin off, with
//! one line in NCCL's log that says where.

use crate::launcher;
use crate::profile::Profile;
use crate::rewards::Script;
use agreement::Meeting;
use agreement::launcher::{JobProcess, attempt, is_on_one_host, job, process};
use agreement::transport::Inside;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Largest file of settings or profile.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
/// Largest trace by default: 64 MiB are some 400,000 calls.
pub const TRACE_BYTES_MAX: u64 = 64 << 20;

/// What the plugin does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Nothing.
    Off,
    /// Writes down what NCCL does.
    Observe,
    /// Applies a table.
    Profile,
    /// Tries arms and keeps the best.
    Adaptive,
}

/// All settings.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `LINKWISE_MODE`: off, observe, profile, adaptive.
    pub mode: Mode,
    /// `LINKWISE_POLICY`: name of the policy in mode adaptive.
    pub policy: String,
    /// `LINKWISE_PROFILE`: the table of mode profile.
    pub profile: Option<Profile>,
    /// `LINKWISE_MEETING`: where processes find one another.
    pub meeting: Option<Meeting>,
    /// `LINKWISE_TOKEN`: what they know of one another.
    pub token: String,
    /// `LINKWISE_PROCESS`, or what the launcher says: which of the job's processes this is.
    pub process: Option<JobProcess>,
    /// The same in all processes of one attempt of the job, and of no other.
    pub job: u64,
    /// `LINKWISE_BIND`: the address to listen at.
    pub bind: Option<IpAddr>,
    /// `LINKWISE_TRACE`: the folder of traces.
    pub trace: Option<PathBuf>,
    /// `LINKWISE_TRACE_BYTES_MAX`.
    pub trace_bytes_max: u64,
    /// `LINKWISE_STOP_FILE`: when this file appears, all ranks go back to AUTO for good.
    pub stop_file: Option<PathBuf>,
    /// `LINKWISE_EXPLORE`: `connected` (algorithms that the communicator uses already) or `all`.
    pub explore_all: bool,
    /// `LINKWISE_GRAPHS=none`: the program says that it captures no CUDA graphs; mode adaptive also where NCCL does not tell captured calls.
    pub no_graphs: bool,
    /// `LINKWISE_KERNEL_TIMES`: whether to ask NCCL for GPU times. Not said: where the release is known to bear it.
    pub kernel_times: Option<bool>,
    /// `LINKWISE_REWARD`: what an arm is judged by; auto, step, interval or kernel.
    pub reward: Reward,
    /// `LINKWISE_EPOCH_CALLS`: calls of a slot that one epoch decides on.
    pub epoch_calls: u32,
    /// `LINKWISE_INSIDE`: how ranks of one host talk; socket or memory.
    pub inside: Inside,
    /// Only with `LINKWISE_TEST=1`.
    pub test: TestOptions,
}

/// What an arm is judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reward {
    /// Steps where the program says them, else intervals.
    Auto,
    /// Steps as the program says them.
    Step,
    /// The time from one call of a slot to the next.
    Interval,
    /// GPU time of the kernel.
    Kernel,
}

/// What tests may ask for and nobody else.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TestOptions {
    /// `LINKWISE_TEST_REWARDS`: a file of times per arm.
    pub rewards: Option<Script>,
    /// `LINKWISE_TEST_ALONE=1`: every rank decides for itself. Jobs hang.
    pub alone: bool,
    /// `LINKWISE_TEST_PANIC=1`: every entry panics.
    pub panic: bool,
}

/// What is wrong with a setting, and where.
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

/// What a file may set.
const KEYS: [&str; 16] = [
    "mode",
    "policy",
    "profile",
    "meeting",
    "token",
    "process",
    "bind",
    "inside",
    "trace",
    "trace_bytes_max",
    "stop_file",
    "explore",
    "graphs",
    "kernel_times",
    "epoch_calls",
    "reward",
];
const EPOCH_CALLS: &str = "a number of calls, 1 to 65536";
/// What only tests set.
const TEST_KEYS: [&str; 4] = ["test", "test_rewards", "test_alone", "test_panic"];

/// A setting and where it was found.
type Found = (String, String);

impl Config {
    /// From variables and the file that they name. `read` reads a file of at most [`FILE_BYTES_MAX`] bytes.
    pub fn load(
        env: impl Fn(&str) -> Option<String>,
        read: impl Fn(&Path) -> Result<String, String>,
    ) -> Result<Self, ConfigError> {
        let variable = |key: &str| format!("LINKWISE_{}", key.to_ascii_uppercase());
        let mut file: Vec<(String, Found)> = Vec::new();
        if let Some(path) = env("LINKWISE_CONFIG").filter(|p| !p.is_empty()) {
            let text = read(Path::new(&path)).map_err(|what| ConfigError { place: path.clone(), what })?;
            file = settings(&path, &text)?;
        }
        let get = |key: &str| -> Option<Found> {
            let set = env(&variable(key)).filter(|v| !v.is_empty()).map(|v| (v, variable(key)));
            set.or_else(|| file.iter().find(|(k, _)| k == key).map(|(_, f)| f.clone()))
        };
        let text = |key: &str| get(key).map(|f| f.0);
        let parsed = |key: &str, what: &str| -> Result<Option<u64>, ConfigError> {
            let Some((v, place)) = get(key) else { return Ok(None) };
            v.parse().map(Some).map_err(|_| ConfigError { place, what: format!("`{v}` is not {what}") })
        };
        let word = |key: &str, words: &[&str]| -> Result<Option<usize>, ConfigError> {
            let Some((v, place)) = get(key) else { return Ok(None) };
            let at = words.iter().position(|w| w.eq_ignore_ascii_case(&v));
            at.map(Some).ok_or_else(|| ConfigError { place, what: format!("`{v}` is none of {}", words.join(", ")) })
        };
        let mode = match word("mode", &["off", "observe", "profile", "adaptive"])? {
            Some(1) => Mode::Observe,
            Some(2) => Mode::Profile,
            Some(3) => Mode::Adaptive,
            _ => Mode::Off,
        };
        let profile = match get("profile") {
            Some((path, place)) if mode == Mode::Profile => {
                let text = read(Path::new(&path)).map_err(|e| ConfigError { place, what: format!("{path}: {e}") })?;
                let wrong = |(line, what)| ConfigError { place: format!("{path}:{line}"), what };
                Some(Profile::parse(&text).map_err(wrong)?)
            }
            None if mode == Mode::Profile => {
                return Err(ConfigError {
                    place: variable("mode"),
                    what: "mode profile needs LINKWISE_PROFILE, the path of a table".into(),
                });
            }
            _ => None,
        };
        let meeting = match get("meeting") {
            Some((v, place)) => Some(v.parse().map_err(|what| ConfigError { place, what })?),
            // The last: what `linkwise run` knows, which comes before launchers inside of it.
            None => match (launcher::meeting(&env)?, env("LINKWISE_MEETING_ELSE").filter(|v| !v.is_empty())) {
                (place, None) => place,
                (Some(place), Some(_)) if !is_on_one_host(&env) => Some(place),
                (_, Some(v)) => {
                    Some(v.parse().map_err(|what| ConfigError { place: "LINKWISE_MEETING_ELSE".into(), what })?)
                }
            },
        };
        let bind = match get("bind") {
            Some((v, place)) => {
                let wrong = |_| ConfigError { place, what: format!("`{v}` is not an IP address") };
                Some(v.parse().map_err(wrong)?)
            }
            None => None,
        };
        let token = get("token").or_else(|| job(&env).map(|j| (j, String::new())));
        if let Some((t, place)) = &token
            && t.len() > agreement::transport::TOKEN_BYTES_MAX
        {
            let most = agreement::transport::TOKEN_BYTES_MAX;
            return Err(ConfigError { place: place.clone(), what: format!("a token has at most {most} bytes") });
        }
        let process = match get("process") {
            Some((v, place)) => Some(v.parse().map_err(|what| ConfigError { place, what })?),
            None => process(&env),
        };
        let mut test = TestOptions::default();
        if word("test", &["0", "1"])? == Some(1) {
            test.alone = word("test_alone", &["0", "1"])? == Some(1);
            test.panic = word("test_panic", &["0", "1"])? == Some(1);
            if let Some((path, place)) = get("test_rewards") {
                let text = read(Path::new(&path)).map_err(|what| ConfigError { place, what })?;
                let wrong = |(line, what)| ConfigError { place: format!("{path}:{line}"), what };
                test.rewards = Some(Script::parse(&text).map_err(wrong)?);
            }
        }
        let policy = match get("policy") {
            Some((p, place)) => {
                crate::policies::check(&p).map_err(|what| ConfigError { place, what })?;
                p
            }
            None => crate::policies::default_name().into(),
        };
        let epoch_calls = match (parsed("epoch_calls", EPOCH_CALLS)?.unwrap_or(16), get("epoch_calls")) {
            (n @ 1..=65_536, _) => n as u32,
            (n, at) => {
                let place = at.map(|f| f.1).unwrap_or_default();
                return Err(ConfigError { place, what: format!("`{n}` is not {EPOCH_CALLS}") });
            }
        };
        let token = token.map(|t| t.0).unwrap_or_default();
        Ok(Config {
            job: wire::bytes::hash(format!("job {token} {}", attempt(&env)).as_bytes()),
            process,
            mode,
            policy,
            profile,
            meeting,
            token,
            bind,
            trace: text("trace").map(PathBuf::from),
            trace_bytes_max: parsed("trace_bytes_max", "a number of bytes")?.unwrap_or(TRACE_BYTES_MAX),
            stop_file: text("stop_file").map(PathBuf::from),
            explore_all: word("explore", &["connected", "all"])? == Some(1),
            no_graphs: word("graphs", &["told", "none"])? == Some(1),
            kernel_times: word("kernel_times", &["0", "1"])?.map(|v| v == 1),
            reward: match word("reward", &["auto", "step", "interval", "kernel"])? {
                Some(1) => Reward::Step,
                Some(2) => Reward::Interval,
                Some(3) => Reward::Kernel,
                _ => Reward::Auto,
            },
            epoch_calls,
            inside: match word("inside", &["socket", "memory"])? {
                Some(1) => Inside::Memory,
                _ => Inside::Socket,
            },
            test,
        })
    }

    /// Hash over what all ranks must have in common.
    pub fn common(&self) -> u64 {
        let profile = self.profile.as_ref().map_or(0, |p| p.hash);
        let text = format!(
            "{} {:?} {} {profile:x} {} {} {:?}",
            env!("CARGO_PKG_VERSION"),
            self.mode,
            self.policy,
            self.explore_all,
            self.epoch_calls,
            self.reward
        );
        wire::bytes::hash(text.as_bytes())
    }
}

/// `key = value` lines; `#` begins a comment.
fn settings(path: &str, text: &str) -> Result<Vec<(String, Found)>, ConfigError> {
    let mut all: Vec<(String, Found)> = Vec::new();
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

/// Reads a file of at most [`FILE_BYTES_MAX`] bytes.
pub fn read_file(path: &Path) -> Result<String, String> {
    use std::io::Read;
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|e| e.to_string())?;
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|e| e.to_string())?;
    if text.len() as u64 > FILE_BYTES_MAX { Err(format!("more than {FILE_BYTES_MAX} bytes")) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(vars: &[(&str, &str)], file: &str) -> Result<Config, ConfigError> {
        let env = |k: &str| vars.iter().find(|(n, _)| *n == k).map(|(_, v)| v.to_string());
        Config::load(env, |_| Ok(file.into()))
    }

    #[test]
    fn nothing_set_means_off() {
        let c = load(&[], "").unwrap();
        assert_eq!((c.mode, c.meeting, c.test), (Mode::Off, None, TestOptions::default()));
    }

    #[test]
    fn a_variable_wins_over_the_file() {
        let file = "# ours\nmode = adaptive\nepoch_calls = 8 # few\n";
        let c = load(&[("LINKWISE_CONFIG", "/x"), ("LINKWISE_MODE", "observe")], file).unwrap();
        assert_eq!((c.mode, c.epoch_calls), (Mode::Observe, 8));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (file, place, what) in [
            ("mode = adaptive\nspeed = 3\n", "/x:2", "there is no setting `speed`"),
            ("mode\n", "/x:1", "write key = value"),
            ("\nmode = fast\n", "/x:2", "`fast` is none of off, observe, profile, adaptive"),
            ("mode = off\nmode = off\n", "/x:2", "twice"),
            ("meeting = tcp:x\n", "/x:1", "no meeting place"),
            ("bind = everywhere\n", "/x:1", "not an IP address"),
            ("epoch_calls = many\n", "/x:1", "not a number of calls"),
            ("epoch_calls = 0\n", "/x:1", "`0` is not a number of calls"),
            ("graphs = some\n", "/x:1", "none of told, none"),
            ("process = 8/8\n", "/x:1", "no place in a job"),
            ("policy = magic\n", "/x:1", "there is no policy `magic`; there are "),
            ("mode = profile\n", "LINKWISE_MODE", "needs LINKWISE_PROFILE"),
        ] {
            let e = load(&[("LINKWISE_CONFIG", "/x")], file).unwrap_err();
            assert!(e.place == place && e.what.contains(what), "{file:?}: {e}");
        }
    }

    #[test]
    fn ranks_of_a_host_talk_through_shared_memory_where_that_is_said() {
        let inside = |set: &[(&str, &str)]| load(set, "").map(|c| c.inside).map_err(|e| e.to_string());
        assert_eq!(inside(&[]), Ok(Inside::Socket));
        assert_eq!(inside(&[("LINKWISE_INSIDE", "memory")]), Ok(Inside::Memory));
        let wrong = inside(&[("LINKWISE_INSIDE", "pigeon")]).unwrap_err();
        assert_eq!(wrong, "LINKWISE_INSIDE: `pigeon` is none of socket, memory");
    }

    #[test]
    fn test_options_need_the_test_switch() {
        let set = [("LINKWISE_TEST_ALONE", "1"), ("LINKWISE_TEST_PANIC", "1"), ("LINKWISE_TEST_REWARDS", "/r")];
        assert_eq!(load(&set, "").unwrap().test, TestOptions::default());
    }

    #[test]
    fn a_launcher_says_where_to_meet() {
        let c = load(&[("MASTER_ADDR", "n0"), ("MASTER_PORT", "29500"), ("TORCHELASTIC_RUN_ID", "j")], "").unwrap();
        assert_eq!(c.meeting, Some(Meeting::Tcp { host: "n0".into(), port: 31_217 }));
        assert_eq!(c.token, "j");
        // What comes from further out counts only where nobody else says anything.
        let last = ("LINKWISE_MEETING_ELSE", "local:x");
        let at = |set: &[(&str, &str)]| load(set, "").unwrap().meeting.map(|m| m.to_string());
        assert_eq!(at(&[last]), Some("local:x".into()));
        assert_eq!(at(&[last, ("MASTER_ADDR", "n0"), ("MASTER_PORT", "1")]), Some("tcp:n0:1718".into()));
        assert_eq!(at(&[last, ("LINKWISE_MEETING", "local:y")]), Some("local:y".into()));
        let one_host = [("WORLD_SIZE", "8"), ("LOCAL_WORLD_SIZE", "8")];
        let inside = [&[last, ("MASTER_ADDR", "n0"), ("MASTER_PORT", "1")][..], &one_host].concat();
        assert_eq!(at(&inside), Some("local:x".into()), "no port that others can reach");
        assert_eq!(at(&inside[1..]), Some("tcp:n0:1718".into()));
    }
}
