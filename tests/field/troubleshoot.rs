//! `meshgate troubleshoot` names the stage of each fault, with a reason and what to do; no gateway runs.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use etcd_client::{Permission, PermissionType};
use meshgate::identity::MaxConnectedClusters;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::time::timeout;

use super::play::Play;
use super::stages::Mute;
use crate::peer::{DEADLINE, Store};
use crate::support::fill::Cluster;
use crate::support::{CertSpec, Pki};

/// A directory of peers, and the command that looks at them.
struct Folder {
    dir: tempfile::TempDir,
}

impl Folder {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("peers")).unwrap();
        Self { dir }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("peers")
    }

    fn write(&self, name: &str, yaml: &str) {
        std::fs::write(self.path().join(name), yaml).unwrap();
    }

    async fn run(&self, args: &[&str]) -> (i32, String, String) {
        let own = Path::new("/own.yaml").display().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshgate"));
        command.args(["troubleshoot", "--cluster-name=us", "--cluster-id=1", "--dial-timeout=1s", "--call-timeout=1s"]);
        command.arg(format!("--kvstore-opt=etcd.config={own}"));
        command.arg(format!("--clustermesh-config={}", self.path().display()));
        command.args(args).kill_on_drop(true);
        let output = timeout(DEADLINE, command.output()).await.expect("it ends in time").unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    /// Exit code, and the checks of each peer.
    async fn checks(&self, args: &[&str]) -> (i32, Value) {
        let (code, out, err) = self.run(&[args, &["-o", "json"]].concat()).await;
        (code, serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}")))
    }
}

fn of<'a>(report: &'a Value, peer: &str) -> &'a Value {
    report.as_array().unwrap().iter().find(|report| report["peer"] == peer).unwrap_or_else(|| panic!("no {peer}"))
}

/// The first check that did not pass: stage, outcome and reason. What comes behind a failure was not looked at.
fn first_trouble(report: &Value) -> (String, String, String) {
    let checks = report["checks"].as_array().unwrap();
    let at = checks.iter().position(|check| check["outcome"] != "passed").unwrap_or_else(|| panic!("{report:#}"));
    let text = |field: &str| checks[at][field].as_str().unwrap_or_default().to_owned();
    assert!(!text("hint").is_empty() && !text("found").is_empty(), "{report:#}");
    (text("stage"), text("outcome"), text("reason"))
}

