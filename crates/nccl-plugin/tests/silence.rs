//! A leader, or a member, that falls silent at the worst instant: a rank is bound and gets no verdict. The plugin runs in a process of its own; the
//! silent rank is this test, which speaks the plugin's protocol. And a stranger who leads without knowing the communicator's identifier.

mod common;

use agreement::transport::Sockets;
use agreement::{Announcement, Endpoint, Epoch, Rendezvous, Roster, Slot, SlotPlan, SlotView, ToLeader, ToMember};
use agreement::{ProcessId, TransportEvent};
use common::job::{Job, PATIENCE};
use linkwise_nccl::config::Config;
use linkwise_nccl::envelope::{Head, Keys, Kind};
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tune::{Algorithm, Arm, Collective, Protocol};
use wire::{Reader, Writer};

/// The communicator of `tests/program/rank.c`, and the entry of its cost table, plus 1, that the epochs below force.
const COMM: u64 = 77;
const TREE_LL: u8 = 1;
const SLOT: Slot = Slot { collective: Collective::AllReduce, bucket: 20 };
const PAUSE: Duration = Duration::from_millis(1);

/// One rank in this process, by hand.
struct Rank {
    endpoint: Sockets,
    keys: Keys,
    process: ProcessId,
    roster: Roster,
    /// The other rank's process.
    other: ProcessId,
    heard: Vec<(ProcessId, Vec<u8>)>,
}

impl Rank {
    /// Rank `rank` of a job of two, whose other rank has these settings.
    fn new(rank: i32, rendezvous: &str, settings: &[(&str, &str)]) -> Self {
        let env = |k: &str| settings.iter().find(|s| k == format!("LINKWISE_{}", s.0)).map(|s| s.1.to_string());
        let read = |path: &Path| std::fs::read_to_string(path).map_err(|e| e.to_string());
        let config = Config::load(env, read).unwrap();
        let process = u64::from(std::process::id()) << 32 | wire::bytes::hash(rendezvous.as_bytes()) >> 32;
        let at: Rendezvous = rendezvous.parse().unwrap();
        let mut endpoint = Sockets::new(at, config.token.as_bytes(), None, process, 1).unwrap();
        let mut keys = Keys::default();
        let name = keys.add(&config.token, COMM);
        endpoint.announce(Announcement {
            comm: name,
            rank,
            size: 2,
            host: 1,
            process,
            ordinal: 0,
            settings: config.common(None),
        });
        let begin = Instant::now();
        let roster = loop {
            let mut events = Vec::new();
            endpoint.poll(Duration::from_millis(2), &mut events);
            if let Some(TransportEvent::Complete(roster)) = events.pop() {
                break roster;
            }
            assert!(begin.elapsed() < PATIENCE, "{:?}", endpoint.notes());
        };
        let other = roster.members[1 - rank as usize].process;
        Rank { endpoint, keys, process, roster, other, heard: Vec::new() }
    }

    fn poll(&mut self) {
        let mut events = Vec::new();
        self.endpoint.poll(Duration::from_millis(2), &mut events);
        for event in events {
            if let TransportEvent::Message { from, body } = event {
                self.heard.push((from, body));
            }
        }
    }

    fn send(&mut self, kind: Kind, who: u32, write: impl FnOnce(&mut Writer)) {
        let mut w = Writer::default();
        write(&mut w);
        let sealed = self.keys.seal(self.process, self.other, Head { kind, comm: COMM, who }, &w.0).unwrap();
        self.endpoint.send(self.other, &sealed);
    }

    /// As the leader.
    fn tell(&mut self, message: &ToMember) {
        self.send(Kind::ToMember, 0, |w| message.write(w));
    }

    /// The messages of the other rank about the communicator.
    fn opened(&mut self, kind: Kind, who: u32) -> Vec<Vec<u8>> {
        let heard = std::mem::take(&mut self.heard);
        let open = |(from, bytes): &(ProcessId, Vec<u8>)| {
            let (head, message) = self.keys.open(*from, self.process, bytes).ok()?;
            (head == Head { kind, comm: COMM, who }).then(|| message.to_vec())
        };
        heard.iter().filter_map(open).collect()
    }

