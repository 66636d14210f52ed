//! Methods by name: a search, the model that guides it, and the model's readings.

use super::registry::searches;
use console::Failure;
use measure::design::DesignKind;
use papers::models;

/// The guide of a search.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Guide {
    /// The search reads only link labels.
    Nothing,
    /// The truth itself.
    Truth,
    /// A fitted model.
    Model {
        /// `gp`, `bound`, `transformer`, ...
        kind: String,
        /// Number of multi-host readings that it learns from.
        samples: usize,
        /// Sampling design, by [`DesignKind::name`].
        design: &'static str,
    },
}

/// One method of an evaluation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodSpec {
    /// The name in tables.
    pub name: String,
    /// Name of the search.
    pub search: String,
    /// Its guide.
    pub guide: Guide,
    /// Candidates measured before the choice is made.
    pub probes: usize,
}

/// Short names: name, search, guide.
const ALIASES: [(&str, &str, &str); 17] = [
    ("even", "even", "-"),
    ("random", "random", "-"),
    ("default", "default", "-"),
    ("topo", "topo", "-"),
    ("topo-greedy", "topo-greedy", "-"),
    ("slurm-bestfit", "slurm-bestfit", "-"),
    ("slurm-topo", "slurm-topo", "-"),
    ("bw-greedy", "bw-greedy", "truth"),
    ("cascore", "cascore", "truth"),
    ("eha", "eha", "transformer"),
    ("pts", "pts", "transformer"),
    ("bandpilot", "bandpilot", "transformer"),
    ("bandpilot-v4", "bandpilot-v4", "transformer"),
    ("ideal-bandpilot", "bandpilot", "truth"),
    ("litegd", "litegd", "transformer-litegd"),
    ("upper-litegd", "litegd", "truth"),
    ("bound", "auto", "bound"),
];

/// Multi-host readings that the papers' models learn from (BandPilot, section 5.3).
pub const PAPER_SAMPLES: usize = 250;

/// All methods: the papers', the usual schedulers', and linkwise's.
pub const ALL: &str = "even,random,default,topo,slurm-topo,bw-greedy,bandpilot,ideal-bandpilot,litegd,bound,gp,gp+3";
/// The fast methods, without a network to train.
pub const QUICK: &str = "even,random,default,topo,slurm-topo,bw-greedy,ideal-bandpilot,bound,gp,gp+3";

/// Models of the papers learn from random readings; linkwise's models learn from the requested design and number.
fn guide(kind: &str, samples: Option<usize>, design: Option<DesignKind>, ours: (usize, DesignKind)) -> Guide {
    match kind {
        "-" => Guide::Nothing,
        "truth" => Guide::Truth,
        _ => {
            let papers = kind.starts_with("transformer") || kind == "linear";
            let (s, d) = if papers { (PAPER_SAMPLES, DesignKind::Random) } else { ours };
            Guide::Model { kind: kind.to_owned(), samples: samples.unwrap_or(s), design: design.unwrap_or(d).name() }
        }
    }
}

/// A design by its name.
pub fn design_of(name: &str) -> Option<DesignKind> {
    [DesignKind::Random, DesignKind::Stratified, DesignKind::WorstCase, DesignKind::Adaptive]
        .into_iter()
        .find(|d| d.name() == name)
}

/// Reads `NAME` or `SEARCH/MODEL`, each optionally with `@SAMPLES`, `:DESIGN` and `+PROBES`: `topo`, `gp+3`,
/// `exact/gp@50:random`, `bandpilot/transformer@500`.
pub fn parse(text: &str, ours: (usize, DesignKind)) -> Result<MethodSpec, Failure> {
    let bad = |why: String| {
        Failure::input(format!(
            "method `{text}`: {why}; write NAME or SEARCH/MODEL, then optionally @SAMPLES, :DESIGN, +PROBES, \
             for example gp+3, bandpilot or exact/gp@50:random"
        ))
    };
    let (rest, probes) = match text.split_once('+') {
        Some((r, p)) => (r, p.parse::<usize>().map_err(|_| bad(format!("`{p}` is not a number of probes")))?),
        None => (text, 0),
    };
    let (rest, design) = match rest.split_once(':') {
        Some((r, d)) => (r, Some(design_of(d).ok_or_else(|| bad(format!("there is no design `{d}`")))?)),
        None => (rest, None),
    };
    let (base, samples) = match rest.split_once('@') {
        Some((r, s)) => (r, Some(s.parse::<usize>().map_err(|_| bad(format!("`{s}` is not a number of samples")))?)),
        None => (rest, None),
    };
    let (search, kind) = match (base.split_once('/'), ALIASES.iter().find(|a| a.0 == base)) {
        (Some((s, k)), _) => (s, k),
        (None, Some(a)) => (a.1, a.2),
        (None, None) if base == "gp" => ("auto", "gp"),
        (None, None) if searches().search_entry(base).is_ok() => (base, "gp"),
        (None, None) => return Err(bad(format!("there is no method `{base}`"))),
    };
    if searches().search_entry(search).is_err() {
        let known: Vec<&str> = searches().search_names().collect();
        return Err(bad(format!("there is no search `{search}` (known: {})", known.join(", "))));
    }
    let guide = guide(kind, samples, design, ours);
    if let Guide::Model { kind, .. } = &guide
        && models().by_name(kind).is_none()
    {
        let known = models().names();
        return Err(bad(format!("there is no model `{kind}` (known: truth, {known})")));
    }
    Ok(MethodSpec { name: text.to_owned(), search: search.to_owned(), guide, probes })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: (usize, DesignKind) = (100, DesignKind::Stratified);

    #[test]
    fn a_name_gives_the_search_the_guide_and_the_probes() {
        let m = parse("exact/gp@50:random+3", OURS).unwrap();
        assert_eq!((m.search.as_str(), m.probes), ("exact", 3));
        assert_eq!(m.guide, Guide::Model { kind: "gp".into(), samples: 50, design: "random" });
        assert_eq!(parse("gp", OURS).unwrap().guide, guide("gp", None, None, OURS));
        assert_eq!(parse("exact/transformer", OURS).unwrap().guide, guide("transformer", Some(250), None, OURS));
    }

    #[test]
    fn an_invalid_name_is_refused_with_the_valid_form() {
        for text in ["", "gp+x", "gp@", "exact/oracle9", "nowhere/gp", "gp:sideways"] {
            let e = parse(text, OURS).unwrap_err().to_string();
            assert!(e.contains("SEARCH/MODEL"), "{e}");
        }
    }
}
