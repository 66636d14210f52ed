//! The dependencies of the library that a training process loads stay few.

#[test]
fn the_plugin_imports_net_wire_and_little_else() {
    let allowed = [&["net", "plugin-base", "verbs", "wire"][..], &house::IN_A_JOB].concat();
    house::assert_dependencies(env!("CARGO_MANIFEST_DIR"), "nccl-net", &allowed);
}
