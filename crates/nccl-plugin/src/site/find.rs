//! Which libraries NCCL would try, in its order. Pure: the environment and files are arguments.
//!
//! Rules of NCCL 2.21 to 2.32 (`plugin_open.cc`, `param.cc`): the variable's value as it is; then, unless it has a `/` or
//! is of the form `lib…so`, `PREFIX-VALUE.so`; without a variable `PREFIX.so`. The first library that opens decides: if it
//! lacks the symbol, NCCL tries no other. If none opens, the library of the network plugin is tried, by the same rules.
//! A value `none` loads nothing. Older releases took `none` for a name; here it means nothing for all of them.

use std::path::PathBuf;

/// Longest name, bytes: NCCL cuts names at 254.
const NAME_BYTES_MAX: usize = 254;
/// Limit on network plugins in a list (NCCL 2.28 and later).
const NET_PLUGINS_MAX: usize = 16;

/// A kind of plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Tuner,
    Profiler,
}

impl Kind {
    /// The variable from which NCCL takes the name.
    pub fn variable(self) -> &'static str {
        match self {
            Kind::Tuner => "NCCL_TUNER_PLUGIN",
            Kind::Profiler => "NCCL_PROFILER_PLUGIN",
        }
    }

    /// The variable in which `linkwise run` keeps the former value of NCCL's variable.
    pub fn kept_variable(self) -> &'static str {
        match self {
            Kind::Tuner => "LINKWISE_SITE_TUNER",
            Kind::Profiler => "LINKWISE_SITE_PROFILER",
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Kind::Tuner => "libnccl-tuner",
            Kind::Profiler => "libnccl-profiler",
        }
    }

    /// The word for messages.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Tuner => "tuner",
            Kind::Profiler => "profiler",
        }
    }
}

/// What to open: a library, or the program itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Candidate {
    Library(String),
    /// `STATIC_PLUGIN`, or any prefix of it: the plugin is linked into the program.
    Program,
}

/// What NCCL would try.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Search {
    /// The site named the plugin; otherwise only default names are tried.
    pub named: Option<String>,
    pub candidates: Vec<Candidate>,
}

/// The search for a plugin. `env` reads a variable, `read` a configuration file of NCCL, which it has already applied to the environment except
/// for variables that were set: NCCL's variable then names linkwise, and the file still has the site's value.
pub fn search(kind: Kind, env: &dyn Fn(&str) -> Option<String>, read: &dyn Fn(&PathBuf) -> Option<String>) -> Search {
    let set = |name: &str| env(name).filter(|v| !v.is_empty());
    let named = set(kind.kept_variable()).or_else(|| from_files(kind.variable(), &set, read));
    let mut candidates = Vec::new();
    if named.as_deref().is_some_and(|n| n.eq_ignore_ascii_case("none")) {
        return Search { named, candidates };
    }
    add(&mut candidates, kind.prefix(), named.as_deref());
    match set("NCCL_NET_PLUGIN") {
        None => add(&mut candidates, "libnccl-net", None),
        Some(list) => {
            let names = list.split(',').map(str::trim).filter(|n| !n.is_empty()).take(NET_PLUGINS_MAX);
            names
                .filter(|n| !n.eq_ignore_ascii_case("none"))
                .for_each(|n| add(&mut candidates, "libnccl-net", Some(n)));
        }
    }
    Search { named, candidates }
}

fn add(to: &mut Vec<Candidate>, prefix: &str, name: Option<&str>) {
    let Some(name) = name else {
        to.push(Candidate::Library(format!("{prefix}.so")));
        return;
    };
    if name.len() > NAME_BYTES_MAX || name.contains('\0') {
        return;
    }
    let is_static = "STATIC_PLUGIN".get(..name.len()).is_some_and(|s| s.eq_ignore_ascii_case(name));
    to.push(if is_static { Candidate::Program } else { Candidate::Library(name.into()) });
    let is_file = name.contains('/') || (name.starts_with("lib") && name.ends_with(".so"));
    if !is_file {
        to.push(Candidate::Library(format!("{prefix}-{name}.so")));
    }
}

