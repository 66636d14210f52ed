//! Settings: `LINKWISE_*` variables and the file that `LINKWISE_CONFIG` names, which the tuner plugin reads, too. Variables override the file. An error
//! turns the plugin off, with one line that names the variable or the line of the file.

use net::endpoint::THREADS_MAX;
use net::limits::{CHUNK_BYTES_DEFAULT, CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, RAILS_MAX};
use net::plan::{Source, Table, routes};
use plugin_base::read::FILE_BYTES_MAX;
use plugin_base::settings::edits;
use plugin_base::{ConfigError, Keys, Sources};
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::Path;

/// Hosts of a plan that can have an address.
pub const HOSTS_MAX: usize = 1024;
/// Longest token, bytes.
pub const TOKEN_BYTES_MAX: usize = 256;

/// `LINKWISE_NET`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// TCP over all NICs if there are two or more and no RDMA device, which NCCL's own transport would use.
    #[default]
    Auto,
    /// TCP even if there are RDMA devices or one NIC only.
    Tcp,
    /// No device.
    Off,
}

/// `LINKWISE_NET_TRANSPORT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    #[default]
    Tcp,
    /// Queue pairs between rails with RDMA devices, TCP between others.
    Verbs,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `LINKWISE_NET`: auto, tcp, off.
    pub mode: Mode,
    /// `LINKWISE_NET_TRANSPORT`: tcp, verbs.
    pub transport: Transport,
    /// `LINKWISE_NET_IBVERBS`: path of the library of RDMA devices; `None`: the system's.
    pub ibverbs: Option<String>,
    /// `LINKWISE_NET_RAILS`: names or addresses of NICs, in the order of the rails; empty: all.
    pub rails: Vec<String>,
    /// `LINKWISE_TOKEN`: shared by the job's processes.
    pub token: String,
    /// `LINKWISE_NET_CHUNK`: bytes.
    pub chunk: u32,
    /// `LINKWISE_NET_THREADS`: I/O threads; 0: one per two rails, at most two.
    pub threads: usize,
    /// `LINKWISE_NET_SHARE`: whether the processes of a host share their counts of unacknowledged bytes.
    pub share: bool,
    /// `LINKWISE_NET_RELAY=1`: hosts without a switch lend each other their links. Needs a token.
    pub relay: bool,
    /// `LINKWISE_NET_PLAN`: `off`, or a file of fixed shares of the rails, or one that `linkwise route plan` wrote. The hosts of the latter have their
    /// addresses from `LINKWISE_NET_HOSTS`.
    pub plan: Source,
    /// `LINKWISE_NET_TEST_GPU_IS_HOST=1`, for benches without GPUs: memory that NCCL calls GPU memory is host memory.
    pub gpu_is_host: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            mode: Mode::Auto,
            transport: Transport::Tcp,
            ibverbs: None,
            rails: Vec::new(),
            token: String::new(),
            chunk: CHUNK_BYTES_DEFAULT,
            threads: 0,
            share: true,
            relay: false,
            plan: Source::Common,
            gpu_is_host: false,
        }
    }
}

/// Settings of this plugin. Names without `net` belong to the tuner plugin, which checks them; the token is shared.
const KEYS: Keys = Keys {
    settings: &[
        "net",
        "net_rails",
        "net_chunk",
        "net_threads",
        "net_share",
        "net_relay",
        "net_plan",
        "net_hosts",
        "net_transport",
        "net_ibverbs",
    ],
    unlisted: &["net_test_gpu_is_host", "token"],
    former: &[],
    is_of_others: |key| key != "net" && !key.starts_with("net_"),
};
/// The network plugin that NCCL gets if this one has no device. A variable only: it is read while the library is loaded.
pub const WRAP: &str = "LINKWISE_NET_WRAP";
/// Set by `linkwise run`: a random token, if the user sets none.
const TOKEN_FALLBACK: &str = "LINKWISE_TOKEN_FALLBACK";

/// `NAME=ADDRESS,...`, each name once.
fn hosts(text: &str) -> Option<Vec<(String, IpAddr)>> {
    let mut all: Vec<(String, IpAddr)> = Vec::new();
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let (name, ip) = part.split_once('=')?;
        let name = name.trim().to_owned();
        if name.is_empty() || all.iter().any(|(n, _)| *n == name) {
            return None;
        }
        all.push((name, ip.trim().parse().ok()?));
    }
    (1..=HOSTS_MAX).contains(&all.len()).then_some(all)
}

