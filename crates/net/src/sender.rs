//! The sending side of a connection: a state machine without I/O and without a clock.
//!
//! ```text
//!  program:  send ──► waiting ──(a receive with its tag is announced)──► matched ──(all chunks acknowledged)──► Done
//!  chunk:    unsent ──next()──► held by one path ──Ack──► done
//!               ▲                   │ the path is lost, or its pong overtakes the acknowledgement
//!               └─── again ◄────────┘
//!  path:     up ──(no progress for DEAD_US while another path moves, or its socket fails)──► down ──(dialled again)──► up
//! ```
//!
//! A send takes the first announced slot with its tag; sends of one tag match in their order. A chunk goes to the path that would be done with it
//! first: (unacknowledged bytes of this host on the path's rail + half a chunk) / rate of the rail. A path over relays adds a chunk and the work that
//! waits on each of its other links. The home path is preferred by one chunk. A chunk is held by at most one path at a time.
//!
//! What a connection may hold on a path falls as its host's other connections fill the rail, so all of them move at once and no receiver idles while others
//! are flooded. On slow rails chunks are halved for the same reason ([`crate::limits::CHUNK_US`]).
//!
//! With shares ([`Sender::set_shares`]) only paths that are not ahead of their share are candidates.

use crate::frame::{Bitmap, Chunk, Frame, Slot, chunk_count, chunk_size};
use crate::limits::{
    ANNOUNCED_MAX, CHUNK_BYTES_MIN, CHUNK_US, DEAD_ON_LIVE_RAIL_US, DEAD_RELAYED_US, DEAD_US, FULL_CHUNKS,
    HALVINGS_MAX, HELD_CHUNKS_MIN, PATHS_MAX, PING_US, RAIL_FAST, RAIL_WORK_CHUNKS, RAIL_WORK_US_MAX, RAIL_WORK_US_MIN,
    SENDS_MAX, WINDOW_BYTES_MAX, WINDOW_CHUNKS, WINDOW_US,
};
use crate::rails::{RATE_UNKNOWN, Rails};
use std::collections::VecDeque;
use wire::Malformed;

/// Microseconds of a clock that never goes back.
pub type Micros = u64;
/// Number of a request in its connection's pool.
pub type RequestId = u32;

/// Announcements kept: those open at the receiver, and those complete there whose acknowledgements are on their way.
const GROUPS_MAX: u64 = (ANNOUNCED_MAX + SENDS_MAX) as u64;

/// What a state machine wants done.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Frames without payload, each with its path.
    pub frames: Vec<(usize, Frame)>,
    /// Requests that are complete, with the bytes of each of their messages.
    pub done: Vec<(RequestId, [u64; crate::limits::GROUPED_MAX])>,
    /// Paths that do not move any more: to be closed and dialled again.
    pub lost: Vec<usize>,
}

/// A chunk that a path shall carry now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    pub path: usize,
    pub request: RequestId,
    pub chunk: Chunk,
    /// Position of the chunk in the message, bytes.
    pub offset: u64,
    pub bytes: u32,
    /// Size of the message.
    pub total: u64,
    /// The chunk was given to a path before.
    pub is_repeated: bool,
}

#[derive(Debug)]
struct Message {
    request: RequestId,
    total: u64,
    halvings: u8,
    /// Size of its chunks, bytes.
    chunk: u64,
    count: u32,
    /// The first chunk that no path has carried.
    next: u32,
    acked: Bitmap,
}

#[derive(Debug)]
enum Send {
    Free(Slot),
    Busy(Message),
    Done,
}

#[derive(Debug)]
struct Held {
    chunk: Chunk,
    bytes: u32,
    at: Micros,
}

#[derive(Debug, Default)]
struct Path {
    up: bool,
    rail: usize,
    /// Links of hosts that the path uses; 1 for a direct path.
    links: u64,
    /// Work that waits on its other links, microseconds.
    price: Micros,
    held: VecDeque<Held>,
    held_bytes: u64,
    /// When an acknowledgement of one of its chunks, or a pong, arrived last.
    moved: Micros,
    pinged: Micros,
}

