//! A certified identity provider, run by node.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oidc");

/// A provider that ends when the value is dropped.
pub struct Provider {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    pub issuer: String,
}

impl Provider {
    /// Starts it; the error says what is missing. It answers from the first [`Provider::tell`] on.
    pub fn start() -> Result<Provider, String> {
        let modules = super::npm::modules(Path::new(FOLDER), "oidc-provider")?;
        let mut child = Command::new("node")
            .arg(Path::new(FOLDER).join("provider.mjs"))
            .arg(modules)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| e.to_string())?;
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let issuer = lines.next().ok_or("the provider ended")?.map_err(|e| e.to_string())?;
        Ok(Provider { child, lines, issuer })
    }

    /// Sends a line, and waits until it is done.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
        assert_eq!(self.lines.next().unwrap().unwrap(), "ready");
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
