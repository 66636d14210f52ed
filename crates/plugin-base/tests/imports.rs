//! Checks the imports of this crate.

#[test]
fn plugin_base_imports_no_crate_of_ours() {
    house::assert_imports(env!("CARGO_MANIFEST_DIR"), &[]);
}
