//! The paths that the sending side of a connection dials, and when.

use crate::handle::{Handle, RailAddress};
use crate::limits::{PATHS_MAX, RAILS_MAX};
use crate::reach::Way;
use crate::sender::Micros;
use crate::shared::{Common, Link};

/// After its first path a connection waits this long for the others before it is ready.
const PATHS_WAIT_US: Micros = 250_000;
/// First and longest pause before a lost path is dialled again.
const PAUSE_US: Micros = 100_000;
const PAUSE_US_MAX: Micros = 2_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dial {
    /// To be dialled at this time.
    At(Micros),
    Trying,
    Up,
}

/// What the sending side needs to dial.
#[derive(Debug)]
pub(crate) struct Dialer {
    pub handle: Handle,
    pub secret: Vec<u8>,
    pub connection: u64,
    pub remote: Vec<RailAddress>,
    pub ways: Vec<Way>,
    /// The rail of the device that connects.
    rail: usize,
    /// Ways may go over other hosts.
    pub over_relays: bool,
    dials: [Dial; PATHS_MAX],
    pauses: [Micros; PATHS_MAX],
    first_up: Option<Micros>,
    /// Number of dials so far.
    count: u32,
}

/// The paths between two hosts: every local rail with a rail of the peer in the same subnet, the one of the same number if there are several. A local
/// rail without a common subnet is paired by number. The home rail is always among them.
fn pairs(local: &[RailAddress], remote: &[RailAddress], home: usize) -> Vec<Way> {
    let mut rails: Vec<usize> = (0..local.len().min(RAILS_MAX)).collect();
    if home >= PATHS_MAX && home < rails.len() {
        rails.swap(home, PATHS_MAX - 1);
    }
    rails.truncate(PATHS_MAX);
    let mut used = [0u32; RAILS_MAX];
    let mut all = Vec::new();
    for i in rails {
        let Some(own) = local.get(i) else { continue };
        let near = |j: &usize| remote.get(*j).is_some_and(|r| r.shares_subnet(own.ip));
        let any_near = (0..remote.len()).any(|j| near(&j));
        let family = |j: &usize| remote.get(*j).is_some_and(|r| r.ip.is_ipv4() == own.ip.is_ipv4());
        let fits = |j: &usize| if any_near { near(j) } else { family(j) };
        let distance = |j: usize| usize::from(j % local.len().max(1) != i);
        let best = (0..remote.len().min(RAILS_MAX)).filter(fits).min_by_key(|j| (used.get(*j).copied(), distance(*j)));
        let same = Some(i).filter(|j| fits(j));
        if let Some(j) = same.or(best) {
            if let Some(u) = used.get_mut(j) {
                *u += 1;
            }
            all.push(Way::direct(i, j));
        }
    }
    all
}

impl Dialer {
    pub fn new(common: &Common, handle: Handle, secret: Vec<u8>, connection: u64, home: usize) -> Self {
        let remote = handle.addresses.clone();
        let over_relays = common.settings.relay && handle.host != common.host;
        let ways = if over_relays { Vec::new() } else { pairs(&common.addresses, &remote, home) };
        let (dials, pauses) = ([Dial::At(0); PATHS_MAX], [PAUSE_US; PATHS_MAX]);
        let mut d = Dialer {
            handle,
            secret,
            connection,
            remote,
            ways,
            rail: home,
            over_relays,
            dials,
            pauses,
            first_up: None,
            count: 0,
        };
        d.find_ways(common, 0);
        d
    }

    /// Index of the home path: that with the fewest links, of these the one on the rail of the device.
    pub fn home(&self) -> usize {
        let all = self.ways.iter().enumerate();
        all.min_by_key(|(_, w)| (w.links(), w.local != self.rail)).map_or(0, |(i, _)| i)
    }

    /// Looks for ways over other hosts. A path that is up keeps its way.
    pub fn find_ways(&mut self, common: &Common, now: Micros) {
        if !self.over_relays {
            return;
        }
        let found = {
            let map = crate::shared::lock(&common.map);
            map.ways((common.host, &common.addresses), (self.handle.host, &self.remote), self.connection)
        };
        for way in found {
            match self.ways.iter().position(|w| w.local == way.local) {
                Some(i) => {
                    let (Some(old), Some(dial)) = (self.ways.get_mut(i), self.dials.get_mut(i)) else { continue };
                    if *old != way && matches!(dial, Dial::At(_)) {
                        (*old, *dial) = (way, Dial::At(now));
                    }
                }
                None if self.ways.len() < PATHS_MAX => self.ways.push(way),
                None => {}
            }
        }
    }

