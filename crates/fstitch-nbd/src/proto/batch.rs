//! Replies that leave together.

/// Bytes to be sent. Memory that was once used stays initialised, so that room for a read costs nothing the second time.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    used: usize,
}

/// Memory beyond this is given back after use: a read of 1 MiB fits with its header.
const KEPT: usize = (1 << 20) + (1 << 12);

impl Batch {
    /// What is to be sent.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    /// How many bytes are to be sent; also a place to [`rewind`](Self::rewind) to.
    pub(crate) const fn len(&self) -> usize {
        self.used
    }

    /// Forgets what came after that place.
    pub(crate) fn rewind(&mut self, place: usize) {
        assert!(place <= self.used, "a batch is rewound to where it once was");
        self.used = place;
    }

    /// Room for `len` more bytes, which hold anything.
    pub(crate) fn room(&mut self, len: usize) -> &mut [u8] {
        let start = self.used;
        self.used += len;
        if self.bytes.is_empty() {
            // The system's zeros, which are made when they are touched.
            self.bytes = vec![0; self.used];
        } else if self.bytes.len() < self.used {
            self.bytes.resize(self.used, 0);
        }
        &mut self.bytes[start..self.used]
    }

    /// Appends bytes.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
    }

    pub(crate) fn put_u16(&mut self, value: u16) {
        self.put(&value.to_be_bytes());
    }

    pub(crate) fn put_u32(&mut self, value: u32) {
        self.put(&value.to_be_bytes());
    }

    pub(crate) fn put_u64(&mut self, value: u64) {
        self.put(&value.to_be_bytes());
    }

    /// The bytes were sent.
    pub(crate) fn clear(&mut self) {
        self.used = 0;
        if self.bytes.len() > KEPT {
            self.bytes = Vec::new();
        }
    }

    /// The bytes, for somebody else to send.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.truncate(self.used);
        self.used = 0;
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_rewound_is_not_sent_and_its_room_is_used_again() {
        let mut batch = Batch::default();
        batch.put_u16(0x0102);
        let place = batch.len();
        batch.room(100).fill(9);
        batch.rewind(place);
        batch.put_u32(0x0304_0506);
        assert_eq!(batch.bytes(), [1, 2, 3, 4, 5, 6]);
        batch.clear();
        assert_eq!(batch.bytes(), []);
        batch.put_u64(7);
        assert_eq!(batch.take(), [0, 0, 0, 0, 0, 0, 0, 7]);
        assert_eq!(batch.len(), 0);
    }
}
