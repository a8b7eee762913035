//! Batches through io_uring, and the rings that are ready for them.
//!
//! **States.** A request of a plan is *waiting* (not yet in a ring), *queued* (in the ring, not yet seen by
//! the kernel), *in flight* (the kernel may use its memory) or *done*. [`Ring::run`] returns only when
//! nothing is in flight, whatever fails.
//!
//! Files are not registered with the rings: a registered file stays open until the kernel has torn the ring
//! down, some time after it was closed, and with it would stay the lock on the image.
#![allow(unsafe_code)]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fstitch_core::lock::Unpoisoned;
use fstitch_core::num::to_usize;
use io_uring::{IoUring, opcode, squeue, types};

use crate::plan::{Direction, Plan, Request};

/// Requests of one batch that the kernel has at the same time.
const QUEUE_DEPTH: u32 = 64;
/// Batches that use a ring at the same time; further ones use plain system calls.
const RINGS_MAX: usize = 8;
/// How often in a row the kernel may answer that it cannot take requests just now.
const REFUSALS_MAX: usize = 1000;
/// How long to wait between two looks at a ring that no longer answers.
const DRAIN_PAUSE: Duration = Duration::from_millis(1);

/// What became of each request: bytes moved or an error; nothing where it was never issued.
pub(crate) type Outcomes = Vec<Option<io::Result<usize>>>;

/// The rings of one medium. Rings are made when first needed, so that a process may open a medium, fork and
/// use it in the child.
#[derive(Debug)]
pub(crate) struct RingPool {
    idle: Mutex<Vec<Ring>>,
    made: AtomicUsize,
    /// False once the kernel has refused a ring, or broken one.
    usable: AtomicBool,
}

impl RingPool {
    /// An empty pool; an unusable one never makes a ring.
    pub(crate) fn new(usable: bool) -> Self {
        Self { idle: Mutex::new(Vec::new()), made: AtomicUsize::new(0), usable: AtomicBool::new(usable) }
    }

    /// Whether rings are used, as far as is known by now.
    pub(crate) fn is_usable(&self) -> bool {
        self.usable.load(Ordering::Relaxed)
    }

    /// Issues all requests of a plan. Nothing comes back when there is no ring to be had.
    pub(crate) fn run(&self, fd: BorrowedFd<'_>, plan: &Plan<'_>) -> Option<Outcomes> {
        let mut ring = self.take()?;
        let outcomes = ring.run(fd, plan);
        if ring.broken {
            self.usable.store(false, Ordering::Relaxed);
        } else {
            self.idle.lock().unpoisoned().push(ring);
        }
        Some(outcomes)
    }

    fn take(&self) -> Option<Ring> {
        if !self.is_usable() {
            return None;
        }
        while let Some(ring) = self.idle.lock().unpoisoned().pop() {
            if ring.is_ours() {
                return Some(ring);
            }
            // It was made before a fork and belongs to the parent.
            self.made.fetch_sub(1, Ordering::Relaxed);
        }
        if self.made.fetch_add(1, Ordering::Relaxed) >= RINGS_MAX {
            self.made.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let ring = Ring::new();
        if ring.is_err() {
            // Kernels before 5.1, containers whose filter denies io_uring, and limits on locked memory all
            // end here; none of them changes while we run.
            self.usable.store(false, Ordering::Relaxed);
        }
        ring.ok()
    }
}

/// One ring, used by one batch at a time.
struct Ring {
    ring: ManuallyDrop<IoUring>,
    /// The process that made it. After a fork the queues are shared memory of parent and child, and only
    /// the parent may touch them.
    pid: u32,
    broken: bool,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ring(of process {}, broken: {})", self.pid, self.broken)
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: the ring is dropped here only, once.
            unsafe { ManuallyDrop::drop(&mut self.ring) };
        }
    }
}

/// Ends the process when a panic would give memory back that the kernel still uses.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// How far a batch has come.
struct Progress {
    outcomes: Outcomes,
    /// Requests put into the ring.
    issued: usize,
    /// Requests whose outcome is known.
    done: usize,
}

impl Ring {
    fn new() -> io::Result<Self> {
        let ring = ManuallyDrop::new(IoUring::new(QUEUE_DEPTH)?);
        Ok(Self { ring, pid: std::process::id(), broken: false })
    }

    fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Issues all requests, several at a time, and returns when none is in flight.
    fn run(&mut self, fd: BorrowedFd<'_>, plan: &Plan<'_>) -> Outcomes {
        let count = plan.requests().len();
        let outcomes = std::iter::repeat_with(|| None).take(count).collect();
        let mut progress = Progress { outcomes, issued: 0, done: 0 };
        let guard = AbortOnUnwind;
        let mut refusals = 0;
        while progress.done < count {
            self.fill(fd, plan, &mut progress);
            let answer = self.ring.submit_and_wait(1);
            let before = progress.done;
            self.reap(&mut progress);
            let verdict = answer.map_or_else(|error| Verdict::of(&error), |_| Verdict::Fine);
            let refused = verdict == Verdict::Refused && progress.done == before;
            refusals = if refused { refusals + 1 } else { 0 };
            if verdict == Verdict::Broken || refusals > REFUSALS_MAX {
                self.drain(&mut progress);
                break;
            }
        }
        std::mem::forget(guard);
        progress.outcomes
    }

