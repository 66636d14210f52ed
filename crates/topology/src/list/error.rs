//! The error for an invalid list: kind and position.

use std::fmt;

/// Maximum number of characters of a list that a message quotes.
const QUOTE_CHARS_MAX: usize = 40;

/// The kind of an error in a list, for programs that handle errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListErrorKind {
    /// The text does not follow the notation: brackets, ranges, numbers.
    Syntax,
    /// The list exceeds a limit of [`crate::list`].
    TooLong,
    /// The cluster has no host of that name.
    UnknownHost,
    /// The host has no such GPU, or the word names neither a host nor a GPU.
    UnknownGpu,
    /// A GPU is named twice.
    DuplicateGpu,
}

/// The reason for refusing a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListError {
    /// The kind of error.
    pub kind: ListErrorKind,
    /// Index of the text, from 0, if the list consists of several texts (command arguments, strings of a JSON array).
    pub item: usize,
    /// Offset of the error in that text, bytes from 0.
    pub offset: usize,
    /// The same position in characters, from 1.
    pub column: usize,
    /// What was found and what was expected.
    pub message: String,
}

impl ListError {
    pub(super) fn new(kind: ListErrorKind, offset: usize, message: impl fmt::Display) -> Self {
        ListError { kind, item: 0, offset, column: offset + 1, message: message.to_string() }
    }

    pub(super) fn syntax(offset: usize, message: impl fmt::Display) -> Self {
        Self::new(ListErrorKind::Syntax, offset, message)
    }

    /// The same error with the index of its text.
    pub(super) fn within(mut self, item: usize, text: &str) -> Self {
        self.item = item;
        let before = text.char_indices().take_while(|(at, _)| *at < self.offset).count();
        self.column = before + 1;
        self
    }
}

impl fmt::Display for ListError {
    /// The message, with the position of the error unless the error is at the first character.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if self.column > 1 { write!(f, " (character {})", self.column) } else { Ok(()) }
    }
}

impl std::error::Error for ListError {}

impl From<ListError> for String {
    fn from(e: ListError) -> String {
        e.to_string()
    }
}

/// A piece of a list, short enough for a message and without control characters.
pub(super) fn quote(text: &str) -> String {
    let clean = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut chars = text.chars().map(clean);
    let short: String = chars.by_ref().take(QUOTE_CHARS_MAX).collect();
    if chars.next().is_some() { short + "..." } else { short }
}
