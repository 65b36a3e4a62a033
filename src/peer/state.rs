//! What a peer's cluster-config means for us: pure decisions, every transition of a peer's life that depends on it.

use super::config::{ClusterConfig, ConfigError, Us};
use crate::identity::{ClusterId, ClusterName};
use crate::mirror::{Failure, layout};

/// What was found under the cluster-config key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// No such key.
    Absent,
    /// Not a cluster configuration; why.
    Malformed(String),
    /// A configuration.
    Config(ClusterConfig),
}

impl Reading {
    /// Reads a value, if there is one.
    #[must_use]
    pub fn of(value: Option<&[u8]>) -> Self {
        match value.map(ClusterConfig::parse) {
            None => Self::Absent,
            Some(Ok(config)) => Self::Config(config),
            Some(Err(error)) => Self::Malformed(error.to_string()),
        }
    }
}

/// How to read a peer that may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its ID.
    pub id: ClusterId,
    /// Where its identities are.
    pub prefix: String,
    /// The key to wait for before they are listed.
    pub canary: Option<String>,
}

impl Plan {
    fn new(id: ClusterId, config: ClusterConfig, peer: &ClusterName) -> Self {
        let base = if config.cached { layout::CACHE_PREFIX } else { layout::STATE_PREFIX };
        Self {
            id,
            prefix: if config.cached { layout::cached_ids(peer) } else { layout::state_ids() },
            canary: config.synced_canaries.then(|| layout::canary_key(peer, base)),
        }
    }
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is no configuration to go by: absence has no meaning, so wait, and keep what is known (P4).
    Wait(Failure),
    /// The cluster must not be used.
    Refuse(ConfigError),
    /// Read it so.
    Follow(Plan),
}

/// A verdict, and whether the entries held must go first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What to do.
    pub verdict: Verdict,
    /// The cluster is another one than that whose entries are held: drain them before anything else (R13).
    pub drain: bool,
}

/// Decides about a peer whose entries are held under `held`.
#[must_use]
pub fn decide(reading: &Reading, us: &Us, peer: &ClusterName, held: Option<ClusterId>) -> Decision {
    let waiting = |failure| Decision { verdict: Verdict::Wait(failure), drain: false };
    match reading {
        Reading::Absent => waiting(absent(peer)),
        Reading::Malformed(error) => waiting(malformed(peer, error)),
        Reading::Config(config) => {
            // An ID that is unset says nothing; any other one that is not the one held says that those entries are no more.
            let drain = config.id != 0 && held.is_some_and(|held| u32::from(held.get()) != config.id);
            let verdict = match config.validate(us) {
                Ok(id) => Verdict::Follow(Plan::new(id, *config, peer)),
                Err(error) => Verdict::Refuse(error),
            };
            Decision { verdict, drain }
        }
    }
}

fn absent(peer: &ClusterName) -> Failure {
    Failure {
        reason: "config-missing",
        message: format!("the etcd has no key {}", layout::cluster_config_key(peer)),
        hint: "is the file named after the cluster, and does the cluster's clustermesh-apiserver (or operator) run?"
            .into(),
    }
}

fn malformed(peer: &ClusterName, error: &str) -> Failure {
    Failure {
        reason: "config-malformed",
        message: format!("the value of {} is not a cluster configuration: {error}", layout::cluster_config_key(peer)),
        hint: "something other than Cilium wrote the key; Cilium's operator of that cluster will write it anew".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::MaxConnectedClusters;

    const WIDTH: MaxConnectedClusters = MaxConnectedClusters::C255;

    fn id(id: u32) -> ClusterId {
        ClusterId::new(id, WIDTH).unwrap()
    }

    fn decide_on(json: Option<&str>, held: Option<u32>) -> Decision {
        let us = Us { name: ClusterName::new("us").unwrap(), id: id(1), width: WIDTH };
        decide(&Reading::of(json.map(str::as_bytes)), &us, &ClusterName::new("blue").unwrap(), held.map(id))
    }

    #[test]
    fn p04_without_a_configuration_it_waits_and_keeps() {
        for (json, reason) in [(None, "config-missing"), (Some("{"), "config-malformed")] {
            let Decision { verdict: Verdict::Wait(failure), drain: false } = decide_on(json, Some(7)) else { panic!() };
            assert_eq!(failure.reason, reason);
        }
    }

    #[test]
    fn reads_the_state_or_the_cache_and_awaits_the_canary_if_there_will_be_one() {
        let plan = |json| match decide_on(Some(json), None).verdict {
            Verdict::Follow(plan) => plan,
            other => panic!("{other:?}"),
        };
        let state = plan(r#"{"id":7}"#);
        assert_eq!(state, Plan { id: id(7), prefix: "cilium/state/identities/v1/id/".into(), canary: None });
        let synced = plan(r#"{"id":7,"capabilities":{"syncedCanaries":true}}"#);
        assert_eq!(synced.canary.unwrap(), "cilium/synced/blue/cilium/state/identities/v1");
        let cached = plan(r#"{"id":7,"capabilities":{"syncedCanaries":true,"cached":true}}"#);
        assert_eq!(cached.prefix, "cilium/cache/identities/v1/blue/id/");
        assert_eq!(cached.canary.unwrap(), "cilium/synced/blue/cilium/cache/identities/v1");
    }

    #[test]
    fn r13_another_id_drains_first_even_if_it_is_refused() {
        assert!(!decide_on(Some(r#"{"id":7}"#), Some(7)).drain);
        assert!(!decide_on(Some(r#"{"id":7}"#), None).drain);
        assert!(decide_on(Some(r#"{"id":8}"#), Some(7)).drain);
        let ours = decide_on(Some(r#"{"id":1}"#), Some(7));
        assert!(ours.drain && ours.verdict == Verdict::Refuse(ConfigError::IdOurs(id(1))));
        let unset = decide_on(Some("{}"), Some(7));
        assert!(!unset.drain && matches!(unset.verdict, Verdict::Refuse(_)), "no ID is not another ID");
    }
}
