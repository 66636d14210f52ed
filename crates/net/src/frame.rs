//! Frames on a path: a header of 32 bytes, then the payload of `Data` and the slots of `Announce`.
//!
//! ```text
//!  byte 0 kind   1 sub   2 path   3 slots   4 index   8 bytes   12 halvings   16 sequence   24 total      (little endian)
//! ```

use crate::limits::{CHUNK_BYTES_MAX, CHUNKS_MAX, GROUPED_MAX, HALVINGS_MAX, MESSAGE_BYTES_MAX, PATHS_MAX};
use wire::{Malformed, Reader};

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 32;
/// Bytes of one slot of an announcement.
pub const SLOT_BYTES: usize = 16;
/// Bytes of the longest frame without a payload.
pub const CONTROL_BYTES_MAX: usize = HEADER_BYTES + GROUPED_MAX * SLOT_BYTES;

/// A chunk of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Chunk {
    /// Number of the group of receives on its connection.
    pub sequence: u64,
    /// Position of the message in the group.
    pub sub: u8,
    /// Position of the chunk in the message.
    pub index: u32,
    /// How often the size of the message's chunks was halved; see [`chunk_size`].
    pub halvings: u8,
}

/// A receive that the peer has announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slot {
    /// Size of the buffer, bytes.
    pub room: u64,
    /// NCCL's tag.
    pub tag: i32,
}

/// The receives of one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slots {
    slots: [Slot; GROUPED_MAX],
    count: u8,
}

impl Slots {
    /// `None` for no slot or more than [`GROUPED_MAX`].
    pub fn new(slots: &[Slot]) -> Option<Self> {
        let mut all = Slots { count: slots.len() as u8, ..Slots::default() };
        all.slots.get_mut(..slots.len())?.copy_from_slice(slots);
        (!slots.is_empty()).then_some(all)
    }

    pub fn as_slice(&self) -> &[Slot] {
        self.slots.get(..self.count as usize).unwrap_or_default()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// `bytes` of payload follow. `total`: size of the message.
    Data {
        chunk: Chunk,
        bytes: u32,
        total: u64,
    },
    /// A group of receives is posted. `again`: the sender has not confirmed it, and does now with `Announced`. A chunk of the group confirms it, too.
    Announce {
        sequence: u64,
        slots: Slots,
        again: bool,
    },
    /// Every announcement below `sequence` has arrived.
    Announced {
        sequence: u64,
    },
    /// The chunk has arrived, over `path`.
    Ack {
        chunk: Chunk,
        path: u8,
    },
    /// The peer answers with `Pong` over the same path, with the same number.
    Ping {
        number: u64,
    },
    Pong {
        number: u64,
    },
    /// The side closes the connection in order.
    Bye,
    /// Chunks of this message, of `total` bytes, are written over the same queue pair from now on.
    Begin {
        sequence: u64,
        sub: u8,
        halvings: u8,
        total: u64,
    },
    /// The queue pair of this path that came with dial `dial`, and all before, are lost: what was written over them goes again.
    Down {
        path: u8,
        dial: u32,
    },
}

const DATA: u8 = 1;
const ANNOUNCE: u8 = 2;
const ANNOUNCED: u8 = 3;
const ACK: u8 = 4;
const PING: u8 = 5;
const PONG: u8 = 6;
const BYE: u8 = 7;
const BEGIN: u8 = 8;
const DOWN: u8 = 9;

impl Frame {
    /// Appends the frame without the payload.
    pub fn write(&self, to: &mut Vec<u8>) {
        let none = Chunk { sequence: 0, sub: 0, index: 0, halvings: 0 };
        let (kind, chunk, path, count, bytes, total) = match *self {
            Frame::Data { chunk, bytes, total } => (DATA, chunk, 0, 0, bytes, total),
            Frame::Announce { sequence, slots, again } => {
                (ANNOUNCE, Chunk { sequence, ..none }, u8::from(again), slots.count, 0, 0)
            }
            Frame::Announced { sequence } => (ANNOUNCED, Chunk { sequence, ..none }, 0, 0, 0, 0),
            Frame::Ack { chunk, path } => (ACK, chunk, path, 0, 0, 0),
            Frame::Ping { number } => (PING, none, 0, 0, 0, number),
            Frame::Pong { number } => (PONG, none, 0, 0, 0, number),
            Frame::Bye => (BYE, none, 0, 0, 0, 0),
            Frame::Begin { sequence, sub, halvings, total } => {
                (BEGIN, Chunk { sequence, sub, index: 0, halvings }, 0, 0, 0, total)
            }
            Frame::Down { path, dial } => (DOWN, none, path, 0, 0, u64::from(dial)),
        };
        to.extend_from_slice(&[kind, chunk.sub, path, count]);
        to.extend_from_slice(&chunk.index.to_le_bytes());
        to.extend_from_slice(&bytes.to_le_bytes());
        to.extend_from_slice(&[chunk.halvings, 0, 0, 0]);
        to.extend_from_slice(&chunk.sequence.to_le_bytes());
        to.extend_from_slice(&total.to_le_bytes());
        if let Frame::Announce { slots, .. } = self {
            for s in slots.as_slice() {
                to.extend_from_slice(&s.room.to_le_bytes());
                to.extend_from_slice(&s.tag.to_le_bytes());
                to.extend_from_slice(&[0; 4]);
            }
        }
    }

