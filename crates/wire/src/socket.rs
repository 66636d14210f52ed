//! Sockets that carry frames: TCP between hosts, abstract Unix sockets inside one (they leave no file behind). Never blocking: whoever owns
//! them waits in [`wait`], with a deadline.
//!
//! A connection begins with a hello: a magic number and the token of the job, from the side that connects. Whoever does not say it within
//! [`HELLO_MS_MAX`] is dropped, and nothing else that it says is read.

use crate::frame::{self, Frames, HEADER_BYTES};
use crate::{FRAME_BYTES_MAX, Malformed};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::fmt;
use std::io::{self, ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// How long a new connection may take to say who it is.
pub const HELLO_MS_MAX: u64 = 5_000;
/// Unsent bytes of one connection; a peer that does not read for so long is dropped.
pub const BACKLOG_BYTES_MAX: usize = 16 << 20;
/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;
/// "linkwise" and the version of the protocol.
const MAGIC: &[u8; 8] = b"lnkwise1";

/// Where a process listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// Host and port.
    Tcp(SocketAddr),
    /// Name of an abstract Unix socket.
    Local(String),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(a) => write!(f, "tcp:{a}"),
            Address::Local(n) => write!(f, "local:{n}"),
        }
    }
}

impl std::str::FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("tcp", a)) => a.parse().map(Address::Tcp).map_err(|e| format!("`{text}`: {e}")),
            Some(("local", n)) if !n.is_empty() && n.len() <= 100 && !n.contains('\0') => Ok(Address::Local(n.into())),
            _ => Err(format!("`{text}` is not an address; write tcp:HOST:PORT or local:NAME")),
        }
    }
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Local(UnixStream),
}

/// Accepts connections.
#[derive(Debug)]
pub enum Listener {
    /// Between hosts.
    Tcp(TcpListener),
    /// Inside one.
    Local(UnixListener),
}

impl Listener {
    /// Listens at an address; port 0 takes any. Fails at once where somebody else does.
    pub fn bind(address: &Address) -> io::Result<Self> {
        Ok(match address {
            Address::Tcp(a) => {
                let l = TcpListener::bind(a)?;
                l.set_nonblocking(true)?;
                Listener::Tcp(l)
            }
            Address::Local(n) => {
                let l = UnixListener::bind_addr(&UnixAddr::from_abstract_name(n.as_bytes())?)?;
                l.set_nonblocking(true)?;
                Listener::Local(l)
            }
        })
    }

    /// The TCP port, where it is one.
    pub fn port(&self) -> Option<u16> {
        match self {
            Listener::Tcp(l) => l.local_addr().ok().map(|a| a.port()),
            Listener::Local(_) => None,
        }
    }

    /// The next connection that waits, if any. It has said nothing yet.
    pub fn accept(&self, token: &[u8]) -> Option<Link> {
        let stream = match self {
            Listener::Tcp(l) => Stream::Tcp(l.accept().ok()?.0),
            Listener::Local(l) => Stream::Local(l.accept().ok()?.0),
        };
        Link::new(stream, Some((token.to_vec(), Instant::now() + Duration::from_millis(HELLO_MS_MAX)))).ok()
    }

    /// For [`wait`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(l) => l.as_fd(),
            Listener::Local(l) => l.as_fd(),
        }
    }
}

/// A connection that carries frames both ways.
#[derive(Debug)]
pub struct Link {
    stream: Stream,
    frames: Frames,
    unsent: Vec<u8>,
    sent: usize,
    /// The token that must come first, and until when.
    expects: Option<(Vec<u8>, Instant)>,
    broken: bool,
}

impl Link {
    fn new(stream: Stream, expects: Option<(Vec<u8>, Instant)>) -> io::Result<Self> {
        match &stream {
            Stream::Tcp(s) => {
                s.set_nonblocking(true)?;
                s.set_nodelay(true)?;
            }
            Stream::Local(s) => s.set_nonblocking(true)?,
        }
        Ok(Link { stream, frames: Frames::default(), unsent: Vec::new(), sent: 0, expects, broken: false })
    }

