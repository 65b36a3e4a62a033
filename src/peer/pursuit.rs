//! What goes on while a peer's session lasts: its canary is awaited and its identities are followed, its configuration and
//! its heartbeat are watched. Whichever of them ends says why the session is of no use any more.

use std::time::SystemTime;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::{Instant, sleep, timeout_at};

use super::config::Us;
use super::heartbeat::Heartbeat;
use super::lifecycle::PeerTiming;
use super::state::{Plan, Reading, Verdict, decide};
use super::tenure::Tenure;
use crate::identity::ClusterName;
use crate::kvstore::{KeyWatch, Session, SessionError, jittered};
use crate::mirror::{Failure, Reporter, layout};
use crate::telemetry::ClusterState;

/// Why a session is given up.
#[derive(Debug)]
pub(super) struct End {
    pub(super) failure: Failure,
    pub(super) retryable: bool,
}

impl From<SessionError> for End {
    fn from(error: SessionError) -> Self {
        Self { failure: Failure::from(&error), retryable: error.is_retryable() }
    }
}

/// Awaits the canary, then lists and watches until the session is over.
pub(super) async fn pursue(
    tenure: &mut Tenure,
    session: &Session,
    plan: &Plan,
    timing: &PeerTiming,
    reporter: &Reporter,
) -> End {
    if let Some(canary) = &plan.canary
        && let Err(end) = await_canary(session, canary, timing, reporter).await
    {
        return end;
    }
    tenure.follower.follow(session, reporter).await.into()
}

async fn await_canary(session: &Session, canary: &str, timing: &PeerTiming, reporter: &Reporter) -> Result<(), End> {
    reporter.approach(ClusterState::AwaitingCanary, "canary");
    let deadline = Instant::now() + timing.canary_wait;
    let mut watched = KeyWatch::open(session, canary.as_bytes()).await?;
    while watched.value().is_none() {
        let failure = Failure {
            reason: "canary-missing",
            message: format!("the peer has not said yet that its identities are complete: no key {canary}"),
            hint: "normal while its clustermesh-apiserver fills a new etcd; otherwise look at that server's log".into(),
        };
        reporter.blocked(ClusterState::AwaitingCanary, "canary", failure.clone());
        match timeout_at(deadline, watched.changed()).await {
            Ok(changed) => changed?,
            Err(_) => return Err(End { failure, retryable: true }),
        }
    }
    Ok(())
}

/// Returns when the configuration says anything else than `plan`. One that is absent or malformed says nothing.
pub(super) async fn until_changed(
    config: &mut KeyWatch,
    plan: &Plan,
    us: &Us,
    peer: &ClusterName,
    reporter: &Reporter,
) -> Result<(), SessionError> {
    loop {
        match decide(&Reading::of(config.value()), us, peer, Some(plan.id)).verdict {
            Verdict::Wait(failure) => reporter.concern(failure),
            Verdict::Follow(same) if same == *plan => {}
            Verdict::Follow(_) | Verdict::Refuse(_) => return Ok(()),
        }
        config.changed().await?;
    }
}

/// Reads the heartbeat again and again; returns when the session is of no use any more.
pub(super) async fn follow_heartbeat(
    heartbeat: &mut Heartbeat,
    session: &Session,
    timing: &PeerTiming,
    reporter: &Reporter,
) -> End {
    loop {
        let value = match session.get(layout::HEARTBEAT_KEY.as_bytes()).await {
            Ok((value, _)) => value.map(|entry| entry.value),
            // A peer may grant us no access to it: then it has none for us.
            Err(SessionError::Denied(_)) => None,
            Err(error) => return error.into(),
        };
        let now = Instant::now();
        if heartbeat.saw(value.as_deref(), now) {
            reporter.heartbeat(value.as_deref().and_then(parse_time));
        }
        reporter.heartbeat_stale(heartbeat.is_stale(now));
        if heartbeat.is_session_over(now) {
            heartbeat.give_up();
            return session.give_up(SessionError::Stale(timing.heartbeat_timeout)).into();
        }
        sleep(jittered(timing.poll)).await;
    }
}

fn parse_time(value: &[u8]) -> Option<SystemTime> {
    OffsetDateTime::parse(std::str::from_utf8(value).ok()?, &Rfc3339).ok().map(SystemTime::from)
}
