//! What operators and users ask of Slurm holds with the plugin as without it: the same submissions have the same results.

use crate::lab::{Agent, Gpus, Lab, Setup, site};
use crate::{lab, setup};
use std::collections::{BTreeMap, BTreeSet};

/// What became of the submissions. Which GPUs is left out, and so are the nodes where any would do.
type Seen = BTreeMap<String, String>;

#[test]
fn rules_of_operators_and_requests_of_users_hold_with_the_plugin_as_without_it() {
    let name = "rules_of_operators_and_requests_of_users_hold_with_the_plugin_as_without_it";
    let config = "AccountingStorageEnforce=associations,limits,qos\nPriorityType=priority/multifactor\nPriorityWeightQOS=1000000\n\
                  SelectTypeParameters=CR_Core_Memory\nDefMemPerCPU=1\n";
    let Some(lab) = lab(name, Setup { accounts: true, types: true, config: config.into(), ..setup(4, 0) }) else {
        return;
    };
    let (file, model) = site(&lab);
    accounts(&lab);
    let agent = Agent::start(&lab, &file, &model, &[]);
    let with = seen(&lab, true);
    println!("{with:#?}\n{}", lab.client("scontrol", &["show", "bbstat"]));
    assert!(lab.client("scontrol", &["show", "bbstat"]).contains("misplaced=0"));
    // Slurm keeps a record of the job's GPUs for every type: the plugin reads all of them.
    let orders = Agent::orders(&agent.log);
    let types = |g: &Gpus| g.keys().map(|n| n.as_str() > "n2").collect::<BTreeSet<bool>>().len();
    assert!(orders.values().any(|g| types(g) == 2), "no job on GPUs of both types: {orders:?}");
    drop(agent);
    lab.restart(false);
    let without = seen(&lab, false);
    let differ: Vec<_> =
        with.iter().filter(|(k, v)| without.get(*k) != Some(v)).map(|(k, v)| (k, v, &without[k])).collect();
    assert!(differ.is_empty() && with.len() == without.len(), "with the plugin, and without it: {differ:#?}");
}

/// An account, a QOS with a limit of four GPUs per user, and one of a higher priority.
fn accounts(lab: &Lab) {
    lab.until("Slurm's accounting knows GPUs", || lab.client("sacctmgr", &["-n", "show", "tres"]).contains("gpu"));
    let user = lab.user();
    for words in [
        "add account team",
        "add qos limited MaxTRESPerUser=gres/gpu=4",
        "add qos first Priority=100",
        &format!("add user {user} account=team qos=normal,limited,first defaultqos=normal defaultaccount=team"),
        &format!("modify user {user} set qos=normal,limited,first"),
    ] {
        lab.client("sacctmgr", &[&["-i"], &words.split(' ').collect::<Vec<_>>()[..]].concat());
    }
    lab.until("the controller knows them", || {
        let known = lab.client("scontrol", &["show", "assoc_mgr", "flags=qos,assoc"]);
        ["limited", "first", "Account=team"].iter().all(|w| known.contains(w))
    });
}

fn seen(lab: &Lab, plugin: bool) -> Seen {
    let mut all = Seen::new();
    reservations(lab, &mut all);
    qualities(lab, &mut all);
    backfill(lab, &mut all);
    shapes(lab, &mut all, plugin);
    arrays_and_requeue(lab, &mut all);
    all
}

fn reason(lab: &Lab, job: u32) -> String {
    let mut why = String::new();
    lab.until(&format!("job {job} has a reason"), || {
        why = lab.field(job, "Reason");
        !["", "None", "Priority", "BurstBufferStageIn"].contains(&why.as_str())
    });
    why
}

fn state(lab: &Lab, job: u32, wanted: &str) {
    lab.until(&format!("job {job} is {wanted}"), || lab.state(job) == wanted);
}

fn cancel(lab: &Lab, jobs: &[u32]) {
    jobs.iter().for_each(|j| drop(lab.client("scancel", &[&j.to_string()])));
    lab.until("nothing runs", || lab.client("squeue", &["-h"]).is_empty());
}

