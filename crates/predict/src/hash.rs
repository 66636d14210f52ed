//! A hash for keys that repeat thousands of times in one search, where the standard one would cost more than the look-up saves.

use std::hash::Hasher;

/// Multiplies and rotates words. Keys chosen by an attacker could slow a request down, nothing else.
#[derive(Default)]
pub struct BitsHasher(u64);

impl Hasher for BitsHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for w in &mut words {
            self.write_u64(u64::from_le_bytes([w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]]));
        }
        for b in words.remainder() {
            self.write_u64(u64::from(*b));
        }
    }
    fn write_u64(&mut self, v: u64) {
        self.0 = (self.0.rotate_left(5) ^ v).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
    fn write_usize(&mut self, v: usize) {
        self.write_u64(v as u64);
    }
}

/// For `HashMap`.
pub type BuildBits = std::hash::BuildHasherDefault<BitsHasher>;
