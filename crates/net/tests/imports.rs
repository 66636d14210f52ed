//! Checks the imports of this crate.

#[test]
fn net_imports_only_what_its_border_allows() {
    house::assert_imports(env!("CARGO_MANIFEST_DIR"), &["verbs", "wire"]);
}
