//! Limits of connections. Each bounds memory, work or time.

/// Maximum number of paths of a connection.
pub const PATHS_MAX: usize = 8;
/// Maximum number of rails (NICs) of a host.
pub const RAILS_MAX: usize = 16;
/// Maximum number of receives in a group, as in NCCL.
pub const GROUPED_MAX: usize = 8;
/// Maximum number of receive groups that a connection announces at once. NCCL keeps at most 32 requests in flight per connection.
pub const ANNOUNCED_MAX: usize = 64;
/// Maximum number of sends that wait for a receive or for acknowledgements: 32 requests, each of a group of 8.
pub const SENDS_MAX: usize = 256;
/// Maximum number of chunks of a message. Larger messages have larger chunks, so a bitmap needs at most 512 bytes.
pub const CHUNKS_MAX: u64 = 4096;
/// Smallest and largest size of a chunk that a peer may ask for, bytes.
pub const CHUNK_BYTES_MIN: u32 = 4 << 10;
/// See [`CHUNK_BYTES_MIN`].
pub const CHUNK_BYTES_MAX: u32 = 4 << 20;
/// Number of times that the chunks of a message may be halved, on slow rails.
pub const HALVINGS_MAX: u8 = 4;
/// Chunks are halved until the fastest rail of the connection moves one in this time, microseconds: where many hosts exchange bytes at once, few large
/// chunks on their way meet at one receiver while another one idles.
pub const CHUNK_US: u64 = 1_000;
/// Default size of a chunk, bytes.
pub const CHUNK_BYTES_DEFAULT: u32 = 64 << 10;
/// Largest message, bytes: NCCL's own limit on one transfer of a plugin.
pub const MESSAGE_BYTES_MAX: u64 = 1 << 40;
/// Chunks that a path may hold unacknowledged, at least.
pub const WINDOW_CHUNKS: u64 = 4;
/// A path may hold the bytes that its rail moves in this time, if that is more than [`WINDOW_CHUNKS`], microseconds.
pub const WINDOW_US: u64 = 2_000;
/// Largest window of a path, bytes.
pub const WINDOW_BYTES_MAX: u64 = 8 << 20;
/// Unacknowledged work of a host on one rail, microseconds at the measured rate, at least [`RAIL_WORK_CHUNKS`]. More only adds delay.
pub const RAIL_WORK_US_MAX: u64 = 50_000;
/// The same on a rail that hardly moves. Between this and [`RAIL_WORK_US_MAX`] it grows with the rate up to [`RAIL_FAST`]: on slow rails few bytes make a
/// long queue, on fast ones the answers of busy processes may take milliseconds.
pub const RAIL_WORK_US_MIN: u64 = 5_000;
/// See [`RAIL_WORK_US_MIN`], bytes per second.
pub const RAIL_FAST: u64 = 250_000_000;
/// See [`RAIL_WORK_US_MAX`].
pub const RAIL_WORK_CHUNKS: u64 = 2;
/// Chunks that a connection may hold on a path however much work its rail has.
pub const HELD_CHUNKS_MIN: u64 = 2;
/// Chunks that a path which is full must move before it can take another one, as the choice of a path estimates.
pub const FULL_CHUNKS: u64 = 2;
/// A path without progress for this time, while another path moves, is taken out; microseconds.
pub const DEAD_US: u64 = 300_000;
/// A path of a rail that still moves other connections' bytes is taken out after this time; microseconds.
pub const DEAD_ON_LIVE_RAIL_US: u64 = 3_000_000;
/// A path over relays without progress for this time, while another path moves, is taken out; microseconds.
pub const DEAD_RELAYED_US: u64 = 600_000;
/// Paths are asked for a sign of life after this time without progress, and at this interval; microseconds.
pub const PING_US: u64 = 100_000;
/// First interval after which an announcement that is not confirmed is repeated; doubles up to [`ANNOUNCE_US_MAX`]; microseconds.
pub const ANNOUNCE_US: u64 = 100_000;
/// See [`ANNOUNCE_US`].
pub const ANNOUNCE_US_MAX: u64 = 1_000_000;
/// Maximum number of other hosts that a path goes through.
pub const RELAYS_MAX: usize = 3;
/// Lending processes of other hosts that a process knows.
pub const RECORDS_MAX: usize = 256;
/// Paths of other processes that a process relays at once.
pub const RELAYED_MAX: usize = 512;
/// Bytes that a relay holds for one direction of a path.
pub const RELAY_BUFFER_BYTES: usize = 128 << 10;
