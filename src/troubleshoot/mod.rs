//! What is wrong with a peer: every step from its file to its identities, each looked at by itself, without a gateway.
//!
//! [`walk()`] goes over one peer and says of each [`Stage`] what came of it; [`conflicts`] compares what peers say of
//! themselves. Nothing is written, and nothing is printed: whoever asks does.

mod certificates;
mod walk;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::identity::{ClusterId, ClusterName};
use crate::mirror::Failure;

pub use walk::{Context, walk};

/// A step, in the order in which they are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The peer's file is an etcd configuration.
    File,
    /// The files that it names hold certificates that belong together and are valid.
    Certificates,
    /// An endpoint's name has an address.
    Resolve,
    /// The address takes TCP connections.
    Dial,
    /// Either side accepts the other's certificate.
    Tls,
    /// An etcd with a quorum answers there and lets us in.
    Etcd,
    /// The peer says who it is, in a way that fits us.
    ClusterConfig,
    /// No other cluster has its ID.
    ClusterId,
    /// The peer says that its identities are all there.
    Canary,
    /// Somebody keeps the store up to date.
    Heartbeat,
    /// We may read its identities, and they are its own.
    Identities,
}

impl Stage {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::File,
        Self::Certificates,
        Self::Resolve,
        Self::Dial,
        Self::Tls,
        Self::Etcd,
        Self::ClusterConfig,
        Self::ClusterId,
        Self::Canary,
        Self::Heartbeat,
        Self::Identities,
    ];

    /// In a word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Certificates => "certificates",
            Self::Resolve => "resolve",
            Self::Dial => "dial",
            Self::Tls => "tls",
            Self::Etcd => "etcd",
            Self::ClusterConfig => "cluster-config",
            Self::ClusterId => "cluster-id",
            Self::Canary => "canary",
            Self::Heartbeat => "heartbeat",
            Self::Identities => "identities",
        }
    }
}

/// What came of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As it should be; what was found.
    Passed(String),
    /// It works, but somebody should look.
    Warned(Failure),
    /// It does not work.
    Failed(Failure),
    /// Not looked at, because of what failed before it.
    Skipped,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Which.
    pub stage: Stage,
    /// At which endpoint, where it is about one.
    pub endpoint: Option<String>,
    /// What came of it.
    pub outcome: Outcome,
    /// How long it took.
    pub took: Duration,
}

/// All steps of one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerReport {
    /// The peer: the name of its file.
    pub name: String,
    /// Its steps, in order.
    pub checks: Vec<Check>,
    /// The ID that it says it has.
    pub id: Option<ClusterId>,
}

impl PeerReport {
    fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), checks: Vec::new(), id: None }
    }

    /// Whether a step failed, or somebody should look.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.checks.iter().all(|check| matches!(check.outcome, Outcome::Passed(_) | Outcome::Skipped))
            && self.checks.iter().any(|check| matches!(check.outcome, Outcome::Passed(_)))
    }

    /// The report of a file that is named like no cluster.
    #[must_use]
    pub fn misnamed(name: &str, failure: Failure) -> Self {
        let mut report = Self::new(name);
        report.add(Stage::File, None, Outcome::Failed(failure), Duration::ZERO);
        report.skip_from(Stage::Certificates);
        report
    }

    fn add(&mut self, stage: Stage, endpoint: Option<&str>, outcome: Outcome, took: Duration) {
        self.checks.push(Check { stage, endpoint: endpoint.map(str::to_owned), outcome, took });
    }

    /// What comes behind a failure was not looked at.
    fn skip_from(&mut self, first: Stage) {
        for stage in Stage::ALL.into_iter().filter(|stage| *stage >= first) {
            self.add(stage, None, Outcome::Skipped, Duration::ZERO);
        }
    }
}

/// Fills in of each peer whether another one says that it has the same ID; the first by name may keep it, as in the gateway.
pub fn conflicts(reports: &mut [PeerReport]) {
    let mut owners: BTreeMap<ClusterId, String> = BTreeMap::new();
    for report in reports {
        let Some(id) = report.id else { continue };
        let owner = owners.entry(id).or_insert_with(|| report.name.clone());
        let outcome = if *owner == report.name {
            Outcome::Passed(format!("no other peer has the ID {id}"))
        } else {
            Outcome::Failed(Failure {
                reason: "cluster-id-conflict",
                message: format!("{owner} has the ID {id}, too"),
                hint: "every cluster of a mesh needs an ID of its own: change one of them".to_owned(),
            })
        };
        if let Some(check) = report.checks.iter_mut().find(|check| check.stage == Stage::ClusterId) {
            check.outcome = outcome;
        }
    }
}

/// Whether a name was asked for; none asks for all.
#[must_use]
pub fn is_wanted(asked: &[ClusterName], name: &str) -> bool {
    asked.is_empty() || asked.iter().any(|asked| asked.as_str() == name)
}
