//! A directory of this machine that is read by a thread before it is asked for: while one thing is written, the next are looked up and
//! read.
//!
//! The thread walks in the order of the copy and sends what it finds. What it could not find out, or what is large, is asked for again by
//! the copy itself, which so sees the error where it belongs; names come from the thread alone, so that both walk the same way.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use anyhow::{Context, Result};
use fstitch_core::FileKind;
use fstitch_core::num::to_u64;

use super::host::{HostNode, HostTree};
use super::tree::{Meta, Reader, Source, Xattrs};

/// Things that are ahead at most.
const AHEAD_MAX: usize = 64;
/// Bytes of the longest file whose contents are ahead: all together at most 16 MiB.
const CONTENTS_MAX: u64 = 256 << 10;

/// What is known of one thing before it is asked for.
struct Found {
    path: PathBuf,
    meta: Option<Meta>,
    xattrs: Option<Xattrs>,
    /// Of a directory: everything in it follows, in this order.
    names: Option<Arc<Vec<Vec<u8>>>>,
    /// Of a file without holes, all of it.
    contents: Option<Vec<u8>>,
}

/// A tree of this machine, of which what comes next is known.
pub struct Ahead {
    host: HostTree,
    root: AheadNode,
    /// Who is gone ends the thread with its next message; nobody waits for that, for it may be reading what does not come.
    found: Receiver<Found>,
}

/// Something on this machine, and what is known of it.
#[derive(Clone)]
pub struct AheadNode {
    node: HostNode,
    found: Option<Arc<Found>>,
}

impl Ahead {
    /// Begins to read what is in the directory `root`.
    pub fn new(root: &Path) -> Result<Self> {
        let (sender, found) = sync_channel(AHEAD_MAX);
        let top = found_at(&HostTree::new(), root.to_owned(), &mut BTreeSet::new());
        let names = top.names.clone();
        let root = AheadNode { node: HostNode::new(root), found: Some(Arc::new(top)) };
        let path = root.node.path().to_owned();
        let walk = move || {
            if let Some(names) = names {
                // Nobody asks any more: the copy has ended.
                let _ = walk(&HostTree::new(), (&path, names), &sender);
            }
        };
        thread::Builder::new().name("fstitch-ahead".to_owned()).spawn(walk).context("starting a thread")?;
        Ok(Self { host: HostTree::new(), root, found })
    }

    /// The directory.
    pub fn root(&self) -> AheadNode {
        self.root.clone()
    }

    /// What was found at `path`. Whatever was found before it is not asked for any more.
    fn next(&self, path: &Path) -> Option<Found> {
        self.found.iter().find(|found| found.path == path)
    }
}

impl AheadNode {
    fn found<T>(&self, what: impl Fn(&Found) -> Option<&T>) -> Option<&T> {
        what(self.found.as_deref()?)
    }
}

impl Source for Ahead {
    type Node = AheadNode;

    fn show(&self, path: &[u8]) -> String {
        self.host.show(path)
    }

    fn meta(&self, node: &AheadNode) -> Result<Meta> {
        node.found(|found| found.meta.as_ref()).map_or_else(|| self.host.meta(&node.node), |meta| Ok(*meta))
    }

    fn follow(&self, node: &AheadNode, path: &[u8]) -> Result<AheadNode> {
        Ok(AheadNode { node: self.host.follow(&node.node, path)?, found: None })
    }

    fn names(&self, dir: &AheadNode) -> Result<Vec<Vec<u8>>> {
        match dir.found(|found| found.names.as_ref()) {
            Some(names) => Ok(names.to_vec()),
            None => self.host.names(&dir.node),
        }
    }

    fn child(&self, dir: &AheadNode, name: &[u8]) -> Result<Option<AheadNode>> {
        let node = dir.node.child(name);
        let is_ahead = dir.found(|found| found.names.as_ref()).is_some();
        let found = if is_ahead { self.next(node.path()).map(Arc::new) } else { None };
        Ok(Some(AheadNode { node, found }))
    }

