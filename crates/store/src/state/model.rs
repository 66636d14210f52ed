//! The model of the predictions, as the state keeps it for every process that uses the state: its versions, the one in use, and the
//! readings that it has learned since.
//!
//! The state does not read a model. A version has a text and a description, both written by the engine. A text has up to a few MB; it is
//! written in parts of [`PART_BYTES_MAX`], each in a transaction of its own, so that no decision waits for more than one part. A version
//! exists from the one short transaction on that names its text ([`State::change_models`]), and only if all parts are there. That transaction
//! reads and removes no text: a text is checked before it, and the texts of versions that are gone are removed after it, a part at a time
//! ([`State::remove_model_part`]). A text that no version names is what a killed process left; it is removed when later texts are written.
//!
//! A learned reading is a row ([`Lesson`]). Every process applies the rows in the order of their numbers to the model in use, so one
//! reading costs one small row and not a text. Every change names the revision on which it is based, and is refused if another process
//! made one meanwhile.

use super::event::log;
use super::{State, StateError, check_still_of};
use crate::db::{FromRow, Row, Sql, SqlError, Val, vals};
use crate::digest::fnv64;
use crate::readings::By;
use std::path::Path;
use topology::Allocation;

/// Longest part of a text, bytes: a transaction of a few milliseconds.
pub const PART_BYTES_MAX: usize = 128 << 10;
/// Maximum number of versions that a state takes, a checkpoint included.
pub const VERSIONS_MAX: usize = 16;
/// Maximum number of learned readings after the text to which they are applied.
pub const LESSONS_MAX: i64 = 10_000;
/// Number of newer texts after which a text that no version names is removed.
const ABANDONED_AFTER: i64 = 16;
/// Longest description of a version, bytes.
const ABOUT_BYTES_MAX: usize = 256 << 10;

/// A text that was written in parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelText {
    /// Its number.
    pub id: i64,
    /// Number of its parts.
    pub parts: i64,
    /// Length, bytes.
    pub bytes: i64,
    /// Digest of its content.
    pub digest: String,
}

/// A version of the model. Number 0 is a checkpoint: the version in use with all readings that it has learned up to `lesson`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptModel {
    /// Its number.
    pub version: u64,
    /// Its text.
    pub text: ModelText,
    /// Number of the newest learned reading that the text contains, or that came before the version was used.
    pub lesson: i64,
    /// The engine's description.
    pub about: String,
}

/// The versions, and which one is in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptModels {
    /// Rises with every change.
    pub revision: u64,
    /// Number of the version in use; 0: none.
    pub present: u64,
    /// Highest number of a version so far.
    pub newest: u64,
    /// Number of the newest learned reading.
    pub lesson: i64,
    /// Number of the newest reading that the version in use was fitted to.
    pub seen_until: i64,
    /// Number of the newest reading at the last fit, also of one that was refused.
    pub tried_until: i64,
    /// Digest of the model file that was taken in last; empty: none.
    pub imported: String,
    /// The versions, oldest first; a checkpoint comes first.
    pub versions: Vec<KeptModel>,
}

impl KeptModels {
    /// The text from which the model in use is made: its checkpoint if there is one.
    pub fn source(&self) -> Option<&KeptModel> {
        let of = |n| self.versions.iter().find(|v| v.version == n);
        of(0).or_else(|| of(self.present).filter(|_| self.present > 0))
    }
}

/// A reading that the model in use learned.
#[derive(Clone, Debug, PartialEq)]
pub struct Lesson {
    /// Its number; 0 before it is kept.
    pub id: i64,
    /// Its GPUs as a list.
    pub gpus: String,
    /// Message size, bytes.
    pub size_bytes: u64,
    /// Bus bandwidth, GB/s.
    pub busbw_gb_per_s: f64,
}

/// A change of the models, in one transaction.
#[derive(Clone, Copy, Debug)]
pub struct ModelsChange<'a> {
    /// The models as they are to be; `revision` is the one on which the change is based. Versions that are missing here are removed.
    pub models: &'a KeptModels,
    /// Readings that the model learned.
    pub learned: &'a [Lesson],
    /// The entry of the log: its author, what was done, and to which version.
    pub log: Option<(By<'a>, &'a str, &'a str)>,
}

/// Digest of a text.
pub fn text_digest(text: &str) -> String {
    format!("{:016x}-{}", fnv64([text]), text.len())
}

/// The parts of a text, each at most [`PART_BYTES_MAX`] long.
pub fn parts_of(text: &str) -> Vec<&str> {
    let (mut parts, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        let most = rest.len().min(PART_BYTES_MAX);
        let end = (0..=most).rev().find(|n| rest.is_char_boundary(*n)).unwrap_or(rest.len());
        let (part, after) = rest.split_at(end);
        parts.push(part);
        rest = after;
    }
    parts
}

impl FromRow for KeptModel {
    fn of(row: &Row<'_>) -> Result<Self, SqlError> {
        let text = ModelText { id: row.get(1)?, parts: row.get(2)?, bytes: row.get(3)?, digest: row.get(4)? };
        Ok(KeptModel { version: row.get(0)?, text, lesson: row.get(5)?, about: row.get(6)? })
    }
}

