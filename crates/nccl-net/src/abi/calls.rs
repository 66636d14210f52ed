//! The functions of the network interface, by the version that changed their arguments.

#![allow(clippy::missing_safety_doc, reason = "the contract of every function is NCCL's interface")]

use super::properties::{PTR_CUDA, PTR_HOST};
use super::{LOG, Logger, Status, guarded};
use crate::process;
use net::handle::HANDLE_BYTES;
use net::limits::GROUPED_MAX;
use net::{Buffer, Listen, NetError, Progress, ReceiveEnd, Registration, Request, SendEnd};
use plugin_base::border::{ARGUMENT, INTERNAL, REMOTE, SUCCESS, SYSTEM};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

pub unsafe extern "C" fn init_v8(logger: Logger) -> Status {
    guarded(|| {
        LOG.set(logger);
        process::offer();
        SUCCESS
    })
}

pub unsafe extern "C" fn init_v10(logger: Logger, _profiler: *const c_void) -> Status {
    // SAFETY: the same contract.
    unsafe { init_v8(logger) }
}

pub unsafe extern "C" fn init_v11(
    context: *mut *mut c_void,
    _comm: u64,
    _config: *const c_void,
    logger: Logger,
    _profiler: *const c_void,
) -> Status {
    // SAFETY: the same contract.
    let status = unsafe { init_v8(logger) };
    // The plugin needs no context, but some callers refuse null. Without a device it leaves null: NCCL 2.28 then tries its InfiniBand transport
    // with the same pointer, and frees it if that fails.
    if status == SUCCESS && !context.is_null() && !process::offer().nics.is_empty() {
        // SAFETY: NCCL passes the address of its context pointer.
        unsafe { *context = (&raw const CONTEXT).cast_mut().cast() };
    }
    status
}

static CONTEXT: u8 = 0;

pub unsafe extern "C" fn finalize(_context: *mut c_void) -> Status {
    guarded(|| {
        process::log_counts();
        SUCCESS
    })
}

pub unsafe extern "C" fn set_net_attr(_context: *mut c_void, _attributes: *const c_void) -> Status {
    SUCCESS
}

pub unsafe extern "C" fn devices(count: *mut c_int) -> Status {
    guarded(|| {
        if count.is_null() {
            return ARGUMENT;
        }
        // SAFETY: the address of an int.
        unsafe { *count = process::offer().nics.len() as c_int };
        SUCCESS
    })
}

fn status(e: &NetError) -> Status {
    match e {
        NetError::Handle(_) => ARGUMENT,
        NetError::Remote(_) => REMOTE,
        NetError::Limit | NetError::Forked => SYSTEM,
    }
}

/// A rail's number from a device's.
fn rail(device: c_int) -> Option<usize> {
    usize::try_from(device).ok().filter(|d| *d < process::offer().nics.len())
}

pub unsafe extern "C" fn listen_v8(device: c_int, handle: *mut c_void, listener: *mut *mut c_void) -> Status {
    guarded(|| {
        let (Some(rail), false) = (rail(device), handle.is_null() || listener.is_null()) else { return ARGUMENT };
        let Some(endpoint) = process::endpoint() else { return SYSTEM };
        match endpoint.listen(rail) {
            Ok((l, bytes)) => {
                // SAFETY: a handle has 128 bytes; the listener is given back by `close_listen`.
                unsafe {
                    handle.cast::<[u8; HANDLE_BYTES]>().write(bytes);
                    *listener = Box::into_raw(Box::new(l)).cast();
                }
                SUCCESS
            }
            Err(e) => {
                LOG.warn(&format!("cannot listen: {e}"));
                status(&e)
            }
        }
    })
}

pub unsafe extern "C" fn listen_v11(_: *mut c_void, device: c_int, handle: *mut c_void, l: *mut *mut c_void) -> Status {
    // SAFETY: the same contract.
    unsafe { listen_v8(device, handle, l) }
}

