//! Requests that are wrong, endless, slow or foreign: each gets its own status and code, and the server goes on.

mod common;

use common::{Server, read_all};
use serde_json::json;
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const JSON: (&str, &str) = ("content-type", "application/json");

fn alive(s: &Server) {
    assert_eq!(s.get("/v1/cluster").status, 200, "the server goes on");
}

#[test]
fn a_body_that_is_no_request_gets_the_place_of_its_mistake() {
    let s = Server::new(1);
    let place = |body: &[u8]| s.send("POST", "/v1/place", &[JSON], body);
    let deep = "[".repeat(100_000);
    for (body, code) in [
        (&b"{\"gpus\":"[..], "bad_json"),
        (b"rubbish", "bad_json"),
        (b"{\"gpus\":\xff\xfe}", "bad_json"),
        (deep.as_bytes(), "bad_json"),
        (b"{\"gpus\":1e999}", "bad_json"),
        (b"{\"gpus\":-1}", "bad_request"),
        (b"{\"gpus\":\"8\"}", "bad_request"),
        (b"{\"gpu\":8}", "bad_request"),
        (b"{\"gpus\":8,\"gpus\":9}", "bad_request"),
        (b"[]", "bad_request"),
        (b"null", "bad_request"),
    ] {
        let said = place(body);
        let (status, got) = said.code();
        let body = String::from_utf8_lossy(&body[..body.len().min(40)]);
        assert_eq!((status, got.as_str()), (400, code), "{body}: {said:?}");
        assert!(said.text.len() < 1500, "{} bytes for {body}", said.text.len());
    }
    assert!(place(b"{\n  \"gpu\": 8}").json()["detail"].as_str().unwrap().contains("line 2 column"));
    assert_eq!(s.send("POST", "/v1/place", &[JSON], br#"{"gpus":1,"commit":"a"}"#).code().1, "commit_not_here");
    assert_eq!(s.post("/v1/allocations", &json!({"gpus": 1})).code().1, "no_job");
    for id in ["<script>", "a b", "", "-x", &"x".repeat(300)] {
        assert_eq!(s.post("/v1/allocations", &json!({"gpus": 1, "commit": id})).status, 400, "{id}");
    }
    for key in ["", "a b", &"x".repeat(300)] {
        let said = s.post_once("/v1/allocations", key, &json!({"gpus": 1, "commit": "a"}));
        assert_eq!(said.status, 400, "{key}: {said:?}");
    }
    let two = json!({"gpus": 1, "commit": "a", "key": "x"});
    assert_eq!(s.post_once("/v1/allocations", "y", &two).code().1, "two_keys");
    assert_eq!(s.get("/v1/cluster").json()["jobs"], json!([]));
}

#[test]
fn a_large_body_is_refused_by_its_length_and_an_endless_one_when_it_is_too_long() {
    let s = Server::new(1);
    let said = s.raw(b"POST /v1/place HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99999999999\r\n\r\n{");
    assert!(said.starts_with("HTTP/1.1 413") && said.contains("body_too_large"), "{said}");

    let mut c = TcpStream::connect(s.at).unwrap();
    c.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let head = "POST /v1/place HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    c.write_all(head.as_bytes()).unwrap();
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(65_536));
    let mut sent = 0usize;
    while sent < 64 << 20 && c.write_all(chunk.as_bytes()).is_ok() {
        sent += chunk.len();
    }
    let said = read_all(&mut c);
    assert!(said.starts_with("HTTP/1.1 413") && said.contains("body_too_large"), "after {sent} bytes: {said}");
    assert!(sent < 64 << 20, "the server read {sent} bytes");

    let line = format!("{{\"gpus\":{}1}}", " ".repeat(2 << 20));
    let said = s.send("POST", "/v1/place/stream", &[("content-type", "application/x-ndjson")], line.as_bytes());
    assert!(said.text.contains("line_too_long"), "{said:?}");
    alive(&s);
}

#[test]
fn a_body_that_comes_too_slowly_is_given_up_and_others_are_served_meanwhile() {
    let s = Server::with(1, |c| server::Config { body_time: Duration::from_millis(400), ..c });
    let mut slow: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut c = TcpStream::connect(s.at).unwrap();
            c.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            c.write_all(b"POST /v1/place HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n{")
                .unwrap();
            c
        })
        .collect();
    alive(&s);
    for c in &mut slow {
        let said = read_all(c);
        assert!(said.starts_with("HTTP/1.1 408") && said.contains("body_too_slow"), "{said}");
    }
}

