//! The real NCCL library on simulated hosts, without a GPU.
