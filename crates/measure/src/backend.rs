//! [`Backend`]: what takes a reading.

use store::Source;
use topology::{Allocation, Bandwidth, Bytes, Collective, Seconds};

/// One thing to measure.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Point {
    /// The GPUs, two or more.
    pub allocation: Allocation,
    /// What to run.
    pub collective: Collective,
    /// nccl-tests' size column: the whole buffer.
    pub size: Bytes,
    /// 0 for the first reading, 1 and more for repetitions.
    pub repetition: u32,
}

/// What one run told.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Bus bandwidth.
    pub busbw: Bandwidth,
    /// Time of one operation.
    pub time: Option<Seconds>,
    /// `Ring`, `Tree`, ..., if told.
    pub algorithm: Option<String>,
    /// `LL`, `LL128`, `Simple`, if told.
    pub protocol: Option<String>,
    /// Channels, if told.
    pub channels: Option<u32>,
    /// NCCL's version, if told.
    pub nccl_version: Option<String>,
    /// How long the run kept its GPUs busy, start-up included.
    pub took: Seconds,
}

impl Reading {
    /// A reading with nothing but its bandwidth.
    pub fn new(busbw: Bandwidth, took: Seconds) -> Self {
        Reading { busbw, time: None, algorithm: None, protocol: None, channels: None, nccl_version: None, took }
    }
}

/// Why there is no reading.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BackendError {
    /// This point failed; others may work.
    #[error("{0}")]
    Point(String),
    /// The backend cannot go on.
    #[error("{0}")]
    Fatal(String),
}

/// Takes readings. Blocks until they are there or a limit is passed.
pub trait Backend {
    /// What its measurements are called in the store.
    fn source(&self) -> Source;

    /// Names the world that it measures, as the first part of run ids: two backends with the same identity would measure the same.
    fn identity(&self) -> String {
        self.source().name().to_owned()
    }

    /// Tool or command behind the readings, for people.
    fn provenance(&self) -> String;

    /// How many points on different hosts it measures at a time.
    fn width(&self) -> usize {
        1
    }

    /// How long one point should take, for estimates before the start.
    fn expected(&self, point: &Point) -> Seconds;

    /// Takes one reading.
    fn measure(&mut self, point: &Point) -> Result<Reading, BackendError>;

    /// Takes readings of points that share no host, at most [`Backend::width`] of them; one result for each, in order.
    fn measure_batch(&mut self, points: &[Point]) -> Vec<Result<Reading, BackendError>> {
        points.iter().map(|p| self.measure(p)).collect()
    }
}
