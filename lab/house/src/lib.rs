//! The imports that crates may have, read from the manifests. Every crate has a test that calls [`assert_imports`]; the
//! tests of this crate check the rules that concern several crates.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A crate of the workspace.
#[derive(Clone, Debug)]
pub struct Room {
    /// The package.
    pub name: String,
    /// Its folder, relative to the workspace.
    pub folder: PathBuf,
    /// Packages of the workspace that it imports outside of its tests, sorted.
    pub imports: Vec<String>,
    /// Packages of the workspace that only its tests import, sorted.
    pub test_imports: Vec<String>,
}

/// All crates of the workspace that contains `manifest_dir`, by `cargo metadata` without network.
///
/// # Panics
/// `cargo` cannot be run, or prints no metadata.
pub fn rooms(manifest_dir: &str) -> Vec<Room> {
    let out = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(manifest_dir)
        .output()
        .unwrap_or_else(|e| panic!("cargo metadata: {e}"));
    let v: Value = serde_json::from_slice(&out.stdout)
        .unwrap_or_else(|e| panic!("cargo metadata: {e}: {}", String::from_utf8_lossy(&out.stderr)));
    let root = Path::new(v["workspace_root"].as_str().unwrap_or_default()).to_path_buf();
    let packages = v["packages"].as_array().cloned().unwrap_or_default();
    packages.iter().map(|p| room(p, &root)).collect()
}

fn room(package: &Value, root: &Path) -> Room {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let manifest = PathBuf::from(text(&package["manifest_path"]));
    let folder = manifest.parent().unwrap_or(Path::new(""));
    let mut room = Room {
        name: text(&package["name"]),
        folder: folder.strip_prefix(root).unwrap_or(folder).to_path_buf(),
        imports: Vec::new(),
        test_imports: Vec::new(),
    };
    for d in package["dependencies"].as_array().into_iter().flatten().filter(|d| d["path"].is_string()) {
        let name = text(&d["name"]);
        match d["kind"].as_str() {
            Some("dev") => room.test_imports.push(name),
            _ => room.imports.push(name),
        }
    }
    room.imports.sort();
    room.imports.dedup();
    room.test_imports.sort();
    room.test_imports.retain(|t| !room.imports.contains(t) && *t != room.name);
    room
}

/// Fails unless the crate in `manifest_dir` imports only crates of `allowed` outside of its tests, and imports each of
/// them: an allowed import that is no longer used must be removed from the list.
///
/// # Panics
/// The imports differ.
pub fn assert_imports(manifest_dir: &str, allowed: &[&str]) {
    let rooms = rooms(manifest_dir);
    let here = Path::new(manifest_dir);
    let room = rooms.iter().find(|r| here.ends_with(&r.folder)).unwrap_or_else(|| panic!("no crate in {manifest_dir}"));
    let mut allowed: Vec<&str> = allowed.to_vec();
    allowed.sort_unstable();
    assert_eq!(room.imports, allowed, "imports of `{}` (left) and its allowed imports (right)", room.name);
}

/// Fails unless the crate in `manifest_dir` depends outside of its tests only on the packages of `allowed`, at any depth.
///
/// # Panics
/// The crate depends on another package, or `cargo tree` cannot be run.
pub fn assert_dependencies(manifest_dir: &str, package: &str, allowed: &[&str]) {
    let out = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
        .args(["tree", "-p", package, "-e", "normal", "--prefix", "none", "--format", "{p}", "--offline"])
        .current_dir(manifest_dir)
        .output()
        .unwrap_or_else(|e| panic!("cargo tree: {e}"));
    let text = String::from_utf8_lossy(&out.stdout);
    let names: Vec<&str> = text.lines().filter_map(|l| l.split_whitespace().next()).collect();
    assert!(names.contains(&package), "cargo tree: {text}{}", String::from_utf8_lossy(&out.stderr));
    let others: Vec<_> = names.iter().filter(|n| **n != package && !allowed.contains(n)).collect();
    assert!(others.is_empty(), "`{package}` depends on {others:?}");
}

/// The packages that HMAC-SHA256 (`hmac`, `sha2`) and system calls (`rustix`) bring: the only ones of others in what a job loads. `errno` and `libc` are
/// those of rustix on systems other than Linux.
pub const IN_A_JOB: [&str; 15] = [
    "bitflags",
    "block-buffer",
    "cfg-if",
    "cpufeatures",
    "crypto-common",
    "digest",
    "errno",
    "generic-array",
    "hmac",
    "libc",
    "linux-raw-sys",
    "rustix",
    "sha2",
    "subtle",
    "typenum",
];
