//! Tokens of an identity provider (OpenID Connect): who a token names, and what its holder may do.
//!
//! A token is a JWT that the issuer signed. It is checked against the keys that the issuer publishes ([`keys`]): signature by
//! an asymmetric algorithm, issuer, audience, times. Its subject becomes the author `oidc:SUBJECT`, so no subject has the name
//! of a token of the state; a claim gives its scope, and another one its tenant. Browsers sign in by the code flow ([`flow`]).

pub mod flow;
mod keys;
mod signature;

#[cfg(feature = "otel")]
pub use keys::check_address;

use crate::auth::{Client, Scope, hash};
use crate::fetch::Fetcher;
use crate::problem::Problem;
use axum::http::StatusCode;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Header, Validation, decode, decode_header};
use keys::{Issuer, Published};
use serde_json::{Map, Value};
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Longest token, bytes.
pub const TOKEN_BYTES_MAX: usize = 8 << 10;
/// Difference between this clock and the issuer's that times of tokens may show, seconds.
const LEEWAY_S: u64 = 30;
/// Longest subject that is an author as it is, bytes; a longer one is named by its SHA-256.
const SUBJECT_BYTES_MAX: usize = 60;
/// Longest name of a tenant, bytes.
const TENANT_BYTES_MAX: usize = 40;
/// Longest answer of the issuer.
const FETCH_TIME: Duration = Duration::from_secs(5);

/// The settings of OpenID Connect.
#[derive(Clone, Debug)]
pub struct Oidc {
    /// Address of the issuer, as in its tokens.
    pub issuer: String,
    /// The name by which the issuer knows this server.
    pub client_id: String,
    /// The secret of this server at the issuer; none: a public client.
    pub client_secret: Option<String>,
    /// Audience of the tokens that requests send; none: the client's name.
    pub audience: Option<String>,
    /// The claim whose values have scopes.
    pub scope_claim: Option<String>,
    /// Scopes by value of that claim.
    pub map: Vec<(String, Scope)>,
    /// The scope of every subject whose claims name no higher one; none: such a subject is refused.
    pub scope: Option<Scope>,
    /// The claim with the tenant.
    pub tenant_claim: Option<String>,
    /// Authorities that the issuer's certificate comes from; none: those of this machine.
    pub ca: Option<PathBuf>,
    /// Address of this server in browsers; none: that of the request.
    pub public_url: Option<String>,
    /// Shortest time between two requests to the issuer for its keys.
    pub refetch: Duration,
}

impl Oidc {
    /// Settings for an issuer, without a scope for anybody.
    pub fn new(issuer: &str, client_id: &str) -> Oidc {
        Oidc {
            issuer: issuer.into(),
            client_id: client_id.into(),
            client_secret: None,
            audience: None,
            scope_claim: None,
            map: Vec::new(),
            scope: None,
            tenant_claim: None,
            ca: None,
            public_url: None,
            refetch: keys::REFETCH,
        }
    }
}

/// The issuer whose tokens a server accepts.
pub struct Provider {
    settings: Oidc,
    issuer: Arc<Issuer>,
    /// The sign-ins that were used.
    used: flow::Used,
}

/// What a token is used for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// A request with `Authorization: Bearer`.
    Bearer,
    /// A browser's session: the ID token that the issuer made for this server.
    Session,
}

impl Provider {
    /// Checks the settings. The issuer is asked later.
    ///
    /// # Errors
    /// A sentence with the setting.
    pub fn new(settings: &Oidc) -> Result<Provider, String> {
        keys::check_address(&settings.issuer).map_err(|e| format!("--oidc-issuer: {e}"))?;
        if let Some(url) = &settings.public_url {
            keys::check_address(url).map_err(|e| format!("--public-url: {e}"))?;
        }
        if settings.scope.is_none() && (settings.map.is_empty() || settings.scope_claim.is_none()) {
            return Err("no subject of the issuer would have a scope: give --oidc-scope-claim and --oidc-map, or \
                        --oidc-scope"
                .into());
        }
        signature::install();
        let fetcher = Fetcher::new(settings.ca.as_deref(), FETCH_TIME)?;
        let issuer = Arc::new(Issuer::new(settings.issuer.clone(), fetcher, settings.refetch));
        Ok(Provider { settings: settings.clone(), issuer, used: flow::Used::default() })
    }

    /// True if the text can only be a token of an issuer: three parts with points between.
    pub fn is_like(token: &str) -> bool {
        token.bytes().filter(|b| *b == b'.').count() == 2
    }

    /// The issuer's address.
    pub fn issuer(&self) -> &str {
        self.issuer.url()
    }

    /// Asks the issuer for its keys, so that the first token need not wait.
    pub async fn prepare(&self) -> Result<(), String> {
        self.issuer.published().await.map(|_| ())
    }

    /// The client that a token names.
    ///
    /// # Errors
    /// 401 `wrong_token` with the reason, 403 `no_scope` or `tenant`, 503 `issuer_unreachable`.
    pub async fn client(&self, token: &str, used: Use) -> Result<Client, Problem> {
        self.client_of(&self.claims(token, used).await?)
    }