/// Nodes and GPUs of a job that runs or ran.
fn on(lab: &Lab, job: u32) -> (Vec<String>, Vec<usize>) {
    lab.until(&format!("job {job} tells its GPUs"), || !lab.inside(job).is_empty() && lab.state(job) == "COMPLETED");
    let inside = lab.inside(job);
    let mut counts: Vec<usize> = inside.values().map(BTreeSet::len).collect();
    counts.sort_unstable();
    (inside.keys().cloned().collect(), counts)
}

fn reservations(lab: &Lab, all: &mut Seen) {
    let user = format!("users={}", lab.user());
    lab.client("scontrol", &["create", "reservation=kept", &user, "nodes=n2", "starttime=now", "duration=60"]);
    let outside = lab.submit("0", &["--gpus=8", "-w", "n2"]);
    let most = lab.submit("0", &["--gpus=24"]);
    all.insert("beside a reservation".into(), format!("{:?}", on(lab, most)));
    // Two texts of Slurm follow the comma, by the part of it that tried last.
    let why = reason(lab, outside).split(',').next().unwrap_or_default().to_owned();
    all.insert("on reserved nodes without it".into(), format!("{} {why}", lab.state(outside)));
    let within = lab.submit("0", &["--gpus=3", "--reservation=kept"]);
    all.insert("in a reservation".into(), format!("{:?}", on(lab, within)));
    all.insert("too large for a reservation".into(), verdict(lab, &["--gpus=9", "--reservation=kept"]));
    lab.client("scontrol", &["delete", "reservation=kept"]);
    all.insert("after the reservation".into(), format!("{:?}", on(lab, outside)));
}

fn qualities(lab: &Lab, all: &mut Seen) {
    let limited = lab.submit("600", &["--qos=limited", "--gpus=3"]);
    state(lab, limited, "RUNNING");
    let more = lab.submit("0", &["--qos=limited", "--gpus=3"]);
    all.insert("above the limit of a QOS".into(), reason(lab, more));
    let other = lab.submit("0", &["--gpus=3"]);
    all.insert("without that QOS".into(), format!("{:?}", on(lab, other).1));
    let little = lab.submit("0", &["--qos=limited", "--gpus=1"]);
    all.insert("within the limit of a QOS".into(), format!("{:?}", on(lab, little).1));
    lab.client("scancel", &[&limited.to_string()]);
    all.insert("after the limit".into(), format!("{:?}", on(lab, more).1));

    // The later job of the better QOS goes first.
    let full = lab.submit("600", &["--gpus=32"]);
    state(lab, full, "RUNNING");
    let jobs = ["normal", "first"].map(|q| lab.submit("2", &["--gpus=32", &format!("--qos={q}")]));
    lab.client("scancel", &[&full.to_string()]);
    jobs.iter().for_each(|j| state(lab, *j, "COMPLETED"));
    let [normal, first] = jobs.map(|j| lab.field(j, "StartTime"));
    all.insert("priority of a QOS".into(), format!("the better one first: {}", first < normal));
}

fn backfill(lab: &Lab, all: &mut Seen) {
    let part = lab.submit("600", &["--gpus=28", "-t20"]);
    state(lab, part, "RUNNING");
    let next = lab.submit("0", &["--gpus=32", "-t5"]);
    lab.until("the next one has a planned start", || lab.field(next, "StartTime").contains('T'));
    let long = lab.submit("0", &["--gpus=2", "-t600"]);
    let short = lab.submit("0", &["--gpus=2", "-t5"]);
    all.insert("backfill of a short job".into(), format!("{} GPUs", on(lab, short).1.iter().sum::<usize>()));
    all.insert("and not of a long one".into(), lab.state(long));
    lab.client("scancel", &[&part.to_string()]);
    all.insert("then the next".into(), format!("{:?}", on(lab, next).1));
    all.insert("then the long one".into(), format!("{} GPUs", on(lab, long).1.iter().sum::<usize>()));
}

