//! The agent in a real Slurm: a trace of jobs with and without linkwise, and with daemons that are killed.

mod common;
#[path = "common/slurm.rs"]
mod lab;
#[path = "common/slurm_trace.rs"]
mod trace;

use common::{Folder, linkwise, said};
use lab::{Agent, GPUS, Lab, Setup, draw, site};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use trace::{measured, replay, trace};

/// Every job that ends is one line of this file.
const ACCOUNTING: &str = "JobCompType=jobcomp/filetxt\nJobCompLoc=AT/log/jobcomp\nMinJobAge=3600\nMaxJobCount=20000\n";

fn setup(nodes: usize, leaf: usize) -> Setup {
    Setup { nodes, leaf, config: ACCOUNTING.into() }
}

/// Number of a setting of `scripts/bench-slurm.sh`.
fn number(name: &str, without: usize) -> usize {
    let name = format!("LINKWISE_TEST_SLURM_{name}");
    std::env::var(&name).map_or(without, |v| v.parse().unwrap_or_else(|_| panic!("{name}={v} is no number")))
}

/// Every segment of the trace runs twice, with and without an agent, in the order ABBA. A line per run goes to the output file; runs
/// that it has already are not repeated.
#[test]
#[ignore = "minutes to hours: `make bench-slurm` runs it"]
fn the_trace_is_measured_with_and_without_linkwise() {
    let (jobs, segment) = (number("JOBS", 2000), number("SEGMENT", 250));
    let (nodes, compression) = (number("NODES", 8), number("COMPRESSION", 200));
    let out = std::env::var("LINKWISE_TEST_SLURM_OUT").expect("LINKWISE_TEST_SLURM_OUT names the file of the results");
    let done = std::fs::read_to_string(&out).unwrap_or_default();
    let lab = Lab::start(setup(nodes, nodes.div_ceil(2))).unwrap();
    let (file, model) = site(&lab);
    let cluster = console::load_cluster(&file).unwrap();
    for s in 0..jobs.div_ceil(segment) {
        let n = segment.min(jobs - s * segment);
        let planned = trace(s as u64 + 1, n, nodes * GPUS, compression as f64);
        for with in if s % 2 == 0 { [true, false] } else { [false, true] } {
            let run = format!("{nodes} nodes, compression {compression}, segment {s} of {n} jobs, linkwise {with}");
            if done.lines().any(|l| l.contains(&run)) {
                continue;
            }
            let mut result = measured(&lab, &cluster, (&file, &model), &planned, with);
            result["run"] = run.clone().into();
            println!("{result}");
            let mut file = std::fs::OpenOptions::new().append(true).create(true).open(&out).unwrap();
            writeln!(file, "{result}").unwrap();
            assert_eq!((&result["held_twice"], &result["misplaced"]), (&0.into(), &0.into()), "{run}");
        }
    }
}

/// The mean of every figure over the runs of the output file, with and without linkwise, weighted by jobs.
#[test]
#[ignore = "reads what the other one wrote: `make bench-slurm` runs it"]
fn the_measured_trace_is_a_table() {
    let out = std::env::var("LINKWISE_TEST_SLURM_OUT").expect("LINKWISE_TEST_SLURM_OUT names the file of the results");
    let of_run = format!("{} nodes, compression {}, ", number("NODES", 8), number("COMPRESSION", 200));
    let text = std::fs::read_to_string(&out).unwrap();
    let runs: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let of = |with: bool, key: &str| {
        let fit =
            |r: &&serde_json::Value| r["linkwise"] == with && r["run"].as_str().is_some_and(|n| n.starts_with(&of_run));
        let (mut sum, mut jobs) = (0.0, 0.0);
        for r in runs.iter().filter(fit) {
            let n = r["jobs"].as_f64().unwrap();
            // A segment without jobs of a size has no figure for it.
            let Some(v) = r.pointer(key).and_then(|v| v.as_f64()) else { continue };
            (sum, jobs) = (sum + n * v, jobs + n);
        }
        (sum / f64::max(jobs, 1.0), jobs)
    };
    println!("| figure | with linkwise | without |\n|---|---|---|");
    println!("| jobs | {} | {} |", of(true, "/took_s").1, of(false, "/took_s").1);
    for key in [
        "simulated_busbw_gb_per_s",
        "simulated_busbw_by_gpus/8",
        "simulated_busbw_by_gpus/16",
        "simulated_busbw_by_gpus/32",
        "jobs_on_more_nodes_than_needed",
        "wait_mean_s",
        "wait_p90_s",
        "gpus_used",
        "free_gpus_on_partly_used_nodes",
        "controller_cpu_ms_per_job",
        "submit_rpc_us",
        "schedule_cycle_us",
        "held_twice",
    ] {
        let at = format!("/{key}");
        println!("| {} | {:.3} | {:.3} |", key.replace(['_', '/'], " "), of(true, &at).0, of(false, &at).0);
    }
}

