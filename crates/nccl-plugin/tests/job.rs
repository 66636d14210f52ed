//! The job as a whole agrees on a table on releases that do not identify communicators: in random schedules, and in the real NCCL library.

mod common;

use agreement::{Leader, ToLeader, ToMember};
use common::{decisions, rendezvous, run, spec, tells_communicators_apart, traces, with_plugin};
use linkwise_nccl::comm::{Call, Comm, Identity, Role};
use linkwise_nccl::cost_table::CostTable;
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
    common::versions("2.24").into_iter().filter(|v| !tells_communicators_apart(v)).collect()
}

/// 4 processes with the plugin in mode profile.
fn job(version: &str, test: &str, folder: &std::path::Path) -> BenchSpec {
    let profile = folder.join("profile");
    std::fs::write(&profile, "AllReduce 1KiB max TREE/LL@4\n").unwrap();
    let trace = folder.join("trace");
    let settings = [
        ("MODE", "profile"),
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
        assert!(arms.iter().all(|a| a.len() == 600 && *a == arms[0]), "{version}: every process at every call alike");
        assert!(arms[0][0] == "AUTO" && arms[0][599] == "TREE/LL@4", "{version}");
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

/// A process of the random schedules below.
struct Process {
    job: Arc<Comm>,
    /// Its rank of each communicator, if it has one, has made it and has not ended it.
    comms: Vec<Option<Arc<Comm>>>,
    made: Vec<u64>,
}

const PROCESSES: usize = 3;
/// True if the process has a rank in the communicator.
const MEMBERS: [&[usize]; 4] = [&[0, 1, 2], &[0, 1], &[1, 2], &[0, 2]];
const CALLS: u64 = 60;

fn one_call(comm: &Comm) -> Arm {
    let mut table = [-1.0f32; 21];
    table[..6].copy_from_slice(&[60.0, 55.0, 70.0, 50.0, 65.0, 75.0]);
    let mut costs = CostTable::new(&mut table, 7, 3).unwrap();
    comm.call(Call { collective: 4, bytes: 1 << 20 }, &mut costs, &mut 0, |_| {});
    comm.take_decision().unwrap().arm
}

/// A random schedule: calls, messages in any order, lost or duplicated, communicators made and ended. Returns the arm of each call by rank; an error
/// names the first difference.
fn schedule(seed: u64, steps: usize) -> Result<BTreeMap<(usize, u64), Arm>, String> {
    let mut state = seed | 1;
    let mut random = move |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) as usize % n
    };
    let table = Profile::parse("AllReduce 0 max TREE/LL128\n").unwrap().plans(8, 1);
    let who = |id, rank: usize| Identity { id, ordinal: 0, rank: rank as i32, ranks: 3, nodes: 1 };
    let mut processes: Vec<Process> = (0..PROCESSES)
        .map(|p| Process {
            job: Arc::new(Comm::new(who(1, p), Role::Job, 0)),
            comms: vec![None; MEMBERS.len()],
            made: vec![0; MEMBERS.len()],
        })
        .collect();
    let mut ended = [[false; MEMBERS.len()]; PROCESSES];
    let mut leader = Leader::new(PROCESSES, 30, 300).ahead(random(20) as u64);
    let mut down: Vec<(usize, ToMember)> = Vec::new();
    let mut up: Vec<(usize, ToLeader)> = Vec::new();
    let (mut now, mut committed) = (0u64, 0);
    let mut ran = BTreeMap::new();
    for _ in 0..steps {
        let p = random(PROCESSES);
        match random(10) {
            // A call; makes the communicator first if it does not exist.
            0..=4 => {
                let c = random(MEMBERS.len());
                if !MEMBERS[c].contains(&p) || ended[p][c] {
                    continue;
                }
                let process = &mut processes[p];
                let comm = process.comms[c].get_or_insert_with(|| {
                    let comm = Arc::new(Comm::new(who(10 + c as u64, p), Role::Follow, 2).with_table(table.clone()));
                    process.job.add_follower(&comm);
                    comm
                });
                if process.made[c] == CALLS {
                    process.job.remove_follower(comm);
                    process.comms[c] = None;
                    ended[p][c] = true;
                } else if !comm.would_wait() {
                    let (call, arm) = (process.made[c], one_call(comm));
                    process.made[c] += 1;
                    let first = *ran.entry((c, call)).or_insert(arm);
                    if first != arm {
                        return Err(format!("communicator {c}, call {call}: {first} and, in process {p}, {arm}"));
                    }
                }
            }
            5 | 6 if !down.is_empty() => {
                let i = random(down.len());
                let (to, message) = down[i].clone();
                if random(4) > 0 {
                    down.swap_remove(i);
                }
                if random(8) > 0 {
                    up.extend(processes[to].job.on_message(&message).map(|answer| (to, answer)));
                }
            }
            7 | 8 if !up.is_empty() => {
                let i = random(up.len());
                let (from, message) = up[i].clone();
                if random(4) > 0 {
                    up.swap_remove(i);
                }
                leader.on_message(from, &message, now, |to, m| down.push((to, m)));
            }
            _ => {
                now += random(40) as u64;
                leader.tick(now, |to, m| down.push((to, m)));
                committed += usize::from(leader.take_ended().is_some_and(|e| e.committed));
                // The table, then AUTO again (stop file).
                if leader.is_idle() && committed < 2 {
                    let plans = if committed == 0 { job_table_marker() } else { Vec::new() };
                    leader.propose(plans, processes[0].job.begun(), now, |to, m| down.push((to, m)));
                }
                down.truncate(64);
            }
        }
    }
    Ok(ran)
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
    let who = |id| Identity { id, ordinal: 0, rank: 0, ranks: 2, nodes: 1 };
    let table = Profile::parse("AllReduce 0 max TREE/LL128\n").unwrap().plans(2, 1);
    let job = Comm::new(who(1), Role::Job, 0);
    let epoch = Arc::new(agreement::Epoch { number: 1, from_call: 3, plans: job_table_marker() });
    assert!(matches!(job.on_message(&ToMember::Propose(epoch)), Some(ToLeader::Ack { .. })));
    job.on_message(&ToMember::Commit(1));
    let later = Arc::new(Comm::new(who(2), Role::Follow, 8).with_table(table));
    job.add_follower(&later);
    let arms: Vec<String> = (0..5).map(|_| one_call(&later).to_string()).collect();
    assert_eq!(arms, ["AUTO", "AUTO", "AUTO", "TREE/LL128", "TREE/LL128"]);
}

#[test]
fn a_communicator_that_has_ended_still_counts() {
    let who = |id| Identity { id, ordinal: 0, rank: 0, ranks: 2, nodes: 1 };
    let job = Comm::new(who(1), Role::Job, 0);
    let gone = Arc::new(Comm::new(who(2), Role::Follow, 8));
    job.add_follower(&gone);
    (0..5).for_each(|_| _ = one_call(&gone));
    job.remove_follower(&gone);
    // The other ranks may be at call 2 and would switch at call 3, which this rank has already made.
    let epoch = Arc::new(agreement::Epoch { number: 1, from_call: 3, plans: job_table_marker() });
    assert_eq!(job.on_message(&ToMember::Propose(epoch)), Some(ToLeader::Refuse { epoch: 1, begun: 5 }));
}
