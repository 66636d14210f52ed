//! The calls of a GPU that the data plane needs. [`crate::cuda::Cuda`] makes them on the CUDA runtime.

use std::fmt;

/// An address in memory of a GPU, as this process sees it.
pub type Address = u64;
/// Memory of a GPU, named for other processes of the host (`cudaIpcMemHandle_t`).
pub type Handle = [u8; 64];

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceError {
    /// The function.
    pub call: &'static str,
    /// What it said.
    pub reason: String,
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.reason)
    }
}

impl std::error::Error for DeviceError {}

/// One GPU, used by one process. Copies run in the order of their stream, beside each other on different streams, and use no multiprocessor.
pub trait Device {
    /// An order of copies.
    type Stream: Copy;
    /// A mark in a stream.
    type Event: Copy;

    /// Allocates memory of this GPU, bytes.
    fn allocate(&self, bytes: usize) -> Result<Address, DeviceError>;
    /// Names an allocation of this process for other processes. The address is that of the allocation's begin.
    fn export(&self, begin: Address) -> Result<Handle, DeviceError>;
    /// Maps memory that another process has named.
    fn open(&self, handle: &Handle) -> Result<Address, DeviceError>;
    /// Makes a stream that waits for no other one.
    fn stream(&self) -> Result<Self::Stream, DeviceError>;
    /// Makes an event.
    fn event(&self) -> Result<Self::Event, DeviceError>;
    /// Queues a copy, and the event behind it. Returns at once.
    fn copy(
        &self,
        to: Address,
        from: Address,
        bytes: usize,
        stream: Self::Stream,
        then: Self::Event,
    ) -> Result<(), DeviceError>;
    /// Whether the event's latest copy has ended.
    fn done(&self, event: Self::Event) -> Result<bool, DeviceError>;
    /// Copies from the host, and waits.
    fn write(&self, to: Address, from: &[u8]) -> Result<(), DeviceError>;
    /// Copies to the host, and waits.
    fn read(&self, to: &mut [u8], from: Address) -> Result<(), DeviceError>;
}
