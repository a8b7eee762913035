//! \[D\] Figs 3.6 and 3.9: the bytes that macrobenchmarks have BPFS store, and the kernel's file systems write.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use fstitch_bpfs::Optimizations;

use super::mounted::Mounted;
use super::rivals::{self, Looped};
use crate::meter::seconds;
use crate::papers::{Setting, strings};
use crate::place::{Host, remove_tree};
use crate::results::Table;
use crate::workload::{Scale, unpack};

/// Bytes of all volumes, as the paper's.
const VOLUME: u64 = 6 << 30;

/// The columns of Fig 3.8 but the third, which is the better one of two, and those that came later.
const COLUMNS: [(&str, Optimizations); 6] = [
    (SHADOW, Optimizations::SHADOW_PAGING),
    ("BPFS: + SC", Optimizations::SHORT_CIRCUIT),
    ("BPFS: + A and T", Optimizations::APPEND_AND_TIMES),
    (PAPER, Optimizations::ALL_OF_THE_PAPER),
    ("BPFS: + journal", Optimizations::JOURNAL),
    (USUAL, Optimizations::ALL),
];
const SHADOW: &str = "BPFS: shadow paging";
const PAPER: &str = "BPFS: + other, the paper's";
const USUAL: &str = "BPFS: + times in it, the default";

/// Does the parts of a benchmark, one after the other, below a directory, and calls what it is given behind each.
type Work = fn(&Setting<'_>, &Path, &mut dyn FnMut() -> Result<()>) -> Result<()>;

/// A benchmark: each of its parts has a row for each file system.
struct Benchmark {
    parts: &'static [&'static str],
    /// Columns that are left out, where it takes long.
    is_long: bool,
    work: Work,
}

/// Bytes of one part: in BPFS's columns, and by rivals.
type Measured = (String, u64);

fn measure(setting: &Setting<'_>, benchmark: &Benchmark) -> Result<Vec<Vec<Measured>>> {
    let at = tempfile::Builder::new().prefix("bpfs-").tempdir()?;
    let at = at.path().canonicalize()?;
    let mut parts: Vec<Vec<Measured>> = benchmark.parts.iter().map(|_| Vec::new()).collect();
    let is_wanted = |name: &str| !benchmark.is_long || [SHADOW, PAPER, USUAL].contains(&name);
    for (name, optimizations) in COLUMNS.into_iter().filter(|(name, _)| is_wanted(name)) {
        let mut mounted = Mounted::new(&setting.memory, VOLUME, optimizations, &at)?;
        let mut found = Vec::new();
        (benchmark.work)(setting, &at, &mut || {
            found.push(mounted.stored().bytes);
            Ok(())
        })
        .with_context(|| name.to_owned())?;
        mounted.stop()?;
        parts.iter_mut().zip(found).for_each(|(part, bytes)| part.push((name.to_owned(), bytes)));
    }
    for rival in rivals::ALL.iter().filter(|rival| rival.lacks().is_none()) {
        let mut looped = Looped::new(rival, &setting.disk, VOLUME, &at)?;
        let mut found = Vec::new();
        (benchmark.work)(setting, &at, &mut || {
            found.push(looped.written()?);
            Ok(())
        })
        .with_context(|| rival.name.to_owned())?;
        drop(looped);
        parts.iter_mut().zip(found).for_each(|(part, bytes)| part.push((rival.name.to_owned(), bytes)));
    }
    Ok(parts)
}

