//! A full disk, a network that drops packets, a database that never answers, and clocks that jump, under clients that allocate and release: each client writes down what it
//! was told, and at the end only these histories are compared with the state. No GPU is given twice, no job is lost or invented, and a
//! request that is repeated gets its first answer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};
use store::state::{CLOCKS_DIFFER_S, Commit, Committed, NewJob, NewTask, StateError};
use store::{By, Once, State};
use topology::{Allocation, Cluster, GpuId};

mod common;
use common::relay::{Relay, Swallows};
use common::{on_both, postgres};

/// Longest wait for clients to go on after a fault.
const PATIENCE: Duration = Duration::from_secs(240);

fn cluster(hosts: usize) -> Cluster {
    let mut c = topology::catalog::cluster("h100").unwrap();
    let one = c.hosts[0].clone();
    c.hosts = (0..hosts).map(|i| topology::cluster::Host { name: format!("n{i}"), ..one.clone() }).collect();
    c
}

fn job(id: &str, gpus: Allocation, lease_s: Option<f64>) -> NewJob {
    NewJob { id: id.into(), gpus, demand_gb_per_s: None, predicted_gb_per_s: None, size: None, lease_s }
}

/// What the clients were told.
#[derive(Default)]
struct Histories {
    held: Mutex<BTreeMap<GpuId, String>>,
    done: AtomicUsize,
    refused: AtomicUsize,
    stop: AtomicBool,
}

