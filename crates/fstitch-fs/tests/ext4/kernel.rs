//! The kernel's driver, on a loop device.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use fstitch_core::{Errno, FileKind, Seed};

use super::shifts::{Act, Answer};
use super::support::{Scratch, run};
use super::tree::{Item, Tree, bytes};

/// A mount that ends with the value.
struct Mounted(PathBuf);

impl Mounted {
    /// `None`, said aloud, where the kernel does not mount.
    fn new(scratch: &Scratch, image: &Path) -> Option<Self> {
        let mounted = Self::if_it_can(scratch, image);
        assert!(mounted.is_some() || !is_root(), "the kernel does not mount it");
        mounted
    }

    /// The same where the kernel may lack what the volume has.
    fn if_it_can(scratch: &Scratch, image: &Path) -> Option<Self> {
        let at = scratch.path("mnt");
        std::fs::create_dir_all(&at).unwrap();
        let (code, said) =
            run("mount", &["-t", "ext4", "-o", "loop", image.to_str().unwrap(), at.to_str().unwrap()]);
        if code != 0 {
            println!("the kernel does not mount it here: {said}");
            return None;
        }
        Some(Self(at))
    }
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|found| found.uid() == 0)
        && Path::new("/dev/loop-control").exists()
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Children of other tests may hold what was open here for a moment.
        for _ in 0..200 {
            let (code, said) = run("umount", &[self.0.to_str().unwrap()]);
            if code == 0 {
                return;
            }
            println!("{said}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        panic!("{} stays mounted", self.0.display());
    }
}

/// Where no image was before: a mount of one with that name may live on in another namespace.
fn new_path(scratch: &Scratch) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    scratch.path(&format!("kernel-{}.img", COUNT.fetch_add(1, Ordering::Relaxed)))
}

/// The tree of a volume as the kernel has it.
pub fn tree(scratch: &Scratch, image: &[u8]) -> Option<Tree> {
    let path = new_path(scratch);
    std::fs::write(&path, image).unwrap();
    let mounted = Mounted::new(scratch, &path)?;
    let tree = whole(&mounted.0);
    drop(mounted);
    std::fs::remove_file(&path).unwrap();
    Some(tree)
}

/// Has the kernel's driver work in the volume in a file; `None`, said aloud, where it does not mount.
pub fn in_place<T>(scratch: &Scratch, image: &Path, work: impl FnOnce(&Path) -> T) -> Option<T> {
    let mounted = Mounted::new(scratch, image)?;
    Some(work(&mounted.0))
}

/// The tree of the volume in a file.
pub fn tree_in_place(scratch: &Scratch, image: &Path) -> Option<Tree> {
    in_place(scratch, image, whole)
}

/// The volume with a directory `many` of so many names, which the kernel has made, and their index.
pub fn with_names(scratch: &Scratch, image: &[u8], count: usize) -> Option<Vec<u8>> {
    let path = new_path(scratch);
    std::fs::write(&path, image).unwrap();
    let mounted = Mounted::new(scratch, &path)?;
    let many = mounted.0.join("many");
    std::fs::create_dir(&many).unwrap();
    let first = many.join("a name that is longer than most names are, with a number: 0");
    std::fs::write(&first, []).unwrap();
    for at in 1..count {
        let name = format!("a name that is longer than most names are, with a number: {at}");
        // Names of one file need no inodes, up to as many as links are counted.
        std::fs::hard_link(&first, many.join(name)).unwrap();
    }
    drop(mounted);
    let image = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    Some(image)
}

/// The tree of a mounted volume.
fn whole(root: &Path) -> Tree {
    let mut tree = Tree::default();
    walk(root, root, &mut tree);
    for (path, found) in xattrs(root) {
        let name = [b"/", path.strip_prefix(root).unwrap().as_os_str().as_bytes()].concat();
        if let Some(item) = tree.0.get_mut(&name) {
            item.xattrs = found;
        }
    }
    tree
}

fn walk(root: &Path, dir: &Path, tree: &mut Tree) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with("lost+found") {
            continue;
        }
        let found = item(&path);
        let is_dir = found.kind == FileKind::Directory;
        let name = [b"/", path.strip_prefix(root).unwrap().as_os_str().as_bytes()].concat();
        tree.0.insert(name, found);
        if is_dir {
            walk(root, &path, tree);
        }
    }
}

