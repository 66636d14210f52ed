//! The dependencies of the library that a training process loads stay few.

#[test]
fn the_plugin_imports_tune_agreement_wire_and_little_else() {
    let ours = ["agreement", "linalg", "nccl-types", "plugin-base", "stats", "tune", "wire"];
    let allowed = [&ours[..], &house::IN_A_JOB].concat();
    house::assert_dependencies(env!("CARGO_MANIFEST_DIR"), "nccl-plugin", &allowed);
    // Ranks compare the hash of these sources: two builds that could choose other arms must differ in it.
    let build = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/build.rs")).unwrap();
    for ours in ours.iter().filter(|o| **o != "plugin-base") {
        assert!(build.contains(&format!("\"../{ours}/src\"")), "build.rs leaves out the sources of {ours}");
    }
}
