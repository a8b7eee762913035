//! What is known of processes: whose a thread is, who started whom and when, and who is gone.

use std::fmt::Debug;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// How large `/proc/TID/status` may be to be read; it is about 1.5 KiB.
const READ_MAX: usize = 64 << 10;

/// A process at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub pid: u32,
    /// 0 for what the kernel itself started.
    pub parent: u32,
    /// In ticks since the machine started; with the number it names the process for ever.
    pub start: u64,
    /// It will ask for nothing any more.
    pub ended: bool,
}

/// Watches one process.
pub(crate) trait Life: Debug + Send + Sync {
    fn is_over(&self) -> bool;
}

/// The processes of the machine, replaced in tests.
pub(crate) trait Processes: Send + Sync {
    /// The process that a thread belongs to; `None` if it cannot be seen from here.
    fn of_thread(&self, tid: u32) -> io::Result<Option<Process>>;
    /// Processes whose parent it is, as far as they stand still.
    fn children(&self, pid: u32) -> io::Result<Vec<u32>>;
    /// Whether a living process has this thread.
    fn has_thread(&self, pid: u32, tid: u32) -> bool;
    /// `None` if it is gone.
    fn watch(&self, process: &Process) -> io::Result<Option<Arc<dyn Life>>>;
    /// The time in the unit of [`Process::start`].
    fn now(&self) -> io::Result<u64>;
}

/// What the kernel tells in `/proc`.
#[derive(Debug)]
pub(crate) struct Kernel;

#[derive(Debug)]
struct ByDescriptor(OwnedFd);

impl Life for ByDescriptor {
    /// The descriptor of a process is readable when it has ended.
    fn is_over(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut fds, Some(&now)), Ok(ready) if ready > 0)
    }
}

/// `None` where the process is gone or hidden.
fn read(path: &str) -> io::Result<Option<String>> {
    use std::io::Read;
    let mut text = Vec::new();
    let limit = u64::try_from(READ_MAX).expect("small");
    match fs::File::open(path).and_then(|file| file.take(limit).read_to_end(&mut text)) {
        // A process may call itself what it likes, in any encoding.
        Ok(_) => Ok(Some(String::from_utf8_lossy(&text).into_owned())),
        Err(e) if is_gone(&e) => Ok(None),
        Err(e) => Err(e),
    }
}

fn is_gone(error: &io::Error) -> bool {
    let gone = error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error());
    gone || matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied)
}

/// The process's number in `/proc/TID/status`.
fn parse_status(text: &str) -> Option<u32> {
    text.lines().find_map(|line| line.strip_prefix("Tgid:")).and_then(|pid| pid.trim().parse().ok())
}

/// State, parent and start in `/proc/PID/stat`. The name before them may hold anything, also blanks and brackets.
fn parse_stat(pid: u32, text: &str) -> Option<Process> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let ended = matches!(fields.next()?, "Z" | "X" | "x");
    let parent = fields.next()?.parse().ok()?;
    let start = fields.nth(17)?.parse().ok()?;
    Some(Process { pid, parent, start, ended })
}

/// Seconds with two digits behind the point, in `/proc/uptime`, as ticks: 100 a second for user space everywhere.
fn parse_uptime(text: &str) -> Option<u64> {
    let (whole, rest) = text.split_ascii_whitespace().next()?.split_once('.')?;
    whole.parse::<u64>().ok()?.checked_mul(100)?.checked_add(rest.parse().ok()?)
}

fn strange(path: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{path} is not understood"))
}

impl Kernel {
    fn process(pid: u32) -> io::Result<Option<Process>> {
        let path = format!("/proc/{pid}/stat");
        let Some(text) = read(&path)? else { return Ok(None) };
        parse_stat(pid, &text).map(Some).ok_or_else(|| strange(&path))
    }

    /// The slow way for kernels without lists of children.
    fn search_children(pid: u32) -> io::Result<Vec<u32>> {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(no) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            if Self::process(no)?.is_some_and(|process| process.parent == pid) {
                found.push(no);
            }
        }
        Ok(found)
    }
}

impl Processes for Kernel {
    fn of_thread(&self, tid: u32) -> io::Result<Option<Process>> {
        let path = format!("/proc/{tid}/status");
        let Some(text) = read(&path)? else { return Ok(None) };
        let pid = parse_status(&text).ok_or_else(|| strange(&path))?;
        Self::process(pid)
    }

    fn children(&self, pid: u32) -> io::Result<Vec<u32>> {
        let mut found = Vec::new();
        let threads = match fs::read_dir(format!("/proc/{pid}/task")) {
            Ok(threads) => threads,
            Err(e) if is_gone(&e) => return Ok(found),
            Err(e) => return Err(e),
        };
        for thread in threads {
            let thread = match thread {
                Ok(thread) => thread,
                Err(e) if is_gone(&e) => break,
                Err(e) => return Err(e),
            };
            match fs::read_to_string(thread.path().join("children")) {
                Ok(text) => {
                    found.extend(text.split_ascii_whitespace().filter_map(|no| no.parse::<u32>().ok()))
                }
                // The thread is gone, or the kernel keeps no such lists.
                Err(e) if is_gone(&e) && thread.path().exists() => return Self::search_children(pid),
                Err(e) if is_gone(&e) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(found)
    }

    fn has_thread(&self, pid: u32, tid: u32) -> bool {
        rustix::fs::stat(format!("/proc/{pid}/task/{tid}")).is_ok()
    }

    fn watch(&self, process: &Process) -> io::Result<Option<Arc<dyn Life>>> {
        let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        let descriptor = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => descriptor,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        // The number may have gone to another process before the descriptor was there.
        let same = Self::process(process.pid)?.is_some_and(|now| now.start == process.start);
        Ok(same.then(|| Arc::new(ByDescriptor(descriptor)) as Arc<dyn Life>))
    }

    fn now(&self) -> io::Result<u64> {
        let path = "/proc/uptime";
        read(path)?.as_deref().and_then(parse_uptime).ok_or_else(|| strange(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_confuse() {
        let text = "77 (a) Z (b) R 5 1 1 0 -1 4194560 1 0 0 0 1 2 3 4 20 0 1 0 4242 0 0";
        let found = parse_stat(77, text).unwrap();
        assert_eq!(found, Process { pid: 77, parent: 5, start: 4242, ended: false });
        assert_eq!(parse_status("Name:\tx\nTgid:\t12\nPid:\t13\n"), Some(12));
        assert_eq!(parse_uptime("123.45 99.00\n"), Some(12_345));
        assert!(parse_stat(1, "1 (x) R 1").is_none() && parse_stat(1, "").is_none());
    }

    #[test]
    fn children_are_seen_and_their_end_too() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let me = Kernel.of_thread(std::process::id()).unwrap().unwrap();
        let it = Kernel.of_thread(child.id()).unwrap().unwrap();
        assert_eq!((it.pid, it.parent), (child.id(), me.pid));
        assert!(it.start >= me.start && it.start <= Kernel.now().unwrap());
        assert!(Kernel.children(me.pid).unwrap().contains(&it.pid));
        assert!(Kernel::search_children(me.pid).unwrap().contains(&it.pid));
        assert!(Kernel.has_thread(me.pid, me.pid) && !Kernel.has_thread(it.pid, me.pid));
        let life = Kernel.watch(&it).unwrap().unwrap();
        assert!(!life.is_over());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(life.is_over() && Kernel.of_thread(it.pid).unwrap().is_none());
    }
}
