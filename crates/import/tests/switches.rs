//! The switches of a site, from each of its sources.

use import::switches::{
    NetworkOptions, Wiring, WiringError, read_ibnetdiscover, read_slurm_conf, read_slurm_yaml, read_topograph,
};
use proptest::prelude::*;
use std::collections::BTreeSet;
use topology::{Host, NetworkClass, Rails};

fn sets(w: &Wiring, tier: usize) -> Vec<(String, String)> {
    let list = |h: &[String]| topology::list::compress(h.iter().map(String::as_str));
    w.tiers[tier].switches.iter().map(|s| (s.name.clone(), list(&s.hosts))).collect()
}

fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
    of.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect()
}

fn hosts(list: &str) -> Vec<Host> {
    let names = topology::list::expand(list, 10_000).unwrap();
    names.into_iter().map(|name| Host { name, ..Host::default() }).collect()
}

const TREE: &str = "\
# switch.2.1=spine-1
SwitchName=core Switches=spine[1-2]
switchname=spine1 switches=leaf[1-2] LinkSpeed=400
SwitchName=spine2 Switches=leaf3
SwitchName=leaf1 Nodes=n[0-3]  # four
SwitchName=leaf2 \\
  Nodes=n[4-5,9]
SwitchName=leaf3 Nodes=n[6-8]
";

#[test]
fn a_switch_below_itself_is_refused_also_without_hosts_below_it() {
    for cycle in ["SwitchName=a Switches=b\nSwitchName=b Switches=a\n", "SwitchName=a Switches=a\n"] {
        let e = read_slurm_conf(&format!("SwitchName=l1 Nodes=n[1-4]\n{cycle}"), "t.conf").expect_err("refused");
        assert!(e.message().contains("switch `a`") && e.message().contains("below itself"), "{}", e.message());
        assert_eq!(e.line(), 2);
    }
}

/// Two hosts on one switch, with the blocks of their adapters.
const FABRIC: &str = r#"Switch	64 "S-1"		# "MF0;leaf1:MQM9700/U1" enhanced port 0 lid 1 lmc 0
[1]	"H-11"[1](11) 		# "n1 mlx5_0" lid 11 4xNDR
[2]	"H-12"[1](12) 		# "n2 mlx5_0" lid 12 4xNDR

Ca	1 "H-11"		# "n1 mlx5_0"
[1](11) 	"S-1"[1]		# lid 11 lmc 0 "leaf1" lid 1 4xNDR

Ca	1 "H-12"		# "n2 mlx5_0"
[1](12) 	"S-1"[2]		# lid 12 lmc 0 "leaf1" lid 1 4xNDR
"#;

#[test]
fn two_adapters_of_one_name_and_an_output_cut_off_are_told() {
    let notes = |text: &str| read_ibnetdiscover(text, "ib.txt", None).unwrap().notes.join("\n");
    assert!(!notes(FABRIC).contains("cut off"), "{}", notes(FABRIC));
    let refused = |text: &str| read_ibnetdiscover(text, "ib.txt", None).expect_err("refused").message().to_owned();
    let twice = refused(&FABRIC.replace("\"n2 mlx5_0\"", "\"n1 mlx5_0\""));
    assert!(twice.contains("two adapters are named `n1 mlx5_0`: H-11 and H-12"), "{twice}");
    let at = FABRIC.rfind("[1](12)").unwrap(); // in the block of the adapter
    assert!(refused(&FABRIC[..at + 4]).contains("cut off"));
    let cut = notes(&FABRIC[..FABRIC.find("Ca\t1 \"H-12\"").unwrap()]);
    assert!(cut.contains("1 adapter of the switches' ports without a block of their own (H-12)"), "{cut}");
}

