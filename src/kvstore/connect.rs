//! From a configuration to a session: resolve, dial, TLS, first answer, each with its own deadline.

use std::fmt;

use super::{ConnectError, EtcdConfig, Session, Timing};

/// Where in connecting we are, or where it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Certificates are read.
    Certificates,
    /// The name is resolved.
    Resolve,
    /// TCP connects.
    Dial,
    /// TLS shakes hands.
    Tls,
    /// The first call is answered (version, cluster ID, quorum, auth).
    FirstCall,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Certificates => "certificates",
            Self::Resolve => "resolve",
            Self::Dial => "dial",
            Self::Tls => "tls",
            Self::FirstCall => "first-call",
        })
    }
}

/// Makes sessions to one etcd; remembers which endpoint to try next.
#[derive(Debug)]
pub struct Connector {}

impl Connector {
    /// For that configuration.
    #[must_use]
    pub fn new(_config: EtcdConfig, _timing: Timing) -> Self {
        unimplemented!("skeleton")
    }

    /// Tries each endpoint once, beginning behind the last one used; reads the certificates anew each time.
    ///
    /// # Errors
    /// Why the last endpoint failed, with what the others said.
    pub async fn connect(&self, _report: &(dyn Fn(Stage, &str) + Send + Sync)) -> Result<Session, ConnectError> {
        unimplemented!("skeleton")
    }
}