fn item(path: &Path) -> Item {
    let found = std::fs::symlink_metadata(path).unwrap();
    let kind = FileKind::from_mode(u16::try_from(found.mode()).unwrap()).unwrap();
    let contents = match kind {
        FileKind::Regular => std::fs::read(path).unwrap(),
        FileKind::Symlink => std::fs::read_link(path).unwrap().as_os_str().as_bytes().to_vec(),
        _ => Vec::new(),
    };
    Item {
        kind,
        perm: u16::try_from(found.mode() & 0o7777).unwrap(),
        uid: found.uid(),
        nlink: u32::try_from(found.nlink()).unwrap(),
        size: if kind == FileKind::Directory { 0 } else { found.len() },
        contents,
        mtime: (found.mtime(), u32::try_from(found.mtime_nsec()).unwrap()),
        xattrs: BTreeMap::new(),
    }
}

/// The attributes of everything below a directory, from a tool, as the standard library has none for them.
fn xattrs(root: &Path) -> BTreeMap<PathBuf, BTreeMap<Vec<u8>, Vec<u8>>> {
    let arguments = ["-R", "-P", "-h", "-d", "-m", "-", "-e", "hex", "--absolute-names"];
    let (code, said) = run("getfattr", &[&arguments[..], &[root.to_str().unwrap()]].concat());
    assert_eq!(code, 0, "{said}");
    let mut all: BTreeMap<PathBuf, BTreeMap<Vec<u8>, Vec<u8>>> = BTreeMap::new();
    let mut path = PathBuf::new();
    for line in said.lines() {
        if let Some(name) = line.strip_prefix("# file: ") {
            path = PathBuf::from(name.replace("\\040", " "));
        } else if let Some((name, value)) = line.split_once('=') {
            all.entry(path.clone()).or_default().insert(name.as_bytes().to_vec(), unhex(value));
        }
    }
    all
}

fn unhex(value: &str) -> Vec<u8> {
    let digits = value.strip_prefix("0x").unwrap_or_default().as_bytes();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// What `fill` writes, by the kernel; with a directory large enough for an index of its.
fn fill(at: &Path) {
    let mut seed = Seed::new(5);
    let top = at.join("top");
    std::fs::create_dir(&top).unwrap();
    for (no, len) in [0, 1, 59, 60, 1000, 4096, 5000, 70_000, 300_000, 3_000_000].into_iter().enumerate() {
        std::fs::write(top.join(format!("file-{no}")), bytes(&mut seed, len)).unwrap();
    }
    let mut holes = vec![0; 1_200_000];
    for part in holes.chunks_mut(20_000) {
        part[..700].copy_from_slice(&bytes(&mut seed, 700));
    }
    let file = std::fs::File::create(top.join("holes")).unwrap();
    for (part, no) in holes.chunks(20_000).zip(0_u64..).rev_like() {
        std::os::unix::fs::FileExt::write_all_at(&file, &part[..700], no * 20_000).unwrap();
        file.sync_data().unwrap();
    }
    let mut dir = top.clone();
    for depth in 0..6 {
        dir.push(format!("d{depth}"));
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("inside"), b"").unwrap();
    }
    let many = at.join("many");
    std::fs::create_dir(&many).unwrap();
    for no in 0..400 {
        let path = many.join(format!("a name that is not short, number {no}"));
        std::fs::write(&path, bytes(&mut seed, if no % 5 == 0 { 3000 } else { 0 })).unwrap();
        if no % 50 == 0 {
            set_xattr(&path, "user.small", "value");
        }
    }
    let file = top.join("attributes");
    std::fs::write(&file, b"").unwrap();
    set_xattr(&file, "user.large", &"large".repeat(140));
    set_xattr(&file, "trusted.other", "value");
    // Too large for a block where values cannot be elsewhere.
    run("setfattr", &["-n", "user.huge", "-v", &"huge".repeat(2000), file.to_str().unwrap()]);
    let few = at.join("few");
    std::fs::create_dir(&few).unwrap();
    for name in ["one", "a longer name of a file", "three"] {
        std::fs::write(few.join(name), name).unwrap();
    }
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o4755)).unwrap();
    symlink("file-1", top.join("short")).unwrap();
    symlink("long/".repeat(60), top.join("long")).unwrap();
    std::fs::hard_link(&file, at.join("linked")).unwrap();
}

