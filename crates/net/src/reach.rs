//! Who reaches whom: the hosts that lend their links, and the ways from this host to another. Pure.
//!
//! Two NICs are linked if they lie in one subnet. Every lending process tells its rails to all others ([`Record`]); a way is a chain of links from a rail
//! of this host to one of the peer's, over at most [`RELAYS_MAX`] hosts that lend. Each local rail gets its shortest way, so that the ways of a ring go
//! round both sides, and those of a mesh use every neighbour.

use crate::handle::RailAddress;
use crate::limits::{PATHS_MAX, RAILS_MAX, RECORDS_MAX, RELAYS_MAX};
use crate::plan::{HOSTS_MAX, PARTS, Pair, loads};
use crate::sender::Micros;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use wire::{Malformed, Reader, Writer};

/// A record that is older belongs to a process that has ended; microseconds.
pub const RECORD_US_MAX: Micros = 5_000_000;
const MAGIC: &[u8; 8] = b"lnkwrel2";
/// Largest record, bytes.
pub const RECORD_BYTES_MAX: usize = 8 + 24 + 1 + RAILS_MAX * 28 + 1 + HOSTS_MAX * 12;
/// A host whose newest record is older is not part of a plan; microseconds.
pub const FRESH_US_MAX: Micros = 1_000_000;

/// What a lending process tells of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// The same on all processes of a host.
    pub host: u64,
    /// Random number of the process.
    pub process: u64,
    /// Grows with every record of the process.
    pub sequence: u64,
    /// Where the process listens, and per rail the work that its host has on it, microseconds.
    pub rails: Vec<(RailAddress, u32)>,
    /// Measured rate of every rail, KiB per second; 0 if unknown.
    pub rates: Vec<u32>,
    /// What the process has lately sent to other hosts, KiB: at most [`HOSTS_MAX`] of them.
    pub sent: Vec<(u64, u32)>,
}

impl Record {
    pub fn write(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.raw(MAGIC).u64(self.host).u64(self.process).u64(self.sequence).u8(self.rails.len().min(RAILS_MAX) as u8);
        for (i, (address, work)) in self.rails.iter().enumerate().take(RAILS_MAX) {
            address.write(&mut w);
            w.u32(*work).u32(self.rates.get(i).copied().unwrap_or(0));
        }
        w.u8(self.sent.len().min(HOSTS_MAX) as u8);
        for (host, sent) in self.sent.iter().take(HOSTS_MAX) {
            w.u64(*host).u32(*sent);
        }
        w.0
    }

    /// # Errors
    /// The bytes are no record.
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader::new(bytes);
        if r.take(8)? != MAGIC {
            return Err(Malformed("no record of this version"));
        }
        let (host, process, sequence, n) = (r.u64()?, r.u64()?, r.u64()?, r.u8()?);
        if n == 0 || usize::from(n) > RAILS_MAX {
            return Err(Malformed("a record has no rail, or too many"));
        }
        let (mut rails, mut rates) = (Vec::new(), Vec::new());
        for _ in 0..n {
            rails.push((RailAddress::read(&mut r)?, r.u32()?));
            rates.push(r.u32()?);
        }
        let n = r.u8()?;
        if usize::from(n) > HOSTS_MAX {
            return Err(Malformed("a record has too many hosts"));
        }
        let sent = (0..n).map(|_| Ok((r.u64()?, r.u32()?))).collect::<Result<_, Malformed>>()?;
        r.end()?;
        Ok(Record { host, process, sequence, rails, rates, sent })
    }
}

/// The way of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Way {
    /// Rail of this host.
    pub local: usize,
    /// Where the lending hosts listen, in order.
    pub relays: Vec<SocketAddr>,
    /// For every relay, its host and the rail over which it sends on.
    pub onward: Vec<(u64, usize)>,
    /// Rail of the peer's host.
    pub remote: usize,
}

impl Way {
    /// A link between the two hosts.
    pub fn direct(local: usize, remote: usize) -> Self {
        Way { local, relays: Vec::new(), onward: Vec::new(), remote }
    }

    /// Links that the way uses.
    pub fn links(&self) -> u64 {
        self.relays.len() as u64 + 1
    }
}

/// The records of other processes.
#[derive(Debug, Default)]
pub struct Map {
    records: BTreeMap<(u64, u64), (Record, Micros)>,
    /// Grows whenever the ways may have changed.
    version: u64,
}

