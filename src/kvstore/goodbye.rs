//! Finds the server's GOAWAY in what it sends: the layers above close the connection and keep the reason to themselves.

/// Bytes of a frame's header (RFC 9113, 4.1).
const HEADER: usize = 9;
/// Of a GOAWAY's payload: last stream, error code (6.8).
const GOAWAY: usize = 8;
const GOAWAY_TYPE: u8 = 7;

/// Error code by which a gRPC server refuses pings (RFC 9113, 7: `ENHANCE_YOUR_CALM`).
pub(super) const CALM: u32 = 0xb;

/// Follows the frames of an HTTP/2 connection, from its first byte on.
#[derive(Clone, Debug, Default)]
pub(super) struct FrameScan {
    head: [u8; HEADER + GOAWAY],
    filled: usize,
    /// Of the payload.
    skip: usize,
}

impl FrameScan {
    /// Takes what was read next; the error code of a GOAWAY, if that is in it.
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> Option<u32> {
        let mut code = None;
        while !bytes.is_empty() {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len());
                self.skip -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            let is_goaway = self.filled >= HEADER;
            let wanted = if is_goaway { HEADER + GOAWAY } else { HEADER };
            let taken = (wanted - self.filled).min(bytes.len());
            self.head[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken;
            bytes = &bytes[taken..];
            if self.filled < wanted {
                break;
            }
            let number = |at: usize, bytes: usize| {
                self.head[at..at + bytes].iter().fold(0, |number, &byte| number << 8 | u32::from(byte))
            };
            let (length, kind) = (number(0, 3) as usize, self.head[3]);
            if is_goaway {
                code = Some(number(HEADER + 4, 4));
                (self.filled, self.skip) = (0, length - GOAWAY);
            } else if kind != GOAWAY_TYPE || length < GOAWAY {
                (self.filled, self.skip) = (0, length);
            }
        }
        code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, 0, 0, 0, 0, 1], payload].concat()
    }

    #[test]
    fn e06_found_however_the_bytes_are_cut() {
        let data = [7; 300];
        let calm = [&[0, 0, 0, 9, 0, 0, 0, 0xb][..], b"too_many_pings"].concat();
        let stream = [frame(4, &[]), frame(0, &data), frame(7, &[1]), frame(0, &[]), frame(7, &calm), frame(1, b"x")];
        let stream = stream.concat();
        for cut in 1..stream.len() {
            let mut scan = FrameScan::default();
            let codes: Vec<_> = stream.chunks(cut).filter_map(|chunk| scan.read(chunk)).collect();
            assert_eq!(codes, [CALM], "{cut}");
            assert_eq!((scan.filled, scan.skip), (0, 0), "{cut}: at the end of a frame");
        }
    }
}
