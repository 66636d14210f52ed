//! Frames and messages between ranks.
#![no_main]

use agreement::roster::Announcement;
use agreement::{ToLeader, ToMember};
use libfuzzer_sys::fuzz_target;
use wire::{Frames, Reader};

fuzz_target!(|bytes: &[u8]| {
    let mut frames = Frames::default();
    for piece in bytes.chunks(7) {
        frames.feed(piece);
        while let Ok(Some(body)) = frames.next_frame() {
            let _ = ToMember::read(&mut Reader::new(&body));
            let _ = ToLeader::read(&mut Reader::new(&body));
            let _ = Announcement::read(&mut Reader::new(&body));
        }
    }
    let _ = ToMember::read(&mut Reader::new(bytes));
    let _ = ToLeader::read(&mut Reader::new(bytes));
});
