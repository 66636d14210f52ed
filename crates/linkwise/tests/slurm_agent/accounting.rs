//! Slurm's accounting, priorities and the epilog with the plugin.

use crate::common::{linkwise, said};
use crate::lab::accounts::{Account, sacct};
use crate::lab::trace::{replay, trace};
use crate::lab::{Agent, GPUS, Setup, repository, site};
use crate::{ACCOUNTING, lab, setup};
use std::collections::BTreeMap;
use std::sync::Mutex;

#[test]
fn slurmdbd_has_every_job_once_with_its_gpus_and_its_note() {
    let name = "slurmdbd_has_every_job_once_with_its_gpus_and_its_note";
    let Some(lab) = lab(name, Setup { accounts: true, ..setup(2, 0) }) else { return };
    let (file, model) = site(&lab);
    let cluster = console::load_cluster(&file).unwrap();
    let agent = Agent::start(&lab, &file, &model, &[]);
    let planned = trace(5, 15, 2 * GPUS, 1600.0);
    let (ids, _) = replay(&lab, &cluster, &planned, &Mutex::default(), &mut |_, _| {});
    let cancelled = lab.submit("600", &["--gpus=3"]);
    lab.until("it runs", || lab.state(cancelled) == "RUNNING");
    lab.client("scancel", &[&cancelled.to_string()]);
    lab.until("it is cancelled", || lab.state(cancelled) == "CANCELLED");
    let mut by_job: BTreeMap<u32, Vec<Account>> = BTreeMap::new();
    lab.until("the accounting has every end", || {
        by_job.clear();
        sacct(&lab).into_iter().for_each(|a| by_job.entry(a.job).or_default().push(a));
        by_job.len() == ids.len() + 1
            && by_job.values().flatten().all(|a| !["RUNNING", "PENDING"].contains(&a.state.as_str()))
    });
    let orders = Agent::orders(&agent.log);
    for (i, job) in ids.iter().enumerate() {
        let [a] = by_job[job].as_slice() else { panic!("{:?}", by_job[job]) };
        assert_eq!((a.state.as_str(), a.gpus), ("COMPLETED", planned[i].gpus), "{a:?}");
        assert_eq!(a.note.starts_with(r#"{"linkwise":"took""#), orders.contains_key(job), "{a:?}");
    }
    assert!(orders.len() > ids.len() / 2, "{} of {} jobs ran on a choice", orders.len(), ids.len());
    let [a] = by_job[&cancelled].as_slice() else { panic!("{:?}", by_job[&cancelled]) };
    assert_eq!((a.state.as_str(), a.gpus), ("CANCELLED", 3));
}

#[test]
fn a_waiting_job_keeps_its_age_its_share_and_its_place() {
    let name = "a_waiting_job_keeps_its_age_its_share_and_its_place";
    // Ten minutes of waiting are worth ten millions; without slurmdbd Slurm ignores them. It computes priorities anew once a minute, not more often.
    // A fair share is worth more than any age.
    let weights = "PriorityType=priority/multifactor\nPriorityWeightAge=10000000\nPriorityMaxAge=0-00:10\nPriorityCalcPeriod=0-00:01\n\
                   PriorityWeightFairshare=1000000000\n";
    let Some(lab) = lab(name, Setup { accounts: true, config: weights.into(), ..setup(2, 0) }) else { return };
    let (file, model) = site(&lab);
    for account in ["busy", "idle"] {
        lab.client("sacctmgr", &["-i", "add", "account", account, "fairshare=10"]);
        lab.client("sacctmgr", &["-i", "add", "user", &lab.user(), &format!("account={account}"), "fairshare=10"]);
    }
    let mut seen = Vec::new();
    for plugin in [true, false] {
        if !plugin {
            lab.restart(false);
        }
        let agent = plugin.then(|| Agent::start(&lab, &file, &model, &[]));
        let full = lab.submit("600", &["--gpus=16", "-t20", "-A", "busy"]);
        lab.until("the cluster is full", || lab.state(full) == "RUNNING");
        let first = lab.submit("3", &["--gpus=16", "-t5", "-A", "busy"]);
        std::thread::sleep(std::time::Duration::from_secs(8));
        let second = lab.submit("1", &["--gpus=16", "-t5", "-A", "busy"]);
        let other = lab.submit("1", &["--gpus=16", "-t5", "-A", "idle"]);
        let priority = |job: u32| lab.field(job, "Priority").parse::<u64>().unwrap_or_default();
        // Before the first computation with the usage of the running job the shares are equal.
        let mut all = [0; 3];
        lab.until("usage and age count", || {
            all = [first, second, other].map(priority);
            all[0] > all[1] + 50_000 && all[2] > all[0] + 100_000_000
        });
        // Times of whole seconds: both are of one moment, which may lie at the end of one.
        let of_day = |time: &str| {
            let clock = time.split('T').nth(1).unwrap_or("").split(':');
            clock.fold(0, |sum, part| 60 * sum + part.parse::<i64>().expect("a time of the day"))
        };
        let (accrued, submitted) = (lab.field(first, "AccrueTime"), lab.field(first, "SubmitTime"));
        let late_s = (of_day(&accrued) - of_day(&submitted)).rem_euclid(86_400);
        assert!(late_s <= 1, "plugin {plugin}: {accrued} is {late_s} s after {submitted}");
        lab.client("scancel", &[&full.to_string()]);
        lab.until("all have ended", || [first, second, other].iter().all(|j| lab.state(*j) == "COMPLETED"));
        let starts = [other, first, second].map(|j| lab.field(j, "StartTime"));
        assert!(starts.is_sorted(), "plugin {plugin}: {starts:?}, priorities {all:?}");
        if let Some(agent) = &agent {
            for job in [first, second, other] {
                assert!(Agent::orders(&agent.log).contains_key(&job), "{}", Agent::about(&agent.log, job));
            }
        }
        seen.push(lab.field(first, "Reason"));
    }
    assert_eq!(seen[0], seen[1]);
}

/// What NCCL's plugin would leave of a job of four GPUs: 40 calls of 16 MiB in 200 us on every rank. Written by the test, not measured.
const JOB: &str = r#"#!/bin/bash
folder=REPORTS/$SLURM_JOB_ID
mkdir -p "$folder"
{
  echo '{"kind":"process","host_name":"'"$SLURMD_NODENAME"'","visible_gpus":"'"$CUDA_VISIBLE_DEVICES"'","profiler_api":3}'
  for r in 0 1 2 3; do
    echo '{"kind":"comm","comm":"0a","rank":'$r',"ordinal":'$r',"ranks":4,"nodes":1}'
    for c in {1..40}; do
      echo '{"kind":"launched","comm":"0a","rank":'$r',"call":'$c',"collective":"AllReduce","size_bytes":16777216,"arm":"RING/SIMPLE","channels":8,"kernel_us":200}'
    done
  done
} >"$folder/trace.jsonl"
"#;

#[test]
fn the_epilog_of_a_real_slurmctld_stores_what_a_job_got_once() {
    let name = "the_epilog_of_a_real_slurmctld_stores_what_a_job_got_once";
    let Some(lab) = lab(name, Setup { config: format!("{ACCOUNTING}EpilogSlurmctld=AT/epilog\n"), ..setup(2, 0) })
    else {
        return;
    };
    let (file, model) = site(&lab);
    let (reports, store, conf) = (lab.at("reports"), lab.at("jobs.db"), lab.at("epilog.conf"));
    std::fs::write(&conf, format!("reports={reports}\ncluster={file}\nstore={store}\nmodel={model}\n")).unwrap();
    let programs = std::path::Path::new(env!("CARGO_BIN_EXE_linkwise")).parent().unwrap().display();
    let script = repository().join("integrations/slurm/epilog");
    let wrapper = format!(
        "#!/bin/bash\nexport PATH={programs}:/usr/bin:/bin LINKWISE_TEST_EPILOG_CONF={conf}\n{0}; {0}\necho $SLURM_JOB_ID >>{1}\n",
        script.display(),
        lab.at("log/epilogs")
    );
    lab.folder.script("epilog", &wrapper);
    let job = lab.folder.script("job.sh", &JOB.replace("REPORTS", &reports));
    // A controller that starts without the script runs none later.
    lab.restart(true);
    let _agent = Agent::start(&lab, &file, &model, &[]);
    let submit = |gpus: &str, script: &str| -> u32 {
        let out = lab.at("log/epilog-job-%j");
        lab.client("sbatch", &["--parsable", "-o", &out, "-N1", gpus, script]).trim().parse().unwrap()
    };
    let with = submit("--gpus=4", &job);
    let without = lab.submit("0", &["--gpus=2"]);
    lab.until("the epilog of both ran", || {
        let ran = std::fs::read_to_string(lab.at("log/epilogs")).unwrap_or_default();
        [with, without].iter().all(|j| ran.lines().any(|l| l == j.to_string()))
    });
    let (code, text, error) =
        said(linkwise("readings", &["list", "--store", &store, "--cluster", &file, "--format", "json"]));
    assert_eq!(code, 0, "{error}");
    assert_eq!(text.matches(&format!("slurm-{with}")).count(), 1, "one reading, though the epilog ran twice: {text}");
    assert!(!text.contains(&format!("slurm-{without}")), "{text}");
    // 16 MiB x 3/2 in 200 us.
    assert!(text.contains("125.8"), "{text}");
    assert!(!std::path::Path::new(&format!("{reports}/{with}")).exists(), "the traces are still there");
    assert_eq!(lab.state(with), "COMPLETED");
}
