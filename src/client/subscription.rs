//! A subscription that outlives its streams.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};
use tonic::Streaming;

use super::fold::{Fold, Mesh, Update};
use super::{ClientError, ClientOptions, MeshClient, connect};
use crate::api::pb;
use crate::kvstore::Backoff;

/// From the first attempt to connect again, with full jitter, to the longest wait between two.
const BACKOFF: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(10)];
/// What the server does where the request says nothing.
const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(30);
/// Heartbeats come when nothing else does; this much later at most.
const GRACE: Duration = Duration::from_secs(10);
/// From the call to the stream's first sign of life.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// The gateway told something.
    Update(Update),
    /// A stream is over. What is known stays; the next stream begins after a while, by itself.
    Disconnected {
        /// Why.
        why: ClientError,
        /// The while.
        retry_in: Duration,
    },
}

/// A subscription: what the gateway tells, folded, across as many streams as it takes.
#[derive(Debug)]
pub struct Subscription {
    options: ClientOptions,
    request: pb::SubscribeRequest,
    silence: Duration,
    fold: Fold,
    link: Link,
    backoff: Backoff,
    /// What the gateway asked for with its last frame.
    asked_to_wait: Option<Duration>,
    told: VecDeque<Update>,
}

#[derive(Debug)]
enum Link {
    Up(Box<Streaming<pb::SubscribeResponse>>),
    Down { until: Instant },
}

impl Subscription {
    /// Connects and subscribes.
    ///
    /// # Errors
    /// The first connection, and only that, has to succeed.
    pub async fn open(options: ClientOptions, request: pb::SubscribeRequest) -> Result<Self, ClientError> {
        let heartbeat = request.heartbeat_interval.and_then(|interval| interval.try_into().ok());
        let stream = subscribe(&options, &request).await?;
        Ok(Self {
            silence: heartbeat.unwrap_or(DEFAULT_HEARTBEAT) + GRACE,
            fold: Fold::of(&request),
            options,
            request,
            link: Link::Up(Box::new(stream)),
            backoff: Backoff::new(BACKOFF[0], BACKOFF[1]),
            asked_to_wait: None,
            told: VecDeque::new(),
        })
    }

    /// The mesh as far as it was told: complete clusters only.
    #[must_use]
    pub fn mesh(&self) -> &Mesh {
        self.fold.mesh()
    }

    /// The next event; never the last one. Cancel-safe.
    pub async fn next(&mut self) -> Event {
        loop {
            if let Some(update) = self.told.pop_front() {
                return Event::Update(update);
            }
            let failed = match &mut self.link {
                Link::Up(stream) => match timeout(self.silence, stream.message()).await {
                    Ok(Ok(Some(response))) => self.take(response).err(),
                    Ok(Ok(None)) => Some(ClientError::Ended("without a reason".to_owned())),
                    Ok(Err(status)) => Some(ClientError::of_status(&self.options.address, &status)),
                    Err(_) => {
                        let silence = humantime::format_duration(self.silence);
                        Some(ClientError::Ended(format!("no sign of life for {silence}")))
                    }
                },
                Link::Down { until } => {
                    sleep_until(*until).await;
                    self.request.resume_tokens = self.fold.tokens();
                    match subscribe(&self.options, &self.request).await {
                        Ok(stream) => {
                            self.fold.begin();
                            self.link = Link::Up(Box::new(stream));
                            None
                        }
                        Err(error) => Some(error),
                    }
                }
            };
            if let Some(why) = failed {
                if matches!(why, ClientError::Contradiction(_)) {
                    self.fold.forget_tokens();
                }
                let backoff = self.backoff.next_delay();
                let retry_in = self.asked_to_wait.take().map_or(backoff, |asked| asked.max(backoff));
                self.link = Link::Down { until: Instant::now() + retry_in };
                return Event::Disconnected { why, retry_in };
            }
        }
    }

    fn take(&mut self, response: pb::SubscribeResponse) -> Result<(), ClientError> {
        // A frame of a kind that this client is too old for.
        let Some(frame) = response.frame else { return Ok(()) };
        let updates = self.fold.apply(frame)?;
        for update in &updates {
            match update {
                // A stream that does not come this far is one more failure in a row.
                Update::Synced { .. } | Update::AllSynced { .. } => self.backoff.reset(),
                Update::GoAway(go_away) => {
                    self.asked_to_wait = go_away.reconnect_after.and_then(|after| after.try_into().ok());
                }
                _ => {}
            }
        }
        self.told.extend(updates);
        Ok(())
    }
}

async fn subscribe(
    options: &ClientOptions,
    request: &pb::SubscribeRequest,
) -> Result<Streaming<pb::SubscribeResponse>, ClientError> {
    let mut client: MeshClient = connect(options).await?;
    match timeout(OPEN_TIMEOUT, client.subscribe(request.clone())).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(ClientError::of_status(&options.address, &status)),
        Err(_) => Err(ClientError::timeout(&options.address, OPEN_TIMEOUT)),
    }
}
