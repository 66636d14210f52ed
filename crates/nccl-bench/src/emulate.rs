//! Any NCCL program on simulated hosts, without a GPU: the environment in which an ordinary program (PyTorch, nccl-tests, one of your own) finds
//! an emulated CUDA and the unmodified NCCL library that it brings. Copies and NCCL work; the program's own kernels are skipped and counted, or
//! end the program by name.
//!
//! A launcher on this machine starts the ranks. The preload library reads each rank's number (`RANK` of torchrun, or that of MPI and Slurm) before
//! the program does, gives it a host of [`EmulateSpec::gpus`] GPUs, and sets `NCCL_HOSTID`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE` and `GROUP_RANK`.

use crate::emulation::Emulation;
use crate::run::{Bench, new_folder};
use crate::{BenchError, TopologyFile, layout};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use topology::HostType;
use topology::nccl::Version;

/// Maximum number of ranks.
pub const EMULATED_RANKS_MAX: usize = 256;
/// Maximum size of the file of counted kernels, bytes.
const SUMMARY_BYTES_MAX: u64 = 16 << 20;

/// NCCL settings that a run needs. The caller's own settings win.
const DEFAULTS: [(&str, &str); 7] = [
    ("NCCL_NVLS_ENABLE", "0"),
    ("NCCL_PAT_ENABLE", "0"),
    ("NCCL_ALLGATHERV_ENABLE", "0"),
    ("NCCL_IB_DISABLE", "1"),
    ("NCCL_RAS_ENABLE", "0"),
    ("NCCL_SOCKET_IFNAME", "lo"),
    ("NCCL_CTA_POLICY", "0"), // copy-engine collectives are not played
];

/// Simulated hosts for a program.
#[derive(Debug, Clone)]
pub struct EmulateSpec {
    /// The hardware of every host.
    pub host_type: HostType,
    /// Number of hosts.
    pub hosts: usize,
    /// Number of GPUs of a host that the program uses: the first of the host type.
    pub gpus: usize,
    /// True to end the program at its first own kernel instead of skipping and counting it.
    pub refuse_kernels: bool,
    /// Seconds without progress in any rank after which a run ends; 0: never.
    pub stall_s: u64,
    /// Command that prints the path of the file of offsets for a library ([`layout_of`]), with `'LIBRARY'` added at its end.
    pub layout_command: OsString,
}

/// The prepared environment. Its files are removed on drop.
#[derive(Debug)]
pub struct Emulated {
    /// Variables for the program or its launcher. The caller's variables of the same name should win for names that begin with `NCCL_`.
    pub env: Vec<(OsString, OsString)>,
    summary: PathBuf,
    folder: tempfile::TempDir, // dropped before its guard
    _guard: Option<Guard>,
}

/// A shell that ends the run's processes and removes its folder if this process is killed: its input then ends without a line.
#[derive(Debug)]
struct Guard {
    shell: Child,
    input: Option<ChildStdin>,
}

/// Arguments: the folder, whose path is in the environment of every process of the run.
const GUARD: &str = r#"trap '' HUP INT TERM
read -r ended && exit 0
all() { for e in $(grep -lsF -e "$2" /proc/[0-9]*/environ); do p=${e#/proc/}; kill -s "$1" "${p%/environ}" 2>/dev/null; done; }
all TERM "$1"; sleep 1; all KILL "$1"; rm -rf -- "$1""#;

impl Guard {
    /// `None` on a machine without a shell, which then keeps the folder of a killed run.
    fn of(folder: &Path) -> Option<Guard> {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", GUARD, "linkwise-emulate"]).arg(folder).process_group(0);
        let shell = shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        shell.ok().map(|mut shell| Guard { input: shell.stdin.take(), shell })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut input) = self.input.take() {
            let _ = input.write_all(b"ended\n");
        }
        let _ = self.shell.wait();
    }
}

impl Emulated {
    /// Launches of the program's own kernels that were skipped, by name, of all ranks that have ended.
    pub fn skipped(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        let small = fs::metadata(&self.summary).is_ok_and(|m| m.len() <= SUMMARY_BYTES_MAX);
        let text = if small { fs::read_to_string(&self.summary).unwrap_or_default() } else { String::new() };
        for line in text.lines() {
            let mut words = line.splitn(3, ' ').skip(1);
            if let (Some(Ok(launches)), Some(name)) = (words.next().map(str::parse::<u64>), words.next()) {
                *counts.entry(name.to_string()).or_insert(0) += launches;
            }
        }
        counts
    }

    /// True if a process made an emulated CUDA call. A static program, or one with a stripped runtime of its own, makes none.
    pub fn was_used(&self) -> bool {
        self.folder.path().join("shm/used").exists()
    }

    /// Tells the other ranks that a rank has ended.
    pub fn rank_ended(&self, rank: usize) {
        let _ = fs::write(self.folder.path().join(format!("shm/left-{rank}")), "");
    }

    /// The processes of the run that are alive, also those that a launcher or a shell has started. Reads `/proc`.
    pub fn processes(&self) -> Vec<u32> {
        let name = self.folder.path().as_os_str().as_bytes();
        let ours = |pid: &u32| {
            *pid != std::process::id()
                && fs::read(format!("/proc/{pid}/environ")).is_ok_and(|e| e.windows(name.len()).any(|w| w == name))
        };
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|e| e.file_name().to_str()?.parse().ok()).filter(ours).collect()
    }
}

