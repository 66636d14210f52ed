//! The driver of the GPUs, RDMA, and shared memory.

use super::{Check, HostView};
use rustix::fs::{Access, access};
use std::path::{Path, PathBuf};

/// The file with the driver's version, below the root.
pub const DRIVER: &str = "proc/driver/nvidia/version";
/// Least locked memory that RDMA works with, bytes.
const LOCKED_BYTES_MIN: u64 = 1 << 30;
/// Shared memory that a job of 8 ranks takes at least, bytes.
const SHARED_BYTES_MIN: u64 = 256 << 20;

/// The version in the text of [`DRIVER`]: the first word with two dots or one, such as 580.95.05.
pub fn driver_version(text: &str) -> Option<String> {
    let words = text.lines().find(|l| l.contains("NVRM version"))?.split_whitespace();
    words.map(str::to_owned).find(|w| w.contains('.') && w.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

/// What this process may not read and write.
fn closed(paths: &[PathBuf]) -> Option<&PathBuf> {
    paths.iter().find(|p| access(p.as_path(), Access::READ_OK | Access::WRITE_OK).is_err())
}

/// The GPUs' driver: loaded, of one version, its devices open to this user.
pub fn driver(host: &HostView, out: &mut Vec<Check>) {
    const NAME: &str = "driver";
    let Some(text) = host.text(DRIVER) else {
        let found = match host.names("dev").iter().any(|n| n.starts_with("nvidia")) {
            true => "there are /dev/nvidia* but no loaded NVIDIA driver",
            false => "no NVIDIA driver is loaded on this host",
        };
        out.push(Check::skip(NAME, found));
        return;
    };
    let version = driver_version(&text).unwrap_or_else(|| "of an unknown version".into());
    let devices: Vec<PathBuf> =
        host.names("dev").iter().filter(|n| is_gpu(n)).map(|n| host.at(&format!("dev/{n}"))).collect();
    if devices.is_empty() {
        let remedy = "start the container with its GPUs (--gpus all), or run nvidia-modprobe";
        out.push(Check::fail(NAME, format!("{version}, but no /dev/nvidia0"), remedy));
        return;
    }
    if let Some(path) = closed(&devices) {
        let remedy = "give the user the device: its group, or the job's cgroup";
        out.push(Check::fail(NAME, format!("{version}; this user cannot open {}", path.display()), remedy));
        return;
    }
    let said = super::run(Path::new("nvidia-smi"), &["--query-gpu=name", "--format=csv,noheader"]);
    out.push(match said {
        Ok(s) if s.code == Some(0) => {
            let n = s.out.lines().filter(|l| !l.trim().is_empty()).count();
            let first = s.out.lines().next().unwrap_or("").trim().chars().take(60).collect::<String>();
            Check::pass(NAME, format!("{version}, {}, the first {first}", topology::count(n, "GPU")))
        }
        Ok(s) => {
            let remedy = "load the kernel module of the installed driver, or restart the host";
            Check::fail(NAME, format!("{version}; nvidia-smi fails: {}", s.last_line()), remedy)
        }
        Err(_) => Check::skip(
            NAME,
            format!("{version}, {}; there is no nvidia-smi to ask", topology::count(devices.len(), "GPU")),
        ),
    });
}

fn is_gpu(name: &str) -> bool {
    name.strip_prefix("nvidia").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// The names by which NCCL loads the library of RDMA (dlopen of `libibverbs.so`, then `libibverbs.so.1`).
const VERBS: [&str; 2] = ["libibverbs.so.1", "libibverbs.so"];
/// Most folders in which the library is looked for.
const FOLDERS_MAX: usize = 256;

/// The file of a library where the loader looks for it: LD_LIBRARY_PATH, the folders of /etc/ld.so.conf, and the system's. Nothing is loaded.
fn library(host: &HostView, names: &[&str]) -> Option<PathBuf> {
    let mut folders: Vec<PathBuf> = host.variable("LD_LIBRARY_PATH").iter().flat_map(std::env::split_paths).collect();
    let parts = host.names("etc/ld.so.conf.d").into_iter().map(|n| format!("etc/ld.so.conf.d/{n}"));
    for file in parts.filter(|n| n.ends_with(".conf")).chain(["etc/ld.so.conf".to_owned()]) {
        let text = host.text(&file).unwrap_or_default();
        folders.extend(text.lines().map(str::trim).filter(|l| l.starts_with('/')).map(|l| host.at(l)));
    }
    let machine = std::env::consts::ARCH;
    for of in ["", "usr/"] {
        folders.extend(
            [format!("{of}lib64"), format!("{of}lib/{machine}-linux-gnu"), format!("{of}lib")].map(|f| host.at(&f)),
        );
    }
    let files =
        folders.iter().take(FOLDERS_MAX).filter(|f| f.is_absolute()).flat_map(|f| names.iter().map(|n| f.join(n)));
    files.into_iter().find(|p| p.exists())
}

/// RDMA devices: a port is active, this user may open the device, the library is there, memory may be locked.
pub fn rdma(host: &HostView, out: &mut Vec<Check>) {
    const NAME: &str = "RDMA";
    let devices = host.names("sys/class/infiniband");
    if devices.is_empty() {
        out.push(Check::skip(NAME, "this host has no RDMA device: NCCL uses sockets"));
        return;
    }
    let ports: Vec<(String, String)> = devices
        .iter()
        .flat_map(|d| host.names(&format!("sys/class/infiniband/{d}/ports")).into_iter().map(move |p| (d.clone(), p)))
        .collect();
    let state = |d: &str, p: &str| host.text(&format!("sys/class/infiniband/{d}/ports/{p}/state")).unwrap_or_default();
    let active = ports.iter().filter(|(d, p)| state(d, p).contains("ACTIVE")).count();
    let count = format!("{active} of {} active on {}", topology::count(ports.len(), "port"), devices.join(", "));
    if active == 0 {
        let remedy = "check cables, the subnet manager (InfiniBand), and `ip link set up` (RoCE)";
        out.push(Check::fail(NAME, count, remedy));
        return;
    }
    let verbs: Vec<PathBuf> = host
        .names("dev/infiniband")
        .iter()
        .filter(|n| n.starts_with("uverbs"))
        .map(|n| host.at(&format!("dev/infiniband/{n}")))
        .collect();
    let problem = match closed(&verbs) {
        _ if verbs.is_empty() => Some((
            format!("{count}; there is no /dev/infiniband/uverbs*"),
            "load ib_uverbs (modprobe ib_uverbs), or start the container with /dev/infiniband",
        )),
        Some(path) => Some((
            format!("{count}; this user cannot open {}", path.display()),
            "give the user the device: udev's rule of rdma-core makes it mode 0666",
        )),
        None if library(host, &VERBS).is_none() => Some((
            format!(
                "{count}; there is no libibverbs.so.1 in LD_LIBRARY_PATH and the system's folders: NCCL uses sockets"
            ),
            "install libibverbs1 (Debian, Ubuntu) or libibverbs (RHEL, SLES), in the job's container, too",
        )),
        None => None,
    };
    if let Some((found, remedy)) = problem {
        out.push(Check::fail(NAME, found, remedy));
        return;
    }
    out.push(Check::pass(NAME, count));
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    out.push(match limit {
        Some(bytes) if bytes < LOCKED_BYTES_MIN => Check::fail(
            "locked memory",
            format!("this shell may lock {} KiB, and RDMA locks every buffer", bytes >> 10),
            "set `memlock unlimited` in /etc/security/limits.conf, LimitMEMLOCK=infinity in the unit that starts jobs",
        ),
        Some(bytes) => Check::pass("locked memory", format!("{} MiB", bytes >> 20)),
        None => Check::pass("locked memory", "unlimited"),
    });
}

/// The folder of shared memory, which NCCL and the plugin use inside a host.
pub fn shared_memory(host: &HostView, out: &mut Vec<Check>) {
    const NAME: &str = "shared memory";
    let path = host.at("dev/shm");
    if access(&path, Access::READ_OK | Access::WRITE_OK).is_err() {
        out.push(Check::fail(NAME, "this user cannot write to /dev/shm", "mount a tmpfs there with mode 1777"));
        return;
    }
    out.push(match rustix::fs::statvfs(&path) {
        Err(e) => Check::fail(NAME, format!("/dev/shm: {e}"), "mount a tmpfs there with mode 1777"),
        Ok(s) if s.f_blocks.saturating_mul(s.f_frsize) < SHARED_BYTES_MIN => Check::fail(
            NAME,
            format!("/dev/shm has {} MiB", s.f_blocks.saturating_mul(s.f_frsize) >> 20),
            "start the container with --shm-size 8g or --ipc host",
        ),
        Ok(s) => Check::pass(NAME, format!("/dev/shm has {} MiB", s.f_blocks.saturating_mul(s.f_frsize) >> 20)),
    });
}

#[cfg(test)]
mod tests {
    use super::super::Verdict::{Fail, Pass, Skip};
    use super::*;

    /// A host with these files.
    fn host(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        dir
    }

    fn of(check: fn(&HostView, &mut Vec<Check>), files: &[(&str, &str)]) -> Vec<Check> {
        let dir = host(files);
        let view = HostView { root: dir.path().into(), env: &|_| None, nccl: Vec::new() };
        let mut out = Vec::new();
        check(&view, &mut out);
        out
    }

    const STATE: &str = "sys/class/infiniband/mlx5_0/ports/1/state";

    const VERBS0: (&str, &str) = ("dev/infiniband/uverbs0", "");

    #[test]
    fn a_library_of_ld_library_path_is_found() {
        let dir = host(&[("libibverbs.so", "")]);
        let path = dir.path().to_str().unwrap().to_owned();
        let env = move |name: &str| (name == "LD_LIBRARY_PATH").then(|| format!("relative:/nowhere:{path}"));
        let view = HostView { root: dir.path().join("empty"), env: &env, nccl: Vec::new() };
        assert_eq!(library(&view, &VERBS), Some(dir.path().join("libibverbs.so")));
        assert_eq!(library(&HostView { env: &|_| None, ..view }, &VERBS), None);
    }

    #[test]
    fn a_host_without_rdma_or_driver_is_skipped_and_a_broken_one_fails_with_the_reason() {
        let version = (
            DRIVER,
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version: 12.2.0\n",
        );
        for (check, files, verdict, words) in [
            (rdma as fn(&HostView, &mut Vec<Check>), &[][..], Skip, "no RDMA device"),
            (rdma, &[(STATE, "1: DOWN\n")], Fail, "0 of 1 port active on mlx5_0"),
            (rdma, &[(STATE, "4: ACTIVE\n")], Fail, "no /dev/infiniband/uverbs*"),
            (rdma, &[(STATE, "4: ACTIVE\n"), VERBS0], Fail, "no libibverbs.so.1 in LD_LIBRARY_PATH"),
            (rdma, &[(STATE, "4: ACTIVE\n"), VERBS0, ("usr/lib64/libibverbs.so.1", "")], Pass, "1 of 1 port active"),
            (
                rdma,
                &[
                    (STATE, "4: ACTIVE\n"),
                    VERBS0,
                    ("etc/ld.so.conf.d/rdma.conf", "# rdma-core\n/opt/rdma/lib\n"),
                    ("opt/rdma/lib/libibverbs.so.1", ""),
                ],
                Pass,
                "1 of 1 port active",
            ),
            (driver, &[], Skip, "no NVIDIA driver is loaded"),
            (driver, &[("dev/nvidia0", "")], Skip, "but no loaded NVIDIA driver"),
            (driver, &[version], Fail, "580.95.05, but no /dev/nvidia0"),
            (shared_memory, &[], Fail, "cannot write to /dev/shm"),
            (shared_memory, &[("dev/shm/x", "")], Pass, "/dev/shm has"),
        ] {
            let found = of(check, files);
            assert_eq!(found[0].verdict, verdict, "{found:?}");
            assert!(found[0].found.contains(words), "{found:?}");
            assert_eq!(found[0].remedy.is_some(), verdict == Fail, "{found:?}");
        }
    }

    #[test]
    fn the_version_is_found_in_both_forms_of_the_drivers_file() {
        for text in [
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat Feb 24\n",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.161.08  Release Build  (dvs)\n",
        ] {
            assert_eq!(driver_version(text).as_deref(), Some("535.161.08"));
        }
        assert_eq!(driver_version("nothing"), None);
    }
}
