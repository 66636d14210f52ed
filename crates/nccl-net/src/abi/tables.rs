//! The tables of the network interface, v8 to v12.
//!
//! | table | NCCL | difference to the one before |
//! |---|---|---|
//! | v8 | up to 2.23 | sizes are ints |
//! | v9 | 2.24, 2.25 | sizes are size_t; virtual devices |
//! | v10 | 2.26, 2.27 | profiler callback; handles for the profiler; a traffic class per connection |
//! | v11 | 2.28, 2.29 | a context per communicator |
//! | v12 | 2.30 and later | 8 NICs in a virtual device; rail and plane of a device |

use super::calls::*;
use super::properties::*;
use super::{Logger, Name, Status};
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int, c_void};

const NAME: Name = Name::new(c"linkwise");

type Accept = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut *mut c_void) -> Status;
type Register = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, *mut *mut c_void) -> Status;
type RegisterDmaBuf =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, u64, c_int, *mut *mut c_void) -> Status;
type OnComm = unsafe extern "C" fn(*mut c_void) -> Status;
type Flush = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *const *mut c_void,
    *const c_int,
    *const *mut c_void,
    *mut *mut c_void,
) -> Status;
/// A function that this plugin lacks.
type Absent = Option<unsafe extern "C" fn() -> Status>;
type Connect8 = unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void, *mut *mut c_void) -> Status;
type Connect10 = unsafe extern "C" fn(c_int, *const c_void, *mut c_void, *mut *mut c_void, *mut *mut c_void) -> Status;
type Connect11 = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut *mut c_void, *mut *mut c_void) -> Status;
type Listen8 = unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void) -> Status;
type Listen11 = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut *mut c_void) -> Status;
type Init8 = unsafe extern "C" fn(Logger) -> Status;
type Init10 = unsafe extern "C" fn(Logger, *const c_void) -> Status;
type Init11 = unsafe extern "C" fn(*mut *mut c_void, u64, *const c_void, Logger, *const c_void) -> Status;
type Send<S> = unsafe extern "C" fn(*mut c_void, *mut c_void, S, c_int, *mut c_void, *mut *mut c_void) -> Status;
type Send10 =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, *mut c_void, *mut c_void, *mut *mut c_void) -> Status;
type Receive<S> = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *const *mut c_void,
    *const S,
    *const c_int,
    *const *mut c_void,
    *mut *mut c_void,
) -> Status;
type Receive10 = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *const *mut c_void,
    *const usize,
    *const c_int,
    *const *mut c_void,
    *const *mut c_void,
    *mut *mut c_void,
) -> Status;

/// The members of every version, in this order. `T`: the members of this version after `irecvConsumed`.
#[repr(C)]
#[derive(Debug)]
struct Table<I, P, L, C, S, R, T> {
    name: Name,
    init: I,
    devices: unsafe extern "C" fn(*mut c_int) -> Status,
    properties: unsafe extern "C" fn(c_int, *mut P) -> Status,
    listen: L,
    connect: C,
    accept: Accept,
    register: Register,
    register_dma_buf: RegisterDmaBuf,
    deregister: unsafe extern "C" fn(*mut c_void, *mut c_void) -> Status,
    send: S,
    receive: R,
    flush: Flush,
    test: unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> Status,
    close_send: OnComm,
    close_receive: OnComm,
    close_listen: OnComm,
    device_registration: Absent,
    receive_consumed: Absent,
    tail: T,
}

/// After `irecvConsumed`: nothing in v8, `makeVDevice` in v9 and v10, then `finalize` and `setNetAttr`.
#[repr(C)]
#[derive(Debug)]
struct Tail11 {
    virtual_device: Absent,
    finalize: OnComm,
    set_net_attr: unsafe extern "C" fn(*mut c_void, *const c_void) -> Status,
}

macro_rules! table {
    ($init:ident, $properties:ident, $listen:ident, $connect:ident, $send:ident, $receive:ident, $tail:expr) => {
        Table {
            name: NAME,
            init: $init,
            devices,
            properties: $properties,
            listen: $listen,
            connect: $connect,
            accept,
            register,
            register_dma_buf,
            deregister,
            send: $send,
            receive: $receive,
            flush,
            test,
            close_send,
            close_receive,
            close_listen,
            device_registration: None,
            receive_consumed: None,
            tail: $tail,
        }
    };
}

type V8 = Table<Init8, PropertiesV8, Listen8, Connect8, Send<c_int>, Receive<c_int>, ()>;
type V9 = Table<Init8, PropertiesV9<4>, Listen8, Connect8, Send<usize>, Receive<usize>, Absent>;
type V10 = Table<Init10, PropertiesV9<4>, Listen8, Connect10, Send10, Receive10, Absent>;
type V11 = Table<Init11, PropertiesV11, Listen11, Connect11, Send10, Receive10, Tail11>;
type V12 = Table<Init11, PropertiesV12, Listen11, Connect11, Send10, Receive10, Tail11>;
const _: () = {
    assert!(size_of::<V8>() == 19 * 8 && size_of::<V9>() == 20 * 8 && size_of::<V10>() == 20 * 8);
    assert!(size_of::<V11>() == 22 * 8 && size_of::<V12>() == 22 * 8);
};

const TAIL_11: Tail11 = Tail11 { virtual_device: None, finalize, set_net_attr };

/// A table that [`super::wrap`] may replace while the library is loaded, and nothing writes afterwards.
#[repr(transparent)]
#[derive(Debug)]
struct Shown<T>(UnsafeCell<T>);
// SAFETY: written only before any other thread can know of it.
unsafe impl<T> Sync for Shown<T> {}

impl<T> Shown<T> {
    const fn new(table: T) -> Self {
        Shown(UnsafeCell::new(table))
    }

    fn words(&self) -> (*mut usize, usize) {
        (self.0.get().cast(), size_of::<T>() / size_of::<usize>())
    }
}

#[unsafe(no_mangle)]
static ncclNetPlugin_v8: Shown<V8> =
    Shown::new(table!(init_v8, properties_v8, listen_v8, connect_v8, send_v8, receive_v8, ()));
#[unsafe(no_mangle)]
static ncclNetPlugin_v9: Shown<V9> =
    Shown::new(table!(init_v8, properties_v9, listen_v8, connect_v8, send_v8, receive_v8, None));
#[unsafe(no_mangle)]
static ncclNetPlugin_v10: Shown<V10> =
    Shown::new(table!(init_v10, properties_v9, listen_v8, connect_v10, send_v10, receive_v10, None));
#[unsafe(no_mangle)]
static ncclNetPlugin_v11: Shown<V11> =
    Shown::new(table!(init_v11, properties_v11, listen_v11, connect_v11, send_v10, receive_v10, TAIL_11));
#[unsafe(no_mangle)]
static ncclNetPlugin_v12: Shown<V12> =
    Shown::new(table!(init_v11, properties_v12, listen_v11, connect_v11, send_v10, receive_v10, TAIL_11));

/// Name, address and number of words of every table.
pub(super) fn all() -> [(&'static CStr, *mut usize, usize); 5] {
    let tables = [
        (c"ncclNetPlugin_v8", ncclNetPlugin_v8.words()),
        (c"ncclNetPlugin_v9", ncclNetPlugin_v9.words()),
        (c"ncclNetPlugin_v10", ncclNetPlugin_v10.words()),
        (c"ncclNetPlugin_v11", ncclNetPlugin_v11.words()),
        (c"ncclNetPlugin_v12", ncclNetPlugin_v12.words()),
    ];
    tables.map(|(name, (at, words))| (name, at, words))
}
