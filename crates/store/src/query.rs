//! [`Query`]: which measurements are wanted.

use crate::measurement::{Quality, Source};
use topology::{Bytes, Collective, HostId};

/// On which hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// Anywhere.
    #[default]
    Any,
    /// Inside one host, whichever.
    OneHost,
    /// Inside this host.
    Host(HostId),
    /// Over two hosts or more.
    SeveralHosts,
}

/// How many of a host's readings, the newest ones by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewestOfHost {
    /// Of jobs on this host alone.
    pub one_host: usize,
    /// Of jobs over several hosts.
    pub several_hosts: usize,
}

/// Which measurements; a field left at its default does not restrict.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Query {
    /// Only this collective.
    pub collective: Option<Collective>,
    /// Only this size.
    pub size: Option<Bytes>,
    /// Only this source.
    pub source: Option<Source>,
    /// Only this quality; none = all but [`Quality::Rejected`].
    pub quality: Option<Quality>,
    /// With rejected readings as well (when `quality` is none).
    pub with_rejected: bool,
    /// With withdrawn readings as well.
    pub with_withdrawn: bool,
    /// Only here.
    pub place: Place,
    /// Only readings of which at least one GPU is on one of these hosts (an index answers it); empty: of any.
    pub touching: Vec<HostId>,
    /// Only runs whose id starts so.
    pub run_prefix: Option<String>,
    /// Only of this job.
    pub job: Option<String>,
    /// Only the reading of this number.
    pub id: Option<i64>,
    /// Only readings stored after the one of this number: what is new since the last look.
    pub after: Option<i64>,
    /// Only readings up to the one of this number.
    pub until: Option<i64>,
    /// Only readings that are among the newest of one of their hosts at least (an index answers it, whatever the store holds). Rejected and
    /// withdrawn readings count among a host's newest.
    pub newest_of_each_host: Option<NewestOfHost>,
    /// Only so many of these, the newest ones.
    pub newest: Option<usize>,
    /// Only so many of these, the oldest ones (without `newest`).
    pub oldest: Option<usize>,
}

impl Query {
    /// Everything that may be used to fit: all but rejected and withdrawn readings.
    pub fn usable() -> Self {
        Query::default()
    }
    /// Everything that was not withdrawn, rejected readings too.
    pub fn all() -> Self {
        Query { with_rejected: true, ..Query::default() }
    }
    /// Of this collective only.
    pub fn collective(mut self, collective: Collective) -> Self {
        self.collective = Some(collective);
        self
    }
    /// Of this size only.
    pub fn size(mut self, size: Bytes) -> Self {
        self.size = Some(size);
        self
    }
    /// In this place only.
    pub fn place(mut self, place: Place) -> Self {
        self.place = place;
        self
    }
    /// Touching these hosts only.
    pub fn touching(mut self, hosts: impl IntoIterator<Item = HostId>) -> Self {
        self.touching = hosts.into_iter().collect();
        self
    }
    /// Only the newest so many.
    pub fn newest(mut self, count: usize) -> Self {
        self.newest = Some(count);
        self
    }
}
