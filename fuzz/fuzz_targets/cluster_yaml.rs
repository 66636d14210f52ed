//! The cluster file: no panic, and what is read is written and read again as the same cluster.
#![no_main]

use libfuzzer_sys::fuzz_target;
use topology::{file, read};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = read::text(bytes, "fuzz", read::FILE_SIZE_MAX) else { return };
    match file::read(text, "fuzz") {
        Ok(cluster) => {
            cluster.check().unwrap();
            if cluster.hosts.len() <= 1_000 {
                let written = file::write(&cluster);
                assert_eq!(file::read(&written, "again").expect("what was written reads back"), cluster, "{written}");
                draw::text(&cluster);
                draw::svg(&cluster);
            }
        }
        Err(e) => assert!(e.line() >= 1 && e.column() >= 1 && !e.message().is_empty()),
    }
});
