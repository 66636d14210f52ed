//! The operator's state: refused requests, and the checks that no allocation overlaps or is lost when processes compete
//! and are killed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use store::state::{Allocated, Commit, Committed, NewJob, NewTask, Snapshot, StateError, TaskState};
use store::{By, State};
use topology::{Allocation, Cluster, GpuId};

mod common;
use common::on_both;

const PATH: &str = "LINKWISE_STATE_TEST_FILE";
const ROLE: &str = "LINKWISE_STATE_TEST_ROLE";

fn cluster(hosts: usize) -> Cluster {
    let mut c = topology::catalog::cluster("h100").unwrap();
    let one = c.hosts[0].clone();
    c.hosts = (0..hosts).map(|i| topology::cluster::Host { name: format!("n{i}"), ..one.clone() }).collect();
    c
}

fn job(state: &State, id: &str, gpus: &str) -> NewJob {
    NewJob {
        id: id.into(),
        gpus: state.cluster().parse_gpus([gpus]).unwrap(),
        demand_gb_per_s: None,
        predicted_gb_per_s: Some(40.0),
        size: None,
        lease_s: None,
    }
}

/// A simple stream of random numbers.
fn next(random: &mut u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *random >> 33
}

/// `n` random GPUs of the free ones.
fn some(now: &Snapshot, n: usize, random: &mut u64) -> Option<Allocation> {
    let mut free: Vec<GpuId> = now.free.gpus().collect();
    (free.len() >= n)
        .then(|| Allocation::from_gpus((0..n).map(|_| free.swap_remove(next(random) as usize % free.len()))))
}

/// Allocates and releases (role `churn`), or allocates until no GPU is left (role `fill`), and prints every acknowledged change. It runs
/// only if the tests below start it.
#[test]
fn worker_of_the_state_tests() {
    let (Ok(path), Ok(role)) = (std::env::var(PATH), std::env::var(ROLE)) else { return };
    let pid = std::process::id();
    let mut random = u64::from(pid);
    let mut state = State::open(Path::new(&path)).unwrap();
    let mut out = std::io::stdout().lock();
    let mut mine: Vec<String> = Vec::new();
    for n in 0.. {
        let id = format!("w{pid}-{n}");
        let wanted = 1 + next(&mut random) as usize % 3;
        let wanted =
            if role == "fill" { wanted.min(state.snapshot().unwrap().free.gpu_count().max(1)) } else { wanted };
        // Decides on a snapshot and commits if the decision is still valid: another worker may have been faster.
        let now = state.snapshot().unwrap();
        match some(&now, wanted, &mut random) {
            Some(gpus) => {
                let none = (None, None, None);
                let (demand_gb_per_s, predicted_gb_per_s, size) = none;
                let job = NewJob { id: id.clone(), gpus, demand_gb_per_s, predicted_gb_per_s, size, lease_s: None };
                if commit(&mut state, &job, &now, "any", f64::from(n)) == Committed::Granted {
                    writeln!(out, "HAVE {id} {}", state.cluster().gpu_names(&job.gpus).join(" ")).unwrap();
                    mine.push(id);
                }
            }
            None if role == "fill" && is_full(&state) => break,
            None => {}
        }
        out.flush().unwrap();
        if role == "churn" && (mine.len() > 3 || is_full(&state)) && !mine.is_empty() {
            let gone = mine.swap_remove(next(&mut random) as usize % mine.len());
            writeln!(out, "GOING {gone}").unwrap();
            out.flush().unwrap();
            state.release(&[gone]).unwrap();
        }
    }
}

fn commit(state: &mut State, job: &NewJob, snapshot: &Snapshot, request: &str, at_unix_s: f64) -> Committed {
    state.commit(&Commit { job, snapshot, request, answer: "told", once: None, by: at_unix_s.into() }).unwrap()
}

fn is_full(state: &State) -> bool {
    state.snapshot().unwrap().free.is_empty()
}

fn worker(path: &Path, role: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "worker_of_the_state_tests", "--nocapture", "--test-threads=1"])
        .env(PATH, path)
        .env(ROLE, role)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// The jobs of a worker with their GPUs, and the jobs that it was about to release, from its output.
fn said(child: &mut Child) -> (BTreeMap<String, String>, BTreeSet<String>) {
    let (mut have, mut going) = (BTreeMap::new(), BTreeSet::new());
    for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
        if let Some((id, gpus)) = line.split_once("HAVE ").and_then(|(_, rest)| rest.split_once(' ')) {
            have.insert(id.to_owned(), gpus.to_owned());
        } else if let Some((_, id)) = line.split_once("GOING ") {
            going.insert(id.to_owned());
        }
    }
    (have, going)
}

/// Checks that every GPU is free or held by exactly one job.
fn accounted_for(state: &State, now: &Snapshot) {
    let held: usize = now.jobs.iter().map(|j| j.gpus.gpu_count()).sum();
    assert_eq!(held, now.held().gpu_count(), "jobs overlap");
    assert_eq!(held + now.free.gpu_count(), state.cluster().gpu_count(), "GPUs are lost");
}

