//! The gRPC API's settings.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::error::Problem;
use super::resolve::{Resolver, Wrong};
use super::settings as s;
use super::times;
use crate::view::HistoryLimits;

/// The gRPC API.
#[derive(Clone, Debug)]
pub struct ApiConfig {
    /// Where it listens.
    pub listen: SocketAddr,
    /// How it is guarded.
    pub security: Security,
    /// Subscription streams at a time.
    pub max_subscribers: usize,
    /// The same for one client.
    pub max_per_client: usize,
    /// The file that says who may do what; without one, whoever TLS lets in may do everything.
    pub access_policy: Option<PathBuf>,
    /// What is kept for subscribers that come back.
    pub history: HistoryLimits,
    /// How long an old version is held for a subscriber that does not read.
    pub hold: Duration,
    /// How old a stream may grow.
    pub max_age: Option<Duration>,
}

/// How the gRPC API is guarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Security {
    /// Not at all: the API listens on a loopback address.
    Plaintext,
    /// Mutual TLS.
    MutualTls {
        /// Certificate chain, PEM.
        cert: PathBuf,
        /// Its key, PEM.
        key: PathBuf,
        /// CAs whose clients are let in, PEM.
        client_ca: PathBuf,
    },
}

pub(super) fn read(r: &mut Resolver) -> Option<ApiConfig> {
    let listen = r.address(&s::LISTEN);
    let max_subscribers = r.number(&s::MAX_SUBSCRIBERS, 1..=1_000_000);
    let max_per_client = r.number(&s::MAX_SUBSCRIPTIONS_PER_CLIENT, 1..=1_000_000);
    let access_policy = r.path(&s::ACCESS_POLICY);
    let memory = r.number(&s::RESUME_HISTORY_MEMORY, 0..=65_536_usize);
    let age = r.time(&s::RESUME_HISTORY_AGE, times(0, 86_400_000));
    let hold = r.time(&s::SUBSCRIBER_HOLD_LIMIT, times(1_000, 86_400_000));
    let max_age = r.time_or_never(&s::SUBSCRIBER_MAX_AGE, times(1_000, 31 * 86_400_000));
    let plaintext = r.switch(&s::PLAINTEXT);
    if plaintext? && access_policy.is_some() {
        let what = "given together with plaintext, where no client has a certificate to go by";
        r.wrong(&s::ACCESS_POLICY, Wrong::new(what, "leave one of the two out"));
    }
    let security = security(r, listen, plaintext?);
    let history = HistoryLimits { memory: memory? << 20, age: age? };
    Some(ApiConfig {
        listen: listen?,
        security: security?,
        max_subscribers: max_subscribers?,
        max_per_client: max_per_client?,
        access_policy,
        history,
        hold: hold?,
        max_age: Some(max_age?).filter(|age| *age != Duration::MAX),
    })
}

fn security(r: &mut Resolver, listen: Option<SocketAddr>, plaintext: bool) -> Option<Security> {
    let files = [&s::TLS_CERT, &s::TLS_KEY, &s::TLS_CLIENT_CA].map(|setting| (setting, r.path(setting)));
    if plaintext {
        if listen.is_some_and(|listen| !listen.ip().is_loopback()) {
            let what = "plaintext is for loopback addresses only";
            r.wrong(&s::LISTEN, Wrong::new(what, "listen on 127.0.0.1 or [::1], or give TLS files in its place"));
        }
        for (setting, path) in files {
            if path.is_some() {
                r.wrong(setting, Wrong::new("given together with plaintext", "leave one of the two out"));
            }
        }
        return Some(Security::Plaintext);
    }
    let missing: Vec<_> = files.iter().filter(|(_, path)| path.is_none()).map(|(setting, _)| setting.name).collect();
    if !missing.is_empty() {
        r.problems.push(Problem {
            place: missing.join(", "),
            what: "the gRPC API is served over mutual TLS, and this is not given".to_owned(),
            advice: "give it (`meshgate certs` makes a set for development), or plaintext on a loopback address"
                .to_owned(),
        });
    }
    let [(_, cert), (_, key), (_, client_ca)] = files;
    Some(Security::MutualTls { cert: cert?, key: key?, client_ca: client_ca? })
}