#[derive(Debug)]
struct Waiting {
    request: RequestId,
    tag: i32,
    size: u64,
}

/// The parts of the bytes that paths shall carry, while one of them is up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// Relative to each other.
    pub of: [u32; PATHS_MAX],
    /// Bytes that a path may be ahead of its share.
    pub slack: u64,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Sender {
    chunk: u32,
    /// Of the messages that begin from now on.
    halvings: u8,
    home: usize,
    paths: [Path; PATHS_MAX],
    /// Announced groups from `base` on; `None`: an announcement that has not arrived.
    groups: VecDeque<Option<Vec<Send>>>,
    base: u64,
    /// Number of groups at the front of `groups` that have all arrived.
    known: usize,
    waiting: VecDeque<Waiting>,
    sends: usize,
    /// Messages with chunks that no path has carried, in the order of their matches.
    unsent: VecDeque<(u64, u8)>,
    again: VecDeque<Chunk>,
    /// Chunks that went out more than once.
    repeated: u64,
    turn: usize,
    shares: Option<Shares>,
    /// Bytes that each path has carried since the shares were set.
    carried: [u64; PATHS_MAX],
}

impl Sender {
    /// `chunk`: size agreed with the receiver, bytes. `home`: the preferred path.
    pub fn new(chunk: u32, home: usize) -> Self {
        Sender {
            chunk,
            halvings: 0,
            home,
            paths: Default::default(),
            groups: VecDeque::new(),
            base: 0,
            known: 0,
            waiting: VecDeque::new(),
            sends: 0,
            unsent: VecDeque::new(),
            again: VecDeque::new(),
            repeated: 0,
            turn: 0,
            shares: None,
            carried: [0; PATHS_MAX],
        }
    }

    /// Sets the shares of the paths, and begins to count what they carry anew. `None`: the path that would be done first takes the next chunk.
    pub fn set_shares(&mut self, shares: Option<Shares>) {
        (self.shares, self.carried) = (shares, [0; PATHS_MAX]);
    }

    /// The paths that are not ahead of their shares; at least one. `None` without shares, and if no path with a share is up.
    fn due(&self) -> Option<[bool; PATHS_MAX]> {
        let shares = self.shares.as_ref()?;
        let of = |i: usize| if self.is_up(i) { u128::from(shares.of.get(i).copied().unwrap_or(0)) } else { 0 };
        let sum = (0..PATHS_MAX).map(of).sum::<u128>();
        let carried = |i: usize| u128::from(self.carried.get(i).copied().unwrap_or(0));
        let all = (0..PATHS_MAX).filter(|i| of(*i) > 0).map(carried).sum::<u128>();
        let is_due = |i| of(i) > 0 && carried(i) * sum <= of(i) * all + u128::from(shares.slack) * sum;
        (sum > 0).then(|| std::array::from_fn(is_due))
    }

    /// The path can carry chunks. `rail`: its first link on this host; `links`: links that it uses.
    pub fn path_up(&mut self, path: usize, rail: usize, links: u64, now: Micros) {
        if let Some(p) = self.paths.get_mut(path) {
            (p.up, p.rail, p.links, p.moved, p.pinged) = (true, rail, links.max(1), now, 0);
        }
    }

    /// The work that waits on a path's links behind the first one, microseconds.
    pub fn set_price(&mut self, path: usize, price: Micros) {
        if let Some(p) = self.paths.get_mut(path) {
            p.price = price;
        }
    }

    /// The preferred path.
    pub fn set_home(&mut self, path: usize) {
        self.home = path;
    }

    /// The path carries nothing any more; its chunks go again over other paths.
    pub fn path_down(&mut self, path: usize, rails: &impl Rails) {
        let Some(p) = self.paths.get_mut(path) else { return };
        p.up = false;
        rails.give(p.rail, p.held_bytes);
        p.held_bytes = 0;
        self.repeated += p.held.len() as u64;
        self.again.extend(p.held.drain(..).map(|h| h.chunk));
    }

