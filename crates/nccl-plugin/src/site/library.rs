//! Opens the site's library and finds its tables.

use super::find::{Candidate, Kind, search};
use crate::abi::LOG;
use plugin_base::read::FILE_BYTES_MAX;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::ptr::null;

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}
/// `RTLD_NOW | RTLD_LOCAL`, as NCCL 2.26 and later.
const NOW: c_int = 2;

/// A table of the site's plugin, with the version of its interface. The library is never closed.
#[derive(Debug)]
pub struct SiteTable {
    pub api: u32,
    pub table: *const c_void,
    /// The plugin's own name.
    pub name: String,
    /// The name by which the library was opened.
    pub library: String,
}
// SAFETY: the table is constant data of a library that stays loaded.
unsafe impl Send for SiteTable {}
// SAFETY: as above.
unsafe impl Sync for SiteTable {}

/// The outcome of a search.
#[derive(Debug)]
enum Found {
    /// NCCL would load nothing, too.
    Nothing,
    /// A library opened, but linkwise cannot stand in front of its plugin; the reason is one sentence.
    Unusable(String),
    Table(SiteTable),
}

/// Finds the plugin that NCCL would have loaded and logs it; `use_of_it` completes the sentence. The other arguments are those of [`load`].
pub fn find(kind: Kind, newest: u32, oldest: u32, ours: &[*const c_void], use_of_it: &str) -> Option<SiteTable> {
    match plugin_base::guarded(Found::Nothing, || load(kind, newest, oldest, ours)) {
        Found::Nothing => None,
        Found::Unusable(why) => {
            LOG.warn(&why);
            None
        }
        Found::Table(t) => {
            LOG.info(&format!(
                "the site's {} {} ({}, interface v{}) {use_of_it}",
                kind.word(),
                t.name,
                t.library,
                t.api
            ));
            Some(t)
        }
    }
}

/// Finds the plugin that NCCL would have loaded. `newest` is the interface through which NCCL calls linkwise, `oldest` the oldest to which
/// arguments can be converted, `ours` a table of linkwise, so that it does not load itself.
fn load(kind: Kind, newest: u32, oldest: u32, ours: &[*const c_void]) -> Found {
    let read = |path: &PathBuf| plugin_base::read::read_file(path, FILE_BYTES_MAX).ok();
    let search = search(kind, &|k| std::env::var(k).ok(), &read);
    for candidate in &search.candidates {
        let (path, name) = match candidate {
            Candidate::Program => (None, "the program".to_string()),
            Candidate::Library(name) => match CString::new(name.as_str()) {
                Ok(path) => (Some(path), name.clone()),
                Err(_) => continue,
            },
        };
        // SAFETY: a 0-terminated name, or null for the program. Constructors of the library run, as under NCCL.
        let library = unsafe { dlopen(path.as_ref().map_or(null(), |p| p.as_ptr()), NOW) };
        if library.is_null() {
            continue;
        }
        return in_library(kind, library, &name, newest, oldest, ours);
    }
    Found::Nothing
}

fn in_library(kind: Kind, library: *mut c_void, path: &str, newest: u32, oldest: u32, ours: &[*const c_void]) -> Found {
    let symbol = |api: u32| {
        let name = match kind {
            Kind::Tuner => format!("ncclTunerPlugin_v{api}"),
            Kind::Profiler => format!("ncclProfiler_v{api}"),
        };
        let name = CString::new(name).ok()?;
        // SAFETY: an open library and a 0-terminated name.
        let table = unsafe { dlsym(library, name.as_ptr()) }.cast_const();
        (!table.is_null()).then_some(table)
    };
    // Releases that load linkwise load no tuner v1.
    let first = if kind == Kind::Tuner { 2 } else { 1 };
    let versions: Vec<u32> = (first..=9).filter(|api| symbol(*api).is_some()).collect();
    if versions.iter().any(|api| symbol(*api).is_some_and(|t| ours.contains(&t))) {
        return Found::Nothing; // linkwise itself
    }
    let word = kind.word();
    let usable =
        versions.iter().rev().find(|api| (oldest..=newest).contains(*api)).and_then(|api| Some((*api, symbol(*api)?)));
    match usable {
        Some((api, table)) => {
            // SAFETY: the first member of every table is its name.
            let name = unsafe { *table.cast::<*const c_char>() };
            // SAFETY: null or 0-terminated.
            let name = if name.is_null() { "".into() } else { unsafe { CStr::from_ptr(name) }.to_string_lossy() };
            if name == "linkwise" {
                return Found::Unusable(format!("{path} is another copy of linkwise; this one does not load it"));
            }
            Found::Table(SiteTable { api, table, name: name.chars().take(64).collect(), library: path.into() })
        }
        // A network plugin, or a library of another kind: NCCL would load no plugin from it either.
        None if versions.is_empty() => Found::Nothing,
        None => {
            let has: Vec<String> = versions.iter().map(|v| format!("v{v}")).collect();
            Found::Unusable(format!(
                "the site's {word} {path} offers interface {}, which linkwise cannot pass on (v{oldest} to v{newest}): it is not loaded in \
                 this job; unset {} to run without linkwise's {word}",
                has.join(", "),
                kind.variable()
            ))
        }
    }
}
