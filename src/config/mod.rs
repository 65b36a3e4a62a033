//! One validated configuration, from flags, `MESHGATE_*` variables and a YAML file, in this order of precedence.
//!
//! Every setting is a row of one table (`settings/`), from which flags, variables, keys, help and defaults are made.
//! Whatever is wrong is found in one go, and said in one line each: where it was written, what is wrong, what to do.

mod allocating;
mod error;
mod resolve;
mod serving;
mod settings;
mod sources;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

pub use allocating::AllocatingConfig;
pub use error::{ConfigError, Origin, Problem};
pub use serving::{ApiConfig, Security};
pub use sources::{Environment, Flags};

use crate::identity::{ClusterId, ClusterName, MaxConnectedClusters};
use crate::kvstore::{ListWatchOptions, Reads, Timing};
use crate::peer::HeartbeatPolicy;
use crate::telemetry::logging::{LogFilter, LogFormat};
use error::did_you_mean;
use resolve::{Resolver, Wrong};
use settings as s;

/// What our variables begin with.
const ENV_PREFIX: &str = "MESHGATE_";

/// The key of `--kvstore-opt` that names the etcd client YAML; Cilium's name.
const ETCD_CONFIG: &str = "etcd.config";

/// The name that a cluster has by default, and that a cluster with an ID may not have.
const DEFAULT_CLUSTER_NAME: &str = "default";

/// Everything that can be configured, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// The gateway's own cluster.
    pub cluster: ClusterConfig,
    /// Its store, and the peers.
    pub stores: StoresConfig,
    /// Allocating in the own cluster's store.
    pub allocating: AllocatingConfig,
    /// The gRPC API.
    pub api: ApiConfig,
    /// Where `/metrics`, `/livez` and `/readyz` are served.
    pub http_listen: SocketAddr,
    /// How long streams may take to end once the gateway stops.
    pub shutdown_grace: Duration,
    /// How log lines look.
    pub log_format: LogFormat,
    /// Which are written.
    pub log_filter: LogFilter,
    /// Every setting as it holds, for the log. No setting is a secret: those are in the files that settings name.
    pub effective: Vec<Effective>,
}

/// The gateway's own cluster.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// Its name.
    pub name: ClusterName,
    /// Its ID; 0, not set, only without peers.
    pub id: ClusterId,
    /// How many clusters the numbers of this mesh can tell apart.
    pub width: MaxConnectedClusters,
}

/// Stores and how they are read.
#[derive(Clone, Debug)]
pub struct StoresConfig {
    /// The etcd client YAML of the own cluster's store.
    pub local: PathBuf,
    /// The directory of the peers' files.
    pub peers: Option<PathBuf>,
    /// How often it is read again.
    pub peer_rescan: Duration,
    /// How long readiness waits for the peers' first sync.
    pub peer_readiness_wait: Duration,
    /// Where pictures of the peers are kept, if anywhere.
    pub state_dir: Option<PathBuf>,
    /// How long a peer may be out of step before its entries are withdrawn; for ever if none.
    pub peer_ttl: Option<Duration>,
    /// Deadlines and intervals of every session.
    pub timing: Timing,
    /// How often all keys of a store are compared with what is held.
    pub audit_interval: Duration,
    /// What a peer's heartbeat means.
    pub heartbeat: HeartbeatPolicy,
    /// How long it may stand still.
    pub heartbeat_timeout: Duration,
    /// How prefixes are listed.
    pub list: ListWatchOptions,
}

/// A setting as it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effective {
    /// The setting.
    pub name: &'static str,
    /// Its value as it was written; empty for none.
    pub value: String,
    /// Where it comes from.
    pub origin: Origin,
}

impl Config {
    /// Reads the file, joins the sources and checks everything.
    ///
    /// # Errors
    /// All that is wrong.
    pub fn load(flags: Flags, environment: &Environment) -> Result<Self, ConfigError> {
        let mut resolver = Self::resolver(flags, environment);
        match (Self::assemble(&mut resolver), resolver.problems) {
            (Some(config), problems) if problems.is_empty() => Ok(config),
            (_, problems) => Err(ConfigError { problems }),
        }
    }

    /// The own cluster and the stores alone, for whoever serves nothing; other groups are not judged.
    ///
    /// # Errors
    /// All that is wrong with these.
    pub fn load_stores(flags: Flags, environment: &Environment) -> Result<(ClusterConfig, StoresConfig), ConfigError> {
        let mut resolver = Self::resolver(flags, environment);
        match (cluster(&mut resolver), stores(&mut resolver), resolver.problems) {
            (Some(cluster), Some(stores), problems) if problems.is_empty() => Ok((cluster, stores)),
            (_, _, problems) => Err(ConfigError { problems }),
        }
    }

    fn resolver(flags: Flags, environment: &Environment) -> Resolver {
        let mut problems = Vec::new();
        let file = flags.config.clone().or_else(|| environment.config());
        let file = file.map_or_else(Default::default, |path| sources::file_layer(&path, &mut problems));
        let variables = environment.layer(&mut problems);
        Resolver::new([file, variables, flags.layer], problems)
    }