/// The value of a variable in NCCL's configuration files: `NCCL_CONF_FILE`, or else `~/.nccl.conf`; then `/etc/nccl.conf`.
fn from_files(
    variable: &str,
    set: &dyn Fn(&str) -> Option<String>,
    read: &dyn Fn(&PathBuf) -> Option<String>,
) -> Option<String> {
    let own = set("NCCL_CONF_FILE").map(PathBuf::from);
    let own = own.or_else(|| set("HOME").map(|h| PathBuf::from(h).join(".nccl.conf")));
    own.into_iter().chain([PathBuf::from("/etc/nccl.conf")]).find_map(|path| {
        let text = read(&path)?;
        let value = text.lines().filter(|l| !l.starts_with('#')).find_map(|l| {
            let (name, value) = l.split_once('=')?;
            (name == variable).then(|| value.to_string())
        });
        value.filter(|v| !v.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(kind: Kind, vars: &[(&str, &str)], files: &[(&str, &str)]) -> Vec<String> {
        let env = |k: &str| vars.iter().find(|v| v.0 == k).map(|v| v.1.to_string());
        let read = |p: &PathBuf| files.iter().find(|f| f.0 == p.to_str().unwrap()).map(|f| f.1.to_string());
        let name = |c: Candidate| match c {
            Candidate::Library(n) => n,
            Candidate::Program => "(program)".into(),
        };
        search(kind, &env, &read).candidates.into_iter().map(name).collect()
    }

    #[test]
    fn the_order_is_nccls_own() {
        let of = |vars: &[(&str, &str)]| names(Kind::Tuner, vars, &[]);
        assert_eq!(of(&[]), ["libnccl-tuner.so", "libnccl-net.so"]);
        assert_eq!(of(&[("LINKWISE_SITE_TUNER", "gib")]), ["gib", "libnccl-tuner-gib.so", "libnccl-net.so"]);
        assert_eq!(of(&[("LINKWISE_SITE_TUNER", "/opt/t.so")]), ["/opt/t.so", "libnccl-net.so"]);
        assert_eq!(of(&[("LINKWISE_SITE_TUNER", "libx.so")]), ["libx.so", "libnccl-net.so"]);
        assert_eq!(
            of(&[("NCCL_NET_PLUGIN", "ofi, none,/p/libnet.so")]),
            ["libnccl-tuner.so", "ofi", "libnccl-net-ofi.so", "/p/libnet.so"]
        );
        assert_eq!(of(&[("LINKWISE_SITE_TUNER", "None"), ("NCCL_NET_PLUGIN", "ofi")]), [""; 0]);
        assert_eq!(of(&[("LINKWISE_SITE_TUNER", "static")])[0], "(program)");
        assert_eq!(names(Kind::Profiler, &[], &[]), ["libnccl-profiler.so", "libnccl-net.so"]);
    }

    #[test]
    fn a_name_in_nccls_files_counts_unless_the_variable_named_one() {
        let files = [
            ("/h/.nccl.conf", "# NCCL_TUNER_PLUGIN=no\nNCCL_TUNER_PLUGIN=a\n"),
            ("/etc/nccl.conf", "NCCL_TUNER_PLUGIN=b\n"),
        ];
        let first = |vars: &[(&str, &str)]| names(Kind::Tuner, vars, &files)[0].clone();
        assert_eq!(first(&[("HOME", "/h")]), "a");
        assert_eq!(first(&[("HOME", "/h"), ("NCCL_CONF_FILE", "/none")]), "b");
        assert_eq!(first(&[("LINKWISE_SITE_TUNER", "c")]), "c");
    }

    #[test]
    fn odd_names_are_no_candidates() {
        let long = "x".repeat(255);
        for name in [long.as_str(), "a\0b"] {
            assert_eq!(names(Kind::Tuner, &[("LINKWISE_SITE_TUNER", name)], &[]), ["libnccl-net.so"]);
        }
        assert_eq!(
            names(Kind::Tuner, &[("LINKWISE_SITE_TUNER", "é")], &[])[0],
            "é",
            "no panic at a character's border"
        );
    }
}
