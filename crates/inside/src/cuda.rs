//! The CUDA runtime, found at run time: no CUDA header, no link against CUDA. The only module of this crate with `unsafe`.
//!
//! The functions come from the emulation of `nccl-bench` if it is loaded, else from `libcudart.so`. Their types are those of the public runtime API.
#![allow(unsafe_code)]

use crate::device::{Address, Device, DeviceError, Handle};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}
const RTLD_NOW: c_int = 2;
const LIBRARIES: [&CStr; 3] = [c"libcudart.so.13", c"libcudart.so.12", c"libcudart.so"];

const SUCCESS: c_int = 0;
const NOT_READY: c_int = 600;
const NON_BLOCKING: c_uint = 1;
const DISABLE_TIMING: c_uint = 2;
const LAZY_PEER_ACCESS: c_uint = 1;
/// The direction follows from the addresses.
const DEFAULT: c_int = 4;

/// `cudaIpcMemHandle_t`, which the runtime takes by value.
#[repr(C)]
#[derive(Clone, Copy)]
struct IpcHandle([u8; 64]);

type Status = c_int;
/// The functions of the runtime.
#[derive(Clone, Copy)]
struct Calls {
    set_device: unsafe extern "C" fn(c_int) -> Status,
    malloc: unsafe extern "C" fn(*mut u64, usize) -> Status,
    get_handle: unsafe extern "C" fn(*mut IpcHandle, u64) -> Status,
    open_handle: unsafe extern "C" fn(*mut u64, IpcHandle, c_uint) -> Status,
    stream_create: unsafe extern "C" fn(*mut usize, c_uint) -> Status,
    event_create: unsafe extern "C" fn(*mut usize, c_uint) -> Status,
    event_record: unsafe extern "C" fn(usize, usize) -> Status,
    event_query: unsafe extern "C" fn(usize) -> Status,
    copy_async: unsafe extern "C" fn(u64, u64, usize, c_int, usize) -> Status,
    copy: unsafe extern "C" fn(u64, u64, usize, c_int) -> Status,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
}

/// A GPU by the CUDA runtime. The other GPUs of the host must be visible to the process (`CUDA_VISIBLE_DEVICES`).
pub struct Cuda {
    calls: Calls,
}

impl std::fmt::Debug for Cuda {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cuda")
    }
}

/// Looks a function up by name.
struct Library {
    emulated: Option<unsafe extern "C" fn(*const c_char) -> *mut c_void>,
    handle: *mut c_void,
}

impl Library {
    fn find() -> Result<Library, DeviceError> {
        // SAFETY: 0-terminated names; a null library means the whole program.
        let emulated = unsafe { dlsym(null_mut(), c"linkwise_emu_symbol".as_ptr()) };
        if !emulated.is_null() {
            // SAFETY: the emulation declares the function so.
            let emulated = unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char) -> *mut c_void>(emulated)
            };
            return Ok(Library { emulated: Some(emulated), handle: null_mut() });
        }
        // SAFETY: 0-terminated paths. The library stays loaded.
        let opened = LIBRARIES.iter().map(|l| unsafe { dlopen(l.as_ptr(), RTLD_NOW) }).find(|l| !l.is_null());
        let missing = || DeviceError {
            call: "dlopen",
            reason: "no libcudart.so on the library path; install the CUDA runtime".into(),
        };
        Ok(Library { emulated: None, handle: opened.ok_or_else(missing)? })
    }

    fn symbol(&self, name: &'static CStr) -> Result<*mut c_void, DeviceError> {
        // SAFETY: a 0-terminated name; the library is open.
        let at = unsafe {
            match self.emulated {
                Some(f) => f(name.as_ptr()),
                None => dlsym(self.handle, name.as_ptr()),
            }
        };
        let missing =
            || DeviceError { call: "dlsym", reason: format!("the CUDA runtime has no {}", name.to_string_lossy()) };
        if at.is_null() { Err(missing()) } else { Ok(at) }
    }
}