    /// Queues requests up to the depth of the ring.
    fn fill(&mut self, fd: BorrowedFd<'_>, plan: &Plan<'_>, progress: &mut Progress) {
        let mut queue = self.ring.submission();
        while let Some(&request) = plan.requests().get(progress.issued) {
            if progress.issued - progress.done >= depth() {
                break;
            }
            let Some(entry) = entry(fd, plan, request, progress.issued) else { break };
            // SAFETY: the entry's vectors and their memory are borrowed by the plan, which outlives `run`,
            // and `run` does not return before the kernel is done with them, not even by a panic.
            if unsafe { queue.push(&entry) }.is_err() {
                break;
            }
            progress.issued += 1;
        }
    }

    /// Takes the outcomes that the kernel has posted.
    fn reap(&mut self, progress: &mut Progress) {
        for completion in self.ring.completion() {
            let outcome = usize::try_from(completion.result())
                .map_err(|_| io::Error::from_raw_os_error(completion.result().saturating_neg()));
            let place =
                usize::try_from(completion.user_data()).ok().and_then(|i| progress.outcomes.get_mut(i));
            if let Some(place) = place {
                *place = Some(outcome);
                progress.done += 1;
            }
        }
    }

    /// Waits, without the kernel's help, for what is in flight. What is only queued is never seen by the
    /// kernel, because the ring is not entered again.
    fn drain(&mut self, progress: &mut Progress) {
        self.broken = true;
        loop {
            self.reap(progress);
            let queued = self.ring.submission().len();
            if progress.issued - progress.done <= queued {
                return;
            }
            std::thread::sleep(DRAIN_PAUSE);
        }
    }
}

fn depth() -> usize {
    to_usize(QUEUE_DEPTH)
}

/// What the kernel's answer to entering the ring means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Go on; a signal counts as nothing.
    Fine,
    /// The kernel cannot take requests just now.
    Refused,
    /// It never will.
    Broken,
}

impl Verdict {
    fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EINTR) => Self::Fine,
            Some(libc::EAGAIN | libc::EBUSY) => Self::Refused,
            _ => Self::Broken,
        }
    }
}

/// The ring's form of a request; `None` when a number does not fit, which plain calls will report.
fn entry(fd: BorrowedFd<'_>, plan: &Plan<'_>, request: Request, index: usize) -> Option<squeue::Entry> {
    let fd = types::Fd(fd.as_raw_fd());
    let vectors = plan.vectors(request);
    let count = u32::try_from(vectors.len()).ok()?;
    let position = plan.position(request);
    let entry = match plan.direction() {
        Direction::Read => opcode::Readv::new(fd, vectors.as_ptr(), count).offset(position).build(),
        Direction::Write => opcode::Writev::new(fd, vectors.as_ptr(), count).offset(position).build(),
    };
    Some(entry.user_data(u64::try_from(index).ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use fstitch_core::BlockNo;

    use super::*;
    use crate::engine;
    use crate::plan::Layout;

    const LAYOUT: Layout = Layout { offset: 0, block_size: 512, block_count: 1000 };

    /// A plan of many requests against a file, carried out with `pool`; true when all data arrived.
    fn write_every_other_block(pool: &RingPool) -> bool {
        let file = tempfile::tempfile().unwrap();
        let data: Vec<Vec<u8>> = (0..250).map(|i| vec![i; 512]).collect();
        let blocks = data.iter().zip((0..).step_by(2).map(BlockNo));
        let plan = Plan::write(LAYOUT, blocks.map(|(data, block)| (block, &data[..])).collect());
        engine::run(file.as_fd(), Some(pool), &plan).unwrap();
        data.iter().zip((0..).step_by(1024)).all(|(data, position)| {
            let mut found = [0; 512];
            file.read_exact_at(&mut found, position).unwrap();
            found == data[..]
        })
    }

    #[test]
    fn a_ring_is_used_again() {
        let pool = RingPool::new(true);
        assert!(write_every_other_block(&pool));
        assert!(write_every_other_block(&pool));
        let (idle, made) = (pool.idle.lock().unwrap().len(), pool.made.load(Ordering::Relaxed));
        assert_eq!((idle, made), if pool.is_usable() { (1, 1) } else { (0, 1) });
    }

    /// A ring whose every use the kernel refuses, as a filter of system calls may, costs nothing but itself.
    #[test]
    fn a_broken_ring_is_given_up_and_the_batch_completed() {
        let Ok(refusing) = IoUring::builder().setup_r_disabled().build(QUEUE_DEPTH) else {
            let note = "skipped: a_broken_ring_is_given_up: the kernel has no io_uring\n";
            return io::Write::write_all(&mut io::stderr(), note.as_bytes()).unwrap();
        };
        let ring = Ring { ring: ManuallyDrop::new(refusing), pid: std::process::id(), broken: false };
        let pool = RingPool::new(true);
        pool.idle.lock().unwrap().push(ring);
        assert!(write_every_other_block(&pool));
        assert!(!pool.is_usable());
    }

    #[test]
    fn a_ring_of_another_process_is_left_alone() {
        let pool = RingPool::new(true);
        if let Ok(mut ring) = Ring::new() {
            ring.pid = 0;
            pool.idle.lock().unwrap().push(ring);
            pool.made.fetch_add(1, Ordering::Relaxed);
        }
        assert!(write_every_other_block(&pool));
        assert!(pool.idle.lock().unwrap().iter().all(Ring::is_ours));
    }
}
