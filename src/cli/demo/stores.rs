//! The clusters of the demo: an etcd each, filled as a Cilium fills it, alive and changing.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use futures_util::future::try_join_all;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::devkit::fill::{
    BadEntry, Churn, Cluster, Contents, FillOptions, LabelMix, Presence, RunningChurn, fill, load, valid_contents,
};
use crate::devkit::{EtcdOptions, EtcdServer, Pki};

/// More often than Cilium's minute, so that there is something to see.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// What an etcd that someone has stopped gets before we go on.
const CALL: Duration = Duration::from_secs(5);
/// Of a thousand changes at a peer, so many write something that the gateway must refuse.
const BAD_PER_THOUSAND: u16 = 10;

/// What is wrong by its key or as bytes is wrong in one's own store as well; what labels say is judged at peers only.
const BAD_ANYWHERE: [BadEntry; 4] =
    [BadEntry::ForeignNumber, BadEntry::LeadingZero, BadEntry::ExtraSegment, BadEntry::NotUtf8];

/// The clusters. The first is the gateway's own; the last is read from a mirror, as clusters with `KVStoreMesh` are.
pub(super) fn clusters() -> [Cluster; 3] {
    [Cluster::new("frankfurt", 1), Cluster::new("virginia", 2), Cluster::new("singapore", 3).cached()]
}

/// One cluster's store. Dropping it ends all that belongs to it.
pub(super) struct Store {
    pub(super) cluster: Cluster,
    churn: RunningChurn,
    _presence: AbortOnDropHandle<()>,
    pub(super) etcd: EtcdServer,
}

/// How much there is and how fast it changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    /// Identities of a cluster.
    pub(super) identities: u32,
    /// Changes a second and cluster.
    pub(super) rate: u32,
    pub(super) seed: u64,
}

/// Starts and fills all stores, their data below `dir`.
pub(super) async fn start(dir: &Path, pki: &Pki, scale: Scale) -> anyhow::Result<Vec<Store>> {
    try_join_all(clusters().into_iter().enumerate().map(|(n, cluster)| async move {
        let name = cluster.name.clone();
        let options = EtcdOptions::mtls(&name, pki)?.data_in(dir);
        let etcd = EtcdServer::start(options).await?;
        Store::fill(etcd, cluster, n == 0, scale).await.with_context(|| format!("cannot fill the etcd of {name}"))
    }))
    .await
}

impl Store {
    /// In the order of a real one: configuration, contents, canaries; then changes.
    async fn fill(etcd: EtcdServer, cluster: Cluster, own: bool, scale: Scale) -> anyhow::Result<Self> {
        let client = etcd.client();
        let presence = Presence::announce(client.clone(), cluster.clone()).await?;
        let mix = LabelMix::new(&cluster.name, scale.seed);
        let options = FillOptions { count: scale.identities, ..FillOptions::default() };
        let contents = fill(&client, &cluster, &mix, &options).await?;
        let bad: &[BadEntry] = if own { &BAD_ANYWHERE } else { &BadEntry::ALL };
        let unused = cluster.numbers().filter(|number| !contents.contains_key(number));
        load(&client, bad.iter().zip(unused).map(|(bad, number)| bad.entry(&cluster, number)), 0).await?;
        presence.complete().await?;

        let churn = Churn::new(cluster.clone(), mix, contents, scale.seed)
            .with_bad_entries(if own { 0 } else { BAD_PER_THOUSAND })
            // Whoever stops an etcd to see what happens may take their time.
            .with_patience(Duration::MAX)
            .start(client, scale.rate);
        let presence = AbortOnDropHandle::new(tokio::spawn(stay(presence)));
        Ok(Self { cluster, churn, _presence: presence, etcd })
    }

    /// Changes made so far.
    pub(super) fn changes(&self) -> u64 {
        self.churn.changes()
    }

    /// Valid identities that it holds.
    pub(super) fn identities(&self) -> u64 {
        self.churn.identities()
    }

    /// Lets the change at hand finish. Nothing changes afterwards.
    pub(super) async fn settle(self) -> anyhow::Result<SettledStore> {
        let Self { cluster, churn, _presence, etcd } = self;
        timeout(2 * CALL, churn.stop()).await.with_context(|| format!("the etcd of {} is away", cluster.name))??;
        Ok(SettledStore { cluster, etcd })
    }

    /// Cilium's YAML for it.
    pub(super) fn write_client_config(&self, path: &Path) -> anyhow::Result<()> {
        fs::write(path, self.etcd.config_yaml()).with_context(|| path.display().to_string())
    }
}

/// A store whose contents stay as they are.
pub(super) struct SettledStore {
    cluster: Cluster,
    etcd: EtcdServer,
}

impl SettledStore {
    /// The cluster's name, and what is valid in the etcd itself, whatever anybody believes to have written.
    pub(super) async fn read(&self) -> anyhow::Result<(String, Contents)> {
        let contents = valid_contents(&self.etcd.client(), &self.cluster)
            .await
            .with_context(|| format!("cannot read the etcd of {}", self.cluster.name))?;
        Ok((self.cluster.name.clone(), contents))
    }
}

/// Heartbeats and the lease. An etcd that is away for a while is no reason to stop.
async fn stay(mut presence: Presence) {
    loop {
        sleep(HEARTBEAT).await;
        // Both are tried again in the next round; the lease lives for 15 minutes.
        let _ = timeout(CALL, presence.beat()).await;
        let _ = timeout(CALL, presence.renew()).await;
    }
}
