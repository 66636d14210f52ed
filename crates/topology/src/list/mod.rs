//! Lists of hosts and GPUs. All options read and all texts print this notation.
//!
//! | text | meaning |
//! |---|---|
//! | `n0`, `n[0-3,7]`, `gpu-[001-016]`, `rack[0-1]-n[0-3]-ib` | hosts; padding is kept, the last bracket varies fastest
//! |
//! | `n0:3`, `n0:[0-3,6]`, `n[0-3]:[0-7]` | GPUs of one host or of several |
//! | `n0`, `n[0-3]` where GPUs are expected | all GPUs of these hosts |
//! | `GPU-8932f937-d72c` where GPUs are expected | a GPU by its UUID, if the cluster file has the UUID |
//!
//! Spaces, line ends and commas outside of brackets separate items. The brackets are those of Slurm's host lists. Older
//! releases of linkwise printed `n0{0-7}`, `n0:0-7` and `n0:0,2`; the reader also accepts these forms. (In `n0:0,2` the
//! `2` is GPU 2 of n0 unless the cluster has a host `2`.)
//!
//! GPUs are printed with as few items as possible; hosts with the same GPUs share an item. GPU indices are always
//! printed (`n[0-3]:[0-7]`, not `n[0-3]`), because a reader may not know the number of GPUs of a host. A printed list
//! reads back as the same allocation.
//!
//! Limits: a list has at most [`LIST_BYTES_MAX`] bytes; an item names at most [`HOSTS_PER_ITEM_MAX`] hosts (counted
//! before names are generated) with at most [`BRACKETS_MAX`] pairs of brackets; a list names at most [`NAMES_MAX`]
//! hosts.

mod error;
mod parse;
mod print;
#[cfg(test)]
mod tests;

pub use error::{ListError, ListErrorKind};

use crate::allocation::{Allocation, GPUS_PER_HOST_MAX, GpuId, GpuMask, HOSTS_MAX, HostId};
use crate::cluster::Cluster;
use crate::diagnose::did_you_mean;
use error::quote;
use parse::{Pattern, Piece, Pieces, Range};
use print::Fold;
use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

/// Maximum length of a list, bytes.
pub const LIST_BYTES_MAX: usize = 16 << 20;
/// Maximum number of hosts of one item.
pub const HOSTS_PER_ITEM_MAX: usize = HOSTS_MAX;
/// Maximum number of pairs of brackets in one host name.
pub const BRACKETS_MAX: usize = 4;
/// Maximum number of host names in one list: enough to list every GPU of the largest cluster separately.
pub const NAMES_MAX: usize = HOSTS_MAX * GPUS_PER_HOST_MAX;
/// Maximum length of a host name, bytes.
const NAME_BYTES_MAX: usize = 253;
/// Maximum number of hosts that are compared with a misspelt name.
const COMPARED_MAX: usize = 4096;
/// Maximum number of characters of a cluster's host list in a message.
const HOSTS_CHARS_MAX: usize = 60;

/// The names of a comma-separated host list, in order: `n[08-10],login` is n08, n09, n10, login. At most `names_max`
/// names. Names are not looked up in a cluster.
pub fn expand(list: &str, names_max: usize) -> Result<Vec<String>, ListError> {
    let within = |e: ListError| e.within(0, list);
    check_length(list)?;
    let mut names = Vec::new();
    for piece in Pieces::of_commas(list) {
        let piece = piece.map_err(within)?;
        let too_many = || {
            let message = format!("`{}` makes more than {names_max} names; that is the limit", quote(piece.text));
            ListError::new(ListErrorKind::TooLong, piece.at, message)
        };
        let add = |name: &str| {
            if names.len() >= names_max {
                return Err(too_many());
            }
            names.push(name.to_owned());
            Ok(())
        };
        Pattern::parse(piece.text, piece.at).and_then(|p| p.each(add)).map_err(within)?;
    }
    if names.is_empty() { Err(ListError::syntax(0, "no name")) } else { Ok(names) }
}

