//! Connections between two ends over sockets and shared memory, including hostile ends.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
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
        assert!(links[0].broken_reason().unwrap().contains(wire::link::WRONG_TOKEN));
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
    let hello = |n: u32| n.to_le_bytes().to_vec();
    for (bytes, why) in [
        (hello(FRAME_BYTES_MAX as u32), "a frame is too long"),
        (hello(u32::MAX), "a frame is too long"),
        (hello(0), "not a hello"),
        ([hello(12), b"GET / HTTP/1".to_vec()].concat(), "not a hello"),
    ] {
        let (_raw, mut link) = raw_connection(&listener, &at, &bytes);
        link.receive(|f| panic!("{f:?}"));
        assert!(link.broken_reason().is_some_and(|w| w.contains(why)), "{:?}", link.broken_reason());
    }
}

#[test]
fn slow_single_bytes_do_not_extend_the_time_limit_of_the_hello() {
    let (listener, at) = any_port();
    let (mut slow, mut link) = raw_connection(&listener, &at, &200u32.to_le_bytes());
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE && !link.is_broken() {
        let _ = slow.write(&[0]);
        wait(std::iter::empty(), std::iter::once(&link), Duration::from_millis(100));
        link.receive(|f| panic!("{f:?}"));
        std::thread::sleep(Duration::from_millis(100));
        // Each byte is read, but the hello never completes.
        assert!(!link.is_broken() || begin.elapsed() >= Duration::from_millis(HELLO_MS_MAX - 100));
    }
    assert!(link.broken_reason().unwrap().contains("no token within 5 s"), "{:?}", link.broken_reason());
}

#[test]
fn an_empty_frame_without_shared_memory_is_an_error() {
    let (listener, at) = any_port();
    let hello = [9u32.to_le_bytes().as_slice(), b"lnkwise2t", &0u32.to_le_bytes()].concat();
    let (_raw, mut link) = raw_connection(&listener, &at, &hello);
    link.receive(|f| panic!("{f:?}"));
    assert!(link.broken_reason().unwrap().contains("empty frame"));
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
    let socket = std::os::unix::net::UnixStream::connect_addr(&at).unwrap();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = rustix::net::SendAncillaryBuffer::new(&mut space);
    let files = [file];
    assert!(ancillary.push(rustix::net::SendAncillaryMessage::ScmRights(&files)));
    let hello = [9u32.to_le_bytes().as_slice(), b"lnkwise2t"].concat();
    let bytes = [std::io::IoSlice::new(&hello)];
    rustix::net::sendmsg(&socket, &bytes, &mut ancillary, rustix::net::SendFlags::empty()).unwrap();
    let mut link = Link::accept(&listener, b"t", IntraNodeTransport::SharedMemory).unwrap().unwrap();
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