    /// As the leader: the next message of the member that `is` one.
    fn hear(&mut self, is: impl Fn(&ToLeader) -> bool) -> Option<ToLeader> {
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            for body in self.opened(Kind::ToLeader, 1) {
                let message = ToLeader::read(&mut Reader::new(&body)).unwrap();
                if is(&message) {
                    return Some(message);
                }
            }
            self.poll();
        }
        None
    }

    /// As a member: answers questions, acknowledges nothing. Returns after the first proposal.
    fn answer_until_proposed(&mut self) {
        let begin = Instant::now();
        assert_eq!(self.roster.members.len(), 2);
        loop {
            for body in self.opened(Kind::ToMember, 0) {
                match ToMember::read(&mut Reader::new(&body)).unwrap() {
                    ToMember::Ask(e) => {
                        let slots = vec![SlotView { slot: SLOT, mask: 0b10_0011, auto: 5 }];
                        let ready = ToLeader::Ready { epoch: e.number, begun: 0, digest: None, slots };
                        self.send(Kind::ToLeader, 1, |w| ready.write(w));
                    }
                    ToMember::Propose(_) => return,
                    _ => {}
                }
            }
            assert!(begin.elapsed() < PATIENCE, "no proposal");
            self.poll();
        }
    }
}

/// An epoch with a forced arm.
fn epoch(number: u64, from_call: u64) -> Arc<Epoch> {
    let plan = SlotPlan { slot: SLOT, runs: Vec::new(), settled: Arm::new(Algorithm::Tree, Protocol::Ll) };
    Arc::new(Epoch::new(number, from_call, vec![plan]))
}

/// A process with rank 1 that is bound from a near call on, and its leader, which is silent from now on.
fn bound(test: &str, more: &[(&str, &str)]) -> Option<(Job, Rank, u64)> {
    bound_inside(test, more, |command| command)
}

/// The same; `inside` changes the command of rank 1.
fn bound_inside(
    test: &str,
    more: &[(&str, &str)],
    inside: impl FnOnce(Command) -> Command,
) -> Option<(Job, Rank, u64)> {
    let mut job = Job::new(test, 2)?;
    job.never_wait_for(0);
    let rendezvous = common::rendezvous(test);
    let mut settings = vec![("MODE", "adaptive"), ("RENDEZVOUS", rendezvous.as_str()), ("LEAD", "0")];
    settings.extend(more);
    job.start(1, PAUSE, &settings, inside);
    let mut leader = Rank::new(0, &rendezvous, &settings);
    job.until("the slot was seen", |job| job.begun(1) > 10);
    let from_call = job.begun(1) + 500;
    leader.tell(&ToMember::Propose(epoch(1, from_call)));
    let answer = leader.hear(|m| matches!(m, ToLeader::Ack { .. } | ToLeader::Refuse { .. }));
    assert!(matches!(answer, Some(ToLeader::Ack { epoch: 1, .. })), "{answer:?}");
    job.until("the call waits", |job| job.begun(1) == from_call + 1);
    Some((job, leader, from_call))
}

/// The dump of the job's only process in a folder, once it is there.
fn dump(job: &mut Job, folder: &Path) -> Value {
    let find = || {
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|f| f.path());
        files.into_iter().find(|f| f.file_name().is_some_and(|n| n.to_string_lossy().starts_with("waiting-")))
    };
    job.until("the state is written", |_| find().is_some());
    serde_json::from_str(&std::fs::read_to_string(find().unwrap()).unwrap()).unwrap()
}

