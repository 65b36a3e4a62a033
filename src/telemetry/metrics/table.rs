//! Every metric that a scrape can show, in one table: the constructors read it, `docs/metrics.md` is made from it.

use std::fmt::Write as _;

use prometheus::{HistogramOpts, Opts};

/// What a metric is to Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only rises.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts of observations, by upper bound.
    Histogram,
}

impl Kind {
    /// As in a scrape's `# TYPE` line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// Full name.
    pub name: &'static str,
    /// What it is to Prometheus.
    pub kind: Kind,
    /// Label names, sorted.
    pub labels: &'static [&'static str],
    /// One sentence, with the unit where there is one.
    pub help: &'static str,
}

/// The label that names a cluster; its series go when the cluster goes.
pub(super) const CLUSTER: &str = "cluster";

pub(super) const PEERS: Spec = Spec {
    name: "meshgate_peers",
    kind: Kind::Gauge,
    labels: &["state"],
    help: "Configured peer clusters by state; the sum over the states is the number of peer files.",
};
pub(super) const IDENTITIES: Spec = Spec {
    name: "meshgate_identities",
    kind: Kind::Gauge,
    labels: &[CLUSTER],
    help: "Identities held of each cluster, the gateway's own included.",
};
pub(super) const EVENTS: Spec = Spec {
    name: "meshgate_events_total",
    kind: Kind::Counter,
    labels: &[CLUSTER, "kind"],
    help: "Accepted store events and list entries: upsert, delete, unchanged (an upsert that said nothing new).",
};
pub(super) const REJECTS: Spec = Spec {
    name: "meshgate_rejects_total",
    kind: Kind::Counter,
    labels: &[CLUSTER, "reason"],
    help: "Store entries that were refused, by the check that refused them.",
};
pub(super) const FAILURES: Spec = Spec {
    name: "meshgate_failures_total",
    kind: Kind::Counter,
    labels: &[CLUSTER, "reason"],
    help: "Failed attempts to reach or to go on reading a cluster's store, by reason.",
};
pub(super) const SYNC_DURATION: Spec = Spec {
    name: "meshgate_sync_duration_seconds",
    kind: Kind::Histogram,
    labels: &[CLUSTER, "kind"],
    help: "Seconds from the start of a list to its publication: the first one of a cluster, or again.",
};
pub(super) const AUDITS: Spec = Spec {
    name: "meshgate_audits_total",
    kind: Kind::Counter,
    labels: &[CLUSTER, "result"],
    help: "Comparisons of what is held with the store's keys: clean, or repaired by a list because they differed.",
};
pub(super) const READY: Spec = Spec {
    name: "meshgate_cluster_ready",
    kind: Kind::Gauge,
    labels: &[CLUSTER],
    help: "Whether the cluster is complete, connected and its store alive (1) or not (0).",
};
pub(super) const REVISION: Spec = Spec {
    name: "meshgate_cluster_revision",
    kind: Kind::Gauge,
    labels: &[CLUSTER],
    help: "Highest revision of the cluster's store that is applied.",
};
pub(super) const CHECKSUM: Spec = Spec {
    name: "meshgate_cluster_checksum",
    kind: Kind::Gauge,
    labels: &[CLUSTER],
    help: "Low 48 bits of the cluster's checksum, which a sample can hold exactly: equal at every gateway that agrees.",
};
pub(super) const LAST_EVENT: Spec = Spec {
    name: "meshgate_cluster_last_event_timestamp_seconds",
    kind: Kind::Gauge,
    labels: &[CLUSTER],
    help: "Unix time of the last change that came from the cluster's store; 0 before the first.",
};
pub(super) const LAST_HEARTBEAT: Spec = Spec {
    name: "meshgate_cluster_last_heartbeat_timestamp_seconds",
    kind: Kind::Gauge,
    labels: &[CLUSTER],
    help: "Unix time at which the store's heartbeat was seen to move last; 0 before the first.",
};
pub(super) const CERTIFICATE_EXPIRY: Spec = Spec {
    name: "meshgate_cluster_certificate_expiry_timestamp_seconds",
    kind: Kind::Gauge,
    labels: &[CLUSTER],
    help: "Unix time at which the certificate expires that the connection was made with; 0 without one.",
};
pub(super) const STALE: Spec = Spec {
    name: "meshgate_cluster_stale",
    kind: Kind::Gauge,
    labels: &[CLUSTER],
    help: "Whether what is shown of the cluster is from before the gateway's start, its store not reached since (1), or not (0).",
};
pub(super) const UNAVAILABLE_SINCE: Spec = Spec {
    name: "meshgate_cluster_unavailable_since_timestamp_seconds",
    kind: Kind::Gauge,
    labels: &[CLUSTER],
    help: "Unix time since which the cluster is out of step, whatever the cause; 0 while it is in step.",
};
pub(super) const REVOCATIONS: Spec = Spec {
    name: "meshgate_revocations_total",
    kind: Kind::Counter,
    labels: &[CLUSTER],
    help: "How often a cluster's entries were withdrawn because it was out of step for longer than peer-ttl.",
};
pub(super) const PICTURES: Spec = Spec {
    name: "meshgate_pictures_total",
    kind: Kind::Counter,
    labels: &[CLUSTER, "result"],
    help: "Pictures on disk: kept, restored (at start), damaged (set aside), refused (whole, but not to be shown), failed.",
};
pub(super) const SUBSCRIBERS: Spec =
    Spec { name: "meshgate_subscribers", kind: Kind::Gauge, labels: &[], help: "Subscription streams that are open." };
