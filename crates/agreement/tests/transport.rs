//! Endpoints of several processes of a job, all in one test process.

mod common;

use agreement::roster::Announcement;
use agreement::transport::{Folder, IntraNodeTransport, Sockets};
use agreement::{Disagreement, Endpoint, ProcessId, Rendezvous, TransportEvent};
use common::{PATIENCE, announcement, tcp, unique};
use std::time::{Duration, Instant};

fn until(ends: &mut [Box<dyn Endpoint>], done: impl FnMut(&[Vec<TransportEvent>]) -> bool) -> Vec<Vec<TransportEvent>> {
    common::until(ends.iter_mut().map(|e| e.as_mut() as _).collect(), done)
}

fn sockets(rendezvous: &Rendezvous, token: &[u8], process: ProcessId, host: u64) -> Box<dyn Endpoint> {
    Box::new(Sockets::new(rendezvous.clone(), token, None, process, host).unwrap())
}

/// All ends announce themselves. Then each member sends a message to the leader and the leader answers.
fn connect_and_exchange(mut ends: Vec<Box<dyn Endpoint>>, ids: &[ProcessId]) {
    for (i, end) in ends.iter_mut().enumerate() {
        end.announce(announcement(77, i as i32, ids.len() as u32, ids[i]));
    }
    // Polling in reverse order makes the last one keep the register.
    ends.reverse();
    let mut events = until(&mut ends, |e| e.iter().all(|e| !e.is_empty()));
    ends.reverse();
    events.reverse();
    for got in &events {
        let [TransportEvent::Complete(roster)] = got.as_slice() else { panic!("{events:?}") };
        assert_eq!(roster.members.iter().map(|p| p.process).collect::<Vec<_>>(), ids);
    }
    // The leader sends first: its members connect to it, and it need not keep the register.
    for _ in 0..20 {
        until(&mut ends, |_| true);
        for end in &mut ends {
            end.poll(Duration::from_millis(2), &mut Vec::new());
        }
    }
    for id in &ids[1..] {
        ends[0].send(*id, b"proposal");
    }
    let events = until(&mut ends, |e| e[1..].iter().all(|e| e.len() == 1));
    for got in &events[1..] {
        assert_eq!(got.as_slice(), [TransportEvent::Message { from: ids[0], body: b"proposal".to_vec() }]);
    }
    for end in ends.iter_mut().skip(1) {
        end.send(ids[0], b"to the leader");
    }
    let events = until(&mut ends, |e| e[0].len() == ids.len() - 1);
    let mut from: Vec<ProcessId> = events[0]
        .iter()
        .map(|e| match e {
            TransportEvent::Message { from, body } if body == b"to the leader" => *from,
            other => panic!("{other:?}"),
        })
        .collect();
    from.sort();
    assert_eq!(from, &ids[1..]);
    for id in &ids[1..] {
        ends[0].send(*id, b"to a member");
    }
    let events = until(&mut ends, |e| e[1..].iter().all(|e| e.len() == 1));
    for got in &events[1..] {
        assert_eq!(got.as_slice(), [TransportEvent::Message { from: ids[0], body: b"to a member".to_vec() }]);
    }
    for end in &mut ends {
        end.forget(77);
        end.close(Duration::from_millis(20));
    }
}

#[test]
fn processes_of_a_host_communicate() {
    let ids: Vec<ProcessId> = (0..5).map(unique).collect();
    let rendezvous = Rendezvous::Local(format!("{}-meet", std::process::id()));
    connect_and_exchange(ids.iter().map(|p| sockets(&rendezvous, b"t", *p, 1)).collect(), &ids);
}

#[test]
fn processes_of_a_host_communicate_through_shared_memory() {
    let ids: Vec<ProcessId> = (60..65).map(unique).collect();
    let rendezvous = Rendezvous::Local(format!("{}-memory", std::process::id()));
    let mut ends: Vec<Sockets> = ids
        .iter()
        .map(|p| {
            Sockets::new(rendezvous.clone(), b"t", None, *p, 1)
                .unwrap()
                .intra_node_transport(IntraNodeTransport::SharedMemory)
        })
        .collect();
    for (i, end) in ends.iter_mut().enumerate() {
        end.announce(announcement(5, i as i32, 5, ids[i]));
    }
    // The first keeps the register and leads; each other process has one connection, to it.
    let (begin, memory_connections) =
        (Instant::now(), |ends: &[Sockets]| ends.iter().map(|e| e.memory_connections()).collect::<Vec<_>>());
    while memory_connections(&ends) != [4, 1, 1, 1, 1] && begin.elapsed() < PATIENCE {
        ends.iter_mut().for_each(|e| e.poll(Duration::from_millis(2), &mut Vec::new()));
    }
    assert_eq!(memory_connections(&ends), [4, 1, 1, 1, 1]);
    drop(ends);
    let rendezvous = Rendezvous::Local(format!("{}-memory-2", std::process::id()));
    let memory = |p: &ProcessId| {
        Sockets::new(rendezvous.clone(), b"t", None, *p, 1)
            .unwrap()
            .intra_node_transport(IntraNodeTransport::SharedMemory)
    };
    connect_and_exchange(ids.iter().map(|p| Box::new(memory(p)) as Box<dyn Endpoint>).collect(), &ids);
}