#[tokio::test(flavor = "multi_thread")]
async fn m03_troubleshoot_names_the_stage_of_each_fault() {
    let (pki, strangers) = (Pki::temporary().unwrap(), Pki::temporary().unwrap());
    let good = Store::new(&pki, "good", 2, &["a", "b"]).await;
    let stranger = Store::new(&strangers, "stranger", 3, &["a"]).await;
    let heartbeat = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    good.put("cilium/.heartbeat", heartbeat).await;
    let folder = Folder::new();
    let yaml = good.yaml();
    let at = |host: &str| yaml.replace(&format!("127.0.0.1:{}", good.etcd.port()), host);
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let mute = Mute::start(None).await;
    folder.write("good", &yaml);
    folder.write("broken", "endpoints: [nonsense");
    folder.write("No_Name", &yaml);
    folder
        .write("no-files", &yaml.replace(&good.etcd.client_certs().unwrap().key.display().to_string(), "/nowhere/key"));
    folder.write("unresolved", &at("no.such.host.invalid:2379"));
    folder.write("refused", &at(&closed.to_string()));
    folder.write("mute", &at(&format!("127.0.0.1:{}", mute.port())));
    folder.write("wrong-ca", &at(&format!("127.0.0.1:{}", stranger.etcd.port())));
    let past = SystemTime::now() - Duration::from_mins(10);
    let soon = SystemTime::now() + Duration::from_hours(3);
    let certs = good.etcd.client_certs().unwrap();
    for (name, end) in [("expired", past), ("expiring", soon)] {
        let files = pki.issue(&CertSpec::client(name).not_after(end)).unwrap();
        let yaml = yaml.replace(&certs.cert.display().to_string(), &files.cert.display().to_string());
        folder.write(name, &yaml.replace(&certs.key.display().to_string(), &files.key.display().to_string()));
    }
    folder.write("no-config", &yaml);
    let wide = Cluster { width: MaxConnectedClusters::C511, ..Cluster::new("width", 9) };
    for (name, cluster) in [
        ("ours", Cluster::new("ours", 1)),
        ("width", wide),
        ("zz-clash", Cluster::new("zz-clash", 2)),
        ("no-canary", Cluster::new("no-canary", 8)),
    ] {
        good.put(&cluster.config_key(), cluster.config_json()).await;
        folder.write(name, &yaml);
    }
    let stalled = Play::new("stalled", 7, &["a"]).start().await;
    stalled.ignore(|request| !request.range_end.is_empty());
    folder.write("stalled", &Play::yaml(&stalled));

    let begin = Instant::now();
    let (code, report) = folder.checks(&[]).await;
    assert_eq!(code, 3);
    // Each waits for its own deadlines, none for another's.
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    for (peer, stage, outcome, reason) in [
        ("broken", "file", "failed", "file-malformed"),
        ("No_Name", "file", "failed", ""),
        ("no-files", "certificates", "failed", "certificate-unreadable"),
        ("expired", "certificates", "failed", "certificate-expired"),
        ("expiring", "certificates", "warned", "certificate-expiring"),
        ("unresolved", "resolve", "failed", "resolve-failed"),
        ("refused", "dial", "failed", "dial-refused"),
        ("mute", "tls", "failed", "tls-timeout"),
        ("wrong-ca", "tls", "failed", "we-refused-theirs-unknown-issuer"),
        ("no-config", "cluster-config", "failed", "config-missing"),
        ("ours", "cluster-config", "failed", "cluster-id-ours"),
        ("width", "cluster-config", "failed", "max-connected-clusters"),
        ("zz-clash", "cluster-id", "failed", "cluster-id-conflict"),
        ("no-canary", "canary", "failed", "canary-missing"),
    ] {
        let found = first_trouble(of(&report, peer));
        assert!(found.2.starts_with(reason), "{peer}: {found:?}");
        assert_eq!((found.0.as_str(), found.1.as_str()), (stage, outcome), "{peer}: {found:?}");
    }
    let last = of(&report, "stalled")["checks"].as_array().unwrap().last().unwrap();
    assert_eq!(
        (&last["stage"], &last["outcome"], &last["reason"]),
        (&"identities".into(), &"failed".into(), &"deadline".into())
    );
    let good = of(&report, "good");
    assert_eq!(good["clean"], true, "{good:#}");
    let found = |stage: &str| {
        let checks = good["checks"].as_array().unwrap();
        checks.iter().find(|check| check["stage"] == stage).unwrap()["found"].as_str().unwrap().to_owned()
    };
    assert_eq!(found("identities"), "2 identities, all of them its own");
    assert!(found("etcd").starts_with("etcd 3.") && found("etcd").contains("with a quorum"), "{}", found("etcd"));
    assert_eq!(found("cluster-config"), "ID 2, says when it is complete");

    // For people: one peer, with marks.
    let (code, out, err) = folder.run(&["good", "refused"]).await;
    assert_eq!((code, err.as_str()), (3, ""));
    for line in ["good\n", "  ✓ file ", "    ✓ dial ", "refused\n", "    ✗ dial ", "    – tls            not looked at"]
    {
        assert!(out.contains(line), "{line}\n{out}");
    }
    assert_eq!(folder.run(&["good"]).await.0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn m03_troubleshoot_finds_what_is_wrong_inside_a_store() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &["a"]).await;
    let folder = Folder::new();
    let yaml = store.yaml();
    // One of its two endpoints is dead: the other one suffices for the rest, and the dead one is named.
    let dead = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let both = yaml.replacen("endpoints:\n", &format!("endpoints:\n- https://{dead}\n"), 1);
    assert_ne!(both, yaml);
    folder.write("blue", &both);
    store.put("cilium/.heartbeat", "2026-01-01T00:00:00Z").await;
    store.put(&store.cluster.identity_key(store.number(5)), "k8s:io.cilium.k8s.policy.cluster=green;").await;
    store.put(&format!("{}x", store.cluster.identity_prefix()), "k8s:a=b;").await;
    let (code, report) = folder.checks(&[]).await;
    assert_eq!(code, 3);
    let checks = of(&report, "blue")["checks"].as_array().unwrap().clone();
    let outcome = |stage: &str, endpoint: Option<&str>| {
        let is_it = |check: &&Value| check["stage"] == stage && endpoint.is_none_or(|at| check["endpoint"] == at);
        let check = checks.iter().find(is_it).unwrap();
        (check["outcome"].as_str().unwrap().to_owned(), check["found"].as_str().unwrap_or_default().to_owned())
    };
    let dead = format!("https://{dead}");
    assert_eq!(outcome("dial", Some(&dead)).0, "failed");
    assert_eq!(outcome("etcd", Some(&dead)).0, "skipped");
    assert_eq!(outcome("etcd", Some(&store.etcd.client_url())).0, "passed");
    assert_eq!(outcome("canary", None).0, "passed");
    assert_eq!(outcome("heartbeat", None).0, "warned");
    let (identities, found) = outcome("identities", None);
    assert_eq!(identities, "warned");
    let told = "1 identities are its own, 2 are not to be shown (1 bad-number, 1 wrong-cluster-label); such as ";
    assert!(found.starts_with(told), "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn m03_troubleshoot_tells_what_a_role_does_not_allow() {
    let pki = Pki::temporary().unwrap();
    let store = Store::new(&pki, "blue", 2, &["a"]).await;
    let mut auth = store.etcd.client().auth_client();
    auth.user_add("root", "root", None).await.unwrap();
    auth.user_grant_role("root", "root").await.unwrap();
    auth.user_add("peer", "secret", None).await.unwrap();
    auth.role_add("remote").await.unwrap();
    for key in ["cilium/.heartbeat", &store.cluster.config_key(), &store.cluster.canary_key()] {
        auth.role_grant_permission("remote", Permission::new(PermissionType::Read, key)).await.unwrap();
    }
    auth.user_grant_role("peer", "remote").await.unwrap();
    auth.auth_enable().await.unwrap();
    let folder = Folder::new();
    folder.write("blue", &(store.yaml() + "username: peer\npassword: secret\n"));
    folder.write("wrong-password", &(store.yaml() + "username: peer\npassword: guess\n"));
    let (code, report) = folder.checks(&[]).await;
    assert_eq!(code, 3);
    let last = of(&report, "blue")["checks"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["stage"], &last["reason"]), (&"identities".into(), &"permission-denied".into()));
    let (stage, outcome, reason) = first_trouble(of(&report, "wrong-password"));
    assert_eq!((stage.as_str(), outcome.as_str(), reason.as_str()), ("etcd", "failed", "permission-denied"));
}

