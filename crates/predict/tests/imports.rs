//! The border of this crate.

#[test]
fn predict_imports_only_what_its_border_allows() {
    house::assert_imports(
        env!("CARGO_MANIFEST_DIR"),
        &["fabric", "linalg", "nccl-model", "stats", "store", "topology"],
    );
}
