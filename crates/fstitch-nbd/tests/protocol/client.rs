//! A client that can say anything.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use fstitch_nbd::{Export, Options, Server, Single};

pub const EXPORT_NAME: u32 = 1;
pub const ABORT: u32 = 2;
pub const LIST: u32 = 3;
pub const STARTTLS: u32 = 5;
pub const INFO: u32 = 6;
pub const GO: u32 = 7;
pub const STRUCTURED_REPLY: u32 = 8;
pub const LIST_META_CONTEXT: u32 = 9;
pub const SET_META_CONTEXT: u32 = 10;
pub const EXTENDED_HEADERS: u32 = 11;

pub const ACK: u32 = 1;
pub const ERROR: u32 = 1 << 31;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const WRITE_ZEROES: u16 = 6;
pub const BLOCK_STATUS: u16 = 7;

pub const FUA: u16 = 1;
pub const NO_HOLE: u16 = 2;
pub const DF: u16 = 4;
pub const REQ_ONE: u16 = 8;
pub const FAST_ZERO: u16 = 16;
pub const PAYLOAD_LEN: u16 = 32;

/// A chunk of a reply; a simple reply is one, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    pub is_last: bool,
    pub kind: u16,
    pub cookie: u64,
    pub bytes: Vec<u8>,
}

/// The kind under which simple replies come; their bytes are the error number.
pub const SIMPLE: u16 = 0x7fff;

pub struct Client {
    pub stream: UnixStream,
    pub is_extended: bool,
}

/// A server of one export.
pub fn server(export: Arc<dyn Export>) -> Arc<Server> {
    Arc::new(Server::new(Arc::new(Single(export)), Options::default()).unwrap())
}

/// A client of the server, on a thread of its own, which ends when the client has gone.
pub fn connect(server: &Arc<Server>) -> (Client, JoinHandle<()>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    // A test that would hang fails instead.
    ours.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let server = Arc::clone(server);
    let thread = std::thread::spawn(move || server.serve(Arc::new(theirs)));
    (Client { stream: ours, is_extended: false }, thread)
}

/// A client in mid-transmission: structured replies and `base:allocation` with `is_structured`.
pub fn ready(export: Arc<dyn Export>, is_structured: bool) -> Client {
    let (mut client, _) = connect(&server(export));
    client.greet();
    if is_structured {
        assert_eq!(client.option(STRUCTURED_REPLY, &[]), [(ACK, vec![])]);
        let answers = client.option(SET_META_CONTEXT, &contexts("", &["base:allocation"]));
        assert_eq!(answers.last().unwrap().0, ACK);
    }
    client.go("");
    client
}

