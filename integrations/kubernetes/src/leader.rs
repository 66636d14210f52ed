//! One writer: the lease, and what keeps a leader that lost it unnoticed from writing.
//!
//! A leader stops writing when two thirds of its lease are over since the begin of its last renewal, by its own monotonic clock. That is not enough: a
//! process can be stopped between this check and a write. Therefore:
//!
//! 1. Every write of a decision has the resourceVersion of the object that the decision has seen.
//! 2. A new leader reads all objects after it got the lease, and then touches every object that a decision of an earlier leader could write: claims
//!    of gated pods, claims with linkwise's entry, and the gated pods of the latter ([`crate::write::Writer::fence`]). A touch writes a value that no
//!    other has, so that the resourceVersion always changes, also for the same leader after a write without an answer. A late write of the earlier leader
//!    then either came before the touch, and the new leader has seen it, or it fails with a conflict. An object that cannot be touched holds up its own gang, and
//!    the GPUs of its earlier decision, and nothing else.
//!
//! An object that was made after the change of leaders cannot be known to a decision of the earlier one, because the decision reads before it checks
//! the lease.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Name of the lease.
pub const LEASE: &str = "linkwise-controller";

/// What the writers see of the leadership.
#[derive(Debug, Default)]
pub struct Leadership(Mutex<Option<(u64, Instant)>>);

impl Leadership {
    /// The term, if this process may write now.
    pub fn term(&self) -> Option<u64> {
        let held = *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        held.filter(|(_, until)| Instant::now() < *until).map(|(term, _)| term)
    }

    fn set(&self, to: Option<(u64, Instant)>) {
        *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = to;
    }

    /// A leadership that never ends, for tests of single parts.
    pub fn always(term: u64) -> Leadership {
        Leadership(Mutex::new(Some((term, Instant::now() + Duration::from_secs(1 << 30)))))
    }
}

/// A candidate for the lease.
pub struct Candidate {
    leases: Api<Lease>,
    identity: String,
    length: Duration,
    /// The lease as it was last seen changed, and when.
    seen: Option<(Option<LeaseSpec>, Instant)>,
}

impl Candidate {
    /// A candidate under a name that no other process has.
    pub fn new(client: Client, namespace: &str, identity: &str, length: Duration) -> Candidate {
        Candidate { leases: Api::namespaced(client, namespace), identity: identity.into(), length, seen: None }
    }

    /// Takes and renews the lease for ever.
    pub async fn run(mut self, leadership: &Leadership, failed: impl Fn(String)) {
        loop {
            let begin = Instant::now();
            let usable = self.length * 2 / 3;
            let held = match tokio::time::timeout(usable / 2, self.round()).await {
                Ok(Ok(Some(term))) => {
                    leadership.set(Some((term, begin + usable)));
                    true
                }
                Ok(Ok(None)) => {
                    leadership.set(None);
                    false
                }
                // A conflict is another candidate; it shows at the next round.
                Ok(Err(Error::Api(e))) if e.code == 409 => leadership.term().is_some(),
                Ok(Err(e)) => {
                    failed(format!("the lease: {e}"));
                    leadership.term().is_some()
                }
                Err(_) => {
                    failed("the lease: no answer in time".into());
                    leadership.term().is_some()
                }
            };
            tokio::time::sleep(if held { self.length / 5 } else { self.length / 6 }).await;
        }
    }

    /// One try: the term if the lease is held afterwards.
    async fn round(&mut self) -> Result<Option<u64>, Error> {
        let Some(mut lease) = self.leases.get_opt(LEASE).await? else {
            let metadata = ObjectMeta { name: Some(LEASE.into()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(self.spec(None)) };
            let made = self.leases.create(&PostParams::default(), &lease).await?;
            return Ok(Some(term(&made)));
        };
        let spec = lease.spec.clone();
        let holder = spec.as_ref().and_then(|s| s.holder_identity.clone()).unwrap_or_default();
        if self.seen.as_ref().is_none_or(|(seen, _)| *seen != spec) {
            self.seen = Some((spec.clone(), Instant::now()));
        }
        // The other's clock does not count: the lease is over when it stood still for its length.
        let length = spec.as_ref().and_then(|s| s.lease_duration_seconds).and_then(|s| u64::try_from(s).ok());
        let length = Duration::from_secs(length.unwrap_or(0)).max(self.length);
        let over = self.seen.as_ref().is_some_and(|(_, at)| at.elapsed() > length);
        if holder != self.identity && !holder.is_empty() && !over {
            return Ok(None);
        }
        lease.spec = Some(self.spec(spec.as_ref()));
        let now = self.leases.replace(LEASE, &PostParams::default(), &lease).await?;
        Ok(Some(term(&now)))
    }

    fn spec(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(jiff::Timestamp::now());
        let own = before.is_some_and(|b| b.holder_identity.as_deref() == Some(&self.identity));
        let transitions = before.and_then(|b| b.lease_transitions).unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.length.as_secs()).ok(),
            acquire_time: if own { before.and_then(|b| b.acquire_time.clone()) } else { Some(now.clone()) },
            renew_time: Some(now),
            lease_transitions: Some(if own { transitions } else { transitions.saturating_add(1) }),
            ..LeaseSpec::default()
        }
    }

    /// Gives the lease back, so that the next leader need not wait for its end.
    pub async fn resign(client: Client, namespace: &str, identity: &str) {
        let leases: Api<Lease> = Api::namespaced(client, namespace);
        let Ok(Some(mut lease)) = leases.get_opt(LEASE).await else { return };
        if let Some(spec) = lease.spec.as_mut().filter(|s| s.holder_identity.as_deref() == Some(identity)) {
            spec.holder_identity = None;
            let _ = leases.replace(LEASE, &PostParams::default(), &lease).await;
        }
    }
}

fn term(lease: &Lease) -> u64 {
    let transitions = lease.spec.as_ref().and_then(|s| s.lease_transitions).unwrap_or(0);
    u64::try_from(transitions).unwrap_or(0)
}