    /// Connects, waiting at most `patience` (for TCP; a local socket answers at once), and says the token.
    pub fn connect(address: &Address, token: &[u8], patience: Duration) -> io::Result<Self> {
        let stream = match address {
            Address::Tcp(a) => Stream::Tcp(TcpStream::connect_timeout(a, patience)?),
            Address::Local(n) => Stream::Local(UnixStream::connect_addr(&UnixAddr::from_abstract_name(n.as_bytes())?)?),
        };
        let mut link = Link::new(stream, None)?;
        let mut hello = MAGIC.to_vec();
        hello.extend_from_slice(token);
        link.send(&hello);
        Ok(link)
    }

    /// The own address on a TCP connection: what the peer's network reaches us at.
    pub fn own_ip(&self) -> Option<std::net::IpAddr> {
        match &self.stream {
            Stream::Tcp(s) => s.local_addr().ok().map(|a| a.ip()),
            Stream::Local(_) => None,
        }
    }

    /// Queues a frame and sends what goes without waiting. A frame that is too long, or a peer that does not read, breaks the connection.
    pub fn send(&mut self, body: &[u8]) {
        if self.broken {
            return;
        }
        let room = BACKLOG_BYTES_MAX.saturating_sub(self.unsent.len() - self.sent);
        if room < body.len() + HEADER_BYTES || body.len() > FRAME_BYTES_MAX {
            self.broken = true;
            return;
        }
        frame::append(&mut self.unsent, body);
        self.flush();
    }

    /// Sends what goes without waiting.
    pub fn flush(&mut self) {
        while let Some(rest) = self.unsent.get(self.sent..).filter(|r| !r.is_empty() && !self.broken) {
            let wrote = match &self.stream {
                Stream::Tcp(s) => send_quietly(s, rest),
                Stream::Local(s) => send_quietly(s, rest),
            };
            match wrote {
                Ok(0) => self.broken = true,
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.broken = true,
            }
        }
        if self.sent == self.unsent.len() {
            self.unsent.clear();
            self.sent = 0;
        } else if self.sent > 1 << 20 {
            self.unsent.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Reads what is there; frames go to `got`. A peer that is gone, says nonsense or does not know the token breaks the connection.
    pub fn receive(&mut self, mut got: impl FnMut(Vec<u8>)) {
        let mut buffer = [0u8; READ_BYTES];
        // One buffer a turn: a peer that never stops must not keep us.
        if !self.broken {
            let read = match &mut self.stream {
                Stream::Tcp(s) => s.read(&mut buffer),
                Stream::Local(s) => s.read(&mut buffer),
            };
            match read {
                Ok(0) => self.broken = true,
                Ok(n) => self.frames.feed(buffer.get(..n).unwrap_or_default()),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(_) => self.broken = true,
            }
        }
        while !self.broken {
            match self.next_frame() {
                Ok(Some(body)) => got(body),
                Ok(None) => break,
                Err(_) => {
                    self.broken = true;
                    break;
                }
            }
        }
        if self.expects.as_ref().is_some_and(|(_, until)| Instant::now() > *until) {
            self.broken = true;
        }
    }

    fn next_frame(&mut self) -> Result<Option<Vec<u8>>, Malformed> {
        let Some(frame) = self.frames.next_frame()? else { return Ok(None) };
        let Some((token, _)) = self.expects.take() else { return Ok(Some(frame)) };
        let said = frame.strip_prefix(MAGIC).ok_or(Malformed("no hello"))?;
        if !same(said, &token) {
            return Err(Malformed("another token"));
        }
        self.frames.next_frame()
    }

    /// No use any more.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Something waits to be sent.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Says that nothing more will come; what was sent still arrives.
    pub fn finish(&mut self) {
        self.flush();
        let how = std::net::Shutdown::Write;
        let _ = match &self.stream {
            Stream::Tcp(s) => s.shutdown(how),
            Stream::Local(s) => s.shutdown(how),
        };
    }

    /// For [`wait`].
    pub fn fd(&self) -> BorrowedFd<'_> {
        match &self.stream {
            Stream::Tcp(s) => s.as_fd(),
            Stream::Local(s) => s.as_fd(),
        }
    }
}

/// Without SIGPIPE, which would end a host program that does not ignore it.
fn send_quietly(fd: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::net::send(fd, bytes, rustix::net::SendFlags::NOSIGNAL)?)
}

