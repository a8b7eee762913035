//! One writer, or several readers, of each volume; never both.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use fstitch_core::{Errno, Error};
use fstitch_disk::{DiskOptions, FileDisk};

use crate::{folder_alone, image, options, skip};

fn reading() -> DiskOptions {
    DiskOptions { read_only: true, ..options(1024) }
}

#[track_caller]
fn assert_locked(result: Result<FileDisk, Error>, wanted: &[&str]) {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Locked(_)), "{error}");
    assert_eq!(error.errno(), Errno::BUSY);
    for part in wanted {
        assert!(error.to_string().contains(part), "{part} is missing in: {error}");
    }
}

#[test]
fn a_second_writer_is_refused_with_the_process_named() {
    let (_folder, path) = image(1 << 20);
    let first = FileDisk::open(&path, options(1024)).unwrap();
    let pid = format!("this process ({}) has it open", std::process::id());
    let wanted = [path.to_str().unwrap(), &pid, "try again"];
    assert_locked(FileDisk::open(&path, options(1024)), &wanted);
    assert_locked(FileDisk::open(&path, reading()), &wanted);
    drop(first);
    FileDisk::open(&path, options(1024)).unwrap();
}

/// The lock ends with the disk even though rings were used, which keep registered files open for a while.
#[test]
fn the_lock_ends_with_the_disk() {
    let (_folder, path) = image(1 << 20);
    for round in 0..50 {
        let disk = FileDisk::open(&path, options(1024)).unwrap();
        crate::write(&disk, &[(1, round), (3, round), (5, round)]).unwrap();
    }
}

#[test]
fn readers_share_and_keep_writers_out() {
    let (_folder, path) = image(1 << 20);
    let first = FileDisk::open(&path, reading()).unwrap();
    let second = FileDisk::open(&path, reading()).unwrap();
    assert_locked(FileDisk::open(&path, options(1024)), &["has it open"]);
    drop((first, second));
    FileDisk::open(&path, options(1024)).unwrap();
}

#[test]
fn partitions_of_one_image_are_locked_apart() {
    let (_folder, path) = image(1 << 20);
    let partition = |offset| DiskOptions { offset, size: Some(65_536), ..options(1024) };
    let _first = FileDisk::open(&path, partition(0)).unwrap();
    let _second = FileDisk::open(&path, partition(65_536)).unwrap();
    assert_locked(FileDisk::open(&path, partition(65_536)), &["has it open"]);
    assert_locked(FileDisk::open(&path, partition(1024)), &["has it open"]);
}

#[test]
fn the_lock_can_be_declined() {
    let (_folder, path) = image(1 << 20);
    let _first = FileDisk::open(&path, options(1024)).unwrap();
    FileDisk::open(&path, DiskOptions { lock: false, ..options(1024) }).unwrap();
}

/// A process that is ended with the test.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Another program with a classic record lock is found through the kernel and named.
#[test]
fn locks_of_other_programs_count_and_are_named() {
    let (_folder, path) = folder_alone().image(1 << 20);
    let program = "import fcntl, sys, time\nf = open(sys.argv[1], 'r+b')\nfcntl.lockf(f, fcntl.LOCK_EX)\n\
                   print('locked', flush=True)\ntime.sleep(600)";
    let python = Command::new("python3").args(["-c", program]).arg(&path).stdout(Stdio::piped()).spawn();
    let Ok(mut child) = python else {
        return skip("locks_of_other_programs", "no python3");
    };
    let mut answer = [0; 6];
    std::io::Read::read_exact(&mut child.stdout.take().unwrap(), &mut answer).unwrap();
    let other = Other(child);
    let wanted = format!("process {} (python3", other.0.id());
    assert_locked(FileDisk::open(&path, options(1024)), &[&wanted]);
    drop(other);
    FileDisk::open(&path, options(1024)).unwrap();
}

/// Starts a program in a thread, and stops the child between its fork and its exec, where it has what we have, until `let_go` is written.
#[test]
fn a_child_that_has_not_run_its_program_yet_is_waited_for() {
    let (_folder, path) = folder_alone().image(1 << 20);
    let disk = FileDisk::open(&path, options(1024)).unwrap();
    let (mut forked, tell) = std::io::pipe().unwrap();
    let (wait, mut let_go) = std::io::pipe().unwrap();
    let (tell_fd, wait_fd) = (tell.as_raw_fd(), wait.as_raw_fd());
    let starting = std::thread::spawn(move || {
        let mut program = Command::new("true");
        // SAFETY: between fork and exec it makes two system calls on memory of its own and descriptors that this thread keeps open.
        let started = unsafe {
            program.pre_exec(move || {
                let mut byte = [1u8];
                let told = libc::write(tell_fd, byte.as_ptr().cast(), 1);
                let waited = libc::read(wait_fd, byte.as_mut_ptr().cast(), 1);
                if told == 1 && waited == 1 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            })
        };
        let status = started.status();
        drop((tell, wait));
        status
    });
    forked.read_exact(&mut [0]).unwrap();
    drop(disk);
    let wanted = "has it open; unmount it there or end that process";
    assert_locked(FileDisk::open(&path, options(1024)), &[wanted]);
    let waiting = {
        let path = path.clone();
        std::thread::spawn(move || FileDisk::open_when_let_go(&path, &options(1024)))
    };
    // Whoever does not wait has failed by now, or fails in a moment: the child has the lock until this is written.
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(!waiting.is_finished(), "the child has the lock, and is waited for");
    let_go.write_all(&[1]).unwrap();
    assert!(starting.join().unwrap().unwrap().success());
    waiting.join().unwrap().unwrap();
}

/// Nobody waits for a program that keeps what it has.
#[test]
fn a_lock_of_this_process_is_not_waited_for() {
    let (_folder, path) = image(1 << 20);
    let _first = FileDisk::open(&path, options(1024)).unwrap();
    let pid = format!("this process ({}) has it open", std::process::id());
    assert_locked(FileDisk::open_when_let_go(&path, &options(1024)), &[&pid]);
}
