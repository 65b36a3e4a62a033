//! One etcd process.

use std::fmt;
use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Duration;

use etcd_client::Client;
use nix::sys::signal::Signal;
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use super::{EtcdError, EtcdOptions};
use crate::devkit::{CertFiles, admin, process};
use crate::kvstore::EtcdConfig;

const READY_DEADLINE: Duration = Duration::from_secs(30);
/// Ports that others took between our look and etcd's.
const PORT_ATTEMPTS: u32 = 8;
/// Below Linux's range for outgoing connections, so that no client takes the port of a server that is down for a moment.
const PORTS: std::ops::Range<u16> = 12_000..32_000;

/// A real etcd with ports and data of its own. Dropping it kills it and removes the data.
pub struct EtcdServer {
    // Fields drop in order: the process is gone before its files are.
    process: Option<process::Process>,
    options: EtcdOptions,
    ports: Ports,
    peers: Peers,
    dir: TempDir,
    /// Counts the incarnations of the data folder.
    incarnation: u32,
    client: Client,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    pub(super) client: u16,
    pub(super) peer: u16,
}

/// The members of the cluster that a server belongs to.
#[derive(Clone, Debug)]
pub(super) struct Peers {
    /// etcd's own form: `name=url,…`.
    pub(super) initial_cluster: String,
    /// Keeps strangers out, and makes the etcd cluster ID unique.
    pub(super) token: String,
    /// etcd's timing of elections, in milliseconds: heartbeat and timeout.
    pub(super) timing: (u32, u32),
    /// The others run already.
    pub(super) existing: bool,
}

impl Peers {
    fn alone(name: &str, ports: Ports) -> Self {
        Self {
            initial_cluster: format!("{name}=http://127.0.0.1:{}", ports.peer),
            token: token(),
            // Nobody else to hear from: the shortest time to the first leader.
            timing: (10, 100),
            existing: false,
        }
    }
}

pub(super) fn token() -> String {
    format!("meshgate-{:016x}", fastrand::u64(..))
}

impl fmt::Debug for EtcdServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdServer")
            .field("name", &self.options.name)
            .field("url", &self.client_url())
            .field("process", &self.process)
            .finish_non_exhaustive()
    }
}

