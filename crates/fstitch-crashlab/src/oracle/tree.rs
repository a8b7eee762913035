//! Everything that a file system shows, as a value: taken after every operation of a workload, and of every crash state.

use std::collections::BTreeMap;
use std::sync::Arc;

use fstitch_core::num::to_u64;
use fstitch_core::{Attr, Errno, Error, FileKind, FileSystem, InodeNo, SeekFrom};

/// An inode's life: numbers come again, generations tell the lives apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    /// The number.
    pub ino: InodeNo,
    /// The life.
    pub generation: u32,
}

/// Bytes of a file that are compared at once; a chunk of zeros is not kept.
pub const CHUNK: usize = 4096;
/// Objects in a tree, at most: a damaged one may be endless.
const MAX_OBJECTS: usize = 100_000;

/// What a name leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// What it is.
    pub kind: FileKind,
    /// The 12 permission bits.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project; 0 where there are none.
    pub project: u32,
    /// Device number.
    pub rdev: u32,
    /// Length in bytes, of regular files only.
    pub size: u64,
    /// Contents of a regular file in chunks of [`CHUNK`] bytes, zeros after the end, by number; without chunks of zeros.
    pub chunks: BTreeMap<u64, Arc<[u8]>>,
    /// A symbolic link's target.
    pub target: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// A directory's names.
    pub names: BTreeMap<Vec<u8>, ObjectId>,
}

/// All objects that have a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// The root directory.
    pub root: ObjectId,
    /// Objects, shared with the tree before where nothing changed.
    pub objects: BTreeMap<ObjectId, Arc<Object>>,
    /// Objects that have no name any more, or none yet, and are in use.
    pub nameless: BTreeMap<ObjectId, Arc<Object>>,
    /// What `..` names, of each directory that has a name.
    pub homes: BTreeMap<ObjectId, InodeNo>,
}

/// Something could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {why}")]
pub struct Unreadable {
    /// Where.
    pub path: String,
    /// Why.
    pub why: String,
}

impl Tree {
    /// Reads everything. Objects that are as in `before` are shared with it.
    ///
    /// # Errors
    /// When anything that has a name cannot be read, with its path.
    pub fn read(fs: &dyn FileSystem, before: Option<&Self>) -> Result<Self, Unreadable> {
        Self::read_with(fs, before, &[])
    }

    /// The same with objects that are `held`, whether or not they have names.
    ///
    /// # Errors
    /// As for [`Tree::read`].
    pub fn read_with(
        fs: &dyn FileSystem,
        before: Option<&Self>,
        held: &[InodeNo],
    ) -> Result<Self, Unreadable> {
        let fail = |error: Error| Unreadable { path: "/".into(), why: error.to_string() };
        let root = id(&fs.getattr(fs.root()).map_err(fail)?);
        let mut reader = Reader { fs, before, tree: Self::empty(root), queue: vec![] };
        reader.visit(root, "")?;
        while let Some((parent, path)) = reader.queue.pop() {
            reader.children(parent, &path)?;
        }
        for &ino in held {
            let attr = fs.getattr(ino).map_err(fail)?;
            if !reader.tree.objects.contains_key(&id(&attr)) {
                let object = reader.object(ino).map_err(fail)?;
                reader.tree.nameless.insert(id(&attr), Arc::new(object));
            }
        }
        Ok(reader.tree)
    }

    fn empty(root: ObjectId) -> Self {
        Self { root, objects: BTreeMap::new(), nameless: BTreeMap::new(), homes: BTreeMap::new() }
    }

    /// An object, if it has a name.
    #[must_use]
    pub fn get(&self, id: ObjectId) -> Option<&Arc<Object>> {
        self.objects.get(&id)
    }

    /// An object, with or without a name.
    #[must_use]
    pub fn get_any(&self, id: ObjectId) -> Option<&Arc<Object>> {
        self.objects.get(&id).or_else(|| self.nameless.get(&id))
    }

    /// What `name` in `dir` leads to.
    #[must_use]
    pub fn binding(&self, dir: ObjectId, name: &[u8]) -> Option<ObjectId> {
        self.get(dir)?.names.get(name).copied()
    }

    /// All names of `id`, as directory and name.
    pub fn names_of(&self, id: ObjectId) -> impl Iterator<Item = (ObjectId, &[u8])> {
        let all = self.objects.iter().flat_map(|(dir, object)| {
            object.names.iter().map(move |(name, child)| (*dir, name.as_slice(), *child))
        });
        all.filter(move |(_, _, child)| *child == id).map(|(dir, name, _)| (dir, name))
    }

    /// Whether `child`'s name in `dir` is there only until the next recovery. A crash in the middle of a move between
    /// directories leaves the moved directory two names, and the valid one is in the directory that its `..` names.
    #[must_use]
    pub fn is_passing(&self, dir: ObjectId, child: ObjectId) -> bool {
        self.homes
            .get(&child)
            .is_some_and(|&home| dir.ino != home && self.names_of(child).any(|(other, _)| other.ino == home))
    }

    /// The object at a path.
    #[must_use]
    pub fn find(&self, path: &str) -> Option<ObjectId> {
        let names = path.split('/').filter(|name| !name.is_empty());
        names.into_iter().try_fold(self.root, |dir, name| self.binding(dir, name.as_bytes()))
    }

