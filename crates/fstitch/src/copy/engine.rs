//! Copies a tree: kinds, contents, holes, hard links, symbolic links, owners, modes, times, attributes.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use fstitch_core::FileKind;
use indicatif::ProgressBar;

use super::tree::{Meta, Reader, Tree, Writer};

/// Directories may nest this deep; a damaged image that contains itself ends here.
const DEPTH_MAX: usize = 1000;
/// Bytes read and written at a time.
const CHUNK: usize = 1 << 20;

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

    fn show(&self) {
        self.bar.set_message(format!("{} files, {}", self.items, crate::size::show(self.bytes)));
        self.bar.tick();
    }

    fn report(&mut self, what: &str, error: &anyhow::Error) {
        self.errors += 1;
        self.bar.suspend(|| eprintln!("fstitch: {what}: {error:#}"));
    }

    fn warn(&self, text: &str) {
        self.bar.suspend(|| eprintln!("fstitch: warning: {text}"));
    }
}

/// One copy from `S` to `T`.
pub struct Copier<'a, 't, S: Tree, T: Tree> {
    from: &'a S,
    to: &'a T,
    owner: Option<(u32, u32)>,
    /// Nodes made for inodes that have several names.
    linked: BTreeMap<(u64, u64), T::Node>,
    buffer: Vec<u8>,
    totals: &'t mut Totals,
}

impl<'a, 't, S: Tree, T: Tree> Copier<'a, 't, S, T> {
    /// A copy that keeps owners, or gives everything `owner`.
    pub fn new(from: &'a S, to: &'a T, owner: Option<(u32, u32)>, totals: &'t mut Totals) -> Self {
        Self { from, to, owner, linked: BTreeMap::new(), buffer: vec![0; CHUNK], totals }
    }

    /// Copies `node` to `parent`/`name`. An error inside a directory is reported and skipped.
    pub fn item(&mut self, node: &S::Node, parent: &T::Node, name: &[u8], depth: usize) -> Result<()> {
        ensure!(depth <= DEPTH_MAX, "directories nest deeper than {DEPTH_MAX}");
        let mut meta = self.from.meta(node)?;
        if let Some((uid, gid)) = self.owner {
            (meta.uid, meta.gid) = (uid, gid);
        }
        let several_names = meta.kind != FileKind::Directory && meta.nlink > 1;
        if several_names && let Some(first) = self.linked.get(&meta.id) {
            self.make_room(parent, name, &meta)?;
            return self.to.link(first, parent, name);
        }
        let made = self.make(node, parent, name, &meta)?;
        match meta.kind {
            FileKind::Regular => self.contents(node, &made, meta.size)?,
            FileKind::Directory => self.children(node, &made, depth + 1)?,
            _ => {}
        }
        let xattrs = self.from.xattrs(node)?;
        for warning in self.to.finish(&made, &meta, &xattrs)? {
            self.totals.warn(&format!("{}: {warning}", self.to.show(&made)));
        }
        self.totals.items += 1;
        self.totals.show();
        if several_names {
            self.linked.insert(meta.id, made);
        }
        Ok(())
    }

    /// Copies all that is in the directory `node` into `made`.
    pub fn children(&mut self, node: &S::Node, made: &T::Node, depth: usize) -> Result<()> {
        for name in self.from.names(node)? {
            let what = || format!("{}/{}", self.from.show(node), String::from_utf8_lossy(&name));
            let what = what();
            if let Err(error) = self.child(node, made, &name, depth) {
                self.totals.report(&what, &error);
            }
        }
        Ok(())
    }

    fn child(&mut self, node: &S::Node, made: &T::Node, name: &[u8], depth: usize) -> Result<()> {
        // Names come from a medium that may be damaged or hostile; none may lead out of the target directory.
        let lawful =
            !name.is_empty() && name != b"." && name != b".." && !name.iter().any(|b| matches!(b, b'/' | 0));
        ensure!(lawful, "not a lawful name");
        let child = self.from.child(node, name)?.context("it vanished")?;
        self.item(&child, made, name, depth)
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
        let Some(existing) = self.to.child(parent, name)? else {
            return Ok(None);
        };
        let directory = self.to.meta(&existing)?.kind == FileKind::Directory;
        match (directory, meta.kind == FileKind::Directory) {
            (true, true) => return Ok(Some(existing)),
            (true, false) => {
                anyhow::bail!("{} is a directory and stands in the way", self.to.show(&existing))
            }
            (false, true) => {
                anyhow::bail!("{} is no directory and stands in the way", self.to.show(&existing))
            }
            (false, false) => self.to.remove(parent, name)?,
        }
        Ok(None)
    }

    fn contents(&mut self, node: &S::Node, made: &T::Node, size: u64) -> Result<()> {
        let mut reader = self.from.reader(node)?;
        let mut writer = self.to.writer(made)?;
        let mut at = 0;
        while let Some((start, end)) = reader.next_data(at)? {
            ensure!(start >= at && end > start, "the source lists its holes in disorder");
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
            if read == 0 {
                break;
            }
            writer.write_at(at, &self.buffer[..read])?;
            let read = u64::try_from(read).expect("a chunk fits 64 bits");
            at += read;
            self.totals.bytes += read;
            self.totals.show();
        }
        Ok(())
    }
}
