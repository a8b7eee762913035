//! Damaged volumes.

use fstitch_core::{Be, Error, FileSystem, Le, MemDevice, Seed};
use fstitch_fs::ufs::layout::superblock::{Superblock, Version};
use fstitch_fs::ufs::order::Order;

use super::host::{Tree, fill, made};
use super::support::Scratch;
use super::{checked, have_makefs, opened};

/// An image that can be changed by what its parts mean.
pub struct Image {
    pub bytes: Vec<u8>,
    pub shape: Superblock,
}

impl Image {
    pub fn new(bytes: Vec<u8>) -> Self {
        let shape = Superblock::read(&MemDevice::from_image(512, bytes.clone())).unwrap();
        Self { bytes, shape }
    }

    pub fn put16(&mut self, at: usize, value: u16) {
        match self.shape.order {
            Order::Little => Le::put_u16(&mut self.bytes, at, value),
            Order::Big => Be::put_u16(&mut self.bytes, at, value),
        }
    }

    pub fn half(&self, at: usize) -> u16 {
        match self.shape.order {
            Order::Little => Le::u16(&self.bytes, at),
            Order::Big => Be::u16(&self.bytes, at),
        }
    }

    pub fn put32(&mut self, at: usize, value: u32) {
        match self.shape.order {
            Order::Little => Le::put_u32(&mut self.bytes, at, value),
            Order::Big => Be::put_u32(&mut self.bytes, at, value),
        }
    }

    pub fn word(&self, at: usize) -> u32 {
        match self.shape.order {
            Order::Little => Le::u32(&self.bytes, at),
            Order::Big => Be::u32(&self.bytes, at),
        }
    }

    /// The byte where an inode begins.
    pub fn inode(&self, ino: u32) -> usize {
        let (block, offset) = self.shape.inode_place(ino);
        usize::try_from(block.get()).unwrap() * self.shape.fragment_len() + offset
    }

    pub fn is_two(&self) -> bool {
        self.shape.version == Version::Two
    }

    /// The byte of the low word of an inode's first pointer.
    pub fn pointer(&self, ino: u32) -> usize {
        let high_first = usize::from(self.is_two() && self.shape.order == Order::Big) * 4;
        self.inode(ino) + if self.is_two() { 112 } else { 40 } + high_first
    }

    /// The byte where the contents begin that the first pointer of an inode leads to.
    pub fn contents(&self, ino: u32) -> usize {
        usize::try_from(self.word(self.pointer(ino))).unwrap() * self.shape.fragment_len()
    }

    pub fn long(&self, at: usize) -> u64 {
        match self.shape.order {
            Order::Little => Le::u64(&self.bytes, at),
            Order::Big => Be::u64(&self.bytes, at),
        }
    }

    pub fn put64(&mut self, at: usize, value: u64) {
        match self.shape.order {
            Order::Little => Le::put_u64(&mut self.bytes, at, value),
            Order::Big => Be::put_u64(&mut self.bytes, at, value),
        }
    }

    /// The byte of an inode's length.
    pub fn size(&self, ino: u32) -> usize {
        self.inode(ino) + if self.is_two() { 16 } else { 8 }
    }

    /// The byte of the low word of what an inode counts as storage.
    pub fn sectors(&self, ino: u32) -> usize {
        let high_first = usize::from(self.is_two() && self.shape.order == Order::Big) * 4;
        self.inode(ino) + if self.is_two() { 24 + high_first } else { 104 }
    }

    /// The byte of the low word of an inode's pointer `slot`.
    pub fn slot(&self, ino: u32, slot: usize) -> usize {
        self.pointer(ino) + slot * if self.is_two() { 8 } else { 4 }
    }

    /// A byte of the first superblock.
    pub fn superblock(&self, at: usize) -> usize {
        usize::try_from(self.shape.at).unwrap() + at
    }

    /// The byte where the entry with this name begins in the first block of a directory.
    pub fn entry(&self, dir: u32, name: &str) -> usize {
        let (start, len) = (self.contents(dir), usize::try_from(self.shape.block_size).unwrap());
        let mut at = start;
        while at < start + len {
            let name_len = usize::from(self.bytes[at + 7]);
            if &self.bytes[at + 8..at + 8 + name_len] == name.as_bytes() {
                return at;
            }
            at += match self.shape.order {
                Order::Little => usize::from(Le::u16(&self.bytes, at + 4)),
                Order::Big => usize::from(Be::u16(&self.bytes, at + 4)),
            };
        }
        panic!("no entry {name}");
    }

    /// An inode that nobody has, of those that were ever written.
    pub fn free_inode(&self) -> u32 {
        let at = self.group(0);
        let map = at + usize::try_from(self.word(at + 92)).unwrap();
        let all = if self.is_two() { self.word(at + 120) } else { self.shape.group_inodes };
        let is_free = |ino: &u32| self.bytes[map + usize::try_from(ino / 8).unwrap()] >> (ino % 8) & 1 == 0;
        (3..all).find(is_free).expect("a free inode")
    }

    /// A group's byte.
    pub fn group(&self, no: u32) -> usize {
        let fragment = self.shape.group_start(no) + u64::from(self.shape.parts[1]);
        usize::try_from(fragment).unwrap() * self.shape.fragment_len()
    }
}

/// The inode at a path.
pub fn ino(bytes: &[u8], path: &str) -> u32 {
    let fs = opened(bytes).unwrap();
    let found =
        path.split('/').fold(fs.root(), |dir, name| fs.lookup(dir, name.as_bytes()).unwrap().attr.ino);
    u32::try_from(found.0).unwrap()
}

