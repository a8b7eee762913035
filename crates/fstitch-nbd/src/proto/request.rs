//! What a client asks for after the negotiation.

use fstitch_core::Be;

use super::numbers::{EXTENDED_REQUEST_MAGIC, REQUEST_MAGIC, flag};

/// How requests and replies are written, as negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Dialect {
    /// A reply is one header with an error number.
    Simple,
    /// Replies may come in chunks.
    Structured,
    /// Replies come in chunks, and lengths have 64 bits.
    Extended,
}

impl Dialect {
    /// Bytes of a request without its payload.
    pub(crate) const fn request_len(self) -> usize {
        match self {
            Self::Simple | Self::Structured => 28,
            Self::Extended => 32,
        }
    }
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Read,
    Write,
    Disconnect,
    Flush,
    Trim,
    Cache,
    WriteZeroes,
    BlockStatus,
    /// Nothing that we know.
    Unknown,
}

impl Command {
    const fn of(number: u16) -> Self {
        match number {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Disconnect,
            3 => Self::Flush,
            4 => Self::Trim,
            5 => Self::Cache,
            6 => Self::WriteZeroes,
            7 => Self::BlockStatus,
            _ => Self::Unknown,
        }
    }

    /// Flags that a request of this kind may have. FUA is lawful everywhere, and ignored where nothing is written.
    const fn flags(self) -> u16 {
        flag::FUA
            | match self {
                Self::Read => flag::DF,
                Self::WriteZeroes => flag::NO_HOLE | flag::FAST_ZERO,
                Self::BlockStatus => flag::REQ_ONE,
                _ => 0,
            }
    }

    /// Whether the export is changed by it.
    pub(crate) const fn is_change(self) -> bool {
        matches!(self, Self::Write | Self::Trim | Self::WriteZeroes)
    }
}

/// A request without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) command: Command,
    pub(crate) flags: u16,
    /// The client's own number for it, which its reply carries.
    pub(crate) cookie: u64,
    /// Bytes from the beginning of the export.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// Bytes that follow the request.
    pub(crate) payload: u64,
}

impl Request {
    /// Reads a request from as many bytes as `dialect` has. `None` if it is none: where the next one begins is unknown then.
    pub(crate) fn parse(dialect: Dialect, bytes: &[u8]) -> Option<Self> {
        let is_extended = dialect == Dialect::Extended;
        let magic = if is_extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
        if Be::u32(bytes, 0) != magic {
            return None;
        }
        let flags = Be::u16(bytes, 4);
        let command = Command::of(Be::u16(bytes, 6));
        let len = if is_extended { Be::u64(bytes, 24) } else { u64::from(Be::u32(bytes, 24)) };
        // A write without the flag has a payload, too: clients forget the flag, not the bytes.
        let has_payload = command == Command::Write || (is_extended && flags & flag::PAYLOAD_LEN != 0);
        let payload = if has_payload { len } else { 0 };
        Some(Self { command, flags, cookie: Be::u64(bytes, 8), offset: Be::u64(bytes, 16), len, payload })
    }

    pub(crate) const fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Whether all its flags are lawful for what it asks.
    pub(crate) fn has_lawful_flags(&self, dialect: Dialect) -> bool {
        let payload = if dialect == Dialect::Extended && self.command == Command::Write {
            flag::PAYLOAD_LEN
        } else {
            0
        };
        let unfragmented = if dialect == Dialect::Simple { flag::DF } else { 0 };
        self.flags & !((self.command.flags() & !unfragmented) | payload) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(magic: u32, flags: u16, command: u16, len: &[u8]) -> Vec<u8> {
        let mut bytes = magic.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(0x0102_0304_0506_0708_u64.to_be_bytes());
        bytes.extend(4096_u64.to_be_bytes());
        bytes.extend(len);
        bytes
    }

    #[test]
    fn both_forms_are_read() {
        let compact = bytes(REQUEST_MAGIC, flag::FUA, 1, &512_u32.to_be_bytes());
        let long = bytes(EXTENDED_REQUEST_MAGIC, flag::FUA, 1, &512_u64.to_be_bytes());
        assert_eq!((compact.len(), long.len()), (28, 32));
        let compact = Request::parse(Dialect::Simple, &compact).unwrap();
        assert_eq!(Request::parse(Dialect::Extended, &long), Some(compact));
        assert_eq!((compact.command, compact.offset, compact.len), (Command::Write, 4096, 512));
        assert_eq!((compact.cookie, compact.payload), (0x0102_0304_0506_0708, 512));
    }

    #[test]
    fn a_wrong_beginning_is_no_request() {
        let compact = bytes(REQUEST_MAGIC, 0, 0, &512_u64.to_be_bytes());
        assert_eq!(Request::parse(Dialect::Extended, &compact), None);
        assert_eq!(Request::parse(Dialect::Simple, &[0; 28]), None);
    }

    #[test]
    fn flags_are_lawful_where_they_mean_something() {
        let lawful = |dialect, command, flags| {
            let len = [0, 0, 2, 0];
            let request =
                Request::parse(Dialect::Simple, &bytes(REQUEST_MAGIC, flags, command, &len)).unwrap();
            request.has_lawful_flags(dialect)
        };
        assert!(lawful(Dialect::Simple, 1, flag::FUA));
        assert!(lawful(Dialect::Structured, 0, flag::DF));
        assert!(!lawful(Dialect::Simple, 0, flag::DF), "not offered");
        assert!(lawful(Dialect::Simple, 6, flag::NO_HOLE | flag::FAST_ZERO | flag::FUA));
        assert!(!lawful(Dialect::Simple, 1, flag::NO_HOLE));
        assert!(lawful(Dialect::Structured, 7, flag::REQ_ONE));
        assert!(lawful(Dialect::Extended, 1, flag::PAYLOAD_LEN));
        assert!(!lawful(Dialect::Structured, 1, flag::PAYLOAD_LEN));
        assert!(!lawful(Dialect::Extended, 0, flag::PAYLOAD_LEN));
        assert!(!lawful(Dialect::Simple, 0, 1 << 15));
    }

    #[test]
    fn a_payload_that_nobody_wants_is_known_all_the_same() {
        let read = bytes(EXTENDED_REQUEST_MAGIC, flag::PAYLOAD_LEN, 0, &9_u64.to_be_bytes());
        assert_eq!(Request::parse(Dialect::Extended, &read).unwrap().payload, 9);
        let read = bytes(REQUEST_MAGIC, flag::PAYLOAD_LEN, 0, &9_u32.to_be_bytes());
        assert_eq!(Request::parse(Dialect::Structured, &read).unwrap().payload, 0);
    }
}