    pub fn is_up(&self, path: usize) -> bool {
        self.paths.get(path).is_some_and(|p| p.up)
    }

    /// True if the path has delivered something within the time after which a path counts as dead.
    pub fn has_moved(&self, path: usize, now: Micros) -> bool {
        self.paths.get(path).is_some_and(|p| now.saturating_sub(p.moved) < DEAD_US)
    }

    /// Number of paths that are up.
    pub fn ups(&self) -> usize {
        self.paths.iter().filter(|p| p.up).count()
    }

    /// Accepts a send; false means "not now": too many are under way.
    pub fn send(&mut self, request: RequestId, tag: i32, size: u64) -> bool {
        if self.sends >= SENDS_MAX {
            return false;
        }
        self.sends += 1;
        // No waiting send has the tag of a free slot. One with this tag waits: no free slot has it.
        let behind = self.waiting.iter().any(|w| w.tag == tag);
        let groups = self.groups.iter_mut().take(if behind { 0 } else { self.known }).enumerate();
        for (g, group) in groups {
            for (s, send) in group.iter_mut().flatten().enumerate() {
                if let Send::Free(slot) = send
                    && slot.tag == tag
                {
                    let sequence = self.base + g as u64;
                    *send = Send::Busy(message(self.chunk, self.halvings, request, size.min(slot.room)));
                    self.unsent.push_back((sequence, s as u8));
                    return true;
                }
            }
        }
        self.waiting.push_back(Waiting { request, tag, size });
        true
    }

    /// Groups below are done: their places are of no more use.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Number of sends that are not done.
    pub fn sends(&self) -> usize {
        self.sends
    }

    /// Number of chunks that went out again.
    pub fn repeated(&self) -> u64 {
        self.repeated
    }

    /// Handles a frame that arrived over `path`.
    ///
    /// # Errors
    /// The peer breaks the protocol; the connection cannot be used further.
    pub fn on_frame(
        &mut self,
        path: usize,
        frame: Frame,
        now: Micros,
        rails: &impl Rails,
        out: &mut Outbox,
    ) -> Result<(), Malformed> {
        match frame {
            Frame::Announce { sequence, slots, again } => self.on_announce(sequence, slots.as_slice(), again, out),
            Frame::Ack { chunk, path } => self.on_ack(chunk, usize::from(path), now, rails, out),
            Frame::Pong { number } => {
                self.on_pong(path, number, now, rails);
                Ok(())
            }
            Frame::Ping { number } => {
                out.frames.push((path, Frame::Pong { number }));
                Ok(())
            }
            Frame::Bye => Ok(()),
            Frame::Data { .. } | Frame::Announced { .. } | Frame::Begin { .. } | Frame::Down { .. } => {
                Err(Malformed("a receiver sent a frame of senders"))
            }
        }
    }

    fn on_announce(&mut self, sequence: u64, slots: &[Slot], again: bool, out: &mut Outbox) -> Result<(), Malformed> {
        if sequence >= self.base {
            let i = sequence - self.base;
            if i >= GROUPS_MAX {
                return Err(Malformed("too many receives are announced"));
            }
            let i = i as usize;
            if self.groups.len() <= i {
                self.groups.resize_with(i + 1, || None);
            }
            if let Some(group @ None) = self.groups.get_mut(i) {
                *group = Some(slots.iter().map(|s| Send::Free(*s)).collect());
            }
            while let Some(Some(_)) = self.groups.get(self.known) {
                self.match_group(self.known);
                self.known += 1;
            }
        }
        if again {
            let sequence = self.base + self.known as u64;
            self.say_twice(None, Frame::Announced { sequence }, out);
        }
        Ok(())
    }

