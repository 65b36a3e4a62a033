//! The flags with which every command that asks a gateway finds it.

use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use tonic::{Response, Status};

use super::output::Trouble;
use crate::client::{ClientError, ClientOptions, ClientSecurity, MeshClient, connect};

/// Where the gateway is, and how to speak to it.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Gateway")]
pub(super) struct Connection {
    /// Address of the gateway's gRPC API; several, with commas, where replicas serve the same mesh
    #[arg(
        long,
        env = "MESHGATE_ADDRESS",
        value_name = "HOST:PORT",
        value_delimiter = ',',
        default_value = "127.0.0.1:4280"
    )]
    address: Vec<String>,
    /// CAs of the gateway's certificate, PEM
    #[arg(long, env = "MESHGATE_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Our certificate chain, PEM
    #[arg(long, env = "MESHGATE_CERT", value_name = "FILE")]
    cert: Option<PathBuf>,
    /// Private key of that certificate, PEM
    #[arg(long, env = "MESHGATE_KEY", value_name = "FILE")]
    key: Option<PathBuf>,
    /// Name that the gateway's certificate has, where that is not the host of the address
    #[arg(long, env = "MESHGATE_SERVER_NAME", value_name = "NAME")]
    server_name: Option<String>,
    /// Speak without TLS, to a gateway that serves so
    #[arg(long, env = "MESHGATE_PLAINTEXT", value_parser = FalseyValueParser::new())]
    plaintext: bool,
}

impl Connection {
    /// The gateway that is asked one thing: the first one.
    pub(super) fn options(&self) -> Result<ClientOptions, Trouble> {
        let gateways = self.gateways()?;
        gateways.into_iter().next().ok_or_else(|| Trouble::Usage("--address: give at least one".to_owned()))
    }

    /// All gateways, for what goes on when one of them fails.
    pub(super) fn gateways(&self) -> Result<Vec<ClientOptions>, Trouble> {
        let files = [("--ca", &self.ca), ("--cert", &self.cert), ("--key", &self.key)];
        let names = |given: bool| {
            let names = files.iter().filter(|(_, file)| file.is_some() == given).map(|(name, _)| *name);
            names.collect::<Vec<_>>().join(", ")
        };
        let security = match (self.plaintext, &self.ca, &self.cert, &self.key) {
            (true, None, None, None) => ClientSecurity::Plaintext,
            (true, ..) => {
                return Err(Trouble::Usage(format!("--plaintext and {}: give the one or the other", names(true))));
            }
            (false, Some(ca), Some(cert), Some(key)) => ClientSecurity::MutualTls {
                ca: ca.clone(),
                cert: cert.clone(),
                key: key.clone(),
                server_name: self.server_name.clone(),
            },
            (false, ..) => {
                return Err(Trouble::Usage(format!(
                    "the gateway is asked over mutual TLS, which needs {}; or give --plaintext for one that serves so",
                    names(false)
                )));
            }
        };
        let of = |address: &String| ClientOptions { address: address.clone(), security: security.clone() };
        Ok(self.address.iter().map(of).collect())
    }
}

/// Asks one gateway one thing.
pub(super) async fn ask<T>(
    options: &ClientOptions,
    question: impl AsyncFnOnce(&mut MeshClient) -> Result<Response<T>, Status>,
) -> Result<T, ClientError> {
    let mut client = connect(options).await?;
    let answer = question(&mut client).await;
    Ok(answer.map_err(|status| ClientError::of_status(&options.address, &status))?.into_inner())
}
