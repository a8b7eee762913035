//! A tar archive as a side to copy from: ustar, GNU's and pax' extensions.
//!
//! The archive is read twice: once from header to header, which gives a tree of what is in it, the later of two entries
//! with one name as the one that counts; then its contents, wherever they are, as they are copied. So the order of the
//! entries does not matter to the image.

mod extensions;
mod sparse;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use fstitch_core::{FileKind, Timestamp};
use rustix::fs::{Mode, OFlags};
use tar::{EntryType, Header};

use super::tree::{Meta, Reader, Source, Xattr, Xattrs};
use extensions::Extensions;
use sparse::Piece;

/// Bytes of a header, and the unit in which everything is padded.
const UNIT: u64 = 512;
/// The longest header extension, in bytes.
const EXTENSION_MAX: u64 = 16 << 20;
/// The signatures of compressed archives, and what unpacks them.
const COMPRESSED: [(&[u8], &str); 4] =
    [(b"\x1f\x8b", "gzip"), (b"BZh", "bzip2"), (b"\xfd7zXZ", "xz"), (b"\x28\xb5\x2f\xfd", "zstd")];

/// The root of every archive.
const ROOT: usize = 0;

/// An archive, taken apart.
pub struct Archive {
    file: File,
    name: String,
    nodes: Vec<Node>,
    /// Whether the archive says what the root directory is like.
    has_root: bool,
}

/// Something in an archive.
#[derive(Debug)]
struct Node {
    meta: Meta,
    names: BTreeMap<Vec<u8>, usize>,
    target: Vec<u8>,
    xattrs: Vec<Xattr>,
    pieces: Vec<Piece>,
}

impl Archive {
    /// Opens the archive at `path`, `-` for standard input.
    pub fn open(path: &Path) -> Result<Self> {
        let standard = path == Path::new("-");
        let opened = if standard { File::open("/dev/stdin") } else { File::open(path) };
        let name = if standard { "standard input".to_owned() } else { path.display().to_string() };
        let file = seekable(opened.with_context(|| name.clone())?).with_context(|| name.clone())?;
        let root = Node::directory(Timestamp::default());
        let mut archive = Self { file, name, nodes: vec![root], has_root: false };
        archive.scan().with_context(|| archive.name.clone())?;
        Ok(archive)
    }

    /// The root directory.
    pub fn root(&self) -> usize {
        ROOT
    }

    /// Whether the archive says what the root directory is like.
    pub fn has_root(&self) -> bool {
        self.has_root
    }

    fn scan(&mut self) -> Result<()> {
        self.refuse_compressed()?;
        let (mut at, mut found, mut extensions) = (0, false, Extensions::default());
        loop {
            let mut raw = [0; 512];
            if !self.read_at(at, &mut raw)? || raw.iter().all(|&byte| byte == 0) {
                ensure!(found, "it is no tar archive");
                return Ok(());
            }
            let header = Header::from_byte_slice(&raw);
            ensure!(is_sound(header), "damaged, or no tar archive: no header at byte {at}");
            found = true;
            let data = at + UNIT;
            let size = header.entry_size()?;
            let kind = header.entry_type();
            let len = match kind {
                EntryType::GNULongName | EntryType::GNULongLink | EntryType::XHeader => {
                    ensure!(size <= EXTENSION_MAX, "a header extension of {size} bytes at byte {at}");
                    let mut bytes = vec![0; usize::try_from(size)?];
                    ensure!(self.read_at(data, &mut bytes)?, "it ends in the middle");
                    extensions.take(kind, &bytes).with_context(|| format!("at byte {at}"))?;
                    size
                }
                // What is said of all that follows is a comment, as git writes it, or what no entry needs.
                EntryType::XGlobalHeader => size,
                _ => {
                    let extensions = std::mem::take(&mut extensions);
                    let name = crate::location::show(&extensions.path(header));
                    self.add(header, extensions, data).with_context(|| name)?
                }
            };
            at = data.checked_add(len.next_multiple_of(UNIT)).context("an impossible length")?;
        }
    }

    fn refuse_compressed(&self) -> Result<()> {
        let mut start = [0; 6];
        let read = self.file.read_at(&mut start, 0)?;
        for (signature, tool) in COMPRESSED {
            let name = &self.name;
            ensure!(
                !start[..read].starts_with(signature),
                "it is compressed: `{tool} -dc {name} | fstitch mkfs … -d -`"
            );
        }
        Ok(())
    }

