//! Connections between two ends over sockets and shared memory, including hostile ends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use wire::auth::{self, MAGIC, NONCE_BYTES, PROOF_BYTES, Role, Seal};
use wire::link::{HELLO_MS_MAX, MEMORY_WORDS, RING_WORDS, wait};
use wire::memory::Memory;
use wire::pipe::Words;
use wire::{Address, FRAME_BYTES_MAX, IntraNodeTransport, Link, Listener};

/// Far longer than any step here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn local(name: &str) -> Address {
    Address::Local(format!("linkwise-test-{name}-{}", std::process::id()))
}

fn any_port() -> (Listener, Address) {
    let ip = [127, 0, 0, 1];
    let listener = Listener::bind(&Address::Tcp(SocketAddr::from((ip, 0)))).unwrap();
    let port = listener.port().unwrap();
    (listener, Address::Tcp(SocketAddr::from((ip, port))))
}

/// Returns the accepting side (B), then the connecting side (A).
fn pair_at(
    listener: &Listener,
    address: &Address,
    tokens: [&[u8]; 2],
    intra_node: [IntraNodeTransport; 2],
) -> [Link; 2] {
    let a = Link::connect(address, tokens[1], PATIENCE, intra_node[1]).unwrap();
    wait(std::iter::once(listener), std::iter::empty(), PATIENCE);
    [Link::accept(listener, tokens[0], intra_node[0]).unwrap().unwrap(), a]
}

fn pair(name: &str, intra_node: IntraNodeTransport) -> [Link; 2] {
    let address = local(name);
    pair_at(&Listener::bind(&address).unwrap(), &address, [b"t", b"t"], [intra_node; 2])
}

/// Polls both links until `done`, at most [`PATIENCE`], and returns the frames that each received.
fn exchange_until(
    links: &mut [Link; 2],
    mut done: impl FnMut(&[Link; 2], &[Vec<Vec<u8>>; 2]) -> bool,
) -> [Vec<Vec<u8>>; 2] {
    let (begin, mut got) = (Instant::now(), [Vec::new(), Vec::new()]);
    while begin.elapsed() < PATIENCE && !done(links, &got) {
        wait(std::iter::empty(), links.iter(), Duration::from_millis(5));
        for (link, got) in links.iter_mut().zip(&mut got) {
            link.flush();
            link.receive(|f| got.push(f));
        }
    }
    got
}

fn in_memory(name: &str) -> [Link; 2] {
    let mut links = pair(name, IntraNodeTransport::SharedMemory);
    exchange_until(&mut links, |l, _| l.iter().all(|l| l.is_in_memory()));
    assert!(links.iter().all(|l| l.is_in_memory()), "{links:?}");
    links
}

#[test]
fn frames_arrive_complete_and_in_order_over_every_transport() {
    // The largest frame is many times the ring.
    let bodies: Vec<Vec<u8>> = [1, 1000, 70_000, 8, FRAME_BYTES_MAX, 3].iter().map(|n| vec![*n as u8; *n]).collect();
    let (tcp, at) = any_port();
    let pairs = [
        pair("frames-socket", IntraNodeTransport::Socket),
        pair("frames-memory", IntraNodeTransport::SharedMemory),
        in_memory("frames-in-memory"),
        pair_at(&tcp, &at, [b"t", b"t"], [IntraNodeTransport::SharedMemory; 2]),
    ];
    for mut links in pairs {
        for body in &bodies {
            links.iter_mut().for_each(|l| l.send(body));
        }
        let got = exchange_until(&mut links, |_, got| got.iter().all(|g| g.len() == bodies.len()));
        assert!(got.iter().all(|g| *g == bodies), "{links:?}");
        let [mut b, a] = links;
        drop(a);
        b.receive(|_| {});
        assert!(b.is_broken());
    }
}

