//! Checks the imports of this crate.

#[test]
fn the_server_imports_only_crates_of_lower_floors() {
    house::assert_imports(
        env!("CARGO_MANIFEST_DIR"),
        &["draw", "engine", "fabric", "job", "nccl-model", "route", "store", "topology"],
    );
}
