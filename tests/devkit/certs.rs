//! `meshgate certs`.

use meshgate::cli::certs::{Args, run};

fn args(dir: &std::path::Path) -> Args {
    Args {
        dir: dir.join("certs"),
        dns: vec!["gateway.mesh.example".to_owned()],
        ip: vec!["10.0.0.1".parse().unwrap()],
        client_name: "agent".to_owned(),
        client_uri: vec!["spiffe://mesh.example/agent".to_owned()],
        days: 1,
        force: false,
    }
}

#[test]
fn makes_all_files_and_overwrites_none_unless_forced() {
    let dir = tempfile::tempdir().unwrap();
    let args = args(dir.path());
    run(&args).unwrap();
    let read = |name: &str| std::fs::read(args.dir.join(name)).unwrap();
    for name in ["ca.crt", "server.crt", "server.key", "client.crt", "client.key"] {
        assert!(read(name).starts_with(b"-----BEGIN"), "{name}");
    }
    let before = read("server.key");
    let refused = run(&args).unwrap_err().to_string();
    assert!(refused.contains("ca.crt exists; --force"), "{refused}");
    assert_eq!(read("server.key"), before);

    // Even one file of another origin is not overwritten.
    std::fs::remove_file(args.dir.join("ca.crt")).unwrap();
    assert!(run(&args).unwrap_err().to_string().contains("server.crt exists"));
    run(&Args { force: true, ..args.clone() }).unwrap();
    assert_ne!(read("server.key"), before);
}

#[test]
fn says_which_name_cannot_be_in_a_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let bad = Args { dns: vec!["gâteway".to_owned()], ..args(dir.path()) };
    let refused = format!("{:#}", run(&bad).unwrap_err());
    assert!(refused.contains("server"), "{refused}");
}
