//! Who takes part: every rank of a communicator announces itself; when all have, they know one another and who leads.

use wire::{Malformed, Reader, Writer};

/// Most ranks of a communicator that agree.
pub const RANKS_MAX: usize = 4096;
/// Most members of one process in one communicator.
pub const LOCAL_MAX: u32 = 64;

/// A process, by a number that no other process of the job has.
pub type ProcessId = u64;

/// "This rank of this communicator is here."
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Announcement {
    /// NCCL's identifier of the communicator, the same on all its ranks.
    pub comm: u64,
    /// The rank, or -1 where NCCL does not say.
    pub rank: i32,
    /// How many ranks there are.
    pub size: u32,
    /// Hash over the host's identity.
    pub host: u64,
    /// The process.
    pub process: ProcessId,
    /// Counts the process's members of this communicator.
    pub ordinal: u32,
    /// Hash over all that must be the same on every rank: mode, policy, profile, version.
    pub settings: u64,
}

impl Announcement {
    /// As bytes.
    pub fn write(&self, w: &mut Writer) {
        w.u64(self.comm)
            .i32(self.rank)
            .u32(self.size)
            .u64(self.host)
            .u64(self.process)
            .u32(self.ordinal)
            .u64(self.settings);
    }

    /// From bytes.
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
        if a.size == 0
            || a.size as usize > RANKS_MAX
            || a.ordinal >= LOCAL_MAX
            || a.rank >= a.size as i32
            || a.rank < -1
        {
            return Err(Malformed("an announcement that cannot be"));
        }
        Ok(a)
    }
}

/// The place of one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Its rank, or -1.
    pub rank: i32,
    /// Its process.
    pub process: ProcessId,
    /// Its number in that process.
    pub ordinal: u32,
}

/// Everybody, in one order that all members compute alike; the first leads.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Roster {
    /// The communicator.
    pub comm: u64,
    /// By rank, or by process where ranks are not known.
    pub places: Vec<Place>,
}

/// Why there will be no roster: the communicator stays at AUTO for good.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Disagreement {
    /// Ranks were started with different settings (mode, policy, profile or version of the plugin).
    Settings,
    /// Ranks do not say the same number of ranks, or more of them announced than there are.
    Size,
    /// One rank is there twice, or some know their rank and others do not.
    Ranks,
}

impl std::fmt::Display for Disagreement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Disagreement::Settings => {
                "ranks have different settings; give every rank the same LINKWISE_* variables, file and plugin"
            }
            Disagreement::Size => {
                "ranks announced different numbers of ranks; is the place of meeting that of another job?"
            }
            Disagreement::Ranks => "a rank announced itself twice; is the place of meeting that of another job?",
        })
    }
}

/// `None` while somebody is missing; then everybody, or why not. A function of the set of announcements: who computes it finds the same.
pub fn assemble(all: &[Announcement]) -> Option<Result<Roster, Disagreement>> {
    let first = all.first()?;
    if all.iter().any(|a| a.size != first.size) || all.len() > first.size as usize {
        return Some(Err(Disagreement::Size));
    }
    if all.len() < first.size as usize {
        return None;
    }
    if all.iter().any(|a| a.settings != first.settings) {
        return Some(Err(Disagreement::Settings));
    }
    let mut places: Vec<Place> =
        all.iter().map(|a| Place { rank: a.rank, process: a.process, ordinal: a.ordinal }).collect();
    places.sort();
    let known = places.iter().filter(|p| p.rank >= 0).count();
    let twice = places.windows(2).any(|w| matches!(w, [a, b] if (a.rank >= 0 && a.rank == b.rank) || a == b));
    if twice || (known != 0 && known != places.len()) {
        return Some(Err(Disagreement::Ranks));
    }
    Some(Ok(Roster { comm: first.comm, places }))
}
