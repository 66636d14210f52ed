//! Every cluster file of the fuzz corpus is drawn.

use std::path::Path;

#[test]
fn the_corpus_of_cluster_files_is_drawn() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/cluster_yaml");
    let mut drawn = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = String::from_utf8_lossy(&std::fs::read(entry.unwrap().path()).unwrap()).into_owned();
        let Ok(cluster) = topology::file::read(&text, "corpus") else { continue };
        assert!(!draw::text(&cluster).is_empty() && draw::svg(&cluster).ends_with("</svg>\n"));
        drawn += 1;
    }
    assert!(drawn >= 3, "{drawn} files are cluster files");
}