/// A table of some parts.
fn table(setting: &Setting<'_>, benchmark: &Benchmark, said: (&str, &str, String)) -> Result<Table> {
    let (name, title, about) = said;
    let missing: Vec<String> = rivals::ALL
        .iter()
        .filter_map(|rival| Some(format!(" {} was not measured: {}.", rival.name, rival.lacks()?)))
        .collect();
    let mut table = Table {
        name: name.into(),
        title: title.into(),
        about: format!(
            "{about} BPFS: bytes stored in a file of 6 GiB in memory, mounted through FUSE, written through, as its gate counts them. The kernel's file systems: \
             sectors of a loop device on a sparse file of 6 GiB, from the mount to a `syncfs` behind each part, with the kernel's usual intervals. Measured \
             once.{}",
            missing.concat()
        ),
        columns: strings(["part", "file system", "MiB", "the paper's BPFS to it", "the default BPFS to it"]),
        ..Table::default()
    };
    for (part, measured) in benchmark.parts.iter().zip(measure(setting, benchmark)?) {
        let of = |wanted: &str| measured.iter().find(|(name, _)| name == wanted).map(|(_, bytes)| *bytes);
        let ratio = |ours: Option<u64>, bytes: u64| match ours {
            Some(ours) if bytes > 0 => format!("{:.2}", seconds(ours) / seconds(bytes)),
            _ => "-".to_owned(),
        };
        for (name, bytes) in &measured {
            let mib = seconds(*bytes) / seconds(1 << 20);
            let mib = if mib < 100.0 { format!("{mib:.3}") } else { format!("{mib:.0}") };
            let ratios = [ratio(of(PAPER), *bytes), ratio(of(USUAL), *bytes)];
            table.rows.push([vec![(*part).to_owned(), name.clone(), mib], ratios.to_vec()].concat());
        }
    }
    Ok(table)
}

/// Unpacking and deleting a source tree.
pub fn unpacking(setting: &Setting<'_>) -> Result<Table> {
    let benchmark = Benchmark {
        parts: &["unpack", "delete"],
        is_long: false,
        work: |setting, at, done| {
            let place = Host::new(at)?;
            unpack(&place, setting.tree)?;
            done()?;
            setting.tree.roots().iter().try_for_each(|root| remove_tree(&place, root).map(drop))?;
            done()
        },
    };
    let about = format!(
        "{} files of `{}`, {} MB. The paper unpacked Linux 2.6.15 (203 MiB): BPFS a little less than the others; deleting it: BPFS 334 KiB, Btrfs 64 KiB, ext2 5 MiB, ext3 \
         and ext4 about twice that.",
        setting.tree.files.len(),
        setting.tree.origin,
        setting.tree.size() / 1_000_000
    );
    let title = "BPFS: bytes of unpacking and deleting sources, [D] Fig 3.6";
    table(setting, &benchmark, ("bpfs bytes tree", title, about))
}

/// PostMark as the paper's small one.
pub fn postmark_small(setting: &Setting<'_>) -> Result<Table> {
    let benchmark = Benchmark {
        parts: &["PostMark, small"],
        is_long: false,
        work: |setting, at, done| {
            let most = setting.scale.of(1 << 20, 1 << 15);
            postmark(at, (100, most))?;
            done()
        },
    };
    let about = "The program `postmark`: 100 files of 512 bytes to 1 MiB, its other settings as they are. The paper: BPFS 224 MiB, ext2, ext3 and ext4 ordered and \
                 Btrfs 72 to 132 KiB because nothing is left of it before they write, ext3 and ext4 with a journal of data 1.05 of BPFS.";
    let title = "BPFS: bytes of a small PostMark, [D] Fig 3.6";
    table(setting, &benchmark, ("bpfs bytes postmark", title, about.to_owned()))
}

/// PostMark as the paper's large one.
pub fn postmark_large(setting: &Setting<'_>) -> Result<Table> {
    let benchmark = Benchmark {
        parts: &["PostMark, large"],
        is_long: true,
        work: |setting, at, done| {
            let most = setting.scale.of(16 << 20, 1 << 18);
            postmark(at, (setting.scale.of(500, 50), most))?;
            done()
        },
    };
    let about = "The program `postmark`: 500 files of 512 bytes to 16 MiB, its other settings as they are. The paper, on a machine of 1 GiB: BPFS about the same as the \
                 others, half of ext3 and ext4 with a journal of data.";
    let title = "BPFS: bytes of a large PostMark, [D] Fig 3.6";
    table(setting, &benchmark, ("bpfs bytes big postmark", title, about.to_owned()))
}

