//! BandPilot as its first version describes it: EHA and PTS, the better of both.

use super::eha::eha;
use super::pts::{INSERTION_GPUS_MAX, pts};
use super::{Search, admit, better, one};
use crate::exact::Found;
use crate::objective::Objective;
use crate::request::Refusal;

/// The hybrid search: arXiv 2506.15595, section 4.3.1. [`super::Eha`] and [`super::Pts`] on the same model B̂, the allocation with the
/// higher prediction; EHA's where they are equal. Evaluations: those of both and two more.
pub struct BandPilot;

impl Search for BandPilot {
    fn name(&self) -> &'static str {
        "bandpilot"
    }
    fn search(&self, objective: &Objective, _keep: usize) -> Result<Found, Refusal> {
        let before = objective.evaluations();
        let free = admit(objective, "bandpilot")?;
        let mut both = [eha(objective, &free, "bandpilot")?, pts(objective, &free, INSERTION_GPUS_MAX, "bandpilot")?];
        let best = better(objective, &both).unwrap_or(0);
        Ok(one(objective, std::mem::take(&mut both[best]), before))
    }
}
