//! Bad input gets one error with file, line, column and remedy, and never a panic.

use proptest::prelude::*;
use topology::read::{self, FileKind};
use topology::{ReadError, file};

/// The error as the command prints it, without colours.
fn shown(e: &ReadError) -> String {
    let handler = miette::GraphicalReportHandler::new_themed(miette::GraphicalTheme::unicode_nocolor()).with_width(100);
    let mut out = String::new();
    handler.render_report(&mut out, e).unwrap();
    out
}

fn refuse(name: &str, bytes: &[u8]) -> String {
    let result = read::text(bytes, name, read::FILE_SIZE_MAX).and_then(|text| match read::detect(text) {
        Some(FileKind::ClusterFile) => file::read(text, name).map(|_| ()),
        _ => read::read(text, name).map(|_| ()),
    });
    shown(&result.expect_err("it was accepted"))
}

macro_rules! refused {
    ($($test:ident: $name:literal, $bytes:expr;)*) => { $(
        #[test]
        fn $test() {
            insta::assert_snapshot!(stringify!($test), refuse($name, AsRef::<[u8]>::as_ref(&$bytes)));
        }
    )* };
}

const TOPO: &str = "\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\n\
    GPU0\t X \tNV4\tSYS\tPIX\t0-15\t0\n\
    GPU1\tNV4\t X \tSYS\tPIX\t0-15\t0\n\
    GPU2\tSYS\tSYS\t X \tSYS\t16-31\t1\n\
    NIC0\tPIX\tPIX\tSYS\t X \n";

const XML: &str = "<system version=\"1\">\n  <cpu numaid=\"0\">\n    <pci busid=\"0000:01:00.0\" class=\"0x030200\">\n      \
    <gpu dev=\"0\"><nvlink target=\"0000:02:00.0\" count=\"4\" tclass=\"0x030200\"/></gpu>\n    </pci>\n    \
    <pci busid=\"0000:02:00.0\" class=\"0x030200\">\n      \
    <gpu dev=\"1\"><nvlink target=\"0000:01:00.0\" count=\"4\" tclass=\"0x030200\"/></gpu>\n    </pci>\n  </cpu>\n</system>\n";

const P2P: &str = "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n   D\\D     0      1\n     0 2400.1 380.2\n     1 381.0 2410.5\n";

refused! {
    a_matrix_cut_in_the_middle_of_a_row: "cut.txt", &TOPO[..95];
    a_matrix_cut_after_a_row: "cut.txt", TOPO[..TOPO.find("GPU2\tSYS").unwrap()];
    an_asymmetric_matrix: "topo.txt", TOPO.replace("GPU2\tSYS\tSYS", "GPU2\tSYS\tNODE");
    a_nic_that_contradicts_a_gpu: "topo.txt", TOPO.replace("NIC0\tPIX\tPIX", "NIC0\tPIX\tPXB");
    an_unknown_label: "topo.txt", TOPO.replace("NV4\tSYS\tPIX", "NV4\tSSY\tPIX");
    a_label_with_escape_codes_before_it: "topo.txt", TOPO.replace("GPU1\tNV4\t X ", "\u{1b}[1mGPU1\u{1b}[0m\tNV4\t X\tQPI\tPIX\t \n#");
    a_file_in_utf16: "topo.txt", TOPO.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    a_file_in_latin_1: "cluster.yaml", b"name: m\xfcnchen\nhosts: []\n";
    a_file_of_noise: "noise.bin", b"\x7fELF\x02\x01\x01\0\0\0\0";
    an_empty_file: "empty.txt", b"";
    a_text_of_something_else: "log.txt", b"[INFO] all is well\n[INFO] really\n";
    an_xml_file_cut_short: "topo.xml", XML[..200];
    an_xml_file_that_is_not_well_formed: "topo.xml", XML.replace("</pci>\n  </cpu>", "</cpu>");
    an_entity_bomb: "bomb.xml", "<?xml version=\"1.0\"?>\n<!DOCTYPE lolz [\n <!ENTITY a \"aaaaaaaaaa\">\n <!ENTITY b \"&a;&a;&a;\">\n]>\n<system version=\"1\">&b;</system>\n";
    xml_nested_a_hundred_thousand_deep: "deep.xml", format!("<system>{}", "<pci busid=\"0:0:0.0\">".repeat(100_000));
    nvlinks_that_contradict_each_other: "topo.xml", XML.replace("01:00.0\" count=\"4\"", "01:00.0\" count=\"2\"");
    two_devices_of_one_bus_id: "topo.xml", XML.replace("busid=\"0000:02:00.0\"", "busid=\"0000:01:00.0\"");
    an_xml_file_of_something_else: "graphs.xml", b"<graphs version=\"1\"><graph id=\"0\"/></graphs>";
    a_p2p_matrix_without_its_last_row: "p2p.txt", P2P[..P2P.find("     1 381").unwrap()];
    a_p2p_rate_that_is_not_a_number: "p2p.csv", b"0,48.1\n4x.2,0\n";
    a_p2p_matrix_that_is_not_square: "p2p.csv", b"0,48.1,48.2\n48.2,0\n";
    a_yaml_alias_bomb: "bomb.yaml", format!("name: x\na: &a [x,x,x,x,x,x,x,x,x]\n{}hosts: [*i]\n", ('b'..='i').map(|c| { let p = (c as u8 - 1) as char; format!("{c}: &{c} [{}]\n", vec![format!("*{p}"); 9].join(",")) }).collect::<String>());
    a_yaml_alias_for_every_host: "c.yaml", format!("hosts:\n  - &a {{count: 1, type: a800}}\n{}", "  - *a\n".repeat(20_000));
    yaml_nested_a_hundred_thousand_deep: "deep.yaml", format!("hosts: {}", "[".repeat(100_000));
    yaml_with_an_unknown_field: "c.yaml", b"name: lab\nhosts:\n  - typ: hgx-h100\n    count: 2\n";
    yaml_with_an_unknown_type: "c.yaml", b"name: lab\nhosts:\n  - type: hgx-h1000\n    count: 2\n";
    yaml_with_a_group_that_names_a_gpu_twice: "c.yaml", b"host_types:\n  - name: t\n    gpus: 4\n    pcie_switches: [[0, 1], [1, 2]]\nhosts: [{type: t, count: 1}]\n";
    yaml_with_an_asymmetric_matrix: "c.yaml", b"host_types:\n  - name: t\n    gpu_matrix:\n      - X   PIX\n      - SYS X\nhosts: [{type: t, count: 1}]\n";
    yaml_with_a_host_twice: "c.yaml", b"hosts:\n  - {name: 'n[0-3]', type: a800}\n  - {name: n2, type: a6000}\n";
    yaml_that_asks_for_a_billion_hosts: "c.yaml", b"hosts: [{name: 'n[0-999999999]', type: a800}]\n";
    yaml_with_a_nic_of_the_wrong_unit: "c.yaml", b"host_types:\n  - name: t\n    gpus: 1\n    nics:\n      - {name: a, line_rate_gb_per_s: 50}\nhosts: [{type: t, count: 1}]\n";
    a_tab_in_yaml: "c.yaml", b"hosts:\n\t- type: a800\n";
}

