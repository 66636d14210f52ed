//! Text that fits the terminal.

use crate::table::WIDTH_WITHOUT_TERMINAL;
use textwrap::core::Word;

/// Smallest number of columns of a line: narrower text is unreadable.
const WIDTH_MIN: usize = 60;
/// Characters above which a word breaks after its commas.
const LIST_CHARS_MIN: usize = 24;

/// Columns of text on standard output: those of the terminal (60 at least), or [`WIDTH_WITHOUT_TERMINAL`] without one.
pub fn text_width() -> usize {
    let terminal = comfy_table::Table::new().width();
    usize::from(terminal.unwrap_or(WIDTH_WITHOUT_TERMINAL)).max(WIDTH_MIN)
}

/// A paragraph in lines of at most [`text_width`] columns. Lines after the first are indented by `indent`. Lines break
/// at spaces and, if a list is longer than a line, after its commas: a list of hosts and GPUs can be read back in spite
/// of the line breaks.
pub fn wrap(text: &str, indent: usize) -> String {
    wrap_within(text, indent, text_width())
}

/// A list of hosts or GPUs for a table cell, broken after spaces and commas into lines of at most `width` columns.
pub fn list_cell(list: &str, width: usize) -> String {
    wrap_within(list, 0, width).trim_end().to_owned()
}

fn wrap_within(text: &str, indent: usize, width: usize) -> String {
    let later = " ".repeat(indent);
    let options = textwrap::Options::new(width)
        .subsequent_indent(&later)
        .wrap_algorithm(textwrap::WrapAlgorithm::FirstFit)
        .word_separator(textwrap::WordSeparator::Custom(words))
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    let mut out = textwrap::wrap(text, options).join("\n");
    out.push('\n');
    out
}

/// Words end at spaces; long words, which are lists, also end after commas. (A word *splitter* would add a hyphen at the line's end.)
fn words(line: &str) -> Box<dyn Iterator<Item = Word<'_>> + '_> {
    Box::new(textwrap::WordSeparator::AsciiSpace.find_words(line).flat_map(|word| {
        let end = word.word.len() + word.whitespace.len();
        let start = word.word.as_ptr() as usize - line.as_ptr() as usize;
        let whole = &line[start..start + end];
        let parts: Vec<Word<'_>> = match word.word.len() > LIST_CHARS_MIN {
            true => whole.split_inclusive(',').map(Word::from).collect(),
            false => vec![word],
        };
        parts
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_break_after_commas_and_lose_nothing() {
        let list = (0..60).map(|i| (2 * i).to_string()).collect::<Vec<_>>().join(",");
        let text = wrap_within(&format!("free: n[{list}]:[0-7] and more"), 2, 80);
        assert!(text.lines().count() > 2 && text.lines().all(|l| l.chars().count() <= 80), "{text}");
        assert!(text.lines().skip(1).all(|l| l.starts_with("  ")));
        assert_eq!(text.split_whitespace().collect::<String>(), format!("free:n[{list}]:[0-7]andmore"));
    }
}
