//! Converts the parts of an allocation to the inputs of a network: one token per host.

use super::shape::{BANDPILOT, Embedding, NetworkShape};
use super::token_network::TokenSets;
use predict::HostShare;
use serde::{Deserialize, Serialize};

/// The networks of the papers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flavour {
    /// BandPilot: intra bandwidth and GPU count of every host; six layers of width 32; the total count enters the head.
    Transformer,
    /// LiteGD: intra bandwidth and the GPU mask of every host; three layers. The paper gives no width, only 642 KB in
    /// all. Width 64 with a feed-forward part of 256 has that size.
    Litegd,
    /// The ablation of BandPilot's Fig. 9: raw GPU ids, no measured input. As in the published code, the ids of a host
    /// are the bits of its mask, one token per host. The rest is BandPilot's network.
    Naive,
}

impl Flavour {
    /// The shape of the network for hosts of up to `bits` GPUs.
    pub fn shape(self, bits: usize) -> NetworkShape {
        match self {
            Flavour::Transformer => BANDPILOT,
            Flavour::Litegd => NetworkShape {
                embedding: Embedding::Flat { features: 1 + bits },
                width: 64,
                layers: 3,
                feed_forward: 256,
                ..BANDPILOT
            },
            Flavour::Naive => NetworkShape { embedding: Embedding::Flat { features: bits }, total: false, ..BANDPILOT },
        }
    }
}

/// Mean and deviation that scale a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scale {
    /// Mean.
    pub mean: f64,
    /// Deviation, positive.
    pub sd: f64,
}

impl Scale {
    /// The scale of these values; the deviation is 1 if they do not vary.
    pub fn of(values: impl Iterator<Item = f64> + Clone) -> Scale {
        let n = values.clone().count().max(1) as f64;
        let mean = values.clone().sum::<f64>() / n;
        let sd = (values.map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt();
        Scale { mean, sd: if sd > 1e-9 { sd } else { 1.0 } }
    }
    /// Scales a value.
    pub fn down(&self, v: f64) -> f64 {
        (v - self.mean) / self.sd
    }
    /// Reverses the scaling.
    pub fn up(&self, v: f64) -> f64 {
        v * self.sd + self.mean
    }
    /// True if mean and deviation are usable.
    pub fn fine(&self) -> bool {
        self.mean.is_finite() && self.mean.abs() < 1e9 && self.sd.is_finite() && (1e-9..1e9).contains(&self.sd)
    }
}

/// Converts parts to tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tokenizer {
    /// The network that reads the tokens.
    pub flavour: Flavour,
    /// Number of GPUs of the largest host type.
    pub bits: usize,
    /// True if inputs are logarithms of bandwidths.
    pub logarithm: bool,
    /// Scale of intra bandwidths.
    pub intra: Scale,
    /// Scale of counts.
    pub count: Scale,
    /// Scale of total counts.
    pub total: Scale,
    /// By host type: the input for a single GPU, which needs no link inside its host. It is the best bandwidth of the
    /// type.
    pub alone_gb_per_s: Vec<f64>,
}

impl Tokenizer {
    /// An encoder whose scales come from these allocations.
    pub fn new(
        flavour: Flavour,
        bits: usize,
        logarithm: bool,
        alone_gb_per_s: Vec<f64>,
        seen: &[Vec<HostShare>],
    ) -> Tokenizer {
        let one = Scale { mean: 0.0, sd: 1.0 };
        let mut r = Tokenizer { flavour, bits, logarithm, intra: one, count: one, total: one, alone_gb_per_s };
        let parts = || seen.iter().flatten();
        r.intra = Scale::of(parts().map(|p| r.bandwidth(p)).collect::<Vec<_>>().into_iter());
        r.count = Scale::of(parts().map(|p| f64::from(p.count)));
        r.total = Scale::of(seen.iter().map(|s| total(s)));
        r
    }

    fn bandwidth(&self, p: &HostShare) -> f64 {
        let alone = self.alone_gb_per_s.get(p.host_type as usize).copied().unwrap_or(1.0);
        let v = p.intra_gb_per_s.min(alone).max(1e-3);
        if self.logarithm { v.ln() } else { v }
    }

    /// Appends one allocation; its tokens are in the cluster's order of hosts, for any order of `parts`.
    pub fn push(&self, parts: &[HostShare], sets: &mut TokenSets<f32>) {
        let mut order: Vec<&HostShare> = parts.iter().collect();
        order.sort_unstable_by_key(|p| p.host);
        for p in order {
            if self.flavour != Flavour::Naive {
                sets.tokens.push(self.intra.down(self.bandwidth(p)) as f32);
            }
            match self.flavour {
                Flavour::Transformer => sets.tokens.push(self.count.down(f64::from(p.count)) as f32),
                Flavour::Litegd | Flavour::Naive => {
                    sets.tokens.extend((0..self.bits).map(|g| (p.mask.0 >> g & 1) as f32));
                }
            }
            sets.positions.push(p.host.0);
        }
        sets.ends.push(sets.positions.len() as u32);
        sets.totals.push(self.total.down(total(parts)) as f32);
    }

    /// True if a network of this shape can use it.
    pub fn check(&self, shape: &NetworkShape, types: usize) -> Result<(), String> {
        let scales = [self.intra, self.count, self.total].iter().all(Scale::fine);
        let alone = self.alone_gb_per_s.len() == types
            && self.alone_gb_per_s.iter().all(|v| v.is_finite() && (0.0..=1e6).contains(v));
        if !(1..=topology::GPUS_PER_HOST_MAX).contains(&self.bits) || *shape != self.flavour.shape(self.bits) {
            return Err("the shape of its network is not that of its kind".into());
        }
        if scales && alone { Ok(()) } else { Err("a scale of its network is out of range".into()) }
    }
}

fn total(parts: &[HostShare]) -> f64 {
    parts.iter().map(|p| f64::from(p.count)).sum()
}
