//! Two ends over real sockets of the loopback interface: bytes, order of matches, failures.

mod common;

use common::{buffer, connect, done, pattern, wait};
use net::{Buffer, Endpoint, NetError, Progress, Rail, Settings};
use std::time::{Duration, Instant};

fn settings(rails: usize, token: &str) -> Settings {
    let rail =
        |i| Rail { name: format!("r{i}"), ip: format!("127.0.0.{}", i + 1).parse().unwrap(), prefix: 8, rate: 0 };
    let mut s = Settings::new((0..rails).map(rail).collect());
    s.token = token.into();
    s.share = false;
    s.chunk = 4096;
    s
}

#[test]
fn messages_of_any_size_arrive_over_one_to_four_rails() {
    for rails in [1, 2, 4] {
        let (a, b) = (Endpoint::start(settings(rails, "t")).unwrap(), Endpoint::start(settings(rails, "t")).unwrap());
        let (s, r) = connect(&a, &b, rails - 1);
        for (i, n) in [0, 1, 4095, 4096, 4097, 1 << 20, 9_999_999].into_iter().enumerate() {
            let (mut from, mut to) = (pattern(n, i), vec![0; n + 7]);
            let got = wait(|| r.receive(&[(buffer(&mut to), 5)]).unwrap());
            let sent = wait(|| s.send(buffer(&mut from), 5).unwrap());
            assert_eq!(done(|| r.request(got).unwrap().poll())[0], n as u64);
            assert_eq!(done(|| s.request(sent).unwrap().poll())[0], n as u64);
            assert!(to[..n] == from[..], "{n} bytes over {rails} rails");
            assert!(to[n..] == [0; 7]);
        }
        if rails > 1 {
            let bytes: Vec<u64> =
                a.counts().bytes.iter().take(rails).map(|b| b.load(std::sync::atomic::Ordering::Relaxed)).collect();
            assert!(bytes.iter().all(|b| *b > 100_000), "{bytes:?}");
        }
    }
}

#[test]
fn sends_match_receives_by_tag_and_messages_of_a_group_are_done_alone() {
    let (a, b) = (Endpoint::start(settings(2, "")).unwrap(), Endpoint::start(settings(2, "")).unwrap());
    let (s, r) = connect(&a, &b, 0);
    let mut to: Vec<Vec<u8>> = vec![vec![0; 50_000]; 9];
    let mut buffers: Vec<Buffer> = to.iter_mut().map(|v| buffer(v)).collect();
    let last = buffers.pop().unwrap();
    let group: Vec<(Buffer, i32)> = buffers.iter().enumerate().map(|(i, b)| (*b, i as i32)).collect();
    let first = wait(|| r.receive(&group).unwrap());
    let second = wait(|| r.receive(&[(last, 77)]).unwrap());
    let mut from: Vec<Vec<u8>> = (0..9).map(|i| pattern(40_000 + i, i)).collect();
    // The send for the later receive is done while the first group is still open, and so is each message of it.
    let sent = s.send(buffer(&mut from[8]), 77).unwrap().unwrap();
    done(|| s.request(sent).unwrap().poll());
    assert_eq!(done(|| r.request(second).unwrap().poll())[0], 40_008);
    for i in (0..8).rev() {
        assert_eq!(r.request(first).unwrap().poll(), Progress::Pending);
        let sent = s.send(buffer(&mut from[i]), i as i32).unwrap().unwrap();
        assert_eq!(done(|| s.request(sent).unwrap().poll())[0], 40_000 + i as u64);
    }
    let sizes = done(|| r.request(first).unwrap().poll());
    for i in 0..8 {
        assert_eq!(sizes[i], 40_000 + i as u64);
        assert!(to[i][..40_000 + i] == from[i][..], "message {i}");
    }
    assert!(to[8][..40_008] == from[8][..]);
}

#[test]
fn a_send_before_its_receive_waits_and_a_longer_one_is_cut() {
    let (a, b) = (Endpoint::start(settings(2, "")).unwrap(), Endpoint::start(settings(2, "")).unwrap());
    let (s, r) = connect(&a, &b, 1);
    let (mut from, mut to) = (pattern(20_000, 3), vec![0; 10_000]);
    let sent = s.send(buffer(&mut from), 1).unwrap().unwrap();
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(s.request(sent).unwrap().poll(), Progress::Pending);
    let got = r.receive(&[(buffer(&mut to), 1)]).unwrap().unwrap();
    assert_eq!(done(|| r.request(got).unwrap().poll())[0], 10_000);
    assert_eq!(done(|| s.request(sent).unwrap().poll())[0], 10_000);
    assert!(to[..] == from[..10_000]);
}

