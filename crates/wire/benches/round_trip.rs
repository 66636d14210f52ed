//! Round trips between two processes of one host: through the local socket and through shared memory, in turns, so that both meet the same machine.
//!
//! `cargo bench --profile dev -p wire --bench round_trip`. "Waiting" is what linkwise does: both sides sleep until something comes. "Spinning" is
//! what it never does, for it takes the core from the job: it shows what of the time is the waking.

use std::time::{Duration, Instant};
use wire::link::wait;
use wire::{Address, Inside, Link, Listener};

const ROUNDS: usize = 30;
const TRIPS: usize = 300;
const SIZES: [usize; 2] = [100, 10_000];
/// How often this process looks for messages without sleeping, before it does.
const WAYS: [(&str, Inside, bool); 4] = [
    ("socket, waiting", Inside::Socket, false),
    ("memory, waiting", Inside::Memory, false),
    ("socket, spinning", Inside::Socket, true),
    ("memory, spinning", Inside::Memory, true),
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

/// The other process: sends back what comes, until its maker is gone.
fn echo(name: &str, way: usize) {
    let (_, inside, spin) = WAYS[way];
    let Ok(mut link) = Link::connect(&Address::Local(name.into()), b"", Duration::from_secs(1), inside) else { return };
    while let Some(frame) = next(&mut link, spin) {
        link.send(&frame);
    }
}

struct Other {
    link: Link,
    spin: bool,
    process: std::process::Child,
}

impl Other {
    fn start(way: usize) -> Self {
        let name = format!("linkwise-bench-{}-{way}", std::process::id());
        let listener = Listener::bind(&Address::Local(name.clone())).expect("a name of our own");
        let this = std::env::current_exe().expect("this program");
        let process =
            std::process::Command::new(this).args(["echo", &name, &way.to_string()]).spawn().expect("a child");
        wait(std::iter::once(&listener), std::iter::empty(), Duration::from_secs(5));
        let (_, inside, spin) = WAYS[way];
        let mut link = Link::accept(&listener, b"", inside).expect("a socket").expect("the child connects");
        for _ in 0..20 {
            link.send(b"?");
            next(&mut link, spin).expect("an answer");
        }
        assert_eq!(link.is_in_memory(), inside == Inside::Memory);
        Other { link, spin, process }
    }

    fn round(&mut self, bytes: usize, times_us: &mut Vec<f64>) {
        let body = vec![7; bytes];
        for _ in 0..TRIPS {
            let begin = Instant::now();
            self.link.send(&body);
            assert_eq!(next(&mut self.link, self.spin).expect("an answer").len(), bytes);
            times_us.push(begin.elapsed().as_nanos() as f64 / 1e3);
        }
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [what, name, way] = words.as_slice()
        && what == "echo"
    {
        return echo(name, way.parse().expect("a number"));
    }
    println!("{:<10} {:<18} {:>12} {:>12} {:>14}", "bytes", "way", "median, us", "99 %, us", "median/socket");
    for bytes in SIZES {
        let mut times: Vec<Vec<f64>> = vec![Vec::new(); WAYS.len()];
        for _ in 0..ROUNDS {
            for (way, times) in times.iter_mut().enumerate() {
                // Only one pair of processes at a time: one that spins would be in the way of the others.
                let mut other = Other::start(way);
                other.round(bytes, times);
                drop(other.link);
                let _ = other.process.wait();
            }
        }
        let mut base = 0.0;
        for ((name, inside, _), times) in WAYS.iter().zip(&mut times) {
            times.sort_by(f64::total_cmp);
            let at = |p: usize| times[(times.len() - 1) * p / 100];
            if *inside == Inside::Socket {
                base = at(50);
            }
            println!("{bytes:<10} {name:<18} {:>12.1} {:>12.1} {:>14.2}", at(50), at(99), at(50) / base);
        }
    }
}
