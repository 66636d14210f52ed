//! Real Mixture-of-Experts routing: the token-to-expert files of deepseek-ai/ESFT.
//!
//! One line per sample: expert ids, separated by tabs, a fixed number per token; two tabs; their weights.

use super::too_large;
use crate::demand::{Demand, DemandError, RANKS_MAX};
use topology::ReadError;

const REMEDY: &str = "a routing file has one line per sample: expert ids separated by tabs, two tabs, as many weights";
/// Most experts of a layer.
pub const EXPERTS_MAX: u32 = 4096;
/// Most experts of one token.
pub const EXPERTS_PER_TOKEN_MAX: usize = 64;

/// Which experts each token goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routing {
    /// Experts of one layer.
    pub experts: u32,
    /// Experts of one token.
    pub per_token: usize,
    /// Expert ids, token after token.
    pub ids: Vec<u16>,
}

/// How tokens are laid out over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// Ranks, each with an equal part of the experts, in order; and an equal part of the tokens.
    pub ranks: usize,
    /// Bytes of one token's activation.
    pub bytes_per_token: u64,
    /// Use only the first so many tokens, repeated if there are fewer.
    pub tokens: Option<usize>,
}

/// Reads it: `experts` in the layer, `per_token` for each token. O(text).
pub fn read(text: &str, file: &str, experts: u32, per_token: usize) -> Result<Routing, ReadError> {
    if let Some(e) = too_large(file, text.len()) {
        return Err(e);
    }
    if !(1..=EXPERTS_MAX).contains(&experts) || !(1..=EXPERTS_PER_TOKEN_MAX.min(experts as usize)).contains(&per_token)
    {
        let message =
            format!("{per_token} of {experts} experts per token; at most {EXPERTS_PER_TOKEN_MAX} of {EXPERTS_MAX}");
        return Err(ReadError::in_file(file, message, "name the layer's experts and how many a token goes to"));
    }
    let mut ids = Vec::new();
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        let start = offset;
        offset += line.len();
        let content = line.trim_end_matches(['\n', '\r']);
        if content.is_empty() {
            continue;
        }
        let list = content.split("\t\t").next().unwrap_or("");
        let before = ids.len();
        let mut at = start;
        for cell in list.split('\t') {
            match cell.trim().parse::<u32>() {
                Ok(id) if id < experts => ids.push(id as u16),
                _ => {
                    let message = format!("`{cell}` is not an expert of 0 to {}", experts - 1);
                    return Err(ReadError::at(file, text, at, cell.len().max(1), message, REMEDY));
                }
            }
            at += cell.len() + 1;
        }
        if !(ids.len() - before).is_multiple_of(per_token) {
            let message = format!("{} expert ids are not {per_token} for every token", ids.len() - before);
            return Err(ReadError::at(file, text, start, list.len(), message, REMEDY));
        }
    }
    if ids.is_empty() {
        return Err(ReadError::in_file(file, "no token in the file", REMEDY));
    }
    Ok(Routing { experts, per_token, ids })
}

impl Routing {
    /// How many tokens.
    pub fn tokens(&self) -> usize {
        self.ids.len() / self.per_token
    }

    /// Bytes of the dispatch: every token once to each rank that has one of its experts. O(tokens x experts of a token).
    pub fn demand(&self, d: &Dispatch) -> Result<Demand, DemandError> {
        if d.ranks == 0 || d.ranks > RANKS_MAX || d.ranks > self.experts as usize {
            return Err(DemandError::Ranks(d.ranks));
        }
        let mut demand = Demand::new(d.ranks)?;
        let count = d.tokens.unwrap_or(self.tokens());
        let mut hits = vec![0u64; d.ranks * d.ranks];
        let mut to = [0usize; EXPERTS_PER_TOKEN_MAX];
        for t in 0..count {
            let src = t * d.ranks / count;
            let at = t % self.tokens() * self.per_token;
            let mut n = 0;
            for &e in &self.ids[at..at + self.per_token] {
                let rank = usize::from(e) * d.ranks / self.experts as usize;
                if !to[..n].contains(&rank) {
                    to[n] = rank;
                    n += 1;
                }
            }
            to[..n].iter().for_each(|&dst| hits[src * d.ranks + dst] += 1);
        }
        for (p, &h) in hits.iter().enumerate() {
            let bytes = h.checked_mul(d.bytes_per_token).ok_or(DemandError::TooManyBytes)?;
            demand.set(p / d.ranks, p % d.ranks, bytes)?;
        }
        Ok(demand)
    }
}
