//! [`Guarded`]: a backend that drops a reading if another job used the hosts.

use super::Hosts;
use crate::backend::{Backend, BackendError, Point, Reading};
use std::collections::HashSet;
use std::time::Duration;
use store::Source;
use topology::{GpuMask, HostId, Seconds};

/// Number of queries of a host before a remaining process counts as another job. The processes of the run itself need
/// some time to exit.
const ASKED_MAX: usize = 3;
/// Time between two queries of a host.
const PAUSE: Duration = Duration::from_millis(500);

/// Queries the hosts of a run after the run ends. It drops the reading if a GPU is in use that may have shared links with
/// the run, or if a host does not answer, because the links may have been contended. It does not see a job that starts
/// and ends during the run.
pub struct Guarded<'a> {
    inner: &'a mut dyn Backend,
    hosts: Hosts<'a>,
    whole_hosts: bool,
    pause: Duration,
    /// Hosts on which another job was seen. They are also queried before their next run.
    suspects: HashSet<HostId>,
}

impl<'a> Guarded<'a> {
    /// `whole_hosts`: a process on any GPU of a host counts, not only one on the GPUs of the run.
    pub fn new(inner: &'a mut dyn Backend, hosts: Hosts<'a>, whole_hosts: bool) -> Self {
        Guarded { inner, hosts, whole_hosts, pause: PAUSE, suspects: HashSet::new() }
    }

    /// For each host, the reason to drop a reading, or `None`. `own`: the GPUs of the run on each host; `times`: maximum
    /// number of queries.
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
    /// The reason not to run a point: one of its suspect hosts is still in use.
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
        // A run must not disturb a job that was seen on its hosts and still runs.
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
