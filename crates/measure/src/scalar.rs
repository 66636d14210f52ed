//! PyTorch's words in traces: scalar types and names of collectives.

use topology::Collective;

/// Bytes of PyTorch's scalar types, by their names in traces.
pub(crate) fn bytes_of(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "Byte" | "Char" | "Bool" | "Float8_e5m2" | "Float8_e4m3fn" | "Float8_e5m2fnuz" | "Float8_e4m3fnuz" => 1,
        "Short" | "Half" | "BFloat16" | "UInt16" => 2,
        "Int" | "Float" | "UInt32" => 4,
        "Long" | "Double" | "UInt64" | "ComplexFloat" => 8,
        "ComplexDouble" => 16,
        _ => return None,
    })
}

/// The collective of one of PyTorch's names, as its profiler (`_allgather_base`; from 2.15 on `allGatherSingleImpl`) and its flight recorder
/// (`_all_gather_base`) write them. All-to-all is none: its shares may be uneven.
pub(crate) fn collective_of(name: &str) -> Option<Collective> {
    Some(match name {
        "allreduce" | "all_reduce" | "allreduce_coalesced" | "all_reduce_coalesced" => Collective::AllReduce,
        "_allgather_base"
        | "_all_gather_base"
        | "allgather"
        | "all_gather"
        | "allGatherSingleImpl"
        | "all_gather_single_coalesced"
        | "all_gather_into_tensor"
        | "all_gather_into_tensor_coalesced"
        | "allgather_into_tensor_coalesced" => Collective::AllGather,
        "_reduce_scatter_base"
        | "reduce_scatter"
        | "reduceScatterSingleImpl"
        | "reduce_scatter_single_coalesced"
        | "reduce_scatter_tensor"
        | "reduce_scatter_tensor_coalesced" => Collective::ReduceScatter,
        "broadcast" => Collective::Broadcast,
        "reduce" => Collective::Reduce,
        _ => return None,
    })
}
