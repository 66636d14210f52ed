//! A model's file: the model, and the cluster on which it was fitted if the network has changed since.
//!
//! A model that learns is saved with the present cluster, but its factors of tiers, rails and NICs are those of the fit.
//! The file keeps that cluster, so that the note about another network lasts until the next fit. Programs that know only
//! models read the same file.

use predict::{Model, ModelKinds};
use serde::Deserialize;
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
    /// The text is not a model file, or a host would have the name of another one.
    pub fn renamed(text: &str, names: &BTreeMap<String, String>, kinds: &ModelKinds) -> Result<String, String> {
        let ModelFile { model, mut fitted_on } = ModelFile::read(text, kinds)?;
        if let Some(c) = &mut fitted_on {
            c.rename_hosts(names);
        }
        let model = model.renamed(names);
        let two = |e| format!("with the new names its cluster would be wrong: {e}");
        [Some(model.cluster()), fitted_on.as_ref()].into_iter().flatten().try_for_each(|c| c.check()).map_err(two)?;
        ModelFile::write(&model, fitted_on.as_ref())
    }
}
