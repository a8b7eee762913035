//! The negotiation, newstyle in its fixed form: the client asks, option by option, until it chooses an export or leaves.
//!
//! **States.** Greeting → options (any number up to a limit, in any order) → export chosen, or closed. What is remembered between
//! options: the dialect, which only rises; the export that was asked for last; for which name the metadata context was chosen.
//!
//! An unknown option, or one with wrong contents, is answered with an error and changes nothing. Whatever makes it unknown where
//! the next option begins ends the connection.

mod answers;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fstitch_core::num::to_usize;
use fstitch_core::{Be, Errno, Error};

use crate::connection::{Broken, Input, PIECE_MAX, Place, Session, send_all};
use crate::export::{Export, Exports};
use crate::proto::batch::Batch;
use crate::proto::numbers as no;
use crate::proto::option::{Contexts, Wanted, string};
use crate::proto::request::Dialect;
use answers::Answers;

/// Longest contents of an option, in bytes. Strings have 4096 at most, and few options have more than one.
const CONTENTS_MAX: usize = 1 << 16;
const _: () = assert!(CONTENTS_MAX <= PIECE_MAX, "an option is looked at in the buffer");
/// Longer contents are skipped up to here, and end the connection beyond.
const SKIPPED_MAX: usize = 1 << 20;

/// How it goes on after an option.
enum Next {
    Option,
    Transmission(Session),
    Close,
}

/// A client that has not chosen yet.
struct Negotiation<'a> {
    place: &'a Place<'a>,
    exports: &'a dyn Exports,
    input: Input,
    /// When patience is over, on the clock of the options.
    deadline: Duration,
    dialect: Dialect,
    /// The client wants no padding behind the answer to the oldest option.
    has_no_zeroes: bool,
    /// What was asked for last: looking and then choosing are one opening.
    opened: Option<(String, Arc<dyn Export>)>,
    /// The name for which `base:allocation` was chosen.
    context: Option<String>,
}

/// Talks to a new client until it has chosen an export; `None` if it leaves without.
pub(crate) fn negotiate<'a>(
    place: &'a Place<'a>,
    exports: &'a dyn Exports,
) -> Result<Option<(Session, Input)>, Broken> {
    let mut negotiation = Negotiation {
        place,
        exports,
        input: Input::new(),
        deadline: place.options.clock.elapsed() + place.options.negotiation_max,
        dialect: Dialect::Simple,
        has_no_zeroes: false,
        opened: None,
        context: None,
    };
    negotiation.greet()?;
    for _ in 0..place.options.options_max {
        match negotiation.option()? {
            Next::Option => {}
            Next::Transmission(session) => {
                place.stream.set_patience(None)?;
                return Ok(Some((session, negotiation.input)));
            }
            Next::Close => return Ok(None),
        }
    }
    Err(Broken::Malformed)
}