    /// Gives waiting sends the slots of a new group.
    fn match_group(&mut self, g: usize) {
        let Some(Some(group)) = self.groups.get_mut(g) else { return };
        for (s, send) in group.iter_mut().enumerate() {
            let Send::Free(slot) = send else { continue };
            let Some(i) = self.waiting.iter().position(|w| w.tag == slot.tag) else { continue };
            let Some(w) = self.waiting.remove(i) else { continue };
            *send = Send::Busy(message(self.chunk, self.halvings, w.request, w.size.min(slot.room)));
            self.unsent.push_back((self.base + g as u64, s as u8));
        }
    }

    fn message(&self, sequence: u64, sub: u8) -> Option<&Message> {
        let group = self.groups.get(sequence.checked_sub(self.base)? as usize)?.as_ref()?;
        if let Send::Busy(m) = group.get(usize::from(sub))? { Some(m) } else { None }
    }

    /// True while the chunk's message needs it: its buffer may be read.
    pub fn needs(&self, chunk: Chunk) -> bool {
        self.message(chunk.sequence, chunk.sub).is_some_and(|m| chunk.index < m.count && !m.acked.has(chunk.index))
    }

    fn on_ack(
        &mut self,
        chunk: Chunk,
        via: usize,
        now: Micros,
        rails: &impl Rails,
        out: &mut Outbox,
    ) -> Result<(), Malformed> {
        let Some(i) = chunk.sequence.checked_sub(self.base) else { return Ok(()) };
        let never = Malformed("a chunk that was not sent is acknowledged");
        let group = self.groups.get_mut(i as usize).and_then(|g| g.as_mut()).ok_or(never)?;
        let send = group.get_mut(usize::from(chunk.sub)).ok_or(never)?;
        let m = match send {
            Send::Busy(m) => m,
            Send::Done => return Ok(()),
            Send::Free(_) => return Err(never),
        };
        if chunk.index >= m.next || chunk.halvings != m.halvings {
            return Err(never);
        }
        if !m.acked.set(chunk.index) {
            return Ok(()); // a copy
        }
        if m.acked.is_full() {
            let mut bytes = [0; crate::limits::GROUPED_MAX];
            bytes[0] = m.total;
            out.done.push((m.request, bytes));
            self.sends -= 1;
            *send = Send::Done;
        }
        self.release(chunk, via, now, rails);
        while let Some(Some(group)) = self.groups.front()
            && group.iter().all(|s| matches!(s, Send::Done))
        {
            self.groups.pop_front();
            self.base += 1;
            self.known -= 1;
        }
        Ok(())
    }

    /// Takes an acknowledged chunk off the path that holds it.
    fn release(&mut self, chunk: Chunk, via: usize, now: Micros, rails: &impl Rails) {
        if let Some(p) = self.paths.get_mut(via).filter(|p| p.up) {
            p.moved = now;
        }
        let order = std::iter::once(via).chain((0..PATHS_MAX).filter(|i| *i != via));
        for i in order {
            let Some(p) = self.paths.get_mut(i) else { continue };
            let Some(at) = p.held.iter().position(|h| h.chunk == chunk) else { continue };
            if let Some(h) = p.held.remove(at) {
                p.held_bytes -= u64::from(h.bytes);
                rails.give(p.rail, u64::from(h.bytes));
                if i == via {
                    rails.moved(p.rail, u64::from(h.bytes), now);
                }
            }
            return;
        }
    }

    /// The path delivers in order, so chunks that were handed over before the ping have arrived and their acknowledgements are lost.
    fn on_pong(&mut self, path: usize, number: u64, now: Micros, rails: &impl Rails) {
        let Some(p) = self.paths.get_mut(path).filter(|p| p.up) else { return };
        p.moved = now;
        let old = p.held.iter().take_while(|h| h.at < number).count();
        for h in p.held.drain(..old) {
            p.held_bytes -= u64::from(h.bytes);
            rails.give(p.rail, u64::from(h.bytes));
            self.again.push_back(h.chunk);
            self.repeated += 1;
        }
    }