/// The shortest list that every release of Slurm reads, with the same names in the same order: one pair of brackets per item,
/// at its end, items separated by commas. O(bytes).
pub fn compress<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    print::fold(names, Fold::Slurm).join(",")
}

/// GPU indices in the form that follows the colon in an item: `3`, `[0-3,6]`; `[]` for the empty set.
pub fn indices(mask: GpuMask) -> String {
    let runs = runs(mask.iter());
    if mask.count() == 1 { runs } else { format!("[{runs}]") }
}

/// Numbers in ascending order without brackets, `0-3,6`.
pub fn runs(sorted: impl IntoIterator<Item = usize>) -> String {
    print::runs(sorted)
}

fn check_length(list: &str) -> Result<(), ListError> {
    if list.len() <= LIST_BYTES_MAX {
        return Ok(());
    }
    let message = format!("the list has {} bytes; at most {LIST_BYTES_MAX} are read", list.len());
    Err(ListError::new(ListErrorKind::TooLong, 0, message))
}

/// Reads lists of hosts and GPUs of one cluster. Building costs O(hosts); build it once for many lists.
pub struct ListReader<'a> {
    cluster: &'a Cluster,
    hosts: HashMap<&'a str, HostId>,
    uuids: OnceLock<HashMap<&'a str, GpuId>>,
}

impl<'a> ListReader<'a> {
    /// A reader for the hosts and GPUs of a cluster. O(hosts).
    pub fn new(cluster: &'a Cluster) -> Self {
        ListReader { cluster, hosts: cluster.host_index(), uuids: OnceLock::new() }
    }

