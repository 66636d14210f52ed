//! Slurm's `topology.conf`: `SwitchName=s0 Nodes=n[0-15]`, `SwitchName=s4 Switches=s[0-3]`, or `BlockName=b0
//! Nodes=n[0-17]` with `BlockSizes=18,36`. Keys ignore case; `#` begins a comment; `\` at the end continues a line.
//! Topograph also writes this form.

use super::{FILE_BYTES_MAX, SWITCHES_MAX, WiredSwitch, WiredTier, Wiring, expand, sort_hosts, tree};
use topology::ReadError;
use topology::diagnose::did_you_mean;

const KEYS: [&str; 6] = ["SwitchName", "Switches", "Nodes", "LinkSpeed", "BlockName", "BlockSizes"];

/// One `Key=value` and its position.
struct Pair<'t> {
    key: &'static str,
    value: &'t str,
    /// Byte offset of the value in the file.
    at: usize,
}

/// Reads the file. O(text + hosts).
pub fn read(text: &str, file: &str) -> Result<Wiring, ReadError> {
    if text.len() > FILE_BYTES_MAX {
        return Err(topology::read::too_large(file, FILE_BYTES_MAX));
    }
    let at = |offset, len, message: String, remedy: &str| ReadError::at(file, text, offset, len, message, remedy);
    let mut switches: Vec<tree::Entry> = Vec::new();
    let mut blocks: Vec<(tree::Entry, usize)> = Vec::new();
    let mut sizes: Vec<usize> = Vec::new();
    for (line, pairs) in lines(text, file)? {
        let find = |key: &str| pairs.iter().find(|p| p.key == key);
        let list = |key: &str| match find(key) {
            Some(p) => expand(p.value).map_err(|e| at(p.at, p.value.len(), e, "write it as Slurm does: n[0-15,17]")),
            None => Ok(Vec::new()),
        };
        if let Some(p) = find("BlockSizes") {
            for size in p.value.split(',') {
                let size = size.trim().parse::<usize>().ok().filter(|n| *n > 0);
                let remedy = "numbers of nodes, ascending: BlockSizes=18,36";
                let wrong =
                    || at(p.at, p.value.len(), format!("BlockSizes: `{}` is no list of numbers", p.value), remedy);
                sizes.push(size.ok_or_else(wrong)?);
            }
            continue;
        }
        let named = find("SwitchName").or_else(|| find("BlockName"));
        let Some(named) = named else {
            let first = &pairs[0];
            let message = format!("a line of {} without SwitchName or BlockName", first.key);
            return Err(at(first.at, first.value.len(), message, "begin the line with SwitchName= or BlockName="));
        };
        let entry = tree::Entry { name: named.value.into(), line, children: list("Switches")?, nodes: list("Nodes")? };
        if switches.len() + blocks.len() >= SWITCHES_MAX {
            return Err(at(
                named.at,
                named.value.len(),
                format!("more than {SWITCHES_MAX} switches"),
                "split the site",
            ));
        }
        match named.key {
            "BlockName" => blocks.push((entry, named.at)),
            // `SwitchName=DEFAULT` sets defaults of later lines; linkwise uses none of them.
            _ if named.value.eq_ignore_ascii_case("default") => {}
            _ => switches.push(entry),
        }
    }
    match (switches.is_empty(), blocks.is_empty()) {
        (true, true) => Err(ReadError::in_file(
            file,
            "no SwitchName and no BlockName",
            "give Slurm's topology.conf; `scontrol show topology` prints another form",
        )),
        (false, false) => {
            let (block, offset) = &blocks[0];
            let message = format!("the file has switches and the block `{}`", block.name);
            Err(at(
                *offset,
                block.name.len(),
                message,
                "Slurm has one plugin per file: topology/tree or topology/block",
            ))
        }
        (false, true) => {
            tree::tiers(&switches).map_err(|w| ReadError::at_line(file, text, w.line, 1, 1, w.message, w.remedy))
        }
        (true, false) => of_blocks(blocks.into_iter().map(|b| b.0).collect(), &sizes)
            .map_err(|w| ReadError::at_line(file, text, w.line, 1, 1, w.message, w.remedy)),
    }
}

