//! The second road of a path: a queue pair. Chunks are written straight into the announced buffers; frames without payload travel as messages.
//!
//! A written chunk names itself in 32 bits: the low 16 bits of its sequence, 3 of its message, 12 of its index, and 1 if it is the whole message. The size
//! of a longer message goes ahead on the same pair ([`Frame::Begin`]).
//!
//! **What a write may do.** A receiver cannot refuse a late write as it can throw away a late frame. So a chunk is written at most once, over one pair; a
//! chunk that goes again goes over TCP, where copies are thrown away. Before it does, the receiver is told which pair is lost ([`Frame::Down`]) and ends it:
//! from then on nothing of it can arrive in a buffer that belongs to the program again.

use crate::frame::{Chunk, Frame};
use crate::limits::{CHUNKS_MAX, GROUPED_MAX, PATHS_MAX};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use verbs::abi::Part;
use verbs::{Event, MESSAGE_BYTES, Pair};
use wire::{Malformed, Reader as Words, Writer};

/// Kind of a message part with the places of an announcement; kinds of frames are below.
const PLACES: u8 = 0x40;
const PLACE_BYTES: usize = 8 + 4 * PATHS_MAX;
/// Completions per event: other paths get their turn.
const POLL_MAX: usize = 256;
/// Messages that stay free for frames when chunks are written.
const SPARE: usize = 16;
/// Messages that wait for room; beyond, frames are dropped and repeated by the state machines.
const BACKLOG_MAX: usize = 256;

/// Where a receive is: its address, and its key for every path; 0: not to be written over this path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    pub address: u64,
    pub keys: [u32; PATHS_MAX],
}

/// The places of an announced group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Places {
    pub sequence: u64,
    pub count: usize,
    pub all: [Place; GROUPED_MAX],
}

impl Places {
    pub fn write(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u8(PLACES).u8(self.count.min(GROUPED_MAX) as u8).u16(0).u32(0).u64(self.sequence);
        for place in self.all.iter().take(self.count) {
            w.u64(place.address);
            place.keys.iter().for_each(|k| _ = w.u32(*k));
        }
        w.0
    }

    /// The places at the start of a message and their length.
    ///
    /// # Errors
    /// The bytes are none.
    pub fn read(bytes: &[u8]) -> Result<(Self, usize), Malformed> {
        let mut r = Words::new(bytes);
        let (_kind, count) = (r.u8()?, usize::from(r.u8()?));
        r.u16()?;
        r.u32()?;
        let mut p = Places { sequence: r.u64()?, count, ..Places::default() };
        if count == 0 || count > GROUPED_MAX {
            return Err(Malformed("a group has no place, or too many"));
        }
        for place in p.all.iter_mut().take(count) {
            place.address = r.u64()?;
            for k in &mut place.keys {
                *k = r.u32()?;
            }
        }
        Ok((p, 16 + count * PLACE_BYTES))
    }
}

/// The name of a written chunk. `is_whole`: it is the only one of its message.
pub fn immediate(chunk: Chunk, is_whole: bool) -> u32 {
    let index = chunk.index & (CHUNKS_MAX as u32 - 1);
    (chunk.sequence as u32 & 0xffff) << 16 | u32::from(chunk.sub & 7) << 13 | index << 1 | u32::from(is_whole)
}

/// The low 16 bits of the sequence, the message, the index, and whether the chunk is the whole message.
pub fn read_immediate(word: u32) -> (u16, u8, u32, bool) {
    ((word >> 16) as u16, (word >> 13 & 7) as u8, word >> 1 & 0xfff, word & 1 == 1)
}

/// What a pair hands to its connection.
pub(crate) trait Reader {
    fn frame(&mut self, frame: Frame) -> io::Result<()>;
    fn places(&mut self, places: Places) -> io::Result<()>;
    fn written(&mut self, immediate: u32, bytes: u32) -> io::Result<()>;
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Rdma {
    pair: Pair,
    /// Number of the dial that made it.
    pub dial: u32,
    backlog: VecDeque<Vec<u8>>,
    /// The message whose size was told last.
    begun: Option<(u64, u8)>,
}

impl Rdma {
    pub fn new(pair: Pair, dial: u32) -> Self {
        Rdma { pair, dial, backlog: VecDeque::new(), begun: None }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.pair.fd()
    }