    /// The next chunk and its path, if a path should take one now. `ready`: paths whose sockets have room. Afterwards the path holds the chunk.
    pub fn next(&mut self, now: Micros, ready: &[bool; PATHS_MAX], rails: &impl Rails) -> Option<Order> {
        while let Some(c) = self.again.front()
            && !self.needs(*c)
        {
            self.again.pop_front();
        }
        if self.again.is_empty() && self.unsent.is_empty() {
            return None;
        }
        self.halvings = self.halvings(rails);
        let path = self.choose(ready, rails)?;
        let (chunk, is_repeated) = match self.again.pop_front() {
            Some(c) => (c, true),
            None => (self.take_unsent()?, false),
        };
        let m = self.message(chunk.sequence, chunk.sub)?;
        let offset = u64::from(chunk.index) * m.chunk;
        let bytes = (m.total - offset).min(m.chunk) as u32;
        let order = Order { path, request: m.request, chunk, offset, bytes, total: m.total, is_repeated };
        let p = self.paths.get_mut(path)?;
        p.held.push_back(Held { chunk, bytes, at: now });
        p.held_bytes += u64::from(bytes);
        rails.take(p.rail, u64::from(bytes));
        if let Some(c) = self.carried.get_mut(path) {
            *c += u64::from(bytes);
        }
        Some(order)
    }

    /// See [`CHUNK_US`].
    fn halvings(&self, rails: &impl Rails) -> u8 {
        // Nothing is halved before a rate is known.
        let rate = self.paths.iter().filter(|p| p.up).filter_map(|p| rails.rate(p.rail)).max().unwrap_or(u64::MAX);
        let fits = |n: &u8| {
            let bytes = u128::from(self.chunk >> n);
            bytes * 1_000_000 <= u128::from(rate) * u128::from(CHUNK_US) || bytes / 2 < u128::from(CHUNK_BYTES_MIN)
        };
        (0..HALVINGS_MAX).find(fits).unwrap_or(HALVINGS_MAX)
    }

    fn take_unsent(&mut self) -> Option<Chunk> {
        let &(sequence, sub) = self.unsent.front()?;
        let group = self.groups.get_mut((sequence - self.base) as usize)?.as_mut()?;
        let Send::Busy(m) = group.get_mut(usize::from(sub))? else { return None };
        let index = m.next;
        m.next += 1;
        if m.next == m.count {
            self.unsent.pop_front();
        }
        Some(Chunk { sequence, sub, index, halvings: m.halvings })
    }

    /// The path that would be done first; `None` if that path cannot take a chunk now. A path that would be done later is no better than waiting.
    fn choose(&self, ready: &[bool; PATHS_MAX], rails: &impl Rails) -> Option<usize> {
        let chunk = u128::from(self.chunk);
        let piece = chunk >> self.halvings;
        let due = self.due();
        let mut best: Option<(u128, usize, bool)> = None;
        let is_candidate = |i: usize, p: &Path| p.up && due.is_none_or(|d| d.get(i) == Some(&true));
        for (i, (p, ready)) in self.paths.iter().zip(ready).enumerate().filter(|(i, (p, _))| is_candidate(*i, p)) {
            let rate = u128::from(rails.rate(p.rail).unwrap_or(RATE_UNKNOWN));
            let backlog = u128::from(rails.backlog(p.rail));
            let window = (rate * u128::from(WINDOW_US) / 1_000_000)
                .clamp(chunk * u128::from(WINDOW_CHUNKS), u128::from(WINDOW_BYTES_MAX).max(chunk * 4))
                * u128::from(p.links);
            let full = u128::from(p.held_bytes) + chunk > window.max(chunk) || p.held.len() >= 4096;
            // What a connection may hold falls as its host's other connections fill the rail (the dynamic threshold of shared buffers): else those
            // that came first keep the rail, hosts serve their destinations one after the other, and many meet at one while another one idles.
            let more =
                u128::from(RAIL_WORK_US_MAX - RAIL_WORK_US_MIN) * rate.min(RAIL_FAST.into()) / u128::from(RAIL_FAST);
            let work = rate * (u128::from(RAIL_WORK_US_MIN) + more) / 1_000_000;
            let cap = work.max(u128::from(RAIL_WORK_CHUNKS) * chunk);
            let held = u128::from(p.held_bytes);
            let long = held >= u128::from(HELD_CHUNKS_MIN) * piece && held + backlog > cap;
            let open = *ready && !full && !long;
            if due.is_some() && !open {
                continue;
            }
            // In nanoseconds; a path that cannot take a chunk must move some first.
            let bytes = backlog
                + chunk / 2
                + if open { 0 } else { u128::from(FULL_CHUNKS) * chunk }
                + chunk * u128::from(p.links - 1);
            let home = if i == self.home { 0 } else { chunk };
            let time = (bytes + home) * 1_000_000_000 / rate + u128::from(p.price) * 1_000;
            if best.is_none_or(|b| time < b.0) {
                best = Some((time, i, open));
            }
        }
        best.filter(|b| b.2).map(|b| b.1)
    }

