//! Membership: every rank of a communicator announces itself; once all have, each rank computes the same roster and the same leader.

use wire::{Malformed, Reader, Writer};

/// Limit on ranks of a communicator that can agree.
pub const RANKS_MAX: usize = 4096;
/// Limit on members of one communicator in one process.
pub const MEMBERS_PER_PROCESS_MAX: u32 = 64;

/// A number that identifies a process within the job.
pub type ProcessId = u64;

/// The announcement of one rank of a communicator.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Announcement {
    /// NCCL's identifier of the communicator, the same on all its ranks.
    pub comm: u64,
    /// -1 if NCCL does not provide it.
    pub rank: i32,
    /// Ranks of the communicator.
    pub size: u32,
    /// Hash of the host's identity.
    pub host: u64,
    pub process: ProcessId,
    /// Index of this member among those that its process has in the communicator.
    pub ordinal: u32,
    /// Hash of everything that all ranks must share: mode, policy, profile, version.
    pub settings: u64,
}

impl Announcement {
    pub fn write(&self, w: &mut Writer) {
        w.u64(self.comm)
            .i32(self.rank)
            .u32(self.size)
            .u64(self.host)
            .u64(self.process)
            .u32(self.ordinal)
            .u64(self.settings);
    }

    pub fn read(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let a = Announcement {
            comm: r.u64()?,
            rank: r.i32()?,
            size: r.u32()?,
            host: r.u64()?,
            process: r.u64()?,
            ordinal: r.u32()?,
            settings: r.u64()?,
        };
        if a.size == 0 || a.ordinal >= MEMBERS_PER_PROCESS_MAX || i64::from(a.rank) >= i64::from(a.size) || a.rank < -1
        {
            return Err(Malformed("an announcement has impossible values"));
        }
        Ok(a)
    }
}

/// Identifies one member of a communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId {
    /// -1 if unknown.
    pub rank: i32,
    pub process: ProcessId,
    /// Index among the members that the process has in the communicator.
    pub ordinal: u32,
}

/// All members of a communicator, in an order that is the same on every member. The first member leads.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Roster {
    pub comm: u64,
    /// Ascending by rank, or by process if ranks are unknown.
    pub members: Vec<MemberId>,
}

/// Why a communicator has no roster and stays at AUTO.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Disagreement {
    /// Ranks have different settings (mode, policy, profile or plugin version). `differ`: the bits of [`Announcement::settings`] that are not the
    /// same on all ranks.
    Settings { differ: u64 },
    /// Ranks announced different sizes, or more ranks announced than the size.
    Size,
    /// A rank announced twice, or only some ranks know their number.
    Ranks,
    /// More than [`RANKS_MAX`] ranks.
    TooLarge,
}

impl std::fmt::Display for Disagreement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Disagreement::Settings { .. } => {
                "the ranks have different settings; give every rank the same LINKWISE_* variables, settings file and plugin"
            }
            Disagreement::Size => {
                "the ranks announced different communicator sizes; does another job use the same rendezvous?"
            }
            Disagreement::TooLarge => "it has more than 4096 ranks, the most that can agree",
            Disagreement::Ranks => "a rank announced itself twice; does another job use the same rendezvous?",
        })
    }
}

/// The roster, once all ranks have announced themselves, or the reason why there will be none. `None` while
/// announcements are missing. The result depends only on the set of announcements, so it is the same in all processes.
pub fn assemble(all: &[Announcement]) -> Option<Result<Roster, Disagreement>> {
    let first = all.first()?;
    if all.iter().any(|a| a.size != first.size) || all.len() > first.size as usize {
        return Some(Err(Disagreement::Size));
    }
    if all.len() < first.size as usize {
        return None;
    }
    let differ = all.iter().fold(0, |d, a| d | (a.settings ^ first.settings));
    if differ != 0 {
        return Some(Err(Disagreement::Settings { differ }));
    }
    let mut members: Vec<MemberId> =
        all.iter().map(|a| MemberId { rank: a.rank, process: a.process, ordinal: a.ordinal }).collect();
    members.sort();
    let known = members.iter().filter(|p| p.rank >= 0).count();
    let twice = members.windows(2).any(|w| matches!(w, [a, b] if (a.rank >= 0 && a.rank == b.rank) || a == b));
    if twice || (known != 0 && known != members.len()) {
        return Some(Err(Disagreement::Ranks));
    }
    Some(Ok(Roster { comm: first.comm, members }))
}
