//! The site's own plugin, `LINKWISE_NET_WRAP`: if this plugin has nothing to do, NCCL gets the tables of that one, unchanged.
//!
//! NCCL finds tables by their names and keeps pointers to them, so the tables are replaced before it can look: while the library is loaded.

use super::tables;
use crate::config::{Config, WRAP};
use crate::nics::{self, Sys};
use plugin_base::read::read_file;
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::sync::OnceLock;

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}
const RTLD_NOW: c_int = 2;

/// Why the site's plugin is not used, for the log: NCCL's logger is not known yet.
static REFUSED: OnceLock<String> = OnceLock::new();

/// Why the site's plugin is not used although it is set and this plugin has no device.
pub fn refused() -> Option<&'static str> {
    REFUSED.get().map(String::as_str)
}

/// Replaces the tables, if the site names a plugin and this one offers no device.
fn wrap() {
    let Some(path) = std::env::var(WRAP).ok().filter(|p| !p.is_empty()) else { return };
    // A wrong setting is reported by `init`; NCCL's own transport is used then.
    let Ok(config) = Config::load(|k| std::env::var(k).ok(), read_file) else { return };
    if nics::rails(&config, &super::library::interfaces(), &Sys(Path::new("/sys"))).is_ok() {
        return;
    }
    let library = CString::new(path.as_str()).map_or(std::ptr::null_mut(), |p| {
        // SAFETY: a 0-terminated path. The library stays loaded: NCCL keeps pointers into it.
        unsafe { dlopen(p.as_ptr(), RTLD_NOW) }
    });
    if library.is_null() {
        _ = REFUSED.set(format!("{WRAP}: {path} cannot be loaded"));
        return;
    }
    let mut missing = Vec::new();
    for (name, ours, words) in tables::all() {
        // SAFETY: an open library and a 0-terminated name.
        let theirs = unsafe { dlsym(library, name.as_ptr()) };
        if theirs.is_null() {
            missing.push(name.to_string_lossy().into_owned());
        } else {
            // SAFETY: both are tables of this version with that many words. No thread reads ours yet: the loader has not handed out the library.
            unsafe { std::ptr::copy(theirs.cast::<usize>(), ours, words) };
        }
    }
    if !missing.is_empty() {
        _ = REFUSED.set(format!("{WRAP}: {path} has no {}", missing.join(", ")));
    }
}

extern "C" fn at_load() {
    let _ = std::panic::catch_unwind(wrap);
}

/// Runs when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;
