//! The table style of all programs: columns two spaces apart, numbers aligned right, no borders, no rules, no trailing blanks.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};
use std::ops::RangeBounds;

/// Columns of output without a terminal.
pub const WIDTH_WITHOUT_TERMINAL: u16 = 80;

/// Spaces between two columns of a table.
const GAP: u16 = 2;

/// A table that fits the terminal, or [`WIDTH_WITHOUT_TERMINAL`] columns without one; the columns of `numbers` are aligned right. No
/// word of the header is broken, even if the table becomes too wide.
pub fn table<S: AsRef<str>>(head: &[S], numbers: impl RangeBounds<usize>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    if table.width().is_none() {
        table.set_width(WIDTH_WITHOUT_TERMINAL);
    }
    table.set_header(head.iter().map(AsRef::as_ref));
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, GAP));
        let words = head.get(i).map_or("", AsRef::as_ref).split_whitespace();
        let longest = words.map(|w| w.chars().count()).max().unwrap_or(0) as u16;
        column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(longest + GAP)));
        if numbers.contains(&i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// The text of a table without trailing blanks, with a line break at its end.
pub fn text_of(table: &Table) -> String {
    table.lines().map(|l| format!("{}\n", l.trim_end())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_word_of_a_header_is_broken_where_the_columns_are_too_many() {
        let head = ["stage", "points", "readings", "failed", "outliers", "rejected", "suspect", "seconds", "minutes"];
        let mut t = table(&head, 1..);
        t.set_width(80);
        t.add_row(["a long name of a stage in words", "1", "1", "1", "1", "1", "1", "1", "1"]);
        let text = text_of(&t);
        let first = text.lines().next().unwrap();
        assert_eq!(first.split_whitespace().collect::<Vec<_>>(), head, "{text}");
    }

    #[test]
    fn numbers_are_aligned_right_and_lines_end_without_blanks() {
        let mut t = table(&["host", "GB/s"], 1..);
        t.add_row(["n0", "9.5"]);
        t.add_row(["n10", "120.0"]);
        assert_eq!(text_of(&t), "host   GB/s\nn0      9.5\nn10   120.0\n");
    }
}
