//! `meshgate demo`, run as a user runs it.

use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_mins(1);

/// With a temporary folder of its own, so that what is left behind would be seen.
fn demo(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meshgate"));
    command.arg("demo").args(arguments).env("TMPDIR", dir).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.kill_on_drop(true);
    command
}

async fn output(child: Child) -> Output {
    timeout(DEADLINE, child.wait_with_output()).await.expect("it ends by itself").unwrap()
}

/// Programs with `dir` in their command line, which is where everything of a demo lives.
fn running_in(dir: &Path) -> Vec<String> {
    let dir = dir.to_str().unwrap();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|process| std::fs::read_to_string(process.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(dir)).collect()
}

fn assert_nothing_left(dir: &Path) {
    assert_eq!(running_in(dir), Vec::<String>::new());
    let left: Vec<_> = std::fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path()).collect();
    assert_eq!(left, Vec::<std::path::PathBuf>::new());
}

#[tokio::test]
async fn unattended_it_proves_that_a_subscriber_has_what_the_stores_hold() {
    let dir = tempfile::tempdir().unwrap();
    let arguments = ["--for", "3s", "--identities", "60", "--rate", "50", "--seed", "7"];
    let Output { status, stdout, stderr } = output(demo(dir.path(), &arguments).spawn().unwrap()).await;
    let said = String::from_utf8(stdout).unwrap();
    assert!(status.success(), "{said}{}", String::from_utf8_lossy(&stderr));
    let counts = said.lines().find(|line| line.starts_with("valid in the three stores: ")).expect(&said);
    let numbers: Vec<u32> = counts.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect();
    assert!(matches!(numbers[..], [stores, subscriber] if stores == subscriber && stores > 100), "{counts}");
    assert!(said.contains("they are equal"), "{said}");
    assert_nothing_left(dir.path());
}

#[tokio::test]
async fn interrupted_it_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = demo(dir.path(), &["--identities", "20"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // The first line of the table shows that everything runs.
    let drawn =
        async { while !lines.next_line().await.unwrap().expect("it runs until it is told").contains("0s  ") {} };
    timeout(DEADLINE, drawn).await.expect("it starts");
    assert_eq!(running_in(dir.path()).len(), 3, "three etcds run");
    let pid = Pid::from_raw(child.id().unwrap().try_into().unwrap());
    kill(pid, Signal::SIGINT).unwrap();
    let rest = async { while lines.next_line().await.unwrap().is_some() {} };
    let (status, ()) = tokio::join!(timeout(DEADLINE, child.wait()), rest);
    assert!(status.expect("it ends").unwrap().success());
    assert_nothing_left(dir.path());
}

#[tokio::test]
async fn without_etcd_it_says_how_to_get_one() {
    let dir = tempfile::tempdir().unwrap();
    let child = demo(dir.path(), &[]).env("PATH", dir.path()).spawn().unwrap();
    let Output { status, stderr, .. } = output(child).await;
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!((status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("apt-get install etcd-server"), "{said}");
    assert_nothing_left(dir.path());
}