#[test]
fn frames_use_shared_memory_only_if_both_sides_choose_it() {
    for (i, intra_node) in [
        [IntraNodeTransport::Socket, IntraNodeTransport::SharedMemory],
        [IntraNodeTransport::SharedMemory, IntraNodeTransport::Socket],
    ]
    .into_iter()
    .enumerate()
    {
        let address = local(&format!("one-wants-{i}"));
        let mut links = pair_at(&Listener::bind(&address).unwrap(), &address, [b"t", b"t"], intra_node);
        links.iter_mut().for_each(|l| l.send(b"x"));
        let got = exchange_until(&mut links, |_, got| got.iter().all(|g| !g.is_empty()));
        assert_eq!(got, [[b"x".to_vec()], [b"x".to_vec()]]);
        assert!(links.iter().all(|l| !l.is_in_memory() && !l.is_broken()));
    }
}

#[test]
fn bytes_sent_through_memory_before_the_end_still_arrive() {
    let [mut b, mut a] = in_memory("last-words");
    a.send(b"last words");
    a.finish();
    drop(a);
    let mut got = Vec::new();
    b.receive(|f| got.push(f));
    assert_eq!((got, b.broken_reason()), (vec![b"last words".to_vec()], Some(wire::link::PEER_CLOSED)));
}

#[test]
fn a_peer_that_never_reads_is_dropped_at_the_limit() {
    for [mut b, _a] in [pair("deaf-socket", IntraNodeTransport::Socket), in_memory("deaf-memory")] {
        for _ in 0..64 {
            b.send(&vec![0; FRAME_BYTES_MAX]);
        }
        assert_eq!(b.broken_reason(), Some("the peer does not read: more than 16 MiB are unsent"));
    }
}

#[test]
fn a_peer_with_a_wrong_token_is_dropped_and_its_frames_are_ignored() {
    for intra_node in [IntraNodeTransport::Socket, IntraNodeTransport::SharedMemory] {
        let address = local(&format!("token-{intra_node:?}"));
        let mut links = pair_at(&Listener::bind(&address).unwrap(), &address, [b"secret", b"guess"], [intra_node; 2]);
        links[1].send(b"anything");
        let got = exchange_until(&mut links, |l, _| l[0].is_broken());
        assert!(got[0].is_empty() && !links[0].has_memory());
        // The side that connects finds out first, and proves nothing itself.
        assert_eq!(links[1].broken_reason(), Some(wire::link::WRONG_TOKEN));
        assert!(!links[0].is_ready());
    }
}

/// The first frame of a peer, without its length.
fn hello(nonce: &auth::Nonce) -> Vec<u8> {
    [MAGIC.as_slice(), nonce].concat()
}

fn framed(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_le_bytes(), body].concat()
}

/// Reads a challenge from a link that accepted this connection and answers it with a token. Returns what protects the frames that follow.
fn answer_challenge(raw: &mut (impl Read + Write), link: &mut Link, token: &[u8], a: &auth::Nonce) -> Seal {
    link.receive(|f| panic!("{f:?}"));
    let mut challenge = [0; 4 + 8 + NONCE_BYTES + PROOF_BYTES];
    raw.read_exact(&mut challenge).unwrap();
    let b = auth::Nonce::try_from(&challenge[12..12 + NONCE_BYTES]).unwrap();
    raw.write_all(&framed(&auth::proof(token, Role::Connects, a, &b))).unwrap();
    Seal::new(token, Role::Connects, a, &b)
}

#[test]
fn a_peer_that_guesses_the_token_is_told_so_and_nothing_else() {
    let (listener, at) = any_port();
    let a = auth::nonce().unwrap();
    let (mut raw, mut link) = raw_connection(&listener, &at, &framed(&hello(&a)));
    answer_challenge(&mut raw, &mut link, b"guess", &a);
    raw.write_all(&framed(b"obey")).unwrap();
    link.send(b"a secret");
    let begin = Instant::now();
    while !link.is_broken() && begin.elapsed() < PATIENCE {
        wait(std::iter::empty(), std::iter::once(&link), Duration::from_millis(20));
        link.receive(|f| panic!("{f:?}"));
    }
    assert_eq!(link.broken_reason(), Some(wire::link::WRONG_TOKEN));
    drop(link);
    let mut told = Vec::new();
    let _ = raw.read_to_end(&mut told);
    assert!(told.is_empty(), "{told:?}");
}

