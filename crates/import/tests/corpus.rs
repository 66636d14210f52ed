//! The hand-written corpora of the fuzz targets, replayed without a fuzzer.

use import::switches::{read_ibnetdiscover, read_slurm_conf, read_slurm_yaml, read_topograph};
use std::path::PathBuf;

/// Number of files of a corpus that are accepted.
fn accepted(target: &str, one: impl Fn(&str) -> bool) -> usize {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let files = std::fs::read_dir(&dir).expect("the corpus is there");
    files.filter(|f| one(&std::fs::read_to_string(f.as_ref().expect("readable").path()).expect("text"))).count()
}

#[test]
fn the_corpora_of_a_sites_files_are_read() {
    assert_eq!(accepted("slurm_conf", |t| read_slurm_conf(t, "f").is_ok()), 3);
    assert_eq!(accepted("slurm_yaml", |t| read_slurm_yaml(t, "f", None).is_ok()), 1);
    assert_eq!(accepted("ibnetdiscover", |t| read_ibnetdiscover(t, "f", None).is_ok()), 1);
    assert_eq!(accepted("topograph", |t| read_topograph(t, "f").is_ok()), 2);
    assert_eq!(accepted("ibstat", |t| import::ports::read_ibstat(t, "f").is_ok()), 1);
}
