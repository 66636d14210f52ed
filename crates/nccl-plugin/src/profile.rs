//! A table of arms: one rule per line; the first one that matches applies.
//!
//! ```text
//! # collective  from    to       arm              where
//! AllReduce     64KiB   16MiB    TREE/LL128       ranks=8 nodes=1
//! AllGather     1MiB    max      RING/SIMPLE@16
//! ReduceScatter 64KiB   2MiB     RING/LL128       bytes=rank
//! ```
//!
//! Sizes are bytes as NCCL counts them (of all ranks for AllGather and ReduceScatter), from inclusive, to exclusive, powers of two: calls are
//! distinguished by the power of two nearest to their size ([`tune::bucket`]). With `bytes=rank`, allowed for those two collectives, sizes are one
//! rank's share: their best arm depends on it, so the rule carries over to other numbers of ranks.
//!
//! A line `# linkwise: nccl=2.28.9 ...` says where the table was found ([`crate::made_on`]): it is refused elsewhere.

use crate::made_on::{MARK, MadeOn};
use agreement::epoch::BUCKETS;
use agreement::{Slot, SlotPlan};
use tune::{Arm, Collective};

/// Limit on rules.
pub const RULES_MAX: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rule {
    collective: Collective,
    from: u8,
    to: u8,
    arm: Arm,
    ranks: Option<u32>,
    nodes: Option<u32>,
    /// Sizes are one rank's share.
    of_rank: bool,
}

