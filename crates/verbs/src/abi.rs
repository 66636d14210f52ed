//! The structures, numbers and functions of libibverbs' binary interface that linkwise uses, declared from the interface's documentation. The layouts are
//! those of 64-bit Linux and were compared with the library's own (version 44): the constants at the end hold them.
//!
//! Posting and polling have no functions in the library: programs call through the table of functions in the context ([`Context`]).

#![allow(missing_docs, reason = "names are those of the interface")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;

/// A device, as `ibv_get_device_list` lists it. Programs ask for its name with `ibv_get_device_name`.
#[repr(C)]
#[derive(Debug)]
pub struct Device {
    pub operations: [usize; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
    pub dev_name: [c_char; 64],
    pub dev_path: [c_char; 256],
    pub ibdev_path: [c_char; 256],
}

pub type PollCq = unsafe extern "C" fn(*mut Cq, c_int, *mut Completion) -> c_int;
pub type RequestNotify = unsafe extern "C" fn(*mut Cq, c_int) -> c_int;
pub type PostSend = unsafe extern "C" fn(*mut Qp, *mut SendRequest, *mut *mut SendRequest) -> c_int;
pub type PostReceive = unsafe extern "C" fn(*mut Qp, *mut ReceiveRequest, *mut *mut ReceiveRequest) -> c_int;

/// An open device. Words 11, 12, 25 and 26 of the 32 functions are used; the others are for other features or kept for old programs.
#[repr(C)]
#[derive(Debug)]
pub struct Context {
    pub device: *mut Device,
    pub unused_0: [usize; 11],
    pub poll_cq: Option<PollCq>,
    pub request_notify: Option<RequestNotify>,
    pub unused_1: [usize; 12],
    pub post_send: Option<PostSend>,
    pub post_receive: Option<PostReceive>,
    pub unused_2: [usize; 5],
    pub command_fd: c_int,
    pub async_fd: c_int,
    pub vectors: c_int,
    pub mutex: [u64; 5],
    pub extension: *mut c_void,
}

/// A protection domain.
#[repr(C)]
#[derive(Debug)]
pub struct Pd {
    pub context: *mut Context,
    pub handle: u32,
}

/// A registered range of memory.
#[repr(C)]
#[derive(Debug)]
pub struct Mr {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub address: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// A channel whose descriptor is readable when a completion queue has news.
#[repr(C)]
#[derive(Debug)]
pub struct Channel {
    pub context: *mut Context,
    pub fd: c_int,
    pub references: c_int,
}

/// A completion queue.
#[repr(C)]
#[derive(Debug)]
pub struct Cq {
    pub context: *mut Context,
    pub channel: *mut Channel,
    pub user: *mut c_void,
    pub handle: u32,
    pub entries: c_int,
    pub private: [u64; 12],
}

/// A queue pair.
#[repr(C)]
#[derive(Debug)]
pub struct Qp {
    pub context: *mut Context,
    pub user: *mut c_void,
    pub pd: *mut Pd,
    pub send_cq: *mut Cq,
    pub receive_cq: *mut Cq,
    pub srq: *mut c_void,
    pub handle: u32,
    pub number: u32,
    pub state: c_int,
    pub kind: c_int,
    pub private: [u64; 12],
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Capacity {
    pub sends: u32,
    pub receives: u32,
    pub send_parts: u32,
    pub receive_parts: u32,
    pub inline_bytes: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct QpInit {
    pub user: *mut c_void,
    pub send_cq: *mut Cq,
    pub receive_cq: *mut Cq,
    pub srq: *mut c_void,
    pub capacity: Capacity,
    pub kind: c_int,
    pub all_signaled: c_int,
}

#[repr(C, align(8))]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Gid(pub [u8; 16]);

/// The way to the peer.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Route {
    pub gid: Gid,
    pub flow_label: u32,
    pub gid_index: u8,
    pub hops: u8,
    pub traffic_class: u8,
    pub lid: u16,
    pub service_level: u8,
    pub source_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port: u8,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct QpAttributes {
    pub state: c_int,
    pub current_state: c_int,
    pub mtu: c_int,
    pub migration: c_int,
    pub qkey: u32,
    pub receive_psn: u32,
    pub send_psn: u32,
    pub peer: u32,
    pub access: c_uint,
    pub capacity: Capacity,
    pub route: Route,
    pub other_route: Route,
    pub pkey_index: u16,
    pub other_pkey_index: u16,
    pub notify_drained: u8,
    pub draining: u8,
    pub reads: u8,
    pub peer_reads: u8,
    pub rnr_timer: u8,
    pub port: u8,
    pub timeout: u8,
    pub retries: u8,
    pub rnr_retries: u8,
    pub other_port: u8,
    pub other_timeout: u8,
    pub rate_limit: u32,
}

/// A part of memory.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Part {
    pub address: u64,
    pub bytes: u32,
    pub lkey: u32,
}

#[repr(C)]
#[derive(Debug)]
pub struct SendRequest {
    pub id: u64,
    pub next: *mut SendRequest,
    pub parts: *mut Part,
    pub count: c_int,
    pub opcode: c_int,
    pub flags: c_uint,
    /// In network order.
    pub immediate: u32,
    pub remote_address: u64,
    pub rkey: u32,
    pub unused: [u64; 9],
}

#[repr(C)]
#[derive(Debug)]
pub struct ReceiveRequest {
    pub id: u64,
    pub next: *mut ReceiveRequest,
    pub parts: *mut Part,
    pub count: c_int,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Completion {
    pub id: u64,
    pub status: c_int,
    pub opcode: c_int,
    pub vendor: u32,
    pub bytes: u32,
    /// In network order.
    pub immediate: u32,
    pub qp: u32,
    pub source_qp: u32,
    pub flags: c_uint,
    pub pkey_index: u16,
    pub lid: u16,
    pub service_level: u8,
    pub path_bits: u8,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct PortAttributes {
    pub state: c_int,
    pub mtu_max: c_int,
    pub mtu: c_int,
    pub gids: c_int,
    pub capabilities: u32,
    pub message_bytes_max: u32,
    pub bad_pkeys: u32,
    pub bad_qkeys: u32,
    pub pkeys: u16,
    pub lid: u16,
    pub manager_lid: u16,
    pub lid_mask: u8,
    pub lanes: u8,
    pub manager_level: u8,
    pub subnet_timeout: u8,
    pub init_type: u8,
    pub width: u8,
    pub speed: u8,
    pub physical_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub more_capabilities: u16,
    /// Newer libraries have more members.
    pub spare: [u32; 4],
}

pub const NODE_CA: c_int = 1;
pub const TRANSPORT_IB: c_int = 0;
pub const QPT_RC: c_int = 2;
pub const QPS_RESET: c_int = 0;
pub const QPS_INIT: c_int = 1;
pub const QPS_RTR: c_int = 2;
pub const QPS_RTS: c_int = 3;
pub const QPS_ERROR: c_int = 6;

/// Bits of the attributes that `ibv_modify_qp` sets.
pub mod mask {
    use std::ffi::c_int;
    pub const STATE: c_int = 1;
    pub const ACCESS: c_int = 8;
    pub const PKEY_INDEX: c_int = 16;
    pub const PORT: c_int = 32;
    pub const ROUTE: c_int = 128;
    pub const MTU: c_int = 256;
    pub const TIMEOUT: c_int = 512;
    pub const RETRIES: c_int = 1024;
    pub const RNR_RETRIES: c_int = 2048;
    pub const RECEIVE_PSN: c_int = 4096;
    pub const READS: c_int = 8192;
    pub const RNR_TIMER: c_int = 32768;
    pub const SEND_PSN: c_int = 65536;
    pub const PEER_READS: c_int = 131_072;
    pub const PEER: c_int = 1_048_576;
}

pub const ACCESS_LOCAL_WRITE: c_int = 1;
pub const ACCESS_REMOTE_WRITE: c_int = 2;
pub const ACCESS_REMOTE_READ: c_int = 4;
pub const SEND_SIGNALED: c_uint = 2;

pub const WR_WRITE: c_int = 0;
pub const WR_WRITE_IMM: c_int = 1;
pub const WR_SEND: c_int = 2;
pub const WR_SEND_IMM: c_int = 3;
pub const WR_READ: c_int = 4;

pub const WC_SEND: c_int = 0;
pub const WC_WRITE: c_int = 1;
pub const WC_READ: c_int = 2;
pub const WC_RECEIVE: c_int = 128;
pub const WC_RECEIVE_IMM: c_int = 129;
pub const WC_WITH_IMM: c_uint = 2;

/// States of a completion.
pub mod status {
    use std::ffi::c_int;
    pub const SUCCESS: c_int = 0;
    pub const LOCAL_LENGTH: c_int = 1;
    pub const LOCAL_PROTECTION: c_int = 4;
    pub const FLUSHED: c_int = 5;
    pub const REMOTE_INVALID: c_int = 9;
    pub const REMOTE_ACCESS: c_int = 10;
    pub const REMOTE_OPERATION: c_int = 11;
    pub const RETRIES: c_int = 12;
    pub const RNR_RETRIES: c_int = 13;
}

pub const PORT_ACTIVE: c_int = 4;
pub const MTU_4096: c_int = 5;
pub const LINK_ETHERNET: u8 = 2;

const _: () = {
    assert!(size_of::<Device>() == 664 && offset_of!(Device, name) == 24);
    assert!(size_of::<Context>() == 328 && offset_of!(Context, poll_cq) == 8 + 88);
    assert!(offset_of!(Context, request_notify) == 8 + 96 && offset_of!(Context, post_send) == 8 + 200);
    assert!(offset_of!(Context, post_receive) == 8 + 208 && offset_of!(Context, command_fd) == 264);
    assert!(offset_of!(Context, extension) == 320);
    assert!(size_of::<Pd>() == 16 && size_of::<Mr>() == 48 && offset_of!(Mr, lkey) == 36 && offset_of!(Mr, rkey) == 40);
    assert!(size_of::<Channel>() == 16 && offset_of!(Channel, fd) == 8);
    assert!(size_of::<Cq>() == 128 && size_of::<Qp>() == 160 && offset_of!(Qp, number) == 52);
    assert!(size_of::<QpInit>() == 64 && offset_of!(QpInit, kind) == 52);
    assert!(size_of::<Route>() == 32 && offset_of!(Route, lid) == 24 && offset_of!(Route, is_global) == 29);
    assert!(size_of::<QpAttributes>() == 144 && offset_of!(QpAttributes, access) == 32);
    assert!(offset_of!(QpAttributes, route) == 56 && offset_of!(QpAttributes, pkey_index) == 120);
    assert!(offset_of!(QpAttributes, reads) == 126 && offset_of!(QpAttributes, port) == 129);
    assert!(offset_of!(QpAttributes, timeout) == 130 && offset_of!(QpAttributes, rnr_retries) == 132);
    assert!(size_of::<SendRequest>() == 128 && offset_of!(SendRequest, remote_address) == 40);
    assert!(size_of::<ReceiveRequest>() == 32 && size_of::<Part>() == 16 && size_of::<Completion>() == 48);
    assert!(offset_of!(Completion, flags) == 36 && offset_of!(PortAttributes, more_capabilities) == 48);
    assert!(offset_of!(PortAttributes, lid) == 34 && offset_of!(PortAttributes, link_layer) == 46);
};
