//! Frames, packets between processes, and messages between ranks.
#![no_main]

use agreement::roster::Announcement;
use agreement::transport::packet::Packet;
use agreement::{ToLeader, ToMember};
use libfuzzer_sys::fuzz_target;
use wire::{Frames, Reader};

fuzz_target!(|bytes: &[u8]| {
    let mut frames = Frames::default();
    for piece in bytes.chunks(7) {
        frames.feed(piece);
        while let Ok(Some(body)) = frames.next_frame() {
            read(&body);
        }
    }
    read(bytes);
});

fn read(body: &[u8]) {
    let _ = ToMember::read(&mut Reader::new(body));
    let _ = ToLeader::read(&mut Reader::new(body));
    let _ = Announcement::read(&mut Reader::new(body));
    // What is understood is written as it came, but for the ways to write an address.
    if let Ok(packet) = Packet::read(body) {
        assert_eq!(Packet::read(&packet.bytes()), Ok(packet));
    }
}
