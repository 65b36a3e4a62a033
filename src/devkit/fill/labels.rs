//! Label sets as a cluster with many teams has them: most labels repeat, every set is another one.

use std::hash::{BuildHasher, Hasher};

use foldhash::fast::FixedState;

const TEAMS: [&str; 16] = [
    "payments",
    "checkout",
    "catalog",
    "search",
    "identity",
    "shipping",
    "pricing",
    "media",
    "observability",
    "fraud",
    "orders",
    "inventory",
    "messaging",
    "ml-serving",
    "platform",
    "support",
];
const STAGES: [&str; 4] = ["prod", "staging", "canary", "batch"];
const APPS: [&str; 32] = [
    "api-gateway",
    "frontend",
    "worker",
    "scheduler",
    "ingester",
    "exporter",
    "session-store",
    "cart",
    "ledger",
    "notifier",
    "importer",
    "reconciler",
    "indexer",
    "renderer",
    "thumbnailer",
    "tokenizer",
    "router",
    "aggregator",
    "forwarder",
    "collector",
    "webhook",
    "admin-ui",
    "backfill",
    "auditor",
    "cache-warmer",
    "rate-limiter",
    "resolver",
    "planner",
    "dispatcher",
    "matcher",
    "archiver",
    "migrator",
];
const COMPONENTS: [&str; 6] = ["server", "database", "cache", "queue", "cronjob", "sidecar"];
const TRACKS: [&str; 3] = ["stable", "canary", "preview"];

/// An endless, deterministic series of label sets of one cluster: about eight labels and 330 bytes each, no two the same.
#[derive(Clone, Debug)]
pub struct LabelMix {
    cluster: String,
    seed: u64,
}

impl LabelMix {
    /// The series of that cluster and seed.
    #[must_use]
    pub fn new(cluster: &str, seed: u64) -> Self {
        Self { cluster: cluster.to_owned(), seed }
    }

    /// The n-th label set as a key string.
    #[must_use]
    pub fn key_string(&self, n: u64) -> String {
        let mut labels = self.labels(n);
        labels.sort_unstable();
        labels.iter().flat_map(|(key, value)| ["k8s:", key, "=", value, ";"]).collect()
    }

    /// Namespace, app and version spell `n` in a mixed radix: that is what makes every set another one, while each single
    /// label is shared by many sets.
    fn labels(&self, n: u64) -> Vec<(&'static str, String)> {
        // An odd factor permutes the low 16 bits, so that neighbours do not share a namespace.
        let spread = (n.wrapping_mul(40_503).wrapping_add(self.seed)) & 0xffff;
        let (team, stage) = (pick(&TEAMS, spread), pick(&STAGES, spread >> 4));
        let app = pick(&APPS, spread >> 6);
        let version = format!("v{}.{}.{}", 1 + (n >> 21), spread >> 11, (n >> 16) & 0x1f);
        let namespace = format!("{team}-{stage}");

        let mut dice = self.dice(n);
        let mut chance = |percent: u64| dice.next() % 100 < percent;
        let mut labels = vec![
            ("app.kubernetes.io/name", app.to_owned()),
            ("version", version),
            ("io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name", namespace.clone()),
            ("io.cilium.k8s.policy.cluster", self.cluster.clone()),
            ("io.cilium.k8s.policy.serviceaccount", if chance(70) { app } else { "default" }.to_owned()),
            ("io.kubernetes.pod.namespace", namespace.clone()),
        ];
        if chance(60) {
            labels.push(("app", app.to_owned()));
        }
        if chance(40) {
            labels.push(("app.kubernetes.io/instance", format!("{app}-{stage}")));
        }
        if chance(45) {
            labels.push(("app.kubernetes.io/component", pick(&COMPONENTS, spread >> 6).to_owned()));
        }
        if chance(30) {
            labels.push(("track", pick(&TRACKS, spread >> 11).to_owned()));
        }
        if chance(30) {
            labels.push(("team", team.to_owned()));
        }
        labels
    }

    fn dice(&self, n: u64) -> Dice {
        let mut hasher = FixedState::with_seed(self.seed).build_hasher();
        hasher.write_u64(n);
        hasher.write(self.cluster.as_bytes());
        Dice(hasher.finish())
    }
}

fn pick<const N: usize>(words: &[&'static str; N], number: u64) -> &'static str {
    #[expect(clippy::cast_possible_truncation, reason = "the modulus makes it an index")]
    words[(number % N as u64) as usize]
}

/// `SplitMix64`: the same numbers on every machine and in every version of a library.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const MANY: usize = 70_000;

    #[test]
    fn label_sets_are_realistic_and_all_different() {
        let mix = LabelMix::new("cluster-a", 1);
        let sets: Vec<String> = (0..).map(|n| mix.key_string(n)).take(MANY).collect();
        let bytes = sets.iter().map(String::len).sum::<usize>() / sets.len();
        let labels: Vec<&str> = sets.iter().flat_map(|set| set.split_terminator(';')).collect();
        assert!((320..340).contains(&bytes), "{bytes} bytes a set");
        let tenths = labels.len() * 10 / sets.len();
        assert!((75..85).contains(&tenths), "{tenths} labels in ten sets");
        let distinct = labels.into_iter().collect::<HashSet<_>>().len();
        assert!(distinct < 500, "{distinct} labels are not shared by many sets");
        assert_eq!(sets.into_iter().collect::<HashSet<_>>().len(), MANY);
    }

    #[test]
    fn labels_are_sorted_by_key_and_name_the_cluster() {
        let mix = LabelMix::new("cluster-a", 7);
        for n in 0..1000 {
            let set = mix.key_string(n);
            assert!(set.contains(";k8s:io.cilium.k8s.policy.cluster=cluster-a;"), "{set}");
            let keys: Vec<&str> = set
                .split_terminator(';')
                .map(|label| label.strip_prefix("k8s:").unwrap().split_once('=').unwrap().0)
                .collect();
            assert!(keys.is_sorted_by(|a, b| a < b), "{set}");
        }
    }

    #[test]
    fn the_series_is_the_same_for_the_same_seed_only() {
        let sets = |seed| (0..100).map(|n| LabelMix::new("a", seed).key_string(n)).collect::<Vec<_>>();
        assert_eq!(sets(1), sets(1));
        assert_ne!(sets(1), sets(2));
    }
}
