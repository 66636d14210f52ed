//! What the tests with processes of their own share.

#![allow(dead_code, reason = "each test file uses a part")]

use net::limits::GROUPED_MAX;
use net::{Buffer, Endpoint, Progress, Rail, ReceiveEnd, SendEnd, Settings};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longer is a hang of the test: the promises are 30 s, and a busy machine gets more.
pub const TIME_MAX: Duration = Duration::from_secs(120);

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

pub fn unhex(text: &str) -> [u8; 128] {
    std::array::from_fn(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap())
}

pub fn wait<T>(mut f: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(t) = f() {
            return t;
        }
        assert!(begin.elapsed() < TIME_MAX, "it hangs");
        std::thread::sleep(Duration::from_micros(200));
    }
}

pub fn buffer(v: &mut [u8]) -> Buffer {
    // SAFETY: the vectors live until their connection is closed.
    #[allow(unsafe_code)]
    unsafe {
        Buffer::new(v.as_mut_ptr(), v.len())
    }
}

pub fn connect(a: &Endpoint, b: &Endpoint, rail: usize) -> (SendEnd, ReceiveEnd) {
    let (listen, mut handle) = b.listen(rail).unwrap();
    let (mut send, mut receive) = (None, None);
    wait(|| {
        send = send.take().or_else(|| a.connect(rail, &mut handle).unwrap());
        receive = receive.take().or_else(|| listen.accept());
        (send.is_some() && receive.is_some()).then_some(())
    });
    (send.unwrap(), receive.unwrap())
}

pub fn pattern(n: usize, seed: usize) -> Vec<u8> {
    (0..n).map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ seed) as u8).collect()
}

pub fn done(poll: impl Fn() -> Progress) -> [u64; GROUPED_MAX] {
    wait(|| match poll() {
        Progress::Pending => None,
        Progress::Done(sizes) => Some(sizes),
        Progress::Failed => panic!("failed"),
    })
}

/// Prints a line for the test that started this process. The test harness may have begun one.
pub fn say(line: &str) {
    println!("\n{line}");
    std::io::stdout().flush().unwrap();
}

/// The next line that the test says.
pub fn heard() -> String {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).unwrap();
    line
}

/// What a process of a test is: the role of the test with that name.
pub const ROLE: &str = "LINKWISE_TEST_NET_ROLE";
/// Addresses of its host, one a rail.
pub const RAILS: &str = "LINKWISE_TEST_NET_RAILS";

/// The settings of a process on the host with the rails of `RAILS`.
pub fn settings_of_host() -> Settings {
    let rails = std::env::var(RAILS).unwrap();
    let rail = |ip: &str| Rail { name: ip.into(), ip: ip.parse().unwrap(), prefix: 24, rate: 0 };
    let mut settings = Settings::new(rails.split(',').map(rail).collect());
    settings.token = b"t".to_vec();
    settings
}

/// A process that runs one test of this file.
pub fn own_test(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    command
}

/// A process that is told lines and says lines.
pub struct Process {
    pub child: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Process {
    pub fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (to, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|l| to.send(l)));
        Process { child, lines }
    }

    /// The rest of the next line that begins with `word`.
    pub fn said(&self, word: &str) -> String {
        let begin = Instant::now();
        loop {
            let line = self.lines.recv_timeout(TIME_MAX.saturating_sub(begin.elapsed())).unwrap();
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
    }

    pub fn hear(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
