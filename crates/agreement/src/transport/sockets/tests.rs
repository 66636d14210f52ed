//! Rendezvous that are host names, with a resolver chosen by each test.

use super::super::rendezvous::Resolve;
use super::*;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

const PATIENCE: Duration = Duration::from_secs(60);

fn unique(n: u64) -> ProcessId {
    u64::from(std::process::id()) << 32 | n
}

fn announcement(comm: u64, rank: i32, size: u32, process: ProcessId) -> Announcement {
    Announcement { comm, rank, size, host: process, process, ordinal: 0, settings: 9 }
}

/// A port that stays reserved while the descriptor is held; it can still be bound by its number.
fn port(ip: IpAddr) -> (OwnedFd, u16) {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt};
    let held = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseaddr(&held, true).unwrap();
    bind(&held, &SocketAddr::new(ip, 0)).unwrap();
    let at: SocketAddr = getsockname(&held).unwrap().try_into().unwrap();
    (held, at.port())
}

const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// A process on its own host, with its own resolver.
fn end(port: u16, process: ProcessId, resolve: Resolve) -> Sockets {
    let rendezvous = Rendezvous::Tcp { host: "node0".into(), port };
    let mut end = Sockets::new(rendezvous, b"t", None, process, process).unwrap();
    end.rendezvous.resolve = resolve;
    end.rendezvous.primary = |_| Some([127, 0, 0, 1].into());
    end
}

/// Polls all ends until `done`.
fn until(
    ends: &mut [Sockets],
    mut done: impl FnMut(&[Sockets], &[Vec<TransportEvent>]) -> bool,
) -> Vec<Vec<TransportEvent>> {
    let mut events: Vec<Vec<TransportEvent>> = ends.iter().map(|_| Vec::new()).collect();
    let begin = Instant::now();
    while !done(ends, &events) {
        assert!(begin.elapsed() < PATIENCE, "{events:?}");
        for (end, got) in ends.iter_mut().zip(&mut events) {
            end.poll(Duration::from_millis(2), got);
        }
    }
    events
}

fn complete(events: &[TransportEvent]) -> bool {
    matches!(events, [TransportEvent::Complete(_), ..])
}

/// All announce a communicator and get its roster; then each member's message reaches the leader, `ids[0]`.
fn connect_and_exchange(ends: &mut [Sockets], ids: &[ProcessId]) {
    for (i, end) in ends.iter_mut().enumerate() {
        end.announce(announcement(7, i as i32, ids.len() as u32, ids[i]));
    }
    until(ends, |_, events| events.iter().all(|e| complete(e)));
    for (end, id) in ends.iter_mut().zip(ids).skip(1) {
        let begin = Instant::now();
        while end.link_to(ids[0]).and_then(|via| end.connections.link(via)).is_none_or(|l| !l.is_ready()) {
            assert!(begin.elapsed() < PATIENCE, "{id:x} does not reach its leader");
            end.poll(Duration::from_millis(2), &mut Vec::new());
        }
        end.send(ids[0], b"vote");
    }
    let events = until(ends, |_, events| events[0].len() == ids.len() - 1);
    assert!(events[0].iter().all(|e| matches!(e, TransportEvent::Message { body, .. } if body == b"vote")));
}

#[test]
fn a_host_whose_own_name_is_loopback_is_reachable_for_others() {
    let (_held, port) = port(ANY);
    let ids = [unique(1), unique(2), unique(3)];
    // Two processes on node0, resolved as by Debian's /etc/hosts; the third host resolves the network address.
    let listen_addresses: Resolve = |_, port| vec![([127, 0, 1, 1], port).into()];
    let mut ends = [
        end(port, ids[0], listen_addresses),
        end(port, ids[1], listen_addresses),
        end(port, ids[2], |_, port| vec![([127, 0, 0, 1], port).into()]),
    ];
    // The second keeps the register, so the leader is another process of that host.
    ends[1].announce(announcement(1, 0, 2, ids[1]));
    let begin = Instant::now();
    while !ends[1].is_register() && begin.elapsed() < PATIENCE {
        ends[1].poll(Duration::from_millis(2), &mut Vec::new());
    }
    connect_and_exchange(&mut ends, &ids);
    assert_eq!(ends.iter().map(|e| e.is_register()).collect::<Vec<_>>(), [false, true, false]);
}

