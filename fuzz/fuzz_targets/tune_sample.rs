//! Lines that `linkwise-lab tune play` reads: no panic, short messages, and only times that a policy may learn from.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../lab/tuning/src/reading_line.rs"]
mod reading_line;

fuzz_target!(|line: &[u8]| match reading_line::reading(line) {
    Ok(read) => {
        assert!(read.time_us.is_none_or(|t| t.is_finite() && t > 0.0));
        assert!(read.channels.is_none_or(|c| (1..=64).contains(&c)));
        assert!(read.next.context.compute_intensity.is_none_or(|i| (0.0..=1.0).contains(&i)));
        assert!(read.next.size_bytes != Some(0));
    }
    Err(e) => assert!(e.chars().count() <= 400 && e.contains("expected") | e.contains(reading_line::SHAPE)),
});
