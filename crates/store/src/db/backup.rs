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
    let taken = || StateError::Invalid(format!("{} exists already; name a new file", to.display()));
    if to.exists() {
        return Err(taken());
    }
    let c = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)
        .map_err(|e| io("open", e.to_string()))?;
    let id: i64 = c.query_row("PRAGMA application_id", [], |r| r.get(0)).map_err(|e| io("copy", e.to_string()))?;
    if ![crate::state::APPLICATION_ID, crate::schema::APPLICATION_ID].contains(&id) {
        return Err(StateError::NotAState { path: file.into(), why: "it is a file of another program".into() });
    }
    c.busy_timeout(super::BUSY_TIMEOUT).map_err(|e| io("copy", e.to_string()))?;
    // An empty file of its own name: two copies at once never write to one file, and the second one finds the name taken.
    let folder = to.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let new = |at: &Path| std::fs::OpenOptions::new().write(true).create_new(true).open(at);
    let part = tempfile::Builder::new().prefix(".linkwise-").suffix(".part").make_in(folder, new);
    let part = part.map_err(|e| io("copy", format!("{}: {e}", folder.display())))?;
    let shown = part.path().to_str().ok_or_else(|| StateError::Invalid("the name of the copy is not UTF-8".into()))?;
    c.execute("VACUUM INTO ?1", [shown]).map_err(|e| io("copy", e.to_string()))?;
    part.as_file().sync_all().map_err(|e| io("copy", e.to_string()))?;
    part.persist_noclobber(to).map(|_| ()).map_err(|e| match e.error.kind() {
        std::io::ErrorKind::AlreadyExists => taken(),
        _ => io("copy", e.error.to_string()),
    })
}
