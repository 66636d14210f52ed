//! Settings: `LINKWISE_*` variables and the file that `LINKWISE_CONFIG` names, which the tuner plugin reads, too. Variables override the file. An error
//! turns the plugin off, with one line that names the variable or the line of the file.

use net::limits::{CHUNK_BYTES_DEFAULT, CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, RAILS_MAX};
use std::path::Path;

/// Largest settings file, bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `LINKWISE_NET`: auto, tcp, off.
    pub mode: Mode,
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
    /// `LINKWISE_NET_TEST_GPU_IS_HOST=1`, for benches without GPUs: memory that NCCL calls GPU memory is host memory.
    pub gpu_is_host: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            mode: Mode::Auto,
            rails: Vec::new(),
            token: String::new(),
            chunk: CHUNK_BYTES_DEFAULT,
            threads: 0,
            share: true,
            relay: false,
            gpu_is_host: false,
        }
    }
}

/// A setting that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// A variable, or file:line.
    pub place: String,
    pub what: String,
}

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

/// Names in the file; the variable of `key` is `LINKWISE_KEY`. Names without `net` belong to the tuner plugin and are not checked here.
const KEYS: [&str; 7] =
    ["net", "net_rails", "net_chunk", "net_threads", "net_share", "net_relay", "net_test_gpu_is_host"];
/// Set by `linkwise run`: a random token, if the user sets none.
const TOKEN_FALLBACK: &str = "LINKWISE_TOKEN_FALLBACK";

impl Config {
    /// Loads variables and the file that they name. `read` reads a file of at most [`FILE_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// The first setting that is wrong, with its place.
    pub fn load(
        env: impl Fn(&str) -> Option<String>,
        read: impl Fn(&Path) -> Result<String, String>,
    ) -> Result<Self, ConfigError> {
        let env = |k: &str| env(k).filter(|v| !v.is_empty());
        let mut file = Vec::new();
        if let Some(path) = env("LINKWISE_CONFIG") {
            let text = read(Path::new(&path)).map_err(|what| ConfigError { place: path.clone(), what })?;
            file = lines(&path, &text)?;
        }
        let get = |key: &str| {
            let name = format!("LINKWISE_{}", key.to_ascii_uppercase());
            let of_file = || file.iter().find(|(k, _, _)| k == key).map(|(_, v, place)| (v.clone(), place.clone()));
            env(&name).map(|v| (v, name)).or_else(of_file)
        };
        let mut c = Config::default();
        let wrong = |place: String, what: String| Err(ConfigError { place, what });
        if let Some((v, place)) = get("net") {
            c.mode = match v.as_str() {
                "auto" => Mode::Auto,
                "tcp" => Mode::Tcp,
                "off" => Mode::Off,
                _ => return wrong(place, format!("`{v}` is none of auto, tcp, off")),
            };
        }
        if let Some((v, place)) = get("net_rails") {
            c.rails = v.split(',').map(|r| r.trim().to_owned()).filter(|r| !r.is_empty()).collect();
            if c.rails.is_empty() || c.rails.len() > RAILS_MAX {
                return wrong(place, format!("`{v}` is not a list of 1 to {RAILS_MAX} NICs"));
            }
        }
        if let Some((v, place)) = get("token").or_else(|| env(TOKEN_FALLBACK).map(|v| (v, TOKEN_FALLBACK.into()))) {
            if v.len() > TOKEN_BYTES_MAX {
                return wrong(place, format!("a token has at most {TOKEN_BYTES_MAX} bytes"));
            }
            c.token = v;
        }
        if let Some((v, place)) = get("net_chunk") {
            match v
                .parse::<u32>()
                .ok()
                .filter(|n| n.is_power_of_two() && (CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(n))
            {
                Some(n) => c.chunk = n,
                None => {
                    return wrong(
                        place,
                        format!("`{v}` is not a power of two, {CHUNK_BYTES_MIN} to {CHUNK_BYTES_MAX}"),
                    );
                }
            }
        }
        if let Some((v, place)) = get("net_threads") {
            match v.parse::<usize>().ok().filter(|n| (1..=net::endpoint::THREADS_MAX).contains(n)) {
                Some(n) => c.threads = n,
                None => {
                    return wrong(
                        place,
                        format!("`{v}` is not a number of threads, 1 to {}", net::endpoint::THREADS_MAX),
                    );
                }
            }
        }
        let flags =
            [("net_share", &mut c.share), ("net_relay", &mut c.relay), ("net_test_gpu_is_host", &mut c.gpu_is_host)];
        for (key, flag) in flags {
            if let Some((v, place)) = get(key) {
                *flag = match v.as_str() {
                    "0" => false,
                    "1" => true,
                    _ => return wrong(place, format!("`{v}` is none of 0, 1")),
                };
            }
        }
        if c.relay && c.token.is_empty() {
            let (place, what) =
                ("LINKWISE_NET_RELAY".into(), "links are lent only to a job with a token: set LINKWISE_TOKEN");
            return wrong(place, what.into());
        }
        Ok(c)
    }
}

/// Parses `key = value` lines; `#` begins a comment.
fn lines(path: &str, text: &str) -> Result<Vec<(String, String, String)>, ConfigError> {
    let mut all: Vec<(String, String, String)> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.split_once('#').map_or(line, |(l, _)| l).trim();
        let Some((key, value)) = line.split_once('=') else { continue };
        let (key, value) = (key.trim().to_ascii_lowercase(), value.trim().trim_matches('"'));
        let place = format!("{path}:{}", i + 1);
        let wrong = |what: String| ConfigError { place: place.clone(), what };
        if (key == "net" || key.starts_with("net_")) && !KEYS.contains(&key.as_str()) {
            return Err(wrong(format!("there is no setting `{key}`; there are {}", KEYS[..6].join(", "))));
        }
        if all.iter().any(|(k, ..)| *k == key) {
            return Err(wrong(format!("`{key}` is set twice")));
        }
        all.push((key, value.to_owned(), place));
    }
    Ok(all)
}

/// Reads a file of at most [`FILE_BYTES_MAX`] bytes. Opening a FIFO does not wait, because only regular files are opened.
pub fn read_file(path: &Path) -> Result<String, String> {
    use std::io::Read;
    let kind = std::fs::metadata(path).map_err(|e| e.to_string())?;
    if !kind.is_file() {
        return Err("not a regular file".into());
    }
    let file = std::fs::File::open(path).map_err(|e| e.to_string())?;
    let mut text = String::new();
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
    fn without_settings_all_nics_are_rails() {
        assert_eq!(load(&[], ""), Ok(Config::default()));
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
            ("net_share = yes\n", "/x:1", "none of 0, 1"),
            ("net_relay = 1\n", "LINKWISE_NET_RELAY", "set LINKWISE_TOKEN"),
        ] {
            let e = load(&[("LINKWISE_CONFIG", "/x")], file).unwrap_err();
            assert!(e.place == place && e.what.contains(what), "{file:?}: {e}");
        }
    }
}
