//! `meshgate certs`.

use std::path::Path;
use std::process::{Command, Output};

fn certs(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_meshgate")).args(["certs", "--dir"]).arg(dir).args(args).output().unwrap()
}

#[test]
fn makes_all_files_and_overwrites_none_unless_forced() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("certs");
    let made = certs(&dir, &["--dns", "gateway.mesh.example", "--client-uri", "spiffe://mesh.example/agent"]);
    let said = String::from_utf8(made.stdout).unwrap();
    assert!(made.status.success() && said.contains("gateway.mesh.example") && said.contains("spiffe://"), "{said}");
    let read = |name: &str| std::fs::read(dir.join(name)).unwrap();
    for name in ["ca.crt", "server.crt", "server.key", "client.crt", "client.key"] {
        assert!(read(name).starts_with(b"-----BEGIN"), "{name}");
    }

    let before = read("server.key");
    let refused = certs(&dir, &[]);
    let why = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(why.starts_with("error: ") && why.contains("ca.crt exists; --force"), "{why}");
    // Even one file of another origin is not overwritten.
    std::fs::remove_file(dir.join("ca.crt")).unwrap();
    assert!(String::from_utf8(certs(&dir, &[]).stderr).unwrap().contains("server.crt exists"));
    assert_eq!(read("server.key"), before);

    assert!(certs(&dir, &["--force"]).status.success());
    assert_ne!(read("server.key"), before);
}

#[test]
fn says_which_name_cannot_be_in_a_certificate() {
    let temp = tempfile::tempdir().unwrap();
    let refused = certs(temp.path(), &["--dns", "gâteway"]);
    assert_eq!(refused.status.code(), Some(1));
    let why = String::from_utf8(refused.stderr).unwrap();
    assert!(why.lines().count() == 1 && why.contains("server"), "{why}");
}

#[test]
fn a_wrong_flag_is_a_usage_error() {
    let temp = tempfile::tempdir().unwrap();
    assert_eq!(certs(temp.path(), &["--days", "0"]).status.code(), Some(2));
}
