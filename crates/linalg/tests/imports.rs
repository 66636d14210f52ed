//! The imports that this crate may have.

#[test]
fn linalg_imports_only_what_its_border_allows() {
    house::assert_imports(env!("CARGO_MANIFEST_DIR"), &[]);
}
