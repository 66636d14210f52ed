//! What a door hands in by name: searches, and ways to fit a model.

use place::Search;
use predict::{Kind, Model, Report};
use store::Measurement;
use topology::{Cluster, Collective};

/// Searches by name. The door chooses which there are: the papers' own are registered from a crate that the engine does not know.
pub trait Searches: Send + Sync {
    /// Names, for messages.
    fn names(&self) -> Vec<&str>;
    /// The search of a name; `seed` is for those that draw numbers at random.
    fn by_name(&self, name: &str, seed: u64) -> Option<Box<dyn Search>>;
}

/// Kinds of models by name.
pub trait Fitters: Send + Sync {
    /// Names, for messages.
    fn kinds(&self) -> Vec<&str>;
    /// Does the kind need no readings at all?
    fn needs_no_readings(&self, kind: &str) -> bool;
    /// Fits a model; none if there is no such kind.
    fn fit(&self, kind: &str, what: &ToFit<'_>) -> Option<Result<(Model, Report), predict::FitError>>;
}

/// What a model is fitted to.
pub struct ToFit<'a> {
    /// The cluster.
    pub cluster: &'a Cluster,
    /// Usable readings, by size and allocation.
    pub readings: &'a [Measurement],
    /// The collective; none: the one that the readings have.
    pub collective: Option<Collective>,
    /// Of kinds that draw numbers at random.
    pub seed: u64,
}

/// What `place` and `predict` have themselves.
pub struct BuiltIn;

impl Searches for BuiltIn {
    fn names(&self) -> Vec<&str> {
        place::search::NAMES.iter().map(|n| n.0).collect()
    }
    fn by_name(&self, name: &str, seed: u64) -> Option<Box<dyn Search>> {
        place::search::by_name(name, seed)
    }
}

impl Fitters for BuiltIn {
    fn kinds(&self) -> Vec<&str> {
        Kind::ALL.map(Kind::name).to_vec()
    }
    fn needs_no_readings(&self, kind: &str) -> bool {
        kind == Kind::Nccl.name()
    }
    fn fit(&self, kind: &str, w: &ToFit<'_>) -> Option<Result<(Model, Report), predict::FitError>> {
        let kind = Kind::by_name(kind)?;
        Some(predict::fit_any(w.cluster, w.readings, w.collective, kind, fabric::Constants::default(), w.seed))
    }
}
