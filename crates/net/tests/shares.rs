//! Hosts in a ring without a switch, and hosts with rails behind switches, simulated: every chunk waits in the queue of each link of its way. The senders are the real ones; the plan is the
//! real one, 100 ms late. No clock, no I/O. Times in units of the optimum (`plan::split` with the true demand).

use net::frame::{Chunk, Frame, Slot, Slots};
use net::handle::RailAddress;
use net::limits::{PATHS_MAX, RAILS_MAX};
use net::plan::{PARTS, Pair, loads, split};
use net::rails::{Board, Rails, View, private_words};
use net::reach::{FRESH_US_MAX, Map, Network, Record};
use net::sender::{Outbox, Sender, Shares};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::AtomicU64;

const HOSTS: usize = 4;
const CHUNK: u32 = 64 << 10;
/// As NCCL: messages of 128 KiB, eight of them at once.
const MESSAGE: u64 = 128 << 10;
const AT_ONCE: u64 = 8;
/// Bytes per second of a link.
const RATE: f64 = 25e6;
const PLAN_US: u64 = 100_000;
const REPETITIONS: usize = 5;

/// The ways round the ring, the shorter one first: link 2h leads from host h to the next one, 2h + 1 to the one before. Rail 0 is the first.
fn ways(a: usize, b: usize) -> Vec<(usize, Vec<usize>)> {
    let up = (0..(b + HOSTS - a) % HOSTS).map(|k| 2 * ((a + k) % HOSTS)).collect::<Vec<_>>();
    let down = (0..(a + HOSTS - b) % HOSTS).map(|k| 2 * ((a + HOSTS - k) % HOSTS) + 1).collect();
    let mut all = vec![(0, up), (1, down)];
    all.sort_by_key(|w| w.1.len());
    all
}

/// Ways between two hosts with a switch for each rail: out of a rail of one, into the same rail of the other. `home` comes first.
fn rails(hosts: usize, rails: usize, a: usize, b: usize, home: usize) -> Vec<(usize, Vec<usize>)> {
    let link = |host: usize, rail: usize, into: usize| (into * hosts + host) * rails + rail;
    (0..rails).map(|i| (home + i) % rails).map(|r| (r, vec![link(a, r, 0), link(b, r, 1)])).collect()
}

struct Connection {
    from: usize,
    sender: Sender,
    ways: Vec<(usize, Vec<usize>)>,
    bytes: u64,
    posted: u64,
    done: u64,
    /// Messages so far.
    messages: u64,
    /// Fading, as in `io::ticks`.
    lately: f64,
}

/// Chunks on their way: arrival at the end of a link (microseconds, order, connection, path, link of the way, chunk, bytes).
type Event = Reverse<(u64, u64, usize, usize, usize, Chunk, u32)>;

struct World {
    now: u64,
    order: u64,
    connections: Vec<Connection>,
    boards: Vec<Board<Vec<AtomicU64>>>,
    free: Vec<f64>,
    events: BinaryHeap<Event>,
    /// Senders know nothing of the queues behind their own links.
    switched: bool,
}

const NONE: [u64; RAILS_MAX] = [0; RAILS_MAX];

impl World {
    fn ring(demand: impl Fn(usize, usize) -> u64) -> Self {
        let pairs = (0..HOSTS).flat_map(|a| (0..HOSTS).map(move |b| (a, b))).filter(|(a, b)| a != b);
        let of = |(a, b)| {
            let mut sender = Sender::new(CHUNK, 0);
            let ways = ways(a, b);
            for (i, (rail, links)) in ways.iter().enumerate() {
                sender.path_up(i, *rail, links.len() as u64, 0);
            }
            Connection { from: a, sender, ways, bytes: demand(a, b), posted: 0, done: 0, messages: 0, lately: 0.0 }
        };
        World::of(pairs.map(of).collect(), 2 * HOSTS, false)
    }

