//! What clients are answered during the negotiation.

use crate::connection::served_size;
use crate::export::{Export, Listed};
use crate::proto::batch::Batch;
use crate::proto::numbers as no;
use crate::proto::numbers::transmission as flag;
use crate::proto::request::Dialect;

/// Longest string, as the protocol has it.
const STRING_MAX: usize = 4096;

/// The answers to one option.
pub(super) struct Answers {
    option: u32,
    pub(super) batch: Batch,
}

/// `text`, cut between characters where it is too long.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(STRING_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn length(len: usize) -> u32 {
    u32::try_from(len).expect("strings are cut")
}

/// The flags of an export.
fn transmission_flags(export: &dyn Export, dialect: Dialect) -> u16 {
    let features = export.features();
    let changes = flag::SEND_FUA | flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
    let when = |condition, flag| if condition { flag } else { 0 };
    flag::HAS_FLAGS
        | flag::SEND_FLUSH
        | flag::SEND_CACHE
        | when(features.is_read_only, flag::READ_ONLY)
        | when(!features.is_read_only, changes)
        | when(features.is_rotational, flag::ROTATIONAL)
        | when(features.has_multi_conn, flag::CAN_MULTI_CONN)
        | when(dialect != Dialect::Simple, flag::SEND_DF)
}

impl Answers {
    pub(super) fn new(option: u32) -> Self {
        Self { option, batch: Batch::default() }
    }

    fn header(&mut self, kind: u32, len: usize) {
        self.batch.put_u64(no::REPLY_MAGIC);
        self.batch.put_u32(self.option);
        self.batch.put_u32(kind);
        self.batch.put_u32(length(len));
    }

    /// That was all, and all went well.
    pub(super) fn ack(&mut self) {
        self.header(no::REP_ACK, 0);
    }

    /// It was not done.
    pub(super) fn error(&mut self, kind: u32, text: &str) {
        let text = cut(text);
        self.header(kind, text.len());
        self.batch.put(text.as_bytes());
    }

    /// A line of the list.
    pub(super) fn server(&mut self, listed: &Listed) {
        if listed.name.len() > STRING_MAX {
            // Nobody could ask for it.
            return;
        }
        let description = cut(&listed.description);
        self.header(no::REP_SERVER, 4 + listed.name.len() + description.len());
        self.batch.put_u32(length(listed.name.len()));
        self.batch.put(listed.name.as_bytes());
        self.batch.put(description.as_bytes());
    }

    pub(super) fn export(&mut self, export: &dyn Export, dialect: Dialect) {
        self.header(no::REP_INFO, 12);
        self.batch.put_u16(no::INFO_EXPORT);
        self.batch.put_u64(served_size(export));
        self.batch.put_u16(transmission_flags(export, dialect));
    }

    pub(super) fn text(&mut self, information: u16, text: &str) {
        let text = cut(text);
        self.header(no::REP_INFO, 2 + text.len());
        self.batch.put_u16(information);
        self.batch.put(text.as_bytes());
    }

    pub(super) fn block_size(&mut self, export: &dyn Export, payload_max: u32) {
        let block = export.features().block;
        let minimum = block.minimum.max(1);
        self.header(no::REP_INFO, 14);
        self.batch.put_u16(no::INFO_BLOCK_SIZE);
        self.batch.put_u32(minimum);
        self.batch.put_u32(block.preferred.max(minimum).max(512));
        self.batch.put_u32(block.maximum.min(payload_max).max(minimum));
    }

    pub(super) fn context(&mut self, id: u32) {
        self.header(no::REP_META_CONTEXT, 4 + no::ALLOCATION.len());
        self.batch.put_u32(id);
        self.batch.put(no::ALLOCATION.as_bytes());
    }

    /// The answer to the oldest option, which has no header.
    pub(super) fn oldest(&mut self, export: &dyn Export, dialect: Dialect, has_no_zeroes: bool) {
        self.batch.put_u64(served_size(export));
        self.batch.put_u16(transmission_flags(export, dialect));
        if !has_no_zeroes {
            self.batch.room(124).fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Features, MemExport};

    #[test]
    fn flags_say_what_can_be_done() {
        let plain = MemExport::with_features(0, Features::default());
        let all = flag::SEND_FUA | flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
        let always = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_CACHE;
        assert_eq!(transmission_flags(&plain, Dialect::Simple), always | all);
        assert_eq!(transmission_flags(&plain, Dialect::Structured), always | all | flag::SEND_DF);
        let features = Features { is_read_only: true, is_rotational: true, ..Features::default() };
        let fixed = MemExport::with_features(0, features);
        let flags = always | flag::READ_ONLY | flag::ROTATIONAL;
        assert_eq!(transmission_flags(&fixed, Dialect::Simple), flags);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(cut("kurz"), "kurz");
        assert_eq!(cut(&"ä".repeat(3000)).len(), 4096);
        assert_eq!(cut(&format!("a{}", "ä".repeat(3000))).len(), 4095);
        assert_eq!(cut(""), "");
    }
}
