//! Source trees.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{At, Tree, len};
use crate::meter::Meter;
use crate::place::{Open, Place, remove_tree};

/// A tree unpacked as tar does, and deleted as rm does.
pub(super) fn unpack_and_delete(at: &At<'_>, meter: &mut Meter<'_>) -> Result<()> {
    let files = u64::try_from(at.tree.files.len())?;
    meter.phase("untar", files, || unpack(at.place, at.tree))?;
    meter.phase("delete", files, || {
        at.tree.roots().iter().try_for_each(|root| remove_tree(at.place, root).map(drop))
    })
}

/// Makes everything in `tree`; contents in pieces of 10 KiB, tar's record.
pub(crate) fn unpack(place: &dyn Place, tree: &Tree) -> Result<()> {
    const RECORD: usize = 10 << 10;
    for directory in &tree.directories {
        place.mkdir(directory)?;
    }
    for entry in &tree.files {
        let file = place.open(&entry.path, Open::New)?;
        let mut offset = 0;
        for piece in tree.contents(entry).chunks(RECORD) {
            file.write_at(piece, offset)?;
            offset += u64::try_from(piece.len())?;
        }
        file.set_modified(entry.modified)?;
    }
    tree.links.iter().try_for_each(|(path, target)| place.symlink(path, target))
}

/// The phases of the Andrew benchmark: directories and files, attributes of all, contents of all, a build.
pub(super) fn andrew(at: &At<'_>, meter: &mut Meter<'_>) -> Result<()> {
    let tree = at.tree.part(at.scale.of(1_500, 300));
    let files = u64::try_from(tree.files.len())?;
    meter.phase("copy", files, || unpack(at.place, &tree))?;
    meter.phase("list", files, || {
        tree.files.iter().try_for_each(|file| {
            ensure!(at.place.size(&file.path)? == file.size, "{} has another length", file.path);
            Ok(())
        })
    })?;
    meter.phase("read", files, || {
        let mut buffer = vec![0; 64 << 10];
        tree.files.iter().try_for_each(|entry| {
            let (file, mut offset) = (at.place.open(&entry.path, Open::Existing)?, 0);
            while offset < entry.size {
                let read = file.read_at(&mut buffer, offset)?;
                let start = len(offset);
                ensure!(
                    buffer[..read] == tree.contents(entry)[start..start + read],
                    "{} differs",
                    entry.path
                );
                offset += u64::try_from(read)?;
            }
            Ok(())
        })
    })?;
    match at.host {
        Some(host) if crate::contender::version("cc", "--version").is_some() => {
            let units = at.scale.of(20, 5);
            meter.phase("compile", units, || compile(at.place, host, units))
        }
        _ => Ok(()),
    }
}

/// Builds a program of so many sources.
fn compile(place: &dyn Place, host: &Path, units: u64) -> Result<()> {
    place.mkdir("build")?;
    let mut objects = Vec::new();
    for no in 0..units {
        let (source, object) = (format!("build/u{no}.c"), format!("build/u{no}.o"));
        let mut text = String::from("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n");
        for function in 0..40 {
            text.push_str(&format!(
                "int f{no}_{function}(int x) {{ return x * {function} + (int)strlen(\"{no}\"); }}\n"
            ));
        }
        if no == 0 {
            text.push_str("int main(void) { printf(\"%d\\n\", f0_1(2)); return 0; }\n");
        }
        place.open(&source, Open::New)?.write_at(text.as_bytes(), 0)?;
        cc(host, &["-O1", "-c", &source, "-o", &object])?;
        objects.push(object);
    }
    let mut words = vec!["-o", "build/program"];
    words.extend(objects.iter().map(String::as_str));
    cc(host, &words)
}

fn cc(host: &Path, words: &[&str]) -> Result<()> {
    let status = Command::new("cc").args(words).current_dir(host).status().context("running cc")?;
    ensure!(status.success(), "cc ended with {status}");
    Ok(())
}
