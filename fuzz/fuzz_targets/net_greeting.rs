//! Greetings of the network plugin: any bytes, and bodies that a holder of the key has sealed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use net::greeting::{self, Welcome};
use net::limits::{PATHS_MAX, RAILS_MAX};
use wire::auth::{self, Role, Seal};

const KEY: &[u8] = b"key";

fuzz_target!(|bytes: &[u8]| {
    let (a, b) = ([7; 32], [8; 32]);
    if greeting::read_call(bytes).is_ok() {
        assert!(bytes.len() >= greeting::CALL_BYTES);
    }
    assert!(greeting::read_answer(bytes, KEY, &a).is_err(), "a proof was guessed");
    assert!(greeting::read_hello(bytes, KEY, &a, &b).is_err());
    assert!(greeting::read_welcome(bytes, KEY, &a, &b).is_err());
    assert!(greeting::read_onward(bytes, KEY, &a, &b).is_err());
    assert!(greeting::read_through(bytes, KEY, &a, &b).is_err());

    let sealed = |role: Role| [bytes, &Seal::new(KEY, role, &a, &b).tag(bytes)].concat();
    let asked = [&auth::proof(KEY, Role::Connects, &a, &b)[..], &sealed(Role::Connects)].concat();
    if let Ok(h) = greeting::read_hello(&asked, KEY, &a, &b) {
        assert!(usize::from(h.path) < PATHS_MAX);
        assert_eq!(greeting::read_hello(&greeting::hello(KEY, &a, &b, &h), KEY, &a, &b), Ok(h));
    }
    if let Ok(to) = greeting::read_onward(&asked, KEY, &a, &b) {
        assert_eq!(greeting::read_onward(&greeting::onward(KEY, &a, &b, to), KEY, &a, &b), Ok(to));
    }
    let said = sealed(Role::Accepts);
    if let Ok(Welcome::Accepted(rails, _)) = greeting::read_welcome(&said, KEY, &a, &b) {
        assert!(rails.len() <= RAILS_MAX);
    }
    let _ = greeting::read_through(&said, KEY, &a, &b);
});
