//! Two processes: one is killed, the other gets an error within the bound.

use net::{Buffer, Endpoint, Progress, Rail, Settings};
use std::io::{BufRead, BufReader, Write};
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