    /// The frame at the start of `bytes` and its length without the payload; `None` until more bytes arrive.
    ///
    /// # Errors
    /// The bytes are no frame, or a number exceeds its limit: the path cannot be used further.
    pub fn read(bytes: &[u8]) -> Result<Option<(Frame, usize)>, Malformed> {
        let Some(head) = bytes.get(..HEADER_BYTES) else { return Ok(None) };
        let mut r = Reader::new(head);
        let (kind, sub, path, count) = (r.u8()?, r.u8()?, r.u8()?, r.u8()?);
        let (index, payload, halvings, sequence, total) =
            (r.u32()?, r.u32()?, r.u32()?.to_le_bytes()[0], r.u64()?, r.u64()?);
        let chunk = Chunk { sequence, sub, index, halvings };
        let is_far = u64::from(index) >= CHUNKS_MAX || halvings > HALVINGS_MAX;
        if usize::from(sub) >= GROUPED_MAX || usize::from(path) >= PATHS_MAX || is_far {
            return Err(Malformed("a chunk is out of range"));
        }
        let frame = match kind {
            DATA if payload > chunk_bytes_max() || total > MESSAGE_BYTES_MAX => {
                return Err(Malformed("a chunk is too large"));
            }
            DATA => Frame::Data { chunk, bytes: payload, total },
            ANNOUNCE => {
                let n = usize::from(count);
                if n == 0 || n > GROUPED_MAX {
                    return Err(Malformed("a group has no receive, or too many"));
                }
                let Some(body) = bytes.get(HEADER_BYTES..HEADER_BYTES + n * SLOT_BYTES) else { return Ok(None) };
                let mut slots = Slots { count, ..Slots::default() };
                let mut r = Reader::new(body);
                for slot in slots.slots.iter_mut().take(n) {
                    *slot = Slot { room: r.u64()?, tag: r.i32()? };
                    r.u32()?;
                }
                let again = path != 0;
                return Ok(Some((Frame::Announce { sequence, slots, again }, HEADER_BYTES + n * SLOT_BYTES)));
            }
            ANNOUNCED => Frame::Announced { sequence },
            ACK => Frame::Ack { chunk, path },
            PING => Frame::Ping { number: total },
            PONG => Frame::Pong { number: total },
            BYE => Frame::Bye,
            BEGIN if total > MESSAGE_BYTES_MAX => return Err(Malformed("a message is too large")),
            BEGIN => Frame::Begin { sequence, sub, halvings, total },
            DOWN => Frame::Down { path, dial: u32::try_from(total).map_err(|_| Malformed("a dial is out of range"))? },
            _ => return Err(Malformed("there is no frame of this kind")),
        };
        Ok(Some((frame, HEADER_BYTES)))
    }
}

/// Largest payload: chunks of the largest size, doubled until the largest message has at most [`CHUNKS_MAX`] of them.
fn chunk_bytes_max() -> u32 {
    (MESSAGE_BYTES_MAX / CHUNKS_MAX).max(u64::from(CHUNK_BYTES_MAX)) as u32
}

/// Size of the chunks of a message: `chunk` after its halvings, doubled until at most [`CHUNKS_MAX`] are needed. Both sides compute the same.
pub fn chunk_size(chunk: u32, halvings: u8, total: u64) -> u64 {
    let mut size = u64::from(chunk >> halvings.min(HALVINGS_MAX)).max(1);
    while total.div_ceil(size) > CHUNKS_MAX {
        size *= 2;
    }
    size
}

/// Number of chunks of a message; an empty message has one, of 0 bytes.
pub fn chunk_count(chunk: u32, halvings: u8, total: u64) -> u32 {
    total.div_ceil(chunk_size(chunk, halvings, total)).max(1) as u32
}

/// The chunks of a message that have arrived.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bitmap {
    words: Vec<u64>,
    set: u32,
    count: u32,
}