impl Histories {
    fn wait_for_more(&self, more: usize) {
        let (before, start) = (self.done.load(SeqCst), Instant::now());
        while self.done.load(SeqCst) < before + more {
            assert!(start.elapsed() < PATIENCE, "the clients do not go on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn wait_for_refusals(&self, more: usize) {
        let (before, start) = (self.refused.load(SeqCst), Instant::now());
        while self.refused.load(SeqCst) < before + more {
            assert!(start.elapsed() < PATIENCE, "the fault reaches no client");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Sends a request under its key until it is answered.
fn until_answered<T>(h: &Histories, mut ask: impl FnMut() -> Result<T, StateError>) -> T {
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(e) if e.is_transient() || matches!(e, StateError::Io { .. }) => {
                h.refused.fetch_add(1, SeqCst);
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(e) => panic!("{e}"),
        }
    }
}

fn client(number: usize, path: &Path, h: &Histories) {
    let mut state = until_answered(h, || State::open(path));
    let mut random = number as u64 + 1;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    let mut mine: Vec<NewJob> = Vec::new();
    for n in 0.. {
        if h.stop.load(SeqCst) {
            return;
        }
        let snapshot = until_answered(h, || state.snapshot());
        let mut free: Vec<GpuId> = snapshot.free.gpus().collect();
        let wanted = 1 + next(3);
        if free.len() >= wanted && mine.len() < 3 {
            let id = format!("c{number}-{n}");
            let gpus = Allocation::from_gpus((0..wanted).map(|_| free.swap_remove(next(free.len()))));
            let new = job(&id, gpus, None);
            let (once, answer) = (Once::new(&id, &id).unwrap(), format!("answer {id}"));
            let (request, by) = (id.as_str(), By::from(n as f64));
            let commit = Commit { job: &new, snapshot: &snapshot, request, answer: &answer, once: Some(&once), by };
            match until_answered(h, || state.commit(&commit)) {
                Committed::Changed => continue,
                Committed::Granted => {}
                Committed::Repeated(told) => assert_eq!(told, answer),
            }
            {
                let mut held = h.held.lock().unwrap();
                for g in new.gpus.gpus() {
                    assert_eq!(held.insert(g, id.clone()), None, "{g:?} was given to {id} while another job held it");
                }
            }
            assert_eq!(until_answered(h, || state.commit(&commit)), Committed::Repeated(answer));
            mine.push(new);
        } else if !mine.is_empty() {
            let gone = mine.swap_remove(next(mine.len()));
            {
                let mut held = h.held.lock().unwrap();
                gone.gpus.gpus().for_each(|g| assert_eq!(held.remove(&g).as_ref(), Some(&gone.id)));
            }
            let once = Once::new(&format!("end-{}", gone.id), "").unwrap();
            let mut end = || state.release_once(std::slice::from_ref(&gone.id), Some(&once), n as f64);
            let first = until_answered(h, &mut end).value;
            let again = until_answered(h, &mut end);
            assert!(again.repeated && again.value == first, "the same key has the same answer");
        }
        h.done.fetch_add(1, SeqCst);
    }
}

/// Runs clients on a state while `faults` happen, then compares their histories with the state.
fn under_load(path: &Path, clients: usize, faults: impl FnOnce(&Histories)) {
    drop(State::init(path, &cluster(4), 0.0).unwrap());
    let h = Histories::default();
    std::thread::scope(|s| {
        for number in 0..clients {
            let h = &h;
            s.spawn(move || client(number, path, h));
        }
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, SeqCst);
            }
        }
        let _stop = Stop(&h.stop);
        faults(&h);
    });
    let state = State::open(path).unwrap();
    state.check().unwrap();
    let now = state.snapshot().unwrap();
    let known: BTreeMap<GpuId, String> =
        now.jobs.iter().flat_map(|j| j.gpus.gpus().map(|g| (g, j.id.clone()))).collect();
    assert_eq!(known, *h.held.lock().unwrap(), "the state (left) and what the clients were told");
}

/// A small file system that ends with the value.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn new(megabytes: usize) -> Option<Tmpfs> {
        let folder = tempfile::Builder::new().prefix("lwfull").tempdir_in("/tmp").unwrap().keep();
        let size = format!("size={megabytes}m,mode=0777");
        let done = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&folder).output();
        if done.is_ok_and(|d| d.status.success()) {
            return Some(Tmpfs(folder));
        }
        let _ = std::fs::remove_dir(&folder);
        None
    }

    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }

    /// Fills what is free, up to the last page.
    fn fill(&self) {
        use std::io::Write;
        let mut file = std::fs::File::options().create(true).append(true).open(self.ballast()).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
    }

    fn make_room(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Faults by default; `LINKWISE_FAULTS` sets another number.
fn faults() -> usize {
    std::env::var("LINKWISE_FAULTS").map_or(2, |n| n.parse().expect("a number of faults"))
}

#[test]
fn a_full_disk_under_a_state_in_a_file_loses_and_invents_nothing() {
    let Some(disk) = Tmpfs::new(24) else {
        return println!("SKIP a_full_disk_under_a_state: mounting needs root");
    };
    under_load(&disk.0.join("s.db"), 3, |h| {
        for _ in 0..faults() {
            h.wait_for_more(20);
            disk.fill();
            h.wait_for_refusals(6);
            disk.make_room();
        }
        h.wait_for_more(20);
    });
}

#[test]
fn a_full_disk_under_postgresql_loses_and_invents_nothing() {
    let Some(disk) = Tmpfs::new(160) else {
        return println!("SKIP a_full_disk_under_a_state: mounting needs root");
    };
    let Some(server) = postgres::Server::start_in(&disk.0) else {
        return postgres::skip("tests_of_the_store_on_postgresql");
    };
    under_load(Path::new(&server.database()), 3, |h| {
        for _ in 0..faults() {
            h.wait_for_more(20);
            disk.fill();
            // What PostgreSQL has allocated before goes on being written; then a page or the log finds no room.
            server.use_room();
            h.wait_for_refusals(3);
            disk.make_room();
            h.wait_for_more(5);
        }
    });
}

on_both! {
fn a_clock_that_jumps_ends_no_lease_early_lengthens_none_and_answers_retries_alike(at) {
    let mut s = State::init(&at.at("s.state"), &cluster(2), 0.0).unwrap();
    let gpus = |s: &State, list: &str| s.cluster().parse_gpus([list]).unwrap();
    let noon = 1_000_000.0;
    let once = Once::new("k", "r").unwrap();
    let a = job("a", gpus(&s, "n0:0"), Some(60.0));
    s.allocate_once(&a, Some(&once), noon).unwrap();
    let end = |s: &State| s.snapshot().unwrap().job("a").unwrap().lease_until_unix_s.unwrap();
    assert_eq!(end(&s), noon + 60.0);
    // Forward by six hours: a server that notices starts the leases again before it ends any.
    let evening = noon + 6.0 * 3600.0;
    assert_eq!(s.restart_leases(evening).unwrap(), 1);
    assert!(s.expire(&By::from(evening + 59.0)).unwrap().is_empty());
    // Back by twelve: the lease lasts its own length again, not twelve hours more.
    let morning = evening - 12.0 * 3600.0;
    assert_eq!(s.restart_leases(morning).unwrap(), 1);
    assert_eq!(end(&s), morning + 60.0);
    // The clocks of servers that share a state may differ a little.
    assert_eq!(s.restart_leases(morning - CLOCKS_DIFFER_S / 2.0).unwrap(), 0);
    // The key is known under every clock, and the log keeps its order.
    for now in [evening, morning, noon] {
        assert!(s.allocate_once(&a, Some(&once), now).unwrap().repeated);
    }
    s.allocate(&job("b", gpus(&s, "n0:1"), None), morning).unwrap();
    let ids: Vec<(i64, String)> = s.events(0, 10).unwrap().into_iter().map(|e| (e.id, e.subject)).collect();
    assert!(ids[0].0 < ids[1].0 && ids[0].1 == "a" && ids[1].1 == "b");
    assert_eq!(s.expire(&By::from(morning + 61.0)).unwrap().len(), 1);
}
}

#[test]
fn keys_of_a_clock_that_went_back_are_not_the_first_to_be_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let mut s = State::init(&path, &cluster(1), 0.0).unwrap();
    let n0 = s.cluster().parse_gpus(["n0"]).unwrap();
    // As many keys as are kept, from a clock that ran ahead.
    let fill = format!(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {})
         INSERT INTO request_key (key, request, outcome, answer, at_unix_s) SELECT 'old' || i, 'r', '0', NULL, 500000.0 + i FROM n",
        store::once::KEYS_MAX
    );
    rusqlite::Connection::open(&path).unwrap().execute_batch(&fill).unwrap();
    let key = Once::new("new", "r").unwrap();
    assert!(!s.undrain_once(&n0, Some(&key), 400_000.0).unwrap().repeated);
    assert!(s.undrain_once(&n0, Some(&key), 400_001.0).unwrap().repeated, "the newest key is kept");
}

