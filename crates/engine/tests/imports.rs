//! Checks the imports of this crate.

#[test]
fn the_engine_imports_only_crates_of_lower_floors() {
    house::assert_imports(
        env!("CARGO_MANIFEST_DIR"),
        &["diagnose", "fabric", "measure", "place", "predict", "store", "topology"],
    );
}

#[test]
fn the_engine_reads_no_clock_and_prints_nothing() {
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src")).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        for word in ["SystemTime", "Instant", "println!", "eprintln!", "std::process", "clap::"] {
            assert!(!text.contains(word), "{} has {word}", path.display());
        }
    }
}
