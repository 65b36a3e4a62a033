//! A subscription that outlives its streams, and, with a file, its process.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tonic::Streaming;

use super::fold::{Fold, Mesh, Update};
use super::{ClientError, ClientOptions, MeshClient, connect, state};
use crate::backoff::Backoff;
use crate::pb;

/// From the first attempt to connect again, with full jitter, to the longest wait between two.
const BACKOFF: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(10)];
/// What the server does where the request says nothing.
const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(30);
/// Heartbeats come when nothing else does; this much later at most.
const GRACE: Duration = Duration::from_secs(10);
/// From the call to the stream's first sign of life.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// Least time between two writings of the file: each writes all of it.
const SAVE_INTERVAL: Duration = Duration::from_secs(30);

/// What happened.
#[derive(Debug)]
pub enum Event {
    /// The gateway told something.
    Update(Update),
    /// A stream is over. What is known stays; the next stream begins after a while, by itself, at the next gateway.
    Disconnected {
        /// Why.
        why: ClientError,
        /// The while.
        retry_in: Duration,
    },
}

/// What to subscribe to, where, and what to remember.
#[derive(Clone, Debug)]
pub struct SubscriptionOptions {
    /// Gateways that serve the same mesh; where one fails, the next one is asked. At least one.
    pub gateways: Vec<ClientOptions>,
    /// What is asked for. Its tokens are ours to fill in.
    pub request: pb::SubscribeRequest,
    /// Where what is known is kept over restarts of the process; it is written every half a minute if something changed,
    /// and by [`Subscription::save`].
    pub state: Option<PathBuf>,
}

/// A subscription: what the gateways tell, folded, across as many streams as it takes.
#[derive(Debug)]
pub struct Subscription {
    gateways: Vec<ClientOptions>,
    /// The one that is asked, or asked next.
    at: usize,
    request: pb::SubscribeRequest,
    silence: Duration,
    fold: Fold,
    link: Link,
    backoff: Backoff,
    /// What the gateway asked for with its last frame.
    asked_to_wait: Option<Duration>,
    told: VecDeque<Update>,
    file: Option<File>,
}

#[derive(Debug)]
enum Link {
    Up(Box<Streaming<pb::SubscribeResponse>>),
    Down { until: Instant },
}

#[derive(Debug)]
struct File {
    path: PathBuf,
    /// Something is known that is not in it.
    stale: bool,
    next: Instant,
    writing: Option<JoinHandle<()>>,
}

impl Subscription {
    /// Connects to one gateway and subscribes.
    ///
    /// # Errors
    /// The first connection, and only that, has to succeed.
    pub async fn open(gateway: ClientOptions, request: pb::SubscribeRequest) -> Result<Self, ClientError> {
        Self::open_with(SubscriptionOptions { gateways: vec![gateway], request, state: None }).await
    }

    /// Connects to any of several gateways, beginning with a random one, and subscribes.
    ///
    /// # Errors
    /// The first connection to one of them, and only that, has to succeed; the error is that of the last one tried.
    pub async fn open_with(options: SubscriptionOptions) -> Result<Self, ClientError> {
        let SubscriptionOptions { gateways, request, state } = options;
        let fold = state.as_deref().map_or_else(|| Fold::of(&request), |path| remembered(path, &request));
        let heartbeat = request.heartbeat_interval.and_then(|interval| interval.try_into().ok());
        let mut subscription = Self {
            silence: heartbeat.unwrap_or(DEFAULT_HEARTBEAT) + GRACE,
            at: fastrand::usize(..gateways.len().max(1)),
            gateways,
            fold,
            request,
            link: Link::Down { until: Instant::now() },
            backoff: Backoff::new(BACKOFF[0], BACKOFF[1]),
            asked_to_wait: None,
            told: VecDeque::new(),
            file: state.map(|path| File { path, stale: false, next: Instant::now() + SAVE_INTERVAL, writing: None }),
        };
        let mut failed = ClientError::Address("none is given".to_owned());
        for _ in 0..subscription.gateways.len() {
            match subscription.subscribe().await {
                Ok(()) => return Ok(subscription),
                Err(error) => failed = error,
            }
            subscription.at += 1;
        }
        Err(failed)
    }

    /// The mesh as far as it was told: complete clusters only.
    #[must_use]
    pub fn mesh(&self) -> &Mesh {
        self.fold.mesh()
    }

