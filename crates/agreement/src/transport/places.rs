//! The addresses of the meeting place, in turn.
//!
//! A name is looked up on a thread of its own, for that lasts as long as a name server stays silent, and whoever waits for this process's word
//! must not. Nobody joins the thread: it ends with the C library's own deadline, at most one lives, and what it has found is taken when it is there.

use super::Meeting;
use super::packet::ADDRESSES_MAX;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};
use wire::Address;

/// How long after an answer the name is looked up again, at first; twice as long each time.
const AGAIN: Duration = Duration::from_millis(100);
/// And at last.
const AGAIN_MAX: Duration = Duration::from_secs(10);

/// Looks a name up.
pub(super) type Resolve = fn(&str, u16) -> Vec<SocketAddr>;

/// See the module.
#[derive(Debug)]
pub(super) struct Places {
    name: Option<(String, u16)>,
    known: Vec<Address>,
    /// Which of them is next.
    turn: usize,
    asked: Option<Receiver<Vec<SocketAddr>>>,
    next: Instant,
    pause: Duration,
    pub resolve: Resolve,
}

impl Places {
    pub fn new(meeting: &Meeting) -> Self {
        let (name, known) = match meeting {
            Meeting::Local(n) => (None, vec![Address::Local(format!("linkwise-meeting-{n}"))]),
            Meeting::Tcp { host, port } => match host.parse::<IpAddr>() {
                Ok(ip) => (None, vec![Address::Tcp(SocketAddr::new(ip, *port))]),
                Err(_) => (Some((host.clone(), *port)), Vec::new()),
            },
            Meeting::Folder(_) => (None, Vec::new()),
        };
        let resolve = |host: &str, port| (host, port).to_socket_addrs().map(Vec::from_iter).unwrap_or_default();
        Places { name, known, turn: 0, asked: None, next: Instant::now(), pause: AGAIN, resolve }
    }

    /// A name that every host understands in its own way: Debian's hosts know themselves as 127.0.1.1, and one of several networks may be meant.
    pub fn is_name(&self) -> bool {
        self.name.as_ref().is_some_and(|(host, _)| host != "localhost" && !host.ends_with(".localhost"))
    }

    /// All that are known, beginning with the one whose turn it is. Does not wait.
    pub fn now(&mut self) -> Vec<Address> {
        self.look_up();
        let mut all = self.known.clone();
        let turn = self.turn.checked_rem(all.len()).unwrap_or(0);
        all.rotate_left(turn);
        all
    }

    /// One was tried; should that come to nothing the next is tried first.
    pub fn tried(&mut self) {
        self.turn += 1;
    }

    fn look_up(&mut self) {
        let Some((host, port)) = &self.name else { return };
        match self.asked.as_ref().map(|a| a.try_recv()) {
            None if Instant::now() >= self.next => {
                self.asked = asking(self.resolve, host.clone(), *port);
                if self.asked.is_some() {
                    return;
                }
            }
            None | Some(Err(TryRecvError::Empty)) => return,
            Some(Ok(found)) if !found.is_empty() => {
                self.known = found.into_iter().take(ADDRESSES_MAX).map(Address::Tcp).collect();
            }
            Some(_) => {}
        }
        self.asked = None;
        self.next = Instant::now() + self.pause;
        self.pause = (2 * self.pause).min(AGAIN_MAX);
    }
}

/// A look-up that has begun; `None` where no thread can be had.
fn asking(resolve: Resolve, host: String, port: u16) -> Option<Receiver<Vec<SocketAddr>>> {
    let ((begins, has_begun), (found, answer)) = (channel(), channel());
    let run = move || {
        let _ = begins.send(());
        let _ = found.send(resolve(&host, port));
    };
    std::thread::Builder::new().name("linkwise-name".into()).spawn(run).ok()?;
    // From here on the thread keeps the library that this code is in from being unloaded, as long as it lives.
    has_begun.recv().ok()?;
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(host: &str, resolve: Resolve) -> Places {
        Places { resolve, ..Places::new(&Meeting::Tcp { host: host.into(), port: 5 }) }
    }

    fn tcp(all: &[&str]) -> Vec<Address> {
        all.iter().map(|a| Address::Tcp(a.parse().unwrap())).collect()
    }

    /// As soon as there are any.
    fn found(places: &mut Places) -> Vec<Address> {
        let begin = Instant::now();
        loop {
            let all = places.now();
            if !all.is_empty() {
                return all;
            }
            assert!(begin.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn addresses_take_turns() {
        let mut p = places("n0", |_, port| vec![([10, 0, 0, 1], port).into(), ([10, 0, 0, 2], port).into()]);
        assert_eq!(found(&mut p), tcp(&["10.0.0.1:5", "10.0.0.2:5"]));
        p.tried();
        assert_eq!(p.now(), tcp(&["10.0.0.2:5", "10.0.0.1:5"]));
        p.tried();
        assert_eq!(p.now(), tcp(&["10.0.0.1:5", "10.0.0.2:5"]));
    }

    #[test]
    fn a_silent_name_server_keeps_nobody_waiting() {
        let mut p = places("n0", |_, _| {
            loop {
                std::thread::park();
            }
        });
        for _ in 0..3 {
            p.next = Instant::now();
            assert_eq!(p.now(), []); // at all
        }
    }

    #[test]
    fn a_name_that_is_not_known_yet_is_asked_for_again_and_again_but_ever_more_rarely() {
        let mut p = places("n0", |_, _| Vec::new());
        for pause_ms in [200, 400, 800] {
            p.next = Instant::now();
            assert_eq!(p.now(), []);
            let begin = Instant::now();
            while p.asked.is_some() && begin.elapsed() < Duration::from_secs(60) {
                assert_eq!(p.now(), []);
            }
            assert_eq!(p.pause, Duration::from_millis(pause_ms));
            assert!(p.next > Instant::now() - Duration::from_secs(60) + p.pause / 2);
        }
        // What was known stays, should the name server forget it.
        let mut p = places("n0", |_, port| vec![([10, 0, 0, 1], port).into()]);
        found(&mut p);
        p.resolve = |_, _| Vec::new();
        p.next = Instant::now();
        p.now();
        assert_eq!(found(&mut p), tcp(&["10.0.0.1:5"]));
    }

    #[test]
    fn what_is_no_name_is_not_looked_up() {
        let never: Resolve = |host, _| panic!("{host}");
        assert_eq!(places("10.1.2.3", never).now(), tcp(&["10.1.2.3:5"]));
        assert_eq!(places("::1", never).now(), tcp(&["[::1]:5"]));
        assert!(!places("::1", never).is_name() && !places("localhost", never).is_name());
        assert!(places("node0", never).is_name());
        assert_eq!(Places::new(&Meeting::Local("x".into())).now(), [Address::Local("linkwise-meeting-x".into())]);
    }
}
