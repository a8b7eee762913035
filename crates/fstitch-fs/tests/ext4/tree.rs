//! Trees to write and to compare.

use std::collections::BTreeMap;

use fstitch_core::{
    Caller, FallocateMode, FileKind, FileSystem, InodeNo, RenameMode, Result, Seed, SetAttr, XattrSetMode,
};

pub const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 1, umask: 0 };

/// What an inode is, as both sides can tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub kind: FileKind,
    pub perm: u16,
    pub uid: u32,
    pub nlink: u32,
    pub size: u64,
    /// Contents, or a symbolic link's target.
    pub contents: Vec<u8>,
    pub mtime: (i64, u32),
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Everything below the root by its path.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Tree(pub BTreeMap<Vec<u8>, Item>);

impl Item {
    /// One line that tells it from others.
    fn line(&self) -> String {
        let sum = self.contents.iter().fold(0_u64, |sum, &byte| sum.wrapping_mul(31) + u64::from(byte));
        let Self { kind, perm, uid, nlink, size, mtime, xattrs, .. } = self;
        let xattrs: Vec<_> =
            xattrs.iter().map(|(name, value)| (name.escape_ascii().to_string(), value.len())).collect();
        format!("{kind:?} {perm:o} {uid} {nlink} {size} {sum:x} {mtime:?} {xattrs:?}")
    }
}

impl Tree {
    /// Fails, with what differs, unless the trees are the same.
    pub fn expect(&self, expected: &Self, what: &str) {
        let paths = self.0.keys().chain(expected.0.keys());
        let line = |item: Option<&Item>| item.map_or("absent".to_owned(), Item::line);
        let differs = |path: &&Vec<u8>| self.0.get(*path) != expected.0.get(*path);
        let found: Vec<String> = paths
            .filter(differs)
            .take(10)
            .map(|path| {
                let (found, expected) = (line(self.0.get(path)), line(expected.0.get(path)));
                format!("{}: {found}, expected {expected}", path.escape_ascii())
            })
            .collect();
        assert!(found.is_empty(), "{what}: {found:#?}");
    }

    pub fn of(fs: &dyn FileSystem) -> Self {
        let mut tree = Self::default();
        let mut queue = vec![(fs.root(), Vec::new())];
        while let Some((dir, path)) = queue.pop() {
            let mut names = Vec::new();
            fs.readdir(dir, 0, &mut |entry| {
                names.push(entry.name.to_vec());
                true
            })
            .unwrap();
            for name in
                names.into_iter().filter(|name| name != b"." && name != b".." && name != b"lost+found")
            {
                let entry = fs.lookup(dir, &name).unwrap();
                let path = [&path[..], b"/", &name].concat();
                let item = item(fs, entry.attr.ino)
                    .unwrap_or_else(|error| panic!("{}: {error}", path.escape_ascii()));
                if item.kind == FileKind::Directory {
                    queue.push((entry.attr.ino, path.clone()));
                }
                tree.0.insert(path, item);
            }
        }
        tree
    }
}

fn item(fs: &dyn FileSystem, ino: InodeNo) -> Result<Item> {
    let attr = fs.getattr(ino)?;
    let contents = match attr.kind {
        FileKind::Regular => {
            let mut contents = vec![0; usize::try_from(attr.size).unwrap()];
            let done = fs.read(ino, 0, &mut contents)?;
            assert_eq!(done, contents.len());
            contents
        }
        FileKind::Symlink => fs.readlink(ino)?,
        _ => Vec::new(),
    };
    let mut xattrs = BTreeMap::new();
    for name in fs.listxattr(ino)? {
        let value = fs.getxattr(ino, &name)?;
        xattrs.insert(name, value);
    }
    let size = if attr.kind == FileKind::Directory { 0 } else { attr.size };
    let mtime = (attr.mtime.secs, attr.mtime.nanos);
    Ok(Item {
        kind: attr.kind,
        perm: attr.perm,
        uid: attr.uid,
        nlink: attr.nlink,
        size,
        contents,
        mtime,
        xattrs,
    })
}

fn make(fs: &dyn FileSystem, dir: InodeNo, name: &str) -> Result<InodeNo> {
    Ok(fs.mknod(&CALLER, dir, name.as_bytes(), FileKind::Regular.mode_bits() | 0o644, 0)?.attr.ino)
}

pub fn bytes(seed: &mut Seed, len: usize) -> Vec<u8> {
    let start = seed.below(251);
    (0..len).map(|at| u8::try_from((start + u64::try_from(at).unwrap() * 7) % 251).unwrap()).collect()
}

