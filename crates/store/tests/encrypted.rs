//! Encrypted connections to a real PostgreSQL with `ssl=on` and certificates of an own authority.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use store::state::StateError;
use store::{State, Store};

#[path = "common/postgres.rs"]
#[allow(dead_code)] // the tests of several servers use the rest
mod postgres;
use postgres::{Server, skip};

fn openssl(folder: &Path, args: &str, extra: &[&str]) -> bool {
    let mut command = Command::new("openssl");
    command.args(args.split(' ')).args(extra).current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|s| s.success())
}

/// An authority's certificate and key, as `NAME.pem` and `NAME.key`.
fn authority(folder: &Path, name: &str) -> Option<PathBuf> {
    let made = openssl(folder, &format!("ecparam -genkey -name prime256v1 -noout -out {name}.key"), &[])
        && openssl(
            folder,
            &format!("req -x509 -new -key {name}.key -days 10 -out {name}.pem -subj"),
            &[&format!("/CN={name}")],
        );
    made.then(|| folder.join(format!("{name}.pem")))
}

/// A certificate of an authority for this name.
fn signed(folder: &Path, authority: &str, file: &str, name: &str) {
    std::fs::write(folder.join("ext"), format!("basicConstraints=CA:FALSE\nsubjectAltName={name}\n")).unwrap();
    assert!(openssl(folder, &format!("ecparam -genkey -name prime256v1 -noout -out {file}.key"), &[]));
    assert!(openssl(folder, &format!("req -new -key {file}.key -out {file}.csr -subj"), &["/CN=server"]));
    let sign = format!(
        "x509 -req -in {file}.csr -CA {authority}.pem -CAkey {authority}.key -CAcreateserial -extfile ext -out {file}.pem"
    );
    assert!(openssl(folder, &sign, &["-days", "5"]));
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A server with this certificate; another port is tried where a program was faster.
fn encrypted(folder: &Path, file: &str) -> Option<(Server, u16)> {
    let port = free_port();
    let settings = ["listen_addresses=127.0.0.1", "ssl=on"];
    let server = Server::start_with(port, &settings, |data| {
        std::fs::copy(folder.join(format!("{file}.pem")), data.join("server.crt")).unwrap();
        std::fs::copy(folder.join(format!("{file}.key")), data.join("server.key")).unwrap();
    })?;
    Some((server, port))
}

#[test]
fn the_certificate_of_the_database_is_checked_as_the_url_asks() {
    let name = "the_certificate_of_the_database_is_checked_as_the_url_asks";
    let folder = tempfile::tempdir().unwrap();
    let f = folder.path();
    let (Some(site), Some(other)) = (authority(f, "site"), authority(f, "other")) else {
        return println!("SKIP {name}: needs openssl");
    };
    signed(f, "site", "server", "DNS:localhost");
    let Some((server, port)) = encrypted(f, "server") else { return skip("tests_of_the_store_on_postgresql") };
    let database = server.database();
    let database = database.split(['/', '?']).nth(3).unwrap();
    let cluster = topology::catalog::cluster("h100").unwrap();
    let at = |host: &str, options: &str| PathBuf::from(format!("postgres://tester@{host}:{port}/{database}?{options}"));
    let roots = |file: &Path| format!("sslrootcert={}", file.display());
    let encrypted = "SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE s.ssl AND a.application_name = 'linkwise'";

    // The server is `localhost` by its certificate and by no other name.
    let full = at("localhost", &format!("sslmode=verify-full&{}", roots(&site)));
    let mut state = State::init(&full, &cluster, 1.0).unwrap();
    Store::create(&full, &cluster).unwrap();
    assert_eq!(server.psql(database, encrypted), "1", "the connection of the state is encrypted");
    let gpus = cluster.parse_gpus([format!("{}:0", cluster.hosts[0].name).as_str()]).unwrap();
    state.drain(&gpus, "encrypted", 2.0).unwrap();
    drop(state);
    for (host, options) in [
        ("localhost", "".to_owned()),
        ("127.0.0.1", "sslmode=prefer".into()),
        ("127.0.0.1", "sslmode=require".into()),
        ("127.0.0.1", format!("sslmode=verify-ca&{}", roots(&site))),
        ("127.0.0.1", format!("sslmode=require&{}", roots(&site))),
    ] {
        let state = State::open(&at(host, &options)).unwrap_or_else(|e| panic!("{host} {options}: {e}"));
        assert_eq!(server.psql(database, encrypted), "1", "{host} {options}");
        drop(state);
    }
    let plain = State::open(&at("localhost", "sslmode=disable")).unwrap();
    assert_eq!(server.psql(database, encrypted), "0");
    drop(plain);
    for (host, options, expected) in [
        ("localhost", format!("sslmode=verify-full&{}", roots(&other)), "authority in sslrootcert"),
        ("127.0.0.1", format!("sslmode=verify-ca&{}", roots(&other)), "authority in sslrootcert"),
        ("127.0.0.1", format!("sslmode=require&{}", roots(&other)), "authority in sslrootcert"),
        ("127.0.0.1", format!("sslmode=verify-full&{}", roots(&site)), "certificate with the host of the URL"),
        ("localhost", "sslmode=verify-full&sslrootcert=/none.pem".into(), "/none.pem"),
    ] {
        match State::open(&at(host, &options)) {
            Err(e @ (StateError::Unreachable { .. } | StateError::Io { .. })) => {
                assert!(e.to_string().contains(expected), "{host} {options}: {e}");
            }
            opened => panic!("{host} {options}: {opened:?}"),
        }
    }
}

#[test]
fn a_database_without_tls_is_used_only_where_the_url_allows_it() {
    let port = free_port();
    let Some(server) = Server::start_with(port, &["listen_addresses=127.0.0.1"], |_| {}) else {
        return skip("tests_of_the_store_on_postgresql");
    };
    let database = server.database();
    let database = database.split(['/', '?']).nth(3).unwrap();
    let at = |mode: &str| PathBuf::from(format!("postgres://tester@127.0.0.1:{port}/{database}?sslmode={mode}"));
    let cluster = topology::catalog::cluster("h100").unwrap();
    State::init(&at("prefer"), &cluster, 1.0).unwrap();
    let why = State::open(&at("require")).unwrap_err().to_string();
    assert!(why.contains("does not support TLS") && why.contains("switch ssl on"), "{why}");
}
