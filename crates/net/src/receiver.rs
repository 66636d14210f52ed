//! The receiving side of a connection: a state machine without I/O and without a clock.
//!
//! ```text
//!  program:  receive ──► announced ──(all bytes of all its messages arrived)──► Done
//!  chunk:    missing ──arrived()──► in place, acknowledged       a copy: thrown away, acknowledged again
//! ```
//!
//! An announcement goes over the path on which the sender was heard last, and is repeated over two others in turn until a chunk or a word of the sender
//! confirms it. An acknowledgement goes over the path of its chunk; if it is lost, the sender repeats the chunk.

use crate::frame::{Bitmap, Chunk, Frame, Slot, Slots, chunk_count, chunk_size};
use crate::limits::{ANNOUNCE_US, ANNOUNCE_US_MAX, ANNOUNCED_MAX, GROUPED_MAX, PATHS_MAX};
use crate::sender::{Micros, Outbox, RequestId, two_paths};
use std::collections::VecDeque;
use wire::Malformed;

/// The place of a chunk's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Byte `offset` of message `sub` of the request.
    Into { request: RequestId, sub: u8, offset: u64 },
    /// A copy.
    Discard,
}

#[derive(Debug)]
struct Message {
    slot: Slot,
    /// `None` before the first chunk.
    begun: Option<Begun>,
}

#[derive(Debug)]
struct Begun {
    total: u64,
    halvings: u8,
    arrived: Bitmap,
}

impl Begun {
    fn new(chunk: u32, halvings: u8, total: u64) -> Self {
        Begun { total, halvings, arrived: Bitmap::new(chunk_count(chunk, halvings, total)) }
    }

    /// True if a chunk says the same of the message.
    fn agrees(&self, halvings: u8, total: u64) -> bool {
        (self.halvings, self.total) == (halvings, total)
    }
}

#[derive(Debug)]
struct Group {
    request: RequestId,
    messages: Vec<Message>,
    again_at: Micros,
    interval: Micros,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Receiver {
    chunk: u32,
    up: [bool; PATHS_MAX],
    /// Groups from `base` on: the first one is not complete.
    groups: VecDeque<Group>,
    base: u64,
    /// Every announcement below has been confirmed.
    confirmed: u64,
    turn: usize,
    /// The path on which the sender was heard last.
    recent: usize,
    copies: u64,
}

impl Receiver {
    /// `chunk`: size agreed with the sender, bytes.
    pub fn new(chunk: u32) -> Self {
        let up = [false; PATHS_MAX];
        Receiver { chunk, up, groups: VecDeque::new(), base: 0, confirmed: 0, turn: 0, recent: 0, copies: 0 }
    }

    pub fn set_up(&mut self, path: usize, up: bool) {
        if let Some(p) = self.up.get_mut(path) {
            *p = up;
        }
    }

    /// Number of paths that are up.
    pub fn ups(&self) -> usize {
        self.up.iter().filter(|u| **u).count()
    }

    /// Number of groups that are not complete.
    pub fn open(&self) -> usize {
        self.groups.iter().filter(|g| !g.is_complete()).count()
    }

    /// The request of an announced group.
    pub fn request(&self, sequence: u64) -> Option<RequestId> {
        let i = usize::try_from(sequence.checked_sub(self.base)?).ok()?;
        self.groups.get(i).map(|g| g.request)
    }

    /// Number of chunks that arrived again.
    pub fn copies(&self) -> u64 {
        self.copies
    }

    /// Announces a group of receives; false means "not now": too many are announced, or there is no slot or more than [`GROUPED_MAX`].
    pub fn receive(&mut self, request: RequestId, slots: &[Slot], now: Micros, out: &mut Outbox) -> bool {
        let Some(announced) = Slots::new(slots).filter(|_| self.groups.len() < ANNOUNCED_MAX) else { return false };
        let sequence = self.base + self.groups.len() as u64;
        let messages = slots.iter().map(|s| Message { slot: *s, begun: None }).collect();
        self.groups.push_back(Group { request, messages, again_at: now + ANNOUNCE_US, interval: ANNOUNCE_US });
        self.say_once(self.recent, Frame::Announce { sequence, slots: announced, again: false }, out);
        true
    }

