//! `meshgate verify`, against servers whose views the test writes.

use std::process::Stdio;

use meshgate::telemetry::ClusterState;
use serde_json::Value;
use tokio::process::Command;

use super::*;
use crate::support::eventually;

/// What the gateway says of a cluster that it shows: the truth, as a real one would.
fn tell(server: &Server, name: &str) {
    let mesh = server.view.load();
    let shown = mesh.cluster_named(name).unwrap();
    server.status.update(name, |status| {
        status.state = ClusterState::Synced;
        status.identities = shown.len() as u64;
        status.checksum = shown.checksum();
    });
}

/// Two gateways, of the clusters a and b, that hold the same of both.
async fn pair() -> ([Server; 2], [ClusterBuilder; 2]) {
    let servers = [Server::start().await, Server::start().await];
    let mut builders = None;
    for server in &servers {
        let written = [publish(server, "a", 1, 300), publish(server, "b", 2, 200)];
        for name in ["a", "b"] {
            tell(server, name);
        }
        builders.get_or_insert(written);
    }
    (servers, builders.unwrap())
}

fn command(here: &Server, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meshgate"));
    command.args(["verify", "--plaintext", "--address", &here.addr.to_string()]).args(args);
    command.env("COLUMNS", "200").env_remove("MESHGATE_CLUSTERMESH_CONFIG").stdin(Stdio::null());
    command
}

async fn verify(here: &Server, args: &[&str]) -> (i32, String, String) {
    let output = timeout(SOON, command(here, args).output()).await.expect("it ends in time").unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn words<'a>(out: &'a str, cluster: &str) -> Vec<&'a str> {
    let line = out.lines().find(|line| line.split_whitespace().next() == Some(cluster));
    line.unwrap_or_else(|| panic!("no {cluster} in\n{out}")).split_whitespace().collect()
}

#[tokio::test]
async fn gateways_that_agree_are_said_to_be_equal() {
    let ([here, there], _builders) = pair().await;
    let own = format!("b={}", there.addr);
    let (code, out, err) = verify(&here, &["--gateway", &own]).await;
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert_eq!(words(&out, "a")[4..], ["equal", "-", "-"]);
    assert_eq!(words(&out, "b")[4..], ["equal", "equal", &there.addr.to_string()]);
    // The address from the peer's file.
    let dir = tempfile::tempdir().unwrap();
    let file = format!("endpoints: ['http://127.0.0.1:1']\nmeshgate-gateway: {}\n", there.addr);
    std::fs::write(dir.path().join("b"), file).unwrap();
    let (code, out, _) =
        verify(&here, &["--clustermesh-config", &dir.path().display().to_string(), "-o", "json"]).await;
    let outcomes: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &outcomes[1]["own_gateway"]["result"]), (0, &"equal".into()), "{out}");
    assert_eq!(outcomes[1]["own_gateway_address"], there.addr.to_string());
    here.end().await;
    there.end().await;
}

#[tokio::test]
async fn identities_that_differ_are_named() {
    let ([here, there], [_, mut b]) = pair().await;
    put(&mut b, 7, "k8s:app=other;");
    put(&mut b, 1_000, "k8s:app=more;");
    b.remove(number(&b, 9));
    there.view.publish(b.build());
    tell(&there, "b");
    let own = format!("b={}", there.addr);
    let (code, out, err) = verify(&here, &["--gateway", &own, "--within", "200ms", "--limit", "2"]).await;
    assert_eq!((code, err.as_str()), (3, ""), "{out}");
    assert_eq!(words(&out, "b")[4..6], ["equal", "different"]);
    assert!(out.contains("b: 3 identities not as the cluster's own gateway has it"), "{out}");
    let [first, second] = [7, 9].map(|offset| number(&b, offset).get().to_string());
    let named = format!(
        "  {first}\n    here   k8s:app=app-7 k8s:padding=xxxxxxxxxxxxxxxx\n    there  k8s:app=other\n  {second}\n    here   \
         k8s:app=app-9 k8s:padding=xxxxxxxxxxxxxxxx\n    there  nothing\n  and 1 more; --limit shows them\n"
    );
    assert!(out.contains(&named), "{out}");
    let (code, out, _) = verify(&here, &["--gateway", &own, "--within", "200ms", "-o", "json"]).await;
    let outcomes: Value = serde_json::from_str(&out).unwrap();
    let differences = outcomes[1]["own_gateway"]["differences"].as_array().unwrap();
    assert_eq!((code, differences.len()), (3, 3));
    let more = serde_json::json!({
        "number": number(&b, 1_000).get(), "here": null, "there": ["k8s:app=more"]
    });
    assert_eq!(differences[2], more);
    // What the gateway says of itself is not what it tells.
    here.status.update("a", |status| status.checksum ^= 1);
    let (code, out, _) = verify(&here, &["--within", "200ms"]).await;
    assert_eq!((code, words(&out, "a")[4]), (3, "different"), "{out}");
    assert!(out.contains("a: count or checksum not as a subscriber has it"), "{out}");
    here.end().await;
    there.end().await;
}

#[tokio::test]
async fn changes_on_their_way_are_no_difference_and_those_that_come_late_are_awaited() {
    let ([here, there], [_, mut b]) = pair().await;
    put(&mut b, 7, "k8s:app=later;");
    there.view.publish(b.build());
    tell(&there, "b");
    let own = format!("b={}", there.addr);
    let mut running = command(&here, &["--gateway", &own, "--within", "20s"]);
    let running = running.stdout(Stdio::piped()).spawn().unwrap();
    let subscribed = || there.sample("meshgate_subscribers") == 1;
    eventually("it looks at both", SOON, async || subscribed()).await;
    here.view.publish(b.build());
    tell(&here, "b");
    let output = timeout(SOON, running.wait_with_output()).await.unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    here.end().await;
    there.end().await;
}

#[tokio::test]
async fn what_cannot_be_compared_is_said() {
    let ([here, there], _builders) = pair().await;
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let own = format!("b={nobody}");
    let (code, out, _) = verify(&here, &["--gateway", &own, "--within", "200ms"]).await;
    assert_eq!((code, words(&out, "b")[5]), (1, "unknown"), "{out}");
    assert!(out.contains("b: not compared with the cluster's own gateway: ") && out.contains("is it running"), "{out}");
    // A cluster that the one or the other has not.
    let third = format!("c={}", there.addr);
    let (code, out, _) = verify(&here, &["--gateway", &third, "--within", "200ms"]).await;
    assert_eq!((code, words(&out, "c")[1]), (1, "absent"), "{out}");
    let (code, _, err) = verify(&here, &["--gateway", "B=x:1"]).await;
    assert_eq!(code, 2);
    assert!(err.contains("a cluster name consists of"), "{err}");
    let (code, _, err) = verify(&here, &["--clustermesh-config", "/nowhere"]).await;
    assert_eq!(code, 2);
    assert!(err.contains("--clustermesh-config /nowhere: "), "{err}");
    here.end().await;
    there.end().await;
}
