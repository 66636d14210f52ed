//! Spans for OpenTelemetry: one per request, with those of its decisions and transactions inside, exported by OTLP over HTTP.
//!
//! A request's span travels in the context of its task, and from there to the thread of its work. A client's `traceparent` is
//! the parent. No span has a query, a body, a token or a name: only the template of the path, the status and kinds.

use crate::fetch::Fetcher;
use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::http::Response;
use axum::middleware::Next;
use hyper::body::Bytes;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{FutureExt, Span, SpanKind, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// Longest export of a batch of spans.
const EXPORT_TIME: Duration = Duration::from_secs(10);

/// Longest wait for the last batch when the server stops.
const END_TIME: Duration = Duration::from_secs(3);

/// What makes and exports spans.
#[derive(Clone)]
pub struct Spans(Option<Arc<Made>>);

struct Made {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

/// The tracer of a request, in its context.
struct Of(SdkTracer);

/// The exporter's HTTP, on the server's runtime: the exporter has a thread of its own without one.
#[derive(Clone)]
struct Client(Fetcher, Handle);

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

type Answered<'a> = std::pin::Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'a>>;

impl HttpClient for Client {
    fn send_bytes<'life0, 'async_trait>(&'life0 self, request: axum::http::Request<Bytes>) -> Answered<'async_trait>
    where
        'life0: 'async_trait,
        Self: 'async_trait,
    {
        Box::pin(async move {
            let fetcher = self.0.clone();
            let sent = self.1.spawn(async move { fetcher.send(request).await });
            Ok(sent.await.map_err(|e| e.to_string())??)
        })
    }
}

impl Spans {
    /// Spans that go to this collector; none: nothing is made.
    ///
    /// # Errors
    /// A sentence about the address.
    pub fn new(collector: Option<&str>, runtime: &Handle) -> Result<Spans, String> {
        let Some(collector) = collector else { return Ok(Spans(None)) };
        crate::oidc::check_address(collector).map_err(|e| format!("--otlp: {e}"))?;
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Client(Fetcher::new(None, EXPORT_TIME)?, runtime.clone()))
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(format!("{}/v1/traces", collector.trim_end_matches('/')))
            .with_timeout(EXPORT_TIME)
            .build()
            .map_err(|e| format!("--otlp: {e}"))?;
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource = Resource::builder().with_service_name("linkwise").with_attribute(version).build();
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
        let tracer = provider.tracer("linkwise");
        store::watch::on_transaction(transaction);
        Ok(Spans(Some(Arc::new(Made { provider, tracer }))))
    }

    /// Exports what waits. Blocks; call it outside of the runtime.
    pub fn end(&self) {
        if let Some(made) = &self.0 {
            let _ = made.provider.shutdown_with_timeout(END_TIME);
        }
    }
}

/// Answers a request in a span.
pub async fn traced(spans: Spans, request: Request, next: Next) -> Response<Body> {
    let Some(made) = &spans.0 else { return next.run(request).await };
    let header = request.headers().get("traceparent").and_then(|v| v.to_str().ok());
    let header: HashMap<String, String> =
        header.map(|v| ("traceparent".to_owned(), v.to_owned())).into_iter().collect();
    let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &header);
    let method = request.method().to_string();
    let route = request.extensions().get::<MatchedPath>().map_or("none", |p| p.as_str()).to_owned();
    let builder = made.tracer.span_builder(format!("{method} {route}")).with_kind(SpanKind::Server);
    let attributes = vec![KeyValue::new("http.request.method", method), KeyValue::new("http.route", route)];
    let span = made.tracer.build_with_context(builder.with_attributes(attributes), &parent);
    let context = Context::new().with_value(Of(made.tracer.clone())).with_span(span);
    let response = next.run(request).with_context(context.clone()).await;
    let status = response.status();
    context.span().set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
    if status.is_server_error() {
        context.span().set_status(Status::error(""));
    }
    context.span().end();
    response
}

/// The span in which a task is, for the thread that works for it.
pub struct Here(Context);

/// The present span.
pub fn here() -> Here {
    Here(Context::current())
}

impl Here {
    /// Makes it the present span of this thread while the value lives.
    pub fn enter(self) -> impl Sized {
        self.0.attach()
    }
}

/// Runs a decision of the engine in a span.
pub fn decision<T, E>(kind: &'static str, decide: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let now = Context::current();
    let Some(of) = now.get::<Of>() else { return decide() };
    let builder = of.0.span_builder("decide").with_attributes(vec![KeyValue::new("linkwise.request", kind)]);
    let context = now.with_span(of.0.build_with_context(builder, &now));
    let decided = {
        let _here = context.clone().attach();
        decide()
    };
    if decided.is_err() {
        context.span().set_status(Status::error("refused"));
    }
    context.span().end();
    decided
}

/// Makes the span of a transaction that ended on this thread.
fn transaction(t: &store::watch::Transaction) {
    let now = Context::current();
    let Some(of) = now.get::<Of>() else { return };
    let name = if t.writes { "write transaction" } else { "read transaction" };
    let builder = of.0.span_builder(name).with_kind(SpanKind::Client).with_start_time(t.start);
    let builder = builder.with_attributes(vec![KeyValue::new("db.system.name", t.system)]);
    let mut span = of.0.build_with_context(builder, &now);
    if !t.done {
        span.set_status(Status::error("not committed"));
    }
    span.end_with_timestamp(t.start + t.took);
}
