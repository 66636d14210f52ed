//! Connections over TLS, with certificates of every kind, and clients that are slow.

mod common;

use common::Server;
use server::auth::{Scope, certificate_hash};
use server::{Config, Tls};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::state::NewToken;
use store::{By, State};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, DEFAULT_VERSIONS, RootCertStore, StreamOwned};

/// Makes certificates with the program openssl.
struct Authority {
    folder: PathBuf,
    name: &'static str,
}

fn openssl(folder: &Path, args: &str, extra: &[&str]) -> bool {
    let mut command = Command::new("openssl");
    command.args(args.split(' ')).args(extra).current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|s| s.success())
}

impl Authority {
    /// None where the program is missing: the test then says SKIP.
    fn new(folder: &Path, name: &'static str) -> Option<Authority> {
        let key = format!("ecparam -genkey -name prime256v1 -noout -out {name}.key");
        let made = openssl(folder, &key, &[])
            && openssl(
                folder,
                &format!("req -x509 -new -key {name}.key -days 10 -out {name}.pem -subj"),
                &[&format!("/CN={name}")],
            );
        made.then(|| Authority { folder: folder.into(), name })
    }

    /// A certificate and its key, valid for this number of days.
    fn signs(&self, file: &str, subject: &str, days: &str) -> (PathBuf, PathBuf) {
        let (f, ca) = (&self.folder, self.name);
        std::fs::write(f.join("ext"), "basicConstraints=CA:FALSE\nsubjectAltName=DNS:localhost,IP:127.0.0.1\n")
            .unwrap();
        assert!(openssl(f, &format!("ecparam -genkey -name prime256v1 -noout -out {file}.key"), &[]));
        assert!(openssl(f, &format!("req -new -key {file}.key -out {file}.csr -subj"), &[subject]));
        let sign = format!(
            "x509 -req -in {file}.csr -CA {ca}.pem -CAkey {ca}.key -CAcreateserial -extfile ext -out {file}.pem"
        );
        assert!(openssl(f, &sign, &["-days", days]));
        (f.join(format!("{file}.pem")), f.join(format!("{file}.key")))
    }

    fn file(&self) -> PathBuf {
        self.folder.join(format!("{}.pem", self.name))
    }
}

/// A client of this authority, with or without a certificate.
fn client(authority: &Authority, own: Option<&(PathBuf, PathBuf)>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.file()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(DEFAULT_VERSIONS)
        .unwrap()
        .with_root_certificates(roots);
    Arc::new(match own {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let chain = vec![CertificateDer::from_pem_file(cert).unwrap()];
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap()).unwrap()
        }
    })
}

/// Sends a request; the error is that of the connection.
fn ask(at: SocketAddr, config: Arc<ClientConfig>, request: &str) -> std::io::Result<String> {
    let tcp = TcpStream::connect(at)?;
    tcp.set_read_timeout(Some(Duration::from_secs(30)))?;
    let connection = ClientConnection::new(config, "localhost".try_into().unwrap()).unwrap();
    let mut tls = StreamOwned::new(connection, tcp);
    tls.write_all(request.as_bytes())?;
    let mut all = Vec::new();
    tls.read_to_end(&mut all)?;
    Ok(String::from_utf8_lossy(&all).into_owned())
}

fn get(path: &str, more: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{more}connection: close\r\n\r\n")
}

/// The code of a problem, or the status of an answer.
fn code(said: &str) -> String {
    let code = said.split("\"code\":\"").nth(1).and_then(|r| r.split('"').next());
    code.unwrap_or_else(|| said.get(9..12).unwrap_or("none")).to_owned()
}

/// A server with certificates of `site`.
fn served(site: &Authority, client_ca: bool, client_scope: Option<Scope>) -> Server {
    let (cert, key) = site.signs("server", "/CN=localhost", "5");
    let client_ca = client_ca.then(|| site.file());
    Server::with(1, |c| Config { tls: Some(Tls { cert, key, client_ca, client_scope }), ..c })
}

