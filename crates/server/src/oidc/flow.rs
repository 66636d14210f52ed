//! A browser signs in: the authorization code flow with PKCE.
//!
//! `/login/oidc` sends the browser to the issuer with a fresh state, nonce and challenge, and keeps the three in a cookie of this
//! browser; `/login/callback` takes the code only from the browser with that cookie, once. The ID token becomes the cookie of
//! the session: every request verifies it again, so the session ends with the token and any server of a state accepts it.

use super::{Provider, Use, refused};
use crate::app::App;
use crate::limits::CLIENTS_MAX;
use crate::page;
use crate::problem::Problem;
use crate::read::{self, COOKIE, field};
use crate::serve::Peer;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Request as Sent, Response, StatusCode, header};
use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use hyper::body::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest time that a person needs to sign in.
const SIGN_IN: Duration = Duration::from_secs(600);
/// Longest ID token that a browser keeps as a cookie, bytes: browsers drop cookies of more than 4,096 with their name.
const COOKIE_BYTES_MAX: usize = 3_900;
/// The cookie of a sign-in that is under way: state, nonce and verifier.
const UNDER_WAY: &str = "linkwise_sign_in";
/// The path of the answer from the issuer.
pub const CALLBACK: &str = "/login/callback";

/// The states of sign-ins that have ended: none is taken twice.
#[derive(Default)]
pub struct Used(Mutex<HashMap<String, Instant>>);

impl Used {
    /// False if the state was used before.
    fn is_new(&self, state: &str) -> bool {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        used.retain(|_, at| at.elapsed() < SIGN_IN);
        if used.len() >= CLIENTS_MAX
            && let Some(oldest) = used.iter().min_by_key(|u| u.1).map(|u| u.0.clone())
        {
            used.remove(&oldest);
        }
        used.insert(state.to_owned(), Instant::now()).is_none()
    }
}

/// What this browser's sign-in has.
struct UnderWay {
    state: String,
    nonce: String,
    verifier: String,
}

/// 256 random bits as text.
fn random() -> Result<String, Problem> {
    let failed = |e: String| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", e, "report this");
    let token = crate::auth::new_token().map_err(failed)?;
    Ok(token.trim_start_matches(crate::auth::TOKEN_START).to_owned())
}

/// The part of a cookie that keeps it off connections in clear, where browsers reach this server over TLS.
fn secure(app: &App) -> &'static str {
    let address = app.oidc.as_ref().and_then(|p| p.settings.public_url.as_deref());
    if app.encrypts || address.is_some_and(|a| a.starts_with("https://")) { "; Secure" } else { "" }
}

fn cookie(app: &App, value: &str, seconds: u64) -> String {
    let secure = secure(app);
    // `Lax`: the issuer's page sends the browser back, which is a visit from another site.
    format!("{UNDER_WAY}={value}; Path=/login; HttpOnly; SameSite=Lax; Max-Age={seconds}{secure}")
}

fn provider(app: &App) -> Result<&Arc<Provider>, Problem> {
    app.oidc.as_ref().ok_or_else(|| {
        let detail = "this server has no identity provider";
        Problem::new(StatusCode::NOT_FOUND, "unknown_path", detail, "sign in with a token at /login")
    })
}

/// The address of the callback, as the issuer knows it.
fn redirect(app: &App, provider: &Provider, host: &str) -> String {
    let scheme = if app.encrypts { "https" } else { "http" };
    let base = provider.settings.public_url.clone().unwrap_or_else(|| format!("{scheme}://{host}"));
    format!("{}{CALLBACK}", base.trim_end_matches('/'))
}

