//! Rules that concern several crates.

use house::{Room, rooms};
use std::path::Path;

fn all() -> Vec<Room> {
    rooms(env!("CARGO_MANIFEST_DIR"))
}

/// The programs and libraries that users and training processes load.
const DOORS: [&str; 4] = ["linkwise", "python", "nccl-plugin", "nccl-net"];

#[test]
fn no_room_imports_a_door() {
    for room in all() {
        let doors: Vec<_> = room.imports.iter().filter(|i| DOORS.contains(&i.as_str())).collect();
        assert!(doors.is_empty(), "{} imports {doors:?}", room.name);
    }
}

#[test]
fn nothing_in_crates_imports_the_laboratory_outside_of_tests() {
    let all = all();
    let lab: Vec<&str> = all.iter().filter(|r| r.folder.starts_with("lab")).map(|r| r.name.as_str()).collect();
    assert!(lab.contains(&"linkwise-lab") && lab.contains(&"truths"), "{lab:?}");
    for room in all.iter().filter(|r| r.folder.starts_with("crates")) {
        let wrong: Vec<_> = room.imports.iter().filter(|i| lab.contains(&i.as_str())).collect();
        assert!(wrong.is_empty(), "{} imports {wrong:?}", room.name);
    }
}

#[test]
fn every_crate_has_a_test_of_its_imports() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for room in all().iter().filter(|r| r.folder.starts_with("crates")) {
        let test = root.join(&room.folder).join("tests/imports.rs");
        let text = std::fs::read_to_string(&test).unwrap_or_else(|e| panic!("{}: {e}", test.display()));
        assert!(text.contains("house::assert_imports"), "{} does not call it", test.display());
        assert!(room.test_imports.iter().any(|t| t == "house"), "{} lacks the crate", room.name);
    }
}

#[test]
fn arrows_go_down_only() {
    // Cargo refuses cycles. This test checks that every crate imports only crates of its own or lower floors of
    // docs/architecture.md.
    const FLOORS: &[&[&str]] = &[
        &["nccl-types", "stats", "linalg", "topology", "wire", "verbs", "plugin-base", "tune", "files", "report"],
        &["linkwise-console", "draw", "import", "fabric", "nccl-model", "nccl-bench", "store", "agreement"],
        &["measure", "predict", "route"],
        &["place", "diagnose", "autotune", "job", "net", "inside"],
        &["papers"],
        &["engine"],
        &["nccl-plugin", "nccl-net", "server", "slurm"],
        &["linkwise", "python"],
    ];
    let floor = |name: &str| FLOORS.iter().position(|f| f.contains(&name));
    for room in all().iter().filter(|r| r.folder.starts_with("crates")) {
        let own = floor(&room.name)
            .unwrap_or_else(|| panic!("`{}` is on no floor; add it here and to docs/architecture.md", room.name));
        for i in &room.imports {
            let below = floor(i).unwrap_or_else(|| panic!("`{i}` is on no floor"));
            assert!(below <= own, "{} (floor {own}) imports {i} (floor {below})", room.name);
        }
    }
}
