//! With the feature `bundled`, builds the plugins and the program that checks them, for a command that carries them: `cargo install` copies one file only.

use std::path::{Path, PathBuf};
use std::process::Command;

const FILES: [&str; 3] = ["liblinkwise_nccl.so", "liblinkwise_nccl_net.so", "linkwise-plugin-check"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_BUNDLED").is_none() {
        return;
    }
    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let crates = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("..");
    let (out, target) = (PathBuf::from(variable("OUT_DIR")), variable("TARGET"));
    println!("cargo:rerun-if-changed={}", crates.display());
    // A target folder of its own: cargo holds the lock of the outer one.
    let plugins = out.join("plugins");
    let built = Command::new(variable("CARGO"))
        .args(["build", "--locked", "--profile", "wheel", "-p", "nccl-plugin", "-p", "nccl-net", "--target", &target])
        .arg("--target-dir")
        .arg(&plugins)
        .current_dir(&crates)
        .status()
        .unwrap_or_else(|e| panic!("cargo cannot be run: {e}"));
    assert!(built.success(), "the plugins cannot be built: {built}");
    let from: &Path = &plugins.join(&target).join("wheel");
    let to = out.join("bundled");
    std::fs::create_dir_all(&to).unwrap_or_else(|e| panic!("{}: {e}", to.display()));
    for file in FILES {
        std::fs::copy(from.join(file), to.join(file)).unwrap_or_else(|e| panic!("{}: {e}", from.join(file).display()));
    }
}
