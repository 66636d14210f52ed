//! Slurm's own rules hold with the plugin as without it; what users and operators see beside the GPUs.

use crate::common::{linkwise, said};
use crate::lab::Lab;
use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

/// What a client of Slurm prints on both outputs, with these variables in its environment; it ends within 60 s.
fn client(lab: &Lab, variables: &[(&str, &str)], program: &str, args: &[&str]) -> (bool, String, String) {
    let mut c = Command::new("timeout");
    c.arg("60").arg(program).args(args).env("SLURM_CONF", lab.at("etc/slurm.conf")).stdin(Stdio::null());
    let out = c.envs(variables.iter().copied()).output().unwrap();
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    (out.status.success(), text(&out.stdout), text(&out.stderr))
}

/// `--linkwise=off|observe|tune` sets the plugin's variables in tasks, and fails no job.
pub fn spank(lab: &Lab) {
    let library = lab.at("library.so");
    let tuner = format!("NCCL_TUNER_PLUGIN={library}");
    let has = |text: &str, line: &str| text.lines().any(|l| l == line);
    let (_, help, _) = client(lab, &[], "srun", &["--help"]);
    assert!(help.contains("--linkwise=off|observe|tune"), "{help}");
    let run = |more: &[&str], variables: &[(&str, &str)]| {
        let (ok, out, error) = client(lab, variables, "srun", &[&["-n1"], more, &["env"]].concat());
        assert!(ok, "{more:?}: {out}{error}");
        (out, error)
    };
    let (tune, _) = run(&["--linkwise=tune"], &[]);
    assert!(has(&tune, "LINKWISE_MODE=adaptive") && has(&tune, &tuner), "{tune}");
    assert!(has(&tune, &format!("NCCL_PROFILER_PLUGIN={library}")), "{tune}");
    let (off, _) = run(&["--linkwise=off"], &[]);
    assert!(has(&off, "LINKWISE_MODE=off") && !off.contains("NCCL_TUNER_PLUGIN"), "{off}");
    let (none, _) = run(&[], &[]);
    assert!(!none.contains("LINKWISE_MODE=") && !none.contains("NCCL_TUNER_PLUGIN"), "{none}");
    let (own, _) = run(&["--linkwise=observe"], &[("NCCL_TUNER_PLUGIN", "mine")]);
    assert!(has(&own, "LINKWISE_MODE=observe") && has(&own, "NCCL_TUNER_PLUGIN=mine"), "{own}");
    let (wrong, said) = run(&["--linkwise=fast"], &[]);
    assert!(has(&wrong, "LINKWISE_MODE=off") && said.contains("--linkwise=fast is not off, observe or tune"), "{said}");
    let (ok, shell, error) = client(lab, &[], "salloc", &["--linkwise=tune", "-n1", "srun", "env"]);
    assert!(ok && has(&shell, &tuner), "{shell}{error}");
    let out = lab.at("log/batch");
    let (ok, ..) =
        client(lab, &[], "sbatch", &["--wait", "--linkwise=observe", "-o", &out, "--wrap", "env; srun -n1 env"]);
    let batch = std::fs::read_to_string(&out).unwrap();
    assert!(ok && batch.lines().filter(|l| *l == "LINKWISE_MODE=observe").count() == 2, "{batch}");
    // A node without the library: the task runs.
    std::fs::remove_file(&library).unwrap();
    let (without, _) = run(&["--linkwise=tune"], &[]);
    assert!(has(&without, "LINKWISE_MODE=off") && !without.contains("NCCL_TUNER_PLUGIN"), "{without}");
}

