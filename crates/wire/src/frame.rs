//! Frames: a length (u32, little-endian) followed by that many bytes.

use crate::Malformed;

/// The longest frame. For scale: a plan of 64 slots for 512 ranks takes 10 KiB, a full roster of 4,096 ranks 100 KiB.
pub const FRAME_BYTES_MAX: usize = 1 << 20;

/// Bytes of the length in front of a frame.
pub const HEADER_BYTES: usize = 4;

/// Appends `body` as a frame. Returns `false` and appends nothing if `body` exceeds [`FRAME_BYTES_MAX`].
pub fn append(out: &mut Vec<u8>, body: &[u8]) -> bool {
    if body.len() > FRAME_BYTES_MAX {
        return false;
    }
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(body);
    true
}

/// Appends a frame whose body is these parts. The caller has checked their length.
pub(crate) fn append_parts(out: &mut Vec<u8>, parts: [&[u8]; 2]) {
    let bytes = parts.iter().map(|p| p.len()).sum::<usize>() as u32;
    out.extend_from_slice(&bytes.to_le_bytes());
    parts.iter().for_each(|p| out.extend_from_slice(p));
}

/// Cuts a byte stream into frames. Buffers one incomplete frame and the bytes that arrived with it.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
    at: usize,
}

impl Frames {
    /// Appends received bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.at > 0 {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next complete frame; `None` until more bytes arrive. An error if a length exceeds the limit: the stream cannot be used further.
    pub fn next_frame(&mut self) -> Result<Option<Vec<u8>>, Malformed> {
        self.next_frame_up_to(FRAME_BYTES_MAX)
    }

    /// The same as [`next_frame`](Frames::next_frame) with a lower limit, for peers that have not authenticated.
    pub fn next_frame_up_to(&mut self, most: usize) -> Result<Option<Vec<u8>>, Malformed> {
        let left = self.bytes.get(self.at..).unwrap_or_default();
        let Some((head, rest)) = left.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let n = u32::from_le_bytes(*head) as usize;
        if n > most {
            return Err(Malformed("a frame is too long"));
        }
        let Some(body) = rest.get(..n) else { return Ok(None) };
        let body = body.to_vec();
        self.at += HEADER_BYTES + n;
        Ok(Some(body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frames_are_reassembled_from_any_chunks(
            bodies in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 0..10),
            cut in 1usize..20,
        ) {
            let mut stream = Vec::new();
            for b in &bodies {
                prop_assert!(append(&mut stream, b));
            }
            let (mut frames, mut got) = (Frames::default(), Vec::new());
            for piece in stream.chunks(cut) {
                frames.feed(piece);
                while let Some(f) = frames.next_frame().unwrap() {
                    got.push(f);
                }
            }
            prop_assert_eq!(got, bodies);
        }

        #[test]
        fn any_bytes_yield_frames_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut frames = Frames::default();
            frames.feed(&bytes);
            while let Ok(Some(f)) = frames.next_frame() {
                prop_assert!(f.len() <= bytes.len());
            }
        }
    }

    #[test]
    fn a_length_over_the_limit_ends_the_stream() {
        let mut frames = Frames::default();
        frames.feed(&(FRAME_BYTES_MAX as u32 + 1).to_le_bytes());
        assert!(frames.next_frame().is_err());
        assert!(!append(&mut Vec::new(), &vec![0; FRAME_BYTES_MAX + 1]));
    }
}
