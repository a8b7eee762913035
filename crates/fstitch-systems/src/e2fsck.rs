//! The reference checker's opinion: an independent program, asked about a sample.

use std::io::Write;
use std::process::Command;

use fstitch_crashlab::Reference;
use fstitch_crashlab::medium::{Base, Image};
use fstitch_crashlab::oracle::Violation;

/// e2fsck, found in `PATH` or where systems put it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct E2fsck {
    /// The journal is replayed first, which leaves nothing to find.
    pub replays: bool,
    /// Where in an image the volume ends and the journal's own device starts, in bytes, if it has one.
    pub journal_at: Option<usize>,
}

/// Files corrected, or nothing to correct.
const MENDED: i32 = 1;
/// What it says of usage that is not what there is.
const WRONG_USAGE: &str = "QUOTA WARNING";

impl Reference for E2fsck {
    fn is_installed(&self) -> bool {
        command().arg("-V").output().is_ok_and(|output| output.status.success())
    }

    fn judge(&self, image: &Image, we_found: u64) -> Result<Image, Violation> {
        let fail = |error: std::io::Error| Violation::new("e2fsck-failed", error.to_string());
        let bytes = image.bytes();
        let (volume, journal) = bytes.split_at(self.journal_at.unwrap_or(bytes.len()));
        let (volume, journal) = (kept(volume).map_err(fail)?, kept(journal).map_err(fail)?);
        let run = |option: &str| {
            let mut command = command();
            if self.journal_at.is_some() {
                command.arg("-j").arg(journal.path());
            }
            let output = command.arg(option).arg(volume.path()).output().map_err(fail)?;
            let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            let warned = String::from_utf8_lossy(&output.stderr).into_owned();
            Ok((output.status.code().unwrap_or(-1), said, warned))
        };
        if self.replays {
            let (replayed, said, warned) = run("-p")?;
            if replayed > MENDED {
                return Err(Violation::new("e2fsck-cannot-replay", said));
            }
            // It mends that at once, and would find nothing afterwards.
            if we_found == 0 && warned.contains(WRONG_USAGE) {
                return Err(Violation::new("e2fsck-finds-more", warned));
            }
        }
        let (found, said, _) = run("-fn")?;
        if we_found == 0 && found != 0 {
            return Err(Violation::new("e2fsck-finds-more", said));
        }
        let (mended, said, _) = run("-fy")?;
        if mended > MENDED {
            return Err(Violation::new("e2fsck-cannot-mend", said));
        }
        let (left, said, _) = run("-fn")?;
        if left != 0 {
            return Err(Violation::new("e2fsck-left-something", said));
        }
        let mut bytes = std::fs::read(volume.path()).map_err(fail)?;
        bytes.extend(std::fs::read(journal.path()).map_err(fail)?);
        let block_size = fstitch_core::BlockDevice::geometry(image).block_size;
        Ok(Image::new(Base::new(block_size, bytes)))
    }
}

/// A file with these bytes.
fn kept(bytes: &[u8]) -> std::io::Result<tempfile::NamedTempFile> {
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(bytes)?;
    Ok(file)
}

fn command() -> Command {
    let places = ["/usr/sbin/e2fsck", "/sbin/e2fsck"];
    let found = places.iter().find(|place| std::path::Path::new(place).exists());
    Command::new(found.unwrap_or(&"e2fsck"))
}