#[test]
fn a_hierarchical_topology_conf_gives_its_tiers() {
    let w = read_slurm_conf(TREE, "topology.conf").unwrap();
    assert_eq!(sets(&w, 0), pairs(&[("leaf1", "n[0-3]"), ("leaf2", "n[4-5,9]"), ("leaf3", "n[6-8]")]));
    assert_eq!(sets(&w, 1), pairs(&[("spine1", "n[0-5,9]"), ("spine2", "n[6-8]")]));
    assert_eq!(w.tiers.len(), 2, "the root joins all hosts and is no tier");
    assert_eq!((w.tiers[0].name.as_str(), w.tiers[1].name.as_str()), ("leaf", "spine"));
    let options = NetworkOptions { oversubscription: vec![("spine".into(), 4.0)] };
    let (network, notes) = w.network(&hosts("n[0-9]"), NetworkClass::Roce, &options, "topology.conf").unwrap();
    assert_eq!((network.tiers[0].oversubscription, network.tiers[1].oversubscription), (1.0, 4.0));
    assert_eq!(notes.len(), 1, "the leaf's oversubscription is assumed, with a note: {notes:?}");
    assert!(notes[0].contains("tier leaf") && notes[0].contains("--oversubscription leaf=2"), "{notes:?}");
}

#[test]
fn a_cluster_may_have_fewer_hosts_than_the_file_but_not_others() {
    let w = read_slurm_conf(TREE, "topology.conf").unwrap();
    let make = |list: &str, options: &NetworkOptions| {
        w.network(&hosts(list), NetworkClass::Infiniband, options, "topology.conf")
    };
    let (network, notes) = make("n[0-1,4]", &NetworkOptions::default()).unwrap();
    assert_eq!(network.tiers.len(), 1, "below one spine");
    assert!(notes.iter().any(|n| n.contains("7 hosts of topology.conf are not in this cluster")), "{notes:?}");
    let e = make("n[0-1],login", &NetworkOptions::default()).unwrap_err();
    assert_eq!(e, WiringError::Unwired { host: "login".into(), file: "topology.conf".into() });
    let e = make("n[0-1,4]", &NetworkOptions { oversubscription: vec![("spin".into(), 2.0)] }).unwrap_err();
    assert!(e.to_string().contains("`leaf`, `spine`"), "{e}");
    let mut renamed = hosts("a,b");
    (renamed[0].slurm_name, renamed[1].slurm_name) = (Some("n0".into()), Some("n6".into()));
    let (network, _) = w.network(&renamed, NetworkClass::Infiniband, &NetworkOptions::default(), "f").unwrap();
    assert_eq!(network.tiers[0].switches.count(2), 2);
}

#[test]
fn blocks_become_tiers_and_the_larger_sizes_group_them() {
    let text = "# rack11=nvl-1-1\nBlockName=rack11 Nodes=srv[1101-1108]\nBlockName=rack12 Nodes=srv[1201-1208]\n\
                BlockName=rack21 Nodes=srv[2101-2108]\nBlockName=rack22 Nodes=srv[2201-2208]\nBlockSizes=8,16,32\n";
    let w = read_slurm_conf(text, "topology.conf").unwrap();
    assert_eq!(w.tiers.len(), 2, "32 nodes are all");
    assert_eq!(sets(&w, 0)[1], ("rack12".into(), "srv[1201-1208]".into()));
    assert_eq!(sets(&w, 1)[0], ("rack11..rack12".into(), "srv[1101-1108,1201-1208]".into()));
    assert!(w.notes[0].contains("NVL72"), "{:?}", w.notes);
}

#[test]
fn leaves_with_the_same_nodes_are_rails() {
    let text = "SwitchName=a[0] Nodes=n[0-3]\nSwitchName=a1 Nodes=n[0-3]\nSwitchName=b0 Nodes=n[4-7]\nSwitchName=b1 Nodes=n[4-7]\n\
                SwitchName=s0 Switches=a1,b0\nSwitchName=s1 Switches=b1,b0,a1\n";
    let text = text.replace("a[0]", "a0");
    let w = read_slurm_conf(&text, "f").unwrap();
    assert_eq!(sets(&w, 0), pairs(&[("a0", "n[0-3]"), ("b0", "n[4-7]")]));
    assert_eq!(w.rails, Some(Rails::Joined));
    assert!(w.notes.iter().any(|n| n.contains("2 leaf switches (a0, a1, ...)")), "{:?}", w.notes);
}

