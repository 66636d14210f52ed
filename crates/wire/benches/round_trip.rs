//! Round trips between two processes of one host over the local socket and shared memory, alternating so that both see the same load.
//!
//! `cargo bench --profile dev -p wire --bench round_trip`. "Waiting" is the way linkwise communicates: both sides sleep
//! until a message arrives. "Spinning" takes a core from the job and is measured for comparison only: the difference is
//! the time of the wake-up.

use std::time::{Duration, Instant};
use wire::link::wait;
use wire::{Address, IntraNodeTransport, Link, Listener};

const ROUNDS: usize = 30;
const TRIPS_PER_ROUND: usize = 300;
const SIZES: [usize; 2] = [100, 10_000];
/// Name, transport, and whether both sides spin.
const TRANSPORTS: [(&str, IntraNodeTransport, bool); 4] = [
    ("socket, waiting", IntraNodeTransport::Socket, false),
    ("memory, waiting", IntraNodeTransport::SharedMemory, false),
    ("socket, spinning", IntraNodeTransport::Socket, true),
    ("memory, spinning", IntraNodeTransport::SharedMemory, true),
];

fn next(link: &mut Link, spin: bool) -> Option<Vec<u8>> {
    let mut got = None;
    while got.is_none() && !link.is_broken() {
        if spin {
            std::thread::yield_now();
        } else {
            wait(std::iter::empty(), std::iter::once(&*link), Duration::from_secs(1));
        }
        link.flush();
        link.receive(|f| got = Some(f));
    }
    got
}

/// The second process: echoes frames until the first one exits.
fn echo(name: &str, transport: usize) {
    let (_, intra_node, spin) = TRANSPORTS[transport];
    let Ok(mut link) = Link::connect(&Address::Local(name.into()), b"", Duration::from_secs(1), intra_node) else {
        return;
    };
    while let Some(frame) = next(&mut link, spin) {
        link.send(&frame);
    }
}

struct EchoProcess {
    link: Link,
    spin: bool,
    process: std::process::Child,
}

impl EchoProcess {
    fn start(transport: usize) -> Self {
        let name = format!("linkwise-bench-{}-{transport}", std::process::id());
        let listener = Listener::bind(&Address::Local(name.clone())).expect("a name of our own");
        let this = std::env::current_exe().expect("this program");
        let process =
            std::process::Command::new(this).args(["echo", &name, &transport.to_string()]).spawn().expect("a child");
        wait(std::iter::once(&listener), std::iter::empty(), Duration::from_secs(5));
        let (_, intra_node, spin) = TRANSPORTS[transport];
        let mut link = Link::accept(&listener, b"", intra_node).expect("a socket").expect("the child connects");
        for _ in 0..20 {
            link.send(b"?");
            next(&mut link, spin).expect("an answer");
        }
        assert_eq!(link.is_in_memory(), intra_node == IntraNodeTransport::SharedMemory);
        EchoProcess { link, spin, process }
    }

    fn measure_round(&mut self, bytes: usize, times_us: &mut Vec<f64>) {
        let body = vec![7; bytes];
        for _ in 0..TRIPS_PER_ROUND {
            let begin = Instant::now();
            self.link.send(&body);
            assert_eq!(next(&mut self.link, self.spin).expect("an answer").len(), bytes);
            times_us.push(begin.elapsed().as_nanos() as f64 / 1e3);
        }
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [what, name, transport] = words.as_slice()
        && what == "echo"
    {
        return echo(name, transport.parse().expect("a number"));
    }
    println!("{:<10} {:<18} {:>12} {:>12} {:>14}", "bytes", "way", "median, us", "99 %, us", "median/socket");
    for bytes in SIZES {
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); TRANSPORTS.len()];
        for _ in 0..ROUNDS {
            for (transport, times) in times.iter_mut().enumerate() {
                // One pair of processes at a time: a spinning pair would disturb the others.
                let mut echo_process = EchoProcess::start(transport);
                echo_process.measure_round(bytes, times);
                drop(echo_process.link);
                let _ = echo_process.process.wait();
            }
        }
        let mut base = 0.0;
        for ((name, intra_node, _), times) in TRANSPORTS.iter().zip(&mut times) {
            times.sort_by(f64::total_cmp);
            let at = |p: usize| times[(times.len() - 1) * p / 100];
            if *intra_node == IntraNodeTransport::Socket {
                base = at(50);
            }
            println!("{bytes:<10} {name:<18} {:>12.1} {:>12.1} {:>14.2}", at(50), at(99), at(50) / base);
        }
    }
}
