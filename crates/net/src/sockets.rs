//! TCP sockets bound to a rail. Every socket of the process is in a table, so that a forked child can close its copies: otherwise a child would hold
//! the connections of a parent that was killed.

use crate::handle::RailAddress;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// Send buffer, bytes; the kernel doubles it. Small, so that few bytes are committed to a rail that turns out slow.
const SEND_BUFFER_BYTES: usize = 128 << 10;
/// Time after which a path whose peer's host answers nothing is broken, milliseconds, if bytes wait for an acknowledgement. A stopped process does not
/// matter: its kernel answers.
const SILENT_HOST_MS: u32 = 12_000;
/// An idle path asks its peer's kernel for a sign of life after this time and at this interval, seconds. Linux looks at [`SILENT_HOST_MS`] only at
/// these moments, and counts unacknowledged bytes from the first repetition, about 0.2 s later.
const KEEP_ALIVE_S: u32 = 3;
/// The longest time until a silent host has broken a path, microseconds.
pub(crate) const SILENT_HOST_US_MAX: u64 = SILENT_HOST_MS as u64 * 1_000 + KEEP_ALIVE_S as u64 * 1_000_000;
/// Sockets that a forked child closes; further ones stay open there.
const TABLE: usize = 8192;

static OPEN: [AtomicI32; TABLE] = [const { AtomicI32::new(-1) }; TABLE];

/// Sockets that are open now. For a forked child: reads atomics only.
pub fn open_sockets() -> impl Iterator<Item = RawFd> {
    OPEN.iter().map(|s| s.load(Ordering::Relaxed)).filter(|fd| *fd >= 0)
}

/// A socket that is in the table.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    entry: Option<usize>,
}

impl Socket {
    pub fn new(fd: OwnedFd) -> Self {
        let raw = fd.as_raw_fd();
        let from = raw.unsigned_abs() as usize % TABLE;
        let free = |i: &usize| {
            OPEN.get(*i).is_some_and(|e| e.compare_exchange(-1, raw, Ordering::Relaxed, Ordering::Relaxed).is_ok())
        };
        let entry = (from..TABLE).chain(0..from).find(free);
        Socket { fd, entry }
    }

    /// Connects without blocking from an address of this host. The first write that does not report `WouldBlock` shows that it is connected.
    pub fn dial(from: IpAddr, to: SocketAddr) -> io::Result<Self> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        let socket = Socket::new(fd);
        rustix::net::bind(&socket, &SocketAddr::new(from, 0))?;
        socket.set_options()?;
        match rustix::net::connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
            Err(e) => Err(e.into()),
        }
    }

    fn set_options(&self) -> io::Result<()> {
        sockopt::set_tcp_nodelay(self, true)?;
        sockopt::set_socket_send_buffer_size(self, SEND_BUFFER_BYTES)?;
        sockopt::set_socket_keepalive(self, true)?;
        let pause = std::time::Duration::from_secs(u64::from(KEEP_ALIVE_S));
        sockopt::set_tcp_keepidle(self, pause)?;
        sockopt::set_tcp_keepintvl(self, pause)?;
        sockopt::set_tcp_keepcnt(self, SILENT_HOST_MS / 1_000 / KEEP_ALIVE_S)?;
        Ok(sockopt::set_tcp_user_timeout(self, SILENT_HOST_MS)?)
    }

    /// The error of a connection attempt.
    pub fn error(&self) -> Option<io::Error> {
        match sockopt::socket_error(self) {
            Ok(Ok(())) => None,
            Ok(Err(e)) | Err(e) => Some(e.into()),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Before the descriptor is closed: its number may be given out again.
        if let Some(e) = self.entry.and_then(|i| OPEN.get(i)) {
            e.store(-1, Ordering::Relaxed);
        }
    }
}

/// Listens on a rail at a free port.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: Socket,
    pub address: RailAddress,
}

/// Connections that may wait to be accepted; the kernel cuts this to its own limit.
const WAITING_MAX: i32 = 4096;

impl Listener {
    pub fn bind(ip: IpAddr, prefix: u8) -> io::Result<Self> {
        let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = Socket::new(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?);
        rustix::net::bind(&socket, &SocketAddr::new(ip, 0))?;
        rustix::net::listen(&socket, WAITING_MAX)?;
        let port = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?.port();
        Ok(Listener { socket, address: RailAddress { ip, prefix, port } })
    }

    /// The next pending connection, if any.
    pub fn accept(&self) -> io::Result<Option<Socket>> {
        match rustix::net::accept_with(&self.socket, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok(fd) => {
                let socket = Socket::new(fd);
                socket.set_options()?;
                Ok(Some(socket))
            }
            Err(Errno::AGAIN) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
