//! Two processes: one is killed, the other gets an error within the bound.

mod common;

use common::{Process, ROLE, buffer, heard, hex, own_test, say, unhex, wait};
use net::{Endpoint, Progress, Rail, Settings};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

fn endpoint() -> Endpoint {
    let rail = |i| Rail { name: format!("r{i}"), ip: format!("127.0.0.{i}").parse().unwrap(), prefix: 8, rate: 0 };
    let mut s = Settings::new((1..=3).map(rail).collect());
    s.share = false;
    Endpoint::start(s).unwrap()
}

/// Not a test of its own: the process that is killed. It sends or receives for ever.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    if role == "starves" {
        return starve();
    }
    let e = endpoint();
    let (listen, handle) = e.listen(0).unwrap();
    say(&format!("handle {}", hex(&handle)));
    let mut peer = unhex(&heard());
    let mut data = vec![1; 50_000_000];
    if role == "sends" {
        let s = wait(|| e.connect(0, &mut peer).unwrap());
        loop {
            let r = wait(|| s.send(buffer(&mut data), 0).unwrap());
            wait(|| (s.request(r).unwrap().poll() != Progress::Pending).then_some(()));
        }
    }
    let r = wait(|| listen.accept());
    loop {
        let q = wait(|| r.receive(&[(buffer(&mut data), 0)]).unwrap());
        wait(|| (r.request(q).unwrap().poll() != Progress::Pending).then_some(()));
    }
}

/// Moves bytes with a child, kills it, and returns what the open request says.
fn kill(role: &str) {
    let mut command = own_test("role");
    command.env(ROLE, role);
    let mut process = Process::start(command);
    let mut theirs = unhex(&process.said("handle"));
    let e = endpoint();
    let (listen, ours) = e.listen(0).unwrap();
    process.hear(&hex(&ours));
    let mut data = vec![0; 50_000_000];
    let failed = |p: Progress| match p {
        Progress::Pending => None,
        other => Some(other == Progress::Failed),
    };
    let kill_in = |process: &mut Process| {
        std::thread::sleep(Duration::from_millis(100));
        process.child.kill().unwrap();
        process.child.wait().unwrap();
        Instant::now()
    };
    let mut killed = None;
    if role == "receives" {
        let s = wait(|| e.connect(0, &mut theirs).unwrap());
        while !{
            let r = wait(|| s.send(buffer(&mut data), 0).unwrap());
            killed.get_or_insert_with(|| kill_in(&mut process));
            wait(|| failed(s.request(r).unwrap().poll()))
        } {}
    } else {
        let r = wait(|| listen.accept());
        while !{
            let q = wait(|| r.receive(&[(buffer(&mut data), 0)]).unwrap());
            killed.get_or_insert_with(|| kill_in(&mut process));
            wait(|| failed(r.request(q).unwrap().poll()))
        } {}
    }
}

#[test]
fn a_killed_receiver_is_an_error_at_the_sender() {
    kill("receives");
}

#[test]
fn a_killed_sender_is_an_error_at_the_receiver() {
    kill("sends");
}

/// Not a test of its own: a process with few descriptors that only listens. Prints its ports; then, when told to go on, the share of a core that it
/// takes and whether it can open a file.
fn starve() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let few = rustix::process::Rlimit { current: Some(96), maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, few).unwrap();
    let e = endpoint();
    let _listen = e.listen(0).unwrap();
    say("ready");
    heard();
    let ticks = || -> u64 {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let after = stat.rsplit(')').next().unwrap_or_default().to_owned();
        after.split_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().unwrap()).sum()
    };
    let opens = std::fs::File::open("/dev/null").is_ok();
    let (before, begin) = (ticks(), Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    let share = (ticks() - before) as f64 / 100.0 / begin.elapsed().as_secs_f64();
    say(&format!("opens {opens} share {share:.2}"));
}

/// Addresses at which a process listens.
fn addresses(process: u32) -> Vec<SocketAddr> {
    let of = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
    let sockets: Vec<String> = of
        .filter_map(|f| {
            std::fs::read_link(f.path()).ok()?.to_str()?.strip_prefix("socket:[")?.strip_suffix(']').map(str::to_owned)
        })
        .collect();
    let table = std::fs::read_to_string(format!("/proc/{process}/net/tcp")).unwrap();
    let listens = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_own = words.get(3) == Some(&"0A") && sockets.iter().any(|s| words.get(9) == Some(&s.as_str()));
        let (ip, port) = words.get(1).filter(|_| is_own)?.split_once(':')?;
        let ip = Ipv4Addr::from(u32::from_str_radix(ip, 16).ok()?.swap_bytes());
        Some(SocketAddr::from((ip, u16::from_str_radix(port, 16).ok()?)))
    };
    table.lines().filter_map(listens).collect()
}

#[test]
fn strangers_that_say_nothing_take_neither_the_programs_descriptors_nor_its_time() {
    let mut command = own_test("role");
    command.env(ROLE, "starves");
    let mut process = Process::start(command);
    process.said("ready");
    let listens = addresses(process.child.id());
    assert!(!listens.is_empty());
    let dial = |i: usize| TcpStream::connect_timeout(&listens[i % listens.len()], Duration::from_secs(1)).ok();
    let strangers: Vec<TcpStream> = (0..200).filter_map(dial).collect();
    assert!(strangers.len() > 100, "{} connections", strangers.len());
    std::thread::sleep(Duration::from_millis(300));
    process.hear("");
    let said = process.said("opens");
    let share: f64 = said.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(said.starts_with("true") && share < 0.5, "{said}");
}
