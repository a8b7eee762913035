//! Carries out a plan: all requests at once through a ring where there is one, the rest by plain calls.

use std::io;
use std::os::fd::BorrowedFd;

use fstitch_core::BlockNo;

use crate::plan::{Direction, Plan, Request};
use crate::ring::RingPool;
use crate::sys;

/// How often in a row the kernel may move less than a block, or ask to try again.
const STALLS_MAX: usize = 16;

/// The first block that could not be moved, and why.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) block: BlockNo,
    pub(crate) error: io::Error,
}

/// Moves all blocks of a plan. When some fail, the others are tried all the same and the failure with the
/// lowest block number is reported.
pub(crate) fn run(fd: BorrowedFd<'_>, rings: Option<&RingPool>, plan: &Plan<'_>) -> Result<(), Failure> {
    let requests = plan.requests();
    // A single request gains nothing from a ring: it is one system call either way.
    let outcomes = rings.filter(|_| requests.len() > 1).and_then(|rings| rings.run(fd, plan));
    let mut outcomes = outcomes.unwrap_or_default().into_iter();
    let mut failure = None;
    for &request in requests {
        let outcome = outcomes.next().flatten();
        if let Err(found) = finish(fd, plan, request, outcome) {
            failure.get_or_insert(found);
        }
    }
    failure.map_or(Ok(()), Err)
}

/// Moves what is left of a request after its first outcome, if there was one. Progress is counted in whole
/// blocks: with direct I/O a request must not start in the middle of one, and moving the same bytes of a
/// block twice does no harm.
fn finish(
    fd: BorrowedFd<'_>,
    plan: &Plan<'_>,
    mut request: Request,
    mut outcome: Option<io::Result<usize>>,
) -> Result<(), Failure> {
    let mut stalls = 0;
    while request.count > 0 {
        let moved = outcome.take().unwrap_or_else(|| sys::transfer(fd, plan, request));
        let blocks = match moved {
            Ok(0) => return Err(Failure { block: request.first, error: end_of_medium(plan.direction()) }),
            Ok(bytes) => bytes / plan.unit(),
            Err(error) if is_transient(&error) && stalls < STALLS_MAX => 0,
            Err(_) if request.count > 1 => return one_by_one(fd, plan, request),
            Err(error) => return Err(Failure { block: request.first, error }),
        };
        stalls = if blocks == 0 { stalls + 1 } else { 0 };
        if stalls > STALLS_MAX {
            // Only a part of the block is there.
            return Err(Failure { block: request.first, error: end_of_medium(plan.direction()) });
        }
        request = request.skip(blocks.min(request.count));
    }
    Ok(())
}

/// Moves the blocks of a failed request singly: the failure of many blocks does not tell which is bad, and
/// the good ones are still wanted.
fn one_by_one(fd: BorrowedFd<'_>, plan: &Plan<'_>, request: Request) -> Result<(), Failure> {
    (0..request.count).try_for_each(|i| finish(fd, plan, request.skip(i).head(), None))
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN))
}

fn end_of_medium(direction: Direction) -> io::Error {
    match direction {
        Direction::Read => io::Error::new(io::ErrorKind::UnexpectedEof, "the medium ends here"),
        Direction::Write => io::Error::new(io::ErrorKind::WriteZero, "the medium takes no more"),
    }
}
