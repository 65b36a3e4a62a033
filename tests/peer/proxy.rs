//! A TCP proxy before an etcd: cuts what is open, refuses what comes, or lets only so many bytes through.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

pub(super) struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    _task: AbortOnDropHandle<()>,
}

struct Shared {
    refusing: AtomicBool,
    cut: Mutex<CancellationToken>,
    /// Bytes that a new connection may bring to the client; then it is cut, and later ones are refused.
    allowance: AtomicI64,
    accepted: AtomicU64,
}

impl Proxy {
    pub(super) async fn to(target: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            refusing: AtomicBool::new(false),
            cut: Mutex::default(),
            allowance: AtomicI64::new(i64::MAX),
            accepted: AtomicU64::new(0),
        });
        let task = tokio::spawn(accept(listener, target, Arc::clone(&shared)));
        Self { port, shared, _task: AbortOnDropHandle::new(task) }
    }

    pub(super) const fn port(&self) -> u16 {
        self.port
    }

    /// Connections taken so far.
    pub(super) fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Ends all connections, and new ones as soon as they come.
    pub(super) fn cut(&self) {
        self.shared.refusing.store(true, Ordering::SeqCst);
        std::mem::take(&mut *self.shared.cut.lock().unwrap()).cancel();
    }

    /// Lets connections through again.
    pub(super) fn restore(&self) {
        self.shared.allowance.store(i64::MAX, Ordering::SeqCst);
        self.shared.refusing.store(false, Ordering::SeqCst);
    }

    /// Lets connections through until that many bytes have come back; cuts then.
    pub(super) fn restore_for(&self, bytes: i64) {
        self.shared.allowance.store(bytes, Ordering::SeqCst);
        self.shared.refusing.store(false, Ordering::SeqCst);
    }

    /// Whether the allowance is used up.
    pub(super) fn is_spent(&self) -> bool {
        self.shared.allowance.load(Ordering::SeqCst) <= 0
    }
}

async fn accept(listener: TcpListener, target: u16, shared: Arc<Shared>) {
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
            let server = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await.unwrap();
            cut.run_until_cancelled(relay(client, server, &shared)).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn relay(client: TcpStream, server: TcpStream, shared: &Shared) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = tokio::io::copy(&mut from_client, &mut to_server);
    let down = async {
        let mut buffer = vec![0; 4096];
        loop {
            let read = from_server.read(&mut buffer).await.unwrap_or(0);
            let bytes = i64::try_from(read).unwrap();
            let left = shared.allowance.fetch_sub(bytes, Ordering::SeqCst) - bytes;
            if read == 0 || to_client.write_all(&buffer[..read]).await.is_err() {
                return;
            }
            if left <= 0 {
                shared.refusing.store(true, Ordering::SeqCst);
                return;
            }
        }
    };
    tokio::select! {
        _ = up => {}
        () = down => {}
    }
}