/// Passes bytes between two connections until neither has more; returns all bytes seen.
fn relay(a: &TcpStream, b: &TcpStream, change: &mut dyn FnMut(&mut Vec<u8>)) -> Vec<u8> {
    let mut seen = Vec::new();
    for (mut from, mut to) in [(a, b), (b, a)] {
        let mut bytes = vec![0; 1 << 16];
        let Ok(n) = from.read(&mut bytes) else { continue };
        bytes.truncate(n);
        seen.extend_from_slice(&bytes);
        change(&mut bytes);
        let _ = to.write_all(&bytes);
    }
    seen
}

#[test]
fn one_who_relays_a_connection_sees_no_token_and_can_neither_insert_nor_change_a_frame() {
    for inserts in [false, true] {
        let (real, at_real) = any_port();
        let (squatter, at_squatter) = any_port();
        let token = b"a token of twenty-six bytes";
        let mut a = Link::connect(&at_squatter, token, PATIENCE, IntraNodeTransport::Socket).unwrap();
        // The squatter's two ends are plain sockets.
        let Address::Tcp(at_real) = at_real else { panic!() };
        let mut to_real = TcpStream::connect(at_real).unwrap();
        wait(std::iter::once(&squatter), std::iter::empty(), PATIENCE);
        let Listener::Tcp(squatter) = squatter else { panic!() };
        let to_a = squatter.accept().unwrap().0;
        let mut b = Link::accept(&real, token, IntraNodeTransport::Socket).unwrap().unwrap();
        for s in [&to_real, &to_a] {
            s.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        }
        a.send(b"first");
        let (begin, mut got, mut seen) = (Instant::now(), Vec::new(), Vec::new());
        while got.is_empty() && begin.elapsed() < PATIENCE {
            seen.extend(relay(&to_a, &to_real, &mut |_| {}));
            [&mut a, &mut b].into_iter().for_each(|l| l.receive(|f| got.push(f)));
        }
        assert_eq!(got, [b"first".to_vec()], "it only relays");
        assert!(!seen.windows(token.len()).any(|w| w == token));
        if inserts {
            to_real.write_all(&framed(&[b"obey".as_slice(), &[0; auth::TAG_BYTES]].concat())).unwrap();
        } else {
            a.send(b"second");
        }
        while !b.is_broken() && begin.elapsed() < PATIENCE {
            relay(&to_a, &to_real, &mut |bytes| bytes.iter_mut().take(5).skip(4).for_each(|b| *b ^= 1));
            b.receive(|f| panic!("{f:?}"));
        }
        assert_eq!(b.broken_reason(), Some("a frame was changed on its way"));
    }
}

/// A raw TCP connection that sends these bytes, and the link that accepted it.
fn raw_connection(listener: &Listener, at: &Address, bytes: &[u8]) -> (TcpStream, Link) {
    let Address::Tcp(at) = at else { panic!("{at:?}") };
    let mut raw = TcpStream::connect(at).unwrap();
    raw.write_all(bytes).unwrap();
    wait(std::iter::once(listener), std::iter::empty(), PATIENCE);
    let link = Link::accept(listener, b"t", IntraNodeTransport::SharedMemory).unwrap().unwrap();
    wait(std::iter::empty(), std::iter::once(&link), PATIENCE);
    (raw, link)
}

#[test]
fn an_unauthenticated_peer_may_send_no_frame_longer_than_a_hello() {
    let (listener, at) = any_port();
    let length = |n: u32| n.to_le_bytes().to_vec();
    for bytes in [
        length(FRAME_BYTES_MAX as u32),
        length(u32::MAX),
        length(0),
        [length(12), b"GET / HTTP/1".to_vec()].concat(),
        [length(9), b"lnkwise2t".to_vec()].concat(),
    ] {
        let why = wire::link::NOT_LINKWISE;
        let (_raw, mut link) = raw_connection(&listener, &at, &bytes);
        link.receive(|f| panic!("{f:?}"));
        assert!(link.broken_reason().is_some_and(|w| w.contains(why)), "{:?}", link.broken_reason());
    }
}