/// Compared in time that does not depend on where they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |d, (x, y)| d | (x ^ y)) == 0
}

/// Waits until one of them has something to read (or, of those with unsent bytes, room to write), but not longer than `most`.
pub fn wait<'a>(listeners: impl Iterator<Item = &'a Listener>, links: impl Iterator<Item = &'a Link>, most: Duration) {
    let mut fds: Vec<PollFd<'_>> = listeners.map(|l| PollFd::from_borrowed_fd(l.fd(), PollFlags::IN)).collect();
    fds.extend(links.filter(|l| !l.broken).map(|l| {
        let flags = if l.has_unsent() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        PollFd::from_borrowed_fd(l.fd(), flags)
    }));
    let timeout = Timespec { tv_sec: most.as_secs().min(3600) as i64, tv_nsec: i64::from(most.subsec_nanos()) };
    let _ = rustix::event::poll(&mut fds, Some(&timeout));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(token_here: &[u8], token_there: &[u8]) -> (Link, Link) {
        let name = format!("linkwise-test-{}-{:?}", std::process::id(), std::thread::current().id());
        let address = Address::Local(name);
        let listener = Listener::bind(&address).unwrap();
        let out = Link::connect(&address, token_there, Duration::from_secs(1)).unwrap();
        wait(std::iter::once(&listener), std::iter::empty(), Duration::from_secs(1));
        (listener.accept(token_here).unwrap(), out)
    }

    fn all(link: &mut Link) -> Vec<Vec<u8>> {
        let mut got = Vec::new();
        for _ in 0..20 {
            wait(std::iter::empty(), std::iter::once(&*link), Duration::from_millis(5));
            link.receive(|f| got.push(f));
        }
        got
    }

    #[test]
    fn frames_arrive_whole_and_in_order_both_ways() {
        let (mut a, mut b) = pair(b"secret", b"secret");
        let bodies: Vec<Vec<u8>> = (0..10).map(|i| vec![i as u8; i * 1000]).collect();
        for body in &bodies {
            b.send(body);
            a.send(body);
        }
        assert_eq!(all(&mut a), bodies);
        assert_eq!(all(&mut b), bodies);
        drop(b);
        all(&mut a);
        assert!(a.is_broken());
    }

    #[test]
    fn who_does_not_know_the_token_is_dropped_unheard() {
        let (mut a, mut b) = pair(b"secret", b"guess");
        b.send(b"anything");
        assert!(all(&mut a).is_empty());
        assert!(a.is_broken());
    }

    #[test]
    fn a_peer_that_never_reads_is_dropped_at_the_limit() {
        let (mut a, _b) = pair(b"t", b"t");
        let body = vec![0; FRAME_BYTES_MAX];
        for _ in 0..64 {
            a.send(&body);
        }
        assert!(a.is_broken());
    }

    #[test]
    fn addresses_read_back_as_they_are_written() {
        for text in ["tcp:127.0.0.1:80", "tcp:[::1]:80", "local:abc"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for bad in ["", "tcp:", "tcp:host", "local:", "udp:1.2.3.4:5"] {
            assert!(bad.parse::<Address>().is_err(), "{bad}");
        }
    }
}
