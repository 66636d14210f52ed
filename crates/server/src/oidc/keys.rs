//! What the issuer publishes: its addresses (the discovery document) and its keys, fetched when a token needs them.
//!
//! A token that names an unknown key makes the server ask again, at most every [`REFETCH`]: the issuer may have a new key.
//! While the issuer does not answer, the keys that were fetched are used for [`STALE`] at most.

use super::signature::ACCEPTED;
use crate::fetch::Fetcher;
use axum::http::{Request, Uri};
use hyper::body::Bytes;
use jsonwebtoken::jwk::{AlgorithmParameters, Jwk, PublicKeyUse};
use jsonwebtoken::{AlgorithmFamily, DecodingKey, Header};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::sync::{Arc, Mutex as Lock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// Shortest time between two requests to the issuer for its keys, whatever tokens come.
pub const REFETCH: Duration = Duration::from_secs(10);
/// Age of the keys from which on they are fetched again: a key that the issuer withdrew is refused after this time.
const FRESH: Duration = Duration::from_secs(300);
/// Longest wait of a request for newer keys while known ones can be used. The fetch goes on.
const PATIENCE: Duration = Duration::from_secs(1);
/// Longest use of keys that cannot be fetched again.
const STALE: Duration = Duration::from_secs(3600);
/// Most keys that are read.
const KEYS_MAX: usize = 64;

/// The issuer's addresses.
#[derive(Clone, Debug, Deserialize)]
pub struct Discovery {
    issuer: String,
    jwks_uri: String,
    /// Where a browser signs in.
    pub authorization_endpoint: Option<String>,
    /// Where a code becomes a token.
    pub token_endpoint: Option<String>,
    /// How a client proves its secret there.
    #[serde(default)]
    pub token_endpoint_auth_methods_supported: Vec<String>,
}

/// A key that verifies tokens.
pub struct Key {
    id: Option<String>,
    /// Its only algorithm, if the issuer names one.
    algorithm: Option<String>,
    family: AlgorithmFamily,
    /// The key itself.
    pub key: DecodingKey,
}

/// What the issuer published at one time.
pub struct Published {
    /// Its addresses.
    pub discovery: Discovery,
    keys: Vec<Key>,
    at: Instant,
}

impl Published {
    /// The keys that can have signed a token with this header.
    pub fn fitting(&self, header: &Header) -> Vec<&Key> {
        let algorithm = format!("{:?}", header.alg);
        let fits = |k: &&Key| {
            k.family == header.alg.family()
                && k.algorithm.as_ref().is_none_or(|a| *a == algorithm)
                && (header.kid.is_none() || header.kid == k.id)
        };
        self.keys.iter().filter(fits).collect()
    }
}

/// The issuer, and what it published.
pub struct Issuer {
    url: String,
    fetcher: Fetcher,
    known: Lock<Option<Arc<Published>>>,
    /// Time and failure of the last request; held while one is under way.
    tried: Mutex<Option<(Instant, Option<String>)>>,
    /// [`REFETCH`], shorter in tests.
    refetch: Duration,
    /// [`FRESH`], shorter in tests.
    fresh: Duration,
}

impl Issuer {
    pub fn new(url: String, fetcher: Fetcher, refetch: Duration) -> Issuer {
        Issuer { url, fetcher, known: Lock::default(), tried: Mutex::default(), refetch, fresh: FRESH }
    }

    /// Its address, which its tokens have as `iss`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The client that asks it.
    pub fn fetcher(&self) -> &Fetcher {
        &self.fetcher
    }

    fn known(&self) -> Option<Arc<Published>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the issuer published, fetched if it is unknown or old. While one request fetches, the others use the known keys; the one
    /// that fetches uses them after [`PATIENCE`].
    ///
    /// # Errors
    /// The issuer does not answer, and nothing usable is known.
    pub async fn published(self: &Arc<Self>) -> Result<Arc<Published>, String> {
        let Some(known) = self.known().filter(|k| k.at.elapsed() < STALE) else { return self.newer_than(None).await };
        if known.at.elapsed() < self.fresh || self.tried.try_lock().is_err() {
            return Ok(known);
        }
        let issuer = self.clone();
        let fetch = tokio::spawn(async move { issuer.newer_than(None).await });
        match tokio::time::timeout(PATIENCE, fetch).await {
            Ok(Ok(Ok(newer))) => Ok(newer),
            _ => Ok(known),
        }
    }

    /// What the issuer publishes now, if it may be asked again; else what is known. `seen` has no fitting key.
    pub async fn newer_than(&self, seen: Option<&Arc<Published>>) -> Result<Arc<Published>, String> {
        let mut tried = self.tried.lock().await;
        let known = self.known();
        // Another request fetched meanwhile.
        if let Some(k) = known.as_ref().filter(|k| k.at.elapsed() < self.fresh)
            && seen.is_none_or(|s| !Arc::ptr_eq(s, k))
        {
            return Ok(k.clone());
        }
        let usable = known.filter(|k| k.at.elapsed() < STALE);
        if let Some((at, failure)) = &*tried
            && at.elapsed() < self.refetch
        {
            return usable.ok_or_else(|| failure.clone().unwrap_or_else(|| "its keys are too old".into()));
        }
        let fetched = self.fetch().await;
        *tried = Some((Instant::now(), fetched.as_ref().err().cloned()));
        match fetched {
            Ok(new) => {
                let new = Arc::new(new);
                *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(new.clone());
                Ok(new)
            }
            Err(why) => usable.ok_or(why),
        }
    }

    async fn fetch(&self) -> Result<Published, String> {
        let at = format!("{}/.well-known/openid-configuration", self.url.trim_end_matches('/'));
        let discovery: Discovery = self.get(&at).await?;
        if discovery.issuer != self.url {
            let found = crate::read::excerpt(&discovery.issuer);
            return Err(format!("{at} is the document of the issuer `{found}`, not of `{}`", self.url));
        }
        let named = [&Some(discovery.jwks_uri.clone()), &discovery.authorization_endpoint, &discovery.token_endpoint];
        for address in named.into_iter().flatten() {
            check_address(address).map_err(|e| format!("{at}: {e}"))?;
        }
        #[derive(Deserialize)]
        struct Set {
            keys: Vec<serde_json::Value>,
        }
        let set: Set = self.get(&discovery.jwks_uri).await?;
        // A key of a kind that this version does not know is left out, and the others are read.
        let keys: Vec<Key> = set.keys.into_iter().take(KEYS_MAX).filter_map(key).collect();
        if keys.is_empty() {
            return Err(format!("{} has no key that verifies signatures", discovery.jwks_uri));
        }
        Ok(Published { discovery, keys, at: Instant::now() })
    }

    async fn get<T: DeserializeOwned>(&self, at: &str) -> Result<T, String> {
        let request = Request::get(at).header("accept", "application/json").body(Bytes::new());
        let request = request.map_err(|e| format!("{at}: {e}"))?;
        let answer = self.fetcher.send(request).await.map_err(|e| format!("{at}: {e}"))?;
        if answer.status() != 200 {
            return Err(format!("{at} answers {}", answer.status()));
        }
        serde_json::from_slice(answer.body()).map_err(|e| format!("{at} cannot be read: {e}"))
    }
}

/// A key of the set that verifies signatures by an accepted algorithm.
fn key(value: serde_json::Value) -> Option<Key> {
    let jwk: Jwk = serde_json::from_value(value).ok()?;
    if jwk.common.public_key_use.as_ref().is_some_and(|u| *u != PublicKeyUse::Signature) {
        return None;
    }
    let family = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => AlgorithmFamily::Rsa,
        AlgorithmParameters::EllipticCurve(_) => AlgorithmFamily::Ec,
        AlgorithmParameters::OctetKeyPair(_) => AlgorithmFamily::Ed,
        _ => return None, // a shared secret is no key of an issuer
    };
    let algorithm = jwk.common.key_algorithm.as_ref().map(ToString::to_string);
    if algorithm.as_ref().is_some_and(|a| !ACCEPTED.iter().any(|x| format!("{x:?}") == *a)) {
        return None;
    }
    let key = DecodingKey::from_jwk(&jwk).ok()?;
    Some(Key { id: jwk.common.key_id, algorithm, family, key })
}

