//! Copies a tree: kinds, contents, holes, hard links, symbolic links, owners, modes, times, attributes.
//!
//! Whatever cannot be copied, be it one attribute, is an error with the path of what lost it; the others are copied all
//! the same. Only a target that is full ends the copy at once: everything after it would fail as well.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result, bail, ensure};
use fstitch_core::num::to_u64;
use fstitch_core::{Errno, FileKind, Timestamp};
use indicatif::ProgressBar;

use super::tree::{Meta, Reader, Source, Target, Writer};

/// Directories may nest this deep; a damaged image that contains itself ends here.
const DEPTH_MAX: usize = 1000;
/// Bytes read and written at a time.
const CHUNK: usize = 1 << 20;
/// The grain in which zeros become holes: no source has finer ones.
const GRAIN: usize = 4096;

/// Which symbolic links of the source are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// None.
    Never,
    /// Those that are named as sources.
    Named,
    /// All.
    Always,
}

/// How things are copied.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Everything gets this owner instead of its own.
    pub owner: Option<(u32, u32)>,
    /// Which links are followed.
    pub follow: Follow,
    /// Directories with all that is in them; and pipes and devices as such instead of what they yield.
    pub recursive: bool,
    /// The same sources give the same bytes, whatever machine they are on: no time is later than this, access times are
    /// those of the last change, and what is zero is a hole.
    pub epoch: Option<Timestamp>,
}

/// What a command copied so far.
pub struct Totals {
    /// Things made.
    pub items: u64,
    /// Bytes of contents written.
    pub bytes: u64,
    /// Things that could not be copied.
    pub errors: u64,
    bar: ProgressBar,
}

impl Totals {
    /// Counts from zero and shows the counts on `bar`.
    pub fn new(bar: ProgressBar) -> Self {
        Self { items: 0, bytes: 0, errors: 0, bar }
    }

    /// Ends the display.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn wrote(&mut self, len: usize) {
        self.bytes += to_u64(len);
        self.show();
    }

    fn show(&self) {
        if !self.bar.is_hidden() {
            self.bar.set_message(format!("{} files, {}", self.items, crate::size::show(self.bytes)));
            self.bar.tick();
        }
    }

    /// Says what could not be copied, and counts it.
    pub fn report(&mut self, what: &str, error: &anyhow::Error) {
        self.errors += 1;
        let text = crate::output::reasons(error);
        self.bar.suspend(|| eprintln!("fstitch: {what}: {text}"));
    }

    fn lost(&mut self, what: &str, lost: &str) {
        self.errors += 1;
        self.bar.suspend(|| eprintln!("fstitch: {what}: {lost}"));
    }
}

/// The target has no room for more.
#[derive(Debug)]
pub struct Full(String);

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Full {}

/// One copy from `S` to `T`.
pub struct Copier<'a, 't, S: Source, T: Target> {
    from: &'a S,
    to: &'a T,
    rules: Rules,
    /// Nodes made for inodes that have several names.
    linked: BTreeMap<(u64, u64), T::Node>,
    /// The directories of the source that are being copied, from the top down.
    above: Vec<(u64, u64)>,
    /// The path in the source of what is being copied.
    path: Vec<u8>,
    buffer: Vec<u8>,
    totals: &'t mut Totals,
}

impl<'a, 't, S: Source, T: Target> Copier<'a, 't, S, T> {
    /// A copy by `rules`.
    pub fn new(from: &'a S, to: &'a T, rules: Rules, totals: &'t mut Totals) -> Self {
        let (linked, buffer) = (BTreeMap::new(), vec![0; CHUNK]);
        Self { from, to, rules, linked, above: Vec::new(), path: Vec::new(), buffer, totals }
    }

    /// Copies `node`, which was named as `path`, to `parent`/`name`. An error inside a directory is reported and skipped.
    pub fn named(&mut self, node: &S::Node, path: &[u8], parent: &T::Node, name: &[u8]) -> Result<()> {
        path.clone_into(&mut self.path);
        let follow = self.rules.follow != Follow::Never;
        self.item(node, parent, name, follow).map_err(|error| self.explained(error))
    }