    /// Reads all of `buf`; false at the end of the archive.
    fn read_at(&self, at: u64, buf: &mut [u8]) -> Result<bool> {
        match self.file.read_exact_at(buf, at) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Adds the entry of `header`, whose contents start at byte `data`; returns how many bytes there are to pass over.
    fn add(&mut self, header: &Header, extensions: Extensions, data: u64) -> Result<u64> {
        let stored = extensions.size.unwrap_or(header.entry_size()?);
        let mut path = components(&extensions.path(header))?;
        if header.entry_type() == EntryType::Link {
            let target = components(&extensions.link(header))?;
            let old = self
                .find(&target)
                .with_context(|| format!("a link to {}, which is not there", shown(&target)))?;
            ensure!(self.nodes[old].meta.kind != FileKind::Directory, "a link to a directory");
            self.put(&mut path, old)?;
            self.nodes[old].meta.nlink += 1;
            return Ok(0);
        }
        let kind = match header.entry_type() {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => FileKind::Regular,
            EntryType::Symlink => FileKind::Symlink,
            EntryType::Directory => FileKind::Directory,
            EntryType::Char => FileKind::CharDevice,
            EntryType::Block => FileKind::BlockDevice,
            EntryType::Fifo => FileKind::Fifo,
            other => bail!("an entry of the unknown kind {:?}", char::from(other.as_byte())),
        };
        // Old archives know directories by the slash at their end.
        let slash = kind == FileKind::Regular && extensions.path(header).ends_with(b"/");
        let kind = if slash { FileKind::Directory } else { kind };
        let mut node =
            Node { meta: meta(header, &extensions, kind)?, ..Node::directory(Timestamp::default()) };
        let mut len = 0;
        if kind == FileKind::Regular {
            let layout = sparse::layout(&self.file, header, &extensions, (data, stored))?;
            (node.pieces, node.meta.size, len) = (layout.pieces, layout.size, layout.stored);
        }
        if kind == FileKind::Symlink {
            node.target = extensions.link(header);
        }
        node.xattrs = extensions.xattrs;
        self.place(&mut path, node)?;
        Ok(len)
    }

    /// Puts a new node at its path. A directory that is there already is described anew.
    fn place(&mut self, path: &mut Vec<Vec<u8>>, node: Node) -> Result<()> {
        let is_directory = node.meta.kind == FileKind::Directory;
        if path.is_empty() {
            ensure!(is_directory, "the root is no directory");
            self.has_root = true;
        }
        let old =
            self.find(path).filter(|&old| is_directory && self.nodes[old].meta.kind == FileKind::Directory);
        if let Some(old) = old {
            let names = std::mem::take(&mut self.nodes[old].names);
            let id = self.nodes[old].meta.id;
            self.nodes[old] = Node { names, ..node };
            self.nodes[old].meta.id = id;
            return Ok(());
        }
        let number = self.nodes.len();
        self.nodes.push(node);
        self.nodes[number].meta.id = (0, u64::try_from(number)?);
        self.put(path, number)
    }

    /// Gives node `number` the name at `path`, and makes the directories above that nothing described yet.
    fn put(&mut self, path: &mut Vec<Vec<u8>>, number: usize) -> Result<()> {
        let name = path.pop().context("it has no name")?;
        let mut at = ROOT;
        for part in path.drain(..) {
            let next = match self.nodes[at].names.get(&part) {
                Some(&next) => next,
                None => {
                    let next = self.nodes.len();
                    let mut above = Node::directory(self.nodes[number].meta.mtime);
                    above.meta.id = (0, u64::try_from(next)?);
                    self.nodes.push(above);
                    self.nodes[at].names.insert(part, next);
                    next
                }
            };
            ensure!(
                self.nodes[next].meta.kind == FileKind::Directory,
                "it is below something that is no directory"
            );
            at = next;
        }
        if let Some(old) = self.nodes[at].names.insert(name, number) {
            let links = &mut self.nodes[old].meta.nlink;
            *links = links.saturating_sub(1);
        }
        Ok(())
    }

    fn find(&self, path: &[Vec<u8>]) -> Option<usize> {
        path.iter().try_fold(ROOT, |at, part| self.nodes[at].names.get(part).copied())
    }
}

impl Node {
    /// A directory that nothing describes.
    fn directory(time: Timestamp) -> Self {
        Self {
            meta: Meta {
                kind: FileKind::Directory,
                perm: 0o755,
                uid: 0,
                gid: 0,
                rdev: 0,
                size: 0,
                nlink: 1,
                id: (0, 0),
                atime: time,
                mtime: time,
            },
            names: BTreeMap::new(),
            target: Vec::new(),
            xattrs: Vec::new(),
            pieces: Vec::new(),
        }
    }
}

/// What an entry says of itself, but for its size.
fn meta(header: &Header, extensions: &Extensions, kind: FileKind) -> Result<Meta> {
    let id = |asked: Option<u64>, found: std::io::Result<u64>| match asked {
        Some(id) => Ok(id),
        None => found,
    };
    let uid = u32::try_from(id(extensions.uid, header.uid())?).context("an impossible owner")?;
    let gid = u32::try_from(id(extensions.gid, header.gid())?).context("an impossible group")?;
    let mtime = match extensions.mtime {
        Some(time) => time,
        None => Timestamp { secs: header.mtime()?.cast_signed(), nanos: 0 },
    };
    // Of other entries these fields may hold anything.
    let (major, minor) = match kind {
        FileKind::CharDevice | FileKind::BlockDevice => (header.device_major()?, header.device_minor()?),
        _ => (None, None),
    };
    let (major, minor) = (major.unwrap_or(0), minor.unwrap_or(0));
    Ok(Meta {
        kind,
        perm: u16::try_from(header.mode()? & 0o7777).expect("masked"),
        uid,
        gid,
        rdev: (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xf_ff00) << 12),
        size: 0,
        nlink: 1,
        id: (0, 0),
        atime: extensions.atime.unwrap_or(mtime),
        mtime,
    })
}

