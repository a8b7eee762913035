//! Frames: each with its kind, its length, and a sum that counts from the stream's start, so that none is lost, doubled or moved.

use std::io::{ErrorKind, Read, Write};

use fstitch_core::{Errno, Error, Le, Result, Structure, Timestamp};
use twox_hash::XxHash3_64;

use crate::waffle::layout::record::{Source, is_tree_name};
use crate::waffle::layout::{BLOCK, NAME_MAX, put_time, time};
use crate::waffle::tree::Obj;

const MAGIC: [u8; 8] = *b"WAFSTRM\n";
const VERSION: u32 = 1;
const HEAD: usize = 16;
/// Bytes of the longest frame's contents: where a leaf is, and the leaf.
const CONTENTS_MAX: usize = 32 + BLOCK;
const BEGIN: usize = 128;

/// What a stream is of: the tree's record without what a volume gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Begin {
    /// The snapshot.
    pub source: Source,
    /// The one that it is told from; none for a whole one.
    pub base: Source,
    pub seed: u64,
    pub ino_end: u64,
    pub free_ino: u64,
    pub orphan: u64,
    pub used: u64,
    pub orphans: u64,
    pub made: Timestamp,
    pub name: Vec<u8>,
}

/// A piece of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    Begin(Begin),
    /// A leaf of inodes, whose references are zeros.
    Inodes {
        leaf: u64,
        bytes: Box<[u8; BLOCK]>,
    },
    /// Leaves of contents or attributes that are not there.
    Cut {
        obj: Obj,
        from: u64,
        to: u64,
    },
    /// A leaf of contents or attributes.
    Leaf {
        obj: Obj,
        index: u64,
        bytes: Box<[u8; BLOCK]>,
    },
    /// The end, with how many frames there were before.
    End {
        frames: u64,
    },
}

pub(super) fn damaged(problem: impl Into<String>) -> Error {
    Error::corrupt(Structure::Other("stream"), None, problem.into())
}

/// A failure of what a stream is read from or written to.
fn failed(what: &str, error: &std::io::Error) -> Error {
    match error.raw_os_error() {
        Some(number) => Errno(number).into(),
        None => Error::Unsupported(format!("{what} the stream: {error}")),
    }
}

fn put_source(bytes: &mut [u8], at: usize, source: Source) {
    bytes[at..at + 16].copy_from_slice(&source.uuid);
    Le::put_u64(bytes, at + 16, source.generation);
}

fn source(bytes: &[u8], at: usize) -> Source {
    Source { uuid: bytes[at..at + 16].try_into().expect("16 bytes"), generation: Le::u64(bytes, at + 16) }
}

impl Begin {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; BEGIN];
        put_source(&mut bytes, 0, self.source);
        put_source(&mut bytes, 24, self.base);
        for (at, value) in [
            (48, self.seed),
            (56, self.ino_end),
            (64, self.free_ino),
            (72, self.orphan),
            (80, self.used),
            (88, self.orphans),
        ] {
            Le::put_u64(&mut bytes, at, value);
        }
        put_time(&mut bytes, 96, 104, self.made);
        bytes.extend_from_slice(&self.name);
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        if bytes.len() < BEGIN || bytes.len() > BEGIN + NAME_MAX || !is_tree_name(&bytes[BEGIN..]) {
            return Err(damaged("its beginning has no name that a snapshot could have"));
        }
        Ok(Self {
            source: source(bytes, 0),
            base: source(bytes, 24),
            seed: Le::u64(bytes, 48),
            ino_end: Le::u64(bytes, 56),
            free_ino: Le::u64(bytes, 64),
            orphan: Le::u64(bytes, 72),
            used: Le::u64(bytes, 80),
            orphans: Le::u64(bytes, 88),
            made: time(bytes, 96, 104),
            name: bytes[BEGIN..].to_vec(),
        })
    }
}

/// The fork of an object, in bytes.
fn put_obj(bytes: &mut [u8], obj: Obj) {
    let (fork, ino) = match obj {
        Obj::Data(ino) => (0, ino),
        Obj::Xattrs(ino) => (1, ino),
        Obj::Inodes | Obj::Shared | Obj::Trees => unreachable!("no stream has tables"),
    };
    Le::put_u64(bytes, 0, ino);
    bytes[8] = fork;
}

