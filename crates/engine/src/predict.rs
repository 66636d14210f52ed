//! The predicted bandwidth of many allocations.

use crate::error::EngineError;
use crate::hold::Engine;
use crate::place::check_size;
use predict::Prediction;
use topology::{Allocation, Bytes};

impl Engine {
    /// Predicts the bandwidth of every allocation, in order; one GPU has none, 0. `size` none: the largest size of the model.
    /// O(allocations x hosts of each).
    ///
    /// # Errors
    /// No model; a size that no message has; an allocation without a GPU.
    pub fn predict(&self, size: Option<Bytes>, allocations: &[Allocation]) -> Result<Vec<Prediction>, EngineError> {
        let model = self.model()?;
        let size = size.unwrap_or_else(|| self.default_size());
        check_size(size)?;
        if let Some(i) = allocations.iter().position(Allocation::is_empty) {
            return Err(EngineError::bad(format!("allocation {i} has no GPU")));
        }
        Ok(allocations.iter().map(|a| model.predict_allocation(size, a)).collect())
    }
}
