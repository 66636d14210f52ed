//! Plans of paths: `Engine.plan`.

use crate::error::Problem;
use engine::ErrorKind;
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use route::request::{Planned, RequestOptions};
use topology::Cluster;

/// A plan: the paths of every byte, and how far the busiest link is from the optimum.
#[pyclass(frozen, module = "linkwise._native")]
pub struct Plan(Planned);

/// The flows as columns.
struct Columns {
    src: Vec<u32>,
    dst: Vec<u32>,
    bytes: Vec<u64>,
    /// Where the hops of each flow begin in `hops`, and the end.
    first_hop: Vec<u64>,
    hops: Vec<u32>,
}

/// Plans. O(pairs x paths) and more, where links are contended.
pub fn plan(cluster: &Cluster, ranks: usize, bytes: Vec<u64>, o: &RequestOptions) -> Result<Plan, Problem> {
    route::request::plan(cluster, ranks, bytes, o).map(Plan).map_err(|e| match e.is_malformed() {
        true => Problem::bad("bad_request", e),
        false => Problem::new("no_plan", ErrorKind::Impossible, e, "change the request as the message says"),
    })
}

impl Plan {
    fn columns(&self) -> Columns {
        let mut c =
            Columns { src: Vec::new(), dst: Vec::new(), bytes: Vec::new(), first_hop: vec![0], hops: Vec::new() };
        let Planned { net, demand, plan } = &self.0;
        for f in plan.flows(net, demand) {
            c.src.push(f.src as u32);
            c.dst.push(f.dst as u32);
            c.bytes.push(f.bytes);
            c.hops.extend(net.path(f.src, f.dst, f.path));
            c.first_hop.push(c.hops.len() as u64);
        }
        c
    }
}

#[pymethods]
impl Plan {
    /// The figures of the plan.
    fn summary<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (figures, out) = (self.0.figures(), PyDict::new(py));
        out.set_item("ranks", figures.ranks)?;
        out.set_item("congestion_s", figures.congestion_s)?;
        out.set_item("lower_bound_s", figures.lower_bound_s)?;
        out.set_item("gap", figures.gap)?;
        out.set_item("evidence", figures.evidence)?;
        out.set_item("bottleneck", figures.bottleneck)?;
        out.set_item("rule", figures.rule)?;
        out.set_item("exceptions", figures.exceptions)?;
        out.set_item("completion_s", figures.completion_s)?;
        out.set_item("notes", figures.notes)?;
        Ok(out)
    }

    /// The links: start, end, capacity in GB/s, bytes of the plan.
    fn links(&self, py: Python<'_>) -> Vec<(String, String, f64, u64)> {
        py.detach(|| {
            let Planned { net, demand, plan } = &self.0;
            let bytes = plan.link_bytes(net, demand);
            let name = |n: u32| net.nodes[n as usize].to_string();
            let links = net.links.iter().zip(bytes);
            links.map(|(l, of)| (name(l.from), name(l.to), l.capacity_gb_per_s, of)).collect()
        })
    }

    /// The flows as lists: source, destination, bytes, first hop, hops.
    #[allow(clippy::type_complexity)] // a tuple of columns
    fn flow_lists(&self, py: Python<'_>) -> (Vec<u32>, Vec<u32>, Vec<u64>, Vec<u64>, Vec<u32>) {
        let c = py.detach(|| self.columns());
        (c.src, c.dst, c.bytes, c.first_hop, c.hops)
    }

    /// The same as NumPy arrays, which take the memory.
    fn flow_arrays<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyTuple>> {
        let c = py.detach(|| self.columns());
        (
            PyArray1::from_vec(py, c.src),
            PyArray1::from_vec(py, c.dst),
            PyArray1::from_vec(py, c.bytes),
            PyArray1::from_vec(py, c.first_hop),
            PyArray1::from_vec(py, c.hops),
        )
            .into_pyobject(py)
    }
}
