//! Memory of the program that loaded the library. The only module of this crate with `unsafe`.
//!
//! **Invariant.** [`Buffer::new`] promises that the memory stays mapped, and that the program leaves it alone (a receive) or unchanged (a send), until
//! the request is done, has failed, or its connection is closed. The I/O thread drops its copy of the `Buffer` before it reports any of these. Memory that
//! was registered ([`Endpoint::register`](crate::Endpoint::register)) stays mapped until its registration ends.
#![allow(unsafe_code)]

use crate::regions::Registration;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::sync::Arc;
use verbs::{Nic, Region};

/// See the module documentation.
#[derive(Debug, Clone, Copy)]
pub struct Buffer {
    at: *mut u8,
    bytes: usize,
    registration: Registration,
}

// SAFETY: by the invariant the memory is usable from any thread of the process while the buffer exists.
unsafe impl Send for Buffer {}

impl Buffer {
    /// # Safety
    /// `at` points at `bytes` bytes for which the module's invariant holds; it may be null if `bytes` is 0.
    pub unsafe fn new(at: *mut u8, bytes: usize) -> Self {
        Buffer { at, bytes: if at.is_null() { 0 } else { bytes }, registration: Registration::default() }
    }

    /// The memory lies in a registered range: devices may reach it.
    pub fn with(self, registration: Registration) -> Self {
        Buffer { registration, ..self }
    }

    pub(crate) fn registration(&self) -> Registration {
        self.registration
    }

    pub(crate) fn address(&self) -> u64 {
        self.at as u64
    }

    pub(crate) fn register(&self, nic: &Arc<Nic>) -> io::Result<Region> {
        // SAFETY: by the invariant the memory stays mapped until the registration ends.
        unsafe { nic.register(self.at, self.bytes) }
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The range, cut to the buffer.
    fn range(&self, offset: u64, bytes: usize) -> (*mut u8, usize) {
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(self.bytes);
        // SAFETY: `from` is at most the size of the buffer.
        (unsafe { self.at.add(from) }, bytes.min(self.bytes - from))
    }

    /// Receives up to `bytes` bytes to `offset`, and what follows them into `rest`. Returns the sum.
    pub(crate) fn receive(&self, fd: impl AsFd, offset: u64, bytes: usize, rest: &mut [u8]) -> io::Result<usize> {
        let (at, n) = self.range(offset, bytes);
        let into = if n == 0 {
            &mut []
        } else {
            // SAFETY: the range lies in the buffer; by the invariant it is mapped, and no other part uses it now.
            unsafe { std::slice::from_raw_parts_mut(at, n) }
        };
        receive(fd, into, rest)
    }

    /// Copies bytes that were read ahead to `offset`.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        let (at, n) = self.range(offset, bytes.len());
        // SAFETY: `n` bytes of the range lie in the buffer and in `bytes`, which do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, n) };
    }

    /// Sends `head`, then up to `bytes` bytes from `offset`. Returns the sum.
    pub(crate) fn send(&self, fd: impl AsFd, head: &[u8], offset: u64, bytes: usize) -> io::Result<usize> {
        let (at, n) = self.range(offset, bytes);
        let from = if n == 0 {
            &[]
        } else {
            // SAFETY: the range lies in the buffer; by the invariant it is mapped and does not change now.
            unsafe { std::slice::from_raw_parts(at, n) }
        };
        send(fd, head, from)
    }
}

/// Receives into two slices.
pub(crate) fn receive(fd: impl AsFd, first: &mut [u8], rest: &mut [u8]) -> io::Result<usize> {
    let mut into = [IoSliceMut::new(first), IoSliceMut::new(rest)];
    let got = rustix::net::recvmsg(fd, &mut into, &mut RecvAncillaryBuffer::default(), RecvFlags::DONTWAIT)?;
    Ok(got.bytes)
}

/// Sends two slices, without SIGPIPE.
pub(crate) fn send(fd: impl AsFd, first: &[u8], rest: &[u8]) -> io::Result<usize> {
    let from = [IoSlice::new(first), IoSlice::new(rest)];
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    Ok(rustix::net::sendmsg(fd, &from, &mut SendAncillaryBuffer::default(), flags)?)
}
