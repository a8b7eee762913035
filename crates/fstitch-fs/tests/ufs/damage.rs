//! Damaged volumes.

use fstitch_core::{Be, Error, FileSystem, Le, MemDevice, Seed};
use fstitch_fs::ufs::layout::superblock::{Superblock, Version};
use fstitch_fs::ufs::order::Order;

use super::host::{Tree, fill, made};
use super::support::Scratch;
use super::{checked, have_makefs, opened};

/// An image that can be changed by what its parts mean.
struct Image {
    bytes: Vec<u8>,
    shape: Superblock,
}

impl Image {
    fn new(bytes: Vec<u8>) -> Self {
        let shape = Superblock::read(&MemDevice::from_image(512, bytes.clone())).unwrap();
        Self { bytes, shape }
    }

    fn put16(&mut self, at: usize, value: u16) {
        match self.shape.order {
            Order::Little => Le::put_u16(&mut self.bytes, at, value),
            Order::Big => Be::put_u16(&mut self.bytes, at, value),
        }
    }

    fn put32(&mut self, at: usize, value: u32) {
        match self.shape.order {
            Order::Little => Le::put_u32(&mut self.bytes, at, value),
            Order::Big => Be::put_u32(&mut self.bytes, at, value),
        }
    }

    fn word(&self, at: usize) -> u32 {
        match self.shape.order {
            Order::Little => Le::u32(&self.bytes, at),
            Order::Big => Be::u32(&self.bytes, at),
        }
    }

    /// The byte where an inode begins.
    fn inode(&self, ino: u32) -> usize {
        let (block, offset) = self.shape.inode_place(ino);
        usize::try_from(block.get()).unwrap() * self.shape.fragment_len() + offset
    }

    fn is_two(&self) -> bool {
        self.shape.version == Version::Two
    }

    /// The byte of the low word of an inode's first pointer.
    fn pointer(&self, ino: u32) -> usize {
        let high_first = usize::from(self.is_two() && self.shape.order == Order::Big) * 4;
        self.inode(ino) + if self.is_two() { 112 } else { 40 } + high_first
    }

    /// The byte where the contents begin that the first pointer of an inode leads to.
    fn contents(&self, ino: u32) -> usize {
        usize::try_from(self.word(self.pointer(ino))).unwrap() * self.shape.fragment_len()
    }

    /// A group's byte.
    fn group(&self, no: u32) -> usize {
        let fragment = self.shape.group_start(no) + u64::from(self.shape.parts[1]);
        usize::try_from(fragment).unwrap() * self.shape.fragment_len()
    }
}

/// Inodes of a file with a whole block, of another one, and of a directory.
fn victims(bytes: &[u8]) -> [u32; 3] {
    let fs = opened(bytes).unwrap();
    let ino = |name: &str| {
        let found = fs.lookup(fs.root(), name.as_bytes()).unwrap().attr.ino;
        u32::try_from(found.0).unwrap()
    };
    [ino("long"), ino("size-65536-5"), ino("many")]
}

#[test]
fn what_is_planted_is_found() {
    if !have_makefs() {
        return;
    }
    type Plant = fn(&mut Image, [u32; 3]);
    let plants: [(&str, Plant); 10] = [
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
    let scratch = Scratch::new("ufs-planted");
    let from = scratch.path("from");
    fill(&from);
    for shape in [(1, "le", 8192, 1024), (1, "be", 4096, 512), (2, "le", 16_384, 2048), (2, "be", 8192, 1024)]
    {
        let whole = made(&scratch, &from, shape);
        let victims = victims(&whole);
        for (code, plant) in plants {
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