/// The lines with pairs, each with the number of its first line in the file.
fn lines<'t>(text: &'t str, file: &str) -> Result<Vec<(usize, Vec<Pair<'t>>)>, ReadError> {
    let mut out: Vec<(usize, Vec<Pair<'t>>)> = Vec::new();
    let mut continued = false;
    let mut offset = 0;
    for (i, raw) in text.split_inclusive('\n').enumerate() {
        let start = offset;
        offset += raw.len();
        let line = raw.split('#').next().unwrap_or("").trim_end();
        let (line, goes_on) = match line.strip_suffix('\\') {
            Some(l) => (l, true),
            None => (line, false),
        };
        let mut pairs = Vec::new();
        for word in line.split_whitespace() {
            let at = start + (word.as_ptr() as usize - raw.as_ptr() as usize);
            let Some((key, value)) = word.split_once('=') else {
                let message = format!("`{}` is no Key=value", short(word));
                return Err(ReadError::at(
                    file,
                    text,
                    at,
                    word.chars().count(),
                    message,
                    "for instance SwitchName=s0 Nodes=n[0-15]",
                ));
            };
            let Some(known) = KEYS.iter().find(|k| k.eq_ignore_ascii_case(key)) else {
                let near = did_you_mean(key, KEYS).map_or(String::new(), |k| format!("; did you mean {k}?"));
                let message = format!("unknown key `{}`{near}", short(key));
                let remedy = format!("known: {}", KEYS.join(", "));
                return Err(ReadError::at(file, text, at, key.chars().count(), message, remedy));
            };
            pairs.push(Pair { key: known, value, at: at + key.len() + 1 });
        }
        match out.last_mut().filter(|_| continued) {
            Some((_, last)) => last.extend(pairs),
            None if pairs.is_empty() => {}
            None => out.push((i + 1, pairs)),
        }
        continued = goes_on;
    }
    out.retain(|(_, pairs)| !pairs.is_empty());
    Ok(out)
}

fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

/// The tiers of blocks: the blocks, then for each larger size groups of consecutive blocks.
pub(super) fn of_blocks(mut blocks: Vec<tree::Entry>, sizes: &[usize]) -> Result<Wiring, tree::Wrong> {
    let mut wiring = Wiring::default();
    let mut of_node: std::collections::HashMap<String, String> = std::collections::HashMap::new();
    for b in &mut blocks {
        if b.nodes.is_empty() {
            let message = format!("block `{}` has no Nodes", b.name);
            return Err(tree::Wrong { line: b.line, message, remedy: "name its nodes: Nodes=n[0-17]" });
        }
        sort_hosts(&mut b.nodes);
        for n in &b.nodes {
            if let Some(other) = of_node.insert(n.clone(), b.name.clone()) {
                let message = format!("`{n}` is in block `{other}` and in block `{}`", b.name);
                return Err(tree::Wrong { line: b.line, message, remedy: "a node has one block" });
            }
        }
        wiring.hosts.extend(b.nodes.iter().cloned());
    }
    let base = sizes.first().copied().unwrap_or_else(|| blocks.iter().map(|b| b.nodes.len()).max().unwrap_or(1));
    let mut tier = |name: String, per_group: usize| {
        let switches: Vec<WiredSwitch> = blocks
            .chunks(per_group.max(1))
            .map(|group| {
                let mut hosts: Vec<String> = group.iter().flat_map(|b| b.nodes.iter().cloned()).collect();
                sort_hosts(&mut hosts);
                let name = match group {
                    [one] => one.name.clone(),
                    [first, .., last] => format!("{}..{}", first.name, last.name),
                    [] => String::new(),
                };
                WiredSwitch { name, hosts }
            })
            .collect();
        if switches.len() > 1 && wiring.tiers.len() < super::TIERS_MAX {
            wiring.tiers.push(WiredTier { name, switches, oversubscription: None });
        }
    };
    tier("block".into(), 1);
    let larger: Vec<usize> = sizes.iter().skip(1).map(|s| s / base.max(1)).filter(|n| *n > 1).collect();
    for (i, n) in larger.iter().enumerate() {
        if i > 0 && n % larger[i - 1] != 0 {
            continue;
        }
        tier(format!("blocks-of-{n}"), *n);
    }
    wiring.notes.push(
        "blocks are taken as switches; where a block is one NVLink domain over several hosts (NVL72), linkwise does not see that its hosts share NVLink"
            .into(),
    );
    Ok(wiring)
}