fn obj(bytes: &[u8]) -> Result<Obj> {
    match bytes[8] {
        0 => Ok(Obj::Data(Le::u64(bytes, 0))),
        1 => Ok(Obj::Xattrs(Le::u64(bytes, 0))),
        other => Err(damaged(format!("part {other} of an inode"))),
    }
}

fn block(bytes: &[u8]) -> Result<Box<[u8; BLOCK]>> {
    Box::<[u8]>::from(bytes).try_into().map_err(|_| damaged("a leaf that is none"))
}

impl Frame {
    fn encode(&self) -> (u32, Vec<u8>) {
        match self {
            Self::Begin(begin) => (1, begin.encode()),
            Self::Inodes { leaf, bytes } => (2, [&leaf.to_le_bytes()[..], &bytes[..]].concat()),
            Self::Cut { obj, from, to } => {
                let mut bytes = vec![0; 32];
                put_obj(&mut bytes, *obj);
                Le::put_u64(&mut bytes, 16, *from);
                Le::put_u64(&mut bytes, 24, *to);
                (3, bytes)
            }
            Self::Leaf { obj, index, bytes } => {
                let mut all = vec![0; 24];
                put_obj(&mut all, *obj);
                Le::put_u64(&mut all, 16, *index);
                all.extend_from_slice(&bytes[..]);
                (4, all)
            }
            Self::End { frames } => (5, frames.to_le_bytes().to_vec()),
        }
    }

    fn decode(kind: u32, bytes: &[u8]) -> Result<Self> {
        match (kind, bytes.len()) {
            (1, _) => Begin::decode(bytes).map(Self::Begin),
            (2, len) if len == 8 + BLOCK => {
                Ok(Self::Inodes { leaf: Le::u64(bytes, 0), bytes: block(&bytes[8..])? })
            }
            (3, 32) => Ok(Self::Cut { obj: obj(bytes)?, from: Le::u64(bytes, 16), to: Le::u64(bytes, 24) }),
            (4, len) if len == 24 + BLOCK => {
                let index = Le::u64(bytes, 16);
                Ok(Self::Leaf { obj: obj(bytes)?, index, bytes: block(&bytes[24..])? })
            }
            (5, 8) => Ok(Self::End { frames: Le::u64(bytes, 0) }),
            (kind, len) => Err(damaged(format!("a frame of kind {kind} with {len} bytes"))),
        }
    }
}

/// Writes frames.
pub(super) struct Writer<'a> {
    to: &'a mut dyn Write,
    frames: u64,
}

impl<'a> Writer<'a> {
    /// A stream begins.
    pub(super) fn new(to: &'a mut dyn Write) -> Result<Self> {
        let head = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
        to.write_all(&head).map_err(|error| failed("writing", &error))?;
        Ok(Self { to, frames: 0 })
    }

    pub(super) fn put(&mut self, frame: &Frame) -> Result<()> {
        let (kind, bytes) = frame.encode();
        let mut head = [0; HEAD];
        Le::put_u32(&mut head, 0, kind);
        Le::put_u32(&mut head, 4, u32::try_from(bytes.len()).expect("frames are short"));
        let sum = sum(&head[..8], &bytes, self.frames);
        Le::put_u64(&mut head, 8, sum);
        let written = self.to.write_all(&head).and_then(|()| self.to.write_all(&bytes));
        written.map_err(|error| failed("writing", &error))?;
        self.frames += 1;
        Ok(())
    }

    /// The stream is whole.
    pub(super) fn end(mut self) -> Result<()> {
        let frames = self.frames;
        self.put(&Frame::End { frames })?;
        self.to.flush().map_err(|error| failed("writing", &error))
    }
}

fn sum(head: &[u8], bytes: &[u8], frames: u64) -> u64 {
    XxHash3_64::oneshot_with_seed(XxHash3_64::oneshot_with_seed(frames, head), bytes)
}

/// Reads frames.
pub(super) struct Reader<'a> {
    from: &'a mut dyn Read,
    frames: u64,
}

impl<'a> Reader<'a> {
    /// # Errors
    /// If it is no stream, or of another version.
    pub(super) fn new(from: &'a mut dyn Read) -> Result<Self> {
        let mut head = [0; 12];
        fill(from, &mut head)?;
        if head[..8] != MAGIC {
            return Err(damaged("it does not begin like one"));
        }
        match Le::u32(&head, 8) {
            VERSION => Ok(Self { from, frames: 0 }),
            other => Err(Error::Unsupported(format!("streams of version {other}"))),
        }
    }

