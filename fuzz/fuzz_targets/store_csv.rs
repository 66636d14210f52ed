//! Measurement tables: no panic, and what is read is a sound measurement.
#![no_main]

use libfuzzer_sys::fuzz_target;
use store::HostMap;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let cluster = topology::catalog::cluster("h100").expect("built in");
    let map = HostMap::parse("h100_26=n0,h100_27=n1", &cluster).expect("known hosts");
    match store::parse_csv(text, "fuzz", &cluster, &map) {
        Ok(records) => records.iter().for_each(|r| r.measurement.check().expect("sound")),
        Err(e) => assert!(e.line >= 1 && !e.message.is_empty()),
    }
});
