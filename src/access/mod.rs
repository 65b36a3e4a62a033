//! Who may do what: roles by the names in a client's certificate, from a file that is read again as it changes.
//!
//! [`Pattern`] matches names, [`AccessPolicy`] is the file, [`Access`] the policy of the moment. The `api` room asks
//! [`Access::grant`] at each request, and ends streams whose grant is another one after a change.

mod pattern;
mod policy;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use tokio::sync::watch;

pub use pattern::{Pattern, PatternError};
pub use policy::{AccessPolicy, PolicyError, RuleError};

use crate::tls::CertFacts;

/// What a client may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Reads identities and clusters.
    Subscriber,
    /// Allocates identities.
    Allocator,
    /// Everything, and sees who else is there.
    Admin,
}

impl Role {
    /// As the file spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Subscriber => "subscriber",
            Self::Allocator => "allocator",
            Self::Admin => "admin",
        }
    }
}

/// Which clusters a client may see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Visible {
    /// All, those that are still to come included.
    #[default]
    All,
    /// These.
    Only(Arc<BTreeSet<String>>),
}

impl Visible {
    /// Whether that one is among them.
    #[must_use]
    pub fn contains(&self, cluster: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(clusters) => clusters.contains(cluster),
        }
    }
}

/// What one client may do; an extension of every request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    roles: BTreeSet<Role>,
    /// The clusters that it may see.
    pub visible: Visible,
}

impl Grant {
    /// Everything.
    #[must_use]
    pub fn all() -> Self {
        Self { roles: BTreeSet::from([Role::Admin]), visible: Visible::All }
    }

    /// Nothing.
    #[must_use]
    pub fn none() -> Self {
        Self { roles: BTreeSet::new(), visible: Visible::Only(Arc::default()) }
    }

    /// Whether the client has that role; an admin has all.
    #[must_use]
    pub fn is(&self, role: Role) -> bool {
        self.roles.contains(&role) || self.roles.contains(&Role::Admin)
    }
}

/// The policy of the moment; cheap to clone. Without one, whoever the listener's CAs vouch for may do everything.
#[derive(Clone, Debug)]
pub struct Access(watch::Receiver<Arc<Option<AccessPolicy>>>);

impl Default for Access {
    fn default() -> Self {
        Self(watch::channel(Arc::default()).1)
    }
}

impl Access {
    /// What a client with that certificate may do at the moment. One without was let in without TLS, so over a loopback
    /// address: it is this host's and may do everything.
    #[must_use]
    pub fn grant(&self, certificate: Option<&CertFacts>) -> Grant {
        let policy = Arc::clone(&self.0.borrow());
        match (&*policy, certificate) {
            (None, _) | (_, None) => Grant::all(),
            (Some(policy), Some(certificate)) => policy.grant(certificate),
        }
    }

    /// Resolves when the policy has changed and [`Self::take_change`] has not told it yet; never, where it cannot change.
    pub async fn changed(&mut self) {
        match self.0.changed().await {
            // Still to be taken.
            Ok(()) => self.0.mark_changed(),
            Err(_) => std::future::pending().await,
        }
    }

    /// Whether it has changed since this was last asked of this handle.
    pub fn take_change(&mut self) -> bool {
        let changed = self.0.has_changed().unwrap_or_default();
        // Not otherwise: what changes between the two would never be told. A grant that is asked for behind this is the newest.
        if changed {
            self.0.mark_unchanged();
        }
        changed
    }
}

/// The file, and the policy that it holds.
#[derive(Debug)]
pub struct AccessFile {
    path: PathBuf,
    policy: watch::Sender<Arc<Option<AccessPolicy>>>,
}

impl AccessFile {
    /// Reads it for the first time.
    ///
    /// # Errors
    /// It cannot be read, or is no policy.
    pub fn open(path: PathBuf) -> Result<Self, PolicyError> {
        let policy = AccessPolicy::from_file(&path)?;
        Ok(Self { path, policy: watch::Sender::new(Arc::new(Some(policy))) })
    }

    /// The policy as it is kept.
    #[must_use]
    pub fn access(&self) -> Access {
        Access(self.policy.subscribe())
    }