    /// Copies all that is in the directory `node`, which was named as `path`, into `made`, and with `attributes` its own.
    pub fn contents_of(
        &mut self,
        node: &S::Node,
        path: &[u8],
        (made, attributes): (&T::Node, bool),
    ) -> Result<()> {
        // What is in `a/.` is known as what is in `a`.
        path.strip_suffix(b"/.").unwrap_or(path).clone_into(&mut self.path);
        let meta = self.meta(node)?;
        ensure!(meta.kind == FileKind::Directory, "not a directory");
        self.children(node, made, meta.id)?;
        if !attributes {
            return Ok(());
        }
        self.finish(node, made, &meta).map_err(|error| self.explained(error))
    }

    /// What is copied now, for messages.
    fn shown(&self) -> String {
        self.from.show(&self.path)
    }

    /// The attributes that the copy shall have.
    fn meta(&self, node: &S::Node) -> Result<Meta> {
        let mut meta = self.from.meta(node)?;
        if let Some((uid, gid)) = self.rules.owner {
            (meta.uid, meta.gid) = (uid, gid);
        }
        if let Some(epoch) = self.rules.epoch {
            meta.mtime = meta.mtime.min(epoch);
            meta.atime = meta.mtime;
        }
        Ok(meta)
    }

    fn item(&mut self, node: &S::Node, parent: &T::Node, name: &[u8], follow: bool) -> Result<()> {
        let meta = self.meta(node)?;
        if follow && meta.kind == FileKind::Symlink {
            let behind = self.from.follow(node, &self.path)?;
            let meta = self.meta(&behind)?;
            return self.one(&behind, meta, parent, name);
        }
        self.one(node, meta, parent, name)
    }

    /// Copies something that is no link to be followed.
    fn one(&mut self, node: &S::Node, mut meta: Meta, parent: &T::Node, name: &[u8]) -> Result<()> {
        let stream = self.stream(node, &mut meta)?;
        ensure!(self.rules.recursive || meta.kind != FileKind::Directory, "it is a directory: add -r");
        let several_names = meta.kind != FileKind::Directory && meta.nlink > 1;
        if several_names && let Some(first) = self.linked.get(&meta.id) {
            self.make_room(parent, name, &meta)?;
            return self.to.link(first, parent, name);
        }
        let made = self.make(node, parent, name, &meta)?;
        let filled = match (meta.kind, stream) {
            (FileKind::Regular, Some(mut stream)) => self.drain(&mut *stream, &made),
            (FileKind::Regular, None) => self.contents(node, &made),
            (FileKind::Directory, _) => self.children(node, &made, meta.id),
            _ => Ok(()),
        };
        if let Err(error) = filled {
            // Why there is no room must be asked while there is none.
            let error = self.explained(error);
            if meta.kind == FileKind::Regular {
                // Half a file is worse than none: it looks like a whole one.
                self.to.remove(parent, name).context("a part of it is left, which could not be removed")?;
            }
            return Err(error);
        }
        self.finish(node, &made, &meta)?;
        self.totals.items += 1;
        self.totals.show();
        if several_names {
            self.linked.insert(meta.id, made);
        }
        Ok(())
    }

    /// What a pipe or a device yields, where that is wanted instead of the thing itself; `meta` becomes a file's then.
    fn stream(&self, node: &S::Node, meta: &mut Meta) -> Result<Option<Box<dyn std::io::Read>>> {
        use FileKind::{BlockDevice, CharDevice, Fifo};
        if self.rules.recursive || !matches!(meta.kind, Fifo | CharDevice | BlockDevice) {
            return Ok(None);
        }
        let stream = self.from.stream(node)?;
        if stream.is_some() {
            (meta.kind, meta.nlink, meta.rdev) = (FileKind::Regular, 1, 0);
        }
        Ok(stream)
    }

