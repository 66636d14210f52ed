//! The canary: the only communicators that may change arms, while all others stay at AUTO. A part of a job tries what the rest does not risk.
//!
//! `canary = ranks=8 processes=0-7` means communicators of 8 ranks whose ranks are all in the first eight processes. Ranks judge alone; a
//! communicator changes arms only if all its ranks agree that it is meant, since a rank at AUTO announces nothing.

/// Conditions that must all hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Canary {
    /// `ranks=N`: the communicator's size.
    ranks: Option<u32>,
    /// `comm=HASH`: NCCL's identifier, as in its log and in traces.
    comm: Option<u64>,
    /// `index=N`: among the process's communicators of two or more ranks, from 0, in the order in which they were made.
    index: Option<u32>,
    /// `processes=FIRST-LAST`: of the launcher, one replica for example.
    processes: Option<(u32, u32)>,
}

/// A communicator, as one rank sees it.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    pub ranks: u32,
    pub comm: Option<u64>,
    pub index: u32,
    pub process: Option<u32>,
}

impl Canary {
    pub fn includes(&self, c: &Candidate) -> bool {
        self.ranks.is_none_or(|n| n == c.ranks)
            && self.comm.is_none_or(|id| Some(id) == c.comm)
            && self.index.is_none_or(|n| n == c.index)
            && self.processes.is_none_or(|(first, last)| c.process.is_some_and(|p| (first..=last).contains(&p)))
    }

    /// Every rank of a communicator comes to the same result, also without messages.
    pub fn is_by_size_alone(&self) -> bool {
        *self == Canary { ranks: self.ranks, ..Canary::default() }
    }
}

impl std::str::FromStr for Canary {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is not a canary; write ranks=N, comm=HASH, index=N or processes=FIRST-LAST, or several of them"
            )
        };
        let number = |t: &str| t.parse::<u32>().map_err(|_| wrong());
        let mut canary = Canary::default();
        for word in text.split_whitespace() {
            match word.split_once('=').ok_or_else(wrong)? {
                ("ranks", n) => canary.ranks = Some(number(n)?),
                ("index", n) => canary.index = Some(number(n)?),
                ("comm", hash) => {
                    let hash = hash.strip_prefix("0x").unwrap_or(hash);
                    canary.comm = Some(u64::from_str_radix(hash, 16).map_err(|_| wrong())?);
                }
                ("processes", range) => {
                    let (first, last) = range.split_once('-').unwrap_or((range, range));
                    canary.processes = Some((number(first)?, number(last)?)).filter(|(a, b)| a <= b);
                    canary.processes.ok_or_else(wrong)?;
                }
                _ => return Err(wrong()),
            }
        }
        if canary == Canary::default() { Err(wrong()) } else { Ok(canary) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_conditions_must_hold() {
        let c = Candidate { ranks: 8, comm: Some(0xab), index: 1, process: Some(5) };
        for (text, included) in [
            ("ranks=8", true),
            ("ranks=4", false),
            ("comm=ab", true),
            ("comm=0xAC", false),
            ("index=1 ranks=8", true),
            ("index=0 ranks=8", false),
            ("processes=0-7", true),
            ("processes=5", true),
            ("processes=0-4", false),
        ] {
            assert_eq!(text.parse::<Canary>().unwrap().includes(&c), included, "{text}");
        }
        assert!(!"processes=0-7".parse::<Canary>().unwrap().includes(&Candidate { process: None, ..c }));
    }

    #[test]
    fn a_wrong_canary_is_an_error() {
        for text in ["", "8", "ranks=", "ranks=all", "comm=xyz", "processes=7-0", "processes=a", "rank=8"] {
            assert!(text.parse::<Canary>().is_err(), "{text}");
        }
    }
}