    /// The cluster.
    pub fn cluster(&self) -> &'a Cluster {
        self.cluster
    }

    /// The host with this name.
    pub fn host(&self, name: &str) -> Result<HostId, ListError> {
        self.known_host(name, 0)
    }

    /// The hosts of a list in its order, without duplicates. O(names).
    pub fn hosts<'s>(&self, items: impl IntoIterator<Item = &'s str>) -> Result<Vec<HostId>, ListError> {
        let mut seen = HashSet::new();
        let mut out = Vec::new();
        self.each_piece(items, |piece, left| {
            if let Some(&host) = self.hosts.get(piece.text) {
                if seen.insert(host) {
                    out.push(host);
                }
                return Ok(1);
            }
            if let Some(colon) = piece.text.find(':') {
                let message = format!("`{}` names GPUs; hosts are expected here", quote(piece.text));
                return Err(ListError::syntax(piece.at + colon, message));
            }
            let mut names = 0;
            Pattern::parse(piece.text, piece.at)?.each(|name| {
                let host = self.known_host(name, piece.at)?;
                if seen.insert(host) {
                    out.push(host);
                }
                count(&mut names, left, piece)
            })?;
            Ok(names)
        })?;
        Ok(out)
    }

    /// The GPUs of a list. A host without GPU indices means all its GPUs. A GPU that is named twice is an error.
    /// O(names).
    pub fn gpus<'s>(&self, items: impl IntoIterator<Item = &'s str>) -> Result<Allocation, ListError> {
        self.gpus_in_order(items).map(Allocation::new)
    }

    /// As [`ListReader::gpus`], with hosts in the order in which the list first names them. This is the order of ranks.
    /// O(names).
    pub fn gpus_in_order<'s>(
        &self,
        items: impl IntoIterator<Item = &'s str>,
    ) -> Result<Vec<(HostId, GpuMask)>, ListError> {
        let mut places: HashMap<HostId, usize> = HashMap::new();
        let mut out: Vec<(HostId, GpuMask)> = Vec::new();
        let mut add = |host: HostId, mask: GpuMask, piece: Piece<'_>| {
            let place = *places.entry(host).or_insert(out.len());
            if place == out.len() {
                out.push((host, GpuMask::EMPTY));
            }
            let twice = GpuMask(out[place].1.0 & mask.0);
            if let Some(gpu) = twice.iter().next() {
                let name = self.cluster.gpu_name(GpuId { host, gpu: gpu as u8 });
                let again = if piece.text == name { String::new() } else { format!(" by `{}`", quote(piece.text)) };
                let message = format!("`{name}` is named twice{again}");
                return Err(ListError::new(ListErrorKind::DuplicateGpu, piece.at, message));
            }
            out[place].1 = out[place].1.union(mask);
            Ok(())
        };
        // The host of the previous item, if that item has one host and its GPUs are not in brackets.
        let mut before: Option<HostId> = None;
        self.each_piece(items, |piece, left| {
            let unbracketed = std::mem::take(&mut before);
            if let Some(&host) = self.hosts.get(piece.text) {
                add(host, self.cluster.type_of(host).all_gpus(), piece)?;
                return Ok(1);
            }
            let Some((names, gpus, at)) = split(piece)? else {
                if let (Some(host), true, Ok(list)) = (unbracketed, piece.after_comma, parse::ranges(piece.text, 0, 64))
                {
                    add(host, self.mask(host, &list, piece)?, piece)?;
                    before = Some(host);
                    return Ok(1);
                }
                if piece.text.contains(['[', ']']) {
                    let mut names = 0;
                    Pattern::parse(piece.text, piece.at)?.each(|name| {
                        let host = self.known_host(name, piece.at)?;
                        add(host, self.cluster.type_of(host).all_gpus(), piece)?;
                        count(&mut names, left, piece)
                    })?;
                    return Ok(names);
                }
                let gpu = self.uuid(piece)?;
                add(gpu.host, GpuMask(1 << gpu.gpu), piece)?;
                return Ok(1);
            };
            let bracketed = gpus.starts_with(['[', '{']);
            let inside = if bracketed { &gpus[1..gpus.len() - 1] } else { gpus };
            let list = parse::ranges(inside, at + usize::from(bracketed), HOSTS_PER_ITEM_MAX)?;
            if !names.contains('[') {
                let host = self.known_host(names, piece.at)?;
                add(host, self.mask(host, &list, piece)?, piece)?;
                before = (!bracketed).then_some(host);
                return Ok(1);
            }
            let mut named = 0;
            Pattern::parse(names, piece.at)?.each(|name| {
                let host = self.known_host(name, piece.at)?;
                add(host, self.mask(host, &list, piece)?, piece)?;
                count(&mut named, left, piece)
            })?;
            Ok(named)
        })?;
        Ok(out)
    }

    /// One GPU: `n0:3`, or a UUID.
    pub fn gpu(&self, text: &str) -> Result<GpuId, ListError> {
        let gpus = self.gpus([text])?;
        let mut all = gpus.gpus();
        match (all.next(), all.next()) {
            (Some(gpu), None) => Ok(gpu),
            _ => Err(ListError::new(
                ListErrorKind::UnknownGpu,
                0,
                format!("`{}` is not one GPU; write HOST:INDEX, for example {}:0", quote(text), self.example()),
            )),
        }
    }

    /// Calls `f` with every item and the number of names that the item may still produce. `f` returns the number of
    /// names produced.
    fn each_piece<'s>(
        &self,
        items: impl IntoIterator<Item = &'s str>,
        mut f: impl FnMut(Piece<'s>, usize) -> Result<usize, ListError>,
    ) -> Result<(), ListError> {
        let mut left = NAMES_MAX;
        for (i, text) in items.into_iter().enumerate() {
            check_length(text).map_err(|e| e.within(i, text))?;
            for piece in Pieces::new(text) {
                left -= piece.and_then(|p| f(p, left)).map_err(|e| e.within(i, text))?;
                if left == 0 {
                    let message = format!("the list names more than {NAMES_MAX} hosts; that is the limit");
                    return Err(ListError::new(ListErrorKind::TooLong, 0, message).within(i, text));
                }
            }
        }
        Ok(())
    }

    fn mask(&self, host: HostId, list: &[Range], piece: Piece<'_>) -> Result<GpuMask, ListError> {
        let n = self.cluster.type_of(host).gpu_count();
        let mut mask = GpuMask::EMPTY;
        for r in list {
            let fail = |kind, message: String| Err(ListError::new(kind, piece.at, message));
            if r.to as usize >= n {
                let name = &self.cluster.host(host).name;
                let message = format!("`{}`: host `{name}` has {}", quote(piece.text), gpus_in_words(n));
                return fail(ListErrorKind::UnknownGpu, message);
            }
            let more = GpuMask::from_indices(r.from as usize..=r.to as usize);
            if mask.0 & more.0 != 0 {
                let message = format!("`{}` names a GPU twice", quote(piece.text));
                return fail(ListErrorKind::DuplicateGpu, message);
            }
            mask = mask.union(more);
        }
        Ok(mask)
    }

    fn uuid(&self, piece: Piece<'_>) -> Result<GpuId, ListError> {
        let uuids = self.uuids.get_or_init(|| {
            let of = |host: HostId| {
                let gpu = move |(g, u): (usize, &'a String)| (u.as_str(), GpuId { host, gpu: g as u8 });
                self.cluster.host(host).gpu_uuids.iter().enumerate().map(gpu)
            };
            self.cluster.host_ids().flat_map(of).filter(|(u, _)| !u.is_empty()).collect()
        });
        uuids.get(piece.text).copied().ok_or_else(|| {
            let (text, host) = (quote(piece.text), self.example());
            let brackets = match parse::ranges(piece.text, 0, 64) {
                Ok(_) if piece.after_comma => format!("; write several GPUs of a host in brackets, {host}:[0,{text}]"),
                _ => String::new(),
            };
            let message = format!(
                "`{text}` names no GPU: the cluster has no host and no GPU UUID of that name{}{brackets}; write a host \
                 ({host}), or HOST:INDEX ({host}:0, {host}:[0-3])",
                self.near(piece.text)
            );
            ListError::new(ListErrorKind::UnknownGpu, piece.at, message)
        })
    }

    fn known_host(&self, name: &str, at: usize) -> Result<HostId, ListError> {
        self.hosts.get(name).copied().ok_or_else(|| {
            if name.is_empty() {
                return ListError::syntax(at, "a host name is missing");
            }
            let mut known = self.cluster.host_list(self.cluster.host_ids());
            if let Some((cut, _)) = known.char_indices().nth(HOSTS_CHARS_MAX) {
                known.truncate(cut);
                known.push_str("...");
            }
            let message = format!(
                "cluster `{}` has no host `{}` (its hosts are {known}){}",
                quote(&self.cluster.name),
                quote(name),
                self.near(name)
            );
            ListError::new(ListErrorKind::UnknownHost, at, message)
        })
    }

    /// `; did you mean ...?`: the host with the same numbers and different padding, otherwise the host with similar
    /// letters. A host that differs only in its number is not suggested.
    fn near(&self, name: &str) -> String {
        let hosts = || self.cluster.hosts.iter().take(COMPARED_MAX).map(|h| h.name.as_str());
        let letters = |s: &str| s.replace(|c: char| c.is_ascii_digit(), "");
        let padded = hosts().find(|h| unpadded(h) == unpadded(name));
        let spelt = || did_you_mean(name, hosts().filter(|h| letters(h) != letters(name)));
        padded.or_else(spelt).map_or(String::new(), |h| format!("; did you mean `{h}`?"))
    }

    fn example(&self) -> &'a str {
        self.cluster.hosts.first().map_or("n0", |h| &h.name)
    }
}

