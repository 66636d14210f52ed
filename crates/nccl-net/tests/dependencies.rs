//! The dependencies of the library that a training process loads stay few.

use std::process::Command;

#[test]
fn the_plugin_imports_net_wire_and_little_else() {
    let out = Command::new(env!("CARGO"))
        .args(["tree", "-p", "nccl-net", "-e", "normal", "--prefix", "none", "--format", "{p}", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let mut names: Vec<&str> = text.lines().filter_map(|l| l.split_whitespace().next()).collect();
    names.sort();
    names.dedup();
    // HMAC-SHA256 brings hmac to typenum; rustix brings bitflags and linux-raw-sys, and libc and errno on systems other than Linux.
    let allowed = [
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
        "nccl-net",
        "net",
        "rustix",
        "sha2",
        "subtle",
        "typenum",
        "wire",
    ];
    assert!(names.contains(&"nccl-net"), "{text}");
    let others: Vec<_> = names.iter().filter(|n| !allowed.contains(n)).collect();
    assert!(others.is_empty(), "{others:?}");
}