/// Bonnie++.
pub fn bonnie(setting: &Setting<'_>) -> Result<Table> {
    let benchmark = Benchmark {
        parts: &["Bonnie++"],
        is_long: true,
        work: |setting, at, done| {
            let size = setting.scale.of(256, 64).to_string();
            let files = setting.scale.of(16, 1).to_string();
            let words = ["-q", "-u", "root", "-s", &size, "-r", "32", "-n", &files, "-d"];
            quietly(Command::new("bonnie++").args(words).arg(at).current_dir(at))?;
            done()
        },
    };
    let about = "Bonnie++ 2.00 with a file of 256 MiB and 16 x 1,024 small ones (`-s 256 -r 32 -n 16`). The paper, Bonnie++ 1.96: BPFS 5.0 GiB, about the same as the \
                 others, 1.0 GiB of it copied.";
    let title = "BPFS: bytes of Bonnie++, [D] Fig 3.6";
    table(setting, &benchmark, ("bpfs bytes bonnie", title, about.to_owned()))
}

/// A program that is unpacked, configured and built, with two linkers.
pub fn build(setting: &Setting<'_>) -> Result<Table> {
    let Some(archive) = &setting.program else {
        bail!("there is no archive of a program that is built: see --program")
    };
    let benchmark = Benchmark {
        parts: &["build, ld", "build, gold"],
        is_long: true,
        work: |setting, at, done| {
            let archive = setting.program.as_deref().context("there is an archive")?;
            for linker in ["bfd", "gold"] {
                let within = at.join(linker);
                std::fs::create_dir(&within)?;
                let tar = ["--strip-components=1", "--no-same-owner", "-xf"];
                quietly(Command::new("tar").args(tar).arg(archive).arg("-C").arg(&within))?;
                let flags = format!("LDFLAGS=-fuse-ld={linker}");
                quietly(Command::new("./configure").args(["--quiet", &flags]).current_dir(&within))?;
                if setting.scale == Scale::Full {
                    quietly(Command::new("make").arg("-s").current_dir(&within))?;
                }
                done()?;
            }
            Ok(())
        },
    };
    let name = archive.file_name().unwrap_or_default().to_string_lossy();
    let about = format!(
        "`{name}` unpacked, `./configure` and `make`, with the linkers ld and gold. The paper built Apache 2.0.63: BPFS 126 MiB with ld, about twice as much as ext2, \
         ext3 and ext4 ordered and Btrfs; 85 MiB with gold, 1.5 of ext3 and ext4 ordered, and less than Btrfs and than journals of data."
    );
    let title = "BPFS: bytes of building a program, [D] Fig 3.6";
    table(setting, &benchmark, ("bpfs bytes build", title, about))
}

fn postmark(at: &Path, (files, most): (u64, u64)) -> Result<()> {
    let text = format!(
        "set location {}\nset number {files}\nset size 512 {most}\nset read 4096\nset write 4096\nset report terse\nrun\nquit\n",
        at.display()
    );
    let mut child = Command::new("postmark")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("running postmark")?;
    std::io::Write::write_all(&mut child.stdin.take().context("standard input")?, text.as_bytes())?;
    let done = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&done.stdout);
    ensure!(done.status.success() && !said.contains("Error"), "postmark: {}", said.trim());
    Ok(())
}

/// Runs a program whose words nobody wants unless it fails.
fn quietly(command: &mut Command) -> Result<()> {
    let done = command.stdin(Stdio::null()).output();
    let done = done.with_context(|| format!("running {:?}", command.get_program()))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        bail!("{:?} ended with {}: {}", command.get_program(), done.status, said.trim());
    }
    Ok(())
}