/// An iterator from its end, for the ones that know their length.
trait RevLike: Iterator + Sized {
    fn rev_like(self) -> std::vec::IntoIter<Self::Item> {
        let mut all: Vec<Self::Item> = self.collect();
        all.reverse();
        all.into_iter()
    }
}

impl<I: Iterator> RevLike for I {}

fn set_xattr(path: &Path, name: &str, value: &str) {
    let (code, said) = run("setfattr", &["-n", name, "-v", value, path.to_str().unwrap()]);
    assert_eq!(code, 0, "{said}");
}

/// The volume after the kernel has filled it, with its tree.
pub fn filled(scratch: &Scratch, image: &[u8]) -> Option<(Vec<u8>, Tree)> {
    let filled = filled_if_it_can(scratch, image);
    assert!(filled.is_some() || !is_root(), "the kernel does not mount it");
    filled
}

/// The same where the kernel may lack what the volume has.
pub fn filled_if_it_can(scratch: &Scratch, image: &[u8]) -> Option<(Vec<u8>, Tree)> {
    let path = new_path(scratch);
    std::fs::write(&path, image).unwrap();
    let mounted = Mounted::if_it_can(scratch, &path)?;
    fill(&mounted.0);
    let tree = whole(&mounted.0);
    drop(mounted);
    Some((settled(&path), tree))
}

/// The volume after the kernel's driver has done something to it, with its tree.
pub fn changed(scratch: &Scratch, image: &[u8], work: impl FnOnce(&Path)) -> Option<(Vec<u8>, Tree)> {
    let path = new_path(scratch);
    std::fs::write(&path, image).unwrap();
    let mounted = Mounted::new(scratch, &path)?;
    work(&mounted.0);
    let tree = whole(&mounted.0);
    drop(mounted);
    Some((settled(&path), tree))
}

/// The volume with all that is in a directory of the machine.
pub fn copied(scratch: &Scratch, image: &[u8], from: &Path) -> Option<Vec<u8>> {
    let path = new_path(scratch);
    std::fs::write(&path, image).unwrap();
    let mounted = Mounted::new(scratch, &path)?;
    let from = from.join(".");
    let (code, said) = run("cp", &["-a", from.to_str().unwrap(), mounted.0.to_str().unwrap()]);
    assert_eq!(code, 0, "{said}");
    drop(mounted);
    Some(settled(&path))
}

/// The volume with files in all of its parts, some thousand names with an index in several directories, and blocks of attributes that many
/// inodes share, all made by the kernel; with its tree.
pub fn scattered(scratch: &Scratch, image: &[u8]) -> Option<(Vec<u8>, Tree)> {
    let path = new_path(scratch);
    std::fs::write(&path, image).unwrap();
    let mounted = Mounted::new(scratch, &path)?;
    // Low numbers are in use while the others are taken.
    let filler = mounted.0.join("filler");
    std::fs::create_dir(&filler).unwrap();
    (0..6500).for_each(|no| std::fs::write(filler.join(no.to_string()), b"").unwrap());
    fill(&mounted.0);
    let (mut seed, mut shared) = (Seed::new(9), Vec::new());
    for at in 0..30 {
        let dir = mounted.0.join(format!("part {at}"));
        std::fs::create_dir(&dir).unwrap();
        for no in 0..9 {
            let file = dir.join(format!("file {no}"));
            let len = usize::try_from(seed.below(50_000)).unwrap();
            std::fs::write(&file, bytes(&mut seed, len)).unwrap();
            if no % 3 == 0 {
                std::fs::remove_file(&file).unwrap();
            } else {
                shared.push(file.to_str().unwrap().to_owned());
            }
        }
        // Enough for an index, whatever the block size.
        for no in 0..150 {
            std::fs::hard_link(
                dir.join("file 1"),
                dir.join(format!("another name of a file, number {no} of many")),
            )
            .unwrap();
        }
    }
    std::fs::remove_dir_all(&filler).unwrap();
    let value = "v".repeat(500);
    let arguments: Vec<&str> = shared.iter().map(String::as_str).collect();
    let (code, said) = run("setfattr", &[&["-n", "user.shared", "-v", &value][..], &arguments].concat());
    assert_eq!(code, 0, "{said}");
    let tree = whole(&mounted.0);
    drop(mounted);
    Some((settled(&path), tree))
}