/// The links and ways between all hosts.
#[derive(Debug, Default, PartialEq)]
pub struct Network {
    /// Host and rail of every link.
    links: Vec<(u64, usize)>,
    /// Sender, receiver, and for every way the sender's rail.
    ends: Vec<(u64, u64, Vec<usize>)>,
    pairs: Vec<Pair>,
    version: u64,
    /// The last plan was followed.
    planned: bool,
}

impl Network {
    /// The parts of the bytes of `own` for every other host, by rail; empty where a plan gains less than [`GAIN_MIN`] over the shortest ways, or less than
    /// [`GAIN_KEPT`] if the last plan was followed: then every host chooses alone. O([`crate::plan::split`]).
    pub fn shares(&mut self, own: u64, rates: &[f64]) -> HashMap<u64, [u32; RAILS_MAX]> {
        let parts = crate::plan::split(rates, &self.pairs);
        let shortest = |p: &Pair| (0..p.ways.len()).map(|i| if i == 0 { PARTS } else { 0 }).collect();
        let shortest: Vec<Vec<u32>> = self.pairs.iter().map(shortest).collect();
        let busiest = |parts: &[Vec<u32>]| loads(rates, &self.pairs, parts).into_iter().fold(0.0, f64::max);
        let least = if self.planned { GAIN_KEPT } else { GAIN_MIN };
        self.planned = busiest(&shortest) >= busiest(&parts) * least;
        if !self.planned {
            return HashMap::new();
        }
        let rows = self.ends.iter().zip(parts).filter(|((from, _, _), _)| *from == own);
        rows.map(|((_, to, rails), parts)| {
            let mut of = [0; RAILS_MAX];
            for (rail, n) in rails.iter().zip(parts) {
                if let Some(of) = of.get_mut(*rail) {
                    *of += n;
                }
            }
            (*to, of)
        })
        .collect()
    }
}

/// Demands of the last moments differ by chance from those that follow, so a plan for nearly uniform traffic takes detours that only cost.
const GAIN_MIN: f64 = 1.25;
/// A plan that is followed stays down to this gain: near one limit it would come and go every 100 ms. Hosts that began to follow at different moments may
/// differ meanwhile; both answers carry all bytes.
const GAIN_KEPT: f64 = 1.1;
/// The smallest part of the busiest pair's bytes that every pair is taken to have: a pair that has sent nothing yet gets shares, too.
const PAIR_MIN: f64 = 1e-3;
/// With fewer bytes of all hosts there is nothing to plan, KiB.
const SENT_KIB_MIN: f64 = 1024.0;

fn linked(a: &RailAddress, b: &RailAddress) -> bool {
    a.ip != b.ip && a.shares_subnet(b.ip) && b.shares_subnet(a.ip)
}

impl Map {
    /// Keeps a record. `None`: it is not new. `Some(true)`: the ways may have changed.
    pub fn learn(&mut self, record: Record, now: Micros) -> Option<bool> {
        let key = (record.host, record.process);
        let before = self.records.get(&key);
        if before.is_none() && self.records.len() >= RECORDS_MAX
            || before.is_some_and(|(b, _)| b.sequence >= record.sequence)
        {
            return None;
        }
        let same = before.is_some_and(|(b, _)| b.rails.iter().map(|r| r.0).eq(record.rails.iter().map(|r| r.0)));
        self.records.insert(key, (record, now));
        self.version += u64::from(!same);
        Some(!same)
    }

    /// Forgets processes that have fallen silent; true if there was one.
    pub fn expire(&mut self, now: Micros) -> bool {
        let before = self.records.len();
        self.records.retain(|_, (_, at)| now < *at + RECORD_US_MAX);
        let fewer = self.records.len() < before;
        self.version += u64::from(fewer);
        fewer
    }

    /// Work that a host has on a rail, microseconds: the most that any of its processes tells.
    pub fn work(&self, host: u64, rail: usize) -> u64 {
        let of = self.records.range((host, 0)..=(host, u64::MAX));
        of.filter_map(|(_, (r, _))| r.rails.get(rail)).map(|r| u64::from(r.1)).max().unwrap_or(0)
    }

