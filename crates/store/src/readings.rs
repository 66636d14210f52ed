//! Lists, corrects and withdraws readings. The store records each change with its author and reason.

use crate::db::{Row, Sql, SqlError, vals};
use crate::error::StoreError;
use crate::measurement::{Record, check_busbw};
use crate::once::{self, Done, Once};
use crate::query::Query;
use crate::store::{Store, insert};
use serde::{Deserialize, Serialize};

/// Longest name of the person or program that changed a reading, bytes.
pub const WHO_BYTES_MAX: usize = 200;
/// Longest reason of a change, bytes.
pub const WHY_BYTES_MAX: usize = 1024;

/// A reading with its number in the store.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredReading {
    /// Its number; it rises with every stored reading.
    pub id: i64,
    /// The reading.
    pub record: Record,
    /// True if it was withdrawn: no fit and no diagnosis uses it.
    pub withdrawn: bool,
}

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WhatChanged {
    /// Its bandwidth was replaced.
    Corrected,
    /// The reading was withdrawn.
    Withdrawn,
}

/// One change of a reading.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ReadingChange {
    /// Number of the reading.
    pub reading: i64,
    /// The kind of the change.
    pub what: WhatChanged,
    /// Bus bandwidth before, GB/s.
    pub old_busbw_gb_per_s: f64,
    /// Bus bandwidth after, GB/s; none for a withdrawal.
    pub new_busbw_gb_per_s: Option<f64>,
    /// Author of the change.
    pub who: String,
    /// The reason.
    pub why: String,
    /// Time of the change, seconds since 1970.
    pub at_unix_s: f64,
}

/// The revision of a store. If only `last_id` rose, earlier results stay valid except for the new readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Revision {
    /// Number of the newest reading.
    pub last_id: i64,
    /// Rises when a stored reading is corrected or withdrawn, or its quality changes.
    pub changes: u64,
}

/// The result of adding readings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Added {
    /// Numbers of the readings; none for a run that was stored before.
    pub ids: Vec<Option<i64>>,
    /// True if the readings were added before, under the same key.
    pub repeated: bool,
    /// The earlier answer, if the readings were added before and the request was answered.
    pub answer: Option<String>,
    /// Without an earlier answer: true if the model has learned the readings ([`Store::mark_taught`]).
    pub taught: bool,
}

impl Store {
    /// Stores all records in one transaction, once under their key. The caller completes the key with [`Store::finish`]
    /// when the request is answered.
    pub fn add(&mut self, records: &[Record], once: Option<&Once>, at_unix_s: f64) -> Result<Added, StoreError> {
        self.check_records(records)?;
        self.write_again(once.is_some(), |tx, cluster, path| {
            let fail = |e| StoreError::of_key(path, e);
            if let Some(o) = once
                && let Some(kept) = once::look_up(tx, o).map_err(fail)?
            {
                return added(kept).map_err(fail);
            }
            let ids = insert(tx, cluster, path, records)?;
            if let Some(o) = once {
                once::keep(tx, o, &ids, None, at_unix_s).map_err(fail)?;
            }
            Ok(Added { ids, repeated: false, answer: None, taught: false })
        })
    }

    /// The answer under a key; none if the key is new or its request was not answered.
    pub fn answered(&self, once: &Once) -> Result<Option<String>, StoreError> {
        Ok(self.kept(once)?.and_then(|k| k.answer))
    }

    /// The readings that were added under a key; none if the key is new.
    pub fn added(&self, once: &Once) -> Result<Option<Added>, StoreError> {
        self.kept(once)?.map(added).transpose().map_err(|e| StoreError::of_key(&self.path, e))
    }

    fn kept(&self, once: &Once) -> Result<Option<once::Kept>, StoreError> {
        let fail = |e| StoreError::of("read", &self.path, &e);
        self.db.read(fail, |tx| once::look_up(tx, once).map_err(|e| StoreError::of_key(&self.path, e)))
    }

    /// Records under an unanswered key that a model now learns the added readings, or removes that record.
    pub fn mark_taught(&mut self, once: &Once, taught: bool) -> Result<(), StoreError> {
        self.change_keys(|tx| once::mark_taught(tx, once, taught))
    }

