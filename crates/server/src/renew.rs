//! The certificates of a server that runs: read again when their files change, or at SIGHUP.
//!
//! New connections get the new certificates; open ones go on. Files that cannot be used change nothing: the server says so once and
//! goes on with what it has, and looks again when they change.

use crate::app::App;
use crate::limits::CERTIFICATES_LOOK;
use crate::tls::{self, Tls};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, PoisonError, RwLock};
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::rustls::ServerConfig;

/// The files of TLS, and what was read last.
pub struct Certificates {
    files: Tls,
    now: RwLock<Arc<ServerConfig>>,
}

/// What tells a changed file: device, number, size and times. A link counts as its target, so that a swapped link is a change.
type Seen = Vec<Option<(u64, u64, u64, i64, i64)>>;

impl Certificates {
    /// Reads the files.
    ///
    /// # Errors
    /// A sentence with the file and what is wrong with it.
    pub fn read(files: &Tls) -> Result<Certificates, String> {
        Ok(Certificates { now: RwLock::new(tls::config(files)?), files: files.clone() })
    }

    /// What the next connection gets.
    pub fn now(&self) -> Arc<ServerConfig> {
        self.now.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn seen(&self) -> Seen {
        let files = [Some(&self.files.cert), Some(&self.files.key), self.files.client_ca.as_ref()];
        let seen = files.into_iter().flatten().map(|f| {
            let m = std::fs::metadata(f).ok()?;
            Some((m.dev(), m.ino(), m.len(), m.mtime(), m.mtime_nsec()))
        });
        seen.collect()
    }

    /// Reads the files again; what cannot be used is not.
    fn read_again(&self) -> Result<(), String> {
        let new = tls::config(&self.files)?;
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }
}

/// Looks at the files until the server stops.
pub async fn run(app: Arc<App>, certificates: Arc<Certificates>) {
    let mut stopping = app.stopping.subscribe();
    let mut hangup = match signal(SignalKind::hangup()) {
        Ok(h) => h,
        Err(e) => return app.log.note(&format!("certificates are not read again: {e}")),
    };
    // The first look reads the files once more: they may have changed since they were read.
    let mut before: Seen = Vec::new();
    loop {
        let asked = tokio::select! {
            () = async { _ = stopping.wait_for(|s| *s).await } => return,
            _ = hangup.recv() => true,
            () = tokio::time::sleep(CERTIFICATES_LOOK) => false,
        };
        let c = certificates.clone();
        let known = before.clone();
        // A file may be on a slow disk.
        let looked = tokio::task::spawn_blocking(move || {
            let seen = c.seen();
            let changed = seen != known;
            (seen, (asked || changed).then(|| c.read_again()))
        });
        let Ok((seen, read)) = looked.await else { continue };
        let first = before.is_empty();
        before = seen;
        match read {
            None => {}
            Some(Ok(())) if first && !asked => {}
            Some(Ok(())) => {
                app.metrics.renewed();
                app.log.note("the certificates were read again; new connections get the new ones");
            }
            Some(Err(why)) => {
                app.metrics.broken("certificates");
                app.log.note(&format!("{why}; the server goes on with the certificates that it has"));
            }
        }
    }
}
