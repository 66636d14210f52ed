//! A connection that carries frames: over a socket or, inside a host, through shared memory.
//!
//! It begins with a hello from the side that connects: a magic number and the token of the job. Whoever does not say it within
//! [`HELLO_MS_MAX`] is dropped, and nothing else that it says is read. A hello that comes with a file offers shared memory ([`Memory`]):
//!
//! ```text
//! A  hello + file ──────────► B  checks and maps it; sends an empty frame: "what follows comes through the memory"
//! A  maps nothing new  ◄───── B  (or uses the socket on: nothing else changes)
//! A  an empty frame ────────► B
//! ```
//!
//! From then on the socket carries only bells (bytes that wake who waits for the socket) and the news of the other side's end. Memory that says
//! what cannot be ends the connection with [`Link::why`]; its owner connects again without memory.

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

/// How long a new connection may take to say who it is.
pub const HELLO_MS_MAX: u64 = 5_000;
/// Longest token.
pub const TOKEN_BYTES_MAX: usize = 256;
/// Unsent bytes of one connection; a peer that does not read for so long is dropped.
pub const BACKLOG_BYTES_MAX: usize = 16 << 20;
/// Words of each direction's ring in shared memory: 64 KiB, six proposals of the largest common kind.
pub const RING_WORDS: usize = 8192;
/// Words of one connection's shared memory: whole pages.
pub const MEMORY_WORDS: usize = Pipe::<Memory>::words_of(RING_WORDS).next_multiple_of(512);
/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;
/// "linkwise" and the version of the protocol.
const MAGIC: &[u8; 8] = b"lnkwise2";
/// "What follows comes through the memory."
const EMPTY_FRAME: [u8; HEADER_BYTES] = [0; HEADER_BYTES];

/// How bytes travel between processes of one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Inside {
    /// Through the local socket.
    #[default]
    Socket,
    /// Through shared memory, where the other side takes it; the socket wakes.
    Memory,
}

/// Who the other side is.
#[derive(Debug)]
enum Other {
    /// It was connected to, or said the token.
    Known,
    /// It is being connected to.
    Awaited { until: Instant },
    /// It has to say the token first.
    Stranger { token: Vec<u8>, until: Instant, inside: Inside, file: Option<OwnedFd> },
}

/// Where unsent bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Socket,
    /// First so many bytes of an empty frame.
    Switching(usize),
    Memory,
}

/// See the module.
#[derive(Debug)]
pub struct Link {
    stream: Stream,
    other: Other,
    frames: Frames,
    unsent: Vec<u8>,
    sent: usize,
    memory: Option<Pipe<Memory>>,
    out: Way,
    /// Both sides hold the memory: go over to it when what is unsent has gone.
    switch: bool,
    /// What comes comes through the memory.
    in_memory: bool,
    broken: Option<Cow<'static, str>>,
}

impl Link {
    fn new(stream: Stream, other: Other) -> Self {
        Link {
            stream,
            other,
            frames: Frames::default(),
            unsent: Vec::new(),
            sent: 0,
            memory: None,
            out: Way::Socket,
            switch: false,
            in_memory: false,
            broken: None,
        }
    }

    /// Connects and says the token. Does not wait: a TCP connection that is not there after `patience` is broken.
    pub fn connect(address: &Address, token: &[u8], patience: Duration, inside: Inside) -> io::Result<Self> {
        let stream = Stream::connect(address)?;
        let other = match &stream {
            Stream::Tcp(_) => Other::Awaited { until: Instant::now() + patience },
            Stream::Local(_) => Other::Known,
        };
        let mut link = Link::new(stream, other);
        let mut hello = Vec::new();
        frame::append(&mut hello, &[MAGIC, token].concat());
        if inside == Inside::Memory && matches!(address, Address::Local(_)) && link.offer(&hello)? {
            return Ok(link);
        }
        link.unsent = hello;
        link.flush();
        // TCP inside a host refuses at once.
        if link.is_broken() { Err(ErrorKind::ConnectionRefused.into()) } else { Ok(link) }
    }

    /// The hello, with memory. `false`: no memory can be had here.
    fn offer(&mut self, hello: &[u8]) -> io::Result<bool> {
        let Ok(mut memory) = Memory::new(MEMORY_WORDS) else { return Ok(false) };
        let Some(file) = memory.file() else { return Ok(false) };
        // Nothing was sent before: there is room for a hello, or something is wrong.
        if self.stream.write_with_file(hello, file)? != hello.len() {
            return Err(ErrorKind::WriteZero.into());
        }
        memory.close_file();
        self.memory = Pipe::new(memory, Side::A, RING_WORDS);
        Ok(true)
    }

