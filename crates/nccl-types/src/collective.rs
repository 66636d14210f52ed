//! Collectives, with the names in nccl-tests and in the measurement files.

use std::fmt;
use std::str::FromStr;

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Collective {
    /// Every rank gets the sum over ranks.
    AllReduce,
    /// Every rank gets the shares of all ranks.
    AllGather,
    /// Every rank gets one share of the sum over ranks.
    ReduceScatter,
    /// Every rank gets one rank's buffer.
    Broadcast,
    /// One rank gets the sum over ranks.
    Reduce,
    /// Every rank sends a different share to every rank.
    #[cfg_attr(feature = "serde", serde(rename = "alltoall"))]
    AllToAll,
    /// One rank sends to one rank.
    #[cfg_attr(feature = "serde", serde(rename = "sendrecv"))]
    SendRecv,
}

impl Collective {
    /// All collectives, in the order of the documentation.
    pub const ALL: [Collective; 7] = [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::AllToAll,
        Collective::SendRecv,
    ];

    /// The collectives that have algorithms and protocols and for which NCCL calls a tuner. The index is NCCL's number
    /// (`ncclFunc_t`).
    pub const TUNED: [Collective; 5] = [
        Collective::Broadcast,
        Collective::Reduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::AllReduce,
    ];

    /// NCCL's number (`ncclFunc_t`): 0 to 4 for [`Self::TUNED`], 5 for send/receive, 8 for all-to-all (a separate
    /// function since 2.28).
    pub const fn number(self) -> u8 {
        match self {
            Collective::Broadcast => 0,
            Collective::Reduce => 1,
            Collective::AllGather => 2,
            Collective::ReduceScatter => 3,
            Collective::AllReduce => 4,
            Collective::SendRecv => 5,
            Collective::AllToAll => 8,
        }
    }

    /// The collective with this NCCL number, if NCCL calls a tuner for it; `None` from 5 on.
    pub fn tuned_of_number(number: usize) -> Option<Self> {
        Self::TUNED.get(number).copied()
    }

    /// True for [`Self::TUNED`].
    pub const fn is_tuned(self) -> bool {
        self.number() < Self::TUNED.len() as u8
    }

    /// Ratio of busbw to algbw for `ranks` ranks, as nccl-tests defines it (PERFORMANCE.md of nccl-tests).
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let n = ranks.max(1) as f64;
        match self {
            Collective::AllReduce => 2.0 * (n - 1.0) / n,
            Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => (n - 1.0) / n,
            Collective::Broadcast | Collective::Reduce | Collective::SendRecv => 1.0,
        }
    }

    /// Bus bandwidth in GB/s (1e9 bytes) of a run over `size_bytes` (nccl-tests' size column: the whole buffer) in
    /// `seconds`.
    pub fn busbw_gb_per_s(self, ranks: usize, size_bytes: f64, seconds: f64) -> f64 {
        size_bytes / seconds * 1e-9 * self.bus_factor(ranks)
    }

    /// The name in files: `all_reduce`, `alltoall` and so on.
    pub const fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::AllGather => "all_gather",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::Broadcast => "broadcast",
            Collective::Reduce => "reduce",
            Collective::AllToAll => "alltoall",
            Collective::SendRecv => "sendrecv",
        }
    }

    /// The name in capitals without underscores, as policy tables and traces write it: `ALLREDUCE`.
    pub const fn capitals(self) -> &'static str {
        match self {
            Collective::AllReduce => "ALLREDUCE",
            Collective::AllGather => "ALLGATHER",
            Collective::ReduceScatter => "REDUCESCATTER",
            Collective::Broadcast => "BROADCAST",
            Collective::Reduce => "REDUCE",
            Collective::AllToAll => "ALLTOALL",
            Collective::SendRecv => "SENDRECV",
        }
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Collective {
    type Err = String;
    /// Accepts the spellings of nccl-tests, NCCL and the published files, in any case and with any separators.
    fn from_str(s: &str) -> Result<Self, String> {
        let key: String = s.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
        Ok(match key.as_str() {
            "allreduce" => Collective::AllReduce,
            "allgather" => Collective::AllGather,
            "reducescatter" => Collective::ReduceScatter,
            "broadcast" | "bcast" => Collective::Broadcast,
            "reduce" => Collective::Reduce,
            "alltoall" | "a2a" => Collective::AllToAll,
            "sendrecv" | "p2p" => Collective::SendRecv,
            _ => {
                return Err(format!(
                    "`{s}` is not a collective; known: {}",
                    Collective::ALL.map(Collective::name).join(", ")
                ));
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_capitals_have_no_underscores_and_read_back() {
        for c in Collective::ALL {
            assert_eq!(c.capitals(), c.name().replace('_', "").to_uppercase());
            assert_eq!((c.name().parse(), c.capitals().parse()), (Ok(c), Ok(c)));
        }
        assert!("all".parse::<Collective>().unwrap_err().contains("`all`"));
    }

    #[test]
    fn a_tuner_is_asked_about_nccls_first_five() {
        for (i, c) in Collective::TUNED.into_iter().enumerate() {
            assert_eq!((usize::from(c.number()), Collective::tuned_of_number(i), c.is_tuned()), (i, Some(c), true));
        }
        for c in Collective::ALL.into_iter().filter(|c| !Collective::TUNED.contains(c)) {
            assert!(!c.is_tuned() && Collective::tuned_of_number(c.number().into()).is_none(), "{c}");
        }
    }

    #[test]
    fn bus_bandwidth_equals_that_of_nccl_tests() {
        // 8 ranks, 1 GiB in 5 ms: algbw 214.7 GB/s, busbw 7/4 of it.
        let busbw = Collective::AllReduce.busbw_gb_per_s(8, (1u64 << 30) as f64, 5e-3);
        assert!((busbw - 375.8).abs() < 0.1, "{busbw}");
        assert_eq!(Collective::AllReduce.bus_factor(1), 0.0);
    }
}
