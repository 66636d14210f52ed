//! The fuzz target's hand-written corpus decodes to the expected packets.

use agreement::ToMember;
use agreement::transport::packet::Packet;
use wire::{Frames, Reader};

fn frames(name: &str) -> Vec<Vec<u8>> {
    let path = format!("{}/../../fuzz/corpus/wire_frames/{name}", env!("CARGO_MANIFEST_DIR"));
    let mut frames = Frames::default();
    frames.feed(&std::fs::read(path).unwrap());
    std::iter::from_fn(|| frames.next_frame().unwrap()).collect()
}

#[test]
fn the_corpus_of_frames_holds_packets_of_four_kinds_and_a_verdict() {
    let packets: Vec<Packet> = frames("packets").iter().map(|f| Packet::read(f).unwrap()).collect();
    use Packet::*;
    let kinds = matches!(packets.as_slice(), [Hello(7), Announce(..), Complete { .. }, Message { from: 7, .. }]);
    assert!(kinds, "{packets:?}");
    let verdicts = frames("commit");
    assert_eq!(
        verdicts.iter().map(|f| ToMember::read(&mut Reader::new(f))).collect::<Vec<_>>(),
        [Ok(ToMember::Commit(5))]
    );
}
