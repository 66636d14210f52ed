//! `linkwise tune` as scripts see it.

mod common;

use common::{Folder, linkwise, said};

#[test]
fn what_is_no_policy_file_and_no_sweep_is_one_clear_error() {
    let folder = Folder::new();
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.at(name), bytes).unwrap();
        folder.at(name)
    };
    for (file, words) in [
        (folder.at("missing"), "No such file"),
        (folder.at("."), "is a folder"),
        (write("empty", b""), "neither a policy file nor a sweep"),
        (write("binary", &[0, 159, 146, 150]), "not UTF-8"),
        (write("huge", &[b'{'; 5 << 20]), "larger than 4 MiB"),
        (write("nan", br#"{"sequential":{"64MB":{"auto":NaN}}}"#), "expected value"),
        (write("negative", br#"{"sequential":{"64MB":{"auto":-1}}}"#), "a time of -1 ms"),
        (write("size", br#"{"sequential":{"99999999999GB":{"auto":1}}}"#), "is not a size"),
        (write("kinds", br#"{"x":{"64MB":{"auto":1}}}"#), "no size has a time of AUTO"),
        (write("auto", br#"{"sequential":{"64MB":{"tree_simple":1}}}"#), "no size has a time of AUTO"),
    ] {
        let (code, _, err) = said(linkwise("tune", &["characterize", &file]));
        assert!(code == 2 && err.lines().count() == 1, "{file}: {err}");
        assert!(err.contains(words), "{words}: {err}");
    }
}
