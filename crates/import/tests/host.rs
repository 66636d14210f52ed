//! What a host's files do not say outright.

use import::host::{NicChoice, apply_ports, board, choose_nics, class_by_names, is_on_nvlink_board};
use import::ports::{read_ibstat, read_ibv_devinfo};
use proptest::prelude::*;
use topology::{Bandwidth, HostType, NetworkClass, Nic, PathKind, catalog};

fn nic(name: &str, gbit: f64, near: PathKind) -> Nic {
    let mut gpu_paths = vec![PathKind::Sys; 8];
    gpu_paths[0] = near;
    Nic { name: name.into(), line_rate: Bandwidth::from_gbit_per_s(gbit), socket: None, gpu_paths }
}

/// A DGX H100 as its matrix shows it: eight NICs next to GPUs, two for storage, two for management.
fn dgx() -> HostType {
    let mut t = catalog::host_type("hgx-h100").unwrap();
    t.nics = (0..8).map(|i| nic(&format!("mlx5_{i}"), 400.0, PathKind::Pix)).collect();
    t.nics.push(nic("mlx5_8", 400.0, PathKind::Node));
    t.nics.push(nic("mlx5_9", 400.0, PathKind::Sys));
    t.nics.push(nic("mlx5_10", 100.0, PathKind::Pxb));
    t
}

fn names(t: &HostType) -> Vec<&str> {
    t.nics.iter().map(|n| n.name.as_str()).collect()
}

#[test]
fn nics_far_from_every_gpu_or_slow_are_left_out_with_a_note() {
    let mut t = dgx();
    let notes = choose_nics(&mut t, &NicChoice::ByRule).unwrap();
    assert_eq!(t.nics.len(), 8, "{:?}", names(&t));
    assert!(notes[0].contains("mlx5_8, mlx5_9") && notes[0].contains("--all-nics"), "{notes:?}");
    assert!(notes[1].contains("mlx5_10") && notes[1].contains("less than half the rate"), "{notes:?}");
}

#[test]
fn where_no_nic_is_near_a_gpu_all_are_kept() {
    let mut t = dgx();
    t.nics = vec![nic("mlx5_0", 200.0, PathKind::Node), nic("mlx5_1", 200.0, PathKind::Sys)];
    assert!(choose_nics(&mut t, &NicChoice::ByRule).unwrap().is_empty());
    assert_eq!(t.nics.len(), 2);
}

