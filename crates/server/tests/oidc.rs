//! Tokens of identity providers: a certified one run by node, and a hostile one with keys of the test.

mod common;

use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD as URL};
use common::provider::Provider;
use common::{Said, Server};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};
use server::auth::Scope;
use server::{Config, Oidc};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// A key of an issuer.
struct Key {
    id: &'static str,
    pair: EcdsaKeyPair,
}

impl Key {
    fn new(id: &'static str) -> Key {
        let random = SystemRandom::new();
        let file = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        Key { id, pair: EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, file.as_ref(), &random).unwrap() }
    }

    fn point(&self) -> &[u8] {
        self.pair.public_key().as_ref()
    }

    fn public(&self) -> Value {
        let (x, y) = self.point()[1..].split_at(32);
        json!({"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": self.id, "x": URL.encode(x), "y": URL.encode(y)})
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        let text = format!("{}.{}", URL.encode(header.to_string()), URL.encode(claims.to_string()));
        let signature = self.pair.sign(&SystemRandom::new(), text.as_bytes()).unwrap();
        format!("{text}.{}", URL.encode(signature))
    }

    fn token(&self, claims: &Value) -> String {
        self.sign(&json!({"alg": "ES256", "kid": self.id, "typ": "JWT"}), claims)
    }
}

/// What an own issuer answers.
struct Told {
    discovery: Value,
    keys: Value,
    token: Value,
}

/// An issuer of the test: it publishes what it is told.
struct Issuer {
    url: String,
    says: Arc<Mutex<Option<Told>>>,
    /// Number of requests for the keys.
    asked: Arc<AtomicUsize>,
}

impl Issuer {
    fn new(keys: &[&Key]) -> Issuer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let discovery = json!({
            "issuer": url, "jwks_uri": format!("{url}/keys"), "authorization_endpoint": format!("{url}/sign-in"),
            "token_endpoint": format!("{url}/token"),
        });
        let says = Told { discovery, keys: Value::Null, token: Value::Null };
        let issuer = Issuer { url, says: Arc::new(Mutex::new(Some(says))), asked: Arc::default() };
        issuer.publish(keys);
        let (says, asked) = (issuer.says.clone(), issuer.asked.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { break };
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut head, mut length) = (String::new(), 0);
                loop {
                    let mut line = String::new();
                    if reader.read_line(&mut line).unwrap_or(0) <= 2 {
                        break;
                    }
                    if let Some(n) = line.to_lowercase().strip_prefix("content-length:") {
                        length = n.trim().parse().unwrap();
                    }
                    head += &line;
                }
                let mut body = vec![0; length];
                let _ = reader.read_exact(&mut body);
                let says = says.lock().unwrap();
                let Some(s) = &*says else { continue };
                let answer = match head.split(' ').nth(1) {
                    Some("/.well-known/openid-configuration") => &s.discovery,
                    Some("/keys") => {
                        asked.fetch_add(1, Ordering::SeqCst);
                        &s.keys
                    }
                    _ => &s.token,
                };
                let text = answer.to_string();
                let _ = write!(
                    stream,
                    "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}",
                    text.len()
                );
            }
        });
        issuer
    }

    fn change(&self, f: impl FnOnce(&mut Told)) {
        f(self.says.lock().unwrap().as_mut().unwrap());
    }

    fn publish(&self, keys: &[&Key]) {
        // Keys of other kinds stand between them, as at large providers.
        let mut all = vec![
            json!({"kty": "oct", "k": "c2VjcmV0", "kid": "shared"}),
            json!({"kty": "AKP", "alg": "ML-DSA-44"}),
            json!(7),
        ];
        all.extend(keys.iter().map(|k| k.public()));
        self.change(|s| s.keys = json!({"keys": all}));
    }

    fn claims(&self) -> Value {
        json!({"iss": self.url, "aud": "linkwise", "sub": "ann", "exp": now() + 300, "nbf": now() - 5, "iat": now(), "groups": ["ops"]})
    }
}

/// A server that accepts tokens of an issuer: `ops` may operate, everybody may read.
fn served(issuer: &str, change: impl FnOnce(&mut Oidc)) -> Server {
    let mut oidc = Oidc::new(issuer, "linkwise");
    oidc.scope_claim = Some("groups".into());
    oidc.map = vec![("ops".into(), Scope::Operate), ("agents".into(), Scope::Request)];
    oidc.scope = Some(Scope::Read);
    oidc.refetch = Duration::from_millis(200);
    change(&mut oidc);
    Server::with(2, |c| Config { oidc: Some(oidc), ..c })
}

