//! [`Backend`]: the interface of everything that takes a reading.

use store::Source;
use topology::{Allocation, Bandwidth, Bytes, Collective, Seconds};

/// The quantity that one reading measures.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Point {
    /// Two GPUs or more.
    pub allocation: Allocation,
    pub collective: Collective,
    /// The whole buffer, as in nccl-tests' size column.
    pub size: Bytes,
    /// 0 for the first reading of the point, 1 and more for repetitions.
    pub repetition: u32,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    pub busbw: Bandwidth,
    /// Time of one operation.
    pub time: Option<Seconds>,
    /// `Ring`, `Tree`, ..., if reported.
    pub algorithm: Option<String>,
    /// `LL`, `LL128`, `Simple`, if reported.
    pub protocol: Option<String>,
    pub channels: Option<u32>,
    pub nccl_version: Option<String>,
    /// Time for which the run occupied its GPUs, start-up included.
    pub took: Seconds,
}

impl Reading {
    /// A reading with only a bandwidth.
    pub fn new(busbw: Bandwidth, took: Seconds) -> Self {
        Reading { busbw, time: None, algorithm: None, protocol: None, channels: None, nccl_version: None, took }
    }
}

/// Why there is no reading.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BackendError {
    /// This point failed; others may succeed.
    #[error("{0}")]
    Point(String),
    /// The backend cannot continue.
    #[error("{0}")]
    Fatal(String),
}

/// Takes readings. Calls block until the reading is available or a time limit has passed.
pub trait Backend {
    /// The source recorded with each reading in the store.
    fn source(&self) -> Source;

    /// Identifies the measured system, as the first part of run ids. Two backends with one identity give the same readings.
    fn identity(&self) -> String {
        self.source().name().to_owned()
    }

    /// The tool or command behind the readings, for display.
    fn provenance(&self) -> String;

    /// Number of points on different hosts that the backend measures at once.
    fn width(&self) -> usize {
        1
    }

    /// Expected duration of one point, for estimates before the start.
    fn expected(&self, point: &Point) -> Seconds;

    fn measure(&mut self, point: &Point) -> Result<Reading, BackendError>;

    /// Takes one reading of each point; the points share no host and are at most [`Backend::width`]. Returns one result per point, in order.
    fn measure_batch(&mut self, points: &[Point]) -> Vec<Result<Reading, BackendError>> {
        points.iter().map(|p| self.measure(p)).collect()
    }
}