#[test]
fn addresses_headers_and_encodings_that_no_client_needs_are_refused() {
    let s = Server::new(1);
    for (path, status, code) in [
        ("/v1/nothing", 404, "unknown_path"),
        ("/v1/allocations/..%2F..%2Fetc%2Fpasswd", 404, "unknown_job"),
        ("/v1/allocations/%00", 404, "unknown_job"),
        ("/v1/allocations/%ff", 400, "bad_path"),
        ("/v1/tasks/-1", 400, "bad_path"),
        ("/v1/tasks/99999999999999999999999", 400, "bad_path"),
        ("/v1/readings?limit=x", 400, "bad_query"),
        ("/v1/readings?wrong=1", 400, "bad_query"),
        ("/v1/readings?limit=0", 400, "bad_request"),
        ("/v1/readings?host=nowhere", 400, "unknown_host"),
        ("/v1/events?limit=100000", 400, "bad_request"),
    ] {
        assert_eq!(s.get(path).code(), (status, code.to_owned()), "{path}");
    }
    for path in ["/../../etc/passwd", "//v1/cluster", "/v1/../cluster", "/style.css/../../x"] {
        let said = s.raw(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").as_bytes());
        assert!(said.starts_with("HTTP/1.1 404"), "{path}: {said}");
    }
    let gzip = s.send("POST", "/v1/place", &[JSON, ("content-encoding", "gzip")], b"\x1f\x8b\x08 a bomb");
    assert_eq!(gzip.code(), (415, "encoding_unsupported".into()));
    let form = s.send("POST", "/v1/place", &[("content-type", "application/x-www-form-urlencoded")], b"gpus=8");
    assert_eq!(form.code(), (415, "content_type".into()));
    assert_eq!(s.send("DELETE", "/v1/cluster", &[], b"").code(), (405, "method_not_allowed".into()));
    assert_eq!(s.send("DELETE", "/v1/allocations/a", &[JSON], b"{}").code(), (400, "body_not_read".into()));

    // Beyond the limit, and less than what hyper reads.
    for path in ["/v1/cluster", "/", "/metrics", "/openapi.json", "/readyz", "/nothing"] {
        let said = s.send("GET", path, &[("x-long", &"x".repeat(server::limits::HEADER_BYTES_MAX))], b"");
        assert_eq!(said.code(), (431, "header_too_large".into()), "{path}");
    }
    let flood: String = (0..1000).map(|i| format!("x-{i}: {i}\r\n")).collect();
    let said = s.raw(format!("GET /v1/cluster HTTP/1.1\r\nhost: localhost\r\n{flood}\r\n").as_bytes());
    assert!(said.starts_with("HTTP/1.1 431"), "{said}");
    let long = format!("GET /v1/cluster HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "x".repeat(1 << 20));
    let said = s.raw(long.as_bytes());
    assert!(said.is_empty() || said.starts_with("HTTP/1.1 431"), "{said}");
    for rubbish in
        [&b"\0\0\0\0\0\0\0\0\r\n\r\n"[..], b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"]
    {
        let said = s.raw(rubbish);
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 4") || said.starts_with("HTTP/1.0 4"), "{said}");
    }
    // Two lengths: nothing after the head is read as a second request.
    let said = s.raw(
        b"POST /v1/place HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/cluster HTTP/1.1\r\nhost: x\r\n\r\n",
    );
    assert!(!said.contains("\"gpus\""), "{said}");
    alive(&s);
}

#[test]
fn a_page_of_another_origin_can_neither_read_nor_change_anything() {
    let s = Server::new(1);
    let with = |host: &str, more: &str| {
        s.raw(
            format!("DELETE /v1/allocations/a HTTP/1.1\r\nhost: {host}\r\n{more}connection: close\r\n\r\n").as_bytes(),
        )
    };
    let at = s.at.to_string();
    assert!(with(&at, "").contains("unknown_job"));
    assert!(with("localhost:7878", "origin: http://localhost:7878\r\n").contains("unknown_job"));
    assert!(with(&at, "origin: http://evil.example\r\n").contains("foreign_origin"));
    assert!(with(&at, "origin: null\r\n").contains("foreign_origin"));
    // A name that points to this machine, as in DNS rebinding.
    let rebound = s.raw(b"GET /v1/cluster HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n");
    assert!(rebound.starts_with("HTTP/1.1 421") && rebound.contains("wrong_host"), "{rebound}");
    let none = s.raw(b"GET /v1/cluster HTTP/1.0\r\n\r\n");
    assert!(none.contains("wrong_host"), "{none}");
}

#[test]
fn a_client_beyond_its_rate_is_told_when_to_come_again() {
    let s = Server::with(1, |c| server::Config { rate_per_s: 5.0, ..c });
    let refused = (0..20).map(|_| s.get("/v1/cluster")).find(|r| r.status == 429).expect("a refusal");
    assert_eq!(refused.code(), (429, "too_many_requests".into()));
    assert_eq!(refused.header("retry-after"), "1");
    let start = Instant::now();
    while s.get("/v1/cluster").status == 429 {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn connections_and_streams_beyond_the_limit_are_refused_and_free_places_are_used_again() {
    let s = Server::new(1);
    let open = || {
        let mut c = TcpStream::connect(s.at).unwrap();
        c.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        c.write_all(b"GET /v1/events/stream HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        let mut first = [0; 12];
        std::io::Read::read_exact(&mut c, &mut first).unwrap();
        (c, String::from_utf8_lossy(&first).into_owned())
    };
    let mut streams: Vec<_> = (0..server::limits::STREAMS_MAX).map(|_| open()).collect();
    assert!(streams.iter().all(|s| s.1.ends_with("200")));
    assert!(open().1.ends_with("503"));
    streams.clear();
    let start = Instant::now();
    while !open().1.ends_with("200") {
        assert!(start.elapsed() < Duration::from_secs(60), "closed streams keep their places");
        std::thread::sleep(Duration::from_millis(50));
    }
    alive(&s);
}

#[test]
fn a_server_listens_beyond_this_machine_only_if_it_is_forced() {
    let folder = tempfile::tempdir().unwrap();
    let listen = std::net::SocketAddr::from(([0, 0, 0, 0], 0));
    let config = server::Config { listen, ..server::Config::default() };
    let refused = server::start(common::engine(folder.path(), 1), &config).err().expect("a refusal").to_string();
    assert!(refused.contains("--force-plain-http") && refused.contains("0.0.0.0"), "{refused}");
    server::start(common::engine(folder.path(), 1), &server::Config { force_plain: true, ..config }).unwrap().stop();
}

#[test]
fn long_searches_delay_neither_questions_nor_allocations_nor_readiness() {
    let server = Server::new(64);
    let done = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for i in 0..8 {
            let (server, done) = (&server, &done);
            s.spawn(move || {
                // Counts its candidates for seconds and is refused, on a busy machine for its time.
                let mut request = json!({"gpus": 12, "search": "exact"});
                if i % 2 == 0 {
                    request["commit"] = format!("long-{i}").into();
                }
                let path = if i % 2 == 0 { "/v1/allocations" } else { "/v1/place" };
                let (status, code) = server.post(path, &request).code();
                done.fetch_add(1, Ordering::SeqCst);
                let slow = [(503, "overloaded"), (504, "too_slow")].contains(&(status, &*code));
                assert!(slow || (status, &*code) == (409, "too_large_for_exact"), "{status} {code}");
            });
        }
        let waiting = || {
            let text = server.get("/metrics").text;
            let number = text.lines().find_map(|l| l.strip_prefix("linkwise_waiting_requests ")).expect("the metric");
            number.parse::<usize>().unwrap()
        };
        let start = Instant::now();
        while waiting() < 4 && done.load(Ordering::SeqCst) == 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "the searches do not wait for each other");
        }
        let before = done.load(Ordering::SeqCst);
        let asked = server.post("/v1/place", &json!({"gpus": 8}));
        let made = server.post("/v1/allocations", &json!({"gpus": 8, "commit": "job"}));
        let ready = server.get("/readyz");
        assert_eq!((asked.status, made.status, ready.status), (200, 201, 200));
        // With common workers each would begin when the searches before it have ended.
        let ended = done.load(Ordering::SeqCst);
        assert!(ended < 8, "the searches are not long any more");
        assert!(ended - before < 3, "{} searches ended before", ended - before);
    });
}
