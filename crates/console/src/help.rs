//! Help pages: prose wraps at the width of the page, and a long command of an example goes on after a backslash.

use crate::text::text_width;
use clap::Command;
use textwrap::{Options, WordSeparator, WordSplitter, core::Word};

/// Columns of a help page in a wide terminal: longer lines are hard to read.
const WIDTH_MAX: usize = 100;
/// Spaces before the second line of a command, on top of those before its first.
const CONTINUED: usize = 4;

/// `command` with help pages as wide as the terminal, 80 columns without one.
///
/// In the text below the options, lines that begin with a space stand alone; the others form paragraphs.
pub fn fit_help(command: Command) -> Command {
    let width = text_width().min(WIDTH_MAX);
    fit(command, width).term_width(width)
}

fn fit(command: Command, width: usize) -> Command {
    let command = match command.get_after_help().map(|text| fit_text(&text.to_string(), width)) {
        Some(text) => command.after_help(text),
        None => command,
    };
    command.mut_subcommands(|c| fit(c, width))
}

fn fit_text(text: &str, width: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut paragraph: Vec<&str> = Vec::new();
    for line in text.lines().chain([""]) {
        if !line.is_empty() && !line.starts_with(' ') {
            paragraph.push(line);
            continue;
        }
        if !paragraph.is_empty() {
            lines.extend(textwrap::wrap(&paragraph.join(" "), options(width)).into_iter().map(String::from));
            paragraph.clear();
        }
        lines.extend(example(line, width));
    }
    lines.join("\n").trim_end().to_owned()
}

/// Lines break at spaces only.
fn options<'a>(width: usize) -> Options<'a> {
    Options::new(width).word_separator(WordSeparator::AsciiSpace).word_splitter(WordSplitter::NoHyphenation)
}

/// A command breaks before its options, and never between an option and its value.
fn before_options(line: &str) -> Box<dyn Iterator<Item = Word<'_>> + '_> {
    let breaks = line.match_indices(" -").map(|(at, _)| at + 1);
    let starts: Vec<usize> = std::iter::once(0).chain(breaks).chain([line.len()]).collect();
    Box::new((1..starts.len()).map(move |i| Word::from(&line[starts[i - 1]..starts[i]])))
}

/// A line that stands alone; where it is too long, in several lines.
fn example(line: &str, width: usize) -> Vec<String> {
    if line.chars().count() <= width {
        return vec![line.to_owned()];
    }
    let indent = line.len() - line.trim_start().len();
    let (first, later) = (" ".repeat(indent), " ".repeat(indent + CONTINUED));
    let is_command = line.contains("linkwise");
    let separator = match is_command {
        true => WordSeparator::Custom(before_options),
        false => WordSeparator::AsciiSpace,
    };
    let options = options(width - if is_command { 2 } else { 0 })
        .initial_indent(&first)
        .subsequent_indent(&later)
        .word_separator(separator)
        .break_words(false);
    let mut lines: Vec<String> = textwrap::wrap(line.trim_start(), options).into_iter().map(String::from).collect();
    let last = lines.len() - 1;
    if is_command {
        lines[..last].iter_mut().for_each(|l| l.push_str(" \\"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_paragraph_are_joined_and_wrapped_again() {
        let text = "one two three\nfour five\n\nExamples:\n  linkwise a\n  linkwise b\n\nsix";
        assert_eq!(fit_text(text, 20), "one two three four\nfive\n\nExamples:\n  linkwise a\n  linkwise b\n\nsix");
    }

    #[test]
    fn a_long_command_goes_on_after_a_backslash_and_means_the_same() {
        let line = "  linkwise place --cluster site.yaml --model model.json --gpus 'n0 n1:2' -o answer.json";
        let text = fit_text(line, 40);
        assert!(text.lines().count() > 2 && text.lines().all(|l| l.chars().count() <= 40), "{text}");
        let read: String = text.replace(" \\\n", " ");
        assert_eq!(read.split_whitespace().collect::<Vec<_>>(), line.split_whitespace().collect::<Vec<_>>());
        assert!(text.contains("--gpus 'n0 n1:2'"), "{text}");
    }
}
