//! The class `Engine`, and functions without one.

use crate::error::Problem;
use crate::open::{self, Parts};
use crate::plan::{self, Plan};
use engine::{ErrorKind, Request};
use numpy::{PyArray1, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::prelude::*;
use route::request::RequestOptions;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};
use topology::{Allocation, Bytes, GpuMask};

/// Maximum number of allocations of one prediction.
const ALLOCATIONS_MAX: usize = 1_000_000;
/// Maximum length of a request, bytes: ten thousand readings of a job of ten thousand GPUs named one by one do not fit, and need not.
const REQUEST_BYTES_MAX: usize = 64 << 20;

/// Mean and standard deviation of every allocation, GB/s.
type Predictions<T> = (T, T);

/// The engine of one cluster. Threads can share it. A forked child cannot use it.
#[pyclass(frozen, module = "linkwise._native")]
pub struct Engine {
    engine: engine::Engine,
    /// The process that made it: locks and connections do not survive a fork.
    process: u32,
}

impl Engine {
    /// The engine, unless this process is a fork of the one that made it.
    fn here(&self) -> Result<&engine::Engine, Problem> {
        match self.process == std::process::id() {
            true => Ok(&self.engine),
            false => Err(Problem::new(
                "forked",
                ErrorKind::Malformed,
                "this engine was made before a fork: its connections belong to the parent process",
                "make the engine in the child",
            )),
        }
    }

