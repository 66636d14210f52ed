//! The real Slurm on this machine: four nodes of eight fake GPUs, the plugin built for the installed slurmctld, and `linkwise slurm agent`.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/slurm/mod.rs"]
mod lab;
mod rules;

use common::{Folder, linkwise, said};
use lab::{Agent, Gpus, Lab, PATIENCE, Setup, draw, repository, site};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

#[test]
fn jobs_of_a_real_slurm_run_on_exactly_the_chosen_gpus() {
    // Of 10,000 jobs the ended ones are forgotten after a minute, so that they fit; else their states are looked at later.
    let age = if std::env::var_os("LINKWISE_TEST_SLURM_JOBS").is_some() { 60 } else { 3600 };
    let setup = Setup { nodes: 4, mixed: true, config: format!("MinJobAge={age}\n"), ..Setup::default() };
    let lab = match Lab::start(setup) {
        Ok(lab) => lab,
        Err(why) => return eprintln!("SKIP jobs_of_a_real_slurm_run_on_exactly_the_chosen_gpus: {why}"),
    };
    let mut check = linkwise("slurm", &["check"]);
    check
        .env("SLURM_CONF", lab.at("etc/slurm.conf"))
        .env("PATH", format!("{}:/usr/sbin", std::env::var("PATH").unwrap()));
    let (code, out, error) = said(check);
    assert!(code == 0 && out.contains("fits"), "{out}{error}");
    let (cluster, model) = site(&lab);
    let agent = Agent::start(&lab, &cluster, &model, &[]);
    let log = agent.log.clone();
    forty_jobs(&lab, &log);
    obedience(&lab, &log);
    rules::spank(&lab);
    rules::a_plugin_of_another_release_is_named(&lab);
    if let Some(jobs) = std::env::var("LINKWISE_TEST_SLURM_JOBS").ok().and_then(|n| n.parse().ok()) {
        rules::many_jobs(&lab, jobs);
    }
    let with = rules::behaviour(&lab, true);
    println!("{with:#?}");
    // What Slurm itself does not always do in time on a busy machine.
    if std::env::var_os("LINKWISE_TEST_SLURM_LONG").is_some() {
        a_requeued_job_is_placed_again(&lab, &log);
        running_jobs_keep_their_gpus_over_a_restart(&lab, &log);
    }
    jobs_start_without_a_sane_agent(&lab, agent, &cluster, &model);
    let status = lab.client("scontrol", &["show", "bbstat"]);
    assert!(status.contains("misplaced=0"), "{status}");
    lab.restart(false);
    assert!(!lab.client("scontrol", &["show", "bbstat"]).contains("linkwise"));
    assert_eq!(rules::behaviour(&lab, false), with, "Slurm without the plugin, and with it");
    let pids: Vec<u32> = lab.daemons.lock().unwrap().iter().map(|d| d.1.id()).collect();
    let folder = lab.at("");
    drop(lab);
    assert!(pids.iter().all(|p| !Path::new(&format!("/proc/{p}")).exists()), "a daemon is left");
    assert!(!Path::new(&folder).exists(), "{folder} is left");
}

/// `--segment` is Slurm's: the nodes of a segment are in one block, and the comment says who placed the job.
#[test]
fn segments_of_blocks_are_obeyed() {
    if lab::has("slurmctld") && lab::release() < (24, 11) {
        return eprintln!("SKIP segments_of_blocks_are_obeyed: Slurm {:?} has no --segment", lab::release());
    }
    let setup = Setup { nodes: 4, leaf: 2, blocks: true, ..Setup::default() };
    let lab = match Lab::start(setup) {
        Ok(lab) => lab,
        Err(why) => return eprintln!("SKIP segments_of_blocks_are_obeyed: {why}"),
    };
    let (cluster, model) = site(&lab);
    let _agent = Agent::start(&lab, &cluster, &model, &[]);
    // n1 is full: two nodes of one block are n3 and n4, for linkwise's neighbours n2 and n3 as for any other pair.
    let full = lab.submit("600", &["-w", "n1", "--gpus=8", "--exclusive"]);
    lab.until("n1 is full", || lab.books().contains_key(&full));
    let job = lab.submit("600", &["-N2", "--segment=2", "--gpus-per-node=2"]);
    lab.until("the job of one segment runs", || lab.books().contains_key(&job));
    assert_eq!(lab.books()[&job].keys().collect::<Vec<_>>(), ["n3", "n4"]);
    assert!(lab.client("scontrol", &["show", "job", "-o", &job.to_string()]).contains("--segment"), "no reason");
    let waits = lab.submit("0", &["-N2", "--segment=2", "--gpus-per-node=8"]);
    let other = lab.submit("0", &["-N1", "--gpus=8"]);
    lab.until("the job without a segment has ended", || lab.state(other) == "COMPLETED");
    assert_eq!(lab.state(waits), "PENDING", "no block has two idle nodes");
    lab.client("scancel", &[&full.to_string()]);
    lab.until("the segment has run", || lab.state(waits) == "COMPLETED");
    assert_eq!(lab.inside(waits).keys().collect::<Vec<_>>(), ["n1", "n2"]);
}