    /// True if chunks wait for a path.
    pub fn has_unsent(&self) -> bool {
        !self.again.is_empty() || !self.unsent.is_empty()
    }

    /// True if a path holds chunks: [`tick`](Sender::tick) must be called.
    pub fn has_held(&self) -> bool {
        self.paths.iter().any(|p| !p.held.is_empty())
    }

    /// Finds paths that do not move. To be called about every 20 ms while [`has_held`](Sender::has_held).
    pub fn tick(&mut self, now: Micros, rails: &impl Rails, out: &mut Outbox) {
        let since = |p: &Path| p.held.front().filter(|_| p.up).map(|h| now.saturating_sub(h.at.max(p.moved)));
        if self.paths.iter().any(|p| since(p).is_some_and(|t| t > PING_US)) {
            for (i, p) in self.paths.iter_mut().enumerate().filter(|(_, p)| p.up && now >= p.pinged + PING_US) {
                p.pinged = now;
                out.frames.push((i, Frame::Ping { number: now }));
            }
        }
        for i in 0..PATHS_MAX {
            let Some(p) = self.paths.get(i) else { continue };
            let Some(still) = since(p).filter(|t| *t > DEAD_US) else { continue };
            // The rail of a path over relays says nothing about the path's other links.
            let relayed = p.links > 1 && still > DEAD_RELAYED_US;
            let rail_dead = now.saturating_sub(rails.last_moved(p.rail)) > DEAD_US || relayed;
            let other = |(k, q): (usize, &Path)| k != i && q.up && now.saturating_sub(q.moved) < DEAD_US;
            if (rail_dead || still > DEAD_ON_LIVE_RAIL_US) && self.paths.iter().enumerate().any(other) {
                self.path_down(i, rails);
                out.lost.push(i);
            }
        }
    }

    /// Sends a frame over `first`, if it is up, and another path, or over two paths in turn: one of them may be dead unnoticed.
    fn say_twice(&mut self, first: Option<usize>, frame: Frame, out: &mut Outbox) {
        self.turn = self.turn.wrapping_add(1);
        two_paths(first, self.turn, |i| self.is_up(i)).for_each(|p| out.frames.push((p, frame)));
    }
}

fn message(chunk: u32, halvings: u8, request: RequestId, total: u64) -> Message {
    // A single chunk has one size, whatever the halvings: a device that writes it does not tell them.
    let halvings = if chunk_count(chunk, halvings, total) == 1 { 0 } else { halvings };
    let count = chunk_count(chunk, halvings, total);
    let chunk = chunk_size(chunk, halvings, total);
    Message { request, total, halvings, chunk, count, next: 0, acked: Bitmap::new(count) }
}

/// At most two paths that are up: `first`, then the others from `turn` on.
pub(crate) fn two_paths(first: Option<usize>, turn: usize, up: impl Fn(usize) -> bool) -> impl Iterator<Item = usize> {
    let others = (0..PATHS_MAX).map(move |i| (turn + i) % PATHS_MAX).filter(move |i| Some(*i) != first);
    first.into_iter().chain(others).filter(move |i| up(*i)).take(2)
}
