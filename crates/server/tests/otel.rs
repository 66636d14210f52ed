//! Spans that a collector gets by OTLP over HTTP, decoded.

mod common;

use common::Server;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::json;
use server::Config;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;

/// A collector: its address, and the spans as they come.
fn collector() -> (String, mpsc::Receiver<ExportTraceServiceRequest>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = format!("http://{}", listener.local_addr().unwrap());
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut length, mut head, mut line) = (0, String::new(), String::new());
            while reader.read_line(&mut line).unwrap_or(0) > 2 {
                if let Some(n) = line.to_lowercase().strip_prefix("content-length:") {
                    length = n.trim().parse().unwrap();
                }
                head += &line;
                line.clear();
            }
            assert!(head.starts_with("POST /v1/traces "), "{head}");
            assert!(head.to_lowercase().contains("content-type: application/x-protobuf"), "{head}");
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let _ = sender.send(ExportTraceServiceRequest::decode(&body[..]).unwrap());
            let mut stream = stream;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        }
    });
    (at, receiver)
}

fn attribute(span: &Span, key: &str) -> String {
    let found = span.attributes.iter().find(|a| a.key == key).and_then(|a| a.value.as_ref()?.value.clone());
    match found {
        Some(Any::StringValue(s)) => s,
        Some(Any::IntValue(i)) => i.to_string(),
        other => panic!("{key}: {other:?}"),
    }
}

#[test]
fn a_request_its_decision_and_its_transactions_are_spans_of_the_clients_trace() {
    let (at, spans) = collector();
    let s = Server::with(1, |c| Config { otlp: Some(at), ..c });
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    let body = json!({"gpus": 2, "commit": "secret-job"}).to_string();
    let headers =
        [("content-type", "application/json"), ("traceparent", parent.as_str()), ("x-reason", "secret-reason")];
    assert_eq!(s.send("POST", "/v1/allocations", &headers, body.as_bytes()).status, 201);
    assert_eq!(s.get("/v1/allocations/secret-none?secret=1").status, 404);
    for hostile in ["00-zz", "ff-0-0-0", &"0".repeat(5000)] {
        assert_eq!(s.send("GET", "/v1/cluster", &[("traceparent", hostile)], b"").status, 200);
    }
    s.stop(); // exports what waits
    let all: Vec<ExportTraceServiceRequest> = spans.try_iter().collect();
    let service = &all[0].resource_spans[0].resource.as_ref().unwrap().attributes;
    assert!(service.iter().any(|a| a.key == "service.name"), "{service:?}");
    let all: Vec<Span> =
        all.into_iter().flat_map(|e| e.resource_spans).flat_map(|r| r.scope_spans).flat_map(|s| s.spans).collect();
    let named = |name: &str| all.iter().find(|s| s.name == name).unwrap_or_else(|| panic!("{name}: {all:?}"));
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();

    let request = named("POST /v1/allocations");
    assert_eq!((hex(&request.trace_id).as_str(), hex(&request.parent_span_id).as_str()), (trace, "00f067aa0ba902b7"));
    assert_eq!(attribute(request, "http.response.status_code"), "201");
    assert_eq!(attribute(request, "http.route"), "/v1/allocations");
    let decision = all.iter().find(|s| s.name == "decide" && s.parent_span_id == request.span_id).unwrap();
    assert_eq!(attribute(decision, "linkwise.request"), "place and allocate");
    let write = all.iter().find(|s| s.name == "write transaction" && s.parent_span_id == decision.span_id).unwrap();
    assert_eq!(attribute(write, "db.system.name"), "sqlite");
    assert!(write.start_time_unix_nano >= decision.start_time_unix_nano - 1_000_000);
    assert!(write.end_time_unix_nano <= request.end_time_unix_nano + 1_000_000);

    let missing = named("GET /v1/allocations/{job}");
    assert_eq!(attribute(missing, "http.response.status_code"), "404");
    assert_ne!(hex(&missing.trace_id), trace);
    assert!(!format!("{all:?}").contains("secret"), "no span has a name, a reason or a query");
}

#[test]
fn a_collector_that_does_not_answer_delays_no_request() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap(); // takes connections and says nothing
    let at = format!("http://{}", listener.local_addr().unwrap());
    let s = Server::with(1, |c| Config { otlp: Some(at), ..c });
    for _ in 0..20 {
        assert_eq!(s.get("/v1/cluster").status, 200);
    }
}
