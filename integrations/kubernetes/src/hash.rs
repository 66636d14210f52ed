//! Hashes that stay the same from release to release: names have them.

/// FNV-1a, 64 bits.
pub(crate) fn fnv64(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

#[test]
fn the_hash_is_the_published_one() {
    assert_eq!(fnv64(*b"a"), 0xaf63_dc4c_8601_ec8c);
}
