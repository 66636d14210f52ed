//! The tokens of a server's clients. The state holds a hash of each token, never the token.

use super::event::log;
use super::{State, StateError, check_job_id};
use crate::db::{FromRow, Row, SqlError, vals};
use crate::readings::By;
use serde::{Deserialize, Serialize};
use topology::Allocation;

/// Maximum number of tokens, with the revoked ones.
pub const TOKENS_MAX: usize = 10_000;

/// A token without its secret.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Token {
    /// Its name: the author of changes.
    pub name: String,
    /// What it allows; the server knows the words.
    pub scope: String,
    /// Time of its creation, seconds since 1970.
    pub made_at_unix_s: f64,
    /// End of its validity, seconds since 1970; none: no end.
    pub until_unix_s: Option<f64>,
    /// Time of its revocation, seconds since 1970.
    pub revoked_at_unix_s: Option<f64>,
}

impl Token {
    /// True if the token is neither revoked nor too old.
    pub fn is_valid(&self, now_unix_s: f64) -> bool {
        self.revoked_at_unix_s.is_none() && self.until_unix_s.is_none_or(|end| now_unix_s < end)
    }
}

/// A token to add.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// Its name, in the form of a job id.
    pub name: String,
    /// Hash of the secret.
    pub hash: String,
    /// What it allows.
    pub scope: String,
    /// End of its validity, seconds since 1970.
    pub until_unix_s: Option<f64>,
}

const COLUMNS: &str = "SELECT name, scope, made_at_unix_s, until_unix_s, revoked_at_unix_s FROM token";

impl FromRow for Token {
    fn of(row: &Row<'_>) -> Result<Self, SqlError> {
        let (name, scope, made_at_unix_s, until_unix_s, revoked_at_unix_s) = FromRow::of(row)?;
        Ok(Token { name, scope, made_at_unix_s, until_unix_s, revoked_at_unix_s })
    }
}

impl State {
    /// Adds a token.
    ///
    /// # Errors
    /// A name that exists, also of a revoked token: the log of changes names authors.
    pub fn add_token(&mut self, new: &NewToken, by: &By<'_>) -> Result<(), StateError> {
        check_job_id(&new.name).map_err(|e| StateError::Invalid(e.replace("job id", "name of a token")))?;
        self.write(|tx, cluster, path| {
            let fail = |e: SqlError| StateError::of("write to", path, &e);
            let count: usize = tx.one("SELECT count(*) FROM token", &[]).map_err(fail)?;
            if count >= TOKENS_MAX {
                return Err(StateError::Invalid(format!("the state has {TOKENS_MAX} tokens, the most that it keeps")));
            }
            let sql = "INSERT INTO token (name, hash, scope, made_at_unix_s, until_unix_s) VALUES (?1, ?2, ?3, ?4, ?5) \
                       ON CONFLICT (name) DO NOTHING";
            let row = vals![&new.name, &new.hash, &new.scope, by.at_unix_s, new.until_unix_s];
            let added = tx.execute(sql, row).map_err(fail)?;
            if added == 0 {
                return Err(StateError::TokenExists(new.name.clone()));
            }
            log(tx, cluster, path, &By { why: &new.scope, ..*by }, "token", &new.name, &Allocation::default())
        })
    }

    /// Revokes a token. Returns false if it was revoked before.
    pub fn revoke_token(&mut self, name: &str, by: &By<'_>) -> Result<bool, StateError> {
        self.write(|tx, cluster, path| {
            let fail = |e: SqlError| StateError::of("write to", path, &e);
            let sql = "SELECT revoked_at_unix_s IS NULL FROM token WHERE name = ?1";
            let known: Option<bool> = tx.first(sql, vals![name]).map_err(fail)?;
            let valid = known.ok_or_else(|| StateError::UnknownToken(name.chars().take(80).collect()))?;
            if valid {
                let sql = "UPDATE token SET revoked_at_unix_s = ?2 WHERE name = ?1";
                tx.execute(sql, vals![name, by.at_unix_s]).map_err(fail)?;
                log(tx, cluster, path, by, "revoke", name, &Allocation::default())?;
            }
            Ok(valid)
        })
    }

    /// All tokens, by name.
    pub fn tokens(&self) -> Result<Vec<Token>, StateError> {
        self.read_one(|tx| tx.all(&format!("{COLUMNS} ORDER BY name"), &[]))
    }

    /// The token with this hash, also a revoked one.
    pub fn token(&self, hash: &str) -> Result<Option<Token>, StateError> {
        self.read_one(|tx| tx.first(&format!("{COLUMNS} WHERE hash = ?1"), vals![hash]))
    }

    /// True if a token has this name, also a revoked one.
    pub fn has_token_named(&self, name: &str) -> Result<bool, StateError> {
        self.read_one(|tx| tx.one("SELECT EXISTS (SELECT 1 FROM token WHERE name = ?1)", vals![name]))
    }

    /// True if a token was ever made: from then on a server asks for one.
    pub fn has_tokens(&self) -> Result<bool, StateError> {
        self.read_one(|tx| tx.one("SELECT EXISTS (SELECT 1 FROM token)", &[]))
    }
}
