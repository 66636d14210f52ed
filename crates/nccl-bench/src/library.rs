//! The NCCL library: pip downloads wheels of `nvidia-nccl-cu12`. The cache keeps only `libnccl.so.2` and its SHA-256.

use crate::BenchError;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};
use topology::nccl::Version;
use wait_timeout::ChildExt;

/// The newest patch of every supported minor release, as of November 2026.
pub const NEWEST: [Version; 12] = [
    Version::new(2, 21, 5),
    Version::new(2, 22, 3),
    Version::new(2, 23, 4),
    Version::new(2, 24, 3),
    Version::new(2, 25, 1),
    Version::new(2, 26, 5),
    Version::new(2, 27, 7),
    Version::new(2, 28, 9),
    Version::new(2, 29, 7),
    Version::new(2, 30, 7),
    Version::new(2, 31, 2),
    Version::new(2, 32, 3),
];
/// Maximum size of all cached libraries together, bytes. The least recently used library is dropped first. Twelve
/// libraries take 4.4 GiB.
pub const CACHE_BYTES_MAX: u64 = 6 << 30;
/// Maximum size of a library file. NCCL libraries have 250 to 480 MB.
const LIBRARY_BYTES_MAX: u64 = 2 << 30;
/// Time limit of a download. 400 MB at 1 MB/s take 400 s.
const FETCH_SECONDS_MAX: u64 = 600;
const FILE: &str = "libnccl.so.2";
const RECORD: &str = "record.json";

/// A library in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Library {
    /// The release with its patch.
    pub version: Version,
    /// Path of the file.
    pub path: PathBuf,
    /// SHA-256 of the file, hexadecimal.
    pub sha256: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LibraryRecord {
    version: Version,
    sha256: String,
    bytes: u64,
}

/// The cache folder, the first of these that is defined: `$LINKWISE_CACHE/nccl`, `$XDG_CACHE_HOME/linkwise/nccl`,
/// `~/.cache/linkwise/nccl`.
pub fn default_cache() -> Result<PathBuf, BenchError> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set("LINKWISE_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|p| p.join("linkwise")))
        .or_else(|| set("HOME").map(|p| p.join(".cache/linkwise")))
        .map(|p| p.join("nccl"))
        .ok_or_else(|| BenchError::Machine {
            what: "LINKWISE_CACHE, XDG_CACHE_HOME and HOME are not set".into(),
            remedy: "set one of them; the folder holds libraries of 400 MB".into(),
        })
}

/// The version with its patch number. If the version has none: the newest known patch of the minor release.
pub fn with_patch(version: Version) -> Result<Version, BenchError> {
    if version.patch.is_some() {
        return Ok(version);
    }
    NEWEST.into_iter().find(|v| (v.major, v.minor) == (version.major, version.minor)).ok_or_else(|| {
        let (first, last) = (NEWEST[0], NEWEST[NEWEST.len() - 1]);
        BenchError::Spec(format!("no patch of NCCL {version} is known; name one (known: {first} to {last})"))
    })
}

impl Library {
    /// The verified library of a release from `cache`. Downloads it if it is missing. One of several concurrent
    /// processes downloads; the others wait. Verification takes 0.3 s, once per process.
    pub fn get_or_fetch(cache: &Path, version: Version) -> Result<Library, BenchError> {
        // Verify once per process, because hashing 400 MB takes 0.3 s.
        static KNOWN: Mutex<Vec<Library>> = Mutex::new(Vec::new());
        let version = with_patch(version)?;
        let home = cache.join(version.to_string());
        let mut known = KNOWN.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(l) = known.iter().find(|l| l.path == home.join(FILE) && l.path.exists()) {
            return Ok(l.clone());
        }
        fs::create_dir_all(&home).map_err(BenchError::io(format!("cannot create {}", home.display())))?;
        let library = locked(&home, || match home.join(FILE).exists() {
            true => verify(&home, version),
            false => fetch(cache, &home, version),
        })?;
        known.push(library.clone());
        Ok(library)
    }
}

