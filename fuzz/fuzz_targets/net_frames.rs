//! Frames of the network plugin, its handles and greetings, and both state machines under frames of a hostile peer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use net::frame::{Frame, Slot};
use net::greeting;
use net::handle::Handle;
use net::limits::{PATHS_MAX, RAILS_MAX};
use net::rails::{Board, View, private_words};
use net::receiver::Receiver;
use net::sender::{Outbox, Sender};

fuzz_target!(|bytes: &[u8]| {
    if let Some(handle) = bytes.first_chunk::<128>() {
        if let Ok(h) = Handle::read(handle) {
            assert!(h.addresses.len() <= RAILS_MAX);
        }
    }
    let nonce = [7; 32];
    let _ = net::rdma::Places::read(bytes);
    let _ = greeting::read_call(bytes);
    let _ = greeting::read_answer(bytes, b"key", &nonce);
    let _ = greeting::read_hello(bytes, b"key", &nonce, &nonce);
    let _ = greeting::read_welcome(bytes, b"key", &nonce, &nonce);
    peer(bytes);
});

fn peer(mut bytes: &[u8]) {
    let Some(board) = Board::join(private_words(), 1, [0; RAILS_MAX], 0) else { return };
    let rails = View { board: &board, others: &[0; RAILS_MAX] };
    let (mut s, mut r, mut out) = (Sender::new(4096, 0), Receiver::new(4096), Outbox::default());
    for p in 0..2 {
        s.path_up(p, p, 1, 0);
        r.set_up(p, true);
    }
    for i in 0..4u32 {
        s.send(i, i as i32 % 2, 10_000);
        r.receive(i, &[Slot { room: 9_000, tag: 0 }, Slot { room: 5, tag: 1 }], 0, &mut out);
    }
    let mut now = 0;
    while let Ok(Some((frame, n))) = Frame::read(bytes) {
        bytes = &bytes[n..];
        now += 10_000;
        let path = usize::from(bytes.first().copied().unwrap_or(0)) % 2;
        let _ = match frame {
            Frame::Data { chunk, bytes, total } => r.arrived(path, chunk, bytes, total, &mut out),
            other => r.on_frame(path, other, &mut out),
        };
        if s.on_frame(path, frame, now, &rails, &mut out).is_err() {
            s.path_down(path, &rails);
            s.path_up(path, path, 1, now);
        }
        while s.next(now, &[true; PATHS_MAX], &rails).is_some() {}
        s.tick(now, &rails, &mut out);
        r.tick(now, &mut out);
        assert!(s.sends() <= 4 && r.open() <= 4);
        out = Outbox::default();
    }
}
