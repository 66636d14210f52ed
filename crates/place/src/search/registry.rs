//! The searches and contention rules that a program offers, by name.
//!
//! [`Registry::shipped`] holds the searches and rules of linkwise itself. A program that offers more (the published
//! systems, a site's own search) adds them before it reads requests. No code in this crate depends on those names.

use super::{Exact, OracleSearch, SHIPPED_RULES, Search};
use crate::merge::MergeRule;
use crate::read::Bad;
use crate::request::Contention;
use topology::diagnose;

/// Makes a search. `seed` is for searches that draw random numbers.
pub type BuildSearch = fn(seed: u64) -> Box<dyn Search>;

/// One search of a [`Registry`].
#[derive(Clone, Copy, Debug)]
pub struct SearchEntry {
    /// The name in flags and request lines.
    pub name: &'static str,
    /// One line of description.
    pub about: &'static str,
    /// Makes the search.
    pub build: BuildSearch,
}

/// A name that is already taken in a [`Registry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the name `{0}` is registered already")]
pub struct SearchNameTaken(pub &'static str);

/// Searches and contention rules by name, in the order of their registration.
#[derive(Clone, Debug)]
pub struct Registry {
    searches: Vec<SearchEntry>,
    contentions: Vec<Contention>,
}

impl Registry {
    /// The searches and rules that linkwise ships.
    pub fn shipped() -> Registry {
        let entry = |name, about, build| SearchEntry { name, about, build };
        let searches = vec![
            entry("auto", "exact where few enough combinations exist, threshold beyond", |_| {
                Box::new(crate::threshold::Auto)
            }),
            entry("exact", "every count vector with the GPUs that can matter", |_| Box::new(Exact)),
            entry(
                "threshold",
                "the best above thresholds of intra and NIC bandwidth, for clusters of any size",
                |_| Box::new(crate::threshold::Threshold),
            ),
            entry(
                "oracle",
                "exact for any model, also with other jobs: every subset where few GPUs are free, else every split with every GPU set \
                 that can matter",
                |_| Box::new(OracleSearch),
            ),
            entry(
                "topo",
                "the best-connected GPUs by link labels on one host, else the fewest hosts, the freest first",
                |_| Box::new(SHIPPED_RULES[0]),
            ),
            entry("slurm-bestfit", "Slurm's cons_tres: tightest run of nodes, tightest node", |_| {
                Box::new(SHIPPED_RULES[1])
            }),
            entry("slurm-topo", "Slurm's topology/tree: lowest switch that fits, tightest leaf first", |_| {
                Box::new(SHIPPED_RULES[2])
            }),
        ];
        Registry { searches, contentions: vec![Contention::Merge, Contention::Physical] }
    }

    /// Adds a search.
    pub fn add_search(&mut self, entry: SearchEntry) -> Result<(), SearchNameTaken> {
        if self.searches.iter().any(|s| s.name == entry.name) {
            return Err(SearchNameTaken(entry.name));
        }
        self.searches.push(entry);
        Ok(())
    }

    /// Adds a rule by which jobs share bandwidth.
    pub fn add_merge_rule(&mut self, rule: &'static MergeRule) -> Result<(), SearchNameTaken> {
        if self.contentions.iter().any(|c| c.name() == rule.name) {
            return Err(SearchNameTaken(rule.name));
        }
        // Inserted after the shipped merge and before the rules that do not merge.
        self.contentions.insert(1, Contention::MergeBy(rule));
        Ok(())
    }

    /// The searches.
    pub fn searches(&self) -> &[SearchEntry] {
        &self.searches
    }

    /// The names of the searches.
    pub fn search_names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.searches.iter().map(|s| s.name)
    }

    /// The search of a name; the error lists the names and the nearest one.
    pub fn search(&self, name: &str, seed: u64) -> Result<Box<dyn Search>, Bad> {
        self.search_entry(name).map(|e| (e.build)(seed))
    }

    /// The entry of a name; the error lists the names and the nearest one.
    pub fn search_entry(&self, name: &str) -> Result<&SearchEntry, Bad> {
        self.searches.iter().find(|s| s.name == name).ok_or_else(|| {
            let near = diagnose::did_you_mean(name, self.search_names());
            let near = near.map_or(String::new(), |n| format!("; did you mean `{n}`?"));
            let known: Vec<&str> = self.search_names().collect();
            let name: String = name.chars().take(60).collect();
            Bad::new("unknown_search", format!("`{name}` is no search (there are {}){near}", known.join(", ")))
        })
    }

    /// The rules by which jobs share bandwidth.
    pub fn contentions(&self) -> &[Contention] {
        &self.contentions
    }

    /// The contention rule of a name.
    pub fn contention(&self, name: &str) -> Option<Contention> {
        self.contentions.iter().copied().find(|c| c.name() == name)
    }

    /// The names of the contention rules, for messages: "`merge`, `merge-counts` or `physical`".
    pub fn contention_names(&self) -> String {
        let names: Vec<String> = self.contentions.iter().map(|c| format!("`{}`", c.name())).collect();
        match names.split_last() {
            Some((last, [])) => last.clone(),
            Some((last, first)) => format!("{} or {last}", first.join(", ")),
            None => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_registered_once() {
        let mut r = Registry::shipped();
        let extra = SearchEntry { name: "mine", about: "a test's", build: |_| Box::new(Exact) };
        assert_eq!(r.add_search(extra), Ok(()));
        assert_eq!(r.add_search(extra), Err(SearchNameTaken("mine")));
        let auto = SearchEntry { name: "auto", ..extra };
        assert_eq!(r.add_search(auto).unwrap_err().to_string(), "the name `auto` is registered already");
    }

    #[test]
    fn a_wrong_name_is_answered_with_those_there_are() {
        let r = Registry::shipped();
        let e = r.search_entry("exakt").unwrap_err();
        assert_eq!(e.code, "unknown_search");
        assert!(e.message.contains("did you mean `exact`?") && e.message.contains("slurm-topo"), "{}", e.message);
        assert!(r.search_entry("bandpilot").is_err(), "published systems are added by the program");
        assert_eq!(r.contention_names(), "`merge` or `physical`");
        for s in r.searches() {
            assert_eq!((s.build)(0).name(), s.name);
        }
    }
}
