//! A plain etcd client over our own TLS: the devkit's eyes and hands, independent of the `kvstore` room.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Channel, Client};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::Endpoint;
use tower::service_fn;

use super::CertFiles;

const DIAL_DEADLINE: Duration = Duration::from_secs(5);

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A client of the etcd on that port of this machine. Dials when it is used, and again when the connection is lost.
pub(super) async fn connect(port: u16, tls: Option<&CertFiles>) -> Result<Client, io::Error> {
    let tls = tls.map(client_config).transpose()?.map(TlsConnector::from);
    let dialer = service_fn(move |_: http::Uri| {
        let tls = tls.clone();
        async move {
            let tcp = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
            tcp.set_nodelay(true)?;
            let stream: Box<dyn Stream> = match tls {
                None => Box::new(tcp),
                Some(tls) => Box::new(tls.connect(ServerName::from(Ipv4Addr::LOCALHOST), tcp).await?),
            };
            Ok::<_, io::Error>(TokioIo::new(stream))
        }
    });
    // `http` although TLS may follow: tonic refuses `https` with a connector of one's own, and etcd does not look.
    let channel =
        Endpoint::from_static("http://etcd.devkit").connect_timeout(DIAL_DEADLINE).connect_with_connector_lazy(dialer);
    Client::from_channel(Channel::Tonic(channel), None).await.map_err(io::Error::other)
}

fn client_config(files: &CertFiles) -> Result<Arc<ClientConfig>, io::Error> {
    let mut roots = RootCertStore::empty();
    for cert in CertificateDer::pem_file_iter(&files.ca).map_err(io::Error::other)? {
        roots.add(cert.map_err(io::Error::other)?).map_err(io::Error::other)?;
    }
    let chain = CertificateDer::pem_file_iter(&files.cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(io::Error::other)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(io::Error::other)?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(io::Error::other)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}