/// A volume that was unmounted. Whoever has copied the mount into a namespace of his own keeps it for a moment longer.
fn settled(path: &Path) -> Vec<u8> {
    for _ in 0..600 {
        let image = std::fs::read(path).unwrap();
        if image[1024 + 0x60] & 4 == 0 {
            std::fs::remove_file(path).unwrap();
            return image;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("{} is still mounted somewhere", path.display());
}

/// The volume as a power cut leaves it while the kernel works on it, with files that are open and have no names.
pub fn interrupted(scratch: &Scratch, image: &[u8]) -> Option<Vec<u8>> {
    let path = new_path(scratch);
    std::fs::write(&path, image).unwrap();
    let mounted = Mounted::new(scratch, &path)?;
    fill(&mounted.0);
    run("sync", &["-f", mounted.0.to_str().unwrap()]);
    let many = mounted.0.join("many");
    let open: Vec<_> = [3, 5, 9].map(|no| mounted.0.join("top").join(format!("file-{no}"))).into();
    let held: Vec<_> = open.iter().map(|path| std::fs::File::open(path).unwrap()).collect();
    open.iter().for_each(|path| std::fs::remove_file(path).unwrap());
    for no in (0..400).filter(|no| no % 4 == 1) {
        std::fs::remove_file(many.join(format!("a name that is not short, number {no}"))).unwrap();
    }
    let last = std::fs::File::create(many.join("last")).unwrap();
    last.sync_all().unwrap();
    let left = std::fs::read(&path).unwrap();
    drop((held, last));
    drop(mounted);
    std::fs::remove_file(&path).unwrap();
    Some(left)
}

/// The names of a directory that the kernel does not find, or does not list.
pub fn missing<'a>(
    scratch: &Scratch,
    image: &[u8],
    dir: &str,
    names: impl Iterator<Item = &'a Vec<u8>>,
) -> Option<Vec<String>> {
    let path = new_path(scratch);
    std::fs::write(&path, image).unwrap();
    let mounted = Mounted::new(scratch, &path)?;
    let dir = mounted.0.join(dir);
    let listed = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name());
    let listed: std::collections::BTreeSet<_> = listed.collect();
    let is_missing = |name: &&Vec<u8>| {
        let name = OsStr::from_bytes(name);
        std::fs::symlink_metadata(dir.join(name)).is_err() || !listed.contains(name)
    };
    let missing = names.filter(is_missing).map(|name| name.escape_ascii().to_string()).collect();
    drop(mounted);
    std::fs::remove_file(&path).unwrap();
    Some(missing)
}

/// The volume after the kernel has made these files in a directory.
pub fn with_files(scratch: &Scratch, image: &[u8], dir: &str, names: &[Vec<u8>]) -> Option<Vec<u8>> {
    let path = new_path(scratch);
    std::fs::write(&path, image).unwrap();
    let mounted = Mounted::new(scratch, &path)?;
    for name in names {
        std::fs::write(mounted.0.join(dir).join(OsStr::from_bytes(name)), b"").unwrap();
    }
    drop(mounted);
    Some(settled(&path))
}

/// The volume as power cuts leave it while programs on the kernel's driver write and `fsync`, one moment after the other.
pub fn written_fast(scratch: &Scratch, image: &[u8]) -> Option<Vec<Vec<u8>>> {
    let path = new_path(scratch);
    std::fs::write(&path, image).unwrap();
    let mounted = Mounted::new(scratch, &path)?;
    fill(&mounted.0);
    run("sync", &["-f", mounted.0.to_str().unwrap()]);
    let mut moments = Vec::new();
    let steps: [fn(&Path); 7] =
        [new_and_longer, names_move, pieces, holes_come, directory_with_files, replaced, long_directory];
    for step in steps {
        step(&mounted.0);
        moments.push(std::fs::read(&path).unwrap());
    }
    drop(mounted);
    std::fs::remove_file(&path).unwrap();
    Some(moments)
}

