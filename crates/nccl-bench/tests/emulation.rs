//! Tests the emulation of CUDA without NCCL, with the checks in `emulation.c`. They need only a C compiler.

use std::path::Path;
use std::process::Command;

#[test]
fn the_emulation_keeps_the_rules_of_memory_sharing_streams_and_capture() {
    let name = "the_emulation_keeps_the_rules_of_memory_sharing_streams_and_capture";
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("rules");
    let sources = nccl_bench::emulation::PRELOAD.iter().map(|(name, _)| *name).filter(|s| *s != "libc.c");
    let sources: Vec<_> = sources.map(|s| here.join("emulation").join(s)).collect();
    // Under the sanitisers where the compiler has them.
    let compile = |extra: &[&str]| {
        let mut c = Command::new("cc");
        c.args(["-O1", "-std=gnu11", "-Wall", "-Wno-format-truncation"]).args(extra).arg("-o").arg(&program);
        c.arg(here.join("tests/emulation.c")).args(&sources).args(["-ldl", "-lpthread"]);
        c.output()
    };
    let built = match compile(&["-fsanitize=address,undefined", "-fno-sanitize-recover"]) {
        Ok(out) if out.status.success() => Ok(out),
        _ => compile(&[]),
    };
    let Ok(built) = built else {
        eprintln!("SKIP {name}: no C compiler");
        return;
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let out = Command::new(&program).env("ASAN_OPTIONS", "detect_leaks=0").output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && said.contains("kept"), "{said}");
}