fn shapes(lab: &Lab, all: &mut Seen, plugin: bool) {
    // Nodes and counts are Slurm's to say.
    for args in [
        "--gpus=a100:16",
        "--gpus=h100:16",
        "--gpus=16 -w n[1,4]",
        "--gpus=24 -x n3",
        "--gres=gpu:8 -N2 -x n[1-2]",
        "--gpus=8 -N1 -w n4",
        "--gres=mig:2",
    ] {
        let job = lab.submit("0", &args.split(' ').collect::<Vec<_>>());
        if args.contains("mig") {
            state(lab, job, "COMPLETED");
            all.insert(args.into(), lab.field(job, "NumNodes"));
        } else {
            all.insert(args.into(), format!("{:?}", on(lab, job)));
        }
    }
    // Any nodes will do, in these counts.
    for args in [
        "--gpus=h100:5 -N1",
        "-N2 --gpus-per-node=3",
        "-n4 --gpus-per-task=2 --ntasks-per-node=2",
        "-n3 --gpus-per-task=1 -N1",
        "--gpus=2 -N1 --cpus-per-gpu=4",
        "--gpus=2 -N1 --mem-per-gpu=300",
    ] {
        let job = lab.submit("0", &args.split(' ').collect::<Vec<_>>());
        let (nodes, counts) = on(lab, job);
        all.insert(args.into(), format!("{} nodes, {counts:?}, {} CPUs", nodes.len(), lab.field(job, "NumCPUs")));
    }
    // Cores and memory of a node are the limit, and the number of nodes follows. linkwise splits evenly, Slurm as it comes.
    for args in ["--gpus=8 --cpus-per-gpu=4", "--gpus=6 --mem-per-gpu=300", "--gpus=6 -N2 --ntasks-per-node=3"] {
        let job = lab.submit("0", &args.split(' ').collect::<Vec<_>>());
        let (nodes, counts) = on(lab, job);
        let total: usize = counts.iter().sum();
        all.insert(args.into(), format!("{} nodes, {total} GPUs, {} CPUs", nodes.len(), lab.field(job, "NumCPUs")));
        if plugin {
            println!("{args}: {counts:?} {}", lab.client("scontrol", &["show", "job", "-o", &job.to_string()]));
        }
    }
    // What Slurm refuses, it refuses.
    for args in
        ["--gpus=33", "--gpus=a100:17", "-N1 --gpus=9", "--gpus=tesla:1", "--gpus=2 -p nowhere", "--gpus=2 --qos=none"]
    {
        all.insert(args.into(), verdict(lab, &args.split(' ').collect::<Vec<_>>()));
    }
}

/// The reason why a job that cannot run waits, or that it is refused.
fn verdict(lab: &Lab, args: &[&str]) -> String {
    let out = lab.client("sbatch", &[&["--parsable", "-o", "/dev/null", "--wrap", "true"], args].concat());
    let Ok(job) = out.trim().parse::<u32>() else { return "refused".into() };
    let why = reason(lab, job);
    lab.client("scancel", &[&job.to_string()]);
    why
}

fn arrays_and_requeue(lab: &Lab, all: &mut Seen) {
    let array = lab.submit("1", &["--gpus=2", "--array=0-3%1"]);
    lab.until("the array has ended", || lab.client("squeue", &["-h"]).is_empty());
    let text = lab.client("scontrol", &["show", "job", "-o", &array.to_string()]);
    let time = |l: &str, key: &str| l.split(' ').find_map(|w| w.strip_prefix(key)).unwrap_or_default().to_owned();
    let mut runs: Vec<(String, String)> = text.lines().map(|l| (time(l, "StartTime="), time(l, "EndTime="))).collect();
    runs.sort();
    let apart = runs.windows(2).all(|w| w[0].1 <= w[1].0);
    all.insert("an array, one task at a time".into(), format!("{} tasks, one after the other: {apart}", runs.len()));

    let again = lab.submit("600", &["--gpus=6", "--requeue"]);
    lab.until("it runs", || lab.inside(again).values().map(BTreeSet::len).sum::<usize>() == 6);
    lab.client("scontrol", &["requeue", &again.to_string()]);
    lab.until("it is put back", || lab.field(again, "Restarts") == "1" && lab.state(again) == "PENDING");
    let fields = ["Reason", "ReqNodeList", "NumNodes", "TresPerJob", "Priority"].map(|f| lab.field(again, f));
    all.insert("put back".into(), fields.join(" "));
    cancel(lab, &[again]);
}
