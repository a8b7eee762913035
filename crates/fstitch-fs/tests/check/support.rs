//! Scratch files, the reference tools, and a device over a sparse file.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use fstitch_core::{BlockDevice, BlockNo, BlockRead, BlockWrite, Error, Geometry, IoOp, Result};

/// A directory that disappears with the value.
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new directory, in memory where the machine has such a place. Nobody else has it, whatever name others give.
    pub fn new(name: &str) -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let base = Path::new("/dev/shm");
        let base = if base.is_dir() { base.to_path_buf() } else { std::env::temp_dir() };
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("fstitch-{name}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a scratch directory");
        Self(path)
    }

    /// A path inside.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing can be done about a directory that does not go.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether all is asked for of which otherwise samples are taken (`FSTITCH_WHOLE`, in the long proofs).
pub fn is_whole() -> bool {
    std::env::var_os("FSTITCH_WHOLE").is_some()
}

/// Whether a reference tool is installed; says so visibly if not.
pub fn have(tool: &str) -> bool {
    let found = Command::new(tool).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        println!("skipped: {tool} is not installed");
    }
    found
}

/// Runs a tool; its exit code and everything that it printed.
pub fn run(tool: &str, args: &[&str]) -> (i32, String) {
    let output = Command::new(tool).args(args).stdin(Stdio::null()).output().expect("the tool starts");
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    (output.status.code().unwrap_or(-1), text)
}

/// `e2fsck -fn`'s verdict on an image file.
pub fn e2fsck(path: &Path) -> (i32, String) {
    run("e2fsck", &["-fn", path.to_str().expect("plain path")])
}

/// `e2fsck -fn`'s verdict on an image in memory.
pub fn e2fsck_image(scratch: &Scratch, name: &str, image: &[u8]) -> (i32, String) {
    let path = scratch.path(name);
    let mut file = File::create(&path).expect("a scratch file");
    file.write_all(image).expect("room for the image");
    drop(file);
    let verdict = e2fsck(&path);
    std::fs::remove_file(&path).expect("the file exists");
    verdict
}

/// A device over a sparse file.
pub struct SparseFile {
    file: File,
    geometry: Geometry,
}

impl SparseFile {
    /// A new file of `bytes` bytes, all of it a hole. One that was there stays as it is for who has it still, such as a mount that
    /// ends late.
    pub fn create(path: &Path, block_size: u32, bytes: u64) -> Self {
        let _ = std::fs::remove_file(path);
        let file = File::options().read(true).write(true).create_new(true).open(path).expect("a file");
        file.set_len(bytes).expect("a sparse file");
        let block_count = bytes / u64::from(block_size);
        Self { file, geometry: Geometry { block_size, block_count, atomic_size: 512 } }
    }

    /// One that there is.
    pub fn open(path: &Path, block_size: u32) -> Self {
        let file = File::options().read(true).write(true).open(path).expect("a file");
        let block_count = file.metadata().expect("its length").len() / u64::from(block_size);
        Self { file, geometry: Geometry { block_size, block_count, atomic_size: 512 } }
    }

    fn at(&self, block: BlockNo) -> u64 {
        block.get() * u64::from(self.geometry.block_size)
    }
}

impl BlockDevice for SparseFile {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        for read in reads {
            let at = self.at(read.block);
            self.file.read_exact_at(read.data, at).map_err(|e| Error::io(IoOp::Read, read.block, e))?;
        }
        Ok(())
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        for write in writes {
            let at = self.at(write.block);
            self.file.write_all_at(write.data, at).map_err(|e| Error::io(IoOp::Write, write.block, e))?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _start: BlockNo, _count: u64) -> Result<()> {
        Ok(())
    }
}
