//! The addresses of the meeting place, in turn.
//!
//! A name is looked up on a thread of its own, for that lasts as long as a name server stays silent, and whoever waits for this process's word
//! must not. Nobody joins the thread: it ends with the C library's own deadline, at most one lives, and what it has found is taken when it is there.

use super::Meeting;
use super::packet::ADDRESSES_MAX;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
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
    bind: Option<IpAddr>,
    known: Vec<Address>,
    /// Which of them is next.
    turn: usize,
    asked: Option<Receiver<Vec<SocketAddr>>>,
    next: Instant,
    pause: Duration,
    pub resolve: Resolve,
}

impl Places {
    /// `bind`: the address to listen at, where one is named.
    pub fn new(meeting: &Meeting, bind: Option<IpAddr>) -> Self {
        let (name, known) = match meeting {
            Meeting::Local(n) => (None, vec![Address::Local(format!("linkwise-meeting-{n}"))]),
            Meeting::Tcp { host, port } => match host.parse::<IpAddr>() {
                Ok(ip) => (None, vec![Address::Tcp(SocketAddr::new(ip, *port))]),
                Err(_) => (Some((host.clone(), *port)), Vec::new()),
            },
            Meeting::Folder(_) => (None, Vec::new()),
        };
        let resolve = |host: &str, port| (host, port).to_socket_addrs().map(Vec::from_iter).unwrap_or_default();
        Places { name, bind, known, turn: 0, asked: None, next: Instant::now(), pause: AGAIN, resolve }
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

    /// The one where a process of this host listens: the same for all of them, whatever comes first to each.
    pub fn here(&self) -> Option<SocketAddr> {
        let tcp = |a: &Address| match a {
            Address::Tcp(a) => Some(*a),
            Address::Local(_) => None,
        };
        self.known.iter().filter_map(tcp).filter(|a| is_here(*a)).min()
    }

    /// One was tried; should that come to nothing the next is tried first.
    pub fn tried(&mut self) {
        self.turn += 1;
    }

    /// The loopback that a host's own name leads to is not where others come; `bind` may say where they do.
    fn as_bound(&self, at: SocketAddr) -> SocketAddr {
        let ip = self.bind.filter(|_| at.ip().is_loopback() && self.is_name());
        ip.map_or(at, |ip| SocketAddr::new(ip, at.port()))
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
                let found: Vec<_> =
                    found.into_iter().take(ADDRESSES_MAX).map(|a| Address::Tcp(self.as_bound(a))).collect();
                self.known = found;
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

/// Any address of this family.
pub(super) fn any(ip: IpAddr) -> IpAddr {
    if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// An address of this host: what goes there goes from there. (Binding proves nothing where `ip_nonlocal_bind` is set.) Sends nothing.
pub(super) fn is_here(at: SocketAddr) -> bool {
    let from = || {
        let socket = UdpSocket::bind(SocketAddr::new(any(at.ip()), 0)).ok()?;
        socket.connect(at).ok()?;
        socket.local_addr().ok()
    };
    // No way there at all: its family is switched off.
    from().is_some_and(|a| a.ip() == at.ip() || at.ip().is_loopback() || at.ip().is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(host: &str, resolve: Resolve) -> Places {
        Places { resolve, ..Places::new(&Meeting::Tcp { host: host.into(), port: 5 }, None) }
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
        assert_eq!(Places::new(&Meeting::Local("x".into()), None).now(), [Address::Local("linkwise-meeting-x".into())]);
    }

    #[test]
    fn addresses_of_other_hosts_are_not_here() {
        for here in ["127.0.0.1:1", "127.0.1.1:1", "0.0.0.0:1"] {
            assert!(is_here(here.parse().unwrap()), "{here}");
        }
        for elsewhere in ["203.0.113.1:1", "[2001:db8::1]:1"] {
            assert!(!is_here(elsewhere.parse().unwrap()), "{elsewhere}");
        }
    }

    #[test]
    fn of_a_hosts_own_loopback_the_named_address_takes_the_place() {
        let bind = Some([127, 0, 0, 3].into());
        let named = |host: &str| {
            let mut p = Places::new(&Meeting::Tcp { host: host.into(), port: 5 }, bind);
            p.resolve = |_, port| vec![([127, 0, 1, 1], port).into(), ([192, 0, 2, 1], port).into()];
            found(&mut p)
        };
        assert_eq!(named("node0"), tcp(&["127.0.0.3:5", "192.0.2.1:5"]));
        assert_eq!(named("localhost"), tcp(&["127.0.1.1:5", "192.0.2.1:5"]));
    }
}
