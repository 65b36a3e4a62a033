//! Numbers and texts in bytes: written without a thought, read with every one.

/// The bytes end before what they announce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Truncated;

pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let low = value.to_le_bytes()[0] & 0x7f;
        value >>= 7;
        if value == 0 {
            return out.push(low);
        }
        out.push(low | 0x80);
    }
}

pub(super) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_varint(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// Reads from the front.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(Truncated)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(super) fn u16(&mut self) -> Result<u16, Truncated> {
        self.take().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Truncated> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Truncated> {
        self.take().map(u64::from_le_bytes)
    }

    pub(super) fn varint(&mut self) -> Result<u64, Truncated> {
        let mut value = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let [byte] = self.take()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Truncated)
    }

    /// A number of items that take at least `least` bytes each, hence cannot be more than there is room for.
    pub(super) fn count(&mut self, least: usize) -> Result<usize, Truncated> {
        let count = usize::try_from(self.varint()?).map_err(|_| Truncated)?;
        if count > self.0.len() / least { Err(Truncated) } else { Ok(count) }
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Truncated> {
        let length = self.count(1)?;
        let (text, rest) = self.0.split_at_checked(length).ok_or(Truncated)?;
        self.0 = rest;
        std::str::from_utf8(text).map_err(|_| Truncated)
    }
}
