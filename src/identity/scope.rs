//! Scopes: where an identity is valid.

use std::fmt;

use super::{LabelRef, SOURCE_RESERVED};

/// Where an identity is valid; the high 8 bits of its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// The whole mesh; also the reserved numbers.
    Global,
    /// One node: CIDR, FQDN.
    NodeLocal,
    /// Other nodes, as seen from one node.
    RemoteNode,
}

impl Scope {
    /// The scope that an identity with these labels gets; reserved identities are looked up first, see
    /// [`super::ReservedIdentities::by_labels`]. No labels at all are global.
    #[must_use]
    pub fn of_labels<'a>(labels: impl IntoIterator<Item = LabelRef<'a>>) -> Self {
        let mut labels = labels.into_iter().peekable();
        let mut node_local = labels.peek().is_some();
        for label in labels {
            // Whatever the source: `k8s:remote-node=x` counts too (golden `k8s-label-named-remote-node`, against WIRE.md).
            if label.key == "remote-node" {
                return Self::RemoteNode;
            }
            node_local &= matches!(label.source, "cidr" | "cidrgroup" | "fqdn" | SOURCE_RESERVED);
        }
        if node_local { Self::NodeLocal } else { Self::Global }
    }

    /// Cilium's word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::NodeLocal => "local",
            Self::RemoteNode => "remote-node",
        }
    }

    /// The scope whose bits these are; `None` for a number of no scope.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Option<Self> {
        match bits {
            0 => Some(Self::Global),
            0x0100_0000 => Some(Self::NodeLocal),
            0x0200_0000 => Some(Self::RemoteNode),
            _ => None,
        }
    }

    /// The scope's bits, in place.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Self::Global => 0,
            Self::NodeLocal => 0x0100_0000,
            Self::RemoteNode => 0x0200_0000,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
