//! TLS to PostgreSQL, as libpq's options ask: `sslmode`, `sslrootcert`, `sslcert`, `sslkey`.
//!
//! | sslmode | encrypts | the server's certificate |
//! |---|---|---|
//! | `disable` | no | |
//! | `prefer` | if the server offers it | is not checked |
//! | `require` | yes | is not checked; with `sslrootcert` as under `verify-ca` |
//! | `verify-ca` | yes | comes from an authority in `sslrootcert` |
//! | `verify-full` | yes | the same, and names the host of the URL |

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::verify_server_cert_signed_by_trust_anchor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    ClientConfig, DEFAULT_VERSIONS, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

/// Largest file of certificates or keys, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The value of `sslrootcert` that stands for the authorities of this machine.
const SYSTEM: &str = "system";

/// What is checked of the server's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    Nothing,
    Authority,
    AuthorityAndName,
}

/// The options of a URL that concern TLS.
#[derive(Clone, Debug)]
pub(super) struct Tls {
    check: Check,
    roots: Option<PathBuf>,
    own: Option<(PathBuf, PathBuf)>,
}

/// The options by which the URL names TLS.
#[derive(Default)]
struct Named {
    mode: Option<String>,
    roots: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl Tls {
    /// Takes the options of TLS out of a URL. The rest is what the driver reads.
    ///
    /// # Errors
    /// A sentence with the option; none has the URL, which may hold a password.
    pub fn of(url: &str) -> Result<(Tls, Config), String> {
        let (mut c, named) = parsed(url)?;
        let mode = named.mode.as_deref();
        let known = ["disable", "prefer", "require", "verify-ca", "verify-full"];
        if let Some(other) = mode.filter(|m| !known.contains(m)) {
            let shown: String = other.chars().take(40).flat_map(char::escape_debug).collect();
            return Err(format!("sslmode={shown}: {} was expected", known.join(", ")));
        }
        let check = match (mode, &named.roots) {
            (Some("verify-full"), _) => Check::AuthorityAndName,
            (Some("verify-ca"), _) | (Some("require"), Some(_)) => Check::Authority,
            _ => Check::Nothing,
        };
        if check != Check::Nothing && named.roots.is_none() {
            return Err(format!(
                "sslmode={} needs sslrootcert=FILE with the authorities of the server's certificate, or sslrootcert={SYSTEM}",
                mode.unwrap_or_default()
            ));
        }
        if named.roots.as_deref() == Some(Path::new(SYSTEM)) && check != Check::AuthorityAndName {
            return Err(format!(
                "sslrootcert={SYSTEM} needs sslmode=verify-full: every site can get such a certificate"
            ));
        }
        let own = match (named.cert, named.key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err("sslcert and sslkey belong together".into()),
        };
        // A local socket is not encrypted: no network is between.
        let sockets = c.get_hostaddrs().is_empty() && c.get_hosts().iter().all(|h| matches!(h, Host::Unix(_)));
        c.ssl_mode(match mode {
            _ if sockets => SslMode::Disable,
            Some("disable") => SslMode::Disable,
            None | Some("prefer") => SslMode::Prefer,
            Some(_) => SslMode::Require,
        });
        if mode.is_none()
            && let Some(other) = other_machine(&c)
        {
            return Err(format!(
                "{other} is another machine: add ?sslmode=verify-full&sslrootcert=FILE (or sslmode=require, which checks no \
                 certificate, or sslmode=disable if the network between can be trusted)"
            ));
        }
        Ok((Tls { check, roots: named.roots, own }, c))
    }

    /// What makes the connections of TLS. The files are read now.
    ///
    /// # Errors
    /// A sentence with the file.
    pub fn connector(&self) -> Result<MakeRustlsConnect, String> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(DEFAULT_VERSIONS)
            .map_err(|e| e.to_string())?;
        let builder = match self.check {
            Check::AuthorityAndName => builder.with_root_certificates(self.roots()?),
            check => {
                let roots = if check == Check::Authority { Some(self.roots()?) } else { None };
                builder.dangerous().with_custom_certificate_verifier(Arc::new(NameUnchecked { roots, provider }))
            }
        };
        let config = match &self.own {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let key_read = PrivateKeyDer::from_pem_slice(&read(key)?)
                    .map_err(|e| format!("{}: no private key can be read: {e}", key.display()))?;
                let wrong = |e: Error| format!("{} and {}: {e}", cert.display(), key.display());
                builder.with_client_auth_cert(certificates(cert)?, key_read).map_err(wrong)?
            }
        };
        Ok(MakeRustlsConnect::new(config))
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        let mut roots = RootCertStore::empty();
        let file = self.roots.as_deref().unwrap_or(Path::new(SYSTEM));
        if file == Path::new(SYSTEM) {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err("this machine has no authorities; name a file with sslrootcert".into());
            }
            return Ok(roots);
        }
        for c in certificates(file)? {
            roots.add(c).map_err(|e| format!("sslrootcert {}: {e}", file.display()))?;
        }
        Ok(roots)
    }
}