pub(super) const SUBSCRIPTION_ENDS: Spec = Spec {
    name: "meshgate_subscription_ends_total",
    kind: Kind::Counter,
    labels: &["reason"],
    help: "Subscription streams that ended, by reason.",
};
pub(super) const FRAMES: Spec = Spec {
    name: "meshgate_frames_total",
    kind: Kind::Counter,
    labels: &["kind"],
    help: "Frames handed to subscription streams, by kind.",
};
pub(super) const CLIENT_REFUSALS: Spec = Spec {
    name: "meshgate_client_refusals_total",
    kind: Kind::Counter,
    labels: &["reason"],
    help: "Connections and requests of the API's clients that were refused, by reason.",
};
pub(super) const RELOAD_FAILING: Spec = Spec {
    name: "meshgate_reload_failing",
    kind: Kind::Gauge,
    labels: &["file"],
    help: "1 while a file that is read again as it changes (certificates, access-policy) cannot be used; the last good one holds.",
};
pub(super) const HISTORY_VERSIONS: Spec = Spec {
    name: "meshgate_history_versions",
    kind: Kind::Gauge,
    labels: &[],
    help: "Replaced versions of clusters that are kept for subscribers that come back.",
};
pub(super) const HISTORY_BYTES: Spec = Spec {
    name: "meshgate_history_bytes",
    kind: Kind::Gauge,
    labels: &[],
    help: "Bytes that these versions keep beside the current ones; an estimate from the number of changes.",
};
pub(super) const HISTORY_EVICTED: Spec = Spec {
    name: "meshgate_history_evicted_total",
    kind: Kind::Counter,
    labels: &[],
    help: "Versions that were dropped before their age, because resume-history-memory was used up.",
};
pub(super) const ENCODED_BYTES: Spec = Spec {
    name: "meshgate_encoded_bytes",
    kind: Kind::Gauge,
    labels: &[],
    help: "Bytes of encoded frames that are kept because several subscribers need the same.",
};
pub(super) const ACKNOWLEDGED: Spec = Spec {
    name: "meshgate_acknowledged",
    kind: Kind::Gauge,
    labels: &[CLUSTER, "state"],
    help: "Subscribers that acknowledge, by whether what they have applied of a cluster is what the gateway has: current, behind.",
};
pub(super) const ACKNOWLEDGEMENTS: Spec = Spec {
    name: "meshgate_acknowledgements_total",
    kind: Kind::Counter,
    labels: &[],
    help: "Acknowledgements of subscribers.",
};
pub(super) const ACKNOWLEDGED_REJECTS: Spec = Spec {
    name: "meshgate_acknowledged_rejects_total",
    kind: Kind::Counter,
    labels: &[],
    help: "Identities that subscribers reported as not applied.",
};
pub(super) const ALLOCATIONS: Spec = Spec {
    name: "meshgate_allocator_duration_seconds",
    kind: Kind::Histogram,
    labels: &["outcome"],
    help: "Seconds an allocation took, by outcome: new, known, local, cancelled, or why there is no number.",
};
pub(super) const ATTEMPTS: Spec = Spec {
    name: "meshgate_allocator_attempts_total",
    kind: Kind::Counter,
    labels: &[],
    help: "Attempts at allocations that asked the store.",
};
pub(super) const PATHS: Spec = Spec {
    name: "meshgate_allocator_path_total",
    kind: Kind::Counter,
    labels: &["path"],
    help: "Attempts by path: fast (one transaction), or lock (the fall-back that Cilium's agents always take).",
};
pub(super) const NUMBERS: Spec = Spec {
    name: "meshgate_allocator_numbers",
    kind: Kind::Gauge,
    labels: &["state"],
    help: "Numbers of the cluster's range: free, leased (handed out, not yet seen in the store), used by anybody.",
};
pub(super) const LOCAL_KEYS: Spec = Spec {
    name: "meshgate_allocator_local_keys",
    kind: Kind::Gauge,
    labels: &[],
    help: "Label sets in use through this gateway.",
};
pub(super) const LOCK_WAIT: Spec = Spec {
    name: "meshgate_allocator_lock_wait_seconds",
    kind: Kind::Histogram,
    labels: &[],
    help: "Seconds waited for the lock on a label set.",
};
pub(super) const REPAIRS: Spec = Spec {
    name: "meshgate_allocator_repairs_total",
    kind: Kind::Counter,
    labels: &["event"],
    help: "Identities in use here that were missing and re-created, and conflicts: numbers with other labels in the store.",
};
pub(super) const LEASES: Spec = Spec {
    name: "meshgate_allocator_leases",
    kind: Kind::Gauge,
    labels: &[],
    help: "Leases that references of this gateway hang on.",
};
pub(super) const LEASED_KEYS: Spec = Spec {
    name: "meshgate_allocator_leased_keys",
    kind: Kind::Gauge,
    labels: &[],
    help: "References of this gateway that hang on them.",
};
pub(super) const LOST_LEASES: Spec = Spec {
    name: "meshgate_allocator_lost_leases_total",
    kind: Kind::Counter,
    labels: &[],
    help: "Leases that ended although they were wanted, and were replaced.",
};
pub(super) const GC_LEADER: Spec = Spec {
    name: "meshgate_allocator_gc_leader",
    kind: Kind::Gauge,
    labels: &[],
    help: "1 where this replica collects garbage.",
};
pub(super) const GC_ALIVE: Spec = Spec {
    name: "meshgate_allocator_gc_alive",
    kind: Kind::Gauge,
    labels: &["kind"],
    help: "Identities and locks that the last round of garbage collection left; of the replica that collects.",
};
pub(super) const GC_DELETED: Spec = Spec {
    name: "meshgate_allocator_gc_deleted_total",
    kind: Kind::Counter,
    labels: &["kind"],
    help: "Identities and locks that garbage collection deleted.",
};
pub(super) const GC_DURATION: Spec = Spec {
    name: "meshgate_allocator_gc_duration_seconds",
    kind: Kind::Histogram,
    labels: &["kind"],
    help: "Seconds a round of garbage collection took.",
};
pub(super) const OLDEST_LOCK: Spec = Spec {
    name: "meshgate_allocator_oldest_lock_seconds",
    kind: Kind::Gauge,
    labels: &[],
    help: "How long the oldest lock that the last round of garbage collection met had been there unchanged; two rounds remove it, so minutes mean that it cannot.",
};
pub(super) const BUILD_INFO: Spec = Spec {
    name: "meshgate_build_info",
    kind: Kind::Gauge,
    labels: &["version"],
    help: "Always 1; the label says what runs.",
};