    /// All ranks of all hosts send to those of the others; GPU i has rail i as its home. A path is direct: the switch is no other host's link.
    fn switched(hosts: usize, ranks: usize, bytes: u64, shuffled: Option<u64>) -> Self {
        // In NCCL's order: every rank begins with the next one.
        let all = hosts * ranks;
        let pairs = (1..all).flat_map(|next| (0..all).map(move |a| (a, (a + next) % all)));
        let of = |(a, b): (usize, usize)| {
            let mut sender = Sender::new(CHUNK, 0);
            let ways = rails(hosts, ranks, a / ranks, b / ranks, a % ranks);
            ways.iter().enumerate().for_each(|(i, (rail, _))| sender.path_up(i, *rail, 1, 0));
            Connection { from: a / ranks, sender, ways, bytes, posted: 0, done: 0, messages: 0, lately: 0.0 }
        };
        let mut all: Vec<Connection> = pairs.filter(|(a, b)| a / ranks != b / ranks).map(of).collect();
        if let Some(seed) = shuffled {
            all.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        }
        World::of(all, 2 * hosts * ranks, true)
    }

    fn of(connections: Vec<Connection>, links: usize, switched: bool) -> Self {
        let hosts = connections.iter().map(|c| c.from + 1).max().unwrap_or(0);
        let nominal = [RATE as u64; RAILS_MAX];
        let boards = (0..hosts).map(|_| Board::join(private_words(), 1, nominal, 0).unwrap()).collect();
        World { now: 0, order: 0, connections, boards, free: vec![0.0; links], events: BinaryHeap::new(), switched }
    }

    /// A chunk enters the queue of a link.
    fn enter(&mut self, c: usize, path: usize, hop: usize, chunk: Chunk, bytes: u32) {
        let link = self.connections[c].ways[path].1[hop];
        let until = self.free[link].max(self.now as f64) + f64::from(bytes) / RATE * 1e6;
        self.free[link] = until;
        self.order += 1;
        self.events.push(Reverse((until as u64, self.order, c, path, hop, chunk, bytes)));
    }

    /// The connection that heard something comes first, as in the I/O threads.
    fn feed(&mut self, first: usize) {
        for k in 0..self.connections.len() {
            let i = (k + first) % self.connections.len();
            let c = &mut self.connections[i];
            let view = View { board: &self.boards[c.from], others: &NONE };
            while c.posted < c.bytes && (c.posted - c.done) / MESSAGE < AT_ONCE {
                let n = MESSAGE.min(c.bytes - c.posted);
                let slots = Slots::new(&[Slot { room: n, tag: 0 }]).unwrap();
                let announce = Frame::Announce { sequence: c.messages, slots, again: false };
                c.sender.on_frame(0, announce, self.now, &view, &mut Outbox::default()).unwrap();
                assert!(c.sender.send(0, 0, n));
                c.messages += 1;
                c.posted += n;
                c.lately += n as f64;
            }
            let mut orders = Vec::new();
            while let Some(o) = c.sender.next(self.now, &[true; PATHS_MAX], &view) {
                orders.push(o);
            }
            orders.into_iter().for_each(|o| self.enter(i, o.path, 0, o.chunk, o.bytes));
        }
    }

    /// All bytes of one repetition. Returns its time, microseconds. `plans`: the senders follow the common plan.
    fn run(&mut self, plans: bool) -> u64 {
        let begin = self.now;
        (0..self.connections.len()).for_each(|i| (self.connections[i].posted, self.connections[i].done) = (0, 0));
        self.feed(0);
        while let Some(Reverse((at, _, c, path, hop, chunk, bytes))) = self.events.pop() {
            let renew = at / PLAN_US > self.now / PLAN_US;
            self.now = at;
            if renew {
                self.renew(plans);
            }
            if hop + 1 < self.connections[c].ways[path].1.len() {
                self.enter(c, path, hop + 1, chunk, bytes);
                continue;
            }
            let connection = &mut self.connections[c];
            let view = View { board: &self.boards[connection.from], others: &NONE };
            let mut out = Outbox::default();
            let ack = Frame::Ack { chunk, path: path as u8 };
            connection.sender.on_frame(path, ack, at, &view, &mut out).unwrap();
            connection.done += out.done.iter().map(|d| d.1[0]).sum::<u64>();
            self.feed(c);
        }
        assert!(self.connections.iter().all(|c| c.done == c.bytes));
        self.now - begin
    }

