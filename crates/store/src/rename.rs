//! Renamed hosts: the same hardware under another name, as the operator says.
//!
//! Stores, states and models know hosts by name, so a renamed host otherwise counts as one removed and one added. A
//! [`Renames`] names both. A repetition changes nothing: a host that already has its new name is left alone. For this
//! reason an old name must not be in the new cluster file, and two hosts cannot swap their names in one step.

use crate::db::{Sql, SqlError, vals};
use crate::error::StoreError;
use crate::identity::type_text;
use crate::rows::allocation_text;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use topology::allocation::GPUS_PER_HOST_MAX;
use topology::names::hostlist;
use topology::{Allocation, Cluster, GpuMask, HOSTS_MAX, HostId};

/// New names of hosts, by old name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Renames(BTreeMap<String, String>);

impl Renames {
    /// Reads `OLD=NEW`; both may be host lists of equal length, `n[0-3]=gpu-[0-3]`.
    ///
    /// # Errors
    /// A sentence: no `=`, unequal lengths, a name twice.
    pub fn parse<'t>(texts: impl IntoIterator<Item = &'t str>) -> Result<Renames, String> {
        let (mut out, mut new_names) = (BTreeMap::new(), BTreeSet::new());
        for text in texts {
            let (old, new) = text.split_once('=').ok_or_else(|| format!("`{text}` is not OLD=NEW"))?;
            let list = |t: &str| hostlist::expand(t.trim(), HOSTS_MAX).map_err(|e| e.to_string());
            let (old, new) = (list(old)?, list(new)?);
            if old.len() != new.len() || old.is_empty() {
                return Err(format!("`{text}` has {} old names and {} new ones", old.len(), new.len()));
            }
            for (old, new) in old.into_iter().zip(new) {
                if !new_names.insert(new.clone()) {
                    return Err(format!("two hosts would be named `{new}`"));
                }
                if out.insert(old.clone(), new).is_some() {
                    return Err(format!("`{old}` would get two names"));
                }
            }
        }
        if let Some(both) = new_names.iter().find(|n| out.contains_key(*n)) {
            return Err(format!(
                "`{both}` is an old and a new name; give its host another name first, one that no host has (a swap of two \
                 names takes three commands)"
            ));
        }
        Ok(Renames(out))
    }

    /// True if no host is renamed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// New names by old name.
    pub fn names(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    /// Checks that the new cluster has the new names and none of the old ones.
    pub fn check(&self, new: &Cluster) -> Result<(), String> {
        let index = new.host_index();
        for (old, renamed) in &self.0 {
            if index.contains_key(old.as_str()) {
                return Err(format!(
                    "cluster `{}` still has host `{old}`; a renamed host has its new name only",
                    new.name
                ));
            }
            if !index.contains_key(renamed.as_str()) {
                return Err(format!("cluster `{}` has no host `{renamed}`, the new name of `{old}`", new.name));
            }
        }
        Ok(())
    }

    /// The renames that `before` does not have yet, after [`Renames::check`].
    ///
    /// # Errors
    /// A sentence: `before` has neither name, or both, or the hardware differs.
    pub(crate) fn left(&self, before: &Cluster, new: &Cluster) -> Result<Renames, String> {
        self.check(new)?;
        let (was, is) = (before.host_index(), new.host_index());
        let mut left = BTreeMap::new();
        for (old, renamed) in &self.0 {
            let (had, has) = (was.get(old.as_str()), was.get(renamed.as_str()));
            let had = match (had, has) {
                (Some(h), None) => *h,
                (None, Some(_)) => continue, // renamed before
                (Some(_), Some(_)) => {
                    return Err(format!("`{old}` and `{renamed}` are two hosts of cluster `{}`", before.name));
                }
                (None, None) => return Err(format!("cluster `{}` had no host `{old}`", before.name)),
            };
            let (a, b) = (type_text(before, had), type_text(new, is[renamed.as_str()]));
            if a != b {
                return Err(format!("`{old}` is a {a}, `{renamed}` a {b}: a renamed host keeps its hardware"));
            }
            left.insert(old.clone(), renamed.clone());
        }
        Ok(Renames(left))
    }

    /// The cluster with the new names.
    pub fn apply(&self, cluster: &Cluster) -> Cluster {
        let mut c = cluster.clone();
        c.rename_hosts(&self.0);
        c
    }
}

