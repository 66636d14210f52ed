//! Words in a library's file, without loading it: the glibc that it needs, and NCCL's banner.

use super::LIBRARY_BYTES_MAX;
use std::fs::File;
use std::io::{Read, Result};
use std::path::Path;

/// Bytes read at once.
const CHUNK: usize = 1 << 20;
/// Longest word, bytes: chunks overlap by that much.
const WORD_BYTES_MAX: usize = 64;

/// The texts after each place of `prefix` in a file: their first bytes, at most [`WORD_BYTES_MAX`] with the prefix. O(bytes), memory of one chunk.
fn after(path: &Path, prefix: &[u8], mut each: impl FnMut(&str)) -> Result<()> {
    let mut input = File::open(path)?.take(LIBRARY_BYTES_MAX);
    let (mut buffer, mut kept) = (vec![0; CHUNK], 0);
    loop {
        let mut filled = kept;
        while filled < buffer.len() {
            match input.read(&mut buffer[filled..])? {
                0 => break,
                n => filled += n,
            }
        }
        let is_end = filled < buffer.len();
        // A word that begins in the overlap is read with the next chunk, which has all of it.
        let last = if is_end { filled } else { filled - WORD_BYTES_MAX };
        let bytes = &buffer[..filled];
        let mut at = 0;
        while let Some(found) = bytes[at..last].iter().position(|b| *b == prefix[0]).map(|p| at + p) {
            if bytes[found..].starts_with(prefix) {
                let end = filled.min(found + WORD_BYTES_MAX);
                let word = &bytes[found + prefix.len()..end.max(found + prefix.len())];
                let text = word.iter().take_while(|b| b.is_ascii_graphic() || **b == b' ');
                each(&text.map(|b| char::from(*b)).collect::<String>());
            }
            at = found + 1;
        }
        if is_end {
            return Ok(());
        }
        buffer.copy_within(last..filled, 0);
        kept = filled - last;
    }
}

/// A version as numbers: `2.28` is `[2, 28]`. `None` for other texts.
pub fn numbers(text: &str) -> Option<Vec<u32>> {
    let leading: String = text.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    let parts = leading.trim_end_matches('.').split('.').take(4);
    parts.map(|p| p.parse().ok()).collect()
}

/// Numbers as a version: `2.28`.
pub fn name(version: &[u32]) -> String {
    version.iter().map(u32::to_string).collect::<Vec<_>>().join(".")
}

/// The newest glibc whose symbols a library or program names; `None` if it names none. O(bytes).
///
/// # Errors
/// The file cannot be read.
pub fn glibc_needed(path: &Path) -> Result<Option<Vec<u32>>> {
    let mut newest = None;
    after(path, b"GLIBC_", |word| newest = numbers(word).into_iter().chain(newest.take()).max())?;
    Ok(newest)
}

/// The release of NCCL and of the CUDA that it was built with, as a library's banner tells: `("2.28.9", Some(13))`. O(bytes).
pub fn nccl_banner(path: &Path) -> Option<(String, Option<u32>)> {
    let mut banner = None;
    let read = after(path, b"NCCL version ", |word| {
        if banner.is_none()
            && let Some(version) = numbers(word).filter(|v| v.len() == 3)
        {
            let cuda = word.split_once("+cuda").and_then(|(_, c)| numbers(c)).and_then(|c| c.first().copied());
            banner = Some((name(&version), cuda));
        }
    });
    read.ok().and(banner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_wherever_chunks_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("library");
        for at in [0, 1, CHUNK - 70, CHUNK - 64, CHUNK - 63, CHUNK - 5, CHUNK, 2 * CHUNK - WORD_BYTES_MAX - 3] {
            let mut bytes = vec![b'x'; at];
            bytes.extend(b"GLIBC_2.17\0GLIBC_2.4\0GLIBC_2.28\0GLIBC_PRIVATE\0");
            bytes.resize(at + CHUNK + 7, b'x');
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(glibc_needed(&path).unwrap(), Some(vec![2, 28]), "{at}");
            let mut words = 0;
            after(&path, b"GLIBC_", |_| words += 1).unwrap();
            assert_eq!(words, 4, "{at}");
        }
    }

    #[test]
    fn the_banner_tells_release_and_cuda() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libnccl.so.2");
        for (text, expected) in [
            ("NCCL version %d\0NCCL version 2.28.9+cuda13.0\0", Some(("2.28.9".into(), Some(13)))),
            ("NCCL version 2.21.5\0", Some(("2.21.5".into(), None))),
            ("nothing", None),
            ("", None),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(nccl_banner(&path), expected, "{text}");
        }
    }
}
