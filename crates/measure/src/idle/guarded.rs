//! [`Guarded`]: a backend whose readings count only if nobody else used the hosts.

use super::Hosts;
use crate::backend::{Backend, BackendError, Point, Reading};
use std::time::Duration;
use store::Source;
use topology::{GpuMask, HostId, Seconds};

/// Times that a host is asked before a process counts as somebody else's: the run's own processes need a moment to leave.
const ASKED_MAX: usize = 3;
/// Time between them.
const PAUSE: Duration = Duration::from_millis(500);

/// Asks the hosts of each run when it has ended. A reading is dropped if a GPU that the run may have met is in use, or if a host does not tell:
/// it may be of a contended link. A job that came and went during the run is not seen.
pub struct Guarded<'a> {
    inner: &'a mut dyn Backend,
    hosts: Hosts<'a>,
    whole_hosts: bool,
    pause: Duration,
}

impl<'a> Guarded<'a> {
    /// `whole_hosts`: any process on a host of the run counts, not only those on the run's GPUs.
    pub fn new(inner: &'a mut dyn Backend, hosts: Hosts<'a>, whole_hosts: bool) -> Self {
        Guarded { inner, hosts, whole_hosts, pause: PAUSE }
    }

    /// Why readings of these hosts do not count, by host. `own`: the GPUs of the run on each.
    fn disturbed(&self, own: &[(HostId, GpuMask)]) -> Vec<Option<String>> {
        let mut out: Vec<Option<String>> = vec![None; own.len()];
        let mut open: Vec<usize> = (0..own.len()).collect();
        for asked in 0..ASKED_MAX {
            if asked > 0 {
                std::thread::sleep(self.pause);
            }
            let hosts: Vec<HostId> = open.iter().map(|&i| own[i].0).collect();
            let answers = self.hosts.ask(&hosts);
            let mut still = Vec::new();
            for (&i, answer) in open.iter().zip(answers) {
                let (host, mask) = own[i];
                let name = &self.hosts.cluster().host(host).name;
                out[i] = match answer {
                    Ok(in_use) => {
                        let met = in_use.into_iter().find(|(gpu, _)| self.whole_hosts || mask.contains(*gpu));
                        met.map(|(gpu, why)| format!("{name}:{gpu} is in use: {why}"))
                    }
                    Err(why) => Some(format!("{name} does not tell what runs on it: {why}")),
                };
                if out[i].is_some() {
                    still.push(i);
                }
            }
            open = still;
            if open.is_empty() {
                break;
            }
        }
        out
    }
}

impl Backend for Guarded<'_> {
    fn source(&self) -> Source {
        self.inner.source()
    }
    fn identity(&self) -> String {
        self.inner.identity()
    }
    fn provenance(&self) -> String {
        self.inner.provenance()
    }
    fn width(&self) -> usize {
        self.inner.width()
    }
    fn expected(&self, point: &Point) -> Seconds {
        self.inner.expected(point)
    }
    fn measure(&mut self, point: &Point) -> Result<Reading, BackendError> {
        let mut results = self.measure_batch(std::slice::from_ref(point));
        results.pop().unwrap_or_else(|| Err(BackendError::Fatal("the backend gave no result".into())))
    }
    fn measure_batch(&mut self, points: &[Point]) -> Vec<Result<Reading, BackendError>> {
        let mut results = self.inner.measure_batch(points);
        let own: Vec<(HostId, GpuMask)> = points.iter().flat_map(|p| p.allocation.parts().iter().copied()).collect();
        let mut disturbed = self.disturbed(&own).into_iter();
        for (point, result) in points.iter().zip(&mut results) {
            let of_point: Vec<Option<String>> = disturbed.by_ref().take(point.allocation.host_count()).collect();
            if let (Ok(_), Some(why)) = (&result, of_point.into_iter().flatten().next()) {
                *result = Err(BackendError::Point(format!("contended, the reading is dropped: {why}")));
            }
        }
        results
    }
}
