//! One state for several servers, in PostgreSQL: clients that compete, connections that break, and a database that is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use store::state::{Commit, Committed, NewJob, StateError};
use store::{By, ClusterStateStore, Once, Query, ReadingStore, State, Store};
use topology::{Allocation, Cluster, GpuId};

#[path = "common/postgres.rs"]
#[allow(dead_code)] // other tests use the rest
mod postgres;
use postgres::{Server, shared, skip};

fn cluster(hosts: usize) -> Cluster {
    let mut c = topology::catalog::cluster("h100").unwrap();
    let one = c.hosts[0].clone();
    c.hosts = (0..hosts).map(|i| topology::cluster::Host { name: format!("n{i}"), ..one.clone() }).collect();
    c
}

fn job(id: &str, gpus: Allocation) -> NewJob {
    let none = (None, None, None, None);
    let (demand_gb_per_s, predicted_gb_per_s, size, lease_s) = none;
    NewJob { id: id.into(), gpus, demand_gb_per_s, predicted_gb_per_s, size, lease_s }
}

fn name_of(url: &str) -> &str {
    url.split(['/', '?']).nth(3).unwrap()
}

#[test]
fn a_job_is_allocated_and_read_back_through_the_trait() {
    let Some(server) = shared("tests_of_the_store_on_postgresql") else { return };
    let url = PathBuf::from(server.database());
    assert!(matches!(State::open(&url), Err(StateError::Missing(_))));
    let c = cluster(2);
    let mut state: Box<dyn ClusterStateStore> = Box::new(State::init(&url, &c, 1.0).unwrap());
    assert!(matches!(State::init(&url, &c, 1.0), Err(StateError::Exists { same: true, .. })));
    let gpus = c.parse_gpus(["n0:[0-3]"]).unwrap();
    state.allocate(&job("a", gpus.clone()), None, &By::from(2.0)).unwrap();
    let other: Box<dyn ClusterStateStore> = Box::new(State::open(&url).unwrap());
    assert_eq!(other.snapshot().unwrap().job("a").unwrap().gpus, gpus);
    assert_eq!(other.events(0, 10).unwrap()[0].what, "allocate");
    let store: Box<dyn ReadingStore> = Box::new(Store::create(&url, &c).unwrap());
    assert_eq!(store.count(&Query::all()).unwrap(), 0, "the readings live in the same database");
}

/// The keys of the GPUs that clients hold, as they know it.
#[derive(Default)]
struct Ledger(Mutex<BTreeMap<GpuId, String>>);

impl Ledger {
    /// A commit was acknowledged.
    fn holds(&self, job: &NewJob) {
        let mut held = self.0.lock().unwrap();
        for g in job.gpus.gpus() {
            let before = held.insert(g, job.id.clone());
            assert_eq!(before, None, "{g:?} was given to {} while another job held it", job.id);
        }
    }
    /// A release is about to be sent.
    fn gives_back(&self, job: &NewJob) {
        let mut held = self.0.lock().unwrap();
        job.gpus.gpus().for_each(|g| assert_eq!(held.remove(&g).as_deref(), Some(job.id.as_str())));
    }
}

/// A request until it has an answer. A client without an answer sends the same again.
fn until_answered<T>(mut ask: impl FnMut() -> Result<T, StateError>) -> T {
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(e) if e.is_transient() => std::thread::sleep(Duration::from_millis(20)),
            Err(e) => panic!("{e}"),
        }
    }
}