    /// Queues a frame without payload. `before`: bytes that go ahead of it in the same message.
    pub fn say(&mut self, before: &[u8], frame: &Frame) {
        let mut bytes = before.to_vec();
        frame.write(&mut bytes);
        let is_full = self.backlog.len() >= BACKLOG_MAX;
        match self.backlog.back_mut() {
            Some(last) if last.len() + bytes.len() <= MESSAGE_BYTES => last.append(&mut bytes),
            _ if is_full => {}
            _ => self.backlog.push_back(bytes),
        }
    }

    /// Sends what waits, as far as there is room.
    pub fn flush(&mut self) -> io::Result<()> {
        while let Some(first) = self.backlog.front() {
            if !self.pair.send(first)? {
                break;
            }
            self.backlog.pop_front();
        }
        Ok(())
    }

    /// Nothing waits and nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.backlog.is_empty() && self.pair.is_idle()
    }

    /// True if a chunk can be written now.
    pub fn takes_chunk(&self) -> bool {
        self.pair.takes_write() && self.pair.takes_message(SPARE)
    }

    /// Writes a chunk of a message of `total` bytes. [`takes_chunk`](Rdma::takes_chunk) must hold.
    pub fn write(&mut self, chunk: Chunk, total: u64, part: Part, to: (u64, u32)) -> io::Result<()> {
        let is_whole = u64::from(part.bytes) == total;
        let message = (chunk.sequence, chunk.sub);
        if !is_whole && self.begun != Some(message) {
            let mut bytes = Vec::new();
            let Chunk { sequence, sub, halvings, .. } = chunk;
            Frame::Begin { sequence, sub, halvings, total }.write(&mut bytes);
            if !self.pair.send(&bytes)? {
                return Err(ErrorKind::WouldBlock.into());
            }
            self.begun = Some(message);
        }
        self.pair.write(part, to, immediate(chunk, is_whole))
    }

    /// Reads what has arrived.
    pub fn read(&mut self, to: &mut impl Reader) -> io::Result<()> {
        self.pair.rearm()?;
        let malformed = |e: Malformed| io::Error::new(ErrorKind::InvalidData, e);
        self.pair.poll(POLL_MAX, |event| match event {
            Event::Written { immediate, bytes } => to.written(immediate, bytes),
            Event::Message(mut bytes) => {
                while let Some(kind) = bytes.first() {
                    let n = if *kind == PLACES {
                        let (places, n) = Places::read(bytes).map_err(malformed)?;
                        to.places(places)?;
                        n
                    } else {
                        let read = Frame::read(bytes).map_err(malformed)?;
                        let (frame, n) = read.ok_or_else(|| malformed(Malformed("a message ends within a frame")))?;
                        to.frame(frame)?;
                        n
                    };
                    bytes = bytes.get(n..).unwrap_or_default();
                }
                Ok(())
            }
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn places_survive_encoding(sequence: u64, count in 1usize..=8, address: u64, keys: [u32; PATHS_MAX]) {
            let mut p = Places { sequence, count, ..Places::default() };
            p.all.iter_mut().take(count).enumerate().for_each(|(i, q)| *q = Place { address: address ^ i as u64, keys });
            let bytes = p.write();
            prop_assert_eq!(Places::read(&bytes), Ok((p, bytes.len())));
            prop_assert!((0..bytes.len()).all(|n| Places::read(&bytes[..n]).is_err()));
            let longest = crate::frame::CONTROL_BYTES_MAX;
            prop_assert!(bytes.len() + longest <= MESSAGE_BYTES);
        }

        #[test]
        fn any_bytes_are_places_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Ok((p, n)) = Places::read(&bytes) {
                prop_assert!(n <= bytes.len() && (1..=GROUPED_MAX).contains(&p.count));
            }
        }

        #[test]
        fn a_written_chunk_is_named_by_its_word(sequence: u64, sub in 0u8..8, index in 0u32..4096, whole: bool) {
            let word = immediate(Chunk { sequence, sub, index, halvings: 0 }, whole);
            prop_assert_eq!(read_immediate(word), (sequence as u16, sub, index, whole));
        }
    }
}
