//! Tables of the laboratory's commands.

use comfy_table::{ContentArrangement, Table};
use console::{list_cell, text_width};
use std::ops::Range;

/// A text cell up to this width stays on one line, characters.
const NAME_WIDTH_MAX: usize = 24;
/// A wider text cell may be folded down to this width, characters.
const TEXT_WIDTH_MIN: usize = 20;
/// Blanks between two columns.
const GAP: usize = 2;

/// The text of a table in the style of all programs; the columns after the first `text_columns` are numbers. See
/// [`table_of`].
pub fn table<S: AsRef<str>>(head: &[S], text_columns: usize, rows: impl IntoIterator<Item = Vec<String>>) -> String {
    table_of(head, text_columns..head.len(), rows)
}

/// The same with text before and after the columns of `numbers`.
///
/// The table is no wider than the terminal, or 80 columns without one. Heads and long texts break at blanks; names and
/// numbers stay on one line. Columns that do not fit form further tables below, each of which begins with the first
/// column again.
pub fn table_of<S: AsRef<str>>(
    head: &[S],
    numbers: Range<usize>,
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let rows: Vec<Vec<String>> = rows.into_iter().collect();
    let columns: Vec<Column> =
        (0..head.len()).map(|i| Column::new(i, head[i].as_ref(), numbers.contains(&i), &rows)).collect();
    let parts = split(&columns, text_width());
    parts.iter().map(|part| one_table(part, &rows)).collect::<Vec<_>>().join("\n")
}

/// A column and its width, characters.
#[derive(Clone, Copy)]
struct Column<'a> {
    index: usize,
    head: &'a str,
    is_number: bool,
    /// Smallest width at which no word or number breaks.
    least: usize,
    /// Smallest width at which no line breaks.
    natural: usize,
}

impl<'a> Column<'a> {
    fn new(index: usize, head: &'a str, is_number: bool, rows: &[Vec<String>]) -> Self {
        let width = |text: &str| text.chars().count();
        let longest_word = |text: &str| text.split(' ').map(width).max().unwrap_or(0);
        let cells = || rows.iter().filter_map(|r| r.get(index)).map(String::as_str);
        let widest = cells().map(width).max().unwrap_or(0);
        let least = match is_number || widest <= NAME_WIDTH_MAX {
            true => widest,
            false => cells().map(longest_word).max().unwrap_or(0).clamp(TEXT_WIDTH_MIN, text_width() / 2),
        };
        Column { index, head, is_number, least: least.max(longest_word(head)), natural: widest.max(width(head)) }
    }
}

/// Splits the columns into as few groups as fit `width`; each group begins with the first column.
fn split<'a>(columns: &[Column<'a>], width: usize) -> Vec<Vec<Column<'a>>> {
    let Some((first, others)) = columns.split_first() else { return Vec::new() };
    let mut parts = vec![vec![*first]];
    let mut used = first.least;
    for column in others {
        if used + GAP + column.least > width && parts.last().is_some_and(|p| p.len() > 1) {
            parts.push(vec![*first]);
            used = first.least;
        }
        used += GAP + column.least;
        parts.last_mut().expect("it begins with one part").push(*column);
    }
    parts
}

/// The width of every column: the smallest one, plus a part of the rest of `width`, given first to the columns that
/// need least.
fn widths(columns: &[Column], width: usize) -> Vec<usize> {
    let mut widths: Vec<usize> = columns.iter().map(|c| c.least).collect();
    let mut left = width.saturating_sub(widths.iter().sum::<usize>() + GAP * columns.len().saturating_sub(1));
    let mut by_need: Vec<usize> = (0..columns.len()).collect();
    by_need.sort_by_key(|&i| columns[i].natural.saturating_sub(columns[i].least));
    for i in by_need {
        let more = columns[i].natural.saturating_sub(columns[i].least).min(left);
        widths[i] += more;
        left -= more;
    }
    widths
}

fn one_table(columns: &[Column], rows: &[Vec<String>]) -> String {
    let widths = widths(columns, text_width());
    let heads: Vec<String> = columns.iter().zip(&widths).map(|(c, w)| list_cell(c.head, *w)).collect();
    let first_number = columns.iter().position(|c| c.is_number).unwrap_or(columns.len());
    let numbers = first_number..first_number + columns.iter().filter(|c| c.is_number).count();
    let mut table: Table = console::table(&heads, numbers);
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.add_rows(rows.iter().map(|row| {
        let cell = |c: &Column, w: usize| list_cell(row.get(c.index).map_or("", String::as_str), w);
        columns.iter().zip(&widths).map(|(c, w)| cell(c, *w)).collect::<Vec<_>>()
    }));
    console::text_of(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(text: &str) {
        assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    }

    #[test]
    fn wide_tables_fit_80_columns_without_a_terminal_and_keep_names_whole() {
        let head =
            ["method", "mean %", "5th percentile", "worst %", "loss GB/s", "decision us", "p99 us", "judged", "fit s"];
        let row = |name: &str| std::iter::once(name.to_owned()).chain((1..9).map(|i| format!("{i}000.25"))).collect();
        let text = table(&head, 1, [row("ideal-bandpilot"), row("gp+3")]);
        fits(&text);
        assert!(text.contains("ideal-bandpilot "), "{text}");
    }

    #[test]
    fn columns_that_do_not_fit_form_further_tables_with_unbroken_words_and_numbers() {
        let head: Vec<String> = (0..14).map(|i| format!("percentile{i}")).collect();
        let row: Vec<String> = (0..14).map(|i| format!("{i}00.25 (-3)")).collect();
        let text = table(&head, 1, [row.clone()]);
        fits(&text);
        assert!(head.iter().chain(&row).all(|whole| text.contains(whole.as_str())), "{text}");
        assert_eq!(text.matches("percentile0 ").count(), 3, "{text}");
    }

    #[test]
    fn long_texts_fold_at_blanks() {
        let sentence = "a sentence that is far longer than the line of a table can be while it holds a number as well";
        let text = table_of(&["what", "GB/s", "why"], 1..2, [vec!["n0".into(), "1.5".into(), sentence.into()]]);
        fits(&text);
        assert!(sentence.split(' ').all(|word| text.contains(word)), "{text}");
    }
}