/// `linkwise slurm check` names a plugin that is built for another micro release.
pub fn a_plugin_of_another_release_is_named(lab: &Lab) {
    let mut bytes = std::fs::read(lab.at("plugin/burst_buffer_linkwise.so")).unwrap();
    let mark = b"linkwise-built-for-slurm=";
    let begin = bytes.windows(mark.len()).position(|w| w == mark).unwrap() + mark.len();
    let end = begin + bytes[begin..].iter().position(|b| *b == 0).unwrap();
    let right = String::from_utf8(bytes[begin..end].to_vec()).unwrap();
    bytes[end - 1] = if bytes[end - 1] == b'9' { b'8' } else { bytes[end - 1] + 1 };
    let wrong = String::from_utf8(bytes[begin..end].to_vec()).unwrap();
    let other = lab.at("other.so");
    std::fs::write(&other, &bytes).unwrap();
    let mut check = linkwise("slurm", &["check", "--plugin", &other]);
    check.env("PATH", format!("{}:/usr/sbin", std::env::var("PATH").unwrap()));
    let (code, _, error) = said(check);
    assert_eq!(code, 1, "{error}");
    assert!(error.contains(&format!("built for Slurm {wrong}, and slurmctld is {right}")), "{error}");
}

/// Seconds of the day of `2026-01-31T12:34:56`.
fn second(time: &str) -> Option<i64> {
    let mut parts = time.split_once('T')?.1.split(':').map(|n| n.parse::<i64>());
    Some(parts.next()?.ok()? * 3600 + parts.next()?.ok()? * 60 + parts.next()?.ok()?)
}

/// What became of the same submissions: states, reasons, estimated starts, counts of GPUs. Which GPUs is left out.
pub fn behaviour(lab: &Lab, plugin: bool) -> BTreeMap<&'static str, String> {
    let mut seen = BTreeMap::new();
    let state = |job: u32, wanted: &str| {
        lab.until(&format!("job {job} is {wanted}"), || lab.state(job) == wanted);
    };
    let full = lab.submit("600", &["--gpus=32", "-N4", "-t10"]);
    state(full, "RUNNING");
    let waiting = [
        ("next", lab.submit("0", &["--gpus=8", "-t5"])),
        ("two nodes", lab.submit("0", &["--gpus=12", "-N2", "-t5"])),
        ("an array", lab.submit("0", &["--gpus=2", "--array=0-1", "-t5"])),
        ("after", lab.submit("0", &["--gpus=1", "-d", &format!("afterok:{full}")])),
        ("later", lab.submit("0", &["--gpus=1", "--begin=now+3600"])),
        ("held", lab.submit("0", &["--gpus=1", "-H"])),
    ];
    let begin = second(&lab.field(full, "StartTime")).unwrap();
    let estimate = |job: u32| second(&lab.field(job, "StartTime")).map(|s| (s - begin).rem_euclid(86_400));
    for (name, job) in &waiting[..2] {
        // Backfill plans for both: at the end of the running job.
        lab.until("a start is planned", || estimate(*job).is_some());
        seen.insert(*name, format!("in {} minutes", (estimate(*job).unwrap() + 30) / 60));
    }
    // Ended by Slurm itself, a cycle later: then the reasons are there.
    let plain = lab.submit("0", &["-p", "urgent", "-n1", "-t1"]);
    state(plain, "COMPLETED");
    let reason = |job: u32| lab.field(job, "Reason");
    for (name, job) in &waiting[2..] {
        *seen.entry(name).or_default() += &reason(*job);
    }
    lab.client("scontrol", &["suspend", &full.to_string()]);
    state(full, "SUSPENDED");
    let plain = lab.submit("0", &["-p", "urgent", "-n1", "-t1"]);
    state(plain, "COMPLETED");
    seen.insert("next to a suspended job", lab.state(waiting[0].1));
    lab.client("scontrol", &["resume", &full.to_string()]);
    state(full, "RUNNING");
    let urgent = lab.submit("0", &["-p", "urgent", "--gpus=8", "-N1"]);
    state(urgent, "COMPLETED");
    seen.insert("preempted", lab.state(full));
    for (_, job) in &waiting[..2] {
        state(*job, "COMPLETED");
    }
    lab.until("the dependency fails", || reason(waiting[3].1) == "DependencyNeverSatisfied");
    for (_, job) in &waiting {
        lab.client("scancel", &[&job.to_string()]);
    }
    let counts = |job: u32| {
        state(job, "COMPLETED");
        let inside = lab.inside(job);
        let all: Vec<usize> = inside.values().map(BTreeSet::len).collect();
        (inside, format!("{} CPUs, GPUs {all:?}", lab.field(job, "NumCPUs")))
    };
    let fast = lab.submit("0", &["--constraint=fast", "--gpus=10"]);
    let (nodes, text) = counts(fast);
    assert!(nodes.keys().all(|n| n == "n1" || n == "n2"), "{nodes:?}");
    seen.insert("a feature", text);
    seen.insert("whole nodes", counts(lab.submit("0", &["--exclusive", "-N2", "--gpus-per-node=8"])).1);
    seen.insert("a whole node", counts(lab.submit("0", &["--exclusive", "--gpus=2"])).1);
    seen.insert("partition of whole nodes", counts(lab.submit("0", &["-p", "whole", "--gpus=2"])).1);
    let shard = lab.submit("0", &["--gres=shard:2"]);
    let (nodes, text) = counts(shard);
    assert!(nodes.keys().all(|n| n == "n4"), "{nodes:?}");
    seen.insert("shards", text);
    let script = lab.folder.script("het.sh", "#!/bin/bash\nsrun --het-group=0,1 hostname\n");
    let out = lab.at("log/het");
    let het = lab.client("sbatch", &["--parsable", "-o", &out, "--gpus=1", ":", "--gpus=2", &script]);
    let het: u32 = het.trim().parse().unwrap();
    lab.until("both parts have ended", || lab.state(het).lines().all(|s| s == "COMPLETED"));
    if plugin {
        let why = |job: u32, text: &str| {
            let comment = lab.client("scontrol", &["show", "job", "-o", &job.to_string()]);
            assert!(comment.contains(text), "{text}: {comment}");
        };
        why(fast, "\"reason\":\"--constraint or --prefer\"");
        why(shard, "\"reason\":\"another GRES than gpu\"");
        why(het, "\"reason\":\"heterogeneous job\"");
    }
    seen
}

