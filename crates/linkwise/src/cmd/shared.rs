//! What several commands need: loading a cluster by name or file.

use crate::failure::Failure;
use topology::Cluster;

/// A built-in cluster by name, or a cluster file.
pub fn load_cluster(name_or_file: &str) -> Result<Cluster, Failure> {
    if let Some(c) = topology::catalog::cluster(name_or_file) {
        return Ok(c);
    }
    Err(Failure::input(format!(
        "`{name_or_file}` is neither a built-in cluster ({}) nor a file",
        topology::catalog::CLUSTERS.join(", ")
    )))
}
