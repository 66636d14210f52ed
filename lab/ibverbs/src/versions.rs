//! The library with versions of symbols. cargo's libraries have none, and a program that asks for functions by version does not find them.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("versions.c");
const MAP: &str = include_str!("versions.map");
/// The name under which programs open the library. A program into which the file is preloaded gets this one, whatever the system has.
const NAME: &str = "libibverbs.so";

/// Compiles the library into `folder`: its functions are those of `library`, a `liblinkwise_ibverbs.so`. Takes less than a second; x86-64 only.
///
/// # Errors
/// There is no C compiler, or it refuses.
pub fn compile(library: &Path, folder: &Path) -> io::Result<PathBuf> {
    let (source, map, to) = (folder.join("versions.c"), folder.join("versions.map"), folder.join(NAME));
    std::fs::write(&source, SOURCE)?;
    std::fs::write(&map, MAP)?;
    let mut define = OsString::from("-DLIBRARY=\"");
    define.push(library);
    define.push("\"");
    let mut script = OsString::from("-Wl,--version-script=");
    script.push(&map);
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", &format!("-Wl,-soname,{NAME}"), "-o"]).arg(&to);
    let out = cc.arg(define).arg(script).arg(&source).arg("-ldl").output()?;
    match out.status.success() {
        true => Ok(to),
        false => Err(io::Error::other(String::from_utf8_lossy(&out.stderr).into_owned())),
    }
}