/// Accepts `https://`, and `http://` of this machine.
///
/// # Errors
/// A sentence with the address.
pub fn check_address(address: &str) -> Result<(), String> {
    let uri: Uri = address.parse().map_err(|e| format!("`{}`: {e}", crate::read::excerpt(address)))?;
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let here = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|a| a.is_loopback());
    match uri.scheme_str() {
        Some("https") if !host.is_empty() => Ok(()),
        Some("http") if here => Ok(()),
        _ => Err(format!("`{}` is not encrypted: https:// was expected", crate::read::excerpt(address))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn an_issuer_that_takes_connections_and_never_answers_does_not_delay_tokens_of_known_keys() {
        super::super::signature::install();
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap());
        let fetcher = Fetcher::new(None, Duration::from_secs(30)).unwrap();
        let mut issuer = Issuer::new(url.clone(), fetcher, Duration::ZERO);
        issuer.fresh = Duration::ZERO;
        let discovery: Discovery =
            serde_json::from_value(serde_json::json!({"issuer": url, "jwks_uri": format!("{url}/keys")})).unwrap();
        *issuer.known.lock().unwrap() = Some(Arc::new(Published { discovery, keys: Vec::new(), at: Instant::now() }));
        let issuer = Arc::new(issuer);
        let begin = Instant::now();
        for _ in 0..100 {
            issuer.published().await.unwrap();
        }
        let held = begin.elapsed();
        // A fetch takes 30 s: one request waited for a part of it, the others for nothing.
        assert!(held < Duration::from_secs(15), "{held:?}");
        assert!(issuer.tried.try_lock().is_err(), "the fetch goes on");
    }
}
