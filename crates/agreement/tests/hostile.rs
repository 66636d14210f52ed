//! Hostile or broken peers on the network and in the folder: wrong tokens, slow bytes, crowds, false claims.

mod common;

use agreement::transport::packet::Packet;
use agreement::transport::{Folder, IntraNodeTransport, Sockets, UNAUTHENTICATED_MAX};
use agreement::{Disagreement, Endpoint, MemberId, ProcessId, Rendezvous, Roster, TransportEvent};
use common::{PATIENCE, announcement, tcp, unique};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};
use wire::{Address, FRAME_BYTES_MAX, Link, Listener, auth};

fn until<E: Endpoint>(ends: &mut [E], done: impl FnMut(&[Vec<TransportEvent>]) -> bool) -> Vec<Vec<TransportEvent>> {
    common::until(ends.iter_mut().map(|e| e as _).collect(), done)
}

fn local(name: &str) -> Rendezvous {
    Rendezvous::Local(format!("{}-{name}", std::process::id()))
}

/// The address of a local or TCP rendezvous.
fn address_of(rendezvous: &Rendezvous) -> Address {
    match rendezvous {
        Rendezvous::Local(n) => Address::Local(format!("linkwise-rendezvous-{n}")),
        Rendezvous::Tcp { host, port } => format!("tcp:{host}:{port}").parse().unwrap(),
        Rendezvous::Folder(_) => panic!("a folder"),
    }
}

fn sockets(rendezvous: &Rendezvous, process: ProcessId) -> Sockets {
    Sockets::new(rendezvous.clone(), b"t", None, process, process).unwrap()
}

fn is_complete(events: &[TransportEvent]) -> bool {
    matches!(events, [TransportEvent::Complete(_), ..])
}

/// Two members of a communicator announce themselves and get their roster; the first keeps the register. Returns the time taken.
fn connect_pair(ends: &mut [Sockets], comm: u64, ids: &[ProcessId]) -> Duration {
    let begin = Instant::now();
    for (i, end) in ends.iter_mut().enumerate() {
        end.announce(announcement(comm, i as i32, 2, ids[i]));
    }
    let events = until(ends, |e| e.iter().all(|e| is_complete(e)));
    assert!(events.iter().all(|e| is_complete(e)), "{events:?}");
    begin.elapsed()
}

/// A peer that knows the token, sends any packet and reads the replies.
struct Raw(Link);

impl Raw {
    fn connect(at: &Address) -> Self {
        let begin = Instant::now();
        loop {
            match Link::connect(at, b"t", PATIENCE, IntraNodeTransport::Socket) {
                Ok(link) => return Raw(link),
                Err(e) => assert!(begin.elapsed() < PATIENCE, "{e}"),
            }
        }
    }

    fn packets(&mut self) -> Vec<Packet> {
        let mut got = Vec::new();
        self.0.flush();
        self.0.receive(|f| got.push(Packet::read(&f).unwrap()));
        got
    }
}

#[test]
fn thousands_of_silent_connections_do_not_block_announcements() {
    let ids = [unique(1), unique(2)];
    for rendezvous in [local("crowd"), tcp()] {
        let mut keeper = [sockets(&rendezvous, ids[0])];
        keeper[0].announce(announcement(1, 0, 9, ids[0]));
        let begin = Instant::now();
        while !keeper[0].is_register() && begin.elapsed() < PATIENCE {
            keeper[0].poll(Duration::from_millis(2), &mut Vec::new());
        }
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|s| {
            // 100 connections at a time; each batch stays open until the next one is there.
            let crowd = s.spawn(|| {
                let (mut before, mut count) = (Vec::new(), 0);
                while !stop.load(std::sync::atomic::Ordering::Relaxed) || count < 3000 {
                    let now: Vec<Crowd> = (0..100).filter_map(|_| Crowd::connect(&address_of(&rendezvous))).collect();
                    count += now.len();
                    drop(std::mem::replace(&mut before, now));
                    std::thread::sleep(Duration::from_millis(2));
                }
                count
            });
            let [keeper] = keeper;
            let mut ends = [keeper, sockets(&rendezvous, ids[1])];
            let took = connect_pair(&mut ends, 2, &ids);
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            let mut open = 0;
            while !crowd.is_finished() {
                until(&mut ends, |_| true);
                ends[0].poll(Duration::from_millis(1), &mut Vec::new());
                open = open.max(ends[0].connections());
            }
            assert!(took < PATIENCE);
            assert!(open <= UNAUTHENTICATED_MAX + 1, "{open} connections were kept");
            assert!(crowd.join().unwrap() >= 3000);
        });
    }
}

