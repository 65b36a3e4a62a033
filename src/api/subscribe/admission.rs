//! What a subscriber may see, and how many streams it may have.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::stream::End;
use crate::access::{Access, Grant, Role};
use crate::api::PeerInfo;

/// A subscriber's grant, for as long as the policy gives it the same.
#[derive(Debug)]
pub(super) struct Admission {
    access: Access,
    peer: Option<PeerInfo>,
    grant: Grant,
}

impl Admission {
    pub(super) fn new(access: Access, peer: Option<PeerInfo>, grant: Grant) -> Self {
        Self { access, peer, grant }
    }

    /// Resolves when the policy has changed. Cancel-safe.
    pub(super) async fn changed(&mut self) {
        self.access.changed().await;
    }

    /// Why the stream ends, if the grant is another one by now. Cheap where the policy has not changed.
    pub(super) fn judge(&mut self) -> Option<End> {
        if !self.access.take_change() {
            return None;
        }
        let now = self.access.grant(self.peer.as_ref().and_then(PeerInfo::certificate));
        (now != self.grant).then(|| End::Denied { for_good: !now.is(Role::Subscriber) })
    }
}

/// Open streams by client: by address and by certificate, since the agents of many nodes may share one.
#[derive(Clone, Debug, Default)]
pub(super) struct PerClient(Arc<Mutex<HashMap<Client, usize>>>);

type Client = (IpAddr, String);

/// One stream of a client; counts until it is dropped.
#[derive(Debug)]
pub(super) struct Place(PerClient, Client);

impl PerClient {
    /// A place for one more, unless the client has as many as it may. Without a certificate it is this host, which limits
    /// itself.
    pub(super) fn enter(&self, peer: Option<&PeerInfo>, most: usize) -> Result<Option<Place>, usize> {
        let Some((peer, facts)) = peer.and_then(|peer| Some((peer, peer.certificate()?))) else { return Ok(None) };
        let client = (peer.address().ip(), format!("{} {}", facts.subject, facts.names().join(" ")));
        let mut streams = self.streams();
        let open = streams.get(&client).copied().unwrap_or_default();
        if open >= most {
            return Err(open);
        }
        streams.insert(client.clone(), open + 1);
        drop(streams);
        Ok(Some(Place(self.clone(), client)))
    }

    fn streams(&self) -> MutexGuard<'_, HashMap<Client, usize>> {
        // Every change is complete before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut streams = self.0.streams();
        if let Some(open) = streams.get_mut(&self.1) {
            *open -= 1;
            if *open == 0 {
                streams.remove(&self.1);
            }
        }
    }
}
