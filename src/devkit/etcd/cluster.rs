//! Several etcds that are one store.

use std::io;
use std::time::Duration;

use etcd_client::{Client, Error};
use futures_util::future::try_join_all;
use tokio::time::{Instant, sleep, timeout};

use super::server::{Peers, Ports, free_ports, token};
use super::{EtcdError, EtcdOptions, EtcdServer};

/// Attempts to find ports that nobody takes between our look and etcd's.
const ATTEMPTS: u32 = 5;
/// Heartbeat and election timeout in milliseconds: as short as lets a leader live on a machine that is busy otherwise.
const TIMING: (u32, u32) = (50, 500);
/// Etcd refuses a change of members until it has been in touch with most of them for five seconds.
const CHANGE_DEADLINE: Duration = Duration::from_secs(30);
/// A change that a new leader knows nothing of is never answered.
const CHANGE_ATTEMPT: Duration = Duration::from_secs(3);

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
        let peers = Peers { initial_cluster, token: token(), timing: TIMING, existing: false };
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

    /// Takes a member out for good, and kills it. What it held is lost; the others go on.
    ///
    /// # Errors
    /// The others do not agree on it.
    pub async fn remove_member(&mut self, n: usize) -> Result<(), EtcdError> {
        let url = self.members[n].peer_url();
        self.change_members(n, async |mut others: Client| {
            let members = others.member_list().await?;
            match members.members().iter().find(|member| member.peer_urls().contains(&url)) {
                Some(member) => others.member_remove(member.id()).await.map(|_| ()),
                None => Ok(()),
            }
        })
        .await?;
        self.members[n].kill()
    }

    /// Lets a new member take the place of one that was removed, on the same ports, and waits until it serves.
    ///
    /// # Errors
    /// The others do not agree on it, or it does not become ready.
    pub async fn add_member(&mut self, n: usize) -> Result<(), EtcdError> {
        let url = self.members[n].peer_url();
        self.change_members(n, async |mut others: Client| {
            let members = others.member_list().await?;
            if members.members().iter().any(|member| member.peer_urls().contains(&url)) {
                return Ok(());
            }
            others.member_add([url.clone()], None).await.map(|_| ())
        })
        .await?;
        self.members[n].join().await
    }

    /// Asks another member than `n` until it agrees.
    async fn change_members(
        &self,
        n: usize,
        change: impl AsyncFn(Client) -> Result<(), Error>,
    ) -> Result<(), EtcdError> {
        let other = &self.members[(n + 1) % self.members.len()];
        let deadline = Instant::now() + CHANGE_DEADLINE;
        loop {
            let answer = match timeout(CHANGE_ATTEMPT, change(other.client())).await {
                Ok(answer) => answer.map_err(io::Error::other),
                Err(elapsed) => Err(io::Error::other(elapsed)),
            };
            match answer {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() >= deadline => return Err(other.system(error)),
                Err(_) => sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// How the gateway reaches it: the endpoints of all members.
    #[must_use]
    pub fn config(&self) -> crate::kvstore::EtcdConfig {
        let endpoints = self.members.iter().map(EtcdServer::client_url).collect();
        let first = self.members.first().map(EtcdServer::config).unwrap_or_default();
        crate::kvstore::EtcdConfig { endpoints, ..first }
    }
}
