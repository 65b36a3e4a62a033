//! The reading commands, as an operator runs them.

use std::process::Stdio;
use std::time::SystemTime;

use meshgate::telemetry::{ClusterState, LastError};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use super::*;

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meshgate"));
    command.args(args).env_clear().kill_on_drop(true).stdin(Stdio::null());
    command
}

/// Exit code, standard output, standard error.
async fn run(args: &[&str]) -> (i32, String, String) {
    let output = timeout(SOON, command(args).output()).await.expect("ends in time").unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

async fn asked(server: &Server, args: &[&str]) -> (i32, String, String) {
    let address = format!("--address={}", server.addr);
    run(&[args, &["--plaintext", &address]].concat()).await
}

async fn json(server: &Server, args: &[&str]) -> Value {
    let (code, out, err) = asked(server, args).await;
    assert_eq!((code, err.as_str()), (0, ""));
    serde_json::from_str(&out).unwrap()
}

#[tokio::test]
async fn identity_list_and_get() {
    let server = Server::start().await;
    let mut a = builder("a", 1);
    put(&mut a, 0, "k8s:app=web;k8s:zone=1;");
    sync(&mut a);
    server.view.publish(a.build());
    publish(&server, "b", 2, 3);
    server.status.update("c", |status| status.state = ClusterState::Connecting);
    let number = number(&a, 0).get();

    let (code, out, err) = asked(&server, &["identity", "list"]).await;
    assert_eq!(code, 0, "{err}");
    assert_eq!(out.lines().next(), Some("NUMBER      CLUSTER  LABELS"));
    assert_eq!(out.lines().nth(1), Some(format!("{number:<10}  a        k8s:app=web k8s:zone=1").as_str()));
    assert_eq!((out.lines().count(), err.as_str()), (5, "left out: c (connecting)\n"));
    let list = json(&server, &["identity", "list", "--cluster=b", "-o", "json"]).await;
    assert!(list.as_array().unwrap().len() == 3 && list[0]["cluster"] == "b", "{list}");
    let (code, _, err) = asked(&server, &["identity", "list", "--cluster=nowhere"]).await;
    assert_eq!(code, 1);
    assert!(err.contains("cluster nowhere: no cluster of this name is configured"), "{err}");
    let (code, _, err) = asked(&server, &["identity", "list", "--cluster=No!"]).await;
    assert_eq!(code, 2);
    assert!(err.contains("clusters[0]: a cluster name consists of"), "{err}");

    let mut d = builder("d", 4);
    d.set_stale(SourcePosition { etcd_cluster_id: 1, revision: 7 });
    server.view.publish(d.build());
    let (_, _, err) = asked(&server, &["identity", "list"]).await;
    assert_eq!(err, "as last known: d\nleft out: c (connecting)\n");

    let (code, out, _) = asked(&server, &["identity", "get", &number.to_string()]).await;
    assert_eq!(code, 0);
    assert_eq!(out, format!("{number}\ncluster   a\nrevision  1\nlabels    k8s:app=web\n          k8s:zone=1\n"));
    let get = json(&server, &["identity", "get", "k8s:zone=1", "k8s:app=web", "-o", "json"]).await;
    assert_eq!(get["number"], number);
    let (_, out, _) = asked(&server, &["identity", "get", "0x1"]).await;
    assert!(out.starts_with("1 (reserved: host)\n"), "{out}");
    let (code, out, err) = asked(&server, &["identity", "get", "4711"]).await;
    assert_eq!((code, out.as_str(), err.as_str()), (1, "", "error: no identity has the number 4711\n"));
    let (code, _, err) = asked(&server, &["identity", "get", "12x"]).await;
    assert_eq!(code, 2, "{err}");
    server.end().await;
}

#[tokio::test]
async fn clusters() {
    let server = Server::start().await;
    server.status.update("a", |status| {
        status.local = true;
        status.cluster_id = 1;
        status.state = ClusterState::Synced;
        status.identities = 1_234;
    });
    server.status.update("b", |status| {
        status.state = ClusterState::Connecting;
        status.endpoint = "https://b:2379".to_owned();
        status.failures = 3;
        status.last_error = Some(LastError {
            reason: "dial",
            message: "connection refused".to_owned(),
            hint: "is etcd running?".to_owned(),
            at: SystemTime::now(),
        });
        status.rejects.insert("bad-key", 2);
    });
    let (code, out, err) = asked(&server, &["clusters"]).await;
    assert_eq!((code, err.as_str()), (0, ""));
    let words = |line: usize| out.lines().nth(line).unwrap_or_default().split_whitespace().collect::<Vec<_>>();
    assert_eq!(words(0), ["CLUSTER", "ID", "STATE", "SINCE", "IDENTITIES", "REJECTED", "ENDPOINT"]);
    assert_eq!(words(1)[..4], ["a", "(own)", "1", "synced"]);
    assert_eq!((words(2)[..3].to_vec(), words(2).last()), (vec!["b", "-", "connecting"], Some(&"https://b:2379")));
    for line in ["b: connection refused (dial, ", "  is etcd running?", "b: 2 entries refused (bad-key 2)"] {
        assert!(out.contains(line), "{line}\n{out}");
    }
    server.status.update("b", |status| {
        status.stale = true;
        status.unavailable_since = Some(SystemTime::now());
        status.picture_kept = status.unavailable_since;
        status.picture_trouble = Some("it cannot be kept: disk full".to_owned());
    });
    server.status.update("c", |status| {
        status.state = ClusterState::Reconnecting;
        status.revoked = true;
    });
    let (_, out, _) = asked(&server, &["clusters"]).await;
    for line in [
        "connecting, stale",
        "b: shown as last known, kept ",
        "b: picture: it cannot be kept: disk full",
        "reconnecting, revoked",
        "c: its entries were withdrawn, after peer-ttl",
    ] {
        assert!(out.contains(line), "{line}\n{out}");
    }
    let list = json(&server, &["clusters", "-o", "json"]).await;
    assert_eq!((&list[1]["stale"], &list[2]["revoked"]), (&true.into(), &true.into()));
    assert_eq!((&list[0]["identities"], &list[0]["local"]), (&1_234.into(), &true.into()));
    assert_eq!((&list[1]["state"], &list[1]["last_error"]["reason"]), (&"connecting".into(), &"dial".into()));
    server.end().await;
}

#[tokio::test]
async fn watch_prints_changes_as_they_come() {
    let server = Server::start().await;
    let mut a = publish(&server, "a", 1, 2);
    let address = server.addr.to_string();
    let mut text = command(&["watch"]);
    text.env("MESHGATE_ADDRESS", &address).env("MESHGATE_PLAINTEXT", "true");
    let mut text = text.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut json = command(&["watch", "-o", "json", "--snapshot", "--plaintext", "--address", &address]);
    let mut json = json.stdout(Stdio::piped()).spawn().unwrap();
    let mut notes = BufReader::new(text.stderr.take().unwrap()).lines();
    let mut lines = BufReader::new(text.stdout.take().unwrap()).lines();
    let mut objects = BufReader::new(json.stdout.take().unwrap()).lines();
    macro_rules! next {
        ($lines:expr) => {
            timeout(SOON, $lines.next_line()).await.unwrap().unwrap().unwrap()
        };
    }
    let mut events = Vec::new();
    for _ in 0..5 {
        events.push(serde_json::from_str::<Value>(&next!(objects)).unwrap());
    }
    let kinds: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["connected", "upserted", "upserted", "synced", "all_synced"]);
    while !next!(notes).ends_with("all clusters are synced") {}

    put(&mut a, 0, "k8s:app=other;");
    put(&mut a, 5, "k8s:app=new;");
    a.remove(number(&a, 1));
    server.view.publish(a.build());
    let [min, one, five] = [0, 1, 5].map(|offset| number(&a, offset).get());
    let removed = format!("- a {one}  k8s:app=app-1 k8s:padding=xxxxxxxxxxxxxxxx");
    for end in [
        format!("~ a {min}  -k8s:app=app-0 -k8s:padding=xxxxxxxxxxxxxxxx +k8s:app=other"),
        format!("+ a {five}  k8s:app=new"),
        removed,
    ] {
        let line = next!(lines);
        assert!(line.ends_with(&end) && !line.contains('\x1b'), "{line}\n{end}");
    }
    let object: Value = serde_json::from_str(&next!(objects)).unwrap();
    assert_eq!((&object["number"], &object["before"][0]), (&min.into(), &"k8s:app=app-0".into()));
    server.view.withdraw(id(1));
    assert!(next!(lines).ends_with("- a  all of it, 2 identities"));

    server.end().await;
    while !next!(notes).contains("the gateway sends us away: the gateway stops") {}
    assert!(next!(notes).contains("again in "));
    // Whoever reads has enough: no panic, no error.
    drop(objects);
    assert!(text.try_wait().unwrap().is_none(), "it goes on trying");
}

