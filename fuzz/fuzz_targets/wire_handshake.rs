//! The proof of the token: a stranger who connects, a stranger who listens, and one between two honest sides who loses, changes, inserts and repeats
//! bytes. No stranger gets ready, and what arrives is a beginning of what was sent.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::LazyLock;
use std::time::Duration;
use wire::{Address, IntraNodeTransport, Link, Listener};

const TOKEN: &[u8] = b"the job's token";
const PATIENCE: Duration = Duration::from_secs(60);

static NAME: LazyLock<String> = LazyLock::new(|| format!("linkwise-fuzz-{}", std::process::id()));
static LOCAL: LazyLock<Listener> = LazyLock::new(|| Listener::bind(&Address::Local(NAME.clone())).unwrap());
static STRANGER: LazyLock<UnixListener> = LazyLock::new(|| {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(format!("{}-stranger", *NAME)).unwrap()).unwrap()
});
static TCP: LazyLock<Listener> = LazyLock::new(|| Listener::bind(&"tcp:127.0.0.1:0".parse().unwrap()).unwrap());
static BETWEEN: LazyLock<TcpListener> = LazyLock::new(|| TcpListener::bind("127.0.0.1:0").unwrap());

fuzz_target!(|bytes: &[u8]| {
    match bytes.split_first() {
        Some((0..=79, rest)) => stranger_connects(rest),
        Some((80..=159, rest)) => stranger_listens(rest),
        Some((_, rest)) => stranger_between(rest),
        None => {}
    }
});

fn nothing(_: Vec<u8>) {
    panic!("a frame of a stranger");
}

fn stranger_connects(bytes: &[u8]) {
    LazyLock::force(&LOCAL);
    let mut stranger = UnixStream::connect_addr(&SocketAddr::from_abstract_name(NAME.as_str()).unwrap()).unwrap();
    let mut link = Link::accept(&LOCAL, TOKEN, IntraNodeTransport::SharedMemory).unwrap().unwrap();
    for piece in bytes.chunks(29) {
        if stranger.write_all(piece).is_err() {
            break;
        }
        link.receive(nothing);
    }
    assert!(!link.is_ready());
}

fn stranger_listens(bytes: &[u8]) {
    LazyLock::force(&STRANGER);
    let at = Address::Local(format!("{}-stranger", *NAME));
    let mut link = Link::connect(&at, TOKEN, PATIENCE, IntraNodeTransport::Socket).unwrap();
    link.send(b"for my peers only");
    let mut stranger = STRANGER.accept().unwrap().0;
    for piece in bytes.chunks(29) {
        if stranger.write_all(piece).is_err() {
            break;
        }
        link.receive(nothing);
    }
    assert!(!link.is_ready());
    drop(link);
    let mut said = Vec::new();
    stranger.read_to_end(&mut said).unwrap_or(0);
    let secret = |needle: &[u8]| said.windows(needle.len()).any(|w| w == needle);
    assert!(!secret(TOKEN) && !secret(b"for my peers only"));
}

/// One direction of the connection.
struct Way {
    from: TcpStream,
    to: TcpStream,
    held: Vec<u8>,
}

impl Way {
    fn fetch(&mut self) {
        let mut buffer = [0; 4096];
        if let Ok(n) = self.from.read(&mut buffer) {
            self.held.extend(&buffer[..n]);
        }
    }

    fn pass(&mut self, n: usize) {
        let n = n.min(self.held.len());
        let _ = self.to.write_all(&self.held[..n]);
        self.held.drain(..n);
    }
}

fn stranger_between(bytes: &[u8]) {
    LazyLock::force(&TCP);
    let at = Address::Tcp(BETWEEN.local_addr().unwrap());
    let mut a = Link::connect(&at, TOKEN, PATIENCE, IntraNodeTransport::Socket).unwrap();
    let (left, right) =
        (BETWEEN.accept().unwrap().0, TcpStream::connect(("127.0.0.1", TCP.port().unwrap())).unwrap());
    let mut b = loop {
        match Link::accept(&TCP, TOKEN, IntraNodeTransport::Socket).unwrap() {
            Some(link) => break link,
            None => std::thread::yield_now(),
        }
    };
    for side in [&left, &right] {
        side.set_nonblocking(true).unwrap();
        // The kernel forgets the connection at once: there are millions.
        rustix::net::sockopt::set_socket_linger(side, Some(Duration::ZERO)).unwrap();
    }
    let clone = |s: &TcpStream| s.try_clone().unwrap();
    let mut ways = [
        Way { from: clone(&left), to: clone(&right), held: Vec::new() },
        Way { from: right, to: left, held: Vec::new() },
    ];
    let sent: Vec<Vec<u8>> = (1..6u8).map(|i| vec![i; 3 * usize::from(i)]).collect();
    sent.iter().for_each(|body| a.send(body));
    let mut got = Vec::new();
    let calm = [[0, 0, 255], [1, 0, 255]].repeat(4);
    for step in bytes.chunks_exact(3).map(|s| [s[0], s[1], s[2]]).take(200).chain(calm) {
        let way = &mut ways[usize::from(step[0] & 1)];
        way.fetch();
        let (n, value) = (usize::from(step[2]), step[1]);
        match step[0] >> 1 & 7 {
            1 if !way.held.is_empty() => {
                let at = n % way.held.len();
                way.held[at] ^= value;
            }
            2 => drop(way.held.drain(..n.min(way.held.len()))),
            3 => way.held.splice(..0, vec![value; n % 64]).for_each(drop),
            4 => way.held.extend_from_within(..n.min(way.held.len())),
            _ => way.pass(n),
        }
        a.flush();
        a.receive(nothing);
        b.receive(|body| got.push(body));
    }
    assert!(sent.starts_with(&got), "{got:?}");
}
