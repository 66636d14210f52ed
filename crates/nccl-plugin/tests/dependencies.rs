//! The dependencies of the library that a training process loads stay few.

use std::process::Command;

#[test]
fn the_plugin_imports_tune_agreement_wire_and_little_else() {
    let out = Command::new(env!("CARGO"))
        .args(["tree", "-p", "nccl-plugin", "-e", "normal", "--prefix", "none", "--format", "{p}", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let mut names: Vec<&str> = text.lines().filter_map(|l| l.split_whitespace().next()).collect();
    names.sort();
    names.dedup();
    // HMAC-SHA256 brings hmac to typenum. No database, HTTP, tracing or async runtime. rustix brings bitflags and linux-raw-sys, and libc and errno on systems other than Linux.
    let allowed = [
        "agreement",
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
        "nccl-plugin",
        "nccl-types",
        "rustix",
        "sha2",
        "stats",
        "subtle",
        "tune",
        "typenum",
        "wire",
    ];
    assert!(names.contains(&"nccl-plugin"), "{text}");
    let others: Vec<_> = names.iter().filter(|n| !allowed.contains(n)).collect();
    assert!(others.is_empty(), "{others:?}");
}
