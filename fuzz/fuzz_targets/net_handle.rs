//! Handles, records of lending hosts, and the ways that follow from any set of records.
#![no_main]

use libfuzzer_sys::fuzz_target;
use net::handle::Handle;
use net::limits::{PATHS_MAX, RAILS_MAX, RELAYS_MAX};
use net::reach::{Map, Record};

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first_chunk::<128>() else { return };
    let Ok(h) = Handle::read(first) else { return };
    assert!(h.addresses.len() <= RAILS_MAX && h.rail < h.rails);
    let again = Handle::read(&h.write()).unwrap();
    assert_eq!((&again.addresses, again.listener, again.host), (&h.addresses, h.listener, h.host));
    let mut map = Map::default();
    for (i, part) in rest.chunks(100).enumerate() {
        // A record from its body: the magic number would be guessed seldom.
        if let Ok(r) = Record::read(&[b"lnkwrel2", part].concat()) {
            assert!((1..=RAILS_MAX).contains(&r.rails.len()));
            assert_eq!(Record::read(&r.write()).as_ref(), Ok(&r));
            map.learn(r, i as u64);
        }
    }
    for w in map.ways((1, &h.addresses), (h.host, &h.addresses), 3) {
        assert!(w.relays.len() <= RELAYS_MAX && w.onward.len() == w.relays.len());
        assert!(w.local < h.addresses.len() && w.remote < h.addresses.len());
    }
    assert!(map.ways((1, &h.addresses), (h.host, &h.addresses), 3).len() <= PATHS_MAX);
    map.expire(u64::MAX);
});