#[test]
fn the_user_names_the_nics() {
    let mut t = dgx();
    choose_nics(&mut t, &NicChoice::Only("mlx5_[0-3,9]".into())).unwrap();
    assert_eq!(names(&t), ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_9"]);
    let mut t = dgx();
    choose_nics(&mut t, &NicChoice::Without("mlx5_0".into())).unwrap();
    assert_eq!(t.nics.len(), 7);
    let e = choose_nics(&mut dgx(), &NicChoice::Without("mlx5_77".into())).unwrap_err();
    assert!(e.contains("no NIC `mlx5_77`"), "{e}");
    let mut t = dgx();
    assert!(choose_nics(&mut t, &NicChoice::All).unwrap().is_empty() && t.nics.len() == 11);
}

#[test]
fn an_sxm_board_without_nvlink_comes_from_the_catalog_or_is_refused() {
    let bare = |of: &str, model: &str| {
        let mut t = catalog::host_type(of).unwrap();
        t.nvlink = None;
        t.gpu_model = model.into();
        t.gpu_paths.iter_mut().flatten().filter(|p| matches!(p, PathKind::NvLink(_))).for_each(|p| *p = PathKind::Sys);
        t
    };
    let mut a100 = bare("dgx-a100", "NVIDIA A100-SXM4-80GB");
    let note = board(&mut a100, None).unwrap().unwrap();
    assert!(note.contains("`dgx-a100`") && note.contains("not from the file"), "{note}");
    assert_eq!(a100.gpu_paths, catalog::host_type("dgx-a100").unwrap().gpu_paths);
    // Two boards of the catalog fit, so none is guessed.
    let e = board(&mut bare("hgx-h100", "NVIDIA H100 80GB HBM3"), None).unwrap_err();
    assert!(e.contains("`hgx-h100` and `hgx-h100-nv16`") && e.contains("--board"), "{e}");
    let mut h100 = bare("hgx-h100", "NVIDIA H100 80GB HBM3");
    board(&mut h100, Some("hgx-h100")).unwrap();
    assert_eq!(h100.nvlink, catalog::host_type("hgx-h100").unwrap().nvlink);
    // The pairs of a mesh cannot be known.
    let e = board(&mut bare("dgx1-v100", "Tesla V100-SXM2-32GB"), None).unwrap_err();
    assert!(e.contains("nvidia-smi topo -m"), "{e}");
    let e = board(&mut h100, Some("gb200-tray")).unwrap_err();
    assert!(e.contains("--board"), "{e}");
    // PCIe cards have none, and a file that has some keeps them.
    assert_eq!(board(&mut bare("dgx-a100", "NVIDIA A100 80GB PCIe"), None), Ok(None));
    assert_eq!(board(&mut catalog::host_type("hgx-h100").unwrap(), None), Ok(None));
    for (model, on_board) in [
        ("H100 PCIe", false),
        ("NVIDIA H100 NVL", false),
        ("NVIDIA L40S", false),
        ("NVIDIA B200", true),
        ("H200", true),
    ] {
        assert_eq!(is_on_nvlink_board(model), on_board, "{model}");
    }
}

#[test]
fn names_of_ports_tell_the_network_or_leave_it_open() {
    let class = |names: &[&str]| {
        let mut t = dgx();
        t.nics = names.iter().map(|n| nic(n, 100.0, PathKind::Pix)).collect();
        class_by_names(&t)
    };
    assert_eq!(class(&["ibp12s0", "ibp13s0"]), Some(NetworkClass::Infiniband));
    assert_eq!(class(&["rocep12s0"]), Some(NetworkClass::Roce));
    assert_eq!(class(&["rdmap16s27", "efa_1"]), Some(NetworkClass::Efa));
    assert_eq!(class(&["eth0"]), Some(NetworkClass::Tcp));
    assert_eq!(class(&["mlx5_0"]), None);
    assert_eq!(class(&["ibp12s0", "rocep1"]), None);
    assert_eq!(class(&[]), None);
}

fn ibstat(of: &[(&str, &str, u32, &str)]) -> String {
    let port = |(name, state, rate, layer): &(&str, &str, u32, &str)| {
        format!(
            "CA '{name}'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: {state}\n\t\tPhysical state: LinkUp\n\t\tRate: {rate}\n\t\tBase lid: 1\n\t\tLink layer: {layer}\n"
        )
    };
    of.iter().map(port).collect()
}

#[test]
fn ibstat_tells_the_class_the_rates_and_the_ports_that_do_not_count() {
    let text = ibstat(&[
        ("mlx5_0", "Active", 400, "InfiniBand"),
        ("mlx5_1", "Active", 400, "InfiniBand"),
        ("mlx5_2", "Active", 100, "Ethernet"),
        ("mlx5_3", "Down", 40, "InfiniBand"),
    ]);
    let ports = read_ibstat(&text, "ibstat.txt").unwrap();
    let mut t = dgx();
    t.nics.truncate(5);
    let (class, notes) = apply_ports(&mut t, &ports);
    assert_eq!((class, names(&t)), (Some(NetworkClass::Infiniband), vec!["mlx5_0", "mlx5_1", "mlx5_4"]));
    assert!(notes[0].contains("mlx5_2 (Ethernet), mlx5_3 (not active)"), "{notes:?}");
    assert!(notes[1].contains("mlx5_4"), "{notes:?}");
    let roce = ibstat(&[("mlx5_0", "Active", 200, "Ethernet"), ("mlx5_1", "Active", 200, "Ethernet")]);
    let mut t = dgx();
    t.nics.truncate(2);
    let (class, _) = apply_ports(&mut t, &read_ibstat(&roce, "f").unwrap());
    assert_eq!((class, t.nics[0].line_rate.gbit_per_s()), (Some(NetworkClass::Roce), 200.0));
    let e = read_ibstat("CA 'a'\nPort 1:\nRate: fast\n", "f").unwrap_err();
    assert_eq!((e.line(), e.message().contains("no rate")), (3, true));
    assert!(read_ibstat("x", "f").is_err() && read_ibstat("CA 'a'\nCA 'a'\n", "f").unwrap_err().line() == 2);
}

/// The output of `ibv_devinfo -v` (name, state, width, speed of a lane, link layer), with the fields that it also prints.
fn devinfo(of: &[(&str, &str, &str, &str, &str)]) -> String {
    let port = |(name, state, width, speed, layer): &(&str, &str, &str, &str, &str)| {
        format!(
            "hca_id:\t{name}\n\ttransport:\t\t\tInfiniBand (0)\n\tfw_ver:\t\t\t\t28.39.1002\n\tnode_guid:\t\t\ta088:c203:0054:d1f4\n\
             \tphys_port_cnt:\t\t\t1\n\tmax_mr_size:\t\t\t0xffffffffffffffff\n\t\tport:\t1\n\t\t\tstate:\t\t\t{state}\n\
             \t\t\tmax_mtu:\t\t4096 (5)\n\t\t\tactive_mtu:\t\t4096 (5)\n\t\t\tlink_layer:\t\t{layer}\n\t\t\tmax_msg_sz:\t\t0x40000000\n\
             \t\t\tactive_width:\t\t{width}\n\t\t\tactive_speed:\t\t{speed}\n\t\t\tphys_state:\t\tLINK_UP (5)\n\n"
        )
    };
    of.iter().map(port).collect()
}

#[test]
fn ibv_devinfo_tells_the_same_as_ibstat_and_no_rate_without_v() {
    let text = devinfo(&[
        ("mlx5_0", "PORT_ACTIVE (4)", "4X (2)", "100.0 Gbps (128)", "InfiniBand"),
        ("mlx5_1", "PORT_ACTIVE (4)", "4X (2)", "50.0 Gbps (64)", "InfiniBand"),
        ("mlx5_2", "PORT_ACTIVE (4)", "4X (2)", "25.0 Gbps (32)", "Ethernet"),
        ("mlx5_3", "PORT_DOWN (1)", "invalid width (0)", "invalid speed (0)", "InfiniBand"),
    ]);
    let ports = read_ibv_devinfo(&text, "devinfo.txt").unwrap();
    assert_eq!(ports.iter().map(|p| p.rate_gbit_per_s).collect::<Vec<_>>(), [400.0, 200.0, 100.0, 0.0]);
    let mut t = dgx();
    t.nics.truncate(5);
    let (class, notes) = apply_ports(&mut t, &ports);
    assert_eq!((class, names(&t)), (Some(NetworkClass::Infiniband), vec!["mlx5_0", "mlx5_1", "mlx5_4"]));
    assert!(notes[0].contains("mlx5_2 (Ethernet), mlx5_3 (not active)") && notes[1].contains("mlx5_4"), "{notes:?}");
    assert_eq!(t.nics[1].line_rate.gbit_per_s(), 200.0);
    let short: String = text.lines().filter(|l| !l.contains("active_")).map(|l| format!("{l}\n")).collect();
    let ports = read_ibv_devinfo(&short, "devinfo.txt").unwrap();
    let mut t = dgx();
    apply_ports(&mut t, &ports);
    assert_eq!(t.nics[1].line_rate.gbit_per_s(), 400.0, "the rate that was known stays");
    let e = read_ibv_devinfo(&text.replace("50.0 Gbps (64)", "fast"), "f").unwrap_err();
    assert!(e.message().contains("`fast` is no rate of a lane") && e.line() == 30, "{}: {}", e.line(), e.message());
    assert!(read_ibv_devinfo("x", "f").unwrap_err().remedy().contains("ibv_devinfo -v"));
    assert_eq!(read_ibv_devinfo("hca_id: a\nhca_id: a\n", "f").unwrap_err().line(), 2);
}

proptest! {
    #[test]
    fn ibv_devinfo_never_panics(text in "\\PC{0,80}", at in 0usize..700) {
        let whole = devinfo(&[("mlx5_0", "PORT_ACTIVE (4)", "4X (2)", "100.0 Gbps (128)", "InfiniBand"); 2]);
        let at = at.min(whole.len());
        let _ = read_ibv_devinfo(&format!("{}{text}{}", &whole[..at], &whole[at..]), "f");
    }

    #[test]
    fn ibstat_never_panics(text in "\\PC{0,80}", at in 0usize..400) {
        let whole = ibstat(&[("mlx5_0", "Active", 400, "InfiniBand"), ("mlx5_1", "Down", 1, "Ethernet")]);
        let at = at.min(whole.len());
        let _ = read_ibstat(&format!("{}{text}{}", &whole[..at], &whole[at..]), "f");
    }
}
