//! A relay between a port of this machine and the socket of PostgreSQL. It can take bytes and pass none on, as a proxy does in front of a
//! server that is gone: every byte is confirmed, and no answer comes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::SeqCst};

/// What a relay swallows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swallows {
    /// Nothing.
    Nothing,
    /// What clients send: PostgreSQL sees no request.
    Requests,
    /// What PostgreSQL sends: requests are done, and no client hears of it.
    Answers,
    /// The answer to the next COMMIT, and ends its connection. Then nothing.
    AnswerOfCommit,
    /// The next answer, and ends its connection. A relay sets it after a COMMIT.
    NextAnswer,
}

/// A relay. Its threads end with the process.
pub struct Relay {
    at: SocketAddr,
    swallows: Arc<AtomicU8>,
    connections: Arc<AtomicUsize>,
}

impl Relay {
    /// A relay to a socket, on a free port.
    pub fn to(socket: &Path) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Relay { at: listener.local_addr().unwrap(), swallows: Arc::default(), connections: Arc::default() };
        let (socket, swallows, connections) =
            (PathBuf::from(socket), relay.swallows.clone(), relay.connections.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                connections.fetch_add(1, SeqCst);
                let Ok(server) = UnixStream::connect(&socket) else { continue };
                let (client2, server2) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let (requests, answers) = (swallows.clone(), swallows.clone());
                let end = |c: &TcpStream, s: &UnixStream| _ = (c.shutdown(Shutdown::Both), s.shutdown(Shutdown::Both));
                std::thread::spawn(move || {
                    copy(&client, &server, &requests, Swallows::Requests);
                    end(&client, &server);
                });
                std::thread::spawn(move || {
                    copy(&server2, &client2, &answers, Swallows::Answers);
                    end(&client2, &server2);
                });
            }
        });
        relay
    }

    /// The URL of a database through the relay, from its URL at the socket.
    pub fn url(&self, direct: &str) -> String {
        let name = direct.split(['/', '?']).nth(3).unwrap();
        format!("postgres://tester@{}/{name}?sslmode=disable", self.at)
    }

    /// Number of connections that clients made.
    #[allow(dead_code)] // one test counts them
    pub fn connections(&self) -> usize {
        self.connections.load(SeqCst)
    }

    /// Swallows from now on.
    pub fn swallow(&self, what: Swallows) {
        self.swallows.store(what as u8, SeqCst);
    }
}

fn copy(mut from: impl Read, mut to: impl Write, swallows: &AtomicU8, when: Swallows) {
    let mut part = [0; 65_536];
    while let Ok(n) = from.read(&mut part) {
        if n == 0 {
            return;
        }
        let swallowed = |s: Swallows| swallows.load(SeqCst) == s as u8;
        if when == Swallows::Requests
            && swallowed(Swallows::AnswerOfCommit)
            && part[..n].windows(7).any(|w| w == b"COMMIT\0")
        {
            swallows.store(Swallows::NextAnswer as u8, SeqCst);
        }
        if when == Swallows::Answers && swallowed(Swallows::NextAnswer) {
            return swallows.store(Swallows::Nothing as u8, SeqCst);
        }
        if !swallowed(when) && to.write_all(&part[..n]).is_err() {
            return;
        }
    }
}