/// A silent connection.
#[allow(dead_code, reason = "keeps the connection open")]
enum Crowd {
    Tcp(TcpStream),
    Local(std::os::unix::net::UnixStream),
}

impl Crowd {
    fn connect(at: &Address) -> Option<Self> {
        use std::os::linux::net::SocketAddrExt;
        match at {
            Address::Tcp(a) => TcpStream::connect_timeout(a, PATIENCE).ok().map(Crowd::Tcp),
            Address::Local(n) => {
                let name = std::os::unix::net::SocketAddr::from_abstract_name(n.as_bytes()).unwrap();
                std::os::unix::net::UnixStream::connect_addr(&name).ok().map(Crowd::Local)
            }
        }
    }
}

#[test]
fn a_connection_that_sends_single_slow_bytes_delays_no_message() {
    let (rendezvous, ids) = (tcp(), [unique(10), unique(11)]);
    let mut ends = [sockets(&rendezvous, ids[0]), sockets(&rendezvous, ids[1])];
    connect_pair(&mut ends, 1, &ids);
    let Address::Tcp(at) = address_of(&rendezvous) else { panic!() };
    let mut slow = TcpStream::connect(at).unwrap();
    slow.write_all(&[8]).unwrap();
    let begin = Instant::now();
    for k in 0..20 {
        let _ = slow.write(&[0]);
        ends[1].send(ids[0], &[k]);
        let events = until(&mut ends, |e| !e[0].is_empty());
        assert_eq!(events[0], [TransportEvent::Message { from: ids[1], body: vec![k] }]);
    }
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
}

#[test]
fn a_tcp_peer_with_another_token_receives_nothing() {
    let (rendezvous, ids) = (tcp(), [unique(15), unique(16)]);
    let mut keeper = [sockets(&rendezvous, ids[0])];
    keeper[0].announce(announcement(1, 0, 2, ids[0]));
    keeper[0].poll(Duration::ZERO, &mut Vec::new());
    let mut other = Link::connect(&address_of(&rendezvous), b"guess", PATIENCE, IntraNodeTransport::Socket).unwrap();
    other.send(&Packet::Announce(announcement(1, 1, 2, ids[1]), Vec::new()).bytes());
    let begin = Instant::now();
    while !other.is_broken() && begin.elapsed() < PATIENCE {
        keeper[0].poll(Duration::from_millis(5), &mut Vec::new());
        other.flush();
        other.receive(|f| panic!("{f:?}"));
    }
    assert_eq!(other.broken_reason(), Some(wire::link::WRONG_TOKEN));
}