pub unsafe extern "C" fn connect_v8(
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    offload: *mut *mut c_void,
) -> Status {
    guarded(|| {
        let (Some(rail), false) = (rail(device), handle.is_null() || comm.is_null()) else { return ARGUMENT };
        let Some(endpoint) = process::endpoint() else { return SYSTEM };
        // SAFETY: NCCL passes the address of its pointers and a handle of 128 bytes, in which the plugin keeps its state between calls.
        let handle = unsafe {
            *comm = null_mut();
            if !offload.is_null() {
                *offload = null_mut();
            }
            &mut *handle.cast::<[u8; HANDLE_BYTES]>()
        };
        match endpoint.connect(rail, handle) {
            Ok(None) => SUCCESS,
            Ok(Some(end)) => {
                // SAFETY: as above; given back by `close_send`.
                unsafe { *comm = Box::into_raw(Box::new(end)).cast() };
                SUCCESS
            }
            Err(e) => {
                LOG.warn(&format!("cannot connect: {e}"));
                status(&e)
            }
        }
    })
}

pub unsafe extern "C" fn connect_v10(
    device: c_int,
    _config: *const c_void,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    offload: *mut *mut c_void,
) -> Status {
    // SAFETY: the same contract.
    unsafe { connect_v8(device, handle, comm, offload) }
}

pub unsafe extern "C" fn connect_v11(
    _context: *mut c_void,
    device: c_int,
    handle: *mut c_void,
    comm: *mut *mut c_void,
    offload: *mut *mut c_void,
) -> Status {
    // SAFETY: the same contract.
    unsafe { connect_v8(device, handle, comm, offload) }
}

pub unsafe extern "C" fn accept(listener: *mut c_void, comm: *mut *mut c_void, offload: *mut *mut c_void) -> Status {
    guarded(|| {
        // SAFETY: made by `listen`, not yet closed; the addresses of NCCL's pointers.
        let (listener, comm) = unsafe {
            if !offload.is_null() {
                *offload = null_mut();
            }
            (listener.cast::<Listen>().as_ref(), comm.as_mut())
        };
        let (Some(listener), Some(comm)) = (listener, comm) else { return ARGUMENT };
        // Given back by `close_receive`.
        *comm = listener.accept().map_or(null_mut(), |end| Box::into_raw(Box::new(end)).cast());
        SUCCESS
    })
}

pub unsafe extern "C" fn register(
    _: *mut c_void,
    data: *mut c_void,
    size: usize,
    kind: c_int,
    out: *mut *mut c_void,
) -> Status {
    guarded(|| {
        let known = kind == PTR_HOST || (kind == PTR_CUDA && process::offer().config.gpu_is_host);
        if !known || out.is_null() {
            return INTERNAL;
        }
        // SAFETY: NCCL keeps the memory mapped until it ends the registration.
        let buffer = unsafe { Buffer::new(data.cast(), size) };
        let number = process::endpoint().map_or(0, |e| e.register(&buffer).0);
        let handle = match number {
            // TCP needs no registration; NCCL takes null for "not registered".
            0 => (&raw const CONTEXT).cast_mut().cast(),
            n => std::ptr::without_provenance_mut(n as usize),
        };
        // SAFETY: the address of NCCL's pointer.
        unsafe { *out = handle };
        SUCCESS
    })
}

pub unsafe extern "C" fn register_dma_buf(
    _: *mut c_void,
    _: *mut c_void,
    _: usize,
    _: c_int,
    _: u64,
    _: c_int,
    _: *mut *mut c_void,
) -> Status {
    INTERNAL
}

/// The registration behind NCCL's handle.
fn registration(handle: *mut c_void) -> Registration {
    Registration(u32::try_from(handle.addr()).unwrap_or(0))
}

pub unsafe extern "C" fn deregister(_comm: *mut c_void, handle: *mut c_void) -> Status {
    guarded(|| {
        if let Some(e) = process::endpoint() {
            e.deregister(registration(handle));
        }
        SUCCESS
    })
}

/// A pointer to a request as NCCL keeps it.
fn pointer(request: Option<&Request>) -> *mut c_void {
    request.map_or(null_mut(), |r| std::ptr::from_ref(r).cast_mut().cast())
}

