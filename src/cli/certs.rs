//! `meshgate certs`: a development CA with a server's and a client's certificate.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anstream::println;
use anstyle::Style;
use anyhow::{Context, ensure};

use super::{FAILURE, fail};
use crate::devkit::{CertSpec, Pki};

const BOLD: Style = Style::new().bold();
const DIMMED: Style = Style::new().dimmed();

/// Makes a development CA and certificates of it. For real clusters, use the CA that they have.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Folder for the files; made where it is missing
    #[arg(long, value_name = "FOLDER", default_value = "certs")]
    dir: PathBuf,
    /// DNS name of the server, beside `localhost`; may be repeated
    #[arg(long, value_name = "NAME")]
    dns: Vec<String>,
    /// Address of the server, beside `127.0.0.1` and `::1`; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    ip: Vec<IpAddr>,
    /// Common name of the client
    #[arg(long, value_name = "NAME", default_value = "meshgate-client")]
    client_name: String,
    /// URI name of the client, such as `spiffe://mesh.example/agent`; may be repeated
    #[arg(long, value_name = "URI")]
    client_uri: Vec<String>,
    /// Days until the certificates expire
    #[arg(long, value_name = "DAYS", default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=365))]
    days: u32,
    /// Replace files of an earlier run; what was issued by the earlier CA is worthless then
    #[arg(long)]
    force: bool,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> ExitCode {
    match make(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(FAILURE, &format_args!("{error:#}")),
    }
}

fn make(args: &Args) -> anyhow::Result<()> {
    let made = |stem: &str| ["crt", "key"].map(|kind| args.dir.join(format!("{stem}.{kind}")));
    let targets = [args.dir.join("ca.crt")].into_iter().chain(made("server")).chain(made("client"));
    for path in targets {
        ensure!(
            args.force || !path.exists(),
            "{} exists; --force replaces it and all certificates beside it, --dir takes another folder",
            path.display()
        );
    }

    let expiry = SystemTime::now() + Duration::from_hours(24) * args.days;
    let mut server = CertSpec::server("server").not_after(expiry);
    for name in &args.dns {
        server = server.dns(name);
    }
    for &ip in &args.ip {
        server = server.ip(ip);
    }
    let mut client = CertSpec::client("client").common_name(&args.client_name).not_after(expiry);
    for uri in &args.client_uri {
        client = client.uri(uri);
    }

    let pki = Pki::new(&args.dir).context("cannot make the CA")?;
    pki.issue(&server).context("cannot make the server's certificate")?;
    pki.issue(&client).context("cannot make the client's certificate")?;
    report(args, pki.dir(), expiry);
    Ok(())
}

fn report(args: &Args, dir: &Path, expiry: SystemTime) {
    let names = |given: &[String], fixed: &str| {
        std::iter::once(fixed).chain(given.iter().map(String::as_str)).collect::<Vec<_>>().join(", ")
    };
    let addresses: Vec<String> = args.ip.iter().map(ToString::to_string).collect();
    let server = names(&[args.dns.as_slice(), &addresses].concat(), "localhost, 127.0.0.1, ::1");
    let client = names(&args.client_uri, &args.client_name);
    println!("{BOLD}development certificates in {}{BOLD:#}", dir.display());
    for (files, what) in [
        ("ca.crt", "the CA; its key is discarded, so nobody can issue more".to_owned()),
        ("server.crt server.key", format!("for {server}")),
        ("client.crt client.key", format!("for {client}")),
    ] {
        println!("  {files:<23} {DIMMED}{what}{DIMMED:#}");
    }
    println!("  {DIMMED}valid until {}{DIMMED:#}", humantime::format_rfc3339_seconds(expiry));
}
