//! NCCL topology XML: no panic, and what is read keeps the rules of a host type.
#![no_main]

use libfuzzer_sys::fuzz_target;
use topology::read;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = read::text(bytes, "fuzz", read::TOPOLOGY_SIZE_MAX) else { return };
    match read::nccl_xml::read(text, "fuzz") {
        Ok(reading) => reading.types.iter().for_each(|t| t.check().unwrap()),
        Err(e) => assert!(e.line() >= 1 && e.column() >= 1 && !e.message().is_empty()),
    }
});