    /// Records under every unanswered key that a model has learned the added readings, because it was fitted to all
    /// readings. O(keys).
    pub fn mark_all_taught(&mut self) -> Result<(), StoreError> {
        self.change_keys(once::mark_all_taught)
    }

    /// Stores the answer to a request with its key.
    pub fn finish(&mut self, once: &Once, answer: &str) -> Result<(), StoreError> {
        self.change_keys(|tx| once::finish(tx, once, answer))
    }

    /// A change of keys; a repetition changes nothing more.
    fn change_keys(&mut self, work: impl Fn(&Sql<'_>) -> Result<(), once::KeyError>) -> Result<(), StoreError> {
        self.write_again(true, |tx, _, path| work(tx).map_err(|e| StoreError::of_key(path, e)))
    }

    /// Readings with their numbers, ascending.
    pub fn readings(&self, query: &Query) -> Result<Vec<StoredReading>, StoreError> {
        let stored = |(id, record, withdrawn)| StoredReading { id, record, withdrawn };
        Ok(self.rows(query)?.into_iter().map(stored).collect())
    }

    /// The store's revision. Reads two rows.
    pub fn revision(&self) -> Result<Revision, StoreError> {
        let sql = "SELECT (SELECT coalesce(max(id), 0) FROM measurement), (SELECT changes FROM revision)";
        let (last_id, changes) = self.read_one(|tx| tx.one(sql, &[]))?;
        Ok(Revision { last_id, changes })
    }

    /// Replaces the bandwidth of a reading and scales its time, because nccl-tests computes one from the other. A
    /// request with a key is executed once.
    ///
    /// # Errors
    /// No such reading; a withdrawn reading; an implausible bandwidth; a name or reason that is empty or too long.
    pub fn correct(
        &mut self,
        id: i64,
        busbw_gb_per_s: f64,
        by: &By<'_>,
        once: Option<&Once>,
    ) -> Result<Done<ReadingChange>, StoreError> {
        check_busbw(busbw_gb_per_s).map_err(StoreError::Invalid)?;
        self.change(id, WhatChanged::Corrected, Some(busbw_gb_per_s), by, once)
    }

    /// Withdraws a reading: it can still be listed, and no fit and no diagnosis uses it. A request with a key is
    /// executed once.
    ///
    /// # Errors
    /// Those of [`Store::correct`], except that of the bandwidth.
    pub fn withdraw(&mut self, id: i64, by: &By<'_>, once: Option<&Once>) -> Result<Done<ReadingChange>, StoreError> {
        self.change(id, WhatChanged::Withdrawn, None, by, once)
    }

    fn change(
        &mut self,
        id: i64,
        what: WhatChanged,
        new: Option<f64>,
        by: &By<'_>,
        once: Option<&Once>,
    ) -> Result<Done<ReadingChange>, StoreError> {
        by.check()?;
        self.write_again(once.is_some(), |tx, _, path| {
            let fail = |e: SqlError| StoreError::of("write to", path, &e);
            let fail_key = |e| StoreError::of_key(path, e);
            if let Some(o) = once
                && let Some(kept) = once::look_up(tx, o).map_err(fail_key)?
            {
                return Ok(Done { value: once::outcome(&kept).map_err(fail_key)?, repeated: true });
            }
            let sql = "SELECT busbw_gb_per_s, withdrawn FROM measurement WHERE id = ?1";
            let row: Option<(f64, bool)> = tx.first(sql, vals![id]).map_err(fail)?;
            let (old, withdrawn) = row.ok_or_else(|| StoreError::UnknownReading { path: path.into(), id })?;
            if withdrawn {
                let last = changes(tx, id).map_err(fail)?.pop();
                let (who, why) = last.map_or_else(Default::default, |c| (c.who, c.why));
                return Err(StoreError::Withdrawn { id, who, why });
            }
            match new {
                Some(v) => tx.execute(
                    "UPDATE measurement SET busbw_gb_per_s = ?2, time_s = CASE WHEN ?2 > 0 THEN time_s * busbw_gb_per_s / ?2 END \
                     WHERE id = ?1",
                    vals![id, v],
                ),
                None => tx.execute("UPDATE measurement SET withdrawn = 1 WHERE id = ?1", vals![id]),
            }
            .map_err(fail)?;
            let (who, why) = (by.who.to_owned(), by.why.to_owned());
            let c = ReadingChange {
                reading: id,
                what,
                old_busbw_gb_per_s: old,
                new_busbw_gb_per_s: new,
                who,
                why,
                at_unix_s: by.at_unix_s,
            };
            let word = if what == WhatChanged::Corrected { "corrected" } else { "withdrawn" };
            tx.execute(
                "INSERT INTO reading_change (reading, what, old_busbw_gb_per_s, new_busbw_gb_per_s, who, why, at_unix_s) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                vals![id, word, old, new, &c.who, &c.why, c.at_unix_s],
            )
            .map_err(fail)?;
            tx.execute("UPDATE revision SET changes = changes + 1", &[]).map_err(fail)?;
            if let Some(o) = once {
                once::keep(tx, o, &c, None, by.at_unix_s).map_err(fail_key)?;
            }
            Ok(Done { value: c, repeated: false })
        })
    }

    /// The changes of a reading, oldest first.
    pub fn history(&self, id: i64) -> Result<Vec<ReadingChange>, StoreError> {
        self.read_one(|tx| changes(tx, id))
    }
}

/// The author, the reason and the time of a change. A number converts to a change by the `command` without a reason.
#[derive(Clone, Copy, Debug)]
pub struct By<'a> {
    /// A person or a program, in one line.
    pub who: &'a str,
    /// The reason, in one line.
    pub why: &'a str,
    /// The present time, seconds since 1970.
    pub at_unix_s: f64,
    /// True if the author may release and renew only jobs that it allocated.
    pub own_only: bool,
}

