//! Splits the bytes of skewed traffic over links, and proves how far the split is from the optimum.
//!
//! A [`RoutingNetwork`] holds the directed links and the paths between ranks. A [`Demand`] holds the bytes from each rank to each rank. A
//! planner computes a [`RoutePlan`]: for every pair of ranks the bytes on every path. The *congestion* of a plan is the time in seconds that
//! its busiest link needs. Each plan also has a proven lower bound on the congestion of any plan.
//!
//! Everything is a function of its arguments: no clock, no I/O, and only seeded randomness. The planner uses only the four basic operations
//! on floating-point numbers, so every rank that plans the same demand gets the same plan, bit for bit.
//!
//! ```
//! use route::{Demand, Planner, builtin, RoutingNetwork};
//! let network = RoutingNetwork::of(&builtin::cluster("mesh4").unwrap(), &Default::default()).unwrap();
//! let mut demand = Demand::new(4).unwrap();
//! demand.set(0, 1, 256_000_000).unwrap();
//! let plan = Planner::default().plan(&network, &demand).unwrap();
//! assert!(plan.gap() < 0.001); // a third over the direct link, a third over each relay
//! ```

pub mod bound;
pub mod builtin;
pub mod demand;
#[cfg(feature = "exact")]
pub mod exact;
pub mod model;
pub mod network;
mod pivot;
pub mod plan;
pub mod planner;
mod planners;
pub mod read;
pub mod request;
pub mod rules;
mod sums;
pub mod traffic;

pub use demand::{Demand, RANKS_MAX};
pub use network::{Link, LinkKind, RoutingNetwork, RoutingNetworkError, RoutingOptions};
pub use plan::{PathFlow, RoutePlan};
pub use planner::{PlanError, Planner, PlannerSettings};
pub use planners::{NameTaken, PlannerEntry, Planners, lower_bound};
pub use rules::Rule;