#[test]
fn what_is_wrong_with_a_topology_conf_is_told_with_line_and_remedy() {
    for (text, line, wanted) in [
        ("SwitchName=a Nodes=n0\nSwitchNam=b Nodes=n1\n", 2, "did you mean SwitchName?"),
        ("SwitchName=a Nodes=n[0-\n", 1, "n[0-"),
        ("SwitchName=a Nodes=n0\nSwitchName=a Nodes=n1\n", 2, "defined twice"),
        ("SwitchName=a Nodes=n0\nSwitchName=b Switches=a,c\n", 2, "`c`, which is no switch"),
        ("SwitchName=a Nodes=n0 Switches=b\nSwitchName=b Nodes=n1\n", 1, "both Nodes and Switches"),
        ("SwitchName=a\n", 1, "neither"),
        ("SwitchName=a Nodes=n[0-1]\nSwitchName=b Nodes=n[1-2]\n", 2, "`n1` is below `a` and below `b`"),
        ("SwitchName=a Nodes=n0\nSwitchName=b Switches=a,c\nSwitchName=c Switches=b\n", 1, "below itself"),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a\n", 1, "below itself"),
        ("SwitchName=a Nodes=n0\nBlockName=b Nodes=n1\n", 2, "has switches and the block"),
        ("BlockName=b Nodes=n1\nBlockSizes=4,x\n", 2, "no list of numbers"),
        ("Nodes=n1\n", 1, "without SwitchName"),
        ("hello\n", 1, "no Key=value"),
        ("# nothing\n", 1, "no SwitchName"),
    ] {
        let e = read_slurm_conf(text, "topology.conf").unwrap_err();
        assert!(e.message().contains(wanted), "{text}: {}", e.message());
        assert_eq!(e.line(), line, "{text}: {}", e.message());
        assert!(!e.remedy().is_empty());
    }
}

const YAML: &str = "\
---
- topology: topo-switch
  cluster_default: true
  tree:
    switches:
      - switch: sw_root
        children: s[1-2]
      - switch: s1
        nodes: node[1-2]
      - switch: s2
        nodes: node[3-4]
- topology: topo-block
  cluster_default: false
  block:
    block_sizes:
      - 2
      - 4
    blocks:
      - block: b1
        nodes: node[1-2]
      - block: b2
        nodes: node[3-4]
- topology: topo-flat
  cluster_default: false
  flat: true
";

#[test]
fn a_topology_yaml_gives_its_default_or_the_named_topology() {
    let w = read_slurm_yaml(YAML, "topology.yaml", None).unwrap();
    assert_eq!(sets(&w, 0), pairs(&[("s1", "node[1-2]"), ("s2", "node[3-4]")]));
    assert!(w.notes[0].contains("`topo-switch` is taken"), "{:?}", w.notes);
    let w = read_slurm_yaml(YAML, "topology.yaml", Some("topo-block")).unwrap();
    assert_eq!(sets(&w, 0), pairs(&[("b1", "node[1-2]"), ("b2", "node[3-4]")]));
    assert!(read_slurm_yaml(YAML, "topology.yaml", Some("topo-flat")).unwrap().tiers.is_empty());
    let e = read_slurm_yaml(YAML, "topology.yaml", Some("x")).unwrap_err();
    assert!(e.message().contains("`topo-switch`, `topo-block`, `topo-flat`"), "{}", e.message());
    let e = read_slurm_yaml(&YAML.replace("true\n  tree", "false\n  tree"), "f", None).unwrap_err();
    assert!(e.message().contains("cluster_default") && e.remedy().contains("--topology"), "{}", e.message());
}

