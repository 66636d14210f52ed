//! A plan for a request from outside: rates of links as text, the demand as rows, the figures of the answer. The server and the Python module share it.

use crate::demand::DemandError;
use crate::network::LinkOverride;
use crate::{
    Demand, PlanError, Planner, PlannerSettings, RoutePlan, RoutingNetwork, RoutingNetworkError, RoutingOptions,
};
use topology::Cluster;

/// Maximum number of links whose rate a request sets.
pub const LINKS_MAX: usize = 10_000;

/// What a request may set.
#[derive(Clone, Debug, Default)]
pub struct RequestOptions {
    /// Rates of links that differ from the cluster file: `FROM>TO=GB_PER_S` or `FROM>TO=xSHARE`; 0 is dead. At most [`LINKS_MAX`].
    pub links: Vec<String>,
    /// Limit on the bytes that a GPU reads to forward for others, GB/s.
    pub relay_read_gb_per_s: Option<f64>,
    /// Limit on the bytes that a GPU writes to forward for others, GB/s.
    pub relay_write_gb_per_s: Option<f64>,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// More rates than [`LINKS_MAX`].
    #[error("`links` has {0} entries; at most {LINKS_MAX}")]
    Links(usize),
    /// The demand is not of the cluster's GPUs.
    #[error("the demand is of {demand} ranks; {gpus} were expected, the GPUs of the cluster")]
    Ranks {
        /// Ranks of the demand.
        demand: usize,
        /// GPUs of the cluster.
        gpus: usize,
    },
    /// The demand is malformed.
    #[error(transparent)]
    Demand(#[from] DemandError),
    /// A rate is malformed.
    #[error("{0}")]
    Link(String),
    /// The network cannot be made.
    #[error(transparent)]
    Network(#[from] RoutingNetworkError),
    /// The planner found no plan.
    #[error(transparent)]
    Plan(PlanError),
}

impl RequestError {
    /// True if the request must be corrected; else no plan exists for it.
    pub fn is_malformed(&self) -> bool {
        !matches!(self, RequestError::Plan(_))
    }
}

/// A plan with what it was made for.
pub struct Planned {
    /// The network.
    pub net: RoutingNetwork,
    /// The demand.
    pub demand: Demand,
    /// The plan.
    pub plan: RoutePlan,
}

/// The figures of a plan. All times follow from capacities; none is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanFigures {
    /// Number of ranks.
    pub ranks: usize,
    /// Time of the busiest link, seconds.
    pub congestion_s: f64,
    /// No plan needs less, seconds.
    pub lower_bound_s: f64,
    /// Congestion over the bound, minus one.
    pub gap: f64,
    /// The proof of the bound, in words.
    pub evidence: String,
    /// Name of the busiest link; empty if no byte moves.
    pub bottleneck: String,
    /// The rule of every pair without an exception.
    pub rule: &'static str,
    /// Number of pairs that do not follow the rule.
    pub exceptions: usize,
    /// Modelled completion time, seconds; 0 if a link is dead.
    pub completion_s: f64,
    /// What the network leaves out.
    pub notes: Vec<String>,
}

/// Plans the demand `bytes`, rows of `ranks` numbers one after the other, over the links of a cluster. O(pairs x paths) and more, where links are
/// contended.
///
/// # Errors
/// [`RequestError`]; all but [`RequestError::Plan`] are errors of the request.
pub fn plan(cluster: &Cluster, ranks: usize, bytes: Vec<u64>, o: &RequestOptions) -> Result<Planned, RequestError> {
    if o.links.len() > LINKS_MAX {
        return Err(RequestError::Links(o.links.len()));
    }
    let gpus = cluster.gpu_count();
    if ranks != gpus {
        return Err(RequestError::Ranks { demand: ranks, gpus });
    }
    let demand = Demand::from_rows(ranks, bytes)?;
    let overrides: Result<Vec<LinkOverride>, _> = o.links.iter().map(|l| l.parse()).collect();
    let options = RoutingOptions {
        relay_read_gb_per_s: o.relay_read_gb_per_s,
        relay_write_gb_per_s: o.relay_write_gb_per_s,
        overrides: overrides.map_err(|e| RequestError::Link(e.to_string()))?,
        ..RoutingOptions::default()
    };
    let net = RoutingNetwork::of(cluster, &options)?;
    match Planner::new(PlannerSettings::default()).plan(&net, &demand) {
        Ok(plan) => Ok(Planned { net, demand, plan }),
        Err(PlanError::Ranks { demand, network }) => Err(RequestError::Ranks { demand, gpus: network }),
        Err(e) => Err(RequestError::Plan(e)),
    }
}

impl Planned {
    /// The figures. O(pairs).
    pub fn figures(&self) -> PlanFigures {
        let Planned { net, demand, plan } = self;
        PlanFigures {
            ranks: demand.ranks(),
            congestion_s: plan.congestion_s,
            lower_bound_s: plan.lower_bound_s,
            gap: plan.gap(),
            evidence: plan.evidence.describe(net).to_string(),
            bottleneck: if plan.congestion_s > 0.0 { net.link_name(plan.bottleneck) } else { String::new() },
            rule: plan.rule.name(),
            exceptions: plan.exception_count(),
            completion_s: if plan.completion_s.is_finite() { plan.completion_s } else { 0.0 },
            notes: net.notes.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh() -> Cluster {
        crate::builtin::cluster("mesh4").unwrap()
    }

    fn bytes() -> Vec<u64> {
        let mut bytes = vec![0; 16];
        bytes[1] = 256_000_000;
        bytes
    }

    #[test]
    fn a_request_gets_its_figures_or_the_reason_and_whose_fault_it_is() {
        let figures = plan(&mesh(), 4, bytes(), &RequestOptions::default()).unwrap().figures();
        assert!(figures.gap < 0.001 && figures.ranks == 4 && !figures.bottleneck.is_empty(), "{figures:?}");
        let nothing = plan(&mesh(), 4, vec![0; 16], &RequestOptions::default()).unwrap().figures();
        assert_eq!((nothing.congestion_s, nothing.bottleneck.as_str()), (0.0, ""));
        let links = |links: &[&str]| RequestOptions {
            links: links.iter().map(|l| (*l).into()).collect(),
            ..Default::default()
        };
        for (ranks, rows, options, words) in [
            (3, vec![0; 9], RequestOptions::default(), "of 3 ranks; 4 were expected"),
            (4, vec![0; 9], RequestOptions::default(), ""),
            (4, bytes(), links(&["nonsense"]), ""),
            (4, bytes(), links(&["a>b=1"]), "no link goes"),
            (
                4,
                bytes(),
                RequestOptions { links: vec![String::new(); LINKS_MAX + 1], ..Default::default() },
                "at most 10000",
            ),
        ] {
            let e = plan(&mesh(), ranks, rows, &options).err().unwrap();
            assert!(e.is_malformed() && e.to_string().contains(words), "{e}");
        }
    }
}
