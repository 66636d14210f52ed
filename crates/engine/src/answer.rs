//! The answer to a request for GPUs: the decision and its reasons.

use crate::gpus::GpuList;
use crate::network::found_switches;
use place::{Answer, Bottleneck, Request, Scored};
use predict::{BandwidthModel, Model};
use serde::{Deserialize, Serialize};
use topology::{Allocation, Bandwidth, Bytes, Cluster, Collective};

/// Number of candidates that the answer lists as worth measuring.
const PROBES: usize = 3;

/// The chosen GPUs of a job, their predicted bandwidth, and the reasons for the choice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PlaceAnswer {
    /// The GPUs.
    pub gpus: GpuList,
    /// Predicted bus bandwidth without other jobs, GB/s; 0 for one GPU.
    pub predicted_busbw_gb_per_s: f64,
    /// Its standard deviation, GB/s.
    pub std_gb_per_s: f64,
    /// The figure that the choice is by where it is not the bandwidth alone, as in [`ScoredAnswer`], GB/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score_gb_per_s: Option<f64>,
    /// GPUs per host, largest first: `4+4`.
    pub split: String,
    /// Name of the search that chose.
    pub search: String,
    /// The GPUs of every pod, in the order of the request.
    pub pods: Vec<GpuList>,
    /// The GPUs in the order of ranks; the GPUs of a host are consecutive.
    pub rank_order: GpuList,
    /// The groups of ranks that the request names. The ranks of a group differ only in the digit of the group's kind.
    #[serde(default)]
    pub groups: Vec<GroupAnswer>,
    /// The effect of the choice on the new job and the running jobs; none without jobs.
    pub contention: Option<ContentionAnswer>,
    /// Kind of the model.
    pub model: String,
    /// Collective of the prediction.
    #[schemars(schema_with = "crate::schema::collective")]
    pub collective: Collective,
    /// Message size of the prediction.
    pub size_bytes: u64,
    /// Number of candidates judged.
    pub evaluations: u64,
    /// The bottleneck of the choice.
    pub bottleneck: BottleneckAnswer,
    /// The choice of a packing scheduler; none if it breaks the constraints.
    pub packed: Option<ScoredAnswer>,
    /// The choice of the simple rule without a model: one host, else the lowest switch, the fewest hosts, an even
    /// split. None for one GPU, and if no such choice satisfies the constraints.
    #[serde(default)]
    pub rule: Option<ScoredAnswer>,
    /// The cost of the choice, and its gain over the rule.
    #[serde(default)]
    pub price: PriceAnswer,
    /// The choice with equal counts per host, if the answer's counts differ because equal ones would waste hosts or
    /// bandwidth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equal_counts: Option<ScoredAnswer>,
    /// The choice with any counts per host, if the answer keeps equal counts that need more hosts and are predicted to be
    /// slower.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uneven_counts: Option<ScoredAnswer>,
    /// The best choice that spans more than the preferred level, if it is faster than the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beyond_level: Option<ScoredAnswer>,
    /// The choice below the preferred level, if the level gave way to an answer of more than twice its bandwidth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_way: Option<ScoredAnswer>,
    /// Candidates whose measurement would be most informative, the choice first.
    pub worth_measuring: Vec<GpuList>,
    /// The next best splits.
    pub runner_ups: Vec<ScoredAnswer>,
    /// The first choice and its suspects, if the choice was moved; none otherwise.
    pub avoided: Option<AvoidedSuspects>,
    /// Suspected components that the choice still uses, most probable first; no alternative is better.
    pub suspects_touched: Vec<SuspectTouched>,
    /// The job that holds the GPUs now; none without a commit.
    pub committed: Option<CommittedJob>,
    /// How the network differs from that of the model's fit; what the model learned of the former network may not hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub network_changes: Vec<String>,
    /// Why the prediction is extrapolated, a few words each: neither published measurements nor the model's readings
    /// cover the choice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outside_validated: Vec<String>,
    /// Switches that the readings show and the cluster file lacks, as a sentence: how many, of how many hosts, an example.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found_switches: Option<String>,
    /// The line that adds these switches to `network` of the cluster file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found_switches_yaml: Option<String>,
}

