//! Checks the imports of this crate.

#[test]
fn autotune_imports_only_what_its_border_allows() {
    house::assert_imports(
        env!("CARGO_MANIFEST_DIR"),
        &["files", "measure", "nccl-model", "report", "stats", "topology", "tune"],
    );
}