#[test]
fn certificates_that_are_right_expired_foreign_or_missing_each_get_their_answer() {
    let folder = tempfile::tempdir().unwrap();
    let (Some(site), Some(other)) = (Authority::new(folder.path(), "site"), Authority::new(folder.path(), "other"))
    else {
        return common::skip(
            "certificates_that_are_right_expired_foreign_or_missing_each_get_their_answer",
            "needs openssl",
        );
    };
    let s = served(&site, true, None);
    let cluster =
        |own: Option<&(PathBuf, PathBuf)>, more: &str| ask(s.at, client(&site, own), &get("/v1/cluster", more));
    let mut state = State::open(&s.folder.path().join("s.db")).unwrap();
    let enter = |name: &str, scope: Scope| NewToken {
        name: name.into(),
        hash: certificate_hash(name),
        scope: scope.to_string(),
        until_unix_s: None,
    };
    state.add_token(&enter("agent-7", Scope::Request), &By::from(1.0)).unwrap();

    let agent = site.signs("agent", "/O=site/CN=agent-7", "5");
    assert_eq!(code(&cluster(Some(&agent), "").unwrap()), "200");
    let allocate = "{\"gpus\":1,\"commit\":\"a\"}";
    let head =
        "POST /v1/allocations HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n";
    let request = format!("{head}content-length: {}\r\n\r\n{allocate}", allocate.len());
    assert!(ask(s.at, client(&site, Some(&agent)), &request).unwrap().starts_with("HTTP/1.1 201"));
    assert_eq!(state.snapshot().unwrap().jobs[0].made_by, "agent-7", "the author is the name in the certificate");
    let drain = format!("{}content-length: 2\r\n\r\n{{}}", head.replace("allocations", "hosts/drain"));
    assert_eq!(code(&ask(s.at, client(&site, Some(&agent)), &drain).unwrap()), "scope");

    let unknown = site.signs("unknown", "/CN=agent-8", "5");
    assert_eq!(code(&cluster(Some(&unknown), "").unwrap()), "no_scope");
    assert_eq!(code(&cluster(None, "").unwrap()), "no_token", "no certificate");
    assert_eq!(code(&cluster(None, "authorization: Bearer certificate agent-7\r\n").unwrap()), "wrong_token");
    let token = s.token("operator", Scope::Operate, None);
    assert_eq!(code(&cluster(None, &format!("authorization: Bearer {token}\r\n")).unwrap()), "200");
    for (file, authority, days) in [("old", &site, "-1"), ("foreign", &other, "5")] {
        let own = authority.signs(file, "/CN=agent-7", days);
        assert!(cluster(Some(&own), "").is_err(), "{file}");
    }
    let nameless = site.signs("nameless", "/O=site", "5");
    assert_eq!(code(&cluster(Some(&nameless), "").unwrap()), "no_token");

    assert!(state.revoke_token("agent-7", &By::from(2.0)).unwrap());
    let start = Instant::now();
    while code(&cluster(Some(&agent), "").unwrap()) == "200" {
        assert!(start.elapsed() < Duration::from_secs(60), "a revoked entry stays valid");
        std::thread::sleep(Duration::from_millis(50));
    }
    // A server that does not trust the client's authority, and the reverse.
    assert!(ask(s.at, client(&other, None), &get("/v1/cluster", "")).is_err());
    let s = served(&site, true, Some(Scope::Read));
    assert_eq!(code(&ask(s.at, client(&site, Some(&unknown)), &get("/v1/cluster", "")).unwrap()), "200");
}

