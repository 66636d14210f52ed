//! Sockets: TCP between hosts, abstract Unix sockets inside one (they leave no file behind). Never blocking.

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

    /// The next connection that waits, if any. An error where there are too many open files, for instance.
    pub(crate) fn accept(&self) -> io::Result<Option<Stream>> {
        let accepted = match self {
            Listener::Tcp(l) => l.accept().map(|(s, _)| Stream::Tcp(s)),
            Listener::Local(l) => l.accept().map(|(s, _)| Stream::Local(s)),
        };
        match accepted {
            Ok(stream) => stream.prepared().map(Some),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// For [`wait`](crate::link::wait).
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(l) => l.as_fd(),
            Listener::Local(l) => l.as_fd(),
        }
    }
}

/// How many files this process may have open, sockets included; `None` where there is no limit.
pub fn files_max() -> Option<usize> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current.and_then(|n| n.try_into().ok())
}

/// A connected socket, or a TCP one that is being connected: what is written before waits.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Local(UnixStream),
}

impl Stream {
    /// Never waits. A local socket answers at once (an error where the other side's queue is full), TCP at once or later: then the first write
    /// that does not ask to wait says that it has.
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
        stream.prepared()
    }

    fn prepared(self) -> io::Result<Self> {
        match &self {
            Stream::Tcp(s) => {
                s.set_nonblocking(true)?;
                s.set_nodelay(true)?;
            }
            Stream::Local(s) => s.set_nonblocking(true)?,
        }
        Ok(self)
    }

    /// The own address on a TCP connection: what the peer's network reaches us at.
    pub(crate) fn own_ip(&self) -> Option<IpAddr> {
        match self {
            Stream::Tcp(s) => s.local_addr().ok().map(|a| a.ip()),
            Stream::Local(_) => None,
        }
    }

    /// True where the other side is a process of this user on this host.
    pub(crate) fn is_of_this_user(&self) -> bool {
        match self {
            Stream::Tcp(_) => false,
            Stream::Local(s) => {
                rustix::net::sockopt::socket_peercred(s).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
            }
        }
    }

    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(s) => s.read(buffer),
            Stream::Local(s) => s.read(buffer),
        }
    }

    /// Also takes a file that comes with the bytes; at most one, the kernel closes others.
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

    /// Without SIGPIPE, which would end a host program that does not ignore it.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(self.fd(), bytes, SendFlags::NOSIGNAL)?)
    }

    /// Hands a file over with the bytes.
    pub(crate) fn write_with_file(&self, bytes: &[u8], file: BorrowedFd<'_>) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let files = [file];
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
        Ok(rustix::net::sendmsg(self.fd(), &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?)
    }

    /// Nothing more will be written.
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
