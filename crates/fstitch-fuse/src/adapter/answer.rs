//! Answers: how errors become numbers, and how an answer waits until a change is stable.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use fstitch_core::lock::Unpoisoned;
use fstitch_core::{Errno, Error, Result};

use super::core::Core;
use crate::pool::Pool;
use crate::wire::Reply;

/// How many different unexpected errors are logged in the life of a mount.
const LOGGED_ERRORS_MAX: usize = 100;

/// Logs what no rule of POSIX explains, each message once.
#[derive(Debug, Default)]
pub(super) struct ErrorLog {
    seen: Mutex<BTreeSet<String>>,
}

impl ErrorLog {
    /// The number that the caller sees for `error`.
    pub(super) fn errno(&self, error: &Error) -> Errno {
        if !matches!(error, Error::Errno(_)) {
            let text = error.to_string();
            let mut seen = self.seen.lock().unpoisoned();
            if seen.len() < LOGGED_ERRORS_MAX && seen.insert(text.clone()) {
                tracing::error!("{text}");
            }
        }
        error.errno()
    }
}

/// Answers with `ok` or with the error. What would have to wait on a thread that must not is put off.
pub(super) fn answer<T>(core: &Core, result: Result<T>, reply: Reply, ok: impl FnOnce(Reply, T)) {
    match result {
        Ok(value) => ok(reply, value),
        Err(Error::WouldWait) => reply.put_off(),
        Err(error) => reply.error(core.errors.errno(&error)),
    }
}

/// Answers for a change: with `-o sync`, a helper makes it stable before.
pub(super) fn answer_change<T: Send + 'static>(
    core: &Arc<Core>,
    pool: &Pool,
    result: Result<T>,
    reply: Reply,
    ok: impl FnOnce(Reply, T) + Send + 'static,
) {
    if !core.sync || result.is_err() {
        return answer(core, result, reply, ok);
    }
    let core = Arc::clone(core);
    pool.run(move || {
        let stable = result.and_then(|value| core.fs.sync().map(|()| value));
        answer(&core, stable, reply, ok);
    });
}

/// Answers with a value or its length, as the kernel asks.
pub(super) fn answer_value(core: &Core, result: Result<Vec<u8>>, size: u32, reply: Reply) {
    answer(core, result, reply, |reply, value| match (u32::try_from(value.len()), size) {
        (Ok(len), 0) => reply.size(len),
        (Ok(len), size) if len <= size => reply.bytes(&value),
        _ => reply.error(Errno::RANGE),
    });
}