#[test]
fn what_is_wrong_with_a_topology_yaml_is_told_with_its_line() {
    for (from, to, line, wanted) in [
        ("nodes: node[3-4]\n- top", "nodes: node[3-\n- top", 11, "node[3-"),
        ("children: s[1-2]", "children: s[1-3]", 6, "`s3`, which is no switch"),
        ("nodes: node[3-4]\n- top", "node: node[3-4]\n- top", 11, "node"),
        ("tree:\n", "ring: {}\n  x:\n", 5, "x"),
    ] {
        let e = read_slurm_yaml(&YAML.replacen(from, to, 1), "topology.yaml", None).unwrap_err();
        assert!(e.message().contains(wanted), "{}", e.message());
        assert_eq!(e.line(), line, "{}", e.message());
    }
}

/// A rail-optimised fabric as `ibnetdiscover` prints it: `groups` of `hosts`, each with `rails` leaf switches; leaves have `uplinks` cables to
/// each of two spines of their half, and all spines one to a core.
fn fabric(groups: usize, hosts: usize, rails: usize, uplinks: usize, joined: bool) -> String {
    let mut out = "#\n# Topology file: generated on Wed Aug  6 16:11:23 2025\n#\n".to_owned();
    let block = |out: &mut String, id: &str, name: &str, ports: &[String]| {
        out.push_str(&format!("\nvendid=0x2c9\ndevid=0xd2f2\nsysimgguid=0x{id}\nswitchguid=0x{id}({id})\n"));
        out.push_str(&format!("Switch\t65 \"S-{id}\"\t\t# \"MF0;{name}:MQM9700/U1\" enhanced port 0 lid 73 lmc 0\n"));
        for (i, p) in ports.iter().enumerate() {
            out.push_str(&format!("[{}]\t{p}\n", i + 1));
        }
    };
    let to = |id: &str, name: &str| format!("\"S-{id}\"[3]\t\t# \"MF0;{name}:MQM9700/U1\" lid 236 4xNDR");
    let half = |g: usize| if joined || g < groups.div_ceil(2) { 0 } else { 1 };
    for g in 0..groups {
        for r in 0..rails {
            let mut ports: Vec<String> = (0..hosts)
                .map(|h| {
                    let guid = format!("e09d{g:04x}{h:04x}{r:04x}");
                    format!("\"H-{guid}\"[1]({guid}) \t\t# \"gpu-{:02} mlx5_{r}\" lid 647 4xNDR", g * hosts + h)
                })
                .collect();
            for s in 0..2 {
                let spine = 2 * half(g) + s;
                ports.extend((0..uplinks).map(|_| to(&format!("5{spine}"), &format!("SPINE-{spine}"))));
            }
            ports.push("\"H-aa\"[1](aa) \t\t# \"Mellanox Technologies Aggregation Node\" lid 193 4xNDR".into());
            if (g, r) == (0, 0) {
                ports.push("\"H-bb\"[1](bb) \t\t# \"ufm-1 mlx5_0\" lid 680 4xHDR".into());
                if !joined {
                    ports.push(
                        "\"H-cc\"[1](cc) \t\t# \"MT4129 ConnectX7   Mellanox Technologies\" lid 515 4xNDR".into(),
                    );
                }
            }
            block(&mut out, &format!("1{g:02}{r:02}"), &format!("LEAF-{g}-{r}"), &ports);
        }
    }
    for spine in 0..if joined { 2 } else { 4 } {
        block(&mut out, &format!("5{spine}"), &format!("SPINE-{spine}"), &[to("90", "CORE")]);
    }
    block(&mut out, "90", "CORE", &[to("50", "SPINE-0")]);
    out.push_str("\nvendid=0x2c9\nCa\t1 \"H-e09d000000000000\"\t\t# \"gpu-00 mlx5_0\"\n[1](e0) \"S-10000\"[1]\t\t# lid 647 lmc 0 \"MF0;LEAF-0-0:MQM9700/U1\" lid 73 4xNDR\n");
    out
}