fn client(number: usize, state: &Mutex<State>, ledger: &Ledger, end: &AtomicBool, commits: &AtomicUsize) {
    let mut random = number as u64 + 1;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    let mut mine: Vec<NewJob> = Vec::new();
    for n in 0.. {
        if end.load(SeqCst) {
            break;
        }
        let snapshot = until_answered(|| state.lock().unwrap().snapshot());
        let mut free: Vec<GpuId> = snapshot.free.gpus().collect();
        let wanted = 1 + next(3);
        if free.len() >= wanted && mine.len() < 3 {
            let id = format!("c{number}-{n}");
            let new = job(&id, Allocation::from_gpus((0..wanted).map(|_| free.swap_remove(next(free.len())))));
            let (once, answer) = (Once::new(&id, &id).unwrap(), format!("answer {id}"));
            let (request, by) = (id.as_str(), By::from(n as f64));
            let commit = Commit { job: &new, snapshot: &snapshot, request, answer: &answer, once: Some(&once), by };
            match until_answered(|| state.lock().unwrap().commit(&commit)) {
                Committed::Changed => continue,
                Committed::Granted => {}
                Committed::Repeated(told) => assert_eq!(told, answer),
            }
            ledger.holds(&new);
            commits.fetch_add(1, SeqCst);
            let again = until_answered(|| state.lock().unwrap().commit(&commit));
            assert_eq!(again, Committed::Repeated(answer), "the same key has the same answer");
            mine.push(new);
        } else if !mine.is_empty() {
            let gone = mine.swap_remove(next(mine.len()));
            ledger.gives_back(&gone);
            let once = Once::new(&format!("end-{}", gone.id), "").unwrap();
            let mut end = || state.lock().unwrap().release_once(std::slice::from_ref(&gone.id), Some(&once), n as f64);
            let first = until_answered(&mut end).value;
            assert_eq!((&first.jobs[0].id, &first.jobs[0].gpus), (&gone.id, &gone.gpus));
            let again = until_answered(&mut end);
            assert!(again.repeated && again.value == first, "the same key has the same answer");
        }
    }
}

/// Clients of two servers allocate and release while `meanwhile` runs; then their history is compared with the state. Returns the number
/// of commits.
fn compete(url: &Path, clients: usize, meanwhile: impl FnOnce(&AtomicUsize)) -> usize {
    let c = cluster(8);
    drop(State::init(url, &c, 0.0).unwrap());
    let servers = [0, 1].map(|_| Mutex::new(State::open(url).unwrap()));
    let (ledger, end, commits) = (Ledger::default(), AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|s| {
        for number in 0..clients {
            let (state, ledger, end, commits) = (&servers[number % 2], &ledger, &end, &commits);
            s.spawn(move || client(number, state, ledger, end, commits));
        }
        // The clients end also if this thread fails.
        struct End<'a>(&'a AtomicBool);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, SeqCst);
            }
        }
        let _end = End(&end);
        meanwhile(&commits);
    });
    let now = State::open(url).unwrap().snapshot().unwrap();
    let held = ledger.0.lock().unwrap();
    let known: BTreeMap<GpuId, String> =
        now.jobs.iter().flat_map(|j| j.gpus.gpus().map(|g| (g, j.id.clone()))).collect();
    assert_eq!(known, *held, "the state holds what was acknowledged: nothing is lost or invented");
    assert_eq!(known.len() + now.free.gpu_count(), c.gpu_count());
    // The log has each allocation once, and each release once.
    let mut seen = BTreeSet::new();
    let mut after = 0;
    let state = State::open(url).unwrap();
    loop {
        let events = state.events(after, 1000).unwrap();
        let Some(last) = events.last() else { break };
        after = last.id;
        for e in events {
            assert!(seen.insert((e.subject.clone(), e.what.clone())), "{} of {} twice", e.what, e.subject);
        }
    }
    commits.load(SeqCst)
}

/// Commits by default; `LINKWISE_COMMITS` sets another number.
const COMMITS: usize = 150;

