//! The numbers that Cilium reserves by name, 0 to 11.

use crate::identity::NumericIdentity;

/// Names of the numbers from 0 on. 0 is not an identity but the absence of one.
const NAMES: [&str; 11] = [
    "unknown",
    "host",
    "world",
    "unmanaged",
    "health",
    "init",
    "remote-node",
    "kube-apiserver",
    "ingress",
    "world-ipv4",
    "world-ipv6",
];

/// The mark of traffic on its way to the encrypted overlay. Cilium knows the number by its name, but neither the name by
/// the number nor any labels (golden `reserved_names` and `numeric_identities`).
const OVERLAY_TO_ENCRYPT: (&str, NumericIdentity) = ("overlay-to-encrypt", NumericIdentity::new(11));

/// Identities with labels: number and key string.
pub(super) const LABELLED: [(NumericIdentity, &str); 10] = [
    (NumericIdentity::new(1), "reserved:host=;"),
    (NumericIdentity::new(2), "reserved:world=;"),
    (NumericIdentity::new(3), "reserved:unmanaged=;"),
    (NumericIdentity::new(4), "reserved:health=;"),
    (NumericIdentity::new(5), "reserved:init=;"),
    (NumericIdentity::new(6), "reserved:remote-node=;"),
    (NumericIdentity::new(7), "reserved:kube-apiserver=;reserved:remote-node=;"),
    (NumericIdentity::new(8), "reserved:ingress=;"),
    (NumericIdentity::new(9), "reserved:world-ipv4=;"),
    (NumericIdentity::new(10), "reserved:world-ipv6=;"),
];

impl NumericIdentity {
    /// The name of a number that Cilium reserves, 0 to 10; names that users give are in
    /// [`super::ReservedIdentities::name_of`].
    #[must_use]
    pub const fn reserved_name(self) -> Option<&'static str> {
        // `get` of a slice is not const.
        if (self.get() as usize) < NAMES.len() { Some(NAMES[self.get() as usize]) } else { None }
    }

    /// The number that Cilium reserves under `name`.
    #[must_use]
    pub fn from_reserved_name(name: &str) -> Option<Self> {
        if name == OVERLAY_TO_ENCRYPT.0 {
            return Some(OVERLAY_TO_ENCRYPT.1);
        }
        (0..).zip(NAMES).find_map(|(number, known)| (known == name).then_some(Self::new(number)))
    }
}