impl Rule {
    /// The size bucket that the rule compares, for calls of a slot.
    fn bucket(&self, slot: Slot, ranks: u32) -> u8 {
        match self.of_rank {
            true => tune::bucket::bucket(tune::bucket::middle(slot.bucket) / u64::from(ranks.max(1))),
            false => slot.bucket,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    rules: Vec<Rule>,
    /// Where the table was found.
    pub made_on: MadeOn,
    /// Hash of the text. Ranks compare it before any of them uses the table.
    pub hash: u64,
}

impl Profile {
    /// Parses a table. An error has its line, counted from 1.
    pub fn parse(text: &str) -> Result<Self, (usize, String)> {
        let (mut rules, mut made_on) = (Vec::new(), MadeOn::default());
        for (i, line) in text.lines().enumerate() {
            if let Some(said) = line.trim().strip_prefix('#').and_then(|l| l.trim_start().strip_prefix(MARK)) {
                made_on = MadeOn::parse(said).map_err(|what| (i + 1, what))?;
                continue;
            }
            let line = line.split_once('#').map_or(line, |(l, _)| l).trim();
            if line.is_empty() {
                continue;
            }
            if rules.len() == RULES_MAX {
                return Err((i + 1, format!("more than {RULES_MAX} rules")));
            }
            rules.push(rule(line).map_err(|what| (i + 1, what))?);
        }
        Ok(Profile { rules, made_on, hash: wire::bytes::hash(text.as_bytes()) })
    }

    /// The arm of a slot in a communicator. O(rules).
    pub fn arm(&self, slot: Slot, ranks: u32, nodes: u32) -> Arm {
        let fits = |r: &&Rule| {
            r.collective == slot.collective
                && (r.from..r.to).contains(&r.bucket(slot, ranks))
                && r.ranks.is_none_or(|n| n == ranks)
                && r.nodes.is_none_or(|n| n == nodes)
        };
        self.rules.iter().find(fits).map_or(Arm::AUTO, |r| r.arm)
    }

    /// The plans of a communicator, without runs.
    pub fn plans(&self, ranks: u32, nodes: u32) -> Vec<SlotPlan> {
        let slots = Collective::TUNED
            .into_iter()
            .flat_map(|c| (0..BUCKETS as u8).map(move |bucket| Slot { collective: c, bucket }));
        slots
            .map(|slot| SlotPlan { slot, runs: Vec::new(), settled: self.arm(slot, ranks, nodes) })
            .filter(|p| !p.settled.is_auto())
            .collect()
    }
}

/// A collective that NCCL asks a tuner about.
pub fn tuned(word: &str) -> Result<Collective, String> {
    word.parse().ok().filter(|c: &Collective| c.is_tuned()).ok_or_else(|| {
        let all = Collective::TUNED.map(Collective::capitals).join(", ");
        format!("collective `{word}` is none of {all}")
    })
}

fn rule(line: &str) -> Result<Rule, String> {
    let mut words = line.split_whitespace();
    let mut word = |what: &str| {
        words.next().ok_or_else(|| {
            format!("`{line}` ends before the {what}; write COLLECTIVE FROM TO ARM [ranks=N] [nodes=N] [bytes=rank]")
        })
    };
    let collective = tuned(word("collective")?)?;
    let from = exponent(word("first size")?)?;
    let to = exponent(word("last size")?)?;
    let arm = word("arm")?.parse()?;
    if from >= to {
        return Err("the range of sizes is empty: FROM is inclusive, TO exclusive".into());
    }
    let mut rule = Rule { collective, from, to, arm, ranks: None, nodes: None, of_rank: false };
    for w in words {
        let n = |t: &str| {
            t.parse::<u32>().ok().filter(|n| *n > 0).ok_or_else(|| format!("`{w}`: a number of 1 or more was expected"))
        };
        match w.split_once('=') {
            Some(("ranks", t)) => rule.ranks = Some(n(t)?),
            Some(("nodes", t)) => rule.nodes = Some(n(t)?),
            Some(("bytes", "rank")) if matches!(collective, Collective::AllGather | Collective::ReduceScatter) => {
                rule.of_rank = true;
            }
            Some(("bytes", "rank")) => {
                return Err(format!("`{w}`: only AllGather and ReduceScatter have one share per rank"));
            }
            _ => return Err(format!("`{w}` is none of ranks=N, nodes=N, bytes=rank")),
        }
    }
    Ok(rule)
}

/// log2 of a size; `max` is above all sizes.
fn exponent(text: &str) -> Result<u8, String> {
    if text == "max" {
        return Ok(BUCKETS as u8);
    }
    let (number, factor) = match text {
        t if t.ends_with("GiB") => (t.trim_end_matches("GiB"), 1u64 << 30),
        t if t.ends_with("MiB") => (t.trim_end_matches("MiB"), 1 << 20),
        t if t.ends_with("KiB") => (t.trim_end_matches("KiB"), 1 << 10),
        t => (t.trim_end_matches('B'), 1),
    };
    let bytes = number.parse::<u64>().ok().and_then(|n| n.checked_mul(factor));
    match bytes {
        Some(0) => Ok(0),
        Some(b) if b.is_power_of_two() => Ok(b.trailing_zeros() as u8),
        Some(_) => Err(format!(
            "`{text}` is not a power of two; calls are distinguished by the power of two nearest to their size"
        )),
        None => Err(format!("`{text}` is not a size; write 64KiB, 16MiB, 1GiB or max")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tune::{Algorithm, Protocol};

    #[test]
    fn the_first_matching_rule_applies() {
        let p = Profile::parse(
            "# x\nAllReduce 1KiB 1MiB TREE/LL ranks=8 # small\nallreduce 0 max RING/SIMPLE@4\nALL_GATHER 1MiB max AUTO\n",
        )
        .unwrap();
        let slot = |bytes| Slot::of(Collective::AllReduce, bytes);
        assert_eq!(p.arm(slot(2048), 8, 1), Arm::new(Algorithm::Tree, Protocol::Ll));
        let ring = Arm { channels: Some(4), ..Arm::new(Algorithm::Ring, Protocol::Simple) };
        assert_eq!((p.arm(slot(2048), 4, 1), p.arm(slot(1 << 20), 8, 1)), (ring, ring));
        assert_eq!(p.arm(Slot::of(Collective::Reduce, 2048), 8, 1), Arm::AUTO);
        assert!(p.plans(8, 1).iter().all(|k| k.slot.collective == Collective::AllReduce));
        assert_eq!(p.plans(8, 1).len(), BUCKETS);
    }

    #[test]
    fn a_rule_for_a_ranks_share_applies_to_any_number_of_ranks() {
        let p = Profile::parse("AllGather 64KiB 256KiB RING/LL bytes=rank\n").unwrap();
        let ring = Arm::new(Algorithm::Ring, Protocol::Ll);
        for ranks in [1u32, 8, 12, 512] {
            let arm = |share: u64| p.arm(Slot::of(Collective::AllGather, share * u64::from(ranks)), ranks, 1);
            assert_eq!(
                [32 << 10, 64 << 10, 128 << 10, 256 << 10].map(arm),
                [Arm::AUTO, ring, ring, Arm::AUTO],
                "{ranks}"
            );
        }
        assert!(p.arm(Slot::of(Collective::AllGather, u64::MAX), 3, 1).is_auto());
    }

    #[test]
    fn a_table_says_where_it_was_found_and_older_tables_say_nothing() {
        let p = Profile::parse("# a table\n#linkwise: nccl=2.28.9 hosts=4\nAllReduce 1KiB 1MiB TREE/LL\n").unwrap();
        assert_eq!((p.made_on.nccl.as_deref(), p.made_on.hosts), (Some("2.28.9"), Some(4)));
        assert_eq!(Profile::parse("# found by linkwise: it was fast\n").unwrap().made_on, MadeOn::default());
    }

    #[test]
    fn an_error_has_its_line() {
        for (text, line, what) in [
            ("\n# linkwise: ncll=2.28.9\n", 2, "is none of nccl="),
            ("\nAllReduce 1KiB 2KiB FAST", 2, "is not an arm"),
            ("AllReduce 1KB 2KiB AUTO", 1, "is not a size"),
            ("AllReduce 1000 2KiB AUTO", 1, "power of two"),
            ("AllReduce 2KiB 2KiB AUTO", 1, "range of sizes is empty"),
            ("AllReduce 1KiB", 1, "ends before"),
            ("Everything 1KiB 2KiB AUTO", 1, "collective"),
            ("AllReduce 1KiB 2KiB AUTO ranks=many", 1, "a number"),
            ("AllReduce 1KiB 2KiB AUTO fast", 1, "none of ranks=N"),
            ("AllReduce 1KiB 2KiB AUTO bytes=rank", 1, "only AllGather and ReduceScatter"),
        ] {
            let (at, said) = Profile::parse(text).unwrap_err();
            assert!(at == line && said.contains(what), "{text:?}: {at}: {said}");
        }
    }
}