    fn predicted(
        &self,
        py: Python<'_>,
        allocations: &[Allocation],
        size_bytes: Option<u64>,
    ) -> Result<Predictions<Vec<f64>>, Problem> {
        if allocations.len() > ALLOCATIONS_MAX {
            let n = allocations.len();
            return Err(Problem::bad("bad_request", format!("{n} allocations; at most {ALLOCATIONS_MAX} at a time")));
        }
        let engine = self.here()?;
        let predictions = py.detach(|| engine.predict(size_bytes.map(Bytes), allocations))?;
        Ok(predictions.into_iter().map(|p| (p.busbw_gb_per_s, p.std_gb_per_s)).unzip())
    }
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (cluster=None, state=None, model=None, store=None))]
    fn new(
        py: Python<'_>,
        cluster: Option<String>,
        state: Option<PathBuf>,
        model: Option<PathBuf>,
        store: Option<PathBuf>,
    ) -> PyResult<Self> {
        let parts = Parts { cluster, state, model, store };
        let engine = py.detach(|| open::engine(&parts, now_unix_s()))?;
        Ok(Engine { engine, process: std::process::id() })
    }

    /// Answers a request in JSON: `{"request": "place", "gpus": 8}`.
    #[pyo3(signature = (request, now_unix_s=None))]
    fn request(&self, py: Python<'_>, request: &str, now_unix_s: Option<f64>) -> PyResult<String> {
        let engine = self.here()?;
        let answer = py.detach(|| -> Result<String, Problem> {
            if request.len() > REQUEST_BYTES_MAX {
                return Err(Problem::bad("too_large", format!("a request of {} bytes", request.len())));
            }
            let request: Request = serde_json::from_str(request).map_err(|e| Problem::bad("bad_request", e))?;
            let now = now_unix_s.unwrap_or_else(self::now_unix_s);
            if !now.is_finite() {
                return Err(Problem::bad("bad_request", format!("a time of {now} s")));
            }
            let answer = engine.handle(&request, now)?;
            serde_json::to_string(&answer).map_err(|e| Problem::new("internal", ErrorKind::Broken, e, "report this"))
        })?;
        Ok(answer)
    }

    /// Predicts the bandwidth of allocations, each a list of GPUs.
    #[pyo3(signature = (allocations, size_bytes=None))]
    fn predict(
        &self,
        py: Python<'_>,
        allocations: Vec<Vec<String>>,
        size_bytes: Option<u64>,
    ) -> PyResult<Predictions<Vec<f64>>> {
        let cluster = self.here()?.cluster();
        let read = |(i, names): (usize, &Vec<String>)| {
            let gpus = cluster.parse_gpus(names.iter().map(String::as_str));
            gpus.map_err(|e| Problem::bad("bad_request", format!("allocations[{i}]: {e}")))
        };
        let allocations: Vec<Allocation> = allocations.iter().enumerate().map(read).collect::<Result<_, _>>()?;
        Ok(self.predicted(py, &allocations, size_bytes)?)
    }

    /// Predicts the bandwidth of the allocations in the rows of a matrix. Column g is GPU g of the cluster in host order. The bytes of a boolean
    /// array: NumPy takes every byte other than 0 as true, Rust knows only 1.
    #[pyo3(signature = (rows, size_bytes=None))]
    fn predict_rows<'py>(
        &self,
        py: Python<'py>,
        rows: PyReadonlyArray2<'py, u8>,
        size_bytes: Option<u64>,
    ) -> PyResult<Predictions<Bound<'py, PyArray1<f64>>>> {
        let cluster = self.here()?.cluster();
        let gpus = cluster.gpu_count();
        let shape = rows.shape();
        if shape[1] != gpus {
            let said = format!("the matrix has {} columns; {gpus} were expected, one per GPU of the cluster", shape[1]);
            return Err(Problem::bad("bad_request", said).into());
        }
        if shape[0] > ALLOCATIONS_MAX {
            let said = format!("{} allocations; at most {ALLOCATIONS_MAX} at a time", shape[0]);
            return Err(Problem::bad("bad_request", said).into());
        }
        let view = rows.as_array();
        let allocations: Vec<Allocation> = view
            .outer_iter()
            .map(|row| {
                let mut column = 0;
                Allocation::new(cluster.host_ids().map(|h| {
                    let count = cluster.type_of(h).gpu_count();
                    let chosen = (0..count).filter(|g| row[column + g] != 0);
                    let mask = GpuMask::from_indices(chosen);
                    column += count;
                    (h, mask)
                }))
            })
            .collect();
        let (mean, std) = self.predicted(py, &allocations, size_bytes)?;
        Ok((PyArray1::from_vec(py, mean), PyArray1::from_vec(py, std)))
    }

    /// Plans the paths of traffic whose rows are lists.
    #[pyo3(signature = (demand_bytes, links=Vec::new(), relay_read_gb_per_s=None, relay_write_gb_per_s=None))]
    fn plan(
        &self,
        py: Python<'_>,
        demand_bytes: Vec<Vec<u64>>,
        links: Vec<String>,
        relay_read_gb_per_s: Option<f64>,
        relay_write_gb_per_s: Option<f64>,
    ) -> PyResult<Plan> {
        let ranks = demand_bytes.len();
        if let Some((i, row)) = demand_bytes.iter().enumerate().find(|(_, row)| row.len() != ranks) {
            let said = format!("row {i} has {} entries; the demand has {ranks} rows and must be a square", row.len());
            return Err(Problem::bad("bad_request", said).into());
        }
        let engine = self.here()?;
        let options = RequestOptions { links, relay_read_gb_per_s, relay_write_gb_per_s };
        Ok(py.detach(|| plan::plan(engine.cluster(), ranks, demand_bytes.concat(), &options))?)
    }

    /// Plans the paths of traffic in a square matrix.
    #[pyo3(signature = (demand_bytes, links=Vec::new(), relay_read_gb_per_s=None, relay_write_gb_per_s=None))]
    fn plan_matrix(
        &self,
        py: Python<'_>,
        demand_bytes: PyReadonlyArray2<'_, u64>,
        links: Vec<String>,
        relay_read_gb_per_s: Option<f64>,
        relay_write_gb_per_s: Option<f64>,
    ) -> PyResult<Plan> {
        let shape = [demand_bytes.shape()[0], demand_bytes.shape()[1]];
        let engine = self.here()?;
        let gpus = engine.cluster().gpu_count();
        if shape != [gpus, gpus] {
            let said = format!("the demand is {} x {}; {gpus} x {gpus} was expected", shape[0], shape[1]);
            return Err(Problem::bad("bad_request", said).into());
        }
        let rows: Vec<u64> = demand_bytes.as_array().iter().copied().collect();
        let options = RequestOptions { links, relay_read_gb_per_s, relay_write_gb_per_s };
        Ok(py.detach(|| plan::plan(engine.cluster(), gpus, rows, &options))?)
    }

    /// The hosts of the cluster in order, each with its type and its number of GPUs.
    fn hosts(&self) -> Vec<(String, String, usize)> {
        let c = self.engine.cluster();
        let host = |h| (c.host(h).name.clone(), c.type_of(h).name.clone(), c.type_of(h).gpu_count());
        c.host_ids().map(host).collect()
    }

    /// The cluster's name.
    #[getter]
    fn cluster_name(&self) -> &str {
        &self.engine.cluster().name
    }

    /// True if the engine has a model.
    #[getter]
    fn has_model(&self) -> bool {
        self.engine.model_if_any().is_some()
    }

    /// True if the engine has a state.
    #[getter]
    fn has_state(&self) -> bool {
        self.engine.has_state()
    }

    /// The kind of the model, or none.
    #[getter]
    fn model_kind(&self) -> Option<String> {
        self.engine.model_if_any().map(|m| predict::BandwidthModel::kind(&*m).to_owned())
    }
}

/// Seconds since 1970.
fn now_unix_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

/// The names of the built-in clusters.
#[pyfunction]
pub fn clusters() -> Vec<&'static str> {
    topology::catalog::CLUSTERS.iter().copied().chain(route::builtin::NAMES).collect()
}

/// The version of linkwise.
#[pyfunction]
pub fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}