    /// Reads every group before it gives up, so that all problems are found.
    fn assemble(r: &mut Resolver) -> Option<Self> {
        let cluster = cluster(r);
        let stores = stores(r);
        let allocating = allocating::read(r);
        let api = serving::read(r);
        let http_listen = r.address(&s::HTTP_LISTEN);
        let shutdown_grace = r.time(&s::SHUTDOWN_GRACE, times(0, 3_600_000));
        let log_format = r.value(&s::LOG_FORMAT, |text| match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err(Wrong::new("no such format", "give text or json")),
        });
        let log_filter = r.value(&s::LOG_LEVEL, |text| {
            LogFilter::parse(text).map_err(|what| Wrong::new(what, "give a level such as info"))
        });
        Some(Self {
            cluster: cluster?,
            stores: stores?,
            allocating: allocating?,
            api: api?,
            http_listen: http_listen?,
            shutdown_grace: shutdown_grace?,
            log_format: log_format?,
            log_filter: log_filter?,
            effective: r.effective(),
        })
    }

    /// The settings in one line, for the log: `name=value`, those that somebody gave marked with where.
    #[must_use]
    pub fn summary(&self) -> String {
        let shown = self.effective.iter().filter(|setting| !setting.value.is_empty()).map(|setting| {
            let from = match &setting.origin {
                Origin::Flag => " (flag)",
                Origin::Env => " (environment)",
                Origin::File { .. } => " (file)",
                Origin::Default => "",
            };
            format!("{}={}{from}", setting.name, setting.value)
        });
        shown.collect::<Vec<_>>().join(", ")
    }
}

/// Milliseconds, inclusive.
fn times(from: u64, to: u64) -> RangeInclusive<Duration> {
    Duration::from_millis(from)..=Duration::from_millis(to)
}

fn cluster(r: &mut Resolver) -> Option<ClusterConfig> {
    let name = r.value(&s::CLUSTER_NAME, |text| {
        ClusterName::new(text).map_err(|error| Wrong::new(error, "give the name that the cluster's agents have"))
    });
    let width = r.value(&s::MAX_CONNECTED_CLUSTERS, |text| match text {
        "255" => Ok(MaxConnectedClusters::C255),
        "511" => Ok(MaxConnectedClusters::C511),
        _ => {
            Err(Wrong::new("not a width that identity numbers can have", "give 255 or 511, as in every other cluster"))
        }
    });
    // A wrong width is noted already; the ID is then judged by the wider one.
    let judged_by = width.unwrap_or(MaxConnectedClusters::C511);
    let id = r.value(&s::CLUSTER_ID, |text| {
        let advice = format!("give the ID that the cluster's agents have, 1 to {}", judged_by.max_id());
        match text.parse() {
            Ok(0) => Ok(ClusterId::default()),
            Ok(id) => ClusterId::new(id, judged_by).map_err(|error| {
                let wider = if id <= 511 { ", or set max-connected-clusters to 511 in every cluster" } else { "" };
                Wrong::new(error, advice + wider)
            }),
            Err(_) => Err(Wrong::new("not a cluster ID", advice)),
        }
    });
    let (name, id) = (name?, id?);
    if name.as_str() == DEFAULT_CLUSTER_NAME && id != ClusterId::default() {
        let what = format!("the name `{DEFAULT_CLUSTER_NAME}` cannot be used with cluster ID {id}");
        r.wrong(&s::CLUSTER_NAME, Wrong::new(what, "give the cluster a name of its own, unique in the mesh"));
    }
    if id == ClusterId::default() && r.path(&s::CLUSTERMESH_CONFIG).is_some() {
        let what = "0 means not set, and peers (clustermesh-config) need to tell this cluster from theirs";
        let advice = format!("give an ID that no peer has, 1 to {}", judged_by.max_id());
        r.wrong(&s::CLUSTER_ID, Wrong::new(what, advice));
    }
    Some(ClusterConfig { name, id, width: width? })
}

