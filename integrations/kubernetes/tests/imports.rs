//! The border of this crate: it knows linkwise's server by its API only; facts need the cluster file, its readers, and that of a job's line.

#[test]
fn the_door_of_kubernetes_imports_readers_only() {
    house::assert_imports(env!("CARGO_MANIFEST_DIR"), &["files", "import", "measure", "topology"]);
}