    /// A path of an object, for messages.
    #[must_use]
    pub fn path_of(&self, id: ObjectId) -> String {
        let mut path = String::new();
        let mut at = id;
        for _ in 0..self.objects.len() {
            let Some((dir, name)) = self.names_of(at).next() else { break };
            path = format!("/{}{path}", String::from_utf8_lossy(name));
            at = dir;
        }
        match path.is_empty() && id != self.root {
            true => format!("inode {} generation {}", id.ino, id.generation),
            false if path.is_empty() => "/".into(),
            false => path,
        }
    }
}

fn id(attr: &Attr) -> ObjectId {
    ObjectId { ino: attr.ino, generation: attr.generation }
}

struct Reader<'a> {
    fs: &'a dyn FileSystem,
    before: Option<&'a Tree>,
    tree: Tree,
    /// Directories whose names are still to be followed, with their paths.
    queue: Vec<(ObjectId, String)>,
}

impl Reader<'_> {
    fn visit(&mut self, id: ObjectId, path: &str) -> Result<(), Unreadable> {
        let fail = |why: String| Unreadable { path: path.into(), why };
        if self.tree.objects.len() == MAX_OBJECTS {
            return Err(fail(format!("there are more than {MAX_OBJECTS} objects")));
        }
        let object = self.object(id.ino).map_err(|error| fail(error.to_string()))?;
        if object.kind == FileKind::Directory {
            self.queue.push((id, path.to_owned()));
        }
        let old = self.before.and_then(|tree| tree.get(id)).filter(|old| ***old == object);
        let shared = old.map_or_else(|| Arc::new(object), Arc::clone);
        self.tree.objects.insert(id, shared);
        Ok(())
    }

    /// Follows the names of a directory. `names` holds inode numbers with a generation of 0 until then.
    fn children(&mut self, dir: ObjectId, path: &str) -> Result<(), Unreadable> {
        let home =
            self.home(dir).map_err(|error| Unreadable { path: path.into(), why: error.to_string() })?;
        self.tree.homes.insert(dir, home);
        let mut object = Object::clone(&self.tree.objects[&dir]);
        for (name, child) in &mut object.names {
            let path = format!("{path}/{}", String::from_utf8_lossy(name));
            let fail = |error: Error| Unreadable { path: path.clone(), why: error.to_string() };
            let entry = self.fs.lookup(dir.ino, name).map_err(fail)?;
            *child = id(&entry.attr);
            let visited =
                if self.tree.objects.contains_key(child) { Ok(()) } else { self.visit(*child, &path) };
            self.fs.forget(entry.attr.ino, 1);
            visited?;
        }
        let old = self.before.and_then(|tree| tree.get(dir)).filter(|old| ***old == object);
        let shared = old.map_or_else(|| Arc::new(object), Arc::clone);
        self.tree.objects.insert(dir, shared);
        Ok(())
    }

    fn home(&self, dir: ObjectId) -> Result<InodeNo, Error> {
        let home = self.fs.lookup(dir.ino, b"..")?.attr.ino;
        self.fs.forget(home, 1);
        Ok(home)
    }

    fn object(&self, ino: InodeNo) -> Result<Object, Error> {
        let attr = self.fs.getattr(ino)?;
        let mut object = Object {
            kind: attr.kind,
            perm: attr.perm,
            uid: attr.uid,
            gid: attr.gid,
            project: self.project(ino)?,
            rdev: attr.rdev,
            size: 0,
            chunks: BTreeMap::new(),
            target: Vec::new(),
            xattrs: BTreeMap::new(),
            names: BTreeMap::new(),
        };
        match attr.kind {
            FileKind::Regular => {
                object.size = attr.size;
                object.chunks = self.contents(ino, attr.size)?;
            }
            FileKind::Directory => object.names = self.names(ino)?,
            FileKind::Symlink => object.target = self.fs.readlink(ino)?,
            _ => {}
        }
        for name in self.fs.listxattr(ino)? {
            let value = self.fs.getxattr(ino, &name)?;
            object.xattrs.insert(name, value);
        }
        Ok(object)
    }

    fn project(&self, ino: InodeNo) -> Result<u32, Error> {
        match self.fs.project(ino) {
            Err(error) if error.errno() == Errno::OPNOTSUPP => Ok(0),
            found => found,
        }
    }

    fn names(&self, dir: InodeNo) -> Result<BTreeMap<Vec<u8>, ObjectId>, Error> {
        let mut names = BTreeMap::new();
        self.fs.readdir(dir, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                names.insert(entry.name.to_vec(), ObjectId { ino: entry.ino, generation: 0 });
            }
            names.len() < MAX_OBJECTS
        })?;
        Ok(names)
    }

    fn contents(&self, ino: InodeNo, size: u64) -> Result<BTreeMap<u64, Arc<[u8]>>, Error> {
        let chunk = to_u64(CHUNK);
        let mut chunks = BTreeMap::new();
        let mut offset = 0;
        while offset < size {
            offset = match self.fs.seek(ino, offset, SeekFrom::Data) {
                Ok(data) => data / chunk * chunk,
                Err(error) if error.errno() == Errno::NXIO => break,
                Err(error) => return Err(error),
            };
            let mut data = vec![0; CHUNK];
            let mut len = 0;
            while len < CHUNK {
                let at = offset + to_u64(len);
                match self.fs.read(ino, at, &mut data[len..])? {
                    0 => break,
                    more => len += more,
                }
            }
            if data.iter().any(|&byte| byte != 0) {
                chunks.insert(offset / chunk, data.into());
            }
            offset += chunk;
        }
        Ok(chunks)
    }
}
