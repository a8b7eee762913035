//! A damaged volume in use by who only reads: errors are answers, panics and endless work are not.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use fstitch_core::{BlockDevice, FileKind, FileSystem, InodeNo, ManualClock, MemDevice, Timestamp};
use fstitch_fs::arrange::{Arrangement, open};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::journal::{BATCH_MAX, Options, recover};
use fstitch_fs::uhfs::UhfsOptions;

/// Directories that are listed at most: damage may make a loop of them.
const DIRECTORIES: usize = 500;
/// Bytes that are read at each of a file's places.
const PIECE: usize = 64 << 10;

/// What names lead to: a word that stands for what is read of a file, or where a link leads.
pub type Contents = BTreeMap<Vec<u8>, u64>;

/// How many names of a volume lead to what they led to before.
pub fn kept(before: &Contents, image: &[u8]) -> usize {
    let now = use_for_reading(image.to_vec());
    before.iter().filter(|(name, word)| now.get(*name) == Some(word)).count()
}

/// Recovers the volume, mounts it for reading, and looks at everything; what names lead to.
pub fn use_for_reading(image: Vec<u8>) -> Contents {
    let log = u32::from_le_bytes(image[1024 + 0x18..1024 + 0x1c].try_into().expect("four bytes"));
    // A block size that cannot be is refused whatever the device's.
    let block_size = 1024_u32 << log.min(6);
    let fits = image.len().is_multiple_of(usize::try_from(block_size).expect("small"));
    let device: Arc<dyn BlockDevice> =
        Arc::new(MemDevice::from_image(if fits { block_size } else { 1024 }, image));
    let now = Timestamp { secs: 1_800_000_000, nanos: 0 };
    let mut how =
        Options { external: None, now, for_reading: true, batch_max: BATCH_MAX, progress: &mut |_| {} };
    if recover(&*device, &mut how).is_err() {
        return Contents::new();
    }
    let mut arrangement = Arrangement::default();
    arrangement.cache.read_only = true;
    arrangement.fs = UhfsOptions { read_only: true, ..UhfsOptions::default() };
    let Ok((fs, _)) = open::<Ext2>(device, &arrangement, Arc::new(ManualClock::new())) else {
        return Contents::new();
    };
    let found = walk(&fs);
    // What cannot be written out is an answer as well.
    let _ = fs.unmount();
    found
}

fn walk(fs: &dyn FileSystem) -> Contents {
    let _ = fs.statfs();
    let mut found = Contents::new();
    let mut left = vec![(fs.root(), Vec::new())];
    let mut seen = std::collections::BTreeSet::new();
    while let Some((dir, path)) = left.pop() {
        if seen.len() >= DIRECTORIES || !seen.insert(dir) {
            continue;
        }
        let mut names = Vec::new();
        let _ = fs.readdir(dir, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            names.len() < 5000
        });
        for name in names.iter().filter(|name| !matches!(&name[..], b"." | b"..")) {
            let Ok(entry) = fs.lookup(dir, name) else { continue };
            let word = look(fs, entry.attr.ino, (entry.attr.kind, entry.attr.size));
            let path = [&path[..], b"/", name].concat();
            if entry.attr.kind == FileKind::Directory {
                left.push((entry.attr.ino, path.clone()));
            }
            found.insert(path, word);
        }
    }
    found
}

/// Reads what an inode has: of a long file its beginning, its middle and its end.
fn look(fs: &dyn FileSystem, ino: InodeNo, (kind, size): (FileKind, u64)) -> u64 {
    let mut word = DefaultHasher::new();
    word.write_u16(kind.mode_bits());
    match kind {
        FileKind::Regular => {
            word.write_u64(size);
            let mut piece = vec![0; PIECE];
            for at in [0, size / 2, size.saturating_sub(PIECE as u64)] {
                let read = fs.read(ino, at, &mut piece).unwrap_or(0);
                word.write(&piece[..read]);
            }
        }
        FileKind::Symlink => word.write(&fs.readlink(ino).unwrap_or_default()),
        _ => {}
    }
    for name in fs.listxattr(ino).unwrap_or_default() {
        let _ = fs.getxattr(ino, &name);
    }
    word.finish()
}
