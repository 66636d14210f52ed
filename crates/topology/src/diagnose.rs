//! The error for an invalid file: what was found, its position, and a remedy.

use miette::{MietteError, MietteSpanContents, SourceCode, SourceSpan, SpanContents};
use std::fmt;

/// Maximum number of characters of a source line that an error quotes.
const QUOTE_CHARS_MAX: usize = 120;
/// Maximum number of characters of one message or remedy, so that hostile input does not flood a terminal.
const MESSAGE_CHARS_MAX: usize = 400;

/// The reason for refusing a file. Prints as `file:line:column: message`; as a [`miette::Diagnostic`] it also quotes the
/// line and gives the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadError(Box<Inner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    file: String,
    line: usize,
    column: usize,
    message: String,
    remedy: String,
    excerpt: Option<Excerpt>,
}

/// The line with the error, cut to a readable width, and the position of the error in it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Excerpt {
    file: String,
    line: usize,
    column: usize,
    text: String,
    offset: usize,
    len: usize,
}

impl ReadError {
    /// An error at a byte offset of `text`, marking `len` bytes. O(text).
    pub fn at(
        file: &str,
        text: &str,
        offset: usize,
        len: usize,
        message: impl fmt::Display,
        remedy: impl fmt::Display,
    ) -> Self {
        let mut offset = offset.min(text.len());
        while !text.is_char_boundary(offset) {
            offset -= 1;
        }
        let start = text[..offset].rfind('\n').map_or(0, |p| p + 1);
        let line = text[..start].bytes().filter(|&b| b == b'\n').count() + 1;
        let column = text[start..offset].chars().count() + 1;
        Self::on_line(file, line, column, line_of(&text[start..]), len, message, remedy)
    }

    /// An error at a line and column (both from 1) of `text`, marking `len` characters. O(text).
    pub fn at_line(
        file: &str,
        text: &str,
        line: usize,
        column: usize,
        len: usize,
        message: impl fmt::Display,
        remedy: impl fmt::Display,
    ) -> Self {
        match text.split('\n').nth(line.saturating_sub(1)) {
            Some(l) if line > 0 => Self::on_line(file, line, column, line_of(l), len, message, remedy),
            _ => Self::in_file(file, message, remedy),
        }
    }

    /// An error about a whole file: line 1, column 1, without a quoted line.
    pub fn in_file(file: &str, message: impl fmt::Display, remedy: impl fmt::Display) -> Self {
        ReadError(Box::new(Inner {
            file: file.to_string(),
            line: 1,
            column: 1,
            message: clip(message),
            remedy: clip(remedy),
            excerpt: None,
        }))
    }

    /// An error about bytes that are not text: a position without a quoted line.
    pub fn in_bytes(
        file: &str,
        line: usize,
        column: usize,
        message: impl fmt::Display,
        remedy: impl fmt::Display,
    ) -> Self {
        let mut e = Self::in_file(file, message, remedy);
        (e.0.line, e.0.column) = (line, column);
        e
    }

    fn on_line(
        file: &str,
        line: usize,
        column: usize,
        content: &str,
        len: usize,
        message: impl fmt::Display,
        remedy: impl fmt::Display,
    ) -> Self {
        // Quote a window of the line around the column, without control characters.
        let from = (column - 1).saturating_sub(QUOTE_CHARS_MAX / 2);
        let window = content.chars().skip(from).take(QUOTE_CHARS_MAX);
        let mut text = String::new();
        let (mut offset, mut end) = (None, None);
        for (i, c) in window.enumerate() {
            let position = from + i + 1;
            if position == column {
                offset = Some(text.len());
            }
            if position == column + len.max(1) {
                end = Some(text.len());
            }
            text.push(if c == '\t' {
                ' '
            } else if c.is_control() {
                '\u{fffd}'
            } else {
                c
            });
        }
        let offset = offset.unwrap_or(text.len());
        let len = end.unwrap_or(text.len()).saturating_sub(offset);
        let mut e = Self::in_file(file, message, remedy);
        e.0.line = line;
        e.0.column = column;
        e.0.excerpt = Some(Excerpt { file: file.to_string(), line, column, text, offset, len });
        e
    }

