//! The job as a whole agrees on a table on releases that do not identify communicators: in random schedules, and in the real NCCL library.

mod common;

use agreement::{Leader, ToLeader, ToMember};
use common::job::Job;
use common::schedule::{Network, Random, question};
use common::{decisions, identifies_communicators, rendezvous, run, spec, traces, with_plugin};
use linkwise_nccl::comm::{Comm, Identity, Role};
use linkwise_nccl::job::job_table_marker;
use linkwise_nccl::profile::Profile;
use nccl_bench::BenchSpec;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use topology::Collective;
use topology::nccl::{Algorithm, Protocol};
use tune::Arm;

/// The releases under test that have no identifiers.
fn versions() -> Vec<String> {
    common::versions("2.24").into_iter().filter(|v| !identifies_communicators(v)).collect()
}

/// 4 processes with the plugin in mode profile.
fn job(version: &str, test: &str, folder: &std::path::Path) -> BenchSpec {
    let profile = folder.join("profile");
    std::fs::write(&profile, "AllReduce 1KiB max TREE/LL@4\n").unwrap();
    let trace = folder.join("trace");
    let settings = [
        ("MODE", "profile"),
        ("JOB", "closed"),
        ("SIMULATED_GROUPS", "none"),
        ("PROFILE", profile.to_str().unwrap()),
        ("RENDEZVOUS", &rendezvous(&format!("{test}-{}", version.replace('.', "-")))),
        ("TRACE", trace.to_str().unwrap()),
    ];
    // AUTO takes ring at this size.
    let mut s = with_plugin(spec(&[4], version).with_calls(&[Collective::AllReduce], &vec![8 << 20; 600]), &settings);
    s.process_per_rank = true;
    (s.in_step_every, s.pause) = (10, Duration::from_millis(2));
    s.late = Some((1, Duration::from_millis(300))); // time to communicate while the others make their first calls
    s
}

/// By process: the arms of its calls.
fn arms(folder: &std::path::Path) -> Vec<Vec<String>> {
    let calls = |t: &Vec<serde_json::Value>| {
        t.iter().filter(|l| l["kind"] == "call").map(|l| l["arm"].as_str().unwrap().to_string()).collect()
    };
    traces(&folder.join("trace")).iter().map(calls).collect()
}

#[test]
fn without_identifiers_a_table_is_used_once_all_processes_hold_it() {
    let name = "without_identifiers_a_table_is_used_once_all_processes_hold_it";
    for version in versions() {
        let folder = tempfile::tempdir().unwrap();
        let Some(report) = run(name, &job(&version, "job", folder.path())) else { return };
        let (first, last) = (&report.calls[0], &report.calls[599]);
        if version.starts_with("2.21") {
            // This release logs no line about a call that a tuner decides and does not ask for channels: LL kernels have fewer threads.
            let threads = [first, last].map(|c| c.launch.unwrap().block);
            assert_eq!(threads, [640, 512], "{version}: AUTO is RING/LL128");
        } else {
            let last = last.decision.as_ref().unwrap();
            assert_eq!((last.algorithm, last.protocol, last.channels), (Algorithm::Tree, Protocol::Ll, 4), "{version}");
        }
        let arms = arms(folder.path());
        assert_eq!(arms.len(), 4);
        assert!(
            arms.iter().all(|a| a.len() == 600 && *a == arms[0]),
            "{version}: all processes run each call with one arm"
        );
        assert!(arms[0][0] == "AUTO" && arms[0][599] == "TREE/LL@4", "{version}");
    }
}

#[test]
fn a_job_that_is_not_said_to_be_closed_stays_at_auto_with_one_line() {
    let name = "a_job_that_is_not_said_to_be_closed_stays_at_auto_with_one_line";
    // A communicator with a process outside of the job cannot be recognised, and would hang.
    for version in versions() {
        for promise in ["LINKWISE_JOB", "LINKWISE_SIMULATED_GROUPS"] {
            let folder = tempfile::tempdir().unwrap();
            let mut open = job(&version, &format!("open-{promise}"), folder.path());
            open.plugin_env.retain(|(name, _)| name != promise);
            if version.starts_with("2.21") && promise == "LINKWISE_SIMULATED_GROUPS" {
                continue; // has no simulated groups
            }
            let Some(report) = run(name, &open) else { return };
            let all = arms(folder.path());
            assert!(all.len() == 4 && all.iter().all(|a| a.iter().all(|arm| arm == "AUTO")), "{version}");
            let said: Vec<_> = report.warnings.iter().filter(|w| w.contains(promise)).collect();
            assert_eq!(said.len(), 1, "{version}: {:?}", report.warnings);
        }
    }
}

