//! Non-blocking sockets: TCP between hosts, abstract Unix sockets within a host (they leave no file behind).

use crate::Address;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::time::Duration;

/// Time after which a TCP connection whose peer's host answers nothing is broken. A process that is stopped does not matter: its kernel answers.
pub const SILENT_HOST_MAX: Duration = Duration::from_secs(2);
/// Idle time before the kernel asks whether the peer's host is there, and the interval of its questions.
const KEEP_ALIVE: Duration = Duration::from_secs(1);

/// Lets the kernel notice within seconds that the peer's host or the network is gone; by default it takes 15 minutes, or hours when idle.
fn keep_alive(s: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(s, true)?;
    sockopt::set_tcp_keepidle(s, KEEP_ALIVE)?;
    sockopt::set_tcp_keepintvl(s, KEEP_ALIVE)?;
    sockopt::set_tcp_keepcnt(s, 3)?;
    Ok(sockopt::set_tcp_user_timeout(s, SILENT_HOST_MAX.as_millis() as u32)?)
}

#[derive(Debug)]
pub enum Listener {
    /// Connections from any host.
    Tcp(TcpListener),
    /// Connections from this host.
    Local(UnixListener),
}

impl Listener {
    /// Listens at an address; port 0 selects a free port. Fails at once if the address is taken.
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

    /// The TCP port; `None` for a local socket.
    pub fn port(&self) -> Option<u16> {
        match self {
            Listener::Tcp(l) => l.local_addr().ok().map(|a| a.port()),
            Listener::Local(_) => None,
        }
    }

    /// The next pending connection, if any. Fails for instance when too many files are open.
    pub(crate) fn accept(&self) -> io::Result<Option<Stream>> {
        let accepted = match self {
            Listener::Tcp(l) => l.accept().map(|(s, _)| Stream::Tcp(s)),
            Listener::Local(l) => l.accept().map(|(s, _)| Stream::Local(s)),
        };
        match accepted {
            Ok(stream) => stream.with_options().map(Some),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock) => Ok(None),
            Err(e) => Err(e),
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(l) => l.as_fd(),
            Listener::Local(l) => l.as_fd(),
        }
    }
}

/// Limit on open files of this process, sockets included (the soft `RLIMIT_NOFILE`); `None` if there is no limit.
pub fn open_files_max() -> Option<usize> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.and_then(|n| n.try_into().ok())
}

/// A connected socket, or a TCP socket that is being connected; until then writes report `WouldBlock`.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Local(UnixStream),
}

impl Stream {
    /// Connects without blocking. A local socket connects or fails at once (it fails if the listener's queue is full). A TCP socket may connect
    /// later: the first write that does not report `WouldBlock` shows that it has.
    pub(crate) fn connect(address: &Address) -> io::Result<Self> {
        let socket = |family| {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            rustix::net::socket_with(family, SocketType::STREAM, flags, None)
        };
        let stream = match address {
            Address::Tcp(a) => {
                let fd = socket(if a.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 })?;
                match rustix::net::connect(&fd, a) {
                    Ok(()) | Err(Errno::INPROGRESS) => Stream::Tcp(fd.into()),
                    Err(e) => return Err(e.into()),
                }
            }
            Address::Local(n) => {
                let fd = socket(AddressFamily::UNIX)?;
                rustix::net::connect(&fd, &SocketAddrUnix::new_abstract_name(n.as_bytes())?)?;
                Stream::Local(fd.into())
            }
        };
        stream.with_options()
    }

    fn with_options(self) -> io::Result<Self> {
        match &self {
            Stream::Tcp(s) => {
                s.set_nonblocking(true)?;
                s.set_nodelay(true)?;
                keep_alive(s)?;
            }
            Stream::Local(s) => s.set_nonblocking(true)?,
        }
        Ok(self)
    }

    /// This side's address on a TCP connection: the address at which the peer's network reaches this host.
    pub(crate) fn local_ip(&self) -> Option<IpAddr> {
        match self {
            Stream::Tcp(s) => s.local_addr().ok().map(|a| a.ip()),
            Stream::Local(_) => None,
        }
    }

    /// Whether the peer of a local socket is a process of this user; on the side that connects, the process that listens. `None` over TCP, where the
    /// kernel does not say.
    pub(crate) fn is_same_user(&self) -> Option<bool> {
        match self {
            Stream::Tcp(_) => None,
            Stream::Local(s) => {
                Some(rustix::net::sockopt::socket_peercred(s).is_ok_and(|peer| peer.uid == rustix::process::geteuid()))
            }
        }
    }

    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(s) => s.read(buffer),
            Stream::Local(s) => s.read(buffer),
        }
    }

    /// Appends what the socket holds, at most the vector's spare room. Zeroes nothing.
    pub(crate) fn read_into(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        Ok(rustix::io::read(self.fd(), rustix::buffer::spare_capacity(buffer))?)
    }

    /// Reads bytes and the file descriptor sent with them, at most one; the kernel closes others.
    pub(crate) fn read_with_file(&mut self, buffer: &mut [u8], file: &mut Option<OwnedFd>) -> io::Result<usize> {
        let Stream::Local(s) = self else { return self.read(buffer) };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(buffer)];
        let read = rustix::net::recvmsg(s, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                files.for_each(|f| *file = Some(f));
            }
        }
        Ok(read.bytes)
    }

    /// Writes without SIGPIPE, which would end a host program that does not ignore it.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(self.fd(), bytes, SendFlags::NOSIGNAL)?)
    }

    /// Writes bytes with a file descriptor attached.
    pub(crate) fn write_with_file(&self, bytes: &[u8], file: BorrowedFd<'_>) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let files = [file];
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
        Ok(rustix::net::sendmsg(self.fd(), &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?)
    }

    /// Closes the sending direction.
    pub(crate) fn finish(&self) {
        let _ = match self {
            Stream::Tcp(s) => s.shutdown(Shutdown::Write),
            Stream::Local(s) => s.shutdown(Shutdown::Write),
        };
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(s) => s.as_fd(),
            Stream::Local(s) => s.as_fd(),
        }
    }
}
