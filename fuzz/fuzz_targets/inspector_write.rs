//! The plugin's trace in Inspector's forms: no panic, and Inspector's readers read what is written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use measure::inspector::{InspectorDump, prometheus::InspectorMetrics, write::write};

fuzz_target!(|bytes: &[u8]| {
    let mut lines = Vec::new();
    if let Ok(written) = write(bytes, 1, "fuzz", &mut lines) {
        let end = InspectorDump::default().read(&lines[..]).expect("lines that Inspector's reader reads");
        assert_eq!((end.lines, end.cut_off), (written.lines as u64, false));
        let metrics = written.metrics.text(&written.process, None);
        InspectorMetrics::default().read(metrics.as_bytes()).expect("metrics that Inspector's reader reads");
    }
});