/// Writes at a place of a file, and waits until it is stable.
fn write_at(path: &Path, at: u64, contents: &[u8]) {
    let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, contents, at).unwrap();
    file.sync_all().unwrap();
}

fn new_and_longer(root: &Path) {
    write_at(&root.join("top/fresh"), 0, &[b'n'; 10_000]);
    write_at(&root.join("top/file-7"), 70_000, &[b'l'; 33_000]);
    write_at(&root.join("few/one"), 1, b"changed in place");
}

fn names_move(root: &Path) {
    std::fs::rename(root.join("few/three"), root.join("top/four")).unwrap();
    std::fs::hard_link(root.join("top/file-5"), root.join("few/five")).unwrap();
    std::fs::remove_file(root.join("top/file-8")).unwrap();
    std::fs::remove_file(root.join("linked")).unwrap();
    write_at(&root.join("top/file-5"), 0, b"x");
}

fn pieces(root: &Path) {
    let path = root.join("top/pieces");
    for at in 0..90_u64 {
        let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(&path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[b'p'; 500], at * 9_000).unwrap();
    }
    write_at(&path, 0, b"first");
}

fn holes_come(root: &Path) {
    let path = root.join("top/file-9");
    let text = path.to_str().unwrap();
    for how in [&["-p", "-o", "200000", "-l", "300000"], &["-n", "-o", "2990000", "-l", "400000"]] {
        let (code, said) = run("fallocate", &[&how[..], &[text]].concat());
        assert_eq!(code, 0, "{said}");
    }
    let file = std::fs::OpenOptions::new().write(true).open(root.join("top/holes")).unwrap();
    file.set_len(333_333).unwrap();
    file.sync_all().unwrap();
    write_at(&path, 5, b"five");
}

fn directory_with_files(root: &Path) {
    let dir = root.join("made");
    std::fs::create_dir(&dir).unwrap();
    for no in 0..20 {
        write_at(&dir.join(format!("a file of directory made, number {no}")), 0, &[b'd'; 1500]);
    }
}

fn replaced(root: &Path) {
    for no in 0..5 {
        let (new, old) = (root.join("few/new"), root.join("top/file-6"));
        write_at(&new, 0, format!("contents {no}").repeat(300).as_bytes());
        std::fs::rename(new, old).unwrap();
    }
    std::fs::remove_dir(root.join("made").join("none")).unwrap_err();
    write_at(&root.join("top/after"), 0, b"after");
}

fn long_directory(root: &Path) {
    for no in 0..150 {
        let name = format!("one more name that is not short, so that the index must go, number {no}");
        write_at(&root.join("many").join(name), 0, &[b'm'; 30]);
    }
}

/// The volume with a new file on which the kernel did all this; what it answered each time, and the file's length then.
pub fn after_acts(scratch: &Scratch, image: &[u8], acts: &[Act]) -> Option<(Vec<u8>, Vec<Answer>)> {
    let path = new_path(scratch);
    std::fs::write(&path, image).unwrap();
    let mounted = Mounted::new(scratch, &path)?;
    let at = mounted.0.join("file");
    let file = std::fs::File::create(&at).unwrap();
    let mut answers = Vec::new();
    for act in acts {
        let failed = match act {
            Act::Write { offset, bytes } => {
                std::os::unix::fs::FileExt::write_all_at(&file, bytes, *offset).unwrap();
                None
            }
            Act::Truncate(size) => {
                file.set_len(*size).unwrap();
                None
            }
            Act::Fallocate(_, words, offset, len) => {
                let range = ["-o", &offset.to_string(), "-l", &len.to_string(), at.to_str().unwrap()];
                let (code, said) = run("fallocate", &[*words, &range].concat());
                (code != 0).then(|| match said.trim().rsplit(": ").next() {
                    Some("Invalid argument") => Errno::INVAL,
                    Some("File too large") => Errno::FBIG,
                    _ => panic!("{said}"),
                })
            }
        };
        answers.push((failed, std::fs::metadata(&at).unwrap().len()));
    }
    drop(file);
    drop(mounted);
    Some((settled(&path), answers))
}
