//! A TCP proxy between a client and a server on this machine, which fails as networks do.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    ToServer,
    ToClient,
}

/// The proxy. Dropping it ends it and every connection through it.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    _task: AbortOnDropHandle<()>,
}

#[derive(Debug)]
struct Shared {
    target: AtomicU16,
    /// The targets of the next connections, in turn; empty for always the same.
    turns: Mutex<VecDeque<u16>>,
    refusing: AtomicBool,
    /// Cancelled to end all connections; replaced then.
    cut: Mutex<CancellationToken>,
    stalled: watch::Sender<[bool; 2]>,
    delay: Mutex<Duration>,
    /// Bytes that may go to clients before everything is cut and refused.
    allowance: AtomicI64,
    accepted: AtomicU64,
    open: AtomicUsize,
    bytes: [AtomicU64; 2],
}

impl Proxy {
    pub async fn to(target: u16) -> Self {
        Self::on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap(), target)
    }

    /// Listens there.
    pub fn on(listener: TcpListener, target: u16) -> Self {
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            target: target.into(),
            turns: Mutex::default(),
            refusing: AtomicBool::new(false),
            cut: Mutex::default(),
            stalled: watch::Sender::new([false; 2]),
            delay: Mutex::default(),
            allowance: AtomicI64::new(i64::MAX),
            accepted: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            bytes: [AtomicU64::new(0), AtomicU64::new(0)],
        });
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { port, shared, _task: AbortOnDropHandle::new(task) }
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Connections taken so far.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Connections through it at the moment.
    pub fn open(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }

    /// Bytes that went through so far.
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.shared.bytes[direction as usize].load(Ordering::SeqCst)
    }

    /// Ends all connections; new ones go through.
    pub fn cut(&self) {
        self.shared.cut();
    }

    /// Ends all connections, and new ones as soon as they come, until [`Self::restore`].
    pub fn cut_off(&self) {
        self.shared.refusing.store(true, Ordering::SeqCst);
        self.cut();
    }

    /// As [`Self::cut_off`], as soon as that many more bytes have gone to clients.
    pub fn cut_off_after(&self, bytes: i64) {
        self.shared.allowance.store(bytes, Ordering::SeqCst);
    }

    /// Whether it was cut off, by whatever.
    pub fn is_cut_off(&self) -> bool {
        self.shared.refusing.load(Ordering::SeqCst)
    }

    /// Lets connections through again.
    pub fn restore(&self) {
        self.shared.allowance.store(i64::MAX, Ordering::SeqCst);
        self.shared.refusing.store(false, Ordering::SeqCst);
    }

    /// Swallows what goes that way, without a word to either side: a black hole.
    pub fn stall(&self, direction: Direction) {
        self.shared.stalled.send_modify(|stalled| stalled[direction as usize] = true);
    }

    /// Lets flow what was held up.
    pub fn flow(&self) {
        self.shared.stalled.send_replace([false; 2]);
    }

    /// Holds up whatever goes either way for that time.
    pub fn delay(&self, by: Duration) {
        *self.shared.delay.lock().unwrap() = by;
    }

    /// New connections go to these servers in turn, as a balancer does it; those that exist are ended.
    pub fn alternate(&self, targets: impl IntoIterator<Item = u16>) {
        *self.shared.turns.lock().unwrap() = targets.into_iter().collect();
        self.cut();
    }

    /// New connections go to another server; those that exist are ended.
    pub fn retarget(&self, target: u16) {
        self.shared.target.store(target, Ordering::SeqCst);
        self.cut();
    }
}

impl Shared {
    fn next_target(&self) -> u16 {
        let mut turns = self.turns.lock().unwrap();
        let Some(next) = turns.pop_front() else { return self.target.load(Ordering::SeqCst) };
        turns.push_back(next);
        next
    }

    fn cut(&self) {
        std::mem::take(&mut *self.cut.lock().unwrap()).cancel();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.unwrap();
        if shared.refusing.load(Ordering::SeqCst) {
            continue;
        }
        shared.accepted.fetch_add(1, Ordering::SeqCst);
        let cut = shared.cut.lock().unwrap().clone();
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            shared.open.fetch_add(1, Ordering::SeqCst);
            cut.run_until_cancelled(relay(client, &shared)).await;
            shared.open.fetch_sub(1, Ordering::SeqCst);
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn relay(client: TcpStream, shared: &Shared) {
    // A server that is down is a connection that ends.
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, shared.next_target())).await else {
        return;
    };
    // Otherwise the proxy would hold up small packets by itself.
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = pump(from_client, to_server, Direction::ToServer, shared) => {}
        () = pump(from_server, to_client, Direction::ToClient, shared) => {}
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, direction: Direction, shared: &Shared) {
    let mut stalled = shared.stalled.subscribe();
    let mut buffer = vec![0; 16 << 10];
    loop {
        let read = from.read(&mut buffer).await.unwrap_or(0);
        if read == 0 {
            return;
        }
        if stalled.wait_for(|stalled| !stalled[direction as usize]).await.is_err() {
            return;
        }
        let delay = *shared.delay.lock().unwrap();
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
        shared.bytes[direction as usize].fetch_add(read as u64, Ordering::SeqCst);
        let bytes = i64::try_from(read).unwrap();
        if direction == Direction::ToClient && shared.allowance.fetch_sub(bytes, Ordering::SeqCst) <= bytes {
            shared.refusing.store(true, Ordering::SeqCst);
            shared.cut();
        }
    }
}