    fn finish(&mut self, node: &S::Node, made: &T::Node, meta: &Meta) -> Result<()> {
        let xattrs = self.from.xattrs(node)?;
        let lost = self.to.finish(made, meta, &xattrs.found)?;
        if !(lost.is_empty() && xattrs.lost.is_empty()) {
            let shown = self.shown();
            xattrs.lost.iter().chain(&lost).for_each(|lost| self.totals.lost(&shown, lost));
        }
        Ok(())
    }

    /// Copies all that is in the directory `node`, which is inode `id`, into `made`.
    fn children(&mut self, node: &S::Node, made: &T::Node, id: (u64, u64)) -> Result<()> {
        ensure!(self.above.len() < DEPTH_MAX, "directories nest deeper than {DEPTH_MAX}");
        let looped = self.rules.follow == Follow::Always && self.above.contains(&id);
        ensure!(!looped, "a symbolic link leads back to a directory above it: not copied");
        self.above.push(id);
        let len = self.path.len();
        let mut result = Ok(());
        for name in self.from.names(node)? {
            if !self.path.ends_with(b"/") {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(&name);
            if let Err(error) = self.child(node, made, &name) {
                let error = self.explained(error);
                if error.is::<Full>() {
                    result = Err(error);
                    break;
                }
                let shown = self.shown();
                self.totals.report(&shown, &error);
            }
            self.path.truncate(len);
        }
        self.above.pop();
        result
    }

    fn child(&mut self, node: &S::Node, made: &T::Node, name: &[u8]) -> Result<()> {
        // Names come from a medium that may be damaged or hostile; none may lead out of the target directory.
        let lawful =
            !name.is_empty() && name != b"." && name != b".." && !name.iter().any(|b| matches!(b, b'/' | 0));
        ensure!(lawful, "not a lawful name");
        let child = self.from.child(node, name)?.context("it vanished")?;
        self.item(&child, made, name, self.rules.follow == Follow::Always)
    }

    /// Makes the target, or finds the directory that exists already.
    fn make(&mut self, node: &S::Node, parent: &T::Node, name: &[u8], meta: &Meta) -> Result<T::Node> {
        if let Some(existing) = self.make_room(parent, name, meta)? {
            return Ok(existing);
        }
        let target = if meta.kind == FileKind::Symlink { self.from.read_link(node)? } else { Vec::new() };
        self.to.create(parent, name, meta, &target)
    }

    /// Removes what stands at the target; an existing directory is returned if a directory is to be copied.
    fn make_room(&self, parent: &T::Node, name: &[u8], meta: &Meta) -> Result<Option<T::Node>> {
        let Some((existing, kind)) = self.to.existing(parent, name)? else {
            return Ok(None);
        };
        match (kind == FileKind::Directory, meta.kind == FileKind::Directory) {
            (true, true) => return Ok(Some(existing)),
            (true, false) => bail!("a directory stands in its way"),
            (false, true) => bail!("something that is no directory stands in its way"),
            (false, false) => self.to.remove(parent, name)?,
        }
        Ok(None)
    }

    fn contents(&mut self, node: &S::Node, made: &T::Node) -> Result<()> {
        let mut reader = self.from.reader(node)?;
        let size = reader.size();
        if size == 0 {
            // Files of /proc and /sys have contents all the same.
            let mut rest = Rest { reader, at: 0 };
            return self.drain(&mut rest, made);
        }
        let mut writer = self.to.writer(made)?;
        if let Some(whole) = reader.whole() {
            writer.expect(size)?;
            let holes = self.rules.epoch.is_some();
            put(&mut *writer, 0, whole, holes)?;
            self.totals.wrote(whole.len());
            return writer.set_len(size);
        }
        let mut at = 0;
        while let Some((start, end)) = reader.next_data(at)? {
            ensure!(start >= at && end > start, "the source lists its holes in disorder");
            if start == 0 && end >= size {
                // All of it: its blocks can lie together.
                writer.expect(size)?;
            }
            self.run(&mut *reader, &mut *writer, start..end.min(size))?;
            at = end;
            if at >= size {
                break;
            }
        }
        writer.set_len(size)
    }

    fn run(
        &mut self,
        reader: &mut dyn Reader,
        writer: &mut dyn Writer,
        range: std::ops::Range<u64>,
    ) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let want = usize::try_from(range.end - at).map_or(CHUNK, |left| left.min(CHUNK));
            let read = reader.read_at(at, &mut self.buffer[..want])?;
            ensure!(read > 0, "it became shorter while it was copied");
            self.put(writer, at, read)?;
            at += u64::try_from(read)?;
        }
        Ok(())
    }

    /// Writes what was read from position `at` on.
    fn put(&mut self, writer: &mut dyn Writer, at: u64, len: usize) -> Result<()> {
        put(writer, at, &self.buffer[..len], self.rules.epoch.is_some())?;
        self.totals.wrote(len);
        Ok(())
    }

    /// Copies all that a stream yields.
    fn drain(&mut self, stream: &mut dyn std::io::Read, made: &T::Node) -> Result<()> {
        let to = self.to;
        let mut writer: Option<Box<dyn Writer + '_>> = None;
        let mut at = 0;
        loop {
            let mut filled = 0;
            while filled < CHUNK {
                match stream.read(&mut self.buffer[filled..]) {
                    Ok(0) => break,
                    Ok(read) => filled += read,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error.into()),
                }
            }
            if filled == 0 {
                return writer.map_or(Ok(()), |mut writer| writer.set_len(at));
            }
            let writer = match &mut writer {
                Some(writer) => writer,
                None => writer.insert(to.writer(made)?),
            };
            self.put(&mut **writer, at, filled)?;
            at += u64::try_from(filled)?;
        }
    }

    /// An error; one for want of room says what there is none of, and ends the copy.
    fn explained(&self, error: anyhow::Error) -> anyhow::Error {
        if error.is::<Full>() || !is_no_space(&error) {
            return error;
        }
        let Ok(space) = self.to.space() else { return error };
        let without = match space.inodes_free {
            0 => format!("all {} inodes are in use: `mkfs -N` or `-i` makes more", space.inodes),
            _ => format!("no block is free any more, of {} of {} bytes", space.blocks, space.block_size),
        };
        let (shown, items) = (self.shown(), self.totals.items);
        Full(format!("no room for {shown}: {without}; {items} things were copied before")).into()
    }
}

