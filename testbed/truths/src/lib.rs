//! Ground truths of other functional forms than linkwise's own physics. Imports nothing from `fabric` or `predict`.
