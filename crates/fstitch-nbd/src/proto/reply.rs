//! What clients are answered after the negotiation.

use fstitch_core::num::to_u64;

use super::batch::Batch;
use super::error::Refusal;
use super::numbers::{
    ALLOCATION_ID, EXTENDED_REPLY_MAGIC, REPLY_FLAG_DONE, SIMPLE_REPLY_MAGIC, STATE_HOLE, STATE_ZERO,
    STRUCTURED_REPLY_MAGIC, chunk,
};
use super::request::{Command, Dialect, Request};
use crate::Extent;

/// Longest message of an error, in bytes: the protocol asks that strings stay below 4096.
const MESSAGE_MAX: usize = 1024;

/// Writes the replies to one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply<'a> {
    pub(crate) dialect: Dialect,
    pub(crate) request: &'a Request,
}

impl Reply<'_> {
    /// The header of a simple reply.
    fn simple(self, batch: &mut Batch, error: u32) {
        batch.put_u32(SIMPLE_REPLY_MAGIC);
        batch.put_u32(error);
        batch.put_u64(self.request.cookie);
    }

    /// The header of a chunk with `len` bytes.
    fn chunk(self, batch: &mut Batch, kind: u16, is_last: bool, len: u64) {
        let is_extended = self.dialect == Dialect::Extended;
        batch.put_u32(if is_extended { EXTENDED_REPLY_MAGIC } else { STRUCTURED_REPLY_MAGIC });
        batch.put_u16(if is_last { REPLY_FLAG_DONE } else { 0 });
        batch.put_u16(kind);
        batch.put_u64(self.request.cookie);
        if is_extended {
            batch.put_u64(self.request.offset);
            batch.put_u64(len);
        } else {
            batch.put_u32(u32::try_from(len).expect("no chunk is longer than the longest payload"));
        }
    }

    /// It was done, and there is nothing more to say. Simple where that is lawful: it is the shorter one.
    pub(crate) fn done(self, batch: &mut Batch) {
        match self.dialect {
            Dialect::Simple | Dialect::Structured => self.simple(batch, 0),
            Dialect::Extended => self.chunk(batch, chunk::NONE, true, 0),
        }
    }

    /// It was not done.
    pub(crate) fn refuse(self, batch: &mut Batch, refusal: &Refusal) {
        if self.dialect == Dialect::Simple {
            return self.simple(batch, refusal.code.0);
        }
        let mut end = refusal.text.len().min(MESSAGE_MAX);
        while !refusal.text.is_char_boundary(end) {
            end -= 1;
        }
        let text = &refusal.text[..end];
        self.chunk(batch, chunk::ERROR, true, 6 + to_u64(text.len()));
        batch.put_u32(refusal.code.0);
        batch.put_u16(u16::try_from(text.len()).expect("it was cut"));
        batch.put(text.as_bytes());
    }

    /// Room for the data of a read, of which this is a part or all.
    pub(crate) fn data(self, batch: &mut Batch, offset: u64, len: usize, is_last: bool) -> &mut [u8] {
        if self.dialect == Dialect::Simple {
            self.simple(batch, 0);
        } else {
            self.chunk(batch, chunk::OFFSET_DATA, is_last, 8 + to_u64(len));
            batch.put_u64(offset);
        }
        batch.room(len)
    }

    /// A part of a read that is zeros.
    pub(crate) fn hole(self, batch: &mut Batch, offset: u64, len: u32, is_last: bool) {
        assert!(self.dialect != Dialect::Simple && self.request.command == Command::Read);
        self.chunk(batch, chunk::OFFSET_HOLE, is_last, 12);
        batch.put_u64(offset);
        batch.put_u32(len);
    }

    /// The status of consecutive extents from the request's offset on.
    pub(crate) fn status(self, batch: &mut Batch, extents: &[Extent]) {
        assert!(!extents.is_empty() && self.dialect != Dialect::Simple);
        let count = to_u64(extents.len());
        let is_extended = self.dialect == Dialect::Extended;
        if is_extended {
            self.chunk(batch, chunk::BLOCK_STATUS_EXT, true, 8 + 16 * count);
            batch.put_u32(ALLOCATION_ID);
            batch.put_u32(u32::try_from(count).expect("the number of extents has a limit"));
        } else {
            self.chunk(batch, chunk::BLOCK_STATUS, true, 4 + 8 * count);
            batch.put_u32(ALLOCATION_ID);
        }
        for extent in extents {
            let hole = if extent.is_hole { STATE_HOLE } else { 0 };
            let zero = if extent.is_zero { STATE_ZERO } else { 0 };
            if is_extended {
                batch.put_u64(extent.len);
                batch.put_u64(u64::from(hole | zero));
            } else {
                batch.put_u32(u32::try_from(extent.len).expect("no longer than the request"));
                batch.put_u32(hole | zero);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::error::Code;
    use super::*;

    const READ: Request =
        Request { command: Command::Read, flags: 0, cookie: 7, offset: 512, len: 4, payload: 0 };

    fn written(dialect: Dialect, write: impl FnOnce(Reply<'_>, &mut Batch)) -> Vec<u8> {
        let mut batch = Batch::default();
        write(Reply { dialect, request: &READ }, &mut batch);
        batch.take()
    }

    #[test]
    fn simple_replies() {
        let done = written(Dialect::Simple, |reply, batch| reply.done(batch));
        assert_eq!(done, [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
        let refusal = Refusal::new(Code::NOSPC, "full");
        let failed = written(Dialect::Simple, |reply, batch| reply.refuse(batch, &refusal));
        assert_eq!(failed[4..8], [0, 0, 0, 28]);
    }

    #[test]
    fn chunks() {
        let data = written(Dialect::Structured, |reply, batch| reply.data(batch, 512, 2, true).fill(9));
        assert_eq!(
            data,
            [
                0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 2,
                0, 9, 9
            ]
        );
        let hole = written(Dialect::Extended, |reply, batch| reply.hole(batch, 514, 2, false));
        assert_eq!(hole.len(), 32 + 12);
        assert_eq!(hole[..8], [0x6e, 0x8a, 0x27, 0x8c, 0, 0, 0, 2]);
        assert_eq!(hole[16..32], [0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 12]);
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let refusal =
            Refusal { code: Code::IO, text: "ä".repeat(600).as_str().replacen('ä', "a", 1).into() };
        let failed = written(Dialect::Structured, |reply, batch| reply.refuse(batch, &refusal));
        assert_eq!(failed[24..26], [0x03, 0xff]);
        assert!(std::str::from_utf8(&failed[26..]).is_ok());
    }

    #[test]
    fn status_in_both_widths() {
        let extents = [Extent { len: 4, is_hole: true, is_zero: true }];
        let compact = written(Dialect::Structured, |reply, batch| reply.status(batch, &extents));
        assert_eq!(compact[16..], [0, 0, 0, 12, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 3]);
        let wide = written(Dialect::Extended, |reply, batch| reply.status(batch, &extents));
        assert_eq!(wide[32..40], [0, 0, 0, 1, 0, 0, 0, 1]);
        assert_eq!(wide[40..], [0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 3]);
    }
}
