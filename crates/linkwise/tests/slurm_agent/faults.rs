//! Daemons that are killed: no job is lost or stuck, no GPU is held twice or stays taken, and the accounting has every job.

use crate::lab::accounts::sacct;
use crate::lab::trace::{now_s, replay, trace};
use crate::lab::{Agent, GPUS, Lab, Setup, draw, site};
use crate::{lab, number, setup};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

/// A slurmd that dies within this time of a job's launch, seconds, can lose the job: Slurm finds out minutes later.
const LAUNCH_S: f64 = 15.0;

/// What is killed: the agent, a slurmd, slurmctld.
const KINDS: usize = 3;

/// A trace during which the daemons are killed at random moments. `make test-slurm-kills` makes it long.
#[test]
fn killed_daemons_cost_no_job_and_no_gpu_is_held_twice() {
    let name = "killed_daemons_cost_no_job_and_no_gpu_is_held_twice";
    let (nodes, accounts) = (number("NODES", 4), number("ACCOUNTS", 0) > 0);
    let Some(lab) = lab(name, Setup { accounts, ..setup(nodes, 0) }) else { return };
    let (file, model) = site(&lab);
    let cluster = console::load_cluster(&file).unwrap();
    let (seed, jobs) = (number("SEED", 3) as u64, number("FAULT_JOBS", 40));
    let planned = trace(seed, jobs, nodes * GPUS, 800.0);
    let mut agent = Some(Agent::start(&lab, &file, &model, &[]));
    let log = agent.as_ref().unwrap().log.clone();
    let (gate, mut state, mut kills, mut since) = (Mutex::default(), seed.wrapping_add(8), [0; KINDS], BTreeMap::new());
    let mut slurmd_killed_at: Vec<f64> = Vec::new();
    let (mut next_s, end_s) = (1.5, planned.last().unwrap().at_s);
    let (ids, books) = replay(&lab, &cluster, &planned, &gate, &mut |lab, at_s| {
        lab.hurry(&mut since);
        if at_s < next_s || at_s > end_s.max(8.0) {
            return;
        }
        next_s = at_s + 1.0 + draw(&mut state, 20) as f64 / 10.0;
        // The first three kills are one of each kind; then they are drawn.
        let n = kills.iter().sum::<usize>();
        let which = if n < KINDS { n } else { draw(&mut state, KINDS as u64) as usize };
        kills[which] += 1;
        match which {
            0 => {
                agent.take().unwrap().kill();
                std::thread::sleep(std::time::Duration::from_millis(draw(&mut state, 800)));
                agent = Some(Agent::start(lab, &file, &model, &[]));
            }
            1 => {
                let node = 1 + draw(&mut state, nodes as u64) as usize;
                lab.kill(&format!("slurmd n{node}"));
                slurmd_killed_at.push(now_s());
                lab.node(node);
            }
            _ => {
                let _closed = gate.lock().unwrap();
                lab.saved();
                std::thread::sleep(std::time::Duration::from_millis(draw(&mut state, 2000)));
                let connected = Agent::count(&log, "connected to Slurm");
                lab.kill("slurmctld");
                lab.controller();
                lab.until("the agent is connected again", || Agent::count(&log, "connected to Slurm") > connected);
            }
        }
    });
    drop(agent);
    println!(
        "{} jobs, {kills:?} kills of agent, slurmd and slurmctld, {:?}, seed {seed}",
        ids.len(),
        books.states(&ids)
    );
    assert!(kills.iter().all(|k| *k > 0), "{kills:?}");
    // Every job completes, but those that Slurm itself lost because their slurmd died at their launch: they have an end, too.
    let mut lost_at_launch = 0;
    for job in &ids {
        let (state, start_s) = books.last(*job);
        let launch = slurmd_killed_at.iter().any(|at| (at - start_s).abs() < LAUNCH_S);
        let lost = launch && ["TIMEOUT", "NODE_FAIL", "FAILED"].contains(&state);
        assert!(state == "COMPLETED" || lost, "job {job}: {state}\n{}", lab.log());
        lost_at_launch += usize::from(state != "COMPLETED");
    }
    assert!(lost_at_launch <= kills[1], "{lost_at_launch} jobs lost at their launch, {kills:?} kills");
    assert!(books.held_twice.is_empty(), "{:?}", books.held_twice);
    assert!(lab.client("scontrol", &["show", "bbstat"]).contains("misplaced=0"));
    // Slurm's accounting has every job; a job whose end was not on disk when the controller was killed has two lines.
    let lines = std::fs::read_to_string(lab.at("log/jobcomp")).unwrap();
    let ended: BTreeSet<&str> = lines.lines().filter_map(|l| l.split(' ').next()).collect();
    assert!(ids.iter().all(|id| ended.contains(format!("JobId={id}").as_str())), "{lines}");
    if accounts {
        lab.until("slurmdbd has the end of every job", || {
            let known: BTreeMap<u32, String> = sacct(&lab).into_iter().map(|a| (a.job, a.state)).collect();
            ids.iter().all(|id| known.get(id).is_some_and(|s| s == books.last(*id).0))
        });
    }
    nothing_stays_taken(&lab);
}

/// No GPU is marked as taken, and a job on all of them starts.
fn nothing_stays_taken(lab: &Lab) {
    lab.until("no GPU is marked as taken", || lab.marked().is_empty());
    let all = lab.submit("0", &[&format!("--gpus={}", lab.setup.nodes * GPUS)]);
    lab.until("a job on all GPUs has ended", || lab.state(all) == "COMPLETED");
}

/// Slurm itself forgets the GPUs of jobs that it starts before their nodes have registered with a new controller. With the plugin, these jobs wait
/// some seconds, with and without an agent.
#[test]
fn jobs_of_a_new_controller_wait_for_their_nodes_and_leave_no_gpu_taken() {
    let name = "jobs_of_a_new_controller_wait_for_their_nodes_and_leave_no_gpu_taken";
    let Some(lab) = lab(name, setup(2, 0)) else { return };
    let (file, model) = site(&lab);
    for with in [true, false] {
        let agent = with.then(|| Agent::start(&lab, &file, &model, &[]));
        let first = lab.submit("0", &["--gpus=1"]);
        lab.until("the first job has ended", || lab.state(first) == "COMPLETED");
        let before: Vec<u32> = (0..3).map(|_| lab.submit("3", &["--gpus=4"])).collect();
        lab.saved();
        lab.kill("slurmctld");
        lab.controller();
        let mut jobs: Vec<u32> =
            ["--gpus=2", "--gpus=1", "--gpus=3", "--gres=gpu:2"].map(|g| lab.submit("0", &[g])).into();
        jobs.extend(before);
        lab.until("all jobs have ended", || jobs.iter().all(|j| lab.state(*j) == "COMPLETED"));
        for job in &jobs[..4] {
            assert!(
                lab.inside(*job).values().map(|g| g.len()).sum::<usize>() > 0,
                "job {job} saw no GPU, agent {with}"
            );
        }
        nothing_stays_taken(&lab);
        drop(agent);
    }
}