fn bearer(s: &Server, method: &str, path: &str, token: &str, body: &str) -> Said {
    let token = format!("Bearer {token}");
    s.send(method, path, &[("authorization", &token), ("content-type", "application/json")], body.as_bytes())
}

fn cluster(s: &Server, token: &str) -> (u16, String) {
    let said = bearer(s, "GET", "/v1/cluster", token, "");
    if said.status == 200 {
        (200, String::new())
    } else {
        (said.status, said.json()["detail"].as_str().unwrap().to_owned())
    }
}

#[test]
fn every_forged_or_foreign_token_is_refused_with_its_reason() {
    let (key, other) = (Key::new("k1"), Key::new("k2"));
    let issuer = Issuer::new(&[&key]);
    let mut s = served(&issuer.url, |_| {});
    let good = issuer.claims();
    assert_eq!(cluster(&s, &key.token(&good)).0, 200);
    let with = |name: &str, value: Value| {
        let mut claims = good.clone();
        claims[name] = value;
        if claims[name].is_null() {
            claims.as_object_mut().unwrap().remove(name);
        }
        claims
    };
    let es = |kid: &str| json!({"alg": "ES256", "kid": kid});
    let unsigned =
        |alg: &str| format!("{}.{}.", URL.encode(json!({"alg": alg}).to_string()), URL.encode(good.to_string()));
    // A shared secret that is the public key, in each form in which a careless server could use it.
    let shared = |secret: &[u8], kid: &str| {
        let text =
            format!("{}.{}", URL.encode(json!({"alg": "HS256", "kid": kid}).to_string()), URL.encode(good.to_string()));
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret);
        format!("{text}.{}", URL.encode(ring::hmac::sign(&key, text.as_bytes())))
    };
    let mut own_key = es("k1");
    own_key["jwk"] = other.public();
    let mut cut = key.token(&good);
    cut.pop();
    let signed = key.token(&good);
    let (text, signature) = signed.rsplit_once('.').unwrap();
    let swapped = format!(
        "{}.{signature}",
        text.replace(&URL.encode(good.to_string()), &URL.encode(with("sub", json!("root")).to_string()))
    );
    let cases = [
        ("another key under the same ID", other.sign(&es("k1"), &good), "signature is wrong"),
        ("an unknown key", other.token(&good), "no key of the issuer"),
        ("a key in the token", other.sign(&own_key, &good), "signature is wrong"),
        ("a cut signature", cut, "refused"),
        ("other claims", swapped, "signature is wrong"),
        ("another audience", key.token(&with("aud", json!("payroll"))), "for another service"),
        ("no audience", key.token(&with("aud", json!(null))), "no claim `aud`"),
        ("another issuer", key.token(&with("iss", json!("https://issuer.test"))), "another issuer"),
        ("almost the issuer", key.token(&with("iss", json!(format!("{}/", issuer.url)))), "another issuer"),
        ("expired", key.token(&with("exp", json!(now() - 60))), "has expired"),
        ("no end", key.token(&with("exp", json!(null))), "no claim `exp`"),
        ("an end that is a text", key.token(&with("exp", json!("9999999999"))), "refused"),
        ("not yet", key.token(&with("nbf", json!(now() + 600))), "not valid yet"),
        ("a start that is a text", key.token(&with("nbf", json!("later"))), "refused"),
        ("no subject", key.token(&with("sub", json!(null))), "no claim `sub`"),
        ("an empty subject", key.token(&with("sub", json!(""))), "subject"),
        (
            "a critical field",
            key.sign(&json!({"alg": "ES256", "kid": "k1", "crit": ["b64"], "b64": false}), &good),
            "critical",
        ),
        (
            "another algorithm than the key's",
            key.sign(&json!({"alg": "ES384", "kid": "k1"}), &good),
            "no key of the issuer",
        ),
        ("alg none", unsigned("none"), "header"),
        ("alg None", unsigned("None"), "header"),
        ("the point as a secret", shared(key.point(), "k1"), "algorithm is not accepted"),
        (
            "the published key as a secret",
            shared(key.public().to_string().as_bytes(), "k1"),
            "algorithm is not accepted",
        ),
        ("the published secret", shared(b"secret", "shared"), "algorithm is not accepted"),
        ("two points and nothing else", "..".into(), "header"),
        ("no base64", "a.b!.c".into(), "header"),
        ("too long", format!("a.b.{}", "c".repeat(9000)), "at most"),
    ];
    for (i, (what, token, expected)) in cases.into_iter().enumerate() {
        if i % 15 == 14 {
            s = served(&issuer.url, |_| {}); // an address may send 20 wrong tokens
        }
        let (status, detail) = cluster(&s, &token);
        assert_eq!(status, 401, "{what}: {detail}");
        assert!(detail.contains(expected), "{what}: {detail}");
    }
}