    /// A lending process per host, one of several by `pick`.
    fn hosts(&self, pick: u64) -> HashMap<u64, &Record> {
        let mut all: BTreeMap<u64, Vec<&Record>> = BTreeMap::new();
        self.records.values().for_each(|(r, _)| all.entry(r.host).or_default().push(r));
        all.into_iter().filter_map(|(h, list)| Some((h, *list.get(pick as usize % list.len().max(1))?))).collect()
    }

    /// Every host with its newest record, this one's included; `None` if there are more than [`HOSTS_MAX`], or one has not spoken for [`FRESH_US_MAX`].
    fn told<'a>(&'a self, own: &'a Record, now: Micros) -> Option<BTreeMap<u64, &'a Record>> {
        let mut all = BTreeMap::from([(own.host, (own, now))]);
        for (r, at) in self.records.values() {
            let e = all.entry(r.host).or_insert((r, *at));
            e.1 = e.1.max(*at);
        }
        let fresh = all.len() <= HOSTS_MAX && all.values().all(|(_, at)| now <= at + FRESH_US_MAX);
        fresh.then(|| all.into_iter().map(|(h, (r, _))| (h, r)).collect())
    }

    /// What all hosts have told: brings `network` up to date, and returns the rates of its links, bytes per second. `None`: there is nothing to plan, or
    /// not all hosts are known.
    pub fn demands(&self, own: &Record, network: &mut Network, now: Micros) -> Option<Vec<f64>> {
        let hosts = self.told(own, now)?;
        if network.links.is_empty() || network.version != self.version {
            *network = Network { version: self.version, ..links_and_ways(&hosts) };
        }
        let records = || self.records.values().map(|(r, _)| r).chain([own]);
        let mut rates: Vec<f64> = Vec::new();
        for (host, rail) in &network.links {
            let of = records().filter(|r| r.host == *host).filter_map(|r| r.rates.get(*rail));
            rates.push(f64::from(of.copied().max().unwrap_or(0)) * 1024.0);
        }
        // A rail that has not been measured is taken to be as good as the best.
        let best = rates.iter().fold(0.0f64, |a, b| a.max(*b)).max(1.0);
        rates.iter_mut().filter(|r| **r == 0.0).for_each(|r| *r = best);
        let sent = |from: u64, to: u64| -> f64 {
            let of = records().filter(|r| r.host == from).flat_map(|r| &r.sent).filter(|s| s.0 == to);
            of.map(|s| f64::from(s.1)).sum()
        };
        for ((from, to, _), pair) in network.ends.iter().zip(&mut network.pairs) {
            pair.bytes = sent(*from, *to);
        }
        let top = network.pairs.iter().fold(0.0f64, |a, p| a.max(p.bytes));
        let sum: f64 = network.pairs.iter().map(|p| p.bytes).sum();
        network.pairs.iter_mut().for_each(|p| p.bytes = p.bytes.max(top * PAIR_MIN));
        (sum >= SENT_KIB_MIN).then_some(rates)
    }

    /// The shortest way of every rail of this host to a peer: at most [`PATHS_MAX`], the shortest first. O(hosts² · rails²) per rail.
    pub fn ways(&self, from: (u64, &[RailAddress]), to: (u64, &[RailAddress]), pick: u64) -> Vec<Way> {
        let hosts = self.hosts(pick);
        let locals = from.1.iter().enumerate().take(RAILS_MAX);
        let mut all: Vec<Way> = locals.filter_map(|(i, own)| way(&hosts, from.0, (i, own), to)).collect();
        all.sort_by_key(|w| (w.links(), w.local));
        all.truncate(PATHS_MAX);
        all
    }
}

/// The ways of every pair of hosts, the shortest first.
fn links_and_ways(hosts: &BTreeMap<u64, &Record>) -> Network {
    let mut network = Network::default();
    let all: HashMap<u64, &Record> = hosts.iter().map(|(h, r)| (*h, *r)).collect();
    let addresses = |r: &Record| r.rails.iter().map(|r| r.0).collect::<Vec<_>>();
    for (from, own) in hosts {
        network.links.extend((0..own.rails.len()).map(|rail| (*from, rail)));
    }
    for (from, own) in hosts {
        for (to, peer) in hosts.iter().filter(|(h, _)| *h != from) {
            let (own, peer) = (addresses(own), addresses(peer));
            let locals = own.iter().enumerate();
            let mut ways: Vec<Way> = locals.filter_map(|(i, a)| way(&all, *from, (i, a), (*to, &peer))).collect();
            ways.sort_by_key(|w| (w.links(), w.local));
            ways.truncate(PATHS_MAX);
            let links = |w: &Way| {
                let used = std::iter::once((*from, w.local)).chain(w.onward.iter().copied());
                used.filter_map(|l| network.links.iter().position(|k| *k == l)).collect()
            };
            network.pairs.push(Pair { bytes: 0.0, ways: ways.iter().map(links).collect() });
            network.ends.push((*from, *to, ways.iter().map(|w| w.local).collect()));
        }
    }
    network
}

