//! A table of results: for the terminal, as JSON, for the page.

use ::report::{Section, Table};
use console::wrap;
use lab_kit::output::table;
use serde_json::{Value, json};

/// One table with its title and notes.
pub struct Sheet {
    /// One word for scripts.
    pub name: &'static str,
    /// The content of the table.
    pub title: String,
    /// Columns; the first is the varied quantity.
    pub columns: Vec<String>,
    pub rows: Vec<Vec<Cell>>,
    /// Conclusions and limits.
    pub notes: Vec<String>,
}

/// One cell.
pub enum Cell {
    /// Text.
    Text(String),
    /// A number, and its number of decimals.
    Number(f64, usize),
}

impl From<&str> for Cell {
    fn from(s: &str) -> Self {
        Cell::Text(s.into())
    }
}
impl From<String> for Cell {
    fn from(s: String) -> Self {
        Cell::Text(s)
    }
}

/// A ratio with two decimals.
pub fn ratio(v: f64) -> Cell {
    Cell::Number(v, 2)
}

impl Cell {
    fn text(&self) -> String {
        match self {
            Cell::Text(t) => t.clone(),
            Cell::Number(v, _) if !v.is_finite() => "-".into(),
            Cell::Number(v, decimals) => format!("{v:.decimals$}"),
        }
    }
    fn json(&self) -> Value {
        match self {
            Cell::Text(t) => json!(t),
            Cell::Number(v, _) => json!(v.is_finite().then_some(*v)),
        }
    }
}

impl Sheet {
    /// An empty table.
    pub fn new(name: &'static str, title: impl Into<String>, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|c| c.to_string()).collect();
        Sheet { name, title: title.into(), columns, rows: Vec::new(), notes: Vec::new() }
    }
    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }
    /// Adds a sentence.
    pub fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }
    /// Prints the table to standard output.
    pub fn print(&self) {
        print!("{}", wrap(&self.title, 2));
        if !self.rows.is_empty() {
            let rows = self.rows.iter().map(|row| row.iter().map(Cell::text).collect());
            print!("{}", table(&self.columns, 1, rows));
        }
        for note in &self.notes {
            print!("{}", wrap(note, 2));
        }
        println!();
    }
    /// The table as JSON.
    pub fn json(&self) -> Value {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|r| Value::Object(self.columns.iter().cloned().zip(r.iter().map(Cell::json)).collect()))
            .collect();
        json!({"name": self.name, "title": self.title, "modelled": true, "rows": rows, "notes": self.notes})
    }
    /// The table as a section of a page.
    pub fn section(&self) -> Section {
        Section {
            heading: self.title.clone(),
            paragraphs: self.notes.clone(),
            table: Some(Table {
                caption: String::new(),
                head: self.columns.clone(),
                rows: self.rows.iter().map(|r| r.iter().map(Cell::text).collect()).collect(),
            }),
            ..Section::default()
        }
    }
}
