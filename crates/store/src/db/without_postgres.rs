//! Stands for the other back end in a build without it: a URL is refused, and no value of these types exists.

use super::{SqlError, Tables, Val};
use std::convert::Infallible;

/// Unused.
pub(crate) const LOCK_TIMEOUT_S: u64 = 0;

/// A row of PostgreSQL.
pub(crate) type Row = Infallible;
/// A connection to PostgreSQL.
#[derive(Debug)]
pub(crate) struct Link(Infallible);
/// A transaction.
pub(crate) struct Tx(Infallible);
pub(crate) fn shown(_: &str) -> String {
    "postgres://...".into()
}
pub(crate) fn int(row: &Row, _: usize) -> Result<Option<i64>, SqlError> {
    match *row {}
}
pub(crate) fn real(row: &Row, _: usize) -> Result<Option<f64>, SqlError> {
    match *row {}
}
pub(crate) fn text(row: &Row, _: usize) -> Result<Option<String>, SqlError> {
    match *row {}
}

impl Link {
    pub fn open(_: &str, tables: &'static Tables) -> Result<Link, SqlError> {
        let _ = (tables.schema, tables.part);
        Err(SqlError::Other("this linkwise was built without PostgreSQL".into()))
    }
    pub fn again(&self) -> Result<Link, SqlError> {
        match self.0 {}
    }
    pub fn version(&self) -> Result<Option<i64>, SqlError> {
        match self.0 {}
    }
    pub fn migrate(&self, _: &[(&str, String)]) -> Result<bool, SqlError> {
        match self.0 {}
    }
    pub fn execute(&self, _: &str, _: &[Val<'_>]) -> Result<usize, SqlError> {
        match self.0 {}
    }
    pub fn query(&self, _: &str, _: &[Val<'_>]) -> Result<Vec<Row>, SqlError> {
        match self.0 {}
    }
    pub fn begin_write(&self) -> Result<Tx, SqlError> {
        match self.0 {}
    }
    pub fn begin_read(&self) -> Result<Tx, SqlError> {
        match self.0 {}
    }
    pub fn query_alone(&self, _: &str, _: &[Val<'_>]) -> Result<Vec<Row>, SqlError> {
        match self.0 {}
    }
    pub fn is_broken(&self) -> bool {
        match self.0 {}
    }
}

impl Tx {
    pub fn commit(self) -> Result<(), SqlError> {
        match self.0 {}
    }
}