/// Writes files of many sizes, with holes, names, links and attributes.
pub fn fill(fs: &dyn FileSystem, seed: u64) -> Result<()> {
    let (mut seed, root) = (Seed::new(seed), fs.root());
    let top = fs.mkdir(&CALLER, root, b"top", 0o755)?.attr.ino;
    for (at, len) in [0, 1, 59, 60, 1000, 4096, 5000, 70_000, 300_000, 3_000_000].into_iter().enumerate() {
        let file = make(fs, top, &format!("file-{at}"))?;
        let contents = bytes(&mut seed, len);
        for (step, part) in contents.chunks(100_000).enumerate() {
            fs.write(&CALLER, file, u64::try_from(step * 100_000).unwrap(), part)?;
        }
        fs.setattr(
            &CALLER,
            file,
            &SetAttr { uid: Some(70_000 + u32::try_from(at).unwrap()), ..SetAttr::default() },
        )?;
    }
    let holes = make(fs, top, "holes")?;
    for at in (0..60_u64).rev() {
        fs.write(&CALLER, holes, at * 20_000, &bytes(&mut seed, 700))?;
    }
    let mut dir = top;
    for depth in 0..6 {
        dir = fs.mkdir(&CALLER, dir, format!("d{depth}").as_bytes(), 0o700)?.attr.ino;
        make(fs, dir, "inside")?;
    }
    let many = fs.mkdir(&CALLER, root, b"many", 0o755)?.attr.ino;
    for at in 0..400 {
        let file = make(fs, many, &format!("a name that is not short, number {at}"))?;
        if at % 5 == 0 {
            fs.write(&CALLER, file, 0, &bytes(&mut seed, 3000))?;
        }
        if at % 7 == 0 {
            fs.setxattr(&CALLER, file, b"user.small", &bytes(&mut seed, 20), XattrSetMode::Set)?;
        }
    }
    let file = make(fs, top, "attributes")?;
    fs.setxattr(&CALLER, file, b"user.large", &bytes(&mut seed, 700), XattrSetMode::Set)?;
    fs.setxattr(&CALLER, file, b"trusted.other", b"value", XattrSetMode::Set)?;
    fs.symlink(&CALLER, top, b"short", b"file-1")?;
    fs.symlink(&CALLER, top, b"long", &b"long/".repeat(60))?;
    fs.link(&CALLER, file, root, b"linked")?;
    fs.mknod(&CALLER, top, b"null", FileKind::CharDevice.mode_bits() | 0o666, 0x103)?;
    fs.mknod(&CALLER, top, b"fifo", FileKind::Fifo.mode_bits() | 0o600, 0)?;
    fs.sync()
}

/// Adds files in all parts of the volume: in many directories, in pieces, with holes that were made later, with attributes in blocks of
/// their own, with names in several directories.
pub fn spread(fs: &dyn FileSystem, seed: u64) -> Result<()> {
    let (mut seed, root) = (Seed::new(seed), fs.root());
    let mut dirs = Vec::new();
    for at in 0..24 {
        dirs.push(fs.mkdir(&CALLER, root, format!("part {at}").as_bytes(), 0o755)?.attr.ino);
    }
    let mut files = Vec::new();
    for at in 0..96_usize {
        files.push(make(fs, dirs[at % dirs.len()], &format!("spread {at}"))?);
    }
    // In turns, so that each is in pieces.
    for step in 0..12_u64 {
        for (at, &file) in files.iter().enumerate() {
            let len = 500 + usize::try_from(seed.below(17_000)).unwrap();
            let place = if at % 9 == 0 { step * 40_000 } else { step * 11_000 };
            fs.write(&CALLER, file, place, &bytes(&mut seed, len))?;
        }
        fs.sync()?;
    }
    for (at, dir) in dirs.iter().enumerate() {
        for number in (at..files.len()).step_by(24).filter(|number| number % 3 == 1) {
            fs.unlink(&CALLER, *dir, format!("spread {number}").as_bytes())?;
        }
        let below = fs.mkdir(&CALLER, *dir, b"below", 0o755)?.attr.ino;
        let file = make(fs, below, "with attributes")?;
        fs.setxattr(&CALLER, file, b"user.large", &bytes(&mut seed, 600), XattrSetMode::Set)?;
        fs.link(&CALLER, file, dirs[(at + 7) % dirs.len()], format!("also {at}").as_bytes())?;
        fs.symlink(&CALLER, below, b"long", &b"elsewhere/".repeat(9))?;
        for name in 0..20 {
            make(fs, below, &format!("one of twenty names, number {name}"))?;
        }
    }
    // Without extents nothing can be unwritten.
    let file = make(fs, dirs[23], "unwritten")?;
    let _ = fs.fallocate(&CALLER, file, 0, 300_000, FallocateMode::Allocate);
    fs.sync()
}

/// Takes away, moves, shortens and adds to what [`fill`] has written.
pub fn change(fs: &dyn FileSystem, seed: u64) -> Result<()> {
    let (mut seed, root) = (Seed::new(seed), fs.root());
    let many = fs.walk(b"/many")?.attr.ino;
    let top = fs.walk(b"/top")?.attr.ino;
    for at in (0..400).filter(|at| at % 3 == 0) {
        fs.unlink(&CALLER, many, format!("a name that is not short, number {at}").as_bytes())?;
    }
    for at in (0..400).filter(|at| at % 3 == 1 && at % 2 == 0) {
        let name = format!("a name that is not short, number {at}");
        let to = format!("moved {at}");
        fs.rename(&CALLER, (many, name.as_bytes()), (root, to.as_bytes()), RenameMode::Replace)?;
    }
    for at in 0..150 {
        let file = make(fs, many, &format!("another name, number {at}"))?;
        fs.write(&CALLER, file, 0, &bytes(&mut seed, 100))?;
    }
    let holes = fs.walk(b"/top/holes")?.attr.ino;
    for at in 0..20_u64 {
        fs.write(&CALLER, holes, at * 37_000 + 5000, &bytes(&mut seed, 2100))?;
    }
    fs.setattr(&CALLER, holes, &SetAttr { size: Some(500_000), ..SetAttr::default() })?;
    fs.unlink(&CALLER, top, b"file-9")?;
    let file = make(fs, top, "file-9")?;
    fs.write(&CALLER, file, 0, &bytes(&mut seed, 2_000_000))?;
    let attributes = fs.walk(b"/linked")?.attr.ino;
    fs.removexattr(&CALLER, attributes, b"user.large")?;
    fs.setxattr(&CALLER, attributes, b"user.next", &bytes(&mut seed, 400), XattrSetMode::Set)?;
    let new = fs.mkdir(&CALLER, root, b"new", 0o755)?.attr.ino;
    fs.rename(&CALLER, (top, b"d0"), (new, b"moved"), RenameMode::Replace)?;
    fs.sync()
}