/// The preload library before those of the caller, which stay.
fn preloads(own: &Path, callers: Option<OsString>) -> OsString {
    let mut all = own.as_os_str().to_owned();
    if let Some(others) = callers.filter(|o| !o.is_empty()) {
        all.push(":");
        all.push(others);
    }
    all
}

impl Bench {
    /// Prepares simulated hosts for a program. Fails without a C compiler, and for a host type that the bench cannot describe.
    pub fn emulate(&self, spec: &EmulateSpec) -> Result<Emulated, BenchError> {
        let of_type = spec.host_type.gpu_count();
        if spec.hosts == 0 || spec.gpus == 0 || spec.hosts.saturating_mul(spec.gpus) > EMULATED_RANKS_MAX {
            return Err(BenchError::Spec(format!(
                "{} hosts with {} GPUs; 1 to {EMULATED_RANKS_MAX} ranks are supported",
                spec.hosts, spec.gpus
            )));
        }
        if spec.gpus > of_type {
            return Err(BenchError::Spec(format!(
                "{} GPUs of a host; `{}` has {of_type}",
                spec.gpus, spec.host_type.name
            )));
        }
        let emulation = Emulation::get_or_compile(self.cache())?;
        let topology = TopologyFile::of(&spec.host_type, false).map_err(BenchError::Spec)?;
        let folder = new_folder()?;
        let file = |name: &str| folder.path().join(name);
        fs::write(file("topology.xml"), &topology.xml).map_err(BenchError::io("cannot write the topology file"))?;
        fs::create_dir(file("shm")).map_err(BenchError::io("cannot create a folder for shared memory"))?;
        let visible: Vec<String> = (0..spec.gpus).map(|g| g.to_string()).collect();
        let ranks = (spec.hosts * spec.gpus).to_string();
        let summary = file("skipped");
        let mut env: Vec<(OsString, OsString)> = Vec::new();
        let mut set = |name: &str, value: OsString| env.push((name.into(), value));
        DEFAULTS.iter().for_each(|(name, value)| set(name, value.into()));
        set("LD_PRELOAD", preloads(&emulation.preload, std::env::var_os("LD_PRELOAD")));
        set("CUDA_VISIBLE_DEVICES", visible.join(",").into());
        set("NCCL_TOPO_FILE", file("topology.xml").into());
        set("PET_NPROC_PER_NODE", ranks.into()); // torchrun's default of --nproc-per-node
        topology.gpu_variables().into_iter().for_each(|(name, value)| set(name, value.into()));
        for (name, value) in [
            ("LINKWISE_EMU_HOSTS", format!("{}x{}", spec.hosts, spec.gpus)),
            ("LINKWISE_EMU_JOB", std::process::id().to_string()),
            ("LINKWISE_EMU_PLAY", "bytes".into()),
            ("LINKWISE_EMU_PROGRAM", "1".into()),
            ("LINKWISE_EMU_REFUSE_KERNELS", u8::from(spec.refuse_kernels).to_string()),
            ("LINKWISE_EMU_STALL_S", spec.stall_s.to_string()),
        ] {
            set(name, value.into());
        }
        set("LINKWISE_EMU_SHARED_MEMORY", file("shm").into());
        set("LINKWISE_EMU_SUMMARY", summary.clone().into());
        set("LINKWISE_EMU_LAYOUT_COMMAND", spec.layout_command.clone());
        let guard = Guard::of(folder.path());
        Ok(Emulated { env, summary, folder, _guard: guard })
    }

    /// The file of offsets for the library that a program has loaded. Reads the debug information once per file (path, size, time of change).
    /// Fails for a release that the player has not been tested on.
    pub fn layout_of(&self, library: &Path) -> Result<PathBuf, BenchError> {
        let io = || BenchError::io(format!("cannot read {}", library.display()));
        let library = library.canonicalize().map_err(io())?;
        let about = fs::metadata(&library).map_err(io())?;
        let changed =
            about.modified().ok().and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok()).unwrap_or_default();
        let name: String = library.to_string_lossy().bytes().map(|b| format!("{b:02x}")).collect();
        let key = format!("{name} {} {}", about.len(), changed.as_nanos());
        let hash = crate::library::hash_of(key.as_bytes());
        let folder = self.cache().join("layouts");
        let path = folder.join(format!("{}-{}.txt", layout::FORMAT, &hash[..16]));
        if path.exists() {
            return Ok(path);
        }
        let version = crate::library::version_in(&library)?;
        if !layout::RELEASES.contains(&version) {
            return Err(layout::unsupported(version));
        }
        let text = layout::read(&library, version)?;
        let temporary = folder.join(format!("{}.{}", &hash[..16], std::process::id()));
        fs::create_dir_all(&folder)
            .and_then(|()| fs::write(&temporary, text))
            .and_then(|()| fs::rename(&temporary, &path))
            .map_err(BenchError::io(format!("cannot write to {}", folder.display())))?;
        Ok(path)
    }
}

/// The releases on which a program's bytes move.
pub fn releases() -> &'static [Version] {
    &layout::RELEASES
}
