//! The board of a host's rails, common to the processes of one user that use the same rails.
//!
//! The first process makes the memory and serves it at an abstract Unix socket, which exists once per network namespace: exactly where rails are
//! common. Later processes fetch it there. When the serving process ends, one of the others serves the same memory. Without a common board a process
//! counts its own bytes only.

use crate::limits::RAILS_MAX;
use crate::rails::{BOARD_WORDS, Board, Cells, private_words};
use crate::sender::Micros;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use wire::memory::Memory;

/// Time that the start of a process may wait for the serving process.
const ANSWER_TIME_MAX: Duration = Duration::from_millis(300);
/// Clients that a process serves.
const CLIENTS_MAX: usize = 256;

/// Words that are shared or private.
#[derive(Debug)]
pub enum BoardWords {
    Shared(Memory),
    Private(Vec<AtomicU64>),
}

impl Cells for BoardWords {
    fn cells(&self) -> &[AtomicU64] {
        match self {
            BoardWords::Shared(m) => m.cells(),
            BoardWords::Private(v) => v,
        }
    }
}

/// The boards of a process.
#[derive(Debug)]
pub(crate) struct Boards {
    /// Of the host's rails.
    pub host: Board<BoardWords>,
    /// Of connections inside this host, which load no rail.
    pub near: Board<BoardWords>,
    pub is_shared: bool,
    name: String,
    file: Option<OwnedFd>,
    role: Mutex<Role>,
}

#[derive(Debug, Default)]
struct Role {
    serves: Option<UnixListener>,
    clients: Vec<UnixStream>,
    server: Option<UnixStream>,
}

fn is_same_user(s: &UnixStream) -> bool {
    rustix::net::sockopt::socket_peercred(s).is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

fn bind(name: &str) -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Connects without waiting: a stranger that holds the name and accepts nothing must not stop the caller.
fn connect(name: &str) -> io::Result<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Fetches the memory of the process that serves.
fn fetch(name: &str) -> io::Result<(UnixStream, OwnedFd, Memory)> {
    let stream = connect(name)?;
    if !is_same_user(&stream) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::net::recvmsg(&stream, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut file = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            files.for_each(|f| file = Some(f));
        }
    }
    let file = file.ok_or(io::ErrorKind::InvalidData)?;
    let memory = Memory::from_peer(file.as_fd(), BOARD_WORDS).map_err(io::Error::other)?;
    stream.set_nonblocking(true)?;
    Ok((stream, file, memory))
}

impl Boards {
    /// Joins or makes the board called `name`; without a name, and when that fails, a private one.
    pub fn open(name: Option<&str>, owner: u64, nominal: [u64; RAILS_MAX], now: Micros) -> Option<Self> {
        let private = || Board::join(BoardWords::Private(private_words()), owner, nominal, now);
        let near = Board::join(BoardWords::Private(private_words()), owner, [0; RAILS_MAX], now)?;
        for _ in 0..3 {
            let Some(name) = name else { break };
            if let Ok(listener) = bind(name) {
                let Ok(memory) = Memory::new(BOARD_WORDS) else { break };
                let file = memory.file().and_then(|f| f.try_clone_to_owned().ok());
                let Some(host) = Board::join(BoardWords::Shared(memory), owner, nominal, now) else { break };
                let role = Role { serves: Some(listener), ..Role::default() };
                return Some(Boards { host, near, is_shared: true, name: name.into(), file, role: Mutex::new(role) });
            }
            if let Ok((stream, file, memory)) = fetch(name) {
                let Some(host) = Board::join(BoardWords::Shared(memory), owner, nominal, now) else { break };
                let role = Role { server: Some(stream), ..Role::default() };
                let (file, role) = (Some(file), Mutex::new(role));
                return Some(Boards { host, near, is_shared: true, name: name.into(), file, role });
            }
        }
        let (host, name) = (private()?, String::new());
        Some(Boards { host, near, is_shared: false, name, file: None, role: Mutex::default() })
    }

