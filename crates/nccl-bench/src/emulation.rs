//! Compiles the emulation of CUDA. The binary contains the sources; `cc` compiles them into the cache on first use.

use crate::BenchError;
use crate::library::hex;
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use wait_timeout::ChildExt;

macro_rules! sources {
    ($($name:literal),+ $(,)?) => { [$(($name, include_str!(concat!("../emulation/", $name)))),+] };
}
/// Name and text of a source.
type Source = (&'static str, &'static str);
const HEADERS: [Source; 3] = sources!["emu.h", "graph.h", "play.h"];
/// The sources of the preload library.
pub const PRELOAD: [Source; 28] = sources![
    "config.c",
    "device.c",
    "memory.c",
    "vmm.c",
    "stream.c",
    "queue.c",
    "lane.c",
    "graph.c",
    "attach.c",
    "watch.c",
    "calls.c",
    "libc.c",
    "nvml.c",
    "layout.c",
    "fiber.c",
    "trace.c",
    "link.c",
    "direct.c",
    "pace.c",
    "reduce.c",
    "simple.c",
    "ll.c",
    "ll128.c",
    "p2p.c",
    "ring.c",
    "tree.c",
    "launch.c",
    "program.c",
];
/// Every other part has one source: the net plugin and two programs.
const PARTS: [Source; 3] = sources!["net.c", "runner.c", "mover.c"];

fn sources() -> impl Iterator<Item = Source> {
    HEADERS.into_iter().chain(PRELOAD).chain(PARTS)
}
const FLAGS: [&str; 4] = ["-O2", "-std=gnu11", "-Wall", "-Wextra"];
/// Time limit of the compiler. It normally takes one second.
const COMPILE_SECONDS_MAX: u64 = 120;

/// Paths of the compiled emulation.
#[derive(Debug, Clone)]
pub struct Emulation {
    /// The preload library.
    pub preload: PathBuf,
    /// The net plugin.
    pub net_plugin: PathBuf,
    /// The program that simulates one node.
    pub runner: PathBuf,
    /// The program of one rank whose bytes move.
    pub mover: PathBuf,
}

impl Emulation {
    /// The compiled emulation in `cache`. Compiles it if it is missing. Concurrent processes each compile, and one
    /// result remains. Fails without a C compiler and on machines other than x86-64 Linux.
    pub fn get_or_compile(cache: &Path) -> Result<Self, BenchError> {
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            return Err(BenchError::Machine {
                what: format!("{} on {}", std::env::consts::OS, std::env::consts::ARCH),
                remedy: "the emulation writes x86-64 code and needs Linux".into(),
            });
        }
        let compiler = std::env::var_os("CC").filter(|c| !c.is_empty()).unwrap_or_else(|| OsString::from("cc"));
        let mut hash = Sha256::new();
        for (name, text) in sources() {
            hash.update(name);
            hash.update([0]);
            hash.update(text);
            hash.update([0]);
        }
        hash.update(FLAGS.join(" "));
        let home = cache.join(format!("emulation-{}", &hex(&hash.finalize())[..16]));
        let parts = Emulation {
            preload: home.join("libemulation.so"),
            net_plugin: home.join("libnccl-net-simulated.so"),
            runner: home.join("runner"),
            mover: home.join("mover"),
        };
        if parts.runner.exists() {
            return Ok(parts);
        }
        std::fs::create_dir_all(cache).map_err(BenchError::io(format!("cannot create {}", cache.display())))?;
        let build = tempfile::Builder::new()
            .prefix("emulation-build-")
            .tempdir_in(cache)
            .map_err(BenchError::io(format!("cannot write to {}", cache.display())))?;
        let io = || BenchError::io(format!("cannot write to {}", build.path().display()));
        for (name, text) in sources() {
            std::fs::write(build.path().join(name), text).map_err(io())?;
        }
        let shared = ["-shared", "-fPIC", "-fvisibility=hidden"];
        compile(&compiler, build.path(), &shared, &PRELOAD.map(|(name, _)| name), "libemulation.so")?;
        compile(&compiler, build.path(), &shared, &["net.c"], "libnccl-net-simulated.so")?;
        compile(&compiler, build.path(), &[], &["runner.c"], "runner")?;
        compile(&compiler, build.path(), &[], &["mover.c"], "mover")?;
        // Allow other users of a shared cache to read the folder.
        set_mode(build.path(), 0o755).map_err(io())?;
        match std::fs::rename(build.path(), &home) {
            Ok(()) => {}
            Err(_) if parts.runner.exists() => {} // another process was faster
            Err(e) => return Err(BenchError::Io { what: format!("cannot create {}", home.display()), source: e }),
        }
        Ok(parts)
    }
}

#[cfg(unix)]
fn set_mode(path: &Path, mode: u32) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}
#[cfg(not(unix))]
fn set_mode(_: &Path, _: u32) -> std::io::Result<()> {
    Ok(())
}

fn compile(compiler: &OsString, folder: &Path, extra: &[&str], sources: &[&str], out: &str) -> Result<(), BenchError> {
    let no_compiler = |what: String| BenchError::Machine {
        what,
        remedy: "install a C compiler (Debian: apt-get install gcc libc6-dev) or name one in CC".into(),
    };
    let log = std::fs::File::create(folder.join(format!("{out}.log")))
        .map_err(BenchError::io(format!("cannot write to {}", folder.display())))?;
    let mut child = Command::new(compiler)
        .current_dir(folder)
        .args(FLAGS)
        .args(extra)
        .args(["-o", out])
        .args(sources)
        .args(["-ldl", "-lpthread"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .map_err(|e| no_compiler(format!("the C compiler `{}` does not start ({e})", compiler.to_string_lossy())))?;
    let ended =
        child.wait_timeout(Duration::from_secs(COMPILE_SECONDS_MAX)).map_err(BenchError::io("waiting for cc"))?;
    let Some(status) = ended else {
        let _ = child.kill();
        let _ = child.wait();
        return Err(no_compiler(format!("the C compiler did not finish within {COMPILE_SECONDS_MAX} s")));
    };
    if !status.success() {
        let said = std::fs::read_to_string(folder.join(format!("{out}.log"))).unwrap_or_default();
        let first =
            said.lines().find(|l| l.contains("error")).or(said.lines().next()).unwrap_or("no message").to_string();
        return Err(no_compiler(format!("the emulation does not compile: {first}")));
    }
    Ok(())
}
