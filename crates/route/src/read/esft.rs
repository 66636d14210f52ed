//! Reads recorded Mixture-of-Experts routing: the token-to-expert files of deepseek-ai/ESFT.
//!
//! One line per sample: expert ids separated by tabs, a fixed number per token; two tabs; the weights of the experts.

use super::size_error;
use crate::demand::{Demand, DemandError, RANKS_MAX};
use topology::ReadError;

const REMEDY: &str =
    "a routing file has one line per sample: expert ids separated by tabs, two tabs, and as many weights";
/// Maximum number of experts of a layer.
pub const EXPERTS_MAX: u32 = 4096;
/// Maximum number of experts of one token.
pub const EXPERTS_PER_TOKEN_MAX: usize = 64;

/// The experts of each token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertRouting {
    /// Number of experts of the layer.
    pub experts: u32,
    /// Number of experts of one token.
    pub per_token: usize,
    /// Expert ids, token after token.
    pub ids: Vec<u16>,
}

/// How tokens and experts spread over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DispatchLayout {
    /// Number of ranks. Each holds an equal, consecutive part of the experts and of the tokens.
    pub ranks: usize,
    /// Bytes of one token's activation.
    pub bytes_per_token: u64,
    /// Number of tokens of the batch: the file's first tokens, repeated if it has fewer. `None`: all tokens of the file.
    pub tokens: Option<usize>,
}

/// Reads the routing of a layer with `experts` experts, `per_token` of them per token. Errors give line and column. O(text).
pub fn read(text: &str, file: &str, experts: u32, per_token: usize) -> Result<ExpertRouting, ReadError> {
    if let Some(e) = size_error(file, text.len()) {
        return Err(e);
    }
    if !(1..=EXPERTS_MAX).contains(&experts) || !(1..=EXPERTS_PER_TOKEN_MAX.min(experts as usize)).contains(&per_token)
    {
        let message =
            format!("{per_token} of {experts} experts per token; at most {EXPERTS_PER_TOKEN_MAX} of {EXPERTS_MAX}");
        return Err(ReadError::in_file(file, message, "give the number of experts of the layer and of one token"));
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
            let message = format!("{} expert ids are not a multiple of {per_token} per token", ids.len() - before);
            return Err(ReadError::at(file, text, start, list.len(), message, REMEDY));
        }
    }
    if ids.is_empty() {
        return Err(ReadError::in_file(file, "the file has no token", REMEDY));
    }
    Ok(ExpertRouting { experts, per_token, ids })
}

impl ExpertRouting {
    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.ids.len() / self.per_token
    }

    /// Bytes of the dispatch: every token goes once to each rank that holds one of its experts. O(tokens x experts of a token).
    pub fn demand(&self, d: &DispatchLayout) -> Result<Demand, DemandError> {
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