#[test]
fn an_infiniband_fabric_gives_leaf_groups_rails_and_the_oversubscription_of_its_cables() {
    let w = read_ibnetdiscover(&fabric(4, 8, 4, 2, false), "ib.txt", None).unwrap();
    assert_eq!((w.class, w.rails), (Some(NetworkClass::Infiniband), Some(Rails::Joined)));
    assert_eq!(w.hosts.len(), 32, "without the UFM host: {:?}", w.hosts);
    assert_eq!(
        sets(&w, 0).iter().map(|s| s.1.as_str()).collect::<Vec<_>>(),
        ["gpu-[00-07]", "gpu-[08-15]", "gpu-[16-23]", "gpu-[24-31]"]
    );
    assert_eq!(w.tiers[0].oversubscription, Some(2.0), "8 host ports over 2 x 2 uplinks: the median");
    assert_eq!(sets(&w, 1).iter().map(|s| s.1.as_str()).collect::<Vec<_>>(), ["gpu-[00-15]", "gpu-[16-31]"]);
    assert_eq!(w.port_gbit_per_s[&("gpu-03".into(), "mlx5_2".into())], 400.0);
    for wanted in ["1 port without the name of a host", "ufm-1", "rails"] {
        assert!(w.notes.iter().any(|n| n.contains(wanted)), "no `{wanted}` in {:?}", w.notes);
    }
    let (network, _) =
        w.network(&hosts("gpu-[00-31]"), NetworkClass::Infiniband, &NetworkOptions::default(), "f").unwrap();
    assert_eq!(network.tiers.len(), 2);
}

/// A fabric of three tiers: `hosts` with eight rails, 32 hosts on each leaf, eight pods of leaves and a spine for each rail of a pod, and cores
/// above. Every host also has the block that `ibnetdiscover` prints of its adapters.
fn three_tiers(hosts: usize) -> String {
    const RAILS: usize = 8;
    let pods = 8;
    let leaves = hosts.div_ceil(32);
    let mut out = "#\n# Topology file: generated on Wed Aug  6 16:11:23 2025\n#\n".to_owned();
    let head = |out: &mut String, id: &str, name: &str| {
        out.push_str(&format!("\nvendid=0x2c9\ndevid=0xd2f2\nsysimgguid=0x{id}\nswitchguid=0x{id}({id})\n"));
        out.push_str(&format!("Switch\t65 \"S-{id}\"\t\t# \"MF0;{name}:MQM9700/U1\" enhanced port 0 lid 73 lmc 0\n"));
    };
    let to = |id: &str, name: &str| format!("\"S-{id}\"[3]\t\t# \"MF0;{name}:MQM9700/U1\" lid 236 4xNDR\n");
    let (leaf, spine) = (|l: usize, r: usize| format!("1{l:04}{r:02}"), |p: usize, r: usize| format!("5{p:04}{r:02}"));
    for l in 0..leaves {
        for r in 0..RAILS {
            head(&mut out, &leaf(l, r), &format!("LEAF-{l}-{r}"));
            for h in 32 * l..(32 * (l + 1)).min(hosts) {
                let guid = format!("e09d{h:06x}{r:04x}");
                out.push_str(&format!(
                    "[{}]\t\"H-{guid}\"[1]({guid}) \t\t# \"gpu-{h:04} mlx5_{r}\" lid {h} 4xNDR\n",
                    h + 1 - 32 * l
                ));
            }
            for cable in 0..32 {
                out.push_str(&format!(
                    "[{}]\t{}",
                    33 + cable,
                    to(&spine(l % pods, r), &format!("SPINE-{}-{r}", l % pods))
                ));
            }
        }
    }
    for p in 0..pods {
        for r in 0..RAILS {
            head(&mut out, &spine(p, r), &format!("SPINE-{p}-{r}"));
            for (i, l) in (p..leaves).step_by(pods).enumerate() {
                out.push_str(&format!("[{}]\t{}", i + 1, to(&leaf(l, r), &format!("LEAF-{l}-{r}"))));
            }
            for core in 0..16 {
                out.push_str(&format!(
                    "[{}]\t{}",
                    65 + core,
                    to(&format!("9{:02}", core % 4), &format!("CORE-{}", core % 4))
                ));
            }
        }
    }
    for core in 0..4 {
        head(&mut out, &format!("9{core:02}"), &format!("CORE-{core}"));
        for p in 0..pods {
            out.push_str(&format!("[{}]\t{}", p + 1, to(&spine(p, 0), &format!("SPINE-{p}-0"))));
        }
    }
    for h in 0..hosts {
        for r in 0..RAILS {
            let (guid, id) = (format!("e09d{h:06x}{r:04x}"), leaf(h / 32, r));
            out.push_str(&format!(
                "\nvendid=0x2c9\ndevid=0x1021\nCa\t1 \"H-{guid}\"\t\t# \"gpu-{h:04} mlx5_{r}\"\n[1]({guid}) \t{}",
                to(&id, &format!("LEAF-{}-{r}", h / 32))
            ));
        }
    }
    out
}