/// Sends the browser to the issuer.
pub async fn begin(app: Arc<App>, request: Request) -> Result<Response<Body>, Problem> {
    let (parts, _) = request.into_parts();
    read::check_origin(&app, &parts)?;
    let provider = provider(&app)?;
    let published = match provider.issuer.published().await {
        Ok(p) => p,
        Err(e) => return page::not_signed_in(&app, &provider.unreachable(&e)),
    };
    let Some(endpoint) = &published.discovery.authorization_endpoint else {
        return page::not_signed_in(&app, &provider.unreachable("it has no page to sign in"));
    };
    let (state, nonce, verifier) = (random()?, random()?, random()?);
    let challenge = BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()));
    let host = field(&parts.headers, header::HOST).unwrap_or_default();
    let query = form(&[
        ("response_type", "code"),
        ("client_id", &provider.settings.client_id),
        ("redirect_uri", &redirect(&app, provider, host)),
        ("scope", "openid"),
        ("state", &state),
        ("nonce", &nonce),
        ("code_challenge", &challenge),
        ("code_challenge_method", "S256"),
    ]);
    let joint = if endpoint.contains('?') { '&' } else { '?' };
    let mut r = Response::new(Body::empty());
    *r.status_mut() = StatusCode::SEE_OTHER;
    let set = cookie(&app, &format!("{state}.{nonce}.{verifier}"), SIGN_IN.as_secs());
    for (name, value) in [(header::LOCATION, format!("{endpoint}{joint}{query}")), (header::SET_COOKIE, set)] {
        let value = HeaderValue::try_from(value);
        let wrong = |_| Problem::bad("bad_request", "the address of this server is not plain text");
        r.headers_mut().insert(name, value.map_err(wrong)?);
    }
    Ok(r)
}

/// What the issuer sends the browser back with.
#[derive(Deserialize)]
struct Back {
    state: Option<String>,
    code: Option<String>,
    error: Option<String>,
    error_description: Option<String>,
    /// The issuer that answers (RFC 9207).
    iss: Option<String>,
}

/// Takes the code of this browser's sign-in, and sets the cookie of the session.
pub async fn end(app: Arc<App>, request: Request) -> Result<Response<Body>, Problem> {
    let (parts, _) = request.into_parts();
    read::check_origin(&app, &parts)?;
    let address = parts.extensions.get::<Peer>().map(|p| p.0.ip().to_string()).unwrap_or_default();
    let ended = match app.patient_with(&address) {
        Ok(()) => signed_in(&app, &parts).await,
        Err(p) => Err(p),
    };
    // A stranger's codes reach the issuer as rarely as wrong tokens are taken.
    if ended.as_ref().is_err_and(|p| p.status != 429) {
        app.wrong_token(&address);
    }
    let ended = match ended {
        Ok(token) => {
            let secure = secure(&app);
            let session = page::SESSION_S;
            let mut r = page::page("signed_in.html", json!({ "visitor": page::visitor(&app, None)}))?;
            let set = format!("{COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict; Max-Age={session}{secure}");
            let value = HeaderValue::try_from(set).map_err(|_| refused("it is not plain text"))?;
            r.headers_mut().append(header::SET_COOKIE, value);
            Ok(r)
        }
        Err(p) => page::not_signed_in(&app, &p),
    };
    ended.map(|mut r| {
        if let Ok(gone) = HeaderValue::try_from(cookie(&app, "", 0)) {
            r.headers_mut().append(header::SET_COOKIE, gone);
        }
        r
    })
}

