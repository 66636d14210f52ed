//! Groups of ranks: the requirements of a job's parallelism on the order of ranks and on the GPUs.
//!
//! A job names its kinds of groups and their sizes; the product of the sizes is its number of GPUs. A rank is a number
//! in mixed radix, whose lowest digit belongs to the first kind named. The ranks of one group differ only in the digit
//! of the group's kind. So the groups of the first kind (usually tensor parallel) are consecutive ranks: they are
//! placed as pods, inside hosts where a host can hold them. Groups of later kinds join ranks at the same place in those
//! pods; these are GPUs of the same index on hosts that give the same GPUs.

use crate::objective::Objective;
use crate::request::{Refusal, Request};
use fabric::{Claim, Fabric};
use std::fmt;
use std::str::FromStr;
use topology::{Allocation, GpuId};

/// Maximum number of groups of one kind whose sharing is computed: the groups of the lowest ranks represent the others.
pub const GROUPS_SHARED_MAX: usize = 256;

/// The data that the ranks of a group exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GroupKind {
    /// Parts of one layer: all-reduce in every layer.
    Tensor,
    /// Experts of one layer.
    Expert,
    /// Copies of the model: all-reduce of gradients in every step.
    Data,
    /// Consecutive layers.
    Pipeline,
}

/// Every kind with its name.
const KINDS: [(GroupKind, &str); 4] = [
    (GroupKind::Tensor, "tensor"),
    (GroupKind::Expert, "expert"),
    (GroupKind::Data, "data"),
    (GroupKind::Pipeline, "pipeline"),
];

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(KINDS.iter().find(|k| k.0 == *self).map_or("", |k| k.1))
    }
}

impl FromStr for GroupKind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = KINDS.iter().find(|k| k.1 == text);
        found.map(|k| k.0).ok_or_else(|| {
            format!(
                "`{}` is no kind of group; there are tensor, expert, data, pipeline",
                text.chars().take(60).collect::<String>()
            )
        })
    }
}

/// One kind of groups of a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// The data that its ranks exchange.
    pub kind: GroupKind,
    /// Number of ranks per group.
    pub size: usize,
    /// Share of the job's traffic, relative to the other kinds.
    pub weight: f64,
}

/// The groups of one kind in an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupBandwidth {
    /// The kind.
    pub group: Group,
    /// The ranks of every group.
    pub ranks: Vec<Vec<usize>>,
    /// Bus bandwidth of the slowest group while all groups of the kind communicate at once, GB/s; 0 for groups of one
    /// rank.
    pub busbw_gb_per_s: f64,
}

/// The ranks of every group of the kind at index `which`, for kinds of these sizes. O(ranks).
pub fn ranks_of(sizes: &[usize], which: usize) -> Vec<Vec<usize>> {
    let below: usize = sizes[..which].iter().product();
    let size = sizes[which];
    let above: usize = sizes[which + 1..].iter().product();
    let group = |low: usize, high: usize| (0..size).map(move |d| low + below * (d + size * high)).collect();
    (0..above).flat_map(|high| (0..below).map(move |low| group(low, high))).collect()
}

impl Request {
    /// Checks the groups: the product of the sizes is the number of GPUs, no kind is repeated, weights are finite
    /// numbers.
    pub(crate) fn check_groups(&self) -> Result<(), Refusal> {
        if self.groups.is_empty() {
            return Ok(());
        }
        for (i, g) in self.groups.iter().enumerate() {
            let twice = self.groups[..i].iter().any(|o| o.kind == g.kind);
            if g.size == 0 || twice || !(g.weight >= 0.0 && g.weight.is_finite()) {
                let why = match g {
                    _ if twice => "is named twice".to_owned(),
                    Group { size: 0, .. } => "has groups of 0 ranks; leave it out".to_owned(),
                    _ => format!("has the weight {}; give a finite number of at least 0", g.weight),
                };
                return Err(Refusal::BadGroup { kind: g.kind.to_string(), why });
            }
        }
        let product = self.groups.iter().fold(1usize, |p, g| p.saturating_mul(g.size));
        if product != self.gpus {
            return Err(Refusal::GroupsProduct { product, gpus: self.gpus });
        }
        Ok(())
    }

    /// The groups of the first kind as pods, if a host can hold one and the request names no pods.
    pub(crate) fn pods_of_groups(&self) -> Option<Vec<usize>> {
        let first = self.groups.first().filter(|_| self.pods.is_empty())?;
        let largest = self.free.parts().iter().map(|p| p.1.count()).max().unwrap_or(0);
        (first.size > 1 && first.size <= largest).then(|| vec![first.size; self.gpus / first.size])
    }
}

/// The bandwidth of every kind of groups, for GPUs in rank order. O(ranks) predictions and one sharing of links per kind.
pub(crate) fn bandwidths(objective: &Objective, ranks: &[GpuId]) -> Vec<GroupBandwidth> {
    let groups = &objective.request.groups;
    let sizes: Vec<usize> = groups.iter().map(|g| g.size).collect();
    let (model, cluster, size) = (objective.model, objective.cluster, objective.request.size);
    let fabric = model.physics().map_or_else(|| Fabric::new(cluster), |t| t.on(cluster));
    let of = |(which, group): (usize, &Group)| {
        let members = ranks_of(&sizes, which);
        let claim = |m: &Vec<usize>| {
            let a = Allocation::from_gpus(m.iter().map(|r| ranks[*r]));
            let parts: Vec<_> = a.parts().iter().map(|&(h, mask)| objective.part(h, mask)).collect();
            let loads = fabric.loads(&a, model.collective(), size);
            Claim { loads, demand_gb_per_s: objective.means().one(&parts) }
        };
        let claims: Vec<Claim> = members.iter().take(GROUPS_SHARED_MAX).map(claim).collect();
        let rates = fabric.share(&claims.iter().collect::<Vec<_>>());
        let slowest = rates.into_iter().reduce(f64::min).unwrap_or(0.0);
        GroupBandwidth { group: *group, ranks: members, busbw_gb_per_s: if group.size > 1 { slowest } else { 0.0 } }
    };
    groups.iter().enumerate().map(of).collect()
}

/// The bandwidth of a job's traffic over all kinds, by their weights (a harmonic mean: times add up), GB/s; None without traffic.
pub(crate) fn weighted(found: &[GroupBandwidth]) -> Option<f64> {
    let heard = || found.iter().filter(|g| g.group.size > 1 && g.group.weight > 0.0);
    let time: f64 = heard().map(|g| g.group.weight / g.busbw_gb_per_s.max(1e-9)).sum();
    (time > 0.0).then(|| heard().map(|g| g.group.weight).sum::<f64>() / time)
}
