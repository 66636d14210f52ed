//! The files of linkwise: found, loadable, readable, and safe from other users; the settings that a job would read.

use super::{Check, HostView, elf};
use crate::bundled;
use crate::plugin;
use crate::plugin_check;
use std::collections::BTreeSet;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The network plugin's file name.
const NETWORK: &str = "liblinkwise_nccl_net.so";

/// Checks the files and the settings. Returns the plugin's library, if there is one that can be loaded.
pub fn checks(host: &HostView, out: &mut Vec<Check>) -> Option<PathBuf> {
    let library = match plugin::library() {
        Ok(path) => path,
        Err(e) => {
            out.push(Check::fail("plugin", e.to_string(), "install the package again, or set LINKWISE_PLUGIN"));
            return None;
        }
    };
    let network = plugin::installed(NETWORK, &plugin::FOLDERS).ok().flatten();
    let files: Vec<&Path> = std::iter::once(library.as_path()).chain(network.as_deref()).collect();
    glibc(host, &files, out);
    let usable = loadable(&library, out);
    match &network {
        None => out.push(Check::skip("network plugin", format!("no {NETWORK} next to the command or in ../lib"))),
        Some(path) => out.push(match plugin_check::load(&[path]) {
            Ok(_) => Check::pass("network plugin", format!("{} can be loaded", path.display())),
            Err(e) => Check::fail("network plugin", e.to_string(), "install the package again"),
        }),
    }
    permissions(&files, out);
    settings(out);
    usable.then_some(library)
}

/// The plugin through every interface, without NCCL.
fn loadable(library: &Path, out: &mut Vec<Check>) -> bool {
    let check = match plugin_check::drive(library, None) {
        Ok(seen) if seen.wrong.is_empty() => {
            let n = seen.interfaces.len();
            Check::pass("plugin", format!("{} has {n} interfaces of NCCL, all sound", library.display()))
        }
        Ok(seen) => {
            let found = format!("{} must not be loaded: {}", library.display(), seen.wrong.join("; "));
            Check::fail("plugin", found, "install the package again; the files are not of one release")
        }
        Err(e) => Check::fail("plugin", e.to_string(), "install the package for this system again"),
    };
    let usable = check.verdict == super::Verdict::Pass;
    out.push(check);
    usable
}

/// This system's glibc beside the one that the plugins need.
fn glibc(host: &HostView, files: &[&Path], out: &mut Vec<Check>) {
    const NAME: &str = "glibc";
    let said = super::run(Path::new("getconf"), &["GNU_LIBC_VERSION"]);
    let here = said.ok().filter(|s| s.code == Some(0)).and_then(|s| elf::numbers(s.out.trim_start_matches("glibc ")));
    let needed = files.iter().filter_map(|f| elf::glibc_needed(f).ok().flatten()).max();
    let Some(here) = here else {
        let system = host.text("etc/os-release").unwrap_or_default();
        let system = system.lines().find_map(|l| l.strip_prefix("PRETTY_NAME=")).unwrap_or("this system").to_owned();
        let found = format!("{} has no glibc, or no `getconf` that tells its version", system.trim_matches('"'));
        out.push(Check::fail(NAME, found, "run jobs in a container with glibc 2.28 or newer"));
        return;
    };
    let is = elf::name(&here);
    out.push(match needed {
        None => Check::skip(NAME, format!("{is}; the plugins name no version of glibc")),
        Some(n) if n <= here => Check::pass(NAME, format!("{is}; the plugins need {}", elf::name(&n))),
        Some(n) => {
            let found = format!("{is}; the plugins need {}", elf::name(&n));
            Check::fail(NAME, found, "install the wheel or the package, whose plugins need glibc 2.28")
        }
    });
}

/// The problem of a file or folder: its permissions, as others see them.
fn permission(path: &Path, about: &Metadata, is_shared: bool) -> Option<String> {
    let (mode, is_dir) = (about.mode(), about.is_dir());
    let anyone_may_replace = mode & 0o002 != 0 && (!is_dir || mode & 0o1000 == 0);
    let hidden = mode & if is_dir { 0o001 } else { 0o004 } == 0;
    let what = match () {
        () if anyone_may_replace => "any user can replace what jobs load",
        () if is_shared && hidden => "other users' jobs cannot load the plugin",
        () => return None,
    };
    Some(format!("{} has mode {:04o}: {what}", path.display(), mode & 0o7777))
}

/// The plugins, and the folders above them. Those of root are for everybody; those of a user, and those in the user's cache, are for that user's jobs.
fn permissions(files: &[&Path], out: &mut Vec<Check>) {
    const NAME: &str = "permissions";
    let mut paths = BTreeSet::new();
    for file in files {
        paths.extend(file.ancestors().map(Path::to_path_buf));
    }
    let is_shared = files.iter().any(|f| f.metadata().is_ok_and(|m| m.uid() == 0) && !bundled::is_unpacked(f));
    let about = |p: &PathBuf| p.metadata().map(|m| (p.clone(), m)).map_err(|e| format!("{}: {e}", p.display()));
    let problems: Vec<String> = paths
        .iter()
        .filter_map(|p| match about(p) {
            Ok((path, m)) => permission(&path, &m, is_shared),
            Err(e) => Some(e),
        })
        .collect();
    let unreadable = files.iter().find_map(|f| std::fs::File::open(f).err().map(|e| format!("{}: {e}", f.display())));
    out.push(match problems.into_iter().chain(unreadable).next() {
        Some(problem) => Check::fail(NAME, problem, "chmod o-w what others can write, and a+rX what jobs load"),
        None if is_shared => Check::pass(NAME, "every user's jobs can load the plugins; only root can replace them"),
        None => Check::pass(NAME, "this user's jobs can load the plugins; no other user can replace them"),
    });
}

/// The LINKWISE_* variables of this shell, as the plugin would read them in a job.
fn settings(out: &mut Vec<Check>) {
    const NAME: &str = "settings";
    let Ok(program) = plugin_check::program() else { return };
    out.push(match super::run(&program, &["--settings"]) {
        Ok(said) if said.code == Some(0) => {
            Check::pass(NAME, "the plugin accepts the LINKWISE_* variables of this shell")
        }
        Ok(said) => {
            let remedy = "correct or unset the variable; the plugin would stay off in jobs of this shell";
            Check::fail(NAME, said.last_line(), remedy)
        }
        Err(e) => Check::fail(NAME, e, "install the package again"),
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn files_that_others_can_replace_or_cannot_read_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let (file, folder) = (dir.path().join("plugin.so"), dir.path().join("lib"));
        std::fs::write(&file, "").unwrap();
        std::fs::create_dir(&folder).unwrap();
        for (path, mode, is_shared, expected) in [
            (&file, 0o644, true, None),
            (&file, 0o666, false, Some("any user can replace")),
            (&file, 0o600, true, Some("other users' jobs cannot")),
            (&file, 0o600, false, None),
            (&folder, 0o755, true, None),
            (&folder, 0o777, true, Some("any user can replace")),
            (&folder, 0o1777, true, None),
            (&folder, 0o700, true, Some("other users' jobs cannot")),
            (&folder, 0o700, false, None),
        ] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
            let found = permission(path, &path.metadata().unwrap(), is_shared);
            assert_eq!(found.is_some(), expected.is_some(), "{path:?} {mode:o} {found:?}");
            assert!(found.unwrap_or_default().contains(expected.unwrap_or("")), "{mode:o}");
        }
    }
}