async fn signed_in(app: &App, parts: &axum::http::request::Parts) -> Result<String, Problem> {
    let provider = provider(app)?;
    let back: Back = read::query(&parts.uri)?;
    let refused = |code: &str, detail: String| Problem::new(StatusCode::FORBIDDEN, code, detail, "sign in again");
    let foreign = || refused("foreign_sign_in", "this browser has not begun this sign-in, or has ended it".into());
    let own = under_way(&parts.headers).ok_or_else(foreign)?;
    if back.state.as_deref() != Some(own.state.as_str()) || !provider.used.is_new(&own.state) {
        return Err(foreign());
    }
    if back.iss.as_deref().is_some_and(|iss| iss != provider.issuer()) {
        return Err(refused("foreign_sign_in", "another identity provider answers".into()));
    }
    if let Some(error) = &back.error {
        let more = back.error_description.as_deref().map_or(String::new(), |d| format!(" ({})", read::excerpt(d)));
        let detail = format!("the identity provider says `{}`{more}", read::excerpt(error));
        return Err(refused("sign_in_refused", detail));
    }
    let code = back.code.ok_or_else(|| refused("sign_in_refused", "the identity provider sent no code".into()))?;
    let host = field(&parts.headers, header::HOST).unwrap_or_default();
    let token = provider.exchange(&code, &redirect(app, provider, host), &own.verifier).await?;
    let claims = provider.claims(&token, Use::Session).await?;
    let is = |claim: &str, value: &str| claims.get(claim).and_then(Value::as_str) == Some(value);
    if !is("nonce", &own.nonce) {
        return Err(refused("foreign_sign_in", "the token was made for another sign-in".into()));
    }
    if claims.contains_key("azp") && !is("azp", &provider.settings.client_id) {
        return Err(refused("sign_in_refused", "the token was made for another service".into()));
    }
    provider.client_of(&claims)?;
    if token.len() > COOKIE_BYTES_MAX {
        let detail = format!("the ID token has {} bytes, and a browser keeps {COOKIE_BYTES_MAX}", token.len());
        return Err(refused("sign_in_refused", format!("{detail}; ask for fewer claims in it")));
    }
    Ok(token)
}

/// The cookie of the sign-in that this browser began.
fn under_way(headers: &axum::http::HeaderMap) -> Option<UnderWay> {
    let cookies = field(headers, header::COOKIE)?;
    let value = cookies.split(';').find_map(|c| c.trim().strip_prefix(UNDER_WAY)?.strip_prefix('='))?;
    let mut parts = value.split('.').map(str::to_owned);
    let (state, nonce, verifier) = (parts.next()?, parts.next()?, parts.next()?);
    let whole = |s: &String| s.len() == 64 && s.bytes().all(|b| b.is_ascii_hexdigit());
    let complete = parts.next().is_none() && [&state, &nonce, &verifier].into_iter().all(whole);
    complete.then_some(UnderWay { state, nonce, verifier })
}

impl Provider {
    /// Exchanges a code for an ID token.
    async fn exchange(&self, code: &str, redirect: &str, verifier: &str) -> Result<String, Problem> {
        let published = self.issuer.published().await.map_err(|e| self.unreachable(&e))?;
        let endpoint = &published.discovery.token_endpoint;
        let endpoint = endpoint.as_ref().ok_or_else(|| self.unreachable("it has no address for tokens"))?;
        let id = self.settings.client_id.as_str();
        let mut fields = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", redirect),
            ("code_verifier", verifier),
        ];
        let methods = &published.discovery.token_endpoint_auth_methods_supported;
        let basic = methods.is_empty() || methods.iter().any(|m| m == "client_secret_basic");
        let mut request = Sent::post(endpoint).header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        match &self.settings.client_secret {
            Some(secret) if basic => {
                let pair = format!("{}:{}", page::in_query(id), page::in_query(secret));
                let value = format!("Basic {}", BASE64_STANDARD.encode(pair));
                request = request.header(header::AUTHORIZATION, value);
            }
            Some(secret) => fields.extend([("client_id", id), ("client_secret", secret)]),
            None => fields.push(("client_id", id)),
        }
        let request = request.header(header::ACCEPT, "application/json").body(Bytes::from(form(&fields)));
        let request = request.map_err(|e| self.unreachable(&e.to_string()))?;
        let answer = self.issuer.fetcher().send(request).await.map_err(|e| self.unreachable(&e))?;
        let body: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
        if let Some(token) = body["id_token"].as_str().filter(|_| answer.status() == 200) {
            return Ok(token.to_owned());
        }
        let said = body["error"].as_str().map_or_else(|| answer.status().to_string(), read::excerpt);
        let detail = format!("the identity provider gives no token for this sign-in: {said}");
        Err(Problem::new(StatusCode::FORBIDDEN, "sign_in_refused", detail, "sign in again"))
    }
}

/// Fields as the query of an address, or as a form.
fn form(fields: &[(&str, &str)]) -> String {
    let pairs: Vec<String> = fields.iter().map(|(k, v)| format!("{k}={}", page::in_query(v))).collect();
    pairs.join("&")
}
