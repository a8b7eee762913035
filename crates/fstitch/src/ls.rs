//! `fstitch ls`: what is in a directory of an image.

use std::ffi::OsString;
use std::io::Write;

use anyhow::{Result, bail};
use fstitch_core::{Attr, FileKind, FileSystem};
use fstitch_formats::show::time as show_time;
use serde::Serialize;

use crate::location::{Location, show};
use crate::open::{self, Access};
use crate::output::{Outcome, json, usage};
use crate::paths::{self, Held, Last};

/// Directories nest at most this deep; a damaged image that contains itself ends here.
const DEPTH_MAX: usize = 1000;

/// Arguments of `ls`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Show modes, owners, sizes and times
    #[arg(short, long)]
    long: bool,
    /// Show directories below as well
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Show `.` and `..` as well
    #[arg(short, long)]
    all: bool,
    /// Show inode numbers
    #[arg(short, long)]
    inode: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    volume: open::Arguments,
    /// What to list: IMAGE, IMAGE:/ or IMAGE:/path
    #[arg(value_name = "IMAGE:/PATH")]
    place: OsString,
}

/// A listed name.
#[derive(Serialize)]
struct Listed {
    path: String,
    ino: u64,
    kind: &'static str,
    /// In octal, as people write it.
    mode: String,
    nlink: u32,
    uid: u32,
    gid: u32,
    size_bytes: u64,
    used_bytes: u64,
    mtime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<[u32; 2]>,
}

/// Runs `ls`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let (image, path) = match Location::parse(&arguments.place) {
        Location::Image { image, path } => (image, path),
        Location::Host(image) if image.is_dir() => {
            return Err(usage(format!("{} is a directory of this machine: use ls(1)", image.display())));
        }
        Location::Host(image) => (image, b"/".to_vec()),
    };
    let volume = arguments.volume.open(&image, Access::ReadOnly)?;
    let mut found = Vec::new();
    let top = paths::resolve(&*volume.fs, &path, Last::Follow)?;
    let base = show(&path).trim_end_matches('/').to_owned();
    if top.attr()?.kind == FileKind::Directory {
        collect(&*volume.fs, arguments, (&top, &base), &mut found, 0)?;
    } else {
        found.push(listed(&*volume.fs, &top, base)?);
    }
    if arguments.json {
        json(&found)?;
    } else {
        print(arguments, &found, &format!("{}/", show(&path).trim_end_matches('/')))?;
    }
    Ok(Outcome::SUCCESS)
}

fn collect(
    fs: &dyn FileSystem,
    arguments: &Arguments,
    (dir, base): (&Held<'_>, &str),
    found: &mut Vec<Listed>,
    depth: usize,
) -> Result<()> {
    let mut names = Vec::new();
    fs.readdir(dir.ino(), 0, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    })?;
    names.sort();
    for name in names {
        let dot = name == b"." || name == b"..";
        if dot && !arguments.all {
            continue;
        }
        let child = Held::new(fs, fs.lookup(dir.ino(), &name)?.attr.ino);
        let path = format!("{base}/{}", show(&name));
        let item = listed(fs, &child, path.clone())?;
        let descend = arguments.recursive && !dot && item.kind == "directory";
        found.push(item);
        if descend {
            if depth >= DEPTH_MAX {
                bail!("{path}: directories nest deeper than {DEPTH_MAX}");
            }
            collect(fs, arguments, (&child, &path), found, depth + 1)?;
        }
    }
    Ok(())
}

fn listed(fs: &dyn FileSystem, node: &Held<'_>, path: String) -> Result<Listed> {
    let attr = node.attr()?;
    let target = match attr.kind {
        FileKind::Symlink => Some(show(&fs.readlink(node.ino())?)),
        _ => None,
    };
    let is_device = matches!(attr.kind, FileKind::BlockDevice | FileKind::CharDevice);
    Ok(Listed {
        path,
        ino: attr.ino.get(),
        kind: kind_name(attr.kind),
        mode: format!("{:04o}", attr.perm),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        size_bytes: attr.size,
        used_bytes: attr.blocks * 512,
        mtime: show_time(attr.mtime),
        target,
        device: is_device.then(|| device(&attr)),
    })
}

fn device(attr: &Attr) -> [u32; 2] {
    [(attr.rdev >> 8) & 0xfff, (attr.rdev & 0xff) | ((attr.rdev >> 12) & 0xf_ff00)]
}

fn print(arguments: &Arguments, found: &[Listed], base: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    for item in found {
        let name = item.path.strip_prefix(base).filter(|rest| !rest.is_empty()).unwrap_or(&item.path);
        if arguments.inode {
            write!(out, "{:>8} ", item.ino)?;
        }
        if arguments.long {
            let size = match item.device {
                Some([major, minor]) => format!("{major}, {minor}"),
                None => item.size_bytes.to_string(),
            };
            let letters = mode_letters(item);
            let (links, uid, gid) = (item.nlink, item.uid, item.gid);
            write!(out, "{letters} {links:>4} {uid:>6} {gid:>6} {size:>12} {} ", item.mtime)?;
        }
        match (&item.target, arguments.long) {
            (Some(target), true) => writeln!(out, "{name} -> {target}")?,
            _ => writeln!(out, "{name}")?,
        }
    }
    Ok(())
}

/// Stable names of kinds, for JSON.
fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::CharDevice => "char-device",
        FileKind::BlockDevice => "block-device",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}

/// `drwxr-xr-x` and the like.
fn mode_letters(item: &Listed) -> String {
    let kind = match item.kind {
        "directory" => 'd',
        "symlink" => 'l',
        "char-device" => 'c',
        "block-device" => 'b',
        "fifo" => 'p',
        "socket" => 's',
        _ => '-',
    };
    let mode = u16::from_str_radix(&item.mode, 8).unwrap_or(0);
    let mut letters = String::from(kind);
    for (shift, special, with, without) in
        [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = mode >> shift;
        letters.push(if bits & 4 != 0 { 'r' } else { '-' });
        letters.push(if bits & 2 != 0 { 'w' } else { '-' });
        letters.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => with,
            (true, false) => without,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    letters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_spelled() {
        let letters = |kind, mode: &str| {
            let item = Listed {
                path: String::new(),
                ino: 1,
                kind,
                mode: mode.into(),
                nlink: 1,
                uid: 0,
                gid: 0,
                size_bytes: 0,
                used_bytes: 0,
                mtime: String::new(),
                target: None,
                device: None,
            };
            mode_letters(&item)
        };
        assert_eq!(letters("directory", "1777"), "drwxrwxrwt");
        assert_eq!(letters("file", "4755"), "-rwsr-xr-x");
        assert_eq!(letters("file", "2640"), "-rw-r-S---");
    }
}