impl FromRow for Lesson {
    fn of(row: &Row<'_>) -> Result<Self, SqlError> {
        Ok(Lesson { id: row.get(0)?, gpus: row.get(1)?, size_bytes: row.get(2)?, busbw_gb_per_s: row.get(3)? })
    }
}

impl State {
    /// The revision of the models; 0: none was ever kept. Reads one row.
    pub fn models_revision(&self) -> Result<u64, StateError> {
        self.read_one(|tx| tx.one("SELECT revision FROM model_head", &[]))
    }

    /// The versions and their descriptions, without their texts.
    pub fn models(&self) -> Result<KeptModels, StateError> {
        self.db.read(
            |e| StateError::of("read", &self.path, &e),
            |tx| head(tx).map_err(|e| StateError::of("read", &self.path, &e)),
        )
    }

    /// Begins a text and returns its number. Removes texts that were begun long before and never named.
    pub fn begin_model_text(&mut self) -> Result<i64, StateError> {
        let State { path, db, .. } = self;
        let fail = |e: SqlError| StateError::of("write to", path, &e);
        db.write(fail, |tx| {
            let id: i64 = tx
                .one("UPDATE model_head SET newest_text = newest_text + 1 RETURNING newest_text", &[])
                .map_err(fail)?;
            let abandoned = "DELETE FROM model_part WHERE text <= ?1 AND text NOT IN (SELECT text FROM model) AND part >= ?2";
            // A few parts at a time: this transaction is as short as any other one.
            let last = "SELECT coalesce(max(part), 0) FROM model_part WHERE text <= ?1 AND text NOT IN (SELECT text FROM model)";
            let last: i64 = tx.one(last, vals![id - ABANDONED_AFTER]).map_err(fail)?;
            tx.execute(abandoned, vals![id - ABANDONED_AFTER, last - 1]).map_err(fail)?;
            Ok(id)
        })
    }

    /// Writes a part of a text, numbered from 0. A repetition replaces it.
    pub fn put_model_part(&mut self, text: i64, part: i64, content: &str) -> Result<(), StateError> {
        if content.len() > PART_BYTES_MAX {
            return Err(StateError::Invalid(format!(
                "a part of a model has {} bytes; at most {PART_BYTES_MAX}",
                content.len()
            )));
        }
        let State { path, db, .. } = self;
        let fail = |e: SqlError| StateError::of("write to", path, &e);
        let sql = "INSERT INTO model_part (text, part, content) VALUES (?1, ?2, ?3) \
                   ON CONFLICT (text, part) DO UPDATE SET content = ?3";
        db.write(fail, |tx| tx.execute(sql, vals![text, part, content]).map(|_| ()).map_err(fail))
    }

    /// Removes a part of a text that no version names.
    pub fn remove_model_part(&mut self, text: i64, part: i64) -> Result<(), StateError> {
        let State { path, db, .. } = self;
        let fail = |e: SqlError| StateError::of("write to", path, &e);
        let sql = "DELETE FROM model_part WHERE text = ?1 AND part = ?2 AND text NOT IN (SELECT text FROM model)";
        db.write(fail, |tx| tx.execute(sql, vals![text, part]).map(|_| ()).map_err(fail))
    }

    /// A part of a text; none if it was removed.
    pub fn model_part(&self, text: i64, part: i64) -> Result<Option<String>, StateError> {
        self.read_one(|tx| tx.first("SELECT content FROM model_part WHERE text = ?1 AND part = ?2", vals![text, part]))
    }

    /// The learned readings after number `after`, oldest first.
    pub fn lessons(&self, after: i64) -> Result<Vec<Lesson>, StateError> {
        let sql = "SELECT id, gpus, size_bytes, busbw_gb_per_s FROM model_lesson WHERE id > ?1 ORDER BY id";
        self.read_one(|tx| tx.all(sql, vals![after]))
    }

    /// Changes the models if they still have the revision of `change`; returns the new revision, or none if another process was first. The
    /// version of the state stays, because a decision on a snapshot is valid under any model. The texts of versions that are gone stay: the
    /// caller removes them ([`State::remove_model_part`]).
    ///
    /// # Errors
    /// A version without a complete text; too many versions or learned readings.
    pub fn change_models(&mut self, change: &ModelsChange<'_>) -> Result<Option<u64>, StateError> {
        self.check_texts(&change.models.versions)?; // reads whole texts, before the lock
        let State { path, db, cluster, fingerprint } = self;
        let fail = |e: SqlError| StateError::of("write to", path, &e);
        db.write(fail, |tx| {
            check_still_of(tx, fingerprint, path)?;
            let now = head(tx).map_err(fail)?;
            if now.revision != change.models.revision {
                return Ok(None);
            }
            if change.models.versions != now.versions {
                replace_versions(tx, path, &now, &change.models.versions)?;
            }
            let lesson = learn(tx, path, change, &now)?;
            let m = change.models;
            tx.execute(
                "UPDATE model_head SET revision = revision + 1, present = ?1, newest = ?2, lesson = ?3, seen_until = ?4, \
                 tried_until = ?5, imported = ?6",
                vals![m.present as i64, m.newest as i64, lesson, m.seen_until, m.tried_until, &m.imported],
            )
            .map_err(fail)?;
            if let Some((by, what, subject)) = &change.log {
                log(tx, cluster, path, by, what, subject, &Allocation::default())?;
            }
            Ok(Some(now.revision + 1))
        })
    }
}

