//! Predictions of NCCL's model for a communicator's calls, if its hardware is known.

use super::JobReport;
use super::gather::CallGroup;
use crate::JobError;
use ::tune::Arm;
use measure::plugin_trace::RankGpus;
use nccl_model::{Communicator, LoadConstants};
use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeMap;
use topology::nccl::{Algorithm, Protocol, Version};
use topology::{Allocation, Cluster};

/// The hardware of a job.
#[derive(Clone, Debug)]
pub struct Hardware {
    /// Its cluster.
    pub cluster: Cluster,
    /// The job's GPUs; `None`: found by the host names in the traces.
    pub gpus: Option<Allocation>,
    /// The NCCL release; `None`: derived from the interfaces in the traces.
    pub nccl: Option<Version>,
}

/// A model's prediction for one call; never a measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CallPrediction {
    /// The model, and whether it was checked against the library on such hosts.
    pub model: String,
    /// Time of AUTO's choice, microseconds.
    pub auto_us: f64,
    /// Bus bandwidth of AUTO's choice, GB/s.
    pub auto_busbw_gb_per_s: f64,
    /// Time of the arm in use, microseconds.
    pub arm_us: Option<f64>,
    /// The fastest algorithm and protocol that NCCL has here.
    pub best: String,
    /// Its time, microseconds.
    pub best_us: f64,
    /// The largest possible gain: how much faster the best is than AUTO's choice, as a share.
    pub headroom: f64,
}

fn way(arm: &str) -> Option<(Algorithm, Protocol)> {
    arm.parse::<Arm>().ok()?.forced
}

/// The release that uses these interfaces.
fn of_interfaces(tuner: u32, profiler: u32) -> Option<Version> {
    let minor = match (tuner, profiler) {
        (2, _) => 21,
        (3, _) => 23,
        (4, 0..=3) => 26,
        (4, _) => 27,
        (5, 0..=5) => 28,
        (5, _) => 29,
        (6, 7..) => 32,
        (6, _) => 30,
        _ => return None,
    };
    Some(Version { major: 2, minor, patch: None })
}

/// Predicts the calls of a job on known hardware.
pub struct CallModel {
    known: Option<KnownHardware>,
    /// By communicator.
    gpus: RefCell<BTreeMap<String, Result<Allocation, String>>>,
    built: RefCell<BTreeMap<Allocation, Result<Communicator, String>>>,
}

struct KnownHardware {
    cluster: Cluster,
    gpus: Option<Allocation>,
    version: Version,
}

impl CallModel {
    /// A model for this hardware. Without hardware, no call has a prediction.
    ///
    /// # Errors
    /// The release is neither given nor known from the traces.
    pub fn new(hardware: Option<&Hardware>, report: &JobReport) -> Result<CallModel, JobError> {
        let known = |h: &Hardware| {
            let traced = report.processes.first().and_then(|p| of_interfaces(p.tuner_api, p.profiler_api));
            let version = match h.nccl {
                Some(v) => v,
                None if report.processes.is_empty() => nccl_model::releases::NEWEST,
                None => traced.ok_or(JobError::UnknownRelease)?,
            };
            Ok(KnownHardware { cluster: h.cluster.clone(), gpus: h.gpus.clone(), version })
        };
        Ok(CallModel { known: hardware.map(known).transpose()?, gpus: RefCell::default(), built: RefCell::default() })
    }

    /// The prediction for a group's calls, with AUTO's choice and with the arm in use. The error begins with "no
    /// model".
    pub fn predict(
        &self,
        key: &CallGroup,
        comm: &str,
        auto: &str,
        arm: &str,
        places: &RankGpus,
    ) -> Result<CallPrediction, String> {
        let known = self.known.as_ref().ok_or("no model: the hardware is unknown; name it with --cluster")?;
        let mut gpus = self.gpus.borrow_mut();
        let gpus = gpus.entry(comm.to_string()).or_insert_with(|| known.gpus(key, comm, places));
        let gpus = gpus.clone().map_err(|e| format!("no model: {e}"))?;
        let mut built = self.built.borrow_mut();
        let communicator = built.entry(gpus).or_insert_with_key(|gpus| {
            Communicator::build(known.version, &known.cluster, gpus.parts()).map_err(|e| format!("no model: {e}"))
        });
        let c = communicator.as_ref().map_err(Clone::clone)?;
        known.of_call(c, key, auto, arm).ok_or_else(|| format!("no model: NCCL's model has no {auto} for this call"))
    }
}

impl KnownHardware {
    fn gpus(&self, key: &CallGroup, comm: &str, places: &RankGpus) -> Result<Allocation, String> {
        let ranks = key.ranks as usize;
        let Some(all) = &self.gpus else {
            let names = places.gpus(comm, key.ranks).map_err(|e| format!("{e}; or name the GPUs with --gpus"))?;
            let names: Vec<String> = names.iter().map(|(host, gpu)| format!("{host}:{gpu}")).collect();
            return self
                .cluster
                .parse_gpus(names.iter().map(String::as_str))
                .map_err(|e| format!("{e}; --gpus names them"));
        };
        if all.gpu_count() == ranks {
            return Ok(all.clone());
        }
        // A communicator inside one host; the job's hosts are all equal.
        let mut parts = all.parts().iter();
        if let Some(&(host, mask)) = parts.next()
            && key.nodes == 1
            && mask.count() == ranks
            && parts.all(|&(h, m)| m == mask && std::ptr::eq(self.cluster.type_of(h), self.cluster.type_of(host)))
        {
            return Ok(Allocation::new([(host, mask)]));
        }
        Err(format!(
            "a communicator of {ranks} ranks on {} nodes does not match --gpus, which names {} on {}; name its GPUs only",
            key.nodes,
            all.gpu_count(),
            all.host_count()
        ))
    }

    fn of_call(&self, c: &Communicator, key: &CallGroup, auto: &str, arm: &str) -> Option<CallPrediction> {
        let collective = key.collective?;
        let size = key.bytes / key.calls.max(1);
        let constants = LoadConstants::of(self.cluster.network.class);
        let expected = |a: Algorithm, p: Protocol| {
            let choice = c.choice_with(collective, size, a, p)?;
            c.busbw_of(collective, size, &choice, &constants)
        };
        let of = |arm: &str| way(arm).and_then(|(a, p)| expected(a, p));
        let auto_expected = of(auto)?;
        let ways = c.all_choices(collective, size).into_iter();
        let best = ways
            .filter_map(|w| {
                Some((format!("{}/{}", w.algorithm, w.protocol), expected(w.algorithm, w.protocol)?.time_us))
            })
            .min_by(|a, b| a.1.total_cmp(&b.1))?;
        let checked = if c.checked() { "checked on hosts like these" } else { "not checked on hosts like these" };
        Some(CallPrediction {
            model: format!("model of NCCL {}, {checked}", self.version),
            auto_us: auto_expected.time_us,
            auto_busbw_gb_per_s: auto_expected.busbw.gb_per_s(),
            arm_us: if arm == "AUTO" { Some(auto_expected.time_us) } else { of(arm).map(|b| b.time_us) },
            best: best.0,
            headroom: ((auto_expected.time_us - best.1) / auto_expected.time_us).max(0.0),
            best_us: best.1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_determine_the_release() {
        let of = |t, p| of_interfaces(t, p).map(|v| v.minor);
        assert_eq!([of(4, 0), of(4, 4), of(5, 5), of(5, 6), of(6, 6), of(6, 7)], [26, 27, 28, 29, 30, 32].map(Some));
        assert_eq!(of(0, 0), None);
    }
}
