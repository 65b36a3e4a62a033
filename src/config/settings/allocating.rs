//! Allocating.

use super::{ALLOCATE, Setting, switch, text};

pub(in crate::config) static ENABLE_ALLOCATOR: Setting = switch(
    ALLOCATE,
    "enable-allocator",
    "true",
    "Allocate identities of the own cluster in its store",
    "costs a connection and a lease; off where the store is a copy of identities that Kubernetes holds (CRD mode)",
);
pub(in crate::config) static NODE_NAME: Setting = text(
    ALLOCATE,
    "node-name",
    "NAME",
    None,
    "What tells this gateway's references in the store from others': one path segment, no other writer's, the same after a \
     restart",
    "without it the host's name, which is the pod's in Kubernetes",
);
pub(in crate::config) static KVSTORE_LEASE_TTL: Setting = text(
    ALLOCATE,
    "kvstore-lease-ttl",
    "TIME",
    Some("15m"),
    "How long references outlive a gateway that went without a goodbye",
    "Cilium's",
);
pub(in crate::config) static KVSTORE_LOCK_LEASE_TTL: Setting = text(
    ALLOCATE,
    "kvstore-lock-lease-ttl",
    "TIME",
    Some("25s"),
    "How long a lock outlives its holder",
    "Cilium's, where it is no setting",
);
pub(in crate::config) static KVSTORE_PERIODIC_SYNC: Setting = text(
    ALLOCATE,
    "kvstore-periodic-sync",
    "TIME",
    Some("5m"),
    "How often the store is checked for everything in use here, and what is missing written again; jittered",
    "Cilium's",
);
pub(in crate::config) static ALLOCATOR_LIST_TIMEOUT: Setting = text(
    ALLOCATE,
    "allocator-list-timeout",
    "TIME",
    Some("3m"),
    "How long an allocation waits for the first list of the cluster's identities, if its caller does",
    "Cilium's",
);
pub(in crate::config) static RELEASE_ON_SHUTDOWN: Setting = switch(
    ALLOCATE,
    "release-on-shutdown",
    "false",
    "Delete this gateway's references when it stops, rather than leave them to its successor or their lease",
    "a restart within the lease's time changes nothing",
);
pub(in crate::config) static ENABLE_GC: Setting = switch(
    ALLOCATE,
    "enable-gc",
    "false",
    "Collect identities and locks that nobody uses; one replica does at a time",
    "Cilium's operator does it already where there is one",
);
pub(in crate::config) static IDENTITY_GC_INTERVAL: Setting = text(
    ALLOCATE,
    "identity-gc-interval",
    "TIME",
    Some("15m"),
    "Time between two rounds over identities; the second that finds one unused and untouched deletes it",
    "Cilium's",
);
pub(in crate::config) static IDENTITY_GC_RATE_LIMIT: Setting = text(
    ALLOCATE,
    "identity-gc-rate-limit",
    "COUNT",
    Some("2500"),
    "Identities deleted in identity-gc-rate-interval, at most",
    "Cilium's",
);
pub(in crate::config) static IDENTITY_GC_RATE_INTERVAL: Setting = text(
    ALLOCATE,
    "identity-gc-rate-interval",
    "TIME",
    Some("1m"),
    "The time that identity-gc-rate-limit counts for",
    "Cilium's",
);
pub(in crate::config) static LOCK_GC_INTERVAL: Setting = text(
    ALLOCATE,
    "lock-gc-interval",
    "TIME",
    Some("30s"),
    "Time between two rounds over locks; a lock that is the same in both is deleted",
    "longer than a lock's lease: what is older is leaked, or its lease is kept alive by changes of etcd's leader",
);
pub(in crate::config) static ANNOUNCE_CLUSTER: Setting = switch(
    ALLOCATE,
    "announce-cluster",
    "false",
    "Write the own cluster's heartbeat, configuration and canary, which other clusters' readers want",
    "Cilium's operator and its clustermesh-apiserver write them already where there are some",
);
pub(in crate::config) static ANNOUNCE_INTERVAL: Setting = text(
    ALLOCATE,
    "announce-interval",
    "TIME",
    Some("1m"),
    "How often the heartbeat is written, and the other two are checked and written again where they are gone",
    "Cilium's; readers think a heartbeat lost after two minutes",
);
