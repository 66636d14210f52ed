//! The fuzz targets' hand-written corpora, replayed without a fuzzer.

use std::path::PathBuf;
use topology::{ListReader, catalog, file, read};

/// Every file of a corpus, which must not be empty.
fn replay(target: &str, accepted: usize, one: impl Fn(&str, &str) -> bool) {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    let mut count = 0;
    for path in paths {
        let name = path.file_name().unwrap().to_string_lossy().to_string();
        let bytes = std::fs::read(&path).unwrap();
        if let Ok(text) = read::text(&bytes, &name, read::TOPOLOGY_SIZE_MAX) {
            count += usize::from(one(text, &name));
        }
    }
    assert_eq!(count, accepted, "{target}: files accepted");
}

fn types(r: Result<read::TopologyFile, topology::ReadError>) -> bool {
    r.is_ok_and(|r| r.types.iter().all(|t| t.check().is_ok()))
}

#[test]
fn the_corpus_of_topo_m_is_read() {
    replay("topo_m", 4, |text, name| types(read::topo_m::read(text, name)));
}

#[test]
fn the_corpus_of_nccl_xml_is_read_and_xgmi_is_refused() {
    replay("nccl_xml", 3, |text, name| types(read::nccl_xml::read(text, name)));
}

#[test]
fn the_corpora_of_p2p_matrices_are_read() {
    replay("p2p_text", 2, |text, name| types(read::p2p::read_text(text, name)));
    replay("p2p_csv", 3, |text, name| types(read::p2p::read_csv(text, name)));
}

#[test]
fn the_corpus_of_cluster_files_is_read_and_written() {
    replay("cluster_yaml", 5, |text, name| {
        let c = file::read(text, name).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(file::read(&file::write(&c), name).unwrap(), c);
        true
    });
}

#[test]
fn the_corpus_of_lists_is_read_and_read_back() {
    let cluster = catalog::cluster("h100").unwrap();
    replay("gpu_list", 4, |text, name| {
        let reader = ListReader::new(&cluster);
        let Ok(gpus) = reader.gpus([text]) else { return false };
        let printed = cluster.gpu_list(&gpus);
        assert_eq!(reader.gpus([printed.as_str()]), Ok(gpus), "{name}: {printed}");
        true
    });
}