#[test]
fn a_flood_of_unknown_keys_does_not_reach_the_issuer_and_a_new_key_is_found() {
    let (old, new) = (Key::new("old"), Key::new("new"));
    let issuer = Issuer::new(&[&old]);
    let s = served(&issuer.url, |o| o.refetch = Duration::from_secs(3600));
    assert_eq!(cluster(&s, &old.token(&issuer.claims())).0, 200);
    for i in 0..15 {
        let header = json!({"alg": "ES256", "kid": format!("k{i}")});
        assert_eq!(cluster(&s, &new.sign(&header, &issuer.claims())).0, 401);
    }
    assert!(issuer.asked.load(Ordering::SeqCst) <= 1, "the issuer was asked once");

    let s = served(&issuer.url, |_| {});
    assert_eq!(cluster(&s, &old.token(&issuer.claims())).0, 200);
    issuer.publish(&[&new]);
    let start = std::time::Instant::now();
    while cluster(&s, &new.token(&issuer.claims())).0 != 200 {
        assert!(start.elapsed() < Duration::from_secs(60), "the new key is not found");
        std::thread::sleep(Duration::from_millis(300));
    }
    assert_eq!(cluster(&s, &old.token(&issuer.claims())).0, 401, "the withdrawn key is refused");
}

#[test]
fn while_the_issuer_is_down_tokens_of_the_server_go_on() {
    let key = Key::new("k1");
    let issuer = Issuer::new(&[&key]);
    let says = issuer.says.lock().unwrap().take();
    let s = served(&issuer.url, |_| {});
    let local = s.token("local", Scope::Operate, None);
    let jwt = key.token(&issuer.claims());
    assert_eq!(cluster(&s, &local).0, 200);
    let down = bearer(&s, "GET", "/v1/cluster", &jwt, "");
    assert_eq!(down.code(), (503, "issuer_unreachable".into()));
    assert!(down.text.contains(&issuer.url), "{}", down.text);
    let page = s.get("/login/oidc");
    assert!(
        page.status == 503 && page.text.contains("does not answer") && page.text.contains("name=\"token\""),
        "{page:?}"
    );
    assert_eq!(s.get("/v1/cluster").code(), (401, "no_token".into()), "a server with an issuer asks for tokens");

    *issuer.says.lock().unwrap() = says;
    let start = std::time::Instant::now();
    while cluster(&s, &jwt).0 != 200 {
        assert!(start.elapsed() < Duration::from_secs(60), "the issuer is back");
        std::thread::sleep(Duration::from_millis(100));
    }
    // Later it is down again: what it published is known.
    let says = issuer.says.lock().unwrap().take();
    assert_eq!((cluster(&s, &jwt).0, cluster(&s, &local).0), (200, 200));
    // A document of somebody else is no issuer.
    *issuer.says.lock().unwrap() = says;
    issuer.change(|d| d.discovery["issuer"] = json!("https://elsewhere.test"));
    let s = served(&issuer.url, |_| {});
    assert!(cluster(&s, &jwt).1.contains("not of"), "{:?}", cluster(&s, &jwt));
    issuer
        .change(|d| (d.discovery["issuer"], d.discovery["jwks_uri"]) = (json!(issuer.url), json!("http://keys.test/")));
    let s = served(&issuer.url, |_| {});
    assert!(cluster(&s, &jwt).1.contains("not encrypted"), "{:?}", cluster(&s, &jwt));
}

/// A browser without a screen: it keeps cookies by host and path, and follows where it is sent.
#[derive(Default)]
struct Browser {
    cookies: HashMap<(String, String), String>,
}