impl EtcdServer {
    /// Starts one and waits until it serves.
    ///
    /// # Errors
    /// No etcd is installed, or it does not become ready.
    pub async fn start(options: EtcdOptions) -> Result<Self, EtcdError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let ports = free_ports().map_err(|source| EtcdError::System { name: options.name.clone(), source })?;
            let peers = Peers::alone(&options.name, ports);
            let mut server = Self::launch(options.clone(), ports, peers).await?;
            match server.wait_ready().await {
                Err(EtcdError::Ended { last_words, .. }) if port_taken(&last_words) && attempts < PORT_ATTEMPTS => {}
                ready => return ready.map(|()| server),
            }
        }
    }

    /// Starts one of which nothing is known yet but that the process runs.
    pub(super) async fn launch(options: EtcdOptions, ports: Ports, peers: Peers) -> Result<Self, EtcdError> {
        let failed = |source| EtcdError::System { name: options.name.clone(), source };
        let mut builder = tempfile::Builder::new();
        builder.prefix("meshgate-etcd-");
        let dir = match &options.base {
            Some(base) => builder.tempdir_in(base),
            None => builder.tempdir(),
        }
        .map_err(failed)?;
        let client = admin::connect(ports.client, options.tls.as_ref().map(|tls| &tls.client)).await.map_err(failed)?;
        let mut server = Self { process: None, options, ports, peers, dir, incarnation: 0, client };
        server.spawn()?;
        Ok(server)
    }

    fn spawn(&mut self) -> Result<(), EtcdError> {
        let program = process::find_program("etcd").ok_or(EtcdError::NotInstalled)?;
        let process = process::Process::start(&program, &self.args(), self.dir.path().join("etcd.log"));
        self.process = Some(process.map_err(|source| self.system(source))?);
        Ok(())
    }

    fn args(&self) -> Vec<String> {
        let client_url = self.client_url();
        let peer_url = self.peer_url();
        let (heartbeat, election) = self.peers.timing;
        let mut args: Vec<String> = [
            ("name", self.options.name.clone()),
            ("data-dir", self.data_dir().display().to_string()),
            ("listen-client-urls", client_url.clone()),
            ("advertise-client-urls", client_url),
            ("listen-peer-urls", peer_url.clone()),
            ("initial-advertise-peer-urls", peer_url),
            ("initial-cluster", self.peers.initial_cluster.clone()),
            ("initial-cluster-token", self.peers.token.clone()),
            ("initial-cluster-state", if self.peers.existing { "existing" } else { "new" }.to_owned()),
            ("heartbeat-interval", heartbeat.to_string()),
            ("election-timeout", election.to_string()),
            // Its JSON gateway dials back with the server's certificate, which is none for clients.
            ("enable-grpc-gateway", "false".to_owned()),
            ("logger", "zap".to_owned()),
            // Not `error`: etcd says as a warning which flag it refuses, and goes.
            ("log-level", "warn".to_owned()),
            ("log-outputs", "stderr".to_owned()),
        ]
        .into_iter()
        .map(|(flag, value)| format!("--{flag}={value}"))
        .collect();
        if let Some(tls) = &self.options.tls {
            args.push("--client-cert-auth".to_owned());
            args.push(format!("--trusted-ca-file={}", tls.server.ca.display()));
            args.push(format!("--cert-file={}", tls.server.cert.display()));
            args.push(format!("--key-file={}", tls.server.key.display()));
        }
        args.extend(self.options.extra_args.iter().cloned());
        args
    }

    /// Waits until a linearizable read is answered. That needs a leader which has committed in its own term, which is all
    /// that a write needs too, and leaves no trace in the store. (The port opens long before.)
    pub(super) async fn wait_ready(&mut self) -> Result<(), EtcdError> {
        let deadline = Instant::now() + READY_DEADLINE;
        let mut last_error = String::from("no answer");
        while Instant::now() < deadline {
            self.check_alive()?;
            match timeout(Duration::from_secs(2), self.client.kv_client().get("meshgate-devkit/ready", None)).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) => last_error = error.to_string(),
                Err(elapsed) => last_error = elapsed.to_string(),
            }
            sleep(Duration::from_millis(5)).await;
        }
        let last_words = self.process.as_ref().map(last_words).unwrap_or_default();
        Err(EtcdError::NotReady {
            name: self.options.name.clone(),
            seconds: READY_DEADLINE.as_secs(),
            last_error,
            last_words,
        })
    }

    fn check_alive(&mut self) -> Result<(), EtcdError> {
        let name = self.options.name.clone();
        let Some(process) = &mut self.process else {
            return Err(EtcdError::Ended { name, status: "killed".to_owned(), last_words: String::new() });
        };
        match process.exited() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                Err(EtcdError::Ended { name, status: status.to_string(), last_words: last_words(process) })
            }
            Err(source) => Err(EtcdError::System { name, source }),
        }
    }

    /// `https://127.0.0.1:<port>`, or `http` for a plain one; the same over restarts.
    #[must_use]
    pub fn client_url(&self) -> String {
        let scheme = if self.options.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{}", self.ports.client)
    }

    /// The clients' port, on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.ports.client
    }

    /// The process ID, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(process::Process::pid)
    }

    /// A client with every right: over mTLS where the server wants that. Survives restarts.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// What the devkit's client presents; `None` for a plain server.
    #[must_use]
    pub fn client_certs(&self) -> Option<&CertFiles> {
        self.options.tls.as_ref().map(|tls| &tls.client)
    }

    /// How the gateway reaches it.
    #[must_use]
    pub fn config(&self) -> EtcdConfig {
        let certs = self.client_certs();
        EtcdConfig {
            endpoints: vec![self.client_url()],
            trusted_ca_file: certs.map(|files| files.ca.clone()),
            cert_file: certs.map(|files| files.cert.clone()),
            key_file: certs.map(|files| files.key.clone()),
            ..EtcdConfig::default()
        }
    }

    /// The same as Cilium's YAML file, as it stands in a directory of peers.
    #[must_use]
    pub fn config_yaml(&self) -> String {
        let mut yaml = format!("endpoints:\n- {}\n", self.client_url());
        if let Some(files) = self.client_certs() {
            for (field, path) in [("trusted-ca-file", &files.ca), ("cert-file", &files.cert), ("key-file", &files.key)]
            {
                yaml.extend([field, ": '", &path.display().to_string(), "'\n"]);
            }
        }
        yaml
    }

    /// SIGKILL, and waits for the end. The data stay.
    ///
    /// # Errors
    /// The system refuses.
    pub fn kill(&mut self) -> Result<(), EtcdError> {
        self.end(Signal::SIGKILL)
    }

    /// SIGTERM, and waits for the end. The data stay.
    ///
    /// # Errors
    /// The system refuses.
    pub fn terminate(&mut self) -> Result<(), EtcdError> {
        self.end(Signal::SIGTERM)
    }

    /// SIGSTOP: the kernel still accepts connections for it, and nobody answers.
    ///
    /// # Errors
    /// The system refuses.
    pub fn stop(&mut self) -> Result<(), EtcdError> {
        self.signal(Signal::SIGSTOP)
    }

    /// SIGCONT: goes on as if nothing had been.
    ///
    /// # Errors
    /// The system refuses.
    pub fn cont(&mut self) -> Result<(), EtcdError> {
        self.signal(Signal::SIGCONT)
    }

    /// Kills it where it still runs, starts it again on the same ports and data, and waits until it serves.
    ///
    /// # Errors
    /// It does not become ready.
    pub async fn restart(&mut self) -> Result<(), EtcdError> {
        self.kill()?;
        self.spawn()?;
        self.wait_ready().await
    }

    /// The same ports, but another etcd: empty, with another etcd cluster ID and revisions that begin anew.
    ///
    /// # Errors
    /// It does not become ready.
    pub async fn recreate(&mut self) -> Result<(), EtcdError> {
        self.kill()?;
        self.incarnation += 1;
        self.peers.token = token();
        self.spawn()?;
        self.wait_ready().await
    }

    /// The same ports and name, but a new member of a cluster that runs already: all it will hold is what the others tell it.
    pub(super) async fn join(&mut self) -> Result<(), EtcdError> {
        self.kill()?;
        self.incarnation += 1;
        self.peers.existing = true;
        self.spawn()?;
        self.wait_ready().await
    }

    /// Where its peers reach it.
    pub(super) fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.peer)
    }

    fn end(&mut self, signal: Signal) -> Result<(), EtcdError> {
        match self.process.take() {
            Some(mut process) => process.end(signal).map(|_| ()).map_err(|source| self.system(source)),
            None => Ok(()),
        }
    }

    fn signal(&mut self, signal: Signal) -> Result<(), EtcdError> {
        match &mut self.process {
            Some(process) => process.signal(signal).map_err(|source| self.system(source)),
            None => Ok(()),
        }
    }

    fn data_dir(&self) -> PathBuf {
        self.dir.path().join(format!("data-{}", self.incarnation))
    }

    pub(super) fn system(&self, source: io::Error) -> EtcdError {
        EtcdError::System { name: self.options.name.clone(), source }
    }
}

/// The end of etcd's log, its JSON lines as `message: error`.
fn last_words(process: &process::Process) -> String {
    let readable = |line: &str| {
        let json: serde_json::Value = serde_json::from_str(line).ok()?;
        let text = |field| json.get(field).and_then(serde_json::Value::as_str);
        Some(format!("{}: {}", text("msg")?, text("error").unwrap_or_default()))
    };
    process
        .last_lines(3)
        .iter()
        .map(|line| readable(line).unwrap_or_else(|| line.clone()))
        .collect::<Vec<_>>()
        .join("\n")
}

fn port_taken(log: &str) -> bool {
    log.contains("address already in use")
}

/// Two ports that nobody listens on at this moment.
pub(super) fn free_ports() -> io::Result<Ports> {
    let client = free_port()?;
    loop {
        let peer = free_port()?;
        if peer != client {
            return Ok(Ports { client, peer });
        }
    }
}

fn free_port() -> io::Result<u16> {
    let mut refused = io::Error::other("no free port");
    for _ in 0..200 {
        let port = fastrand::u16(PORTS);
        match TcpListener::bind(("127.0.0.1", port)) {
            Ok(_) => return Ok(port),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}
