//! `linkwise topology` as scripts see it: output, messages, exit codes.

use assert_cmd::Command;

fn linkwise(args: &[&str]) -> (i32, String, String) {
    let out = Command::cargo_bin("linkwise").unwrap().args(args).output().unwrap();
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
    (out.status.code().unwrap(), text(&out.stdout), text(&out.stderr))
}

#[test]
fn built_in_clusters_are_shown_in_every_format() {
    for name in ["h100", "het-ra", "het-va", "het-4mix"] {
        let (code, text, _) = linkwise(&["topology", "show", name]);
        assert_eq!(code, 0);
        assert!(text.starts_with(&format!("{name}: 4 hosts, 32 GPUs\n")));
        assert!(text.lines().all(|l| l.chars().count() <= 100));
        let (code, json, _) = linkwise(&["topology", "show", name, "--format", "json"]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((code, json["name"].as_str()), (0, Some(name)));
        let (code, svg, _) = linkwise(&["topology", "show", name, "--format", "svg"]);
        assert!(code == 0 && svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(!svg.contains("href"), "self-contained");
    }
}

#[test]
fn the_h100_matrix_is_printed_as_nvidia_smi_prints_it() {
    let (_, text, _) = linkwise(&["topology", "show", "h100"]);
    assert!(text.contains("\n  GPU3   NV18 NV18 NV18 X    NV18 NV18 NV18 NV18  0\n"), "{text}");
    assert!(text.contains("mlx5_5  400 Gbit/s  PIX GPU5, NODE GPU4,6-7, SYS GPU0-3"), "{text}");
}

#[test]
fn what_import_writes_is_shown_and_any_format_of_it_is_a_cluster_file() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let topo = "\u{1b}[4m\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\u{1b}[0m\nGPU0\t X \tNV12\tPXB\t0-7\t0\nGPU1\tNV12\t X \tSYS\t8-15\t1\nNIC0\tPXB\tSYS\t X \n\nNIC Legend:\n\n  NIC0: mlx5_2\n";
    std::fs::write(at("box.topo.txt"), topo).unwrap();
    std::fs::write(at("p2p.csv"), "0,270.5\n271.5,0\n").unwrap();
    let (code, _, notes) = linkwise(&[
        "topology",
        "import",
        &at("box.topo.txt"),
        &at("p2p.csv"),
        "-o",
        &at("c.yaml"),
        "--count",
        "3",
        "--name",
        "lab",
        "--gpu-model",
        "A100",
        "--nic-gbit-per-s",
        "200",
    ]);
    assert_eq!(code, 0, "{notes}");
    assert!(notes.contains("wrote ") && notes.contains("3 hosts, 6 GPUs"), "{notes}");
    let (code, text, _) = linkwise(&["topology", "show", &at("c.yaml")]);
    assert_eq!(code, 0);
    for wanted in ["lab: 3 hosts, 6 GPUs", "n[0-2]", "mlx5_2  200 Gbit/s  PXB GPU0, SYS GPU1", "NV12", "272"] {
        assert!(text.contains(wanted), "no `{wanted}` in\n{text}");
    }
    let (_, json, _) = linkwise(&["topology", "show", &at("c.yaml"), "--format", "json", "-o", &at("c.json")]);
    assert!(json.is_empty(), "written to the file");
    assert_eq!(linkwise(&["topology", "show", &at("c.json")]).1, text);
}

#[test]
fn bad_input_ends_with_code_2_and_one_located_error() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    std::fs::write(at("bad.yaml"), "hosts:\n  - typ: a800\n    count: 1\n").unwrap();
    let (code, out, err) = linkwise(&["topology", "show", &at("bad.yaml")]);
    assert_eq!((code, out.as_str()), (2, ""));
    assert!(err.contains("bad.yaml:2:5") && err.contains("did you mean `type`?"), "{err}");
    let (code, _, err) = linkwise(&["topology", "show", "h10"]);
    assert!(code == 2 && err.contains("did you mean `h100`?"), "{err}");
    let (code, _, err) = linkwise(&["topology", "show", "hgx-h200"]);
    assert!(code == 2 && err.contains("is a host type"), "{err}");
    std::fs::write(at("a.topo.txt"), "GPU0 GPU1\nGPU0 X SYS\nGPU1 SYS X\n").unwrap();
    let (code, _, err) = linkwise(&["topology", "show", &at("a.topo.txt")]);
    assert!(code == 2 && err.contains("linkwise topology import"), "{err}");
    let (code, _, err) = linkwise(&["topology", "import", &at("none.txt")]);
    assert!(code == 2 && err.contains("cannot read"), "{err}");
}

#[test]
fn a_sparse_file_of_100_mb_is_refused_without_being_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("noise");
    std::fs::File::create(&path).unwrap().set_len(100 << 20).unwrap();
    for command in [["topology", "show"], ["topology", "import"]] {
        let (code, _, err) = linkwise(&[command[0], command[1], path.to_str().unwrap()]);
        assert!(code == 2 && err.contains("larger than"), "{err}");
    }
}

#[test]
fn the_schema_and_the_catalog_are_printed() {
    let (code, schema, _) = linkwise(&["topology", "schema"]);
    let schema: serde_json::Value = serde_json::from_str(&schema).unwrap();
    assert_eq!((code, schema["title"].as_str()), (0, Some("linkwise cluster file")));
    let (code, types, _) = linkwise(&["topology", "types"]);
    assert!(code == 0 && types.lines().count() >= 18 && types.contains("h100-4gpu"));
}

#[test]
fn no_note_of_an_import_contradicts_a_flag() {
    let topo = "\tGPU0\tGPU1\tNIC0\nGPU0\t X \tNV18\tPXB\nGPU1\tNV18\t X \tSYS\nNIC0\tPXB\tSYS\t X \n\nNIC Legend:\n\n  NIC0: mlx5_2\n";
    let notes = |flags: &[&str]| {
        let mut c = Command::cargo_bin("linkwise").unwrap();
        let out = c.args(["topology", "import", "-"]).args(flags).write_stdin(topo).output().unwrap();
        String::from_utf8(out.stderr).unwrap()
    };
    let plain = notes(&[]);
    assert!(plain.contains("Gbit/s each") && plain.contains("NVLink taken as 25 GB/s"), "{plain}");
    let told = notes(&["--nic-gbit-per-s", "123", "--gpu-model", "GB200"]);
    assert!(!told.contains("Gbit/s each") && !told.contains("25 GB/s"), "{told}");
    assert!(told.contains("NVLink taken as 50 GB/s a link each way, as a NVIDIA GB200 has"), "{told}");
    let unknown = notes(&["--gpu-model", "Voodoo 2"]);
    assert!(unknown.contains("25 GB/s") && unknown.contains("link rates of `Voodoo 2` are not known"), "{unknown}");
}