    /// Reads it again, and returns whether it says something else. A file that cannot be used changes nothing.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn reload(&self) -> Result<bool, PolicyError> {
        let policy = AccessPolicy::from_file(&self.path)?;
        Ok(self.policy.send_if_modified(|current| {
            let is_new = current.as_ref().as_ref() != Some(&policy);
            if is_new {
                *current = Arc::new(Some(policy));
            }
            is_new
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(dns: &[&str], uris: &[&str]) -> CertFacts {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        CertFacts {
            subject: "CN=x".to_owned(),
            common_name: Some("admin".to_owned()),
            dns: owned(dns),
            uris: owned(uris),
            ips: Vec::new(),
            serial: "1".to_owned(),
            not_before: std::time::UNIX_EPOCH,
            not_after: std::time::UNIX_EPOCH,
        }
    }

    const POLICY: &str = "
rules:
  - clients: ['spiffe://mesh.example/ns/*/sa/agent']
    roles: [subscriber]
    clusters: [blue, green]
  - clients: ['dns:*.agents.example', 'spiffe://mesh.example/ns/kube-system/**']
    roles: [subscriber]
    clusters: [red]
  - clients: ['dns:ops.example']
    roles: [admin]
";

    #[test]
    fn every_rule_that_matches_counts() {
        let policy = AccessPolicy::from_yaml(POLICY).unwrap();
        let agent = policy.grant(&facts(&[], &["spiffe://mesh.example/ns/shop/sa/agent"]));
        assert!(agent.is(Role::Subscriber) && !agent.is(Role::Allocator) && !agent.is(Role::Admin));
        let seen = |grant: &Grant| ["blue", "green", "red"].map(|cluster| grant.visible.contains(cluster));
        assert_eq!(seen(&agent), [true, true, false]);
        let both = policy.grant(&facts(&[], &["spiffe://mesh.example/ns/kube-system/sa/agent"]));
        assert_eq!(seen(&both), [true, true, true]);
        let ops = policy.grant(&facts(&["ops.example"], &[]));
        assert!(ops.is(Role::Subscriber) && ops.is(Role::Allocator) && ops.is(Role::Admin));
        assert_eq!(ops.visible, Visible::All);
    }

    #[test]
    fn who_matches_no_rule_may_do_nothing() {
        let policy = AccessPolicy::from_yaml(POLICY).unwrap();
        for (dns, uris) in [
            (&["x.agents.example.evil"][..], &[][..]),
            (&["agents.example"], &[]),
            (&["a.b.agents.example"], &[]),
            (&[], &["spiffe://evil.example/ns/shop/sa/agent"]),
            (&[], &["spiffe://mesh.example/ns/shop/x/sa/agent"]),
            (&[], &["spiffe://mesh.example/ns//sa/agent"]),
            // A SPIFFE ID is one URI: more of them are none.
            (&[], &["spiffe://mesh.example/ns/shop/sa/agent", "spiffe://mesh.example/ns/b/sa/agent"]),
            // The common name is no name: only the SAN extension counts.
            (&[], &[]),
        ] {
            assert_eq!(policy.grant(&facts(dns, uris)), Grant::none(), "{dns:?} {uris:?}");
        }
    }

    #[test]
    fn a_file_that_breaks_changes_nothing_and_one_that_changes_is_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("access.yaml");
        std::fs::write(&path, POLICY).unwrap();
        let file = AccessFile::open(path.clone()).unwrap();
        let access = file.access();
        let ops = facts(&["ops.example"], &[]);
        assert!(!file.reload().unwrap());
        std::fs::write(&path, "rules: [{clients: ['ops.example'], roles: [admin]}]").unwrap();
        let error = file.reload().unwrap_err().to_string();
        assert!(error.contains("access.yaml") && error.contains("rules[0]"), "{error}");
        assert!(access.grant(Some(&ops)).is(Role::Admin));
        std::fs::write(&path, "rules: []").unwrap();
        assert!(file.reload().unwrap() && access.0.has_changed().unwrap());
        assert_eq!(access.grant(Some(&ops)), Grant::none());
        assert_eq!(access.grant(None), Grant::all());
    }
}
