//! Trees on the host and on a volume.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use fstitch_core::{FileKind, FileSystem, InodeNo, Result, Seed};

use super::support::{Scratch, run};

/// What both sides can tell of an inode.
#[derive(Clone, PartialEq, Eq)]
struct Item {
    kind: FileKind,
    perm: u16,
    nlink: u32,
    size: u64,
    mtime: i64,
    contents: Vec<u8>,
}

/// All below a root, by path.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tree(BTreeMap<Vec<u8>, Item>);

impl Tree {
    pub fn of_host(root: &Path) -> Self {
        let mut tree = Self::default();
        let mut rest = vec![root.to_path_buf()];
        while let Some(dir) = rest.pop() {
            for entry in fs::read_dir(&dir).unwrap() {
                let path = entry.unwrap().path();
                let found = path.symlink_metadata().unwrap();
                let kind = FileKind::from_mode(u16::try_from(found.mode() & 0o170_000).unwrap()).unwrap();
                let contents = match kind {
                    FileKind::Regular => fs::read(&path).unwrap(),
                    FileKind::Symlink => fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec(),
                    _ => Vec::new(),
                };
                // What directories have depends on who keeps them.
                let of_file = |number: u64| if kind == FileKind::Directory { 0 } else { number };
                let item = Item {
                    kind,
                    perm: u16::try_from(found.mode() & 0o7777).unwrap(),
                    nlink: u32::try_from(of_file(found.nlink())).unwrap(),
                    size: of_file(found.size()),
                    mtime: found.mtime(),
                    contents,
                };
                tree.0.insert(path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec(), item);
                if kind == FileKind::Directory {
                    rest.push(path);
                }
            }
        }
        tree
    }

    pub fn of(fs: &dyn FileSystem) -> Result<Self> {
        let mut tree = Self::default();
        let mut rest = vec![(fs.root(), Vec::new())];
        while let Some((dir, path)) = rest.pop() {
            let mut names = Vec::new();
            fs.readdir(dir, 0, &mut |entry| {
                names.push(entry.name.to_vec());
                true
            })?;
            for name in names.into_iter().filter(|name| name != b"." && name != b"..") {
                let attr = fs.lookup(dir, &name)?.attr;
                let path = if path.is_empty() { name } else { [&path[..], b"/", &name].concat() };
                let contents = match attr.kind {
                    FileKind::Regular => contents(fs, attr.ino, attr.size)?,
                    FileKind::Symlink => fs.readlink(attr.ino)?,
                    _ => Vec::new(),
                };
                let of_file = |number: u64| if attr.kind == FileKind::Directory { 0 } else { number };
                let item = Item {
                    kind: attr.kind,
                    perm: attr.perm,
                    nlink: u32::try_from(of_file(attr.nlink.into())).unwrap(),
                    size: of_file(attr.size),
                    mtime: attr.mtime.secs,
                    contents,
                };
                // A damaged volume may have rings.
                if attr.kind == FileKind::Directory && path.len() < 2000 {
                    rest.push((attr.ino, path.clone()));
                }
                tree.0.insert(path, item);
                if tree.0.len() > 5000 {
                    return Ok(tree);
                }
            }
        }
        Ok(tree)
    }

    /// The paths at which two trees differ.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let paths: std::collections::BTreeSet<_> = self.0.keys().chain(other.0.keys()).collect();
        let differs = paths.into_iter().filter(|path| self.0.get(*path) != other.0.get(*path));
        differs.map(|path| path.escape_ascii().to_string()).collect()
    }

    /// The same tree of which nothing says when it changed.
    pub fn without_times(mut self) -> Self {
        self.0.values_mut().for_each(|item| item.mtime = 0);
        self
    }

    /// The contents at a path.
    pub fn contents(&self, path: &str) -> Option<&[u8]> {
        self.0.get(path.as_bytes()).map(|item| &item.contents[..])
    }

    pub fn expect(&self, expected: &Self, what: &str) {
        for path in self.0.keys().chain(expected.0.keys()) {
            let line = |item: Option<&Item>| {
                item.map(|item| {
                    (item.kind, item.perm, item.nlink, item.size, item.mtime, item.contents.len())
                })
            };
            let (found, wanted) = (self.0.get(path), expected.0.get(path));
            let path = path.escape_ascii();
            assert!(found == wanted, "{what}: {path}: {:?}, expected {:?}", line(found), line(wanted));
        }
        assert!(!expected.0.is_empty());
    }
}

/// The contents, or their first mebibyte where a size cannot be.
fn contents(fs: &dyn FileSystem, ino: InodeNo, size: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(size.min(8 << 20)).unwrap()];
    let mut at = 0;
    while at < bytes.len() {
        match fs.read(ino, u64::try_from(at).unwrap(), &mut bytes[at..])? {
            0 => break,
            more => at += more,
        }
    }
    bytes.truncate(at);
    Ok(bytes)
}

/// Files whose ends are at all places that matter, names and links.
pub fn fill(root: &Path) {
    let mut seed = Seed::new(4);
    fs::create_dir_all(root.join("many")).unwrap();
    fs::create_dir_all(root.join("deep/er/and/deeper")).unwrap();
    let mut file = |name: &str, size: u64| {
        let mut bytes = vec![0; usize::try_from(size).unwrap()];
        bytes.iter_mut().for_each(|byte| *byte = u8::try_from(seed.below(256)).unwrap());
        fs::write(root.join(name), bytes).unwrap();
    };
    for block in [512, 4096, 8192, 65_536_u64] {
        for (turn, size) in
            [block - 1, block, block + 1, 12 * block - 1, 12 * block, 12 * block + 1].into_iter().enumerate()
        {
            file(&format!("size-{block}-{turn}"), size);
        }
    }
    file("empty", 0);
    file("long", 3 << 20);
    for at in 0..400 {
        file(&format!("many/{}-{at}", "n".repeat(1 + at % 40)), u64::try_from(at % 7).unwrap());
    }
    file(&format!("many/{}", "l".repeat(255)), 10);
    let mut holes = File::create(root.join("holes")).unwrap();
    for at in [0, 70_000, 1 << 20, 3 << 20_u64] {
        holes.seek(std::io::SeekFrom::Start(at)).unwrap();
        holes.write_all(b"between holes").unwrap();
    }
    holes.set_len(4 << 20).unwrap();
    for len in [1, 58, 59, 60, 61, 118, 119, 120, 121, 500, 1000] {
        symlink("t".repeat(len), root.join(format!("link-{len}"))).unwrap();
    }
    fs::hard_link(root.join("long"), root.join("deep/er/again")).unwrap();
    fs::set_permissions(root.join("empty"), fs::Permissions::from_mode(0o4751)).unwrap();
}

/// An image of makefs.
pub fn made(
    scratch: &Scratch,
    from: &Path,
    (version, order, block, fragment): (u32, &str, u32, u32),
) -> Vec<u8> {
    let path = scratch.path(&format!("{version}{order}{block}.img"));
    let options = format!("version={version},bsize={block},fsize={fragment}");
    let (image, from) = (path.to_str().unwrap(), from.to_str().unwrap());
    let (code, said) =
        run("makefs", &["-t", "ffs", "-B", order, "-o", &options, "-b", "5%", "-f", "50", image, from]);
    assert_eq!(code, 0, "{said}");
    fs::read(path).unwrap()
}
