//! The collectives, under the names that nccl-tests and the measurement files use.

use crate::quantity::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    /// Sum over ranks, result everywhere.
    AllReduce,
    /// Every rank's share, everywhere.
    AllGather,
    /// Sum over ranks, one share each.
    ReduceScatter,
    /// One rank's buffer, everywhere.
    Broadcast,
    /// Sum over ranks, result on one.
    Reduce,
    /// A different share from every rank to every rank.
    #[serde(rename = "alltoall")]
    AllToAll,
    /// One rank to one rank.
    #[serde(rename = "sendrecv")]
    SendRecv,
}

impl Collective {
    /// All of them, in the order of the documentation.
    pub const ALL: [Collective; 7] = [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::AllToAll,
        Collective::SendRecv,
    ];

    /// busbw over algbw for `ranks` ranks, as nccl-tests defines it (PERFORMANCE.md of nccl-tests).
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let n = ranks.max(1) as f64;
        match self {
            Collective::AllReduce => 2.0 * (n - 1.0) / n,
            Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => (n - 1.0) / n,
            Collective::Broadcast | Collective::Reduce | Collective::SendRecv => 1.0,
        }
    }

    /// Bus bandwidth in GB/s of a run over `size` (nccl-tests' size column: the whole buffer) in `seconds`.
    pub fn busbw_gb_per_s(self, ranks: usize, size: Bytes, seconds: f64) -> f64 {
        size.as_f64() / seconds * 1e-9 * self.bus_factor(ranks)
    }

    /// The name in files: `all_reduce`, `alltoall` and so on.
    pub fn name(self) -> &'static str {
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
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Collective {
    type Err = String;
    /// Accepts the spellings of nccl-tests, NCCL and the published files, whatever the case and separators.
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