#[test]
fn a_frame_over_the_limit_ends_its_connection_and_no_other() {
    let (rendezvous, ids) = (tcp(), [unique(20), unique(21)]);
    let mut ends = [sockets(&rendezvous, ids[0]), sockets(&rendezvous, ids[1])];
    connect_pair(&mut ends, 1, &ids);
    let Address::Tcp(at) = address_of(&rendezvous) else { panic!() };
    // A peer that knows the token.
    let mut raw = TcpStream::connect(at).unwrap();
    let framed = |body: &[u8]| [&(body.len() as u32).to_le_bytes(), body].concat();
    let a = auth::nonce().unwrap();
    raw.write_all(&framed(&[auth::MAGIC.as_slice(), &a].concat())).unwrap();
    let mut challenge = [0; 4 + 8 + auth::NONCE_BYTES + auth::PROOF_BYTES];
    std::thread::scope(|s| {
        let read = s.spawn(|| raw.read_exact(&mut challenge).unwrap());
        while !read.is_finished() {
            until(&mut ends, |_| true);
            ends[0].poll(Duration::from_millis(2), &mut Vec::new());
        }
    });
    let b = auth::Nonce::try_from(&challenge[12..12 + auth::NONCE_BYTES]).unwrap();
    raw.write_all(&framed(&auth::proof(b"t", auth::Role::Connects, &a, &b))).unwrap();
    raw.write_all(&(FRAME_BYTES_MAX as u32 + 100).to_le_bytes()).unwrap();
    raw.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let begin = Instant::now();
    let mut ended = false;
    while !ended && begin.elapsed() < PATIENCE {
        until(&mut ends, |_| true);
        ends[0].poll(Duration::from_millis(2), &mut Vec::new());
        ended = matches!(raw.read(&mut [0]), Ok(0)) || raw.write(&[0]).is_err();
    }
    assert!(ended);
    ends[1].send(ids[0], b"still here");
    let events = until(&mut ends, |e| !e[0].is_empty());
    assert_eq!(events[0], [TransportEvent::Message { from: ids[1], body: b"still here".to_vec() }]);
}

#[test]
fn a_connection_that_claims_to_be_another_process_is_dropped() {
    let (rendezvous, ids) = (local("liar"), [unique(30), unique(31)]);
    let mut ends = [sockets(&rendezvous, ids[0]), sockets(&rendezvous, ids[1])];
    connect_pair(&mut ends, 1, &ids);
    let me = unique(32);
    let lies = [
        Packet::Message { from: ids[1], body: b"vote".to_vec() },
        Packet::Announce(announcement(2, 0, 2, ids[1]), Vec::new()),
        Packet::Forget { comm: 1, process: ids[1] },
        Packet::Complete {
            roster: Roster { comm: 1, members: vec![MemberId { rank: 0, process: me, ordinal: 0 }] },
            host: 1,
            addresses: Vec::new(),
        },
        Packet::Disagreed { comm: 1, reason: Disagreement::Size },
    ];
    for (k, lie) in lies.into_iter().enumerate() {
        let me = unique(320 + k as u64); // each thing is said once
        let mut liar = Raw::connect(&address_of(&rendezvous));
        liar.0.send(&Packet::Hello(me).bytes());
        liar.0.send(&lie.bytes());
        let begin = Instant::now();
        while !liar.0.is_broken() && begin.elapsed() < PATIENCE {
            let events = until(&mut ends, |_| true);
            assert!(events.iter().all(|e| e.is_empty()), "{lie:?}: {events:?}");
            let mut got = Vec::new();
            ends[0].poll(Duration::from_millis(2), &mut got);
            assert_eq!(got, [], "{lie:?}");
            liar.packets();
        }
        assert!(liar.0.is_broken(), "{lie:?}");
        assert!(
            ends[0].notes().iter().any(|n| n.contains("malformed") || n.contains(&format!("{me:016x}"))),
            "{lie:?}"
        );
    }
    // Their claims have no effect.
    assert!(connect_pair(&mut ends, 3, &ids) < PATIENCE);
}

#[test]
fn a_wrong_rank_or_size_disables_tuning_only_for_its_communicator() {
    for (k, (rank, size, why)) in [(0, 2, Disagreement::Ranks), (1, 3, Disagreement::Size)].into_iter().enumerate() {
        let (rendezvous, id, liar) = (local(&format!("rank-{k}")), unique(40), unique(41));
        let mut ends = [sockets(&rendezvous, id)];
        ends[0].announce(announcement(1, 0, 2, id));
        ends[0].poll(Duration::ZERO, &mut Vec::new());
        let mut raw = Raw::connect(&address_of(&rendezvous));
        raw.0.send(&Packet::Announce(announcement(1, rank, size, liar), Vec::new()).bytes());
        let mut received = Vec::new();
        let events = until(&mut ends, |e| {
            received.extend(raw.packets());
            !e[0].is_empty()
        });
        assert_eq!(events[0], [TransportEvent::Disagreed { comm: 1, reason: why.clone() }]);
        let begin = Instant::now();
        while received.len() < 2 && begin.elapsed() < PATIENCE {
            received.extend(raw.packets());
        }
        assert_eq!(received, [Packet::Hello(id), Packet::Disagreed { comm: 1, reason: why }]);
    }
}

