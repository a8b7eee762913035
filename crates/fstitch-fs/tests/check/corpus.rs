//! Volumes made and filled by the reference tools.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use crate::support::{Scratch, e2fsck, run};

/// How the reference tool makes a volume.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub name: &'static str,
    pub options: &'static [&'static str],
    pub size: &'static str,
}

impl Shape {
    /// Bytes per block, as its options say.
    pub fn block_size(&self) -> u64 {
        let value = self.options.iter().skip_while(|option| **option != "-b").nth(1);
        value.expect("every shape says it").parse().expect("a number")
    }
}

/// Shapes that differ in everything that the checker looks at.
pub const SHAPES: &[Shape] = &[
    Shape { name: "b1k", options: &["-b", "1024", "-I", "256", "-N", "512"], size: "3M" },
    Shape { name: "b1k-i128", options: &["-b", "1024", "-I", "128", "-N", "512", "-g", "1024"], size: "3M" },
    Shape { name: "b2k", options: &["-b", "2048", "-I", "256", "-N", "512"], size: "4M" },
    Shape { name: "b4k", options: &["-b", "4096", "-I", "256", "-N", "512"], size: "6M" },
    Shape { name: "rev0", options: &["-b", "1024", "-r", "0", "-N", "512"], size: "3M" },
    Shape {
        name: "plain",
        options: &["-b", "1024", "-I", "128", "-N", "512", "-O", "^dir_index,^filetype,^resize_inode"],
        size: "3M",
    },
    Shape {
        name: "journal",
        options: &["-b", "1024", "-I", "256", "-N", "512", "-j", "-J", "size=1", "-O", "orphan_file"],
        size: "5M",
    },
    Shape { name: "b8k", options: &["-b", "8192", "-I", "256", "-N", "512"], size: "10M" },
];

/// A tree with every kind of file, names of many lengths, a directory large enough for an index, and files
/// with holes and two levels of indirect blocks.
pub fn fill(dir: &Path) {
    fs::create_dir_all(dir.join("a/b/c")).expect("directories");
    fs::create_dir_all(dir.join("many")).expect("directory");
    for i in 0..180 {
        let name = format!("{}-{i}", "n".repeat(1 + i % 60));
        fs::write(dir.join("many").join(name), format!("{i}")).expect("a small file");
    }
    for i in 0..12 {
        fs::create_dir_all(dir.join(format!("d{i}/e"))).expect("directories");
        fs::write(dir.join(format!("d{i}/file")), vec![0x41; 700 * i]).expect("a file");
    }
    let file = fs::File::create(dir.join("holes")).expect("a file");
    for at in [0_u64, 9_000, 30_000, 290_000, 700_000, 70_000_000] {
        file.write_all_at(b"data between holes", at).expect("a write");
    }
    let mut file = fs::File::create(dir.join("indirect")).expect("a file");
    file.write_all(&vec![0x42; 60_000]).expect("a write");
    fs::hard_link(dir.join("indirect"), dir.join("a/hard")).expect("a link");
    fs::hard_link(dir.join("indirect"), dir.join("a/b/hard")).expect("a link");
    symlink("short target", dir.join("fast")).expect("a link");
    symlink("t".repeat(150), dir.join("slow")).expect("a link");
    run("mkfifo", &[dir.join("fifo").to_str().expect("plain path")]);
}

/// Commands for what `mke2fs -d` does not bring.
const EXTRAS: &str = "\
mknod a/null c 1 3
mknod a/disk b 8 1
ea_set indirect user.small value
ea_set a user.dir directory
ea_set holes user.large aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
";

/// A healthy volume of `shape`.
pub fn image(scratch: &Scratch, shape: &Shape) -> Vec<u8> {
    let tree = scratch.path(&format!("tree-{}", shape.name));
    fs::create_dir_all(&tree).expect("a directory");
    fill(&tree);
    let path = scratch.path(&format!("image-{}", shape.name));
    let file = path.to_str().expect("plain path");
    let mut args = vec!["-q", "-F", "-t", "ext2", "-d", tree.to_str().expect("plain path")];
    args.extend(shape.options);
    args.extend([file, shape.size]);
    let (code, text) = run("mke2fs", &args);
    assert_eq!(code, 0, "{shape:?}: {text}");
    debugfs(scratch, &path, EXTRAS);
    // Gives large directories their indexes.
    run("e2fsck", &["-fyD", file]);
    let (code, text) = e2fsck(&path);
    assert_eq!(code, 0, "{shape:?}: {text}");
    let image = fs::read(&path).expect("the image");
    fs::remove_dir_all(&tree).expect("the tree exists");
    fs::remove_file(&path).expect("the image exists");
    image
}

/// Runs a script of debugfs commands on an image file.
pub fn debugfs(scratch: &Scratch, path: &Path, script: &str) {
    let commands = scratch.path("script");
    fs::write(&commands, script).expect("a script");
    let script = commands.to_str().expect("plain path");
    run("debugfs", &["-w", "-f", script, path.to_str().expect("plain path")]);
}
