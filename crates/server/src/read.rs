//! Reads what a request says: header, path, query and body.

use crate::app::App;
use crate::auth::{Client, Scope};
use crate::connection::Principal;
use crate::limits::HEADER_BYTES_MAX;
use crate::log::Who;
use crate::oidc::Use;
use crate::problem::Problem;
use crate::serve::Peer;
use axum::extract::Query;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header, request::Parts};
use serde::de::DeserializeOwned;
use std::sync::atomic::Ordering;

/// The cookie of a browser's session. It holds a token and is read for pages only.
pub const COOKIE: &str = "linkwise_token";
/// Header with the reason of a request.
const REASON: &str = "x-reason";
/// Longest reason, bytes.
const REASON_BYTES_MAX: usize = 1024;
/// Longest idempotency key, bytes.
const KEY_BYTES_MAX: usize = 200;
/// Longest excerpt of a request in a message, characters.
const SHOWN: usize = 300;

/// A request with its client.
pub struct Asked {
    /// Parameters of the path, decoded.
    pub path: Vec<(String, String)>,
    pub uri: Uri,
    pub body: Vec<u8>,
    /// The header `Idempotency-Key`.
    pub key: Option<String>,
    pub client: Client,
}

impl Asked {
    /// A parameter of the path.
    pub fn param(&self, name: &str) -> String {
        self.path.iter().find(|p| p.0 == name).map_or_else(String::new, |p| p.1.clone())
    }

    /// A parameter of the path that is a number.
    pub fn number<T: std::str::FromStr>(&self, name: &str) -> Result<T, Problem> {
        let text = self.param(name);
        text.parse().map_err(|_| Problem::bad("bad_path", format!("`{}` is not a number", excerpt(&text))))
    }

    /// The body as JSON; an empty body is an object without fields.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        json(if self.body.is_empty() { b"{}" } else { &self.body })
    }

    /// The query of the address.
    pub fn query<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        query(&self.uri)
    }

    /// The key of the header with the body, for a request that is no request of the engine.
    pub fn once(&self) -> Result<Option<store::Once>, Problem> {
        let mut key = None;
        self.key_into(&mut key)?;
        let Some(key) = key else { return Ok(None) };
        let request = format!("{} {}", self.uri.path(), String::from_utf8_lossy(&self.body));
        store::Once::new(&key, &request).map(Some).map_err(|e| Problem::bad("bad_request", e))
    }

    /// Puts the key of the header into a request, whose own key must not differ. Keys belong to their client, those of a tenant's clients to the tenant:
    /// the engine sees them with a mark of the owner in front.
    pub fn key_into(&self, own: &mut Option<String>) -> Result<(), Problem> {
        let key = match (&self.key, own.take()) {
            (Some(header), Some(body)) if *header != body => {
                let detail = "the header `Idempotency-Key` and the field `key` differ";
                return Err(Problem::bad("two_keys", detail));
            }
            (header, body) => header.clone().or(body),
        };
        let Some(key) = key else { return Ok(()) };
        if key.is_empty() || key.len() > KEY_BYTES_MAX || !key.bytes().all(|b| b.is_ascii_graphic()) {
            let detail =
                format!("the idempotency key is not 1 to {KEY_BYTES_MAX} printable ASCII characters without spaces");
            return Err(Problem::bad("bad_request", detail));
        }
        *own = Some(self.client.key_mark() + &key);
        Ok(())
    }
}

/// The start of a text from a client, without control characters.
pub fn excerpt(text: &str) -> String {
    text.chars().take(SHOWN).flat_map(char::escape_debug).collect()
}

/// Reads a JSON object. The message of an error has line and column.
pub fn json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    let wrong = |e: serde_json::Error| {
        let code = if e.is_data() { "bad_request" } else { "bad_json" };
        Problem::bad(code, format!("the body cannot be read: {}", excerpt(&e.to_string())))
    };
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        // A list would be read as the values of the fields in their order.
        serde_json::from_slice::<serde::de::IgnoredAny>(bytes).map_err(wrong)?;
        return Err(Problem::bad("bad_request", "the body cannot be read: an object was expected"));
    }
    serde_json::from_slice(bytes).map_err(wrong)
}

/// Reads the query of an address.
pub fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, Problem> {
    let read = Query::<T>::try_from_uri(uri);
    read.map(|q| q.0).map_err(|e| {
        let why = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
        Problem::bad("bad_query", format!("the query cannot be read: {}", excerpt(&why)))
    })
}

/// Refuses a header beyond its limit. hyper itself ends a connection from twice as much on, with an empty answer.
pub fn check_header(parts: &Parts) -> Result<(), Problem> {
    let uri = parts.uri.path_and_query().map_or(0, |p| p.as_str().len());
    let fields = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
    if uri + fields.sum::<usize>() <= HEADER_BYTES_MAX {
        return Ok(());
    }
    let detail = format!("the header has more than {HEADER_BYTES_MAX} bytes");
    let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    Err(Problem::new(status, "header_too_large", detail, "send a shorter address and fewer fields"))
}

/// A field of the header as text.
pub fn field(headers: &HeaderMap, name: impl header::AsHeaderName) -> Option<&str> {
    headers.get(name).and_then(|v| v.to_str().ok())
}

