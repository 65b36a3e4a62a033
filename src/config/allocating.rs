//! The settings of allocating, and of what else is written to the own cluster's store.

use std::time::Duration;

use super::resolve::{Resolver, Wrong};
use super::{settings as s, times};
use crate::allocator::etcd::{EtcdTerms, LeaseTerms, RateLimits};
use crate::allocator::{GcTimes, Paths};

/// What limits the allocator's calls in `--kvstore-opt`; Cilium's names.
pub(super) const ETCD_LIMITS: [&str; 3] = ["etcd.qps", "etcd.bootstrapQps", "etcd.maxInflight"];

/// Above what any etcd can do.
const MAX_LIMIT: u32 = 1_000_000;

/// Allocating in the own cluster's store, and what else is written there.
#[derive(Clone, Debug)]
pub struct AllocatingConfig {
    /// Whether identities are allocated.
    pub enabled: bool,
    /// What tells this gateway's references from others'.
    pub node: String,
    /// Leases.
    pub terms: EtcdTerms,
    /// Limits on the calls.
    pub limits: RateLimits,
    /// How often the store is checked for everything in use here.
    pub sync: Duration,
    /// Longest wait for the first list of the cluster's identities.
    pub first_list: Duration,
    /// Whether references are deleted when the gateway stops.
    pub release_on_shutdown: bool,
    /// Whether garbage is collected.
    pub collects: bool,
    /// Times of garbage collection, for `meshgate gc` too.
    pub gc: GcTimes,
    /// Whether heartbeat, configuration and canary are written, and how often.
    pub announce: Option<Duration>,
}

/// Cilium's option for each, and 0 for none, as Cilium has it.
fn limits(r: &mut Resolver) -> RateLimits {
    let mut limits = ETCD_LIMITS.map(|_| None);
    let mut wrong = Vec::new();
    for (key, value) in r.pairs(&s::KVSTORE_OPT) {
        let Some(limit) = ETCD_LIMITS.iter().position(|name| name == key) else { continue };
        match value.parse::<u32>() {
            Ok(count) if count <= MAX_LIMIT => limits[limit] = (count > 0).then_some(count),
            Ok(_) | Err(_) => wrong.push(Wrong::new(
                format!("{key}={value} is no such limit"),
                format!("give a whole number from 1 to {MAX_LIMIT}, or 0 for none"),
            )),
        }
    }
    for wrong in wrong {
        r.wrong(&s::KVSTORE_OPT, wrong);
    }
    let [per_second, bootstrap_per_second, in_flight] = limits;
    RateLimits { per_second, in_flight, bootstrap_per_second }
}

/// Reads the group.
pub(super) fn read(r: &mut Resolver) -> Option<AllocatingConfig> {
    let enabled = r.switch(&s::ENABLE_ALLOCATOR);
    let node = node_name(r);
    let references = r.time(&s::KVSTORE_LEASE_TTL, times(5_000, 86_400_000));
    let locks = r.time(&s::KVSTORE_LOCK_LEASE_TTL, times(5_000, 600_000));
    let limits = limits(r);
    let sync = r.time(&s::KVSTORE_PERIODIC_SYNC, times(100, 86_400_000));
    let first_list = r.time(&s::ALLOCATOR_LIST_TIMEOUT, times(1_000, 3_600_000));
    let release_on_shutdown = r.switch(&s::RELEASE_ON_SHUTDOWN);
    let collects = r.switch(&s::ENABLE_GC);
    let identity_interval = r.time(&s::IDENTITY_GC_INTERVAL, times(100, 86_400_000));
    let most = r.number(&s::IDENTITY_GC_RATE_LIMIT, 1..=1_000_000);
    let within = r.time(&s::IDENTITY_GC_RATE_INTERVAL, times(1_000, 3_600_000));
    let lock_interval = r.time(&s::LOCK_GC_INTERVAL, times(100, 3_600_000));
    let announces = r.switch(&s::ANNOUNCE_CLUSTER);
    let announce_interval = r.time(&s::ANNOUNCE_INTERVAL, times(100, 60_000));
    let terms = EtcdTerms {
        references: LeaseTerms { ttl: references?, ..LeaseTerms::REFERENCES },
        locks: LeaseTerms { ttl: locks?, ..LeaseTerms::LOCKS },
        ..EtcdTerms::default()
    };
    let pace = within? / most?;
    Some(AllocatingConfig {
        enabled: enabled?,
        node: node?,
        terms,
        limits,
        sync: sync?,
        first_list: first_list?,
        release_on_shutdown: release_on_shutdown?,
        collects: collects?,
        gc: GcTimes { identity_interval: identity_interval?, lock_interval: lock_interval?, pace },
        announce: announces?.then_some(announce_interval?),
    })
}

fn node_name(r: &mut Resolver) -> Option<String> {
    let given = r.path(&s::NODE_NAME).map(|name| name.to_string_lossy().into_owned());
    let name = match given {
        Some(name) => name,
        None => match std::fs::read_to_string("/proc/sys/kernel/hostname") {
            Ok(name) => name.trim().to_owned(),
            Err(error) => {
                let what = format!("not given, and the host's name cannot be read: {error}");
                r.wrong(&s::NODE_NAME, Wrong::new(what, "give a name that no other gateway and no node has"));
                return None;
            }
        },
    };
    if Paths::is_node(&name) {
        return Some(name);
    }
    r.wrong(&s::NODE_NAME, Wrong::new("not one plain segment of a path", "give a name without `/`"));
    None
}
