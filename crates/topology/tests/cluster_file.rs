//! A written cluster file reads back as the same cluster.

use proptest::prelude::*;
use topology::{
    Bandwidth, Cluster, Gpu, GpuMask, Host, HostId, HostLink, HostType, LinkHealth, NamedSwitch, NamedSwitches,
    Network, NetworkClass, Nic, NvLinkFabric, PathKind, Pcie, Rails, Switches, Tier, catalog, file,
};

fn path() -> impl Strategy<Value = PathKind> {
    prop_oneof![
        (1u8..=64).prop_map(PathKind::NvLink),
        Just(PathKind::Pix),
        Just(PathKind::Pxb),
        Just(PathKind::Phb),
        Just(PathKind::Node),
        Just(PathKind::Sys)
    ]
}

fn gbit() -> impl Strategy<Value = f64> {
    prop_oneof![Just(400.0), Just(100.0), 0.001..9_999.0f64]
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z]{1,8}", "\\PC{0,20}", Just("yes: [no] # ~ 'x' \"y\"\n- z\t".to_string()), "[0-9.eE+-]{1,6}"]
}

fn host_type(name: String) -> impl Strategy<Value = HostType> {
    (1usize..=16, 0usize..4)
        .prop_flat_map(move |(n, m)| {
            let cells = prop::collection::vec(path(), n * n);
            let nics =
                prop::collection::vec((gbit(), prop::option::of(0u8..=255), prop::collection::vec(path(), n)), m);
            let gpus = prop::collection::vec((0u8..=255, prop::option::of(text())), n);
            let p2p = prop::option::of(prop::collection::vec(0.001..5_000.0f64, n * n));
            let rest = (text(), text(), text(), 0.5..100.0f64, any::<(bool, bool)>(), 1u8..=7, 1u8..=32);
            (Just((name.clone(), n)), cells, nics, gpus, p2p, rest)
        })
        .prop_map(
            |(
                (name, n),
                cells,
                nics,
                gpus,
                p2p,
                (description, source, gpu_model, rate, (switched, multicast), generation, lanes),
            )| {
                HostType {
                    name,
                    description,
                    source,
                    gpu_model,
                    gpus: gpus.into_iter().map(|(socket, pci_bus_id)| Gpu { socket, pci_bus_id }).collect(),
                    gpu_paths: (0..n)
                        .map(|i| {
                            (0..n)
                                .map(|j| if i == j { PathKind::Same } else { cells[i.max(j) * n + i.min(j)] })
                                .collect()
                        })
                        .collect(),
                    nvlink: Some(NvLinkFabric { link_rate: Bandwidth::from_gb_per_s(rate), switched, multicast }),
                    pcie: Pcie { generation, lanes },
                    nics: nics
                        .into_iter()
                        .enumerate()
                        .map(|(i, (gbit, socket, gpu_paths))| Nic {
                            name: format!("mlx5_{i}"),
                            line_rate: Bandwidth::from_gbit_per_s(gbit),
                            socket,
                            gpu_paths,
                        })
                        .collect(),
                    p2p: p2p.map(|v| {
                        v.chunks(n).map(|r| r.iter().map(|&x| Bandwidth::from_gb_per_s(x)).collect()).collect()
                    }),
                }
            },
        )
}

fn health() -> impl Strategy<Value = f64> {
    prop_oneof![Just(1.0), Just(0.0), 0.0..1.0f64]
}

