//! The border of this crate.

#[test]
fn linkwise_imports_only_what_its_border_allows() {
    house::assert_imports(
        env!("CARGO_MANIFEST_DIR"),
        &[
            "agreement",
            "autotune",
            "engine",
            "fabric",
            "files",
            "job",
            "linkwise-console",
            "measure",
            "nccl-bench",
            "nccl-model",
            "papers",
            "place",
            "predict",
            "report",
            "route",
            "stats",
            "store",
            "topology",
            "tune",
        ],
    );
}
