//! Connections over queue pairs of the emulated libibverbs: **emulated RDMA**, no device. The same promises as over TCP: every byte once, groups, tags,
//! failures; and a device that dies is gone round.

mod common;

use common::{Process, ROLE, buffer, connect, done, heard, hex, own_test, pattern, say, unhex, wait};
use net::{Buffer, Endpoint, Progress, Rail, Settings, Verbs};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::Ordering;

const DEVICES: &str = "LINKWISE_EMU_IBVERBS";
const DEAD: &str = "LINKWISE_EMU_IBVERBS_DEAD";

fn devices(command: &mut Command, dead: &std::path::Path) {
    let list: Vec<String> = (1..=4).map(|i| format!("emu{i}=127.0.0.{i}")).collect();
    command.env(DEVICES, list.join(",")).env(DEAD, dead);
}

/// Runs the test again in a process with emulated devices; true in that process.
fn is_child(test: &str) -> bool {
    if std::env::var_os(DEVICES).is_some() {
        return true;
    }
    let folder = std::env::temp_dir().join(format!("linkwise-net-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut command = own_test(test);
    devices(&mut command, &folder);
    let status = command.status().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(status.success());
    false
}

fn dead(device: &str) -> PathBuf {
    PathBuf::from(std::env::var_os(DEAD).unwrap()).join(device)
}

fn endpoint(rails: usize) -> Endpoint {
    let rail = |i| Rail { name: format!("r{i}"), ip: format!("127.0.0.{i}").parse().unwrap(), prefix: 8, rate: 0 };
    let mut s = Settings::new((1..=rails).map(rail).collect());
    (s.token, s.share, s.chunk) = (b"t".to_vec(), false, 4096);
    let program = std::env::current_exe().unwrap();
    let library = program.parent().unwrap().join("liblinkwise_ibverbs.so");
    s.verbs = Some(Verbs { library: Some(library.to_str().unwrap().to_owned()) });
    let e = Endpoint::start(s).unwrap();
    assert_eq!(e.devices().iter().flatten().count(), rails, "{:?}", e.devices());
    e
}

/// A buffer, registered. The registrations last as long as the process.
fn registered(e: &Endpoint, v: &mut [u8]) -> Buffer {
    let b = buffer(v);
    b.with(e.register(&b))
}

fn written(e: &Endpoint) -> u64 {
    e.counts().rdma.load(Ordering::Relaxed)
}

#[test]
fn messages_of_any_size_are_written_over_one_to_four_rails() {
    if !is_child("messages_of_any_size_are_written_over_one_to_four_rails") {
        return;
    }
    for rails in [1, 2, 4] {
        let (a, b) = (endpoint(rails), endpoint(rails));
        let (s, r) = connect(&a, &b, rails - 1);
        let mut all = 0;
        for (i, n) in [0, 1, 4095, 4096, 4097, 1 << 20, 3_999_999].into_iter().enumerate() {
            let (mut from, mut to) = (pattern(n, i), vec![0; n + 7]);
            let got = wait(|| r.receive(&[(registered(&b, &mut to), 5)]).unwrap());
            let sent = wait(|| s.send(registered(&a, &mut from), 5).unwrap());
            assert_eq!(done(|| r.request(got).unwrap().poll())[0], n as u64);
            assert_eq!(done(|| s.request(sent).unwrap().poll())[0], n as u64);
            assert!(to[..n] == from[..], "{n} bytes over {rails} rails");
            assert!(to[n..] == [0; 7]);
            all += n as u64;
        }
        assert!(written(&a) > all * 9 / 10, "{} of {all} bytes over {rails} rails were written", written(&a));
        let bytes: Vec<u64> = a.counts().bytes.iter().take(rails).map(|b| b.load(Ordering::Relaxed)).collect();
        assert!(bytes.iter().all(|b| *b > 100_000), "{bytes:?}");
    }
}

#[test]
fn groups_match_by_tag_and_memory_that_is_not_registered_goes_over_tcp() {
    if !is_child("groups_match_by_tag_and_memory_that_is_not_registered_goes_over_tcp") {
        return;
    }
    let (a, b) = (endpoint(2), endpoint(2));
    let (s, r) = connect(&a, &b, 0);
    let mut to: Vec<Vec<u8>> = vec![vec![0; 50_000]; 8];
    let group: Vec<(Buffer, i32)> = to.iter_mut().enumerate().map(|(i, v)| (registered(&b, v), i as i32)).collect();
    let got = wait(|| r.receive(&group).unwrap());
    let mut from: Vec<Vec<u8>> = (0..8).map(|i| pattern(40_000 + i, i)).collect();
    for (i, v) in from.iter_mut().enumerate().rev() {
        let b = if i < 2 { buffer(v) } else { registered(&a, v) };
        let sent = s.send(b, i as i32).unwrap().unwrap();
        assert_eq!(done(|| s.request(sent).unwrap().poll())[0], 40_000 + i as u64);
    }
    let sizes = done(|| r.request(got).unwrap().poll());
    for (i, ((to, from), size)) in to.iter().zip(&from).zip(sizes).enumerate() {
        assert!(size == 40_000 + i as u64 && to[..from.len()] == from[..], "message {i}");
    }
    assert!((200_000..=250_000).contains(&written(&a)), "{}", written(&a));
}

#[test]
fn a_device_that_dies_is_gone_round_and_no_buffer_is_written_late() {
    if !is_child("a_device_that_dies_is_gone_round_and_no_buffer_is_written_late") {
        return;
    }
    let (a, b) = (endpoint(3), endpoint(3));
    let (s, r) = connect(&a, &b, 0);
    let n = 2_000_000;
    let (mut from, mut to) = (vec![0; n], vec![0; n]);
    let (source, target) = (registered(&a, &mut from), registered(&b, &mut to));
    let mut before = 0;
    for round in 0..40 {
        match round {
            10 => std::fs::write(dead("emu2"), "").unwrap(),
            20 => std::fs::remove_file(dead("emu2")).unwrap(),
            _ => {}
        }
        // The same memory again and again: a late write of an earlier round would show.
        from.copy_from_slice(&pattern(n, round));
        to.fill(0);
        let got = wait(|| r.receive(&[(target, 0)]).unwrap());
        let sent = wait(|| s.send(source, 0).unwrap());
        done(|| r.request(got).unwrap().poll());
        done(|| s.request(sent).unwrap().poll());
        assert!(to == from, "round {round}");
        if round == 10 {
            before = written(&a);
        }
    }
    let count = |c: &std::sync::atomic::AtomicU64| c.load(Ordering::Relaxed);
    assert!(written(&a) > before + n as u64, "after the death the other devices write");
    println!("chunks repeated {}, copies {}", count(&a.counts().repeated), count(&b.counts().copies));
}

#[test]
fn closing_fails_what_is_open_and_leaves_the_buffers_alone() {
    if !is_child("closing_fails_what_is_open_and_leaves_the_buffers_alone") {
        return;
    }
    for i in 0..20 {
        let (a, b) = (endpoint(2), endpoint(2));
        let (s, r) = connect(&a, &b, 0);
        let (mut from, mut to, mut more) = (pattern(300_000, i), vec![0; 300_000], vec![0; 10]);
        let got = r.receive(&[(registered(&b, &mut to), 0)]).unwrap().unwrap();
        let sent = s.send(registered(&a, &mut from), 0).unwrap().unwrap();
        if i % 2 == 0 {
            // In the middle of the message.
            drop(r);
            wait(|| (s.request(sent).unwrap().poll() != Progress::Pending).then_some(()));
            let now = to.clone();
            std::thread::sleep(std::time::Duration::from_millis(5));
            assert!(to == now, "a closed connection's buffer is written");
            continue;
        }
        done(|| r.request(got).unwrap().poll());
        let open = s.send(registered(&a, &mut more), 9).unwrap().unwrap();
        drop(r);
        done(|| s.request(sent).unwrap().poll());
        wait(|| (s.request(open).unwrap().poll() == Progress::Failed).then_some(()));
        assert!(to == from);
    }
}

/// Not a test of its own: the other process. It receives until a request fails.
#[test]
fn role() {
    if std::env::var(ROLE).is_err() {
        return;
    }
    let e = endpoint(3);
    let (listen, handle) = e.listen(0).unwrap();
    say(&format!("handle {}", hex(&handle)));
    let r = wait(|| listen.accept());
    let mut data = vec![0; 1_000_000];
    let target = registered(&e, &mut data);
    for round in 0.. {
        let got = wait(|| r.receive(&[(target, 0)]).unwrap());
        let n = done(|| r.request(got).unwrap().poll())[0] as usize;
        say(&format!("got {round} {}", data[..n] == pattern(n, round)[..]));
        heard();
    }
}

#[test]
fn bytes_arrive_in_another_process_and_its_death_is_an_error() {
    if !is_child("bytes_arrive_in_another_process_and_its_death_is_an_error") {
        return;
    }
    let mut command = own_test("role");
    command.env(ROLE, "receives");
    let mut other = Process::start(command);
    let e = endpoint(3);
    let mut handle = unhex(&other.said("handle"));
    let s = wait(|| e.connect(0, &mut handle).unwrap());
    for round in 0..5 {
        let mut from = pattern(1_000_000 - round, round);
        let sent = wait(|| s.send(registered(&e, &mut from), 0).unwrap());
        done(|| s.request(sent).unwrap().poll());
        assert_eq!(other.said("got"), format!("{round} true"));
        other.hear("");
    }
    assert!(written(&e) > 4_000_000, "{}", written(&e));
    other.child.kill().unwrap();
    let mut more = vec![0; 100];
    let sent = wait(|| s.send(registered(&e, &mut more), 0).unwrap());
    wait(|| (s.request(sent).unwrap().poll() == Progress::Failed).then_some(()));
}

#[test]
fn without_the_library_or_a_device_bytes_go_over_tcp() {
    let rail = Rail { name: "lo".into(), ip: "127.0.0.1".parse().unwrap(), prefix: 8, rate: 0 };
    let start = || {
        let mut s = Settings::new(vec![rail.clone()]);
        (s.share, s.verbs) = (false, Some(Verbs { library: Some("/nowhere/libibverbs.so.1".into()) }));
        Endpoint::start(s).unwrap()
    };
    let (a, b) = (start(), start());
    let (s, r) = connect(&a, &b, 0);
    let (mut from, mut to) = (pattern(100_000, 1), vec![0; 100_000]);
    let got = r.receive(&[(registered(&b, &mut to), 0)]).unwrap().unwrap();
    let sent = s.send(registered(&a, &mut from), 0).unwrap().unwrap();
    done(|| r.request(got).unwrap().poll());
    done(|| s.request(sent).unwrap().poll());
    assert!(to == from && written(&a) == 0);
}
