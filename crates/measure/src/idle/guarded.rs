//! [`Guarded`]: a backend whose readings count only if nobody else used the hosts.

use super::Hosts;
use crate::backend::{Backend, BackendError, Point, Reading};
use std::collections::HashSet;
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
    /// Hosts on which somebody was seen: asked before their next run, too.
    suspects: HashSet<HostId>,
}

impl<'a> Guarded<'a> {
    /// `whole_hosts`: any process on a host of the run counts, not only those on the run's GPUs.
    pub fn new(inner: &'a mut dyn Backend, hosts: Hosts<'a>, whole_hosts: bool) -> Self {
        Guarded { inner, hosts, whole_hosts, pause: PAUSE, suspects: HashSet::new() }
    }

    /// Why readings of these hosts do not count, by host. `own`: the GPUs of the run on each.
    fn disturbed(&self, own: &[(HostId, GpuMask)], times: usize) -> Vec<Option<String>> {
        let mut out: Vec<Option<String>> = vec![None; own.len()];
        let mut open: Vec<usize> = (0..own.len()).collect();
        for asked in 0..times {
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

impl Guarded<'_> {
    /// Why a point must not run: a suspect among its hosts is still in use.
    fn still_there(&mut self, point: &Point) -> Option<String> {
        let parts = point.allocation.parts().iter().copied();
        let own: Vec<(HostId, GpuMask)> = parts.filter(|(h, _)| self.suspects.contains(h)).collect();
        let answers = self.disturbed(&own, 1);
        for ((host, _), answer) in own.iter().zip(&answers) {
            if answer.is_none() {
                self.suspects.remove(host);
            }
        }
        answers.into_iter().flatten().next()
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
        // No run disturbs a job that was seen and is still there.
        let mut why_not: Vec<Option<String>> = points.iter().map(|p| self.still_there(p)).collect();
        let free: Vec<Point> =
            points.iter().zip(&why_not).filter(|(_, w)| w.is_none()).map(|(p, _)| p.clone()).collect();
        let mut taken = if free.is_empty() { Vec::new() } else { self.inner.measure_batch(&free) }.into_iter();
        let own: Vec<(HostId, GpuMask)> = free.iter().flat_map(|p| p.allocation.parts().iter().copied()).collect();
        let mut disturbed = self.disturbed(&own, ASKED_MAX).into_iter();
        let mut out = Vec::with_capacity(points.len());
        for (point, why_not) in points.iter().zip(&mut why_not) {
            if let Some(why) = why_not.take() {
                out.push(Err(BackendError::Point(format!("not run: {why}"))));
                continue;
            }
            let nothing = || Err(BackendError::Fatal("the backend gave no result".into()));
            let result = taken.next().unwrap_or_else(nothing);
            let mut by_whom = None;
            for (host, _) in point.allocation.parts() {
                if let Some(why) = disturbed.next().flatten() {
                    self.suspects.insert(*host);
                    by_whom = by_whom.or(Some(why));
                }
            }
            out.push(match by_whom {
                Some(why) if result.is_ok() => {
                    Err(BackendError::Point(format!("contended, the reading is dropped: {why}")))
                }
                _ => result,
            });
        }
        out
    }
}
