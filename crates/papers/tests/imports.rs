//! The border of this crate.

#[test]
fn papers_imports_only_what_its_border_allows() {
    house::assert_imports(env!("CARGO_MANIFEST_DIR"), &["linalg", "place", "predict", "route", "stats", "topology"]);
}
