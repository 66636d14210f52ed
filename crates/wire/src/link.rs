//! A connection that carries frames, over a socket or, within one host, through shared memory.
//!
//! The connecting side first sends a hello: a magic number and the job's token. A peer that sends no valid hello within [`HELLO_MS_MAX`] is dropped,
//! and none of its other bytes are interpreted. A hello with a file descriptor attached offers shared memory ([`Memory`]):
//!
//! ```text
//! A  hello + file ──────────► B  checks and maps the file; sends an empty frame: its next frames come through memory
//! A                    ◄───── B  (or stays on the socket)
//! A  an empty frame ────────► B  A's next frames come through memory
//! ```
//!
//! After the switch the socket carries only wake-up bytes and the notice that the peer has closed. Invalid contents of shared memory end the
//! connection with [`Link::broken_reason`]; its owner reconnects without shared memory.

use crate::frame::{self, Frames, HEADER_BYTES};
use crate::memory::Memory;
use crate::pipe::{Pipe, Side};
use crate::socket::{Listener, Stream};
use crate::{Address, FRAME_BYTES_MAX, Malformed};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::borrow::Cow;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Time limit for the hello of a new connection, milliseconds.
pub const HELLO_MS_MAX: u64 = 5_000;
/// Longest token, bytes.
pub const TOKEN_BYTES_MAX: usize = 256;
/// Limit on unsent bytes of one connection. A peer that falls this far behind is dropped.
pub const BACKLOG_BYTES_MAX: usize = 16 << 20;
/// Words of each direction's ring in shared memory: 64 KiB, room for six common proposals of the largest size.
pub const RING_WORDS: usize = 8192;
/// Words of one connection's shared memory, rounded up to whole pages.
pub const MEMORY_WORDS: usize = Pipe::<Memory>::words_needed(RING_WORDS).next_multiple_of(512);
/// Bytes per read from a socket.
const READ_BYTES: usize = 64 << 10;
/// "linkwise" and the protocol version.
const MAGIC: &[u8; 8] = b"lnkwise2";
/// [`Link::broken_reason`] after the peer has closed the connection.
pub const PEER_CLOSED: &str = "the peer closed the connection";
/// [`Link::broken_reason`] after a hello with another token.
pub const WRONG_TOKEN: &str = "wrong token";
/// Announces that all further frames come through shared memory.
const EMPTY_FRAME: [u8; HEADER_BYTES] = [0; HEADER_BYTES];

/// How bytes travel between processes of one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum IntraNodeTransport {
    /// Through the local socket.
    #[default]
    Socket,
    /// Through shared memory if the peer accepts it; the socket carries the wake-ups.
    SharedMemory,
}

/// State of the peer.
///
/// `Connecting` becomes `Ready` at the first successful write; `Unauthenticated` becomes `Ready` with a valid hello. Both end the connection at
/// `until`.
#[derive(Debug)]
enum PeerState {
    /// This side connected to it, or it sent the token.
    Ready,
    /// The TCP connection is not yet established.
    Connecting { until: Instant },
    /// It connected to this side and has not sent the token.
    Unauthenticated { token: Vec<u8>, until: Instant, intra_node: IntraNodeTransport, file: Option<OwnedFd> },
}

/// The path of [`Link::flush`]: `Socket`, then `Switching` once both sides hold the memory, then `SharedMemory`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SendPath {
    Socket,
    /// The number of bytes of the empty frame that are still to be written to the socket.
    Switching(usize),
    SharedMemory,
}

/// A connection. See the module documentation.
#[derive(Debug)]
pub struct Link {
    stream: Stream,
    peer: PeerState,
    frames: Frames,
    unsent: Vec<u8>,
    sent: usize,
    memory: Option<Pipe<Memory>>,
    send_path: SendPath,
    /// Both sides hold the memory: switch to it once all unsent bytes are written.
    switch_to_memory: bool,
    /// The peer has switched: its frames come through shared memory.
    receives_from_memory: bool,
    broken: Option<Cow<'static, str>>,
}

impl Link {
    fn new(stream: Stream, peer: PeerState) -> Self {
        Link {
            stream,
            peer,
            frames: Frames::default(),
            unsent: Vec::new(),
            sent: 0,
            memory: None,
            send_path: SendPath::Socket,
            switch_to_memory: false,
            receives_from_memory: false,
            broken: None,
        }
    }

