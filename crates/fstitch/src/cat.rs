//! `fstitch cat`: a file's contents out of an image.

use std::ffi::OsString;
use std::io::Write;

use anyhow::{Result, ensure};
use fstitch_core::FileKind;

use crate::location::{Location, show};
use crate::open::{self, Access};
use crate::output::{Outcome, usage};
use crate::paths::{self, Last};

/// Bytes read at a time.
const CHUNK: usize = 1 << 20;

/// Arguments of `cat`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    volume: open::Arguments,
    /// The files, each as IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    places: Vec<OsString>,
}

/// Runs `cat`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let mut out = std::io::stdout().lock();
    let mut buffer = vec![0; CHUNK];
    for place in &arguments.places {
        let Location::Image { image, path } = Location::parse(place) else {
            return Err(usage(format!("{} is not inside an image: write IMAGE:/path", place.display())));
        };
        let volume = arguments.volume.open(&image, Access::ReadOnly)?;
        let node = paths::resolve(&*volume.fs, &path, Last::Follow)?;
        ensure!(node.attr()?.kind == FileKind::Regular, "{} is not a regular file", show(&path));
        let mut offset = 0;
        loop {
            let read = volume.fs.read(node.ino(), offset, &mut buffer)?;
            if read == 0 {
                break;
            }
            out.write_all(&buffer[..read])?;
            offset += u64::try_from(read)?;
        }
    }
    out.flush()?;
    Ok(Outcome::SUCCESS)
}
