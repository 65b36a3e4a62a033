//! Cluster IDs, cluster names, and how many clusters a mesh can have.

use std::fmt;
use std::sync::Arc;

/// How many clusters the mesh's numbers can tell apart, hence how the low 24 bits of a number are split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MaxConnectedClusters {
    /// 8 bits of cluster ID, 16 of cluster-local ID.
    #[default]
    C255,
    /// 9 bits of cluster ID, 15 of cluster-local ID.
    C511,
}

impl MaxConnectedClusters {
    /// The highest cluster ID.
    #[must_use]
    pub const fn max_id(self) -> u16 {
        match self {
            Self::C255 => 255,
            Self::C511 => 511,
        }
    }

    /// Bits of the cluster-local part.
    #[must_use]
    pub const fn shift(self) -> u32 {
        match self {
            Self::C255 => 16,
            Self::C511 => 15,
        }
    }

    /// 255 or 511; 0 (absent in a cluster-config) means 255.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            0 | 255 => Some(Self::C255),
            511 => Some(Self::C511),
            _ => None,
        }
    }
}

/// A cluster's ID; 0 means unset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(u16);

impl ClusterId {
    /// A cluster that belongs to no mesh.
    pub const UNSET: Self = Self(0);

    /// Checks `id` against the mesh's width: 1 to 255, or to 511.
    ///
    /// # Errors
    /// 0 and what is above the maximum.
    pub fn new(id: u32, width: MaxConnectedClusters) -> Result<Self, ClusterIdError> {
        match u16::try_from(id) {
            Ok(0) => Err(ClusterIdError::Zero),
            Ok(id) if id <= width.max_id() => Ok(Self(id)),
            _ => Err(ClusterIdError::AboveMaximum { id, max: width.max_id() }),
        }
    }

    pub(super) const fn new_unchecked(id: u16) -> Self {
        Self(id)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a number is not a cluster ID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterIdError {
    /// 0 is "unset".
    #[error("cluster ID 0 is reserved")]
    Zero,
    /// Beyond what the mesh's numbers can hold.
    #[error("cluster ID {id} is above {max}, the most that this mesh's numbers can tell apart")]
    AboveMaximum {
        /// The ID found.
        id: u32,
        /// The highest one allowed.
        max: u16,
    },
}

/// A valid cluster name; cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterName(Arc<str>);

impl ClusterName {
    /// Characters that a name may have.
    pub const MAX_LEN: usize = 32;

    /// The name of a cluster that was given none.
    pub const DEFAULT: &str = "default";

    /// Checks the rules of WIRE.md: 1 to 32 characters, lower-case letters, digits and `-`, beginning and ending with a
    /// letter or digit.
    ///
    /// # Errors
    /// Which rule is broken.
    pub fn new(name: &str) -> Result<Self, ClusterNameError> {
        let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let (Some(first), Some(last)) = (name.bytes().next(), name.bytes().next_back()) else {
            return Err(ClusterNameError::Empty);
        };
        // Cilium counts bytes; a name of other than ASCII characters fails either way.
        if name.len() > Self::MAX_LEN {
            return Err(ClusterNameError::TooLong(name.chars().count()));
        }
        if alphanumeric(first) && alphanumeric(last) && name.bytes().all(|byte| byte == b'-' || alphanumeric(byte)) {
            Ok(Self(name.into()))
        } else {
            Err(ClusterNameError::Characters)
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Checks the name and the ID of the own cluster, as configured. Here an ID of 0 is none: a cluster outside any mesh,
/// which alone may keep the name `default` (WIRE.md, "Numeric identities").
///
/// # Errors
/// The name's, the ID's, or that the two do not go together.
pub fn validate_cluster(
    name: &str,
    id: u32,
    width: MaxConnectedClusters,
) -> Result<(ClusterName, ClusterId), ClusterError> {
    let name = ClusterName::new(name)?;
    let id = if id == 0 { ClusterId::UNSET } else { ClusterId::new(id, width)? };
    if id != ClusterId::UNSET && name.as_str() == ClusterName::DEFAULT {
        return Err(ClusterError::DefaultName(id));
    }
    Ok((name, id))
}

/// Why a name and an ID are not a cluster's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// The name alone is wrong.
    #[error(transparent)]
    Name(#[from] ClusterNameError),
    /// The ID alone is wrong.
    #[error(transparent)]
    Id(#[from] ClusterIdError),
    /// The name that every cluster has by default, with an ID other than 0.
    #[error("a cluster with ID {0} needs a name of its own, it may not be named 'default'")]
    DefaultName(ClusterId),
}

/// Why a text is not a cluster name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterNameError {
    /// No characters at all.
    #[error("a cluster name must not be empty")]
    Empty,
    /// More than 32 characters.
    #[error("a cluster name must not be longer than 32 characters, this one has {0}")]
    TooLong(usize),
    /// Something else than `^([a-z0-9][-a-z0-9]*)?[a-z0-9]$`.
    #[error(
        "a cluster name consists of lower-case letters, digits and '-', and begins and ends with a letter or digit"
    )]
    Characters,
}