/// Counts one more name of an item. Fails if the item has more than `left` names.
fn count(names: &mut usize, left: usize, piece: Piece<'_>) -> Result<(), ListError> {
    *names += 1;
    if *names <= left {
        return Ok(());
    }
    let message = format!("`{}`: the list names more than {NAMES_MAX} hosts; that is the limit", quote(piece.text));
    Err(ListError::new(ListErrorKind::TooLong, piece.at, message))
}

/// Text of the hosts, text of the GPUs, and offset of the GPUs in `n0:[0-3]`, `n0:0-3`, `n0{0-3}`; `None` for an item
/// without GPUs.
fn split(piece: Piece<'_>) -> Result<Option<(&str, &str, usize)>, ListError> {
    let (text, at) = (piece.text, piece.at);
    if let Some(colon) = text.find(':') {
        let (names, gpus) = (&text[..colon], &text[colon + 1..]);
        let whole = |open, close| gpus.len() > 1 && gpus.starts_with(open) && gpus.ends_with(close);
        let plain = !gpus.is_empty() && !gpus.contains(['[', ']', '{', '}', ':']);
        if names.is_empty() {
            return Err(ListError::syntax(at, format!("`{}` has no host before the colon", quote(text))));
        }
        if !(plain || whole('[', ']') || whole('{', '}')) {
            let message = format!("`{}` is not HOST:INDEX; write for example n0:3 or n0:[0-3,6]", quote(text));
            return Err(ListError::syntax(at + colon, message));
        }
        return Ok(Some((names, gpus, at + colon + 1)));
    }
    match text.find('{') {
        Some(open) if text.ends_with('}') && open > 0 => Ok(Some((&text[..open], &text[open..], at + open))),
        _ => Ok(None),
    }
}

