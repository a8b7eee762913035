//! Volumes made by mke2fs and filled by the kernel's driver.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use crate::corpus::{Shape, fill};
use crate::support::{Scratch, e2fsck, have, run};

/// Shapes with each feature of ext4 on or off alone.
pub const SHAPES: &[Shape] = &[
    Shape { name: "4k", options: &["-b", "4096"], size: "24M" },
    Shape { name: "2k-seed", options: &["-b", "2048", "-O", "metadata_csum_seed"], size: "24M" },
    Shape { name: "1k", options: &["-b", "1024"], size: "24M" },
    Shape { name: "inline", options: &["-b", "4096", "-O", "inline_data"], size: "24M" },
    Shape { name: "inline-512", options: &["-b", "1024", "-O", "inline_data", "-I", "512"], size: "24M" },
    Shape { name: "ea-inode", options: &["-b", "1024", "-O", "ea_inode,inline_data"], size: "40M" },
    Shape { name: "no-sums", options: &["-b", "1024", "-O", "^metadata_csum"], size: "24M" },
    Shape { name: "uninit", options: &["-b", "1024", "-O", "^metadata_csum,uninit_bg"], size: "40M" },
    Shape { name: "meta-bg", options: &["-b", "1024", "-O", "meta_bg,^resize_inode"], size: "40M" },
    Shape { name: "32bit", options: &["-b", "1024", "-O", "^64bit"], size: "40M" },
    Shape { name: "sparse2", options: &["-b", "1024", "-O", "sparse_super2"], size: "80M" },
    Shape { name: "no-flex", options: &["-b", "1024", "-O", "^flex_bg"], size: "80M" },
    Shape { name: "i128", options: &["-b", "1024", "-I", "128"], size: "24M" },
    Shape { name: "pointers", options: &["-b", "1024", "-O", "^extent,^64bit"], size: "40M" },
    Shape { name: "orphan-file", options: &["-b", "4096", "-O", "orphan_file"], size: "24M" },
    Shape { name: "no-journal", options: &["-b", "4096", "-O", "^has_journal"], size: "24M" },
    Shape { name: "old", options: &["-b", "4096", "-O", "^huge_file,^dir_nlink,^extra_isize"], size: "24M" },
    Shape { name: "fast-commit", options: &["-b", "4096", "-O", "fast_commit,stable_inodes"], size: "24M" },
    Shape { name: "lazy", options: &["-b", "4096", "-E", "lazy_itable_init=1"], size: "300M" },
    Shape { name: "journal-over-groups", options: &["-b", "1024", "-J", "size=16"], size: "300M" },
];

/// The shape of this name.
pub fn shape(name: &str) -> &'static Shape {
    SHAPES.iter().find(|shape| shape.name == name).expect("a shape of this name")
}

/// A mounted image, until the value goes.
struct Mounted(PathBuf);

impl Mounted {
    fn new(image: &Path, at: PathBuf) -> Option<Self> {
        fs::create_dir_all(&at).expect("a directory");
        let (image, place) = (image.to_str().expect("plain path"), at.to_str().expect("plain path"));
        let (code, text) = run("mount", &["-o", "loop,user_xattr,acl", image, place]);
        if code != 0 {
            println!("skipped: no loop mounts of ext4 here: {text}");
            return None;
        }
        Some(Self(at))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A child that another test has started may hold what was open here until it runs its program.
        let mut said = String::new();
        for _ in 0..200 {
            let (code, text) = run("umount", &[self.0.to_str().expect("plain path")]);
            if code == 0 {
                return;
            }
            said = text;
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        assert!(std::thread::panicking(), "{said}");
    }
}

/// A volume of `shape` that the kernel has filled; `None` where it cannot.
pub fn filled(scratch: &Scratch, shape: &Shape) -> Option<Vec<u8>> {
    if !have("mke2fs") {
        return None;
    }
    let path = scratch.path(&format!("image-{}", shape.name));
    let file = path.to_str().expect("plain path");
    let mut args = vec!["-q", "-F", "-t", "ext4"];
    args.extend(shape.options);
    args.extend([file, shape.size]);
    let (code, text) = run("mke2fs", &args);
    assert_eq!(code, 0, "{shape:?}: {text}");
    let mounted = Mounted::new(&path, scratch.path(&format!("mounted-{}", shape.name)))?;
    fill(&mounted.0);
    fill_more(&mounted.0, block_size(shape));
    drop(mounted);
    let (code, text) = e2fsck(&path);
    assert_eq!(code, 0, "{shape:?}: {text}");
    let image = fs::read(&path).expect("the image");
    fs::remove_file(&path).expect("the image exists");
    Some(image)
}

fn block_size(shape: &Shape) -> u64 {
    shape.options[1].parse().expect("shapes begin with their block size")
}

/// What only ext4 has, or has in other forms.
fn fill_more(dir: &Path, block: u64) {
    // Every other block, twice: an extent for each, and a tree of two levels.
    let file = File::create(dir.join("deep")).expect("a file");
    for at in 0..900 {
        file.write_all_at(b"CCCCCCCCCCCCCCCC", at * 2 * block).expect("a write");
    }
    let file = File::create(dir.join("far")).expect("a file");
    for at in [0, 3, 1 << 20, (1 << 32) - 3] {
        // Block pointers do not reach as far.
        let _ = file.write_all_at(b"far away", at * block);
    }
    unwritten(dir, block);
    for at in 0..40 {
        fs::write(dir.join(format!("small{at}")), vec![b'A'; at * 7]).expect("a file");
    }
    for at in (0..40).step_by(3) {
        fs::remove_file(dir.join(format!("small{at}"))).expect("the file exists");
    }
    for len in [59, 60, 70, 150, 900] {
        symlink("t".repeat(len), dir.join(format!("link{len}"))).expect("a link");
    }
    attributes(dir);
}

/// Blocks that read as zeros, inside and behind the end; where files are mapped by pointers there are none.
fn unwritten(dir: &Path, block: u64) {
    let path = dir.join("unwritten");
    let file = File::create(&path).expect("a file");
    let name = path.to_str().expect("plain path");
    run("fallocate", &["-l", &(20 * block).to_string(), name]);
    run("fallocate", &["-n", "-o", &(30 * block).to_string(), "-l", &(20 * block).to_string(), name]);
    file.write_all_at(b"written", 3 * block).expect("a write");
    file.write_all_at(b"written", 33 * block).expect("a write");
}

/// Attributes in inodes, in blocks of one inode and of many, and, where there are such, in inodes of their own.
fn attributes(dir: &Path) {
    let set = |file: &str, name: &str, len: usize| {
        let path = dir.join(file);
        let value = "v".repeat(len);
        // What does not fit a volume without `ea_inode` is refused.
        run("setfattr", &["-n", name, "-v", &value, path.to_str().expect("plain path")]);
    };
    for (file, len) in [("small1", 10), ("small2", 100), ("small4", 300), ("small5", 700), ("small7", 3000)] {
        set(file, "user.one", len);
        set(file, "user.two", 20);
    }
    for file in ["small8", "small10", "small11", "a"] {
        set(file, "user.shared", 200);
        set(file, "user.large", 9000);
    }
    set("small13", "user.largest", 60_000);
}