/// Checks that the body, if there is one, has the form that the endpoint reads.
pub fn check_content(headers: &HeaderMap, empty: bool, forms: &[&str]) -> Result<(), Problem> {
    let refused = |code: &str, detail: String, remedy: String| {
        Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, code, detail, &remedy))
    };
    if let Some(e) = field(headers, header::CONTENT_ENCODING).filter(|e| *e != "identity") {
        let detail = format!("the body is encoded as `{}`", excerpt(e));
        return refused("encoding_unsupported", detail, "send the body as it is".into());
    }
    let form = field(headers, header::CONTENT_TYPE).unwrap_or_default();
    let form = form.split(';').next().unwrap_or_default().trim();
    if !empty && !forms.iter().any(|f| form.eq_ignore_ascii_case(f)) {
        let detail = format!("the body is called `{}`", excerpt(form));
        return refused("content_type", detail, format!("send it with `Content-Type: {}`", forms[0]));
    }
    Ok(())
}

/// Refuses what a foreign page in a browser could send: requests under another name of this machine while no token is
/// asked for, and changes from another origin.
pub fn check_origin(app: &App, parts: &Parts) -> Result<(), Problem> {
    let host = field(&parts.headers, header::HOST).or(parts.uri.authority().map(|a| a.as_str())).unwrap_or_default();
    if !app.asks_for_tokens.load(Ordering::Acquire) && !app.forced {
        let name = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()));
        let name = name.map_or(host, |n| n.0);
        if !["localhost", "127.0.0.1", "[::1]"].contains(&name) {
            let detail = format!("the request is for `{}`, and this server answers for localhost only", excerpt(host));
            let remedy = "use http://localhost, or make tokens with `linkwise token create`";
            return Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, "wrong_host", detail, remedy));
        }
    }
    let foreign = |origin: &&str| origin.split_once("://").is_none_or(|(_, o)| o != host);
    let reads = matches!(parts.method, Method::GET | Method::HEAD);
    if let Some(origin) = field(&parts.headers, header::ORIGIN).filter(foreign).filter(|_| !reads) {
        let detail = format!("the request comes from a page of `{}`", excerpt(origin));
        return Err(Problem::new(StatusCode::FORBIDDEN, "foreign_origin", detail, "use this server's own page"));
    }
    Ok(())
}

/// The client of a request, if it may do what `scope` names.
pub async fn client(app: &App, parts: &Parts, scope: Scope, cookie: bool) -> Result<Client, Problem> {
    check_origin(app, parts)?;
    let bearer = field(&parts.headers, header::AUTHORIZATION).and_then(|v| {
        let (kind, token) = v.split_once(' ')?;
        kind.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    let session = field(&parts.headers, header::COOKIE).filter(|_| cookie && parts.method == Method::GET);
    let session = session.and_then(|c| c.split(';').find_map(|p| p.trim().strip_prefix(COOKIE)?.strip_prefix('=')));
    let Some(Peer(peer)) = parts.extensions.get::<Peer>().copied() else {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        return Err(Problem::new(status, "internal", "the request has no address", "report this"));
    };
    let certificate = parts.extensions.get::<Principal>().and_then(|p| p.0.clone());
    let used = if bearer.is_some() { Use::Bearer } else { Use::Session };
    let client = match (bearer.or(session), certificate) {
        (None, Some(name)) => app.certified(&name).await?,
        (token, _) => app.client(token, used, peer).await?,
    };
    if client.scope < scope {
        let detail = format!("this needs the scope `{scope}`, and token `{}` has `{}`", client.name, client.scope);
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            "scope",
            detail,
            "ask the operator for a token with this scope",
        ));
    }
    if let Some(who) = parts.extensions.get::<Who>() {
        who.is(&client.name);
    }
    let name = if client.name == "local" { peer.ip().to_string() } else { client.name.clone() };
    app.pace(&name)?;
    if cookie && client.tenant().is_some() {
        let detail = "the pages show the jobs of all tenants";
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            "tenant",
            detail,
            "use /v1, or a token with the scope `operate`",
        ));
    }
    Ok(Client { why: reason(&parts.headers)?, ..client })
}

/// The reason for a request: one line, for the log of changes.
fn reason(headers: &HeaderMap) -> Result<String, Problem> {
    let Some(value) = headers.get(REASON) else { return Ok(String::new()) };
    let text = std::str::from_utf8(value.as_bytes()).ok().filter(|t| t.len() <= REASON_BYTES_MAX);
    let text = text.filter(|t| !t.chars().any(char::is_control)).map(|t| t.trim().to_owned());
    text.ok_or_else(|| {
        let detail = format!("the header `{REASON}` is not one line of UTF-8 with at most {REASON_BYTES_MAX} bytes");
        Problem::bad("bad_reason", detail)
    })
}

/// The version of the state that a change asks for, in the header `If-Match`.
pub fn version(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(text) = field(headers, header::IF_MATCH).filter(|t| *t != "*") else { return Ok(None) };
    let number = text.trim().trim_matches('"').parse().ok();
    let wrong = || Problem::bad("bad_version", "the header `If-Match` is not the version of a state, such as \"17\"");
    number.map(Some).ok_or_else(wrong)
}