/// Whether a header's sum is right.
fn is_sound(header: &Header) -> bool {
    let bytes = header.as_bytes();
    let sum: u32 = bytes[..148].iter().chain(&bytes[156..]).map(|&byte| u32::from(byte)).sum();
    header.cksum().is_ok_and(|stored| stored == sum + 8 * u32::from(b' '))
}

/// The components of a path in an archive, which stays below its root.
fn components(path: &[u8]) -> Result<Vec<Vec<u8>>> {
    let parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    let parts: Vec<Vec<u8>> = parts.map(<[u8]>::to_vec).collect();
    ensure!(parts.iter().all(|part| part != b".."), "a path that leads out of the archive");
    Ok(parts)
}

fn shown(path: &[Vec<u8>]) -> String {
    crate::location::show(&path.join(&b'/'))
}

/// What is read from a pipe can be read only once: it goes to a file without a name first.
fn seekable(mut file: File) -> Result<File> {
    if file.metadata()?.is_file() && file.stream_position()? == 0 {
        return Ok(file);
    }
    let place = std::env::temp_dir();
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let spool = rustix::fs::open(&place, flags, Mode::RUSR | Mode::WUSR);
    let mut spool = File::from(spool.with_context(|| format!("making a file in {}", place.display()))?);
    std::io::copy(&mut file, &mut spool).with_context(|| format!("reading it to {}", place.display()))?;
    Ok(spool)
}

/// The contents of a file in an archive.
struct Contents<'a> {
    file: &'a File,
    pieces: &'a [Piece],
    size: u64,
}

impl Reader for Contents<'_> {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let Some(piece) = self.pieces.iter().find(|piece| piece.start <= offset && offset < piece.end())
        else {
            return Ok(0);
        };
        let want = usize::try_from(piece.end() - offset).map_or(buf.len(), |left| left.min(buf.len()));
        let read = self.file.read_at(&mut buf[..want], piece.at + (offset - piece.start))?;
        ensure!(read > 0 || want == 0, "the archive ends in the middle of it");
        Ok(read)
    }

    fn next_data(&mut self, offset: u64) -> Result<Option<(u64, u64)>> {
        let piece = self.pieces.iter().find(|piece| piece.end() > offset);
        Ok(piece.map(|piece| (piece.start.max(offset), piece.end())))
    }
}

impl Source for Archive {
    type Node = usize;

    fn show(&self, path: &[u8]) -> String {
        format!("{}: {}", self.name, crate::location::show(path))
    }

    fn meta(&self, &node: &usize) -> Result<Meta> {
        Ok(self.nodes[node].meta)
    }

    fn follow(&self, _node: &usize, _path: &[u8]) -> Result<usize> {
        bail!("links in archives are not followed")
    }

    fn names(&self, &dir: &usize) -> Result<Vec<Vec<u8>>> {
        Ok(self.nodes[dir].names.keys().cloned().collect())
    }

    fn child(&self, &dir: &usize, name: &[u8]) -> Result<Option<usize>> {
        Ok(self.nodes[dir].names.get(name).copied())
    }

    fn read_link(&self, &node: &usize) -> Result<Vec<u8>> {
        Ok(self.nodes[node].target.clone())
    }

    fn xattrs(&self, &node: &usize) -> Result<Xattrs> {
        Ok(Xattrs { found: self.nodes[node].xattrs.clone(), lost: Vec::new() })
    }

    fn reader(&self, &node: &usize) -> Result<Box<dyn Reader + '_>> {
        let found = &self.nodes[node];
        Ok(Box::new(Contents { file: &self.file, pieces: &found.pieces, size: found.meta.size }))
    }

    fn stream(&self, _node: &usize) -> Result<Option<Box<dyn Read>>> {
        Ok(None)
    }
}
