//! Checks the imports of this crate.

#[test]
fn the_python_module_imports_only_crates_of_lower_floors() {
    house::assert_imports(
        env!("CARGO_MANIFEST_DIR"),
        &["engine", "files", "linkwise-console", "papers", "predict", "route", "store", "topology"],
    );
}