    /// What stands for what is known, by cluster: for an acknowledgement, or for whoever keeps state elsewhere.
    #[must_use]
    pub fn tokens(&self) -> std::collections::HashMap<String, Vec<u8>> {
        self.fold.tokens()
    }

    /// The next event; never the last one. Cancel-safe.
    pub async fn next(&mut self) -> Event {
        loop {
            if let Some(update) = self.told.pop_front() {
                self.save_now_and_then(&update);
                return Event::Update(update);
            }
            let failed = match &mut self.link {
                Link::Up(stream) => match timeout(self.silence, stream.message()).await {
                    Ok(Ok(Some(response))) => self.take(response).err(),
                    Ok(Ok(None)) => Some(ClientError::Ended("without a reason".to_owned())),
                    Ok(Err(status)) => Some(ClientError::of_status(&self.gateway().address, &status)),
                    Err(_) => {
                        let silence = humantime::format_duration(self.silence);
                        Some(ClientError::Ended(format!("no sign of life for {silence}")))
                    }
                },
                Link::Down { until } => {
                    sleep_until(*until).await;
                    self.subscribe().await.err()
                }
            };
            if let Some(why) = failed {
                if matches!(why, ClientError::Contradiction(_)) {
                    self.fold.forget_tokens();
                }
                self.at += 1;
                let backoff = self.backoff.next_delay();
                let retry_in = self.asked_to_wait.take().map_or(backoff, |asked| asked.max(backoff));
                self.link = Link::Down { until: Instant::now() + retry_in };
                return Event::Disconnected { why, retry_in };
            }
        }
    }

    /// Writes what is known to the file, if there is one.
    ///
    /// # Errors
    /// What the system says.
    pub async fn save(&mut self) -> Result<(), state::StateError> {
        let Some(file) = &mut self.file else { return Ok(()) };
        if let Some(writing) = file.writing.take() {
            // It was our own, and says by itself what went wrong.
            let _ = writing.await;
        }
        let (path, bytes) = (file.path.clone(), state::record(&self.fold));
        let written = tokio::task::spawn_blocking(move || state::write(&path, &bytes)).await;
        written.map_err(std::io::Error::other)??;
        file.stale = false;
        Ok(())
    }

    fn save_now_and_then(&mut self, update: &Update) {
        let Some(file) = &mut self.file else { return };
        file.stale |= matches!(update, Update::Synced { .. } | Update::Changed { .. } | Update::Removed { .. });
        let busy = file.writing.as_ref().is_some_and(|writing| !writing.is_finished());
        // What was folded but not taken yet would not be told after a restart.
        if !file.stale || busy || !self.told.is_empty() || Instant::now() < file.next {
            return;
        }
        (file.stale, file.next) = (false, Instant::now() + SAVE_INTERVAL);
        let (path, bytes) = (file.path.clone(), state::record(&self.fold));
        file.writing = Some(tokio::task::spawn_blocking(move || {
            if let Err(error) = state::write(&path, &bytes) {
                tracing::warn!(path = %path.display(), %error, "what is known could not be written");
            }
        }));
    }

    fn gateway(&self) -> &ClientOptions {
        &self.gateways[self.at % self.gateways.len()]
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

    /// Opens the next stream.
    async fn subscribe(&mut self) -> Result<(), ClientError> {
        let mut request = self.request.clone();
        request.resume_tokens = self.fold.tokens();
        let gateway = self.gateway();
        let mut client: MeshClient = connect(gateway).await?;
        let stream = match timeout(OPEN_TIMEOUT, client.subscribe(request)).await {
            Ok(Ok(response)) => response.into_inner(),
            Ok(Err(status)) => return Err(ClientError::of_status(&gateway.address, &status)),
            Err(_) => return Err(ClientError::timeout(&gateway.address, OPEN_TIMEOUT)),
        };
        self.fold.begin();
        self.link = Link::Up(Box::new(stream));
        Ok(())
    }
}

/// What an earlier process knew. A file that is of no use costs a snapshot, nothing else.
fn remembered(path: &std::path::Path, request: &pb::SubscribeRequest) -> Fold {
    let read = match std::fs::read(path) {
        Ok(bytes) => state::restore(&bytes, Fold::of(request)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Fold::of(request),
        Err(error) => Err(error.into()),
    };
    read.unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), %error, "what was known before is of no use; everything comes anew");
        Fold::of(request)
    })
}
