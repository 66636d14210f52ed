//! Plans of paths: `Engine.plan`.

use crate::error::Problem;
use engine::ErrorKind;
use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use route::network::LinkOverride;
use route::{Demand, PlanError, Planner, PlannerSettings, RoutePlan, RoutingNetwork, RoutingOptions};
use topology::Cluster;

/// Maximum number of links whose rate a request sets.
const LINKS_MAX: usize = 10_000;

/// Options of a plan.
pub struct Options {
    /// Rates of links that differ from the cluster file: `FROM>TO=GB_PER_S` or `FROM>TO=xSHARE`; 0 is dead.
    pub links: Vec<String>,
    /// Limit on the bytes that a GPU reads to forward for others, GB/s.
    pub relay_read_gb_per_s: Option<f64>,
    /// Limit on the bytes that a GPU writes to forward for others, GB/s.
    pub relay_write_gb_per_s: Option<f64>,
}

/// A plan: the paths of every byte, and how far the busiest link is from the optimum.
#[pyclass(frozen, module = "linkwise._native")]
pub struct Plan {
    net: RoutingNetwork,
    demand: Demand,
    plan: RoutePlan,
}

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
pub fn plan(cluster: &Cluster, ranks: usize, bytes: Vec<u64>, o: &Options) -> Result<Plan, Problem> {
    let bad = |why: &dyn std::fmt::Display| Problem::bad("bad_request", why);
    if o.links.len() > LINKS_MAX {
        return Err(bad(&format!("`links` has {} entries; at most {LINKS_MAX}", o.links.len())));
    }
    let gpus = cluster.gpu_count();
    if ranks != gpus {
        return Err(bad(&format!("the demand is of {ranks} ranks; {gpus} were expected, the GPUs of the cluster")));
    }
    let demand = Demand::from_rows(ranks, bytes).map_err(|e| bad(&e))?;
    let overrides: Result<Vec<LinkOverride>, _> = o.links.iter().map(|l| l.parse()).collect();
    let options = RoutingOptions {
        relay_read_gb_per_s: o.relay_read_gb_per_s,
        relay_write_gb_per_s: o.relay_write_gb_per_s,
        overrides: overrides.map_err(|e| bad(&e))?,
        ..RoutingOptions::default()
    };
    let net = RoutingNetwork::of(cluster, &options).map_err(|e| bad(&e))?;
    let plan = Planner::new(PlannerSettings::default()).plan(&net, &demand).map_err(|e| match e {
        PlanError::Ranks { .. } => bad(&e),
        e => Problem::new("no_plan", ErrorKind::Impossible, e, "change the request as the message says"),
    })?;
    Ok(Plan { net, demand, plan })
}

impl Plan {
    fn columns(&self) -> Columns {
        let mut c =
            Columns { src: Vec::new(), dst: Vec::new(), bytes: Vec::new(), first_hop: vec![0], hops: Vec::new() };
        for f in self.plan.flows(&self.net, &self.demand) {
            c.src.push(f.src as u32);
            c.dst.push(f.dst as u32);
            c.bytes.push(f.bytes);
            c.hops.extend(self.net.path(f.src, f.dst, f.path));
            c.first_hop.push(c.hops.len() as u64);
        }
        c
    }
}

#[pymethods]
impl Plan {
    /// The figures of the plan.
    fn summary<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (net, plan) = (&self.net, &self.plan);
        let out = PyDict::new(py);
        out.set_item("ranks", self.demand.ranks())?;
        out.set_item("congestion_s", plan.congestion_s)?;
        out.set_item("lower_bound_s", plan.lower_bound_s)?;
        out.set_item("gap", plan.gap())?;
        out.set_item("evidence", plan.evidence.describe(net).to_string())?;
        let bottleneck = if plan.congestion_s > 0.0 { net.link_name(plan.bottleneck) } else { Default::default() };
        out.set_item("bottleneck", bottleneck)?;
        out.set_item("rule", plan.rule.name())?;
        out.set_item("exceptions", plan.exception_count())?;
        out.set_item("completion_s", if plan.completion_s.is_finite() { plan.completion_s } else { 0.0 })?;
        out.set_item("notes", net.notes.clone())?;
        Ok(out)
    }

    /// The links: start, end, capacity in GB/s, bytes of the plan.
    fn links(&self, py: Python<'_>) -> Vec<(String, String, f64, u64)> {
        py.detach(|| {
            let bytes = self.plan.link_bytes(&self.net, &self.demand);
            let name = |n: u32| self.net.nodes[n as usize].to_string();
            let links = self.net.links.iter().zip(bytes);
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