/// Renames hosts in all rows of a store. `before`: the cluster of the store. O(readings of the hosts).
pub(crate) fn rename_readings(
    tx: &Sql<'_>,
    path: &Path,
    renames: &Renames,
    before: &Cluster,
    new: &Cluster,
) -> Result<(), StoreError> {
    let fail = |e: SqlError| StoreError::of("write to", path, &e);
    let mut readings: BTreeSet<i64> = BTreeSet::new();
    for (old, renamed) in renames.names() {
        let found: i64 =
            tx.one("SELECT count(*) FROM reading_of_host WHERE host = ?1", vals![renamed]).map_err(fail)?;
        if found > 0 && !before.host_index().contains_key(renamed.as_str()) {
            return Err(StoreError::Rename(format!(
                "the store {} holds {found} readings of an earlier host `{renamed}`; give `{old}` a name that no host had",
                path.display()
            )));
        }
        let of_host = "SELECT reading FROM reading_of_host WHERE host = ?1";
        readings.extend(tx.all::<i64>(of_host, vals![old]).map_err(fail)?);
    }
    // The store may have been opened with the new cluster before: then its cluster has the new names, and another order.
    let mut old_names = before.clone();
    for (old, renamed) in renames.names() {
        old_names.hosts.iter_mut().filter(|h| h.name == *renamed).for_each(|h| h.name.clone_from(old));
    }
    let (was, is) = (old_names.host_index(), new.host_index());
    let read = "SELECT run_id, allocation, host FROM measurement WHERE id = ?1";
    let write = "UPDATE measurement SET run_id = ?2, allocation = ?3, host = ?4 WHERE id = ?1";
    let taken = "SELECT count(*) FROM measurement WHERE run_id = ?1 AND id <> ?2";
    for id in readings {
        type Row = (Option<String>, String, Option<String>);
        let (run_id, text, host): Row = tx.one(read, vals![id]).map_err(fail)?;
        let renamed = |h: &str| renames.names().get(h).cloned().unwrap_or_else(|| h.to_owned());
        let (of_old, of_new) = (allocation(&text, &was, &str::to_owned), allocation(&text, &is, &renamed));
        let names: Vec<String> = text
            .split(' ')
            .map(|t| t.rsplit_once(':').map_or_else(|| renamed(t), |(h, g)| format!("{}:{g}", renamed(h))))
            .collect();
        let text = of_new.as_ref().map_or_else(|| names.join(" "), |a| allocation_text(new, a));
        // The run id names the GPUs, so that a campaign knows its points under their new names.
        let run_id = match (run_id, of_old, of_new) {
            (Some(id), Some(old), Some(now)) => Some(renamed_run(&id, &old_names, &old, &new.gpu_list(&now))),
            (id, ..) => id,
        };
        // If the point was measured under the new names already, that reading keeps the run id: both stay readings.
        let run_id = match run_id {
            Some(run) if tx.one::<i64>(taken, vals![&run, id]).map_err(fail)? > 0 => None,
            run => run,
        };
        tx.execute(write, vals![id, run_id, text, host.map(|h| renamed(&h))]).map_err(fail)?;
    }
    for (old, renamed) in renames.names() {
        for (table, same) in [
            ("reading_of_host", "o.several = t.several AND o.reading = t.reading"),
            ("former_type", "o.until_reading = t.until_reading"),
        ] {
            // A row of the old name replaces the same row of the new one.
            let replaced = format!(
                "DELETE FROM {table} AS t WHERE host = ?2 AND EXISTS (SELECT 1 FROM {table} AS o WHERE o.host = ?1 AND {same})"
            );
            tx.execute(&replaced, vals![old, renamed]).map_err(fail)?;
            let sql = format!("UPDATE {table} SET host = ?2 WHERE host = ?1");
            tx.execute(&sql, vals![old, renamed]).map_err(fail)?;
        }
    }
    Ok(())
}

/// A stored allocation; none if the cluster lacks one of its hosts. `name`: the name in the cluster of a stored name.
fn allocation(text: &str, index: &HashMap<&str, HostId>, name: &dyn Fn(&str) -> String) -> Option<Allocation> {
    let gpu = |t: &str| {
        let (host, gpu) = t.rsplit_once(':')?;
        let gpu = gpu.parse::<usize>().ok().filter(|g| *g < GPUS_PER_HOST_MAX)?;
        Some((*index.get(name(host).as_str())?, GpuMask(1 << gpu)))
    };
    Some(Allocation::new(text.split(' ').map(gpu).collect::<Option<Vec<_>>>()?))
}

/// The run id with the list of GPUs `to`, or as it was if it does not name the allocation. `before`: the cluster with the
/// old names.
fn renamed_run(id: &str, before: &Cluster, a: &Allocation, to: &str) -> String {
    let Some((head, repetition)) = id.rsplit_once('#') else { return id.to_owned() };
    let list = before.gpu_list(a);
    let digest = crate::once::digest(&list);
    let by_list = [list.as_str(), digest.as_str()].into_iter().find_map(|gpus| head.strip_suffix(gpus));
    let in_other_order = || {
        let (start, gpus) = head.rsplit_once('/')?;
        (before.parse_gpus([gpus]).ok()? == *a).then(|| &head[..start.len() + 1])
    };
    let Some(head) = by_list.filter(|h| h.ends_with('/')).or_else(in_other_order) else { return id.to_owned() };
    let whole = format!("{head}{to}#{repetition}");
    match whole.len() <= crate::store::RUN_ID_BYTES_MAX {
        true => whole,
        false => format!("{head}{}#{repetition}", crate::once::digest(to)),
    }
}
