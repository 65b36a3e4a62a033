//! Names to addresses: the configuration's own first, then whoever resolves for this machine.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::net::lookup_host;
use tokio::time::timeout;

use super::endpoint::Endpoint;
use super::{Failure, Stage};

type Lookup = dyn Fn(String, u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync;

/// Resolves names; the default asks the operating system, anew each time.
#[derive(Clone)]
pub struct Resolver(Arc<Lookup>);

impl Default for Resolver {
    fn default() -> Self {
        Self::new(|host, port| async move { Ok(lookup_host((host, port)).await?.collect()) }.boxed())
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}

impl Resolver {
    /// One that asks `lookup` for the addresses of a host and port.
    pub fn new(
        lookup: impl Fn(String, u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(lookup))
    }

    /// All addresses of the endpoint's host, or those that `aliases` give it.
    pub(super) async fn resolve(
        &self,
        endpoint: &Endpoint,
        aliases: &BTreeMap<String, Vec<IpAddr>>,
        deadline: Duration,
    ) -> Result<Vec<SocketAddr>, Failure> {
        let host = endpoint.host.as_str();
        if let Some(addresses) = aliases.get(host) {
            return Ok(addresses.iter().map(|&address| SocketAddr::new(address, endpoint.port)).collect());
        }
        let failed = |reason, message: String| {
            let hint = "check the name and this machine's resolver, or give an address";
            Failure::new(Stage::Resolve, reason, message, hint)
        };
        match timeout(deadline, self.0(host.to_owned(), endpoint.port)).await {
            Ok(Ok(addresses)) if addresses.is_empty() => {
                Err(failed("resolve-failed", format!("`{host}` has no address")))
            }
            Ok(Ok(addresses)) => Ok(addresses),
            Ok(Err(error)) => Err(failed("resolve-failed", format!("`{host}` does not resolve: {error}"))),
            Err(_) => Err(failed("resolve-timeout", format!("`{host}` did not resolve within {deadline:?}"))),
        }
    }
}
