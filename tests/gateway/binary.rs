//! The real binary: what it prints, and its exit code.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use meshgate::api::pb;
use meshgate::client::{ClientOptions, ClientSecurity, connect};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::net::TcpStream;

use super::{SOON, flags, page};
use crate::support::{CertSpec, Pki, eventually};

/// An etcd client YAML for an etcd that is not there.
fn nobody(dir: &Path) -> PathBuf {
    let path = dir.join("etcd.yaml");
    // Port 1 is reserved, and nothing listens on it.
    std::fs::write(&path, "endpoints: [http://127.0.0.1:1]\n").unwrap();
    path
}

pub(super) fn command(args: &[String]) -> Command {
    // With the limit on open files that processes have by default.
    limited("ulimit -S -n 1024", args)
}

/// The same with limits of another kind.
fn limited(limits: &str, args: &[String]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limits}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_meshgate")]);
    command.arg("run").args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("MESHGATE_")) {
        command.env_remove(name);
    }
    command
}

/// Exit code, and standard error without log lines.
fn outcome(output: &Output) -> (i32, String) {
    let errors = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<_> = errors.lines().filter(|line| line.starts_with("error")).collect();
    (output.status.code().unwrap(), lines.join("\n"))
}

#[test]
fn wrong_flags_exit_with_2_and_one_line_each() {
    let dir = tempfile::tempdir().unwrap();
    let args = flags(&nobody(dir.path()), &["--log-format=xml", "--shutdown-grace=5"]);
    let (code, errors) = outcome(&command(&args).env("MESHGATE_LOG_LEVEL", "loud").output().unwrap());
    assert_eq!(code, 2);
    assert_eq!(
        errors,
        "error: --shutdown-grace 5: not a time; give a time from 0s to 1h, with a unit, such as 10s\n\
         error: --log-format xml: no such format; give text or json\n\
         error: MESHGATE_LOG_LEVEL=loud: neither a level (off, error, warn, info, debug, trace) nor directives like \
         info,meshgate::kvstore=debug; give a level such as info"
    );
    let (code, errors) = outcome(&command(&["--cluster-nam=a".to_owned()]).output().unwrap());
    assert_eq!((code, errors.as_str()), (2, "error: unexpected argument '--cluster-nam' found"));
}

#[test]
fn a_bad_file_for_the_own_store_exits_with_2() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("etcd.yaml");
    for (content, what) in [(None, "No such file"), (Some("endpoints: []\n"), "endpoint"), (Some("{"), "")] {
        if let Some(content) = content {
            std::fs::write(&path, content).unwrap();
        }
        let (code, errors) = outcome(&command(&flags(&path, &[])).output().unwrap());
        assert_eq!((code, errors.lines().count()), (2, 1), "{content:?}: {errors}");
        assert!(errors.contains(&*path.to_string_lossy()) && errors.contains(what), "{errors}");
    }
}

#[test]
fn certificates_that_cannot_be_used_exit_with_2() {
    let (dir, pki) = (tempfile::tempdir().unwrap(), Pki::temporary().unwrap());
    let [one, other] = ["one", "other"].map(|name| pki.issue(&CertSpec::server(name)).unwrap());
    let not_there = dir.path().join("not-there.crt");
    let not_pem = dir.path().join("not-pem.crt");
    std::fs::write(&not_pem, "x").unwrap();
    for (cert, key, ca, guilty) in [
        (&one.cert, &other.key, &one.ca, &other.key),
        (&not_there, &one.key, &one.ca, &not_there),
        (&not_pem, &one.key, &one.ca, &not_pem),
        (&one.cert, &one.cert, &one.ca, &one.cert),
        (&one.cert, &one.key, &one.key, &one.key),
    ] {
        let tls = [("cert", cert), ("key", key), ("client-ca", ca)];
        let tls = tls.map(|(name, path)| format!("--tls-{name}={}", path.display()));
        let args = flags(&nobody(dir.path()), &tls.each_ref().map(String::as_str));
        let (code, errors) = outcome(&command(&args).output().unwrap());
        assert_eq!((code, errors.lines().count()), (2, 1), "{errors}");
        let start = format!("error: the gRPC API's certificates: {}: ", guilty.display());
        assert!(errors.starts_with(&start), "{errors}");
    }
}