#[test]
fn slow_single_bytes_do_not_extend_the_time_limit_of_the_hello() {
    let (listener, at) = any_port();
    let (mut slow, mut link) = raw_connection(&listener, &at, &60u32.to_le_bytes());
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE && !link.is_broken() {
        let _ = slow.write(&[0]);
        wait(std::iter::empty(), std::iter::once(&link), Duration::from_millis(100));
        link.receive(|f| panic!("{f:?}"));
        std::thread::sleep(Duration::from_millis(100));
        // Each byte is read, but the hello never completes.
        assert!(!link.is_broken() || begin.elapsed() >= Duration::from_millis(HELLO_MS_MAX - 100));
    }
    assert!(link.broken_reason().unwrap().contains("did not prove within 5 s"), "{:?}", link.broken_reason());
}

#[test]
fn an_empty_frame_without_shared_memory_is_an_error() {
    let (listener, at) = any_port();
    let a = auth::nonce().unwrap();
    let (mut raw, mut link) = raw_connection(&listener, &at, &framed(&hello(&a)));
    let mut seal = answer_challenge(&mut raw, &mut link, b"t", &a);
    raw.write_all(&framed(&seal.tag(b""))).unwrap();
    let begin = Instant::now();
    while !link.is_broken() && begin.elapsed() < PATIENCE {
        wait(std::iter::empty(), std::iter::once(&link), Duration::from_millis(20));
        link.receive(|f| panic!("{f:?}"));
    }
    assert!(link.broken_reason().unwrap().contains("empty frame"), "{link:?}");
}

#[test]
fn connecting_to_a_closed_address_fails_without_waiting() {
    let (listener, at) = any_port();
    drop(listener);
    // The kernel refuses at once, or the first poll finds out.
    if let Ok(mut link) = Link::connect(&at, b"t", PATIENCE, IntraNodeTransport::Socket) {
        wait(std::iter::empty(), std::iter::once(&link), PATIENCE);
        link.receive(|_| {});
        assert!(link.is_broken() && !link.is_ready());
    }
    assert!(Link::connect(&local("nobody"), b"t", PATIENCE, IntraNodeTransport::SharedMemory).is_err());
}

#[test]
fn connecting_to_a_silent_address_ends_at_the_timeout() {
    // The listener's queue is full, so a new connection gets no reply.
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};
    let deaf = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&deaf, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    listen(&deaf, 0).unwrap();
    let at: SocketAddr = getsockname(&deaf).unwrap().try_into().unwrap();
    let _queue: Vec<_> = (0..4).map(|_| TcpStream::connect_timeout(&at, Duration::from_millis(200))).collect();
    let mut link =
        Link::connect(&Address::Tcp(at), b"t", Duration::from_millis(300), IntraNodeTransport::Socket).unwrap();
    let begin = Instant::now();
    while !link.is_broken() && begin.elapsed() < PATIENCE {
        wait(std::iter::empty(), std::iter::once(&link), Duration::from_millis(20));
        link.flush();
        link.receive(|f| panic!("{f:?}"));
    }
    assert_eq!(link.broken_reason(), Some("the address does not answer"));
}

/// A hostile process: it offers shared memory, writes anything into it, and sends anything over the socket.
struct Liar {
    socket: std::os::unix::net::UnixStream,
    memory: Memory,
}

/// Connects with a file descriptor attached to the hello. Returns the sender's socket and the link that accepted it.
fn connect_with_file(name: &str, file: std::os::fd::BorrowedFd<'_>) -> (std::os::unix::net::UnixStream, Link) {
    use std::os::linux::net::SocketAddrExt;
    let address = local(name);
    let listener = Listener::bind(&address).unwrap();
    let Address::Local(n) = &address else { panic!() };
    let at = std::os::unix::net::SocketAddr::from_abstract_name(n.as_bytes()).unwrap();
    let mut socket = std::os::unix::net::UnixStream::connect_addr(&at).unwrap();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = rustix::net::SendAncillaryBuffer::new(&mut space);
    let files = [file];
    assert!(ancillary.push(rustix::net::SendAncillaryMessage::ScmRights(&files)));
    let a = auth::nonce().unwrap();
    let hello = framed(&hello(&a));
    let bytes = [std::io::IoSlice::new(&hello)];
    rustix::net::sendmsg(&socket, &bytes, &mut ancillary, rustix::net::SendFlags::empty()).unwrap();
    let mut link = Link::accept(&listener, b"t", IntraNodeTransport::SharedMemory).unwrap().unwrap();
    answer_challenge(&mut socket, &mut link, b"t", &a);
    link.receive(|f| panic!("{f:?}"));
    assert!(link.is_ready(), "{link:?}");
    (socket, link)
}