/// Why neither published measurements ([`fabric::validated`]) nor the readings of the model cover a prediction; empty if
/// they do. Readings cover up to their largest number of hosts, and the sizes between the smallest and the largest of
/// the model. A prediction far above what the links of the cluster file allow is always a reason. O(hosts of the
/// allocation).
pub(crate) fn outside_validated(
    cluster: &Cluster,
    model: &Model,
    a: &Allocation,
    size: Bytes,
    busbw_gb_per_s: f64,
) -> Vec<String> {
    let fabric = model.fabric().on(cluster);
    let above = crate::plausible::predicted_above_links(&fabric, a, model.collective(), busbw_gb_per_s);
    let above = above.map(|most| {
        format!("the links of the cluster file allow {most:.1} GB/s: were readings in Gbit/s, or are the file's rates too low")
    });
    let sizes = model.sizes();
    let between = sizes.first().is_some_and(|s| *s <= size) && sizes.last().is_some_and(|s| size <= *s);
    if between && model.hosts_measured_max().is_some_and(|most| a.host_count() <= most) {
        return above.into_iter().collect();
    }
    let validated = fabric::validated(cluster, a, model.collective(), size);
    above.into_iter().chain(validated.iter().map(ToString::to_string)).collect()
}

/// The note about an extrapolated prediction, as a sentence; none without reasons.
pub fn extrapolation_note(outside_validated: &[String]) -> Option<String> {
    let reasons = outside_validated.join("; ");
    (!reasons.is_empty()).then(|| format!("Note: the prediction is extrapolated: {reasons}."))
}

/// A committed job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CommittedJob {
    /// Its id.
    pub job: String,
    /// True if the same request committed it before; this is that earlier answer.
    pub repeated: bool,
    /// Number of decisions: more than one if other clients changed the state meanwhile.
    pub attempts: u32,
}

/// An allocation with its prediction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ScoredAnswer {
    /// GPUs per host, largest first.
    pub split: String,
    /// The GPUs.
    pub gpus: GpuList,
    /// Bus bandwidth, GB/s.
    pub predicted_busbw_gb_per_s: f64,
    /// Its standard deviation, GB/s.
    pub std_gb_per_s: f64,
    /// The figure that the choice is by where it is not the bandwidth alone: with running jobs the bandwidth among them, less their weighted
    /// losses; with groups the bandwidth of the groups. GB/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score_gb_per_s: Option<f64>,
}

/// The groups of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct GroupAnswer {
    /// `tensor`, `expert`, `data` or `pipeline`.
    pub kind: String,
    /// Ranks of one group.
    pub size: usize,
    /// Number of groups.
    pub count: usize,
    /// Share of the job's traffic, relative to the other kinds.
    pub weight: f64,
    /// Bus bandwidth of the slowest group while all groups of the kind communicate at once, GB/s; 0 for groups of one rank.
    pub busbw_gb_per_s: f64,
}

fn group(g: &place::GroupBandwidth) -> GroupAnswer {
    GroupAnswer {
        kind: g.group.kind.to_string(),
        size: g.group.size,
        count: g.ranks.len(),
        weight: g.group.weight,
        busbw_gb_per_s: round(g.busbw_gb_per_s),
    }
}

/// The cost of a choice, and its gain over the simple rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PriceAnswer {
    /// True if the choice is the rule's own, or costs the same.
    pub keeps_rule: bool,
    /// Bandwidth gained over the rule's choice, next to the running jobs, GB/s.
    pub gained_busbw_gb_per_s: f64,
    /// The gain that was required to leave the rule's choice, GB/s.
    pub slack_gb_per_s: f64,
    /// Cost of the choice.
    pub cost: AllocationCost,
    /// Cost of the rule's choice.
    pub rule_cost: Option<AllocationCost>,
}

