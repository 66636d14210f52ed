//! The answer to a request, with its reasons.

use crate::baselines::packed;
use crate::decide::{ProbeReading, decide};
use crate::exact::{Scored, SearchResult, promote_by_lower_confidence_bound};
use crate::objective::{Effect, Objective};
use crate::pods::{packed_pods, place_pods};
use crate::ranks;
use crate::request::{Refusal, Request};
use crate::search::{Search, scored};
use crate::threshold::Auto;
use predict::bound::Limit;
use predict::{BandwidthModel, HostShare, Prediction};
use topology::{Allocation, Cluster, GpuId, GpuMask, HostId};

/// The link that limits a choice.
#[derive(Clone, Debug, PartialEq)]
pub enum Bottleneck {
    /// The links inside a host.
    Host {
        /// Which.
        host: HostId,
    },
    /// The NICs that the chosen GPUs of a host use.
    Nic {
        /// The host.
        host: HostId,
        /// Names of the NICs.
        nics: Vec<String>,
        /// Sum of their rates, GB/s.
        gb_per_s: f64,
    },
    /// A link between hosts, or a tier of switches.
    Network {
        /// Its name.
        name: String,
    },
    /// The message is too small to fill any link.
    Latency,
    /// A single GPU, which has no collective traffic.
    None,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The choice.
    pub choice: Scored,
    /// The link that limits it.
    pub bottleneck: Bottleneck,
    /// The choice of a packing scheduler with the model's prediction; None if that choice breaks the limits on hosts.
    pub packed: Option<Scored>,
    /// The next best splits.
    pub runner_ups: Vec<Scored>,
    /// Candidates judged.
    pub evaluations: u64,
    /// The effect of the choice on the new job and on the running jobs.
    pub effect: Effect,
    /// The GPUs of every pod of the request, in its order; empty without pods.
    pub pods: Vec<(HostId, GpuMask)>,
    /// The GPUs of the choice in the order in which they should be ranks (see [`crate::ranks`]).
    pub rank_order: Vec<GpuId>,
    /// The hosts in that order.
    pub host_order: Vec<(HostId, GpuMask)>,
    /// Name of the search.
    pub search: &'static str,
}

impl Answer {
    /// The same answer, decided again with measurements of its candidates (see [`decide`]): the winner becomes the choice, with its
    /// expectation after the measurements as prediction. `Err` is an allocation that is not among the candidates.
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
                Some(candidate) => Ok(ProbeReading { candidate, busbw_gb_per_s: *v }),
                None => Err(a.clone()),
            })
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(d) = decide(&all, &of_candidates, model.repeat_noise()) {
            crate::exact::promote(&mut all, d.candidate);
            all[0].prediction = Prediction { busbw_gb_per_s: d.busbw_gb_per_s, std_gb_per_s: d.std_gb_per_s };
            self.effect = Objective::new(cluster, model, request).effect(&parts_of(model, request, &all[0].allocation));
        }
        self.choice = all.remove(0);
        self.runner_ups = all;
        self.bottleneck = bottleneck(cluster, model, request, &self.choice.allocation);
        let Layout { hosts, pods, ranks } = Layout::of(cluster, model, request, &self.choice.allocation);
        (self.host_order, self.pods, self.rank_order) = (hosts, pods, ranks);
        Ok(self)
    }
}

/// Number of runner-ups in an answer.
pub const RUNNER_UPS: usize = 7;

/// Answers a request by exact search, or above thresholds where that is too large. The choice among the best few is that of
/// [`promote_by_lower_confidence_bound`].
pub fn answer(cluster: &Cluster, model: &dyn BandwidthModel, request: &Request) -> Result<Answer, Refusal> {
    answer_with(&Auto, cluster, model, request)
}

/// Answers a request by any search.
pub fn answer_with(
    search: &dyn Search,
    cluster: &Cluster,
    model: &dyn BandwidthModel,
    request: &Request,
) -> Result<Answer, Refusal> {
    // Searches see only usable GPUs; constraints on the whole choice stay in the request.
    let request = &Request { free: request.usable(cluster)?, ..request.clone() };
    let objective = Objective::new(cluster, model, request);
    let SearchResult { mut best, evaluations } = search.search(&objective, 1 + RUNNER_UPS)?;
    best.retain(|s| request.accepts_counts(&s.allocation.counts()));
    if best.is_empty() {
        return Err(Refusal::SearchBreaksLimits { search: search.name() });
    }
    promote_by_lower_confidence_bound(&mut best);
    let choice = best.remove(0);
    let packed = match request.pods.iter().any(|p| *p > 1) {
        true => packed_pods(cluster, &request.free, &request.pods),
        false => packed(cluster, &request.free, request.gpus),
    };
    let packed = packed.filter(|a| request.accepts_counts(&a.counts())).map(|a| scored(&objective, a));
    let bottleneck = bottleneck(cluster, model, request, &choice.allocation);
    let effect = objective.effect(&parts_of(model, request, &choice.allocation));
    let Layout { hosts, pods, ranks } = Layout::of(cluster, model, request, &choice.allocation);
    Ok(Answer {
        choice,
        bottleneck,
        packed,
        runner_ups: best,
        evaluations,
        effect,
        pods,
        rank_order: ranks,
        host_order: hosts,
        search: search.name(),
    })
}

/// A choice laid out.
struct Layout {
    hosts: Vec<(HostId, GpuMask)>,
    pods: Vec<(HostId, GpuMask)>,
    ranks: Vec<GpuId>,
}

impl Layout {
    fn of(cluster: &Cluster, model: &dyn BandwidthModel, request: &Request, choice: &Allocation) -> Layout {
        let hosts = ranks::host_order(cluster, choice.parts());
        let table = model.share_table(request.size);
        let pods = if request.pods.is_empty() { None } else { place_pods(table, &request.pods, &hosts) };
        let pods = pods.unwrap_or_default();
        let ranks = ranks::rank_order(&hosts, &pods);
        Layout { hosts, pods, ranks }
    }
}

fn parts_of(model: &dyn BandwidthModel, request: &Request, allocation: &Allocation) -> Vec<HostShare> {
    let table = model.share_table(request.size);
    allocation.parts().iter().map(|&(h, m)| table.part(h, m)).collect()
}

/// What limits an allocation, by physics.
pub fn bottleneck(cluster: &Cluster, model: &dyn BandwidthModel, request: &Request, a: &Allocation) -> Bottleneck {
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