#[test]
fn a_call_without_a_verdict_waits_writes_the_state_once_and_goes_on_with_the_verdict() {
    let name = "waits";
    for (i, place) in ["status", "trace", "log"].into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let (path, trace) = (folder.path().join("status"), folder.path().join("trace"));
        let more = [("STATUS", path.to_str().unwrap()), ("TRACE", trace.to_str().unwrap())];
        let Some((mut job, mut leader, from_call)) = bound(&format!("{name}-{i}"), &more[i.min(2)..]) else { return };
        let state = match place {
            "status" => dump(&mut job, &path),
            "trace" => dump(&mut job, &trace),
            _ => {
                job.until("the state is in the log", |job| job.log(1).contains("\"linkwise_status\""));
                let log = job.log(1);
                let line = log.lines().find(|l| l.contains("\"linkwise_status\"")).unwrap();
                serde_json::from_str(&line[line.find('{').unwrap()..]).unwrap()
            }
        };
        let comm = &state["comms"][0];
        assert_eq!(comm["comm"], format!("{COMM:016x}"));
        assert_eq!((comm["rank"].as_i64(), comm["calls"].as_u64()), (Some(1), Some(from_call + 1)), "{state}");
        assert!(comm["waiting_us"].as_u64().unwrap() >= 1_000_000, "{state}");
        assert_eq!(job.begun(1), from_call + 1, "it waits still");
        assert_eq!(job.log(1).matches("a call waits for the verdict").count(), 1, "{}", job.log(1));
        leader.tell(&ToMember::Commit(1));
        assert!(leader.hear(|m| matches!(m, ToLeader::Confirm { epoch: 1, .. })).is_some());
        job.until("calls go on", |job| job.begun(1) > from_call + 50);
        job.finish();
        let arms = job.arms(1);
        let lines = common::traces(&trace).concat();
        let ends: Vec<_> = lines.iter().filter(|l| l["kind"] == "end" && l["calls"] != 0).collect();
        assert_eq!(ends.len(), usize::from(place != "log"), "{ends:?}");
        let is_counted = |l: &&Value| l["waits"] == 1 && l["longest_wait_us"].as_u64().unwrap() >= 1_000_000;
        assert!(ends.iter().all(is_counted), "{ends:?}");
        let (before, after) = arms.split_at(from_call as usize);
        assert!(before.iter().all(|a| *a != TREE_LL) && after.iter().all(|a| *a == TREE_LL));
    }
}

/// How rank 1 ends.
fn end(job: &mut Job) -> ExitStatus {
    let begin = Instant::now();
    loop {
        if let Some(status) = job.process(1).try_wait().unwrap() {
            return status;
        }
        assert!(begin.elapsed() < 2 * PATIENCE, "{}", job.log(1));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn with_abort_process_a_process_ends_although_its_standard_error_takes_nothing() {
    let inside = |program: Command| {
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec \"$0\" \"$@\" 2>/dev/full"]).arg(program.get_program()).args(program.get_args());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell
    };
    let Some((mut job, _leader, _)) = bound_inside("aborts-full", &[("ON_SILENCE", "abort-process")], inside) else {
        return;
    };
    let status = end(&mut job);
    assert_eq!(status.signal(), Some(6), "{status}");
}

#[test]
fn with_abort_process_a_call_without_a_verdict_ends_the_process_with_a_clear_error() {
    let name = "aborts";
    let Some((mut job, _leader, from_call)) = bound(name, &[("ON_SILENCE", "abort-process")]) else { return };
    let status = end(&mut job);
    assert_eq!(status.signal(), Some(6), "{status}");
    assert_eq!(job.begun(1), from_call + 1, "the call never returned");
    let log = job.log(1);
    let said = log.lines().filter(|l| l.contains("on_silence = abort-process: this process ends")).count();
    assert!(said >= 1 && log.contains("the leading rank cannot be reached"), "{log}");
    assert!(log.contains("\"linkwise_status\""), "and the state: {log}");
}

