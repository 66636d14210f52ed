//! The OpenAPI 3.1 document, from the table of the endpoints and the types of requests and answers. JSON Schema 2020-12,
//! which `schemars` derives, is the dialect of OpenAPI 3.1.

use crate::auth::Scope;
use crate::endpoints::{self, Endpoint};
use crate::problem::Told;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// Statuses that every endpoint may answer with, and the codes of the server among them.
const PROBLEMS: [(&str, &str); 15] = [
    ("400", "The request cannot be read: bad_json, bad_request, bad_query, bad_path and codes of the engine"),
    ("401", "No token or a wrong one: no_token, wrong_token"),
    ("403", "The client may not do it: scope, no_scope, tenant, not_yours, not_its_gpus, foreign_origin"),
    (
        "404",
        "The named thing does not exist: unknown_path, unknown_job, unknown_reading, unknown_task, unknown_version",
    ),
    ("405", "The address does not take this method: method_not_allowed"),
    ("408", "The body came too slowly: body_too_slow"),
    ("409", "The present state does not allow it: codes of the engine"),
    ("410", "The key began a task whose result is forgotten: task_forgotten"),
    ("412", "The state has another version than `If-Match` names: version_changed"),
    ("413", "The body is too large: body_too_large, line_too_long, too_many_lines"),
    ("415", "The body has another form: content_type, encoding_unsupported"),
    ("421", "The request is for another host: wrong_host"),
    ("422", "The idempotency key was used for another request: key_reused"),
    ("429", "The client sends too many requests: too_many_requests, too_many_wrong_tokens"),
    ("503", "The server has too much to do: overloaded, too_many_tasks, too_many_streams, busy, conflict"),
];

/// The document.
pub fn document() -> Value {
    let settings = |s: SchemaSettings| s.with(|s| s.definitions_path = "/components/schemas".into()).into_generator();
    let mut requests = settings(SchemaSettings::draft2020_12().for_deserialize());
    let mut answers = settings(SchemaSettings::draft2020_12().for_serialize());
    let problem = answers.subschema_for::<Told>();
    let mut paths = Map::new();
    for e in endpoints::all() {
        let mut operation = json!({
            "operationId": e.id,
            "summary": e.about,
            "tags": [tag(e.path)],
            "security": [{"token": [e.scope.name()]}],
            "x-scope": e.scope.name(),
            "responses": {e.status.as_str(): {
                "description": "The answer",
                "content": {e.forms.1: {"schema": (e.answer)(&mut answers)}}
            }}
        });
        for (status, about) in PROBLEMS {
            operation["responses"][status] = json!({
                "description": about, "content": {"application/problem+json": {"schema": problem}}
            });
        }
        if let Some(body) = e.body {
            let schema = body(&mut requests);
            operation["requestBody"] = json!({"content": {e.forms.0: {"schema": schema}}, "required": true});
        }
        let mut parameters = path_parameters(&e);
        if let Some(query) = e.query {
            let schema = query(&mut requests);
            parameters.extend(query_parameters(&schema, requests.definitions()));
        }
        if !parameters.is_empty() {
            operation["parameters"] = json!(parameters);
        }
        let method = e.method.as_str().to_lowercase();
        let path = paths.entry(e.path).or_insert_with(|| json!({}));
        path[method] = operation;
    }
    let mut schemas: Map<String, Value> = requests.take_definitions(true);
    schemas.extend(answers.take_definitions(true));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "linkwise",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "Places the GPUs of jobs by measured bandwidth",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {
                "type": "http", "scheme": "bearer",
                "description": format!(
                    "A token of `linkwise token create`, with one of the scopes {}; each contains the ones before it. \
                     Until the first token is made, the server asks for none.",
                    Scope::ALL.map(Scope::name).join(", ")
                )
            }}
        }
    })
}

/// The word after `/v1/`.
fn tag(path: &str) -> &str {
    path.split('/').nth(2).unwrap_or_default()
}

fn path_parameters(e: &Endpoint) -> Vec<Value> {
    let names = e.path.split('/').filter_map(|p| p.strip_prefix('{')?.strip_suffix('}'));
    let mut all: Vec<Value> = names
        .map(|name| {
            let schema = if name == "id" { json!({"type": "integer"}) } else { json!({"type": "string"}) };
            json!({"name": name, "in": "path", "required": true, "schema": schema})
        })
        .collect();
    if e.method != axum::http::Method::GET && e.status != axum::http::StatusCode::ACCEPTED {
        for (name, about) in [
            ("If-Match", "The version of the state that the change is for, from the header `ETag`, in quotes."),
            ("X-Reason", "The reason of the change in the log of changes: one line of at most 1,024 bytes."),
        ] {
            let schema = json!({"type": "string"});
            all.push(json!({"name": name, "in": "header", "required": false, "schema": schema, "description": about}));
        }
        all.push(json!({
            "name": "Idempotency-Key", "in": "header", "required": false,
            "schema": {"type": "string", "minLength": 1, "maxLength": 200},
            "description": "Under one key a change is made once, and every repetition gets the same answer."
        }));
    }
    all
}

/// The fields of a query's type.
fn query_parameters(schema: &schemars::Schema, known: &Map<String, Value>) -> Vec<Value> {
    let schema = schema.as_value();
    let name = schema["$ref"].as_str().and_then(|r| r.rsplit('/').next()).unwrap_or_default();
    let fields = known.get(name).and_then(|d| d["properties"].as_object()).cloned().unwrap_or_default();
    fields
        .into_iter()
        .map(|(name, mut schema)| {
            let about = schema.as_object_mut().and_then(|o| o.remove("description"));
            json!({"name": name, "in": "query", "required": false, "schema": schema, "description": about})
        })
        .collect()
}
