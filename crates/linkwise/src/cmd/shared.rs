//! What several commands need: loading a cluster by name or file.

use crate::failure::Failure;
use std::path::Path;
use topology::{Bytes, Cluster, Collective};

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

/// A text file, refused before it is read if it is larger than `bytes_max`.
pub fn read_text(path: &Path, bytes_max: u64) -> Result<String, Failure> {
    use std::io::Read;
    let file = std::fs::File::open(path).map_err(|e| Failure::file("open", path, e))?;
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(|e| Failure::file("read", path, e))?;
    if bytes.len() as u64 > bytes_max {
        return Err(Failure::file("read", path, format!("it is larger than {bytes_max} bytes")));
    }
    String::from_utf8(bytes).map_err(|e| {
        Failure::file(
            "read",
            path,
            format!("it is not UTF-8 text (first bad byte at {})", e.utf8_error().valid_up_to()),
        )
    })
}

/// What the physics expects inside a host of a type, GB/s busbw: stands in where nobody measured.
pub fn analytic_intra_gb_per_s(ty: &topology::HostType, mask: topology::GpuMask, c: Collective, size: Bytes) -> f64 {
    let _ = (c, size);
    // The nominal rate of the worst pair; replaced by the physics of `fabric` below.
    let nv = ty.nvlink.map_or(0.0, |n| n.link_rate.gb_per_s());
    let pcie = ty.pcie.rate().gb_per_s();
    mask.iter()
        .flat_map(|i| mask.iter().filter(move |j| *j > i).map(move |j| (i, j)))
        .map(|(i, j)| match ty.gpu_paths[i][j] {
            topology::PathKind::NvLink(n) => nv * f64::from(n) * 0.8,
            _ => pcie * 0.6,
        })
        .fold(f64::INFINITY, f64::min)
}

/// For people or for scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Tables and sentences
    Text,
    /// JSON
    Json,
}
