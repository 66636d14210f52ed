//! Reads text into names: pieces, brackets, ranges. No cluster is needed.

use super::error::quote;
use super::{BRACKETS_MAX, HOSTS_PER_ITEM_MAX, ListError, ListErrorKind, NAME_BYTES_MAX};

/// Maximum number of digits of a number.
const DIGITS_MAX: usize = 9;

/// One item of a list: the text between separators.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// The text; never empty.
    pub text: &'a str,
    /// Its offset, bytes.
    pub at: usize,
    /// True if only a single comma precedes it: `0` in `n0:5,0`.
    pub after_comma: bool,
}

/// The items of a list. O(bytes).
pub struct Pieces<'a> {
    text: &'a str,
    at: usize,
    commas_only: bool,
}

impl<'a> Pieces<'a> {
    /// Items separated by spaces, line ends and commas outside of brackets.
    pub fn new(text: &'a str) -> Self {
        Pieces { text, at: 0, commas_only: false }
    }

    /// Items separated by commas only. An empty item is an error.
    pub fn of_commas(text: &'a str) -> Self {
        Pieces { text, at: 0, commas_only: true }
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = Result<Piece<'a>, ListError>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = self.text.as_bytes();
        let commas_only = self.commas_only;
        let separator = |b: u8| b == b',' || (b.is_ascii_whitespace() && !commas_only);
        let from = self.at;
        while bytes.get(self.at).copied().is_some_and(separator) {
            self.at += 1;
        }
        let mut start = self.at;
        if commas_only && (start > from + 1 || (from == 0 && start > 0)) {
            self.at = bytes.len();
            return Some(Err(ListError::syntax(start - 1, "a name is missing before a comma")));
        }
        if start == bytes.len() || (commas_only && self.text[start..].trim_start().is_empty()) {
            return None;
        }
        let mut open: Option<(usize, u8)> = None;
        let mut fail = |at: usize, message: String| {
            self.at = bytes.len();
            Some(Err(ListError::syntax(at, message)))
        };
        let mut end = start;
        while let Some(&b) = bytes.get(end) {
            match (b, open) {
                (b'[' | b'{', Some(_)) => return fail(end, "a bracket opens inside brackets".into()),
                (b'[' | b'{', None) => open = Some((end, if b == b'[' { b']' } else { b'}' })),
                (b']' | b'}', Some((_, closing))) if b == closing => open = None,
                (b']' | b'}', _) => return fail(end, format!("`{}` closes no bracket", char::from(b))),
                (_, None) if separator(b) => break,
                _ => {}
            }
            end += 1;
        }
        if let Some((at, _)) = open {
            return fail(at, format!("the bracket of `{}` is not closed", quote(&self.text[start..])));
        }
        let text = self.text[start..end].trim();
        if text.is_empty() {
            return fail(start, "a name is missing".into());
        }
        self.at = end;
        start += self.text[start..end].len() - self.text[start..end].trim_start().len();
        Some(Ok(Piece { text, at: start, after_comma: &self.text[from..start] == "," }))
    }
}

/// A range of numbers, both ends included, at least `width` digits each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub from: u32,
    pub to: u32,
    pub width: usize,
}

impl Range {
    fn len(self) -> u64 {
        u64::from(self.to - self.from) + 1
    }
}

/// Ranges separated by commas, `0-3,7`, with at most `numbers_max` numbers in total. `at` is the offset of the text.
pub fn ranges(text: &str, at: usize, numbers_max: usize) -> Result<Vec<Range>, ListError> {
    let mut out = Vec::new();
    let mut numbers = 0u64;
    let mut offset = at;
    for part in text.split(',') {
        let trimmed = part.trim();
        let here = offset + (part.len() - part.trim_start().len());
        offset += part.len() + 1;
        if trimmed.is_empty() {
            return Err(ListError::syntax(here, "a number is missing in the brackets; write for example [0-3,7]"));
        }
        let (from, to) = trimmed.split_once('-').unwrap_or((trimmed, trimmed));
        let (from, to) = (from.trim(), to.trim());
        let bad = |what: &str| ListError::syntax(here, format!("`{}` {what}", quote(trimmed)));
        let number = |s: &str| {
            let ok = !s.is_empty() && s.len() <= DIGITS_MAX && s.bytes().all(|b| b.is_ascii_digit());
            let n = if ok { s.parse::<u32>().ok() } else { None };
            n.ok_or_else(|| bad("is not a number or a range such as 0-3"))
        };
        let range = Range { from: number(from)?, to: number(to)?, width: from.len() };
        if range.from > range.to {
            return Err(bad(&format!("runs backwards; write {to}-{from}")));
        }
        if to.len() > 1 && to.starts_with('0') && to.len() != from.len() {
            return Err(bad("pads its ends differently; write both with the same number of digits"));
        }
        numbers += range.len();
        if numbers > numbers_max as u64 {
            let message = format!("`{}` makes more than {numbers_max} names; that is the limit", quote(text));
            return Err(ListError::new(ListErrorKind::TooLong, here, message));
        }
        out.push(range);
    }
    Ok(out)
}

