//! A fitted model as a file: JSON, versioned, checked when loaded.

use crate::committee::{Committee, SavedCommittee};
use crate::intra::IntraTables;
use crate::kind::{FORM_BOUND, FORM_GP, ModelKinds};
use crate::model::{Correction, Model, SizeTables};
use crate::names::{Learned, Names};
use crate::nccl::NcclNetwork;
use crate::rates::LearnedRates;
use crate::shares::HostShareTable;
use crate::sizes::Ladder;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use topology::{Bytes, Cluster, Collective};

/// Identifies the file format.
const FORMAT: &str = "linkwise-model";
/// Version of the layout and of the features. A change of either makes old files unreadable on purpose.
const VERSION: u32 = 4;
/// Maximum size of a file.
pub const FILE_BYTES_MAX: usize = 64 << 20;
/// Maximum number of sizes in one model.
pub const SIZES_MAX: usize = 64;

#[derive(Serialize, Deserialize)]
struct Saved {
    format: String,
    version: u32,
    cluster: Cluster,
    /// The names of the hosts and types that the correction covers.
    names: Learned,
    collective: Collective,
    repeat_noise: f64,
    tables: Vec<SavedTables>,
    /// Learned sharing constants. Files of older versions have none and use the shipped ones.
    #[serde(default)]
    share: Option<fabric::constants::ShareConstants>,
    /// Learned corrections of the cluster's rates.
    #[serde(default, skip_serializing_if = "LearnedRates::is_empty")]
    rates: LearnedRates,
    /// One entry: the form and its text, which the crate of that form wrote.
    correction: BTreeMap<String, Box<RawValue>>,
    /// NCCL's decisions as physics. Files of older versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nccl: Option<NcclNetwork>,
}

#[derive(Serialize, Deserialize)]
struct SavedTables {
    size: Bytes,
    intra_sd: f64,
    intra: IntraTables,
}

#[derive(Serialize, Deserialize)]
struct SavedOffset {
    ln_factor: f64,
    sd: f64,
}

/// The fields that identify a file, read before the rest.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    format: String,
    #[serde(default)]
    version: u32,
}

impl Model {
    /// The model as JSON text.
    pub fn save(&self) -> Result<String, String> {
        let saved = Saved {
            format: FORMAT.into(),
            version: VERSION,
            cluster: self.cluster.clone(),
            names: self.names.learned().clone(),
            collective: self.collective,
            repeat_noise: self.repeat_noise,
            rates: self.rates.clone(),
            share: Some(self.fabric.on(&self.cluster).constants().share),
            tables: self
                .tables
                .iter()
                .map(|t| SavedTables { size: t.size, intra_sd: t.intra_sd, intra: t.intra.clone() })
                .collect(),
            correction: BTreeMap::from([self.save_correction()?]),
            nccl: self.nccl,
        };
        serde_json::to_string(&saved).map_err(|e| e.to_string())
    }

    /// The form of the correction and its text.
    fn save_correction(&self) -> Result<(String, Box<RawValue>), String> {
        let raw = |text: Result<String, String>| RawValue::from_string(text?).map_err(|e| e.to_string());
        let json = |e: serde_json::Error| e.to_string();
        Ok(match &self.correction {
            Correction::Offset { ln_factor, sd } => {
                let saved = SavedOffset { ln_factor: *ln_factor, sd: *sd };
                (FORM_BOUND.to_owned(), raw(serde_json::to_string(&saved).map_err(json))?)
            }
            Correction::Gp(gp) => (FORM_GP.to_owned(), raw(serde_json::to_string(&gp.save()).map_err(json))?),
            Correction::Learned(l) => (l.form().to_owned(), raw(l.save())?),
        })
    }