impl Bitmap {
    pub fn new(count: u32) -> Self {
        Bitmap { words: vec![0; count.div_ceil(64) as usize], set: 0, count }
    }

    pub fn has(&self, i: u32) -> bool {
        self.words.get(i as usize / 64).is_some_and(|w| w >> (i % 64) & 1 == 1)
    }

    /// Sets a bit; false if it was set or is out of range.
    pub fn set(&mut self, i: u32) -> bool {
        if i >= self.count || self.has(i) {
            return false;
        }
        if let Some(w) = self.words.get_mut(i as usize / 64) {
            *w |= 1 << (i % 64);
            self.set += 1;
        }
        true
    }

    pub fn is_full(&self) -> bool {
        self.set == self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames() -> impl Strategy<Value = Frame> {
        let chunk = (any::<u64>(), 0u8..8, 0u32..4096, 0..=HALVINGS_MAX)
            .prop_map(|(sequence, sub, index, halvings)| Chunk { sequence, sub, index, halvings });
        let slot = (any::<u64>(), any::<i32>()).prop_map(|(room, tag)| Slot { room, tag });
        prop_oneof![
            (chunk.clone(), 0u32..CHUNK_BYTES_MAX, 0..MESSAGE_BYTES_MAX)
                .prop_map(|(chunk, bytes, total)| Frame::Data { chunk, bytes, total }),
            (any::<u64>(), proptest::collection::vec(slot, 1..=8), any::<bool>())
                .prop_map(|(sequence, s, again)| Frame::Announce { sequence, slots: Slots::new(&s).unwrap(), again }),
            any::<u64>().prop_map(|sequence| Frame::Announced { sequence }),
            (chunk, 0u8..8).prop_map(|(chunk, path)| Frame::Ack { chunk, path }),
            any::<u64>().prop_map(|number| Frame::Ping { number }),
            any::<u64>().prop_map(|number| Frame::Pong { number }),
            Just(Frame::Bye),
            (any::<u64>(), 0u8..8, 0..=HALVINGS_MAX, 0..MESSAGE_BYTES_MAX)
                .prop_map(|(sequence, sub, halvings, total)| { Frame::Begin { sequence, sub, halvings, total } }),
            (0u8..8, any::<u32>()).prop_map(|(path, dial)| Frame::Down { path, dial }),
        ]
    }

    proptest! {
        #[test]
        fn frames_survive_encoding_and_need_all_their_bytes(frame in frames()) {
            let mut bytes = Vec::new();
            frame.write(&mut bytes);
            prop_assert_eq!(Frame::read(&bytes), Ok(Some((frame, bytes.len()))));
            for cut in 0..bytes.len() {
                prop_assert_eq!(Frame::read(&bytes[..cut]), Ok(None));
            }
        }

        #[test]
        fn any_bytes_are_a_frame_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(Some((frame, n))) = Frame::read(&bytes) {
                prop_assert!(n <= bytes.len());
                if let Frame::Announce { slots, .. } = frame {
                    prop_assert!((1..=GROUPED_MAX).contains(&slots.as_slice().len()));
                }
            }
        }

        #[test]
        fn chunks_cover_a_message_and_are_at_most_4096(
            chunk in CHUNK_BYTES_MIN_TEST..CHUNK_BYTES_MAX,
            halvings in 0..=HALVINGS_MAX,
            total in 0..MESSAGE_BYTES_MAX,
        ) {
            let (size, count) = (chunk_size(chunk, halvings, total), u64::from(chunk_count(chunk, halvings, total)));
            prop_assert!((1..=CHUNKS_MAX).contains(&count) && size * count >= total);
            prop_assert!(total == 0 || size * (count - 1) < total);
        }
    }
    const CHUNK_BYTES_MIN_TEST: u32 = crate::limits::CHUNK_BYTES_MIN;

    #[test]
    fn a_bit_is_set_once() {
        let mut b = Bitmap::new(65);
        assert!(b.set(64) && !b.set(64) && !b.set(65) && !b.is_full());
        (0..64).for_each(|i| assert!(b.set(i)));
        assert!(b.is_full());
    }
}