#[test]
fn the_fabric_of_1280_hosts_and_three_tiers_is_read_in_time_proportional_to_its_size() {
    let (large, small) = (three_tiers(1280), three_tiers(320));
    assert!((1 << 20..6 << 20).contains(&large.len()), "{} bytes", large.len());
    let w = read_ibnetdiscover(&large, "ib.txt", None).unwrap();
    assert_eq!((w.hosts.len(), w.rails, w.port_gbit_per_s.len()), (1280, Some(Rails::Joined), 8 * 1280));
    let switches: Vec<usize> = w.tiers.iter().map(|t| t.switches.len()).collect();
    assert_eq!(switches, [40, 8], "leaf groups, and pods below the cores: {:?}", w.notes);
    let names = hosts("gpu-[0000-1279]");
    let (network, _) = w.network(&names, NetworkClass::Infiniband, &NetworkOptions::default(), "f").unwrap();
    assert_eq!(network.tiers.len(), 2);
    // The fastest of a few readings of each, so that other work on the machine does not count.
    let seconds = |text: &str| {
        let one = |_| {
            let start = std::time::Instant::now();
            std::hint::black_box(read_ibnetdiscover(text, "ib.txt", None).unwrap());
            start.elapsed().as_secs_f64()
        };
        (0..5).map(one).fold(f64::INFINITY, f64::min)
    };
    let (few, many) = (seconds(&small), seconds(&large));
    let times = large.len() as f64 / small.len() as f64;
    assert!(many < 2.5 * times * few, "{many} s for {times:.1} times the text that takes {few} s");
}

#[test]
fn a_non_blocking_fabric_of_two_groups_has_one_tier() {
    let w = read_ibnetdiscover(&fabric(2, 4, 4, 2, true), "ib.txt", None).unwrap();
    assert_eq!((w.tiers.len(), w.tiers[0].oversubscription), (1, Some(1.0)));
    let single = read_ibnetdiscover(&fabric(1, 4, 1, 2, true), "ib.txt", None).unwrap();
    assert_eq!((single.tiers.len(), single.rails), (0, None));
}

#[test]
fn only_the_named_hosts_of_a_fabric_count() {
    let names: BTreeSet<String> = ["gpu-00", "gpu-09"].map(str::to_owned).into();
    let w = read_ibnetdiscover(&fabric(4, 8, 4, 2, false), "ib.txt", Some(&names)).unwrap();
    assert_eq!(w.hosts, ["gpu-00", "gpu-09"]);
    let none: BTreeSet<String> = ["other".to_owned()].into();
    let e = read_ibnetdiscover(&fabric(4, 8, 4, 2, false), "ib.txt", Some(&none)).unwrap_err();
    assert!(e.remedy().contains("--hosts"), "{}", e.remedy());
}

#[test]
fn a_broken_ibnetdiscover_is_refused_with_its_line() {
    let text = fabric(1, 2, 1, 1, true);
    let twice = format!("{text}\n{text}");
    let e = read_ibnetdiscover(&twice, "ib.txt", None).unwrap_err();
    assert!(e.message().contains("two blocks") && e.line() > 10, "{}", e.message());
    let e = read_ibnetdiscover("# Topology file: generated on\n", "ib.txt", None).unwrap_err();
    assert!(e.message().contains("no block of a switch"), "{}", e.message());
}