fn workers_that_got_jobs_when_eight_fill_a_cluster(path: &Path) -> usize {
    let c = cluster(16);
    drop(State::init(path, &c, 0.0).unwrap());
    let mut workers: Vec<Child> = (0..8).map(|_| worker(path, "fill")).collect();
    let mut seen: BTreeMap<String, String> = BTreeMap::new();
    let mut workers_with_jobs = 0;
    for w in &mut workers {
        let (have, _) = said(w);
        assert!(w.wait().unwrap().success());
        workers_with_jobs += usize::from(!have.is_empty());
        for (id, gpus) in have {
            for g in gpus.split(' ') {
                assert_eq!(seen.insert(g.to_owned(), id.clone()), None, "{g} was allocated twice");
            }
        }
    }
    assert_eq!(seen.len(), c.gpu_count(), "GPUs are left although all workers ended");
    let state = State::open(path).unwrap();
    state.check().unwrap();
    let now = state.snapshot().unwrap();
    accounted_for(&state, &now);
    for j in &now.jobs {
        assert!(state.cluster().gpu_names(&j.gpus).iter().all(|g| seen[g] == j.id));
    }
    workers_with_jobs
}

#[test]
fn files_that_are_not_a_state_get_one_clear_sentence_and_stay_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let c = cluster(2);
    let refused = |p: &Path| {
        let before = std::fs::read(p).ok();
        let text = State::open(p).unwrap_err().to_string();
        if p.is_file() {
            let init = State::init(p, &c, 0.0).map(|_| ());
            assert!(init.is_err(), "{}", p.display());
            assert_eq!(before, std::fs::read(p).ok(), "{} was changed", p.display());
        }
        text
    };
    assert!(refused(&at("none")).contains("there is no state at"));
    assert!(refused(folder.path()).contains("it is a folder"));
    std::fs::write(at("text"), "not a database, but long enough to look like one ".repeat(100)).unwrap();
    assert!(refused(&at("text")).contains("it is not a SQLite database"));
    let foreign = rusqlite::Connection::open(at("foreign")).unwrap();
    foreign.execute_batch("CREATE TABLE t (a)").unwrap();
    assert!(refused(&at("foreign")).contains("of another program"));
    drop(store::Store::create(&at("store"), &c).unwrap());
    assert!(refused(&at("store")).contains("a store of measurements"));
    drop(State::init(&at("newer"), &c, 0.0).unwrap());
    rusqlite::Connection::open(at("newer")).unwrap().execute_batch("PRAGMA user_version = 7").unwrap();
    assert!(State::open(&at("newer")).unwrap_err().to_string().contains("schema version 7"));
    // A killed `init` leaves an empty file: it cannot be opened, and the next `init` completes it.
    std::fs::write(at("empty"), "").unwrap();
    assert!(State::open(&at("empty")).unwrap_err().to_string().contains("it is empty"));
    State::init(&at("empty"), &c, 0.0).unwrap();
    let again = State::init(&at("empty"), &c, 0.0).unwrap_err();
    assert!(again.is_refusal() && again.to_string().contains("with the same hosts"), "{again}");
    let e = State::open(&at("empty")).unwrap().check_cluster(&cluster(3)).unwrap_err().to_string();
    assert!(e.contains("1 host added (n2). `linkwise cluster update`"), "{e}");
}

#[test]
fn a_state_whose_file_was_moved_or_replaced_changes_nothing_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("site.state");
    let mut state = State::init(&path, &cluster(2), 1.0).unwrap();
    let mut other = State::open(&path).unwrap();
    let first = job(&state, "first", "n0:[0-7]");
    state.allocate(&first, 2.0).unwrap();
    for file in ["site.state", "site.state-wal", "site.state-shm"] {
        std::fs::rename(folder.path().join(file), folder.path().join(format!("old.{file}"))).unwrap();
    }
    let told = |e: StateError| assert!(e.is_transient() && e.to_string().contains("moved, deleted or replaced"), "{e}");
    let second = job(&state, "second", "n1:[0-7]");
    told(state.allocate(&second, 3.0).unwrap_err());
    told(other.snapshot().unwrap_err());
    let mut new = State::init(&path, &cluster(2), 4.0).unwrap();
    new.allocate(&first, 5.0).unwrap();
    told(other.allocate(&second, 6.0).unwrap_err());
    assert_eq!(new.snapshot().unwrap().jobs.len(), 1);
}

#[test]
fn a_damaged_state_gives_an_error_and_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.state");
    let mut s = State::init(&path, &cluster(4), 0.0).unwrap();
    for i in 0..8 {
        let j = job(&s, &format!("j{i}"), &format!("n{}:{i} n{}:{i}", i / 4, 2 + i / 4));
        s.allocate(&j, 1.0).unwrap();
    }
    drop(s);
    common::with_damage(&path, || {
        if let Ok(mut s) = State::open(&path) {
            let _ = s.snapshot().map_err(|e| e.to_string());
            let _ = s.check();
            let _ = s.release(&["j1".into()]);
        }
    });
}