fn send(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    handle: *mut c_void,
    out: *mut *mut c_void,
) -> Status {
    guarded(|| {
        // SAFETY: made by `connect`, not yet closed; the address of NCCL's pointer.
        let (end, out) = unsafe { (comm.cast::<SendEnd>().as_ref(), out.as_mut()) };
        let (Some(end), Some(out)) = (end, out) else { return ARGUMENT };
        *out = null_mut();
        // SAFETY: NCCL does not use the buffer until `test` reports the request, or the connection is closed.
        let buffer = unsafe { Buffer::new(data.cast(), size) };
        match end.send(buffer.with(registration(handle)), tag) {
            Ok(id) => {
                *out = id.map_or(null_mut(), |id| pointer(end.request(id)));
                SUCCESS
            }
            Err(e) => status(&e),
        }
    })
}

/// `S`: an int in v8, `size_t` from v9 on.
pub unsafe extern "C" fn send_v8<S: TryInto<usize>>(
    comm: *mut c_void,
    data: *mut c_void,
    size: S,
    tag: c_int,
    handle: *mut c_void,
    out: *mut *mut c_void,
) -> Status {
    match size.try_into() {
        Ok(size) => send(comm, data, size, tag, handle, out),
        Err(_) => ARGUMENT,
    }
}

pub unsafe extern "C" fn send_v10(
    comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    handle: *mut c_void,
    _: *mut c_void,
    out: *mut *mut c_void,
) -> Status {
    send(comm, data, size, tag, handle, out)
}

/// # Safety
/// `data`, `sizes` and `tags` have `n` members, and so have `handles` or they are null.
unsafe fn receive<S: Copy + TryInto<usize>>(
    comm: *mut c_void,
    n: c_int,
    data: *const *mut c_void,
    sizes: *const S,
    tags: *const c_int,
    handles: *const *mut c_void,
    out: *mut *mut c_void,
) -> Status {
    guarded(|| {
        // SAFETY: made by `accept`, not yet closed; the address of NCCL's pointer.
        let (end, out) = unsafe { (comm.cast::<ReceiveEnd>().as_ref(), out.as_mut()) };
        let (Some(end), Some(out)) = (end, out) else { return ARGUMENT };
        *out = null_mut();
        let n = match usize::try_from(n) {
            Ok(n) if (1..=GROUPED_MAX).contains(&n) && !data.is_null() && !sizes.is_null() && !tags.is_null() => n,
            _ => return ARGUMENT,
        };
        // SAFETY: the lists have `n` members. NCCL does not use the buffers until `test` reports the request, or the connection is closed.
        let one = |i: usize| unsafe {
            let size = (*sizes.add(i)).try_into().ok()?;
            let handle = if handles.is_null() { null_mut() } else { *handles.add(i) };
            Some((Buffer::new((*data.add(i)).cast(), size).with(registration(handle)), *tags.add(i)))
        };
        let Some(first) = one(0) else { return ARGUMENT };
        let mut all = [first; GROUPED_MAX]; // no allocation
        for (i, to) in all.iter_mut().enumerate().take(n).skip(1) {
            let Some(message) = one(i) else { return ARGUMENT };
            *to = message;
        }
        match end.receive(all.get(..n).unwrap_or_default()) {
            Ok(id) => {
                *out = id.map_or(null_mut(), |id| pointer(end.request(id)));
                SUCCESS
            }
            Err(e) => status(&e),
        }
    })
}

/// `S`: as in [`send_v8`].
pub unsafe extern "C" fn receive_v8<S: Copy + TryInto<usize>>(
    comm: *mut c_void,
    n: c_int,
    data: *const *mut c_void,
    sizes: *const S,
    tags: *const c_int,
    handles: *const *mut c_void,
    out: *mut *mut c_void,
) -> Status {
    // SAFETY: NCCL's lists have `n` members.
    unsafe { receive(comm, n, data, sizes, tags, handles, out) }
}

