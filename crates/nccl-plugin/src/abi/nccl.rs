//! The NCCL library that loaded the plugin.

use super::log::Logger;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// `Dl_info` of `dladdr`.
#[repr(C)]
struct Object {
    path: *const c_char,
    base: *mut c_void,
    symbol: *const c_char,
    address: *mut c_void,
}

unsafe extern "C" {
    fn dladdr(address: *const c_void, object: *mut Object) -> c_int;
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlclose(library: *mut c_void) -> c_int;
}
const RTLD_LAZY: c_int = 1;
/// Only a library that is loaded already.
const RTLD_NOLOAD: c_int = 4;
/// The library stays until the process ends.
const RTLD_NODELETE: c_int = 0x1000;

static VERSION: OnceLock<Option<u32>> = OnceLock::new();

/// NCCL's release as `ncclGetVersion` says it (22809 is 2.28.9); `None` before the first init, or if the caller has no such function.
pub fn version() -> Option<u32> {
    VERSION.get().copied().flatten()
}

/// Asks the library in which NCCL's logger lies: a process may have several.
pub fn ask_version(logger: Logger) {
    let Some(logger) = logger else { return };
    VERSION.get_or_init(|| {
        let object = object_of(logger as *const c_void)?;
        // SAFETY: `path` is the 0-terminated path of a loaded object.
        let library = unsafe { dlopen(object.path, RTLD_LAZY | RTLD_NOLOAD) };
        if library.is_null() {
            return None;
        }
        // SAFETY: the library was opened above, and the name is 0-terminated.
        let function = unsafe { dlsym(library, c"ncclGetVersion".as_ptr()) };
        let mut version: c_int = 0;
        let known = !function.is_null() && {
            // SAFETY: NCCL's function of this name has this type.
            let get: unsafe extern "C" fn(*mut c_int) -> c_int = unsafe { std::mem::transmute(function) };
            // SAFETY: the address of an int.
            unsafe { get(&mut version) == 0 }
        };
        // SAFETY: opened above; NCCL's own reference keeps the library.
        unsafe { dlclose(library) };
        u32::try_from(version).ok().filter(|v| known && *v > 0)
    });
}

/// The plugin's library stays in memory until the process ends: a thread of it hangs in the kernel.
pub fn keep_this_library() {
    if let Some(object) = object_of(keep_this_library as *const c_void) {
        // SAFETY: the path of a loaded object. The reference is never given back.
        unsafe { dlopen(object.path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) };
    }
}

/// The loaded object with this address.
fn object_of(address: *const c_void) -> Option<Object> {
    let mut object = Object { path: null_mut(), base: null_mut(), symbol: null_mut(), address: null_mut() };
    // SAFETY: any address may be asked about; the object is written if there is one.
    let found = unsafe { dladdr(address, &mut object) } != 0;
    (found && !object.path.is_null()).then_some(object)
}