#[test]
fn a_silent_address_only_costs_time() {
    let (_held, port) = port(ANY);
    // The listener's queue is full, so a connection attempt gets no reply.
    let deaf = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::sockopt::set_socket_reuseaddr(&deaf, true).unwrap();
    rustix::net::bind(&deaf, &SocketAddr::from(([127, 0, 0, 9], port))).unwrap();
    rustix::net::listen(&deaf, 0).unwrap();
    let at = SocketAddr::from(([127, 0, 0, 9], port));
    let _queue: Vec<_> =
        (0..4).map(|_| std::net::TcpStream::connect_timeout(&at, Duration::from_millis(200))).collect();
    let ids = [unique(10), unique(11)];
    let only: Resolve = |_, port| vec![([127, 0, 0, 1], port).into()];
    let both: Resolve = |_, port| vec![([127, 0, 0, 9], port).into(), ([127, 0, 0, 1], port).into()];
    let mut ends = [end(port, ids[0], only), end(port, ids[1], both)];
    // The other end listens at one address only.
    ends[0].bind = Some([127, 0, 0, 1].into());
    connect_and_exchange(&mut ends, &ids);
}

#[test]
fn no_process_listens_at_all_addresses_of_its_host() {
    let id = unique(20);
    let one = Some([127, 0, 0, 1].into());
    for (host, bind) in [("127.0.0.1", None), ("localhost", None), ("node0", one), ("node0", None)] {
        let (_held, port) = port(ANY);
        let rendezvous = Rendezvous::Tcp { host: host.into(), port };
        let mut end = Sockets::new(rendezvous, b"t", bind, id, id).unwrap();
        end.rendezvous.resolve = |_, port| vec![([127, 0, 0, 1], port).into()];
        end.rendezvous.primary = |_| Some([127, 0, 0, 3].into());
        end.announce(announcement(1, 0, 2, id));
        until(std::slice::from_mut(&mut end), |e, _| e[0].is_register());
        assert!(
            end.listen_addresses.iter().all(|a| !matches!(a, Address::Tcp(a) if a.ip().is_unspecified())),
            "{:?}",
            end.listen_addresses
        );
        let elsewhere = SocketAddr::from(([127, 0, 0, 2], port));
        assert!(std::net::TcpStream::connect(elsewhere).is_err(), "{host} {bind:?}");
        assert!(std::net::TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).is_ok());
    }
}

#[test]
fn processes_that_resolve_a_host_in_different_orders_use_one_register() {
    let (_held, port) = port(ANY);
    let ids = [unique(25), unique(26)];
    let rendezvous = Rendezvous::Tcp { host: "localhost".into(), port };
    let mut ends: Vec<Sockets> =
        ids.iter().map(|id| Sockets::new(rendezvous.clone(), b"t", None, *id, *id).unwrap()).collect();
    for end in &mut ends {
        end.rendezvous.resolve = |_, port| vec![([127, 0, 0, 3], port).into(), ([127, 0, 0, 2], port).into()];
    }
    ends[1].rendezvous.tried(); // it begins with the other address
    connect_and_exchange(&mut ends, &ids);
}

