//! TLS of the connections: the server's certificate, and certificates of clients.
//!
//! rustls with *ring*: TLS 1.2 and 1.3, no code in C of ours. A client certificate is verified against the authorities of
//! [`Tls::client_ca`] before any byte of HTTP is read; its subject's common name is then the author of the client's changes.

use crate::auth::Scope;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::state::check_job_id;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{DEFAULT_VERSIONS, RootCertStore, ServerConfig};

/// Largest file of certificates or keys, bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The files of TLS.
#[derive(Clone, Debug)]
pub struct Tls {
    /// The server's certificate and those of its authorities, PEM.
    pub cert: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// Authorities of client certificates, PEM; none: no client shows a certificate.
    pub client_ca: Option<PathBuf>,
    /// Scope of a client certificate whose name has no entry among the tokens; none: such a client is refused.
    pub client_scope: Option<Scope>,
}

/// Reads the files.
///
/// # Errors
/// A sentence with the file and what is wrong with it.
pub fn config(tls: &Tls) -> Result<Arc<ServerConfig>, String> {
    let chain = certificates(&tls.cert)?;
    let key = PrivateKeyDer::from_pem_slice(&read(&tls.key)?)
        .map_err(|e| format!("{}: no private key can be read: {e}", tls.key.display()))?;
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(DEFAULT_VERSIONS)
        .map_err(|e| e.to_string())?;
    let builder = match &tls.client_ca {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let wrong = |e: &dyn std::fmt::Display| format!("{}: {e}", file.display());
            let mut roots = RootCertStore::empty();
            for c in certificates(file)? {
                roots.add(c).map_err(|e| wrong(&e))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            // A client without a certificate may send a token.
            builder.with_client_cert_verifier(verifier.allow_unauthenticated().build().map_err(|e| wrong(&e))?)
        }
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|e| format!("{} and {}: {e}", tls.cert.display(), tls.key.display()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    let wrong = |e: std::io::Error| format!("{}: {e}", file.display());
    let length = std::fs::metadata(file).map_err(wrong)?.len();
    if length > FILE_BYTES_MAX {
        return Err(format!("{}: {length} bytes are more than {FILE_BYTES_MAX}", file.display()));
    }
    std::fs::read(file).map_err(wrong)
}

pub fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let bytes = read(file)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|e| format!("{}: {e}", file.display()))?;
    if found.is_empty() {
        return Err(format!("{}: a certificate in PEM was expected", file.display()));
    }
    Ok(found)
}

/// The common name of a certificate's subject, if it has exactly one and that can be the name of an author. The
/// certificate was verified before.
pub fn common_name(certificate: &[u8]) -> Option<String> {
    const CONTEXT_0: u8 = 0xa0;
    const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
    let (certificate, _) = part(certificate)?;
    let (mut rest, _) = part(certificate.1)?; // the signed part
    let mut fields = Vec::new();
    let mut inner = rest.1;
    while let Some((field, after)) = part(inner) {
        fields.push(field);
        inner = after;
    }
    // version (if it is not the first one), serial, algorithm, issuer, validity, subject
    let subject = usize::from(fields.first()?.0 == CONTEXT_0) + 4;
    rest = *fields.get(subject)?;
    let (mut names, mut sets) = (Vec::new(), rest.1);
    while let Some(((_, mut set), after)) = part(sets) {
        sets = after;
        while let Some(((_, pair), next)) = part(set) {
            set = next;
            let (oid, value) = part(pair)?;
            if oid.1 == COMMON_NAME {
                names.push(part(value)?.0.1);
            }
        }
    }
    let [name] = names[..] else { return None };
    let name = std::str::from_utf8(name).ok()?;
    check_job_id(name).is_ok().then(|| name.to_owned())
}

/// A value of DER with its tag, and what follows.
type Part<'a> = ((u8, &'a [u8]), &'a [u8]);

/// Splits the first value of DER off: tag, length, content.
fn part(bytes: &[u8]) -> Option<Part<'_>> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let n = usize::from(first & 0x7f);
            let digits = rest.get(..n)?;
            (digits.iter().fold(0usize, |l, d| l << 8 | usize::from(*d)), &rest[n..])
        }
        _ => return None,
    };
    Some(((tag, rest.get(..length)?), &rest[length..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate's outline with these common names.
    fn outline(names: &[&[u8]]) -> Vec<u8> {
        fn der(tag: u8, content: &[u8]) -> Vec<u8> {
            let n = content.len();
            let mut out = if n < 128 { vec![tag, n as u8] } else { vec![tag, 0x82, (n >> 8) as u8, n as u8] };
            out.extend(content);
            out
        }
        let name = |n: &&[u8]| der(0x31, &der(0x30, &[der(6, &[0x55, 4, 3]), der(12, n)].concat()));
        let subject = der(0x30, &names.iter().flat_map(name).collect::<Vec<u8>>());
        let empty = der(0x30, &[]);
        let head = [der(0xa0, &der(2, &[2])), der(2, &[1])].concat();
        der(0x30, &der(0x30, &[head, empty.clone(), empty.clone(), empty, subject].concat()))
    }

    #[test]
    fn the_name_of_a_certificate_is_its_only_common_name() {
        let long = "x".repeat(200);
        for (names, expected) in [
            (&[&b"agent-7"[..]][..], Some("agent-7")),
            (&[], None),
            (&[b"a", b"b"], None),
            (&[b"a b"], None),
            (&[b"\xff"], None),
            (&[b"a\0"], None),
            (&[long.as_bytes()], None),
        ] {
            assert_eq!(common_name(&outline(names)).as_deref(), expected, "{names:?}");
        }
    }

    #[test]
    fn a_cut_or_changed_certificate_never_ends_in_a_panic() {
        let whole = outline(&[b"agent-7"]);
        for n in 0..whole.len() {
            common_name(&whole[..n]);
            for v in [0, 0x7f, 0x80, 0x84, 0xff] {
                let mut changed = whole.clone();
                changed[n] = v;
                common_name(&changed);
            }
        }
    }
}
