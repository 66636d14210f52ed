//! `PLUGIN_BUILD` names the sources of the plugin: the wire protocol and the rules by which ranks choose arms. Ranks compare it, so that two builds of
//! one version with different sources do not agree. The same sources give the same name on every machine.

use std::path::{Path, PathBuf};

/// The crates whose sources decide what ranks send and choose.
const SOURCES: [&str; 7] = [
    "src",
    "../agreement/src",
    "../wire/src",
    "../tune/src",
    "../stats/src",
    "../linalg/src",
    "../nccl-types/src",
];

fn main() {
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    // FNV-1a, 64 bits.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for b in (bytes.len() as u64).to_le_bytes().iter().chain(bytes) {
            hash = (hash ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    add(env!("CARGO_PKG_VERSION").as_bytes());
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
        let mut files = Vec::new();
        list(&root.join(source), &mut files);
        files.sort();
        for file in files {
            add(file.strip_prefix(&root).unwrap_or(&file).as_os_str().as_encoded_bytes());
            add(&std::fs::read(&file).unwrap_or_default());
        }
    }
    println!("cargo::rustc-env=PLUGIN_BUILD={hash:016x}");
}

/// All source files below a folder; none if it is missing, as in a package of this crate alone.
fn list(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            list(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
}
