//! A 64-bit digest that is the same on every machine and in every version; `std`'s hashers do not guarantee this. Not for secrets.
//!
//! `wire::bytes::hash` is a second copy of this function: training processes load `wire` but not the store.

/// FNV-1a over bytes.
pub fn fnv64_of_bytes(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// FNV-1a over the parts, each closed by a zero byte so that `["ab", "c"]` and `["a", "bc"]` differ.
pub fn fnv64<'a>(parts: impl IntoIterator<Item = &'a str>) -> u64 {
    fnv64_of_bytes(parts.into_iter().flat_map(|part| part.bytes().chain(std::iter::once(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_never_changes() {
        assert_eq!(fnv64([]), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv64(["a"]), 0x089b_e207_b544_f1e4);
        assert_ne!(fnv64(["ab", "c"]), fnv64(["a", "bc"]));
        assert_eq!(fnv64_of_bytes(*b"a"), 0xaf63_dc4c_8601_ec8c, "the published test vector");
    }
}
