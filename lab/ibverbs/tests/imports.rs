//! Checks the imports of this crate.

#[test]
fn ibverbs_imports_only_what_its_border_allows() {
    house::assert_imports(env!("CARGO_MANIFEST_DIR"), &["verbs"]);
}