    /// The claims of a token that is right.
    async fn claims(&self, token: &str, used: Use) -> Result<Map<String, Value>, Problem> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(refused(&format!("it has {} bytes; at most {TOKEN_BYTES_MAX}", token.len())));
        }
        let header = decode_header(token).map_err(|_| refused("its header is not that of a signed token"))?;
        if !signature::ACCEPTED.contains(&header.alg) {
            return Err(refused("its algorithm is not accepted"));
        }
        if header.crit.is_some() {
            return Err(refused("its header has critical fields that are unknown here"));
        }
        let published = self.issuer.published().await.map_err(|e| self.unreachable(&e))?;
        let published = match published.fitting(&header).is_empty() {
            false => published,
            true => self.issuer.newer_than(Some(&published)).await.map_err(|e| self.unreachable(&e))?,
        };
        self.verified(token, &header, &published, used).map_err(|e| refused(&e))
    }

    fn verified(
        &self,
        token: &str,
        header: &Header,
        published: &Published,
        used: Use,
    ) -> Result<Map<String, Value>, String> {
        let mut rules = Validation::new(header.alg);
        rules.leeway = LEEWAY_S;
        rules.validate_nbf = true;
        rules.set_issuer(&[self.issuer.url()]);
        let own = &self.settings.client_id;
        rules.set_audience(&[match used {
            Use::Bearer => self.settings.audience.as_ref().unwrap_or(own),
            Use::Session => own,
        }]);
        rules.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        let mut why = "no key of the issuer has its key ID and algorithm".to_owned();
        for key in published.fitting(header) {
            match decode::<Map<String, Value>>(token, &key.key, &rules) {
                Ok(read) => return Ok(read.claims),
                Err(e) => why = reason(e.kind()),
            }
        }
        Err(why)
    }

    fn unreachable(&self, why: &str) -> Problem {
        let detail = format!("the identity provider {} does not answer: {why}", self.issuer.url());
        let remedy = "send a token of this server, or try again later";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "issuer_unreachable", detail, remedy).retry_after(10)
    }

    /// The author and the scope that claims give.
    fn client_of(&self, claims: &Map<String, Value>) -> Result<Client, Problem> {
        let subject = claims.get("sub").and_then(Value::as_str).filter(|s| !s.is_empty());
        let subject = author(subject.ok_or_else(|| refused("its subject is not a text"))?);
        let refused = |code: &str, detail: String| {
            let remedy = "ask the operator of this server, or that of the identity provider";
            Problem::new(StatusCode::FORBIDDEN, code, detail, remedy)
        };
        let Some(scope) = self.scope_of(claims) else {
            return Err(refused("no_scope", format!("`{subject}` has no scope at this server")));
        };
        let until_unix_s = claims.get("exp").and_then(Value::as_f64).map(|t| t as u64);
        let client = |name: String| Client { until_unix_s, ..Client::new(name, scope) };
        let Some(claim) = &self.settings.tenant_claim else { return Ok(client(subject)) };
        let tenant = value_at(claims, claim).and_then(Value::as_str).map(escaped);
        match tenant.filter(|t| (1..=TENANT_BYTES_MAX).contains(&t.len())) {
            Some(tenant) => Ok(client(format!("{tenant}/{subject}"))),
            None if scope >= Scope::Operate => Ok(client(subject)),
            None => Err(refused("tenant", format!("the token of `{subject}` names no tenant in `{claim}`"))),
        }
    }

    fn scope_of(&self, claims: &Map<String, Value>) -> Option<Scope> {
        let found = self.settings.scope_claim.as_ref().and_then(|c| value_at(claims, c));
        let values: Vec<&str> = match found {
            Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).collect(),
            // A list of words, as in the claim `scope`.
            Some(Value::String(s)) => s.split(' ').chain([s.as_str()]).collect(),
            _ => Vec::new(),
        };
        let mapped = self.settings.map.iter().filter(|(v, _)| values.contains(&v.as_str())).map(|m| m.1);
        mapped.chain(self.settings.scope).max()
    }
}

/// A claim by its name, or else by its path: `realm_access.roles`.
fn value_at<'c>(claims: &'c Map<String, Value>, name: &str) -> Option<&'c Value> {
    claims.get(name).or_else(|| {
        let (first, rest) = name.split_once('.')?;
        rest.split('.').try_fold(claims.get(first)?, |v, key| v.get(key))
    })
}

/// The author that a subject is. Different subjects are different authors.
fn author(subject: &str) -> String {
    let name = escaped(subject);
    if name.len() <= SUBJECT_BYTES_MAX { format!("oidc:{name}") } else { format!("oidc:sha256:{}", hash(subject)) }
}

/// A text with the characters that names of authors have; every other byte is `=` and two digits.
fn escaped(text: &str) -> String {
    text.bytes().fold(String::new(), |mut s, b| {
        let _ = match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b'@' => write!(s, "{}", char::from(b)),
            _ => write!(s, "={b:02X}"),
        };
        s
    })
}

