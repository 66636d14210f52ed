//! Slurm's `topology.yaml` (25.05 and later): a list of topologies, each a `tree`, a `block` or `flat: true`.

use super::{FILE_BYTES_MAX, SWITCHES_MAX, Wiring, expand, slurm_conf, tree};
use serde::Deserialize;
use topology::ReadError;
use topology::file::schema::At;

/// Maximum depth of nesting; the format needs 6 levels.
const DEPTH_MAX: usize = 12;
/// Maximum number of YAML nodes: enough for 100,000 switches with three fields each.
const NODES_MAX: usize = 1_000_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Topology {
    topology: At<String>,
    #[serde(default)]
    cluster_default: bool,
    tree: Option<Tree>,
    block: Option<Block>,
    flat: Option<bool>,
    // Forms of later releases, so that the refusal can name them.
    ring: Option<serde_json::Value>,
    torus3d: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Tree {
    #[serde(default)]
    switches: Vec<At<Switch>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Switch {
    switch: String,
    children: Option<At<String>>,
    nodes: Option<At<String>>,
    #[serde(default, rename = "link_speed")]
    _link_speed: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Block {
    #[serde(default)]
    block_sizes: Vec<usize>,
    #[serde(default)]
    blocks: Vec<At<BlockOf>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BlockOf {
    block: String,
    nodes: Option<At<String>>,
}

/// Reads one topology of the file: the one `wanted`, or the cluster's default, or the only one. O(text + hosts).
pub fn read(text: &str, file: &str, wanted: Option<&str>) -> Result<Wiring, ReadError> {
    if text.len() > FILE_BYTES_MAX {
        return Err(topology::read::too_large(file, FILE_BYTES_MAX));
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_MAX,
            max_nodes: NODES_MAX,
            max_events: 3 * NODES_MAX,
            max_aliases: 0,
            max_anchors: 0,
            max_documents: 1,
        },
        strict_booleans: true,
        with_snippet: false,
    };
    let all: Vec<Topology> = serde_saphyr::from_str_with_options(text, options).map_err(|e| {
        let inner = e.without_snippet();
        let (line, column) = inner.location().map_or((1, 1), |l| (l.line() as usize, l.column() as usize));
        let message = inner.to_string();
        let message = message.lines().next().unwrap_or("").trim_start_matches("error: ").to_owned();
        let message = message.split(" at line ").next().unwrap_or("not YAML").to_owned();
        let remedy = "compare with the manual page topology.yaml(5): `- topology: NAME`, then `tree:` with `switches:`";
        ReadError::at_line(file, text, line.max(1), column.max(1), 1, message, remedy)
    })?;
    let names = || all.iter().map(|t| format!("`{}`", t.topology.value)).collect::<Vec<_>>().join(", ");
    let chosen = match wanted {
        Some(name) => all.iter().find(|t| t.topology.value == name),
        None => all.iter().find(|t| t.cluster_default).or(match &all[..] {
            [one] => Some(one),
            _ => None,
        }),
    };
    let Some(t) = chosen else {
        let message = match wanted {
            Some(name) => format!("no topology is named `{name}`; the file has {}", names()),
            None => format!("{} topologies ({}) and none has `cluster_default: true`", all.len(), names()),
        };
        return Err(ReadError::in_file(file, message, "name one with --topology"));
    };
    let here = |message: String, remedy: &str| {
        ReadError::at_line(file, text, t.topology.line, t.topology.column, 1, message, remedy)
    };
    let mut wiring = match (&t.tree, &t.block, t.flat) {
        (Some(tree), None, None | Some(false)) => of_tree(tree, text, file)?,
        (None, Some(block), None | Some(false)) => of_block(block, text, file)?,
        (None, None, Some(true)) => Wiring {
            notes: vec![format!("topology `{}` is flat: one switch over all hosts", t.topology.value)],
            ..Wiring::default()
        },
        _ if t.ring.is_some() || t.torus3d.is_some() => {
            let message =
                format!("topology `{}` is a ring or a torus; linkwise models trees of switches", t.topology.value);
            return Err(here(
                message,
                "choose another topology with --topology, or describe tiers in the cluster file",
            ));
        }
        _ => {
            let message = format!("topology `{}` has not exactly one of tree, block and flat", t.topology.value);
            return Err(here(message, "see the manual page topology.yaml(5)"));
        }
    };
    if all.len() > 1 {
        wiring.notes.push(format!("topology `{}` is taken, of {} (--topology)", t.topology.value, names()));
    }
    Ok(wiring)
}

fn hosts(list: &Option<At<String>>, text: &str, file: &str) -> Result<Vec<String>, ReadError> {
    let Some(list) = list else { return Ok(Vec::new()) };
    expand(&list.value).map_err(|e| {
        let len = list.value.chars().count();
        ReadError::at_line(file, text, list.line, list.column, len, e, "write it as Slurm does: n[0-15,17]")
    })
}

fn of_tree(t: &Tree, text: &str, file: &str) -> Result<Wiring, ReadError> {
    if t.switches.len() > SWITCHES_MAX {
        return Err(ReadError::in_file(file, format!("more than {SWITCHES_MAX} switches"), "split the site"));
    }
    let entry = |s: &At<Switch>| {
        Ok(tree::Entry {
            name: s.value.switch.clone(),
            line: s.line,
            children: hosts(&s.value.children, text, file)?,
            nodes: hosts(&s.value.nodes, text, file)?,
        })
    };
    let entries: Vec<tree::Entry> = t.switches.iter().map(entry).collect::<Result<_, _>>()?;
    tree::tiers(&entries).map_err(|w| ReadError::at_line(file, text, w.line, 1, 1, w.message, w.remedy))
}

fn of_block(b: &Block, text: &str, file: &str) -> Result<Wiring, ReadError> {
    let entry = |b: &At<BlockOf>| {
        let nodes = hosts(&b.value.nodes, text, file)?;
        Ok(tree::Entry { name: b.value.block.clone(), line: b.line, children: Vec::new(), nodes })
    };
    let blocks: Vec<tree::Entry> = b.blocks.iter().map(entry).collect::<Result<_, _>>()?;
    if blocks.is_empty() || blocks.len() > SWITCHES_MAX || b.block_sizes.contains(&0) {
        let message = format!("{} blocks of sizes {:?}", blocks.len(), b.block_sizes);
        return Err(ReadError::in_file(file, message, "1 block or more, of sizes above 0, were expected"));
    }
    slurm_conf::of_blocks(blocks, &b.block_sizes)
        .map_err(|w| ReadError::at_line(file, text, w.line, 1, 1, w.message, w.remedy))
}
