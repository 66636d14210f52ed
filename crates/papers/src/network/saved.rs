//! The saved form of networks and LinearBW in a model file.

use super::learned::{
    LearnedNetwork, LearningTarget, READINGS_MIN, REPLAY_MAX, Regressor, RehearsalMemory, SIZES_MAX, SizePredictor,
};
use super::linear::FittedLine;
use super::token_network::TokenNetwork;
use super::tokens::{Flavour, Scale, Tokenizer};
use predict::LearnedModel;
use serde::{Deserialize, Serialize};
use topology::{Allocation, Bytes, Cluster};

/// Largest parameter that is accepted from a file; training stays far below it.
const PARAMETER_MAX: f32 = 1e3;
/// Largest entry of a Fisher information that is accepted from a file.
const FISHER_MAX: f32 = 1e12;

/// A predictor in its saved form.
#[derive(Serialize, Deserialize)]
pub(super) struct SavedLearned {
    /// Absent for LinearBW.
    network: Option<Flavour>,
    sizes: Vec<SavedSize>,
}

#[derive(Serialize, Deserialize)]
struct SavedSize {
    size: Bytes,
    target: Scale,
    sd: f64,
    seen: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    line: Option<FittedLine>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reader: Option<Tokenizer>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    parameters: Vec<f32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    fisher: Vec<f32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    replay: Vec<(Allocation, f64)>,
}

impl LearnedNetwork {
    pub(super) fn saved(&self) -> SavedLearned {
        let size = |s: &SizePredictor| {
            let (line, reader, parameters) = match &s.regressor {
                Regressor::Line(l) => (Some(l.clone()), None, Vec::new()),
                Regressor::Network { network, reader } => (None, Some(reader.clone()), network.parameters.clone()),
            };
            let (fisher, replay) = match &s.memory {
                RehearsalMemory::None => (Vec::new(), Vec::new()),
                RehearsalMemory::Fisher(f) => (f.clone(), Vec::new()),
                RehearsalMemory::Replay(r) => (Vec::new(), r.clone()),
            };
            SavedSize {
                size: s.size,
                target: s.target,
                sd: s.sd,
                seen: s.seen,
                line,
                reader,
                parameters,
                fisher,
                replay,
            }
        };
        let network = match self.what {
            LearningTarget::Network(f) => Some(f),
            LearningTarget::Line => None,
        };
        SavedLearned { network, sizes: self.by_size.iter().map(size).collect() }
    }

    /// Checks all values that a prediction uses; the message names the fault.
    fn of_saved(saved: SavedLearned, cluster: &Cluster) -> Result<LearnedNetwork, String> {
        if saved.sizes.is_empty() || saved.sizes.len() > SIZES_MAX {
            return Err(format!("it holds {} networks; 1 to {SIZES_MAX} are supported", saved.sizes.len()));
        }
        if !saved.sizes.is_sorted_by(|a, b| a.size < b.size) {
            return Err("its sizes do not ascend".into());
        }
        let what = saved.network.map_or(LearningTarget::Line, LearningTarget::Network);
        let by_size = saved.sizes.into_iter().map(|s| size(s, what, cluster)).collect::<Result<_, _>>()?;
        Ok(LearnedNetwork { what, by_size })
    }
}

/// Name of the file format.
pub(super) const FORM: &str = "learned";

/// Reads the saved text of a [`LearnedNetwork`].
pub(super) fn load(text: &str, cluster: &Cluster) -> Result<Box<dyn LearnedModel>, String> {
    let saved = serde_json::from_str(text).map_err(|e| format!("it is damaged: {e} of its `{FORM}`"))?;
    Ok(Box::new(LearnedNetwork::of_saved(saved, cluster)?))
}

fn size(s: SavedSize, what: LearningTarget, cluster: &Cluster) -> Result<SizePredictor, String> {
    let at = s.size;
    let bad = |e: &str| format!("its network for {at}: {e}");
    let fine =
        s.target.fine() && s.sd.is_finite() && (0.0..=1.0).contains(&s.sd) && (READINGS_MIN..1 << 40).contains(&s.seen);
    if !fine {
        return Err(bad("a scale, a deviation or a number of readings is out of range"));
    }
    let (regressor, memory) = match what {
        LearningTarget::Line => {
            let line = s.line.ok_or_else(|| bad("the line is missing"))?;
            line.check(cluster.types.len()).map_err(|e| bad(&e))?;
            (Regressor::Line(line), RehearsalMemory::None)
        }
        LearningTarget::Network(flavour) => {
            let reader = s.reader.ok_or_else(|| bad("`reader` is missing"))?;
            let bits = cluster.types.iter().map(|t| t.gpu_count()).max().unwrap_or(1);
            if reader.flavour != flavour || reader.bits != bits {
                return Err(bad("its reader is of another network or cluster"));
            }
            let shape = flavour.shape(bits);
            shape.check().map_err(|e| bad(&e))?;
            reader.check(&shape, cluster.types.len()).map_err(|e| bad(&e))?;
            if s.parameters.iter().any(|p| !p.is_finite() || p.abs() > PARAMETER_MAX) {
                return Err(bad("a parameter is out of range"));
            }
            let found = s.parameters.len();
            let network = TokenNetwork::with(shape, s.parameters)
                .ok_or_else(|| bad(&format!("{found} parameters are not as many as its shape has")))?;
            let memory = match flavour {
                Flavour::Litegd => {
                    let fine = |(a, v): &(Allocation, f64)| {
                        let on = |&(h, m): &(topology::HostId, topology::GpuMask)| {
                            h.index() < cluster.hosts.len() && m.minus(cluster.type_of(h).all_gpus()).is_empty()
                        };
                        a.host_count() > 1
                            && a.parts().iter().all(on)
                            && v.is_finite()
                            && (0.0..1e6).contains(v)
                            && *v > 0.0
                    };
                    if s.replay.len() > REPLAY_MAX || !s.replay.iter().all(fine) {
                        return Err(bad("its replay buffer is too long or holds an impossible reading"));
                    }
                    RehearsalMemory::Replay(s.replay)
                }
                Flavour::Transformer | Flavour::Naive => {
                    let fine = |f: &f32| f.is_finite() && (0.0..=FISHER_MAX).contains(f);
                    if s.fisher.len() != found || !s.fisher.iter().all(fine) {
                        return Err(bad("its Fisher information has another length or is out of range"));
                    }
                    RehearsalMemory::Fisher(s.fisher)
                }
            };
            (Regressor::Network { network: Box::new(network), reader }, memory)
        }
    };
    Ok(SizePredictor { size: s.size, regressor, target: s.target, sd: s.sd, seen: s.seen, memory })
}
