//! Scopes: where an identity is valid.

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