/// Breadth first over the lending hosts, from one local rail.
fn way(
    hosts: &HashMap<u64, &Record>,
    own: u64,
    (local, first): (usize, &RailAddress),
    (peer, to): (u64, &[RailAddress]),
) -> Option<Way> {
    let meets = |a: &RailAddress, list: &[RailAddress], like: usize| {
        // Several NICs in one subnet: that of the same number.
        let fits = |j: &usize| list.get(*j).is_some_and(|b| linked(a, b));
        Some(like).filter(fits).or_else(|| (0..list.len()).find(fits))
    };
    if let Some(remote) = meets(first, to, local) {
        return Some(Way::direct(local, remote));
    }
    let mut ids: Vec<u64> = hosts.keys().copied().filter(|h| *h != own && *h != peer).collect();
    ids.sort_unstable();
    let rails = |h: u64| hosts.get(&h).map(|r| r.rails.iter().map(|r| r.0).collect::<Vec<_>>()).unwrap_or_default();
    // Host, and the rail by which it was reached.
    let mut queue: VecDeque<Way> = VecDeque::new();
    let mut seen: Vec<u64> = Vec::new();
    let mut step = |queue: &mut VecDeque<Way>, way: &Way, out: Option<usize>, by: &RailAddress, like: usize| {
        for h in &ids {
            let list = rails(*h);
            let Some(j) = meets(by, &list, like).filter(|_| !seen.contains(h)) else { continue };
            let Some(at) = list.get(j) else { continue };
            seen.push(*h);
            let mut next = way.clone();
            if let (Some(rail), Some(last)) = (out, next.onward.last_mut()) {
                last.1 = rail;
            }
            next.relays.push(at.socket());
            next.onward.push((*h, 0));
            queue.push_back(next);
        }
    };
    step(&mut queue, &Way::direct(local, 0), None, first, local);
    while let Some(mut way) = queue.pop_front() {
        let Some(&(at, _)) = way.onward.last() else { continue };
        let list = rails(at);
        let ends = list.iter().enumerate().find_map(|(i, a)| Some((i, meets(a, to, i)?)));
        if let Some((out, remote)) = ends {
            if let Some(last) = way.onward.last_mut() {
                last.1 = out;
            }
            return Some(Way { remote, ..way });
        }
        if way.relays.len() < RELAYS_MAX {
            list.iter().enumerate().for_each(|(i, a)| step(&mut queue, &way, Some(i), a, i));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Hosts of direct links: one subnet per link.
    fn hosts(n: usize, links: &[(usize, usize)]) -> Vec<Vec<RailAddress>> {
        let mut all = vec![Vec::new(); n];
        for (k, (a, b)) in links.iter().enumerate() {
            for (end, host) in [a, b].into_iter().enumerate() {
                let ip = format!("10.128.{k}.{}", end + 1).parse().unwrap();
                all[*host].push(RailAddress { ip, prefix: 30, port: 1000 + *host as u16 });
            }
        }
        all
    }

    fn map(hosts: &[Vec<RailAddress>]) -> Map {
        let mut m = Map::default();
        for (h, rails) in hosts.iter().enumerate() {
            let rails = rails.iter().map(|r| (*r, 0)).collect();
            assert_eq!(
                m.learn(Record { host: h as u64, process: 1, sequence: 1, rails, ..Record::default() }, 0),
                Some(true)
            );
        }
        m
    }

    /// Hosts on the ways from `a` to `b`.
    fn found(all: &[Vec<RailAddress>], a: usize, b: usize) -> Vec<Vec<u64>> {
        let ways = map(all).ways((a as u64, &all[a]), (b as u64, &all[b]), 0);
        for w in &ways {
            // Each step is a link: from the last host's rail to the address that is dialled.
            let mut at = all[a][w.local];
            for (k, relay) in w.relays.iter().enumerate() {
                assert!(linked(&at, &RailAddress { ip: relay.ip(), prefix: 30, port: 0 }));
                at = all[w.onward[k].0 as usize][w.onward[k].1];
            }
            assert!(linked(&at, &all[b][w.remote]));
        }
        ways.iter().map(|w| w.onward.iter().map(|o| o.0).collect()).collect()
    }

    fn ring(n: usize) -> Vec<Vec<RailAddress>> {
        hosts(n, &(0..n).map(|i| (i, (i + 1) % n)).collect::<Vec<_>>())
    }

    #[test]
    fn a_ring_is_gone_round_both_ways() {
        assert_eq!(found(&ring(4), 0, 1), [vec![], vec![3, 2]]);
        let mut across = found(&ring(4), 0, 2);
        across.sort();
        assert_eq!(across, [vec![1], vec![3]]);
        assert_eq!(found(&ring(3), 0, 1), [vec![], vec![2]]);
        assert_eq!(found(&ring(8), 0, 4).len(), 2, "three relays each way");
        assert_eq!(found(&ring(8), 0, 3), [vec![1, 2]], "the other way round needs four relays");
    }

    #[test]
    fn a_mesh_uses_every_neighbour_and_a_line_its_only_way() {
        let links: Vec<_> = (0..4).flat_map(|a| (a + 1..4).map(move |b| (a, b))).collect();
        assert_eq!(found(&hosts(4, &links), 0, 3), [vec![], vec![1], vec![2]]);
        assert_eq!(found(&hosts(3, &[(0, 1), (1, 2)]), 0, 2), [vec![1]]);
        assert!(found(&hosts(4, &[(0, 1), (2, 3)]), 0, 3).is_empty());
    }

    #[test]
    fn records_are_kept_once_until_they_are_old_and_their_number_is_bounded() {
        let all = ring(3);
        let mut m = map(&all);
        let again = |sequence| Record {
            host: 1,
            process: 1,
            sequence,
            rails: vec![(all[1][0], 9), (all[1][1], 4)],
            ..Record::default()
        };
        assert_eq!(m.learn(again(1), 5), None);
        assert_eq!((m.learn(again(2), 5), m.work(1, 0), m.work(1, 1)), (Some(false), 9, 4));
        assert!(m.expire(RECORD_US_MAX + 1) && m.records.len() == 1, "host 1 spoke later");
        for i in 0..2 * RECORDS_MAX as u64 {
            m.learn(
                Record { host: 100 + i, process: 1, sequence: 1, rails: vec![(all[0][0], 0)], ..Record::default() },
                6,
            );
        }
        assert_eq!(m.records.len(), RECORDS_MAX);
    }

    proptest! {
        #[test]
        fn a_record_survives_encoding(host: u64, process: u64, sequence: u64, works in proptest::collection::vec(any::<u32>(), 1..=16), sent in proptest::collection::vec(any::<(u64, u32)>(), 0..=8)) {
            let address = RailAddress { ip: "10.0.0.1".parse().unwrap(), prefix: 30, port: 7 };
            let r = Record { host, process, sequence, rails: works.iter().map(|w| (address, *w)).collect(), rates: works, sent };
            let bytes = r.write();
            prop_assert!(bytes.len() <= RECORD_BYTES_MAX);
            prop_assert_eq!(Record::read(&bytes), Ok(r));
            prop_assert!(Record::read(&bytes[..bytes.len() - 1]).is_err());
        }

        #[test]
        fn in_any_network_a_way_is_found_if_there_is_one(links in proptest::collection::vec((0usize..6, 0usize..6), 0..12), a in 0usize..6, b in 0usize..6) {
            prop_assume!(a != b);
            let links: Vec<_> = links.into_iter().filter(|(x, y)| x != y).collect();
            let ways = found(&hosts(6, &links), a, b);
            // Hosts within RELAYS_MAX relays of `a`.
            let (mut near, mut distance) = (vec![a], None);
            for d in 0..=RELAYS_MAX {
                let next: Vec<usize> = links.iter().flat_map(|(x, y)| [(*x, *y), (*y, *x)]).filter(|(x, _)| near.contains(x)).map(|(_, y)| y).collect();
                if next.contains(&b) {
                    distance = Some(d);
                    break;
                }
                near.extend(next);
            }
            prop_assert_eq!(ways.first().map(Vec::len), distance);
        }
    }
}