/// Forty jobs of random shapes, several at once: every order that Slurm took is the truth of its books and inside of the job.
fn forty_jobs(lab: &Lab, log: &str) {
    let mut seed = 7;
    let mut jobs = Vec::new();
    let mut books: BTreeMap<u32, Gpus> = BTreeMap::new();
    for i in 0..40 {
        let k = [1, 2, 3, 4, 5, 8, 8, 11][draw(&mut seed, 8) as usize];
        let shape: Vec<String> = match i % 5 {
            0 | 1 => vec![format!("--gpus={k}")],
            2 => vec![format!("-n{k}"), "--gpus-per-task=1".into()],
            3 => vec!["-N2".into(), format!("--gpus-per-node={}", 1 + k / 3)],
            _ => vec!["-N2".into(), format!("--gpus={}", k.max(2))],
        };
        let shape: Vec<&str> = shape.iter().map(String::as_str).collect();
        jobs.push(lab.submit(["0.3", "1", "2"][draw(&mut seed, 3) as usize], &shape));
        books.extend(lab.books());
    }
    lab.until("the forty jobs have ended", || {
        books.extend(lab.books());
        lab.client("squeue", &["-h"]).is_empty()
    });
    books.extend(lab.books());
    let orders = Agent::orders(log);
    let states: Vec<String> = jobs.iter().map(|j| lab.state(*j)).collect();
    assert!(states.iter().all(|s| s == "COMPLETED"), "{states:?}\n{}", lab.log());
    let mut exact = 0;
    for (job, order) in &orders {
        assert_eq!(&lab.inside(*job), order, "job {job}, inside");
        if let Some(held) = books.get(job) {
            assert_eq!(held, order, "job {job}, books");
            exact += 1;
        }
    }
    for job in jobs.iter().filter(|j| !orders.contains_key(j)) {
        println!("not on a choice: {job}: {} {}", Agent::about(log, *job), lab.field(*job, "AdminComment"));
    }
    println!("{} of 40 jobs ran on linkwise's choice, {exact} of them seen in Slurm's books", orders.len());
    assert!(orders.len() >= 30 && exact >= 20, "{} orders, {exact} seen in the books", orders.len());
}

/// What users ask for is obeyed, and what linkwise does not serve goes the ordinary way.
fn obedience(lab: &Lab, log: &str) {
    let ended = |job: u32| {
        lab.until("the job has ended", || lab.state(job) == "COMPLETED");
        lab.inside(job)
    };
    let nodes = |g: &Gpus| g.keys().cloned().collect::<Vec<_>>();
    assert_eq!(nodes(&ended(lab.submit("0", &["--gpus=3", "-w", "n3"]))), ["n3"]);
    assert_eq!(nodes(&ended(lab.submit("0", &["--gpus=8", "-w", "n[2,4]", "-N2"]))), ["n2", "n4"]);
    assert_eq!(nodes(&ended(lab.submit("0", &["--gpus=12", "-x", "n[1-2]"]))), ["n3", "n4"]);
    assert_eq!(nodes(&ended(lab.submit("0", &["--gpus=4", "-p", "small"]))), ["n4"]);
    assert_eq!(nodes(&ended(lab.submit("0", &["--gpus=9", "-N3"]))).len(), 3);
    let five = ended(lab.submit("0", &["--gpus=5", "-N1"]));
    assert_eq!(five.values().map(BTreeSet::len).collect::<Vec<_>>(), [5]);
    let whole = lab.submit("0", &["--exclusive", "--gpus=2"]);
    let on = ended(whole);
    assert_eq!((on.len(), lab.field(whole, "NumCPUs").as_str()), (1, "16"), "a whole node");
    assert!(Agent::orders(log).contains_key(&whole), "{}", Agent::about(log, whole));
    let before = Agent::orders(log).len();
    let off = ended(lab.submit("0", &["--gpus=2", "--comment", "linkwise=off"]));
    assert_eq!(off, Gpus::from([("n1".into(), BTreeSet::from([0, 1]))]));
    assert_eq!(Agent::orders(log).len(), before, "this job is not linkwise's");
    // No required nodes are left in the request.
    let array = lab.submit("0.5", &["--gpus=3", "--array=0-3"]);
    lab.until("the array has ended", || lab.client("squeue", &["-h"]).is_empty());
    assert_eq!(lab.field(array, "ReqNodeList"), "(null)");
}

/// A job that is put back while it runs is placed again.
fn a_requeued_job_is_placed_again(lab: &Lab, log: &str) {
    let again = lab.submit("2", &["--gpus=6"]);
    // A job that is put back while it is being launched fails in Slurm itself.
    lab.until("it runs", || lab.inside(again).values().map(BTreeSet::len).sum::<usize>() == 6);
    lab.client("scontrol", &["requeue", &again.to_string()]);
    lab.until("it is put back", || lab.field(again, "Restarts") == "1" && lab.state(again) == "PENDING");
    assert_eq!(lab.field(again, "ReqNodeList"), "(null)");
    let mut since = BTreeMap::new();
    lab.until("it has run again", || {
        lab.hurry(&mut since);
        lab.state(again) == "COMPLETED"
    });
    let six = lab.inside(again);
    assert_eq!(Some(&six), Agent::orders(log).get(&again), "{}\n{}", Agent::about(log, again), lab.log());
}

