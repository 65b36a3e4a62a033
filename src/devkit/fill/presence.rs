//! What a living cluster keeps saying about itself: configuration, canaries, heartbeat, all on one lease.

use etcd_client::{Client, Error, LeaseKeepAliveStream, LeaseKeeper, PutOptions};

use super::layout::timestamp;
use super::{Cluster, HEARTBEAT_KEY, load};

/// Seconds; Cilium's.
const LEASE_TTL: i64 = 15 * 60;

/// A cluster that has announced itself. Dropping it lets the lease run out; nothing is withdrawn before.
pub struct Presence {
    client: Client,
    cluster: Cluster,
    lease: i64,
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
}

impl std::fmt::Debug for Presence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Presence")
            .field("cluster", &self.cluster.name)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

impl Presence {
    /// Takes a lease, writes the first heartbeat and the configuration. Canaries are for when the contents are complete.
    ///
    /// # Errors
    /// Etcd does not answer.
    pub async fn announce(client: Client, cluster: Cluster) -> Result<Self, Error> {
        let lease = client.lease_client().grant(LEASE_TTL, None).await?.id();
        let (keeper, answers) = client.lease_client().keep_alive(lease).await?;
        let presence = Self { client, cluster, lease, keeper, answers };
        presence.beat().await?;
        presence.configure().await?;
        Ok(presence)
    }

    /// Says that the contents are complete.
    ///
    /// # Errors
    /// Etcd does not answer.
    pub async fn complete(&self) -> Result<(), Error> {
        load(&self.client, self.cluster.canary_keys().map(|key| (key, timestamp())), self.lease).await
    }

    /// Writes the configuration (again).
    ///
    /// # Errors
    /// Etcd does not answer.
    pub async fn configure(&self) -> Result<(), Error> {
        self.put(&self.cluster.config_key(), self.cluster.config_json()).await
    }

    /// Writes the heartbeat.
    ///
    /// # Errors
    /// Etcd does not answer.
    pub async fn beat(&self) -> Result<(), Error> {
        self.put(HEARTBEAT_KEY, timestamp()).await
    }

    /// Renews the lease.
    ///
    /// # Errors
    /// The lease or the connection is gone.
    pub async fn renew(&mut self) -> Result<(), Error> {
        self.keeper.keep_alive().await?;
        self.answers.message().await.map(|_| ())
    }

    /// The lease, for what else should go with it.
    #[must_use]
    pub fn lease(&self) -> i64 {
        self.lease
    }

    async fn put(&self, key: &str, value: String) -> Result<(), Error> {
        let options = PutOptions::new().with_lease(self.lease);
        self.client.kv_client().put(key, value, Some(options)).await.map(|_| ())
    }
}