#[test]
fn connections_stay_within_the_limit_on_open_files() {
    let ids: Vec<ProcessId> = (30..36).map(unique).collect();
    let rendezvous = Rendezvous::Local(format!("{}-files", std::process::id()));
    let mut ends: Vec<Sockets> =
        ids.iter().map(|id| Sockets::new(rendezvous.clone(), b"t", None, *id, *id).unwrap()).collect();
    ends[0].announce(announcement(1, 0, 2, ids[0]));
    until(&mut ends[..1], |e, _| e[0].is_register());
    ends[0].connections.limit = 3;
    // The first three get a connection, and rosters among them complete.
    for (i, end) in ends.iter_mut().enumerate().take(4) {
        end.announce(announcement(2, i as i32, 4, ids[i]));
    }
    until(&mut ends[..4], |_, events| events.iter().all(|e| complete(e)));
    assert_eq!(ends[0].notes(), [] as [String; 0]);
    // The others get none, which is reported once; no connection breaks.
    for (i, end) in ends.iter_mut().enumerate() {
        end.announce(announcement(3, i as i32, 6, ids[i]));
    }
    let mut notes = Vec::new();
    let events = until(&mut ends, |_, _| {
        notes.push(());
        notes.len() > 500
    });
    assert!(events.iter().all(|e| e.is_empty()), "{events:?}");
    assert_eq!(ends[0].connections(), 3);
    let said = ends[0].notes();
    assert!(matches!(said.as_slice(), [n] if n.contains("3 connections") && n.contains("ulimit -n")), "{said:?}");
    ends[1].send(ids[0], b"as ever");
    let events = until(&mut ends, |_, events| !events[0].is_empty());
    assert_eq!(events[0], [TransportEvent::Message { from: ids[1], body: b"as ever".to_vec() }]);
}

#[test]
fn a_foreign_service_at_the_rendezvous_is_named_once_and_asked_ever_less_often() {
    use std::io::Write;
    let service = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    service.set_nonblocking(true).unwrap();
    let port = service.local_addr().unwrap().port();
    let id = unique(40);
    let mut end = Sockets::new(Rendezvous::Tcp { host: "127.0.0.1".into(), port }, b"t", None, id, id).unwrap();
    end.announce(announcement(1, 0, 2, id));
    let (mut times, mut notes, begin) = (Vec::new(), Vec::new(), Instant::now());
    while times.len() < 5 && begin.elapsed() < PATIENCE {
        if let Ok((mut stream, _)) = service.accept() {
            times.push(Instant::now());
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
            std::thread::sleep(Duration::from_millis(5));
        }
        end.poll(Duration::from_millis(1), &mut Vec::new());
        notes.extend(end.notes());
    }
    let gaps: Vec<Duration> = times.windows(2).map(|w| w[1] - w[0]).collect();
    assert!(gaps.windows(2).all(|g| g[1] > g[0].mul_f64(1.4)), "each interval is about twice the last: {gaps:?}");
    assert!(matches!(notes.as_slice(), [n] if n.contains("no register of this job")), "{notes:?}");
    assert!(end.register_pause <= RETRY_MAX && !end.is_register());
}

#[test]
fn a_communicator_over_the_limit_is_left_alone_and_all_others_agree() {
    let (_held, port) = port(ANY);
    let ids = [unique(45), unique(46)];
    let only: Resolve = |_, port| vec![([127, 0, 0, 1], port).into()];
    let mut ends = [end(port, ids[0], only), end(port, ids[1], only)];
    for (i, end) in ends.iter_mut().enumerate() {
        end.announce(announcement(9, i as i32, 5000, ids[i]));
    }
    let events = until(&mut ends, |_, events| events.iter().all(|e| !e.is_empty()));
    let left_out = [TransportEvent::Disagreed { comm: 9, reason: Disagreement::TooLarge }];
    assert!(events.iter().all(|e| *e == left_out), "{events:?}");
    connect_and_exchange(&mut ends, &ids);
    // A process that announces it all the same, as earlier versions do, keeps its connection.
    let via = ends[1].connections.find(ids[0]).unwrap();
    let packet = Packet::Announce(announcement(10, 1, 5000, ids[1]), Vec::new());
    let to = if ends[0].is_register() { REGISTER } else { via };
    ends[1].connections.send(to, &packet.bytes());
    ends[1].send(ids[0], b"as ever");
    let events = until(&mut ends, |_, events| !events[0].is_empty());
    assert_eq!(events[0], [TransportEvent::Message { from: ids[1], body: b"as ever".to_vec() }]);
}