/// What the prometheus crate's process collector adds; names and help texts are that crate's.
const PROCESS: [Spec; 7] = [
    process("process_cpu_seconds_total", Kind::Counter, "Total user and system CPU time spent in seconds."),
    process("process_max_fds", Kind::Gauge, "Maximum number of open file descriptors."),
    process("process_open_fds", Kind::Gauge, "Number of open file descriptors."),
    process("process_resident_memory_bytes", Kind::Gauge, "Resident memory size in bytes."),
    process("process_start_time_seconds", Kind::Gauge, "Start time of the process since unix epoch in seconds."),
    process("process_threads", Kind::Gauge, "Number of OS threads in the process."),
    process("process_virtual_memory_bytes", Kind::Gauge, "Virtual memory size in bytes."),
];

const fn process(name: &'static str, kind: Kind, help: &'static str) -> Spec {
    Spec { name, kind, labels: &[], help }
}

const OWN: [Spec; 45] = [
    BUILD_INFO,
    PEERS,
    IDENTITIES,
    EVENTS,
    REJECTS,
    FAILURES,
    SYNC_DURATION,
    AUDITS,
    READY,
    REVISION,
    CHECKSUM,
    LAST_EVENT,
    LAST_HEARTBEAT,
    CERTIFICATE_EXPIRY,
    STALE,
    UNAVAILABLE_SINCE,
    REVOCATIONS,
    PICTURES,
    SUBSCRIBERS,
    SUBSCRIPTION_ENDS,
    FRAMES,
    CLIENT_REFUSALS,
    RELOAD_FAILING,
    HISTORY_VERSIONS,
    HISTORY_BYTES,
    HISTORY_EVICTED,
    ENCODED_BYTES,
    ACKNOWLEDGED,
    ACKNOWLEDGEMENTS,
    ACKNOWLEDGED_REJECTS,
    ALLOCATIONS,
    ATTEMPTS,
    PATHS,
    NUMBERS,
    LOCAL_KEYS,
    LOCK_WAIT,
    REPAIRS,
    LEASES,
    LEASED_KEYS,
    LOST_LEASES,
    GC_LEADER,
    GC_ALIVE,
    GC_DELETED,
    GC_DURATION,
    OLDEST_LOCK,
];

