//! The answer to a request, with its reasons.

use crate::baselines::packed;
use crate::decide::{Reading, decide};
use crate::exact::{Found, Scored, cautiously};
use crate::objective::{Effect, Objective};
use crate::request::{Refusal, Request};
use crate::search::Search;
use crate::threshold::Auto;
use predict::bound::Limit;
use predict::{BandwidthModel, Part, Prediction};
use topology::{Allocation, Cluster, HostId};

/// What holds a choice back.
#[derive(Clone, Debug, PartialEq)]
pub enum Bottleneck {
    /// The links inside a host.
    Host {
        /// Which.
        host: HostId,
    },
    /// The NICs that the chosen GPUs of a host touch.
    Nic {
        /// Which host.
        host: HostId,
        /// Names of the NICs.
        nics: Vec<String>,
        /// Their rate together, GB/s.
        gb_per_s: f64,
    },
    /// A link between hosts, or a tier of switches.
    Network {
        /// Its name.
        name: String,
    },
    /// The message is too small to fill any link.
    Latency,
    /// One GPU: nothing to communicate with.
    None,
}

/// Everything that an answer tells.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The choice.
    pub choice: Scored,
    /// What limits it.
    pub bottleneck: Bottleneck,
    /// What a packing scheduler would have given, and what the model expects of that.
    pub packed: Option<Scored>,
    /// The next best splits.
    pub runner_ups: Vec<Scored>,
    /// Candidates judged.
    pub evaluations: u64,
    /// What the choice means for it and for the running jobs.
    pub effect: Effect,
}

impl Answer {
    /// The same answer, decided again with measurements of its candidates (see [`decide`]): the measured winner becomes the choice, what
    /// is now expected of it its prediction. `Err` is an allocation that is not among the candidates.
    pub fn decided(
        mut self,
        cluster: &Cluster,
        model: &dyn BandwidthModel,
        request: &Request,
        readings: &[(Allocation, f64)],
    ) -> Result<Answer, Allocation> {
        let mut all: Vec<Scored> = std::iter::once(self.choice).chain(self.runner_ups).collect();
        let of_candidates = readings
            .iter()
            .map(|(a, v)| match all.iter().position(|c| c.allocation == *a) {
                Some(candidate) => Ok(Reading { candidate, busbw_gb_per_s: *v }),
                None => Err(a.clone()),
            })
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(d) = decide(&all, &of_candidates, model.repeat_noise()) {
            all[..=d.candidate].rotate_right(1);
            all[0].prediction = Prediction { busbw_gb_per_s: d.busbw_gb_per_s, std_gb_per_s: d.std_gb_per_s };
            self.effect = Objective::new(cluster, model, request).effect(&parts_of(model, request, &all[0].allocation));
        }
        self.choice = all.remove(0);
        self.runner_ups = all;
        self.bottleneck = bottleneck(cluster, model, request, &self.choice.allocation);
        Ok(self)
    }
}

/// How many runner-ups an answer carries.
pub const RUNNER_UPS: usize = 7;

/// Answers a request by exact search, or above thresholds where that is too large; among the best few, the choice is made [`cautiously`].
pub fn answer(cluster: &Cluster, model: &dyn BandwidthModel, request: &Request) -> Result<Answer, Refusal> {
    answer_by(&Auto, cluster, model, request)
}

/// Answers a request by any search.
pub fn answer_by(
    search: &dyn Search,
    cluster: &Cluster,
    model: &dyn BandwidthModel,
    request: &Request,
) -> Result<Answer, Refusal> {
    let objective = Objective::new(cluster, model, request);
    let Found { mut best, evaluations } = search.search(&objective, 1 + RUNNER_UPS)?;
    cautiously(&mut best);
    let choice = best.remove(0);
    let packed = packed(cluster, &request.free, request.gpus).map(|allocation| {
        let parts = parts_of(model, request, &allocation);
        let prediction = model.predict(request.size, &parts);
        let score_gb_per_s = objective.effect(&parts).score(request.loss_weight);
        Scored { allocation, prediction, score_gb_per_s }
    });
    let bottleneck = bottleneck(cluster, model, request, &choice.allocation);
    let effect = objective.effect(&parts_of(model, request, &choice.allocation));
    Ok(Answer { choice, bottleneck, packed, runner_ups: best, evaluations, effect })
}

fn parts_of(model: &dyn BandwidthModel, request: &Request, allocation: &Allocation) -> Vec<Part> {
    let table = model.part_table(request.size);
    allocation.parts().iter().map(|&(h, m)| table.part(h, m)).collect()
}

/// What the model expects of any allocation.
pub fn predict_allocation(model: &dyn BandwidthModel, request: &Request, allocation: &Allocation) -> Prediction {
    model.predict(request.size, &parts_of(model, request, allocation))
}

fn bottleneck(cluster: &Cluster, model: &dyn BandwidthModel, request: &Request, a: &Allocation) -> Bottleneck {
    if a.gpu_count() < 2 {
        return Bottleneck::None;
    }
    let parts = parts_of(model, request, a);
    match model.limit(request.size, &parts) {
        Limit::Intra { host } => Bottleneck::Host { host },
        Limit::Network { name } => Bottleneck::Network { name },
        Limit::Latency => Bottleneck::Latency,
        Limit::Nic { host } => {
            let ty = cluster.type_of(host);
            let touched = ty.nics_touched(a.mask(host));
            let of_it = |i: &usize| touched >> i & 1 == 1;
            Bottleneck::Nic {
                host,
                nics: (0..ty.nics.len()).filter(of_it).map(|i| ty.nics[i].name.clone()).collect(),
                gb_per_s: (0..ty.nics.len()).filter(of_it).map(|i| cluster.nic_rate(host, i).gb_per_s()).sum(),
            }
        }
    }
}
