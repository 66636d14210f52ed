//! `linkwise topology` as scripts see it: output, messages, exit codes.

use assert_cmd::Command;

fn linkwise(args: &[&str]) -> (i32, String, String) {
    let out = Command::cargo_bin("linkwise").unwrap().args(args).output().unwrap();
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
    (out.status.code().unwrap(), text(&out.stdout), text(&out.stderr).replace("\n  ", " "))
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
        String::from_utf8(out.stderr).unwrap().replace("\n  ", " ")
    };
    let plain = notes(&[]);
    assert!(plain.contains("Gbit/s each") && plain.contains("NVLink taken as 25 GB/s"), "{plain}");
    let told = notes(&["--nic-gbit-per-s", "123", "--gpu-model", "GB200"]);
    assert!(!told.contains("Gbit/s each") && !told.contains("25 GB/s"), "{told}");
    assert!(told.contains("NVLink taken as 50 GB/s a link each way, as a NVIDIA GB200 has"), "{told}");
    let unknown = notes(&["--gpu-model", "Voodoo 2"]);
    assert!(unknown.contains("25 GB/s") && unknown.contains("link rates of `Voodoo 2` are not known"), "{unknown}");
}

/// `nvidia-smi topo -m` of `gpus` GPUs joined by `label`, with a NIC next to each and one far from all.
fn matrix(gpus: usize, label: &str) -> String {
    let header: Vec<String> =
        (0..gpus).map(|g| format!("GPU{g}")).chain((0..=gpus).map(|n| format!("NIC{n}"))).collect();
    let mut out = format!("\t{}\n", header.join("\t"));
    for g in 0..gpus {
        let to_gpus = (0..gpus).map(|h| if g == h { "X" } else { label });
        let to_nics = (0..=gpus).map(|n| if n == g { "PIX" } else { "SYS" });
        out.push_str(&format!("GPU{g}\t{}\n", to_gpus.chain(to_nics).collect::<Vec<_>>().join("\t")));
    }
    out.push_str("\nNIC Legend:\n\n");
    (0..=gpus).for_each(|n| out.push_str(&format!("  NIC{n}: mlx5_{n}\n")));
    out
}

#[test]
fn a_site_is_imported_from_a_host_its_ports_and_its_switches() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).unwrap();
        dir.path().join(name).display().to_string()
    };
    let host = put("host.txt", &matrix(4, "NV12"));
    let conf = put(
        "topology.conf",
        "SwitchName=leaf1 Nodes=gpu-[01-04]\nSwitchName=leaf2 Nodes=gpu-[05-06]\nSwitchName=spine Switches=leaf[1-2]\n",
    );
    let port = |n: usize, layer: &str| {
        format!("CA 'mlx5_{n}'\n\tPort 1:\n\t\tState: Active\n\t\tRate: 200\n\t\tLink layer: {layer}\n")
    };
    let ports: String = (0..4).map(|n| port(n, "Ethernet")).chain([port(4, "InfiniBand")]).collect();
    let ibstat = put("ibstat.txt", &ports);
    let out = dir.path().join("site.yaml").display().to_string();
    let args = [
        "topology",
        "import",
        &host,
        &ibstat,
        &conf,
        "--oversubscription",
        "leaf=2",
        "--gpu-model",
        "A100-SXM4-80GB",
        "-o",
        &out,
    ];
    let (code, _, notes) = linkwise(&args);
    assert_eq!(code, 0, "{notes}");
    assert!(notes.contains("mlx5_4 (InfiniBand)"), "{notes}");
    assert!(
        !notes.contains("(--nic-gbit-per-s)") && !notes.contains("(--gpu-model)"),
        "no note contradicts a file or a flag: {notes}"
    );
    let (_, text, _) = linkwise(&["topology", "show", &out]);
    for wanted in [
        "6 hosts, 24 GPUs",
        "RoCE",
        "tier leaf: 2 switches of 2 to 4 hosts, 2:1 oversubscribed",
        "leaf2: gpu-[05-06]",
        "4 x 200 Gbit/s",
    ] {
        assert!(text.contains(wanted), "no `{wanted}` in\n{text}");
    }
    // Errors name file, line and the next step.
    let broken = put("broken.conf", "SwitchName=leaf1 Nodes=gpu-[01-04]\nSwitchName=spine Switches=leaf[1-2]\n");
    let (code, _, err) = linkwise(&["topology", "import", &host, &broken]);
    assert!(code == 2 && err.contains("broken.conf:2:1") && err.contains("add a line for it"), "{err}");
    let (code, _, err) = linkwise(&["topology", "import", &host, &conf, "--hosts", "gpu-[01-07]"]);
    assert!(code == 2 && err.contains("`gpu-07` is below no switch of"), "{err}");
    let (code, _, err) = linkwise(&["topology", "import", &conf]);
    assert!(code == 2 && err.contains("nvidia-smi topo -m") && err.contains("--host-type"), "{err}");
    let (code, _, err) = linkwise(&["topology", "import", &conf, "--host-type", "hgx-h100"]);
    assert!(code == 0 && err.contains("--oversubscription leaf=2"), "{err}");
}