#[test]
fn processes_with_different_tables_all_stay_at_auto() {
    let name = "processes_with_different_tables_all_stay_at_auto";
    for version in versions() {
        let folder = tempfile::tempdir().unwrap();
        let mut plain = job(&version, "differ", folder.path());
        let other = folder.path().join("other");
        std::fs::write(&other, "AllReduce 1KiB max TREE/LL@5\n").unwrap();
        plain.plugin_env_of_rank = vec![(2, "LINKWISE_PROFILE".into(), other.to_str().unwrap().into())];
        let Some(with) = run(name, &plain) else { return };
        let all = arms(folder.path());
        assert!(all.len() == 4 && all.iter().all(|a| a.len() == 600 && a.iter().all(|arm| arm == "AUTO")), "{version}");
        assert!(with.warnings.iter().any(|w| w.contains("ranks have different settings")), "{:?}", with.warnings);
        plain.tuner_plugin = None;
        plain.profiler_plugin = None;
        assert_eq!(decisions(&run(name, &plain).unwrap()), decisions(&with), "{version}");
    }
}

/// The arms that process 0 and a process outside of its job take in their common communicator, after the job could agree on a table.
fn with_an_outsider(test: &str, promise: &str) -> Option<[Vec<u8>; 2]> {
    let mut job = Job::of(test, 3, "outsider.c")?;
    let table = job.folder().join("table");
    std::fs::write(&table, "AllReduce 1KiB max TREE/LL\n").unwrap();
    let (inside, outside) = (rendezvous(&format!("in-{promise}")), rendezvous(&format!("out-{promise}")));
    for process in 0..3 {
        let settings = [
            ("MODE", "profile"),
            ("PROFILE", table.to_str().unwrap()),
            ("SIMULATED_GROUPS", "none"),
            ("JOB", promise),
            ("LEAD", "0"),
            ("RENDEZVOUS", if process < 2 { &inside } else { &outside }),
            ("PROCESS", ["0/2", "1/2", "0/1"][process]),
        ];
        job.start(process, Duration::from_millis(1), &settings, |command| command);
    }
    let uses_table = |job: &Job| job.arms(0).last().is_some_and(|arm| *arm == TREE_LL);
    job.until("the job has had time to agree", |job| match promise {
        "closed" => uses_table(job),
        _ => job.begun(0) > 3000,
    });
    assert_eq!(uses_table(&job), promise == "closed", "{}", job.log(0));
    job.end_communicator();
    job.until("both have made their calls", |job| job.begun(2).min(job.begun(3)) == 3000);
    job.finish();
    if promise == "open" {
        assert_eq!(job.log(0).matches("LINKWISE_JOB=closed").count(), 1, "{}", job.log(0));
    }
    Some([job.arms(3), job.arms(2)])
}

/// The entry of the stand-ins' cost table, plus 1.
const TREE_LL: u8 = 1;

#[test]
fn a_communicator_with_a_process_outside_of_the_job_stays_at_auto_unless_the_job_is_said_to_be_closed() {
    let name = "a_communicator_with_a_process_outside_of_the_job_stays_at_auto_unless_the_job_is_said_to_be_closed";
    let Some([inside, outside]) = with_an_outsider(name, "open") else { return };
    assert_eq!(inside, outside);
    // The promise is not kept here. The documents say what follows: different algorithms in one call, so it hangs.
    let Some([inside, outside]) = with_an_outsider(name, "closed") else { return };
    let differ = inside.iter().zip(&outside).filter(|(a, b)| a != b).count();
    assert!(differ > 0 && inside.last() == Some(&TREE_LL), "the table applies to every communicator of the process");
}

/// A process of the random schedules below.
struct Process {
    job: Arc<Comm>,
    /// By communicator: the process's rank, if it has one that exists.
    comms: [Option<Arc<Comm>>; COMMUNICATORS],
    /// By communicator: calls made, and whether the process has ended its rank.
    made: [u64; COMMUNICATORS],
    ended: [bool; COMMUNICATORS],
}

const PROCESSES: usize = 3;
const COMMUNICATORS: usize = 4;
/// The processes with a rank, by communicator.
const MEMBERS: [&[usize]; COMMUNICATORS] = [&[0, 1, 2], &[0, 1], &[1, 2], &[0, 2]];
const CALLS: u64 = 60;

fn identity(id: u64, rank: usize, ranks: u32) -> Identity {
    Identity { id, ordinal: 0, rank: rank as i32, ranks, nodes: 1 }
}

fn one_call(comm: &Comm) -> Arm {
    question(comm, 1 << 20);
    comm.take_decision().unwrap().arm
}

/// Processes that call, and messages that arrive in any order, lost or duplicated.
struct Schedule {
    random: Random,
    processes: Vec<Process>,
    network: Network,
    /// The arm of each call, by communicator and number.
    arms: BTreeMap<(usize, u64), Arm>,
}

impl Schedule {
    fn new(seed: u64) -> Self {
        let process = |p| Process {
            job: Arc::new(Comm::new(identity(1, p, 3), Role::Job, 0)),
            comms: [const { None }; COMMUNICATORS],
            made: [0; COMMUNICATORS],
            ended: [false; COMMUNICATORS],
        };
        let mut random = Random(seed | 1);
        let leader = Leader::new(PROCESSES, 30, 300).ahead(random.below(20) as u64);
        Schedule {
            random,
            processes: (0..PROCESSES).map(process).collect(),
            network: Network::new(leader),
            arms: BTreeMap::new(),
        }
    }

