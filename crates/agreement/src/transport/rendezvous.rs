//! The addresses of the rendezvous, tried in turn.
//!
//! A name is resolved on its own thread: a silent name server can block the lookup for its whole timeout, and replies
//! to other ranks must not wait for it. The thread is never joined; it ends with the C library's timeout. At most one
//! such thread exists.

use super::Rendezvous;
use super::packet::ADDRESSES_MAX;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};
use wire::Address;

/// First interval between two lookups of the name; it doubles each time.
const LOOKUP_INTERVAL: Duration = Duration::from_millis(100);
/// Longest interval.
const LOOKUP_INTERVAL_MAX: Duration = Duration::from_secs(10);

/// Resolves a host name and port.
pub(super) type Resolve = fn(&str, u16) -> Vec<SocketAddr>;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct RendezvousAddresses {
    name: Option<(String, u16)>,
    bind: Option<IpAddr>,
    known: Vec<Address>,
    /// Index of the address to try next.
    next_index: usize,
    lookup: Option<Receiver<Vec<SocketAddr>>>,
    next: Instant,
    pause: Duration,
    pub resolve: Resolve,
    /// The host's primary address of the same family.
    pub primary: fn(IpAddr) -> Option<IpAddr>,
}

impl RendezvousAddresses {
    /// `bind`: the address to listen at, if one is configured.
    pub fn new(rendezvous: &Rendezvous, bind: Option<IpAddr>) -> Self {
        let (name, known) = match rendezvous {
            Rendezvous::Local(n) => (None, vec![Address::Local(format!("linkwise-rendezvous-{n}"))]),
            Rendezvous::Tcp { host, port } => match host.parse::<IpAddr>() {
                Ok(ip) => (None, vec![Address::Tcp(SocketAddr::new(ip, *port))]),
                Err(_) => (Some((host.clone(), *port)), Vec::new()),
            },
            Rendezvous::Folder(_) => (None, Vec::new()),
        };
        let resolve = |host: &str, port| (host, port).to_socket_addrs().map(Vec::from_iter).unwrap_or_default();
        RendezvousAddresses {
            name,
            bind,
            known,
            next_index: 0,
            lookup: None,
            next: Instant::now(),
            pause: LOOKUP_INTERVAL,
            resolve,
            primary,
        }
    }

    /// The address of this host that other hosts reach, if the rendezvous resolves to loopback here.
    pub fn primary_of(&self, at: SocketAddr) -> Option<IpAddr> {
        (self.primary)(at.ip())
    }

    /// True for a name whose meaning depends on the host: Debian resolves a host's own name to 127.0.1.1, and a host may be in several networks.
    pub fn is_name(&self) -> bool {
        self.name.as_ref().is_some_and(|(host, _)| host != "localhost" && !host.ends_with(".localhost"))
    }

    /// All known addresses, beginning with the next to try. Does not block.
    pub fn now(&mut self) -> Vec<Address> {
        self.look_up();
        let mut all = self.known.clone();
        let next_index = self.next_index.checked_rem(all.len()).unwrap_or(0);
        all.rotate_left(next_index);
        all
    }

    /// The address at which a process of this host listens: the same for all processes of the host, independent of the order of the resolved addresses.
    pub fn listen_address(&self) -> Option<SocketAddr> {
        let tcp = |a: &Address| match a {
            Address::Tcp(a) => Some(*a),
            Address::Local(_) => None,
        };
        self.known.iter().filter_map(tcp).filter(|a| is_here(*a)).min()
    }

    /// Moves on to the next address for the following attempt.
    pub fn tried(&mut self) {
        self.next_index += 1;
    }

    /// Replaces the loopback address of a host's own name, which other hosts cannot reach, by the configured `bind` address.
    fn as_bound(&self, at: SocketAddr) -> SocketAddr {
        let ip = self.bind.filter(|_| at.ip().is_loopback() && self.is_name());
        ip.map_or(at, |ip| SocketAddr::new(ip, at.port()))
    }

    fn look_up(&mut self) {
        let Some((host, port)) = &self.name else { return };
        match self.lookup.as_ref().map(|a| a.try_recv()) {
            None if Instant::now() >= self.next => {
                self.lookup = start_lookup(self.resolve, host.clone(), *port);
                if self.lookup.is_some() {
                    return;
                }
            }
            None | Some(Err(TryRecvError::Empty)) => return,
            Some(Ok(addresses)) if !addresses.is_empty() => {
                let addresses: Vec<_> =
                    addresses.into_iter().take(ADDRESSES_MAX).map(|a| Address::Tcp(self.as_bound(a))).collect();
                self.known = addresses;
            }
            Some(_) => {}
        }
        self.lookup = None;
        self.next = Instant::now() + self.pause;
        self.pause = (2 * self.pause).min(LOOKUP_INTERVAL_MAX);
    }
}

/// Starts a lookup; `None` if no thread can be created.
fn start_lookup(resolve: Resolve, host: String, port: u16) -> Option<Receiver<Vec<SocketAddr>>> {
    let ((begins, has_begun), (addresses, answer)) = (channel(), channel());
    let run = move || {
        let _ = begins.send(());
        let _ = addresses.send(resolve(&host, port));
    };
    std::thread::Builder::new().name("linkwise-name".into()).spawn(run).ok()?;
    // From here on the running thread keeps the plugin's library from being unloaded.
    has_begun.recv().ok()?;
    Some(answer)
}

