//! A copy of a file that is in use.

use crate::state::StateError;
use rusqlite::{Connection, OpenFlags};
use std::path::Path;

/// Copies a state or a store in a file to a new file, as it is at one moment. Other processes read and write meanwhile. The copy is on the
/// disk when the function returns, and gets its name last: a copy that was cut off has another name.
///
/// # Errors
/// The file is not one of linkwise; the copy exists or cannot be written.
pub fn backup(file: &Path, to: &Path) -> Result<(), StateError> {
    let io = |doing, why: String| StateError::Io { doing, path: file.into(), why };
    if super::is_url(file) {
        return Err(StateError::Invalid("a state in PostgreSQL is copied by `pg_dump`".into()));
    }
    if !file.exists() {
        return Err(StateError::Missing(file.into()));
    }
    if to.exists() {
        return Err(StateError::Invalid(format!("{} exists already; name a new file", to.display())));
    }
    let c = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)
        .map_err(|e| io("open", e.to_string()))?;
    let id: i64 = c.query_row("PRAGMA application_id", [], |r| r.get(0)).map_err(|e| io("copy", e.to_string()))?;
    if ![crate::state::APPLICATION_ID, crate::schema::APPLICATION_ID].contains(&id) {
        return Err(StateError::NotAState { path: file.into(), why: "it is a file of another program".into() });
    }
    c.busy_timeout(super::BUSY_TIMEOUT).map_err(|e| io("copy", e.to_string()))?;
    let mut part = to.as_os_str().to_owned();
    part.push(".part");
    let _ = std::fs::remove_file(&part);
    let shown = part.to_str().ok_or_else(|| StateError::Invalid("the name of the copy is not UTF-8".into()))?;
    let copied = c.execute("VACUUM INTO ?1", [shown]).map_err(|e| e.to_string());
    let copied = copied.and_then(|_| std::fs::File::open(&part).and_then(|f| f.sync_all()).map_err(|e| e.to_string()));
    let copied = copied.and_then(|()| std::fs::rename(&part, to).map_err(|e| e.to_string()));
    copied.map_err(|why| {
        let _ = std::fs::remove_file(&part);
        io("copy", why)
    })
}