/// A register and leader controlled by the test, so that it can read and cut each connection.
struct FakeRegister {
    rendezvous: Rendezvous,
    at_rendezvous: Listener,
    at_leader: Listener,
    leader: ProcessId,
    leader_address: Address,
}

impl FakeRegister {
    fn new(name: &str, n: u64) -> Self {
        let (rendezvous, leader) = (local(name), unique(n));
        let leader_address = Address::Local(format!("linkwise-{leader:016x}"));
        let at_rendezvous = Listener::bind(&address_of(&rendezvous)).unwrap();
        FakeRegister {
            at_rendezvous,
            at_leader: Listener::bind(&leader_address).unwrap(),
            rendezvous,
            leader,
            leader_address,
        }
    }

    /// The next connection to a listener; polls `end` meanwhile.
    fn next_connection(&self, at: &Listener, end: &mut Sockets) -> Raw {
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            end.poll(Duration::from_millis(2), &mut Vec::new());
            if let Some(link) = Link::accept(at, b"t", IntraNodeTransport::SharedMemory).unwrap() {
                return Raw(link);
            }
        }
        panic!("no connection arrived");
    }

    /// The next packet from a connection.
    fn next_packet(&self, from: &mut Raw, end: &mut Sockets) -> Packet {
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            if let Some(packet) = from.packets().into_iter().next() {
                return packet;
            }
            end.poll(Duration::from_millis(2), &mut Vec::new());
        }
        panic!("no packet arrived");
    }

    /// A member of a roster that this process leads, its connection to the register and that to the leader.
    fn member(&self, n: u64, intra_node: IntraNodeTransport) -> (Sockets, Raw, Raw) {
        let id = unique(n);
        let mut end =
            Sockets::new(self.rendezvous.clone(), b"t", None, id, 1).unwrap().intra_node_transport(intra_node);
        end.announce(announcement(7, 1, 2, id));
        let mut up = self.next_connection(&self.at_rendezvous, &mut end);
        assert!(matches!(self.next_packet(&mut up, &mut end), Packet::Announce(a, _) if a.process == id));
        let address_of = |rank, process| MemberId { rank, process, ordinal: 0 };
        let roster = Roster { comm: 7, members: vec![address_of(0, self.leader), address_of(1, id)] };
        let addresses = vec![self.leader_address.clone()];
        up.0.send(&Packet::Hello(unique(999)).bytes());
        up.0.send(&Packet::Complete { roster, host: 1, addresses }.bytes());
        let mut down = self.next_connection(&self.at_leader, &mut end);
        assert_eq!(self.next_packet(&mut down, &mut end), Packet::Hello(id));
        (end, up, down)
    }
}

#[test]
fn a_member_whose_connection_to_the_leader_breaks_connects_again() {
    let register = FakeRegister::new("again", 50);
    let (mut end, _up, mut down) = register.member(51, IntraNodeTransport::Socket);
    for k in 0..3 {
        drop(down);
        down = register.next_connection(&register.at_leader, &mut end);
        assert_eq!(register.next_packet(&mut down, &mut end), Packet::Hello(unique(51)));
        end.send(register.leader, &[k]);
        assert_eq!(register.next_packet(&mut down, &mut end), Packet::Message { from: unique(51), body: vec![k] });
    }
}

#[test]
fn a_member_whose_connection_to_the_register_breaks_announces_again() {
    let register = FakeRegister::new("register-again", 55);
    let (mut end, up, _down) = register.member(56, IntraNodeTransport::Socket);
    drop(up);
    let mut up = register.next_connection(&register.at_rendezvous, &mut end);
    assert!(matches!(register.next_packet(&mut up, &mut end), Packet::Announce(a, _) if a.process == unique(56)));
}