    /// The next frame.
    ///
    /// # Errors
    /// `Corrupt` where it is not what was sent, or ends.
    pub(super) fn take(&mut self) -> Result<Frame> {
        let mut head = [0; HEAD];
        fill(self.from, &mut head)?;
        let len = usize::try_from(Le::u32(&head, 4)).unwrap_or(usize::MAX);
        if len > CONTENTS_MAX {
            return Err(damaged(format!("frame {} has {len} bytes", self.frames)));
        }
        let mut bytes = vec![0; len];
        fill(self.from, &mut bytes)?;
        if Le::u64(&head, 8) != sum(&head[..8], &bytes, self.frames) {
            return Err(damaged(format!(
                "frame {} is not as it was sent: its sum is another one",
                self.frames
            )));
        }
        let frame = Frame::decode(Le::u32(&head, 0), &bytes)?;
        if let Frame::End { frames } = frame
            && frames != self.frames
        {
            return Err(damaged(format!("it ends after {} frames of {frames}", self.frames)));
        }
        self.frames += 1;
        Ok(frame)
    }
}

/// Copies a whole stream, as it is.
///
/// # Errors
/// `Corrupt` if it is damaged or ends early.
pub fn copy_stream(from: &mut dyn Read, to: &mut dyn Write) -> Result<()> {
    let mut reader = Reader::new(from)?;
    let mut writer = Writer::new(to)?;
    loop {
        match reader.take()? {
            Frame::End { .. } => return writer.end(),
            frame => writer.put(&frame)?,
        }
    }
}

fn fill(from: &mut dyn Read, bytes: &mut [u8]) -> Result<()> {
    from.read_exact(bytes).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => damaged("it ends before its end"),
        _ => failed("reading", &error),
    })
}

/// Bytes of a stream for so many leaves, about.
pub(super) const fn bytes_of(leaves: u64) -> u64 {
    leaves * (HEAD as u64 + 24 + BLOCK as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Vec<Frame> {
        let source = Source { uuid: [1; 16], generation: 5 };
        let begin = Begin {
            source,
            base: Source::default(),
            seed: 2,
            ino_end: 16,
            free_ino: 3,
            orphan: 4,
            used: 5,
            orphans: 6,
            made: Timestamp { secs: -1, nanos: 7 },
            name: b"monday".to_vec(),
        };
        vec![
            Frame::Begin(begin),
            Frame::Inodes { leaf: 1, bytes: Box::new([7; BLOCK]) },
            Frame::Cut { obj: Obj::Xattrs(8), from: 9, to: u64::MAX },
            Frame::Leaf { obj: Obj::Data(10), index: 11, bytes: Box::new([12; BLOCK]) },
        ]
    }

    fn stream() -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes).unwrap();
        frames().iter().for_each(|frame| writer.put(frame).unwrap());
        writer.end().unwrap();
        bytes
    }

    fn read(mut bytes: &[u8]) -> Result<Vec<Frame>> {
        let mut reader = Reader::new(&mut bytes)?;
        let mut all = Vec::new();
        loop {
            match reader.take()? {
                Frame::End { .. } => return Ok(all),
                frame => all.push(frame),
            }
        }
    }

    #[test]
    fn streams_are_read_as_they_were_written() {
        assert_eq!(read(&stream()).unwrap(), frames());
    }

    #[test]
    fn nothing_else_is_believed() {
        let whole = stream();
        for end in 0..whole.len() {
            assert!(read(&whole[..end]).is_err(), "cut off after {end} bytes");
        }
        for at in (0..whole.len()).step_by(7) {
            let mut changed = whole.clone();
            changed[at] ^= 1 << (at % 8);
            assert!(read(&changed).is_err(), "byte {at} is another one");
        }
        // The third frame is missing, or comes before the second.
        let at =
            |n: usize| 12 + [0, HEAD + BEGIN + 6, HEAD + 8 + BLOCK, HEAD + 32][..=n].iter().sum::<usize>();
        let without = [&whole[..at(2)], &whole[at(3)..]].concat();
        assert!(read(&without).is_err());
        let moved = [&whole[..at(1)], &whole[at(2)..at(3)], &whole[at(1)..at(2)], &whole[at(3)..]].concat();
        assert!(read(&moved).is_err());
    }
}
