//! Errors of an offline run.

use std::fmt::Display;
use std::path::Path;

/// Why a profile could not be measured.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ProfileError {
    /// An option or a file that cannot be used.
    #[error("{0}")]
    Input(String),
    /// The options are valid, but no comparable times can be measured.
    #[error("{0}")]
    Impossible(String),
    /// The given time does not suffice for one turn.
    #[error(
        "--minutes {minutes}: one turn of {launches} launches with {iterations} readings takes about {least_s:.0} s, everything requested takes \
         {all_s:.0} s; give --minutes {} or fewer --arms",
        (all_s / 60.0).ceil()
    )]
    TooShort {
        /// The time given.
        minutes: f64,
        /// Launches of one turn.
        launches: usize,
        /// Readings of one launch and size.
        iterations: u32,
        /// Time of one turn, seconds.
        least_s: f64,
        /// Time of everything requested, seconds.
        all_s: f64,
    },
}

impl ProfileError {
    /// Stable code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            ProfileError::Input(_) => "bad_input",
            ProfileError::Impossible(_) => "nothing_comparable",
            ProfileError::TooShort { .. } => "too_short",
        }
    }

    /// True for an invalid input; false for a valid input that cannot be measured.
    pub fn is_malformed(&self) -> bool {
        matches!(self, ProfileError::Input(_))
    }

    pub(crate) fn input(message: impl Display) -> Self {
        ProfileError::Input(message.to_string())
    }

    pub(crate) fn impossible(message: impl Display) -> Self {
        ProfileError::Impossible(message.to_string())
    }

    pub(crate) fn file(doing: &str, path: &Path, error: impl Display) -> Self {
        ProfileError::Input(format!("cannot {doing} {}: {error}", path.display()))
    }
}

impl From<files::FileError> for ProfileError {
    fn from(e: files::FileError) -> Self {
        ProfileError::Input(e.to_string())
    }
}
