//! Measurements: one schema, kept in SQLite, in and out as CSV.
//!
//! A [`Store`] belongs to one cluster and remembers which. What is acknowledged survives a kill at any moment: SQLite in WAL mode with
//! `synchronous=FULL`, every insert (single or batch) is one transaction. A run that carries a run id is stored once, however
//! often it is offered, so a resumed campaign repeats nothing.
//!
//! A [`State`] is the operator's: which job holds which GPU, in a file of its own.
//!
//! Doors and the engine see both through the traits [`ReadingStore`] and [`ClusterStateStore`]. Their methods take decided values, never a
//! closure, so that nothing slow can run inside a transaction. Writes take an idempotency key ([`Once`]).

pub mod csv_in;
pub mod csv_out;
pub mod digest;
pub mod error;
pub mod identity;
pub mod measurement;
pub mod once;
pub mod query;
mod readings;
mod rows;
mod schema;
mod seam;
mod sqlite;
pub mod state;

pub use csv_in::{CsvError, FILE_BYTES_MAX as CSV_FILE_BYTES_MAX, HostMap, parse_csv};
pub use csv_out::{CSV_HEADER, write_csv};
pub use error::StoreError;
pub use measurement::{Measurement, Quality, Record, Source};
pub use once::{Done, Once};
pub use query::{NewestOfHost, Place, Query};
pub use readings::{Added, By, ReadingChange, Revision, StoredReading, WhatChanged};
pub use seam::{ClusterStateStore, ReadingStore};
pub use sqlite::{Inserted, RUN_ID_BYTES_MAX, Store};
pub use state::{State, StateError};
