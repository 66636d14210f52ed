//! Encoding of values: fixed-width little-endian numbers; lists and texts with a length prefix.

use std::fmt;

/// A message cannot be decoded. The text names the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed message: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

/// Decodes values from the front of a byte slice.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a>(&'a [u8]);

macro_rules! numbers {
    ($($name:ident: $t:ty),+) => {$(
        pub fn $name(&mut self) -> Result<$t, Malformed> {
            let (head, rest) = self.0.split_first_chunk().ok_or(Malformed("it is truncated"))?;
            self.0 = rest;
            Ok(<$t>::from_le_bytes(*head))
        }
    )+};
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader(bytes)
    }

    numbers!(u8: u8, u16: u16, u32: u32, u64: u64, i32: i32, f64: f64);

    /// The next `n` bytes.
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.0.split_at_checked(n).ok_or(Malformed("it is truncated"))?;
        self.0 = rest;
        Ok(head)
    }

    /// The length of a list. Fails above `most` items, or if the remaining bytes cannot hold that many items of `item_bytes` each: a claimed length
    /// never causes an allocation.
    pub fn len(&mut self, most: usize, item_bytes: usize) -> Result<usize, Malformed> {
        let n = self.u32()? as usize;
        if n > most {
            return Err(Malformed("a list is too long"));
        }
        if n.saturating_mul(item_bytes) > self.0.len() {
            return Err(Malformed("a list is longer than the message"));
        }
        Ok(n)
    }

    /// A UTF-8 text of at most `most` bytes.
    pub fn text(&mut self, most: usize) -> Result<&'a str, Malformed> {
        let n = self.len(most, 1)?;
        std::str::from_utf8(self.take(n)?).map_err(|_| Malformed("a text is not UTF-8"))
    }

    /// All remaining bytes.
    pub fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Fails if bytes are left.
    pub fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("bytes follow its end")) }
    }
}

/// Encodes values one after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Writer(pub Vec<u8>);

macro_rules! put_numbers {
    ($($name:ident: $t:ty),+) => {$(
        pub fn $name(&mut self, value: $t) -> &mut Self {
            self.0.extend_from_slice(&value.to_le_bytes());
            self
        }
    )+};
}

impl Writer {
    put_numbers!(u8: u8, u16: u16, u32: u32, u64: u64, i32: i32, f64: f64);

    /// Appends bytes without a length.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Appends a length as `u32`. Every list has a limit far below 2^32, checked by the reader.
    pub fn len(&mut self, n: usize) -> &mut Self {
        self.u32(u32::try_from(n).unwrap_or(u32::MAX))
    }

    /// Appends a text with its length.
    pub fn text(&mut self, text: &str) -> &mut Self {
        self.len(text.len()).raw(text.as_bytes())
    }
}

/// 64-bit FNV-1a hash of names and settings. Not cryptographic.
pub fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn values_survive_encoding(a: u8, b: u16, c: u32, d: u64, e: i32, text in ".{0,40}") {
            let mut w = Writer::default();
            w.u8(a).u16(b).text(&text).u32(c).u64(d).i32(e);
            let mut r = Reader::new(&w.0);
            prop_assert_eq!((r.u8(), r.u16(), r.text(1000)), (Ok(a), Ok(b), Ok(text.as_str())));
            prop_assert_eq!((r.u32(), r.u64(), r.i32()), (Ok(c), Ok(d), Ok(e)));
            prop_assert_eq!(r.end(), Ok(()));
        }

        #[test]
        fn no_bytes_make_the_reader_panic_or_trust_a_length(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut r = Reader::new(&bytes);
            if let Ok(n) = r.len(1 << 30, 4) {
                prop_assert!(n * 4 <= bytes.len());
            }
            let _ = (r.text(16).is_ok(), r.u64(), r.f64());
        }
    }
}