impl From<f64> for By<'static> {
    fn from(at_unix_s: f64) -> Self {
        By { who: "command", why: "", at_unix_s, own_only: false }
    }
}

/// The tenant in the name of a client, `TENANT/NAME`.
pub fn tenant_of(name: &str) -> Option<&str> {
    name.rsplit_once('/').map(|n| n.0)
}

impl By<'_> {
    /// True if the author may see a job: an author of a tenant who may change its own jobs only sees those of its tenant.
    pub fn sees(&self, made_by: &str) -> bool {
        !self.own_only || tenant_of(self.who).is_none_or(|t| tenant_of(made_by) == Some(t))
    }

    fn check(&self) -> Result<(), StoreError> {
        for (what, text, max) in [("who", self.who, WHO_BYTES_MAX), ("why", self.why, WHY_BYTES_MAX)] {
            if text.trim().is_empty() || text.len() > max || text.chars().any(char::is_control) {
                let why = format!("{what}: one line of 1 to {max} bytes was expected, {} bytes were given", text.len());
                return Err(StoreError::Invalid(why));
            }
        }
        Ok(())
    }
}

fn added(kept: once::Kept) -> Result<Added, once::KeyError> {
    Ok(Added { ids: once::outcome(&kept)?, repeated: true, answer: kept.answer, taught: kept.taught })
}

fn changes(sql: &Sql<'_>, id: i64) -> Result<Vec<ReadingChange>, SqlError> {
    let text = "SELECT what, old_busbw_gb_per_s, new_busbw_gb_per_s, who, why, at_unix_s FROM reading_change \
               WHERE reading = ?1 ORDER BY id";
    let mut out = Vec::new();
    let change = |row: &Row<'_>| {
        let what = if row.get::<String>(0)? == "corrected" { WhatChanged::Corrected } else { WhatChanged::Withdrawn };
        out.push(ReadingChange {
            reading: id,
            what,
            old_busbw_gb_per_s: row.get(1)?,
            new_busbw_gb_per_s: row.get(2)?,
            who: row.get(3)?,
            why: row.get(4)?,
            at_unix_s: row.get(5)?,
        });
        Ok(())
    };
    sql.each(text, vals![id], |e| e, change)?;
    Ok(out)
}
