//! What is read and written beside the plugin: the cluster file, the variables of a task.

use crate::common::{Folder, linkwise, said};

/// A folder with a program `scontrol` that prints these nodes.
fn stand_in(nodes: &str) -> Folder {
    let folder = Folder::new();
    folder.script("scontrol", &format!("#!/bin/sh\ncat <<'END'\n{nodes}END\n"));
    folder
}

fn sync(folder: &Folder, args: &[&str]) -> (i32, String, String) {
    let mut c = linkwise("cluster", &[&["sync", "--slurm"], args].concat());
    let path = format!("{}:{}", folder.0.path().display(), std::env::var("PATH").unwrap());
    c.env("PATH", path);
    said(c)
}

fn node(name: &str) -> String {
    format!("NodeName={name} Gres=gpu:h100:8 State=IDLE\n")
}

#[test]
fn sync_keeps_what_an_operator_edited_and_tells_every_difference() {
    let folder = stand_in(&[node("n1"), node("n2")].concat());
    let (file, yaml) = (folder.at("site.yaml"), folder.at("topology.yaml"));
    std::fs::write(
        &yaml,
        "- topology: a\n  cluster_default: true\n  block:\n    block_sizes: [1]\n    blocks:\n    - block: b1\n      nodes: n1\n    - block: b2\n      nodes: n[2-3]\n",
    )
    .unwrap();
    let (code, _, error) = sync(&folder, &["--host-type", "hgx-h100", "--topology", &yaml, "-o", &file]);
    assert_eq!(code, 0, "{error}");
    let edited = std::fs::read_to_string(&file).unwrap().replace("infiniband", "roce");
    assert!(edited.contains("roce"), "{edited}");
    std::fs::write(&file, &edited).unwrap();
    let (code, text, error) = sync(&folder, &["--topology", &yaml, "-o", &file, "--check"]);
    assert!(code == 0 && text.contains("is as Slurm has it"), "{text}{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), edited);

    // A new node and other devices: told, refused by --check, taken over without it.
    let folder = stand_in(&[node("n1"), node("n2"), node("n3")].concat());
    let (gres, smi) = (folder.at("gres.conf"), folder.at("smi"));
    std::fs::write(&gres, "NodeName=n[1-3] Name=gpu Type=h100 File=/dev/nvidia[0-7]\n").unwrap();
    std::fs::create_dir(&smi).unwrap();
    let gpu = |i: usize| format!("<gpu><uuid>GPU-{i}</uuid><minor_number>{}</minor_number></gpu>", 7 - i);
    let xml = format!("<nvidia_smi_log>{}</nvidia_smi_log>", (0..8).map(gpu).collect::<String>());
    std::fs::write(format!("{smi}/n2.xml"), xml).unwrap();
    let all = ["--topology", &yaml, "--gres", &gres, "--nvidia-smi", &smi, "--host-type", "hgx-h100", "-o", &file];
    let (code, _, error) = sync(&folder, &[&all[..], &["--check"]].concat());
    assert_eq!(code, 1, "{error}");
    for told in ["n3: a new node", "n2: other order of the devices", "n2: other UUIDs", "switches: not those of"] {
        assert!(error.contains(told), "{told}: {error}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), edited, "--check writes nothing");
    let (code, _, error) = sync(&folder, &all);
    assert_eq!(code, 0, "{error}");
    let cluster = console::load_cluster(&file).unwrap();
    assert_eq!((cluster.hosts.len(), cluster.network.class), (3, topology::NetworkClass::Roce));
    assert_eq!(cluster.hosts[1].gpu_minors, [7, 6, 5, 4, 3, 2, 1, 0]);
    let (code, _, error) = sync(&folder, &[&all[..], &["--check"]].concat());
    assert_eq!(code, 0, "{error}");

    // Wrong files end it with one message, and the file stays.
    let before = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&gres, "Name=gpu File=/dev/nvidia[0-\n").unwrap();
    let (code, _, error) = sync(&folder, &all);
    assert!(code == 2 && error.contains("gres.conf, line 1"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
}

#[test]
fn the_task_prolog_sets_the_order_of_ranks_and_the_plugin_and_never_the_users_own() {
    let folder = Folder::new();
    let note = r#"{"linkwise":"took","split":"8+8","rank_order":"n7,n66","policy":"best (comment)"}"#;
    folder
        .script("scontrol", &format!("#!/bin/sh\necho 'JobId=7 JobName=x Comment=a AdminComment={note} WorkDir=/x'\n"));
    let (plugin, conf) = (folder.at("plugin.so"), folder.at("conf"));
    std::fs::write(&plugin, "").unwrap();
    std::fs::write(&conf, format!("plugin={plugin}\nmode=adaptive\nreports=/shared\nhostfile=yes\nPATH=/nowhere\n"))
        .unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../integrations/slurm/task-prolog");
    let run = |more: &[(&str, &str)]| {
        let mut c = std::process::Command::new("bash");
        c.arg(script).env("PATH", format!("{}:{}", folder.0.path().display(), std::env::var("PATH").unwrap()));
        c.env("LINKWISE_TEST_TASK_PROLOG_CONF", &conf).env("SLURM_JOB_ID", "7").env("SLURM_TASKS_PER_NODE", "2(x2)");
        c.env("TMPDIR", folder.0.path()).envs(more.iter().copied());
        let out = c.output().unwrap();
        assert!(out.status.success());
        String::from_utf8(out.stdout).unwrap()
    };
    let said = run(&[]);
    for line in [
        &format!("export NCCL_TUNER_PLUGIN={plugin}"),
        "export LINKWISE_MODE=adaptive",
        "export LINKWISE_TRACE=/shared/7",
        "export LINKWISE_RANK_ORDER=n7,n66",
        "export SLURM_DISTRIBUTION=arbitrary",
    ] {
        assert!(said.lines().any(|l| l == line), "{line}: {said}");
    }
    let file = said.lines().find_map(|l| l.strip_prefix("export SLURM_HOSTFILE=")).unwrap();
    assert_eq!(std::fs::read_to_string(file).unwrap(), "n7\nn7\nn66\nn66\n");
    let own = run(&[("NCCL_TUNER_PLUGIN", "mine"), ("SLURM_HOSTFILE", "own")]);
    assert!(!own.contains("NCCL_") && !own.contains("SLURM_HOSTFILE"), "{own}");
    // A line per task, or no hostfile.
    for (tasks, ntasks, lines) in
        [("8(x2)", "16", 16), ("", "6", 6), ("", "7", 0), ("8,7", "15", 0), ("4(x3)", "12", 0), ("x", "", 0)]
    {
        let said = run(&[("SLURM_TASKS_PER_NODE", tasks), ("SLURM_NTASKS", ntasks)]);
        let file = said.lines().find_map(|l| l.strip_prefix("export SLURM_HOSTFILE="));
        let found = file.map_or(0, |f| std::fs::read_to_string(f).unwrap().lines().count());
        assert_eq!(found, lines, "{tasks} {ntasks}: {said}");
        assert_eq!(said.contains("SLURM_DISTRIBUTION"), lines > 0, "{said}");
    }
    // The order of many nodes is a list with ranges, which scontrol spreads out.
    let ranges = note.replace("n7,n66", "n7,n66,n[1-2]");
    let spread = "if [ \"$2 $3\" = 'hostnames n7,n66,n[1-2]' ]; then printf 'n7\\nn66\\nn1\\nn2\\n'; exit; fi";
    folder.script("scontrol", &format!("#!/bin/sh\n{spread}\necho 'JobId=7 AdminComment={ranges} WorkDir=/x'\n"));
    let said = run(&[("SLURM_TASKS_PER_NODE", "1(x4)")]);
    assert!(said.contains("export LINKWISE_RANK_ORDER=n7,n66,n1,n2\n"), "{said}");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "n7\nn66\nn1\nn2\n");
    folder
        .script("scontrol", &format!("#!/bin/sh\necho 'JobId=7 JobName=x Comment=a AdminComment={note} WorkDir=/x'\n"));
    run(&[]);
    // Every task of a node runs the script; a task that has begun reads the file meanwhile.
    let done = std::sync::atomic::AtomicBool::new(false);
    let broken = std::thread::scope(|s| {
        let reader = s.spawn(|| {
            let mut broken = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                broken += usize::from(std::fs::read_to_string(file).map_or(0, |t| t.lines().count()) != 4);
            }
            broken
        });
        let tasks: Vec<_> = (0..4).map(|_| s.spawn(|| (0..10).for_each(|_| drop(run(&[]))))).collect();
        tasks.into_iter().for_each(|t| t.join().unwrap());
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        reader.join().unwrap()
    });
    assert_eq!(broken, 0, "the hostfile was missing or half-written");
    for off in ["linkwise=off", "policy off of its QOS", "policy off of the site"] {
        let note = format!(r#"{{"linkwise":"slurm","reason":"{off}"}}"#);
        folder.script("scontrol", &format!("#!/bin/sh\necho 'JobId=7 JobName=x AdminComment={note} WorkDir=/x'\n"));
        assert_eq!(run(&[]), "", "{off}");
    }
}

/// The plugin runs inside of the controller: it stays small. Lines of code, without those that hold a comment or nothing.
#[test]
fn the_plugin_has_at_most_300_lines() {
    let text = include_str!("../../../../integrations/slurm/linkwise.c");
    let mut code = String::new();
    for (i, part) in text.split("/*").enumerate() {
        code += if i == 0 { part } else { part.split_once("*/").unwrap().1 };
    }
    let lines = code.lines().filter(|l| !l.trim().is_empty()).count();
    assert!((200..=300).contains(&lines), "{lines} lines");
}