#[test]
fn the_leaders_state_names_the_rank_that_is_silent() {
    let name = "names";
    let Some(mut job) = Job::new(name, 2) else { return };
    job.never_wait_for(1);
    let rendezvous = common::rendezvous(name);
    let [status, times] = ["status", "times"].map(|f| job.folder().join(f).to_str().unwrap().to_string());
    std::fs::write(&times, "AllReduce 20 TREE/LL 50\nAllReduce 20 RING/SIMPLE 100\n").unwrap();
    let settings = [
        ("MODE", "adaptive"),
        ("RENDEZVOUS", rendezvous.as_str()),
        ("LEAD", "0"),
        ("EXPLORE", "all"),
        ("STATUS", status.as_str()),
        ("TEST", "1"),
        ("TEST_REWARDS", times.as_str()),
    ];
    job.start(0, PAUSE, &settings, |command| command);
    let mut member = Rank::new(1, &rendezvous, &settings);
    member.answer_until_proposed();
    let state = dump(&mut job, Path::new(&status));
    let comm = state["comms"].as_array().unwrap().iter().find(|c| c["comm"] == format!("{COMM:016x}")).unwrap();
    assert_eq!((&comm["leads"], &comm["silent"]), (&Value::Bool(true), &serde_json::json!([1])), "{state}");
    job.until("the leader gave up, and calls go on", |job| job.longest(0) > Duration::from_secs(1));
    job.finish();
}

#[test]
fn a_rank_whose_communicator_has_ended_says_so_and_answers_later_proposals() {
    let name = "ended";
    let Some(mut job) = Job::new(name, 2) else { return };
    job.never_wait_for(0);
    let rendezvous = common::rendezvous(name);
    let settings = [("MODE", "adaptive"), ("RENDEZVOUS", rendezvous.as_str())];
    job.start(1, PAUSE, &settings, |command| command);
    let mut leader = Rank::new(0, &rendezvous, &settings);
    job.until("the slot was seen", |job| job.begun(1) > 10);
    job.end_communicator(); // the process lives on, with another communicator
    job.until("the communicator has ended", |job| job.has_ended(1));
    let is_left = |m: &ToLeader| *m == ToLeader::Left;
    assert!(leader.hear(is_left).is_some(), "told without a question");
    leader.tell(&ToMember::Propose(epoch(1, 1 << 20)));
    assert!(leader.hear(is_left).is_some(), "a silent rank would bind the others for seconds");
    job.finish();
}

/// The rendezvous is taken by a process that was told the token, or guessed it: it can make a roster with itself as the leader.
#[test]
fn a_stranger_with_the_token_but_without_the_communicators_identifier_leads_no_rank() {
    let name = "stranger";
    let Some(mut job) = Job::new(name, 2) else { return };
    job.never_wait_for(0);
    let rendezvous = common::rendezvous(name);
    let settings = [("MODE", "adaptive"), ("RENDEZVOUS", rendezvous.as_str()), ("TOKEN", "guessed"), ("LEAD", "0")];
    job.start(1, PAUSE, &settings, |command| command);
    let mut stranger = Rank::new(0, &rendezvous, &settings); // it reads the communicator's name from the announcements
    job.until("the slot was seen", |job| job.begun(1) > 10);
    let rightful = std::mem::take(&mut stranger.keys);
    let mut guess = Keys::default();
    guess.add("guessed", COMM + 1);
    let name_of_comm = rightful.name_of(COMM).unwrap();
    let propose = |stranger: &mut Rank, keys: &Keys, comm: u64, number: u64, from_call: u64| {
        let mut w = Writer::default();
        ToMember::Propose(epoch(number, from_call)).write(&mut w);
        let mut sealed =
            keys.seal(stranger.process, stranger.other, Head { kind: Kind::ToMember, comm, who: 0 }, &w.0).unwrap();
        sealed[1..9].copy_from_slice(&name_of_comm.to_le_bytes());
        stranger.endpoint.send(stranger.other, &sealed);
        for _ in 0..200 {
            stranger.poll();
        }
    };
    let near = job.begun(1) + 2000;
    propose(&mut stranger, &guess, COMM + 1, 1, near);
    assert!(stranger.heard.is_empty(), "no answer: {:?}", stranger.heard);
    // The same bytes from a rank are obeyed: so it is the key that counts.
    propose(&mut stranger, &rightful, COMM, 1, near + 100_000);
    stranger.keys = rightful;
    assert!(stranger.hear(|m| matches!(m, ToLeader::Ack { epoch: 1, .. })).is_some());
    stranger.tell(&ToMember::Abort(1));
    job.finish();
    assert!(job.arms(1).iter().all(|a| *a != TREE_LL));
}