#[tokio::test]
async fn offline_nothing_is_dialled_and_bad_usage_is_told() {
    let pki = Pki::temporary().unwrap();
    let files = pki.issue(&CertSpec::client("us")).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let folder = Folder::new();
    folder.write(
        "blue",
        &format!(
            "endpoints: ['https://{}']\ntrusted-ca-file: {}\ncert-file: {}\nkey-file: {}\n",
            listener.local_addr().unwrap(),
            files.ca.display(),
            files.cert.display(),
            files.key.display()
        ),
    );
    let (code, report) = folder.checks(&["--offline"]).await;
    assert_eq!(code, 0);
    let checks = of(&report, "blue")["checks"].as_array().unwrap();
    let outcomes: Vec<_> = checks.iter().map(|check| check["outcome"].as_str().unwrap()).collect();
    assert!(outcomes.starts_with(&["passed", "passed"]) && outcomes[2..].iter().all(|outcome| *outcome == "skipped"));
    assert!(timeout(Duration::from_millis(50), listener.accept()).await.is_err(), "nobody has come");
    for (args, what) in [(["green"], "there is no peer green"), (["Green"], "is no cluster's name")] {
        let (code, _, err) = folder.run(&args).await;
        assert_eq!(code, 2, "{err}");
        assert!(err.contains(what), "{err}");
    }
}