#[test]
fn processes_of_several_hosts_communicate_over_tcp() {
    let ids: Vec<ProcessId> = (10..14).map(unique).collect();
    let rendezvous = tcp();
    connect_and_exchange(ids.iter().map(|p| sockets(&rendezvous, b"t", *p, *p)).collect(), &ids);
}

#[test]
fn processes_communicate_through_a_folder_and_leave_it_empty() {
    let ids: Vec<ProcessId> = (20..24).map(unique).collect();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("job");
    connect_and_exchange(
        ids.iter().map(|p| Box::new(Folder::new(&root, *p).unwrap()) as Box<dyn Endpoint>).collect(),
        &ids,
    );
    assert_eq!(std::fs::read_dir(&root).unwrap().count(), 0, "the folder is the user's and stays");
}

#[test]
fn a_process_with_another_token_is_excluded() {
    let ids: Vec<ProcessId> = (30..32).map(unique).collect();
    let rendezvous = Rendezvous::Local(format!("{}-token", std::process::id()));
    let mut ends = vec![sockets(&rendezvous, b"right", ids[0], 1), sockets(&rendezvous, b"wrong", ids[1], 1)];
    for (i, end) in ends.iter_mut().enumerate() {
        end.announce(announcement(1, i as i32, 2, ids[i]));
    }
    // Until the process that keeps the register has read the other's token and dropped it.
    let (begin, mut notes, mut events) = (Instant::now(), Vec::new(), Vec::new());
    while notes.is_empty() && begin.elapsed() < PATIENCE {
        for end in &mut ends {
            end.poll(Duration::from_millis(2), &mut events);
            notes.extend(end.notes());
        }
    }
    assert!(matches!(notes.as_slice(), [n] if n.contains("LINKWISE_TOKEN")), "{notes:?}");
    for _ in 0..50 {
        ends.iter_mut().for_each(|end| end.poll(Duration::from_millis(2), &mut events));
    }
    assert_eq!(events, []);
}

#[test]
fn different_settings_are_reported_to_every_process() {
    let ids: Vec<ProcessId> = (40..42).map(unique).collect();
    let rendezvous = Rendezvous::Local(format!("{}-settings", std::process::id()));
    let mut ends: Vec<_> = ids.iter().map(|p| sockets(&rendezvous, b"t", *p, 1)).collect();
    for (i, end) in ends.iter_mut().enumerate() {
        end.announce(Announcement { settings: i as u64, ..announcement(1, i as i32, 2, ids[i]) });
    }
    let events = until(&mut ends, |e| e.iter().all(|e| !e.is_empty()));
    for got in events {
        assert_eq!(got, [TransportEvent::Disagreed { comm: 1, reason: Disagreement::Settings { differ: 1 } }]);
    }
}

#[test]
fn another_process_takes_over_the_register() {
    let ids: Vec<ProcessId> = (50..53).map(unique).collect();
    let rendezvous = Rendezvous::Local(format!("{}-register", std::process::id()));
    let mut ends: Vec<_> = ids.iter().map(|p| sockets(&rendezvous, b"t", *p, 1)).collect();
    for (i, end) in ends.iter_mut().enumerate() {
        end.announce(announcement(1, i as i32, 3, ids[i]));
    }
    until(&mut ends, |e| e.iter().all(|e| !e.is_empty()));
    ends.remove(0); // it is polled first, so it keeps the register
    for (i, end) in ends.iter_mut().enumerate() {
        end.announce(announcement(2, i as i32, 2, ids[i + 1]));
    }
    let events = until(&mut ends, |e| e.iter().all(|e| !e.is_empty()));
    assert!(events.iter().all(|e| matches!(e.as_slice(), [TransportEvent::Complete(r)] if r.comm == 2)), "{events:?}");
}
