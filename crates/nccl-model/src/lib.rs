//! NCCL's own decisions per version: cost model, correction tables, AUTO, channels, and what its rings and trees load.