/// Runs `f` with the lock of `home`, which excludes other processes.
fn locked<T>(home: &Path, f: impl FnOnce() -> Result<T, BenchError>) -> Result<T, BenchError> {
    let path = home.join("lock");
    let what = || BenchError::io(format!("cannot lock {}", path.display()));
    let lock = match File::create(&path) {
        Ok(lock) => lock,
        // Another user owns the cache. Its files are complete, so no lock is needed.
        Err(e) if home.join(RECORD).exists() && e.kind() == std::io::ErrorKind::PermissionDenied => return f(),
        Err(e) => return Err(what()(e)),
    };
    let deadline = Instant::now() + Duration::from_secs(FETCH_SECONDS_MAX + 60);
    loop {
        match lock.try_lock() {
            Ok(()) => return f(),
            Err(fs::TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(e) => return Err(what()(e.into())),
        }
    }
}

/// Hash and size of a library file. Fails if the file does not contain the version string of this release.
fn inspect(path: &Path, version: Version) -> Result<LibraryRecord, BenchError> {
    let io = || BenchError::io(format!("cannot read {}", path.display()));
    let wrong = |reason: String| BenchError::Cache { path: path.into(), reason };
    let mut file = File::open(path).map_err(io())?;
    let (mut hash, mut bytes, mut says_so) = (Sha256::new(), 0u64, false);
    let wanted = format!("NCCL version {version}");
    let mut buffer = vec![0u8; 1 << 20];
    let mut tail: Vec<u8> = Vec::new(); // may hold the beginning of a match
    loop {
        let n = file.read(&mut buffer).map_err(io())?;
        if n == 0 {
            break;
        }
        hash.update(&buffer[..n]);
        bytes += n as u64;
        if bytes > LIBRARY_BYTES_MAX {
            return Err(wrong(format!("more than {LIBRARY_BYTES_MAX} bytes")));
        }
        if !says_so {
            tail.extend_from_slice(&buffer[..n]);
            says_so = find(&tail, wanted.as_bytes());
            let keep = tail.len().saturating_sub(wanted.len() + 1);
            tail.drain(..keep);
        }
    }
    if !says_so {
        return Err(wrong(format!("it does not contain `{wanted}`")));
    }
    Ok(LibraryRecord { version, sha256: hex(&hash.finalize()), bytes })
}

/// True if `bytes` contain `wanted`, not followed by a digit.
fn find(bytes: &[u8], wanted: &[u8]) -> bool {
    let first = wanted[0];
    let mut at = 0;
    while let Some(p) = bytes[at..].iter().position(|b| *b == first) {
        at += p;
        if bytes[at..].starts_with(wanted) && bytes.get(at + wanted.len()).is_some_and(|b| !b.is_ascii_digit()) {
            return true;
        }
        at += 1;
    }
    false
}

/// SHA-256 of some bytes, hexadecimal.
pub(crate) fn hash_of(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// The release that a library file names ("NCCL version 2.28.9+cuda12.9"). Takes 0.3 s.
pub(crate) fn version_in(path: &Path) -> Result<Version, BenchError> {
    const KEY: &[u8] = b"NCCL version ";
    const LONGEST: usize = 64;
    let mut file = File::open(path).map_err(BenchError::io(format!("cannot read {}", path.display())))?;
    let mut buffer = vec![0u8; 1 << 20];
    let mut window: Vec<u8> = Vec::new(); // with the end of the previous piece, which may hold the beginning of a match
    loop {
        let n = file.read(&mut buffer).map_err(BenchError::io(format!("cannot read {}", path.display())))?;
        if n == 0 {
            return Err(BenchError::Cache { path: path.into(), reason: "it does not name a release of NCCL".into() });
        }
        window.extend_from_slice(&buffer[..n]);
        let mut at = 0;
        while let Some(found) = window[at..].windows(KEY.len()).position(|w| w == KEY) {
            at += found + KEY.len();
            let rest = &window[at..window.len().min(at + LONGEST)];
            let word: String =
                rest.iter().map(|b| *b as char).take_while(|c| c.is_ascii_digit() || *c == '.').collect();
            if let Ok(version) = word.parse::<Version>().map(|v| Version { patch: v.patch.or(Some(0)), ..v }) {
                return Ok(version);
            }
        }
        let keep = window.len().saturating_sub(KEY.len() + LONGEST);
        window.drain(..keep);
    }
}

fn verify(home: &Path, version: Version) -> Result<Library, BenchError> {
    let path = home.join(FILE);
    let found = inspect(&path, version)?;
    match fs::read_to_string(home.join(RECORD)) {
        Ok(text) => {
            let wrong = |reason: &str| BenchError::Cache { path: path.clone(), reason: reason.into() };
            let record: LibraryRecord = serde_json::from_str(&text).map_err(|_| wrong("its record cannot be read"))?;
            if record != found {
                return Err(wrong("its SHA-256 has changed"));
            }
            // Record the time of last use, which determines the order in which libraries are dropped.
            if let Ok(f) = File::options().append(true).open(home.join(RECORD)) {
                let _ = f.set_modified(SystemTime::now());
            }
        }
        Err(_) => write_record(home, &found)?, // a user copied the file here; from now on it must not change
    }
    Ok(Library { version, path, sha256: found.sha256 })
}

fn write_record(home: &Path, record: &LibraryRecord) -> Result<(), BenchError> {
    let text = serde_json::to_string_pretty(record).expect("a record is plain data");
    let temporary = home.join(format!("{RECORD}.{}", std::process::id()));
    fs::write(&temporary, text)
        .and_then(|()| fs::rename(&temporary, home.join(RECORD)))
        .map_err(BenchError::io(format!("cannot write to {}", home.display())))
}

/// Extracts only the library from the wheel.
const UNPACK: &str = "import glob, shutil, sys, zipfile\n\
wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + '/*.whl')[0])\n\
name = [n for n in wheel.namelist() if n.endswith('/libnccl.so.2')][0]\n\
with wheel.open(name) as src, open(sys.argv[2], 'wb') as dst: shutil.copyfileobj(src, dst, 1 << 20)\n";

fn fetch(cache: &Path, home: &Path, version: Version) -> Result<Library, BenchError> {
    let failed = |reason: String| BenchError::Fetch { version, reason, place: home.join(FILE) };
    if std::env::var_os("LINKWISE_OFFLINE").is_some_and(|v| !v.is_empty() && v != "0") {
        return Err(failed("LINKWISE_OFFLINE is set".into()));
    }
    let folder = tempfile::Builder::new()
        .prefix("fetch-")
        .tempdir_in(home)
        .map_err(BenchError::io(format!("cannot write to {}", home.display())))?;
    let wheel = format!("nvidia-nccl-cu12=={version}");
    let at = folder.path().as_os_str();
    let args =
        ["-m", "pip", "download", "--no-deps", "--no-input", "--no-cache-dir", "--only-binary=:all:", "-q", "-d"];
    let deadline = Instant::now() + Duration::from_secs(FETCH_SECONDS_MAX);
    python(args.iter().map(AsRef::as_ref).chain([at, wheel.as_ref()]), folder.path(), deadline).map_err(failed)?;
    let unpacked = folder.path().join(FILE);
    python(["-c".as_ref(), UNPACK.as_ref(), at, unpacked.as_os_str()], folder.path(), deadline).map_err(failed)?;
    let record = inspect(&unpacked, version)?;
    make_room(cache, home, record.bytes, CACHE_BYTES_MAX);
    write_record(home, &record)?;
    fs::rename(&unpacked, home.join(FILE)).map_err(BenchError::io(format!("cannot write to {}", home.display())))?;
    Ok(Library { version, path: home.join(FILE), sha256: record.sha256 })
}

fn python<'a>(
    args: impl IntoIterator<Item = &'a std::ffi::OsStr>,
    folder: &Path,
    deadline: Instant,
) -> Result<(), String> {
    let log = folder.join("pip.log");
    let out = File::create(&log).map_err(|e| format!("cannot write {}: {e}", log.display()))?;
    let mut child = Command::new("python3")
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(out)
        .spawn()
        .map_err(|e| format!("python3 does not start ({e}); install python3 with pip"))?;
    let left = deadline.saturating_duration_since(Instant::now());
    let Some(status) = child.wait_timeout(left).map_err(|e| e.to_string())? else {
        let _ = child.kill();
        let _ = child.wait();
        return Err(format!("the download did not finish within {FETCH_SECONDS_MAX} s"));
    };
    if status.success() {
        return Ok(());
    }
    let mut said = String::new();
    let _ = File::open(&log).and_then(|f| f.take(1 << 16).read_to_string(&mut said));
    let line = said.lines().rev().find(|l| l.contains("ERROR") || l.contains("Error") || l.contains("No module"));
    Err(line.or(said.lines().last()).unwrap_or("pip failed without a message").trim().to_string())
}

/// Drops the least recently used libraries until `more` bytes fit below `most`. Never drops the library in `keep`.
fn make_room(cache: &Path, keep: &Path, more: u64, most: u64) {
    let mut kept: Vec<(SystemTime, u64, PathBuf)> = fs::read_dir(cache)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|e| e.path() != keep)
        .filter_map(|e| {
            let used = fs::metadata(e.path().join(RECORD)).and_then(|m| m.modified()).ok()?;
            let bytes = fs::metadata(e.path().join(FILE)).ok()?.len();
            Some((used, bytes, e.path()))
        })
        .collect();
    kept.sort();
    let mut total: u64 = kept.iter().map(|k| k.1).sum::<u64>() + more;
    for (_, bytes, path) in kept {
        if total <= most {
            break;
        }
        // Remove the library first. Processes that have mapped it keep it; later processes download it again.
        let _ = fs::remove_file(path.join(FILE));
        let _ = fs::remove_file(path.join(RECORD));
        total -= bytes;
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_string_matches_only_as_a_whole() {
        assert!(find(b"..NCCL version 2.28.9+cuda12.9", b"NCCL version 2.28.9"));
        assert!(!find(b"..NCCL version 2.28.91+cuda", b"NCCL version 2.28.9"));
        assert!(!find(b"..NCCL version 2.28.", b"NCCL version 2.28.9"));
    }

    #[test]
    fn the_least_recently_used_library_is_dropped_first() {
        let cache = tempfile::tempdir().unwrap();
        for (i, version) in ["2.24.3", "2.27.7", "2.28.9"].iter().enumerate() {
            let home = cache.path().join(version);
            fs::create_dir(&home).unwrap();
            fs::write(home.join(FILE), [0; 100]).unwrap();
            fs::write(home.join(RECORD), "{}").unwrap();
            let used = SystemTime::UNIX_EPOCH + Duration::from_secs([30, 10, 20][i]);
            File::options().append(true).open(home.join(RECORD)).unwrap().set_modified(used).unwrap();
        }
        let kept = || ["2.24.3", "2.27.7", "2.28.9"].map(|v| cache.path().join(v).join(FILE).exists());
        let new = cache.path().join("2.32.3");
        make_room(cache.path(), &new, 100, 400);
        assert_eq!(kept(), [true, true, true]);
        make_room(cache.path(), &new, 100, 399);
        assert_eq!(kept(), [true, false, true]);
        make_room(cache.path(), &cache.path().join("2.28.9"), 350, 360);
        assert_eq!(kept(), [false, false, true], "the library to keep stays");
    }

    #[test]
    fn a_minor_release_stands_for_its_newest_patch() {
        assert_eq!(with_patch("2.28".parse().unwrap()).unwrap(), Version::new(2, 28, 9));
        assert!(with_patch("2.99".parse().unwrap()).unwrap_err().to_string().contains("2.21.5 to 2.32.3"));
    }
}
