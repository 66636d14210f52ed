//! [`Client`]: requests of a command to a server, one after another, each with limits on its time and on the answer's size.

use crate::fetch::Fetcher;
use axum::http::{Method, Request, header};
use hyper::body::Bytes;
use std::path::Path;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// A client of one server. Threads can share it. Every request opens a connection of its own.
pub struct Client {
    fetcher: Fetcher,
    runtime: Runtime,
    /// `http://HOST:PORT`, without a slash at its end.
    base: String,
    token: Option<String>,
}

impl Client {
    /// A client of the server at `url`, `http://HOST:PORT` or `https://HOST:PORT`, with a bearer token if it needs one. Its certificate
    /// has to come from the authorities of the file, or from those of this machine. Nothing is sent.
    ///
    /// # Errors
    /// A sentence about the URL, the token or the file.
    pub fn new(
        url: &str,
        authorities: Option<&Path>,
        token: Option<String>,
        within: Duration,
    ) -> Result<Client, String> {
        let base = url.trim_end_matches('/');
        let parsed: axum::http::Uri = base.parse().map_err(|e| format!("`{url}` is no URL: {e}"))?;
        if !matches!(parsed.scheme_str(), Some("http" | "https")) || parsed.host().is_none() || parsed.path() != "/" {
            return Err(format!("`{url}`: http://HOST:PORT or https://HOST:PORT was expected"));
        }
        if token.as_ref().is_some_and(|t| t.is_empty() || !t.bytes().all(|b| b.is_ascii_graphic())) {
            return Err("the token has characters that no token has, or none".into());
        }
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|e| format!("no runtime: {e}"))?;
        Ok(Client { fetcher: Fetcher::new(authorities, within)?, runtime, base: base.into(), token })
    }

    /// Sends a body of JSON, or none, to `path`. Returns the status and the body of the answer.
    ///
    /// # Errors
    /// A sentence: no answer came.
    pub fn send(&self, method: &str, path: &str, body: Vec<u8>) -> Result<(u16, Vec<u8>), String> {
        let method = Method::from_bytes(method.as_bytes()).map_err(|e| e.to_string())?;
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Bytes::from(body)).map_err(|e| e.to_string())?;
        let answer = self.runtime.block_on(self.fetcher.send(request))?;
        Ok((answer.status().as_u16(), answer.into_body().to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_url_or_token_is_refused_before_anything_is_sent() {
        let new = |url: &str, token: Option<&str>| {
            Client::new(url, None, token.map(str::to_owned), Duration::from_secs(1)).map(drop)
        };
        assert_eq!(new("http://127.0.0.1:7878/", Some("lw_abc")), Ok(()));
        for url in ["127.0.0.1:7878", "ftp://a", "http://a/v1", "http://", "http://a b"] {
            assert!(new(url, None).is_err(), "{url}");
        }
        assert!(new("http://a", Some("a\nb")).unwrap_err().contains("token"));
    }

    #[test]
    fn a_server_that_does_not_answer_is_a_sentence_in_time() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap());
        let client = Client::new(&url, None, None, Duration::from_millis(200)).unwrap();
        assert!(client.send("GET", "/v1/cluster", Vec::new()).unwrap_err().contains("no answer within"));
        drop(silent);
        assert!(client.send("GET", "/v1/cluster", Vec::new()).is_err());
    }
}
