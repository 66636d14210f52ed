//! A connection that carries frames, over a socket or, within one host, through shared memory.
//!
//! Both sides first prove that they know the job's token ([`crate::auth`]); the token is never sent. Over a local socket the kernel must also say that
//! the peer is a process of the same user; on the side that connects, that the listener is. A peer that proves nothing within [`HELLO_MS_MAX`] is
//! dropped; none of its other bytes are interpreted, and it is told nothing but random numbers and proofs. Frames that were queued before wait.
//!
//! A hello with a file descriptor attached offers shared memory ([`Memory`]):
//!
//! ```text
//! A  hello + file ──────────► B  checks and maps the file; sends an empty frame: its next frames come through memory
//! A                    ◄───── B  (or stays on the socket)
//! A  an empty frame ────────► B  A's next frames come through memory
//! ```
//!
//! After the switch the socket carries only wake-up bytes and the notice that the peer has closed. Invalid contents of shared memory end the
//! connection with [`Link::broken_reason`]; its owner reconnects without shared memory.

use crate::auth::{self, MAGIC, NONCE_BYTES, Nonce, PROOF_BYTES, Role, Seal, TAG_BYTES};
use crate::frame::{self, Frames, HEADER_BYTES};
use crate::memory::Memory;
use crate::pipe::{Pipe, Side};
use crate::socket::{Listener, Stream};
use crate::{Address, FRAME_BYTES_MAX, Malformed};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::borrow::Cow;
use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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
/// Bytes per read from a peer that has proved nothing.
const HELLO_READ_BYTES: usize = 512;
/// Longest frame of a peer that has proved nothing.
const HELLO_BYTES_MAX: usize = MAGIC.len() + NONCE_BYTES + PROOF_BYTES;
/// [`Link::broken_reason`] after the peer has closed the connection.
pub const PEER_CLOSED: &str = "the peer closed the connection";
/// [`Link::broken_reason`] after a proof of another token.
pub const WRONG_TOKEN: &str = "wrong token";
/// [`Link::broken_reason`] if the peer of a local socket belongs to another user.
pub const OTHER_USER: &str = "the peer is a process of another user";
/// [`Link::broken_reason`] if the first frame is none of linkwise's.
pub const NOT_LINKWISE: &str = "the peer does not speak this version of linkwise's protocol";

thread_local! {
    /// What a socket is read into: one buffer for all connections of a thread, never zeroed.
    static READ_BUFFER: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(READ_BYTES));
}
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

