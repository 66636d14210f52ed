//! Concurrent clients: no GPU is allocated twice, all clients make progress, and no search blocks a write.

mod common;

use common::{cluster, engine, model, take};
use engine::{ATTEMPTS_FREE, ATTEMPTS_MAX, Engine, EngineError, PlaceQuery, ReleaseRequest};
use place::search::SearchEntry;
use place::{Objective, Refusal, Registry, Search, SearchResult};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use store::State;

#[test]
fn sixty_four_concurrent_clients_share_no_gpu_and_all_get_their_jobs() {
    // On a busy machine each client may end before the next begins. Such a round does not test anything.
    assert!((0..5).any(|_| most_decisions_for_a_job() > 1), "the clients did not compete");
}

/// Lets 64 clients take all GPUs at the same time, and checks what they got.
fn most_decisions_for_a_job() -> u32 {
    const CLIENTS: usize = 64;
    const JOBS: usize = 2;
    let folder = tempfile::tempdir().unwrap();
    let c = cluster(32); // 256 GPUs: exactly 64 clients with two jobs of two GPUs each
    let m = model(&c);
    let engines: Vec<Engine> = (0..4).map(|_| engine(folder.path(), &c, m.clone())).collect(); // as in four processes
    let got: Vec<(String, Vec<String>, u32)> = std::thread::scope(|s| {
        let client = |w: usize| {
            let (engine, c) = (&engines[w % engines.len()], &c);
            (0..JOBS)
                .map(|n| {
                    let job = format!("w{w}-{n}");
                    let a = engine.place(&take(c, 2, &job), 1.0).unwrap_or_else(|e| panic!("{job}: {e}"));
                    (job, a.gpus.names().collect(), a.committed.unwrap().attempts)
                })
                .collect::<Vec<_>>()
        };
        let all: Vec<_> = (0..CLIENTS).map(|w| s.spawn(move || client(w))).collect();
        all.into_iter().flat_map(|t| t.join().unwrap()).collect()
    });
    let mut holder = BTreeMap::new();
    for (job, gpus, attempts) in &got {
        assert!((1..=ATTEMPTS_MAX).contains(attempts));
        for g in gpus {
            assert_eq!(holder.insert(g.clone(), job.clone()), None, "{g} was allocated twice");
        }
    }
    assert_eq!((got.len(), holder.len()), (CLIENTS * JOBS, c.gpu_count()), "GPUs are left");
    let most = got.iter().map(|g| g.2).max().unwrap();
    println!("at most {most} decisions for a job, {ATTEMPTS_FREE} of them without a turn");
    let now = engines[0].snapshot().unwrap();
    for j in &now.jobs {
        assert!(c.gpu_names(&j.gpus).iter().all(|g| holder[g] == j.id));
    }
    assert!(now.free.is_empty());
    most
}

#[test]
fn eight_simultaneous_copies_of_a_commit_are_granted_once_and_get_the_same_answer() {
    let c = cluster(2);
    let m = model(&c);
    for round in 0..6 {
        let folder = tempfile::tempdir().unwrap();
        let engines: Vec<Engine> = (0..8).map(|_| engine(folder.path(), &c, m.clone())).collect(); // as in eight processes
        let start = std::sync::Barrier::new(engines.len());
        let client = |e: &Engine| {
            start.wait();
            let query = engine::PlaceQuery { key: Some("k".into()), ..take(&c, 16, "all") };
            e.place(&query, 1.0).unwrap_or_else(|e| panic!("round {round}: {e}"))
        };
        let client = &client;
        let answers: Vec<_> = std::thread::scope(|s| {
            let all: Vec<_> = engines.iter().map(|e| s.spawn(move || client(e))).collect();
            all.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(answers.iter().all(|a| a.gpus == answers[0].gpus));
        assert_eq!(answers.iter().filter(|a| !a.committed.as_ref().unwrap().repeated).count(), 1);
    }
}

/// Ends of the two channels of [`Slow`]: a registry makes searches with plain functions, which cannot capture variables.
static SLOW: Mutex<Option<(Sender<()>, Receiver<()>)>> = Mutex::new(None);

/// A search that reports its start, and waits for a message before it ends.
struct Slow;

impl Search for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }
    fn search(&self, objective: &Objective, keep: usize) -> Result<SearchResult, Refusal> {
        let ends = SLOW.lock().unwrap();
        let (begun, go_on) = ends.as_ref().unwrap();
        begun.send(()).unwrap();
        go_on.recv().unwrap();
        place::search::Exact.search(objective, keep)
    }
}

