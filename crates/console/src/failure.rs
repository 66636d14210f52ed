//! Failures of a command: one clear message and an exit code that scripts may rely on.

use std::fmt;

/// The reason why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The request is well-formed but cannot be met (exit code 1).
    Impossible(String),
    /// Bad input or usage (exit code 2).
    Input(String),
    /// Bad input with a position in a file (exit code 2).
    Located(miette::Report),
}

impl Failure {
    /// A failure for bad input, from a sentence.
    pub fn input(message: impl fmt::Display) -> Self {
        Failure::Input(message.to_string())
    }
    /// A failure for a request that cannot be met, from a sentence.
    pub fn impossible(message: impl fmt::Display) -> Self {
        Failure::Impossible(message.to_string())
    }
    /// A failure for a file that cannot be read or written.
    pub fn file(doing: &str, path: &std::path::Path, error: impl fmt::Display) -> Self {
        Failure::Input(format!("cannot {doing} {}: {error}", path.display()))
    }
    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::Impossible(_) => 1,
            Failure::Input(_) | Failure::Located(_) => 2,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Impossible(m) | Failure::Input(m) => write!(f, "error: {}", crate::output::printable(m)),
            Failure::Located(r) => write!(f, "{r:?}"),
        }
    }
}

impl From<files::FileError> for Failure {
    fn from(e: files::FileError) -> Self {
        Failure::input(e)
    }
}

impl From<topology::ReadError> for Failure {
    fn from(e: topology::ReadError) -> Self {
        Failure::Located(miette::Report::new(e))
    }
}

impl From<miette::Report> for Failure {
    fn from(r: miette::Report) -> Self {
        Failure::Located(r)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_quotes_an_escape_sequence_does_not_send_it_to_the_terminal() {
        let said = Failure::input("no job `\u{1b}[31mx\u{9b}5m\r` holds GPUs;\nno job does").to_string();
        assert_eq!(said, "error: no job `\u{fffd}[31mx\u{fffd}5m\u{fffd}` holds GPUs;\nno job does");
    }
}