#[test]
fn the_next_connection_to_a_process_tries_its_next_address() {
    let (_held, port) = port(ANY);
    let ids = [unique(47), unique(48)];
    let only: Resolve = |_, port| vec![([127, 0, 0, 1], port).into()];
    let mut ends = [end(port, ids[0], only), end(port, ids[1], only)];
    for (i, end) in ends.iter_mut().enumerate() {
        end.announce(announcement(7, i as i32, 2, ids[i]));
    }
    until(&mut ends, |_, events| events.iter().all(|e| complete(e)));
    // The first address of the leader answers no more: its listener's queue is full.
    let deaf = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    rustix::net::listen(&deaf, 0).unwrap();
    let at = deaf.local_addr().unwrap();
    let _queue: Vec<_> =
        (0..4).map(|_| std::net::TcpStream::connect_timeout(&at, Duration::from_millis(200))).collect();
    let (_, known) = ends[1].addresses_of.get_mut(&ids[0]).unwrap();
    known.insert(0, Address::Tcp(at));
    if let Some(via) = ends[1].connections.find(ids[0]) {
        ends[1].connections.fail(via, "cut");
    }
    let begin = Instant::now();
    let reached = |ends: &mut [Sockets; 2]| {
        let via = ends[1].connections.find(ids[0]);
        via.and_then(|via| ends[1].connections.link(via)).is_some_and(|l| l.is_ready())
    };
    while !reached(&mut ends) {
        assert!(begin.elapsed() < PATIENCE);
        ends.iter_mut().for_each(|e| e.poll(Duration::from_millis(2), &mut Vec::new()));
    }
}

#[test]
fn a_register_with_few_connections_serves_many_processes_one_after_the_other() {
    let (_held, port) = port(ANY);
    let resolve: Resolve = |_, port| vec![([127, 0, 0, 1], port).into()];
    const PROCESSES: usize = 40;
    const LIMIT: usize = 8;
    let ids: Vec<ProcessId> = (0..PROCESSES as u64).map(|i| unique(300 + i)).collect();
    let mut ends: Vec<Sockets> = ids.iter().map(|id| end(port, *id, resolve)).collect();
    ends.iter_mut().for_each(|e| e.connections.limit = LIMIT);
    // Two ranks far from each other, so that the first processes wait for those that have no connection yet.
    let half = PROCESSES / 2;
    for (i, end) in ends.iter_mut().enumerate() {
        end.announce(announcement((i % half) as u64, (i / half) as i32, 2, ids[i]));
    }
    let mut most = 0;
    let events = until(&mut ends, |ends, events| {
        most = most.max(ends.iter().map(Sockets::connections).max().unwrap_or(0));
        events.iter().all(|e| complete(e))
    });
    assert!(most <= LIMIT + 1, "{most} connections, {LIMIT} and that to the register allowed");
    assert!(events.iter().all(|e| e.iter().all(|e| matches!(e, TransportEvent::Complete(_)))), "{events:?}");
    let notes: Vec<String> = ends.iter_mut().flat_map(|e| e.notes()).collect();
    let about_limits = |n: &&String| n.contains("connections") || n.contains("register");
    assert_eq!(notes.iter().find(about_limits), None, "nothing to tell the user");
    // A later communicator of two that were sent away.
    for (rank, i) in [5, half + 7].into_iter().enumerate() {
        ends[i].announce(announcement(1000, rank as i32, 2, ids[i]));
    }
    let later = |e: &[TransportEvent]| e.iter().any(|e| matches!(e, TransportEvent::Complete(r) if r.comm == 1000));
    until(&mut ends, |_, events| later(&events[5]) && later(&events[half + 7]));
}
