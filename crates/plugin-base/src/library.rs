//! Loaded libraries: the one with this code, and the one that called it.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;

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

/// The library with this code stays in memory until the process ends: a thread of it runs as long, or hangs in the kernel.
pub fn keep() {
    if let Some(object) = object_of(keep as *const c_void) {
        // SAFETY: the path of a loaded object. The reference is never given back.
        unsafe { dlopen(object.path, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE) };
    }
}

/// NCCL's release as `ncclGetVersion` of the library with this address says it (22809 is 2.28.9); `None` if the library has no such function. A process
/// may have several NCCL libraries.
pub fn nccl_version(address: *const c_void) -> Option<u32> {
    let object = object_of(address)?;
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
}

/// The loaded object with this address.
fn object_of(address: *const c_void) -> Option<Object> {
    let mut object = Object { path: null_mut(), base: null_mut(), symbol: null_mut(), address: null_mut() };
    // SAFETY: `dladdr` accepts any address and writes the object if there is one.
    let found = unsafe { dladdr(address, &mut object) } != 0;
    (found && !object.path.is_null()).then_some(object)
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_address_outside_of_nccl_has_no_version() {
        let text = "a string of this program";
        assert_eq!(super::nccl_version(text.as_ptr().cast()), None);
        assert_eq!(super::nccl_version(std::ptr::null()), None);
        super::keep();
    }
}