/// The contents of `INFO` and `GO`.
pub fn wanted(name: &str, informations: &[u16]) -> Vec<u8> {
    let mut bytes = u32::try_from(name.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend(name.as_bytes());
    bytes.extend(u16::try_from(informations.len()).unwrap().to_be_bytes());
    bytes.extend(informations.iter().flat_map(|information| information.to_be_bytes()));
    bytes
}

/// The contents of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
pub fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut bytes = u32::try_from(name.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend(name.as_bytes());
    bytes.extend(u32::try_from(queries.len()).unwrap().to_be_bytes());
    for query in queries {
        bytes.extend(u32::try_from(query.len()).unwrap().to_be_bytes());
        bytes.extend(query.as_bytes());
    }
    bytes
}

impl Client {
    pub fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub fn take_vec(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take())
    }

    pub fn put(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Exchanges greetings.
    pub fn greet(&mut self) {
        assert_eq!(&self.take::<16>(), b"NBDMAGICIHAVEOPT");
        assert_eq!(self.u16(), 3);
        self.put(&3_u32.to_be_bytes());
    }

    /// Whether the server has closed the connection, with nothing more to say.
    pub fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0]) {
            Ok(len) => len == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }

    pub fn put_option(&mut self, option: u32, contents: &[u8]) {
        let mut bytes = b"IHAVEOPT".to_vec();
        bytes.extend(option.to_be_bytes());
        bytes.extend(u32::try_from(contents.len()).unwrap().to_be_bytes());
        bytes.extend(contents);
        self.put(&bytes);
    }

    /// Asks, and returns all answers, the last of which is an acknowledgement or an error.
    pub fn option(&mut self, option: u32, contents: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.put_option(option, contents);
        let mut answers = Vec::new();
        loop {
            assert_eq!(self.u64(), 0x0003_e889_0455_65a9);
            assert_eq!(self.u32(), option);
            let kind = self.u32();
            let len = self.u32();
            let bytes = self.take_vec(usize::try_from(len).unwrap());
            answers.push((kind, bytes));
            if kind == ACK || kind >= ERROR {
                return answers;
            }
        }
    }

    /// Asks for what is refused; the error's number without its highest bit.
    pub fn refused(&mut self, option: u32, contents: &[u8]) -> u32 {
        let answers = self.option(option, contents);
        let (kind, _) = answers.last().unwrap();
        assert!(*kind >= ERROR, "{answers:?}");
        kind - ERROR
    }

    /// Chooses an export; its size and flags.
    pub fn go(&mut self, name: &str) -> (u64, u16) {
        let answers = self.option(GO, &wanted(name, &[]));
        assert_eq!((answers.len(), answers.last().unwrap().0), (2, ACK), "{answers:?}");
        let bytes = &answers[0].1;
        assert_eq!((answers[0].0, bytes.len(), &bytes[..2]), (3, 12, &[0, 0][..]));
        let size = u64::from_be_bytes(bytes[2..10].try_into().unwrap());
        (size, u16::from_be_bytes([bytes[10], bytes[11]]))
    }

    /// Sends a request with its payload.
    pub fn ask(&mut self, flags: u16, command: u16, cookie: u64, place: (u64, u64), payload: &[u8]) {
        let mut bytes = Vec::new();
        let magic: u32 = if self.is_extended { 0x21e4_1c71 } else { 0x2560_9513 };
        bytes.extend(magic.to_be_bytes());
        bytes.extend(flags.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(place.0.to_be_bytes());
        if self.is_extended {
            bytes.extend(place.1.to_be_bytes());
        } else {
            bytes.extend(u32::try_from(place.1).unwrap().to_be_bytes());
        }
        bytes.extend(payload);
        self.put(&bytes);
    }

    /// A chunk or a simple reply; `data` is how many bytes follow a simple one that is a success.
    pub fn chunk(&mut self, data: usize) -> Chunk {
        match self.u32() {
            0x6744_6698 => {
                let error = self.take::<4>();
                let cookie = self.u64();
                let data = if error == [0; 4] { self.take_vec(data) } else { Vec::new() };
                let bytes = error.into_iter().chain(data).collect();
                Chunk { is_last: true, kind: SIMPLE, cookie, bytes }
            }
            0x668e_33ef => {
                let (flags, kind, cookie, len) = (self.u16(), self.u16(), self.u64(), self.u32());
                let bytes = self.take_vec(usize::try_from(len).unwrap());
                Chunk { is_last: flags == 1, kind, cookie, bytes }
            }
            0x6e8a_278c => {
                let (flags, kind, cookie) = (self.u16(), self.u16(), self.u64());
                let (_offset, len) = (self.u64(), self.u64());
                let bytes = self.take_vec(usize::try_from(len).unwrap());
                Chunk { is_last: flags == 1, kind, cookie, bytes }
            }
            other => panic!("{other:#x} begins no reply"),
        }
    }

    /// Asks, and returns the error number of the reply, 0 for a success; of whatever kind the reply is.
    pub fn errno(&mut self, flags: u16, command: u16, place: (u64, u64), payload: &[u8]) -> u32 {
        self.ask(flags, command, 77, place, payload);
        let chunk = self.chunk(0);
        assert!(chunk.is_last && chunk.cookie == 77, "{chunk:?}");
        match chunk.kind {
            SIMPLE | 0x8001 => u32::from_be_bytes(chunk.bytes[..4].try_into().unwrap()),
            _ => 0,
        }
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        let len = u64::try_from(bytes.len()).unwrap();
        let flags = if self.is_extended { PAYLOAD_LEN } else { 0 };
        assert_eq!(self.errno(flags, WRITE, (offset, len), bytes), 0);
    }

    /// Reads with simple replies.
    pub fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        self.ask(0, READ, 5, (offset, u64::try_from(len).unwrap()), &[]);
        let chunk = self.chunk(len);
        assert_eq!((chunk.kind, chunk.cookie, &chunk.bytes[..4]), (SIMPLE, 5, &[0; 4][..]));
        chunk.bytes[4..].to_vec()
    }

    /// Reads in chunks, and puts them together; also how many chunks were holes.
    pub fn read_chunks(&mut self, flags: u16, offset: u64, len: usize) -> (Vec<u8>, usize) {
        self.ask(flags, READ, 6, (offset, u64::try_from(len).unwrap()), &[]);
        let mut bytes = vec![0xee; len];
        let (mut done, mut holes) = (0, 0);
        loop {
            let chunk = self.chunk(0);
            assert_eq!(chunk.cookie, 6);
            if chunk.kind == 0 {
                break;
            }
            let at = u64::from_be_bytes(chunk.bytes[..8].try_into().unwrap());
            let at = usize::try_from(at - offset).unwrap();
            match chunk.kind {
                1 => {
                    bytes[at..at + chunk.bytes.len() - 8].copy_from_slice(&chunk.bytes[8..]);
                    done += chunk.bytes.len() - 8;
                }
                2 => {
                    let hole = u32::from_be_bytes(chunk.bytes[8..12].try_into().unwrap());
                    let hole = usize::try_from(hole).unwrap();
                    bytes[at..at + hole].fill(0);
                    done += hole;
                    holes += 1;
                }
                other => panic!("chunk {other:#x}"),
            }
            if chunk.is_last {
                break;
            }
        }
        assert_eq!(done, len, "all of it, and nothing twice");
        (bytes, holes)
    }
}