#[test]
fn writes_proceed_during_a_search_and_an_outdated_decision_is_repeated() {
    const WRITES: usize = 20;
    let folder = tempfile::tempdir().unwrap();
    let c = cluster(4);
    let other = engine(folder.path(), &c, model(&c));
    let (begun, has_begun) = channel();
    let (go, go_on) = channel();
    *SLOW.lock().unwrap() = Some((begun, go_on));
    let mut searches = Registry::shipped();
    let entry = SearchEntry { name: "slow", about: "waits", build: |_| Box::new(Slow) };
    searches.add_search(entry).unwrap();
    let slow = Engine::builder(c.clone())
        .state(State::open(&folder.path().join("s.state")).unwrap())
        .model(model(&c))
        .searches(&searches)
        .build()
        .unwrap();
    let query = engine::PlaceQuery { search: "slow".into(), ..take(&c, 8, "slow") };
    std::thread::scope(|s| {
        let placed = s.spawn(|| slow.place(&query, 1.0).unwrap());
        // The first decision is running, and continues only after all these writes. If it held a lock, the writes would
        // fail.
        has_begun.recv().unwrap();
        for n in 0..WRITES {
            let job = format!("quick-{n}");
            other.place(&take(&c, 8, &job), 1.0).unwrap();
            // The same engine writes, too: it locks its connection for single writes only.
            slow.release(&ReleaseRequest { jobs: vec![job], key: None }, 1.0).unwrap();
        }
        other.place(&take(&c, 8, "stays"), 1.0).unwrap();
        go.send(()).unwrap();
        // The GPUs that it chose are held by now: the engine decides again, on the present state.
        has_begun.recv().unwrap();
        go.send(()).unwrap();
        let a = placed.join().unwrap();
        assert_eq!(a.committed.unwrap().attempts, 2);
    });
    let now = other.snapshot().unwrap();
    assert_eq!((now.jobs.len(), now.free.gpu_count()), (2, 16), "no GPU is held twice");
}

#[test]
fn a_repeated_commit_gets_the_same_answer_and_the_decision_stays() {
    let folder = tempfile::tempdir().unwrap();
    let c = cluster(2);
    let e = engine(folder.path(), &c, model(&c));
    let query = take(&c, 4, "train-7");
    let first = e.place(&query, 1.0).unwrap();
    let again = e.place(&query, 2.0).unwrap();
    assert!(!first.committed.as_ref().unwrap().repeated && again.committed.as_ref().unwrap().repeated);
    let without = |a: &engine::PlaceAnswer| engine::PlaceAnswer { committed: None, ..a.clone() };
    assert_eq!(without(&first), without(&again));
    let larger = e.place(&take(&c, 8, "train-7"), 3.0).unwrap_err();
    assert_eq!((larger.code(), larger.kind()), ("job_exists", engine::ErrorKind::Impossible));

    // With a key the answer is kept after the job's end: a late repetition must not place the job again.
    let keyed = engine::PlaceQuery { key: Some("k".into()), ..take(&c, 4, "keyed") };
    let first = e.place(&keyed, 4.0).unwrap();
    e.release(&ReleaseRequest { jobs: vec!["keyed".into()], key: None }, 5.0).unwrap();
    assert_eq!(without(&e.place(&keyed, 6.0).unwrap()), without(&first));
    assert_eq!(e.snapshot().unwrap().jobs.len(), 1);
    let other = engine::PlaceQuery { key: Some("k".into()), ..take(&c, 6, "keyed") };
    assert!(matches!(e.place(&other, 7.0), Err(e @ EngineError::State(_)) if e.code() == "key_reused"));
}

#[test]
fn a_question_waits_for_no_write_of_an_engine_that_reads_apart() {
    let (folder, c) = (tempfile::tempdir().unwrap(), cluster(2));
    let mut engine = engine(folder.path(), &c, model(&c));
    engine.read_apart().unwrap();
    let other = rusqlite::Connection::open(folder.path().join("s.state")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    std::thread::scope(|s| {
        let write = s.spawn(|| engine.place(&take(&c, 2, "a"), 1.0));
        let asked = PlaceQuery::new(place::Request::new(4, c.usable(), common::SIZE));
        // The write has the engine's first connection for as long as the other process has the lock.
        for _ in 0..50 {
            engine.place(&asked, 1.0).unwrap();
            engine.last_event().unwrap();
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(!write.is_finished(), "the write waits for the other process");
        other.execute_batch("ROLLBACK").unwrap();
        write.join().unwrap().unwrap();
    });
    assert_eq!(engine.snapshot().unwrap().jobs.len(), 1, "what was written is read");
}