/// The error for a text whose parts are not all there.
fn not_complete(v: &KeptModel) -> StateError {
    StateError::Invalid(format!("the text of version {} of the model is not complete; fit it again", v.version))
}

impl State {
    /// Checks that the texts of versions that are new are complete.
    fn check_texts(&self, next: &[KeptModel]) -> Result<(), StateError> {
        let fail = |e: SqlError| StateError::of("read", &self.path, &e);
        self.db.read(fail, |tx| {
            let now = head(tx).map_err(fail)?;
            for v in next.iter().filter(|v| !now.versions.iter().any(|n| n.text == v.text)) {
                let sizes = tx.dialect(
                    "SELECT count(*), coalesce(sum(length(CAST(content AS BLOB))), 0) FROM model_part WHERE text = ?1",
                    "SELECT count(*), coalesce(sum(octet_length(content)), 0)::bigint FROM model_part WHERE text = ?1",
                );
                let found: (i64, i64) = tx.one(sizes, vals![v.text.id]).map_err(fail)?;
                if found != (v.text.parts, v.text.bytes) {
                    return Err(not_complete(v));
                }
            }
            Ok(())
        })
    }
}

fn head(tx: &Sql<'_>) -> Result<KeptModels, SqlError> {
    let (revision, present, newest, lesson, seen_until, tried_until, imported) =
        tx.one("SELECT revision, present, newest, lesson, seen_until, tried_until, imported FROM model_head", &[])?;
    let versions = "SELECT version, text, parts, bytes, digest, lesson, about FROM model ORDER BY version";
    let versions = tx.all(versions, &[])?;
    Ok(KeptModels { revision, present, newest, lesson, seen_until, tried_until, imported, versions })
}

/// Writes the rows of the versions. Their texts were checked; parts that were removed meanwhile are noticed.
fn replace_versions(tx: &Sql<'_>, path: &Path, now: &KeptModels, next: &[KeptModel]) -> Result<(), StateError> {
    let fail = |e: SqlError| StateError::of("write to", path, &e);
    if next.len() > VERSIONS_MAX || next.iter().any(|v| v.about.len() > ABOUT_BYTES_MAX) {
        return Err(StateError::Invalid(format!("{} versions of the model are too many, or too long", next.len())));
    }
    for v in next.iter().filter(|v| !now.versions.iter().any(|n| n.text == v.text)) {
        let parts: i64 = tx.one("SELECT count(*) FROM model_part WHERE text = ?1", vals![v.text.id]).map_err(fail)?;
        if parts != v.text.parts {
            return Err(not_complete(v));
        }
    }
    tx.execute("DELETE FROM model", &[]).map_err(fail)?;
    let row = |v: &KeptModel| -> [Val<'static>; 7] {
        let t = v.text.clone();
        let numbers = [v.version as i64, t.id, t.parts, t.bytes];
        let [version, id, parts, bytes] = numbers.map(Val::Int);
        [version, id, parts, bytes, t.digest.into(), v.lesson.into(), v.about.clone().into()]
    };
    let rows: Vec<Val<'_>> = next.iter().flat_map(row).collect();
    tx.insert_rows("model (version, text, parts, bytes, digest, lesson, about)", 7, &rows).map_err(fail)
}

/// Writes the learned readings and removes those that no text needs. Returns the number of the newest.
fn learn(tx: &Sql<'_>, path: &Path, change: &ModelsChange<'_>, now: &KeptModels) -> Result<i64, StateError> {
    let fail = |e: SqlError| StateError::of("write to", path, &e);
    let base = change.models.source().map_or(now.lesson, |s| s.lesson);
    let newest = now.lesson + change.learned.len() as i64;
    if newest - base > LESSONS_MAX {
        return Err(StateError::Invalid(format!("the model has learned {LESSONS_MAX} single readings; fit it again")));
    }
    let row = |(i, l): (usize, &Lesson)| -> [Val<'static>; 4] {
        let id = now.lesson + 1 + i as i64;
        let size = l.size_bytes.min(i64::MAX as u64) as i64;
        [id.into(), l.gpus.clone().into(), size.into(), l.busbw_gb_per_s.into()]
    };
    let rows: Vec<Val<'_>> = change.learned.iter().enumerate().flat_map(row).collect();
    tx.insert_rows("model_lesson (id, gpus, size_bytes, busbw_gb_per_s)", 4, &rows).map_err(fail)?;
    tx.execute("DELETE FROM model_lesson WHERE id <= ?1", vals![base]).map_err(fail)?;
    Ok(newest)
}
