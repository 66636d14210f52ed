//! The names by which pods, claims and the controller know each other.

/// The gate of pods that wait for GPUs.
pub const GATE: &str = "linkwise.dev/place";
/// Label of pods: the gang, unique in the namespace. It overrides all other signs of a gang.
pub const GANG: &str = "linkwise.dev/gang";
/// Label of pods: the number of pods of the gang.
pub const GANG_SIZE: &str = "linkwise.dev/gang-size";
/// Annotation of claims and pods: the job under which linkwise's server holds the GPUs.
pub const JOB: &str = "linkwise.dev/job";
/// Annotation of claims and pods: the term of the leader that wrote last, or the mark of a touch. A touch makes all writes on the way fail.
pub const TERM: &str = "linkwise.dev/term";
/// Annotation of pods: the GPUs, in linkwise's notation: `n0:[3,5]`.
pub const GPUS: &str = "linkwise.dev/gpus";
/// Annotation of pods: the reason of the choice, one line.
pub const REASON: &str = "linkwise.dev/reason";
/// Annotation of pods: when the gate was removed, RFC 3339.
pub const RELEASED: &str = "linkwise.dev/released";
/// Annotation of pods: `restart` (default) or `wait` when a gang has not started completely in time.
pub const ON_DEADLINE: &str = "linkwise.dev/on-deadline";
/// Group of the entry in `reservedFor` that keeps an allocation until the pod is bound.
pub const RESERVED_GROUP: &str = "linkwise.dev";
/// Label of claims of linkwise's templates, of pods to place and of namespaces whose plain pods are gated; its value is `true`.
pub const CLAIM_LABEL: &str = "linkwise.dev/place";
/// Resource of that entry. No such resource exists: the entry only has to be unknown to the controller of claims.
pub const RESERVED_RESOURCE: &str = "placements";
/// Finalizer of allocated claims, which the controller of claims removes with the allocation.
pub const CLAIM_FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// Condition of pods: what is awaited, or where they are; of devices in a claim: why they were chosen.
pub const CONDITION: &str = "linkwise.dev/Placed";
/// Beginning of the jobs of this controller in the server's state.
pub const JOB_PREFIX: &str = "k8s:";
/// Longest name of a job, bytes: the server's limit.
pub const JOB_BYTES_MAX: usize = 128;
/// Name of the controller in events.
pub const REPORTER: &str = "linkwise.dev/controller";
/// Field manager of the controller's writes: `managedFields` names it, and alarms tell it from foreign writers.
pub const FIELD_MANAGER: &str = "linkwise-controller";

/// The parameters of a patch by the controller.
pub fn as_linkwise() -> kube::api::PatchParams {
    kube::api::PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..kube::api::PatchParams::default() }
}
