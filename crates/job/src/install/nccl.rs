//! NCCL libraries of this host, and the plugin in a process with each of them.

use super::{Check, HostView, elf};
use crate::plugin_check::{self, Seen};
use std::path::{Path, PathBuf};

/// Most libraries that are checked.
const LIBRARIES_MAX: usize = 32;
/// NCCL's names.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
/// The driver that a major release of CUDA needs at least.
const DRIVER_OF_CUDA: [(u32, u32); 3] = [(11, 450), (12, 525), (13, 580)];
/// Prints the folder of PyPI's package of NCCL, which PyTorch uses.
const PACKAGE: &str = "import importlib.util as u\ntry: s = u.find_spec('nvidia.nccl')\nexcept ImportError: s = None\n\
                       if s: print(*s.submodule_search_locations, sep='\\n')";

/// Remedies for a file that is no NCCL: one that was found, and one that the user gave.
const FOUND: &str = "remove the library, or take its folder out of LD_LIBRARY_PATH";
const GIVEN: &str = "give --nccl the file libnccl.so.2 of an installation of NCCL";

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Checks every NCCL library that is found.
pub fn checks(host: &HostView, plugin: Option<&PathBuf>, out: &mut Vec<Check>) {
    let libraries = libraries(host);
    if libraries.is_empty() {
        let where_ = "LD_LIBRARY_PATH, ldconfig's list, the environment of python3 and of conda";
        let found = format!("no libnccl.so.2 in {where_}; --nccl FILE names one, such as a container's");
        out.push(Check::skip("NCCL", found));
    }
    let driver = host.text(super::devices::DRIVER).and_then(|t| super::devices::driver_version(&t));
    for library in libraries.iter().take(LIBRARIES_MAX) {
        let is_given = host.nccl.iter().any(|p| absolute(p) == *library);
        let remedy = if is_given { GIVEN } else { FOUND };
        out.push(match std::fs::metadata(library) {
            Ok(file) if !file.is_file() => {
                Check::fail("NCCL", format!("{} is no regular file", library.display()), remedy)
            }
            _ => one(library, plugin, driver.as_deref(), remedy),
        });
    }
    if libraries.len() > LIBRARIES_MAX {
        let found = format!("{} more libraries; --nccl FILE checks one", libraries.len() - LIBRARIES_MAX);
        out.push(Check::skip("NCCL", found));
    }
}

/// The libraries, each once.
fn libraries(host: &HostView) -> Vec<PathBuf> {
    // The loader looks for a name without a slash elsewhere.
    let mut all: Vec<PathBuf> = host.nccl.iter().map(|p| absolute(p)).collect();
    let mut folders: Vec<PathBuf> = Vec::new();
    folders.extend(host.variable("LD_LIBRARY_PATH").iter().flat_map(std::env::split_paths));
    for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        folders.extend(host.variable(name).iter().flat_map(|prefix| of_prefix(Path::new(prefix))));
    }
    let python = super::run(Path::new("python3"), &["-c", PACKAGE]).ok().filter(|s| s.code == Some(0));
    folders.extend(python.iter().flat_map(|s| s.out.lines()).take(8).map(|folder| Path::new(folder).join("lib")));
    all.extend(
        folders.iter().filter(|f| f.is_absolute()).flat_map(|f| NAMES.map(|n| f.join(n))).filter(|p| p.exists()),
    );
    for program in ["ldconfig", "/sbin/ldconfig"] {
        if let Ok(said) = super::run(Path::new(program), &["-p"])
            && said.code == Some(0)
        {
            all.extend(of_ldconfig(&said.out));
            break;
        }
    }
    let mut known = std::collections::BTreeSet::new();
    // A library that was named is checked even if it is missing: the loader tells why.
    all.retain(|p| known.insert(p.canonicalize().unwrap_or_else(|_| p.clone())));
    all
}

/// The folders of a virtual environment or of conda that have NCCL.
fn of_prefix(prefix: &Path) -> Vec<PathBuf> {
    let lib = prefix.join("lib");
    let pythons = std::fs::read_dir(&lib).into_iter().flatten().flatten().map(|e| e.path());
    let pythons = pythons.filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("python3")));
    let packages = pythons.map(|p| p.join("site-packages/nvidia/nccl/lib"));
    packages.chain([lib.clone()]).take(16).collect()
}