#[test]
fn two_servers_that_allocate_at_once_never_give_a_gpu_twice() {
    let Some(server) = shared("tests_of_the_store_on_postgresql") else { return };
    let enough = std::env::var("LINKWISE_COMMITS").map_or(COMMITS, |n| n.parse().expect("a number of commits"));
    let commits = compete(Path::new(&server.database()), 8, |commits| {
        while commits.load(SeqCst) < enough {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    assert!(commits >= enough);
}

/// Rounds by default; `LINKWISE_KILLS` sets another number.
const KILLS: usize = 3;

#[test]
fn a_database_that_is_killed_in_mid_commit_loses_and_invents_nothing() {
    let Some(server) = Server::start() else { return skip("tests_of_the_store_on_postgresql") };
    let kills = std::env::var("LINKWISE_KILLS").map_or(KILLS, |k| k.parse().expect("a number of kills"));
    compete(Path::new(&server.database()), 6, |commits| {
        for kill in 0..kills {
            // A round is over after a few more commits, so that the kill meets clients that are at work.
            let enough = commits.load(SeqCst) + 5 + 7 * (kill % 3);
            while commits.load(SeqCst) < enough {
                std::thread::sleep(Duration::from_millis(1 + kill as u64 % 7));
            }
            server.kill_a_connection();
            std::thread::sleep(Duration::from_millis(20));
            server.kill_all();
        }
    });
}

#[test]
fn a_connection_that_broke_is_made_again() {
    let Some(server) = shared("tests_of_the_store_on_postgresql") else { return };
    let url = server.database();
    let c = cluster(2);
    let mut state = State::init(Path::new(&url), &c, 0.0).unwrap();
    let mut store = Store::create(Path::new(&url), &c).unwrap();
    let end = || {
        let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'linkwise' \
                   AND datname = current_database()";
        assert_ne!(server.psql(name_of(&url), sql), "0");
        std::thread::sleep(Duration::from_millis(50));
    };
    end();
    assert_eq!(state.snapshot().unwrap().free.gpu_count(), 16);
    assert_eq!(store.count(&Query::all()).unwrap(), 0);
    end();
    state.allocate(&job("a", c.parse_gpus(["n0:0"]).unwrap()), 1.0).unwrap();
    store.mark_all_taught().unwrap();
    assert_eq!(State::open(Path::new(&url)).unwrap().snapshot().unwrap().jobs.len(), 1);
}

#[test]
fn a_lock_that_is_held_for_too_long_is_a_refusal_and_reads_go_on() {
    let Some(server) = shared("tests_of_the_store_on_postgresql") else { return };
    let url = server.database();
    let mut state = State::init(Path::new(&url), &cluster(1), 0.0).unwrap();
    let n0 = state.cluster().parse_gpus(["n0"]).unwrap();
    std::thread::scope(|s| {
        // The lock of the state's writes; PostgreSQL frees it when the table is there.
        let sql = "BEGIN; SELECT pg_advisory_xact_lock(1818982259, 1); \
                   DO $$BEGIN WHILE NOT EXISTS (SELECT 1 FROM pg_class WHERE relname = 'enough') LOOP PERFORM pg_sleep(0.05); END LOOP; END$$";
        let holds = s.spawn(|| server.psql(name_of(&url), sql));
        let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted \
                     AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        while server.psql(name_of(&url), locks) == "0" {
            std::thread::sleep(Duration::from_millis(10));
        }
        let e = state.drain(&n0, "", 1.0).unwrap_err();
        assert!(matches!(e, StateError::Busy(_)) && e.to_string().contains("for 5 s"), "{e}");
        assert_eq!(state.snapshot().unwrap().free.gpu_count(), 8);
        server.psql(name_of(&url), "CREATE TABLE public.enough ()");
        holds.join().unwrap();
    });
    state.drain(&n0, "", 1.0).unwrap();
    assert_eq!(state.snapshot().unwrap().free.gpu_count(), 0);
}

#[test]
fn nothing_of_a_request_stays_with_the_connection_so_a_pooler_may_stand_between() {
    let Some(server) = shared("tests_of_the_store_on_postgresql") else { return };
    let url = server.database();
    server.psql("postgres", &format!("ALTER DATABASE {} SET log_statement = 'all'", name_of(&url)));
    let mut state = State::init(Path::new(&url), &cluster(1), 0.0).unwrap();
    let gpus = state.cluster().parse_gpus(["n0:0"]).unwrap();
    state.allocate(&job("pooled", gpus), 1.0).unwrap();
    state.snapshot().unwrap();
    let log = server.log();
    assert!(log.contains("execute <unnamed>: INSERT INTO job"), "the statements are logged");
    let named = log.lines().find(|l| l.contains("execute ") && !l.contains("execute <unnamed>"));
    assert_eq!(named, None, "a pooler does not know the names of statements");
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = \
                 (SELECT oid FROM pg_database WHERE datname = current_database())";
    assert_eq!(server.psql(name_of(&url), locks), "0");
    // Settings end with the transaction.
    assert!(log.lines().filter(|l| l.contains("SET ")).all(|l| !l.contains("SET search_path")), "{log}");
}

#[test]
fn a_newer_schema_is_refused_and_a_running_server_goes_on() {
    let Some(server) = shared("tests_of_the_store_on_postgresql") else { return };
    let url = server.database();
    let c = cluster(1);
    let state = State::init(Path::new(&url), &c, 0.0).unwrap();
    drop(Store::create(Path::new(&url), &c).unwrap());
    for part in ["linkwise_state", "linkwise_readings"] {
        server.psql(name_of(&url), &format!("INSERT INTO {part}.schema_version VALUES (9)"));
    }
    let e = State::open(Path::new(&url)).unwrap_err().to_string();
    assert!(e.contains("has schema version 9; this linkwise knows up to 3"), "{e}");
    let e = Store::open(Path::new(&url), &c).unwrap_err().to_string();
    assert!(e.contains("has schema version 9"), "{e}");
    assert_eq!(state.snapshot().unwrap().free.gpu_count(), 8, "a migration only adds");
}

/// What a server of schema version 1 sends for an allocation under a key, and what it reads.
const OF_VERSION_1: [&str; 5] = [
    "INSERT INTO job (id, since_unix_s, demand_gb_per_s, predicted_gb_per_s, size_bytes, request, answer, made_by, lease_s, \
     lease_until_unix_s) VALUES ('old', 2.0, NULL, 40.0, NULL, 'r', 'told', 'local', NULL, NULL)",
    "INSERT INTO held (host, gpu, job) VALUES ('n0', 0, 'old'), ('n0', 1, 'old')",
    "INSERT INTO event (at_unix_s, who, what, subject, gpus, why) VALUES (2.0, 'local', 'allocate', 'old', 'n0:[0-1]', '')",
    "INSERT INTO request_key (key, request, outcome, answer, at_unix_s) VALUES ('k', 'r', 'null', 'told', 2.0)",
    "DELETE FROM request_key WHERE number IN (SELECT number FROM request_key ORDER BY at_unix_s DESC, number DESC OFFSET 10000)",
];

#[test]
fn servers_of_the_versions_before_go_on_beside_a_newer_one() {
    let Some(server) = shared("tests_of_the_store_on_postgresql") else { return };
    let second = "DROP TABLE task; DROP INDEX event_of_job; DELETE FROM schema_version WHERE version > 2";
    beside_a_newer_one(server, second);
    let first = "DROP TABLE model_head, model, model_part, model_lesson; DELETE FROM schema_version WHERE version > 1";
    beside_a_newer_one(server, &format!("{second}; {first}"));
}

/// `as_it_was`: makes the database as a version before left it.
fn beside_a_newer_one(server: &Server, as_it_was: &str) {
    let url = server.database();
    let c = cluster(1);
    drop(State::init(Path::new(&url), &c, 0.0).unwrap());
    let sql = |text: &str| server.psql(name_of(&url), &format!("SET search_path TO linkwise_state; {text}"));
    sql(as_it_was);
    let of_old = |text: &str| {
        sql(&format!(
            "BEGIN; SELECT pg_advisory_xact_lock(1818982259, 1); {text}; UPDATE version SET everything = everything + 1; COMMIT"
        ))
    };
    let opened: Vec<State> = std::thread::scope(|s| {
        let all: Vec<_> = (0..3).map(|_| s.spawn(|| State::open(Path::new(&url)).unwrap())).collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(sql("SELECT max(version) FROM schema_version"), "3", "servers that start at once migrate once");
    let mut new = opened.into_iter().next().unwrap();
    new.allocate(&job("new", c.parse_gpus(["n0:7"]).unwrap()), 1.0).unwrap();
    OF_VERSION_1.iter().for_each(|text| _ = of_old(text));
    let now = new.snapshot().unwrap();
    assert_eq!((now.job("old").unwrap().gpus.gpu_count(), now.free.gpu_count()), (2, 5));
    assert_eq!(new.answered("old", "r", None, &2.0.into()).unwrap().as_deref(), Some("told"));
    assert!(matches!(new.allocate(&job("x", c.parse_gpus(["n0:1"]).unwrap()), 3.0), Err(StateError::Held { .. })));
    of_old("DELETE FROM job WHERE id = 'new'");
    assert_eq!(new.snapshot().unwrap().free.gpu_count(), 6);
    assert_eq!(new.models_revision().unwrap(), 0);
}

#[test]
fn a_dump_of_the_database_is_restored_with_all_its_content() {
    let Some(server) = shared("tests_of_the_store_on_postgresql") else { return };
    let (url, other) = (server.database(), server.database());
    let c = cluster(1);
    let mut state = State::init(Path::new(&url), &c, 0.0).unwrap();
    state.allocate(&job("a", c.parse_gpus(["n0:[0-3]"]).unwrap()), 1.0).unwrap();
    let text = state.begin_model_text().unwrap();
    state.put_model_part(text, 0, "a part of a model").unwrap();
    server.copy(name_of(&url), name_of(&other));
    let restored = State::open(Path::new(&other)).unwrap();
    assert_eq!(restored.snapshot().unwrap(), state.snapshot().unwrap());
    assert_eq!(restored.events(0, 10).unwrap(), state.events(0, 10).unwrap());
    assert_eq!(restored.model_part(text, 0).unwrap().as_deref(), Some("a part of a model"));
}

#[test]
fn both_databases_have_the_same_tables_and_columns() {
    let Some(server) = shared("tests_of_the_store_on_postgresql") else { return };
    let url = server.database();
    let (c, folder) = (cluster(1), tempfile::tempdir().unwrap());
    let file = |name: &str| folder.path().join(name);
    drop((State::init(Path::new(&url), &c, 0.0).unwrap(), Store::create(Path::new(&url), &c).unwrap()));
    drop((State::init(&file("s"), &c, 0.0).unwrap(), Store::create(&file("r"), &c).unwrap()));
    for (schema, name) in [("linkwise_state", "s"), ("linkwise_readings", "r")] {
        let of_file = rusqlite::Connection::open(file(name)).unwrap();
        let sql = "SELECT t.name || '.' || c.name FROM sqlite_schema t JOIN pragma_table_info(t.name) c \
                   WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite%'";
        let mut read = of_file.prepare(sql).unwrap();
        let in_file: BTreeSet<String> = read.query_map([], |r| r.get(0)).unwrap().map(Result::unwrap).collect();
        let sql = format!(
            "SELECT table_name || '.' || column_name FROM information_schema.columns WHERE table_schema = '{schema}'"
        );
        let mut shared: BTreeSet<String> = server.psql(name_of(&url), &sql).lines().map(str::to_owned).collect();
        for only_there in ["schema_version.version", "request_key.number"] {
            assert!(shared.remove(only_there), "{only_there}");
        }
        assert_eq!(in_file, shared);
    }
}

/// The program pgbouncer between clients and a server: transaction mode, fewer connections than clients.
struct Pooler {
    child: std::process::Child,
    folder: tempfile::TempDir,
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Pooler {
    /// None where the program is missing.
    fn start(server: &Server) -> Option<Pooler> {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::Builder::new().prefix("lwpb").tempdir_in("/tmp").unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let (here, there) = (folder.path().display(), server.folder().display());
        let settings = format!(
            "[databases]\n* = host={there} user=tester\n[pgbouncer]\nlisten_port = 6432\nunix_socket_dir = {here}\n\
             auth_type = any\npool_mode = transaction\ndefault_pool_size = 3\nmax_client_conn = 100\n"
        );
        let file = folder.path().join("pgbouncer.ini");
        std::fs::write(&file, settings).unwrap();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        // Debian has it where only root looks.
        let path = format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default());
        let program = std::env::split_paths(&path).map(|d| d.join("pgbouncer")).find(|p| p.is_file())?;
        let mut command = postgres::as_user(std::process::Command::new(program));
        let child = command.arg(&file).stdout(log.try_clone().unwrap()).stderr(log).spawn().ok()?;
        let mut pooler = Pooler { child, folder };
        let start = std::time::Instant::now();
        while !pooler.folder.path().join(".s.PGSQL.6432").exists() {
            assert_eq!(pooler.child.try_wait().unwrap(), None, "pgbouncer ended: {}", pooler.log());
            assert!(start.elapsed() < Duration::from_secs(60), "pgbouncer does not start: {}", pooler.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(pooler)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

#[test]
fn clients_compete_through_pgbouncer_in_transaction_mode() {
    let name = "clients_compete_through_pgbouncer_in_transaction_mode";
    let Some(server) = shared("tests_of_the_store_on_postgresql") else { return };
    let Some(pooler) = Pooler::start(server) else {
        return println!("SKIP {name}: pgbouncer is not installed");
    };
    let url =
        format!("postgres://tester@/{}?host={}&port=6432", name_of(&server.database()), pooler.folder.path().display());
    let busy = AtomicUsize::new(0);
    let commits = compete(Path::new(&url), 8, |commits| {
        while commits.load(SeqCst) < 60 {
            let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'linkwise'";
            let n = server.psql(name_of(&url), sql).parse().unwrap();
            busy.fetch_max(n, SeqCst);
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    assert!(commits >= 60 && busy.load(SeqCst) <= 3, "{} connections of PostgreSQL", busy.load(SeqCst));
    assert!(pooler.log().contains("login attempt"), "the clients came through the pooler: {}", pooler.log());
}