impl Cuda {
    /// Takes GPU `device` (its number in this process) for the calling thread, which makes all calls.
    #[allow(clippy::missing_transmute_annotations, reason = "the members of `Calls` have the types")]
    pub fn new(device: c_int) -> Result<Cuda, DeviceError> {
        let library = Library::find()?;
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the public runtime API declares the function with the type of the member.
                unsafe { std::mem::transmute(library.symbol($name)?) }
            };
        }
        let calls = Calls {
            set_device: function!(c"cudaSetDevice"),
            malloc: function!(c"cudaMalloc"),
            get_handle: function!(c"cudaIpcGetMemHandle"),
            open_handle: function!(c"cudaIpcOpenMemHandle"),
            stream_create: function!(c"cudaStreamCreateWithFlags"),
            event_create: function!(c"cudaEventCreateWithFlags"),
            event_record: function!(c"cudaEventRecord"),
            event_query: function!(c"cudaEventQuery"),
            copy_async: function!(c"cudaMemcpyAsync"),
            copy: function!(c"cudaMemcpy"),
            error_string: function!(c"cudaGetErrorString"),
        };
        let cuda = Cuda { calls };
        // SAFETY: takes a number.
        cuda.check("cudaSetDevice", unsafe { (calls.set_device)(device) })?;
        Ok(cuda)
    }

    fn check(&self, call: &'static str, status: Status) -> Result<(), DeviceError> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: returns a 0-terminated constant for any number.
        let text = unsafe { CStr::from_ptr((self.calls.error_string)(status)) };
        Err(DeviceError { call, reason: format!("{} (error {status})", text.to_string_lossy()) })
    }
}

impl Device for Cuda {
    type Stream = usize;
    type Event = usize;

    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError> {
        let mut at = 0;
        // SAFETY: the address of a pointer.
        self.check("cudaMalloc", unsafe { (self.calls.malloc)(&mut at, bytes) })?;
        Ok(at)
    }
    fn export(&self, begin: Address) -> Result<Handle, DeviceError> {
        let mut handle = IpcHandle([0; 64]);
        // SAFETY: the address of a handle; the runtime checks the pointer.
        self.check("cudaIpcGetMemHandle", unsafe { (self.calls.get_handle)(&mut handle, begin) })?;
        Ok(handle.0)
    }
    fn open(&self, handle: &Handle) -> Result<Address, DeviceError> {
        let mut at = 0;
        // SAFETY: the address of a pointer; the runtime checks the handle.
        let status = unsafe { (self.calls.open_handle)(&mut at, IpcHandle(*handle), LAZY_PEER_ACCESS) };
        self.check("cudaIpcOpenMemHandle", status)?;
        Ok(at)
    }
    fn stream(&self) -> Result<usize, DeviceError> {
        let mut stream = 0;
        // SAFETY: the address of a handle.
        self.check("cudaStreamCreateWithFlags", unsafe { (self.calls.stream_create)(&mut stream, NON_BLOCKING) })?;
        Ok(stream)
    }
    fn event(&self) -> Result<usize, DeviceError> {
        let mut event = 0;
        // SAFETY: the address of a handle.
        self.check("cudaEventCreateWithFlags", unsafe { (self.calls.event_create)(&mut event, DISABLE_TIMING) })?;
        Ok(event)
    }
    fn copy(&self, to: Address, from: Address, bytes: usize, stream: usize, then: usize) -> Result<(), DeviceError> {
        // SAFETY: addresses of GPU memory, which the runtime checks; host memory is not copied by this call.
        self.check("cudaMemcpyAsync", unsafe { (self.calls.copy_async)(to, from, bytes, DEFAULT, stream) })?;
        // SAFETY: handles that the runtime made.
        self.check("cudaEventRecord", unsafe { (self.calls.event_record)(then, stream) })
    }
    fn done(&self, event: usize) -> Result<bool, DeviceError> {
        // SAFETY: a handle that the runtime made.
        match unsafe { (self.calls.event_query)(event) } {
            NOT_READY => Ok(false),
            status => self.check("cudaEventQuery", status).map(|()| true),
        }
    }
    fn write(&self, to: Address, from: &[u8]) -> Result<(), DeviceError> {
        // SAFETY: the slice stays for the call, which waits.
        self.check("cudaMemcpy", unsafe { (self.calls.copy)(to, from.as_ptr() as u64, from.len(), DEFAULT) })
    }
    fn read(&self, to: &mut [u8], from: Address) -> Result<(), DeviceError> {
        // SAFETY: the slice stays for the call, which waits.
        self.check("cudaMemcpy", unsafe { (self.calls.copy)(to.as_mut_ptr() as u64, from, to.len(), DEFAULT) })
    }
}
