//! Every limit at its value and one beyond it: what fits is answered, the next is refused with its own code.

mod common;

use common::{Server, read_all};
use serde_json::{Value, json};
use server::limits;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const JSON: (&str, &str) = ("content-type", "application/json");
const LINES: (&str, &str) = ("content-type", "application/x-ndjson");

/// A request for one GPU in exactly so many bytes.
fn padded(bytes: usize) -> String {
    format!("{}{}", r#"{"gpus":1}"#, " ".repeat(bytes - 10))
}

fn answers(text: &str) -> Vec<Value> {
    text.lines().map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}"))).collect()
}

#[test]
fn a_body_of_the_longest_length_is_read_and_a_longer_one_refused() {
    let s = Server::new(1);
    let place = |bytes: usize| s.send("POST", "/v1/place", &[JSON], padded(bytes).as_bytes());
    assert_eq!(place(limits::BODY_BYTES_MAX).status, 200);
    assert_eq!(place(limits::BODY_BYTES_MAX + 1).code(), (413, "body_too_large".into()));
    // The same without a length in the header.
    let chunked = |bytes: usize| {
        let head = "POST /v1/place HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
                    transfer-encoding: chunked\r\n\r\n";
        s.raw(format!("{head}{bytes:x}\r\n{}\r\n0\r\n\r\n", padded(bytes)).as_bytes())
    };
    assert!(chunked(limits::BODY_BYTES_MAX).starts_with("HTTP/1.1 200"));
    assert!(chunked(limits::BODY_BYTES_MAX + 1).contains("body_too_large"));
}

#[test]
fn a_stream_has_lines_of_the_longest_length_and_the_largest_number_and_no_more() {
    let s = Server::new(1);
    let stream = |text: &str| s.send("POST", "/v1/place/stream", &[LINES], text.as_bytes());
    let longest = stream(&format!("{}\n{{\"gpus\":2}}\n", padded(limits::LINE_BYTES_MAX)));
    let said = answers(&longest.text);
    assert_eq!((said[0]["split"].as_str(), said[1]["split"].as_str()), (Some("1"), Some("2")), "{said:?}");
    let longer = answers(&stream(&format!("{{\"gpus\":2}}\n{}\n", padded(limits::LINE_BYTES_MAX + 1))).text);
    assert_eq!((longer.len(), &longer[0]["split"], &longer[1]["code"]), (2, &json!("2"), &json!("line_too_long")));

    // Lines that are no requests are answered without a decision.
    let most = stream(&"x\n".repeat(limits::LINES_MAX)).text;
    assert_eq!(most.lines().count(), limits::LINES_MAX);
    assert!(!most.contains("too_many_lines"));
    let more = stream(&"x\n".repeat(limits::LINES_MAX + 1)).text;
    assert_eq!(more.lines().count(), limits::LINES_MAX + 1);
    assert!(more.lines().last().unwrap().contains("too_many_lines"));
}