    /// What to wait for: the listener if this process serves, the connection to the server otherwise.
    pub fn waits_for(&self, with: impl FnOnce(BorrowedFd<'_>)) {
        let role = crate::shared::lock(&self.role);
        if let Some(fd) = role.serves.as_ref().map(|l| l.as_fd()).or(role.server.as_ref().map(|s| s.as_fd())) {
            with(fd);
        }
    }

    /// Serves clients, or takes over from a server that has ended. True if [`waits_for`](Boards::waits_for) is another one now.
    pub fn on_event(&self) -> bool {
        let mut role = crate::shared::lock(&self.role);
        let Some(file) = &self.file else { return false };
        if let Some(listener) = &role.serves {
            let Ok((stream, _)) = listener.accept() else { return false };
            role.clients.retain(|c| !is_over(c));
            if is_same_user(&stream) && role.clients.len() < CLIENTS_MAX {
                let files = [file.as_fd()];
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut ancillary = SendAncillaryBuffer::new(&mut space);
                ancillary.push(SendAncillaryMessage::ScmRights(&files));
                let _ = rustix::net::sendmsg(&stream, &[IoSlice::new(&[1])], &mut ancillary, SendFlags::NOSIGNAL);
                role.clients.push(stream);
            }
            return false;
        }
        // The server has ended. The first process that binds the name serves; all hold the same memory.
        match bind(&self.name) {
            Ok(listener) => {
                role.server = None;
                role.serves = Some(listener);
            }
            Err(_) => role.server = fetch(&self.name).ok().map(|(stream, _, _)| stream),
        }
        true
    }
}

fn is_over(s: &UnixStream) -> bool {
    let mut byte = [0; 1];
    matches!(rustix::net::recv(s, &mut byte[..], RecvFlags::DONTWAIT | RecvFlags::PEEK), Ok((_, 0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rails::{Rails, View};

    fn name(of: &str) -> String {
        format!("linkwise-net-test-{}-{of}", std::process::id())
    }

    #[test]
    fn a_second_process_fetches_the_board_and_serves_it_when_the_first_ends() {
        let name = name("serve");
        let open = |owner| Boards::open(Some(&name), owner, [0; RAILS_MAX], 1_000).unwrap();
        let a = open(1);
        let b = std::thread::scope(|s| {
            let b = s.spawn(|| open(2));
            while !b.is_finished() {
                a.on_event();
                std::thread::yield_now();
            }
            b.join().unwrap()
        });
        assert!(a.is_shared && b.is_shared);
        View { board: &b.host, others: &[0; RAILS_MAX] }.take(0, 77);
        assert_eq!(a.host.tick(1_001)[0], 77);
        drop(a);
        assert!(b.on_event(), "the server has ended");
        let c = std::thread::scope(|s| {
            let c = s.spawn(|| open(3));
            while !c.is_finished() {
                b.on_event();
                std::thread::yield_now();
            }
            c.join().unwrap()
        });
        assert_eq!(c.host.tick(1_002)[0], 77, "the same memory");
    }

    #[test]
    fn a_process_that_holds_the_name_and_accepts_nothing_stops_no_other() {
        let name = format!("linkwise-net-test-full-{}", std::process::id());
        let _holder = bind(&name).unwrap();
        let waiting: Vec<UnixStream> = std::iter::from_fn(|| connect(&name).ok()).take(100_000).collect();
        assert!(connect(&name).is_err(), "{} connections fill the queue", waiting.len());
        let (done, opened) = std::sync::mpsc::channel();
        std::thread::spawn(move || _ = done.send(Boards::open(Some(&name), 1, [0; RAILS_MAX], 0)));
        let boards = opened.recv_timeout(Duration::from_secs(60)).expect("opening a board does not wait").unwrap();
        assert!(!boards.is_shared);
    }

    #[test]
    fn without_a_name_the_board_is_private() {
        assert!(!Boards::open(None, 1, [0; RAILS_MAX], 0).unwrap().is_shared);
    }
}