/// The options that the driver reads, and those of TLS.
fn parsed(url: &str) -> Result<(Config, Named), String> {
    // A scheme may be written in any case; what the driver does not know as a URL it would read, and quote, as words.
    let lower = url.split_once("://").map(|(scheme, rest)| format!("{}://{rest}", scheme.to_ascii_lowercase()));
    let (rest, named) = split(lower.as_deref().unwrap_or(url))?;
    let read: Result<Config, _> = rest.parse();
    let wrong = |e| format!("{}; write postgres://USER@HOST:PORT/DATABASE", super::postgres::with_cause(&e));
    Ok((read.map_err(wrong)?, named))
}

/// The options that the driver reads, to show them.
pub(super) fn driver_options(url: &str) -> Option<Config> {
    parsed(url).ok().map(|p| p.0)
}

/// A host that is not this machine.
fn other_machine(c: &Config) -> Option<String> {
    let local = |name: &str| name == "localhost" || name.parse::<IpAddr>().is_ok_and(|a| a.is_loopback());
    let by_address = c.get_hostaddrs().iter().find(|a| !a.is_loopback()).map(ToString::to_string);
    by_address.or_else(|| {
        c.get_hosts().iter().find_map(|h| match h {
            Host::Tcp(name) if !local(name) => Some(name.clone()),
            _ => None,
        })
    })
}

/// The URL without its options of TLS, and these.
fn split(url: &str) -> Result<(String, Named), String> {
    let mut named = Named::default();
    // A password may have a question mark; options begin after the user.
    let user = url.find('@').map_or(0, |at| at + 1);
    let Some(start) = url[user..].find('?').map(|i| user + i) else { return Ok((url.to_owned(), named)) };
    let mut kept = Vec::new();
    for option in url[start + 1..].split('&') {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let path = || decoded(value).map(PathBuf::from).ok_or_else(|| format!("the value of {name} is not UTF-8"));
        match name {
            "sslmode" => named.mode = Some(value.to_owned()),
            "sslrootcert" => named.roots = Some(path()?),
            "sslcert" => named.cert = Some(path()?),
            "sslkey" => named.key = Some(path()?),
            _ => kept.push(option),
        }
    }
    let rest = if kept.is_empty() { String::new() } else { format!("?{}", kept.join("&")) };
    Ok((format!("{}{rest}", &url[..start]), named))
}

/// A value whose other characters are `%` and two digits.
fn decoded(value: &str) -> Option<String> {
    let (mut out, mut bytes) = (Vec::new(), value.bytes());
    while let Some(b) = bytes.next() {
        out.push(match b {
            b'%' => {
                let digit = |b: u8| char::from(b).to_digit(16);
                let (high, low) = (digit(bytes.next()?)?, digit(bytes.next()?)?);
                (16 * high + low) as u8
            }
            b => b,
        });
    }
    String::from_utf8(out).ok().filter(|t| !t.contains('\0'))
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    let wrong = |e: std::io::Error| format!("{}: {e}", file.display());
    let meta = std::fs::metadata(file).map_err(wrong)?;
    if !meta.is_file() || meta.len() > FILE_BYTES_MAX {
        return Err(format!("{}: a file of at most {FILE_BYTES_MAX} bytes was expected", file.display()));
    }
    std::fs::read(file).map_err(wrong)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let bytes = read(file)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|e| format!("{}: {e}", file.display()))?;
    if found.is_empty() {
        return Err(format!("{}: a certificate in PEM was expected", file.display()));
    }
    Ok(found)
}

