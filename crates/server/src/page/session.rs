//! Signing in and out: a token in a cookie that no script can read and no other site can send.

use super::not_signed_in;
use crate::app::App;
use crate::oidc::Use;
use crate::problem::Problem;
use crate::read::{self, COOKIE};
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde::Deserialize;
use std::sync::Arc;

/// Length of a browser's session, seconds.
pub const SESSION_S: u32 = 12 * 3600;

/// The form of the page.
#[derive(Deserialize)]
struct Form {
    token: String,
}

/// Puts the token into a cookie that no script can read and no other page can send.
pub async fn login(app: Arc<App>, request: Request) -> Result<Response<Body>, Problem> {
    let (parts, body) = request.into_parts();
    read::check_origin(&app, &parts)?;
    let body = crate::body::whole(body, app.body_time).await?;
    let address = format!("/?{}", String::from_utf8_lossy(&body));
    let uri = address.parse().map_err(|_| Problem::bad("bad_request", "the form cannot be read"))?;
    let Form { token } = read::query(&uri)?;
    let token = token.trim();
    let peer = parts.extensions.get::<crate::serve::Peer>().copied();
    let known = match peer {
        Some(p) if token.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') => {
            app.client(Some(token), Use::Session, p.0).await
        }
        _ => Err(Problem::bad("wrong_token", "the token has other characters than tokens have")),
    };
    if let Err(p) = known {
        return not_signed_in(&app, &p);
    }
    let secure = if app.encrypts { "; Secure" } else { "" };
    Ok(moved(&format!("{COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict; Max-Age={SESSION_S}{secure}")))
}

/// Takes the cookie away.
pub async fn logout(app: Arc<App>, request: Request) -> Result<Response<Body>, Problem> {
    let (parts, _) = request.into_parts();
    read::check_origin(&app, &parts)?;
    Ok(moved(&format!("{COOKIE}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0")))
}

/// Sends the browser to the first page, with a cookie.
fn moved(cookie: &str) -> Response<Body> {
    let mut r = Response::new(Body::empty());
    *r.status_mut() = StatusCode::SEE_OTHER;
    r.headers_mut().insert(header::LOCATION, HeaderValue::from_static("/"));
    if let Ok(c) = HeaderValue::from_str(cookie) {
        r.headers_mut().insert(header::SET_COOKIE, c);
    }
    r
}
