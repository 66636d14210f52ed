//! The cluster file: YAML (JSON is valid YAML), written by hand or by `linkwise topology import`.
//!
//! [`schema`] defines the format. [`build`](self) converts a file to a [`Cluster`]; its errors name the line. [`write`]
//! converts a cluster to a file. `read(write(c)) == c`.

mod build;
pub mod schema;
mod write;

use crate::cluster::Cluster;
use crate::diagnose::{ReadError, did_you_mean};
use schema::ClusterFile;

/// Top-level keys, which identify a cluster file.
pub const TOP_LEVEL_KEYS: [&str; 4] = ["name", "network", "host_types", "hosts"];
/// Maximum nesting depth. The format needs 6 levels.
const DEPTH_MAX: usize = 24;
/// Maximum number of YAML nodes: enough for 65,536 hosts with 8 UUIDs and a dozen fields each.
const NODES_MAX: usize = 3_000_000;
/// Maximum number of YAML aliases. Files that linkwise writes have none.
const ALIASES_MAX: usize = 10_000;
/// Maximum number of YAML events that all aliases together repeat.
const REPLAYED_EVENTS_MAX: usize = 200_000;

/// Reads a cluster file. O(text). Memory is bounded by [`crate::read::FILE_SIZE_MAX`] and the limits above.
pub fn read(text: &str, file: &str) -> Result<Cluster, ReadError> {
    if text.len() > crate::read::FILE_SIZE_MAX {
        return Err(crate::read::too_large(file, crate::read::FILE_SIZE_MAX));
    }
    if text.trim().is_empty() {
        return Err(ReadError::in_file(
            file,
            "the file is empty",
            "name its hosts: `hosts: [{type: hgx-h100, count: 4}]`",
        ));
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_MAX,
            max_nodes: NODES_MAX,
            max_events: 3 * NODES_MAX,
            max_aliases: ALIASES_MAX,
            max_anchors: ALIASES_MAX,
            max_documents: 1,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: REPLAYED_EVENTS_MAX },
        strict_booleans: true,
        with_snippet: false,
    };
    let parsed: ClusterFile =
        serde_saphyr::from_str_with_options(text, options).map_err(|e| yaml_error(text, file, &e))?;
    build::cluster(parsed, text, file)
}

/// Writes a cluster file that reads back as the same cluster.
pub fn write(cluster: &Cluster) -> String {
    write::yaml(cluster)
}

/// Writes a cluster file as JSON, with every host type in full. JSON is YAML, so the text reads back as a cluster file.
pub fn to_json(cluster: &Cluster) -> String {
    write::json(cluster)
}

/// The JSON Schema of the cluster file, pretty-printed.
pub fn json_schema() -> String {
    let schema = schemars::schema_for!(ClusterFile);
    let mut text = serde_json::to_string_pretty(&schema).expect("a schema is plain JSON");
    text.push('\n');
    text
}

fn yaml_error(text: &str, file: &str, e: &serde_saphyr::Error) -> ReadError {
    use serde_saphyr::Error as E;
    let inner = e.without_snippet();
    let (line, column) = inner.location().map_or((1, 1), |l| (l.line() as usize, l.column() as usize));
    let (line, column) = (line.max(1), column.max(1));
    let quoted = |list: &[&str]| list.join(", ");
    let (message, remedy, len) = match inner {
        E::SerdeUnknownField { field, expected, .. } => {
            let near = did_you_mean(field, expected.iter().copied());
            let hint = near.map_or(String::new(), |n| format!("; did you mean `{n}`?"));
            (
                format!("unknown field `{field}`{hint}"),
                format!("known here: {}", quoted(expected)),
                field.chars().count(),
            )
        }
        E::SerdeUnknownVariant { variant, expected, .. } => {
            let near = did_you_mean(variant, expected.iter().copied());
            let hint = near.map_or(String::new(), |n| format!("; did you mean `{n}`?"));
            (
                format!("unknown value `{variant}`{hint}"),
                format!("known: {}", quoted(expected)),
                variant.chars().count(),
            )
        }
        E::SerdeMissingField { field, .. } => {
            (format!("the field `{field}` is missing"), format!("add `{field}:` to this entry"), 1)
        }
        E::Budget { .. }
        | E::AliasReplayLimitExceeded { .. }
        | E::AliasExpansionLimitExceeded { .. }
        | E::AliasReplayStackDepthExceeded { .. } => (
            format!(
                "more than a cluster file may hold ({NODES_MAX} values, {ALIASES_MAX} aliases, {DEPTH_MAX} levels)"
            ),
            "write entries out instead of nesting aliases; use `count:` or `name: n[0-99]` for many equal hosts".into(),
            1,
        ),
        other if other.to_string().contains("recursion limit") => (
            "lists or maps are nested too deeply".into(),
            format!("a cluster file needs 6 levels; {DEPTH_MAX} are possible"),
            1,
        ),
        other => (
            first_line(&other.to_string()).to_string(),
            "compare with `linkwise topology show h100 --format yaml` and `linkwise topology schema`".into(),
            1,
        ),
    };
    ReadError::at_line(file, text, line, column, len, message, remedy)
}

/// The first line of a message, without the position. The caller prints the position.
fn first_line(message: &str) -> &str {
    let line = message.lines().next().unwrap_or("");
    let line = line.strip_prefix("error: ").unwrap_or(line);
    match line.rfind(" at line ") {
        Some(p) => &line[..p],
        None => line,
    }
}