#[test]
fn topographs_instances_and_node_labels_give_the_same_tiers() {
    let instance = |id: &str, leaf: &str, spine: &str| {
        format!(
            r#"{{"id":"{id}","type":"H100","network_layers":["{leaf}","{spine}"],"attributes":{{"nvlink":"{id}"}}}}"#
        )
    };
    let rows = [("i1", "leaf-a", "sp-1"), ("i2", "leaf-a", "sp-1"), ("i3", "leaf-b", "sp-1"), ("i4", "leaf-c", "sp-2")];
    let graph = format!("{{\"instances\":[{}]}}", rows.map(|r| instance(r.0, r.1, r.2)).join(","));
    let node = |(id, leaf, spine): (&str, &str, &str)| {
        format!(
            r#"{{"metadata":{{"name":"{id}","labels":{{"network.topology.nvidia.com/leaf":"{leaf}","network.topology.nvidia.com/spine":"{spine}"}}}}}}"#
        )
    };
    let plain = r#"{"metadata":{"name":"control-plane","labels":{}}}"#;
    let nodes = format!("{{\"kind\":\"List\",\"items\":[{plain},{}]}}", rows.map(node).join(","));
    for text in [graph, nodes] {
        let w = read_topograph(&text, "t.json").unwrap();
        assert_eq!(sets(&w, 0), pairs(&[("leaf-a", "i[1-2]"), ("leaf-b", "i3"), ("leaf-c", "i4")]));
        assert_eq!(sets(&w, 1), pairs(&[("sp-1", "i[1-3]"), ("sp-2", "i4")]));
        assert!(w.notes.is_empty(), "{:?}", w.notes);
    }
    let shared = r#"{"instances":[{"id":"a","network_layers":["l"],"attributes":{"nvlink":"d"}},{"id":"b","network_layers":["l"],"attributes":{"nvlink":"d"}}]}"#;
    assert!(read_topograph(shared, "t").unwrap().notes[0].contains("1 NVLink domains over several hosts"));
    for (text, wanted) in [
        ("{", "EOF"),
        ("{}", "neither `instances` nor `items`"),
        (r#"{"instances":[]}"#, "0 nodes"),
        (r#"{"instances":[{"network_layers":["l"]}]}"#, "instances[0].id"),
        (
            r#"{"instances":[{"id":"a","network_layers":["l"]},{"id":"b","network_layers":["l","s"]}]}"#,
            "1 network layers",
        ),
        (r#"{"instances":[{"id":"a","network_layers":["l"]},{"id":"a","network_layers":["l"]}]}"#, "there twice"),
    ] {
        let e = read_topograph(text, "t.json").unwrap_err();
        assert!(e.message().contains(wanted), "{}", e.message());
    }
}

proptest! {
    #[test]
    fn no_reader_panics(junk in "\\PC{0,40}|[A-Za-z]{1,8}=[a-z0-9\\[\\],-]{0,8}\n", at in 0usize..3000) {
        let ib = fabric(2, 3, 2, 1, false);
        for text in [TREE, YAML, &ib, r#"{"instances":[{"id":"a","network_layers":["l"]}]}"#] {
            let mut at = at.min(text.len());
            while !text.is_char_boundary(at) { at -= 1; }
            let broken = format!("{}{junk}{}", &text[..at], &text[at..]);
            let cut = &text[..at];
            for t in [broken.as_str(), cut] {
                let _ = (read_slurm_conf(t, "f"), read_slurm_yaml(t, "f", None), read_topograph(t, "f"));
                let _ = read_ibnetdiscover(t, "f", None);
            }
        }
    }

    /// Any tree of switches comes back as the sets it was made of.
    #[test]
    fn a_written_tree_reads_back(sizes in proptest::collection::vec(1usize..6, 2..9), per_spine in 1usize..4) {
        let mut text = String::new();
        let mut first = 0;
        let mut expected = Vec::new();
        for (i, n) in sizes.iter().enumerate() {
            let list = if *n == 1 { format!("n{first}") } else { format!("n[{first}-{}]", first + n - 1) };
            text.push_str(&format!("SwitchName=l{i} Nodes={list}\n"));
            expected.push((format!("l{i}"), list));
            first += n;
        }
        let spines = sizes.len().div_ceil(per_spine);
        for s in 0..spines {
            let last = ((s + 1) * per_spine).min(sizes.len()) - 1;
            text.push_str(&format!("SwitchName=s{s} Switches=l[{}-{last}]\n", s * per_spine));
        }
        text.push_str(&format!("SwitchName=root Switches=s[0-{}]\n", spines - 1));
        let w = read_slurm_conf(&text, "f").unwrap();
        prop_assert_eq!(sets(&w, 0), expected);
        prop_assert_eq!(w.hosts.len(), first);
    }
}

/// The fabric of three tiers without the lines and blocks that `drop` names.
fn damaged(hosts: usize, drop: impl Fn(&str) -> bool) -> String {
    let text = three_tiers(hosts);
    text.lines().filter(|l| !drop(l)).map(|l| format!("{l}\n")).collect()
}

#[test]
fn slow_and_missing_ports_are_defects_of_their_hosts_and_missing_uplinks_are_noted() {
    let ty = topology::catalog::host_type("hgx-h100").unwrap();
    let defects = |text: &str| {
        let w = read_ibnetdiscover(text, "ib.txt", None).unwrap();
        let mut hosts = hosts("gpu-[0000-0127]");
        let said = w.record_defects(&ty, &mut hosts);
        let ill: Vec<(String, Vec<f64>)> =
            hosts.into_iter().filter(|h| !h.nic_health.is_empty()).map(|h| (h.name, h.nic_health)).collect();
        (ill, said, w.notes)
    };
    let nics: Vec<&str> = ty.nics.iter().map(|n| n.name.as_str()).collect();
    assert!(nics.contains(&"mlx5_3"), "{nics:?}");
    let at = nics.iter().position(|n| *n == "mlx5_3").unwrap();
    let with = |factor: f64| (0..nics.len()).map(|i| if i == at { factor } else { 1.0 }).collect::<Vec<_>>();
    let (ill, said, notes) = defects(&three_tiers(128));
    assert!(ill.is_empty() && said.is_empty(), "{ill:?} {said:?}");
    assert!(!notes.iter().any(|n| n.contains("fewer uplinks")), "{notes:?}");
    // One adapter is gone.
    let (ill, said, _) = defects(&damaged(128, |l| l.contains("gpu-0005 mlx5_3")));
    assert_eq!(ill, [("gpu-0005".to_owned(), with(0.0))], "{said:?}");
    // One port has half the rate.
    let slow = three_tiers(128).replace("\"gpu-0005 mlx5_3\" lid 5 4xNDR", "\"gpu-0005 mlx5_3\" lid 5 4xHDR");
    let (ill, said, _) = defects(&slow);
    assert!(ill == [("gpu-0005".to_owned(), with(0.5))] && said.len() == 1, "{ill:?} {said:?}");
    // The leaf of a rail is gone: 32 hosts lack the NIC.
    let (ill, said, _) = defects(&damaged(128, |l| {
        l.contains("\"H-e09d") && l.contains("mlx5_3\"") && {
            let host: usize = l.split("gpu-").nth(1).unwrap()[..4].parse().unwrap();
            (32..64).contains(&host)
        }
    }));
    assert!(ill.len() == 32 && said[0].contains("32 NICs") && said[0].contains("gpu-0032 mlx5_3"), "{said:?}");
    // The leaves of the first hosts keep 8 of 32 uplinks.
    let few = damaged(128, |l| {
        let port: usize = l.strip_prefix('[').and_then(|l| l.split_once(']')).map_or(0, |p| p.0.parse().unwrap());
        l.contains("SPINE-0-") && port > 40
    });
    let (_, _, notes) = defects(&few);
    assert!(notes.iter().any(|n| n.contains("1 group with fewer uplinks") && n.contains("4:1")), "{notes:?}");
}
