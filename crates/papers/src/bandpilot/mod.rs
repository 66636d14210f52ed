//! BandPilot (arXiv 2506.15595): its searches and its baselines.
//!
//! | what | file |
//! |---|---|
//! | the first version: the better result of EHA and PTS | here, [`eha`], [`pts`] |
//! | version 4 | [`v4`] |
//! | contention by counts, as in the public code | [`counts`] |
//! | baselines: by topology, by pairs of GPUs, at random | [`numa`], [`topo_v4`], [`bw_greedy`], [`cascore`], [`random`] |

pub mod bw_greedy;
pub mod cascore;
pub mod counts;
pub mod eha;
pub mod numa;
pub mod pts;
pub mod random;
pub mod topo_v4;
pub mod v4;

use crate::judge::better;
use eha::eha;
use place::search::{admit, one};
use place::{Objective, Refusal, Search, SearchResult};
use pts::{INSERTION_GPUS_MAX, pts};

pub use bw_greedy::BwGreedy;
pub use cascore::CasCore;
pub use counts::MERGE_COUNTS;
pub use eha::Eha;
pub use pts::Pts;
pub use random::RandomSearch;
pub use v4::{BandPilotV4, Serving};

/// The hybrid search: arXiv 2506.15595, section 4.3.1. Runs [`Eha`] and [`Pts`] on the same model B̂ and returns the
/// allocation with the higher prediction; EHA's in a tie. Evaluations: those of both, and two more.
pub struct BandPilot;

impl Search for BandPilot {
    fn name(&self) -> &'static str {
        "bandpilot"
    }
    fn search(&self, objective: &Objective, _keep: usize) -> Result<SearchResult, Refusal> {
        let before = objective.evaluations();
        let free = admit(objective, "bandpilot")?;
        let mut both = [eha(objective, &free, "bandpilot")?, pts(objective, &free, INSERTION_GPUS_MAX, "bandpilot")?];
        let best = better(objective, &both).unwrap_or(0);
        Ok(one(objective, std::mem::take(&mut both[best]), before))
    }
}