/// Inodes of a file with a whole block, of another one, and of a directory.
pub fn victims(bytes: &[u8]) -> [u32; 3] {
    let fs = opened(bytes).unwrap();
    let ino = |name: &str| {
        let found = fs.lookup(fs.root(), name.as_bytes()).unwrap().attr.ino;
        u32::try_from(found.0).unwrap()
    };
    [ino("long"), ino("size-65536-5"), ino("many")]
}

/// What damages a volume, given inodes of [`victims`].
pub type Plant = fn(&mut Image, [u32; 3]);

/// Damages, and the code of what is found.
pub const PLANTS: [(&str, Plant); 10] = [
    ("pointer", |image, [file, ..]| {
        let at = image.pointer(file);
        image.put32(at, 0x7fff_fff0);
    }),
    ("block-shared", |image, [file, other, _]| {
        let (from, to) = (image.pointer(other), image.pointer(file));
        let value = image.word(from);
        image.put32(to, value);
    }),
    ("block-free", |image, _| {
        let at = image.group(0);
        let map = at + usize::try_from(image.word(at + 96)).unwrap();
        let used = (0..400).find(|&byte| image.bytes[map + byte] == 0).unwrap();
        image.bytes[map + used] = 0xff;
    }),
    ("inode-free", |image, [file, ..]| {
        let at = image.group(0);
        let map = at + usize::try_from(image.word(at + 92)).unwrap();
        image.bytes[map + usize::try_from(file / 8).unwrap()] &= !(1 << (file % 8));
    }),
    ("inode-links", |image, [file, ..]| {
        let at = image.inode(file) + 2;
        image.put16(at, 1);
    }),
    ("inode-links", |image, [file, ..]| {
        let at = image.inode(file) + 2;
        image.put16(at, 9);
    }),
    ("dir-entry", |image, [_, _, dir]| {
        let at = image.contents(dir) + 24;
        image.put32(at, image.shape.inodes() - 1);
    }),
    ("dir-entry", |image, [_, _, dir]| {
        let at = image.contents(dir) + 24 + 4;
        image.put16(at, 6);
    }),
    ("dir-dots", |image, [_, _, dir]| {
        let at = image.contents(dir) + 12;
        image.put32(at, dir);
    }),
    ("inode", |image, [file, ..]| {
        let at = image.inode(file);
        image.put16(at, 0o170_644);
    }),
];

#[test]
fn what_is_planted_is_found() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-planted");
    let from = scratch.path("from");
    fill(&from);
    for shape in [(1, "le", 8192, 1024), (1, "be", 4096, 512), (2, "le", 16_384, 2048), (2, "be", 8192, 1024)]
    {
        let whole = made(&scratch, &from, shape);
        let victims = victims(&whole);
        for (code, plant) in PLANTS {
            let mut image = Image::new(whole.clone());
            plant(&mut image, victims);
            let report = checked(&image.bytes).unwrap();
            let found = report.findings.iter().any(|finding| finding.code == code);
            assert!(found, "{shape:?}: {code} is not among {:#?}", report.findings);
        }
    }
}

#[test]
fn damage_anywhere_is_an_error_or_unseen_and_ends() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-damage");
    let from = scratch.path("from");
    fill(&from);
    let (mut refused, mut found, mut unseen) = (0, 0, 0);
    for shape in [(1, "le", 8192, 1024), (1, "be", 4096, 512), (2, "le", 16_384, 2048), (2, "be", 8192, 1024)]
    {
        let whole = Image::new(made(&scratch, &from, shape));
        let fragment = whole.shape.fragment_len();
        let metadata = |no: u32| {
            let start = usize::try_from(whole.shape.group_start(no)).unwrap();
            let [superblock, .., data] = whole.shape.parts.map(|part| usize::try_from(part).unwrap());
            (start + superblock) * fragment..(start + data + 16) * fragment
        };
        for turn in 0..150 {
            let mut seed = Seed::new(turn);
            let mut image = whole.bytes.clone();
            let count = 1 + seed.below(8);
            for _ in 0..count {
                let place = match seed.below(3) {
                    0 => {
                        usize::try_from(whole.shape.at).unwrap()
                            ..usize::try_from(whole.shape.at).unwrap() + 1376
                    }
                    _ => metadata(0),
                };
                let len = u64::try_from(place.len()).unwrap();
                let at = (place.start + usize::try_from(seed.below(len)).unwrap()).min(image.len() - 1);
                image[at] = u8::try_from(seed.below(256)).unwrap();
            }
            match opened(&image) {
                Err(Error::Corrupt(_) | Error::Unsupported(_)) => refused += 1,
                Err(error) => panic!("{shape:?}, {turn}: {error}"),
                Ok(fs) => {
                    // Whatever is there: it ends.
                    let _ = Tree::of(&fs);
                    let report = fs.check().unwrap_or_else(|error| panic!("{shape:?}, {turn}: {error}"));
                    if report.is_clean() { unseen += 1 } else { found += 1 }
                }
            }
        }
    }
    println!("{refused} refused, {found} found, {unseen} unseen");
    assert!(refused > 20 && found > 100);
}

#[test]
fn pointers_into_metadata_are_not_followed() {
    if !have_makefs() {
        return;
    }
    let scratch = Scratch::new("ufs-own-pointers");
    let from = scratch.path("from");
    fill(&from);
    let mut image = Image::new(made(&scratch, &from, (1, "be", 8192, 1024)));
    let long = ino(&image.bytes, "long");
    let at = image.slot(long, 0);
    for part in [0, 1, 2] {
        let group = image.shape.groups - 1;
        let own = image.shape.group_start(group) + u64::from(image.shape.parts[part]);
        image.put32(at, u32::try_from(own).unwrap());
        let read = opened(&image.bytes).unwrap().read(fstitch_core::InodeNo(long.into()), 0, &mut [0; 10]);
        assert!(matches!(read, Err(Error::Corrupt(_))), "part {part}");
    }
}