#[test]
fn nothing_about_the_network_is_assumed_without_a_note() {
    let import = |text: &str, flags: &[&str]| {
        let mut c = Command::cargo_bin("linkwise").unwrap();
        let out = c.args(["topology", "import", "-"]).args(flags).write_stdin(text).output().unwrap();
        let said = String::from_utf8(out.stderr).unwrap().replace("\n  ", " ");
        (out.status.code().unwrap(), said, String::from_utf8(out.stdout).unwrap())
    };
    let (code, notes, file) = import(&matrix(4, "NV12"), &["--count", "2"]);
    assert_eq!(code, 0, "{notes}");
    for wanted in [
        "taken as InfiniBand",
        "one non-blocking switch",
        "mlx5_4 left out",
        "does not name the GPU (--gpu-model)",
        "--nic-gbit-per-s",
    ] {
        assert!(notes.contains(wanted), "no `{wanted}` in {notes}");
    }
    assert!(file.contains("gpu_model: unknown"), "a matrix does not name the GPU: {file}");
    let (_, notes, file) = import(&matrix(4, "NV12"), &["--network", "tcp", "--all-nics"]);
    assert!(
        !notes.contains("taken as InfiniBand") && file.contains("class: tcp") && file.contains("mlx5_4"),
        "{notes}{file}"
    );
    // A board without its NVLinks, and trays that share NVLink, are refused.
    let (code, err, _) = import(&matrix(4, "SYS"), &["--gpu-model", "H100"]);
    assert!(code == 2 && err.contains("without a NVLink") && err.contains("H100 PCIe"), "{err}");
    let (code, err, _) = import(&matrix(4, "NV18"), &["--gpu-model", "GB200", "--count", "18"]);
    assert!(code == 2 && err.contains("NVL72") && err.contains("--separate-trays"), "{err}");
    assert_eq!(import(&matrix(4, "NV18"), &["--gpu-model", "GB200"]).0, 0, "one tray");
    let card =
        |g: u8| format!(r#"<pci busid="0000:0{g}:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>"#);
    let cloud = format!(r#"<system version="1"><cpu numaid="0">{}{}</cpu></system>"#, card(1), card(2));
    let (code, err, _) = import(&cloud, &[]);
    assert!(
        code == 2 && err.contains("neither the GPU model nor NVLinks") && err.contains("nvidia-smi topo -m"),
        "{err}"
    );
    assert_eq!(import(&cloud, &["--gpu-model", "L40S"]).0, 0);
    let rocm = "============== ROCm System Management Interface ==============\n       GPU0         GPU1\nGPU0   0            XGMI\nGPU1   XGMI         0\n";
    let (code, err, _) = import(rocm, &[]);
    assert!(code == 2 && err.contains("AMD GPUs") && !err.contains("run `nvidia-smi topo -m` again"), "{err}");
}