impl Liar {
    /// Also returns the other end, which by then uses the memory in both directions.
    fn new(name: &str) -> (Self, Link) {
        let memory = Memory::new(MEMORY_WORDS).unwrap();
        let (mut socket, mut link) = connect_with_file(name, memory.file().unwrap());
        socket.write_all(&[0; 4]).unwrap(); // an empty frame
        link.receive(|f| panic!("{f:?}"));
        assert!(link.is_in_memory(), "{link:?}");
        (Liar { socket, memory }, link)
    }

    fn set(&self, at: usize, value: u64) {
        self.memory.words()[at].store(value, std::sync::atomic::Ordering::Release);
    }
}

#[test]
fn impossible_words_in_memory_end_the_connection_with_one_reason() {
    // Pairs (word, value) that the other side must reject; pipe.rs draws the layout.
    let lies: [(&[(usize, u64)], &str); 5] = [
        (&[(0, u64::MAX)], "the peer claims to have written more than fits"),
        (&[(0, RING_WORDS as u64 + 1)], "the peer claims to have written more than fits"),
        (&[(0, 1)], "a chunk is longer than the bytes written"),
        (&[(64, u64::MAX), (0, 100)], "a chunk is longer than the bytes written"),
        (&[(24, 77)], "the peer claims to have read more than was written"),
    ];
    for (i, (words, why)) in lies.into_iter().enumerate() {
        let (mut liar, mut link) = Liar::new(&format!("lie-{i}"));
        words.iter().for_each(|(at, value)| liar.set(*at, *value));
        liar.socket.write_all(&[1]).unwrap(); // a wake-up byte
        wait(std::iter::empty(), std::iter::once(&link), PATIENCE);
        link.send(b"x");
        link.receive(|f| panic!("{f:?}"));
        assert_eq!(link.broken_reason(), Some(format!("corrupt shared memory: {why}").as_str()));
    }
}

#[test]
fn frames_in_memory_have_the_limits_of_frames() {
    let (mut liar, mut link) = Liar::new("long-frame");
    liar.set(65, u64::from(FRAME_BYTES_MAX as u32 + 1));
    liar.set(64, 8);
    liar.set(0, 2);
    liar.socket.write_all(&[1]).unwrap();
    link.receive(|f| panic!("{f:?}"));
    assert!(link.broken_reason().unwrap().contains("a frame is too long"), "{:?}", link.broken_reason());
}

#[test]
fn endless_wake_up_bytes_take_no_memory() {
    let (mut liar, mut link) = Liar::new("bells");
    for _ in 0..20 {
        liar.socket.write_all(&[1; 100_000]).unwrap();
        for _ in 0..4 {
            link.receive(|f| panic!("{f:?}"));
        }
    }
    link.send(b"still here");
    assert!(!link.is_broken());
}

#[test]
fn memory_that_could_be_truncated_is_ignored_and_the_socket_is_used() {
    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
    let unsealed = rustix::fs::memfd_create("test", flags).unwrap();
    rustix::fs::ftruncate(&unsealed, MEMORY_WORDS as u64 * 8).unwrap();
    let small = Memory::new(512).unwrap();
    let file = tempfile::tempfile().unwrap();
    use std::os::fd::AsFd;
    for (i, offered) in [unsealed.as_fd(), small.file().unwrap(), file.as_fd()].into_iter().enumerate() {
        let (mut socket, mut link) = connect_with_file(&format!("unfit-{i}"), offered);
        assert!(!link.has_memory());
        socket.write_all(&[1, 0, 0, 0, b'x']).unwrap();
        let mut got = Vec::new();
        link.receive(|f| got.push(f));
        assert_eq!(got, [b"x".to_vec()]);
    }
}

#[test]
fn the_limit_of_files_is_the_soft_one_of_this_process() {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let soft =
        limits.lines().find_map(|l| l.strip_prefix("Max open files")).unwrap().split_whitespace().next().unwrap();
    assert_eq!(wire::socket::open_files_max(), soft.parse().ok());
}
