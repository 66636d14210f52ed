//! Writes measurements as CSV, with one header for all sources.

use crate::measurement::Record;
use crate::rows::allocation_text;
use std::io::Write;
use topology::Cluster;

/// The header. Empty fields mean unknown; `allocation` is `n0:0 n0:1`; times are in seconds; `source` and `quality` are
/// the names of [`crate::Source`] and [`crate::Quality`]; `run_id` keeps a second import of the same file from storing
/// anything.
pub const CSV_HEADER: [&str; 16] = [
    "allocation",
    "collective",
    "size_bytes",
    "busbw_gb_per_s",
    "time_s",
    "algorithm",
    "protocol",
    "channels",
    "nccl_version",
    "contention",
    "job",
    "taken_at_unix_s",
    "source",
    "provenance",
    "quality",
    "run_id",
];

/// Writes the header and one row for every record. [`crate::parse_csv`] reads the same records back.
pub fn write_csv(cluster: &Cluster, records: &[Record], out: impl Write) -> std::io::Result<()> {
    let mut w = csv::Writer::from_writer(out);
    w.write_record(CSV_HEADER)?;
    let number = |x: Option<f64>| x.map_or(String::new(), |x| x.to_string());
    let text = |x: &Option<String>| x.clone().unwrap_or_default();
    for Record { run_id, measurement: m } in records {
        w.write_record([
            allocation_text(cluster, &m.allocation),
            m.collective.name().into(),
            m.size.0.to_string(),
            m.busbw.gb_per_s().to_string(),
            number(m.time.map(|t| t.0)),
            text(&m.algorithm),
            text(&m.protocol),
            m.channels.map_or(String::new(), |c| c.to_string()),
            text(&m.nccl_version),
            text(&m.contention),
            text(&m.job),
            number(m.taken_at_unix_s),
            m.source.name().into(),
            m.provenance.clone(),
            m.quality.name().into(),
            text(run_id),
        ])?;
    }
    w.flush()
}