#[test]
fn after_a_break_over_shared_memory_the_next_connection_uses_the_socket() {
    let register = FakeRegister::new("memory-breaks", 60);
    let (mut end, up, mut down) = register.member(61, IntraNodeTransport::SharedMemory);
    let begin = Instant::now();
    while !down.0.is_in_memory() && begin.elapsed() < PATIENCE {
        end.poll(Duration::from_millis(2), &mut Vec::new());
        down.packets();
    }
    assert!(down.0.is_in_memory() && up.0.has_memory());
    drop(down);
    let mut down = register.next_connection(&register.at_leader, &mut end);
    assert_eq!(register.next_packet(&mut down, &mut end), Packet::Hello(unique(61)));
    assert!(!down.0.has_memory());
    end.send(register.leader, b"as ever");
    let said = Packet::Message { from: unique(61), body: b"as ever".to_vec() };
    assert_eq!(register.next_packet(&mut down, &mut end), said);
}

// Transport through a folder.

fn in_folder(root: &Path, token: &[u8], ids: &[ProcessId]) -> Vec<Folder> {
    ids.iter().map(|p| Folder::for_job(root, token, *p).unwrap()).collect()
}

fn announce_all(ends: &mut [Folder], comm: u64, ids: &[ProcessId]) {
    for (i, end) in ends.iter_mut().enumerate() {
        end.announce(announcement(comm, i as i32, ids.len() as u32, ids[i]));
    }
}

#[test]
fn leftovers_of_an_earlier_job_in_the_folder_are_ignored() {
    let (folder, ids) = (tempfile::tempdir().unwrap(), [unique(70), unique(71), unique(72)]);
    // A process was killed: its announcements and a message are left over.
    let mut dead = in_folder(folder.path(), b"job 1", &ids[2..]);
    dead[0].announce(announcement(5, 0, 2, ids[2]));
    dead[0].poll(Duration::ZERO, &mut Vec::new());
    dead[0].send(ids[2], b"unread");
    std::mem::forget(dead);
    let mut ends = in_folder(folder.path(), b"job 2", &ids[..2]);
    announce_all(&mut ends, 5, &ids[..2]);
    let events = until(&mut ends, |e| e.iter().all(|e| is_complete(e)));
    assert!(events.iter().all(|e| is_complete(e)), "{events:?}");
}

#[test]
fn leftovers_of_a_job_with_the_same_token_disable_tuning_with_a_message() {
    let (folder, ids) = (tempfile::tempdir().unwrap(), [unique(73), unique(74), unique(75)]);
    let mut dead = in_folder(folder.path(), b"job", &ids[2..]);
    dead[0].announce(announcement(5, 0, 2, ids[2]));
    dead[0].poll(Duration::ZERO, &mut Vec::new());
    let mut ends = in_folder(folder.path(), b"job", &ids[..2]);
    announce_all(&mut ends, 5, &ids[..2]);
    let events = until(&mut ends, |e| e.iter().all(|e| !e.is_empty()));
    for got in &events {
        assert!(
            matches!(
                got.as_slice(),
                [TransportEvent::Disagreed { comm: 5, reason: Disagreement::Size | Disagreement::Ranks }]
            ),
            "{events:?}"
        );
    }
}

fn job(root: &Path) -> std::path::PathBuf {
    std::fs::read_dir(root).unwrap().next().unwrap().unwrap().path()
}