#[test]
fn an_occupied_port_exits_with_1_and_names_the_setting() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap();
    for setting in ["listen", "http-listen"] {
        let args: Vec<_> = flags(&nobody(dir.path()), &[])
            .into_iter()
            .filter(|flag| !flag.starts_with(&format!("--{setting}=")))
            .chain([format!("--{setting}={addr}")])
            .collect();
        let (code, errors) = outcome(&command(&args).output().unwrap());
        assert_eq!(code, 1);
        assert_eq!(
            errors,
            format!(
                "error: {setting}: cannot listen on {addr}: another process holds this port; stop it (`ss -ltnp` names it) \
                 or choose another port"
            )
        );
    }
}

/// A binary that runs; killed when dropped.
pub(super) struct Process {
    child: Child,
    pub grpc: SocketAddr,
    pub http: SocketAddr,
}

impl Process {
    /// Starts it and waits until it listens.
    pub fn start(args: &[String]) -> Self {
        Self::of(command(args))
    }

    fn of(mut command: Command) -> Self {
        let mut child = command.arg("--log-format=json").spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        let [grpc, http] = loop {
            line.clear();
            assert_ne!(log.read_line(&mut line).unwrap(), 0, "it ended before it listened");
            let event: serde_json::Value = serde_json::from_str(&line).unwrap();
            if event["message"] == "listening" {
                break ["grpc", "http"].map(|port| event[port].as_str().unwrap().parse().unwrap());
            }
        };
        // Somebody has to read on, or the process blocks once the pipe is full.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Self { child, grpc, http }
    }

    /// Waits for its end, while this side's connections go on.
    pub async fn exit_code(&mut self) -> i32 {
        eventually("the process ends", SOON, || std::future::ready(self.child.try_wait().unwrap().is_some())).await;
        self.child.wait().unwrap().code().unwrap()
    }

    /// Waits for its end, while nothing else on this thread goes on.
    pub fn block_on_exit(&mut self) -> i32 {
        self.child.wait().unwrap().code().unwrap()
    }

    /// Waits for its end by a signal.
    pub fn block_on_exit_by_signal(&mut self) {
        assert!(self.child.wait().unwrap().code().is_none());
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn without_its_store_it_lives_and_a_signal_ends_it_with_0() {
    let dir = tempfile::tempdir().unwrap();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut process = Process::start(&flags(&nobody(dir.path()), &[]));
        // As many files as it may have open, it can.
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", process.child.id())).unwrap();
        let open = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
        let open: Vec<_> = open.split_whitespace().collect();
        assert!(open[0] == open[1] && open[0] != "1024", "{open:?}");
        assert_eq!(page(process.http, "/livez").await, (200, "alive\n".to_owned()));
        assert_eq!(page(process.http, "/readyz").await.0, 503);
        let begin = Instant::now();
        process.signal(signal);
        assert_eq!(process.exit_code().await, 0);
        assert!(begin.elapsed() < SOON, "within the grace and a bit");
    }
}

/// It has no descriptor left for anybody; whoever comes when some are free again is served at once.
#[tokio::test]
async fn t4_a_gateway_without_descriptors_gets_over_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut process = Process::of(limited("ulimit -n 48", &flags(&nobody(dir.path()), &[])));
    let options = ClientOptions { address: process.grpc.to_string(), security: ClientSecurity::Plaintext };
    let served = async || {
        let begin = Instant::now();
        let list = connect(&options).await.unwrap().list_clusters(pb::ListClustersRequest {}).await;
        list.is_ok() && begin.elapsed() < Duration::from_secs(1)
    };
    assert!(served().await);
    let used = || std::fs::read_dir(format!("/proc/{}/fd", process.child.id())).unwrap().count();
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(process.grpc).await.unwrap());
    }
    eventually("there is none left", SOON, async || used() >= 48).await;
    drop(silent);
    eventually("it is served again", SOON, async || served().await).await;
    assert!(served().await, "and within a second");
    process.signal(Signal::SIGTERM);
    assert_eq!(process.exit_code().await, 0);
}