#[test]
fn plain_http_to_a_server_with_tls_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let Some(site) = Authority::new(folder.path(), "site") else {
        return common::skip("plain_http_to_a_server_with_tls_is_told_so", "needs openssl");
    };
    let s = served(&site, false, None);
    let said = s.raw(get("/v1/cluster", "").as_bytes());
    assert!(said.starts_with("HTTP/1.1 400") && said.contains("tls_needed"), "{said}");
    for rubbish in [&b"\x16\x03\x01\xff\xff"[..], b"\x16rubbish rubbish rubbish", b"\0", b""] {
        let mut c = TcpStream::connect(s.at).unwrap();
        c.write_all(rubbish).unwrap();
        drop(c);
    }
    assert_eq!(code(&ask(s.at, client(&site, None), &get("/v1/cluster", "")).unwrap()), "200");
}

#[test]
fn a_handshake_that_does_not_end_gives_its_place_up() {
    let folder = tempfile::tempdir().unwrap();
    let Some(site) = Authority::new(folder.path(), "site") else {
        return common::skip("a_handshake_that_does_not_end_gives_its_place_up", "needs openssl");
    };
    let (cert, key) = site.signs("server", "/CN=localhost", "5");
    let tls = Tls { cert, key, client_ca: None, client_scope: None };
    let s = Server::with(1, |c| Config { tls: Some(tls), handshake_time: Duration::from_millis(300), ..c });
    let mut slow: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(s.at).unwrap()).collect();
    for (i, c) in slow.iter_mut().enumerate() {
        c.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        // Half of them say nothing, the others begin a handshake.
        let _ = c.write_all(if i % 2 == 0 { b"" } else { b"\x16\x03\x01" });
    }
    // On a busy machine a right handshake may be slower than that, too.
    let start = Instant::now();
    while !ask(s.at, client(&site, None), &get("/v1/cluster", "")).is_ok_and(|said| code(&said) == "200") {
        assert!(start.elapsed() < Duration::from_secs(60), "slow handshakes keep others out");
    }
    for c in &mut slow {
        let end = c.read(&mut [0; 64]);
        let closed =
            matches!(&end, Ok(0)) || end.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset);
        assert!(closed, "the server closes: {end:?}");
    }
}

#[test]
fn a_client_that_reads_nothing_of_its_answer_is_closed() {
    let s = Server::with(1, |c| Config { write_time: Duration::from_millis(500), ..c });
    let mut c = TcpStream::connect(s.at).unwrap();
    c.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    // Requests without end whose answers are never read: the server stops to read when its own buffers are full.
    let many = "GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(1000);
    let start = Instant::now();
    let broken = loop {
        match c.write(many.as_bytes()) {
            Err(e) if e.kind() != std::io::ErrorKind::WouldBlock => break e.kind(),
            _ => assert!(start.elapsed() < Duration::from_secs(60), "the connection stays open"),
        }
    };
    assert!(matches!(broken, std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe), "{broken}");
    assert_eq!(s.get("/v1/cluster").status, 200);
}

#[test]
fn beyond_this_machine_a_server_needs_certificates_and_clients_that_can_prove_who_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let Some(site) = Authority::new(folder.path(), "site") else {
        return common::skip(
            "beyond_this_machine_a_server_needs_certificates_and_clients_that_can_prove_who_they_are",
            "needs openssl",
        );
    };
    let (cert, key) = site.signs("server", "/CN=localhost", "5");
    let (_, foreign) = site.signs("second", "/CN=localhost", "5");
    let start = |tls: Tls| {
        let folder = tempfile::tempdir().unwrap();
        let listen = SocketAddr::from(([0, 0, 0, 0], 0));
        server::start(common::engine(folder.path(), 1), &Config { listen, tls: Some(tls), ..Config::default() })
            .map(server::Running::stop)
            .map_err(|e| e.to_string())
    };
    let tls = Tls { cert, key, client_ca: None, client_scope: None };
    let refused = start(tls.clone()).unwrap_err();
    assert!(refused.contains("linkwise token create") && refused.contains("--client-ca"), "{refused}");
    start(Tls { client_ca: Some(site.file()), ..tls.clone() }).unwrap();
    let wrong = start(Tls { client_ca: Some(site.file()), key: foreign, ..tls.clone() }).unwrap_err();
    assert!(wrong.contains("second.key"), "{wrong}");
    let wrong = start(Tls { client_ca: Some(folder.path().join("ext")), ..tls.clone() }).unwrap_err();
    assert!(wrong.contains("ext") && wrong.contains("PEM"), "{wrong}");
    let wrong = start(Tls { cert: folder.path().join("none.pem"), client_ca: Some(site.file()), ..tls }).unwrap_err();
    assert!(wrong.contains("none.pem"), "{wrong}");
}

