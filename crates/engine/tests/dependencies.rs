//! What the engine stands on: rooms below it, and nothing of a terminal, of HTTP or of a clock.

use std::process::Command;

#[test]
fn the_engine_imports_the_rooms_below_it_and_no_door() {
    let out = Command::new(env!("CARGO"))
        .args(["tree", "-p", "engine", "-e", "normal", "--prefix", "none", "--format", "{p}", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let of_ours = |l: &str| l.contains("/crates/") || l.contains("/lab");
    let mut names: Vec<&str> = text.lines().filter(|l| of_ours(l)).filter_map(|l| l.split_whitespace().next()).collect();
    names.sort();
    names.dedup();
    let allowed = [
        "engine", "fabric", "files", "measure", "nccl-model", "nccl-types", "place", "predict", "stats", "store", "topology",
    ];
    assert!(names.contains(&"engine") && names.contains(&"place"), "{text}");
    let others: Vec<_> = names.iter().filter(|n| !allowed.contains(n)).collect();
    assert!(others.is_empty(), "{others:?}");
    let foreign = ["clap", "comfy-table", "indicatif", "tokio", "axum", "hyper"];
    assert!(!text.lines().any(|l| foreign.contains(&l.split_whitespace().next().unwrap_or(""))), "{text}");
}

#[test]
fn the_engine_looks_at_no_clock_and_prints_nothing() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for word in ["SystemTime", "Instant", "println!", "eprintln!", "print!", "std::process"] {
            assert!(!text.contains(word), "{} has {word}", path.display());
        }
    }
}
