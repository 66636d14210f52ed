//! Who asks, and what that client may do.
//!
//! A client sends `Authorization: Bearer TOKEN`. The state holds the SHA-256 of each token: a token has 256 random bits, so
//! the hash needs neither salt nor slowness, and a look-up by hash tells nothing by its time. Until the first token is made,
//! the server asks for none and listens on this machine only.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt::{self, Write};
use std::str::FromStr;

/// What a token allows. Each scope contains the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// See everything but tokens; ask what if.
    Read,
    /// Allocate; release and renew own jobs; report readings.
    Request,
    /// Release and renew all jobs; drain; correct and withdraw readings; diagnose and fit.
    Operate,
    /// Everything.
    Administer,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Scope; 4] = [Scope::Read, Scope::Request, Scope::Operate, Scope::Administer];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Request => "request",
            Scope::Operate => "operate",
            Scope::Administer => "administer",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scope {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        Scope::ALL
            .into_iter()
            .find(|x| x.name() == s)
            .ok_or_else(|| "`read`, `request`, `operate` or `administer` was expected".into())
    }
}

/// A client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// The name of its token; `local` where no token is asked for.
    pub name: String,
    /// What it may do.
    pub scope: Scope,
    /// The reason that it gives for this request, for the log of changes; may be empty.
    pub why: String,
    /// The hash of its entry in the state; none: it has no entry.
    pub entry: Option<String>,
    /// When its identity token ends, seconds since 1970.
    pub until_unix_s: Option<u64>,
}

impl Client {
    /// A client that gives no reason.
    pub fn new(name: impl Into<String>, scope: Scope) -> Client {
        Client { name: name.into(), scope, why: String::new(), entry: None, until_unix_s: None }
    }

    /// What stands in front of its idempotency keys: a mark of its tenant, or of its name; nothing where no token is asked for.
    pub fn key_mark(&self) -> String {
        if self.entry.is_none() && self.until_unix_s.is_none() && self.name == "local" {
            return String::new();
        }
        let owner = crate::tenant::tenant_of(&self.name).unwrap_or(&self.name);
        format!("{}.", &hash(owner)[..16])
    }

    /// The tenant whose jobs alone it sees; none: it sees all jobs.
    pub fn tenant(&self) -> Option<&str> {
        crate::tenant::tenant_of(&self.name).filter(|_| self.scope < Scope::Operate)
    }
}

/// True for names of authors that no entry and no certificate may have: the command's, the server's, those of an identity provider's subjects, and a
/// tenant without a name behind it.
pub fn is_reserved(name: &str) -> bool {
    let own = name.rsplit_once('/').map_or(name, |n| n.1);
    own.is_empty() || ["command", "local", "server"].contains(&name) || own.starts_with("oidc:")
}

/// The start of every token: programs that look for leaked secrets can find it.
pub const TOKEN_START: &str = "lwt_";
/// Longest token that is hashed, bytes.
pub const TOKEN_BYTES_MAX: usize = 200;

/// A new random token.
///
/// # Errors
/// The system has no random numbers.
pub fn new_token() -> Result<String, String> {
    let mut bytes = [0u8; 32];
    let mut filled = 0;
    while filled < bytes.len() {
        let more = rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty());
        filled += more.map_err(|e| format!("the system gives no random numbers: {e}"))?;
    }
    Ok(format!("{TOKEN_START}{}", hex(&bytes)))
}

/// The hash of a token, as the state holds it.
pub fn hash(token: &str) -> String {
    hex(&Sha256::digest(token.as_bytes()))
}

/// The hash under which the state holds the scope of a client certificate. No token has it: a token has another start.
pub fn certificate_hash(name: &str) -> String {
    hash(&format!("certificate {name}"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_differ_and_their_hash_is_that_of_the_standard() {
        let (a, b) = (new_token().unwrap(), new_token().unwrap());
        assert!(a != b && a.len() == TOKEN_START.len() + 64, "{a} {b}");
        assert_eq!(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn each_scope_contains_the_ones_before_it() {
        assert!(Scope::ALL.windows(2).all(|w| w[0] < w[1]));
        assert!(Scope::ALL.iter().all(|s| s.name().parse() == Ok(*s)) && "admin".parse::<Scope>().is_err());
    }
}
