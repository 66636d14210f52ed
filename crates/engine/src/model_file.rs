//! A model's file: the model, and the cluster on which it was fitted if the network has changed since.
//!
//! A model that learns is saved with the present cluster, but its factors of tiers, rails and NICs are those of the fit.
//! The file keeps that cluster, so that the note about another network lasts until the next fit. Programs that know only
//! models read the same file.

use predict::{Model, ModelKinds};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use topology::Cluster;

/// The field next to those of the model.
const FITTED_ON: &str = "fitted_on";

/// The content of a model file.
pub struct ModelFile {
    /// The model.
    pub model: Model,
    /// The cluster of the fit; none if its network is that of the model's cluster.
    pub fitted_on: Option<Cluster>,
}

#[derive(Deserialize)]
struct Beside {
    #[serde(default)]
    fitted_on: Option<Cluster>,
}

impl ModelFile {
    /// Reads a file. The error says what is wrong with it.
    pub fn read(text: &str, kinds: &ModelKinds) -> Result<ModelFile, String> {
        let model = Model::load(text, kinds)?;
        let Beside { fitted_on } = serde_json::from_str(text).map_err(|e| format!("it is damaged: {e}"))?;
        if let Some(c) = &fitted_on {
            c.check().map_err(|e| format!("the cluster of its fit is damaged: {e}"))?;
        }
        Ok(ModelFile { model, fitted_on })
    }

    /// The text of a file.
    pub fn write(model: &Model, fitted_on: Option<&Cluster>) -> Result<String, String> {
        let text = model.save()?;
        let Some(cluster) = fitted_on else { return Ok(text) };
        let cluster = serde_json::to_string(cluster).map_err(|e| e.to_string())?;
        let open = text.trim_end().strip_suffix('}').ok_or("the model's text is no JSON object")?;
        Ok(format!("{open},\"{FITTED_ON}\":{cluster}}}"))
    }

    /// The text of a file with new names of hosts, by old name: the model predicts for the new name what it learned of the
    /// old one. Names that the file does not have are ignored, so a repetition changes nothing.
    ///
    /// # Errors
    /// The text is not a model file.
    pub fn renamed(text: &str, names: &BTreeMap<String, String>, kinds: &ModelKinds) -> Result<String, String> {
        ModelFile::read(text, kinds)?;
        let mut file: Value = serde_json::from_str(text).map_err(|e| format!("it is damaged: {e}"))?;
        let rename = |name: &mut Value| {
            if let Some(new) = name.as_str().and_then(|n| names.get(n)) {
                *name = Value::String(new.clone());
            }
        };
        for cluster in ["cluster", FITTED_ON] {
            list(&mut file, &[cluster, "hosts"]).iter_mut().for_each(|h| rename(&mut h["name"]));
        }
        // Host numbers of the Gaussian process, with the name of each host first.
        list(&mut file, &["names", "hosts"]).iter_mut().for_each(|h| rename(&mut h[0]));
        list(&mut file, &["rates", "slow"]).iter_mut().filter_map(|s| s.get_mut("host")).for_each(rename);
        let text = file.to_string();
        ModelFile::read(&text, kinds)?;
        Ok(text)
    }
}

/// The list under these fields; empty if there is none.
fn list<'v>(value: &'v mut Value, fields: &[&str]) -> &'v mut [Value] {
    let mut at = Some(value);
    for f in fields {
        at = at.and_then(|v| v.get_mut(*f));
    }
    at.and_then(Value::as_array_mut).map_or(&mut [], Vec::as_mut_slice)
}