    /// The next connection that waits at a listener, if any. It has said nothing yet. `inside`: whether memory is taken that it offers. An error
    /// where there are too many open files, for instance: the listener will call again at once.
    pub fn accept(at: &Listener, token: &[u8], inside: Inside) -> io::Result<Option<Self>> {
        let until = Instant::now() + Duration::from_millis(HELLO_MS_MAX);
        let stranger = || Other::Stranger { token: token.to_vec(), until, inside, file: None };
        Ok(at.accept()?.map(|stream| Link::new(stream, stranger())))
    }

    /// The own address on a TCP connection: what the peer's network reaches us at.
    pub fn own_ip(&self) -> Option<std::net::IpAddr> {
        self.stream.own_ip()
    }

    /// The other side is there and, where it has to, has said the token.
    pub fn is_known(&self) -> bool {
        matches!(self.other, Other::Known)
    }

    /// Frames go both ways through shared memory.
    pub fn is_in_memory(&self) -> bool {
        self.in_memory && self.out == Way::Memory
    }

    /// Memory was offered or taken, whether or not it carries frames yet.
    pub fn has_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// No use any more.
    pub fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Why it is broken.
    pub fn why(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    fn fail(&mut self, why: impl Into<Cow<'static, str>>) {
        self.broken.get_or_insert(why.into());
    }

    /// Ends it for a reason of its owner's.
    pub fn drop_because(&mut self, why: &'static str) {
        self.fail(why);
    }

    /// Queues a frame and sends what goes without waiting. A frame that is too long, or a peer that does not read, breaks the connection.
    pub fn send(&mut self, body: &[u8]) {
        if self.is_broken() {
            return;
        }
        let room = BACKLOG_BYTES_MAX.saturating_sub(self.unsent.len() - self.sent);
        if body.is_empty() || body.len() > FRAME_BYTES_MAX {
            return self.fail("a frame is too long, or empty");
        }
        if room < body.len() + HEADER_BYTES {
            return self.fail("the other side does not read");
        }
        frame::append(&mut self.unsent, body);
        self.flush();
    }

    /// Sends what goes without waiting.
    pub fn flush(&mut self) {
        let mut wrote = false;
        while !self.is_broken() {
            let rest = self.unsent.get(self.sent..).unwrap_or_default();
            let done = rest.is_empty();
            match self.out {
                Way::Socket if done && self.switch => self.out = Way::Switching(HEADER_BYTES),
                Way::Socket | Way::Memory if done => break,
                Way::Switching(0) => self.out = Way::Memory,
                Way::Switching(n) => match self.stream.write(EMPTY_FRAME.get(..n).unwrap_or_default()) {
                    Ok(wrote) => self.out = Way::Switching(n - wrote),
                    Err(e) if self.must_wait(&e) => break,
                    Err(_) => {}
                },
                Way::Socket => match self.stream.write(rest) {
                    Ok(0) => self.fail("the other side is gone"),
                    Ok(wrote) => {
                        self.sent += wrote;
                        if matches!(self.other, Other::Awaited { .. }) {
                            self.other = Other::Known;
                        }
                    }
                    Err(e) if self.must_wait(&e) => break,
                    Err(_) => {}
                },
                Way::Memory => match self.memory.as_mut().map_or(Ok(0), |m| m.write(rest)) {
                    Ok(0) => break,
                    Ok(n) => (wrote, self.sent) = (true, self.sent + n),
                    Err(e) => self.fail(e.to_string()),
                },
            }
        }
        if wrote && self.memory.as_ref().is_some_and(|m| m.must_ring_for_bytes()) {
            self.ring();
        }
        if self.sent == self.unsent.len() {
            self.unsent.clear();
            self.sent = 0;
        } else if self.sent > 1 << 20 {
            self.unsent.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// After an error on the socket: whether to try again later (else: at once, or never, if it is broken now).
    fn must_wait(&mut self, e: &io::Error) -> bool {
        match e.kind() {
            ErrorKind::WouldBlock => return true,
            ErrorKind::Interrupted => {}
            _ => self.fail("the other side is gone"),
        }
        false
    }

    /// Wakes the other side. Where the socket is full of bells one more changes nothing.
    fn ring(&mut self) {
        if let Err(e) = self.stream.write(&[1]) {
            self.must_wait(&e);
        }
    }

    /// Reads what is there; frames go to `got`. A peer that is gone, says nonsense or does not know the token breaks the connection.
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
        if self.in_memory && !self.is_broken() {
            // All of a ring at most: a peer that never stops must not keep us.
            let mut bytes = Vec::new();
            match self.memory.as_mut().map_or(Ok(0), |m| m.read(&mut bytes)) {
                Ok(0) => {}
                Ok(_) if self.memory.as_ref().is_some_and(|m| m.must_ring_for_room()) => self.ring(),
                Ok(_) => {}
                Err(e) => self.fail(e.to_string()),
            }
            self.frames.feed(&bytes);
            while let Ok(Some(body)) = self.frames.next_frame().map_err(|e| self.fail(e.0)) {
                got(body);
            }
        }
        if end {
            self.fail("the other side is gone");
        }
        match &self.other {
            Other::Stranger { until, .. } if Instant::now() > *until => self.fail("it did not say the token in time"),
            Other::Awaited { until } if Instant::now() > *until => self.fail("it does not answer"),
            _ => {}
        }
    }

    /// True at its end.
    fn read_socket(&mut self) -> bool {
        let mut buffer = [0u8; READ_BYTES];
        // One buffer a turn: a peer that never stops must not keep us.
        let read = match &mut self.other {
            Other::Stranger { file, .. } => self.stream.read_with_file(&mut buffer, file),
            _ => self.stream.read(&mut buffer),
        };
        match read {
            Ok(0) => return true,
            Ok(_) if self.in_memory => {} // bells
            Ok(n) => self.frames.feed(buffer.get(..n).unwrap_or_default()),
            Err(e) => {
                self.must_wait(&e);
            }
        }
        false
    }

    /// The next frame that came over the socket.
    fn next_frame(&mut self) -> Result<Option<Vec<u8>>, Malformed> {
        if self.in_memory {
            return Ok(None);
        }
        let hello = MAGIC.len() + TOKEN_BYTES_MAX;
        let most = if matches!(self.other, Other::Stranger { .. }) { hello } else { FRAME_BYTES_MAX };
        let Some(frame) = self.frames.next_frame_up_to(most)? else { return Ok(None) };
        if let Other::Stranger { token, inside, file, .. } = &mut self.other {
            let said = frame.strip_prefix(MAGIC).ok_or(Malformed("no hello"))?;
            if !same(said, token) {
                return Err(Malformed("another token"));
            }
            let file = file.take().filter(|_| *inside == Inside::Memory);
            self.other = Other::Known;
            if let Some(file) = file.filter(|_| self.stream.is_of_this_user()) {
                self.take_memory(&file);
            }
            return self.next_frame();
        }
        if !frame.is_empty() {
            return Ok(Some(frame));
        }
        if self.memory.is_none() {
            return Err(Malformed("an empty frame"));
        }
        self.in_memory = true;
        self.switch = true;
        self.frames = Frames::default(); // what else came are bells
        self.flush();
        Ok(None)
    }

    /// Memory that is not fit is not used: the socket does as well.
    fn take_memory(&mut self, file: &OwnedFd) {
        let memory = Memory::of_peer(file.as_fd(), MEMORY_WORDS).ok();
        self.memory = memory.and_then(|m| Pipe::new(m, Side::B, RING_WORDS));
        self.switch = self.memory.is_some();
        self.flush();
    }

    /// Something waits to be sent.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Says that nothing more will come; what was sent still arrives.
    pub fn finish(&mut self) {
        self.flush();
        self.stream.finish();
    }

    /// Whether there is nothing to do until the socket says something.
    fn may_sleep(&self) -> bool {
        let memory = self.memory.as_ref().filter(|_| self.in_memory || self.out == Way::Memory);
        memory.is_none_or(|m| m.may_sleep(self.out == Way::Memory && self.has_unsent()))
    }
}

/// Compared in time that does not depend on where they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |d, (x, y)| d | (x ^ y)) == 0
}

/// Waits until one of them has something to read (or, of those with unsent bytes, room to write), but not longer than `most`.
pub fn wait<'a>(listeners: impl Iterator<Item = &'a Listener>, links: impl Iterator<Item = &'a Link>, most: Duration) {
    let mut fds: Vec<PollFd<'_>> = listeners.map(|l| PollFd::from_borrowed_fd(l.fd(), PollFlags::IN)).collect();
    let links: Vec<&Link> = links.filter(|l| !l.is_broken()).collect();
    fds.extend(links.iter().map(|l| {
        let unsent = l.has_unsent() && l.out != Way::Memory;
        let flags = if unsent { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        PollFd::from_borrowed_fd(l.stream.fd(), flags)
    }));
    let most = if links.iter().all(|l| l.may_sleep()) { most } else { Duration::ZERO };
    let timeout = Timespec { tv_sec: most.as_secs().min(3600) as i64, tv_nsec: i64::from(most.subsec_nanos()) };
    let _ = rustix::event::poll(&mut fds, Some(&timeout));
    links.iter().filter_map(|l| l.memory.as_ref()).for_each(|m| m.awake());
}
