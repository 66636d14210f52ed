//! What the plugin's core costs: a poll of an unfinished request, and processor time per GB over the loopback interface beside plain TCP.
//!
//! ```sh
//! cargo run --release -p net --example cost
//! ```

use net::{Buffer, Endpoint, Progress, Rail, Settings};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

const MESSAGE: usize = 4 << 20;
const MESSAGES: usize = 100;

fn endpoint(rails: usize) -> Endpoint {
    let rail = |i| Rail { name: format!("r{i}"), ip: format!("127.0.0.{i}").parse().unwrap(), prefix: 8, rate: 0 };
    let mut s = Settings::new((1..=rails).map(rail).collect());
    (s.share, s.threads) = (false, 1);
    Endpoint::start(s).unwrap()
}

/// User and system time of this process, seconds.
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap();
    let words: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
    (words[11].parse::<f64>().unwrap() + words[12].parse::<f64>().unwrap()) / 100.0
}

fn buffer(v: &mut [u8]) -> Buffer {
    // SAFETY: the vectors live until their connection is closed.
    #[allow(unsafe_code)]
    unsafe {
        Buffer::new(v.as_mut_ptr(), v.len())
    }
}

fn ours(rails: usize) -> (f64, f64) {
    let (a, b) = (endpoint(rails), endpoint(rails));
    let (listen, mut handle) = b.listen(0).unwrap();
    let (mut send, mut receive) = (None, None);
    while send.is_none() || receive.is_none() {
        send = send.take().or_else(|| a.connect(0, &mut handle).unwrap());
        receive = receive.take().or_else(|| listen.accept());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let (s, r) = (send.unwrap(), receive.unwrap());
    let (mut from, mut to) = (vec![1; MESSAGE], vec![0; MESSAGE]);
    let (begin, used) = (Instant::now(), cpu());
    let mut open = std::collections::VecDeque::new();
    for i in 0..MESSAGES + 8 {
        if i < MESSAGES {
            let q = r.receive(&[(buffer(&mut to), 0)]).unwrap().unwrap();
            open.push_back((q, s.send(buffer(&mut from), 0).unwrap().unwrap()));
        }
        if i >= 8 {
            let (q, p) = open.pop_front().unwrap();
            // A sleep, so that the time of the I/O threads is measured and not that of the poll.
            while r.request(q).unwrap().poll() == Progress::Pending {
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
            while s.request(p).unwrap().poll() == Progress::Pending {
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
        }
    }
    let gb = (MESSAGE * MESSAGES) as f64 / 1e9;
    (gb / begin.elapsed().as_secs_f64(), (cpu() - used) / gb)
}

fn tcp() -> (f64, f64) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let (begin, used) = (Instant::now(), cpu());
    std::thread::scope(|s| {
        s.spawn(|| {
            let (mut to, mut stream) = (vec![0; MESSAGE], listener.accept().unwrap().0);
            for _ in 0..MESSAGES {
                stream.read_exact(&mut to).unwrap();
            }
        });
        let (from, mut stream) = (vec![1; MESSAGE], TcpStream::connect(at).unwrap());
        for _ in 0..MESSAGES {
            stream.write_all(&from).unwrap();
        }
    });
    let gb = (MESSAGE * MESSAGES) as f64 / 1e9;
    (gb / begin.elapsed().as_secs_f64(), (cpu() - used) / gb)
}

fn polls() {
    let (a, b) = (endpoint(1), endpoint(1));
    let (_listen, mut handle) = b.listen(0).unwrap();
    let s = loop {
        if let Some(s) = a.connect(0, &mut handle).unwrap() {
            break s;
        }
    };
    let mut data = vec![0; 64];
    let r = s.send(buffer(&mut data), 1).unwrap().unwrap();
    let request = s.request(r).unwrap();
    let mut times: Vec<u32> = (0..1_000_000)
        .map(|_| {
            let t = Instant::now();
            assert_eq!(std::hint::black_box(request).poll(), Progress::Pending);
            t.elapsed().as_nanos() as u32
        })
        .collect();
    times.sort_unstable();
    println!("poll with two readings of the clock: median {} ns, p99 {} ns", times[500_000], times[990_000]);
    let begin = Instant::now();
    for _ in 0..100_000_000u64 {
        std::hint::black_box(std::hint::black_box(request).poll());
    }
    println!("poll alone: {:.2} ns", begin.elapsed().as_nanos() as f64 / 1e8);
}

fn main() {
    polls();
    let mut all: Vec<(&str, Vec<(f64, f64)>)> = vec![("plain TCP", vec![]), ("1 rail", vec![]), ("4 rails", vec![])];
    for _ in 0..5 {
        all[0].1.push(tcp());
        all[1].1.push(ours(1));
        all[2].1.push(ours(4));
    }
    for (name, mut runs) in all {
        runs.sort_by(|a, b| a.1.total_cmp(&b.1));
        println!(
            "{name:10} {:.2} GB/s   {:.2} s of processor time per GB (median of {})",
            runs[2].0,
            runs[2].1,
            runs.len()
        );
    }
}
