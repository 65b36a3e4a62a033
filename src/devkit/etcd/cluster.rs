//! Several etcds that are one store.

use futures_util::future::try_join_all;

use super::server::{Peers, Ports, free_ports, token};
use super::{EtcdError, EtcdOptions, EtcdServer};

/// Attempts to find ports that nobody takes between our look and etcd's.
const ATTEMPTS: u32 = 5;
/// Heartbeat and election timeout in milliseconds: as short as lets a leader live on a machine that is busy otherwise.
const TIMING: (u32, u32) = (50, 500);

/// A cluster of members, each a process of its own. Dropping it kills all.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<EtcdServer>,
}

impl EtcdCluster {
    /// Starts `size` members and waits until each serves. They share the certificates.
    ///
    /// # Errors
    /// No etcd is installed, or a member does not become ready.
    pub async fn start(size: usize, options: &EtcdOptions) -> Result<Self, EtcdError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match Self::attempt(size, options).await {
                Err(EtcdError::Ended { last_words, .. })
                    if last_words.contains("address already in use") && attempts < ATTEMPTS => {}
                result => return result,
            }
        }
    }

    async fn attempt(size: usize, options: &EtcdOptions) -> Result<Self, EtcdError> {
        let name = |n: usize| format!("{}-{n}", options.name);
        let ports: Vec<Ports> = (0..size)
            .map(|_| free_ports())
            .collect::<Result<_, _>>()
            .map_err(|source| EtcdError::System { name: options.name.clone(), source })?;
        let initial_cluster = (ports.iter().enumerate())
            .map(|(n, ports)| format!("{}=http://127.0.0.1:{}", name(n), ports.peer))
            .collect::<Vec<_>>()
            .join(",");
        let peers = Peers { initial_cluster, token: token(), timing: TIMING };
        let mut members = Vec::with_capacity(size);
        for (n, ports) in ports.into_iter().enumerate() {
            let options = EtcdOptions { name: name(n), ..options.clone() };
            members.push(EtcdServer::launch(options, ports, peers.clone()).await?);
        }
        try_join_all(members.iter_mut().map(EtcdServer::wait_ready)).await?;
        Ok(Self { members })
    }

    /// The members.
    #[must_use]
    pub fn members(&self) -> &[EtcdServer] {
        &self.members
    }

    /// One member, to kill, stop or restart.
    ///
    /// # Panics
    /// There is no such member.
    #[must_use]
    pub fn member(&mut self, n: usize) -> &mut EtcdServer {
        &mut self.members[n]
    }

    /// How the gateway reaches it: the endpoints of all members.
    #[must_use]
    pub fn config(&self) -> crate::kvstore::EtcdConfig {
        let endpoints = self.members.iter().map(EtcdServer::client_url).collect();
        let first = self.members.first().map(EtcdServer::config).unwrap_or_default();
        crate::kvstore::EtcdConfig { endpoints, ..first }
    }
}
