//! What is counted of the API's clients besides their streams: those that were refused.

use prometheus::{IntCounter, IntCounterVec, Registry};

use super::{always, register, table};

/// Why a connection or a request of a client was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientRefusal {
    /// TLS failed: its certificate, ours, or none.
    Tls,
    /// It did not finish the handshake in time.
    HandshakeTimeout,
    /// Its handshake was the oldest of more than may be in progress.
    HandshakeCrowd,
    /// It does not speak HTTP/2.
    Protocol,
    /// The access policy gives it no such role.
    NoRole,
    /// It asked for a cluster that it may not see.
    HiddenCluster,
    /// It has as many streams as one client may.
    ClientStreams,
}

impl ClientRefusal {
    /// All of them, in the order of their counters.
    const ALL: [Self; 7] = [
        Self::Tls,
        Self::HandshakeTimeout,
        Self::HandshakeCrowd,
        Self::Protocol,
        Self::NoRole,
        Self::HiddenCluster,
        Self::ClientStreams,
    ];

    /// The name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tls => "tls",
            Self::HandshakeTimeout => "handshake-timeout",
            Self::HandshakeCrowd => "handshake-crowd",
            Self::Protocol => "protocol",
            Self::NoRole => "no-role",
            Self::HiddenCluster => "hidden-cluster",
            Self::ClientStreams => "client-streams",
        }
    }
}

#[derive(Debug)]
pub(super) struct Clients([IntCounter; ClientRefusal::ALL.len()]);

impl Clients {
    pub(super) fn new(registry: &Registry) -> Self {
        let refusals = always(IntCounterVec::new(table::CLIENT_REFUSALS.opts(), table::CLIENT_REFUSALS.labels));
        register(registry, &refusals);
        Self(ClientRefusal::ALL.map(|reason| refusals.with_label_values(&[reason.name()])))
    }

    pub(super) fn refused(&self, reason: ClientRefusal) {
        self.0[reason as usize].inc();
    }
}