#[test]
fn a_header_has_the_largest_number_of_fields_and_no_more() {
    let s = Server::new(1);
    let with = |fields: usize| {
        let more: String = (2..fields).map(|i| format!("x-{i}: {i}\r\n")).collect();
        s.raw(format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{more}\r\n").as_bytes())
    };
    assert!(with(limits::HEADERS_MAX).starts_with("HTTP/1.1 200"), "{}", with(limits::HEADERS_MAX));
    assert!(with(limits::HEADERS_MAX + 1).starts_with("HTTP/1.1 431"));
    // A reason and a key of the longest length are read.
    let s = Server::new(1);
    let send = |name: &str, bytes: usize| {
        let value = "r".repeat(bytes);
        s.send("POST", "/v1/hosts/drain", &[JSON, (name, &value)], br#"{"gpus":["n0:0"],"reason":""}"#)
    };
    assert_eq!((send("x-reason", 1024).status, send("x-reason", 1025).code().1), (200, "bad_reason".into()));
    assert_eq!((send("idempotency-key", 200).status, send("idempotency-key", 201).status), (200, 400));
}

#[test]
fn a_client_gets_its_burst_and_then_its_rate() {
    let rate = 4.0;
    let s = Server::with(1, |c| server::Config { rate_per_s: rate, ..c });
    let begin = Instant::now();
    let (mut answered, mut first_refused) = (0, None);
    for n in 0..60 {
        match s.get("/v1/events").status {
            200 => answered += 1,
            429 => first_refused = first_refused.or(Some(n)),
            other => panic!("{other}"),
        }
    }
    let burst = (2.0 * rate) as usize;
    let most = 2.0 * rate + rate * begin.elapsed().as_secs_f64();
    assert!(first_refused.is_none_or(|n| n >= burst), "request {first_refused:?} was refused, and {burst} fit");
    assert!(f64::from(answered) <= most, "{answered} were answered, at most {most:.1} fit");
}

#[test]
fn a_body_may_take_its_time_and_no_longer() {
    let limit = Duration::from_secs(4);
    let s = Server::with(1, |c| server::Config { body_time: limit, ..c });
    let slow = |pause: Duration| {
        let mut c = TcpStream::connect(s.at).unwrap();
        c.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let head = "POST /v1/place HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
                    content-length: 10\r\n\r\n{\"gpus\"";
        c.write_all(head.as_bytes()).unwrap();
        std::thread::sleep(pause);
        let _ = c.write_all(b":1}");
        read_all(&mut c)
    };
    assert!(slow(limit / 4).starts_with("HTTP/1.1 200"));
    assert!(slow(limit + limit / 2).contains("body_too_slow"));
}

#[test]
fn the_largest_number_of_connections_is_served_and_the_next_is_refused() {
    let name = "the_largest_number_of_connections_is_served_and_the_next_is_refused";
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    if files < 2 * limits::CONNECTIONS_MAX as u64 + 200 {
        return common::skip(name, "fewer open files are allowed than both ends of the connections need");
    }
    let s = Server::new(1);
    let ask = |c: &mut TcpStream| {
        c.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let _ = c.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n");
        let mut first = [0; 12];
        let _ = c.read_exact(&mut first);
        String::from_utf8_lossy(&first).into_owned()
    };
    let mut open: Vec<TcpStream> = Vec::new();
    for n in 0..limits::CONNECTIONS_MAX {
        let mut c = TcpStream::connect(s.at).unwrap();
        // An answer: the server has taken the connection.
        assert_eq!(ask(&mut c), "HTTP/1.1 200", "connection {n}");
        open.push(c);
    }
    let mut beyond = TcpStream::connect(s.at).unwrap();
    let said = read_all(&mut beyond);
    assert!(said.starts_with("HTTP/1.1 503") && said.contains("too_many_connections"), "{said}");
    open.pop();
    let start = Instant::now();
    while ask(&mut TcpStream::connect(s.at).unwrap()) != "HTTP/1.1 200" {
        assert!(start.elapsed() < Duration::from_secs(60), "the free place is not used");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn pages_of_lists_have_every_entry_once_at_every_length() {
    let s = Server::new(3);
    for i in 0..7 {
        assert_eq!(s.post("/v1/allocations", &json!({"gpus": 2, "commit": format!("job-{i}")})).status, 201);
        let reading =
            json!({"job": format!("job-{i}"), "readings": [{"collective": "all_reduce", "busbw_gb_per_s": 300.0}]});
        assert_eq!(s.post("/v1/readings", &reading).status, 201);
    }
    let ids = |list: &Value, of: &str| -> Vec<String> {
        let id = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
        list.as_array().unwrap().iter().map(|x| id(&x[of])).collect()
    };
    for (path, list, of, next, all) in [
        ("/v1/allocations", "jobs", "id", true, 7),
        ("/v1/hosts", "hosts", "name", false, 3),
        ("/v1/readings", "readings", "id", false, 7),
        ("/v1/events", "events", "id", false, 14),
    ] {
        // Numbers start after 0; names after none.
        let first = if of == "id" && !next { "after=0&" } else { "" };
        for length in [1, 2, all - 1, all, all + 1] {
            let (mut found, mut from) = (Vec::new(), first.to_owned());
            loop {
                let page = s.get(&format!("{path}?{from}limit={length}")).json();
                let part = ids(&page[list], of);
                assert!(part.len() <= length, "{path} {length}: {page}");
                let (len, last) = (part.len(), part.last().cloned());
                found.extend(part);
                let more = if next { page["next"].is_string() } else { len == length };
                // A page that ends with the last entry names no next one.
                assert!(!next || more == (found.len() < all), "{path} {length}: {page}");
                match last.filter(|_| more) {
                    Some(last) => from = format!("after={last}&"),
                    None => break,
                }
            }
            let mut once = found.clone();
            once.sort();
            once.dedup();
            assert_eq!((found.len(), once.len()), (all, all), "{path} in pages of {length}: {found:?}");
        }
        let most = if path == "/v1/events" { 1000 } else { 10_000 };
        assert_eq!(s.get(&format!("{path}?limit={most}")).status, 200, "{path}");
        for wrong in [0, most + 1] {
            let said = s.get(&format!("{path}?limit={wrong}"));
            assert_eq!(said.code(), (400, "bad_request".into()), "{path} {wrong}");
        }
        assert_eq!(s.get(&format!("{path}?limit=-1")).code(), (400, "bad_query".into()), "{path}");
    }
    assert_eq!(s.get("/v1/hosts?after=n2").json()["hosts"], json!([]), "after the last host");
    assert_eq!(s.get("/v1/allocations?after=zzz").json()["jobs"], json!([]));
    assert_eq!(s.get("/v1/events?after=9223372036854775807").json()["events"], json!([]));
    assert_eq!(s.get("/v1/events?after=9223372036854775808").code(), (400, "bad_query".into()));
}