    fn pairs(&self, bytes: impl Fn(&Connection) -> f64) -> Vec<Pair> {
        let links = |c: &Connection| c.ways.iter().map(|w| w.1.clone()).collect();
        self.connections.iter().map(|c| Pair { bytes: bytes(c), ways: links(c) }).collect()
    }

    fn renew(&mut self, plans: bool) {
        if self.switched {
            return;
        }
        let parts = split(&[RATE; 2 * HOSTS], &self.pairs(|c| c.lately + 1.0));
        let queues: Vec<u64> = self.free.iter().map(|f| (f - self.now as f64).max(0.0) as u64).collect();
        for (c, parts) in self.connections.iter_mut().zip(parts) {
            c.lately *= 7.0 / 8.0;
            if plans {
                let mut of = [0; PATHS_MAX];
                of.iter_mut().zip(parts).for_each(|(to, n)| *to = n);
                c.sender.set_shares(Some(Shares { of, slack: 512 << 10 }));
            } else {
                let price = |w: &(usize, Vec<usize>)| w.1.iter().skip(1).map(|l| queues[*l]).sum();
                c.ways.iter().enumerate().for_each(|(i, w)| c.sender.set_price(i, price(w)));
            }
        }
    }
}

/// Median time of the repetitions after the first, in units of the optimum: every sender alone, and with the plan.
fn times(demand: impl Fn(usize, usize) -> u64 + Copy) -> [f64; 2] {
    [false, true].map(|plans| {
        let mut w = World::ring(demand);
        let pairs = w.pairs(|c| c.bytes as f64);
        let parts = split(&[RATE; 2 * HOSTS], &pairs);
        let optimum = loads(&[RATE; 2 * HOSTS], &pairs, &parts).into_iter().fold(0.0, f64::max) * 1e6;
        let mut all: Vec<u64> = (0..REPETITIONS).map(|_| w.run(plans)).skip(1).collect();
        all.sort_unstable();
        all[all.len() / 2] as f64 / optimum
    })
}

#[test]
fn with_a_plan_a_ring_is_near_the_optimum_for_uniform_and_skewed_traffic() {
    let uniform = times(|_, _| 4_000_000);
    let pair = times(|a, b| if (a, b) == (0, 1) { 12_000_000 } else { 0 });
    let base = times(|a, b| if (a, b) == (0, 1) { 12_000_000 } else { 1_000_000 });
    let skewed = times(|a, b| 12_000_000 / (1 + (7 * a + 3 * b) as u64 % 9).pow(2));
    println!("alone, planned: uniform {uniform:.2?}, pair {pair:.2?}, pair over base {base:.2?}, skewed {skewed:.2?}");
    for [_, planned] in [uniform, pair, base, skewed] {
        assert!(planned < 1.15, "{planned}");
    }
    assert!(base[1] < base[0] && skewed[1] < skewed[0], "the plan is of no use");
}

#[test]
fn uniform_traffic_between_hosts_with_rails_is_near_the_optimum() {
    for (hosts, ranks) in [(2, 4), (4, 2), (8, 2)] {
        // The ranks of a host wake up in any order.
        for shuffled in [None, Some(1), Some(2), Some(3)] {
            let each = 4 * MESSAGE;
            let mut w = World::switched(hosts, ranks, each, shuffled);
            let optimum = ((hosts - 1) * ranks) as f64 * each as f64 / RATE * 1e6;
            let mut all: Vec<u64> = (0..REPETITIONS).map(|_| w.run(false)).skip(1).collect();
            all.sort_unstable();
            let found = all[all.len() / 2] as f64 / optimum;
            println!("{hosts} x {ranks}, {shuffled:?}: {found:.2}");
            assert!(found < 1.08, "{hosts} x {ranks}, {shuffled:?}: {found}");
        }
    }
}

