//! The properties of a device, in the layout of each version of the interface.

#![allow(clippy::missing_safety_doc, reason = "the contract of every function is NCCL's interface")]

use super::{Status, guarded};
use crate::process;
use net::limits::GROUPED_MAX;
use plugin_base::border::{ARGUMENT, SUCCESS};
use std::ffi::{CString, c_char, c_int};
use std::sync::OnceLock;

/// `NCCL_PTR_HOST` and `NCCL_PTR_CUDA`.
pub const PTR_HOST: c_int = 1;
pub const PTR_CUDA: c_int = 2;
/// Largest transfer that NCCL may ask for, bytes.
const TRANSFER_BYTES_MAX: usize = 1 << 30;
const COMMS_MAX: c_int = 65_536;
/// A rail or plane that is not known.
const UNDEFINED: i16 = -1;

/// The first members of all versions. `force_flush` follows, which v8 lacks.
#[repr(C)]
#[derive(Debug)]
pub struct Head {
    name: *const c_char,
    pci_path: *const c_char,
    guid: u64,
    ptr_support: c_int,
    reg_is_global: c_int,
}

/// The members after `force_flush`.
#[repr(C)]
#[derive(Debug)]
pub struct Port {
    speed: c_int,
    port: c_int,
    latency: f32,
    max_comms: c_int,
    max_recvs: c_int,
    device_type: c_int,
    device_version: c_int,
}

/// NICs of a virtual device: one here.
#[repr(C)]
#[derive(Debug)]
pub struct Virtual<const N: usize> {
    count: c_int,
    devices: [c_int; N],
}

#[repr(C)]
#[derive(Debug)]
pub struct PropertiesV8 {
    head: Head,
    port: Port,
}

/// `N`: NICs of a virtual device.
#[repr(C)]
#[derive(Debug)]
pub struct PropertiesV9<const N: usize> {
    head: Head,
    force_flush: c_int,
    port: Port,
    parts: Virtual<N>,
    p2p_bytes_max: usize,
    coll_bytes_max: usize,
}

#[repr(C)]
#[derive(Debug)]
pub struct PropertiesV11 {
    base: PropertiesV9<4>,
    multi_request_max: c_int,
}

#[repr(C)]
#[derive(Debug)]
pub struct PropertiesV12 {
    base: PropertiesV9<8>,
    multi_request_max: c_int,
    rail: i16,
    plane: i16,
}

const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(PropertiesV8, port) == 32 && size_of::<PropertiesV8>() == 64);
    assert!(offset_of!(PropertiesV9<4>, port) == 36 && offset_of!(PropertiesV9<4>, parts) == 64);
    assert!(offset_of!(PropertiesV9<4>, p2p_bytes_max) == 88 && size_of::<PropertiesV9<4>>() == 104);
    assert!(offset_of!(PropertiesV11, multi_request_max) == 104 && size_of::<PropertiesV11>() == 112);
    assert!(offset_of!(PropertiesV9<8>, p2p_bytes_max) == 104 && offset_of!(PropertiesV12, rail) == 124);
    assert!(size_of::<PropertiesV12>() == 128);
};

/// 0-terminated texts of a device, which NCCL keeps.
#[derive(Debug)]
struct Texts {
    name: CString,
    pci_path: Option<CString>,
}

fn texts(device: usize) -> Option<&'static Texts> {
    static TEXTS: OnceLock<Vec<Texts>> = OnceLock::new();
    let all = TEXTS.get_or_init(|| {
        let text = |t: &str| CString::new(t).unwrap_or_default();
        let nics = process::offer().nics.iter();
        nics.map(|n| Texts { name: text(&n.name), pci_path: n.pci_path.as_deref().map(text) }).collect()
    });
    all.get(device)
}

fn head(device: usize) -> Option<Head> {
    let (offer, texts) = (process::offer(), texts(device)?);
    let nic = offer.nics.get(device)?;
    Some(Head {
        name: texts.name.as_ptr(),
        pci_path: texts.pci_path.as_ref().map_or(std::ptr::null(), |p| p.as_ptr()),
        guid: nic.guid,
        ptr_support: if offer.config.gpu_is_host { PTR_HOST | PTR_CUDA } else { PTR_HOST },
        reg_is_global: 1,
    })
}

fn port(device: usize) -> Option<Port> {
    let nic = process::offer().nics.get(device)?;
    Some(Port {
        speed: c_int::try_from(nic.speed_mbit_per_s).unwrap_or(c_int::MAX),
        port: 0,
        latency: 0.0,
        max_comms: COMMS_MAX,
        max_recvs: GROUPED_MAX as c_int,
        device_type: 0,
        device_version: 0,
    })
}

fn parts<const N: usize>(device: usize) -> Virtual<N> {
    let mut devices = [0; N];
    if let Some(d) = devices.first_mut() {
        *d = device as c_int;
    }
    Virtual { count: 1, devices }
}

fn properties_of_v9<const N: usize>(d: usize) -> Option<PropertiesV9<N>> {
    Some(PropertiesV9 {
        head: head(d)?,
        force_flush: 0,
        port: port(d)?,
        parts: parts(d),
        p2p_bytes_max: TRANSFER_BYTES_MAX,
        coll_bytes_max: TRANSFER_BYTES_MAX,
    })
}

/// Writes the properties of a device.
fn properties<P>(device: c_int, to: *mut P, of: impl FnOnce(usize) -> Option<P>) -> Status {
    guarded(|| {
        let found = usize::try_from(device).ok().and_then(of).filter(|_| !to.is_null());
        let Some(p) = found else { return ARGUMENT };
        // SAFETY: NCCL passes the address of this version's structure.
        unsafe { to.write(p) };
        SUCCESS
    })
}

pub unsafe extern "C" fn properties_v8(device: c_int, to: *mut PropertiesV8) -> Status {
    properties(device, to, |d| Some(PropertiesV8 { head: head(d)?, port: port(d)? }))
}

pub unsafe extern "C" fn properties_v9(device: c_int, to: *mut PropertiesV9<4>) -> Status {
    properties(device, to, properties_of_v9)
}

pub unsafe extern "C" fn properties_v11(device: c_int, to: *mut PropertiesV11) -> Status {
    properties(device, to, |d| Some(PropertiesV11 { base: properties_of_v9(d)?, multi_request_max: 1 }))
}

pub unsafe extern "C" fn properties_v12(device: c_int, to: *mut PropertiesV12) -> Status {
    properties(device, to, |d| {
        let rail = i16::try_from(d).unwrap_or(UNDEFINED);
        Some(PropertiesV12 { base: properties_of_v9(d)?, multi_request_max: 1, rail, plane: UNDEFINED })
    })
}
