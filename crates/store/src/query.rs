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
    /// Only here.
    pub place: Place,
    /// Only runs whose id starts so.
    pub run_prefix: Option<String>,
}

impl Query {
    /// Everything that may be used to fit: all but rejected readings.
    pub fn usable() -> Self {
        Query::default()
    }
    /// Everything, rejected readings too.
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
}