/// State of the peer. Each state but `Ready` ends the connection at `until`.
#[derive(Debug)]
enum PeerState {
    /// Both sides have proved that they know the token.
    Ready,
    /// This side connects, has sent its nonce and awaits the peer's proof. `established`: the TCP connection exists.
    Connects { nonce: Nonce, established: bool, until: Instant },
    /// It connected to this side and has sent nothing yet.
    Accepts { until: Instant, intra_node: IntraNodeTransport, file: Option<OwnedFd> },
    /// It has sent its nonce, `a`. This side has sent its own, `b`, and its proof, and awaits the peer's.
    Challenged { a: Nonce, b: Nonce, until: Instant, intra_node: IntraNodeTransport, file: Option<OwnedFd> },
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
    token: Vec<u8>,
    /// Protects the frames of a TCP connection.
    seal: Option<Seal>,
    frames: Frames,
    /// Frames that wait until the peer has proved itself.
    waiting: Vec<u8>,
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
    fn new(stream: Stream, peer: PeerState, token: &[u8]) -> Self {
        Link {
            stream,
            peer,
            token: token.to_vec(),
            seal: None,
            waiting: Vec::new(),
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
    ///
    /// # Errors
    /// The address refuses at once; `PermissionDenied` if another user listens at a local address.
    pub fn connect(
        address: &Address,
        token: &[u8],
        timeout: Duration,
        intra_node: IntraNodeTransport,
    ) -> io::Result<Self> {
        let stream = Stream::connect(address)?;
        if stream.is_same_user() == Some(false) {
            return Err(io::Error::new(ErrorKind::PermissionDenied, OTHER_USER));
        }
        let nonce = auth::nonce()?;
        let (established, until) = match &stream {
            Stream::Tcp(_) => (false, Instant::now() + timeout),
            Stream::Local(_) => (true, Instant::now() + Duration::from_millis(HELLO_MS_MAX)),
        };
        let mut link = Link::new(stream, PeerState::Connects { nonce, established, until }, token);
        let mut hello = Vec::new();
        frame::append(&mut hello, &[MAGIC.as_slice(), &nonce].concat());
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

    /// The next pending connection of a listener, if any; it has proved nothing. `intra_node` says whether to accept shared memory that it offers.
    /// The connection of another user is broken from the start.
    ///
    /// # Errors
    /// For instance too many open files. The listener stays readable, so the caller must pause before it tries again.
    pub fn accept(at: &Listener, token: &[u8], intra_node: IntraNodeTransport) -> io::Result<Option<Self>> {
        let until = Instant::now() + Duration::from_millis(HELLO_MS_MAX);
        let Some(stream) = at.accept()? else { return Ok(None) };
        let other_user = stream.is_same_user() == Some(false);
        let mut link = Link::new(stream, PeerState::Accepts { until, intra_node, file: None }, token);
        if other_user {
            link.fail(OTHER_USER);
        }
        Ok(Some(link))
    }

    /// The socket, for a poller.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.fd()
    }

    /// This side's address on a TCP connection: the address at which the peer's network reaches this host.
    pub fn local_ip(&self) -> Option<std::net::IpAddr> {
        self.stream.local_ip()
    }

    /// Both sides have proved that they know the token.
    pub fn is_ready(&self) -> bool {
        matches!(self.peer, PeerState::Ready)
    }

    /// The address answered: the connection exists, whether or not the peer has proved itself.
    pub fn is_established(&self) -> bool {
        !matches!(self.peer, PeerState::Connects { established: false, .. })
    }

    /// It connected to this side and has not even said hello.
    pub fn is_silent(&self) -> bool {
        matches!(self.peer, PeerState::Accepts { .. })
    }

    /// This side waits for bytes of the peer, at most until a time.
    pub fn must_prove_until(&self) -> Option<Instant> {
        match &self.peer {
            PeerState::Ready => None,
            PeerState::Connects { until, .. }
            | PeerState::Accepts { until, .. }
            | PeerState::Challenged { until, .. } => Some(*until),
        }
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
        let room = BACKLOG_BYTES_MAX.saturating_sub(self.unsent.len() - self.sent + self.waiting.len());
        if body.is_empty() || body.len() > FRAME_BYTES_MAX {
            return self.fail("a frame is empty or longer than 1 MiB");
        }
        if room < body.len() + HEADER_BYTES + TAG_BYTES {
            return self.fail("the peer does not read: more than 16 MiB are unsent");
        }
        if !self.is_ready() {
            frame::append(&mut self.waiting, body);
            return;
        }
        self.queue(body);
        self.flush();
    }

    /// Queues a frame to a peer that has proved itself.
    fn queue(&mut self, body: &[u8]) {
        let tag = self.seal.as_mut().map(|s| s.tag(body));
        frame::append_parts(&mut self.unsent, [body, tag.as_ref().map_or(&[], |t| t.as_slice())]);
    }

    /// The peer has proved itself: `role` is this side's. The frames that waited may go.
    fn begin(&mut self, role: Role, a: &Nonce, b: &Nonce) {
        self.peer = PeerState::Ready;
        if matches!(self.stream, Stream::Tcp(_)) {
            self.seal = Some(Seal::new(&self.token, role, a, b));
        }
        let mut waiting = Frames::default();
        waiting.feed(&std::mem::take(&mut self.waiting));
        while let Ok(Some(body)) = waiting.next_frame() {
            self.queue(&body);
        }
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
                        if let PeerState::Connects { established, until, .. } = &mut self.peer
                            && !std::mem::replace(established, true)
                        {
                            *until = Instant::now() + Duration::from_millis(HELLO_MS_MAX);
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
        self.check_time();
    }

    /// Ends a connection whose peer has not proved itself in time.
    pub fn check_time(&mut self) {
        if self.must_prove_until().is_some_and(|until| Instant::now() > until) {
            self.fail(if self.is_established() {
                "the peer did not prove within 5 s that it knows the token"
            } else {
                "the address does not answer"
            });
        }
    }

    /// Reads the socket once. `true` at end of stream.
    fn read_socket(&mut self) -> bool {
        // At most one buffer per call, so that a peer that never stops writing cannot keep this thread.
        let read = match &mut self.peer {
            PeerState::Ready => READ_BUFFER.with_borrow_mut(|buffer| {
                buffer.clear();
                let read = self.stream.read_into(buffer);
                if !self.receives_from_memory {
                    self.frames.feed(buffer); // otherwise wake-up bytes
                }
                read
            }),
            peer => {
                let mut buffer = [0; HELLO_READ_BYTES];
                let read = match peer {
                    PeerState::Accepts { file, .. } => self.stream.read_with_file(&mut buffer, file),
                    _ => self.stream.read(&mut buffer),
                };
                if let Ok(n) = read {
                    self.frames.feed(buffer.get(..n).unwrap_or_default());
                }
                read
            }
        };
        match read {
            Ok(0) => return true,
            Ok(_) => {}
            Err(e) => {
                self.should_retry_later(&e);
            }
        }
        false
    }

    /// Handles a frame of a peer that has not proved itself.
    fn on_hello(&mut self, frame: &[u8]) -> Result<(), Malformed> {
        let nonce = |bytes: &[u8]| Nonce::try_from(bytes).map_err(|_| Malformed(NOT_LINKWISE));
        match &mut self.peer {
            PeerState::Ready => {}
            PeerState::Accepts { until, intra_node, file } => {
                let a = nonce(frame.strip_prefix(MAGIC).ok_or(Malformed(NOT_LINKWISE))?)?;
                let b = auth::nonce().map_err(|_| Malformed("the kernel gives no random numbers"))?;
                let proof = auth::proof(&self.token, Role::Accepts, &a, &b);
                self.peer = PeerState::Challenged { a, b, until: *until, intra_node: *intra_node, file: file.take() };
                frame::append(&mut self.unsent, &[MAGIC.as_slice(), &b, &proof].concat());
                self.flush();
            }
            PeerState::Connects { nonce: a, .. } => {
                let a = *a;
                let rest = frame.strip_prefix(MAGIC).ok_or(Malformed(NOT_LINKWISE))?;
                let (b, said) = rest.split_at_checked(NONCE_BYTES).ok_or(Malformed(NOT_LINKWISE))?;
                let b = nonce(b)?;
                if !auth::is_proof(said, &self.token, Role::Accepts, &a, &b) {
                    return Err(Malformed(WRONG_TOKEN));
                }
                let proof = auth::proof(&self.token, Role::Connects, &a, &b);
                frame::append(&mut self.unsent, &proof);
                self.begin(Role::Connects, &a, &b);
            }
            PeerState::Challenged { a, b, intra_node, file, .. } => {
                let (a, b) = (*a, *b);
                if !auth::is_proof(frame, &self.token, Role::Connects, &a, &b) {
                    return Err(Malformed(WRONG_TOKEN));
                }
                let file = file.take().filter(|_| *intra_node == IntraNodeTransport::SharedMemory);
                self.begin(Role::Accepts, &a, &b);
                if let Some(file) = file.filter(|_| self.stream.is_same_user() == Some(true)) {
                    self.accept_memory(&file);
                }
            }
        }
        Ok(())
    }

    /// The next frame from the socket.
    fn next_frame(&mut self) -> Result<Option<Vec<u8>>, Malformed> {
        if self.receives_from_memory {
            return Ok(None);
        }
        while !self.is_ready() {
            let Some(frame) = self.frames.next_frame_up_to(HELLO_BYTES_MAX).map_err(|_| Malformed(NOT_LINKWISE))?
            else {
                return Ok(None);
            };
            self.on_hello(&frame)?;
        }
        let Some(mut frame) = self.frames.next_frame_up_to(FRAME_BYTES_MAX + TAG_BYTES)? else { return Ok(None) };
        if let Some(seal) = &mut self.seal {
            let body = seal.open(&frame).ok_or(Malformed("a frame was changed on its way"))?;
            frame.truncate(body.len());
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

    /// Bytes wait for room in the socket, so the caller must [`flush`](Link::flush) once it is writable.
    pub fn wants_writable(&self) -> bool {
        self.has_unsent() && self.send_path != SendPath::SharedMemory
    }

    /// Closes the sending direction. Bytes already sent still arrive.
    pub fn finish(&mut self) {
        self.flush();
        self.stream.finish();
    }

    /// True if this side has nothing to do until its socket becomes readable. The caller then waits, and calls
    /// [`cancel_sleep`](Link::cancel_sleep).
    pub fn prepare_to_sleep(&self) -> bool {
        let memory =
            self.memory.as_ref().filter(|_| self.receives_from_memory || self.send_path == SendPath::SharedMemory);
        memory.is_none_or(|m| m.prepare_to_sleep(self.send_path == SendPath::SharedMemory && self.has_unsent()))
    }
}

impl Link {
    /// The caller no longer sleeps.
    pub fn cancel_sleep(&self) {
        self.memory.iter().for_each(|m| m.cancel_sleep());
    }
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
        let flags = if l.wants_writable() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        PollFd::from_borrowed_fd(l.stream.fd(), flags)
    }));
    let timeout = if links.iter().all(|l| l.prepare_to_sleep()) { timeout } else { Duration::ZERO };
    let timeout = Timespec { tv_sec: timeout.as_secs().min(3600) as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    let _ = rustix::event::poll(&mut fds, Some(&timeout));
    links.iter().for_each(|l| l.cancel_sleep());
}