/// A line for every variable `LINKWISE_NET...` that is none, with the nearest one that is: it is probably misspelt.
pub fn misspelt(names: impl Iterator<Item = OsString>) -> Vec<String> {
    let ours = || KEYS.variables().filter(|own| own.starts_with("LINKWISE_NET")).chain([WRAP.into()]);
    let mut all: Vec<String> = names.filter_map(|n| n.into_string().ok()).collect();
    all.retain(|n| n.starts_with("LINKWISE_NET") && !ours().any(|own| own == *n));
    all.sort();
    let listed = || ours().filter(|own| !own.contains("TEST"));
    let nearest = |name: &str| listed().min_by_key(|own| edits(own, name)).unwrap_or_default();
    all.iter().map(|n| format!("{n} is ignored: no such variable; the nearest one is {}", nearest(n))).collect()
}

impl Config {
    /// Loads variables and the files that they name. `read` gets a path and the most bytes, and limits the time ([`plugin_base::read`]).
    ///
    /// # Errors
    /// The first setting that is wrong, with its place.
    pub fn load(
        env: impl Fn(&str) -> Option<String>,
        read: impl Fn(&Path, u64) -> Result<String, String>,
    ) -> Result<Self, ConfigError> {
        let settings = |path: &Path| read(path, FILE_BYTES_MAX);
        let from = Sources::open(&KEYS, &env, &settings)?;
        let ours = Config::default();
        let modes = [("auto", Mode::Auto), ("tcp", Mode::Tcp), ("off", Mode::Off)];
        let transports = [("tcp", Transport::Tcp), ("verbs", Transport::Verbs)];
        let rails = |v: &str| {
            let all: Vec<String> = v.split(',').map(|r| r.trim().to_owned()).filter(|r| !r.is_empty()).collect();
            (1..=RAILS_MAX).contains(&all.len()).then_some(all)
        };
        let chunk = |v: &str| {
            let is_one = |n: &u32| n.is_power_of_two() && (CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(n);
            v.parse().ok().filter(is_one)
        };
        let threads = |v: &str| v.parse().ok().filter(|n| (1..=THREADS_MAX).contains(n));
        let hosts = from.parsed_as("net_hosts", &format!("a list of 1 to {HOSTS_MAX} NAME=ADDRESS"), hosts)?;
        let plan = match from.get("net_plan") {
            None => ours.plan,
            Some((off, _)) if off == "off" => Source::Alone,
            Some((path, place)) => {
                let wrong = |what: String| ConfigError::new(&place, format!("{path}: {what}"));
                let text = read(Path::new(&path), routes::TEXT_BYTES_MAX).map_err(wrong)?;
                let table = match routes::is_one(&text) {
                    true => routes::table(&text, hosts.as_deref().unwrap_or_default()),
                    false => Table::parse(&text),
                };
                Source::Fixed(table.map_err(wrong)?)
            }
        };
        let config = Config {
            mode: from.word("net", &modes)?.unwrap_or(ours.mode),
            transport: from.word("net_transport", &transports)?.unwrap_or(ours.transport),
            ibverbs: from.get("net_ibverbs").map(|(path, _)| path),
            rails: from
                .parsed_as("net_rails", &format!("a list of 1 to {RAILS_MAX} NICs"), rails)?
                .unwrap_or(ours.rails),
            token: match from.get("token").or_else(|| from.set_variable(TOKEN_FALLBACK)) {
                Some((token, place)) if token.len() > TOKEN_BYTES_MAX => {
                    return Err(ConfigError::new(place, format!("a token has at most {TOKEN_BYTES_MAX} bytes")));
                }
                token => token.map(|(token, _)| token).unwrap_or_default(),
            },
            chunk: from
                .parsed_as("net_chunk", &format!("a power of two, {CHUNK_BYTES_MIN} to {CHUNK_BYTES_MAX}"), chunk)?
                .unwrap_or(ours.chunk),
            threads: from
                .parsed_as("net_threads", &format!("a number of threads, 1 to {THREADS_MAX}"), threads)?
                .unwrap_or(ours.threads),
            share: from.flag("net_share")?.unwrap_or(ours.share),
            relay: from.flag("net_relay")?.unwrap_or(ours.relay),
            plan,
            gpu_is_host: from.flag("net_test_gpu_is_host")?.unwrap_or(ours.gpu_is_host),
        };
        if config.relay && config.token.is_empty() {
            let what = "links are lent only to a job with a token: set LINKWISE_TOKEN";
            return Err(ConfigError::new("LINKWISE_NET_RELAY", what));
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(vars: &[(&str, &str)], file: &str) -> Result<Config, ConfigError> {
        let env = |k: &str| vars.iter().find(|(n, _)| *n == k).map(|(_, v)| v.to_string());
        Config::load(env, |_, _| Ok(file.into()))
    }

    #[test]
    fn without_settings_all_nics_are_rails() {
        assert_eq!(load(&[], ""), Ok(Config::default()));
    }

    #[test]
    fn a_misspelt_variable_is_named_with_the_nearest_one() {
        let said = |names: &[&str]| misspelt(names.iter().map(OsString::from));
        assert_eq!(
            said(&["LINKWISE_NET_RAIL", "PATH", "LINKWISE_CANRY", "LINKWISE_NET_SHARES"]),
            [
                "LINKWISE_NET_RAIL is ignored: no such variable; the nearest one is LINKWISE_NET_RAILS",
                "LINKWISE_NET_SHARES is ignored: no such variable; the nearest one is LINKWISE_NET_SHARE"
            ]
        );
        let known: Vec<String> = KEYS.variables().collect();
        assert_eq!(said(&known.iter().map(String::as_str).collect::<Vec<_>>()), [""; 0]);
    }

    #[test]
    fn a_plan_is_read_from_its_file() {
        let env = |k: &str| (k == "LINKWISE_NET_PLAN").then(|| "/p".to_owned());
        let c = Config::load(env, |_, _| Ok("* * home 1\n".into())).unwrap();
        assert_eq!(c.plan, Source::Fixed(Table::parse("* * home 1").unwrap()));
        assert_eq!(load(&[("LINKWISE_NET_PLAN", "off")], "").unwrap().plan, Source::Alone);
        let routes = r#"{"links":[{"from":"n0:0","to":"rail1"},{"from":"rail1","to":"n1:0"}],"flows":[{"hops":[0,1],"bytes":7}]}"#;
        let with = |hosts: &str| {
            let vars = [("LINKWISE_NET_PLAN", "/p"), ("LINKWISE_NET_HOSTS", hosts)];
            Config::load(
                |k| vars.iter().find(|(n, _)| *n == k).map(|(_, v)| v.to_string()).filter(|v| !v.is_empty()),
                |_, _| Ok(routes.into()),
            )
        };
        let Source::Fixed(table) = with("n0=10.0.0.1, n1=10.0.0.2").unwrap().plan else { panic!("no table") };
        let share = |rail| table.share(&["10.0.0.1".parse().unwrap()], &["10.0.0.2".parse().unwrap()], rail, false);
        assert!(share(0) == 0 && share(1) > 0);
        let e = with("").unwrap_err();
        assert!(e.place == "LINKWISE_NET_PLAN" && e.what.contains("add n0=ADDRESS to LINKWISE_NET_HOSTS"), "{e}");
    }

    #[test]
    fn a_variable_wins_over_the_file_and_settings_of_the_tuner_are_left_to_it() {
        let file = "mode = adaptive\nnet_rails = eth1, eth2 # two\nnet = off\ntoken = t\n";
        let c = load(&[("LINKWISE_CONFIG", "/x"), ("LINKWISE_NET", "tcp")], file).unwrap();
        assert_eq!((c.mode, c.rails.len(), c.token.as_str()), (Mode::Tcp, 2, "t"));
    }

    #[test]
    fn a_wrong_setting_is_reported_with_its_place() {
        for (file, place, what) in [
            ("net = fast\n", "/x:1", "`fast` is none of auto, tcp, off"),
            ("\nnet_speed = 3\n", "/x:2", "there is no setting `net_speed`"),
            ("net = off\nnet = off\n", "/x:2", "twice"),
            ("net_rails = ,\n", "/x:1", "not a list"),
            ("net_chunk = 70000\n", "/x:1", "not a power of two"),
            ("net_threads = 0\n", "/x:1", "not a number of threads"),
            ("net_transport = rdma\n", "/x:1", "`rdma` is none of tcp, verbs"),
            ("net_share = yes\n", "/x:1", "none of 0, 1"),
            ("net_hosts = n0=10.0.0.1,n0=10.0.0.2\n", "/x:1", "not a list of 1 to 1024 NAME=ADDRESS"),
            ("net_hosts = n0=host\n", "/x:1", "not a list of 1 to 1024 NAME=ADDRESS"),
            ("net_relay = 1\n", "LINKWISE_NET_RELAY", "set LINKWISE_TOKEN"),
            ("net_plan = /p\n", "/x:1", "/p: line 1: `net_plan = /p` is not SENDER PEER RAIL SHARE"),
        ] {
            let e = load(&[("LINKWISE_CONFIG", "/x")], file).unwrap_err();
            assert!(e.place == place && e.what.contains(what), "{file:?}: {e}");
        }
    }
}