/// Waits until Slurm has written its jobs to disk: a job that was accepted just before a controller is killed is lost by Slurm itself.
fn saved(lab: &Lab) {
    let file = lab.at("state/job_state");
    let written = || std::fs::metadata(&file).and_then(|m| m.modified()).ok();
    let before = written();
    let begin = Instant::now();
    while written() == before && begin.elapsed() < Duration::from_secs(12) {
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn killed_daemons_cost_no_job_and_no_gpu_is_held_twice() {
    let nodes = number("NODES", 4);
    let lab = match Lab::start(setup(nodes, 0)) {
        Ok(lab) => lab,
        Err(why) => return eprintln!("SKIP killed_daemons_cost_no_job_and_no_gpu_is_held_twice: {why}"),
    };
    let (file, model) = site(&lab);
    let cluster = console::load_cluster(&file).unwrap();
    let planned = trace(number("SEED", 3) as u64, number("FAULT_JOBS", 40), nodes * GPUS, 800.0);
    let mut agent = Some(Agent::start(&lab, &file, &model, &[]));
    let log = agent.as_ref().unwrap().log.clone();
    // Killing slurmctld leaves GPUs taken that no job holds, and jobs that need them wait (docs/slurm.md, Limits).
    let kinds = if std::env::var_os("LINKWISE_TEST_SLURM_KILL_CONTROLLER").is_some() { 3 } else { 2 };
    let (gate, mut seed, mut kills) = (Mutex::default(), 11, [0; 3]);
    let (mut next_s, end_s) = (1.5, planned.last().unwrap().at_s);
    let (ids, books) = replay(&lab, &cluster, &planned, &gate, &mut |lab, now_s| {
        // A job that Slurm puts back waits for two minutes otherwise.
        for id in lab
            .client("squeue", &["-h", "-t", "pending", "-o", "%i %r"])
            .lines()
            .filter_map(|l| l.strip_suffix(" BeginTime"))
        {
            lab.client("scontrol", &["update", &format!("jobid={id}"), "StartTime=now"]);
        }
        if now_s < next_s || now_s > end_s.max(8.0) {
            return;
        }
        next_s = now_s + 1.0 + draw(&mut seed, 20) as f64 / 10.0;
        let which = kills.iter().sum::<usize>() % kinds;
        kills[which] += 1;
        match which {
            0 => {
                agent.take().unwrap().kill();
                std::thread::sleep(Duration::from_millis(500));
                agent = Some(Agent::start(lab, &file, &model, &[]));
            }
            1 => {
                let node = 1 + draw(&mut seed, nodes as u64) as usize;
                lab.kill(&format!("slurmd n{node}"));
                lab.node(node);
            }
            _ => {
                let _closed = gate.lock().unwrap();
                saved(lab);
                let connected = Agent::count(&log, "connected to Slurm");
                lab.kill("slurmctld");
                lab.controller();
                lab.until("the agent is connected again", || Agent::count(&log, "connected to Slurm") > connected);
            }
        }
    });
    drop(agent);
    println!("{} jobs, {kills:?} kills of agent, slurmd and slurmctld, {:?}", ids.len(), books.states(&ids));
    assert!(kills[..kinds].iter().all(|k| *k > 0), "{kills:?}");
    assert_eq!(books.states(&ids).get("COMPLETED"), Some(&ids.len()), "{:?}\n{}", books.states(&ids), lab.log());
    assert!(books.held_twice.is_empty(), "{:?}", books.held_twice);
    // Slurm's accounting has every job; a job whose end was not on disk when the controller was killed has two lines.
    let lines = std::fs::read_to_string(lab.at("log/jobcomp")).unwrap();
    let accounted =
        |id: &u32| lines.lines().any(|l| l.starts_with(&format!("JobId={id} ")) && l.contains("JobState=COMPLETED"));
    assert!(ids.iter().all(accounted), "{lines}");
    // No GPU stays marked as taken: a job on all of them starts.
    let all = lab.submit("0", &[&format!("--gpus={}", nodes * GPUS)]);
    lab.until("a job on all GPUs has ended", || lab.state(all) == "COMPLETED");
    assert!(Path::new(&lab.at("state/job_state")).exists());
}

/// A command of linkwise in the lab: exit code, standard output, standard error.
fn in_lab(lab: &Lab, args: &[&str]) -> (i32, String, String) {
    let mut c = linkwise("slurm", args);
    c.env("SLURM_CONF", lab.at("etc/slurm.conf"));
    said(c)
}

#[test]
fn policies_reasons_and_slurms_books_arrive_where_they_should() {
    let lab = match Lab::start(setup(4, 2)) {
        Ok(lab) => lab,
        Err(why) => return eprintln!("SKIP policies_reasons_and_slurms_books_arrive_where_they_should: {why}"),
    };
    let (file, model) = site(&lab);
    let state = lab.at("site.state");
    let (code, _, error) = said(linkwise("cluster", &["init", "--cluster", &file, "--state", &state]));
    assert_eq!(code, 0, "{error}");
    let _agent = Agent::start(&lab, &file, &model, &["--state", &state]);
    let record = |job: u32| lab.client("scontrol", &["show", "job", "-o", &job.to_string()]);
    let commented = |args: &[&str], word: &str| {
        // Slurm 22.05 takes no comment for a job that has ended.
        let job = lab.submit("6", args);
        lab.until(&format!("AdminComment of {args:?} has {word}"), || record(job).contains(word));
        lab.until("it has ended", || lab.state(job) == "COMPLETED");
    };
    commented(&["--gpus=12", "--comment", "run 7, linkwise=pack"], r#""policy":"pack (comment)""#);
    commented(&["--gpus=2", "--comment", "linkwise=fast"], r#""ignored":"linkwise=fast is no policy"#);
    commented(&["--gpus=2", "--comment", "linkwise=off"], r#"{"linkwise":"slurm","reason":"linkwise=off"}"#);
    commented(&["--gpus=2", "--exclusive"], r#"{"linkwise":"slurm","reason":"--exclusive: whole nodes"}"#);
    commented(&["--gpus=2", "--switches=1"], r#"{"linkwise":"slurm","reason":"--switches"}"#);
    // Equal counts where every node runs as many tasks.
    let even = lab.submit("0", &["-n6", "--ntasks-per-node=2", "--gpus-per-task=1"]);
    lab.until("it has ended", || lab.state(even) == "COMPLETED");
    assert_eq!(lab.inside(even).values().map(|g| g.len()).collect::<Vec<_>>(), [2, 2, 2], "{}", record(even));

    // The queue, the status, and the state: a running job, a waiting one, a drained node.
    let long = lab.submit("600", &["--gpus=12"]);
    lab.until("it runs", || lab.books().contains_key(&long));
    let waits = lab.submit("0", &["--gpus=24"]);
    lab.client("scontrol", &["update", "NodeName=n4", "State=drain", "Reason=fan"]);
    let shown = || said(linkwise("cluster", &["show", "--state", &state, "--format", "json"])).1;
    lab.until("the state has the job and the drain", || {
        let text = shown();
        text.contains(&format!("slurm-{long}")) && text.contains("Slurm: ")
    });
    let (code, text, error) = in_lab(&lab, &["squeue", "--cluster", &file, "--model", &model, "--format", "json"]);
    assert_eq!(code, 0, "{error}");
    let queue: serde_json::Value = serde_json::from_str(&text).unwrap();
    let row = |job: u32| queue["jobs"].as_array().unwrap().iter().find(|r| r["job"] == job).unwrap().clone();
    assert!(row(long)["busbw_gb_per_s"].as_f64().unwrap() > 1.0 && row(long)["gpus"] == 12, "{queue}");
    assert!(row(waits)["state"] == "PENDING" && row(waits)["on"].is_null(), "{queue}");
    let (code, text, error) = in_lab(&lab, &["status", "--state", &state]);
    assert!(code == 0 && text.contains("agent=connected") && text.contains("n4: "), "{text}{error}");
    lab.client("scancel", &[&long.to_string(), &waits.to_string()]);
    lab.client("scontrol", &["update", "NodeName=n4", "State=resume"]);
    lab.until("the state has neither", || {
        let text = shown();
        !text.contains("slurm-") && !text.contains("Slurm: ")
    });

    // The file is as Slurm has it, keeps an edit, and differs once a node's GPUs change their order.
    let switches = lab.at("etc/topology.conf");
    let check =
        |more: &[&str]| in_lab(&lab, &[&["sync", "--topology", &switches, "-o", &file, "--check"], more].concat());
    let (code, text, error) = check(&[]);
    assert!(code == 0 && text.contains("is as Slurm has it"), "{text}{error}");
}

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
        c.env("LINKWISE_TEST_TASK_PROLOG_CONF", &conf).env("SLURM_JOB_ID", "7").env("SLURM_NTASKS_PER_NODE", "2");
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
}