#[tokio::test]
async fn a_selector_and_a_file_that_remembers() {
    let server = Server::start().await;
    let mut a = builder("a", 1);
    for (offset, app) in [(0, "web"), (1, "db"), (2, "web")] {
        put(&mut a, offset, &format!("k8s:app={app};k8s:n={offset};"));
    }
    sync(&mut a);
    server.view.publish(a.build());
    let list = json(&server, &["identity", "list", "-l", "k8s:app in (web)", "-o", "json"]).await;
    assert_eq!(list.as_array().unwrap().len(), 2, "{list}");
    let (code, _, err) = asked(&server, &["watch", "-l", "app in web"]).await;
    assert_eq!(code, 2);
    assert!(err.contains("label_selector: expected `(` and values, found `w` at byte 7"), "{err}");

    let folder = tempfile::tempdir().unwrap();
    let state = format!("--state={}", folder.path().join("state").display());
    // Another gateway is down: the list of addresses goes on to the next.
    let address = format!("127.0.0.1:1,{}", server.addr);
    let watch = || {
        let mut watch = command(&["watch", "-o", "json", "--plaintext", "--address", &address, &state]);
        watch.stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut events = Vec::new();
    for round in 0..2 {
        let mut child = watch();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        loop {
            let line = timeout(SOON, lines.next_line()).await.unwrap().unwrap().unwrap();
            let event: Value = serde_json::from_str(&line).unwrap();
            let kind = event["event"].as_str().unwrap().to_owned();
            let last = kind == "all_synced";
            events.push((round, kind));
            if last {
                break;
            }
        }
        let pid = nix::unistd::Pid::from_raw(child.id().unwrap().try_into().unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
        assert!(timeout(SOON, child.wait()).await.unwrap().unwrap().success());
        // While nobody watches.
        a.remove(number(&a, 0));
        put(&mut a, 5, "k8s:app=new;");
        a.set_synced(SourcePosition { etcd_cluster_id: 1, revision: 9 + round });
        server.view.publish(a.build());
    }
    let words: Vec<_> = events.iter().map(|(round, kind)| (*round, kind.as_str())).collect();
    assert_eq!(
        words,
        [
            (0, "connected"),
            (0, "synced"),
            (0, "all_synced"),
            (1, "connected"),
            (1, "synced"),
            (1, "upserted"),
            (1, "removed"),
            (1, "all_synced")
        ]
    );
    server.end().await;
}

#[tokio::test]
async fn identity_list_goes_on_with_changes() {
    let server = Server::start().await;
    let mut a = publish(&server, "a", 1, 1);
    let address = server.addr.to_string();
    let mut list = command(&["identity", "list", "--watch", "--plaintext", "--address", &address]);
    let mut list = list.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(list.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        timeout(SOON, lines.next_line()).await.unwrap().unwrap().unwrap();
    }
    put(&mut a, 9, "k8s:app=late;");
    server.view.publish(a.build());
    let line = timeout(SOON, lines.next_line()).await.unwrap().unwrap().unwrap();
    assert!(line.ends_with("k8s:app=late") && line.contains('+'), "{line}");
    server.end().await;
}

#[tokio::test]
async fn what_is_wrong_with_the_command_line_is_told() {
    let (code, _, err) = run(&["clusters"]).await;
    assert_eq!(code, 2);
    assert!(err.starts_with("error: the gateway is asked over mutual TLS, which needs --ca, --cert, --key;"), "{err}");
    let (code, _, err) = run(&["clusters", "--plaintext", "--ca=x"]).await;
    assert_eq!((code, err.as_str()), (2, "error: --plaintext and --ca: give the one or the other\n"));
    let (code, _, err) = run(&["clusters", "--plaintext", "--address=nonsense"]).await;
    assert_eq!(code, 2);
    assert!(err.contains("address `nonsense`: not HOST:PORT"), "{err}");
    let (code, _, err) = run(&["clusters", "--ca=/nowhere/ca", "--cert=/nowhere/c", "--key=/nowhere/k"]).await;
    assert_eq!(code, 2);
    assert!(err.contains("/nowhere/ca: cannot be read"), "{err}");
    let (code, _, err) = run(&["clusters", "--plaintext", "--address=127.0.0.1:1"]).await;
    assert_eq!(code, 1);
    assert!(err.contains("cannot reach the gateway at 127.0.0.1:1: "), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
}

#[tokio::test]
async fn subscribers() {
    let server = Server::start().await;
    let mut a = publish(&server, "a", 1, 3);
    let sub = server.synced(pb::SubscribeRequest::default()).await;
    let mut client = server.client().await;
    let rejected = vec![pb::Rejected { number: 65_537, reason: "no room".into() }];
    let tokens = sub.fold.tokens();
    let request = pb::AcknowledgeRequest { subscriber: "node-1".to_owned(), tokens: tokens.clone(), rejected };
    client.acknowledge(request).await.unwrap();
    let behind = async || {
        let (code, out, err) = asked(&server, &["subscribers"]).await;
        assert_eq!((code, err.as_str()), (0, ""));
        assert!(out.contains("not applied  65537  no room"), "{out}");
        let line = out.lines().find(|line| line.starts_with("node-1 ")).unwrap().to_owned();
        line.split_whitespace().last().unwrap().to_owned()
    };
    assert_eq!(behind().await, "-");
    put(&mut a, 0, "k8s:app=new;");
    server.view.publish(a.build());
    assert_eq!(behind().await, "a");
    let list = json(&server, &["subscribers", "-o", "json"]).await;
    assert_eq!((&list[0]["subscriber"], &list[0]["clusters"]["a"]["current"]), (&"node-1".into(), &false.into()));
    assert_eq!(list[0]["rejected"]["65537"], "no room");
    server.end().await;
}

#[tokio::test]
async fn status() {
    let server = Server::start().await;
    publish(&server, "a", 1, 3);
    server.status.update("a", |status| {
        (status.local, status.state, status.identities) = (true, ClusterState::Synced, 3);
    });
    server.status.update_allocator(|allocator| {
        (allocator.listed, allocator.free, allocator.used, allocator.local) = (true, 65_000, 3, 2);
    });
    let _sub = server.synced(pb::SubscribeRequest::default()).await;
    let (code, out, err) = asked(&server, &["status"]).await;
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let lines: Vec<_> = out.lines().collect();
    assert!(lines[0].starts_with("a  healthy  meshgate "), "{out}");
    assert!(
        lines.iter().any(|line| line.starts_with("allocator    3 numbers used, 65000 free; 2 label sets")),
        "{out}"
    );
    assert!(lines.iter().any(|line| line.starts_with("subscribers  1 streams; ")), "{out}");

    // What is wrong, since when, why, and what to do; a script goes by the exit code.
    server.status.update("b", |status| {
        status.state = ClusterState::Connecting;
        status.last_error = Some(LastError {
            reason: "dial",
            message: "connection refused".to_owned(),
            hint: "is etcd running?".to_owned(),
            at: SystemTime::now(),
        });
    });
    server.metrics.reload_failing("access-policy", true);
    let waiting = server.readiness.guard_with("peers", || "b is not there".to_owned());
    let (code, out, _) = asked(&server, &["status"]).await;
    assert_eq!(code, 3, "{out}");
    assert!(out.starts_with("a  not ready  "), "{out}");
    for line in
        ["✗ peers (0s): b is not there", "): connecting: connection refused\n    is etcd running?", "✗ access-policy: "]
    {
        assert!(out.contains(line), "{line}\n{out}");
    }
    let (code, json, _) = asked(&server, &["status", "-o", "json"]).await;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, &json["healthy"], json["problems"].as_array().unwrap().len()), (3, &false.into(), 3));
    let (_, yaml, _) = asked(&server, &["status", "-o", "yaml"]).await;
    let yaml: Value = serde_saphyr::from_str(&yaml).unwrap();
    assert_eq!((&yaml["clusters"], &yaml["subscriptions"]), (&json["clusters"], &json["subscriptions"]));

    // Waits until all is well, and no longer than it is told.
    let begin = std::time::Instant::now();
    let (code, ..) = asked(&server, &["status", "--wait", "--timeout", "700ms"]).await;
    assert!(code == 3 && begin.elapsed() >= Duration::from_millis(700));
    let mend = async {
        drop(waiting);
        server.metrics.reload_failing("access-policy", false);
        server.status.update("b", |status| status.state = ClusterState::Synced);
    };
    let ((code, out, _), ()) = tokio::join!(asked(&server, &["status", "--wait"]), mend);
    assert_eq!(code, 0, "{out}");
    let address = server.addr;
    server.end().await;
    let (code, _, err) = run(&["status", "--plaintext", "--address", &address.to_string()]).await;
    assert_eq!(code, 1);
    assert!(err.contains("is it running"), "{err}");
}