pub unsafe extern "C" fn receive_v10(
    comm: *mut c_void,
    n: c_int,
    data: *const *mut c_void,
    sizes: *const usize,
    tags: *const c_int,
    handles: *const *mut c_void,
    _: *const *mut c_void,
    out: *mut *mut c_void,
) -> Status {
    // SAFETY: NCCL's lists have `n` members.
    unsafe { receive(comm, n, data, sizes, tags, handles, out) }
}

/// Received bytes are in host memory when a request is done: there is nothing to flush.
pub unsafe extern "C" fn flush(
    _: *mut c_void,
    _: c_int,
    _: *const *mut c_void,
    _: *const c_int,
    _: *const *mut c_void,
    out: *mut *mut c_void,
) -> Status {
    if !out.is_null() {
        // SAFETY: the address of NCCL's pointer; null means done.
        unsafe { *out = null_mut() };
    }
    SUCCESS
}

pub unsafe extern "C" fn test(request: *mut c_void, done: *mut c_int, sizes: *mut c_int) -> Status {
    let poll = || {
        // SAFETY: a request of a connection that is not closed.
        let request = unsafe { request.cast::<Request>().as_ref() }?;
        Some((request.count(), request.poll()))
    };
    // SAFETY: NCCL passes the address of an int, and an int for every message of the request or null.
    unsafe { report(done, sizes, poll) }
}

/// Reports the progress of a request. `poll` returns the number of its messages and the progress, `None` without a request.
///
/// # Safety
/// `done` is null or the address of an int; `sizes` is null or has an int for every message.
unsafe fn report(done: *mut c_int, sizes: *mut c_int, poll: impl FnOnce() -> Option<(usize, Progress)>) -> Status {
    guarded(|| {
        // SAFETY: by the contract.
        let Some(done) = (unsafe { done.as_mut() }) else { return ARGUMENT };
        *done = 0;
        match poll() {
            None => ARGUMENT,
            Some((_, Progress::Pending)) => SUCCESS,
            Some((_, Progress::Failed)) => REMOTE,
            Some((count, Progress::Done(bytes))) => {
                *done = 1;
                if !sizes.is_null() {
                    for (i, b) in bytes.iter().enumerate().take(count) {
                        // SAFETY: by the contract.
                        unsafe { *sizes.add(i) = c_int::try_from(*b).unwrap_or(c_int::MAX) };
                    }
                }
                SUCCESS
            }
        }
    })
}

/// Frees a boxed `T`.
///
/// # Safety
/// `object` is null or was made by `Box::into_raw` of a `T`, and is not used again.
unsafe fn give_back<T>(object: *mut c_void) -> Status {
    guarded(|| {
        if !object.is_null() {
            // SAFETY: by the contract.
            drop(unsafe { Box::from_raw(object.cast::<T>()) });
        }
        SUCCESS
    })
}

pub unsafe extern "C" fn close_send(comm: *mut c_void) -> Status {
    // SAFETY: made by `connect`.
    unsafe { give_back::<SendEnd>(comm) }
}

pub unsafe extern "C" fn close_receive(comm: *mut c_void) -> Status {
    // SAFETY: made by `accept`.
    unsafe { give_back::<ReceiveEnd>(comm) }
}

pub unsafe extern "C" fn close_listen(listener: *mut c_void) -> Status {
    // SAFETY: made by `listen`.
    unsafe { give_back::<Listen>(listener) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_inside_test_is_an_error_of_the_call_and_does_not_unwind() {
        let mut done = 1;
        // SAFETY: the address of an int; no sizes.
        let status = unsafe { report(&mut done, null_mut(), || panic!("on purpose")) };
        assert_eq!((status, done), (INTERNAL, 0));
    }

    #[test]
    fn test_without_a_request_is_refused() {
        let mut done = 1;
        // SAFETY: no request; the address of an int; no sizes.
        assert_eq!(unsafe { test(null_mut(), &mut done, null_mut()) }, ARGUMENT);
        // SAFETY: all null.
        assert_eq!(unsafe { test(null_mut(), null_mut(), null_mut()) }, ARGUMENT);
    }
}