fn running_jobs_keep_their_gpus_over_a_restart(lab: &Lab, log: &str) {
    let job = lab.submit("600", &["--gpus=5"]);
    lab.until("it runs", || lab.books().contains_key(&job));
    let before = lab.books()[&job].clone();
    let connected = Agent::count(log, "connected to Slurm");
    lab.restart(true);
    lab.until("the agent is connected again", || Agent::count(log, "connected to Slurm") > connected);
    lab.until("the job holds its GPUs", || lab.books().get(&job) == Some(&before));
    let next = lab.submit("0", &["--gpus=20"]);
    lab.until("the next job has ended", || lab.state(next) == "COMPLETED");
    let overlap = |(node, gpus): (&String, &BTreeSet<u32>)| before.get(node).is_some_and(|b| !b.is_disjoint(gpus));
    assert!(!lab.inside(next).iter().any(overlap), "{before:?} is held");
    lab.client("scancel", &[&job.to_string()]);
}

/// Agents that hang, talk rubbish or are gone delay a job by the set time and a cycle at most; the comment says why.
fn jobs_start_without_a_sane_agent(lab: &Lab, agent: Agent, cluster: &str, model: &str) {
    let starts = |why: &[&str]| {
        let job = lab.submit("0", &["--gpus=3"]);
        lab.until(&format!("the job starts although: {why:?}"), || lab.state(job) == "COMPLETED");
        let text = lab.client("scontrol", &["show", "job", "-o", &job.to_string()]);
        assert!(why.iter().any(|w| text.contains(w)), "{why:?}: {text}");
        assert_eq!(lab.inside(job).values().map(BTreeSet::len).sum::<usize>(), 3);
    };
    agent.signal("-STOP");
    starts(&["no answer in time"]);
    // The next job does not wait for it, unless the pause is over.
    starts(&["agent was silent", "no answer in time"]);
    agent.signal("-CONT");
    let log = agent.log.clone();
    agent.kill();
    lab.until("the plugin knows that the agent is gone", || {
        lab.client("scontrol", &["show", "bbstat"]).contains("agent=none")
    });
    starts(&["no agent"]);
    for rubbish in [&b"take 1 1 n1:99999999999999\n"[..], b"\0\0\0\n", b"hello\n", &[b'x'; 70_000]] {
        let mut stream = UnixStream::connect(lab.at("run/linkwise.sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // An order for a job without a question is refused; other lines end the connection.
        let _ = stream.write_all(rubbish).and_then(|()| stream.write_all(b"\nnonsense\n"));
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
        assert!(String::from_utf8_lossy(&said).starts_with("hello 2 "), "{said:?}");
    }
    starts(&["no agent"]);
    let agent = Agent::start(lab, cluster, model, &[]);
    let job = lab.submit("0", &["--gpus=9"]);
    lab.until("the job has ended", || lab.state(job) == "COMPLETED");
    assert_eq!(Some(&lab.inside(job)), Agent::orders(&log).get(&job), "{}", Agent::about(&log, job));
    agent.kill();
}

#[test]
fn random_messages_do_not_harm_the_plugin() {
    let folder = Folder::new();
    let (source, program) = (repository().join("integrations/slurm/tests/fuzz.c"), folder.at("fuzz"));
    let flags = [
        "-std=gnu11",
        "-g",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ];
    let built = Command::new("cc").args(flags).arg("-o").arg(&program).arg(source).output();
    match built {
        Err(e) => return eprintln!("SKIP random_messages_do_not_harm_the_plugin: no C compiler: {e}"),
        Ok(o) => assert!(o.status.success(), "{}", String::from_utf8_lossy(&o.stderr)),
    }
    let sockets = folder.at("sockets");
    std::fs::create_dir(&sockets).unwrap();
    let out = Command::new(&program).args(["20000", "7", &sockets]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let number = |key: &str| -> u64 {
        text.split_once(key).and_then(|(_, t)| t.split_whitespace().next()?.parse().ok()).unwrap_or_default()
    };
    assert!(number("known ") > 1_000 && number("orders ") > 100, "{text}");
}

#[test]
fn the_fuzzer_of_the_plugin_finds_nothing_in_some_seconds() {
    const NAME: &str = "the_fuzzer_of_the_plugin_finds_nothing_in_some_seconds";
    let out = Command::new(repository().join("scripts/fuzz-slurm.sh")).arg("3").output().unwrap();
    let (said, error) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    if error.contains("no clang") || error.contains("libclang_rt") {
        return eprintln!("SKIP {NAME}: {}", error.lines().next_back().unwrap_or_default());
    }
    assert!(out.status.success(), "{error}");
    let runs = said.lines().find_map(|l| l.strip_prefix("stat::number_of_executed_units:")?.trim().parse::<u64>().ok());
    assert!(runs.is_some_and(|n| n > 100), "{said}");
}