/// `jobs` short jobs of many shapes: all end, every order is followed exactly, and the controller's memory stays bounded.
pub fn many_jobs(lab: &Lab, jobs: u32) {
    let before = lab.controller_kb();
    let begin = std::time::Instant::now();
    let out = lab.at("log/none");
    let mut left = jobs;
    let mut shapes = ["--gpus=1", "--gpus=3", "--gpus=8", "--gpus=12", "--gpus=5"].iter().cycle();
    let waiting = || lab.client("squeue", &["-h", "-r", "-o", "%i"]).lines().count();
    while left > 0 {
        let tasks = left.min(250);
        let array = format!("--array=0-{}", tasks - 1);
        let text =
            lab.client("sbatch", &["--parsable", "-t1", "-o", &out, shapes.next().unwrap(), &array, "--wrap", "true"]);
        assert!(text.trim().parse::<u32>().is_ok(), "sbatch: `{text}`\n{}", lab.log());
        left -= tasks;
        let mut last = (usize::MAX, std::time::Instant::now());
        // At most 500 wait at a time; every minute some of them end.
        loop {
            let now = waiting();
            if now <= if left > 0 { 250 } else { 0 } {
                break;
            }
            if now < last.0 {
                last = (now, std::time::Instant::now());
            }
            assert!(last.1.elapsed().as_secs() < 120, "{now} jobs wait and none ends\n{}", lab.log());
            std::thread::sleep(std::time::Duration::from_millis(500));
        }
    }
    let status = lab.client("scontrol", &["show", "bbstat"]);
    let after = lab.controller_kb();
    println!(
        "{jobs} jobs in {:.0} s; slurmctld: {before} kB before, {after} kB after; {}",
        begin.elapsed().as_secs_f64(),
        status.trim()
    );
    assert!(status.contains("misplaced=0") && status.contains("rubbish=0"), "{status}");
    assert!(after < before + 200_000, "{before} kB before, {after} kB after");
}
