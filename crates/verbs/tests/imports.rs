//! Checks the imports of this crate.

#[test]
fn verbs_imports_only_what_its_border_allows() {
    house::assert_imports(env!("CARGO_MANIFEST_DIR"), &[]);
    house::assert_dependencies(env!("CARGO_MANIFEST_DIR"), "verbs", &[&["verbs"][..], &house::IN_A_JOB].concat());
}
