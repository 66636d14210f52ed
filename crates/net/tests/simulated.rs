//! A connection over simulated paths that are slow, reorder against each other, stall, lose what is on its way and return. No clock, no I/O.
//!
//! `LINKWISE_SEEDS=100000 cargo test -p net --test simulated` runs more seeds; `LINKWISE_SEED=n` one of them.

use net::frame::{Chunk, Frame, Slot};
use net::limits::{PATHS_MAX, RAILS_MAX};
use net::rails::{Board, View, private_words};
use net::receiver::{Place, Receiver};
use net::sender::{Order, Outbox, Sender};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

const CHUNK: u32 = 4096;
/// A run that takes longer is a deadlock, simulated microseconds.
const TIME_MAX: u64 = 120_000_000;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// Arrives at the receiver (true) or the sender. `message`: whose bytes a chunk carries.
    Deliver {
        path: usize,
        life: u64,
        to_receiver: bool,
        bytes: Vec<u8>,
        message: Option<u32>,
    },
    Send(u32),
    Receive(u32),
    Tick,
    Stall {
        path: usize,
        until: u64,
    },
    Cut {
        path: usize,
    },
    Told {
        path: usize,
        life: u64,
        receiver: bool,
    },
    Dial {
        path: usize,
        life: u64,
    },
    Dialled {
        path: usize,
        life: u64,
    },
}

#[derive(Debug, Default, Clone)]
struct Wire {
    life: u64,
    cut: bool,
    delay: u64,
    bytes_per_ms: u64,
    stalled_until: u64,
    /// The end of the last delivery in each direction: a path keeps its order.
    last: [u64; 2],
    /// Until when the sender's socket is full.
    full_until: u64,
}