fn stores(r: &mut Resolver) -> Option<StoresConfig> {
    let local = local_store(r);
    let peers = r.path(&s::CLUSTERMESH_CONFIG);
    if let Some(directory) = peers.as_deref() {
        match std::fs::read_dir(directory) {
            Ok(_) => {}
            Err(error) => r.wrong(
                &s::CLUSTERMESH_CONFIG,
                Wrong::new(
                    format!("the directory cannot be read: {error}"),
                    "create it (it may be empty) or leave the setting out",
                ),
            ),
        }
    }
    let peer_rescan = r.time(&s::PEER_RESCAN_INTERVAL, times(100, 3_600_000));
    let peer_readiness_wait = r.time(&s::PEER_READINESS_WAIT, times(0, 3_600_000));
    let state_dir = r.path(&s::STATE_DIR);
    let peer_ttl = r.time_or_never(&s::PEER_TTL, times(1_000, 31_536_000_000));
    let timing = timing(r);
    // Etcd takes a page of any size; the bound is what fits a message of etcd's (2 GiB) with room for large values.
    let page_size = r.number(&s::LIST_PAGE_SIZE, 1..=65_536);
    let audit_interval = r.time(&s::AUDIT_INTERVAL, times(100, 604_800_000));
    let heartbeat_timeout = r.time(&s::HEARTBEAT_TIMEOUT, times(100, 86_400_000));
    let heartbeat = r.value(&s::PEER_HEARTBEAT, |text| match text {
        "if-present" => Ok(HeartbeatPolicy::IfPresent),
        "required" => Ok(HeartbeatPolicy::Required),
        "ignored" => Ok(HeartbeatPolicy::Ignored),
        _ => Err(Wrong::new("no such policy", "give if-present, required or ignored")),
    });
    let reads = r.value(&s::LIST_READS, |text| match text {
        "linearizable" => Ok(Reads::Linearizable),
        "serializable" => Ok(Reads::Serializable),
        _ => Err(Wrong::new("no such kind of read", "give linearizable or serializable")),
    });
    Some(StoresConfig {
        local: local?,
        peers,
        peer_rescan: peer_rescan?,
        peer_readiness_wait: peer_readiness_wait?,
        state_dir,
        peer_ttl: Some(peer_ttl?).filter(|ttl| *ttl != Duration::MAX),
        timing: timing?,
        audit_interval: audit_interval?,
        heartbeat: heartbeat?,
        heartbeat_timeout: heartbeat_timeout?,
        list: ListWatchOptions { page_size: page_size?, reads: reads?, ..ListWatchOptions::default() },
    })
}

fn local_store(r: &mut Resolver) -> Option<PathBuf> {
    let mut local = None;
    let mut wrong = Vec::new();
    for (key, value) in r.pairs(&s::KVSTORE_OPT) {
        if allocating::ETCD_LIMITS.contains(&key.as_str()) {
            // Read there.
        } else if key == ETCD_CONFIG && !value.is_empty() {
            local = Some(PathBuf::from(value));
        } else if key == ETCD_CONFIG {
            wrong.push(Wrong::new(format!("{ETCD_CONFIG} has no value"), format!("write {ETCD_CONFIG}=PATH")));
        } else {
            let advice = match did_you_mean(key, [ETCD_CONFIG].into_iter().chain(allocating::ETCD_LIMITS)) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => format!(
                    "the known options are {ETCD_CONFIG}=PATH and the limits {}",
                    allocating::ETCD_LIMITS.join(", ")
                ),
            };
            wrong.push(Wrong::new(format!("unknown option `{key}`"), advice));
        }
    }
    if local.is_none() && wrong.is_empty() {
        let advice =
            format!("give --kvstore-opt {ETCD_CONFIG}=PATH, the etcd client YAML that the cluster's agents have");
        wrong.push(Wrong::new("the cluster's own store is not given", advice));
    }
    for wrong in wrong {
        r.wrong(&s::KVSTORE_OPT, wrong);
    }
    local
}

fn timing(r: &mut Resolver) -> Option<Timing> {
    let dial = r.time(&s::DIAL_TIMEOUT, times(10, 600_000));
    let call = r.time(&s::CALL_TIMEOUT, times(10, 600_000));
    let keepalive_interval = r.time(&s::KEEPALIVE_INTERVAL, times(5_000, 600_000));
    let keepalive_timeout = r.time(&s::KEEPALIVE_TIMEOUT, times(10, 600_000));
    let progress_interval = r.time(&s::PROGRESS_INTERVAL, times(10, 600_000));
    let liveness = r.time(&s::LIVENESS_TIMEOUT, times(20, 3_600_000));
    let resolve_interval = r.time(&s::RESOLVE_INTERVAL, times(100, 86_400_000));
    let backoff_base = r.time(&s::BACKOFF_BASE, times(1, 600_000));
    let backoff_max = r.time(&s::BACKOFF_MAX, times(1, 3_600_000));
    if let (Some(liveness), Some(progress)) = (liveness, progress_interval)
        && liveness <= progress
    {
        let what = "not longer than progress-interval: every quiet watch would be given up";
        r.wrong(&s::LIVENESS_TIMEOUT, Wrong::new(what, "give three times progress-interval"));
    }
    if let (Some(base), Some(max)) = (backoff_base, backoff_max)
        && max < base
    {
        r.wrong(&s::BACKOFF_MAX, Wrong::new("shorter than backoff-base", "give at least that"));
    }
    Some(Timing {
        dial: dial?,
        call: call?,
        page: call?,
        watch_created: call?,
        patience_max: Duration::from_mins(10),
        resolve_interval: resolve_interval?,
        keepalive_interval: keepalive_interval?,
        keepalive_timeout: keepalive_timeout?,
        progress_interval: progress_interval?,
        liveness: liveness?,
        backoff_base: backoff_base?,
        backoff_max: backoff_max?,
        denied_pause: Duration::from_mins(1),
    })
}
