//! What a client asks for during the negotiation.

use fstitch_core::Be;
use fstitch_core::num::to_usize;

use super::numbers::INFO_BLOCK_SIZE;

/// Longest name of an export, in bytes, as the protocol has it for all strings.
const STRING_MAX: usize = 4096;

/// Takes pieces off the front of an option's bytes.
struct Pieces<'a>(&'a [u8]);

impl<'a> Pieces<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (piece, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(piece)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(Be::u16(self.bytes(2)?, 0))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(Be::u32(self.bytes(4)?, 0))
    }

    /// A string behind its length.
    fn string(&mut self) -> Option<&'a str> {
        let len = to_usize(self.u32()?);
        string(self.bytes(len)?)
    }
}

/// A string of the protocol: UTF-8, not too long, and without the byte that ends strings elsewhere.
pub(crate) fn string(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    (text.len() <= STRING_MAX && !text.contains('\0')).then_some(text)
}

/// What is asked of an export by `NBD_OPT_INFO` and `NBD_OPT_GO`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wanted<'a> {
    pub(crate) name: &'a str,
    /// Which of the informations 0 to 3; others are unknown and need no answer.
    known: u8,
}

impl<'a> Wanted<'a> {
    /// `None` if the bytes are not what the protocol says.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut pieces = Pieces(bytes);
        let name = pieces.string()?;
        let mut known = 0;
        for _ in 0..pieces.u16()? {
            let information = pieces.u16()?;
            if information <= INFO_BLOCK_SIZE {
                known |= 1 << information;
            }
        }
        pieces.0.is_empty().then_some(Self { name, known })
    }

    /// Whether that information, of those that we know, is asked for.
    pub(crate) const fn asks(&self, information: u16) -> bool {
        self.known & (1 << information) != 0
    }
}

/// Which metadata contexts are asked for by `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Contexts<'a> {
    pub(crate) name: &'a str,
    pub(crate) queries: Vec<&'a str>,
}

impl<'a> Contexts<'a> {
    /// `None` if the bytes are not what the protocol says.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut pieces = Pieces(bytes);
        let name = pieces.string()?;
        let count = to_usize(pieces.u32()?);
        // Each has at least its length: this bounds what a lie about their number costs.
        if count > pieces.0.len() / 4 {
            return None;
        }
        let mut queries = Vec::with_capacity(count);
        for _ in 0..count {
            queries.push(pieces.string()?);
        }
        pieces.0.is_empty().then_some(Self { name, queries })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_asked_of_an_export() {
        let bytes = b"\0\0\0\x02ab\0\x03\0\x01\0\x03\x12\x34";
        let wanted = Wanted::parse(bytes).unwrap();
        assert_eq!(wanted.name, "ab");
        assert_eq!([0, 1, 2, 3].map(|information| wanted.asks(information)), [false, true, false, true]);
        for cut in 0..bytes.len() {
            assert_eq!(Wanted::parse(&bytes[..cut]), None, "{cut} bytes");
        }
        assert_eq!(Wanted::parse(b"\0\0\0\x02ab\0\0more"), None);
        assert_eq!(Wanted::parse(b"\0\0\0\x02\xff\xfe\0\0"), None, "no UTF-8");
        assert_eq!(Wanted::parse(b"\xff\xff\xff\xffab\0\0"), None);
    }

    #[test]
    fn which_contexts_are_asked_for() {
        let bytes = b"\0\0\0\0\0\0\0\x02\0\0\0\x05base:\0\0\0\x01x";
        let contexts = Contexts::parse(bytes).unwrap();
        assert_eq!((contexts.name, &contexts.queries[..]), ("", &["base:", "x"][..]));
        for cut in 0..bytes.len() {
            assert_eq!(Contexts::parse(&bytes[..cut]), None, "{cut} bytes");
        }
        assert_eq!(Contexts::parse(b"\0\0\0\0\xff\xff\xff\xff"), None, "a lie about their number");
    }

    proptest! {
        #[test]
        fn any_bytes_are_understood_or_refused(bytes in proptest::collection::vec(0_u8..8, 0..64)) {
            let _ = Wanted::parse(&bytes);
            let _ = Contexts::parse(&bytes);
        }
    }
}