    fn step(&mut self) -> Result<(), String> {
        let p = self.random.below(PROCESSES);
        match self.random.below(10) {
            0..=4 => {
                let c = self.random.below(COMMUNICATORS);
                return self.call(p, c);
            }
            5 | 6 if self.network.has_for_members() => {
                let processes = &self.processes;
                self.network.deliver_to_member(&mut self.random, |to, message| processes[to].job.on_message(message));
            }
            7 | 8 if self.network.has_for_leader() => self.network.deliver_to_leader(&mut self.random),
            _ => self.tick_leader(),
        }
        Ok(())
    }

    /// The next call of process `p` on communicator `c`, unless it would wait. The first call makes the communicator, the last ends it.
    fn call(&mut self, p: usize, c: usize) -> Result<(), String> {
        let process = &mut self.processes[p];
        if !MEMBERS[c].contains(&p) || process.ended[c] {
            return Ok(());
        }
        let comm = process.comms[c].get_or_insert_with(|| {
            let table = Profile::parse("AllReduce 0 max TREE/LL128\n").unwrap().plans(8, 1);
            let comm = Arc::new(Comm::new(identity(10 + c as u64, p, 3), Role::Follow, 2).with_table(table));
            process.job.add_follower(&comm);
            comm
        });
        if process.made[c] == CALLS {
            process.job.remove_follower(comm);
            process.comms[c] = None;
            process.ended[c] = true;
        } else if !comm.would_wait() {
            let (call, arm) = (process.made[c], one_call(comm));
            process.made[c] += 1;
            let first = *self.arms.entry((c, call)).or_insert(arm);
            if first != arm {
                return Err(format!("communicator {c}, call {call}: {first} and, in process {p}, {arm}"));
            }
        }
        Ok(())
    }

    /// The leader proposes the table, then AUTO again, as after a stop file.
    fn tick_leader(&mut self) {
        if self.network.tick(&mut self.random, 40) && self.network.committed < 2 {
            let plans = if self.network.committed == 0 { job_table_marker() } else { Vec::new() };
            self.network.propose(plans, self.processes[0].job.begun());
        }
    }
}

/// The arm of each call after `steps` random steps; an error names the first call that two processes made with different arms.
fn schedule(seed: u64, steps: usize) -> Result<BTreeMap<(usize, u64), Arm>, String> {
    let mut schedule = Schedule::new(seed);
    for _ in 0..steps {
        schedule.step()?;
    }
    Ok(schedule.arms)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn no_two_ranks_of_any_communicator_differ_in_any_schedule(seed: u64) {
        prop_assert_eq!(schedule(seed, 4000).err(), None);
    }
}

#[test]
fn the_schedules_reach_the_table_and_auto_again() {
    let forced = |arms: &BTreeMap<_, Arm>| arms.values().any(|a| !a.is_auto());
    let reached =
        (1..=100u64).filter(|s| forced(&schedule(s.wrapping_mul(0x9e37_79b9_7f4a_7c15), 4000).unwrap())).count();
    assert!(reached >= 30, "the table came into force in {reached} of 100 schedules");
}

#[test]
fn a_communicator_that_is_made_later_is_bound_by_what_was_agreed_before() {
    let table = Profile::parse("AllReduce 0 max TREE/LL128\n").unwrap().plans(2, 1);
    let job = Comm::new(identity(1, 0, 2), Role::Job, 0);
    let epoch = Arc::new(agreement::Epoch::new(1, 3, job_table_marker()));
    assert!(matches!(job.on_message(&ToMember::Propose(epoch)), Some(ToLeader::Ack { .. })));
    job.on_message(&ToMember::Commit(1));
    let later = Arc::new(Comm::new(identity(2, 0, 2), Role::Follow, 8).with_table(table));
    job.add_follower(&later);
    let arms: Vec<String> = (0..5).map(|_| one_call(&later).to_string()).collect();
    assert_eq!(arms, ["AUTO", "AUTO", "AUTO", "TREE/LL128", "TREE/LL128"]);
}

#[test]
fn a_communicator_that_has_ended_still_counts() {
    let job = Comm::new(identity(1, 0, 2), Role::Job, 0);
    let gone = Arc::new(Comm::new(identity(2, 0, 2), Role::Follow, 8));
    job.add_follower(&gone);
    (0..5).for_each(|_| _ = one_call(&gone));
    job.remove_follower(&gone);
    // The other ranks may be at call 2 and would switch at call 3, which this rank has already made.
    let epoch = Arc::new(agreement::Epoch::new(1, 3, job_table_marker()));
    assert_eq!(job.on_message(&ToMember::Propose(epoch)), Some(ToLeader::Refuse { epoch: 1, begun: 5 }));
}
