//! Damaged images are refused, or they open and can be used and checked: no panic, no hang, no read outside.
//!
//! `FSTITCH_BPFS_IMAGES=0..10000` looks at so many.

use std::sync::Arc;

use crate::support::{CALLER, EARLIER, clock, create, empty, options, watched};
use fstitch_bpfs::{Bpfs, Medium, Optimizations, identify};
use fstitch_core::{FileKind, FileSystem, InodeNo, Seed};

fn filled() -> Vec<u8> {
    let (fs, _) = watched(&empty(1 << 20), options(Optimizations::ALL), &clock());
    for dir in [b"a", b"b"] {
        let dir = fs.mkdir(&CALLER, fs.root(), dir, 0o755).unwrap().attr.ino;
        for n in 0..20_u8 {
            let file = create(&fs, dir, format!("file-{n}").as_bytes());
            fs.write(&CALLER, file, u64::from(n) * 1000, &vec![n; usize::from(n) * 300]).unwrap();
        }
        fs.setxattr(&CALLER, dir, b"user.a", &[1; 100], fstitch_core::XattrSetMode::Set).unwrap();
        let link = fs.symlink(&CALLER, dir, b"link", b"to").unwrap().attr.ino;
        fs.forget(link, 1);
        fs.forget(dir, 1);
    }
    fs.image()
}

/// Goes through all that can be reached.
fn visit(fs: &dyn FileSystem, ino: InodeNo, depth: u32) {
    let Ok(attr) = fs.getattr(ino) else { return };
    let _ = fs.listxattr(ino).map(|names| names.iter().for_each(|name| drop(fs.getxattr(ino, name))));
    match attr.kind {
        FileKind::Regular => {
            let mut buf = vec![0; 1 << 16];
            let _ = fs.read(ino, 0, &mut buf);
            let _ = fs.read(ino, attr.size.saturating_sub(100), &mut buf);
            let _ = fs.seek(ino, 0, fstitch_core::SeekFrom::Hole);
            let _ = fs.seek(ino, 0, fstitch_core::SeekFrom::Data);
        }
        FileKind::Symlink => drop(fs.readlink(ino)),
        FileKind::Directory if depth < 8 => {
            let mut names = Vec::new();
            let _ = fs.readdir(ino, 0, &mut |entry| {
                names.push(entry.name.to_vec());
                true
            });
            for name in names.iter().filter(|name| !matches!(&name[..], b"." | b"..")) {
                if let Ok(entry) = fs.lookup(ino, name) {
                    visit(fs, entry.attr.ino, depth + 1);
                    fs.forget(entry.attr.ino, 1);
                }
            }
        }
        _ => {}
    }
}

fn damage(image: &mut Vec<u8>, seed: &mut Seed) {
    let len = image.len() as u64;
    // What is used is at the beginning.
    let used = 64 * 4096_usize;
    // Words that were written, and are not contents, which are one byte again and again.
    let counts = |at: &usize| {
        let word = &image[*at..at + 8];
        word != &EARLIER[*at..at + 8] && word.iter().any(|byte| *byte != word[0])
    };
    let words: Vec<usize> = (0..used).step_by(8).filter(counts).collect();
    let place = |seed: &mut Seed, bound: u64| usize::try_from(seed.below(bound)).unwrap();
    for _ in 0..=seed.below(3) {
        match seed.below(6) {
            0 => image[words[place(seed, words.len() as u64)] + place(seed, 8)] ^= 1 << seed.below(8),
            1 => {
                let at = words[place(seed, words.len() as u64)];
                image[at..at + 8].copy_from_slice(&(seed.next_u64() >> seed.below(64)).to_le_bytes());
            }
            2 => {
                let block = place(seed, (used / 4096) as u64) * 4096;
                image[block..block + 4096].fill(0);
            }
            3 => {
                let (from, to) =
                    (place(seed, (used / 4096) as u64) * 4096, place(seed, (used / 4096) as u64) * 4096);
                image.copy_within(from..from + 4096, to);
            }
            4 => {
                // A pointer to some block, or a number of some inode.
                let at = words[place(seed, words.len() as u64)];
                image[at..at + 8].copy_from_slice(&(seed.below(300) << 3).to_le_bytes());
            }
            _ if seed.below(8) == 0 => image.truncate(place(seed, len)),
            _ => {
                let block = place(seed, (used / 4096) as u64) * 4096;
                let byte = u8::try_from(seed.below(256)).unwrap();
                image[block..block + 4096].fill(byte);
            }
        }
        if image.len() < 64 * 4096 {
            return;
        }
    }
}

#[test]
fn damage_is_refused_or_can_be_lived_with() {
    let range = std::env::var("FSTITCH_BPFS_IMAGES").unwrap_or_else(|_| "0..600".to_owned());
    let (first, end) = range.split_once("..").unwrap();
    let (good, mut refused, mut opened) = (filled(), 0, 0);
    for number in first.parse::<u64>().unwrap()..end.parse().unwrap() {
        let (mut image, mut seed) = (good.clone(), Seed::new(number));
        damage(&mut image, &mut seed);
        if image.is_empty() {
            continue;
        }
        println!("image {number}");
        let medium = Medium::copy_of(&image).unwrap();
        let _ = identify(&medium);
        match Bpfs::open(medium, options(Optimizations::ALL), clock()) {
            Err(error) => {
                refused += 1;
                assert!(!error.to_string().is_empty());
            }
            Ok(fs) => {
                opened += 1;
                let fs = Arc::new(fs);
                visit(&*fs, fs.root(), 0);
                let _ = fs.check();
                // And it can be worked on.
                let _ = fs.mknod(&CALLER, fs.root(), b"new", 0o100_644, 0).map(|entry| {
                    let _ = fs.write(&CALLER, entry.attr.ino, 5000, &[1; 9000]);
                    fs.forget(entry.attr.ino, 1);
                });
                let _ = fs.unlink(&CALLER, fs.root(), b"new");
                let _ = fs.unmount();
            }
        }
    }
    println!("{refused} refused, {opened} opened");
    assert!(refused > 0 && opened > 0);
}