    /// Handles a frame without payload that arrived over `path`.
    ///
    /// # Errors
    /// The peer breaks the protocol; the connection cannot be used further.
    pub fn on_frame(&mut self, path: usize, frame: Frame, out: &mut Outbox) -> Result<(), Malformed> {
        self.recent = path;
        match frame {
            Frame::Announced { sequence } if sequence > self.base + self.groups.len() as u64 => {
                Err(Malformed("a receive that was not announced is confirmed"))
            }
            Frame::Announced { sequence } => {
                self.confirmed = self.confirmed.max(sequence);
                Ok(())
            }
            Frame::Ping { number } => {
                out.frames.push((path, Frame::Pong { number }));
                Ok(())
            }
            Frame::Begin { sequence, sub, halvings, total } => self.begin(sequence, sub, halvings, total),
            Frame::Pong { .. } | Frame::Bye | Frame::Down { .. } => Ok(()),
            Frame::Data { .. } | Frame::Announce { .. } | Frame::Ack { .. } => {
                Err(Malformed("a sender sent a frame of receivers"))
            }
        }
    }

    /// The size of a message whose chunks are written by the peer's device.
    fn begin(&mut self, sequence: u64, sub: u8, halvings: u8, total: u64) -> Result<(), Malformed> {
        let Some(i) = sequence.checked_sub(self.base) else { return Ok(()) };
        let group = self.groups.get_mut(i as usize).ok_or(Malformed("a message begins that no receive expects"))?;
        let message = group.messages.get_mut(usize::from(sub)).ok_or(Malformed("a group has no such message"))?;
        if total > message.slot.room {
            return Err(Malformed("a message is larger than its buffer"));
        }
        match &message.begun {
            Some(b) if !b.agrees(halvings, total) => Err(Malformed("a message changes its size")),
            Some(_) => Ok(()),
            None => {
                message.begun = Some(Begun::new(self.chunk, halvings, total));
                Ok(())
            }
        }
    }

    /// A chunk that the peer's device wrote, and the size of its message. `low`: the low bits of its sequence. `whole`: its size if it is the whole message.
    ///
    /// # Errors
    /// The message has not begun.
    pub fn written(&self, low: u16, sub: u8, index: u32, whole: Option<u64>) -> Result<(Chunk, u64), Malformed> {
        let ahead = low.wrapping_sub(self.base as u16);
        let sequence = match ahead {
            0..0x8000 => self.base + u64::from(ahead),
            _ => self.base.saturating_sub(u64::from(ahead.wrapping_neg())),
        };
        let begun = || {
            let group = self.groups.get(usize::try_from(sequence.checked_sub(self.base)?).ok()?)?;
            group.messages.get(usize::from(sub))?.begun.as_ref().map(|b| (b.halvings, b.total))
        };
        let found = whole.map(|total| (0, total)).or_else(begun);
        let (halvings, total) = found.ok_or(Malformed("a chunk is written of a message that has not begun"))?;
        Ok((Chunk { sequence, sub, index, halvings }, total))
    }

    /// Where the payload of a `Data` frame belongs. To be asked again before every write into a buffer: the chunk may have arrived over another path
    /// since, and the buffer may then belong to the program again.
    ///
    /// # Errors
    /// No receive was announced for it, it exceeds its slot, or its length is wrong.
    pub fn place(&self, chunk: Chunk, bytes: u32, total: u64) -> Result<Place, Malformed> {
        let Some(i) = chunk.sequence.checked_sub(self.base) else { return Ok(Place::Discard) };
        let group = self.groups.get(i as usize).ok_or(Malformed("a message arrives that no receive expects"))?;
        let message = group.messages.get(usize::from(chunk.sub)).ok_or(Malformed("a group has no such message"))?;
        if total > message.slot.room {
            return Err(Malformed("a message is larger than its buffer"));
        }
        let size = chunk_size(self.chunk, chunk.halvings, total);
        let offset = u64::from(chunk.index) * size;
        if chunk.index >= chunk_count(self.chunk, chunk.halvings, total)
            || u64::from(bytes) != (total - offset).min(size)
        {
            return Err(Malformed("a chunk has a wrong length"));
        }
        match &message.begun {
            Some(b) if !b.agrees(chunk.halvings, total) => Err(Malformed("a message changes its size")),
            Some(b) if b.arrived.has(chunk.index) => Ok(Place::Discard),
            _ => Ok(Place::Into { request: group.request, sub: chunk.sub, offset }),
        }
    }