fn gpus_in_words(n: usize) -> String {
    match n {
        1 => "one GPU, 0".to_owned(),
        n => format!("GPUs 0 to {}", n - 1),
    }
}

/// The name without leading zeros in its numbers.
fn unpadded(name: &str) -> String {
    let mut out = String::new();
    let mut number = false;
    let mut chars = name.chars().peekable();
    while let Some(c) = chars.next() {
        let leading = c == '0' && !number && chars.peek().is_some_and(char::is_ascii_digit);
        if !leading {
            out.push(c);
            number = c.is_ascii_digit();
        }
    }
    out
}

impl Cluster {
    /// GPUs in the notation of [`crate::list`], with as few items as possible: `n[0-3]:[0-7] n7:3`. O(GPUs).
    pub fn gpu_list(&self, allocation: &Allocation) -> String {
        let mut places: HashMap<GpuMask, usize> = HashMap::new();
        let mut groups: Vec<(GpuMask, Vec<HostId>)> = Vec::new();
        for &(host, mask) in allocation.parts() {
            let place = *places.entry(mask).or_insert(groups.len());
            match groups.get_mut(place) {
                Some(group) => group.1.push(host),
                None => groups.push((mask, vec![host])),
            }
        }
        self.items(groups.into_iter(), Fold::Set)
    }

    /// As [`Cluster::gpu_list`], with hosts in the given order (the order of ranks). Consecutive hosts with the same
    /// GPUs share an item. O(GPUs).
    pub fn gpu_list_in_order(&self, hosts: &[(HostId, GpuMask)]) -> String {
        let groups = hosts.chunk_by(|a, b| a.1 == b.1).map(|g| (g[0].1, g.iter().map(|p| p.0).collect()));
        self.items(groups, Fold::Ordered)
    }

    fn items(&self, groups: impl Iterator<Item = (GpuMask, Vec<HostId>)>, how: Fold) -> String {
        let of = |(mask, hosts): (GpuMask, Vec<HostId>)| {
            let gpus = indices(mask);
            let names = print::fold(hosts.iter().map(|h| self.host(*h).name.as_str()), how);
            names.into_iter().map(move |n| format!("{n}:{gpus}")).collect::<Vec<_>>()
        };
        groups.flat_map(of).collect::<Vec<_>>().join(" ")
    }

    /// Hosts in the notation of [`crate::list`], with as few items as possible: `n[0-3] login`. O(hosts).
    pub fn host_list(&self, hosts: impl IntoIterator<Item = HostId>) -> String {
        print::fold(hosts.into_iter().map(|h| self.host(h).name.as_str()), Fold::Set).join(" ")
    }

    /// As [`Cluster::host_list`], with hosts in the given order. O(hosts).
    pub fn host_list_in_order(&self, hosts: impl IntoIterator<Item = HostId>) -> String {
        print::fold(hosts.into_iter().map(|h| self.host(h).name.as_str()), Fold::Ordered).join(" ")
    }

    /// Reads a list of GPUs in the notation of [`crate::list`]. Builds a [`ListReader`], O(hosts).
    pub fn parse_gpus<'s>(&self, items: impl IntoIterator<Item = &'s str>) -> Result<Allocation, ListError> {
        ListReader::new(self).gpus(items)
    }
}
