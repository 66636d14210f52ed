//! [`Query`]: a selection of measurements.

use crate::measurement::{Quality, Source};
use topology::{Bytes, Collective, HostId};

/// The hosts of a selection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// Any hosts.
    #[default]
    Any,
    /// Inside any one host.
    OneHost,
    /// Inside this host.
    Host(HostId),
    /// Across two hosts or more.
    SeveralHosts,
}

/// Numbers of readings to take per host, the newest by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewestOfHost {
    /// Readings on this host alone.
    pub one_host: usize,
    /// Readings across several hosts.
    pub several_hosts: usize,
}

/// A selection of measurements; a field with its default value does not restrict it.
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
    /// Include rejected readings (when `quality` is none).
    pub with_rejected: bool,
    /// Include withdrawn readings.
    pub with_withdrawn: bool,
    /// Only in this place.
    pub place: Place,
    /// Only readings with at least one GPU on one of these hosts (uses an index); empty: any host.
    pub touching: Vec<HostId>,
    /// Only runs whose id has this prefix.
    pub run_prefix: Option<String>,
    /// Only readings of this job.
    pub job: Option<String>,
    /// Only the reading with this number.
    pub id: Option<i64>,
    /// Only readings stored after this number.
    pub after: Option<i64>,
    /// Only readings up to this number.
    pub until: Option<i64>,
    /// Only readings that are among the newest of at least one of their hosts (uses an index; the cost does not depend on the size of the
    /// store). Rejected and withdrawn readings count among a host's newest.
    pub newest_of_each_host: Option<NewestOfHost>,
    /// Maximum number of readings to return, the newest ones.
    pub newest: Option<usize>,
    /// Maximum number of readings to return, the oldest ones (without `newest`).
    pub oldest: Option<usize>,
}

impl Query {
    /// All readings that a fit may use: neither rejected nor withdrawn.
    pub fn usable() -> Self {
        Query::default()
    }
    /// All readings that were not withdrawn, rejected ones included.
    pub fn all() -> Self {
        Query { with_rejected: true, ..Query::default() }
    }
    /// Restricts to this collective.
    pub fn collective(mut self, collective: Collective) -> Self {
        self.collective = Some(collective);
        self
    }
    /// Restricts to this size.
    pub fn size(mut self, size: Bytes) -> Self {
        self.size = Some(size);
        self
    }
    /// Restricts to this place.
    pub fn place(mut self, place: Place) -> Self {
        self.place = place;
        self
    }
    /// Restricts to readings that use one of these hosts.
    pub fn touching(mut self, hosts: impl IntoIterator<Item = HostId>) -> Self {
        self.touching = hosts.into_iter().collect();
        self
    }
    /// Restricts to the newest `n` readings.
    pub fn newest(mut self, count: usize) -> Self {
        self.newest = Some(count);
        self
    }
}
