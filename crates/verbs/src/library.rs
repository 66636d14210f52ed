//! The library: opened at run time, so that a host without it needs nothing.
#![allow(unsafe_code)]

use crate::abi::*;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::Mutex;

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}
const RTLD_NOW: c_int = 2;

/// Name of the library where no path is set.
const NAME: &str = "libibverbs.so.1";

/// The functions of the library that linkwise calls.
#[derive(Debug)]
pub struct Library {
    pub(crate) get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut Device,
    pub(crate) free_device_list: unsafe extern "C" fn(*mut *mut Device),
    pub(crate) get_device_name: unsafe extern "C" fn(*mut Device) -> *const c_char,
    pub(crate) open_device: unsafe extern "C" fn(*mut Device) -> *mut Context,
    pub(crate) close_device: unsafe extern "C" fn(*mut Context) -> c_int,
    pub(crate) query_port: unsafe extern "C" fn(*mut Context, u8, *mut PortAttributes) -> c_int,
    pub(crate) query_gid: unsafe extern "C" fn(*mut Context, u8, c_int, *mut Gid) -> c_int,
    pub(crate) alloc_pd: unsafe extern "C" fn(*mut Context) -> *mut Pd,
    pub(crate) dealloc_pd: unsafe extern "C" fn(*mut Pd) -> c_int,
    pub(crate) reg_mr: unsafe extern "C" fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr,
    pub(crate) dereg_mr: unsafe extern "C" fn(*mut Mr) -> c_int,
    pub(crate) create_comp_channel: unsafe extern "C" fn(*mut Context) -> *mut Channel,
    pub(crate) destroy_comp_channel: unsafe extern "C" fn(*mut Channel) -> c_int,
    pub(crate) create_cq: unsafe extern "C" fn(*mut Context, c_int, *mut c_void, *mut Channel, c_int) -> *mut Cq,
    pub(crate) destroy_cq: unsafe extern "C" fn(*mut Cq) -> c_int,
    pub(crate) get_cq_event: unsafe extern "C" fn(*mut Channel, *mut *mut Cq, *mut *mut c_void) -> c_int,
    pub(crate) ack_cq_events: unsafe extern "C" fn(*mut Cq, c_uint),
    pub(crate) create_qp: unsafe extern "C" fn(*mut Pd, *mut QpInit) -> *mut Qp,
    pub(crate) modify_qp: unsafe extern "C" fn(*mut Qp, *mut QpAttributes, c_int) -> c_int,
    pub(crate) destroy_qp: unsafe extern "C" fn(*mut Qp) -> c_int,
}

/// Libraries that are open, by path: they stay.
static OPEN: Mutex<Vec<(String, &'static Library)>> = Mutex::new(Vec::new());

impl Library {
    /// Opens the library at a path, or the one of the system.
    ///
    /// # Errors
    /// It cannot be opened, or lacks a function.
    pub fn open(path: Option<&str>) -> Result<&'static Library, String> {
        let name = path.unwrap_or(NAME);
        let mut open = OPEN.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((_, library)) = open.iter().find(|(n, _)| n == name) {
            return Ok(library);
        }
        let text = CString::new(name).map_err(|_| format!("{name:?} is no path"))?;
        // SAFETY: a 0-terminated path. The library stays open.
        let handle = unsafe { dlopen(text.as_ptr(), RTLD_NOW) };
        if handle.is_null() {
            return Err(format!("{name} cannot be opened"));
        }
        let library = Box::leak(Box::new(Self::find(name, handle)?));
        open.push((name.to_owned(), library));
        Ok(library)
    }

    #[allow(clippy::missing_transmute_annotations, reason = "the member that it becomes has the type")]
    fn find(name: &str, handle: *mut c_void) -> Result<Self, String> {
        macro_rules! function {
            ($symbol:literal) => {{
                // SAFETY: an open library and a 0-terminated name.
                let at = unsafe { dlsym(handle, $symbol.as_ptr()) };
                if at.is_null() {
                    return Err(format!("{name} has no {}", CStr::to_string_lossy($symbol)));
                }
                // SAFETY: the library's function of this name has the type of the member.
                unsafe { std::mem::transmute(at) }
            }};
        }
        Ok(Library {
            get_device_list: function!(c"ibv_get_device_list"),
            free_device_list: function!(c"ibv_free_device_list"),
            get_device_name: function!(c"ibv_get_device_name"),
            open_device: function!(c"ibv_open_device"),
            close_device: function!(c"ibv_close_device"),
            query_port: function!(c"ibv_query_port"),
            query_gid: function!(c"ibv_query_gid"),
            alloc_pd: function!(c"ibv_alloc_pd"),
            dealloc_pd: function!(c"ibv_dealloc_pd"),
            reg_mr: function!(c"ibv_reg_mr"),
            dereg_mr: function!(c"ibv_dereg_mr"),
            create_comp_channel: function!(c"ibv_create_comp_channel"),
            destroy_comp_channel: function!(c"ibv_destroy_comp_channel"),
            create_cq: function!(c"ibv_create_cq"),
            destroy_cq: function!(c"ibv_destroy_cq"),
            get_cq_event: function!(c"ibv_get_cq_event"),
            ack_cq_events: function!(c"ibv_ack_cq_events"),
            create_qp: function!(c"ibv_create_qp"),
            modify_qp: function!(c"ibv_modify_qp"),
            destroy_qp: function!(c"ibv_destroy_qp"),
        })
    }
}