/// Cost of an allocation for the cluster, other than bandwidth.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct AllocationCost {
    /// Number of hosts.
    pub hosts: usize,
    /// Number of hosts that were entirely free and are now partly used.
    pub hosts_broken: usize,
    /// Switches spanned, by tier, nearest to the hosts first.
    pub switches: Vec<SwitchesSpanned>,
}

/// Switches of one tier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SwitchesSpanned {
    /// Name of the tier.
    pub tier: String,
    /// Number of switches.
    pub count: usize,
}

fn cost(cluster: &Cluster, c: &place::Cost) -> AllocationCost {
    let tiers = cluster.network.tiers.iter().zip(&c.switches);
    AllocationCost {
        hosts: c.hosts,
        hosts_broken: c.hosts_broken,
        switches: tiers.map(|(t, n)| SwitchesSpanned { tier: t.name.clone(), count: *n }).collect(),
    }
}

fn price(cluster: &Cluster, p: &place::Price) -> PriceAnswer {
    PriceAnswer {
        keeps_rule: p.keeps_rule,
        gained_busbw_gb_per_s: round(p.gained_gb_per_s),
        slack_gb_per_s: round(p.slack_gb_per_s),
        cost: cost(cluster, &p.cost),
        rule_cost: p.rule_cost.as_ref().map(|c| cost(cluster, c)),
    }
}

/// The effect of a choice on the new job and the running jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ContentionAnswer {
    /// The contention model: how jobs share links.
    pub kind: String,
    /// Weight of the bandwidth that running jobs lose.
    pub loss_weight: f64,
    /// Bus bandwidth of the new job without other jobs, GB/s.
    pub alone_busbw_gb_per_s: f64,
    /// Bus bandwidth of the new job next to the running jobs, GB/s.
    pub shared_busbw_gb_per_s: f64,
    /// Every running job.
    pub jobs: Vec<NeighbourEffect>,
}

/// The bandwidth of a running job before and after the placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct NeighbourEffect {
    /// Its id.
    pub id: String,
    /// Bus bandwidth now, GB/s.
    pub before_busbw_gb_per_s: f64,
    /// Bus bandwidth next to the new job, GB/s.
    pub after_busbw_gb_per_s: f64,
}

/// The bottleneck of a choice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum BottleneckAnswer {
    /// The links inside a host.
    Host {
        /// The host.
        host: String,
    },
    /// NICs of a host.
    Nic {
        /// The host.
        host: String,
        /// The NICs' names.
        nics: Vec<String>,
        /// Their total line rate, GB/s.
        gb_per_s: f64,
    },
    /// A link between hosts.
    Link {
        /// Its name.
        name: String,
    },
    /// The uplinks of the switches of a tier.
    Tier {
        /// The tier's name.
        name: String,
    },
    /// The message is too small to fill a link.
    Latency,
    /// One GPU: no collective traffic.
    None,
}

impl BottleneckAnswer {
    /// The bottleneck as a sentence; none for one GPU.
    pub fn text(&self) -> Option<String> {
        Some(match self {
            BottleneckAnswer::Host { host } => format!("Limited by the links inside host {host}."),
            BottleneckAnswer::Nic { host, nics, gb_per_s } => {
                let nics = match nics.len() {
                    1 => format!("NIC {}", nics[0]),
                    2..=4 => format!("NICs {}", nics.join(", ")),
                    n => format!("{n} NICs"),
                };
                format!("Limited by {nics} of host {host} ({} line rate).", Bandwidth::from_gb_per_s(*gb_per_s))
            }
            BottleneckAnswer::Link { name } if name.starts_with("NCCL") || name.starts_with("NVLinks") => {
                format!("Limited by {name}.") // no link of the cluster file
            }
            BottleneckAnswer::Link { name } => format!("Limited by the link {name}."),
            BottleneckAnswer::Tier { name } => format!("Limited by the uplinks of the switches of tier {name}."),
            BottleneckAnswer::Latency => "Limited by latency: the message is too small to fill a link.".to_owned(),
            BottleneckAnswer::None => return None,
        })
    }
}