/// The NCCL libraries in the list of `ldconfig -p`.
fn of_ldconfig(list: &str) -> Vec<PathBuf> {
    let lines = list.lines().filter(|l| l.trim_start().starts_with("libnccl.so"));
    lines.filter_map(|l| l.split_once("=> ")).map(|(_, path)| PathBuf::from(path.trim())).collect()
}

/// One library: its release, the plugin beside it, and the driver that its CUDA needs.
fn one(library: &Path, plugin: Option<&PathBuf>, driver: Option<&str>, remedy: &str) -> Check {
    let banner = elf::nccl_banner(library);
    let named = banner.as_ref().map_or_else(|| "NCCL".to_owned(), |(release, _)| format!("NCCL {release}"));
    let Some(plugin) = plugin else {
        return Check::skip(&named, format!("{}: there is no plugin to load", library.display()));
    };
    let nccl = match plugin_check::load(&[library]) {
        Ok(number) => number,
        Err(e) => return Check::fail(&named, e.to_string(), remedy),
    };
    let Some(number) = nccl else {
        let found = format!("{} has no `ncclGetVersion`: not an NCCL library", library.display());
        return Check::fail(&named, found, remedy);
    };
    let named = format!("NCCL {}", plugin_check::release_name(number));
    let path = library.display();
    let row = match plugin_check::release(number) {
        None => return Check::skip(&named, format!("{path}: not an NCCL 2 release; the plugin is not for it")),
        Some(row) => row,
    };
    let Some(tuner) = row.tuner else {
        let found = format!("{path} is older than 2.21: it does not load the plugin, and jobs run without it");
        return Check::fail(&named, found, "use NCCL 2.21 or newer, 2.28 or newer for mode adaptive");
    };
    let seen = match plugin_check::drive(plugin, Some(library)) {
        Ok(seen) => seen,
        Err(e) => return Check::fail(&named, format!("{path}: {e}"), "install the package for this system again"),
    };
    let missing = missing(&seen, tuner, row.profiler);
    if !missing.is_empty() || !seen.wrong.is_empty() {
        let found = format!("{path}: {}", missing.into_iter().chain(seen.wrong).collect::<Vec<_>>().join("; "));
        return Check::fail(&named, found, "install the package again; the files are not of one release");
    }
    if let (Some((_, Some(cuda))), Some(driver)) = (&banner, driver)
        && let Some((_, least)) = DRIVER_OF_CUDA.iter().find(|(c, _)| c == cuda)
        && elf::numbers(driver).is_some_and(|v| v.first() < Some(least))
    {
        let found = format!("{path} is built for CUDA {cuda}, which needs driver {least} or newer; {driver} is loaded");
        return Check::fail(&named, found, format!("install a newer driver, or an NCCL for CUDA {}", cuda - 1));
    }
    let interfaces = match row.profiler {
        Some(profiler) => format!("tuner v{tuner}, profiler v{profiler}"),
        None => format!("tuner v{tuner}"),
    };
    let can = row.can.split(" (").next().unwrap_or(row.can);
    Check::pass(&named, format!("{path} and the plugin in one process: {interfaces}; {can}"))
}

/// Interfaces that this release would look for in vain.
fn missing(seen: &Seen, tuner: u32, profiler: Option<u32>) -> Vec<String> {
    let wanted = [("tuner", Some(tuner)), ("profiler", profiler)];
    let named = wanted.into_iter().filter_map(|(name, version)| Some((name, version?)));
    let lost = named.filter(|(name, version)| seen.interface(name, *version).is_none());
    lost.map(|(name, version)| format!("the plugin has no {name} v{version}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ldconfigs_list_names_libraries() {
        let list = "1 libs found in cache `/etc/ld.so.cache'\n\tlibnccl.so.2 (libc6,x86-64) => /usr/lib/libnccl.so.2\n\
                    \tlibncclx.so (libc6) => /usr/lib/libncclx.so\n\tlibnccl.so (libc6)\n";
        assert_eq!(of_ldconfig(list), [PathBuf::from("/usr/lib/libnccl.so.2")]);
    }
}