    /// A path as messages name it.
    pub fn name(&self, path: usize) -> Option<String> {
        let way = self.ways.get(path)?;
        let peer = self.remote.get(way.remote).map(|a| a.socket())?;
        let over: Vec<String> = way.relays.iter().map(|a| format!("{a} to ")).collect();
        Some(format!("rail {} to {}{peer}", way.local, over.concat()))
    }

    pub fn link(&self, path: usize) -> Option<Link> {
        let p = self.ways.get(path)?;
        Some(Link { host: self.handle.host, local: p.local, remote: p.remote })
    }

    /// Paths to dial now; each is then being tried.
    pub fn due(&mut self, now: Micros) -> Vec<(usize, Way)> {
        let mut due = Vec::new();
        for (i, (way, dial)) in self.ways.iter().zip(&mut self.dials).enumerate() {
            if matches!(dial, Dial::At(t) if *t <= now) {
                *dial = Dial::Trying;
                due.push((i, way.clone()));
            }
        }
        due
    }

    /// The number of the next dial.
    pub fn number(&mut self) -> u32 {
        self.count = self.count.saturating_add(1);
        self.count
    }

    /// The attempt failed, or the path was lost.
    pub fn again(&mut self, path: usize, now: Micros) {
        if let (Some(d), Some(p)) = (self.dials.get_mut(path), self.pauses.get_mut(path)) {
            *d = Dial::At(now + *p);
            *p = (*p * 2).min(PAUSE_US_MAX);
        }
    }

    pub fn up(&mut self, path: usize, now: Micros) {
        if let Some(d) = self.dials.get_mut(path) {
            *d = Dial::Up;
        }
        self.first_up.get_or_insert(now);
    }

    /// All addresses of the peer are known now.
    pub fn learn(&mut self, local: &[RailAddress], remote: Vec<RailAddress>) {
        if remote.len() > self.remote.len() && remote.starts_with(&self.remote) {
            let more = if self.over_relays { self.ways.clone() } else { pairs(local, &remote, self.rail) };
            if more.starts_with(&self.ways) {
                (self.ways, self.remote) = (more, remote);
            }
        }
    }

    pub fn settled(&self, now: Micros) -> bool {
        let first = self.first_up.is_some_and(|t| now >= t + PATHS_WAIT_US);
        let all = self.ways.iter().zip(&self.dials).zip(&self.pauses);
        let settled =
            all.into_iter().all(|((_, d), pause)| *d == Dial::Up || (*d != Dial::Trying && *pause > PAUSE_US));
        self.first_up.is_some() && (first || settled)
    }

    pub fn is_waiting(&self) -> bool {
        self.ways.is_empty() || self.ways.iter().zip(&self.dials).any(|(_, d)| *d != Dial::Up)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rails(list: &[&str]) -> Vec<RailAddress> {
        list.iter().map(|a| RailAddress { ip: a.parse().unwrap(), prefix: 24, port: 1 }).collect()
    }

    fn paired(local: &[&str], remote: &[&str], home: usize) -> Vec<(usize, usize)> {
        pairs(&rails(local), &rails(remote), home).iter().map(|p| (p.local, p.remote)).collect()
    }

    #[test]
    fn rails_are_paired_by_subnet_then_by_number() {
        assert_eq!(paired(&["10.1.0.1", "10.2.0.1"], &["10.2.0.2", "10.1.0.2"], 0), [(0, 1), (1, 0)]);
        assert_eq!(paired(&["10.1.0.1", "10.1.0.2"], &["10.1.0.3", "10.1.0.4"], 0), [(0, 0), (1, 1)]);
        assert_eq!(paired(&["10.1.0.1", "10.2.0.1"], &["10.3.0.2", "10.4.0.2"], 0), [(0, 0), (1, 1)], "routed");
        assert_eq!(paired(&["10.1.0.1", "10.1.0.2"], &["10.1.0.3"], 0), [(0, 0), (1, 0)]);
        assert_eq!(paired(&["10.1.0.1"], &["10.9.0.3", "10.1.0.4"], 0), [(0, 1)]);
        assert_eq!(paired(&["10.1.0.1"], &["fd00::1"], 0), []);
        let many: Vec<String> = (0..12).map(|i| format!("10.{i}.0.1")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(paired(&many, &many, 10).contains(&(10, 10)) && paired(&many, &many, 10).len() == PATHS_MAX);
    }
}
