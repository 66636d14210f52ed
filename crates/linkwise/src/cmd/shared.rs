//! What several commands need: loading a cluster by name or file.

use crate::failure::Failure;
use std::io::Read;
use std::path::Path;
use topology::{Cluster, ReadError, catalog, diagnose, file, read};

/// A built-in cluster by name, or a cluster file.
pub fn load_cluster(name_or_file: &str) -> Result<Cluster, Failure> {
    if let Some(c) = catalog::cluster(name_or_file) {
        return Ok(c);
    }
    let path = Path::new(name_or_file);
    if !path.exists() {
        return Err(no_such_cluster(name_or_file));
    }
    let bytes = read_limited(path, read::FILE_SIZE_MAX)?;
    let text = read::text(&bytes, name_or_file, read::FILE_SIZE_MAX).map_err(located)?;
    match read::detect(text) {
        Some(read::Kind::ClusterFile) | None => file::read(text, name_or_file).map_err(located),
        Some(kind) => Err(Failure::input(format!(
            "{name_or_file} is {kind} output, not a cluster file; make one of it: \
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

/// A file's bytes, but never more than `size_max`: the size is looked at first, and what has none (a pipe) is cut off.
pub fn read_limited(path: &Path, size_max: usize) -> Result<Vec<u8>, Failure> {
    let name = path.display().to_string();
    let meta = std::fs::metadata(path).map_err(|e| Failure::file("read", path, e))?;
    if meta.is_dir() {
        return Err(Failure::input(format!("{name} is a folder, a file was expected")));
    }
    if meta.len() > size_max as u64 {
        return Err(located(read::too_large(&name, size_max)));
    }
    let file = std::fs::File::open(path).map_err(|e| Failure::file("read", path, e))?;
    let mut bytes = Vec::new();
    file.take(size_max as u64 + 1).read_to_end(&mut bytes).map_err(|e| Failure::file("read", path, e))?;
    if bytes.len() > size_max {
        return Err(located(read::too_large(&name, size_max)));
    }
    Ok(bytes)
}

/// A reader's error as the command's failure.
pub fn located(e: ReadError) -> Failure {
    Failure::Located(miette::Report::new(e))
}

/// A text file of at most `bytes_max` bytes, as UTF-8.
pub fn read_text(path: &Path, bytes_max: usize) -> Result<String, Failure> {
    String::from_utf8(read_limited(path, bytes_max)?).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Failure::file("read", path, format!("it is not UTF-8 text (first bad byte at {at})"))
    })
}

/// For people or for scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Tables and sentences
    Text,
    /// JSON
    Json,
}

/// For people, for scripts, or to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DrawnFormat {
    /// Tables and sentences
    Text,
    /// JSON
    Json,
    /// A drawing
    Svg,
}

/// For people, for scripts, or as a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PageFormat {
    /// Tables and sentences
    Text,
    /// JSON
    Json,
    /// A page
    Html,
}

/// Writes a whole file or nothing: into a file beside it, then renamed.
pub fn write_atomically(path: &Path, text: &str) -> Result<(), Failure> {
    use std::io::Write;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let fail = |e: &dyn std::fmt::Display| Failure::file("write", path, e);
    if path.is_dir() {
        return Err(fail(&"it is a folder"));
    }
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666)); // as any new file: the umask decides
    let mut file = builder.tempfile_in(folder).map_err(|e| fail(&e))?;
    file.write_all(text.as_bytes()).map_err(|e| fail(&e))?;
    file.as_file().sync_all().map_err(|e| fail(&e))?;
    file.persist(path).map_err(|e| fail(&e))?;
    Ok(())
}
