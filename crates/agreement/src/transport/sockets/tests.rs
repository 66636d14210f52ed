//! Meeting places that are names: they are looked up here as each test wants.

use super::super::places::Resolve;
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

/// A port that only who binds it by its number gets, as long as this is held.
fn port(ip: IpAddr) -> (OwnedFd, u16) {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt};
    let held = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseaddr(&held, true).unwrap();
    bind(&held, &SocketAddr::new(ip, 0)).unwrap();
    let at: SocketAddr = getsockname(&held).unwrap().try_into().unwrap();
    (held, at.port())
}

const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// A process on a host of its own that looks the meeting place up in its own way.
fn end(port: u16, process: ProcessId, resolve: Resolve) -> Sockets {
    let meeting = Meeting::Tcp { host: "node0".into(), port };
    let mut end = Sockets::new(meeting, b"t", None, process, process).unwrap();
    end.places.resolve = resolve;
    end
}

/// Polls them until `done`.
fn until(ends: &mut [Sockets], mut done: impl FnMut(&[Sockets], &[Vec<Event>]) -> bool) -> Vec<Vec<Event>> {
    let mut events: Vec<Vec<Event>> = ends.iter().map(|_| Vec::new()).collect();
    let begin = Instant::now();
    while !done(ends, &events) {
        assert!(begin.elapsed() < PATIENCE, "{events:?}");
        for (end, got) in ends.iter_mut().zip(&mut events) {
            end.poll(Duration::from_millis(2), got);
        }
    }
    events
}

fn complete(events: &[Event]) -> bool {
    matches!(events, [Event::Complete(_), ..])
}

/// Both announce a communicator, get its roster, and the member's words arrive at the leader, which `ids[0]` is.
fn meet_and_talk(ends: &mut [Sockets], ids: &[ProcessId]) {
    for (i, end) in ends.iter_mut().enumerate() {
        end.announce(announcement(7, i as i32, ids.len() as u32, ids[i]));
    }
    until(ends, |_, events| events.iter().all(|e| complete(e)));
    for (end, id) in ends.iter_mut().zip(ids).skip(1) {
        let begin = Instant::now();
        while end.link_to(ids[0]).is_none_or(|l| !l.is_known()) {
            assert!(begin.elapsed() < PATIENCE, "{id:x} does not reach its leader");
            end.poll(Duration::from_millis(2), &mut Vec::new());
        }
        end.send(ids[0], b"vote");
    }
    let events = until(ends, |_, events| events[0].len() == ids.len() - 1);
    assert!(events[0].iter().all(|e| matches!(e, Event::Message { body, .. } if body == b"vote")));
}

#[test]
fn a_host_that_knows_itself_by_its_loopback_is_reached_by_the_others() {
    let (_held, port) = port(ANY);
    let ids = [unique(1), unique(2), unique(3)];
    // Two on node0, as Debian has it in its /etc/hosts; for another host it has the address that it has on the network.
    let own: Resolve = |_, port| vec![([127, 0, 1, 1], port).into()];
    let mut ends = [
        end(port, ids[0], own),
        end(port, ids[1], own),
        end(port, ids[2], |_, port| vec![([127, 0, 0, 1], port).into()]),
    ];
    // The second keeps the register: the leader is another process of that host.
    ends[1].announce(announcement(1, 0, 2, ids[1]));
    let begin = Instant::now();
    while !ends[1].keeps_register() && begin.elapsed() < PATIENCE {
        ends[1].poll(Duration::from_millis(2), &mut Vec::new());
    }
    meet_and_talk(&mut ends, &ids);
    assert_eq!(ends.iter().map(|e| e.keeps_register()).collect::<Vec<_>>(), [false, true, false]);
}

#[test]
fn an_address_that_does_not_answer_costs_time_and_no_more() {
    let (_held, port) = port(ANY);
    // Its queue is full: whoever connects waits for ever.
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
    // The other one's listener is at one address alone.
    ends[0].bind = Some([127, 0, 0, 1].into());
    meet_and_talk(&mut ends, &ids);
}

#[test]
fn who_names_an_address_listens_there_alone() {
    let id = unique(20);
    for (host, bind) in [("127.0.0.1", None), ("localhost", None), ("node0", Some([127, 0, 0, 1].into()))] {
        let (_held, port) = port(ANY);
        let meeting = Meeting::Tcp { host: host.into(), port };
        let mut end = Sockets::new(meeting, b"t", bind, id, id).unwrap();
        end.places.resolve = |_, port| vec![([127, 0, 0, 1], port).into()];
        end.announce(announcement(1, 0, 2, id));
        until(std::slice::from_mut(&mut end), |e, _| e[0].keeps_register());
        assert!(end.own.iter().all(|a| !matches!(a, Address::Tcp(a) if a.ip().is_unspecified())), "{:?}", end.own);
        let elsewhere = SocketAddr::from(([127, 0, 0, 2], port));
        assert!(std::net::TcpStream::connect(elsewhere).is_err(), "{host} {bind:?}");
        assert!(std::net::TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).is_ok());
    }
}

#[test]
fn of_several_addresses_of_a_host_one_is_the_meeting_place_whichever_comes_first_to_whom() {
    let (_held, port) = port(ANY);
    let ids = [unique(25), unique(26)];
    let meeting = Meeting::Tcp { host: "localhost".into(), port };
    let mut ends: Vec<Sockets> =
        ids.iter().map(|id| Sockets::new(meeting.clone(), b"t", None, *id, *id).unwrap()).collect();
    for end in &mut ends {
        end.places.resolve = |_, port| vec![([127, 0, 0, 3], port).into(), ([127, 0, 0, 2], port).into()];
    }
    ends[1].places.tried(); // it begins with the other one
    meet_and_talk(&mut ends, &ids);
}

#[test]
fn there_are_no_more_connections_than_the_process_can_spare_files_for() {
    let ids: Vec<ProcessId> = (30..36).map(unique).collect();
    let meeting = Meeting::Local(format!("{}-files", std::process::id()));
    let mut ends: Vec<Sockets> =
        ids.iter().map(|id| Sockets::new(meeting.clone(), b"t", None, *id, *id).unwrap()).collect();
    ends[0].announce(announcement(1, 0, 2, ids[0]));
    until(&mut ends[..1], |e, _| e[0].keeps_register());
    ends[0].links.most = 3;
    // The first three get a connection, and what needs no more than them is complete.
    for (i, end) in ends.iter_mut().enumerate().take(4) {
        end.announce(announcement(2, i as i32, 4, ids[i]));
    }
    until(&mut ends[..4], |_, events| events.iter().all(|e| complete(e)));
    assert_eq!(ends[0].notes(), [] as [String; 0]);
    // The others do not, which is said once; nothing breaks.
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
    assert_eq!(events[0], [Event::Message { from: ids[1], body: b"as ever".to_vec() }]);
}