#[test]
fn a_hundred_megabytes_of_noise_are_refused_by_their_size() {
    let noise = vec![b'x'; 100 << 20];
    let e = read::text(&noise, "noise", read::FILE_SIZE_MAX).unwrap_err();
    assert!(e.message().contains("larger than 64 MiB"), "{e}");
}

#[test]
fn eight_megabytes_of_near_misses_are_refused_quickly() {
    for line in [
        "GPU0\n",
        "GPU0 GPU1\n",
        "<a>\n",
        "<a/>\n",
        "1,2\n",
        "name:\n",
        "GPU0 X\n",
        "\u{1b}[",
        "matrix_id,src_gpu,dst_gpu,GBps\n1,0,0,5\n",
    ] {
        let text = line.repeat((6 << 20) / line.len());
        let start = std::time::Instant::now();
        let _ = read::read(&text, "f");
        let _ = file::read(&text, "f");
        let s = start.elapsed().as_secs_f64();
        assert!(s < 60.0, "{line:?} took {s} s");
    }
}

fn all_readers(text: &str) {
    let _ = read::detect(text);
    for result in [
        read::read(text, "f"),
        read::topo_m::read(text, "f"),
        read::nccl_xml::read(text, "f"),
        read::p2p::read_text(text, "f"),
        read::p2p::read_csv(text, "f"),
    ] {
        match result {
            Ok(r) => r.types.iter().for_each(|t| t.check().unwrap()),
            Err(e) => assert!(e.line() >= 1 && e.column() >= 1 && !e.message().is_empty() && !shown(&e).is_empty()),
        }
    }
    if let Err(e) = file::read(text, "f") {
        let _ = shown(&e);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_reader_panics_on_any_text(text in "\\PC{0,200}") {
        all_readers(&text);
    }

    #[test]
    fn no_reader_panics_on_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(text) = read::text(&bytes, "f", 1_000) {
            all_readers(text);
        }
    }

    #[test]
    fn no_reader_panics_on_words_of_its_own_language(words in prop::collection::vec(prop::sample::select(vec![
        "GPU0", "GPU1", "GPU15", "NIC0", "X", "NV4", "SYS", "PIX", "\n", "\t", " ", "CPU Affinity", "NUMA Affinity",
        "N/A", "0-3", "\u{1b}[4m", "<system version=\"1\">", "<cpu numaid=\"0\">", "<pci busid=\"0000:01:00.0\" class=\"0x030200\">",
        "<gpu dev=\"0\">", "<nvlink target=\"0000:01:00.0\" count=\"4\" tclass=\"0x068000\"/>", "</gpu>", "</pci>", "</cpu>",
        "</system>", "<nic>", "<net speed=\"400000\"/>", "</nic>", "<!--", "-->", "Unidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n",
        "D\\D 0 1", "0 1.5 2.5", "1 2.5 1.5", "matrix_id,src_gpu,dst_gpu,GBps", "1,0,0,5", ",", ";", "\"", "hosts:", "type: a800",
        "name: n[0-3]", "- ", "{", "}", "count: 2", "&a", "*a",
    ]), 0..60)) {
        all_readers(&words.concat());
        all_readers(&words.join("\n"));
    }

    #[test]
    fn no_reader_panics_on_damaged_files(which in 0usize..3, cuts in prop::collection::vec((any::<prop::sample::Index>(), "\\PC|[\t\n\u{1b}<>\",0-9]"), 1..6), end in any::<prop::sample::Index>()) {
        let mut text: Vec<char> = [TOPO, XML, P2P][which].chars().collect();
        for (at, with) in cuts {
            let i = at.index(text.len());
            text.splice(i..i + 1, with.chars());
        }
        all_readers(&text.iter().collect::<String>());
        text.truncate(end.index(text.len() + 1));
        all_readers(&text.iter().collect::<String>());
    }
}

#[test]
fn files_under_the_size_limit_that_were_not_damaged_are_read() {
    for (text, gpus) in [(TOPO, 3), (XML, 2), (P2P, 2)] {
        assert_eq!(read::read(text, "f").unwrap().single().unwrap().gpu_count(), gpus);
    }
}