impl Browser {
    fn get(&mut self, address: &str) -> Said {
        let agent: ureq::Agent =
            ureq::Agent::config_builder().http_status_as_error(false).max_redirects(0).build().into();
        let host = address.split('/').nth(2).unwrap().to_owned();
        let cookies: Vec<String> =
            self.cookies.iter().filter(|c| c.0.0 == host).map(|(k, v)| format!("{}={v}", k.1)).collect();
        let mut response = agent.get(address).header("cookie", cookies.join("; ")).call().unwrap();
        for set in response.headers().get_all("set-cookie") {
            let (pair, rest) = set.to_str().unwrap().split_once(';').unwrap();
            let (name, value) = pair.split_once('=').unwrap();
            match value.is_empty() || rest.contains("Max-Age=0") || rest.contains("1970") {
                true => self.cookies.remove(&(host.clone(), name.into())),
                false => self.cookies.insert((host.clone(), name.into()), value.into()),
            };
        }
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let mut text = String::new();
        response.body_mut().as_reader().read_to_string(&mut text).unwrap();
        Said { status, headers, text }
    }

    /// Follows redirections until one begins with `end`, and returns that address; or the last answer.
    fn follow(&mut self, address: &str, end: &str) -> Result<String, Box<Said>> {
        let mut at = address.to_owned();
        for _ in 0..20 {
            let said = self.get(&at);
            let to = said.header("location").to_owned();
            if to.is_empty() {
                return Err(said.into());
            }
            let origin: Vec<&str> = at.split('/').take(3).collect();
            at = if to.starts_with('/') { format!("{}{to}", origin.join("/")) } else { to };
            if at.starts_with(end) {
                return Ok(at);
            }
        }
        panic!("sent round in circles: {at}");
    }
}

fn base(at: SocketAddr) -> String {
    format!("http://localhost:{}", at.port())
}

