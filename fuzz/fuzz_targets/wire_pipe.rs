//! Shared memory of a hostile process: any words, changed between any two steps; and what comes out of it, cut into frames.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::Frames;
use wire::pipe::{Pipe, Side};

const CAPACITY: usize = 16;
const WORDS: usize = Pipe::<Arc<[AtomicU64]>>::words_needed(CAPACITY);

fuzz_target!(|bytes: &[u8]| {
    let words: Arc<[AtomicU64]> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
    let side = if bytes.first().is_some_and(|b| b & 1 == 0) { Side::A } else { Side::B };
    let mut pipe = Pipe::new(words.clone(), side, CAPACITY).unwrap();
    let mut frames = Frames::default();
    let (mut came, mut left) = (0, 0);
    // Ten bytes a step: which word, what it says, what is done then.
    for step in bytes.get(1..).unwrap_or_default().chunks_exact(10) {
        let at = usize::from(step[0]) % WORDS;
        // Small values are the ones that mean something.
        let value = u64::from_le_bytes(step[1..9].try_into().unwrap());
        words[at].store(if step[9] & 8 == 0 { value & 0xff } else { value }, Ordering::Relaxed);
        match step[9] & 3 {
            0 => {
                let mut got = Vec::new();
                if pipe.read(&mut got).is_ok() {
                    assert!(got.len() <= 8 * CAPACITY);
                    came += got.len();
                    frames.feed(&got);
                }
                while let Ok(Some(frame)) = frames.next_frame() {
                    left += frame.len();
                }
                assert!(left <= came);
            }
            1 => {
                if let Ok(n) = pipe.write(&step[1..9].repeat(usize::from(step[0]))) {
                    assert!(n <= 8 * CAPACITY);
                }
            }
            2 => drop(pipe.prepare_to_sleep(step[0] & 1 == 0)),
            _ => drop((pipe.must_wake_reader(), pipe.must_wake_writer())),
        }
    }
});
