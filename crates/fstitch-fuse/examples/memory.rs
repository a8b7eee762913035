//! Mounts the reference file system, which lives in memory, in the foreground:
//! `memory DIRECTORY [-o OPTION,…]`. Ctrl-C unmounts.

use std::process::ExitCode;
use std::sync::Arc;

use fstitch_fs::model::Model;
use fstitch_fuse::{Mount, MountOptions, UnmountOnSignal};

fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("memory: {e}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mountpoint = args.next().ok_or("usage: memory DIRECTORY [-o OPTION,...]")?;
    let mut options = MountOptions::new(mountpoint, "memory");
    while let Some(arg) = args.next() {
        let words = if arg == "-o" { args.next().ok_or("-o needs options")? } else { arg };
        for word in words.split(',') {
            options.apply(word)?;
        }
    }
    let mount = Mount::new(Arc::new(Model::new()), &options)?;
    let _signals = UnmountOnSignal::install(vec![mount.unmounter()], |message| eprintln!("{message}"))?;
    mount.run()?;
    Ok(())
}