    /// Loads a model from JSON text. `kinds` loads the forms of learned models. The error message describes the invalid
    /// field and its position.
    pub fn load(text: &str, kinds: &ModelKinds) -> Result<Model, String> {
        if text.len() > FILE_BYTES_MAX {
            return Err(format!("it is larger than {FILE_BYTES_MAX} bytes"));
        }
        let head: Head = serde_json::from_str(text).map_err(|e| format!("it is not a model file: {e}"))?;
        if head.format != FORMAT {
            return Err("it is not a model file of linkwise; make one with `linkwise fit`".into());
        }
        if head.version != VERSION {
            return Err(format!(
                "it was written by another version of linkwise (layout {}, this one reads {VERSION}); fit again",
                head.version
            ));
        }
        let s: Saved = serde_json::from_str(text).map_err(|e| format!("it is damaged: {e}"))?;
        s.cluster.check().map_err(|e| format!("its cluster is damaged: {e}"))?;
        if s.tables.is_empty() || s.tables.len() > SIZES_MAX {
            return Err(format!("it holds {} sizes; 1 to {SIZES_MAX} are supported", s.tables.len()));
        }
        if !sd_fine(s.repeat_noise) || s.tables.iter().any(|t| !sd_fine(t.intra_sd) || t.size.0 == 0) {
            return Err("a deviation or a size is out of range".into());
        }
        if s.nccl.is_some_and(|n| !n.is_modelled()) {
            return Err("it rests on an NCCL release that is not modelled".into());
        }
        let mut constants = fabric::Constants::default();
        if let Some(share) = s.share {
            if !crate::calibrate::plausible(share) {
                return Err("a constant of its physics is out of range".into());
            }
            constants.share = share;
        }
        let physics = fabric::Fabric::with_constants(&s.cluster, constants).tables();
        s.rates.check()?;
        let site = s.rates.on(&s.cluster);
        s.names.check()?;
        let names = Names::of(s.names, &s.cluster);
        let mut tables = Vec::new();
        for t in s.tables {
            t.intra.check(&s.cluster)?;
            let parts = HostShareTable::new(&site.cluster, &t.intra, &physics);
            tables.push(SizeTables { size: t.size, intra: t.intra, parts, intra_sd: t.intra_sd });
        }
        let correction = load_correction(&s.correction, names.width(), &s.cluster, kinds)?;
        Ok(Model {
            cluster: s.cluster,
            rates: s.rates,
            site,
            collective: s.collective,
            tables,
            ladder: Ladder::default(),
            names,
            fabric: physics,
            correction,
            repeat_noise: s.repeat_noise,
            nccl: s.nccl,
        })
    }
}

/// Loads the correction of a file; a file must have exactly one.
fn load_correction(
    saved: &BTreeMap<String, Box<RawValue>>,
    width: usize,
    cluster: &Cluster,
    kinds: &ModelKinds,
) -> Result<Correction, String> {
    let Some((form, raw)) = saved.iter().next().filter(|_| saved.len() == 1) else {
        return Err(format!("it is damaged: it holds {} corrections, 1 was expected", saved.len()));
    };
    let damaged = |e: serde_json::Error| format!("it is damaged: {e} of its `{form}`");
    match form.as_str() {
        FORM_BOUND => {
            let SavedOffset { ln_factor, sd } = serde_json::from_str(raw.get()).map_err(damaged)?;
            if ln_factor.abs() < 10.0 && sd_fine(sd) {
                Ok(Correction::Offset { ln_factor, sd })
            } else {
                Err("its offset is out of range".into())
            }
        }
        FORM_GP => {
            let saved: SavedCommittee = serde_json::from_str(raw.get()).map_err(damaged)?;
            let committee = Committee::load(saved, width).map_err(|e| format!("its process: {e}"))?;
            Ok(Correction::Gp(Box::new(committee)))
        }
        _ => {
            let form: String = form.chars().take(60).collect();
            let load = kinds.form(&form).ok_or_else(|| {
                format!("its correction is of the form `{form}`, which this program does not read; fit again")
            })?;
            load(raw.get(), cluster).map(Correction::Learned)
        }
    }
}

fn sd_fine(v: f64) -> bool {
    v.is_finite() && (0.0..=10.0).contains(&v)
}
