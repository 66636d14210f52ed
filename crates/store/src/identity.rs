//! What makes a cluster the same cluster for a store.
//!
//! Stored allocations are text (`n0:0 n0:1`), so a store fits every cluster in which that text means the same hardware: same name, same
//! hosts in the same order, same type name and GPU count each. Drained GPUs, NIC health and corrected rates may change
//! without making old measurements foreign.

use crate::digest::fnv64;
use topology::Cluster;

/// The identity in text, one host a line; what [`fingerprint`] digests and what differences are told from.
pub fn identity(cluster: &Cluster) -> String {
    let mut s = format!("{}\n", cluster.name);
    for h in cluster.host_ids() {
        let t = cluster.type_of(h);
        s.push_str(&format!("{} is {} with {} GPUs\n", cluster.host(h).name, t.name, t.gpu_count()));
    }
    s
}

/// Sixteen hexadecimal digits of the identity.
pub fn fingerprint(identity: &str) -> String {
    format!("{:016x}", fnv64([identity]))
}

/// The first difference between two identities in words; none if they are the same.
pub fn difference(stored: &str, given: &str) -> Option<String> {
    let (mut a, mut b) = (stored.lines(), given.lines());
    let (name_a, name_b) = (a.next().unwrap_or(""), b.next().unwrap_or(""));
    loop {
        match (a.next(), b.next()) {
            (None, None) => break,
            (x, y) if x == y => {}
            (x, y) => {
                let word = |l: Option<&str>| l.map_or("has no more hosts".to_owned(), |l| format!("says {l}"));
                return Some(format!("the store {}, the cluster {}", word(x), word(y)));
            }
        }
    }
    (name_a != name_b).then(|| "the names differ".to_owned())
}