/// The suspects that moved a choice, with the first choice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct AvoidedSuspects {
    /// Suspects of the first choice, most probable first.
    pub suspects: Vec<SuspectTouched>,
    /// The GPUs of the first choice.
    pub first_choice: GpuList,
    /// Predicted bandwidth of the first choice if no suspect is slow, GB/s.
    pub predicted_gb_per_s: f64,
    /// Expected bandwidth of the first choice, weighted by the probabilities of its suspects, GB/s.
    pub expected_with_suspects_gb_per_s: f64,
    /// Expected bandwidth of the final choice, weighted in the same way, GB/s.
    pub expected_instead_gb_per_s: f64,
}

/// A suspected component of an allocation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SuspectTouched {
    /// The component as text: `NIC mlx5_3 of n1`.
    pub component: String,
    /// Its host.
    pub host: String,
    /// Estimated share of its full rate, 0 to 1.
    pub factor: f64,
    /// Probability of the defect in this component, 0 to 1.
    pub probability: f64,
}

/// Rounds to three digits after the point, values below 1 to four digits: predictions are not more precise, and JSON reads back as the same
/// value.
pub(crate) fn round(v: f64) -> f64 {
    let small = v != 0.0 && v.abs() < 0.1;
    let digits = if small { (-v.abs().log10().floor()).min(15.0) as i32 + 3 } else { 3 };
    let rounded = (v * 10f64.powi(digits)).round() / 10f64.powi(digits);
    if rounded.is_finite() { rounded } else { v } // a demand near the largest number: JSON has no infinity
}

pub(crate) fn scored(cluster: &Cluster, s: &Scored, by_score: bool) -> ScoredAnswer {
    ScoredAnswer {
        score_gb_per_s: by_score.then(|| round(s.score_gb_per_s)),
        split: s.allocation.split(),
        gpus: GpuList::new(cluster, &s.allocation),
        predicted_busbw_gb_per_s: round(s.prediction.busbw_gb_per_s),
        std_gb_per_s: round(s.prediction.std_gb_per_s),
    }
}

pub(crate) fn bottleneck(cluster: &Cluster, b: &Bottleneck) -> BottleneckAnswer {
    match b {
        Bottleneck::Host { host } => BottleneckAnswer::Host { host: cluster.host(*host).name.clone() },
        Bottleneck::Nic { host, nics, gb_per_s } => BottleneckAnswer::Nic {
            host: cluster.host(*host).name.clone(),
            nics: nics.clone(),
            gb_per_s: round(*gb_per_s),
        },
        Bottleneck::Network { name } if cluster.tiers().iter().any(|t| t.name == *name) => {
            BottleneckAnswer::Tier { name: name.clone() }
        }
        Bottleneck::Network { name } => BottleneckAnswer::Link { name: name.clone() },
        Bottleneck::Latency => BottleneckAnswer::Latency,
        Bottleneck::None => BottleneckAnswer::None,
    }
}

fn contention(r: &Request, a: &Answer) -> Option<ContentionAnswer> {
    let jobs = r.jobs.iter().zip(&a.effect.jobs_gb_per_s).map(|(j, (before, after))| NeighbourEffect {
        id: j.id.clone(),
        before_busbw_gb_per_s: round(*before),
        after_busbw_gb_per_s: round(*after),
    });
    (!r.jobs.is_empty()).then(|| ContentionAnswer {
        kind: r.contention.name().into(),
        loss_weight: r.loss_weight,
        alone_busbw_gb_per_s: round(a.effect.alone_gb_per_s),
        shared_busbw_gb_per_s: round(a.effect.shared_gb_per_s),
        jobs: jobs.collect(),
    })
}

