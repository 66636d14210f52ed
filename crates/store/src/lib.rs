//! Measurements: one schema, stored in SQLite or PostgreSQL, imported and exported as CSV.
//!
//! A [`Store`] belongs to one cluster, which it records. Acknowledged data survive a kill at any moment: SQLite runs in WAL mode with
//! `synchronous=FULL`, and every insert (single or batch) is one transaction. A measurement with a run id is stored once, even if it is
//! offered several times, so a resumed campaign stores nothing twice.
//!
//! A [`State`] is the operator's record of the GPUs that each job holds, in a separate file. With the feature `postgres` a URL
//! `postgres://USER@HOST:PORT/DATABASE` may stand for both files.
//!
//! Clients and the engine use both through the traits [`ReadingStore`] and [`ClusterStateStore`]. Their methods take
//! values and no closures, so that nothing slow can run inside a transaction. Writes take an idempotency key
//! ([`Once`]).

pub mod csv_in;
pub mod csv_out;
pub mod db;
pub mod digest;
pub mod error;
pub mod identity;
pub mod measurement;
pub mod once;
mod pace;
pub mod query;
mod readings;
pub mod rename;
mod rows;
mod schema;
mod seam;
pub mod state;
mod store;
pub mod watch;

pub use csv_in::{CsvError, FILE_BYTES_MAX as CSV_FILE_BYTES_MAX, HostMap, parse_csv};
pub use csv_out::{CSV_HEADER, write_csv};
pub use db::lock_waits;
pub use error::StoreError;
pub use measurement::{Measurement, Quality, Record, Source};
pub use once::{Done, Once};
pub use pace::with_a_pause;
pub use query::{NewestOfHost, Place, Query};
pub use readings::{Added, By, ReadingChange, Revision, StoredReading, WhatChanged, tenant_of};
pub use rename::Renames;
pub use seam::{ClusterStateStore, ReadingStore};
pub use state::{State, StateError};
pub use store::{Inserted, RUN_ID_BYTES_MAX, Store};
