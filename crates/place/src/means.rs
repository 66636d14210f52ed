//! The model's predictions for one request.

use predict::{BandwidthModel, Candidates, Evaluator, HostShare};
use std::cell::RefCell;
use std::rc::Rc;
use topology::Bytes;

/// Predicts candidates of one size.
pub(crate) trait Means {
    /// The mean of one candidate, GB/s.
    fn one(&self, parts: &[HostShare]) -> f64;
    /// The mean of every candidate, GB/s, in order; `out` is overwritten.
    fn all(&self, candidates: &Candidates, out: &mut Vec<f64>);
}

/// The predictions of a model. Keeps what the model computed for the parts of candidates: batches of one request have
/// most parts in common.
pub(crate) fn of<'a>(model: &'a dyn BandwidthModel, size: Bytes) -> Rc<dyn Means + 'a> {
    let bounded = model.upper_bound_exact_hosts(f64::INFINITY, f64::INFINITY, 2, 2).is_some();
    Rc::new(OfModel { model, size, one_by_one: bounded.then(|| RefCell::new(model.evaluator(size))) })
}

struct OfModel<'a> {
    model: &'a dyn BandwidthModel,
    size: Bytes,
    /// None for models that predict candidates by the batch, such as networks: those without an upper bound.
    one_by_one: Option<RefCell<Evaluator<'a>>>,
}

impl Means for OfModel<'_> {
    fn one(&self, parts: &[HostShare]) -> f64 {
        match &self.one_by_one {
            Some(mean) => (mean.borrow_mut())(parts),
            None => self.model.mean(self.size, parts),
        }
    }

    fn all(&self, candidates: &Candidates, out: &mut Vec<f64>) {
        match &self.one_by_one {
            Some(mean) => {
                let mut mean = mean.borrow_mut();
                out.clear();
                out.extend(candidates.iter().map(&mut *mean));
            }
            None => self.model.means(self.size, candidates, out),
        }
    }
}
