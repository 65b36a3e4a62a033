//! A frame as it goes over the wire: encoded once, shared by as many streams as it goes to.

use std::io::{self, Write as _};
use std::sync::OnceLock;

use prost::Message as _;
use prost::bytes::{BufMut, Bytes, BytesMut};

use crate::api::pb;
use crate::api::pb::subscribe_response::Frame;
use crate::telemetry::FrameKind;

/// gRPC's own header of each message: whether it is compressed, and its length.
const HEADER: usize = 5;
/// Below this compressing costs more than it saves; a message of a compressed stream need not be compressed.
const WORTH_COMPRESSING: usize = 1 << 10;
/// Fast, and on label sets nearly as small as the higher ones.
const ZSTD_LEVEL: i32 = 1;

/// How a stream may be compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Zstd,
    Gzip,
}

impl Encoding {
    /// The best one that the client offers, in the words of `grpc-accept-encoding`.
    pub(super) fn of_offer(offer: &str) -> Option<Self> {
        let offers = |name: &str| offer.split(',').any(|offered| offered.trim() == name);
        [Self::Zstd, Self::Gzip].into_iter().find(|encoding| offers(encoding.name()))
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
        }
    }

    fn compress(self, plain: &[u8]) -> io::Result<Vec<u8>> {
        let start = vec![0; HEADER];
        match self {
            Self::Zstd => {
                let mut encoder = zstd::stream::write::Encoder::new(start, ZSTD_LEVEL)?;
                encoder.write_all(plain)?;
                encoder.finish()
            }
            Self::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(start, flate2::Compression::fast());
                encoder.write_all(plain)?;
                encoder.finish()
            }
        }
    }
}

/// An encoded frame with its gRPC header, and its compressed forms as soon as somebody asks for them.
#[derive(Debug)]
pub(super) struct Message {
    kind: FrameKind,
    plain: Bytes,
    zstd: OnceLock<Bytes>,
    gzip: OnceLock<Bytes>,
}

impl Message {
    pub(super) fn new(frame: Frame) -> Self {
        let kind = kind(&frame);
        let response = pb::SubscribeResponse { frame: Some(frame) };
        let length = response.encoded_len();
        let mut plain = BytesMut::with_capacity(HEADER + length);
        plain.put_u8(0);
        // Frames are limited to far below 4 GiB.
        plain.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
        response.encode_raw(&mut plain);
        Self { kind, plain: plain.freeze(), zstd: OnceLock::new(), gzip: OnceLock::new() }
    }

    pub(super) const fn kind(&self) -> FrameKind {
        self.kind
    }

    /// Bytes of the frame alone.
    pub(super) fn len(&self) -> usize {
        self.plain.len() - HEADER
    }

    /// What is written to a stream of that encoding.
    pub(super) fn wire(&self, encoding: Option<Encoding>) -> Bytes {
        let worth_it = self.len() >= WORTH_COMPRESSING;
        match encoding.filter(|_| worth_it) {
            None => self.plain.clone(),
            Some(encoding @ Encoding::Zstd) => self.zstd.get_or_init(|| self.compressed(encoding)).clone(),
            Some(encoding @ Encoding::Gzip) => self.gzip.get_or_init(|| self.compressed(encoding)).clone(),
        }
    }

    fn compressed(&self, encoding: Encoding) -> Bytes {
        // Writing to memory fails only where there is none; the plain form is as good to the client.
        let Ok(mut bytes) = encoding.compress(&self.plain[HEADER..]) else { return self.plain.clone() };
        let length = u32::try_from(bytes.len() - HEADER).unwrap_or(u32::MAX);
        bytes[0] = 1;
        bytes[1..HEADER].copy_from_slice(&length.to_be_bytes());
        bytes.into()
    }

    /// The frame again.
    #[cfg(test)]
    pub(super) fn frame(&self) -> Frame {
        pb::SubscribeResponse::decode(&self.plain[HEADER..]).unwrap().frame.unwrap()
    }
}

const fn kind(frame: &Frame) -> FrameKind {
    match frame {
        Frame::Hello(_) => FrameKind::Hello,
        Frame::SnapshotBegin(_) => FrameKind::SnapshotBegin,
        Frame::SnapshotChunk(_) => FrameKind::SnapshotChunk,
        Frame::Synced(_) => FrameKind::Synced,
        Frame::AllSynced(_) => FrameKind::AllSynced,
        Frame::Batch(_) => FrameKind::Batch,
        Frame::ClusterRemoved(_) => FrameKind::ClusterRemoved,
        Frame::Heartbeat(_) => FrameKind::Heartbeat,
        Frame::GoAway(_) => FrameKind::GoAway,
        Frame::ClusterStatus(_) => FrameKind::ClusterStatus,
        Frame::Confirmed(_) => FrameKind::Confirmed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(count: u32) -> Message {
        let identity = |number| pb::Identity { number, labels: vec!["k8s:app=web".into()], ..Default::default() };
        let identities = (0..count).map(identity).collect();
        Message::new(Frame::SnapshotChunk(pb::SnapshotChunk { cluster: "a".into(), identities }))
    }

    #[test]
    fn compressed_forms_are_made_once_and_hold_the_same() {
        let message = chunk(1_000);
        let plain = message.wire(None);
        assert_eq!((plain[0], plain.len()), (0, message.len() + HEADER));
        for encoding in [Encoding::Zstd, Encoding::Gzip] {
            let (first, second) = (message.wire(Some(encoding)), message.wire(Some(encoding)));
            assert_eq!(first.as_ptr(), second.as_ptr(), "shared");
            assert_eq!(first[0], 1);
            assert_eq!(first[1..HEADER], u32::try_from(first.len() - HEADER).unwrap().to_be_bytes());
            assert!(first.len() < plain.len() / 4);
            let read: Vec<u8> = match encoding {
                Encoding::Zstd => zstd::stream::decode_all(&first[HEADER..]).unwrap(),
                Encoding::Gzip => {
                    let mut read = Vec::new();
                    io::copy(&mut flate2::read::GzDecoder::new(&first[HEADER..]), &mut read).unwrap();
                    read
                }
            };
            assert_eq!(read, plain[HEADER..]);
        }
        assert_eq!(chunk(1).wire(Some(Encoding::Zstd))[0], 0, "a small one stays as it is");
    }

    #[test]
    fn the_best_offer_is_taken() {
        for (offer, encoding) in [
            ("identity", None),
            ("gzip", Some(Encoding::Gzip)),
            ("identity, gzip,zstd", Some(Encoding::Zstd)),
            ("deflate, br", None),
        ] {
            assert_eq!(Encoding::of_offer(offer), encoding, "{offer}");
        }
    }
}
