//! The names of the plugin's settings and variables. A variable `LINKWISE_...` that is not known is an error: it is probably a misspelt setting.

use plugin_base::settings::edits;
use plugin_base::{ConfigError, Keys};
use std::ffi::OsString;

/// Settings of this plugin.
pub const KEYS: Keys = Keys {
    settings: &[
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
    ],
    unlisted: &["test", "test_rewards", "test_alone", "test_panic", "test_unlike"],
    former: &[("rendezvous", "meeting"), ("intra_node_transport", "inside")],
    is_of_others: |key| key == "net" || key.starts_with("net_"),
};
/// Set by `linkwise run`: the rendezvous if neither the user nor a launcher names one. Also accepted under its former name.
pub const RENDEZVOUS_FALLBACK: [&str; 2] = ["LINKWISE_RENDEZVOUS_FALLBACK", "LINKWISE_MEETING_ELSE"];
/// Set by `linkwise run`: a random token, if the user sets none.
pub const TOKEN_FALLBACK: &str = "LINKWISE_TOKEN_FALLBACK";

/// Variables of the plugin that are no settings: the file of settings, those of `linkwise run` and of launchers.
const OTHER_VARIABLES: [&str; 5] =
    ["LINKWISE_CONFIG", TOKEN_FALLBACK, "LINKWISE_SITE_TUNER", "LINKWISE_SITE_PROFILER", "LINKWISE_PORT"];
/// Variables of the commands, of the bench and of tests, which the environment of a job may have, too.
const FOREIGN_VARIABLES: [&str; 31] = [
    "LINKWISE_ARM",
    "LINKWISE_CACHE",
    "LINKWISE_CHART",
    "LINKWISE_CHROMIUM",
    "LINKWISE_COMMITS",
    "LINKWISE_CUDART",
    "LINKWISE_DATA",
    "LINKWISE_DEVICES",
    "LINKWISE_DOCS",
    "LINKWISE_DOCTOR_HOSTS",
    "LINKWISE_DOCTOR_SEEDS",
    "LINKWISE_FAULTS",
    "LINKWISE_HOSTFILE",
    "LINKWISE_HOST_ORDER",
    "LINKWISE_ITERATIONS",
    "LINKWISE_KILLS",
    "LINKWISE_MODEL_LARGE",
    "LINKWISE_NCCL_SOURCE",
    "LINKWISE_NCCL_TESTS",
    "LINKWISE_NCCL_VERSIONS",
    "LINKWISE_OFFLINE",
    "LINKWISE_OPENAPI",
    "LINKWISE_OVERLAP",
    "LINKWISE_PLUGIN",
    "LINKWISE_RANK_ORDER",
    "LINKWISE_ROBUST_SEEDS",
    "LINKWISE_SCREENSHOTS",
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
    KEYS.variables().chain(RENDEZVOUS_FALLBACK.into_iter().chain(OTHER_VARIABLES).map(str::to_string))
}

/// The first variable `LINKWISE_...` that no program of linkwise reads.
pub fn unknown(names: impl Iterator<Item = OsString>) -> Option<ConfigError> {
    let foreign = |n: &str| FOREIGN_VARIABLES.contains(&n) || FOREIGN_PREFIXES.iter().any(|p| n.starts_with(p));
    let name = names
        .filter_map(|n| n.into_string().ok())
        .filter(|n| n.starts_with("LINKWISE_") && !foreign(n) && !own_variables().any(|own| own == *n))
        .min()?;
    let nearest =
        own_variables().filter(|own| !own.starts_with("LINKWISE_TEST")).min_by_key(|own| edits(own, &name))?;
    Some(ConfigError::new(name, format!("no such variable; the nearest one is {nearest}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_misspelt_variable_is_named_with_the_nearest_one() {
        let said = |names: &[&str]| unknown(names.iter().map(OsString::from)).map(|e| e.to_string());
        let found = said(&["PATH", "LINKWISE_MODE", "LINKWISE_CANRY"]).unwrap();
        assert_eq!(found, "LINKWISE_CANRY: no such variable; the nearest one is LINKWISE_CANARY");
        assert!(said(&["LINKWISE_STATUSS"]).unwrap().ends_with("LINKWISE_STATUS"));
        assert!(said(&["LINKWISE_SIMULATE_GROUPS"]).unwrap().ends_with("LINKWISE_SIMULATED_GROUPS"));
        let known: Vec<String> = own_variables().collect();
        assert_eq!(said(&known.iter().map(String::as_str).collect::<Vec<_>>()), None);
        assert_eq!(said(&["LINKWISE_DATA", "LINKWISE_EMU_LATE_MS", "NOT_LINKWISE_X"]), None);
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
                    assert_eq!(
                        unknown(std::iter::once(OsString::from(name))),
                        None,
                        "add the variable to a list of this file"
                    );
                }
            }
        }
    }
}
