//! Queue pairs of the `verbs` crate on the emulated library: emulated RDMA, no device. Right requests arrive; wrong ones end the pair with their status.

use std::net::IpAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbs::abi::Part;
use verbs::{Event, Library, Nic, Pair, Region};

const DEVICES: &str = "LINKWISE_EMU_IBVERBS";
const DEAD: &str = "LINKWISE_EMU_IBVERBS_DEAD";
const LATE: &str = "LINKWISE_EMU_IBVERBS_LATE";
/// Longer is a hang.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Runs the test again in a process with the emulated devices. True in that process.
fn is_child(test: &str) -> bool {
    if std::env::var_os(DEVICES).is_some() {
        return true;
    }
    let folder = std::env::temp_dir().join(format!("linkwise-ibverbs-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(DEVICES, "emu0=127.0.0.1,emu1=127.0.0.2,far=192.0.2.9").env(DEAD, &folder);
    let late = folder.join("late");
    std::fs::create_dir(&late).unwrap();
    command.env(LATE, late);
    let status = command.status().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(status.success());
    false
}

fn library() -> &'static Library {
    let program = std::env::current_exe().unwrap();
    Library::open(program.parent().unwrap().join("liblinkwise_ibverbs.so").to_str()).unwrap()
}

fn nic(ip: &str) -> Option<Arc<Nic>> {
    Nic::with_address(library(), ip.parse::<IpAddr>().unwrap())
}

fn pairs() -> (Arc<Nic>, Pair, Pair) {
    let (a, b) = (nic("127.0.0.1").unwrap(), nic("127.0.0.2").unwrap());
    let (p, q) = (Pair::new(&a, 7).unwrap(), Pair::new(&b, 9).unwrap());
    q.connect(&p.address()).unwrap();
    p.connect(&q.address()).unwrap();
    (b, p, q)
}

fn until<T>(mut f: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(t) = f() {
            return t;
        }
        assert!(begin.elapsed() < TIME_MAX, "it hangs");
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn register(nic: &Arc<Nic>, v: &mut [u8]) -> Region {
    // SAFETY: the tests end the registration before the memory.
    #[allow(unsafe_code)]
    unsafe {
        nic.register(v.as_mut_ptr(), v.len()).unwrap()
    }
}

fn part(v: &[u8], region: &Region) -> Part {
    Part { address: v.as_ptr() as u64, bytes: v.len() as u32, lkey: region.lkey }
}

/// The error of a pair, or nothing after a word of the other one.
fn failure(p: &mut Pair) -> String {
    until(|| p.poll(64, |_| Ok(())).err()).to_string()
}

#[test]
fn messages_and_writes_arrive_in_order_with_their_words() {
    if !is_child("messages_and_writes_arrive_in_order_with_their_words") {
        return;
    }
    assert!(nic("192.0.2.9").is_none() && nic("127.0.0.3").is_none(), "no address of this host");
    let (b, mut p, mut q) = pairs();
    let a = nic("127.0.0.1").unwrap();
    let (mut from, mut to) = ((0..100_000).map(|i| (i * 7) as u8).collect::<Vec<_>>(), vec![0; 100_000]);
    // Another protection domain of the same device is none of the pair's: the pair's own is used.
    let foreign = register(&a, &mut from);
    let target = register(&b, &mut to);
    assert!(p.send(b"before").unwrap());
    p.write(part(&from, &foreign), (to.as_ptr() as u64, target.rkey), 0x1234_5678).unwrap();
    assert!(failure(&mut p).contains("not registered"), "registered in another domain");
    drop((p, q, foreign));

    let (c, d) = (nic("127.0.0.1").unwrap(), nic("127.0.0.2").unwrap());
    (p, q) = (Pair::new(&c, 1).unwrap(), Pair::new(&d, 2).unwrap());
    q.connect(&p.address()).unwrap();
    p.connect(&q.address()).unwrap();
    let (source, target) = (register(&c, &mut from), register(&d, &mut to));
    assert!(p.send(b"before").unwrap());
    p.write(part(&from, &source), (to.as_ptr() as u64, target.rkey), 0x1234_5678).unwrap();
    p.write(Part::default(), (0, 0), 5).unwrap();
    let mut seen = Vec::new();
    until(|| {
        q.rearm().unwrap();
        let took = |e: Event<'_>| {
            seen.push(match e {
                Event::Message(m) => String::from_utf8_lossy(m).into_owned(),
                Event::Written { immediate, bytes } => format!("{immediate:x} {bytes}"),
            });
            Ok(())
        };
        q.poll(64, took).unwrap();
        (seen.len() == 3).then_some(())
    });
    assert_eq!(seen, ["before", "12345678 100000", "5 0"]);
    assert!(from == to);
    until(|| {
        p.poll(64, |_| Ok(())).unwrap();
        p.is_idle().then_some(())
    });
}

/// One write that must fail, and its status on both sides.
fn refused(key: impl FnOnce(&Region, u64) -> (u64, u32)) {
    let (nic, q) = {
        let nic = nic("127.0.0.1").unwrap();
        let q = Pair::new(&nic, 2).unwrap();
        (nic, q)
    };
    let (mut p, mut q) = (Pair::new(&nic, 1).unwrap(), q);
    q.connect(&p.address()).unwrap();
    p.connect(&q.address()).unwrap();
    let (mut from, mut to) = (vec![1; 1000], vec![0; 1000]);
    let (source, target) = (register(&nic, &mut from), register(&nic, &mut to));
    p.write(part(&from, &source), key(&target, to.as_ptr() as u64), 1).unwrap();
    assert!(failure(&mut p).contains("the peer's memory is not registered for this write"));
    assert!(failure(&mut q).contains("ended"), "the side that refuses is in error, too");
    drop((p, q));
    assert!(to == [0; 1000], "nothing was written");
}

#[test]
fn a_wrong_key_and_a_write_beyond_its_range_are_refused_and_write_nothing() {
    if !is_child("a_wrong_key_and_a_write_beyond_its_range_are_refused_and_write_nothing") {
        return;
    }
    refused(|r, at| (at, r.rkey ^ 1));
    refused(|r, at| (at + 1, r.rkey));
    refused(|r, at| (at - 1, r.rkey));
    refused(|r, _| (u64::MAX - 10, r.rkey));
}

#[test]
fn a_peer_that_takes_nothing_is_waited_for() {
    if !is_child("a_peer_that_takes_nothing_is_waited_for") {
        return;
    }
    let (_, mut p, mut q) = pairs();
    // More than the receives that are posted.
    let (all, mut sent) = (500, 0);
    let begin = Instant::now();
    while sent < all && begin.elapsed() < Duration::from_millis(500) {
        p.poll(64, |_| Ok(())).unwrap();
        if p.send(&[sent as u8]).unwrap() {
            sent += 1;
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(!p.is_idle(), "what was not taken is under way");
    let mut got = Vec::new();
    until(|| {
        p.poll(64, |_| Ok(())).unwrap();
        while sent < all && p.send(&[sent as u8]).unwrap() {
            sent += 1;
        }
        let took = |e: Event<'_>| {
            if let Event::Message(m) = e {
                got.extend_from_slice(m);
            }
            Ok(())
        };
        q.poll(64, took).unwrap();
        (got.len() == all).then_some(())
    });
    assert!(got.iter().enumerate().all(|(i, b)| *b == i as u8));
}

#[test]
fn a_peer_that_is_gone_and_a_device_that_dies_end_the_pair() {
    if !is_child("a_peer_that_is_gone_and_a_device_that_dies_end_the_pair") {
        return;
    }
    let (_, mut p, q) = pairs();
    drop(q);
    assert!(p.send(b"x").unwrap());
    assert!(failure(&mut p).contains("does not answer"));
    let (_, mut p, _q) = pairs();
    let file = std::path::PathBuf::from(std::env::var_os(DEAD).unwrap()).join("emu0");
    std::fs::write(&file, "").unwrap();
    assert!(p.send(b"x").unwrap());
    assert!(failure(&mut p).contains("does not answer"));
    assert!(nic("127.0.0.1").is_none() && nic("127.0.0.2").is_some(), "the device is gone, the other one is not");
    std::fs::remove_file(&file).unwrap();
    assert!(nic("127.0.0.1").is_some());
}

#[test]
fn a_write_that_is_held_back_lands_while_its_pair_lives_and_is_refused_after_its_end() {
    if !is_child("a_write_that_is_held_back_lands_while_its_pair_lives_and_is_refused_after_its_end") {
        return;
    }
    let late = std::path::PathBuf::from(std::env::var_os(LATE).unwrap());
    let (held, record) = (late.join("emu1"), late.join("emu1.late"));
    let seen = |n: usize| {
        until(|| {
            let text = std::fs::read_to_string(&record).unwrap_or_default();
            (text.lines().count() >= n).then(|| text.lines().map(str::to_owned).collect::<Vec<_>>())
        })
    };
    let mut expected = Vec::new();
    for ends in [false, true] {
        let (a, b) = (nic("127.0.0.1").unwrap(), nic("127.0.0.2").unwrap());
        let (mut p, q) = (Pair::new(&a, 7).unwrap(), Pair::new(&b, 9).unwrap());
        q.connect(&p.address()).unwrap();
        p.connect(&q.address()).unwrap();
        let (mut from, mut to) = (vec![1; 1000], vec![0; 1000]);
        let (source, target) = (register(&a, &mut from), register(&b, &mut to));
        std::fs::write(&held, "").unwrap();
        p.write(part(&from, &source), (to.as_ptr() as u64, target.rkey), 1).unwrap();
        expected.push("held");
        seen(expected.len());
        let q = (!ends).then_some(q);
        std::fs::remove_file(&held).unwrap();
        expected.push(if ends { "refused" } else { "landed" });
        assert_eq!(seen(expected.len()), expected);
        drop(q);
        assert!(to == [u8::from(!ends); 1000]);
    }
}
