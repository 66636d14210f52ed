//! What the API said.

use crate::gang::Owner;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::api::DynamicObject;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use std::collections::BTreeMap;
use std::time::Instant;

/// Namespace and name; the namespace of cluster objects is empty.
pub type Id = (String, String);

/// The id of an object.
pub fn id<T: ResourceExt>(object: &T) -> Id {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// All objects of a kind.
#[derive(Debug)]
pub struct Objects<T> {
    items: BTreeMap<Id, T>,
    /// The list that is arriving; none while the watch runs.
    arriving: Option<BTreeMap<Id, T>>,
    ready: bool,
}

impl<T> Default for Objects<T> {
    fn default() -> Objects<T> {
        Objects { items: BTreeMap::new(), arriving: None, ready: false }
    }
}

impl<T: Resource + ResourceExt> Objects<T> {
    /// Takes an event of a watch.
    pub fn event(&mut self, event: Event<T>) {
        match event {
            Event::Init => self.arriving = Some(BTreeMap::new()),
            Event::InitApply(object) => {
                self.arriving.get_or_insert_default().insert(id(&object), bare(object));
            }
            Event::InitDone => {
                // Answers to own writes may be newer than the list.
                let old = std::mem::replace(&mut self.items, self.arriving.take().unwrap_or_default());
                for (id, object) in old {
                    if self.items.get(&id).is_some_and(|now| version(now) < version(&object)) {
                        self.items.insert(id, object);
                    }
                }
                self.ready = true;
            }
            Event::Apply(object) => self.put(object),
            Event::Delete(object) => {
                let gone = id(&object);
                if self.items.get(&gone).is_some_and(|now| now.uid() == object.uid()) {
                    self.items.remove(&gone);
                }
            }
        }
    }

    /// Takes an object, such as the answer to a write, unless a newer one is known.
    pub fn put(&mut self, object: T) {
        let id = id(&object);
        if self.items.get(&id).is_none_or(|now| version(now) <= version(&object) || now.uid() != object.uid()) {
            self.items.insert(id, bare(object));
        }
    }

    /// Removes an object that the API does not have.
    pub fn remove(&mut self, id: &Id) {
        self.items.remove(id);
    }

    /// An object.
    pub fn get(&self, id: &Id) -> Option<&T> {
        self.items.get(id)
    }

    /// All objects, by namespace and name.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.items.values()
    }
}

/// The object without its field managers: they are often half of it, and no decision reads them.
fn bare<T: ResourceExt>(mut object: T) -> T {
    object.meta_mut().managed_fields = None;
    object
}

/// The resourceVersion as a number: since Kubernetes 1.35 versions of a kind are defined to be comparable, and before they were etcd's revisions.
fn version<T: ResourceExt>(object: &T) -> u64 {
    object.resource_version().and_then(|v| v.parse().ok()).unwrap_or(u64::MAX)
}

/// An event of one of the watches.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // one at a time, on its way from the watch to the world
pub enum Change {
    /// Of the pods.
    Pod(Event<Pod>),
    /// Of the claims.
    Claim(Event<ResourceClaim>),
    /// Of the slices.
    Slice(Event<ResourceSlice>),
    /// Of the nodes.
    Node(Event<Node>),
    /// Of the rules that taint devices, where the API has them.
    Rule(Event<DynamicObject>),
    /// A watch failed and starts again: what it said.
    Failed(&'static str, String),
}

/// The size of a gang as its owner's object said.
#[derive(Clone, Debug)]
pub struct Told {
    /// The pods, or why their number is not known.
    pub size: Result<crate::owner::Pods, String>,
    /// When the object was read.
    pub at: Instant,
}

/// All objects that a decision needs.
#[derive(Debug, Default)]
pub struct World {
    /// Pods.
    pub pods: Objects<Pod>,
    /// Claims.
    pub claims: Objects<ResourceClaim>,
    /// Slices.
    pub slices: Objects<ResourceSlice>,
    /// Nodes.
    pub nodes: Objects<Node>,
    /// Rules that taint devices (`DeviceTaintRule`); none where the API lacks them.
    pub rules: Objects<DynamicObject>,
    /// True if the API has rules, so their list must be complete, too.
    pub has_rules: bool,
    /// Sizes by owner.
    pub sizes: BTreeMap<(Owner, Id), Told>,
}

impl World {
    /// Takes an event.
    pub fn change(&mut self, change: Change) {
        match change {
            Change::Pod(e) => self.pods.event(e),
            Change::Claim(e) => self.claims.event(e),
            Change::Slice(e) => self.slices.event(e),
            Change::Node(e) => self.nodes.event(e),
            Change::Rule(e) => self.rules.event(e),
            Change::Failed(..) => {}
        }
    }

    /// True if every kind was listed completely.
    pub fn is_ready(&self) -> bool {
        self.pods.ready
            && self.claims.ready
            && self.slices.ready
            && self.nodes.ready
            && (self.rules.ready || !self.has_rules)
    }

    /// All lists are to be read again before the next decision.
    pub fn forget_lists(&mut self) {
        *self = World { sizes: std::mem::take(&mut self.sizes), ..World::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_kept_has_no_field_managers() {
        let pod = |name: &str| -> Pod {
            let fields = json!([{"manager": "kubelet", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"f:status": {}}}]);
            serde_json::from_value(json!({"metadata": {"name": name, "resourceVersion": "1", "managedFields": fields}}))
                .unwrap()
        };
        let mut pods = Objects::default();
        for event in [Event::Init, Event::InitApply(pod("listed")), Event::InitDone, Event::Apply(pod("watched"))] {
            pods.event(event);
        }
        pods.put(pod("written"));
        assert_eq!(pods.all().count(), 3);
        assert!(pods.all().all(|p| p.metadata.managed_fields.is_none()));
    }
}