/// All rows, ours first.
pub fn rows() -> impl Iterator<Item = Spec> {
    OWN.into_iter().chain(PROCESS)
}

/// The table as the page `docs/metrics.md`.
#[must_use]
pub fn markdown() -> String {
    let mut page = String::from(
        "# Metrics\n\n\
         Served at `/metrics` of the HTTP port. Made from the table in `src/telemetry/metrics/table.rs`; a test fails if\n\
         this page, the table and a scrape differ (`MESHGATE_BLESS=1 cargo nextest run metrics_page` rewrites the page).\n\
         Series with a `cluster` label go when the cluster's file is removed, and begin at zero when it returns.\n\n\
         | name | type | labels | meaning |\n| --- | --- | --- | --- |\n",
    );
    for row in rows() {
        let labels = row.labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
        // Writing to a String cannot fail.
        let _ = writeln!(page, "| `{}` | {} | {labels} | {} |", row.name, row.kind.name(), row.help);
    }
    page
}

impl Spec {
    /// The prometheus crate's options for this row.
    pub(super) fn opts(&self) -> Opts {
        Opts::new(self.name, self.help)
    }

    /// The same for a histogram.
    pub(super) fn histogram_opts(&self, buckets: &[f64]) -> HistogramOpts {
        HistogramOpts::new(self.name, self.help).buckets(buckets.to_vec())
    }

    /// The options for a row that has one series set per cluster.
    pub(super) fn opts_of(&self, cluster: &str) -> Opts {
        self.opts().const_label(CLUSTER, cluster)
    }

    /// The same for a histogram.
    pub(super) fn histogram_opts_of(&self, cluster: &str, buckets: &[f64]) -> HistogramOpts {
        HistogramOpts::new(self.name, self.help).const_label(CLUSTER, cluster).buckets(buckets.to_vec())
    }

    /// The labels that vary within one cluster's series.
    pub(super) fn labels_within_cluster(&self) -> Vec<&'static str> {
        self.labels.iter().copied().filter(|label| *label != CLUSTER).collect()
    }
}