#[test]
fn many_connections_of_one_listener_and_many_messages_at_once() {
    let (a, b) = (Endpoint::start(settings(3, "")).unwrap(), Endpoint::start(settings(3, "")).unwrap());
    let (listen, handle) = b.listen(0).unwrap();
    let mut pairs = Vec::new();
    for _ in 0..20 {
        let (mut handle, mut send, mut receive) = (handle, None, None);
        wait(|| {
            send = send.take().or_else(|| a.connect(0, &mut handle).unwrap());
            receive = receive.take().or_else(|| listen.accept());
            (send.is_some() && receive.is_some()).then_some(())
        });
        pairs.push((send.unwrap(), receive.unwrap()));
    }
    drop(listen);
    let mut froms: Vec<Vec<u8>> = (0..20 * 30).map(|i| pattern(30_000, i)).collect();
    let mut tos: Vec<Vec<u8>> = vec![vec![0; 30_000]; 20 * 30];
    let mut requests = Vec::new();
    for (i, (s, r)) in pairs.iter().enumerate() {
        for k in 0..30 {
            let at = i * 30 + k;
            let got = wait(|| r.receive(&[(buffer(&mut tos[at]), 0)]).unwrap());
            let sent = wait(|| s.send(buffer(&mut froms[at]), 0).unwrap());
            requests.push((i, got, sent));
        }
    }
    for (i, got, sent) in requests {
        done(|| pairs[i].1.request(got).unwrap().poll());
        done(|| pairs[i].0.request(sent).unwrap().poll());
    }
    assert!(froms == tos);
}

#[test]
fn a_wrong_token_connects_nothing() {
    let (a, b) = (Endpoint::start(settings(1, "x")).unwrap(), Endpoint::start(settings(1, "y")).unwrap());
    let (listen, mut handle) = b.listen(0).unwrap();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(600) {
        assert!(matches!(a.connect(0, &mut handle), Ok(None)));
        assert!(listen.accept().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(matches!(a.connect(0, &mut [7; 128]), Err(NetError::Handle(_))));
}

#[test]
fn a_peer_that_cannot_be_reached_is_an_error_with_the_last_cause() {
    let a = Endpoint::start(settings(1, "x")).unwrap();
    let mut handle = {
        let b = Endpoint::start(settings(1, "x")).unwrap();
        b.listen(0).unwrap().1
    };
    let e = wait(|| a.connect(0, &mut handle).err()).to_string();
    assert!(e.contains("cannot be reached") && e.contains("rail 0 to 127.0.0.1:") && e.contains("refused"), "{e}");
}

#[test]
fn closing_fails_what_is_open_on_the_other_side_and_loses_nothing_that_was_done() {
    for _ in 0..20 {
        let (a, b) = (Endpoint::start(settings(2, "")).unwrap(), Endpoint::start(settings(2, "")).unwrap());
        let (s, r) = connect(&a, &b, 0);
        let (mut from, mut to, mut more) = (pattern(300_000, 1), vec![0; 300_000], vec![0; 10]);
        let got = r.receive(&[(buffer(&mut to), 0)]).unwrap().unwrap();
        let sent = s.send(buffer(&mut from), 0).unwrap().unwrap();
        done(|| r.request(got).unwrap().poll());
        let open = s.send(buffer(&mut more), 9).unwrap().unwrap();
        drop(r);
        done(|| s.request(sent).unwrap().poll());
        let failed = wait(|| match s.request(open).unwrap().poll() {
            Progress::Pending => None,
            other => Some(other),
        });
        assert_eq!(failed, Progress::Failed);
        // Further sends are taken and fail, too, until no request is free.
        let later = s.send(buffer(&mut more), 9).unwrap().unwrap();
        wait(|| (s.request(later).unwrap().poll() == Progress::Failed).then_some(()));
        assert!((0..300).any(|_| matches!(s.send(buffer(&mut more), 9), Err(NetError::Remote(_)))));
    }
}

#[test]
fn a_peer_that_vanishes_is_an_error_within_the_bound() {
    let a = Endpoint::start(settings(2, "")).unwrap();
    let b = Endpoint::start(settings(2, "")).unwrap();
    let (s, r) = connect(&a, &b, 0);
    let mut more = vec![0; 10];
    let open = s.send(buffer(&mut more), 9).unwrap().unwrap();
    // The threads of `b` end without a word, as when its process is killed: sockets close, the listener is gone.
    drop(b);
    std::mem::forget(r);
    let failed = wait(|| match s.request(open).unwrap().poll() {
        Progress::Pending => None,
        other => Some(other),
    });
    assert_eq!(failed, Progress::Failed);
}

#[test]
fn a_listener_is_used_again_and_each_connection_is_accepted_once() {
    let (a, b) = (Endpoint::start(settings(3, "")).unwrap(), Endpoint::start(settings(3, "")).unwrap());
    let (listen, handle) = b.listen(0).unwrap();
    for i in 0..200 {
        let (mut handle, mut send, mut receive) = (handle, None, None);
        wait(|| {
            send = send.take().or_else(|| a.connect(0, &mut handle).unwrap());
            receive = receive.take().or_else(|| listen.accept());
            (send.is_some() && receive.is_some()).then_some(())
        });
        let (s, r) = (send.unwrap(), receive.unwrap());
        let (mut from, mut to) = (pattern(9_000, i), vec![0; 9_000]);
        let got = r.receive(&[(buffer(&mut to), 0)]).unwrap().unwrap();
        let sent = s.send(buffer(&mut from), 0).unwrap().unwrap();
        done(|| r.request(got).unwrap().poll());
        done(|| s.request(sent).unwrap().poll());
        assert!(from == to);
    }
    assert!(listen.accept().is_none(), "a connection is accepted twice");
}