/// A network of its own that a test owns: a pair of interfaces, and PostgreSQL behind a relay on the far side.
struct Net {
    name: String,
    relay: std::process::Child,
}

/// Copies bytes between a port and the socket of PostgreSQL.
const RELAY: &str = "
import socket, sys, threading
l = socket.create_server(('0.0.0.0', 5432))
def copy(a, b):
    try:
        while (d := a.recv(65536)): b.sendall(d)
    except OSError: pass
    for s in (a, b):
        try: s.shutdown(socket.SHUT_RDWR)
        except OSError: pass
print('ready', flush=True)
while True:
    c, _ = l.accept()
    p = socket.socket(socket.AF_UNIX); p.connect(sys.argv[1])
    threading.Thread(target=copy, args=(c, p), daemon=True).start()
    threading.Thread(target=copy, args=(p, c), daemon=True).start()
";

fn ip(args: &str) -> bool {
    let done = Command::new("ip").args(args.split(' ')).output();
    done.is_ok_and(|d| d.status.success())
}

impl Net {
    fn new(socket: &Path) -> Option<Net> {
        use std::io::BufRead;
        let name = format!("lwf{}", std::process::id() % 100_000);
        let near = format!("{name}a");
        if !ip(&format!("netns add {name}")) {
            return None;
        }
        let made = ip(&format!("link add {near} type veth peer name eth0 netns {name}"))
            && ip(&format!("addr add 10.213.77.1/30 dev {near}"))
            && ip(&format!("link set {near} up"))
            && ip(&format!("-n {name} addr add 10.213.77.2/30 dev eth0"))
            && ip(&format!("-n {name} link set eth0 up"));
        let relay = Command::new("ip")
            .args(["netns", "exec", &name, "python3", "-c", RELAY])
            .arg(socket)
            .stdout(std::process::Stdio::piped())
            .spawn();
        let (true, Ok(mut relay)) = (made, relay) else {
            ip(&format!("netns del {name}"));
            return None;
        };
        let mut line = String::new();
        std::io::BufReader::new(relay.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        Some(Net { name, relay }).filter(|_| line == "ready\n")
    }

    /// Drops every packet towards PostgreSQL and back, silently, or lets them pass again: frames go to an address that no machine has.
    fn cut(&self, cut: bool) {
        let near = format!("dev {}a", self.name);
        for (space, other, device) in
            [("", "10.213.77.2", near.as_str()), (self.name.as_str(), "10.213.77.1", "dev eth0")]
        {
            let inside = if space.is_empty() { String::new() } else { format!("-n {space} ") };
            let done = match cut {
                true => ip(&format!("{inside}neigh replace {other} lladdr 02:00:00:00:00:99 {device} nud permanent")),
                false => ip(&format!("{inside}neigh del {other} {device}")),
            };
            assert!(done, "ip neigh, cut {cut}");
        }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let _ = self.relay.kill();
        let _ = self.relay.wait();
        ip(&format!("netns del {}", self.name));
    }
}

#[test]
fn a_network_to_postgresql_that_drops_packets_loses_and_invents_nothing() {
    let Some(server) = postgres::Server::start() else { return postgres::skip("tests_of_the_store_on_postgresql") };
    let Some(net) = Net::new(&server.socket()) else {
        return println!("SKIP a_network_to_postgresql_that_drops_packets: it needs root, ip and python3");
    };
    let name = server.database();
    let name = name.split(['/', '?']).nth(3).unwrap();
    let url = format!("postgres://tester@10.213.77.2/{name}?sslmode=disable");
    under_load(Path::new(&url), 3, |h| {
        for _ in 0..faults().div_ceil(2) {
            h.wait_for_more(10);
            net.cut(true);
            h.wait_for_refusals(1);
            net.cut(false);
        }
        h.wait_for_more(10);
    });
}

#[test]
fn a_database_that_takes_requests_and_never_answers_loses_and_invents_nothing() {
    let Some(server) = postgres::Server::start() else { return postgres::skip("tests_of_the_store_on_postgresql") };
    let relay = Relay::to(&server.socket());
    under_load(Path::new(&relay.url(&server.database())), 3, |h| {
        for what in [Swallows::Requests, Swallows::Answers] {
            h.wait_for_more(10);
            relay.swallow(what);
            h.wait_for_refusals(3);
            relay.swallow(Swallows::Nothing);
        }
        h.wait_for_more(10);
    });
}

#[test]
fn a_database_that_is_stopped_is_given_up_with_its_reason_and_used_again_when_it_goes_on() {
    let Some(server) = postgres::Server::start() else { return postgres::skip("tests_of_the_store_on_postgresql") };
    let url = server.database();
    let mut state = State::init(Path::new(&url), &cluster(1), 0.0).unwrap();
    let n0 = state.cluster().parse_gpus(["n0"]).unwrap();
    let stopped = server.stop_for_a_while();
    let e = state.drain(&n0, "", 1.0).unwrap_err();
    assert!(matches!(e, StateError::Unreachable { .. }) && e.to_string().contains("no answer for"), "{e}");
    let e = State::open(Path::new(&url)).map(|_| ()).unwrap_err();
    assert!(matches!(e, StateError::Unreachable { .. }), "{e}");
    drop(stopped);
    let h = Histories::default();
    until_answered(&h, || state.drain(&n0, "", 2.0));
    assert_eq!(state.snapshot().unwrap().drained.len(), 8);
}

#[test]
fn a_task_whose_commit_lost_its_answer_counts_as_begun_by_who_began_it() {
    let Some(server) = postgres::Server::start() else { return postgres::skip("tests_of_the_store_on_postgresql") };
    let relay = Relay::to(&server.socket());
    let mut state = State::init(Path::new(&relay.url(&server.database())), &cluster(1), 0.0).unwrap();
    let new = NewTask { what: "fit", waiting_max: 8, kept_max: 64, alone: false };
    let by = By::from(1.0);
    let once = Once::new("k", "fit").unwrap();
    relay.swallow(Swallows::AnswerOfCommit);
    let begun = state.add_task(&new, Some(&once), &by).unwrap();
    assert!(!begun.repeated, "this process wrote it, so this process runs it");
    let again = state.add_task(&new, Some(&once), &by).unwrap();
    assert_eq!((again.value, again.repeated), (begun.value, true));
    assert_eq!(state.tasks(0).unwrap().len(), 1);
}

#[test]
fn a_database_that_does_not_answer_is_waited_for_once() {
    let Some(server) = postgres::Server::start() else { return postgres::skip("tests_of_the_store_on_postgresql") };
    let relay = Relay::to(&server.socket());
    let mut state = State::init(Path::new(&relay.url(&server.database())), &cluster(1), 0.0).unwrap();
    let n0 = state.cluster().parse_gpus(["n0"]).unwrap();
    for write in [true, false] {
        until_answered(&Histories::default(), || state.undrain(&n0));
        relay.swallow(Swallows::Requests);
        let before = relay.connections();
        let refused = if write { state.drain(&n0, "", 1.0).map(|_| ()) } else { state.snapshot().map(|_| ()) };
        assert!(matches!(refused, Err(StateError::Unreachable { .. })), "{refused:?}");
        assert_eq!(relay.connections(), before, "no second wait at a new connection");
        relay.swallow(Swallows::Nothing);
    }
}

#[test]
fn postgresql_gives_a_statement_up_before_its_client_does() {
    let Some(server) = postgres::Server::start() else { return postgres::skip("tests_of_the_store_on_postgresql") };
    let url = server.database();
    let mut state = State::init(Path::new(&url), &cluster(1), 0.0).unwrap();
    let n0 = state.cluster().parse_gpus(["n0"]).unwrap();
    let name = url.split(['/', '?']).nth(3).unwrap();
    // The reason of a change becomes the limit of its statement.
    let limit = "current_setting('statement_timeout')";
    let noted = format!(
        "SET search_path TO linkwise_state; \
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.why := {limit}; RETURN NEW; END $$; \
         CREATE TRIGGER note BEFORE INSERT ON event FOR EACH ROW EXECUTE FUNCTION note()"
    );
    server.psql(name, &noted);
    state.drain(&n0, "", 1.0).unwrap();
    assert_eq!(state.events(0, 1).unwrap()[0].why, "25s", "of a write");
    // Now also that of the question.
    let shown = format!(
        "SET search_path TO linkwise_state; ALTER TABLE event RENAME TO event_of; \
         CREATE VIEW event AS SELECT id, at_unix_s, who, what, subject, gpus, {limit} || ' of a read' AS why FROM event_of"
    );
    server.psql(name, &shown);
    assert_eq!(state.events(0, 1).unwrap()[0].why, "25s of a read");
}