#[test]
fn a_certified_provider_signs_clients_and_browsers_in_and_changes_its_keys() {
    let name = "a_certified_provider_signs_clients_and_browsers_in_and_changes_its_keys";
    let mut provider = match Provider::start() {
        Ok(p) => p,
        Err(why) => return common::skip(name, &why),
    };
    let s = served(&provider.issuer, |o| {
        o.client_secret = Some("its/secret+&".into());
        o.audience = Some("linkwise-api".into());
    });
    let (base, issuer) = (base(s.at), provider.issuer.clone());
    provider.tell(&format!("redirect {base}/login/callback"));

    // A program with credentials of its own gets an access token for the audience of this server.
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let token = || {
        let basic = format!("Basic {}", BASE64_STANDARD.encode("agent-7:agents"));
        let form = "grant_type=client_credentials&resource=urn:linkwise:api&scope=api";
        let request = agent.post(format!("{issuer}/token")).header("authorization", &basic);
        let mut answer = request.header("content-type", "application/x-www-form-urlencoded").send(form).unwrap();
        let mut text = String::new();
        answer.body_mut().as_reader().read_to_string(&mut text).unwrap();
        let v: Value = serde_json::from_str(&text).unwrap();
        v["access_token"].as_str().unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    let first = token();
    let start = std::time::Instant::now();
    while cluster(&s, &first).0 == 503 {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", cluster(&s, &first));
        std::thread::sleep(Duration::from_millis(100));
    }
    let made = bearer(&s, "POST", "/v1/allocations", &first, &json!({"gpus": 1, "commit": "a"}).to_string());
    assert_eq!(made.status, 201, "{made:?}");
    assert_eq!(
        bearer(&s, "POST", "/v1/hosts/drain", &first, r#"{"gpus": ["n1"], "reason": "x"}"#).code(),
        (403, "scope".into())
    );
    let events = bearer(&s, "GET", "/v1/events?after=0", &first, "").json();
    assert_eq!(events["events"][0]["who"], "oidc:agent-7", "{events}");

    // A browser signs in; the cookie reads pages and nothing else.
    let mut browser = Browser::default();
    assert!(browser.get(&format!("{base}/")).text.contains("Sign in with"));
    let back = browser
        .follow(&format!("{base}/login/oidc"), &format!("{base}/login/callback?"))
        .unwrap_or_else(|e| panic!("{e:?}"));
    let before = browser.cookies.clone();
    let done = browser.get(&back);
    assert!(done.status == 200 && done.text.contains("Signed in"), "{done:?}");
    let session = done
        .headers
        .get_all("set-cookie")
        .iter()
        .map(|c| c.to_str().unwrap())
        .find(|c| c.starts_with("linkwise_token="));
    let session = session.unwrap();
    assert!(session.contains("HttpOnly") && session.contains("SameSite=Strict"), "{session}");
    let page = browser.get(&format!("{base}/"));
    assert!(page.status == 200 && page.text.contains("oidc:ann"), "{page:?}");
    let id_token = session.split(['=', ';']).nth(1).unwrap();
    assert_eq!(cluster(&s, id_token).0, 401, "the session's token is not for requests, whose audience is another one");

    // The same answer again, from this browser and from another one.
    browser.cookies = before;
    let again = browser.get(&back);
    assert!(again.status == 403 && again.text.contains("has ended it"), "{again:?}");
    let stranger = Browser::default().get(&back);
    assert!(stranger.status == 403 && stranger.text.contains("has not begun this sign-in"), "{stranger:?}");

    // New keys, and no old ones.
    provider.tell("rotate");
    let start = std::time::Instant::now();
    let second = token();
    while cluster(&s, &second).0 != 200 {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", cluster(&s, &second));
        std::thread::sleep(Duration::from_millis(300));
    }
    assert_eq!(cluster(&s, &first).0, 401, "a token of the old key");
}

#[test]
fn a_sign_in_is_bound_to_its_browser_its_nonce_and_its_issuer() {
    let key = Key::new("k1");
    let issuer = Issuer::new(&[&key]);
    let s = served(&issuer.url, |_| {});
    let base = base(s.at);
    let begin = |b: &mut Browser| {
        let said = b.get(&format!("{base}/login/oidc"));
        let to = said.header("location").to_owned();
        let field =
            |name: &str| to.split(['?', '&']).find_map(|f| f.strip_prefix(&format!("{name}="))).unwrap().to_owned();
        assert!(
            to.starts_with(&format!("{}/sign-in?", issuer.url)) && field("code_challenge_method") == "S256",
            "{to}"
        );
        (field("state"), field("nonce"))
    };
    let code = |said: &Said| said.text.contains("Not signed in:").then_some(said.status);
    let signs = |nonce: &str, change: &dyn Fn(&mut Value)| {
        let mut claims = issuer.claims();
        claims["nonce"] = json!(nonce);
        change(&mut claims);
        issuer.change(|s| s.token = json!({"id_token": key.token(&claims)}));
    };
    let callback = |b: &mut Browser, query: &str| b.get(&format!("{base}/login/callback?{query}"));

    let mut b = Browser::default();
    let (state, nonce) = begin(&mut b);
    signs(&nonce, &|_| {});
    let done =
        callback(&mut b, &format!("code=1&state={state}&iss={}", issuer.url.replace(':', "%3A").replace('/', "%2F")));
    assert_eq!(done.status, 200, "{done:?}");

    type Change<'c> = &'c dyn Fn(&mut Value);
    let cases: [(&str, &str, Change<'_>); 10] = [
        ("another nonce", "code=1&state=STATE", &|c| c["nonce"] = json!("x")),
        ("no nonce", "code=1&state=STATE", &|c| drop(c.as_object_mut().unwrap().remove("nonce"))),
        ("another audience", "code=1&state=STATE", &|c| c["aud"] = json!("payroll")),
        ("another party", "code=1&state=STATE", &|c| c["azp"] = json!("payroll")),
        ("another state", "code=1&state=0000", &|_| {}),
        ("no state", "code=1", &|_| {}),
        ("another issuer", "code=1&state=STATE&iss=https%3A%2F%2Felsewhere.test", &|_| {}),
        ("no code", "state=STATE", &|_| {}),
        ("an error of the issuer", "error=access_denied&error_description=%3Cscript%3E&state=STATE", &|_| {}),
        ("a token that a cookie cannot hold", "code=1&state=STATE", &|c| c["more"] = json!("x".repeat(4000))),
    ];
    for (what, query, change) in cases {
        let mut b = Browser::default();
        let (state, nonce) = begin(&mut b);
        signs(&nonce, change);
        let said = callback(&mut b, &query.replace("STATE", &state));
        assert!(matches!(code(&said), Some(401 | 403)), "{what}: {said:?}");
        assert!(!said.text.contains("<script"), "{what}");
        assert!(!b.cookies.contains_key(&(format!("localhost:{}", s.at.port()), "linkwise_token".into())), "{what}");
    }
    // A victim's browser that is sent to the attacker's answer has another sign-in under way.
    let (mut attacker, mut victim) = (Browser::default(), Browser::default());
    let (state, nonce) = begin(&mut attacker);
    begin(&mut victim);
    signs(&nonce, &|_| {});
    assert_eq!(code(&callback(&mut victim, &format!("code=1&state={state}"))), Some(403));
    assert_eq!(callback(&mut attacker, &format!("code=1&state={state}")).status, 200);
}
