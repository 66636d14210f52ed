//! Policies, reasons, whole nodes, switches, and where Slurm's books go.

use crate::common::{linkwise, said};
use crate::lab::{Agent, CPUS, GPUS, Setup, site};
use crate::{in_lab, lab, setup};
use std::collections::BTreeSet;

#[test]
fn policies_reasons_and_slurms_books_arrive_where_they_should() {
    let Some(lab) = lab("policies_reasons_and_slurms_books_arrive_where_they_should", setup(4, 2)) else { return };
    let (file, model) = site(&lab);
    let state = lab.at("site.state");
    let (code, _, error) = said(linkwise("cluster", &["init", "--cluster", &file, "--state", &state]));
    assert_eq!(code, 0, "{error}");
    let _agent = Agent::start(&lab, &file, &model, &["--state", &state]);
    let record = |job: u32| lab.client("scontrol", &["show", "job", "-o", &job.to_string()]);
    let commented = |args: &[&str], word: &str| {
        // Slurm 22.05 takes no comment for a job that has ended.
        let job = lab.submit("600", args);
        lab.until(&format!("AdminComment of {args:?} has {word}"), || record(job).contains(word));
        lab.client("scancel", &[&job.to_string()]);
        lab.until("it has ended", || lab.state(job) == "CANCELLED");
    };
    commented(&["--gpus=12", "--comment", "run 7, linkwise=pack"], r#""policy":"pack (comment)""#);
    commented(&["--gpus=2", "--comment", "linkwise=fast"], r#""ignored":"linkwise=fast is no policy"#);
    commented(&["--gpus=2", "--comment", "linkwise=off"], r#"{"linkwise":"slurm","reason":"linkwise=off"}"#);
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

#[test]
fn whole_nodes_and_few_switches_are_chosen_as_asked() {
    // Two leaves of two nodes.
    let Some(lab) = lab("whole_nodes_and_few_switches_are_chosen_as_asked", setup(4, 2)) else { return };
    let (file, model) = site(&lab);
    let agent = Agent::start(&lab, &file, &model, &[]);
    let record = |job: u32| lab.client("scontrol", &["show", "job", "-o", &job.to_string()]);
    let runs = |args: &[&str]| {
        let job = lab.submit("600", args);
        lab.until(&format!("{args:?} runs"), || lab.books().contains_key(&job));
        assert!(record(job).contains(r#"{"linkwise":"took""#), "{args:?}: {}", record(job));
        let held = lab.books()[&job].clone();
        assert_eq!(Some(&held), Agent::orders(&agent.log).get(&job), "{args:?}");
        (job, held)
    };
    let leaves = |gpus: &crate::lab::Gpus| {
        gpus.keys()
            .map(|n| (n.trim_start_matches('n').parse::<usize>().unwrap() - 1) / 2)
            .collect::<BTreeSet<_>>()
            .len()
    };
    let end = |jobs: &[u32]| {
        jobs.iter().for_each(|j| drop(lab.client("scancel", &[&j.to_string()])));
        lab.until("nothing runs", || lab.client("squeue", &["-h"]).is_empty());
    };
    // A GPU of n1 is held: whole nodes are among the others, and three GPUs more of n1 are no whole node.
    let (small, on) = runs(&["--gpus=1", "-w", "n1"]);
    assert_eq!(on.keys().collect::<Vec<_>>(), ["n1"]);
    let (whole, on) = runs(&["--exclusive", "--gpus=9"]);
    assert_eq!(on.values().map(BTreeSet::len).collect::<Vec<_>>(), [GPUS, GPUS], "{on:?}");
    assert!(!on.contains_key("n1") && leaves(&on) == 1, "two idle nodes of one leaf: {on:?}");
    assert_eq!(lab.field(whole, "NumCPUs"), (2 * CPUS).to_string());
    let (one, on) = runs(&["--exclusive", "--gpus=2"]);
    assert_eq!(on.values().map(BTreeSet::len).collect::<Vec<_>>(), [GPUS], "{on:?}");
    end(&[small, whole, one]);
    let (job, on) = runs(&["--exclusive", "-N3", "--gpus-per-node=2"]);
    assert_eq!(on.values().map(BTreeSet::len).collect::<Vec<_>>(), [GPUS; 3], "{on:?}");
    end(&[job]);

    // Twelve GPUs fit below one switch; without the limit nothing is promised.
    let (job, on) = runs(&["--gpus=12", "--switches=1"]);
    assert_eq!(leaves(&on), 1, "{on:?}");
    // Now no switch has twelve free GPUs: Slurm lets the job wait, and takes two switches after the job's own limit of time.
    let (other, on) = runs(&["--gpus=8", "-w", if on.contains_key("n1") { "n3" } else { "n1" }]);
    assert_eq!(on.len(), 1);
    let waits = lab.submit("600", &["--gpus=9", "--switches=1@00:30"]);
    std::thread::sleep(std::time::Duration::from_secs(8));
    assert_eq!(lab.state(waits), "PENDING", "{}", record(waits));
    lab.until("the job goes on with two switches", || lab.books().contains_key(&waits));
    assert_eq!(leaves(&lab.books()[&waits]), 2);
    assert!(record(waits).contains(r#"{"linkwise":"slurm""#), "{}", record(waits));
    end(&[job, other, waits]);
}

/// The GPUs of a cancelled job are free at once, but Slurm uses no node on which a job is still ending: the plugin offers none of these, and the next
/// job gets its GPUs by choice, in the first attempt.
#[test]
fn a_node_on_which_a_job_is_ending_is_not_offered() {
    let name = "a_node_on_which_a_job_is_ending_is_not_offered";
    let Some(lab) = lab(name, Setup { ending_s: 3, ..setup(2, 0) }) else { return };
    let (file, model) = site(&lab);
    let agent = Agent::start(&lab, &file, &model, &[]);
    let full = lab.submit("600", &["--gpus=8", "-w", "n1"]);
    lab.until("n1 is full", || lab.state(full) == "RUNNING");
    let next = lab.submit("600", &["--gpus=12"]);
    lab.client("scancel", &[&full.to_string()]);
    lab.until("the next one runs", || lab.state(next) == "RUNNING");
    let said = Agent::about(&agent.log, next);
    assert!(Agent::orders(&agent.log).contains_key(&next) && !said.contains("refused"), "{said}");
    assert!(lab.client("scontrol", &["show", "bbstat"]).contains(" refused=0 "), "an order was refused");
}
