//! A report in one HTML file: text, tables and plots, readable on a light and on a dark screen and in print. The page loads
//! nothing from the network. Functions take data and return text: no clock, no files.
//!
//! Names come from files and may be hostile: everything is escaped, external drawings are shown as images (browsers run no
//! script in images), and the page's security policy forbids every connection.

mod axis;
mod draw;
mod plot;
mod text;

pub use axis::Axis;
pub use plot::{BarSeries, DrawError, Place, Plot, Series};

use minijinja::{Environment, context};
use serde::Serialize;

pub use text::significant;

/// One line of external text, made safe: no control characters, no direction overrides, a limited number of characters.
pub fn one_line(from_outside: &str, chars_max: usize) -> String {
    text::line(from_outside, chars_max)
}

/// Maximum number of sections of one report; further ones are an error of the caller and are omitted.
pub const SECTIONS_MAX: usize = 50;
/// Maximum number of rows of one table; further ones are omitted and counted.
pub const TABLE_ROWS_MAX: usize = 500;
/// Maximum number of columns of one table; further ones are omitted.
pub const TABLE_COLUMNS_MAX: usize = 24;
/// Largest drawing, in bytes; a larger one is replaced by a sentence.
pub const DRAWING_BYTES_MAX: usize = 400_000;

/// One page.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// The heading and the window's title.
    pub title: String,
    /// One sentence under the heading.
    pub subtitle: String,
    /// Origin of the page, printed at its end: program, version, command, seed, data.
    pub generated_from: String,
    /// The parts, in order.
    pub sections: Vec<Section>,
}

/// A part of a report: a heading, then text, table, plots, drawings and preformatted output; each may be empty.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Section {
    /// The heading.
    pub heading: String,
    /// Plain text.
    pub paragraphs: Vec<String>,
    /// One table.
    pub table: Option<Table>,
    /// Plots, in order.
    pub plots: Vec<Plot>,
    /// Drawings from other crates (a cluster, for example), after the plots.
    pub drawings: Vec<Drawing>,
    /// A command and its output, line breaks kept.
    pub pre: Option<String>,
}

/// A table of text; columns of numbers are aligned right.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Table {
    /// A sentence above the table; may be empty.
    pub caption: String,
    /// The names of the columns.
    pub head: Vec<String>,
    /// The rows; short ones are filled with empty cells.
    pub rows: Vec<Vec<String>>,
}

/// A complete SVG document from another crate.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawing {
    /// A description of its content, for screen readers.
    pub alt: String,
    /// The `<svg>` document; it needs a background, because it does not use the page's colours.
    pub svg: String,
}

/// The reason why a report could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A plot could not be drawn.
    #[error(transparent)]
    Draw(#[from] DrawError),
    /// The page's template failed: an error in this program, not in the data.
    #[error("cannot fill in the report's template: {0}")]
    Template(#[from] minijinja::Error),
}

#[derive(Serialize)]
struct Cell {
    text: String,
    right: bool,
}

#[derive(Serialize)]
struct TableView {
    caption: String,
    head: Vec<Cell>,
    rows: Vec<Vec<Cell>>,
    left_out: usize,
}

#[derive(Serialize, Default)]
struct Figure {
    svg: String,
    alt: String,
    data: String,
    caption: String,
}

#[derive(Serialize)]
struct SectionView {
    heading: String,
    paragraphs: Vec<String>,
    table: Option<TableView>,
    figures: Vec<Figure>,
    pre: Option<String>,
}

impl Report {
    /// The page as HTML text. O(size of the data); plots are thinned and tables cut as their limits say, so the page stays small.
    ///
    /// # Errors
    /// [`ReportError`]. No data in this module's tests cause one.
    pub fn html(&self) -> Result<String, ReportError> {
        let sections =
            self.sections.iter().take(SECTIONS_MAX).map(Section::view).collect::<Result<Vec<_>, ReportError>>()?;
        let mut environment = Environment::new();
        // The name ends in .html: minijinja escapes every value unless the template says otherwise.
        environment.add_template("report.html", include_str!("template.html"))?;
        let page = environment.get_template("report.html")?.render(context! {
            title => text::line(&self.title, text::CELL_CHARS_MAX),
            subtitle => text::line(&self.subtitle, text::CELL_CHARS_MAX),
            generated_from => text::line(&self.generated_from, text::CELL_CHARS_MAX),
            sections => minijinja::value::Serde(&sections),
        })?;
        Ok(page)
    }
}

impl Section {
    fn view(&self) -> Result<SectionView, ReportError> {
        let plots = self.plots.iter().map(|p| -> Result<Figure, ReportError> {
            Ok(Figure { svg: p.svg(Place::Page)?, caption: p.notes().join("; "), ..Figure::default() })
        });
        let drawings = self.drawings.iter().map(|d| Ok(d.view()));
        Ok(SectionView {
            heading: text::line(&self.heading, text::CELL_CHARS_MAX),
            paragraphs: self.paragraphs.iter().map(|p| text::block(p, text::BLOCK_CHARS_MAX)).collect(),
            table: self.table.as_ref().map(Table::view),
            figures: plots.chain(drawings).collect::<Result<_, _>>()?,
            pre: self.pre.as_ref().map(|p| text::block(p, text::BLOCK_CHARS_MAX)),
        })
    }
}

impl Table {
    fn view(&self) -> TableView {
        let columns = self.head.len().min(TABLE_COLUMNS_MAX);
        let rows = &self.rows[..self.rows.len().min(TABLE_ROWS_MAX)];
        let is_right: Vec<bool> = (0..columns).map(|c| self.holds_numbers(c)).collect();
        let cell = |row: &[String], c: usize| Cell {
            text: text::line(row.get(c).map_or("", String::as_str), text::CELL_CHARS_MAX),
            right: is_right[c],
        };
        TableView {
            caption: text::line(&self.caption, text::CELL_CHARS_MAX),
            head: (0..columns).map(|c| cell(&self.head, c)).collect(),
            rows: rows.iter().map(|row| (0..columns).map(|c| cell(row, c)).collect()).collect(),
            left_out: self.rows.len() - rows.len(),
        }
    }

    /// True when every filled cell of the column starts like a number (`12`, `-3.5 %`, `+1`, `–`) and at least one does.
    fn holds_numbers(&self, column: usize) -> bool {
        let mut filled = self.rows.iter().filter_map(|r| r.get(column)).map(|c| c.trim()).filter(|c| !c.is_empty());
        let number = |c: &str| {
            let digits = c.trim_start_matches(['-', '+', '−', '<', '>', '±', ' ']);
            digits.starts_with(|d: char| d.is_ascii_digit()) && !digits.contains([':', '+'])
                || matches!(c, "–" | "-" | "—")
        };
        let mut any = false;
        filled.all(|c| {
            any = true;
            number(c)
        }) && any
    }
}

impl Drawing {
    fn view(&self) -> Figure {
        let alt = text::line(&self.alt, text::CELL_CHARS_MAX);
        if self.svg.len() > DRAWING_BYTES_MAX {
            return Figure { caption: format!("{alt}: the drawing is too large for this page"), ..Figure::default() };
        }
        Figure { data: data_url(&self.svg), caption: alt.clone(), alt, svg: String::new() }
    }
}

/// An SVG document as a `data:` address: everything but letters, digits and a few harmless marks is percent-encoded.
fn data_url(svg: &str) -> String {
    let mut out = String::with_capacity(svg.len() * 2);
    out.push_str("data:image/svg+xml;charset=utf-8,");
    for byte in svg.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'/' | b':' | b'=' | b',' | b';' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests;