fn refused(why: &str) -> Problem {
    let detail = format!("the token of the identity provider is refused: {why}");
    let remedy = "get a new token from the identity provider and send `Authorization: Bearer TOKEN`";
    Problem::new(StatusCode::UNAUTHORIZED, "wrong_token", detail, remedy)
}

fn reason(kind: &ErrorKind) -> String {
    match kind {
        ErrorKind::ExpiredSignature => "it has expired".into(),
        ErrorKind::ImmatureSignature => "it is not valid yet".into(),
        ErrorKind::InvalidIssuer => "another issuer made it".into(),
        ErrorKind::InvalidAudience => "it was made for another service".into(),
        ErrorKind::InvalidSignature => "its signature is wrong".into(),
        ErrorKind::MissingRequiredClaim(claim) => format!("it has no claim `{claim}`"),
        _ => "it cannot be read".into(),
    }
}

/// Asks the issuer for its keys in the background, and says so if it does not answer.
pub async fn prepare(provider: Arc<Provider>, log: crate::Log) {
    if let Err(why) = provider.prepare().await {
        let issuer = provider.issuer();
        log.note(&format!(
            "the identity provider {issuer} does not answer: {why}; its tokens are refused until it does, tokens of this server are \
             accepted"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn provider(change: impl FnOnce(&mut Oidc)) -> Provider {
        let mut settings = Oidc::new("https://issuer.test", "linkwise");
        settings.scope = Some(Scope::Read);
        change(&mut settings);
        Provider::new(&settings).unwrap()
    }

    fn client(p: &Provider, claims: Value) -> Result<(String, Scope), String> {
        let claims = claims.as_object().cloned().unwrap();
        p.client_of(&claims).map(|c| (c.name, c.scope)).map_err(|e| e.code.clone())
    }

    #[test]
    fn different_subjects_are_different_authors_and_none_is_a_token_of_the_state() {
        let long = "x".repeat(200);
        let subjects = ["ann", "Ann", "auth0|7", "auth0=7C7", "a/b", "a b", "oidc:ann", "ä", "../x", &long, "\0"];
        let names: std::collections::HashSet<String> = subjects.iter().map(|s| author(s)).collect();
        assert_eq!(names.len(), subjects.len());
        for n in &names {
            store::state::check_job_id(n).unwrap_or_else(|e| panic!("{n}: {e}"));
            assert!(n.starts_with("oidc:") && !n.contains('/'), "{n}");
        }
    }

    #[test]
    fn the_highest_scope_of_the_claims_values_counts_and_a_subject_without_one_gets_none() {
        let p = provider(|s| {
            s.scope = None;
            s.scope_claim = Some("realm.roles".into());
            s.map = vec![("ops".into(), Scope::Operate), ("all".into(), Scope::Read)];
        });
        let of = |roles: Value| client(&p, json!({"sub": "ann", "realm": {"roles": roles}}));
        assert_eq!(of(json!(["all", "ops"])).unwrap(), ("oidc:ann".into(), Scope::Operate));
        assert_eq!(of(json!("x all")).unwrap().1, Scope::Read);
        for none in
            [json!([]), json!(["OPS", "op", "ops "]), json!({"ops": 1}), json!(null), json!([["ops"]]), json!("")]
        {
            assert_eq!(of(none.clone()).unwrap_err(), "no_scope", "{none}");
        }
        assert_eq!(client(&p, json!({"sub": 7, "realm": {"roles": ["ops"]}})).unwrap_err(), "wrong_token");
        assert!(Provider::new(&Oidc::new("https://issuer.test", "x")).is_err_and(|e| e.contains("--oidc-map")));
        assert!(Provider::new(&Oidc::new("http://issuer.test", "x")).is_err_and(|e| e.contains("https://")));
    }

    #[test]
    fn a_subject_without_its_tenant_sees_nothing_unless_it_operates() {
        let p = provider(|s| {
            s.tenant_claim = Some("team".into());
            s.scope_claim = Some("g".into());
            s.map = vec![("ops".into(), Scope::Operate)];
        });
        let red = client(&p, json!({"sub": "ann", "team": "red"})).unwrap();
        assert_eq!(red, ("red/oidc:ann".into(), Scope::Read));
        assert_eq!(crate::tenant::tenant_of(&red.0), Some("red"));
        let nested = client(&p, json!({"sub": "ann", "team": "red/blue"})).unwrap();
        assert_eq!(crate::tenant::tenant_of(&nested.0), Some("red=2Fblue"));
        for bad in [json!({"sub": "ann"}), json!({"sub": "ann", "team": ["red"]}), json!({"sub": "ann", "team": ""})] {
            assert_eq!(client(&p, bad).unwrap_err(), "tenant");
        }
        assert_eq!(client(&p, json!({"sub": "bob", "g": ["ops"]})).unwrap(), ("oidc:bob".into(), Scope::Operate));
    }
}