    /// Connects and sends the hello without blocking. A TCP connection that is not established after `timeout` becomes broken.
    pub fn connect(
        address: &Address,
        token: &[u8],
        timeout: Duration,
        intra_node: IntraNodeTransport,
    ) -> io::Result<Self> {
        let stream = Stream::connect(address)?;
        let peer = match &stream {
            Stream::Tcp(_) => PeerState::Connecting { until: Instant::now() + timeout },
            Stream::Local(_) => PeerState::Ready,
        };
        let mut link = Link::new(stream, peer);
        let mut hello = Vec::new();
        frame::append(&mut hello, &[MAGIC, token].concat());
        if intra_node == IntraNodeTransport::SharedMemory
            && matches!(address, Address::Local(_))
            && link.offer_memory(&hello)?
        {
            return Ok(link);
        }
        link.unsent = hello;
        link.flush();
        // On the loopback interface TCP refuses at once.
        if link.is_broken() { Err(ErrorKind::ConnectionRefused.into()) } else { Ok(link) }
    }

    /// Sends the hello with shared memory attached. `false` if the kernel provides no such memory.
    fn offer_memory(&mut self, hello: &[u8]) -> io::Result<bool> {
        let Ok(mut memory) = Memory::new(MEMORY_WORDS) else { return Ok(false) };
        let Some(file) = memory.file() else { return Ok(false) };
        // The socket is new, so its buffer has room for a hello; a partial write means that something is wrong.
        if self.stream.write_with_file(hello, file)? != hello.len() {
            return Err(ErrorKind::WriteZero.into());
        }
        memory.close_file();
        self.memory = Pipe::new(memory, Side::A, RING_WORDS);
        Ok(true)
    }

    /// The next pending connection of a listener, if any; it is unauthenticated. `intra_node` says whether to accept shared memory that it offers.
    ///
    /// # Errors
    /// For instance too many open files. The listener stays readable, so the caller must pause before it tries again.
    pub fn accept(at: &Listener, token: &[u8], intra_node: IntraNodeTransport) -> io::Result<Option<Self>> {
        let until = Instant::now() + Duration::from_millis(HELLO_MS_MAX);
        let unauthenticated = || PeerState::Unauthenticated { token: token.to_vec(), until, intra_node, file: None };
        Ok(at.accept()?.map(|stream| Link::new(stream, unauthenticated())))
    }

    /// This side's address on a TCP connection: the address at which the peer's network reaches this host.
    pub fn local_ip(&self) -> Option<std::net::IpAddr> {
        self.stream.local_ip()
    }

    /// The connection is established and, if it was accepted, authenticated.
    pub fn is_ready(&self) -> bool {
        matches!(self.peer, PeerState::Ready)
    }

    /// Frames travel through shared memory in both directions.
    pub fn is_in_memory(&self) -> bool {
        self.receives_from_memory && self.send_path == SendPath::SharedMemory
    }

