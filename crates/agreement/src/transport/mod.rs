//! Transport of announcements and messages between the processes of a job.

mod background;
mod connections;
mod folder;
pub mod packet;
mod register;
mod rendezvous;
mod sockets;

pub use background::Background;
pub use connections::UNAUTHENTICATED_MAX;
pub use folder::Folder;
pub use sockets::Sockets;
pub use wire::IntraNodeTransport;
pub use wire::link::TOKEN_BYTES_MAX;

use crate::roster::{Announcement, Disagreement, ProcessId, Roster};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Limit on notes that wait to be taken.
const NOTES_MAX: usize = 16;

/// The place where the processes of a job find each other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Rendezvous {
    /// An abstract Unix socket, for jobs on one host. At most 80 bytes.
    Local(String),
    /// A TCP port at which one of the processes listens, for jobs on several hosts.
    Tcp {
        /// Name or IP address.
        host: String,
        port: u16,
    },
    /// A folder that all processes share, for instance on a network file system. Absolute.
    Folder(PathBuf),
}

impl fmt::Display for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rendezvous::Local(n) => write!(f, "local:{n}"),
            Rendezvous::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Rendezvous::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
            Rendezvous::Folder(p) => write!(f, "folder:{}", p.display()),
        }
    }
}

impl FromStr for Rendezvous {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is not a rendezvous; write local:NAME, tcp:HOST:PORT or folder:PATH");
        match text.split_once(':').ok_or_else(bad)? {
            ("local", n) if !n.is_empty() && n.len() <= 80 && !n.contains('\0') => Ok(Rendezvous::Local(n.into())),
            ("folder", p) if p.starts_with('/') && !p.contains('\0') => Ok(Rendezvous::Folder(p.into())),
            ("folder", _) => Err(format!("`{text}`: the folder's path must begin with /")),
            ("tcp", at) => {
                let (host, port) = at.rsplit_once(':').ok_or_else(bad)?;
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let port = port.parse().ok().filter(|p| *p > 0).ok_or_else(bad)?;
                if host.is_empty() || host.len() > 255 || host.contains('\0') {
                    return Err(bad());
                }
                Ok(Rendezvous::Tcp { host: host.into(), port })
            }
            _ => Err(bad()),
        }
    }
}

/// An event that [`Endpoint::poll`] reports.
#[derive(Debug, Clone, PartialEq)]
pub enum TransportEvent {
    /// All ranks of a communicator have announced themselves.
    Complete(Roster),
    /// The ranks of a communicator cannot agree: it stays at AUTO.
    Disagreed { comm: u64, reason: Disagreement },
    /// A message of another process.
    Message { from: ProcessId, body: Vec<u8> },
}

/// One process's end of the job's channel. Only [`poll`](Endpoint::poll) blocks. Messages may be lost when a connection breaks; a sender that needs
/// an answer repeats its message.
pub trait Endpoint: Send {
    /// Announces a rank of this process. Call it once per rank; the endpoint repeats the announcement as needed.
    fn announce(&mut self, announcement: Announcement);

    /// Withdraws this process's announcements for a communicator.
    fn forget(&mut self, comm: u64);

    /// Sends a message to a process of a roster.
    fn send(&mut self, to: ProcessId, body: &[u8]);

    /// Waits at most `timeout` for activity and appends the events to `events`.
    fn poll(&mut self, timeout: Duration, events: &mut Vec<TransportEvent>);

    /// Lines for the log, each reported once.
    fn notes(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// Sends the queued messages and closes, within the deadline.
    fn close(&mut self, deadline: Duration);
}