#[test]
fn a_state_of_the_first_schema_is_migrated_with_all_its_content() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("old.state");
    let c = cluster(2);
    drop(State::init(&path, &c, 5.0).unwrap());
    // The tables of the first version, without later ones.
    let old = rusqlite::Connection::open(&path).unwrap();
    old.execute_batch(
        "DROP TABLE model_head; DROP TABLE model; DROP TABLE model_part; DROP TABLE model_lesson; DROP TABLE task;
         DROP TABLE version; DROP TABLE request_key; DROP TABLE event; DROP TABLE token; DROP TABLE held; DROP TABLE job;
         CREATE TABLE job (id TEXT PRIMARY KEY, since_unix_s REAL NOT NULL, demand_gb_per_s REAL, predicted_gb_per_s REAL,
             size_bytes INTEGER) STRICT;
         CREATE TABLE held (host TEXT NOT NULL, gpu INTEGER NOT NULL,
             job TEXT NOT NULL REFERENCES job (id) ON DELETE CASCADE, UNIQUE (host, gpu)) STRICT;
         CREATE INDEX held_by_job ON held (job);
         INSERT INTO job VALUES ('a', 2.0, NULL, 40.0, 16777216);
         INSERT INTO held VALUES ('n0', 3, 'a'), ('n1', 3, 'a');
         INSERT INTO drained VALUES ('n1', 0, 3.0, 'fan');
         PRAGMA user_version = 1;",
    )
    .unwrap();
    drop(old);
    // Two processes that open the state at the same moment migrate it once.
    let opened: Vec<_> = std::thread::scope(|s| {
        let all: Vec<_> = (0..4).map(|_| s.spawn(|| State::open(&path).map(|s| s.snapshot().unwrap()))).collect();
        all.into_iter().map(|t| t.join().unwrap().unwrap()).collect()
    });
    for now in opened {
        let a = now.job("a").unwrap();
        assert_eq!((a.gpus.gpu_count(), a.predicted_gb_per_s, now.drained.len()), (2, Some(40.0), 1));
        assert_eq!((now.free.gpu_count(), now.version), (13, 1));
    }
    let mut s = State::open(&path).unwrap();
    assert_eq!(
        s.release_once(&["a".into()], Some(&store::Once::new("k", "").unwrap()), 9.0).unwrap().value.jobs.len(),
        1
    );
}

#[test]
fn a_state_of_a_schema_before_is_migrated_and_keeps_its_content() {
    const FOURTH: &str = "DROP TABLE task; DROP INDEX event_of_job; PRAGMA user_version = 4;";
    let third = format!(
        "{FOURTH} DROP TABLE model_head; DROP TABLE model; DROP TABLE model_part; DROP TABLE model_lesson; PRAGMA user_version = 3"
    );
    for drop_new in [FOURTH, &third] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("old.state");
        let mut s = State::init(&path, &cluster(1), 5.0).unwrap();
        let a = job(&s, "a", "n0:0");
        s.allocate_once(&a, Some(&store::Once::new("k", "").unwrap()), 6.0).unwrap();
        let before = (s.snapshot().unwrap(), s.events(0, 10).unwrap());
        drop(s);
        rusqlite::Connection::open(&path).unwrap().execute_batch(drop_new).unwrap();
        let mut s = State::open(&path).unwrap();
        assert_eq!((s.snapshot().unwrap(), s.events(0, 10).unwrap()), before);
        assert!(s.allocate_once(&a, Some(&store::Once::new("k", "").unwrap()), 7.0).unwrap().repeated);
        assert_eq!((s.models_revision().unwrap(), s.models().unwrap().present), (0, 0));
        assert_eq!((s.tasks(0).unwrap(), s.last_holder("a").unwrap().map(|h| h.gpus)), (vec![], Some("n0:0".into())));
    }
}

#[test]
fn a_copy_that_was_made_while_processes_write_is_one_moment_of_the_state() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("s.db"), folder.path().join("copy.db"));
    let mut s = State::init(&path, &cluster(2), 1.0).unwrap();
    let a = job(&s, "a", "n0:[0-3]");
    s.allocate(&a, 2.0).unwrap();
    let mut child = worker(&path, "churn");
    let mut first = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
    let copied = store::db::backup(&path, &copy);
    child.kill().unwrap();
    child.wait().unwrap();
    copied.unwrap();
    let mut restored = State::open(&copy).unwrap();
    restored.check().unwrap();
    let now = restored.snapshot().unwrap();
    assert_eq!(now.job("a").unwrap().gpus, a.gpus);
    let held: usize = now.jobs.iter().map(|j| j.gpus.gpu_count()).sum();
    assert_eq!(held + now.free.gpu_count(), 16);
    let one = some(&now, 1, &mut 7);
    if let Some(gpus) = one {
        restored.allocate(&NewJob { id: "after".into(), gpus, ..a }, 3.0).unwrap();
    }
    let again = store::db::backup(&path, &copy).unwrap_err().to_string();
    assert!(again.contains("exists already"), "{again}");
    let none = store::db::backup(&folder.path().join("none.db"), &folder.path().join("x.db")).unwrap_err();
    assert!(matches!(none, StateError::Missing(_)));
    assert!(store::db::backup(Path::new("postgres://u@/d"), &copy).unwrap_err().to_string().contains("pg_dump"));
}

