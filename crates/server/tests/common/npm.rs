//! Packages of npm for a test, fetched once into the user's cache.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder whose `node_modules` has the packages of `folder/package.json`. They are fetched once per version of that file.
///
/// # Errors
/// Node or the package index is missing.
pub fn modules(folder: &Path, one: &str) -> Result<PathBuf, String> {
    Command::new("node").arg("--version").output().map_err(|e| format!("no node ({e})"))?;
    let wanted = std::fs::read_to_string(folder.join("package.json")).map_err(|e| e.to_string())?;
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = set("LINKWISE_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|p| p.join("linkwise")))
        .or_else(|| set("HOME").map(|p| p.join(".cache/linkwise")))
        .ok_or("LINKWISE_CACHE, XDG_CACHE_HOME and HOME are not set")?;
    let folder = cache.join("browser").join(&server::auth::hash(&wanted)[..16]);
    if folder.join("node_modules").join(one).is_dir() {
        return Ok(folder);
    }
    let part = cache.join("browser").join(format!("part-{}-{one}", std::process::id()));
    std::fs::create_dir_all(&part).map_err(|e| format!("{}: {e}", part.display()))?;
    std::fs::write(part.join("package.json"), wanted).map_err(|e| e.to_string())?;
    let npm = Command::new("npm")
        .args(["install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1"])
        .current_dir(&part)
        .output()
        .map_err(|e| format!("npm: {e}"))?;
    if !npm.status.success() {
        let _ = std::fs::remove_dir_all(&part);
        let said = String::from_utf8_lossy(&npm.stderr);
        let why = said.lines().find(|l| l.contains("error") || l.contains("ERR")).unwrap_or("it failed");
        return Err(format!("npm cannot fetch {one}: {why}"));
    }
    if std::fs::rename(&part, &folder).is_err() {
        let _ = std::fs::remove_dir_all(&part); // another process was first
    }
    Ok(folder)
}
