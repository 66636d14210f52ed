//! What several commands need: loading a cluster by name or file.

use crate::failure::Failure;
use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};
use std::io::{IsTerminal, Read};
use std::ops::RangeBounds;
use std::path::Path;
use topology::{Cluster, ReadError, catalog, diagnose, file, read};

/// A built-in cluster by name, or a cluster file.
pub fn load_cluster(name_or_file: &str) -> Result<Cluster, Failure> {
    if let Some(c) = catalog::cluster(name_or_file) {
        return Ok(c);
    }
    let path = Path::new(name_or_file);
    if !path.exists() {
        return Err(no_such_cluster(name_or_file));
    }
    let bytes = read_limited(path, read::FILE_SIZE_MAX)?;
    let text = read::text(&bytes, name_or_file, read::FILE_SIZE_MAX).map_err(located)?;
    match read::detect(text) {
        Some(read::Kind::ClusterFile) | None => file::read(text, name_or_file).map_err(located),
        Some(kind) => Err(Failure::input(format!(
            "{name_or_file} is {kind} output, not a cluster file; make one of it: \
             linkwise topology import {name_or_file} -o cluster.yaml"
        ))),
    }
}

fn no_such_cluster(name: &str) -> Failure {
    let near = diagnose::did_you_mean(name, catalog::CLUSTERS);
    let hint = near.map_or(String::new(), |n| format!("; did you mean `{n}`?"));
    let is_type = catalog::host_type(name).is_some();
    let remedy = match is_type {
        true => format!("; `{name}` is a host type: write a file with `hosts: [{{type: {name}, count: 4}}]`"),
        false => String::new(),
    };
    Failure::input(format!(
        "`{name}` is neither a built-in cluster ({}) nor a file{hint}{remedy}",
        catalog::CLUSTERS.join(", ")
    ))
}

/// A file's bytes, but never more than `size_max`: the size is looked at first, and what has none (a pipe) is cut off.
pub fn read_limited(path: &Path, size_max: usize) -> Result<Vec<u8>, Failure> {
    let name = path.display().to_string();
    let meta = std::fs::metadata(path).map_err(|e| Failure::file("read", path, e))?;
    if meta.is_dir() {
        return Err(Failure::input(format!("{name} is a folder, a file was expected")));
    }
    if meta.len() > size_max as u64 {
        return Err(located(read::too_large(&name, size_max)));
    }
    let file = std::fs::File::open(path).map_err(|e| Failure::file("read", path, e))?;
    let mut bytes = Vec::new();
    file.take(size_max as u64 + 1).read_to_end(&mut bytes).map_err(|e| Failure::file("read", path, e))?;
    if bytes.len() > size_max {
        return Err(located(read::too_large(&name, size_max)));
    }
    Ok(bytes)
}

/// A reader's error as the command's failure.
pub fn located(e: ReadError) -> Failure {
    Failure::Located(miette::Report::new(e))
}

/// A text file of at most `bytes_max` bytes, as UTF-8.
pub fn read_text(path: &Path, bytes_max: usize) -> Result<String, Failure> {
    String::from_utf8(read_limited(path, bytes_max)?).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Failure::file("read", path, format!("it is not UTF-8 text (first bad byte at {at})"))
    })
}

/// For people or for scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Tables and sentences
    Text,
    /// JSON
    Json,
}

/// For people, for scripts, or to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DrawnFormat {
    /// Tables and sentences
    Text,
    /// JSON
    Json,
    /// A drawing
    Svg,
}

/// For people, for scripts, or as a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PageFormat {
    /// Tables and sentences
    Text,
    /// JSON
    Json,
    /// A page
    Html,
}

/// Writes a whole file or nothing: into a file beside it, then renamed.
pub fn write_atomically(path: &Path, text: &str) -> Result<(), Failure> {
    use std::io::Write;
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let fail = |e: &dyn std::fmt::Display| Failure::file("write", path, e);
    if path.is_dir() {
        return Err(fail(&"it is a folder"));
    }
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666)); // as any new file: the umask decides
    let mut file = builder.tempfile_in(folder).map_err(|e| fail(&e))?;
    file.write_all(text.as_bytes()).map_err(|e| fail(&e))?;
    file.as_file().sync_all().map_err(|e| fail(&e))?;
    file.persist(path).map_err(|e| fail(&e))?;
    Ok(())
}

/// Columns of text where there is no terminal, and the fewest that are used.
const WIDTH_DEFAULT: usize = 80;
const WIDTH_MIN: usize = 60;

/// Columns of the text on standard output: those of the terminal (60 at least), 80 without one.
pub fn text_width() -> usize {
    let out = std::io::stdout();
    if !out.is_terminal() {
        return WIDTH_DEFAULT;
    }
    match rustix::termios::tcgetwinsize(&out) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col).max(WIDTH_MIN),
        _ => WIDTH_DEFAULT,
    }
}

/// A paragraph in lines of at most [`text_width`] columns, those after the first indented by `indent`. Lines break at spaces
/// and, where a list is longer than a line, after its commas: lists of hosts and GPUs read back with the line ends in them.
pub fn wrap(text: &str, indent: usize) -> String {
    wrap_within(text, indent, text_width())
}

fn wrap_within(text: &str, indent: usize, width: usize) -> String {
    let later = " ".repeat(indent);
    let options = textwrap::Options::new(width)
        .subsequent_indent(&later)
        .wrap_algorithm(textwrap::WrapAlgorithm::FirstFit)
        .word_splitter(textwrap::WordSplitter::Custom(after_commas));
    let mut out = textwrap::wrap(text, options).join("\n");
    out.push('\n');
    out
}

/// Where a word may be broken.
fn after_commas(word: &str) -> Vec<usize> {
    word.match_indices(',').map(|(at, _)| at + 1).filter(|at| *at < word.len()).collect()
}

/// A table of the one style: a rule below the header alone, columns `numbers` set to the right, at most [`text_width`] columns
/// wide. [`shown`] prints it.
pub fn table<T: AsRef<str>>(header: &[T], numbers: impl RangeBounds<usize>) -> Table {
    let mut table = Table::new();
    let rule = LineStyle::none().fill('─').junction('─');
    table.load_style(TableStyle::new().header_separator(rule)).set_header(header.iter().map(AsRef::as_ref));
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(text_width().min(1000) as u16);
    for i in (0..header.len()).filter(|i| numbers.contains(i)) {
        if let Some(column) = table.column_mut(i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A table as text, with a line end and without blanks at the ends of lines.
pub fn shown(table: &Table) -> String {
    table.lines().map(|l| l.trim_end().to_owned() + "\n").collect()
}

/// A list of hosts or GPUs for the cell of a table: broken after spaces and commas into lines of at most `width` columns.
pub fn list_cell(list: &str, width: usize) -> String {
    wrap_within(list, 0, width).trim_end().to_owned()
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

    #[test]
    fn a_table_has_one_rule_and_no_blanks_at_the_ends_of_its_lines() {
        let mut t = table(&["job", "GB/s"], 1..);
        t.add_row(["a", "1.5"]);
        t.add_row(["b", "11.5"]);
        let text = shown(&t);
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(text.lines().all(|l| l == l.trim_end()) && text.contains(" 1.5\n"), "{text}");
    }
}
