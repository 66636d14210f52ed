//! The border of this crate.

#[test]
fn diagnose_imports_only_what_its_border_allows() {
    house::assert_imports(env!("CARGO_MANIFEST_DIR"), &["fabric", "linalg", "predict", "stats", "store", "topology"]);
}