    /// Shared memory was offered or accepted, whether or not frames use it yet.
    pub fn has_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// The connection has ended.
    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Why the connection ended.
    pub fn broken_reason(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    fn fail(&mut self, broken_reason: impl Into<Cow<'static, str>>) {
        self.broken.get_or_insert(broken_reason.into());
    }

    /// Ends the connection with a reason that the caller gives.
    pub fn close_with_reason(&mut self, broken_reason: &'static str) {
        self.fail(broken_reason);
    }

    /// Queues a frame and writes as much as possible without blocking. A frame over the limit, or a backlog over [`BACKLOG_BYTES_MAX`], breaks the
    /// connection.
    pub fn send(&mut self, body: &[u8]) {
        if self.is_broken() {
            return;
        }
        let room = BACKLOG_BYTES_MAX.saturating_sub(self.unsent.len() - self.sent);
        if body.is_empty() || body.len() > FRAME_BYTES_MAX {
            return self.fail("a frame is empty or longer than 1 MiB");
        }
        if room < body.len() + HEADER_BYTES {
            return self.fail("the peer does not read: more than 16 MiB are unsent");
        }
        frame::append(&mut self.unsent, body);
        self.flush();
    }

    /// Writes as much as possible without blocking.
    pub fn flush(&mut self) {
        let mut wrote = false;
        while !self.is_broken() {
            let rest = self.unsent.get(self.sent..).unwrap_or_default();
            let done = rest.is_empty();
            match self.send_path {
                SendPath::Socket if done && self.switch_to_memory => self.send_path = SendPath::Switching(HEADER_BYTES),
                SendPath::Socket | SendPath::SharedMemory if done => break,
                SendPath::Switching(0) => self.send_path = SendPath::SharedMemory,
                SendPath::Switching(n) => match self.stream.write(EMPTY_FRAME.get(..n).unwrap_or_default()) {
                    Ok(wrote) => self.send_path = SendPath::Switching(n - wrote),
                    Err(e) if self.should_retry_later(&e) => break,
                    Err(_) => {}
                },
                SendPath::Socket => match self.stream.write(rest) {
                    Ok(0) => self.fail(PEER_CLOSED),
                    Ok(wrote) => {
                        self.sent += wrote;
                        if matches!(self.peer, PeerState::Connecting { .. }) {
                            self.peer = PeerState::Ready;
                        }
                    }
                    Err(e) if self.should_retry_later(&e) => break,
                    Err(_) => {}
                },
                SendPath::SharedMemory => match self.memory.as_mut().map_or(Ok(0), |m| m.write(rest)) {
                    Ok(0) => break,
                    Ok(n) => (wrote, self.sent) = (true, self.sent + n),
                    Err(e) => self.fail(e.to_string()),
                },
            }
        }
        if wrote && self.memory.as_ref().is_some_and(|m| m.must_wake_reader()) {
            self.wake_peer();
        }
        if self.sent == self.unsent.len() {
            self.unsent.clear();
            self.sent = 0;
        } else if self.sent > 1 << 20 {
            self.unsent.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Handles a socket error. `true`: try again later. `false`: try again at once, unless the connection is now broken.
    fn should_retry_later(&mut self, e: &io::Error) -> bool {
        match e.kind() {
            ErrorKind::WouldBlock => return true,
            ErrorKind::Interrupted => {}
            _ => self.fail(PEER_CLOSED),
        }
        false
    }

    /// Wakes the peer. A socket buffer full of wake-up bytes already does.
    fn wake_peer(&mut self) {
        if let Err(e) = self.stream.write(&[1]) {
            self.should_retry_later(&e);
        }
    }

    /// Reads without blocking and passes each frame to `got`. A closed connection, invalid bytes or a wrong token break the connection.
    pub fn receive(&mut self, mut got: impl FnMut(Vec<u8>)) {
        let mut end = false;
        if !self.is_broken() {
            end = self.read_socket();
        }
        while !self.is_broken() {
            match self.next_frame() {
                Ok(Some(body)) => got(body),
                Ok(None) => break,
                Err(e) => self.fail(e.0),
            }
        }
        if self.receives_from_memory && !self.is_broken() {
            // At most one ring per call, so that a peer that never stops writing cannot keep this thread.
            let mut bytes = Vec::new();
            match self.memory.as_mut().map_or(Ok(0), |m| m.read(&mut bytes)) {
                Ok(0) => {}
                Ok(_) if self.memory.as_ref().is_some_and(|m| m.must_wake_writer()) => self.wake_peer(),
                Ok(_) => {}
                Err(e) => self.fail(e.to_string()),
            }
            self.frames.feed(&bytes);
            while let Ok(Some(body)) = self.frames.next_frame().map_err(|e| self.fail(e.0)) {
                got(body);
            }
        }
        if end {
            self.fail(PEER_CLOSED);
        }
        match &self.peer {
            PeerState::Unauthenticated { until, .. } if Instant::now() > *until => {
                self.fail("the peer sent no token within 5 s")
            }
            PeerState::Connecting { until } if Instant::now() > *until => self.fail("the address does not answer"),
            _ => {}
        }
    }

    /// Reads the socket once. `true` at end of stream.
    fn read_socket(&mut self) -> bool {
        let mut buffer = [0u8; READ_BYTES];
        // At most one buffer per call, so that a peer that never stops writing cannot keep this thread.
        let read = match &mut self.peer {
            PeerState::Unauthenticated { file, .. } => self.stream.read_with_file(&mut buffer, file),
            _ => self.stream.read(&mut buffer),
        };
        match read {
            Ok(0) => return true,
            Ok(_) if self.receives_from_memory => {} // wake-up bytes
            Ok(n) => self.frames.feed(buffer.get(..n).unwrap_or_default()),
            Err(e) => {
                self.should_retry_later(&e);
            }
        }
        false
    }

    /// The next frame from the socket.
    fn next_frame(&mut self) -> Result<Option<Vec<u8>>, Malformed> {
        if self.receives_from_memory {
            return Ok(None);
        }
        let hello = MAGIC.len() + TOKEN_BYTES_MAX;
        let limit = if matches!(self.peer, PeerState::Unauthenticated { .. }) { hello } else { FRAME_BYTES_MAX };
        let Some(frame) = self.frames.next_frame_up_to(limit)? else { return Ok(None) };
        if let PeerState::Unauthenticated { token, intra_node, file, .. } = &mut self.peer {
            let said = frame.strip_prefix(MAGIC).ok_or(Malformed("the first frame is not a hello"))?;
            if !equal_in_constant_time(said, token) {
                return Err(Malformed(WRONG_TOKEN));
            }
            let file = file.take().filter(|_| *intra_node == IntraNodeTransport::SharedMemory);
            self.peer = PeerState::Ready;
            if let Some(file) = file.filter(|_| self.stream.is_same_user()) {
                self.accept_memory(&file);
            }
            return self.next_frame();
        }
        if !frame.is_empty() {
            return Ok(Some(frame));
        }
        if self.memory.is_none() {
            return Err(Malformed("an empty frame without shared memory"));
        }
        self.receives_from_memory = true;
        self.switch_to_memory = true;
        self.frames = Frames::default(); // all further bytes are wake-ups
        self.flush();
        Ok(None)
    }

    /// Unusable memory is ignored: the connection stays on the socket.
    fn accept_memory(&mut self, file: &OwnedFd) {
        let memory = Memory::from_peer(file.as_fd(), MEMORY_WORDS).ok();
        self.memory = memory.and_then(|m| Pipe::new(m, Side::B, RING_WORDS));
        self.switch_to_memory = self.memory.is_some();
        self.flush();
    }

    /// Bytes wait to be sent.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Closes the sending direction. Bytes already sent still arrive.
    pub fn finish(&mut self) {
        self.flush();
        self.stream.finish();
    }

    /// True if this side has nothing to do until its socket becomes readable.
    fn prepare_to_sleep(&self) -> bool {
        let memory =
            self.memory.as_ref().filter(|_| self.receives_from_memory || self.send_path == SendPath::SharedMemory);
        memory.is_none_or(|m| m.prepare_to_sleep(self.send_path == SendPath::SharedMemory && self.has_unsent()))
    }
}

/// Compares in a time that does not depend on the position of the first difference.
fn equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |d, (x, y)| d | (x ^ y)) == 0
}

/// Waits, at most `timeout`, until a listener or link is readable, or a link with unsent bytes is writable.
pub fn wait<'a>(
    listeners: impl Iterator<Item = &'a Listener>,
    links: impl Iterator<Item = &'a Link>,
    timeout: Duration,
) {
    let mut fds: Vec<PollFd<'_>> = listeners.map(|l| PollFd::from_borrowed_fd(l.fd(), PollFlags::IN)).collect();
    let links: Vec<&Link> = links.filter(|l| !l.is_broken()).collect();
    fds.extend(links.iter().map(|l| {
        let unsent = l.has_unsent() && l.send_path != SendPath::SharedMemory;
        let flags = if unsent { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        PollFd::from_borrowed_fd(l.stream.fd(), flags)
    }));
    let timeout = if links.iter().all(|l| l.prepare_to_sleep()) { timeout } else { Duration::ZERO };
    let timeout = Timespec { tv_sec: timeout.as_secs().min(3600) as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    let _ = rustix::event::poll(&mut fds, Some(&timeout));
    links.iter().filter_map(|l| l.memory.as_ref()).for_each(|m| m.cancel_sleep());
}