    fn read_link(&self, node: &AheadNode) -> Result<Vec<u8>> {
        self.host.read_link(&node.node)
    }

    fn xattrs(&self, node: &AheadNode) -> Result<Xattrs> {
        let found = node.found(|found| found.xattrs.as_ref());
        found.map_or_else(|| self.host.xattrs(&node.node), |xattrs| Ok(xattrs.clone()))
    }

    fn reader(&self, node: &AheadNode) -> Result<Box<dyn Reader + '_>> {
        match &node.found {
            Some(found) if found.contents.is_some() => Ok(Box::new(Ready(Arc::clone(found)))),
            _ => self.host.reader(&node.node),
        }
    }

    fn stream(&self, node: &AheadNode) -> Result<Option<Box<dyn std::io::Read>>> {
        self.host.stream(&node.node)
    }
}

/// Contents that are known.
struct Ready(Arc<Found>);

impl Ready {
    fn contents(&self) -> &[u8] {
        self.0.contents.as_deref().unwrap_or_default()
    }
}

impl Reader for Ready {
    fn size(&self) -> u64 {
        to_u64(self.contents().len())
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.contents().get(offset..));
        let rest = rest.unwrap_or_default();
        let read = rest.len().min(buf.len());
        buf[..read].copy_from_slice(&rest[..read]);
        Ok(read)
    }

    fn next_data(&mut self, offset: u64) -> Result<Option<(u64, u64)>> {
        Ok((offset < self.size()).then(|| (offset, self.size())))
    }

    fn whole(&self) -> Option<&[u8]> {
        Some(self.contents())
    }
}

/// Nobody asks any more.
struct Ended;

/// Sends all that is below a directory in the order of the copy: everything behind its name, directories before what is in them.
fn walk(
    host: &HostTree,
    (path, names): (&Path, Arc<Vec<Vec<u8>>>),
    sender: &SyncSender<Found>,
) -> Result<(), Ended> {
    let mut read = BTreeSet::new();
    let mut levels = vec![(path.to_owned(), names, 0)];
    while let Some((path, names, at)) = levels.last_mut() {
        let Some(name) = names.get(*at) else {
            levels.pop();
            continue;
        };
        *at += 1;
        let path = HostNode::new(&*path).child(name).path().to_owned();
        let found = found_at(host, path, &mut read);
        let below = found.names.clone().map(|names| (found.path.clone(), names, 0));
        sender.send(found).map_err(|_| Ended)?;
        levels.extend(below);
    }
    Ok(())
}

/// What can be found out about what is at `path`; `read` are files of several names that were read.
fn found_at(host: &HostTree, path: PathBuf, read: &mut BTreeSet<(u64, u64)>) -> Found {
    let node = HostNode::new(&path);
    let mut found = Found { path, meta: host.meta(&node).ok(), xattrs: None, names: None, contents: None };
    let Some(meta) = found.meta else { return found };
    match meta.kind {
        FileKind::Directory => found.names = host.names(&node).ok().map(Arc::new),
        FileKind::Regular if meta.nlink == 1 || read.insert(meta.id) => {
            found.contents = contents(host, &node, &meta);
        }
        _ => {}
    }
    found.xattrs = host.xattrs(&node).ok();
    found
}

/// All that is in a small file without holes.
fn contents(host: &HostTree, node: &HostNode, meta: &Meta) -> Option<Vec<u8>> {
    if !(1..=CONTENTS_MAX).contains(&meta.size) {
        return None;
    }
    let mut reader = host.reader(node).ok()?;
    let size = reader.size();
    if size != meta.size || reader.next_data(0).ok()? != Some((0, size)) {
        return None;
    }
    let mut contents = vec![0; usize::try_from(size).ok()?];
    let mut filled = 0;
    while filled < contents.len() {
        match reader.read_at(u64::try_from(filled).ok()?, &mut contents[filled..]) {
            Ok(0) | Err(_) => return None,
            Ok(read) => filled += read,
        }
    }
    Some(contents)
}
