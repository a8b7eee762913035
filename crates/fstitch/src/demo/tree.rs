//! A real tree to unpack that exists on every machine: headers, documentation and libraries, and generated files
//! where these are few.

use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use fstitch_core::num::to_u64;

/// Where files are looked for, in this order.
const SOURCES: [&str; 5] =
    ["/usr/include", "/usr/share/doc", "/usr/share/perl", "/usr/lib/python3", "/usr/share"];
/// The tree ends at so many bytes…
const BYTES_MAX: u64 = 48 << 20;
/// … and so many files.
const FILES_MAX: usize = 4000;
/// Larger files are left out: the tree is to have many.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Where fewer files exist, the writer generates the rest.
pub const FILES_MIN: usize = 1000;
/// Directories nest at most this deep.
const DEPTH_MAX: usize = 12;

/// What was found.
#[derive(Debug, Default)]
pub struct Tree {
    /// Number of files.
    pub files: usize,
    /// Their sizes together.
    pub bytes: u64,
}

/// Writes the paths of the tree's files to `list`, one per line.
pub fn collect(list: &Path) -> Result<Tree> {
    let mut out = BufWriter::new(std::fs::File::create(list)?);
    let mut tree = Tree::default();
    for source in SOURCES {
        walk(Path::new(source), 0, &mut tree, &mut out)?;
    }
    out.flush()?;
    while tree.files < FILES_MIN {
        tree.bytes += generated_size(tree.files);
        tree.files += 1;
    }
    Ok(tree)
}

/// Bytes of the generated file `number`.
pub fn generated_size(number: usize) -> u64 {
    let number = to_u64(number);
    (number * 7919) % 60_000
}

fn walk(directory: &Path, depth: usize, tree: &mut Tree, out: &mut impl Write) -> Result<()> {
    // What this user may not read is no part of the tree.
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Ok(());
    };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        if tree.files >= FILES_MAX || tree.bytes >= BYTES_MAX {
            return Ok(());
        }
        let Ok(meta) = path.symlink_metadata() else {
            continue;
        };
        if meta.is_dir() && depth < DEPTH_MAX {
            walk(&path, depth + 1, tree, out)?;
        } else if meta.is_file() && meta.len() <= FILE_BYTES_MAX && std::fs::File::open(&path).is_ok() {
            let bytes = path.as_os_str().as_bytes();
            if !bytes.contains(&b'\n') {
                out.write_all(bytes)?;
                out.write_all(b"\n")?;
                tree.files += 1;
                tree.bytes += meta.len();
            }
        }
    }
    Ok(())
}