#[test]
fn a_certificate_without_an_entry_cannot_have_the_name_of_another_client() {
    let folder = tempfile::tempdir().unwrap();
    let Some(site) = Authority::new(folder.path(), "site") else {
        return common::skip("a_certificate_without_an_entry_cannot_have_the_name_of_another_client", "needs openssl");
    };
    let s = served(&site, true, Some(Scope::Request));
    let _ = s.token("ada", Scope::Request, None);
    let said = |name: &str| {
        let own = site.signs("any", &format!("/CN={name}"), "5");
        ask(s.at, client(&site, Some(&own)), &get("/v1/cluster", "")).unwrap()
    };
    assert_eq!(code(&said("agent")), "200");
    for name in ["ada", "command", "server", "oidc:bob"] {
        let refused = said(name);
        assert_eq!(code(&refused), "no_scope", "{name}: {refused}");
    }
}

#[test]
fn new_certificates_are_used_without_losing_a_connection_and_broken_ones_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let (Some(site), Some(next)) = (Authority::new(folder.path(), "site"), Authority::new(folder.path(), "next"))
    else {
        return common::skip(
            "new_certificates_are_used_without_losing_a_connection_and_broken_ones_are_not",
            "needs openssl",
        );
    };
    let s = served(&site, false, None);
    let (cert, key) = (folder.path().join("server.pem"), folder.path().join("server.key"));
    let good = |authority: &Authority| ask(s.at, client(authority, None), &get("/v1/cluster", "")).is_ok();
    let until = |what: &str, done: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let failures = || {
        let metrics = ask(s.at, client(&site, None), &get("/metrics", "")).unwrap_or_default();
        let line = metrics.lines().find(|l| l.starts_with("linkwise_failures_total{code=\"certificates\"}"));
        line.and_then(|l| l.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
    };
    // A connection that stays open over everything.
    let tcp = TcpStream::connect(s.at).unwrap();
    tcp.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let connection = ClientConnection::new(client(&site, None), "localhost".try_into().unwrap()).unwrap();
    let mut open = StreamOwned::new(connection, tcp);
    let mut lives = || {
        open.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let mut said = Vec::new();
        while !said.ends_with(b"ok\n") {
            let mut part = [0; 512];
            let n = open.read(&mut part).unwrap();
            assert!(n > 0, "the connection ended");
            said.extend_from_slice(&part[..n]);
        }
    };
    lives();
    // Rubbish, a certificate whose key is another one, no file: the old certificate stays.
    for broken in [&b"rubbish"[..], &std::fs::read(next.file()).unwrap(), b""] {
        let before = failures();
        if broken.is_empty() {
            std::fs::remove_file(&cert).unwrap()
        } else {
            std::fs::write(&cert, broken).unwrap()
        }
        until("the server notices a broken file", &|| failures() > before);
        assert!(good(&site) && !good(&next));
    }
    // The files are replaced as certbot and Kubernetes do: written aside, then renamed.
    let (new_cert, new_key) = next.signs("renewed", "/CN=localhost", "5");
    std::fs::rename(new_key, &key).unwrap();
    std::fs::rename(new_cert, &cert).unwrap();
    until("the server takes the new certificate over", &|| good(&next));
    assert!(!good(&site));
    lives();
}
