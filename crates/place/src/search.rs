//! Every search by its name.

use crate::exact::Found;
use crate::objective::Objective;
use crate::request::Refusal;

/// A way to choose GPUs.
///
/// A search maximises [`Objective::scores`] over the allocations that satisfy the request; deterministic, a seed is part of the search.
pub trait Search: Send + Sync {
    /// The name on the command line.
    fn name(&self) -> &'static str;
    /// The best `keep` allocations that it finds, best first.
    fn search(&self, objective: &Objective, keep: usize) -> Result<Found, Refusal>;
}

/// Exact enumeration.
pub struct Exact;

impl Search for Exact {
    fn name(&self) -> &'static str {
        "exact"
    }
    fn search(&self, objective: &Objective, keep: usize) -> Result<Found, Refusal> {
        crate::exact::search(objective, keep)
    }
}

/// Names that [`by_name`] knows, with what each is.
pub const NAMES: &[(&str, &str)] = &[
    ("auto", "exact where few enough combinations exist, threshold beyond"),
    ("exact", "every count vector with the GPUs that can matter"),
    ("threshold", "the best above thresholds of intra and NIC bandwidth, for clusters of any size"),
];

/// The search of a name. `seed` is for those that draw lots.
pub fn by_name(name: &str, seed: u64) -> Option<Box<dyn Search>> {
    let _ = seed;
    match name {
        "auto" => Some(Box::new(crate::threshold::Auto)),
        "exact" => Some(Box::new(Exact)),
        "threshold" => Some(Box::new(crate::threshold::Threshold)),
        _ => None,
    }
}
