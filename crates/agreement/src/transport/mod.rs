//! How announcements and messages get to the other processes of the job.

mod folder;
mod links;
pub mod packet;
mod places;
mod register;
mod sockets;

pub use folder::Folder;
pub use links::STRANGERS_MAX;
pub use sockets::Sockets;
pub use wire::Inside;
pub use wire::link::TOKEN_BYTES_MAX;

use crate::roster::{Announcement, Disagreement, ProcessId, Roster};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Most notes that nobody takes.
const NOTES_MAX: usize = 16;

/// Where the processes of a job find one another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Meeting {
    /// An abstract Unix socket: jobs on one host.
    Local(String),
    /// A TCP port that one of the processes listens at: jobs on several hosts.
    Tcp {
        /// Name or address of the host.
        host: String,
        /// Port.
        port: u16,
    },
    /// A folder that all processes see, on a shared file system for instance.
    Folder(PathBuf),
}

impl fmt::Display for Meeting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Meeting::Local(n) => write!(f, "local:{n}"),
            Meeting::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Meeting::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
            Meeting::Folder(p) => write!(f, "folder:{}", p.display()),
        }
    }
}

impl FromStr for Meeting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is no meeting place; write local:NAME, tcp:HOST:PORT or folder:PATH");
        match text.split_once(':').ok_or_else(bad)? {
            ("local", n) if !n.is_empty() && n.len() <= 80 && !n.contains('\0') => Ok(Meeting::Local(n.into())),
            ("folder", p) if p.starts_with('/') && !p.contains('\0') => Ok(Meeting::Folder(p.into())),
            ("folder", _) => Err(format!("`{text}`: the folder's path must begin with /")),
            ("tcp", at) => {
                let (host, port) = at.rsplit_once(':').ok_or_else(bad)?;
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let port = port.parse().ok().filter(|p| *p > 0).ok_or_else(bad)?;
                if host.is_empty() || host.len() > 255 || host.contains('\0') {
                    return Err(bad());
                }
                Ok(Meeting::Tcp { host: host.into(), port })
            }
            _ => Err(bad()),
        }
    }
}

/// What an endpoint has to say.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// All ranks of a communicator have announced themselves.
    Complete(Roster),
    /// They never will agree.
    Never {
        /// The communicator.
        comm: u64,
        /// Why.
        why: Disagreement,
    },
    /// A message of a process.
    Message {
        /// Who says it.
        from: ProcessId,
        /// What it says.
        body: Vec<u8>,
    },
}

/// One process's end of the job's channel. Not blocking, but for [`poll`](Endpoint::poll). Messages may get lost (a connection breaks): whoever
/// needs an answer asks again.
pub trait Endpoint: Send {
    /// Says that a rank of this process is there. Once is enough: the endpoint repeats it where that is needed.
    fn announce(&mut self, announcement: Announcement);

    /// Forgets a communicator of this process.
    fn forget(&mut self, comm: u64);

    /// Sends a message to a process of a roster.
    fn send(&mut self, to: ProcessId, body: &[u8]);

    /// Waits for something to happen, at most so long, and hands it over.
    fn poll(&mut self, most: Duration, events: &mut Vec<Event>);

    /// What happened that an engineer may want to know, each thing once, in a line.
    fn notes(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// Sends what is queued and says goodbye, within the deadline.
    fn close(&mut self, deadline: Duration);
}