enum Part<'a> {
    Text(&'a str),
    Numbers(Vec<Range>),
}

/// A host name with bracketed ranges, `rack[0-1]-n[01-16]-ib`. The last bracket varies fastest.
pub struct Pattern<'a>(Vec<Part<'a>>);

impl<'a> Pattern<'a> {
    /// Reads a name; [`Pieces`] has checked that brackets are balanced and not nested. `at` is the offset of the text.
    pub fn parse(text: &'a str, at: usize) -> Result<Self, ListError> {
        let mut parts = Vec::new();
        let (mut rest, mut offset) = (text, at);
        let (mut names, mut brackets) = (1u64, 0);
        while let Some(open) = rest.find('[') {
            let close = rest[open..].find(']').map(|p| open + p);
            let close = close.ok_or_else(|| ListError::syntax(offset + open, "the bracket is not closed"))?;
            if open > 0 {
                parts.push(plain(&rest[..open], offset, text)?);
            }
            let numbers = ranges(&rest[open + 1..close], offset + open + 1, HOSTS_PER_ITEM_MAX)?;
            names *= numbers.iter().map(|r| r.len()).sum::<u64>();
            brackets += 1;
            if brackets > BRACKETS_MAX || names > HOSTS_PER_ITEM_MAX as u64 {
                let limit = match brackets > BRACKETS_MAX {
                    true => format!("has more than {BRACKETS_MAX} pairs of brackets"),
                    false => format!("makes more than {HOSTS_PER_ITEM_MAX} names"),
                };
                let message = format!("`{}` {limit}; that is the limit", quote(text));
                return Err(ListError::new(ListErrorKind::TooLong, offset + open, message));
            }
            parts.push(Part::Numbers(numbers));
            rest = &rest[close + 1..];
            offset += close + 1;
        }
        if !rest.is_empty() || parts.is_empty() {
            parts.push(plain(rest, offset, text)?);
        }
        let length = |p: &Part| if let Part::Text(t) = p { t.len() } else { DIGITS_MAX };
        if parts.iter().map(length).sum::<usize>() > NAME_BYTES_MAX {
            let message = format!("`{}` is longer than a host name can be", quote(text));
            return Err(ListError::new(ListErrorKind::TooLong, at, message));
        }
        Ok(Pattern(parts))
    }

    /// Calls `f` with every name, in order, until `f` fails. O(names). Only one name is in memory at a time.
    pub fn each<E>(&self, mut f: impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
        let mut name = String::new();
        extend(&self.0, &mut name, &mut f)
    }
}

/// The part of `whole` between brackets; `at` is its offset.
fn plain<'a>(text: &'a str, at: usize, whole: &str) -> Result<Part<'a>, ListError> {
    match text.find([']', '{', '}']) {
        None => Ok(Part::Text(text)),
        Some(stray) => {
            let message = format!("`{}` has a bracket where none is allowed", quote(whole));
            Err(ListError::syntax(at + stray, message))
        }
    }
}

/// Recursion depth: the number of parts, at most twice [`BRACKETS_MAX`].
fn extend<E>(parts: &[Part], name: &mut String, f: &mut impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
    use std::fmt::Write;
    let Some((first, rest)) = parts.split_first() else { return f(name) };
    let kept = name.len();
    match first {
        Part::Text(t) => {
            name.push_str(t);
            extend(rest, name, f)?;
            name.truncate(kept);
        }
        Part::Numbers(ranges) => {
            for r in ranges {
                for n in r.from..=r.to {
                    let _ = write!(name, "{n:0w$}", w = r.width);
                    extend(rest, name, f)?;
                    name.truncate(kept);
                }
            }
        }
    }
    Ok(())
}
