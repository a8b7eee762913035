//! The tests of the program and of mounts once more, as a user who is not root: what the machine's defaults give most people.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::programs::Program;

/// nobody's number, on every system.
const NOBODY: u32 = 65_534;

/// Tests that build or install from this tree, which is its owner's: packages, and names.
const LEFT_OUT: [&str; 3] = ["install::", "a_c_program_is_built", "the_c_program_runs"];

/// What is run: packages and their tests.
pub const SUITES: [(&str, &str); 2] = [("fstitch-fuse", "mounted"), ("fstitch", "cli")];

/// A command that runs a suite as nobody, or why that cannot be done here.
pub fn command(root: &Path, suite: &Program) -> Result<Result<Command, &'static str>> {
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n");
    if !is_root {
        return Ok(Err("only root becomes another user, and these tests were run as this one"));
    }
    let home = root.join("target/ci/user");
    std::fs::create_dir_all(&home)?;
    chown(&home, Some(NOBODY), Some(NOBODY))?;
    // Where cargo has its tests make their files.
    let files = root.join("target/tmp");
    std::fs::create_dir_all(&files)?;
    std::fs::set_permissions(&files, PermissionsExt::from_mode(0o1777))?;
    let mut script = String::from("set -eu\n");
    if let Some(closed) = closed_ancestor(root) {
        script.push_str(&reopened(root, &closed));
    }
    let skips: Vec<String> = LEFT_OUT.iter().map(|name| format!("--skip {name}")).collect();
    // Where /dev/fuse is root's alone, one that is everybody's takes its place in a mount table of the run's own.
    script.push_str(&format!(
        "cd {folder}\nrm -f {home}/fuse\nmknod {home}/fuse c 10 229\nchmod 666 {home}/fuse\nmount --bind {home}/fuse /dev/fuse\n\
         exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups env -u XDG_RUNTIME_DIR HOME={home} TMPDIR={home} \
         {program} --show-output {skips}\n",
        folder = suite.folder.display(),
        home = home.display(),
        program = suite.path.display(),
        skips = skips.join(" "),
    ));
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    Ok(Ok(command))
}

/// The outermost folder on the way to `path` that others may not pass.
fn closed_ancestor(path: &Path) -> Option<PathBuf> {
    let is_closed =
        |folder: &&Path| std::fs::metadata(folder).is_ok_and(|found| found.permissions().mode() & 1 == 0);
    path.ancestors().filter(is_closed).last().map(Path::to_owned)
}

/// Lines that make the way to `root` passable in this mount table: an empty folder takes the place of the closed one, with `root` in it.
fn reopened(root: &Path, closed: &Path) -> String {
    let (root, closed) = (root.display(), closed.display());
    format!(
        "kept=$(mktemp -d -p /dev/shm)\nmount --bind {root} $kept\nmount -t tmpfs -o mode=755 none {closed}\nmkdir -p {root}\n\
         mount --bind $kept {root}\numount $kept\nrmdir $kept\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outermost_closed_folder_is_found() {
        let folder = tempfile::tempdir().expect("a directory");
        let inner = folder.path().join("a/b");
        std::fs::create_dir_all(&inner).expect("directories");
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).expect("it is ours");
        assert_eq!(closed_ancestor(&inner), Some(folder.path().to_owned()));
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("it is ours");
        assert_eq!(closed_ancestor(&inner), None);
    }
}
