//! Kinds of models by name: shipped kinds, and kinds that a program registers.

use crate::learned::{Learner, LoadLearned};

/// The kind of correction on top of the intra tables.
#[derive(Clone, Copy, Debug)]
pub enum Kind<'l> {
    /// Physics with one fitted offset.
    Bound,
    /// Gaussian processes on the log-ratio to the physics.
    Gp,
    /// NCCL's own decisions, without learning; needs no measurements.
    Nccl,
    /// A model that a learner of another crate fits.
    Learned(&'l dyn Learner),
}

impl Kind<'_> {
    /// The name on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Bound => "bound",
            Kind::Gp => "gp",
            Kind::Nccl => "nccl",
            Kind::Learned(l) => l.name(),
        }
    }

    /// One-line description.
    pub fn about(&self) -> &'static str {
        match self {
            Kind::Bound => "Physics with one fitted offset",
            Kind::Gp => "Gaussian processes on the log-ratio to the physics",
            Kind::Nccl => "NCCL's own decisions, nothing learned between hosts: a cold start from the cluster alone",
            Kind::Learned(l) => l.about(),
        }
    }
}

/// Kinds are equal if their names are equal.
impl PartialEq for Kind<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Kind<'_> {}

/// The name is already registered in [`ModelKinds`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the name `{0}` is registered already")]
pub struct KindNameTaken(pub &'static str);

/// The kinds of models that a program fits, and the forms of model files that it reads.
#[derive(Clone, Debug)]
pub struct ModelKinds {
    kinds: Vec<Kind<'static>>,
    forms: Vec<(&'static str, LoadLearned)>,
}

/// File forms of this crate.
pub(crate) const FORM_BOUND: &str = "bound";
pub(crate) const FORM_GP: &str = "gp";

impl ModelKinds {
    /// The shipped kinds.
    pub fn shipped() -> ModelKinds {
        ModelKinds { kinds: vec![Kind::Bound, Kind::Gp, Kind::Nccl], forms: Vec::new() }
    }

    /// Adds a kind of model.
    pub fn add(&mut self, learner: &'static dyn Learner) -> Result<(), KindNameTaken> {
        if self.by_name(learner.name()).is_some() {
            return Err(KindNameTaken(learner.name()));
        }
        self.kinds.push(Kind::Learned(learner));
        Ok(())
    }

    /// Adds a form of model files.
    pub fn add_form(&mut self, form: &'static str, load: LoadLearned) -> Result<(), KindNameTaken> {
        if [FORM_BOUND, FORM_GP].contains(&form) || self.form(form).is_some() {
            return Err(KindNameTaken(form));
        }
        self.forms.push((form, load));
        Ok(())
    }

    /// Every kind, in order of registration.
    pub fn all(&self) -> &[Kind<'static>] {
        &self.kinds
    }

    /// The kind with this name.
    pub fn by_name(&self, name: &str) -> Option<Kind<'static>> {
        self.kinds.iter().copied().find(|k| k.name() == name)
    }

    /// The names of all kinds, for messages: "bound, gp, nccl".
    pub fn names(&self) -> String {
        let names: Vec<&str> = self.kinds.iter().map(Kind::name).collect();
        names.join(", ")
    }

    /// The loader of a file form.
    pub(crate) fn form(&self, name: &str) -> Option<LoadLearned> {
        self.forms.iter().find(|f| f.0 == name).map(|f| f.1)
    }
}