#[test]
fn half_written_files_are_skipped_until_they_are_complete() {
    let (folder, ids) = (tempfile::tempdir().unwrap(), [unique(76), unique(77)]);
    let mut ends = in_folder(folder.path(), b"", &ids);
    announce_all(&mut ends, 5, &ids);
    ends[0].poll(Duration::ZERO, &mut Vec::new());
    ends[1].poll(Duration::ZERO, &mut Vec::new());
    // A truncated file, as some network file systems briefly show, and files that are not announcements.
    let room = job(folder.path()).join("comm-0000000000000005");
    let path = room.join(format!("{:016x}-0", ids[1]));
    let whole = std::fs::read(&path).unwrap();
    let mut ends = in_folder(folder.path(), b"", &ids);
    announce_all(&mut ends, 5, &ids);
    std::fs::write(&path, &whole[..20]).unwrap();
    std::fs::write(room.join("junk"), b"junk").unwrap();
    std::fs::write(room.join(".hidden.part"), &whole).unwrap();
    std::fs::create_dir(room.join("a folder")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, room.join("a pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let mut events = Vec::new();
    ends[0].poll(Duration::from_millis(50), &mut events);
    assert_eq!(events, []);
    std::fs::write(&path, &whole).unwrap();
    let events = until(&mut ends, |e| e.iter().all(|e| is_complete(e)));
    assert!(events.iter().all(|e| is_complete(e)), "{events:?}");
    // In the inbox: invalid names, invalid contents, and a pipe.
    let inbox = job(folder.path()).join(format!("box-{:016x}", ids[0]));
    std::fs::write(inbox.join("nonsense"), b"?").unwrap();
    std::fs::write(inbox.join("zz-1"), b"?").unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, inbox.join("12-1"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    std::fs::write(inbox.join(format!("{:016x}-0", ids[1])), vec![0; FRAME_BYTES_MAX + 1]).unwrap();
    ends[1].send(ids[0], b"sense");
    let events = until(&mut ends, |e| !e[0].is_empty());
    assert_eq!(events[0], [TransportEvent::Message { from: ids[1], body: b"sense".to_vec() }]);
}

#[test]
fn a_vanished_folder_is_reported_once_and_works_again_when_it_is_back() {
    let (folder, ids) = (tempfile::tempdir().unwrap(), [unique(80), unique(81)]);
    let root = folder.path().join("meeting");
    let mut ends = in_folder(&root, b"", &ids);
    announce_all(&mut ends, 5, &ids);
    until(&mut ends, |e| e.iter().all(|e| is_complete(e)));
    // A file in place of the folder: the folder cannot be created again.
    std::fs::remove_dir_all(&root).unwrap();
    std::fs::write(&root, b"").unwrap();
    let (begin, mut notes) = (Instant::now(), Vec::new());
    while notes.is_empty() && begin.elapsed() < PATIENCE {
        for _ in 0..20 {
            ends[1].send(ids[0], b"lost");
            let mut events = Vec::new();
            ends[0].poll(Duration::from_millis(20), &mut events);
            assert_eq!(events, []);
        }
        notes.extend(ends[0].notes());
    }
    assert!(matches!(notes.as_slice(), [n] if n.contains("is unusable")), "{notes:?}");
    std::fs::remove_file(&root).unwrap();
    let begin = Instant::now();
    let mut events = Vec::new();
    while events.is_empty() && begin.elapsed() < PATIENCE {
        ends[0].poll(Duration::ZERO, &mut events);
        ends[1].poll(Duration::ZERO, &mut Vec::new()); // finds the new folder
        ends[1].send(ids[0], b"here");
        ends[0].poll(Duration::ZERO, &mut events);
    }
    assert!(events.contains(&TransportEvent::Message { from: ids[1], body: b"here".to_vec() }));
    assert!(ends[0].notes().iter().any(|n| n.contains("usable again")));
}

#[test]
fn an_unusable_folder_is_refused_with_a_remedy() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let refused = |root: &Path| Folder::for_job(root, b"", 1).map(|_| ()).unwrap_err().to_string();
    // Below a regular file, and where not even root may create folders.
    for root in [file.join("under"), Path::new("/sys/kernel/linkwise").into()] {
        let e = refused(&root);
        assert!(e.contains(root.to_str().unwrap()) && e.contains("choose a folder"), "{e}");
    }
    // A job folder that other users can write to.
    drop(Folder::for_job(folder.path(), b"", 1).unwrap());
    let job = std::fs::read_dir(folder.path()).unwrap().flatten().find(|e| e.path().is_dir()).unwrap().path();
    assert_eq!(std::fs::metadata(&job).unwrap().permissions().mode() & 0o777, 0o700);
    std::fs::set_permissions(&job, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert!(refused(folder.path()).contains("can be written by other users"));
}

/// A folder that this other user owns, as if that user had made it; `None` unless this process may do so.
const OTHER: u32 = 65_534;
fn give_to_other(path: &Path) -> Option<()> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP: only root can make folders of another user");
        return None;
    }
    std::os::unix::fs::chown(path, Some(OTHER), Some(OTHER)).unwrap();
    Some(())
}

#[test]
fn a_folder_of_another_user_is_refused_before_the_job_and_obeyed_by_no_rank_in_the_middle_of_it() {
    use std::os::unix::fs::PermissionsExt;
    let (folder, ids) = (tempfile::tempdir().unwrap(), [unique(90), unique(91)]);
    let token = b"a secret of the job";
    let path = folder.path().join(format!("job-{:016x}", wire::bytes::hash(token)));
    // Made first by the other user, with a mode that no third one can write to.
    std::fs::create_dir_all(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let Some(()) = give_to_other(&path) else { return };
    let e = Folder::for_job(folder.path(), token, 1).map(|_| ()).unwrap_err().to_string();
    assert!(e.contains("belongs to user 65534") && e.contains("choose a folder"), "{e}");
    std::fs::remove_dir(&path).unwrap();
    // In the place of the job's folder, and of an inbox, while the job runs.
    let mut ends = in_folder(folder.path(), token, &ids);
    announce_all(&mut ends, 5, &ids);
    until(&mut ends, |e| e.iter().all(|e| is_complete(e)));
    let inbox = path.join(format!("box-{:016x}", ids[0]));
    for (place, made) in [(&inbox, &inbox), (&path, &inbox)] {
        let gone = folder.path().join("gone");
        std::fs::rename(place, &gone).unwrap();
        std::fs::create_dir_all(made).unwrap();
        std::fs::write(made.join(format!("{:016x}-0", ids[1])), b"obey").unwrap();
        give_to_other(made);
        give_to_other(place);
        let (begin, mut notes) = (Instant::now(), Vec::new());
        let mut events = Vec::new();
        while notes.is_empty() && begin.elapsed() < PATIENCE {
            ends[0].poll(Duration::from_millis(20), &mut events);
            notes.extend(ends[0].notes());
        }
        assert!(matches!(notes.as_slice(), [n] if n.contains("belongs to user 65534")), "{notes:?}");
        assert_eq!(events, []);
        std::fs::remove_dir_all(place).unwrap();
        std::fs::rename(&gone, place).unwrap();
        while ends[0].notes().is_empty() && begin.elapsed() < PATIENCE {
            ends[0].poll(Duration::from_millis(20), &mut events);
        }
        assert_eq!(events, []);
    }
}

#[test]
fn files_of_another_writer_links_and_files_of_another_user_are_no_messages() {
    let (folder, ids) = (tempfile::tempdir().unwrap(), [unique(92), unique(93)]);
    let mut ends = in_folder(folder.path(), b"token", &ids);
    announce_all(&mut ends, 5, &ids);
    until(&mut ends, |e| e.iter().all(|e| is_complete(e)));
    let inbox = job(folder.path()).join(format!("box-{:016x}", ids[0]));
    ends[1].send(ids[0], b"sealed");
    let name = |n: u32| inbox.join(format!("{:016x}-{n:016x}", ids[1]));
    let sealed = std::fs::read(name(1)).unwrap();
    assert!(sealed.starts_with(b"sealed") && sealed.len() > 6);
    // Without the token; through a link; the same file from another sender; of another user.
    std::fs::write(name(2), b"obey").unwrap();
    std::fs::write(folder.path().join("elsewhere"), &sealed).unwrap();
    std::os::unix::fs::symlink(folder.path().join("elsewhere"), name(3)).unwrap();
    std::fs::write(inbox.join(format!("{:016x}-4", ids[0])), &sealed).unwrap();
    std::fs::write(name(5), &sealed).unwrap();
    let one_too_many = usize::from(give_to_other(&name(5)).is_none());
    let mut events = Vec::new();
    let begin = Instant::now();
    while events.is_empty() && begin.elapsed() < PATIENCE {
        ends[0].poll(Duration::from_millis(20), &mut events);
    }
    let message = TransportEvent::Message { from: ids[1], body: b"sealed".to_vec() };
    assert_eq!(events, vec![message; 1 + one_too_many]);
}

/// Set in the child process that plays the evil one.
const EVIL: &str = "LINKWISE_TEST_EVIL_AT";
/// What the evil one prints once it listens.
const LISTENS: &str = "evil listens";

/// Not a test: a process of another user that has taken the rendezvous before the job. It prints all that it is told, and tells each rank that it
/// leads and what to obey.
#[test]
#[ignore = "run by another test in a process of its own"]
fn evil_process() {
    use std::os::linux::net::SocketAddrExt;
    let Ok(name) = std::env::var(EVIL) else { return };
    let at = std::os::unix::net::SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
    let listener = std::os::unix::net::UnixListener::bind_addr(&at).unwrap();
    println!("{LISTENS}");
    let framed = |body: &[u8]| [&(body.len() as u32).to_le_bytes(), body].concat();
    let roster = Roster { comm: 1, members: vec![MemberId { rank: 0, process: 1, ordinal: 0 }] };
    let lead = Packet::Complete { roster, host: 1, addresses: vec![Address::Local(name)] };
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let mut told = [0; 4096];
        let n = stream.read(&mut told).unwrap_or(0);
        println!("told {:02x?}", &told[..n]);
        let _ = stream.write_all(&framed(&[auth::MAGIC.as_slice(), &[0; 64]].concat()));
        let _ = stream.write_all(&framed(&lead.bytes()));
    }
}

#[test]
fn a_process_of_another_user_at_the_rendezvous_is_told_nothing_and_obeyed_by_no_rank() {
    use std::io::BufRead;
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP: only root can start a process of another user");
        return;
    }
    let rendezvous = local("evil");
    let Address::Local(name) = address_of(&rendezvous) else { panic!() };
    // The other user may not be able to read the build folder.
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let program = folder.path().join("evil");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut evil = std::process::Command::new(&program)
        .args(["evil_process", "--exact", "--ignored", "--nocapture"])
        .env(EVIL, &name)
        .current_dir("/")
        .uid(65_534)
        .gid(65_534)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufReader::new(evil.stdout.take().unwrap()).lines();
    assert!(lines.by_ref().map_while(Result::ok).any(|l| l.contains(LISTENS)));
    let token = b"a secret of the job";
    let ids = [unique(80), unique(81)];
    let mut ends = ids.map(|id| Sockets::new(rendezvous.clone(), token, None, id, id).unwrap());
    for (i, end) in ends.iter_mut().enumerate() {
        end.announce(announcement(1, i as i32, 2, ids[i]));
    }
    let (begin, mut events, mut notes) = (Instant::now(), Vec::new(), Vec::new());
    while begin.elapsed() < Duration::from_secs(2) {
        for end in &mut ends {
            end.poll(Duration::from_millis(2), &mut events);
            notes.extend(end.notes());
        }
    }
    evil.kill().unwrap();
    evil.wait().unwrap();
    let told: Vec<String> = lines.map_while(Result::ok).filter(|l| l.starts_with("told")).collect();
    assert!(!told.is_empty(), "the ranks came by");
    assert!(told.iter().all(|l| l == "told []"), "not even a greeting: {told:?}");
    assert_eq!(events, [], "no roster of the evil one is believed");
    assert!(ends.iter().all(|e| e.connections() == 0 && !e.is_register()));
    assert!(notes.len() == 2 && notes.iter().all(|n| n.contains("another user")), "one line each: {notes:?}");
    // Once it is gone, the job finds itself.
    let events = until(&mut ends, |e| e.iter().all(|e| is_complete(e)));
    assert!(events.iter().all(|e| is_complete(e)), "{events:?}");
}