    /// The file's name, as the caller gave it.
    pub fn file(&self) -> &str {
        &self.0.file
    }
    /// Line, from 1.
    pub fn line(&self) -> usize {
        self.0.line
    }
    /// Column in characters, from 1.
    pub fn column(&self) -> usize {
        self.0.column
    }
    /// What was found and what was expected.
    pub fn message(&self) -> &str {
        &self.0.message
    }
    /// The remedy.
    pub fn remedy(&self) -> &str {
        &self.0.remedy
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}", self.0.file, self.0.line, self.0.column, self.0.message)
    }
}

impl std::error::Error for ReadError {}

impl miette::Diagnostic for ReadError {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        (!self.0.remedy.is_empty()).then(|| Box::new(&self.0.remedy) as Box<dyn fmt::Display>)
    }
    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.0.excerpt.as_ref().map(|e| e as &dyn SourceCode)
    }
    fn labels(&self) -> Option<Box<dyn Iterator<Item = miette::LabeledSpan> + '_>> {
        let e = self.0.excerpt.as_ref()?;
        let span = miette::LabeledSpan::new(Some("here".into()), e.offset, e.len);
        Some(Box::new(std::iter::once(span)))
    }
}

impl SourceCode for Excerpt {
    /// The excerpt is one line, which miette numbers 0. Its number in the file is [`Excerpt::line`].
    fn read_span<'a>(
        &'a self,
        span: &SourceSpan,
        before: usize,
        after: usize,
    ) -> Result<Box<dyn SpanContents<'a> + 'a>, MietteError> {
        let inner = self.text.read_span(span, before, after)?;
        let column = if inner.column() == 0 { 0 } else { self.column - 1 };
        Ok(Box::new(MietteSpanContents::new_named(
            self.file.clone(),
            inner.data(),
            *inner.span(),
            self.line - 1,
            column,
            1,
        )))
    }
}

fn line_of(rest: &str) -> &str {
    let line = rest.split('\n').next().unwrap_or("");
    line.strip_suffix('\r').unwrap_or(line)
}

fn clip(text: impl fmt::Display) -> String {
    let text: String =
        text.to_string().chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect();
    if text.chars().count() <= MESSAGE_CHARS_MAX {
        return text;
    }
    text.chars().take(MESSAGE_CHARS_MAX).chain(['…']).collect()
}

/// The known word most similar to `word`, if the difference can be a typing error: at most 1 + a quarter of the word's
/// length of missing, added, wrong or swapped letters. O(words x length²).
pub fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word: String = word.chars().take(64).collect::<String>().to_ascii_lowercase();
    known
        .into_iter()
        .map(|k| (strsim::osa_distance(&word, &k.to_ascii_lowercase()), k))
        .filter(|(d, k)| *d <= 1 + k.chars().count() / 4)
        .min_by_key(|(d, _)| *d)
        .map(|(_, k)| k)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_counted_in_lines_and_characters_from_one() {
        let text = "first\nsécond line\r\nthird";
        let e = ReadError::at("f", text, text.find("line").unwrap(), 4, "m", "r");
        assert_eq!((e.line(), e.column()), (2, 8));
        assert_eq!(e.to_string(), "f:2:8: m");
        let end = ReadError::at("f", text, 9_999, 1, "m", "r");
        assert_eq!((end.line(), end.column()), (3, 6));
    }

    #[test]
    fn a_line_of_a_million_characters_is_quoted_in_part() {
        let text = format!("{}X{}", "a".repeat(500_000), "b".repeat(500_000));
        let e = ReadError::at("f", &text, 500_000, 1, "m".repeat(10_000), "r");
        let shown = format!("{:?}", miette::Report::new(e));
        assert!(shown.len() < 4_000, "{} bytes", shown.len());
    }

    #[test]
    fn typing_errors_are_corrected_and_unrelated_words_are_not() {
        assert_eq!(did_you_mean("hots", ["hosts", "host_types", "name"]), Some("hosts"));
        assert_eq!(did_you_mean("NVlink", ["nvlink", "nics"]), Some("nvlink"));
        assert_eq!(did_you_mean("banana", ["nvlink", "nics"]), None);
    }
}