/// Writes `data` at position `at`; zeros stay holes where that is wanted.
fn put(writer: &mut dyn Writer, at: u64, data: &[u8], holes: bool) -> Result<()> {
    let mut from = 0;
    while from < data.len() {
        let zero = |from: usize| {
            let end = data.len().min(from + GRAIN - usize::try_from(at).map_or(0, |at| (at + from) % GRAIN));
            (end, holes && data[from..end].iter().all(|&byte| byte == 0))
        };
        let (mut end, hole) = zero(from);
        while end < data.len() {
            let (next, other) = if holes { zero(end) } else { (data.len(), false) };
            if other != hole {
                break;
            }
            end = next;
        }
        if !hole {
            writer.write_at(at + u64::try_from(from)?, &data[from..end])?;
        }
        from = end;
    }
    Ok(())
}

/// A reader, from the start to its end.
struct Rest<'a> {
    reader: Box<dyn Reader + 'a>,
    at: u64,
}

impl std::io::Read for Rest<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let read = self.reader.read_at(self.at, buf).map_err(std::io::Error::other)?;
        self.at += to_u64(read);
        Ok(read)
    }
}

/// Whether an error says that the target is full.
fn is_no_space(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let ours = cause.downcast_ref::<fstitch_core::Error>().map(fstitch_core::Error::errno);
        let system = cause.downcast_ref::<rustix::io::Errno>().map(|errno| errno.raw_os_error());
        let io = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
        ours == Some(Errno::NOSPC) || [system, io].contains(&Some(Errno::NOSPC.0))
    })
}