/// The address of this host from which packets leave to networks that it is not in, of the same family as `like`. Sends nothing.
fn primary(like: IpAddr) -> Option<IpAddr> {
    // Addresses for documentation (RFC 5737, RFC 3849): in no network.
    let elsewhere: IpAddr = match like {
        IpAddr::V4(_) => Ipv4Addr::new(192, 0, 2, 1).into(),
        IpAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    };
    let socket = UdpSocket::bind(SocketAddr::new(any(like), 0)).ok()?;
    socket.connect(SocketAddr::new(elsewhere, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified())
}

/// The unspecified address ("any") of the same family.
fn any(ip: IpAddr) -> IpAddr {
    if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// True if the address belongs to this host: a packet to it would leave from it. Sends nothing. (Binding proves nothing if `ip_nonlocal_bind` is
/// set.)
pub(super) fn is_here(at: SocketAddr) -> bool {
    let from = || {
        let socket = UdpSocket::bind(SocketAddr::new(any(at.ip()), 0)).ok()?;
        socket.connect(at).ok()?;
        socket.local_addr().ok()
    };
    // No route at all means that the address family is disabled.
    from().is_some_and(|a| a.ip() == at.ip() || at.ip().is_loopback() || at.ip().is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendezvous(host: &str, resolve: Resolve) -> RendezvousAddresses {
        RendezvousAddresses {
            resolve,
            ..RendezvousAddresses::new(&Rendezvous::Tcp { host: host.into(), port: 5 }, None)
        }
    }

    fn tcp(all: &[&str]) -> Vec<Address> {
        all.iter().map(|a| Address::Tcp(a.parse().unwrap())).collect()
    }

    /// Polls until there are addresses.
    fn addresses(rendezvous: &mut RendezvousAddresses) -> Vec<Address> {
        let begin = Instant::now();
        loop {
            let all = rendezvous.now();
            if !all.is_empty() {
                return all;
            }
            assert!(begin.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn addresses_are_tried_in_turn() {
        let mut p = rendezvous("n0", |_, port| vec![([10, 0, 0, 1], port).into(), ([10, 0, 0, 2], port).into()]);
        assert_eq!(addresses(&mut p), tcp(&["10.0.0.1:5", "10.0.0.2:5"]));
        p.tried();
        assert_eq!(p.now(), tcp(&["10.0.0.2:5", "10.0.0.1:5"]));
        p.tried();
        assert_eq!(p.now(), tcp(&["10.0.0.1:5", "10.0.0.2:5"]));
    }

    #[test]
    fn a_silent_name_server_blocks_no_call() {
        let mut p = rendezvous("n0", |_, _| {
            loop {
                std::thread::park();
            }
        });
        for _ in 0..3 {
            p.next = Instant::now();
            assert_eq!(p.now(), []); // returns at once
        }
    }

    #[test]
    fn an_unknown_name_is_looked_up_again_at_growing_intervals() {
        let mut p = rendezvous("n0", |_, _| Vec::new());
        for pause_ms in [200, 400, 800] {
            p.next = Instant::now();
            assert_eq!(p.now(), []);
            let begin = Instant::now();
            while p.lookup.is_some() && begin.elapsed() < Duration::from_secs(60) {
                assert_eq!(p.now(), []);
            }
            assert_eq!(p.pause, Duration::from_millis(pause_ms));
            assert!(p.next > Instant::now() - Duration::from_secs(60) + p.pause / 2);
        }
        // Known addresses stay valid if the name server forgets them.
        let mut p = rendezvous("n0", |_, port| vec![([10, 0, 0, 1], port).into()]);
        addresses(&mut p);
        p.resolve = |_, _| Vec::new();
        p.next = Instant::now();
        p.now();
        assert_eq!(addresses(&mut p), tcp(&["10.0.0.1:5"]));
    }

    #[test]
    fn ip_addresses_are_not_looked_up() {
        let never: Resolve = |host, _| panic!("{host}");
        assert_eq!(rendezvous("10.1.2.3", never).now(), tcp(&["10.1.2.3:5"]));
        assert_eq!(rendezvous("::1", never).now(), tcp(&["[::1]:5"]));
        assert!(!rendezvous("::1", never).is_name() && !rendezvous("localhost", never).is_name());
        assert!(rendezvous("node0", never).is_name());
        assert_eq!(
            RendezvousAddresses::new(&Rendezvous::Local("x".into()), None).now(),
            [Address::Local("linkwise-rendezvous-x".into())]
        );
    }

    #[test]
    fn addresses_of_other_hosts_are_recognized() {
        for here in ["127.0.0.1:1", "127.0.1.1:1", "0.0.0.0:1"] {
            assert!(is_here(here.parse().unwrap()), "{here}");
        }
        for elsewhere in ["203.0.113.1:1", "[2001:db8::1]:1"] {
            assert!(!is_here(elsewhere.parse().unwrap()), "{elsewhere}");
        }
    }

    #[test]
    fn the_configured_address_replaces_a_hosts_own_loopback() {
        let bind = Some([127, 0, 0, 3].into());
        let named = |host: &str| {
            let mut p = RendezvousAddresses::new(&Rendezvous::Tcp { host: host.into(), port: 5 }, bind);
            p.resolve = |_, port| vec![([127, 0, 1, 1], port).into(), ([192, 0, 2, 1], port).into()];
            addresses(&mut p)
        };
        assert_eq!(named("node0"), tcp(&["127.0.0.3:5", "192.0.2.1:5"]));
        assert_eq!(named("localhost"), tcp(&["127.0.1.1:5", "192.0.2.1:5"]));
    }
}
