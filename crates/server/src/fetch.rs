//! One request to another server: the identity provider, or the collector of spans. Each has a limit on its time and on the
//! answer's size; no redirection is followed, and no proxy is asked.

use axum::http::{Request, Response, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, DEFAULT_VERSIONS, RootCertStore};

/// Largest answer, bytes. A set of 64 keys with certificates has about 200 kB.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// A client that trusts some authorities.
#[derive(Clone)]
pub struct Fetcher {
    tls: Arc<ClientConfig>,
    within: Duration,
}

impl Fetcher {
    /// A client that trusts the authorities of the file, or those of this machine.
    ///
    /// # Errors
    /// A sentence about the file.
    pub fn new(authorities: Option<&Path>, within: Duration) -> Result<Fetcher, String> {
        let mut roots = RootCertStore::empty();
        match authorities {
            Some(file) => {
                for c in crate::tls::certificates(file)? {
                    roots.add(c).map_err(|e| format!("{}: {e}", file.display()))?;
                }
            }
            // A machine without authorities reaches no server over TLS, which is said when one is asked.
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(DEFAULT_VERSIONS)
            .map_err(|e| e.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Fetcher { tls: Arc::new(tls), within })
    }

    /// Sends a request whose address is `http://` or `https://`, and returns the whole answer.
    ///
    /// # Errors
    /// A sentence without the body or a header of the request.
    pub async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, String> {
        let asked = self.answered(request);
        let late = |_| format!("no answer within {} s", self.within.as_secs_f64());
        tokio::time::timeout(self.within, asked).await.map_err(late)?
    }

    async fn answered(&self, request: Request<Bytes>) -> Result<Response<Bytes>, String> {
        let uri = request.uri().clone();
        let (host, port, encrypts) = place(&uri)?;
        let tcp = TcpStream::connect((host, port)).await.map_err(|e| format!("{host}:{port}: {e}"))?;
        let _ = tcp.set_nodelay(true);
        if !encrypts {
            return talk(tcp, request).await;
        }
        let name = ServerName::try_from(host.to_owned()).map_err(|_| format!("`{host}` is no name of a server"))?;
        let tls = TlsConnector::from(self.tls.clone()).connect(name, tcp).await;
        talk(tls.map_err(|e| format!("TLS with {host}:{port}: {e}"))?, request).await
    }
}

/// Host, port, and whether TLS is used.
fn place(uri: &Uri) -> Result<(&str, u16, bool), String> {
    let encrypts = match uri.scheme_str() {
        Some("https") => true,
        Some("http") => false,
        _ => return Err(format!("`{uri}` does not begin with https://")),
    };
    let host = uri.host().ok_or_else(|| format!("`{uri}` names no host"))?;
    let port = uri.port_u16().unwrap_or(if encrypts { 443 } else { 80 });
    Ok((host.trim_start_matches('[').trim_end_matches(']'), port, encrypts))
}

async fn talk<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, String> {
    let broken = |e: hyper::Error| format!("the connection broke: {e}");
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // The connection ends when the sender is dropped, after the answer.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    let (mut parts, body) = request.into_parts();
    let authority = parts.uri.authority().map_or("", |a| a.as_str()).to_owned();
    parts.headers.insert(header::HOST, authority.parse().map_err(|_| "the address has no host")?);
    let path = parts.uri.path_and_query().map_or("/", |p| p.as_str());
    parts.uri = path.parse().map_err(|_| "the address has no path")?;
    let answer = sender.send_request(Request::from_parts(parts, Full::new(body))).await.map_err(broken)?;
    let (head, body) = answer.into_parts();
    let whole = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
    let whole = whole.map_err(|e| format!("the answer cannot be read: {e}"))?;
    Ok(Response::from_parts(head, whole.to_bytes()))
}