impl Negotiation<'_> {
    /// Waits until `len` bytes are at hand.
    fn wait_for(&mut self, len: usize) -> Result<(), Broken> {
        while self.input.available().len() < len {
            let left = self.deadline.saturating_sub(self.place.options.clock.elapsed());
            if left.is_zero() {
                return Err(Broken::Stream);
            }
            self.place.stream.set_patience(Some(left))?;
            if !self.input.fill(self.place.stream)? {
                return Err(Broken::Stream);
            }
        }
        Ok(())
    }

    fn send(&self, batch: &Batch) -> Result<(), Broken> {
        Ok(send_all(self.place.stream, &[batch.bytes()])?)
    }

    fn greet(&mut self) -> Result<(), Broken> {
        let mut batch = Batch::default();
        batch.put_u64(no::NBDMAGIC);
        batch.put_u64(no::IHAVEOPT);
        batch.put_u16(no::FIXED_NEWSTYLE | no::NO_ZEROES);
        self.place.stream.set_patience(Some(self.place.options.negotiation_max))?;
        self.send(&batch)?;
        self.wait_for(4)?;
        let flags = Be::u32(self.input.available(), 0);
        self.input.consume(4);
        if flags & !u32::from(no::FIXED_NEWSTYLE | no::NO_ZEROES) != 0 {
            return Err(Broken::Malformed);
        }
        self.has_no_zeroes = flags & u32::from(no::NO_ZEROES) != 0;
        Ok(())
    }

    /// Takes an option, and answers it.
    fn option(&mut self) -> Result<Next, Broken> {
        self.wait_for(16)?;
        let header = self.input.available();
        let (magic, option, len) = (Be::u64(header, 0), Be::u32(header, 8), to_usize(Be::u32(header, 12)));
        if magic != no::IHAVEOPT || len > SKIPPED_MAX {
            return Err(Broken::Malformed);
        }
        self.input.consume(16);
        let mut answers = Answers::new(option);
        let next = if len > CONTENTS_MAX {
            self.skip(len)?;
            answers.error(no::REP_ERR_TOO_BIG, "longer than any option");
            Next::Option
        } else {
            self.wait_for(len)?;
            let contents = self.input.available()[..len].to_vec();
            self.input.consume(len);
            self.answer(option, &contents, &mut answers)?
        };
        self.send(&answers.batch)?;
        Ok(next)
    }

    fn skip(&mut self, len: usize) -> Result<(), Broken> {
        let mut left = len;
        while left > 0 {
            self.wait_for(1)?;
            let piece = self.input.available().len().min(left);
            self.input.consume(piece);
            left -= piece;
        }
        Ok(())
    }

    fn answer(&mut self, option: u32, contents: &[u8], answers: &mut Answers) -> Result<Next, Broken> {
        match option {
            no::OPT_EXPORT_NAME => return self.export_name(contents, answers),
            no::OPT_ABORT => {
                answers.ack();
                return Ok(Next::Close);
            }
            no::OPT_INFO => drop(self.info(contents, answers)),
            no::OPT_GO => {
                if let Some(session) = self.info(contents, answers) {
                    return Ok(Next::Transmission(session));
                }
            }
            no::OPT_LIST_META_CONTEXT => self.contexts(contents, answers, false),
            no::OPT_SET_META_CONTEXT => self.contexts(contents, answers, true),
            no::OPT_LIST | no::OPT_STARTTLS | no::OPT_STRUCTURED_REPLY | no::OPT_EXTENDED_HEADERS
                if !contents.is_empty() =>
            {
                answers.error(no::REP_ERR_INVALID, "this option has no contents");
            }
            no::OPT_LIST => self.list(answers),
            no::OPT_STARTTLS => answers.error(no::REP_ERR_POLICY, "this server has no TLS"),
            no::OPT_STRUCTURED_REPLY if self.dialect == Dialect::Extended => {
                answers.error(no::REP_ERR_EXT_HEADER_REQD, "extended headers were chosen");
            }
            no::OPT_STRUCTURED_REPLY => self.rise(Dialect::Structured, answers),
            no::OPT_EXTENDED_HEADERS => self.rise(Dialect::Extended, answers),
            _ => answers.error(no::REP_ERR_UNSUP, "no known option"),
        }
        Ok(Next::Option)
    }

    fn rise(&mut self, dialect: Dialect, answers: &mut Answers) {
        self.dialect = self.dialect.max(dialect);
        answers.ack();
    }

    fn list(&self, answers: &mut Answers) {
        match self.exports.list() {
            Ok(list) => {
                for listed in list {
                    answers.server(&listed);
                }
                answers.ack();
            }
            Err(error) => answers.error(no::REP_ERR_POLICY, &error.to_string()),
        }
    }

    /// The export of that name.
    fn open(&mut self, name: &str) -> fstitch_core::Result<Arc<dyn Export>> {
        if let Some((opened, export)) = &self.opened
            && opened == name
        {
            return Ok(Arc::clone(export));
        }
        // What was asked for before is dropped first: both may not be had at once.
        self.opened = None;
        let export = self.exports.open(name)?;
        self.opened = Some((name.to_owned(), Arc::clone(&export)));
        Ok(export)
    }

    /// The same; a client is told why not.
    fn open_or_refuse(&mut self, name: &str, answers: &mut Answers) -> Option<Arc<dyn Export>> {
        if self.place.stopping.load(Ordering::Relaxed) {
            answers.error(no::REP_ERR_SHUTDOWN, "the server stops");
            return None;
        }
        match self.open(name) {
            Ok(export) => Some(export),
            Err(error) => {
                answers.error(refusal(&error), &error.to_string());
                None
            }
        }
    }

    /// What there is to know of an export; with it a client may go on.
    fn info(&mut self, contents: &[u8], answers: &mut Answers) -> Option<Session> {
        let Some(wanted) = Wanted::parse(contents) else {
            answers.error(no::REP_ERR_INVALID, "the option's contents are no name and list");
            return None;
        };
        let export = self.open_or_refuse(wanted.name, answers)?;
        let payload_max = self.place.options.payload_max;
        answers.export(&*export, self.dialect);
        if wanted.asks(no::INFO_NAME) {
            answers.text(no::INFO_NAME, export.name().as_deref().unwrap_or(wanted.name));
        }
        if let Some(description) = export.description().filter(|_| wanted.asks(no::INFO_DESCRIPTION)) {
            answers.text(no::INFO_DESCRIPTION, &description);
        }
        if wanted.asks(no::INFO_BLOCK_SIZE) {
            answers.block_size(&*export, payload_max);
        }
        answers.ack();
        let has_allocation = self.context.as_deref() == Some(wanted.name);
        Some(Session::new(export, self.dialect, has_allocation, payload_max))
    }

    fn contexts(&mut self, contents: &[u8], answers: &mut Answers, is_choice: bool) {
        if self.dialect == Dialect::Simple {
            return answers.error(no::REP_ERR_INVALID, "structured replies come first");
        }
        let Some(contexts) = Contexts::parse(contents) else {
            return answers.error(no::REP_ERR_INVALID, "the option's contents are no name and list");
        };
        if is_choice {
            self.context = None;
        }
        if self.open_or_refuse(contexts.name, answers).is_none() {
            return;
        }
        let has_exact = contexts.queries.contains(&no::ALLOCATION);
        let has_listing = !is_choice && (contexts.queries.is_empty() || contexts.queries.contains(&"base:"));
        if has_exact || has_listing {
            answers.context(if is_choice { no::ALLOCATION_ID } else { 0 });
        }
        if is_choice && has_exact {
            self.context = Some(contexts.name.to_owned());
        }
        answers.ack();
    }

    /// The oldest way to choose: no answer to it can be an error.
    fn export_name(&mut self, contents: &[u8], answers: &mut Answers) -> Result<Next, Broken> {
        let name = string(contents).ok_or(Broken::Malformed)?;
        let is_stopping = self.place.stopping.load(Ordering::Relaxed);
        if is_stopping || self.dialect == Dialect::Extended {
            return Ok(Next::Close);
        }
        let Ok(export) = self.open(name) else { return Ok(Next::Close) };
        answers.oldest(&*export, self.dialect, self.has_no_zeroes);
        let has_allocation = self.context.as_deref() == Some(name);
        let payload_max = self.place.options.payload_max;
        Ok(Next::Transmission(Session::new(export, self.dialect, has_allocation, payload_max)))
    }
}

/// What a failure to open is in the words of the negotiation.
fn refusal(error: &Error) -> u32 {
    match error.errno() {
        Errno::PERM | Errno::ACCES | Errno::BUSY => no::REP_ERR_POLICY,
        _ => no::REP_ERR_UNKNOWN,
    }
}
