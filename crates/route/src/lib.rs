//! Which links the bytes of skewed traffic take, and how far from the best possible that provably is.
//!
//! A [`Network`] holds the directed links and the paths between ranks; a [`Demand`] says how many bytes each rank sends to each rank. A
//! planner makes a [`Plan`] of both: for every pair of ranks the bytes on every path. Its quality is its *congestion*, the seconds that
//! its busiest link needs, beside a proven lower bound on the congestion of any plan.
//!
//! Everything is a function of its arguments: no clock, no I/O, no randomness but seeded, and only the four basic operations on floating
//! point numbers in the planner itself, so that every rank that plans the same demand gets the same plan, bit for bit.
//!
//! ```
//! use route::{Demand, Planner, builtin, Network};
//! let network = Network::of(&builtin::cluster("mesh4").unwrap(), &Default::default()).unwrap();
//! let mut demand = Demand::new(4).unwrap();
//! demand.set(0, 1, 256_000_000).unwrap();
//! let plan = Planner::default().plan(&network, &demand).unwrap();
//! assert!(plan.gap() < 0.001); // a third over the direct link, a third over each relay
//! ```

pub mod bound;
pub mod builtin;
pub mod chunks;
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
pub mod rules;
pub mod session;
mod sums;
pub mod traffic;
pub mod waves;

pub use demand::{Demand, RANKS_MAX};
pub use network::{Link, LinkKind, Network, NetworkError, NetworkOptions};
pub use plan::{Flow, Plan};
pub use planner::{PlanError, Planner, Settings};
pub use planners::{NameTaken, PlannerEntry, Planners, lower_bound};
pub use rules::Rule;