impl PlaceAnswer {
    /// Converts the result of a search into an answer. O(GPUs of all candidates).
    pub(crate) fn new(cluster: &Cluster, model: &Model, request: &Request, a: &Answer) -> PlaceAnswer {
        let all: Vec<Scored> = std::iter::once(&a.choice).chain(&a.runner_ups).cloned().collect();
        let probes = place::worth_measuring(&all, &[], PROBES, model.repeat_noise());
        let (jobs, groups) = (!request.jobs.is_empty(), !request.groups.is_empty());
        let scored_as = |s: &Scored, by_score| scored(cluster, s, by_score);
        let scored = |s: &Scored| scored_as(s, jobs || groups);
        let choice = scored(&a.choice);
        let found = found_switches(cluster, model);
        PlaceAnswer {
            score_gb_per_s: choice.score_gb_per_s,
            gpus: choice.gpus,
            predicted_busbw_gb_per_s: choice.predicted_busbw_gb_per_s,
            std_gb_per_s: choice.std_gb_per_s,
            split: choice.split,
            search: a.search.into(),
            pods: a.pods.iter().map(|p| GpuList::new(cluster, &Allocation::new([*p]))).collect(),
            rank_order: GpuList::ordered(cluster, &a.rank_order),
            groups: a.groups.iter().map(group).collect(),
            contention: contention(request, a),
            model: model.kind().into(),
            collective: model.collective(),
            size_bytes: request.size.0,
            evaluations: a.evaluations,
            bottleneck: bottleneck(cluster, &a.bottleneck),
            packed: a.packed.as_ref().map(|p| scored_as(p, jobs && !groups)), // searches do not judge its groups,
            rule: a.rule.as_ref().map(scored),
            price: price(cluster, &a.price),
            equal_counts: a.equal_counts.as_ref().map(scored),
            uneven_counts: a.uneven_counts.as_ref().map(scored),
            beyond_level: a.beyond_level.as_ref().map(scored),
            given_way: a.given_way.as_ref().map(scored),
            worth_measuring: probes.into_iter().map(|i| GpuList::new(cluster, &all[i].allocation)).collect(),
            runner_ups: a.runner_ups.iter().map(scored).collect(),
            avoided: None,
            suspects_touched: Vec::new(),
            committed: None,
            network_changes: Vec::new(),
            outside_validated: outside_validated(
                cluster,
                model,
                &a.choice.allocation,
                request.size,
                a.choice.prediction.busbw_gb_per_s,
            ),
            found_switches: found.as_ref().map(|f| f.0.clone()),
            found_switches_yaml: found.map(|f| f.1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_names_the_tier_whose_uplinks_it_is_and_one_nic_or_several() {
        let mut c = topology::catalog::cluster("h100").unwrap();
        c.network.tiers = vec![topology::Tier::regular("leaf", 2, 4.0)];
        let said = |b| bottleneck(&c, &b).text().unwrap();
        assert_eq!(
            said(Bottleneck::Network { name: "leaf".into() }),
            "Limited by the uplinks of the switches of tier leaf."
        );
        assert_eq!(said(Bottleneck::Network { name: "n0-n1".into() }), "Limited by the link n0-n1.");
        let nics = |n: usize| {
            let nics = (0..n).map(|i| format!("mlx5_{i}")).collect();
            said(Bottleneck::Nic { host: topology::HostId(0), nics, gb_per_s: 50.0 * n as f64 })
        };
        assert!(nics(1).starts_with("Limited by NIC mlx5_0 of"), "{}", nics(1));
        assert!(nics(2).starts_with("Limited by NICs mlx5_0, mlx5_1 of"), "{}", nics(2));
        assert!(nics(8).starts_with("Limited by 8 NICs of"), "{}", nics(8));
    }
}
