//! `gres.conf`: which device file each GPU index of Slurm is, and what the file says about cores and links.

use topology::{GPUS_PER_HOST_MAX, HOSTS_MAX, list};

/// Maximum size of the file, bytes.
pub const FILE_BYTES_MAX: usize = 4 << 20;

/// The GPUs of one node, in the order of Slurm's indices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeGpus {
    /// Name of the node; empty for a line without NodeName, which holds for every node.
    pub node: String,
    /// `Type=`; empty without one.
    pub gpu_type: String,
    /// Minor number of the device of every index; empty if a line has no `File=`.
    pub minors: Vec<u8>,
    /// `Cores=` of every index; empty texts without one.
    pub cores: Vec<String>,
    /// `Links=` of every index: number of links to every other GPU, -1 for itself.
    pub links: Vec<Vec<i32>>,
}

/// What is wrong with the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}, line {line}: {what}")]
pub struct BadGres {
    file: String,
    line: usize,
    what: String,
}

/// Reads `gres.conf`. Lines of other names than `gpu` are left out, as are `AutoDetect` and lines without a file: these give no
/// minor numbers. O(bytes + nodes).
pub fn read(text: &str, file: &str) -> Result<Vec<NodeGpus>, BadGres> {
    let mut all: Vec<NodeGpus> = Vec::new();
    let mut by_name: std::collections::HashMap<String, usize> = std::collections::HashMap::new();
    let bad = |line: usize, what: String| BadGres { file: file.into(), line, what };
    if text.len() > FILE_BYTES_MAX {
        return Err(bad(1, format!("the file has more than {FILE_BYTES_MAX} bytes")));
    }
    // A backslash at the end continues a line.
    let mut lines = text.lines().enumerate();
    while let Some((i, first)) = lines.next() {
        let mut line = first.to_owned();
        while line.ends_with('\\') {
            line.pop();
            line.push(' ');
            line.push_str(lines.next().map_or("", |l| l.1));
        }
        let line = line.split('#').next().unwrap_or_default();
        let get = |key: &str| {
            line.split_whitespace().find_map(|w| {
                let (k, v) = w.split_once('=')?;
                k.eq_ignore_ascii_case(key).then_some(v)
            })
        };
        if get("Name").is_none_or(|n| !n.eq_ignore_ascii_case("gpu")) {
            continue;
        }
        let wrong = |what: String| bad(i + 1, what);
        let files = match get("File") {
            Some(f) => minors(f).map_err(wrong)?,
            None => Vec::new(),
        };
        let names = match get("NodeName") {
            Some(n) => list::expand(n, HOSTS_MAX).map_err(|e| wrong(e.to_string()))?,
            None => vec![String::new()],
        };
        let links: Vec<i32> = match get("Links") {
            Some(l) => l
                .split(',')
                .map(|n| n.trim().parse())
                .collect::<Result<_, _>>()
                .map_err(|_| wrong(format!("Links={l} is no list of numbers")))?,
            None => Vec::new(),
        };
        if links.len() > GPUS_PER_HOST_MAX {
            return Err(wrong(format!("Links= has more than {GPUS_PER_HOST_MAX} numbers")));
        }
        for name in names {
            let at = *by_name.entry(name.clone()).or_insert_with(|| {
                all.push(NodeGpus { node: name, ..NodeGpus::default() });
                all.len() - 1
            });
            let node = &mut all[at];
            if node.minors.len() + files.len() > GPUS_PER_HOST_MAX {
                return Err(wrong(format!("a node has more than {GPUS_PER_HOST_MAX} GPUs")));
            }
            let twice = |(i, m): &(usize, &u8)| node.minors.contains(m) || files[..*i].contains(m);
            if let Some((_, twice)) = files.iter().enumerate().find(twice) {
                return Err(wrong(format!("the device with minor number {twice} is there twice for one node")));
            }
            node.gpu_type = get("Type").unwrap_or_default().to_owned();
            node.minors.extend(&files);
            node.cores.extend(files.iter().map(|_| get("Cores").unwrap_or_default().to_owned()));
            node.links.extend(files.iter().map(|_| links.clone()));
        }
    }
    // Slurm sorts the devices of a node by the number in their names before it gives them indices.
    for node in &mut all {
        let mut order: Vec<usize> = (0..node.minors.len()).collect();
        order.sort_by_key(|i| node.minors[*i]);
        node.cores = order.iter().map(|i| std::mem::take(&mut node.cores[*i])).collect();
        node.links = order.iter().map(|i| std::mem::take(&mut node.links[*i])).collect();
        node.minors.sort_unstable();
    }
    Ok(all)
}

/// `/dev/nvidia[0-3,6]`, several with commas: the numbers at the end of the names.
fn minors(files: &str) -> Result<Vec<u8>, String> {
    let names = list::expand(files, GPUS_PER_HOST_MAX).map_err(|e| format!("File={files}: {e}"))?;
    let minor = |name: &String| {
        let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        name[name.len() - digits..].parse::<u8>().map_err(|_| format!("File={name} does not end in a minor number"))
    };
    names.iter().map(minor).collect()
}

/// The GPUs of a node: its own lines, else those for every node.
pub fn of<'g>(all: &'g [NodeGpus], node: &str) -> Option<&'g NodeGpus> {
    all.iter().find(|n| n.node == node).or_else(|| all.iter().find(|n| n.node.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn indices_follow_the_device_files() {
        let text = "AutoDetect=off # comment\nNodeName=n[1-2] Name=gpu Type=a100 File=/dev/nvidia[4-5] Cores=16-31\n\
                    NodeName=n[1-2] Name=gpu Type=a100 File=/dev/nvidia[0-1] Cores=0-15 \\\n  Links=-1,4\nName=shard Count=4\n";
        let all = read(text, "gres.conf").unwrap();
        assert_eq!(all.len(), 2);
        let n2 = of(&all, "n2").unwrap();
        assert_eq!(
            (n2.minors.as_slice(), n2.cores[0].as_str(), n2.cores[3].as_str()),
            (&[0, 1, 4, 5][..], "0-15", "16-31")
        );
        assert_eq!((n2.links[0].as_slice(), n2.links[3].len()), (&[-1, 4][..], 0));
        assert_eq!(of(&all, "n9"), None);
        let every = read("Name=gpu File=/dev/nvidia0\n", "gres.conf").unwrap();
        assert_eq!(of(&every, "n9").unwrap().minors, [0]);
    }

    #[test]
    fn wrong_lines_are_named() {
        for (text, what) in [
            ("\nName=gpu File=/dev/nvidia", "line 2: File=/dev/nvidia does not end in a minor number"),
            ("Name=gpu File=/dev/nvidia[0-", "line 1"),
            (
                "Name=gpu File=/dev/nvidia0\nName=gpu File=/dev/nvidia0",
                "line 2: the device with minor number 0 is there twice",
            ),
            ("Name=gpu File=/dev/nvidia0 Links=a", "Links=a is no list"),
            ("Name=gpu File=/dev/nvidia999", "does not end in a minor number"),
        ] {
            let e = read(text, "gres.conf").unwrap_err().to_string();
            assert!(e.contains(what), "{text}: {e}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(NodeName=n\\[[0-9,-]{0,6}\\] )?(Name=gpu )?(File=/dev/x)?[ -~\n]{0,120}") {
            if let Ok(all) = read(&text, "f") {
                for n in all {
                    prop_assert!(n.minors.len() == n.cores.len() && n.minors.len() == n.links.len());
                }
            }
        }
    }
}
