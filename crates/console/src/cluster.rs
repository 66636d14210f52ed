//! Clusters by name or file.

use crate::Failure;
use std::path::Path;
use topology::{Cluster, catalog, diagnose, file, read};

/// A built-in cluster by name, or a cluster file.
pub fn load_cluster(name_or_file: &str) -> Result<Cluster, Failure> {
    if let Some(c) = catalog::cluster(name_or_file) {
        return Ok(c);
    }
    let path = Path::new(name_or_file);
    if !path.exists() {
        return Err(no_such_cluster(name_or_file));
    }
    let bytes = files::read_limited(path, read::FILE_SIZE_MAX)?;
    let text = read::text(&bytes, name_or_file, read::FILE_SIZE_MAX)?;
    match read::detect(text) {
        Some(read::FileKind::ClusterFile) | None => Ok(file::read(text, name_or_file)?),
        Some(kind) => Err(Failure::input(format!(
            "{name_or_file} is {kind} output, not a cluster file; convert it: \
             linkwise topology import {name_or_file} -o cluster.yaml"
        ))),
    }
}

fn no_such_cluster(name: &str) -> Failure {
    let near = diagnose::did_you_mean(name, catalog::CLUSTERS);
    let hint = near.map_or(String::new(), |n| format!("; did you mean `{n}`?"));
    let is_type = catalog::host_type(name).is_some();
    let remedy = match is_type {
        true => format!("; `{name}` is a host type: write a file with `hosts: [{{type: {name}, count: 4}}]`"),
        false => String::new(),
    };
    Failure::input(format!(
        "`{name}` is neither a built-in cluster ({}) nor a file{hint}{remedy}",
        catalog::CLUSTERS.join(", ")
    ))
}
