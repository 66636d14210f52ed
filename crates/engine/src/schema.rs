//! JSON Schemas of types whose crates cannot have them, because training processes load these crates.

use schemars::{Schema, SchemaGenerator, json_schema};
use topology::Collective;

/// The schema of a [`Collective`]: its names.
pub(crate) fn collective(_: &mut SchemaGenerator) -> Schema {
    let names: Vec<String> = Collective::ALL.iter().map(ToString::to_string).collect();
    json_schema!({"type": "string", "enum": names, "description": "A collective operation."})
}
