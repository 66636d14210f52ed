//! Two processes: one is killed, the other gets an error within the bound.

use net::{Buffer, Endpoint, Progress, Rail, Settings};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const ROLE: &str = "LINKWISE_TEST_NET_ROLE";
/// The promise is 30 s; a busy machine gets more before the test calls it a hang.
const TIME_MAX: Duration = Duration::from_secs(60);

fn endpoint() -> Endpoint {
    let rail = |i| Rail { name: format!("r{i}"), ip: format!("127.0.0.{i}").parse().unwrap(), prefix: 8, rate: 0 };
    let mut s = Settings::new((1..=3).map(rail).collect());
    s.share = false;
    Endpoint::start(s).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn wait<T>(mut f: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(t) = f() {
            return t;
        }
        assert!(begin.elapsed() < TIME_MAX, "it hangs");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn buffer(v: &mut [u8]) -> Buffer {
    // SAFETY: the vectors live until their connection is closed.
    #[allow(unsafe_code)]
    unsafe {
        Buffer::new(v.as_mut_ptr(), v.len())
    }
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
    println!("\nhandle {}", hex(&handle));
    std::io::stdout().flush().unwrap();
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).unwrap();
    let mut peer: [u8; 128] = (0..128)
        .map(|i| u8::from_str_radix(&line[2 * i..2 * i + 2], 16).unwrap())
        .collect::<Vec<_>>()
        .try_into()
        .unwrap();
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
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "role", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    let text = out.lines().map_while(Result::ok).find_map(|l| l.strip_prefix("handle ").map(str::to_owned)).unwrap();
    let mut theirs: [u8; 128] = (0..128)
        .map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap())
        .collect::<Vec<_>>()
        .try_into()
        .unwrap();
    let e = endpoint();
    let (listen, ours) = e.listen(0).unwrap();
    writeln!(child.stdin.as_mut().unwrap(), "{}", hex(&ours)).unwrap();
    let mut data = vec![0; 50_000_000];
    let failed = |p: Progress| match p {
        Progress::Pending => None,
        other => Some(other == Progress::Failed),
    };
    let kill_in = |child: &mut std::process::Child| {
        std::thread::sleep(Duration::from_millis(100));
        child.kill().unwrap();
        child.wait().unwrap();
        Instant::now()
    };
    let mut killed = None;
    if role == "receives" {
        let s = wait(|| e.connect(0, &mut theirs).unwrap());
        while !{
            let r = wait(|| s.send(buffer(&mut data), 0).unwrap());
            killed.get_or_insert_with(|| kill_in(&mut child));
            wait(|| failed(s.request(r).unwrap().poll()))
        } {}
    } else {
        let r = wait(|| listen.accept());
        while !{
            let q = wait(|| r.receive(&[(buffer(&mut data), 0)]).unwrap());
            killed.get_or_insert_with(|| kill_in(&mut child));
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
    println!("\nready");
    std::io::stdout().flush().unwrap();
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
    let ticks = || -> u64 {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let after = stat.rsplit(')').next().unwrap_or_default().to_owned();
        after.split_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().unwrap()).sum()
    };
    let opens = std::fs::File::open("/dev/null").is_ok();
    let (before, begin) = (ticks(), Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    let share = (ticks() - before) as f64 / 100.0 / begin.elapsed().as_secs_f64();
    println!("\nopens {opens} share {share:.2}");
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
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "role", "--nocapture", "--test-threads=1"])
        .env(ROLE, "starves")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(out.any(|l| l == "ready"));
    let listens = addresses(child.id());
    assert!(!listens.is_empty());
    let dial = |i: usize| TcpStream::connect_timeout(&listens[i % listens.len()], Duration::from_secs(1)).ok();
    let strangers: Vec<TcpStream> = (0..200).filter_map(dial).collect();
    assert!(strangers.len() > 100, "{} connections", strangers.len());
    std::thread::sleep(Duration::from_millis(300));
    writeln!(child.stdin.as_mut().unwrap()).unwrap();
    let said = out.find(|l| l.starts_with("opens")).unwrap();
    child.wait().unwrap();
    let share: f64 = said.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(said.starts_with("opens true") && share < 0.5, "{said}");
}