    /// The whole payload of a chunk is in place, or was thrown away.
    ///
    /// # Errors
    /// As [`place`](Receiver::place).
    pub fn arrived(
        &mut self,
        path: usize,
        chunk: Chunk,
        bytes: u32,
        total: u64,
        out: &mut Outbox,
    ) -> Result<(), Malformed> {
        let place = self.place(chunk, bytes, total)?;
        // Senders match announcements in order: all up to this one have arrived.
        self.confirmed = self.confirmed.max(chunk.sequence + 1);
        self.recent = path;
        self.say_once(path, Frame::Ack { chunk, path: path as u8 }, out);
        if place == Place::Discard {
            self.copies += 1;
            return Ok(());
        }
        let i = (chunk.sequence - self.base) as usize;
        let Some(group) = self.groups.get_mut(i) else { return Ok(()) };
        let Some(message) = group.messages.get_mut(usize::from(chunk.sub)) else { return Ok(()) };
        let begun = message.begun.get_or_insert_with(|| Begun::new(self.chunk, chunk.halvings, total));
        begun.arrived.set(chunk.index);
        if group.is_complete() {
            let mut sizes = [0; GROUPED_MAX];
            for (to, m) in sizes.iter_mut().zip(&group.messages) {
                *to = m.begun.as_ref().map_or(0, |b| b.total);
            }
            out.done.push((group.request, sizes));
        }
        while self.groups.front().is_some_and(Group::is_complete) {
            self.groups.pop_front();
            self.base += 1;
        }
        Ok(())
    }

    /// Repeats announcements that the sender has not confirmed. To be called about every 20 ms while [`has_unconfirmed`](Receiver::has_unconfirmed).
    pub fn tick(&mut self, now: Micros, out: &mut Outbox) {
        let mut due = Vec::new();
        let from = self.confirmed.saturating_sub(self.base) as usize;
        for (i, g) in self.groups.iter_mut().enumerate().skip(from) {
            if now < g.again_at || g.is_complete() {
                continue;
            }
            g.interval = (g.interval * 2).min(ANNOUNCE_US_MAX);
            g.again_at = now + g.interval;
            let slots: Vec<Slot> = g.messages.iter().map(|m| m.slot).collect();
            let sequence = self.base + i as u64;
            due.extend(Slots::new(&slots).map(|slots| Frame::Announce { sequence, slots, again: true }));
        }
        due.into_iter().for_each(|f| self.say_twice(None, f, out));
    }

    /// True if the sender has not confirmed every announcement.
    pub fn has_unconfirmed(&self) -> bool {
        self.confirmed < self.base + self.groups.len() as u64
    }

    /// Every frame costs the sender a wake-up: one path is enough for what is repeated if it is lost.
    fn say_once(&mut self, path: usize, frame: Frame, out: &mut Outbox) {
        if self.up.get(path).copied().unwrap_or(false) {
            out.frames.push((path, frame));
        } else {
            self.say_twice(None, frame, out);
        }
    }

    fn say_twice(&mut self, first: Option<usize>, frame: Frame, out: &mut Outbox) {
        self.turn = self.turn.wrapping_add(1);
        let up = self.up;
        let up = |i: usize| up.get(i).copied().unwrap_or(false);
        two_paths(first.filter(|p| up(*p)), self.turn, up).for_each(|p| out.frames.push((p, frame)));
    }
}

impl Group {
    fn is_complete(&self) -> bool {
        self.messages.iter().all(|m| m.begun.as_ref().is_some_and(|b| b.arrived.is_full()))
    }
}