#[test]
fn of_copies_to_one_name_at_once_one_succeeds_and_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    drop(State::init(&path, &cluster(8), 1.0).unwrap());
    for round in 0..8 {
        let copy = folder.path().join(format!("copy{round}.db"));
        let made = std::thread::scope(|s| {
            let runs: Vec<_> = (0..6).map(|_| s.spawn(|| store::db::backup(&path, &copy))).collect();
            runs.into_iter().map(|r| r.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(made.iter().filter(|r| r.is_ok()).count(), 1, "{made:?}");
        for refused in made.into_iter().filter_map(Result::err) {
            assert!(refused.to_string().contains("exists already"), "{refused}");
        }
        State::open(&copy).unwrap().check().unwrap();
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
    assert!(!left.iter().any(|n| n.to_string_lossy().contains(".part")), "{left:?}");
}

on_both! {
    fn times_in_the_log_never_fall_also_where_clients_read_the_clock_before_they_waited(at) {
        let mut state = State::init(&at.at("times.db"), &cluster(1), 0.0).unwrap();
        // The second change waited. The fourth came after the clock had been set back by an hour, which is not hidden.
        for (i, time) in [10_000.0, 9_999.8, 10_000.1, 6_400.0, 6_401.0].into_iter().enumerate() {
            let gpu = state.cluster().parse_gpus([format!("n0:{i}").as_str()]).unwrap();
            state.drain(&gpu, "x", time).unwrap();
        }
        let times: Vec<f64> = state.events(0, 10).unwrap().iter().map(|e| e.at_unix_s).collect();
        assert_eq!(times, [10_000.0, 10_000.0, 10_000.1, 6_400.0, 6_401.0]);
    }

    fn a_task_begins_once_ends_once_and_is_lost_only_while_no_server_reports_it(at) {
        let mut s = State::init(&at.at("tasks.db"), &cluster(1), 0.0).unwrap();
        let (by, version) = (By::from(1.0), s.version().unwrap());
        let new = NewTask { what: "fit", waiting_max: 2, kept_max: 4, alone: false };
        let once = |request: &str| Some(store::Once::new("k", request).unwrap());
        let first = s.add_task(&new, once("a").as_ref(), &by).unwrap();
        let id = first.value.unwrap();
        let again = s.add_task(&new, once("a").as_ref(), &by).unwrap();
        assert_eq!((again.value, again.repeated), (Some(id), true));
        assert!(matches!(s.add_task(&new, once("b").as_ref(), &by), Err(StateError::KeyReused(_))));
        assert_eq!(s.add_task(&NewTask { alone: true, ..new }, None, &by).unwrap().value, None);
        let second = s.add_task(&new, None, &by).unwrap().value.unwrap();
        assert!(second > id);
        assert!(matches!(s.add_task(&new, None, &by), Err(StateError::TooManyTasks { max: 2 })));
        let state = |s: &State, id| s.task(id).unwrap().unwrap().state;
        // It begins once; a cancelled one does not begin.
        assert!(s.begin_task(id).unwrap() && !s.begin_task(id).unwrap());
        // Its server looked at it just before.
        assert_eq!((s.beat_tasks(&[(id, TaskState::Waiting, 0)]).unwrap(), state(&s, id)), (vec![], TaskState::Running));
        assert!(s.cancel_task(second, &by).unwrap() && !s.begin_task(second).unwrap());
        assert_eq!(state(&s, second), TaskState::Cancelled);
        assert!(!s.cancel_task(second, &by).unwrap() && !s.cancel_task(99, &by).unwrap());
        // A count that went on meanwhile saves it; one that stands still does not; the next count takes that back.
        let count = |s: &State| s.open_tasks().unwrap()[0].1;
        let before = count(&s);
        assert_eq!(s.beat_tasks(&[(id, TaskState::Running, 3)]).unwrap(), [0; 0]);
        assert!(!s.lose_task(id, before, "{}").unwrap());
        assert!(s.lose_task(id, before + 1, "{}").unwrap());
        assert_eq!((state(&s, id), s.open_tasks().unwrap().len()), (TaskState::Failed, 0));
        assert_eq!(s.beat_tasks(&[(id, TaskState::Running, 3)]).unwrap(), [0; 0]);
        assert_eq!((state(&s, id), s.task(id).unwrap().unwrap().outcome), (TaskState::Running, None));
        // Who asks for its end is heard; a count after the end changes nothing.
        assert!(s.cancel_task(id, &by).unwrap());
        assert_eq!((s.beat_tasks(&[(id, TaskState::Running, 3)]).unwrap(), state(&s, id)), (vec![id], TaskState::Running));
        s.end_task(id, TaskState::Failed, Some("why")).unwrap();
        assert_eq!(s.beat_tasks(&[(id, TaskState::Running, 3)]).unwrap(), [id]);
        let ended = s.task(id).unwrap().unwrap();
        assert_eq!((ended.state, ended.outcome.as_deref(), ended.step), (TaskState::Failed, Some("why"), 3));
        s.end_task(second, TaskState::Done, Some("result")).unwrap();
        let listed: Vec<_> = s.tasks(0).unwrap().into_iter().map(|t| (t.id, t.outcome)).collect();
        assert_eq!(listed, [(id, Some("why".into())), (second, None)], "a list has no results");
        // One that was called lost before it began runs all the same.
        let slow = s.add_task(&new, None, &by).unwrap().value.unwrap();
        assert!(s.lose_task(slow, 0, "{}").unwrap() && s.begin_task(slow).unwrap());
        assert_eq!((state(&s, slow), s.task(slow).unwrap().unwrap().outcome), (TaskState::Running, None));
        assert_eq!(s.version().unwrap(), version, "no decision is based on tasks");
        // The oldest that have ended are forgotten.
        for _ in 0..5 {
            let id = s.add_task(&new, None, &by).unwrap().value.unwrap();
            s.begin_task(id).unwrap();
        }
        assert_eq!((s.task(id).unwrap(), s.tasks(0).unwrap().len()), (None, 6));
        let log: Vec<String> = s.events(0, 100).unwrap().into_iter().map(|e| format!("{} {}", e.what, e.subject)).collect();
        assert_eq!(log[..3], [format!("task {id} fit"), format!("task {second} fit"), format!("cancel {second} fit")]);
        assert_eq!(s.snapshot().unwrap().free.gpu_count(), 8);
    }

    fn a_job_of_another_tenant_is_answered_as_a_name_that_is_taken(at) {
        let mut s = State::init(&at.at("tenants.db"), &cluster(1), 0.0).unwrap();
        let a = job(&s, "a", "n0:0");
        let by = |who: &'static str, own_only| By { who, why: "", at_unix_s: 2.0, own_only };
        let place = |s: &mut State, by| {
            let snapshot = s.snapshot().unwrap();
            s.commit(&Commit { job: &a, snapshot: &snapshot, request: "A", answer: "told", once: None, by })
        };
        let (ann, eve, bob) = (by("red/ann", true), by("red/eve", true), by("blue/bob", true));
        assert_eq!(place(&mut s, ann).unwrap(), Committed::Granted);
        for (who, is_told) in [(ann, true), (eve, true), (bob, false), (by("scheduler", true), true), (by("blue/op", false), true)] {
            let told = s.answered("a", "A", None, &who);
            assert_eq!(told.as_ref().is_ok_and(|t| t.as_deref() == Some("told")), is_told, "{who:?}: {told:?}");
            let again = place(&mut s, who);
            assert_eq!(again.is_ok_and(|c| c == Committed::Repeated("told".into())), is_told, "{who:?}");
            let named = s.allocate_once(&a, None, who);
            assert_eq!(named.is_ok_and(|d| d.value == Allocated::Already), is_told, "{who:?}");
        }
        assert!(matches!(s.answered("a", "A", None, &bob), Err(StateError::JobExists { .. })));
    }

    fn who_had_the_gpus_of_a_job_is_known_after_its_end(at) {
        let mut s = State::init(&at.at("holders.db"), &cluster(1), 0.0).unwrap();
        let holder = |s: &State| s.last_holder("a").unwrap().map(|h| (h.who, h.gpus, h.ended_at_unix_s));
        assert_eq!(holder(&s), None);
        let a = job(&s, "a", "n0:[0-2]");
        s.allocate_once(&a, None, By { who: "ada", ..By::from(2.0) }).unwrap();
        assert_eq!(holder(&s), Some(("ada".into(), "n0:[0-2]".into(), None)));
        s.release(&["a".into()]).unwrap();
        let end = s.events(0, 10).unwrap().last().unwrap().at_unix_s;
        assert_eq!(holder(&s), Some(("ada".into(), "n0:[0-2]".into(), Some(end))));
        let b = job(&s, "a", "n0:7");
        s.allocate_once(&b, None, By { who: "bob", ..By::from(5.0) }).unwrap();
        assert_eq!(holder(&s), Some(("bob".into(), "n0:7".into(), None)));
        // What ada had, while bob has the name.
        let had = |s: &State, who| s.last_held_by("a", who).unwrap().map(|h| (h.gpus, h.ended_at_unix_s));
        assert_eq!(had(&s, "ada"), Some(("n0:[0-2]".into(), Some(end))));
        assert_eq!((had(&s, "bob"), had(&s, "eve")), (Some(("n0:7".into(), None)), None));
    }

fn eight_processes_that_fill_a_cluster_at_the_same_time_never_take_a_gpu_twice(at) {
    // On a busy machine the first process may end before the others begin. Such a round does not test anything.
    let competed = |n: i32| workers_that_got_jobs_when_eight_fill_a_cluster(&at.at(&format!("{n}.state"))) > 1;
    assert!((0..5).any(competed), "the processes did not compete");
}

fn processes_killed_at_random_moments_leave_a_state_that_holds_every_acknowledged_job_whole(at) {
    let kills = if at.is_postgres() { 15 } else { 60 };
    let path = at.at("s.state");
    let c = cluster(8);
    let watch = State::init(&path, &c, 0.0).unwrap();
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut acknowledged = 0;
    for kill in 0..kills {
        // Two at a time, so that one is often killed while the other waits for its lock or uses its log.
        let seen = watch.last_event().unwrap();
        let mut pair = [worker(&path, "churn"), worker(&path, "churn")];
        // A kill meets workers that are at work, however long they took to start.
        let start = std::time::Instant::now();
        while watch.last_event().unwrap() < seen + 5 && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(next(&mut random) & 0x7fff));
        pair.iter_mut().for_each(|w| w.kill().unwrap());
        let mut have = BTreeMap::new();
        let mut going = BTreeSet::new();
        for w in &mut pair {
            let (h, g) = said(w);
            w.wait().unwrap();
            have.extend(h);
            going.extend(g);
        }
        acknowledged += have.len();
        let mut state = State::open(&path).unwrap_or_else(|e| panic!("after kill {kill}: {e}"));
        // PostgreSQL ends the commit of a killed client. This write waits for its lock.
        state.log(&store::By::from(0.0), "observe", "", &Allocation::default()).unwrap();
        state.check().unwrap_or_else(|e| panic!("after kill {kill}: {e}"));
        let now = state.snapshot().unwrap();
        accounted_for(&state, &now);
        for (id, gpus) in &have {
            match now.job(id) {
                Some(j) => {
                    assert_eq!(state.cluster().gpu_names(&j.gpus).join(" "), *gpus, "kill {kill}: {id} is incomplete")
                }
                None => assert!(going.contains(id), "kill {kill}: {id} was acknowledged and is lost"),
            }
        }
        // The operator releases the jobs of killed processes.
        let dead: Vec<String> = now.jobs.iter().map(|j| j.id.clone()).collect();
        state.release(&dead).unwrap();
        assert_eq!(state.snapshot().unwrap().free.gpu_count(), c.gpu_count());
    }
    assert!(acknowledged > kills, "the workers allocated too rarely: {acknowledged}");
}

fn a_gpu_is_allocated_once_and_a_repeated_command_changes_nothing(at) {
    let mut s = State::init(&at.at("s.state"), &cluster(2), 1.0).unwrap();
    let a = job(&s, "a", "n0:0 n0:1 n1:7");
    assert_eq!(s.allocate(&a, 2.0).unwrap(), Allocated::Now);
    assert_eq!(s.allocate(&a, 3.0).unwrap(), Allocated::Already);
    assert_eq!(s.snapshot().unwrap().jobs[0].since_unix_s, 2.0);
    let told = |e: StateError| (e.is_refusal(), e.to_string());
    let other = job(&s, "a", "n0:2");
    let (refusal, text) = told(s.allocate(&other, 3.0).unwrap_err());
    assert!(refusal && text.contains("job `a` already holds n0:[0-1] n1:7"), "{text}");
    let overlap = job(&s, "b", "n1:6 n1:7");
    let (refusal, text) = told(s.allocate(&overlap, 3.0).unwrap_err());
    assert!(refusal && text.contains("n1:7 is held by job `a`; 13 GPUs are free"), "{text}");
    let (refusal, text) = told(s.release(&["a".into(), "c".into()]).unwrap_err());
    assert!(!refusal && text.contains("no job `c` holds GPUs; jobs that do: a"), "{text}");
    assert_eq!(s.snapshot().unwrap().jobs.len(), 1, "all jobs are released, or none");
    assert_eq!(s.release(&["a".into()]).unwrap()[0].gpus, a.gpus);
    assert_eq!(s.snapshot().unwrap().free.gpu_count(), 16);
}

fn drained_gpus_are_not_allocated_and_running_jobs_keep_theirs(at) {
    let mut c = cluster(2);
    c.hosts[1].drained = topology::GpuMask(0x80);
    let mut s = State::init(&at.at("s.state"), &c, 1.0).unwrap();
    let a = job(&s, "a", "n0:0");
    s.allocate(&a, 1.0).unwrap();
    let n0 = s.cluster().parse_gpus(["n0"]).unwrap();
    let on = s.drain(&n0, "fan", 2.0).unwrap();
    assert_eq!(on.jobs_going_on, ["a"]);
    s.drain(&n0, "fan 3", 3.0).unwrap();
    let now = s.snapshot().unwrap();
    assert_eq!((now.free.gpu_count(), now.drained.len(), now.drained[0].reason.as_str()), (7, 8, "fan 3"));
    let b = job(&s, "b", "n0:1");
    let text = s.allocate(&b, 2.0).unwrap_err().to_string();
    assert!(text.contains("n0:1 is drained (fan 3)"), "{text}");
    let b = job(&s, "b", "n1:7");
    let text = s.allocate(&b, 2.0).unwrap_err().to_string();
    assert!(text.contains("n1:7 is drained (in the cluster file)"), "{text}");
    assert_eq!(s.undrain(&n0).unwrap(), 8);
    assert_eq!(s.undrain(&n0).unwrap(), 0);
    assert_eq!(s.snapshot().unwrap().free.gpu_count(), 14);
}

fn ids_reasons_and_numbers_have_limits(at) {
    let mut s = State::init(&at.at("s.state"), &cluster(1), 1.0).unwrap();
    for id in ["", " ", "-a", "a b", "a\n", "ä", "a;b", &"x".repeat(129)] {
        let j = NewJob { id: id.into(), ..job(&s, "x", "n0:0") };
        assert!(matches!(s.allocate(&j, 1.0), Err(StateError::Invalid(_))), "{id:?}");
    }
    for v in [f64::NAN, -1.0, f64::INFINITY] {
        let j = NewJob { demand_gb_per_s: Some(v), ..job(&s, "x", "n0:0") };
        assert!(matches!(s.allocate(&j, 1.0), Err(StateError::Invalid(_))), "{v}");
    }
    let none = NewJob { gpus: Allocation::default(), ..job(&s, "x", "n0:0") };
    assert!(matches!(s.allocate(&none, 1.0), Err(StateError::Invalid(_))));
    let n0 = s.cluster().parse_gpus(["n0"]).unwrap();
    for reason in ["a\nb", &"x".repeat(2000)] {
        assert!(matches!(s.drain(&n0, reason, 1.0), Err(StateError::Invalid(_))));
    }
    assert_eq!(s.snapshot().unwrap().free.gpu_count(), 8);
}

fn a_decision_is_valid_while_its_hosts_and_their_suspects_are_unchanged(at) {
    let mut s = State::init(&at.at("s.state"), &cluster(3), 1.0).unwrap();
    let now = s.snapshot().unwrap();
    let (a, b) = (job(&s, "a", "n0:0 n1:0"), job(&s, "b", "n1:1"));
    assert_eq!(commit(&mut s, &a, &now, "A", 1.0), Committed::Granted);
    let shares_a_host = commit(&mut s, &b, &now, "B", 1.0);
    assert_eq!(shares_a_host, Committed::Changed, "the contention with `a` was not predicted");
    let elsewhere = job(&s, "c", "n2:0 n2:1");
    assert_eq!(commit(&mut s, &elsewhere, &now, "C", 1.0), Committed::Granted, "`a` is on other hosts");
    let now = s.snapshot().unwrap();
    let suspect = |probability| store::state::Suspect {
        defect: 0,
        host: topology::HostId(1),
        component: "nic 1".into(),
        factor: 0.5,
        probability,
    };
    assert!(s.set_suspects(&[suspect(0.7)]).unwrap());
    assert_eq!(commit(&mut s, &b, &now, "B", 1.0), Committed::Changed);
    let now = s.snapshot().unwrap();
    assert!(!s.set_suspects(&[suspect(0.7)]).unwrap(), "the same suspects void no decision");
    assert!(!s.set_suspects(&[suspect(0.703)]).unwrap(), "nor do suspects with nearly the same probability");
    assert_eq!(s.version().unwrap(), now.version);
    s.drain(&s.cluster().parse_gpus(["n1:7"]).unwrap(), "", 2.0).unwrap();
    assert_eq!(commit(&mut s, &b, &now, "B", 1.0), Committed::Changed);
    let now = s.snapshot().unwrap();
    assert_eq!(commit(&mut s, &b, &now, "B", 1.0), Committed::Granted);
}

fn a_suspicion_of_another_host_voids_no_decision_and_small_steps_add_up(at) {
    let mut s = State::init(&at.at("s.state"), &cluster(3), 1.0).unwrap();
    let suspect = |host, probability, factor| store::state::Suspect {
        defect: host,
        host: topology::HostId(host),
        component: "nic 1".into(),
        factor,
        probability,
    };
    assert!(s.set_suspects(&[suspect(0, 0.7, 0.5), suspect(1, 0.4, 0.5)]).unwrap());
    let now = s.snapshot().unwrap();
    assert!(!s.set_suspects(&[suspect(0, 0.706, 0.515), suspect(1, 0.4, 0.5)]).unwrap());
    assert!(
        s.set_suspects(&[suspect(0, 0.712, 0.5), suspect(1, 0.404, 0.5)]).unwrap(),
        "compared with the stored list"
    );
    let (a, b, c) = (job(&s, "a", "n1:0"), job(&s, "b", "n0:0"), job(&s, "c", "n2:0"));
    assert_eq!(commit(&mut s, &a, &now, "A", 1.0), Committed::Granted, "its host is unchanged");
    assert_eq!(commit(&mut s, &b, &now, "B", 1.0), Committed::Changed);
    assert!(s.set_suspects(&[suspect(2, 0.7, 0.5)]).unwrap());
    assert_eq!(commit(&mut s, &c, &now, "C", 1.0), Committed::Changed, "its host became suspected");
    assert_eq!(commit(&mut s, &b, &now, "B", 1.0), Committed::Changed, "its host is no longer suspected");
}

fn a_repeated_commit_gets_the_same_answer_and_another_request_for_the_job_is_refused(at) {
    let mut s = State::init(&at.at("s.state"), &cluster(2), 1.0).unwrap();
    let a = job(&s, "a", "n0:0");
    let now = s.snapshot().unwrap();
    assert_eq!(commit(&mut s, &a, &now, "A", 1.0), Committed::Granted);
    let other_gpus = job(&s, "a", "n1:0");
    let now = s.snapshot().unwrap();
    let again = commit(&mut s, &other_gpus, &now, "A", 2.0);
    assert_eq!(again, Committed::Repeated("told".into()));
    assert_eq!(s.answered("a", "A", None, &2.0.into()).unwrap().as_deref(), Some("told"));
    assert!(matches!(s.answered("a", "B", None, &2.0.into()), Err(StateError::JobExists { .. })));
    s.release(&["a".into()]).unwrap();
    assert_eq!(s.answered("a", "A", None, &2.0.into()).unwrap(), None, "a released name is free");

    // With a key the answer is kept after the job has ended.
    let once = store::Once::new("k1", "A").unwrap();
    let snapshot = s.snapshot().unwrap();
    let c = Commit { job: &a, snapshot: &snapshot, request: "A", answer: "x", once: Some(&once), by: 3.0.into() };
    assert_eq!(s.commit(&c).unwrap(), Committed::Granted);
    let (first, second) =
        (s.release_once(&["a".into()], None, 4.0).unwrap(), s.answered("a", "A", Some(&once), &2.0.into()).unwrap());
    assert_eq!((first.value.jobs.len(), second.as_deref()), (1, Some("x")));
    let other = store::Once::new("k1", "B").unwrap();
    assert!(matches!(s.answered("a", "B", Some(&other), &2.0.into()), Err(StateError::KeyReused(_))));
}

fn a_write_under_a_key_is_done_once(at) {
    let mut s = State::init(&at.at("s.state"), &cluster(2), 1.0).unwrap();
    let a = job(&s, "a", "n0:0");
    let key = |k: &str| store::Once::new(k, k).unwrap();
    let (x, r, d, u) = (key("x"), key("r"), key("d"), key("u"));
    assert!(!s.allocate_once(&a, Some(&x), 1.0).unwrap().repeated);
    let first = s.release_once(&["a".into()], Some(&r), 2.0).unwrap();
    let again = s.release_once(&["a".into()], Some(&r), 3.0).unwrap();
    assert_eq!((first.value, again.repeated), (again.value, true));
    assert!(s.allocate_once(&a, Some(&x), 4.0).unwrap().repeated, "a late repetition does not allocate again");
    assert_eq!(s.snapshot().unwrap().jobs.len(), 0);
    let n0 = s.cluster().parse_gpus(["n0"]).unwrap();
    s.drain_once(&n0, "fan", Some(&d), 5.0).unwrap();
    assert_eq!(s.undrain_once(&n0, Some(&u), 6.0).unwrap().value, 8);
    assert!(s.drain_once(&n0, "fan", Some(&d), 7.0).unwrap().repeated);
    assert_eq!(s.undrain_once(&n0, Some(&u), 8.0).unwrap(), store::Done { value: 8, repeated: true });
    assert!(s.snapshot().unwrap().drained.is_empty());
}

fn hosts_without_jobs_are_added_and_removed_and_the_rest_stays(at) {
    let path = at.at("s.state");
    let four = cluster(4);
    let mut s = State::init(&path, &four, 0.0).unwrap();
    s.allocate(&job(&s, "a", "n1:0 n1:1"), 1.0).unwrap();
    for host in ["n2", "n3"] {
        s.drain(&four.parse_gpus([host]).unwrap(), "fan", 1.0).unwrap();
    }
    let open_before = State::open(&path).unwrap();
    let mut other = four.clone();
    other.hosts.reverse(); // n3 n2 n1 n0
    other.hosts[0].name = "n7".into();
    assert!(matches!(s.check_cluster(&other), Err(StateError::HostsChanged { .. })));
    assert_eq!(s.update_cluster(&other).unwrap().text(), "1 host added (n7), 1 host removed (n3)");
    let now = s.snapshot().unwrap();
    assert_eq!(other.gpu_names(&now.job("a").unwrap().gpus), ["n1:0", "n1:1"]);
    assert_eq!(now.drained_gpus(), other.parse_gpus(["n2"]).unwrap());
    assert!(matches!(open_before.snapshot(), Err(StateError::ClusterChanged(_))));
    assert_eq!(State::open(&path).unwrap().cluster(), &other);
    let without_n1 =
        Cluster { hosts: other.hosts.iter().filter(|h| h.name != "n1").cloned().collect(), ..other.clone() };
    let held = s.update_cluster(&without_n1).unwrap_err();
    assert!(matches!(&held, StateError::HostsHeld { host, job, more: 0 } if host == "n1" && job == "a"), "{held}");
    assert_eq!(s.snapshot().unwrap(), now, "nothing was changed");
    assert!(matches!(s.update_cluster(&cluster(1)), Err(StateError::OtherCluster { .. })));
}

fn all_hosts_may_be_renamed_at_once_while_jobs_run(at) {
    let path = at.at("s.state");
    let mut s = State::init(&path, &cluster(4), 0.0).unwrap();
    s.allocate(&job(&s, "a", "n1:0 n2:1"), 1.0).unwrap();
    s.drain(&cluster(4).parse_gpus(["n3"]).unwrap(), "fan", 1.0).unwrap();
    let renames = store::Renames::parse(["n[0-3]=gpu-[0-3]"]).unwrap();
    let renamed = renames.apply(&cluster(4));
    for _ in 0..2 {
        assert!(s.update_cluster_renamed(&renamed, &renames).unwrap().is_empty());
        let now = State::open(&path).unwrap().snapshot().unwrap();
        assert_eq!(renamed.gpu_names(&now.job("a").unwrap().gpus), ["gpu-1:0", "gpu-2:1"]);
        assert_eq!(now.drained_gpus(), renamed.parse_gpus(["gpu-3"]).unwrap());
    }
    // One that is renamed, one more and one less in the same step.
    let mut other = renamed.clone();
    other.hosts[0].name = "new".into();
    other.hosts[2].name = "rack-2".into();
    let two = store::Renames::parse(["gpu-2=rack-2"]).unwrap();
    let changes = s.update_cluster_renamed(&other, &two).unwrap();
    assert_eq!(changes.text(), "1 host added (new), 1 host removed (gpu-0)");
    assert_eq!(other.gpu_names(&s.snapshot().unwrap().job("a").unwrap().gpus), ["gpu-1:0", "rack-2:1"]);
}
}