struct World {
    rng: ChaCha8Rng,
    now: u64,
    order: u64,
    events: BinaryHeap<std::cmp::Reverse<(u64, u64, Event)>>,
    wires: Vec<Wire>,
    sender: Sender,
    receiver: Receiver,
    board: Board<Vec<std::sync::atomic::AtomicU64>>,
    /// Tag and size of each message to send.
    messages: Vec<(i32, u64)>,
    groups: Vec<Vec<Slot>>,
    posted: Vec<u32>,
    waiting: Vec<u32>,
    /// The message that each slot must get.
    expected: HashMap<(u32, u8), u32>,
    placed: BTreeMap<(u32, u8, u64), u32>,
    sent: Vec<bool>,
    received: Vec<bool>,
    faults: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let paths = rng.random_range(1..=4);
        let wires = (0..paths)
            .map(|_| Wire {
                delay: rng.random_range(10..2_000),
                bytes_per_ms: rng.random_range(1_000..200_000),
                ..Wire::default()
            })
            .collect();
        let tags = rng.random_range(1..5);
        let sizes = [0, 1, 4095, 4096, 4097, 20_000, 100_000];
        let mut groups = Vec::new();
        for _ in 0..rng.random_range(1..120) {
            let n = if rng.random_bool(0.5) { 1 } else { rng.random_range(1..=8) };
            let slot =
                |rng: &mut ChaCha8Rng| Slot { room: sizes[rng.random_range(0..7)], tag: rng.random_range(0..tags) };
            groups.push((0..n).map(|_| slot(&mut rng)).collect::<Vec<_>>());
        }
        // One message for every slot; messages of one tag in the order of their slots, tags shuffled among each other.
        let mut queues: BTreeMap<i32, Vec<(u32, u8)>> = BTreeMap::new();
        for (g, slots) in groups.iter().enumerate() {
            slots
                .iter()
                .enumerate()
                .for_each(|(s, slot)| queues.entry(slot.tag).or_default().push((g as u32, s as u8)));
        }
        let (mut messages, mut expected) = (Vec::new(), HashMap::new());
        while !queues.is_empty() {
            let tag = *queues.keys().nth(rng.random_range(0..queues.len())).unwrap();
            let queue = queues.get_mut(&tag).unwrap();
            expected.insert(queue.remove(0), messages.len() as u32);
            messages.push((tag, sizes[rng.random_range(0..7)]));
            if queue.is_empty() {
                queues.remove(&tag);
            }
        }
        let faults = rng.random_bool(0.8);
        // The larger ones are halved on slow paths.
        let chunk = if rng.random_bool(0.5) { CHUNK } else { 16 * CHUNK };
        let mut w = World {
            now: 0,
            order: 0,
            events: BinaryHeap::new(),
            wires,
            sender: Sender::new(chunk, rng.random_range(0..paths)),
            receiver: Receiver::new(chunk),
            board: Board::join(private_words(), 1, [0; RAILS_MAX], 0).unwrap(),
            sent: vec![false; messages.len()],
            received: vec![false; groups.len()],
            messages,
            groups,
            posted: Vec::new(),
            waiting: Vec::new(),
            expected,
            placed: BTreeMap::new(),
            faults,
            rng,
        };
        let (mut send_at, mut receive_at) = (0, 0);
        for i in 0..w.messages.len() as u32 {
            send_at += w.rng.random_range(0..3_000);
            w.at(send_at, Event::Send(i));
        }
        for i in 0..w.groups.len() as u32 {
            receive_at += w.rng.random_range(0..10_000);
            w.at(receive_at, Event::Receive(i));
        }
        for path in 0..w.wires.len() {
            w.receiver.set_up(path, true);
            w.sender.path_up(path, path, 1, 0);
        }
        if w.faults {
            for _ in 0..w.rng.random_range(1..12) {
                let (t, path) = (w.rng.random_range(0..1_000_000), w.rng.random_range(0..w.wires.len()));
                let event = if w.rng.random_bool(0.5) {
                    Event::Stall { path, until: t + w.rng.random_range(1_000..3_000_000) }
                } else {
                    Event::Cut { path }
                };
                w.at(t, event);
            }
        }
        w.at(0, Event::Tick);
        w
    }

    fn at(&mut self, time: u64, event: Event) {
        self.order += 1;
        self.events.push(std::cmp::Reverse((time, self.order, event)));
    }

    fn transmit(&mut self, path: usize, to_receiver: bool, frame: Frame, payload: u64, message: Option<u32>) {
        let w = &mut self.wires[path];
        let (life, delay) = (w.life, w.delay);
        let begin = self.now.max(w.last[usize::from(to_receiver)].saturating_sub(delay));
        let end = begin.max(w.stalled_until) + payload * 1_000 / w.bytes_per_ms + delay;
        w.last[usize::from(to_receiver)] = end;
        if to_receiver && payload > 0 {
            w.full_until = end - delay;
        }
        let mut bytes = Vec::new();
        frame.write(&mut bytes);
        self.at(end, Event::Deliver { path, life, to_receiver, bytes, message });
    }

    fn control(&mut self, out: Outbox, from_receiver: bool) {
        for (path, frame) in out.frames {
            if !self.wires[path].cut {
                self.transmit(path, !from_receiver, frame, 0, None);
            }
        }
        for (request, sizes) in out.done {
            if from_receiver {
                let slots = &self.groups[request as usize];
                for (s, slot) in slots.iter().enumerate() {
                    let message = self.expected[&(request, s as u8)];
                    let size = self.messages[message as usize].1.min(slot.room);
                    assert_eq!(sizes[s], size);
                    let bytes: u64 = self
                        .placed
                        .range((request, s as u8, 0)..(request, s as u8 + 1, 0))
                        .map(|(_, b)| u64::from(*b))
                        .sum();
                    assert_eq!(bytes, size, "a receive is done before its bytes arrived");
                }
                assert!(!std::mem::replace(&mut self.received[request as usize], true), "a receive is done twice");
            } else {
                assert!(!std::mem::replace(&mut self.sent[request as usize], true), "a send is done twice");
            }
        }
        for path in out.lost {
            let life = self.wires[path].life;
            self.at(self.now + 1, Event::Dial { path, life });
        }
    }

    fn push(&mut self) {
        let others = self.board.tick(self.now);
        loop {
            let mut ready = [false; PATHS_MAX];
            for (r, w) in ready.iter_mut().zip(&self.wires) {
                *r = self.now >= w.full_until && self.now >= w.stalled_until;
            }
            let rails = View { board: &self.board, others: &others };
            let Some(Order { path, request, chunk, offset, bytes, total, .. }) =
                self.sender.next(self.now, &ready, &rails)
            else {
                return;
            };
            let (_, size) = self.messages[request as usize];
            assert!(total <= size && offset + u64::from(bytes) <= total);
            self.transmit(path, true, Frame::Data { chunk, bytes, total }, u64::from(bytes), Some(request));
        }
    }

    fn deliver(&mut self, path: usize, to_receiver: bool, bytes: &[u8], message: Option<u32>) {
        let (frame, _) = Frame::read(bytes).unwrap().unwrap();
        let mut out = Outbox::default();
        let (now, others) = (self.now, [0; RAILS_MAX]);
        if !to_receiver {
            let rails = View { board: &self.board, others: &others };
            self.sender.on_frame(path, frame, now, &rails, &mut out).unwrap();
        } else if let Frame::Data { chunk, bytes, total } = frame {
            if let Place::Into { request, sub, offset } = self.receiver.place(chunk, bytes, total).unwrap() {
                assert_eq!(self.expected[&(request, sub)], message.unwrap(), "bytes of another message");
                let before = self.placed.insert((request, sub, offset), bytes);
                assert_eq!(before, None, "a byte arrives twice");
            }
            self.receiver.arrived(path, chunk, bytes, total, &mut out).unwrap();
        } else {
            self.receiver.on_frame(path, frame, &mut out).unwrap();
        }
        self.control(out, to_receiver);
    }

    fn post(&mut self) {
        let mut out = Outbox::default();
        while self.posted.len() < self.groups.len() {
            // The program posts receives in order; only those whose time has come are in `waiting`.
            let next = self.posted.len() as u32;
            if !self.waiting.contains(&next)
                || !self.receiver.receive(next, &self.groups[next as usize], self.now, &mut out)
            {
                break;
            }
            self.posted.push(next);
        }
        self.control(out, true);
    }

    fn step(&mut self, event: Event, unsent: &mut Vec<u32>) {
        match event {
            Event::Deliver { path, life, to_receiver, bytes, message } => {
                let w = &self.wires[path];
                if w.life != life || w.cut {
                } else if self.now < w.stalled_until {
                    self.at(w.stalled_until, Event::Deliver { path, life, to_receiver, bytes, message });
                } else {
                    self.deliver(path, to_receiver, &bytes, message);
                }
            }
            Event::Send(i) => unsent.push(i),
            Event::Receive(i) => self.waiting.push(i),
            Event::Tick => {
                let (mut a, mut b, others) = (Outbox::default(), Outbox::default(), [0; RAILS_MAX]);
                self.sender.tick(self.now, &View { board: &self.board, others: &others }, &mut a);
                self.receiver.tick(self.now, &mut b);
                self.control(a, false);
                self.control(b, true);
                self.at(self.now + 20_000, Event::Tick);
            }
            Event::Stall { path, until } => self.wires[path].stalled_until = until.max(self.wires[path].stalled_until),
            Event::Cut { path } if !self.wires[path].cut => {
                self.wires[path].cut = true;
                let life = self.wires[path].life;
                for receiver in [false, true] {
                    let t = self.now + self.rng.random_range(0..400_000);
                    self.at(t, Event::Told { path, life, receiver });
                }
            }
            Event::Cut { .. } => {}
            Event::Told { path, life, receiver } if self.wires[path].life == life => {
                if receiver {
                    self.receiver.set_up(path, false);
                } else if self.sender.is_up(path) {
                    self.sender.path_down(path, &View { board: &self.board, others: &[0; RAILS_MAX] });
                    self.at(self.now, Event::Dial { path, life });
                }
            }
            Event::Told { .. } => {}
            Event::Dial { path, life } if self.wires[path].life == life => {
                let w = &mut self.wires[path];
                (w.life, w.cut, w.last, w.full_until) = (life + 1, false, [0; 2], 0);
                let (delay, stalled) = (w.delay, w.stalled_until);
                let pause = self.rng.random_range(1_000..600_000);
                self.receiver.set_up(path, false);
                self.at((self.now + pause).max(stalled) + delay, Event::Dialled { path, life: life + 1 });
            }
            Event::Dial { .. } => {}
            Event::Dialled { path, life } if self.wires[path].life == life && !self.wires[path].cut => {
                self.receiver.set_up(path, true);
                self.sender.path_up(path, path, 1, self.now);
            }
            Event::Dialled { path, life } => self.at(self.now, Event::Dial { path, life }),
        }
    }

    fn run(mut self) -> (u64, u64) {
        let mut unsent: Vec<u32> = Vec::new();
        while let Some(std::cmp::Reverse((time, _, event))) = self.events.pop() {
            assert!(
                time < TIME_MAX,
                "deadlock: {:?} {:?}\n{:?}\n{:?}",
                self.sent,
                self.received,
                self.sender,
                self.receiver
            );
            self.now = time;
            self.step(event, &mut unsent);
            self.post();
            // Sends of one tag are posted in their order.
            while let Some(&i) = unsent.first()
                && self.sender.send(i, self.messages[i as usize].0, self.messages[i as usize].1)
            {
                unsent.remove(0);
            }
            self.push();
            if self.sent.iter().chain(&self.received).all(|d| *d) {
                assert_eq!((self.sender.sends(), self.receiver.open()), (0, 0));
                return (self.sender.repeated(), self.receiver.copies());
            }
        }
        unreachable!("ticks never end");
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn every_byte_arrives_once_over_paths_that_stall_die_and_return() {
    let seeds = match number("LINKWISE_SEED") {
        Some(s) => s..s + 1,
        None => 0..number("LINKWISE_SEEDS").unwrap_or(2_000),
    };
    let (mut repeated, mut copies) = (0, 0);
    for seed in seeds {
        let run = std::panic::catch_unwind(|| World::new(seed).run());
        let (r, c) = run.unwrap_or_else(|_| panic!("LINKWISE_SEED={seed}"));
        (repeated, copies) = (repeated + r, copies + c);
    }
    if number("LINKWISE_SEED").is_none() {
        assert!(repeated > 1_000 && copies > 100, "the faults hit nothing: {repeated} repeated, {copies} copies");
    }
}

#[test]
fn a_peer_that_breaks_the_protocol_is_found_out() {
    let mut r = Receiver::new(CHUNK);
    r.set_up(0, true);
    let mut out = Outbox::default();
    assert!(r.receive(0, &[Slot { room: 5000, tag: 1 }], 0, &mut out));
    let chunk = |sequence, sub, index| Chunk { sequence, sub, index, halvings: 0 };
    for (c, bytes, total) in [
        (chunk(1, 0, 0), 10, 10),
        (chunk(0, 1, 0), 10, 10),
        (chunk(0, 0, 0), 4096, 5001),
        (chunk(0, 0, 1), 10, 10),
        (chunk(0, 0, 0), 9, 10),
        (chunk(0, 0, 1), 4096, 5000),
    ] {
        assert!(r.place(c, bytes, total).is_err(), "{c:?} {bytes} {total}");
    }
    assert!(r.arrived(0, chunk(0, 0, 0), 4096, 5000, &mut out).is_ok());
    assert!(r.place(chunk(0, 0, 1), 4, 4100).is_err(), "another size");
    assert_eq!(r.place(chunk(0, 0, 0), 4096, 5000), Ok(Place::Discard));
    assert!(r.on_frame(0, Frame::Announced { sequence: 2 }, &mut out).is_err());

    let board = Board::join(private_words(), 1, [0; RAILS_MAX], 0).unwrap();
    let rails = View { board: &board, others: &[0; RAILS_MAX] };
    let mut s = Sender::new(CHUNK, 0);
    s.path_up(0, 0, 1, 0);
    let announce = |sequence| Frame::Announce {
        again: false,
        sequence,
        slots: net::frame::Slots::new(&[Slot { room: 9, tag: 1 }]).unwrap(),
    };
    assert!(s.on_frame(0, announce(1 << 20), 0, &rails, &mut out).is_err());
    assert!(s.on_frame(0, announce(0), 0, &rails, &mut out).is_ok());
    for c in [chunk(0, 0, 0), chunk(0, 1, 0), chunk(1, 0, 0)] {
        assert!(s.on_frame(0, Frame::Ack { chunk: c, path: 0 }, 0, &rails, &mut out).is_err(), "{c:?} was not sent");
    }
}

#[test]
fn chunks_are_halved_on_slow_rails_but_not_on_rails_whose_rate_is_not_known() {
    for (nominal, bytes) in [(0, 64 << 10), (1_000_000_000, 64 << 10), (10_000_000, 8 << 10)] {
        let board = Board::join(private_words(), 1, [nominal; RAILS_MAX], 0).unwrap();
        let rails = View { board: &board, others: &[0; RAILS_MAX] };
        let mut s = Sender::new(64 << 10, 0);
        s.path_up(0, 0, 1, 0);
        // The first order finds the rate; messages that are posted after it have its chunks.
        for number in 0..2 {
            let sequence = number.into();
            let slots = net::frame::Slots::new(&[Slot { room: 1 << 20, tag: 1 }]).unwrap();
            let announce = Frame::Announce { again: false, sequence, slots };
            s.on_frame(0, announce, 0, &rails, &mut Outbox::default()).unwrap();
            assert!(s.send(number, 1, 1 << 20));
            let mut last = None;
            while let Some(order) = s.next(0, &[true; PATHS_MAX], &rails) {
                let ack = Frame::Ack { chunk: order.chunk, path: 0 };
                s.on_frame(0, ack, 0, &rails, &mut Outbox::default()).unwrap();
                last = Some(order.bytes);
            }
            assert!(number == 0 || last == Some(bytes), "{nominal} bytes per second: {last:?}");
        }
    }
}

#[test]
fn chunks_follow_the_rates_of_the_rails() {
    // Two rails, one four times as fast, acknowledged at their rates: the work is split 4 to 1.
    let board =
        Board::join(private_words(), 1, [4_000_000, 1_000_000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0).unwrap();
    let rails = View { board: &board, others: &[0; RAILS_MAX] };
    let (mut s, mut r) = (Sender::new(CHUNK, 1), Receiver::new(CHUNK));
    for p in 0..2 {
        s.path_up(p, p, 1, 0);
        r.set_up(p, true);
    }
    let total = 4 << 20;
    let mut out = Outbox::default();
    r.receive(0, &[Slot { room: total, tag: 0 }], 0, &mut out);
    s.send(0, 0, total);
    for (p, f) in std::mem::take(&mut out.frames) {
        s.on_frame(p, f, 0, &rails, &mut Outbox::default()).unwrap();
    }
    let (mut carried, mut due): ([u64; 2], [Vec<(u64, Order)>; 2]) = Default::default();
    let mut now = 0;
    while s.sends() > 0 {
        let ready: [bool; PATHS_MAX] = std::array::from_fn(|p| p < 2);
        while let Some(o) = s.next(now, &ready, &rails) {
            carried[o.path] += u64::from(o.bytes);
            let us = u64::from(o.bytes) / if o.path == 0 { 4 } else { 1 };
            let begin = due[o.path].last().map_or(now, |d| d.0.max(now));
            due[o.path].push((begin + us, o));
        }
        now = due.iter().filter_map(|d| d.first().map(|d| d.0)).min().unwrap();
        for (p, due) in due.iter_mut().enumerate() {
            if due.first().is_some_and(|d| d.0 == now) {
                let (_, o) = due.remove(0);
                let ack = Frame::Ack { chunk: o.chunk, path: p as u8 };
                s.on_frame(p, ack, now, &rails, &mut Outbox::default()).unwrap();
            }
        }
    }
    let ideal = total / 5;
    assert!(now < ideal * 102 / 100, "{now} us for {ideal}; {carried:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let runs: Vec<_> = (0..2).map(|_| World::new(7).run()).collect();
    assert_eq!(runs[0], runs[1]);
}