#[test]
fn paths_carry_their_shares_and_the_others_if_none_of_them_is_up() {
    let board = Board::join(private_words(), 1, [25_000_000; RAILS_MAX], 0).unwrap();
    let view = View { board: &board, others: &NONE };
    let mut s = Sender::new(CHUNK, 0);
    (0..3).for_each(|i| s.path_up(i, i, 1, 0));
    let mut of = [0; PATHS_MAX];
    (of[0], of[1]) = (PARTS / 4, 3 * PARTS / 4);
    s.set_shares(Some(Shares { of, slack: u64::from(CHUNK) }));
    let slots = Slots::new(&[Slot { room: 1 << 30, tag: 0 }]).unwrap();
    s.on_frame(0, Frame::Announce { sequence: 0, slots, again: false }, 0, &view, &mut Outbox::default()).unwrap();
    assert!(s.send(0, 0, 1 << 24));
    let mut carried = [0; 3];
    let mut take = |s: &mut Sender, n: usize| {
        for k in 0..n {
            let o = s.next(k as u64, &[true; PATHS_MAX], &view).unwrap();
            carried[o.path] += 1;
            let ack = Frame::Ack { chunk: o.chunk, path: o.path as u8 };
            s.on_frame(o.path, ack, k as u64, &view, &mut Outbox::default()).unwrap();
        }
        std::mem::take(&mut carried)
    };
    let first = take(&mut s, 100);
    assert!((23..=27).contains(&first[0]) && first[2] == 0, "{first:?}");
    s.path_down(1, &view);
    assert_eq!(take(&mut s, 20), [20, 0, 0], "the share of a path that is down goes to the others with one");
    s.path_down(0, &view);
    assert_eq!(take(&mut s, 20), [0, 0, 20]);
    assert_eq!(view.backlog(2), 0);
}

/// A host of a ring: link k joins rail 0 of host k and rail 1 of the next host.
fn record(h: u8, sent: Vec<(u64, u32)>) -> Record {
    let n = HOSTS as u8;
    let address = |link: u8, end: u8| RailAddress { ip: [10, 128, link, end].into(), prefix: 30, port: 1 };
    let rails = vec![(address(h, 1), 0), (address((h + n - 1) % n, 2), 0)];
    Record { host: u64::from(h), process: 1, sequence: 1, rails, rates: vec![25_000; 2], sent }
}

/// What host 0 knows of the others, each of which has sent `kib` to both neighbours.
fn ring_of_others(kib: u32) -> (Map, Network) {
    let (mut map, n) = (Map::default(), HOSTS as u8);
    for h in 1..n {
        let sent = [(h + 1) % n, (h + n - 1) % n].map(|to| (to.into(), kib)).to_vec();
        assert_eq!(map.learn(record(h, sent), 5), Some(true));
    }
    (map, Network::default())
}

#[test]
fn hosts_that_tell_their_demands_get_shares_until_one_of_them_is_silent() {
    let (map, mut network) = ring_of_others(0);
    let mut shares = |own: &Record, now| {
        let rates = map.demands(own, &mut network, now)?;
        Some(network.shares(0, &rates))
    };
    assert_eq!(shares(&record(0, vec![]), 5), None, "nothing was sent");
    let own = record(0, vec![(1, 100_000)]);
    let found = shares(&own, 5).unwrap();
    let [direct, around] = [found[&1][0], found[&1][1]];
    assert!((28..=36).contains(&direct) && direct + around == PARTS, "{:?}", found[&1]);
    assert!(found[&3][1] > PARTS / 2, "host 3 is the other neighbour, and has its own cable: {:?}", found[&3]);
    assert_eq!(shares(&own, 6 + FRESH_US_MAX), None, "the other hosts are silent");
}

#[test]
fn a_plan_that_is_followed_stays_when_its_gain_falls_a_little_and_ends_when_it_falls_more() {
    let (map, mut network) = ring_of_others(100_000);
    // More to the next host than to the others: the more, the more a plan gains.
    let follows = |tenths: u32| {
        let own = record(0, vec![(1, 100_000 + 10_000 * tenths), (3, 100_000)]);
        let rates = map.demands(&own, &mut network, 5).unwrap();
        !network.shares(0, &rates).is_empty()
    };
    assert_eq!([0, 5, 8, 5, 0, 5].map(follows), [false, false, true, true, false, false]);
}
