//! A subscriber that is as cheap as can be, and as deaf.

use std::io;
use std::net::SocketAddr;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

/// Connects without TLS and sends the bytes that open a subscription: preface, settings, headers, an empty request. It answers
/// nothing from then on, not even a ping.
///
/// # Errors
/// The connection could not be made.
pub async fn raw_subscriber(addr: SocketAddr) -> io::Result<TcpStream> {
    let headers = [
        header(":method", "POST"),
        header(":scheme", "http"),
        header(":path", "/meshgate.v1.MeshService/Subscribe"),
        header(":authority", "gateway"),
        header("content-type", "application/grpc"),
        header("te", "trailers"),
    ]
    .concat();
    let opening = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, 0, &[]),
        frame(1, 4, 1, &headers),
        // No compression, no length.
        frame(0, 1, 1, &[0; 5]),
    ]
    .concat();
    let mut tcp = TcpStream::connect(addr).await?;
    tcp.write_all(&opening).await?;
    Ok(tcp)
}

/// RFC 9113, 4.1. Ours are short.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or_default().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// RFC 7541, 6.2.2: a literal without indexing, with a new name, without Huffman coding. Ours are short.
fn header(name: &str, value: &str) -> Vec<u8> {
    let part = |text: &str| [&[u8::try_from(text.len()).unwrap_or_default()], text.as_bytes()].concat();
    [vec![0], part(name), part(value)].concat()
}
