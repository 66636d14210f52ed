//! `linkwise doctor install`, on sound and on broken installations. Each is a folder with copies of the built files; NCCL libraries are written here,
//! in C.

use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const PLUGIN: &str = "liblinkwise_nccl.so";
const NETWORK: &str = "liblinkwise_nccl_net.so";
const CHECK: &str = "linkwise-plugin-check";

/// An installation in a temporary folder that every user can read.
struct Installed {
    dir: tempfile::TempDir,
}

impl Installed {
    /// `None`, with a line, if the plugins were not built.
    fn new(test: &str) -> Option<Installed> {
        let built = Path::new(env!("CARGO_BIN_EXE_linkwise")).parent().unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        for (name, to) in [("linkwise", "bin"), (CHECK, "bin"), (PLUGIN, "lib"), (NETWORK, "lib")] {
            let from = [built.join(name), built.join("deps").join(name)].into_iter().find(|p| p.exists());
            let Some(from) = from else {
                eprintln!("SKIP {test}: {name} is not built (cargo test --workspace builds it)");
                return None;
            };
            let to = dir.path().join(to);
            std::fs::create_dir_all(&to).unwrap();
            std::fs::copy(from, to.join(name)).unwrap();
            std::fs::set_permissions(to.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        Some(Installed { dir })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self) -> Command {
        let mut c = Command::new(self.path("bin/linkwise"));
        c.args(["doctor", "install"]).current_dir(&self.dir);
        for (name, _) in std::env::vars().filter(|(n, _)| n.starts_with("LINKWISE_") || n.starts_with("NCCL_")) {
            c.env_remove(name);
        }
        for name in ["LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"] {
            c.env_remove(name);
        }
        c
    }

    /// The checks by name, and the exit code. `settings` are variables of the environment.
    fn checks(&self, settings: &[(&str, &str)]) -> (Vec<Value>, Option<i32>) {
        let out = self.command().args(["--format", "json"]).envs(settings.iter().copied()).output().unwrap();
        let said: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", told(&out)));
        (said["checks"].as_array().unwrap().clone(), out.status.code())
    }

    /// Asserts that the check `name` has this verdict, that its text has `words`, and that a failure has a remedy and the exit code.
    fn expect(&self, settings: &[(&str, &str)], name: &str, verdict: &str, words: &str) {
        let (checks, code) = self.checks(settings);
        let of = |v: &str| checks.iter().find(|c| c["check"] == name && c["verdict"] == v);
        let check = of(verdict).unwrap_or_else(|| panic!("no {verdict} {name}: {checks:#?}"));
        assert!(check["found"].as_str().unwrap().contains(words), "{words}: {check}");
        assert_eq!(check["remedy"].is_string(), verdict == "fail", "{check}");
        let fails = checks.iter().any(|c| c["verdict"] == "fail");
        assert_eq!(code, Some(i32::from(fails)), "{checks:#?}");
        assert!(verdict != "fail" || code == Some(1));
    }
}

fn told(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// A library of C in `folder`; `None`, with a line, without a compiler.
fn nccl(test: &str, folder: &Path, source: &str) -> Option<PathBuf> {
    std::fs::create_dir_all(folder).unwrap();
    let (code, library) = (folder.join("nccl.c"), folder.join("libnccl.so.2"));
    std::fs::write(&code, source).unwrap();
    match Command::new("cc").args(["-shared", "-fPIC", "-w", "-o"]).arg(&library).arg(&code).output() {
        Ok(out) => assert!(out.status.success(), "{}", told(&out)),
        Err(e) => {
            eprintln!("SKIP {test}: no C compiler: {e}");
            return None;
        }
    }
    Some(library)
}

fn version(number: u32) -> String {
    format!("int ncclGetVersion(int *v) {{ *v = {number}; return 0; }}\n")
}

#[test]
fn every_nccl_that_is_found_is_loaded_with_the_plugin_and_named_with_its_release() {
    let test = "every_nccl_that_is_found_is_loaded_with_the_plugin_and_named_with_its_release";
    let Some(here) = Installed::new(test) else { return };
    let folder = here.path("nccl");
    let search = folder.to_str().unwrap().to_owned();
    let at = [("LD_LIBRARY_PATH", search.as_str())];
    for (source, name, verdict, words) in [
        (version(22809), "NCCL 2.28.9", "pass", "tuner v5, profiler v5"),
        (version(22105), "NCCL 2.21.5", "pass", "tuner v2; observe"),
        (version(23206), "NCCL 2.32.6", "pass", "tuner v6, profiler v6"),
        (version(22005), "NCCL 2.20.5", "fail", "older than 2.21"),
        (version(40000), "NCCL 4.0.0", "skip", "not an NCCL 2 release"),
        ("int something;".into(), "NCCL", "fail", "not an NCCL library"),
        (
            "#include <stdlib.h>\n__attribute__((constructor)) void f(void) { abort(); }".into(),
            "NCCL",
            "fail",
            "signal: 6",
        ),
        ("void missing(void); void f(void) { missing(); }".into(), "NCCL", "fail", "undefined symbol: missing"),
    ] {
        if nccl(test, &folder, &source).is_none() {
            return;
        }
        here.expect(&at, name, verdict, words);
    }
    std::fs::write(folder.join("libnccl.so.2"), "NCCL version 2.28.9+cuda13.0").unwrap();
    here.expect(&at, "NCCL 2.28.9", "fail", "cannot be used");
    // A library that is named is not searched for, and must be there.
    let out = here.command().args(["--nccl", "none/libnccl.so.2"]).output().unwrap();
    let said = told(&out);
    assert!(out.status.code() == Some(1) && said.contains("none/libnccl.so.2 cannot be used"), "{said}");
    // A name without a slash is a file here, not one that the loader finds elsewhere.
    let out = here.command().current_dir(&folder).args(["--nccl", "libnccl.so.2"]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(out.status.code() == Some(1) && said.contains("give --nccl the file"), "{said}");
    let out = here.command().arg("--nccl").arg(&folder).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(out.status.code() == Some(1) && said.contains("is no regular file"), "{said}");
    assert!(said.contains("remedy: ") && said.lines().last().unwrap().contains("failed"), "{said}");
}

#[test]
fn a_broken_installation_fails_with_the_file_and_a_remedy() {
    let test = "a_broken_installation_fails_with_the_file_and_a_remedy";
    let Some(here) = Installed::new(test) else { return };
    here.expect(&[], "plugin", "pass", "9 interfaces of NCCL, all sound");
    here.expect(&[], "network plugin", "pass", "can be loaded");
    here.expect(&[], "glibc", "pass", "the plugins need 2.");
    here.expect(&[], "permissions", "pass", "");
    here.expect(&[], "settings", "pass", "accepts");
    here.expect(&[("LINKWISE_MODE", "nonsense")], "settings", "fail", "nonsense");
    here.expect(&[("LINKWISE_PLUGIN", "/none.so")], "plugin", "fail", "there is no /none.so");

    let plugin = here.path("lib").join(PLUGIN);
    let sound = std::fs::read(&plugin).unwrap();
    std::fs::set_permissions(&plugin, std::fs::Permissions::from_mode(0o666)).unwrap();
    here.expect(&[], "permissions", "fail", "has mode 0666: any user can replace");
    std::fs::set_permissions(&plugin, std::fs::Permissions::from_mode(0o755)).unwrap();

    // Built for a system that is newer than this one: every version of glibc that the file names, in as many characters.
    let mut newer = sound.clone();
    let found: Vec<usize> = newer.windows(8).enumerate().filter(|(_, w)| *w == b"GLIBC_2.").map(|(i, _)| i).collect();
    assert!(!found.is_empty());
    found.iter().for_each(|i| newer[i + 6] = b'9');
    std::fs::write(&plugin, newer).unwrap();
    here.expect(&[], "glibc", "fail", "the plugins need 9.");
    here.expect(&[], "plugin", "fail", "cannot be used");

    std::fs::write(&plugin, &sound[..sound.len() / 2]).unwrap();
    here.expect(&[], "plugin", "fail", "cannot be used");
    std::fs::write(&plugin, sound).unwrap();
    std::fs::write(here.path("lib").join(NETWORK), "text").unwrap();
    here.expect(&[], "network plugin", "fail", "cannot be used");
    std::fs::remove_file(here.path("lib").join(NETWORK)).unwrap();
    here.expect(&[], "network plugin", "skip", "no liblinkwise_nccl_net.so");
    std::fs::remove_file(here.path("bin").join(CHECK)).unwrap();
    here.expect(&[], "plugin", "fail", "linkwise-plugin-check is neither");
    std::fs::remove_file(&plugin).unwrap();
    here.expect(&[], "plugin", "fail", "neither next to the command");
}

/// The library of PyPI's wheel, as PyTorch loads it.
#[test]
fn the_real_nccl_library_and_the_plugin_load_into_one_process() {
    let test = "the_real_nccl_library_and_the_plugin_load_into_one_process";
    let Some(here) = Installed::new(test) else { return };
    let library =
        nccl_bench::default_cache().and_then(|c| nccl_bench::Library::get_or_fetch(&c, "2.28".parse().unwrap()));
    let library = match library {
        Ok(library) => library,
        Err(e) => {
            assert!(e.is_about_this_machine(), "{e}");
            eprintln!("SKIP {test}: {e}");
            return;
        }
    };
    let folder = library.path.parent().unwrap().to_str().unwrap();
    let name = format!("NCCL {}", library.version);
    here.expect(&[("LD_LIBRARY_PATH", folder)], &name, "pass", "and the plugin in one process: tuner v5, profiler v5");
}