/// Checks a certificate's authority, or nothing of it; never its name. The handshake proves that the server has its key.
#[derive(Debug)]
struct NameUnchecked {
    roots: Option<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for NameUnchecked {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(roots) = &self.roots {
            let certificate = ParsedCertificate::try_from(end_entity)?;
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&certificate, roots, intermediates, now, algorithms)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_machine_is_reached_only_as_the_url_says() {
        for (url, mode) in [
            ("postgres://u@/d?host=/run/x", SslMode::Disable),
            ("postgres://u@/d?host=/run/x&sslmode=require", SslMode::Disable),
            ("PostgreSQL://u:a=b@localhost/d", SslMode::Prefer),
            ("postgresql://localhost/d", SslMode::Prefer),
            ("postgres://u:p@127.0.0.1:5433/d", SslMode::Prefer),
            ("postgres://u@[::1]/d", SslMode::Prefer),
            ("postgres://db.site/d?sslmode=disable", SslMode::Disable),
            ("postgres://db.site/d?sslmode=prefer", SslMode::Prefer),
            ("postgres://u:a?b@db.site/d?sslmode=require&connect_timeout=3", SslMode::Require),
            ("postgres://db.site/d?sslmode=verify-ca&sslrootcert=/a%20b", SslMode::Require),
            ("postgres://db.site/d?sslrootcert=system&sslmode=verify-full", SslMode::Require),
        ] {
            let (_, c) = Tls::of(url).unwrap_or_else(|e| panic!("{url}: {e}"));
            assert_eq!(c.get_ssl_mode(), mode, "{url}");
            assert!(c.get_password().is_none_or(|p| [&b"p"[..], b"a?b", b"a=b"].contains(&p)));
        }
        let (tls, _) = Tls::of("postgres://h/d?sslmode=require&sslrootcert=/a%20b").unwrap();
        assert_eq!((tls.check, tls.roots), (Check::Authority, Some("/a b".into())), "as libpq does");
        for (url, expected) in [
            ("postgres://u:secret@db.site/d", "db.site is another machine: add ?sslmode=verify-full"),
            ("postgres://u:secret@localhost,db.site/d", "db.site is another machine"),
            ("postgres://u:secret@localhost/d?hostaddr=10.0.0.7", "10.0.0.7 is another machine"),
            ("postgres://u:secret@db.site/d?sslmode=on", "sslmode=on: disable, prefer"),
            ("postgres://u:secret@db.site/d?sslmode=verify-full", "needs sslrootcert"),
            ("postgres://u:secret@db.site/d?sslmode=verify-ca&sslrootcert=system", "needs sslmode=verify-full"),
            ("postgres://u:secret@db.site/d?sslmode=require&sslcert=/x", "belong together"),
            ("postgres://u:secret@db.site/d?sslmode=require&sslrootcert=%ff", "not UTF-8"),
            ("postgres://u:secret@db.site/d?sslmode=require&sslrootcert=%", "not UTF-8"),
        ] {
            let why = Tls::of(url).map(|_| ()).unwrap_err();
            assert!(why.contains(expected) && !why.contains("secret"), "{url}: {why}");
        }
    }

    #[test]
    fn a_file_that_has_no_certificate_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        std::fs::write(&file, "no certificate").unwrap();
        for path in [&file, &folder.path().join("none.pem"), &folder.path().to_path_buf()] {
            let url = format!("postgres://h/d?sslmode=verify-full&sslrootcert={}", path.display());
            let why = Tls::of(&url).unwrap().0.connector().map(|_| ()).unwrap_err();
            assert!(why.contains(&path.display().to_string()), "{why}");
        }
    }
}