prop_compose! {
    fn cluster()(count in 1usize..4)(
        types in (0..count).map(|i| host_type(format!("t{i}"))).collect::<Vec<_>>(),
        hosts in prop::collection::vec((any::<prop::sample::Index>(), any::<u32>(), any::<[bool; 5]>(), prop::collection::vec(health(), 24)), 1..12),
        name in text(),
        class in prop::sample::select(vec![NetworkClass::Infiniband, NetworkClass::Roce, NetworkClass::Efa, NetworkClass::RdmaNoGdr, NetworkClass::Tcp]),
        (tiers, named, rails) in (
            prop::collection::vec((text(), 1usize..9, 1.0..8.0f64), 0..3),
            any::<bool>(),
            prop::sample::select(vec![None, Some(Rails::Joined), Some(Rails::Separate)]),
        ),
        links in prop::collection::vec((any::<prop::sample::Index>(), gbit()), 0..3),
        style in 0usize..3,
    ) -> Cluster {
        let hosts: Vec<Host> = hosts.into_iter().enumerate().map(|(i, (t, drained, with, f))| {
            let host_type = t.index(types.len());
            let (n, m) = (types[host_type].gpu_count(), types[host_type].nics.len());
            // A list of healthy parts and no list are equivalent; the file has the shorter form.
            let list = |k: usize, on: bool| {
                let v: Vec<f64> = f[..k].to_vec();
                if on && v.iter().any(|x| *x != 1.0) { v } else { Vec::new() }
            };
            Host {
                name: match style { 0 => format!("n{i}"), 1 => format!("gpu-{:03}.local", i * 7), _ => format!("{i:02}x") },
                host_type,
                drained: if with[0] { GpuMask(drained & GpuMask::first(n).0) } else { GpuMask::EMPTY },
                nic_health: list(m, with[1]),
                gpu_health: list(n, with[2]),
                link_health: if with[3] && n > 1 { vec![LinkHealth { a: 0, b: (n - 1) as u8, factor: f[20] }] } else { Vec::new() },
                gpu_uuids: if with[4] { (0..n).map(|g| format!("GPU-{i}-{g}")).collect() } else { Vec::new() },
                gpu_minors: if with[0] { (0..n as u8).rev().collect() } else { Vec::new() },
                slurm_name: with[1].then(|| format!("s{i}")),
                kubernetes_name: with[2].then(|| format!("k{i}.internal")),
            }
        }).collect();
        // Each tier joins some switches of the tier below; without names in runs of one length, with names in any order.
        let mut leaf_of: Vec<usize> = (0..hosts.len()).collect();
        let mut hosts_per_switch = 1;
        // Names of tiers differ, as the check demands.
        let tiers = tiers.into_iter().enumerate().map(|(i, (name, k, oversubscription))| {
            let name = format!("{name}{i}");
            hosts_per_switch *= k;
            if !named {
                return Tier::regular(name, hosts_per_switch, oversubscription);
            }
            let mut of: Vec<NamedSwitch> = Vec::new();
            for (h, leaf) in leaf_of.iter_mut().enumerate() {
                *leaf = *leaf * 7 % (k + 1);
                let name = format!("s{leaf}");
                match of.iter_mut().find(|s| s.name == name) {
                    Some(s) => s.hosts.push(HostId(h as u32)),
                    None => of.push(NamedSwitch { name, hosts: vec![HostId(h as u32)] }),
                }
            }
            let switches = Switches::Named(NamedSwitches::new(of).unwrap());
            Tier { name, switches, oversubscription }
        }).collect();
        let host_links = links.into_iter().filter(|_| hosts.len() > 1).map(|(at, gbit)| {
            let a = at.index(hosts.len() - 1) as u32;
            HostLink { a: HostId(a), b: HostId(a + 1), rate: Bandwidth::from_gbit_per_s(gbit) }
        }).collect();
        Cluster { name, types, hosts, network: Network { class, tiers, rails, host_links } }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_cluster_reads_back_as_it_was_written(c in cluster()) {
        c.check().unwrap();
        let yaml = file::write(&c);
        let back = file::read(&yaml, "c.yaml").map_err(|e| TestCaseError::fail(format!("{e}\n{yaml}")))?;
        prop_assert_eq!(&back, &c, "{}", yaml);
        let json = file::to_json(&c);
        let back = file::read(&json, "c.json").map_err(|e| TestCaseError::fail(format!("{e}\n{json}")))?;
        prop_assert_eq!(&back, &c);
    }

    #[test]
    fn any_mutation_of_a_cluster_file_is_read_or_refused_with_a_place(c in cluster(), cuts in prop::collection::vec((any::<prop::sample::Index>(), any::<char>()), 1..4)) {
        let mut text: Vec<char> = file::write(&c).chars().collect();
        for (at, with) in cuts {
            let i = at.index(text.len());
            text[i] = with;
        }
        let text: String = text.into_iter().collect();
        if let Err(e) = file::read(&text, "c.yaml") {
            prop_assert!(e.line() >= 1 && e.column() >= 1 && !e.remedy().is_empty() && !e.message().is_empty());
        }
    }
}

#[test]
fn catalog_clusters_read_back_as_they_were_written() {
    for name in catalog::CLUSTERS {
        let c = catalog::cluster(name).unwrap();
        assert_eq!(file::read(&file::write(&c), "c.yaml").unwrap(), c, "{name}");
        assert_eq!(file::read(&file::to_json(&c), "c.json").unwrap(), c, "{name}");
    }
}

#[test]
fn every_catalog_type_reads_back_spelled_out() {
    for t in catalog::host_types() {
        let t = HostType { name: format!("my-{}", t.name), ..t };
        let c =
            Cluster { types: vec![t], hosts: vec![Host { name: "a".into(), ..Host::default() }], ..Cluster::default() };
        assert_eq!(file::read(&file::write(&c), "c.yaml").unwrap(), c);
    }
}

const BY_HAND: &str = "
name: lab
network:
  class: roce
  tiers:
    - {name: leaf, hosts_per_switch: 2, oversubscription: 2}
  host_links:
    - {between: [n0, big1], rate_gbit_per_s: 100}
host_types:
  - name: box
    gpus: 8
    gpu_model: NVIDIA RTX A6000
    sockets: [[0, 1, 2, 3], [4, 5, 6, 7]]
    pcie_switches: [[0, 1], [2, 3], [4, 5], [6, 7]]
    nvlink: {link_rate_gb_per_s: 14.0625, pairs: [[0, 2], [4, 6, 2]], links: 4}
    nics:
      - {name: mlx5_0, line_rate_gbit_per_s: 200, near: [2, 3]}
      - {name: eth0, line_rate_gbit_per_s: 25, socket: 1}
  - name: box-fast
    like: box
    nics: [{name: mlx5_, one_per_gpu: true, line_rate_gbit_per_s: 400}]
hosts:
  - {count: 2, type: hgx-h100}
  - {name: 'big[1-2]', type: box, drained: [7], degraded: {nics: {mlx5_0: 0.5}, gpus: {3: 0.25}, links: [{between: [0, 2], factor: 0.5}]}}
  - {name: old, type: box-fast, drained: true, degraded: {host: 0.5, nic_rates_gbit_per_s: {mlx5_7: 100}}}
";

#[test]
fn a_file_written_by_hand_needs_no_matrix() {
    let c = file::read(BY_HAND, "lab.yaml").unwrap();
    assert_eq!(c.hosts.iter().map(|h| h.name.as_str()).collect::<Vec<_>>(), ["n0", "n1", "big1", "big2", "old"]);
    let t = &c.types[0];
    let label = |i: usize, j: usize| t.gpu_paths[i][j].to_string();
    assert_eq!([label(0, 1), label(0, 2), label(4, 6), label(0, 3), label(0, 4)], ["PIX", "NV4", "NV2", "NODE", "SYS"]);
    assert_eq!(t.gpus[5].socket, 1);
    assert_eq!((t.nearest_nics(2), t.nearest_nics(0), t.nearest_nics(5)), (0b01, 0b01, 0b10));
    let fast = &c.types[1];
    assert_eq!((fast.gpu_paths == t.gpu_paths, fast.nics.len(), fast.nearest_nics(3)), (true, 8, 0b1000));
    let (big, old) = (HostId(2), HostId(4));
    assert_eq!(c.nic_rate(big, 0).gbit_per_s(), 100.0);
    assert_eq!((c.link_health(big, 3, 0), c.link_health(big, 2, 0), c.link_health(big, 4, 5)), (0.25, 0.5, 1.0));
    assert_eq!(c.nic_rate(old, 7).gbit_per_s(), 50.0);
    assert_eq!(c.usable().counts(), [8, 8, 7, 7]);
    assert_eq!(c.network.host_links[0].rate.gb_per_s(), 12.5);
    assert_eq!(file::read(&file::write(&c), "again.yaml").unwrap(), c);
}

#[test]
fn the_schema_names_every_field_that_the_reader_knows() {
    let schema: serde_json::Value = serde_json::from_str(&file::json_schema()).unwrap();
    let top = schema["properties"].as_object().unwrap();
    assert_eq!(top.len(), file::TOP_LEVEL_KEYS.len());
    for k in file::TOP_LEVEL_KEYS {
        assert!(top.contains_key(k), "{k}");
    }
    let text = schema.to_string();
    for field in ["line_rate_gbit_per_s", "pcie_switches", "oversubscription", "drained", "degraded", "gpu_uuids"] {
        assert!(text.contains(field), "{field}");
    }
}

#[test]
fn tiers_of_one_name_and_a_tier_named_host_are_refused_with_their_line() {
    let read = |second: &str| {
        let tiers = format!("  - {{name: leaf, hosts_per_switch: 2}}\n  - {{name: {second}, hosts_per_switch: 4}}\n");
        let text = format!("network:\n  tiers:\n{tiers}hosts: [{{type: hgx-h100, count: 4}}]\n");
        file::read(&text, "site.yaml").map_err(|e| (e.line(), e.message().to_owned()))
    };
    assert!(read("spine").is_ok());
    let (line, message) = read("Leaf").unwrap_err();
    assert!(line == 4 && message.contains("two tiers are named `Leaf`"), "{line}: {message}");
    let (line, message) = read("host").unwrap_err();
    assert!(line == 4 && message.contains("a tier is named `host`"), "{line}: {message}");
}
